"""Summaries: outputs, parameters and cost of the layers of a module, as a table."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ortpartial.exceptions import GraphError, SettingError
from ortpartial.graph import count_flops, topological, variable
from ortpartial.model import format_bytes, format_flops

from .compilation import Program
from .nested import flatten
from .trace import TracedModule
from .tracing import Writing, write

__all__ = ["Row", "Summary", "summarize"]

Shape = tuple["int | str | None", ...]


@dataclass(frozen=True)
class Row:
    """A call of a layer, or a layer that is not called.

    Parameters
    ----------
    path : str
        The name of the layer in the module, such as ``"encoder.0.linear1"``; empty for the module itself.
    kind : str
        The name of its class.
    depth : int
        In how many other calls it is made.
    shapes : tuple of tuple
        The shapes of its outputs; sizes are whole numbers, names, or None. Empty if the layer is not called.
    parameters : int
        The number of elements of its parameters, also of its parts.
    flops : int
        The floating-point operations of the call.
    is_repeated : bool
        Whether the layer was called before.
    """

    path: str
    kind: str
    depth: int
    shapes: tuple[Shape, ...]
    parameters: int
    flops: int
    is_repeated: bool


@dataclass(frozen=True, repr=False)
class Summary:
    """The shapes, parameters and costs of the layers of a module; `str` is a table.

    Parameters
    ----------
    rows : tuple of Row
        The calls of layers in evaluation, each before the calls in it, and layers that are not called; the first is the
        module itself.
    parameters : int
        The number of elements of all parameters, also of layers that are not called.
    buffers : int
        The number of elements of all buffers, such as running means.
    n_bytes : int
        How much parameters and buffers take.
    sizes : dict of str to int
        By name the sizes with which operations are counted; a size without a name is "?".

    Examples
    --------
    >>> from ortpartial import nn
    >>> summary = nn.Linear(10, 3).compile(nn.placeholder(["N", 10])).summary(sizes={"N": 2})
    >>> [(row.kind, row.shapes, row.parameters, row.flops) for row in summary.rows]
    [('Linear', (('N', 3),), 33, 126)]
    """

    rows: tuple[Row, ...]
    parameters: int
    buffers: int
    n_bytes: int
    sizes: Mapping[str, int]

    @property
    def flops(self) -> int:
        """The floating-point operations of the module in evaluation."""
        return self.rows[0].flops

    def __str__(self) -> str:
        lines = list(_list_cells(self.rows))
        widths = [max(len(cells[i]) for cells in lines) for i in range(4)]
        # 80 columns: further outputs give way to names, and then names to the first outputs, as numbers cannot.
        left = 80 - sum(widths[2:]) - 6
        first = max(len(_format_shape(shape)) for row in self.rows for shape in row.shapes[:1])
        widths[1] = min(widths[1], max(left - widths[0], min(first + 3, left // 2)))
        widths[0] = min(widths[0], left - widths[1])
        rule = "-" * (sum(widths) + 6)
        head, *body = (_format_line(cells, widths) for cells in lines)
        buffers = f", and {self.buffers:,} numbers in buffers" if self.buffers else ""
        sizes = f" with {', '.join(f'{n} = {size}' for n, size in self.sizes.items())}" if self.sizes else ""
        return "\n".join([head, rule, *body, rule,
                          f"parameters: {self.parameters:,}{buffers}; {format_bytes(self.n_bytes)}",
                          f"forward pass: {format_flops(self.flops, 'FLOPs')}{sizes}"])

    __repr__ = __str__


def summarize(program: Program, sizes: Mapping[str, int] | None = None, depth: int | None = None) -> Summary:
    """The summary of a compiled module.

    Parameters
    ----------
    program : Program
        The compiled module.
    sizes : dict of str to int, optional
        By their names, sizes that placeholders leave open; 1 by default.
    depth : int, optional
        How deep the rows may be nested; all by default.

    Returns
    -------
    Summary

    Raises
    ------
    SettingError
        No placeholder has a size of this name, or the depth is negative.
    """
    if depth is not None and depth < 0:
        raise SettingError(f"summary: depth is {depth!r}, a whole number of at least 0 was expected.")
    sizes = _complete_sizes(program, sizes or {})
    writing = _write(program, {})
    rows = [*_list_rows(writing, _count_calls(_resize(program, writing, sizes))), *_list_uncalled(writing)]
    every = [p for _, p in program.module.named_parameters(buffers=True)]
    trained = sum(p.size for p in every if p.is_trained)
    return Summary(tuple(row for row in rows if depth is None or row.depth <= depth), trained,
                   sum(p.size for p in every) - trained, sum(p.size * p.dtype.itemsize for p in every), sizes)


def _complete_sizes(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """A number for each size that placeholders leave open."""
    names = dict.fromkeys(d or "?" for v in program.inputs.values() for d in v.shape or () if not isinstance(d, int))
    if unknown := [n for n in sizes if n not in names]:
        listed = f"the names in them are {', '.join(names)}" if names else "they name none"
        raise SettingError(f"No placeholder has a size {unknown[0]!r}; {listed}.")
    return {**dict.fromkeys(names, 1), **sizes}


def _write(program: Program, sizes: Mapping[str, int]) -> Writing:
    """The graph of the module in evaluation, with some sizes of its inputs replaced by others."""
    inputs = {n: variable(n, v.dtype, [d if isinstance(d, int) else sizes.get(d or "?", d) for d in v.shape or ()])
              for n, v in program.inputs.items()}
    return write(program.module, lambda *values: program.module(*values), inputs, training=False)


def _resize(program: Program, writing: Writing, sizes: Mapping[str, int]) -> Writing:
    """The graph of the module with these sizes, or the former graph where it cannot have them or calls other layers."""
    try:
        sized = _write(program, sizes)
    except GraphError:
        return writing
    return sized if len(sized.trace.calls) == len(writing.trace.calls) else writing


def _count_calls(writing: Writing) -> list[int]:
    """The operations of each call: of the nodes that were written during it and are needed."""
    nodes = sorted(topological(list(flatten(writing.result, "").values())), key=lambda node: node.serial)
    serials = [node.serial for node in nodes]
    totals = [0, *accumulate(count_flops([node]) for node in nodes)]
    return [totals[bisect_left(serials, call.stop)] - totals[bisect_left(serials, call.start)]
            for call in writing.trace.calls]


def _list_rows(writing: Writing, flops: Sequence[int]) -> Iterator[Row]:
    """The calls, each before the calls in it."""
    seen: set[TracedModule] = set()
    stops: list[int] = []  # of the calls that a call is made in
    for call, n in sorted(zip(writing.trace.calls, flops, strict=True), key=lambda pair: pair[0].start):
        size = sum(p.size for p in call.module.parameters())
        if not size and "_" in [part[:1] for part in call.path.split(".")]:
            continue  # How a layer divides its work, such as the Dropout in an LSTM.
        stops = [stop for stop in stops if stop > call.start]
        shapes = tuple(v.shape or () for v in flatten(call.outputs, "").values())
        yield Row(call.path, type(call.module).__name__, len(stops), shapes, size, n, call.module in seen)
        seen.add(call.module)
        stops.append(call.stop)


def _list_uncalled(writing: Writing) -> Iterator[Row]:
    """The layers with parameters that are not called, nor any in them, such as the discriminator of a GAN."""
    called = {call.module for call in writing.trace.calls}
    listed: set[TracedModule] = set()
    for path, module in writing.trace.module.named_modules():
        inside = {m for _, m in module.named_modules()}
        size = sum(p.size for p in module.parameters())
        if size and not inside & called and module not in listed:
            listed |= inside
            yield Row(path, type(module).__name__, 1, (), size, 0, False)


def _list_cells(rows: Sequence[Row]) -> Iterator[tuple[str, str, str, str]]:
    """The cells of the table, the head first."""
    yield "layer", "output shape", "parameters", "FLOPs"
    paths = [""]
    for row in rows:
        paths[row.depth:] = [row.path]
        outer = paths[row.depth - 1] if row.depth else ""
        name = row.path.removeprefix(f"{outer}.") if outer else row.path
        label = f"{'  ' * row.depth}{f'{name} ({row.kind})' if name else row.kind}"
        yield (label, ", ".join(map(_format_shape, row.shapes)) or "not called",
               "again" if row.is_repeated and row.parameters else f"{row.parameters:,}", format_flops(row.flops))


def _format_shape(shape: Shape) -> str:
    return f"[{', '.join('?' if d is None else str(d) for d in shape)}]"


def _format_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """A line of the table; text that is too long ends in an ellipsis."""
    texts = [c if len(c) <= w else f"{c[:w - 1]}…" for c, w in zip(cells, widths, strict=True)]
    return "  ".join([f"{texts[0]:<{widths[0]}}", f"{texts[1]:<{widths[1]}}", f"{texts[2]:>{widths[2]}}",
                      f"{texts[3]:>{widths[3]}}"])
