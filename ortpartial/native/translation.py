"""The translation of a step: its operators become kernels, in order.

A `Translator` walks the nodes of a step. A translator of an operator returns an expression, computed where it is read,
or a `Load` of an array that a kernel has filled. Expressions that are read more than once, or cost much, are stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from ortpartial.annotations import DTypeLike
from ortpartial.exceptions import UntranslatableError
from ortpartial.graph import Node, Value, make_node, topological, variable

from .expressions import Affine, Array, Call, Expression, Literal, Load, move
from .kernels import Check, Kernel, Loop, Store
from .types import BFLOAT16, C_TYPES

__all__ = ["TRANSLATORS", "Translator", "is_rounding", "round_bfloat16", "translates"]

#: By operator: from a translator and a node to expressions of its outputs.
TRANSLATORS: dict[tuple[str, str], Callable[[Translator, Node], Any]] = {}

#: The most that recomputing an element may cost, in additions, where it is read more than once; the most that a single
#: expression may cost, which also bounds its depth.
_CHEAP, _DEAR = 1, 60

_ROUNDING = "op_round_bfloat16({0})"


def translates(*operators: str, domain: str = "") -> Callable[[Callable[[Translator, Node], Any]], Any]:
    """Register a translator of operators.

    Parameters
    ----------
    *operators : str
        Their names.
    domain : str
        Their domain.

    Returns
    -------
    callable
        A decorator.
    """

    def register(function: Callable[[Translator, Node], object]) -> Callable[[Translator, Node], Any]:
        TRANSLATORS.update({(domain, name): function for name in operators})
        return function

    return register


class Translator:
    """The translation of a graph so far.

    Attributes
    ----------
    kernels : list of Kernel
        In an order in which they may run.
    tables : list of Array
        The constants that are arrays.
    uses : dict of Value to int
        How often a value is read.
    is_linked : bool
        Whether kernels with sizes at run time are in a library of their own.
    """

    def __init__(self, arrays: Mapping[Value, Array], outputs: Mapping[Value, Array], is_linked: bool = False):
        self.is_linked = is_linked
        self.kernels: list[Kernel] = []
        self.tables: list[Array] = []
        self._tables: dict[int, tuple[np.ndarray, Array]] = {}
        self.counters = 0
        self.uses: Counter[Value] = Counter()
        self._values: dict[Value, Expression] = {v: Load(v.dtype, sizes(v), a, Affine.contiguous(sizes(v)))
                                                 for v, a in arrays.items()}
        self._stored: dict[Expression, Load] = {}
        self._checked: dict[tuple[object, ...], Load | None] = {}
        #: Whether the arrays that are written outside of loops hold numbers of bfloat16 alone.
        self.rounded: dict[Array, bool] = {}
        self._outputs = dict(outputs)

    def run(self, roots: Sequence[Value]) -> list[Expression]:
        """Translate all that some values need; return their expressions."""
        nodes = topological(roots, self._values)
        self.uses.update(v for node in nodes for v in node.reads)
        self.uses.update(roots)
        for node in nodes:
            if any(v.dtype not in C_TYPES and not (node.op_type == "Cast" and v.dtype == BFLOAT16)
                   for v in (*node.reads, node.outputs[0]) if v.type.tensor_type.elem_type):
                raise UntranslatableError(f"{describe(node)} is of a type that is not written in C.")
            if (translator := TRANSLATORS.get((node.domain, node.op_type))) is None:
                raise UntranslatableError(f"{describe(node)} is not among the operators that are written in C.")
            results = translator(self, self._type(node))
            results = [results] if isinstance(results, Expression) else results
            for v, e in zip(node.outputs, results, strict=False):
                self.define(v, e)
        return [self.read(v) for v in roots]

    def _type(self, node: Node) -> Node:
        """The node with the shapes of its inputs that are known now, as the length of a loop is."""
        if node.bodies or all(v is None or v.is_static for v in (*node.inputs, *node.outputs[:1])):
            return node
        inputs = list(node.inputs)
        for i, v in enumerate(inputs):
            if v is not None and not v.is_static:
                e = self.read(v)
                inputs[i] = typed = variable(v.hint, e.dtype, e.shape)
                self._values[typed] = e
        twin = make_node(node.schema, inputs, node.attributes, n_outputs=len(node.outputs), name=node.name)
        if not twin.outputs[0].is_static:
            raise UntranslatableError(f"The shape of {describe(node)} is not known before it runs.")
        return twin

    @contextmanager
    def inside(self, inputs: Mapping[Value, Expression], captured: Sequence[Value]) -> Iterator[list[Kernel]]:
        """Translate the body of a kernel meanwhile, into the given kernels.

        Captured values that are dear to compute are stored before.
        """
        for v in captured:
            if (e := self._values.get(v)) is not None and e.cost:
                self._values[v] = self.store(e)
        around = self.kernels, self._values, self._stored, self._checked, self._outputs, self.uses
        rounded, self.rounded = self.rounded, {}  # An array may be written again by the next turn of a loop.
        self.kernels, self._values, self._stored = [], {**self._values, **inputs}, dict(self._stored)
        self._checked, self._outputs, self.uses = dict(self._checked), {}, Counter()
        try:
            yield self.kernels
        finally:
            self.kernels, self._values, self._stored, self._checked, self._outputs, self.uses = around
            self.rounded = rounded | dict.fromkeys(self.rounded, False)

    def taps(self, node: Node) -> list[Value]:
        """The values inside of the bodies of a node that are read outside of it."""
        return [v for v in self.uses if v.node is node and v.inner is not None]

    def define(self, v: Value, e: Expression) -> None:
        """Define a value by an expression, stored if it is read more than once, or goes to an array of its own."""
        if v in self._outputs:
            target = self._outputs.pop(v)
            if not (isinstance(e, Load) and e.array is target):
                to = Load(e.dtype, e.shape, target, Affine.contiguous(e.shape))
                e = self.store(e, to)
        elif (self.uses[v] > 1 and e.cost > _CHEAP) or e.cost > _DEAR:
            e = self.store(e)
        self._values[v] = e

    def read(self, v: Value | None) -> Expression:
        """The expressions of the elements of a value."""
        assert v is not None
        if v not in self._values:
            self._values[v] = self._constant(v)
        return self._values[v]

    def load(self, v: Value | Expression | None) -> Load:
        """The places of a value in an array."""
        e = v if isinstance(v, Expression) else self.read(v)
        if isinstance(e, Load) and e.index is None:
            return e
        stored = self.store(e)
        if isinstance(v, Value):
            self._values[v] = stored
        return stored

    def store(self, e: Expression, to: Load | None = None, template: str = "{1}") -> Load:
        """Store the elements of an expression, or combine them with the present elements."""
        if to is None:
            if e in self._stored:
                return self._stored[e]
            to = self.allocate(e.dtype, e.shape)
            if e.cost:  # A mere read may be another array's next content.
                self._stored[e] = to
        self.rounded[to.array] = template == "{1}" and self.is_rounded(e) and self.rounded.get(to.array, True)
        # Without axes of size 1, loops that could be fused are alike.
        place, value = move(to, Affine.squeezed), move(e, Affine.squeezed)
        assert isinstance(place, Load)
        assert value is not None
        self.kernels.append(Loop([Store(place, value, template)]))
        return to

    def is_rounded(self, e: Expression) -> bool:
        """Whether all elements are numbers of bfloat16."""
        if isinstance(e, Load):
            content = e.array.content
            return self.rounded.get(e.array, False) if content is None else _are_rounded(content)
        return _are_rounded(np.asarray(e.value, e.dtype)) if isinstance(e, Literal) else is_rounding(e)

    def allocate(self, dtype: DTypeLike, shape: Sequence[int], v: Value | None = None) -> Load:
        """A new array; or the array of an output where v is an output."""
        shape = tuple(shape)
        target = self._outputs.get(v) if v is not None else None
        array = Array(np.dtype(dtype), prod(shape)) if target is None else target
        return Load(np.dtype(dtype), shape, array, Affine.contiguous(shape))

    def check(self, source: tuple[Expression, int], e: Expression, ends: tuple[int, int], refusal: str, *,
              shift: int = 0, is_index: bool = False) -> Load | None:
        """End the step with an error where whole numbers leave a range, unless these of the same source are checked.

        Indices are returned as they count from 0 on.
        """
        key = (*source, *ends, is_index)
        if key not in self._checked:
            to = self.allocate(e.dtype, e.shape) if is_index else None
            value, place = move(e, Affine.squeezed), None if to is None else move(to, Affine.squeezed)
            assert value is not None
            self.kernels.append(Check(value, *ends, refusal, shift, place))  # type: ignore[arg-type]
            self._checked[key] = to
        return self._checked[key]

    def counter(self) -> str:
        """The name of a new loop."""
        self.counters += 1
        return f"t{self.counters}"

    def broadcast(self, e: Expression, shape: Sequence[int]) -> Expression:
        """An expression repeated to a shape; elements that are dear to compute are stored before."""
        if e.shape == tuple(shape):
            return e
        if prod(shape) > e.size and e.cost > 0:
            e = self.store(e)
        return self.view(e, lambda at: at.broadcast(shape))

    def view(self, e: Expression, change: Callable[[Affine], Affine | None]) -> Expression:
        """A view of an expression, stored before where the view is none of its places."""
        moved = move(e, change)
        if moved is None:
            moved = move(self.store(e), change)
        assert moved is not None
        return moved

    def numbers(self, v: Value | None) -> np.ndarray | None:
        """The numbers of a value that is constant."""
        return None if v is None else v.array

    def _constant(self, v: Value) -> Expression:
        """A constant: a number, or a table."""
        array = self.numbers(v)
        if array is None:
            raise UntranslatableError(f"{v!r} is no input of the step.")
        if array.dtype == BFLOAT16:
            array = array.astype(np.float32)
        if array.dtype not in C_TYPES:
            raise UntranslatableError(f"The constant {v!r} is of a type that is not written in C.")
        if array.size and (array == array.flat[0]).all():
            return Literal(array.dtype, array.shape, array.flat[0])
        _, table = self._tables.get(id(array), (array, None))
        if table is None:
            table = Array(array.dtype, array.size, "table", f"c{len(self.tables)}", np.ascontiguousarray(array))
            self.tables.append(table)
            self._tables[id(array)] = array, table
        return Load(array.dtype, array.shape, table, Affine.contiguous(array.shape))


def round_bfloat16(t: Translator, e: Expression) -> Expression:
    """The elements rounded to bfloat16; products that read the rounded elements round for themselves."""
    return Call(e.dtype, e.shape, _ROUNDING, (e if e.cost == 0 else t.store(e),))


def is_rounding(e: Expression) -> bool:
    """Whether an expression rounds its argument to bfloat16."""
    return isinstance(e, Call) and e.template == _ROUNDING


def _are_rounded(numbers: np.ndarray) -> bool:
    if numbers.dtype != np.float32:
        return False
    with np.errstate(all="ignore"):  # Casts of NaN and of numbers beyond the range warn.
        return bool((numbers.astype(BFLOAT16).astype(np.float32) == numbers).all())


def sizes(v: Value | None) -> tuple[int, ...]:
    """The shape of a value, all of whose sizes are known."""
    assert v is not None
    if not v.is_static:
        raise UntranslatableError(f"The shape of {v!r} is not known before the step runs.")
    return tuple(int(n) for n in v.shape or ())  # type: ignore[arg-type]


def describe(node: Node) -> str:
    """The operator of a node, with its name in the model."""
    return f"{node.op_type}" + f" (node {node.name!r})" * bool(node.name)
