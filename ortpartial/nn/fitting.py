"""Fitting a module: its data as arrays or batches, and the loop that trains it on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import length_hint
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpartial.exceptions import DataError, SettingError
from ortpartial.execution import FitSettings, FitTasks, Loop

from .door import ModuleDoor
from .structure import flatten, rebuild

if TYPE_CHECKING:
    from .compilation import Program

__all__ = ["check_positive", "concatenate", "fit", "make_loop", "to_arrays"]

#: What a step reads: inputs, then targets.
Rows = list[np.ndarray]

#: What a door is given as targets, which stand beside the inputs.
_BESIDE = ()


def make_loop(program: Program) -> Loop:
    """Make the loop of a module, whose history it goes on with.

    Parameters
    ----------
    program : Program
        The module.

    Returns
    -------
    Loop
    """
    door = ModuleDoor(program)
    loop = Loop(program.idle, door, FitSettings(warm_start=True))  # type: ignore[arg-type]
    door.loop, loop.records = loop, program.module.history_
    loop.n_iter = len(loop.records)
    return loop


def fit(program: Program, data: Rows | Iterable[Any], validation: Any, resume: Any = None, **settings: Any) -> None:
    """Train for some epochs, and add a record of each to the history of the module.

    Parameters
    ----------
    program : Program
        Takes the steps.
    data : list of numpy.ndarray, or iterable of batches
        Arrays with a row for each example, or batches of them.
    validation : list of numpy.ndarray, iterable of batches, or float, optional
        Rows whose loss in evaluation mode is computed, or a share of those of `data`.
    resume : path, optional
        The checkpoints of a fit that goes on.
    **settings : object
        Those of `FitSettings`.

    Raises
    ------
    ConvergenceError
        A loss is NaN or infinite.
    """
    loop, is_first = program.loop, program.synchronize()
    door: Any = loop.door
    loop.settings = FitSettings(warm_start=True, random_state=program.random_state, **{
        **settings, "callbacks": program.share_answers(settings["callbacks"]),
        "verbose": settings["verbose"] if is_first else 0})
    epochs, size = loop.settings.max_iter, loop.settings.batch_size
    if not isinstance(data, list) and iter(data) is data and epochs > 1:
        raise DataError(f"The data give their batches once, and there are {epochs} epochs: give what can be iterated "
                        f"over again, such as a list or a DataLoader.")
    steps = -(-len(data[0]) // size) if isinstance(data, list) else length_hint(data)
    former, states = (resume is not None and program.trainer.resume(resume)) or (None, ())
    if former is None:
        program.plan_further(epochs * steps)
    door.is_joined = isinstance(data, list) and program.can_join(data)
    runner: Any = program.idle
    if isinstance(data, list) and door.is_joined:
        runner = program.choose_runner(min(size, len(data[0])), epochs * steps)
    loop.engine = runner
    X = dict(enumerate(data)) if isinstance(data, list) else data
    X_val = dict(enumerate(validation)) if isinstance(validation, list) else validation
    y_val = _BESIDE if isinstance(validation, list) else None
    tasks = FitTasks(program.module, loop, X, None)
    tasks.states = states
    loop.fit(X, _BESIDE if isinstance(data, list) else None, None, X_val, y_val, tasks, former, door.overrides)


def concatenate(parts: Sequence[tuple[int, Any]]) -> Any:
    """The outputs for all rows, from the number of rows and the outputs of each batch.

    Raises
    ------
    DataError
        An output has no row for each row.
    """
    leaves = [flatten(outputs, "output") for _, outputs in parts]
    for (rows, _), part in zip(parts, leaves, strict=True):
        if unlike := [n for n, a in part.items() if a.shape[:1] != (rows,)]:
            raise DataError(f"{unlike[0]!r} has the shape {part[unlike[0]].shape} for a batch of {rows} rows, so that "
                            f"those of several batches are not one; predict without batch_size.")
    return rebuild(parts[0][1], "output", {n: np.concatenate([part[n] for part in leaves]) for n in leaves[0]})


def to_arrays(data: Any, names: Sequence[str], what: str) -> Rows:
    """One array for each name, of equally many rows.

    Parameters
    ----------
    data : array_like, or sequence or dict of them
        The array, or one for each name.
    names : sequence of str
        The names.
    what : str
        What the data are called in errors.

    Returns
    -------
    list of numpy.ndarray

    Raises
    ------
    DataError
        There is another number of arrays, or of rows.
    """
    try:
        arrays = _list_arrays(data, names, what)
    except ValueError as e:
        raise DataError(f"{what} is no array, nor a tuple or dict of {len(names)}: {e}") from None
    for name, a in zip(names, arrays, strict=True):
        if not a.ndim or a.dtype == object:
            raise DataError(f"{what}: {name!r} is no array with a row for each example.")
    if len({len(a) for a in arrays}) > 1:
        sizes = ", ".join(f"{n} {len(a)}" for n, a in zip(names, arrays, strict=True))
        raise DataError(f"{what}: the arrays differ in their number of rows: {sizes}.")
    return arrays


def _list_arrays(data: Any, names: Sequence[str], what: str) -> Rows:
    """The array for each name."""
    if isinstance(data, Mapping):
        if missing := [n for n in names if n not in data]:
            raise DataError(f"{what} has no {missing[0]!r}; it has {', '.join(map(repr, data))}.")
        return [np.asarray(data[n]) for n in names]
    if len(names) == 1:
        return [np.asarray(data)]
    if len(data) != len(names) or not isinstance(data, (tuple, list)):
        raise DataError(f"{what} takes {len(names)} arrays, {', '.join(names)}, as a tuple or by name.")
    return [np.asarray(a) for a in data]


def check_positive(**settings: int) -> None:
    """Check settings that are whole numbers of at least 1."""
    for name, value in settings.items():
        if not isinstance(value, (int, np.integer)) or value < 1:
            raise SettingError(f"{name} is a whole number of at least 1, not {value!r}.")
