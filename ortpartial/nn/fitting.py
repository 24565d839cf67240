"""Fitting: the call of a module's loop on arrays or batches."""

from __future__ import annotations

import os
from collections.abc import Iterable
from operator import length_hint
from typing import Any

from ortpartial.annotations import Data, Settings
from ortpartial.exceptions import DataError
from ortpartial.execution import FitSettings, FitTasks, describe_arrays, describe_settings

from .rows import Rows
from .trainer import ModuleTrainer

__all__ = ["fit"]

#: What a door is given as targets, which stand beside the inputs.
_BESIDE = ()


def fit(trainer: ModuleTrainer, data: Rows | Iterable[Data], validation: Data,
        resume: str | os.PathLike[str] | None = None, **settings: Any) -> None:
    """Train for some epochs, and add a record of each to the history of the module.

    Parameters
    ----------
    trainer : ModuleTrainer
        That of the module.
    data : list of numpy.ndarray, or iterable of batches
        Arrays with a row for each example, or batches of them.
    validation : list of numpy.ndarray, iterable of batches, or float, optional
        Rows whose loss in evaluation mode is computed, or a share of the rows of `data`.
    resume : path, optional
        The checkpoints of a fit that goes on.
    **settings : object
        As for `FitSettings`.

    Raises
    ------
    ConvergenceError
        A loss is NaN or infinite.
    """
    loop, door = trainer.loop, trainer.door
    with trainer.turn.lock:
        is_nested, outer = loop.thread is not None, (loop.settings, loop.engine, door.is_joined)
        try:
            _fit(trainer, data, validation, resume, settings)
        finally:
            if is_nested:  # A callback has called it.
                loop.settings, loop.engine, door.is_joined = outer


def _describe(trainer: ModuleTrainer, data: Rows | Iterable[Data], settings: Settings) -> dict[str, str]:
    """Describe the data and settings that processes which train together must share."""
    facts = describe_settings(**{n: settings[n] for n in ("batch_size", "shuffle")}, epochs=settings["max_iter"])
    if isinstance(data, list) and any(optimizer.distributed for optimizer in trainer.program.optimizers.values()):
        facts |= describe_arrays(dict(enumerate(data)))  # Reading the rows takes time and, of sparse ones, memory.
    return facts


def _fit(trainer: ModuleTrainer, data: Rows | Iterable[Data], validation: Data,
         resume: str | os.PathLike[str] | None, settings: Settings) -> None:
    """Train, in a turn of its own."""
    program, loop, door = trainer.program, trainer.loop, trainer.door
    is_first = program.synchronize(_describe(trainer, data, settings))
    loop.settings = FitSettings(random_state=program.random_state, **{
        **settings, "callbacks": program.share_answers(settings["callbacks"]),
        "verbose": settings["verbose"] if is_first else 0})
    epochs, size = loop.settings.max_iter, loop.settings.batch_size
    if not isinstance(data, list) and iter(data) is data and epochs > 1:
        raise DataError(f"The data give their batches once, and there are {epochs} epochs: give what can be iterated "
                        f"over again, such as a list or a DataLoader.")
    if isinstance(data, list) and not len(data[0]):
        raise door.describe_no_rows()
    steps = -(-len(data[0]) // size) if isinstance(data, list) else length_hint(data)
    former, states = (resume is not None and trainer.resume(resume)) or (None, ())
    if former is None and loop.settings.warm_start:
        program.plan_further(epochs * steps)
    elif former is None:
        trainer.scale_rate(1.0)
        program.plan(dict.fromkeys(program.optimizers, epochs * steps))
    door.is_joined = isinstance(data, list) and program.can_join(data)
    runner: Any = program.idle
    if isinstance(data, list) and door.is_joined:
        runner = program.choose_runner(min(size, len(data[0])), epochs * steps)
    loop.engine = runner
    door.check_each(data)
    X = dict(enumerate(data)) if isinstance(data, list) else data
    X_val = dict(enumerate(validation)) if isinstance(validation, list) else validation
    y_val = _BESIDE if isinstance(validation, list) else None
    tasks = FitTasks(program.module, loop, X, None)
    tasks.states = states
    loop.fit(X, _BESIDE if isinstance(data, list) else None, None, X_val, y_val, tasks, former, door.overrides)
