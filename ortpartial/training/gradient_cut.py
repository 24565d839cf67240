"""The gradient of a graph as two graphs: forward keeps the values that backward reads."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import backpropagate, set_unbounded
from ortpartial.exceptions import ModelError, NoGradientError
from ortpartial.graph import (
    RANDOM,
    Value,
    build,
    find_boundary,
    find_reached,
    ones_like,
    topological,
    variable,
    zeros_like,
)
from ortpartial.rewrites import rewrite_step
from ortpartial.texts import free_name

__all__ = ["GradientCut", "GraphFunction"]

#: Operators whose output backward recomputes from their input where that is kept anyway.
_CHEAP = frozenset({"Add", "Cast", "Div", "Flatten", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual",
                    "Mul", "Neg", "Not", "Reshape", "Squeeze", "Sub", "Transpose", "Unsqueeze"})
#: Operators that move or scale elements; a runtime fuses them with the products that read them.
_MOVING = _CHEAP & {"Div", "Flatten", "Identity", "Mul", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}


@dataclass(frozen=True, eq=False)
class GraphFunction:
    """A function from leaves to outputs, some of whose intermediate values may be computed already.

    Parameters
    ----------
    leaves : dict of str to Value
        Its arguments; it can be differentiated by the real numbers among them.
    outputs : dict of str to Value
        Its results.
    precomputed : dict of str to Value
        Values that follow from the leaves and are passed in to save work. They do not change a derivative.
    nondifferentiable : frozenset of str
        Outputs that are not differentiated although they are real numbers.
    is_gradient : bool
        Whether it is the gradient of another function, whose random numbers it must not draw again.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N"])
    >>> square = GraphFunction({"x": x}, {"y": x * x})
    >>> [node.op_type for node in square.graph().graph.node]
    ['Mul']
    """

    leaves: Mapping[str, Value]
    outputs: Mapping[str, Value]
    precomputed: Mapping[str, Value] = field(default_factory=dict)
    nondifferentiable: frozenset[str] = frozenset()
    is_gradient: bool = False

    @property
    def sources(self) -> dict[str, Value]:
        """The leaves, then the precomputed values."""
        return {**self.leaves, **self.precomputed}

    @property
    def seeds(self) -> list[str]:
        """The outputs that can be differentiated."""
        return [n for n, y in self.outputs.items() if y.is_float and n not in self.nondifferentiable]

    @property
    def is_loss(self) -> bool:
        """Whether a single output can be differentiated and is a scalar, whose gradient may be scaled afterwards.

        Nothing may be drawn at random, and in float16 a gradient would be 0 that was to be scaled before.
        """
        if self.is_gradient or self.precomputed or len(self.seeds) != 1:
            return False
        y = self.outputs[self.seeds[0]]
        if y.shape is None or any(d != 1 for d in y.shape):
            return False
        nodes = topological([y], set(self.leaves.values()))
        return not any(n.op_type in RANDOM or any(v.dtype == np.float16 for v in n.outputs) for n in nodes)

    def with_gradient(self, wanted: Sequence[str]) -> tuple[GraphFunction, list[str]]:
        """Join a loss and its gradient in a function.

        Parameters
        ----------
        wanted : sequence of str
            The leaves to differentiate by.

        Returns
        -------
        GraphFunction and list of str
            The outputs, then the gradient of the loss by the leaves that it depends on, and the names of these.

        Raises
        ------
        NoGradientError
            An operator on the way has no rule and no body.
        """
        y = self.outputs[self.seeds[0]]
        gradients = backpropagate([y], [ones_like(y)], [self.leaves[w] for w in wanted])
        names = [w for w, g in zip(wanted, gradients, strict=True) if g is not None]
        outputs = dict(self.outputs)
        for name, g in zip(wanted, gradients, strict=True):
            if g is not None:
                outputs[free_name(f"{name}_grad", {*outputs, *self.leaves})] = g
        return GraphFunction(self.leaves, outputs), names

    def graph(self, saved: Mapping[str, Value] | None = None, *, fast: bool = True) -> ModelProto:
        """Build the function as a model whose inputs are the sources that it reads.

        Parameters
        ----------
        saved : dict of str to Value, optional
            Further outputs.
        fast : bool
            Whether it is in operators that take less time, which may change the last bits.

        Returns
        -------
        onnx.ModelProto

        Raises
        ------
        NoGradientError
            A gradient depends on random numbers that were not kept.
        """
        outputs = {**self.outputs, **(saved or {})}
        read = find_reached(outputs.values(), self.sources.values())
        nodes = topological(list(outputs.values()), read) if self.is_gradient else []
        if random := [node for node in nodes if node.op_type in RANDOM]:
            raise NoGradientError(f"{random[0]!r} would draw other random numbers than the forward did; make them an "
                                  f"input of the graph.")
        if fast:
            outputs = rewrite_step(outputs, list(read))
        return build({n: v for n, v in self.sources.items() if v in read}, outputs, name="layer")


def _cheap_input(v: Value) -> Value | None:
    """The only tensor that a value is computed from, if that costs no more than a copy."""
    if v.node is None or v.node.op_type not in _CHEAP or v.node.domain:
        return None
    tensors = [x for x in v.node.inputs if x is not None and x.array is None]
    return tensors[0] if len(tensors) == 1 else None


def _unmoved(v: Value, sources: Container[Value]) -> Value:
    """The value before its elements were moved and scaled: as large, and often shared with other values."""
    while v not in sources and v.node is not None and v.node.op_type in _MOVING and (x := _cheap_input(v)) is not None:
        v = x
    return v


class GradientCut:
    """The values that a function keeps for its gradient, and the gradient that starts from them.

    Parameters
    ----------
    function : GraphFunction
        The function that is differentiated.
    wanted : sequence of str
        The leaves to differentiate by.
    recompute : bool
        Whether only the leaves are kept and all else is computed again.
    with_zeros : bool
        Whether leaves that no output depends on have a gradient, of zeros, instead of none.

    Attributes
    ----------
    seeds : list of str
        Outputs that have a cotangent.
    leaves, precomputed, outputs : list of str
        Names of the function's values that the gradient reads, and the wanted leaves.
    saved : dict of str to Value
        Its further inputs, which are further outputs of the forward graph.
    gradient : tuple of GraphFunction and list of str
        The gradient where every seed has a cotangent, as `backward` returns it. Its masks are multiplied in wherever
        finite cotangents stay finite.

    Raises
    ------
    ModelError
        A wanted leaf holds no real numbers.
    NoGradientError
        An operator on the way has no rule and no body.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x, w = variable("x", "float32", ["N", 3]), variable("w", "float32", [3, 2])
    >>> cut = GradientCut(GraphFunction({"x": x, "w": w}, {"y": op.Tanh(op.Relu(x @ w))}), ["w"])
    >>> cut.leaves, cut.outputs, cut.saved
    (['x', 'w'], ['y'], {'saved_0': <Value Relu float32[Nx2]>})
    """

    def __init__(self, function: GraphFunction, wanted: Sequence[str], *, recompute: bool = False,
                 with_zeros: bool = False):
        for name in wanted:
            if not (leaf := function.leaves[name]).is_float:
                raise ModelError(f"{name!r} holds {leaf.dtype}, and only real numbers have a gradient.")
        self.function, self.wanted = function, list(wanted)
        self.recompute, self.with_zeros = recompute, with_zeros
        self.seeds = function.seeds
        self._taken = {*function.sources, *function.outputs}
        cotangents, gradients = self._backpropagate(self.seeds)
        read = {} if recompute else self._values_to_keep(gradients.values())
        sources = set(function.sources.values())
        self.leaves = [n for n, v in function.leaves.items() if recompute or v in read or n in wanted]
        self.precomputed = [n for n, v in function.precomputed.items() if recompute or v in read]
        self._choose_saved([v for v in read if v not in sources])
        self.gradient = self._make_gradient(cotangents, gradients)

    def _choose_saved(self, values: Iterable[Value]) -> None:
        """Take values from the outputs where possible, and make the others further outputs."""
        names = {v: n for n, v in reversed(list(self.function.outputs.items()))}
        self.outputs = [names[v] for v in values if v in names]
        rest = [v for v in values if v not in names]
        self.saved = {self.free_name(f"saved_{i}"): v for i, v in enumerate(rest)}

    def free_name(self, name: str) -> str:
        """Reserve a name, underscored until nothing else has it."""
        name = free_name(name, self._taken)
        self._taken.add(name)
        return name

    def _backpropagate(self, seeds: Sequence[str], finite: bool = True) -> tuple[dict[str, Value], dict[str, Value]]:
        """Variables for the cotangents of outputs, and the gradients by the wanted leaves that they depend on."""
        ys = [self.function.outputs[o] for o in seeds]
        dys = {o: variable(f"{o}_grad", y.dtype, y.shape) for o, y in zip(seeds, ys, strict=True)}
        leaves = [self.function.leaves[w] for w in self.wanted]
        for dy in () if finite else dys.values():
            set_unbounded(dy)
        gradients: Sequence[Value | None] = backpropagate(ys, list(dys.values()), leaves)
        if self.with_zeros:
            gradients = [zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True)]
        return dys, {w: g for w, g in zip(self.wanted, gradients, strict=True) if g is not None}

    def _values_to_keep(self, gradients: Iterable[Value]) -> dict[Value, None]:
        """The values of the function that gradients read, in that order, without values that are cheap to recompute."""
        function = self.function
        sources, leaves = set(function.sources.values()), set(function.leaves.values())
        read = find_boundary(gradients, list(function.outputs.values()), sources)
        unmoved = dict.fromkeys(v if v in sources else _unmoved(v, sources) for v in read)
        kept: dict[Value, None] = {}
        for v in unmoved:
            x = None if v in sources else _cheap_input(v)
            if x in leaves:
                kept.setdefault(x)
            elif x not in unmoved:
                kept.setdefault(v)
        return kept

    def _make_gradient(
        self, cotangents: Mapping[str, Value], gradients: Mapping[str, Value]
    ) -> tuple[GraphFunction, list[str]]:
        """The gradient as a function, and the leaves that its outputs are the gradients of."""
        function = self.function
        dys = {self.free_name(f"{o}_grad"): d for o, d in cotangents.items()}
        leaves = {**{n: function.leaves[n] for n in self.leaves}, **dys}
        precomputed = {**{n: function.precomputed[n] for n in self.precomputed},
                       **{n: function.outputs[n] for n in self.outputs}, **self.saved}
        outputs = {self.free_name(f"{w}_grad"): g for w, g in gradients.items()}
        return GraphFunction(leaves, outputs, precomputed, is_gradient=True), list(gradients)

    def backward(self, present: Sequence[str], finite: bool = True) -> tuple[GraphFunction, list[str]] | None:
        """The gradient where only some outputs have a cotangent.

        Its leaves are the cut's leaves, then the cotangents; its precomputed values are the cut's precomputed values,
        its outputs, then the saved values.

        Parameters
        ----------
        present : sequence of str
            Some of `seeds`, in their order.
        finite : bool
            Whether their cotangents are finite numbers; else all masks select, and pass nothing where they are shut.

        Returns
        -------
        tuple of GraphFunction and list of str, or None
            The gradients, and the leaves that they belong to; None where it would read a value that was not kept.
        """
        if finite and list(present) == self.seeds:
            return self.gradient
        cotangents, gradients = self._backpropagate(present, finite)
        gradient, leaves = self._make_gradient(cotangents, gradients)
        read = {} if self.recompute else self._values_to_keep(gradients.values())
        return (gradient, leaves) if set(gradient.sources.values()).issuperset(read) else None
