"""What does an expression look like as a graph? `build` walks back from its outputs and names what it meets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper

from .exceptions import GraphError
from .graph import OPSET, RANDOM, SMALL, Node, Value, make_node

__all__ = ["build", "rewritten", "topological"]


def build(
    inputs: Iterable[Value] | Mapping[str, Value],
    outputs: Iterable[Value] | Mapping[str, Value],
    *,
    name: str = "ortpartial",
) -> ModelProto:
    """The ONNX model that computes `outputs` from `inputs`.

    The walk goes back from the outputs and stops at the inputs, even computed ones, so a graph can be cut anywhere.
    What is not reached is not emitted, and the same expression written twice becomes one node (random operators never).

    Parameters
    ----------
    inputs, outputs : iterable of Value, or dict of str to Value
        A dict gives names; else a value keeps its own where it is unique.
    name : str
        Name of the graph.

    Returns
    -------
    onnx.ModelProto
        It declares the highest opset that its nodes need, at least 21.

    Raises
    ------
    GraphError
        The outputs need a variable that is not among the inputs, or a name is given twice.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N", 3])
    >>> model = build([x], {"y": op.Exp(x) + op.Exp(x)})
    >>> [node.op_type for node in model.graph.node]
    ['Exp', 'Add']
    """
    named_in = _named(inputs, "input")
    named_out = _named(outputs, "output")
    cut = {v: n for n, v in named_in.items()}
    order = topological(list(named_out.values()), cut)
    return _Builder(cut, named_out, order).model(name, named_in)


def _named(values: Iterable[Value] | Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """Values by name: the names given, else the hints, else `prefix_i`."""
    if isinstance(values, Mapping):
        return dict(values)
    named: dict[str, Value] = {}
    for i, v in enumerate(values):
        key = v.hint or f"{prefix}_{i}"
        if key in named:
            raise GraphError(f"Two {prefix}s are called {key!r}; give them names by a dict.")
        named[key] = v
    return named


def topological(roots: Sequence[Value], cut: Collection[Value] = ()) -> list[Node]:
    """Nodes that the roots need, each after those it reads, in the order in which expressions were written.

    Parameters
    ----------
    roots : sequence of Value
        What is computed.
    cut : collection of Value
        Where the walk back ends.

    Returns
    -------
    list of Node
    """
    order: list[Node] = []
    done: set[int] = set()
    stack: list[tuple[Node, bool]] = [(v.node, False) for v in reversed(roots) if v.node and v not in cut]
    while stack:
        node, ready = stack.pop()
        if id(node) in done:
            continue
        if ready:
            done.add(id(node))
            order.append(node)
            continue
        stack.append((node, True))
        stack.extend(
            (v.node, False)
            for v in reversed(node.inputs)
            if v is not None and v.node is not None and v not in cut and id(v.node) not in done
        )
    return order


def rewritten(
    roots: Sequence[Value],
    change: Callable[[Node, list[Value | None]], Sequence[Value] | None],
    leaves: Mapping[Value, Value] | None = None,
) -> Callable[[Value], Value]:
    """An expression in which some nodes are computed otherwise.

    Parameters
    ----------
    roots : sequence of Value
        What is computed.
    change : callable
        A function of a node and of its new inputs that gives its new outputs, or None to leave it as it is.
    leaves : mapping of Value to Value, optional
        Inputs and constants that others stand for.

    Returns
    -------
    callable
        What stands for a value of the old expression in the new one.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N"])
    >>> y = op.Neg(op.Relu(x))
    >>> new = rewritten([y], lambda node, inputs: [op.Exp(*inputs)] if node.op_type == "Relu" else None)
    >>> [n.op_type for n in topological([new(y)])]
    ['Exp', 'Neg']
    """
    found: dict[Value, Value] = dict(leaves or {})

    def new(v: Value) -> Value:
        y = found.get(v, v)
        # What inference over the whole graph knew about a shape, one node does not show.
        return y if y is v or y.node is None else y.stated(v.shape)

    for node in topological(roots):
        inputs = [None if x is None else new(x) for x in node.inputs]
        outputs = change(node, inputs)
        if outputs is None and inputs != list(node.inputs):
            outputs = make_node(node.schema, inputs, node.attributes, n_outputs=len(node.outputs), name=node.name,
                                hints=[y.hint for y in node.outputs]).outputs  # fmt: skip
        found.update(zip(node.outputs, outputs or (), strict=False))
    return new


class _Builder:
    """Names the values of one graph as it meets them and merges nodes that compute the same."""

    def __init__(self, cut: Mapping[Value, str], named_out: Mapping[str, Value], order: Sequence[Node]):
        self.names: dict[Value, str] = dict(cut)
        self.taken: set[str] = set(cut.values()) | set(named_out)
        self.counts: dict[str, int] = {}
        self.initializers: list[TensorProto] = []
        self.by_content: dict[Any, str] = {}
        self.nodes: list[NodeProto] = []
        self.version: dict[str, int] = {"": OPSET}
        self.named_out = named_out
        self.wanted = {v: n for n, v in reversed(list(named_out.items())) if v.node is not None and v not in cut}
        same = self._merge(order)
        reached = {same(v) for node in order for v in node.inputs if v is not None} | {same(v) for v in self.wanted}
        for node in order:
            if same(node.outputs[0]).node is node:
                self._emit(node, same, reached)
        for target, v in named_out.items():
            source = self._name(same(v), "output")
            if source != target:
                self.nodes.append(helper.make_node("Identity", [source], [target]))

    def _merge(self, order: Sequence[Node]) -> Callable[[Value], Value]:
        """Which value stands for which: the first of those whose nodes compute the same."""
        representative: dict[int, Node] = {}
        seen: dict[Any, Node] = {}

        def same(v: Value) -> Value:
            if v in self.names or v.node is None:
                return v
            return representative.get(id(v.node), v.node).outputs[v.index]

        for node in order:
            arguments = tuple(None if v is None else self._identity(same(v)) for v in node.inputs)
            attributes = b"".join(a.SerializeToString(deterministic=True) for a in node.protos())
            key = (node.domain, node.op_type, node.schema.since_version, arguments, attributes, len(node.outputs))
            if node.op_type in RANDOM or any(v in self.names for v in node.outputs):
                continue
            representative[id(node)] = seen.setdefault(key, node)
        wanted: dict[Value, str] = {}
        for v, n in self.wanted.items():
            wanted.setdefault(same(v), n)
        self.wanted = wanted
        return same

    def _identity(self, v: Value) -> Any:
        """What makes two values equal: being the same output, or constants of the same name, type and content.

        Two biases of zeros, each with a name of its own, are two weights that a training moves apart.
        """
        if v.array is not None and v not in self.names:
            content = v.array.tobytes() if v.array.size <= SMALL else id(v.array)
            return v.hint, v.array.dtype.str, v.array.shape, content
        return v._key()

    def _fresh(self, hint: str, prefix: str) -> str:
        """A name that is free: the hint itself, else `prefix_n`."""
        if hint and hint not in self.taken:
            self.taken.add(hint)
            return hint
        while True:
            n = self.counts[prefix] = self.counts.get(prefix, -1) + 1
            if (name := f"{prefix}_{n}") not in self.taken:
                self.taken.add(name)
                return name

    def _name(self, v: Value, prefix: str) -> str:
        """The name of a value; a constant is stored when it is first met, a node's output is named by its operator."""
        if v in self.names:
            return self.names[v]
        if v.array is not None:
            key = self._identity(v)
            if key not in self.by_content:
                self.by_content[key] = self._fresh(v.hint, "constant")
                self.initializers.append(numpy_helper.from_array(v.array, self.by_content[key]))
            self.names[v] = self.by_content[key]
        elif v in self.wanted:
            self.names[v] = self.wanted[v]
        elif v.node is None:
            raise GraphError(f"The outputs need {v!r}, which is not among the inputs of the graph.")
        else:
            self.names[v] = self._fresh(v.hint, prefix)
        return self.names[v]

    def _emit(self, node: Node, same: Callable[[Value], Value], reached: set[Value]) -> None:
        """Write one node: required outputs always, optional ones where somebody reads them."""
        formal = node.schema.outputs
        optional = defs.OpSchema.FormalParameterOption.Optional
        # BatchNormalization in training must have all of its outputs, although the schema calls them optional.
        all_of_them = node.op_type == "BatchNormalization" and node.attributes.get("training_mode")
        emitted = [
            v in reached or all_of_them or formal[min(i, len(formal) - 1)].option != optional
            for i, v in enumerate(node.outputs)
        ]
        last = max(i for i, e in enumerate(emitted) if e) + 1
        proto = NodeProto(op_type=node.op_type, domain=node.domain, name=self._fresh(node.name, f"{node.op_type}_node"))
        proto.input.extend("" if v is None else self._name(same(v), "value") for v in node.inputs)
        proto.output.extend(self._name(node.outputs[i], node.op_type) if emitted[i] else "" for i in range(last))
        proto.attribute.extend(node.protos())
        self.nodes.append(proto)
        self.version[node.domain] = max(self.version.get(node.domain, 1), node.schema.since_version)

    def model(self, name: str, named_in: Mapping[str, Value]) -> ModelProto:
        """The finished model, with the smallest IR version that its opset allows."""
        graph = helper.make_graph(
            self.nodes, name,
            [helper.make_value_info(n, v.type) for n, v in named_in.items()],
            [helper.make_value_info(n, v.type) for n, v in self.named_out.items()],
            self.initializers,
        )  # fmt: skip
        opsets = [helper.make_opsetid(d, v) for d, v in sorted(self.version.items())]
        standard = [o for o in opsets if o.domain in ("", "ai.onnx.ml")]
        return helper.make_model(graph, opset_imports=opsets, producer_name="ortpartial",
                                 ir_version=helper.find_min_ir_version_for(standard))  # fmt: skip
