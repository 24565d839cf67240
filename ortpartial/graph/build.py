"""Building a model from values: topological order, names, common subexpression elimination, and bodies."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Hashable, Iterable, Mapping, MutableMapping, Sequence

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper

from ortpartial.checks import check_names, to_tuple
from ortpartial.exceptions import GraphError

from .gradient_stop import drop_straight_through, write_gradient_change
from .ops import SMALL, constant, op
from .refusals import GUARD, REFUSING, describe_refusal
from .schemas import OPSET
from .traits import RANDOM
from .values import Node, Subgraph, Value, topological
from .walk import walk_nodes

__all__ = ["build"]

#: Bytes from which on a constant is big, and from which on all big constants together may stay apart from the model.
_BIG, _MANY = 2**18, 2**24


def build(
    inputs: Iterable[Value] | Mapping[str, Value],
    outputs: Iterable[Value] | Mapping[str, Value],
    *,
    name: str = "ortpartial",
    reserved: Iterable[str] = (),
    apart: dict[str, np.ndarray] | None = None,
) -> ModelProto:
    """The ONNX model that computes `outputs` from `inputs`.

    The walk goes back from the outputs and stops at the inputs, even computed ones, so a graph can be cut anywhere.
    Unreached nodes are not emitted, and equal expressions become a single node (random operators never).

    Parameters
    ----------
    inputs, outputs : iterable of Value, or dict of str to Value
        A dict gives names; else a value keeps its hint where it is unique.
    name : str
        Name of the graph.
    reserved : iterable of str
        Names that only `inputs` and `outputs` may use.
    apart : dict of str to numpy.ndarray, optional
        Receives the content of constants of 256 kB or more, where all of them take 16 MB or more; the model refers to
        them as external data in no file, for a session that borrows their memory.

    Returns
    -------
    onnx.ModelProto
        It declares the highest opset that its nodes need, at least 21.

    Raises
    ------
    GraphError
        The outputs need a variable that is not among the inputs, or two inputs or outputs have the same name.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N", 3])
    >>> model = build([x], {"y": op.Exp(x) + op.Exp(x)})
    >>> [node.op_type for node in model.graph.node]
    ['Exp', 'Add']
    """
    if not isinstance(name, str):
        raise GraphError(f"build: name is a string, not {name!r}.")
    reserved = check_names("build: reserved", reserved, GraphError)
    named_in = _named(inputs, "input")
    named_out = _named(outputs, "output")
    cut = {v: n for n, v in named_in.items()}
    named_out = dict(zip(named_out, drop_straight_through(list(named_out.values()), cut), strict=True))
    # The order is that of writing, so that a gradient is no longer kept once its weight has been updated.
    order = _order(sorted(named_out.values(), key=lambda v: v.node.serial if v.node else -1), cut)
    names = _Names(cut, named_out, order)
    names.taken.update(reserved)
    graph = _Graph(names, cut, order).emitted(name, named_in, named_out)
    opsets = [helper.make_opsetid(d, v) for d, v in sorted(names.version.items())]
    standard = [o for o in opsets if o.domain in ("", "ai.onnx.ml")]
    # The smallest IR version that the opset allows.
    model = helper.make_model(graph, opset_imports=opsets, producer_name="ortpartial",
                              ir_version=helper.find_min_ir_version_for(standard))
    names.store(model.graph, apart)
    return model


def _named(values: Iterable[Value] | Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """Values by name: the keys of a dict, else the hints, else `prefix_i`."""
    listed = None if isinstance(values, Value) else to_tuple(values)
    if listed is None:
        raise GraphError(f"build: {prefix}s is a list of values, or a dict of them by name, not {values!r}; write "
                         f"[value] for one.")
    items = values.items() if isinstance(values, Mapping) else ((f"{prefix}_{i}", v) for i, v in enumerate(listed))
    named: dict[str, Value] = {}
    for default, v in items:
        if not isinstance(v, Value):
            raise GraphError(f"build: the {prefix} {default!r} is {v!r}, where a value was expected, as variable, "
                             f"constant and op return them.")
        key = default if isinstance(values, Mapping) else v.hint or default
        if key in named:
            raise GraphError(f"Two {prefix}s are called {key!r}; give them names by a dict.")
        named[key] = v
    return named


def _order(roots: Sequence[Value], cut: Collection[Value], within: Collection[Node] | None = None) -> list[Node]:
    """Nodes that the roots need; nodes shared with a branch of If come before the If, not inside it."""
    order = topological(roots, cut, within)
    if any(node.bodies for node in order):
        here = set(order)
        also = {node: [n for b in node.bodies if not b.inputs for n in b.nodes if n in here] for node in order}
        if any(also.values()):
            return topological(roots, cut, within, also)
    return order


def _tapped(roots: Sequence[Value], order: Sequence[Node]) -> set[Node]:
    """Nodes that hand values out of their bodies, at whatever depth."""
    nodes: set[Node] = set()
    if not any(node.bodies for node in order):
        return nodes
    for v in [*roots, *(v for node in walk_nodes(order) for v in node.reads)]:
        while v.inner is not None and v.node is not None:
            nodes.add(v.node)
            v = v.inner
    return nodes


class _Names:
    """Names, constants and opsets of a model, which its bodies share."""

    def __init__(self, cut: Mapping[Value, str], named_out: Mapping[str, Value], order: Sequence[Node]):
        self.tapped = _tapped(list(named_out.values()), order)
        self.taken: set[str] = set(cut.values()) | set(named_out)
        self.counts: dict[str, int] = {}
        self.initializers: dict[str, np.ndarray] = {}
        self.by_content: dict[Hashable, str] = {}
        self.version: dict[str, int] = {"": OPSET}

    def fresh(self, hint: str, prefix: str) -> str:
        """An unused name: the hint itself, else `prefix_n`."""
        while hint.startswith(GUARD) and hint in self.taken:
            hint += " "  # The name of a guard is its error, which other guards may have as well.
        if hint and hint not in self.taken:
            self.taken.add(hint)
            return hint
        while True:
            n = self.counts[prefix] = self.counts.get(prefix, -1) + 1
            if (name := f"{prefix}_{n}") not in self.taken:
                self.taken.add(name)
                return name

    def constant(self, v: Value, identity: object) -> str:
        """The name of a constant, which becomes an initializer the first time."""
        if identity not in self.by_content:
            assert v.array is not None
            self.by_content[identity] = self.fresh(v.hint, "constant")
            self.initializers[self.by_content[identity]] = v.array
        return self.by_content[identity]

    def store(self, graph: GraphProto, apart: dict[str, np.ndarray] | None) -> None:
        """Add the initializers to the graph in place, which saves two copies of possibly gigabytes.

        Big initializers may stay `apart`.
        """
        big = {n: a for n, a in self.initializers.items() if a.nbytes >= _BIG and _is_plain(a)}
        if apart is not None and sum(a.nbytes for a in big.values()) >= _MANY:
            apart.update(big)
        for n, array in self.initializers.items():
            t = graph.initializer.add(name=n, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
            if apart and n in apart:
                t.data_location = TensorProto.EXTERNAL
                t.external_data.add(key="location", value="memory")
            elif _is_plain(array):
                t.raw_data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            else:
                t.CopyFrom(numpy_helper.from_array(array, n))


def _is_plain(array: np.ndarray) -> bool:
    """Whether numpy itself has the dtype, and its numbers have places of their own."""
    return array.dtype.isbuiltin == 1 and array.dtype.kind in "biuf"


def _needs_all_outputs(node: Node) -> bool:
    """Whether onnxruntime refuses a node that lacks an output, although the schema calls it optional.

    So it is with Attention that reads a cache of keys, in 1.31.1, and with GroupQueryAttention, in 1.19.2.
    """
    if node.op_type == "Attention" and not node.domain:
        return len(node.inputs) > 4 and node.inputs[4] is not None
    if node.op_type == "BatchNormalization":
        return bool(node.attributes.get("training_mode"))
    if node.key == ("com.microsoft", "GroupQueryAttention"):
        return True
    return node.op_type == "EmbedLayerNormalization" and node.attributes.get("mask_index_type") != 0


class _Graph:
    """A graph, of the model or of a body: merges nodes that compute the same, then names values and emits nodes.

    A body knows the graph around it and repeats none of its nodes.
    """

    def __init__(self, shared: _Names, cut: Mapping[Value, str], order: Sequence[Node], parent: _Graph | None = None,
                 stops: Mapping[Value, str] | None = None):
        self.shared, self.cut, self.parent = shared, cut, parent
        self.stops = cut if stops is None else stops
        self.names: dict[Value, str] = dict(cut)
        self.nodes: list[NodeProto] = []
        self.bodies: dict[Node, list[_Graph]] = {}
        self.representative: dict[int, Node] = {}
        self.protos: dict[Node, list[AttributeProto]] = {}
        self.seen: MutableMapping[Hashable, Node] = {} if parent is None else ChainMap({}, parent.seen)
        # A branch, which has no inputs, leaves out nodes that the graph around it computes before it.
        self.order = list(order) if parent is None or cut else [n for n in order if not parent.has(n)]
        self.own = {id(node) for node in self.order}
        self.computed: set[int] = set()
        self._merge()

    def has(self, node: Node) -> bool:
        """Whether a node is computed already, here or in the graph around a branch."""
        return id(node) in self.computed or (self.parent is not None and not self.cut and self.parent.has(node))

    def _merge(self) -> None:
        """Find the representative of each node: the first node that computes the same."""
        for node in self.order:
            if node.bodies:
                self.bodies[node] = [self._body(body) for body in node.bodies]
            self.computed.add(id(node))
            if node.op_type in RANDOM or node.is_opaque or (self.cut and any(v in self.cut for v in node.outputs)):
                continue
            if node.bodies and (node.is_random or node in self.shared.tapped):
                continue
            arguments = tuple(None if v is None else self._identity(self.same(v)) for v in node.inputs)
            self.protos[node] = node.protos()
            attributes = b"".join([a.SerializeToString(deterministic=True) for a in self.protos[node]])
            key = (node.domain, node.op_type, node.schema.since_version, arguments, attributes, len(node.outputs),
                   *(self._structure(body, {}) for body in node.bodies))
            self.representative[id(node)] = self.seen.setdefault(key, node)

    def _body(self, body: Subgraph) -> _Graph:
        """The graph of a body, with names for its inputs."""
        cut = {v: self.shared.fresh(v.hint if v.node is None else "", "in") for v in body.inputs}
        # A branch stops where the graph around it does; in a loop, a value may differ from one iteration to the next.
        stops = cut if body.inputs else self.stops
        return _Graph(self.shared, cut, _order(body.outputs, stops, body.own), self, stops)

    def _structure(self, body: Subgraph, bound: Mapping[Value, object]) -> Hashable:
        """A key that is equal for equal bodies: the same nodes in the same order, of the same captured values."""
        numbers = dict(bound)
        for v in body.inputs:
            numbers[v] = "input", len(numbers)

        def identify(v: Value | None) -> Hashable:
            return None if v is None else numbers[v] if v in numbers else self._identity(self.same(v))

        nodes = []
        for node in body.nodes:
            attributes = b"".join(a.SerializeToString(deterministic=True) for a in node.protos())
            inner = tuple(self._structure(b, numbers) for b in node.bodies)
            arguments = tuple(identify(v) for v in node.inputs)
            nodes.append((node.domain, node.op_type, node.schema.since_version, arguments, attributes, inner))
            for v in node.outputs:
                numbers[v] = "node", len(numbers)
        return len(body.inputs), tuple(nodes), tuple(identify(v) for v in body.outputs)

    def same(self, v: Value) -> Value:
        """The output of the representative that stands for v."""
        if v.node is None or v in self.cut:
            return v
        if self.parent is not None and id(v.node) not in self.own:
            return self.parent.same(v)
        node = self.representative.get(id(v.node), v.node)
        return v if node is v.node or v.inner is not None else node.outputs[v.index]

    def _identity(self, v: Value) -> Hashable:
        """A key that is equal for equal values: the same output, or constants of the same name, type and content.

        Two biases of zeros with different names are two weights, which training moves apart. The inputs of a body, and
        values computed from them, differ from the values of every other body.
        """
        if self.parent is not None:
            here = v in self.cut or (v.node is not None and id(v.node) in self.own)
            return (id(self), v.identity) if here else self.parent._identity(v)
        if v.array is not None and v not in self.cut:
            content = v.array.tobytes() if v.array.size <= SMALL else id(v.array)
            return v.hint, v.array.dtype.str, v.array.shape, content
        return v.identity

    def _name(self, v: Value, prefix: str) -> str:
        """The name of a value: the name of an output of the graph, its hint, or a new name with this prefix."""
        if v in self.names:
            return self.names[v]
        if self.parent is not None and (v.node is None or id(v.node) not in self.own):
            return self.parent._name(v, prefix)
        if v.array is not None:
            name = self.shared.constant(v, self._identity(v))
        elif v in self.wanted:
            name = self.wanted[v]
        elif v.node is None:
            raise GraphError(f"The outputs need {v!r}, which is not among the inputs of the graph.")
        else:
            name = self.shared.fresh(v.hint, prefix)
        self.names[v] = name
        return name

    def emitted(self, name: str, inputs: Mapping[str, Value], outputs: Mapping[str, Value]) -> GraphProto:
        """The finished graph."""
        self.wanted: dict[Value, str] = {}
        for n, v in outputs.items():
            if v.node is not None and id(v.node) in self.own and v not in self.cut:
                self.wanted.setdefault(self.same(v), n)
        self.reached = {self.same(v) for node in self.order for v in node.reads} | set(self.wanted)
        self.taps: dict[Node, list[Value]] = {}
        if self.bodies:
            for v in [v for node in self.order for v in node.reads] + list(outputs.values()):
                if v.inner is not None and v not in self.cut and v.node is not None:
                    self.taps.setdefault(v.node, []).append(v)
        for node in self.order:
            if self.representative.get(id(node), node) is node:
                self._emit(node)
        for target, v in outputs.items():
            source = self._name(self.same(v), "output")
            if source != target:
                self.nodes.append(helper.make_node("Identity", [source], [target]))
        return helper.make_graph(
            self.nodes, name,
            [helper.make_value_info(n, v.type) for n, v in inputs.items()],
            [helper.make_value_info(n, v.type) for n, v in outputs.items()],
        )

    def _emit(self, node: Node) -> None:
        """Emit a node: required outputs always, optional outputs where they are read."""
        formal = node.schema.outputs
        optional = defs.OpSchema.FormalParameterOption.Optional
        all_of_them = _needs_all_outputs(node)
        emitted = [
            v in self.reached or all_of_them or formal[min(i, len(formal) - 1)].option != optional
            for i, v in enumerate(node.outputs)
        ]
        last = max(i for i, e in enumerate(emitted) if e) + 1
        domain, operator = node.key
        name = self.shared.fresh(node.name, f"{operator}_node")
        proto = NodeProto(op_type=operator, domain=domain, name=name)
        proto.input.extend("" if v is None else self._name(self.same(v), "value") for v in node.inputs)
        proto.output.extend(self._name(node.outputs[i], operator) if emitted[i] else "" for i in range(last))
        proto.attribute.extend(self.protos[node] if node in self.protos else node.protos())
        if node.bodies:
            self._emit_bodies(node, proto)
        if node.op_type in ("StopGradient", "StraightThrough"):
            write_gradient_change(proto)
        if node.op_type in REFUSING:
            proto.doc_string = describe_refusal(node)  # which errors of onnxruntime do not say
        self.nodes.append(proto)
        self.shared.version[proto.domain] = max(self.shared.version.get(proto.domain, 1), node.schema.since_version)

    def _emit_bodies(self, node: Node, proto: NodeProto) -> None:
        """Emit the bodies of a node, and the values tapped from them as further outputs."""
        taps = list(dict.fromkeys(self.taps.get(node, ())))
        graphs = self.bodies[node]
        names = [k for k, a in sorted(node.attributes.items()) if isinstance(a, Subgraph)]
        for name, body, graph in zip(names, node.bodies, graphs, strict=True):
            outputs = [*body.outputs, *(graph._handed_out(v.inner, node, body) for v in taps if v.inner is not None)]
            named = {self.shared.fresh("", f"{name.removesuffix('_branch')}_out"): v for v in outputs}
            inputs = {n: v for v, n in graph.cut.items()}
            proto.attribute.append(helper.make_attribute(name, graph.emitted(f"{proto.name}_{name}", inputs, named)))
        proto.output.extend(self._name(v, f"{node.op_type}_tap") for v in taps)
        if taps and node.op_type == "Scan":
            for a in proto.attribute:
                if a.name in ("scan_output_axes", "scan_output_directions"):
                    a.ints.extend([0] * len(taps))

    def _handed_out(self, v: Value, node: Node, body: Subgraph) -> Value:
        """A tapped value of a body; zeros of its static shape where it belongs to the other branch of an If."""
        if node.op_type != "If" or v.node in body.own:
            return v
        nothing = constant(np.zeros((), v.dtype))
        if not v.shape:
            return nothing
        zeros: Value = op.Expand(nothing, [n if isinstance(n, int) else 0 for n in v.shape])
        if zeros.node is not None:
            self.order.append(zeros.node)
            self.own.add(id(zeros.node))
        return zeros
