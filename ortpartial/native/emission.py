"""The text of kernels in C."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from .convolutions import write_convolution
from .expressions import Affine, Array, Call, Expression, Iota, Literal, Load, leaves
from .kernels import Branch, Check, Convolution, Kernel, Loop, Product, Reduction, Repeat
from .memory import MemoryPlan
from .products import ProductShape, write_large_call, write_product
from .types import C_TYPES, literal

__all__ = ["Writer"]

#: Sums that a reduction of neighboring elements adds up side by side, and the elements from which on it does.
_LANES, _LONG = 16, 32

#: The most numbers that are checked singly.
_FEW = 8

_INT64 = np.dtype(np.int64)


class Writer:
    """Writes kernels, whose intermediate results are where a plan says.

    Parameters
    ----------
    plan : MemoryPlan
        The plan.
    """

    def __init__(self, plan: MemoryPlan):
        self.plan = plan
        self.products: dict[ProductShape, str] = {}
        #: The kernels with sizes at run time that are called.
        self.kernels: dict[str, None] = {}
        #: The errors by their codes, which count from 1.
        self.refusals: dict[str, int] = {}
        self._names = 0

    def new(self) -> str:
        """The name of a new variable."""
        self._names += 1
        return f"v{self._names}"

    def write(self, kernels: Sequence[Kernel]) -> list[str]:
        """The lines of kernels."""
        lines: list[str] = []
        for kernel in kernels:
            if isinstance(kernel, Loop):
                lines += self._write_loop(kernel)
            elif isinstance(kernel, Reduction):
                lines += self._write_reduction(kernel)
            elif isinstance(kernel, Check):
                lines += self._write_check(kernel)
            elif isinstance(kernel, Product):
                lines += self._write_product(kernel)
            elif isinstance(kernel, Convolution):
                lines += self._write_convolution(kernel)
            elif isinstance(kernel, Repeat):
                counter = kernel.counter
                lines += [f"for (int32_t {counter} = 0; {counter} < {kernel.count}; ++{counter}) {{",
                          *indent(self.write(kernel.kernels)), "}"]
            elif isinstance(kernel, Branch):
                lines += [f"if ({Body(self, ()).place(kernel.condition)[0]}) {{", *indent(self.write(kernel.then)),
                          "} else {", *indent(self.write(kernel.otherwise)), "}"]
        return lines

    def registers(self) -> list[str]:
        """The declarations of intermediate results of a single element; a slot of a scalar array is not read."""
        return [f"{C_TYPES[a.dtype]} {self.base(a)};" + f" (void){self.base(a)};" * (a.dtype == _INT64)
                for a in self.plan.registers]

    def functions(self) -> list[str]:
        """The functions of matrix products."""
        return [write_product(shape, name) for shape, name in self.products.items()]

    def base(self, array: Array) -> str:
        """The memory of an array."""
        memory = array.memory
        if memory in self.plan.registers:
            return f"r{self.plan.registers[memory]}"
        if memory.role == "scratch":
            return f"m->{pool(memory.dtype)}"
        return {"state": "s->", "given": "g->"}.get(memory.role, "") + memory.name

    def element(self, load: Load, index: str) -> str:
        """An element of an array."""
        return self.base(load.array) + f"[{index}]" * (not self.is_variable(load.array))

    def is_variable(self, array: Array) -> bool:
        """Whether an array is a scalar variable, which has no index."""
        array = array.memory
        return array in self.plan.registers or (array.role == "given" and array.size == 1) or array.name == "k"

    def offset(self, array: Array) -> int:
        """The first element of an array in its pool."""
        return self.plan.offsets.get(array.memory, 0)

    def _write_loop(self, kernel: Loop) -> list[str]:
        at = [p.at for p in _places(s.value for s in kernel.stores)]
        at += [p.at for s in kernel.stores for p in (s.to, *_places([s.to.index] if s.to.index else []))]
        loops = [Counter(f"i{j}", axis, n) for j, (axis, n) in enumerate(collapse(kernel.shape, at))]
        body = Body(self, loops)
        for s in kernel.stores:
            body.store(s.to, body.value(s.value), s.template)
        return body.nest(is_independent=not any(s.adds for s in kernel.stores))

    def _write_check(self, kernel: Check) -> list[str]:
        """Check in a vectorizable loop whether any number is outside, and find that number in a second loop."""
        code = self.refusals.setdefault(kernel.refusal, len(self.refusals) + 1)
        at = [p.at for p in (*_places([kernel.value]), *([kernel.to] if kernel.to is not None else []))]
        loops = [Counter(f"i{j}", axis, n) for j, (axis, n) in enumerate(collapse(kernel.value.shape, at))]
        first, second = Body(self, loops), Body(self, loops)
        test = f"OP_OUTSIDE({{}}, {literal(kernel.low, _INT64)}, {literal(kernel.high, _INT64)})"
        v = second.value(kernel.value)
        number = f"(int64_t)((uint64_t){v} - UINT64_C({kernel.shift}))" if kernel.shift else v
        second.add(f"if ({test.format(v)}) {{ m->refused[0] = {number}; return {code}; }}")
        is_short = prod(c.count for c in loops) <= _FEW
        body = second if is_short else first
        v = body.value(kernel.value)
        if not is_short:
            body.add(f"outside |= {test.format(v)};")
        if kernel.to is not None:
            body.store(kernel.to, f"({v} < 0 ? {v} + {-kernel.low} : {v})")
        if is_short:
            return body.nest()
        lines = ["int64_t outside = 0;", *first.nest(), "if (outside) {", *indent(second.nest()), "}"]
        return ["{", *indent(lines), "}"]

    def _write_reduction(self, kernel: Reduction) -> list[str]:
        kept = len(kernel.to.shape)
        places = [p.at for p in _places([kernel.value])]
        outer = [Counter(f"i{j}", axis, n) for j, (axis, n) in enumerate(
            collapse(kernel.to.shape, [*(_part(p, 0, kept) for p in places), kernel.to.at]))]
        inner = [Counter(f"k{j}", kept + axis, n) for j, (axis, n) in enumerate(
            collapse(kernel.value.shape[kept:], [_part(p, kept, len(p.shape)) for p in places]))]
        if outer and inner and outer[-1].count > 3 and _is_by_column(places, outer[-1].axis, inner[-1].axis):
            return self._write_columns(kernel, outer, inner)
        return self._write_rows(kernel, outer, inner)

    def _write_columns(self, kernel: Reduction, outer: Sequence[Counter], inner: Sequence[Counter]) -> list[str]:
        """Results side by side, to each of which an element is added in turn."""
        start = Body(self, outer[-1:], outer[:-1])
        start.store(kernel.to, kernel.first)
        body = Body(self, [*inner, outer[-1]], outer[:-1])
        body.store(kernel.to, body.value(kernel.value), kernel.template)
        return _nest([*start.nest(), *body.nest(is_independent=True)], outer[:-1])

    def _write_rows(self, kernel: Reduction, outer: Sequence[Counter], inner: Sequence[Counter]) -> list[str]:
        """A result after the other, each in a variable."""
        kind, total, template = C_TYPES[kernel.to.dtype], "total", kernel.template
        is_long = bool(inner) and inner[-1].count >= _LONG and kernel.to.dtype.kind == "f"

        def combine(target: str, counters: Sequence[Counter]) -> list[str]:
            body = Body(self, counters, outer)
            value = body.value(kernel.value)
            body.add(f"{target} = {template.format(target, value)};")
            return body.nest()

        if 0 in kernel.value.shape[len(kernel.to.shape) :]:
            lines = [f"const {kind} {total} = {kernel.first};"]
        elif not is_long:
            lines = [f"{kind} {total} = {kernel.first};", *combine(total, inner)]
        else:
            last, rest = inner[-1], inner[:-1]
            whole = last.count - last.count % _LANES
            blocks = Counter(last.name, last.axis, whole, _LANES)
            lane = Counter("l", last.axis, _LANES, base=last.name)
            halves = [(w, template.format("part[l]", f"part[l + {w}]")) for w in (8, 4, 2, 1)]
            lines = [f"{kind} part[{_LANES}];", f"for (int32_t l = 0; l < {_LANES}; ++l) part[l] = {kernel.first};",
                     *combine("part[l]", [*rest, blocks, lane])]
            if whole < last.count:
                lines += combine("part[0]", [*rest, Counter(last.name, last.axis, last.count, start=whole)])
            lines += [f"for (int32_t l = 0; l < {w}; ++l) part[l] = {both};" for w, both in halves]
            lines.append(f"const {kind} {total} = part[0];")
        end = Body(self, (), outer)
        end.store(kernel.to, total)
        return _nest([*lines, *end.nest()], outer)

    def _write_product(self, kernel: Product) -> list[str]:
        if kernel.is_large:
            return self._write_large(kernel)
        name = self.products.setdefault(kernel.shape, f"product_{len(self.products)}")
        loops = [Counter(f"i{j}", j, n) for j, n in enumerate(kernel.batch) if n != 1]
        args = [self._address(p, loops) for p in (kernel.a, kernel.b, kernel.addend, kernel.to)]
        args.append(self._address(kernel.scratch, ()))
        return _nest([f"{name}({', '.join(args)});"], loops)

    def _write_large(self, kernel: Product) -> list[str]:
        """A call for all products along the last axis of a batch, which threads share."""
        places = [kernel.a, kernel.b, kernel.addend, kernel.to]
        axes = collapse(kernel.batch, [_part(p.at, 0, len(kernel.batch)) for p in places if p is not None])
        loops = [Counter(f"i{j}", axis, n) for j, (axis, n) in enumerate(axes[:-1])]
        axis, count = axes[-1] if axes else (0, 1)
        apart = [p.at.strides[axis] if p is not None and axes else 0 for p in places]
        operands = ", ".join([*(self._address(p, loops) for p in places), self._address(kernel.scratch, ())])
        name, lines = write_large_call(kernel.shape, (count, *apart), operands)
        self.kernels[name] = None
        return _nest(lines, loops)

    def _write_convolution(self, kernel: Convolution) -> list[str]:
        places = [kernel.first, kernel.second, kernel.addend, kernel.to, kernel.scratch]
        name, lines = write_convolution(kernel.shape, ", ".join(self._address(p, ()) for p in places))
        self.kernels[name] = None
        return _nest(lines, ())

    def _address(self, place: Load | None, loops: Sequence[Counter]) -> str:
        """The address of the first element of a matrix."""
        if place is None:
            return "NULL"
        array = place.array.memory
        if array in self.plan.registers:
            return "&" + self.base(array)
        index = affine_text(place.at, {c.axis: c.index for c in loops}, self.offset(place.array))
        return self.base(array) if index == "0" else f"{self.base(array)} + {index}"


@dataclass(frozen=True)
class Counter:
    """A loop.

    Parameters
    ----------
    name : str
        Its counter.
    axis : int
        The axis that it runs along.
    count : int
        Where it ends.
    step, start : int
        How far it goes each time, and where it starts.
    base : str
        A summand of the counter: the counter of a loop around along the same axis.
    """

    name: str
    axis: int
    count: int
    step: int = 1
    start: int = 0
    base: str = ""

    @property
    def index(self) -> str:
        """The place on the axis."""
        return f"({self.base} + {self.name})" if self.base else self.name

    @property
    def head(self) -> str:
        """The head of the loop."""
        further = f"++{self.name}" if self.step == 1 else f"{self.name} += {self.step}"
        return f"for (int32_t {self.name} = {self.start}; {self.name} < {self.count}; {further}) {{"


class Body:
    """The statements of some loops, equal statements once, in the outermost loop possible.

    Parameters
    ----------
    writer : Writer
        It knows where arrays are.
    loops : sequence of Counter
        The loops.
    around : sequence of Counter
        Loops around them, written by others.
    """

    def __init__(self, writer: Writer, loops: Sequence[Counter], around: Sequence[Counter] = ()):
        self.writer, self.loops = writer, loops
        self.axes = {c.axis: c.index for c in (*around, *loops)}
        self._levels = {c.axis: i + 1 for i, c in enumerate(loops)}
        self._lines: list[list[str]] = [[] for _ in range(len(loops) + 1)]
        self._values: dict[Expression, tuple[str, int]] = {}
        self._names: dict[tuple[np.dtype, str], tuple[str, int]] = {}
        self._inside: dict[Array, tuple[str, int]] = {}

    def value(self, e: Expression) -> str:
        """The name or the literal of an element."""
        return self._find(e)[0]

    def _find(self, e: Expression) -> tuple[str, int]:
        """The name of an element, and in which loop it is."""
        if e not in self._values or (isinstance(e, Load) and e.array in self._inside):
            self._values[e] = self._write(e)
        return self._values[e]

    def _write(self, e: Expression) -> tuple[str, int]:
        if isinstance(e, Literal):
            return literal(e.value, e.dtype), 0
        if isinstance(e, Iota):
            return self._name(e.dtype, affine_text(e.at, self.axes), self._level(e.at))
        if isinstance(e, Load):
            return self._inside[e.array] if e.array in self._inside else self._name(e.dtype, *self.place(e))
        assert isinstance(e, Call)
        args = [self._find(a) for a in e.args]
        return self._name(e.dtype, e.template.format(*(a for a, _ in args)), max((n for _, n in args), default=0))

    def _name(self, dtype: np.dtype, text: str, level: int) -> tuple[str, int]:
        if (dtype, text) not in self._names:
            name = self.writer.new()
            self._names[dtype, text] = name, level
            self._lines[level].append(f"const {C_TYPES[dtype]} {name} = {text};")
        return self._names[dtype, text]

    def _level(self, at: Affine) -> int:
        """The innermost loop that a place depends on."""
        return max((n for axis, n in self._levels.items() if axis < len(at.strides) and at.strides[axis]), default=0)

    def place(self, load: Load) -> tuple[str, int]:
        """The text of an element of an array, and in which loop it is."""
        index, level = affine_text(load.at, self.axes, self.writer.offset(load.array)), self._level(load.at)
        if load.index is not None and not self.writer.is_variable(load.array):
            row, inner = self._find(load.index)
            index, level = f"{index} + {row} * {load.stride}", max(level, inner)
        return self.writer.element(load, index), level

    def add(self, line: str) -> None:
        """Add a statement to the innermost loop."""
        self._lines[-1].append(line)

    def store(self, to: Load, value: str, template: str = "{1}") -> None:
        """Write an element."""
        if to.array in self.writer.plan.fused:
            self._inside[to.array] = value, len(self.loops)
            if to.dtype == _INT64:  # as above, a place may not be read
                self.add(f"(void){value};")
            return
        place, _ = self.place(to)
        self.add(f"{place} = {template.format(place, value)};")
        self._names.pop((to.dtype, place), None)
        if template == "{1}":
            self._names[to.dtype, place] = value, len(self.loops)

    def nest(self, *, is_independent: bool = False) -> list[str]:
        """The loops with their statements; elements of independent loops do not depend on each other."""
        lines = self._lines[-1]
        for i, c in reversed(list(enumerate(self.loops))):
            is_inner = is_independent and i == len(self.loops) - 1
            lines = [*self._lines[i], *["OP_INDEPENDENT"] * is_inner, c.head, *indent(lines), "}"]
        return lines if self.loops else ["{", *indent(lines), "}"]


def affine_text(at: Affine, axes: dict[int, str], offset: int = 0) -> str:
    """An affine function of loop counters as text."""
    terms = [(name, at.strides[axis]) for axis, name in axes.items() if axis < len(at.strides) and at.strides[axis]]
    terms += [(name, stride) for name, stride in at.outer if stride]
    parts = [name if stride == 1 else f"{name} * {stride}" for name, stride in terms]
    total = offset + at.offset
    return " + ".join([*parts, *([str(total)] if total or not parts else [])])


def collapse(shape: Sequence[int], places: Iterable[Affine]) -> list[tuple[int, int]]:
    """The loops over a shape: axes that are neighbors in all places are merged.

    Returns
    -------
    list of (int, int)
        The axis whose strides a loop takes, and how often it runs.
    """
    places = list(places)
    groups: list[tuple[int, int]] = []
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        if groups and all(p.strides[groups[-1][0]] == p.strides[axis] * n for p in places):
            groups[-1] = axis, groups[-1][1] * n
        else:
            groups.append((axis, n))
    return groups


def _places(values: Iterable[Expression]) -> list[Load | Iota]:
    """All places that expressions read."""
    seen: set[int] = set()
    return [leaf for e in values for leaf in leaves(e, seen)]


def _part(at: Affine, start: int, stop: int) -> Affine:
    """An affine function of some of its indices."""
    return Affine(at.shape[start:stop], at.strides[start:stop])


def _is_by_column(places: Sequence[Affine], column: int, row: int) -> bool:
    """Whether neighbors are in different results, not in the same one."""
    by = [sum(abs(p.strides[axis]) == 1 for p in places) for axis in (column, row)]
    return by[0] > by[1]


def _nest(lines: Sequence[str], loops: Sequence[Counter]) -> list[str]:
    """Lines inside of loops, or in a block of their own."""
    lines = list(lines)
    for c in reversed(loops):
        lines = [c.head, *indent(lines), "}"]
    return lines if loops else ["{", *indent(lines), "}"]


def indent(lines: Iterable[str]) -> list[str]:
    """Lines two columns further right."""
    return ["  " + line for line in lines]


def pool(dtype: np.dtype) -> str:
    """The field of intermediate results of a type."""
    return "scratch_" + C_TYPES[dtype].removesuffix("_t") + "_bool" * (dtype == np.bool_)
