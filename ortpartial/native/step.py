"""A step in C: from values to its text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

import numpy as np

from ortpartial.exceptions import UntranslatableError
from ortpartial.graph import Value
from ortpartial.model import Range

from . import operators  # noqa: F401  (they register themselves)
from .c_file import CFile, Field, lay_out, name_fields
from .emission import Writer, pool
from .expansions import expand
from .expressions import Affine, Array, Load
from .linking import Links
from .memory import MemoryPlan, plan_memory
from .operators.indexing import check_range
from .scheduling import drop_unread, fuse_updates, order_kernels
from .translation import Translator, sizes

__all__ = ["NativeStep", "translate"]

#: The most numbers of a constant that is text, and not read where it is.
_FEW = 256


@dataclass(frozen=True)
class NativeStep:
    """A step in C.

    Parameters
    ----------
    name : str
        The prefix of its functions and types.
    header, source : str
        The text of ``<name>.h``, and of ``<name>.c``, which includes it.
    state : tuple of Field
        The fields that a step changes.
    rows : tuple of Field
        The fields of a batch; the shapes are the shapes of single rows.
    given : tuple of Field
        Further inputs.
    batch : int
        The rows of a batch.
    loss_dtype : numpy.dtype
        The type of the loss.
    memory : tuple of Field
        Intermediate results, and the batch that is gathered.
    refusals : tuple of str
        The errors that its functions end with, by code from 1; the number at fault is ``refused`` of `memory`.
    links : Links
        What it reads by address; the addresses follow on `given` in the same struct.
    """

    name: str
    header: str
    source: str
    state: tuple[Field, ...]
    rows: tuple[Field, ...]
    given: tuple[Field, ...]
    batch: int
    loss_dtype: np.dtype
    memory: tuple[Field, ...]
    refusals: tuple[str, ...] = ()
    links: Links = field(default_factory=Links)

    @property
    def memory_bytes(self) -> int:
        """Bytes of intermediate results."""
        return lay_out(self.memory).itemsize


def translate(inputs: Mapping[str, Value], outputs: Mapping[str, Value], *, rows: Collection[str],
              state: Mapping[str, str], loss: str, iteration: str | None = None, name: str = "step",
              ranges: Mapping[str, Range] = MappingProxyType({}), is_training: bool = True,
              is_linked: bool = False) -> NativeStep:
    """Write a step in C.

    Parameters
    ----------
    inputs, outputs : dict of str to Value
        The step, with static sizes.
    rows : collection of str
        The inputs that are batches, whose first axis is the row.
    state : dict of str to str
        By input that a step changes, the output that takes its place.
    loss : str
        The output that is the loss, a single number.
    iteration : str, optional
        The input that is the number of the batch, from 1.
    name : str
        The prefix of functions and types, an identifier of C.
    ranges : dict of str to Range
        By input of whole numbers, the range that they are checked for.
    is_training : bool
        Whether there are functions for a step and for many, to be called by other files; else only a static function.
    is_linked : bool
        Whether large products are computed by a library of their own, and constants are read where they are, both by
        addresses; else the file is complete in itself.

    Returns
    -------
    NativeStep

    Raises
    ------
    UntranslatableError
        An operator, a type or a size that cannot be written; the message names it.
    """
    outputs = expand(outputs)
    fields = name_fields(inputs)
    arrays = {v: _array(n, v, fields[n], rows, state, iteration) for n, v in inputs.items()}
    translator = _translate_values(outputs[loss], {inputs[n]: outputs[after] for n, after in state.items()}, arrays,
                                   {n: (inputs[n], r) for n, r in ranges.items()}, is_linked)
    e = translator.read(outputs[loss])
    mean = translator.store(e, translator.allocate(e.dtype, e.shape))
    kernels = drop_unread(order_kernels(fuse_updates(translator.kernels)), mean.array)
    plan = plan_memory(kernels, [mean.array])
    writer = Writer(plan)
    body = writer.write(kernels)
    used = {n: Field(n, fields[n], v.dtype, sizes(v)) for n, v in inputs.items()}
    batch = next((used[n].shape[0] for n in inputs if n in rows), 1)
    row_fields = [replace(f, shape=f.shape[1:]) for n, f in used.items() if n in rows]
    given = [f for n, f in used.items() if n not in rows and n not in state and n != iteration]
    changed, refusals = [used[n] for n in state], tuple(writer.refusals)
    memory = _list_memory(plan, row_fields if is_training else [], batch, bool(refusals))
    _check_sizes([*changed, *memory])
    read = {r.array for kernel in kernels for r in kernel.reads()}
    tables = [table for table in translator.tables if table in read]
    apart = [table for table in tables if is_linked and table.size > _FEW]
    links = Links(tuple(writer.kernels), tuple(apart), is_linked)
    text = CFile(name, changed, row_fields, given, memory, batch, mean.dtype, refusals, is_training, links)
    source = text.source([table for table in tables if table not in apart], writer.functions(),
                         [*writer.registers(), *body, f"*loss = {writer.element(mean, '0')};", "return 0;"])
    return NativeStep(name, text.header(), source, tuple(changed), tuple(row_fields), tuple(given), batch, mean.dtype,
                      tuple(memory), refusals, links)


def _list_memory(plan: MemoryPlan, rows: Sequence[Field], batch: int, is_refusing: bool) -> list[Field]:
    """The fields of the working memory: pools of kernels, from the first line on, a refused number, and a batch."""
    refused = [Field("refused", "refused", np.dtype(np.int64), ())] if is_refusing else []
    shared = [Field(pool(dtype), pool(dtype), dtype, (size,)) for dtype, size in plan.sizes.items() if size]
    return [*shared, *refused, *(replace(f, c_name=f"x_{f.c_name}", shape=(batch, *f.shape)) for f in rows)]


def _translate_values(loss: Value, state: Mapping[Value, Value], arrays: Mapping[Value, Array],
                      ranges: Mapping[str, tuple[Value, Range]], is_linked: bool) -> Translator:
    """The translator, which has stored a loss and the new value of each state."""
    news = {y: Array(v.dtype, prod(sizes(v)), "state", arrays[v].name, former=arrays[v])
            for v, y in state.items() if v is not y}
    translator = Translator(arrays, {y: a for y, a in news.items() if y not in arrays}, is_linked)
    for n, (v, r) in ranges.items():
        check_range(translator, v, r.describe(n), r)
    translator.run([loss, *state.values()])
    for v, y in state.items():
        e, array = translator.read(y), arrays[v]
        if not (isinstance(e, Load) and e.array.memory is array and e.is_plain):
            new = Array(e.dtype, array.size, "state", array.name, former=array)
            translator.store(e, Load(e.dtype, e.shape, new, Affine.contiguous(e.shape)))
    return translator


def _array(n: str, v: Value, field: str, rows: Collection[str], state: Collection[str], iteration: str | None
           ) -> Array:
    """The memory of an input."""
    role = "state" if n in state else "row" if n in rows else "given"
    if n == iteration:
        return Array(v.dtype, 1, "row", "k")
    return Array(v.dtype, prod(sizes(v)), role, f"x_{field}" if role == "row" else field)


def _check_sizes(fields: Sequence[Field]) -> None:
    """Refuse sizes that an index of 32 bits does not reach."""
    for f in fields:
        if f.size >= 2**31:
            raise UntranslatableError(f"{f.name} has {f.size} elements, more than a step in C indexes.")
