"""The door of a module: its data, losses and steps, as the loop of all trainings asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import ConvergenceError, DataError
from ortpartial.execution import Batch, Door, FitSettings, HeldRows, Loop, Means, Overrides, SparseRows, choose_part
from ortpartial.learning import Meter

from .compilation import Program
from .nested import Nested, flatten
from .rows import cut, to_array

__all__ = ["ModuleDoor"]


class ModuleDoor(Door):
    """The `Door` of a compiled module: a batch is the arrays by name or place, and nothing stands beside them.

    Parameters
    ----------
    program : Program
        The module.
    """

    def __init__(self, program: Program):
        self.program = program
        self.loop: Loop | None = None
        self.is_joined = False  # whether the runner takes all steps of an epoch
        self.is_row_wise = False  # whether the losses of a batch are known to be means of those of its rows
        self._held: tuple[Mapping[str, np.ndarray], list[tuple[int, HeldRows]]] = {}, []
        self._means = Means()  # of the losses of the epoch that runs

    # -- data

    def to_arrays(self, X: Data, y: Data, sample_weight: Data, batch_size: int | None
                  ) -> tuple[dict[str, np.ndarray], int]:
        """The rows as steps read them, and their number."""
        arrays = dict(X)
        rows = len(next(iter(arrays.values()), ()))
        if self.is_joined:
            arrays = self.program.prepare(list(arrays.values()))
        return arrays, rows

    @property
    def rows(self) -> Mapping[str, np.ndarray]:
        """The rows that are trained."""
        return {} if self.loop is None else self.loop.rows

    def read_batches(self, batches: Iterable[Data], *, with_target: bool = True) -> Iterator[Batch]:
        """The batches that an iterable gives."""
        is_empty = True
        for batch in batches:
            is_empty = False
            if isinstance(batch, tuple) and len(batch) == 3 and isinstance(batch[0], dict) and batch[2] is None:
                yield batch  # one of our own
            else:
                arrays = batch if isinstance(batch, (tuple, list)) else (batch,)
                if not len(arrays):
                    raise DataError(f"A batch is {batch!r}, where the arrays of a step were expected, as in (X, y).")
                yield {i: to_array(a, f"Array {i + 1} of the batch") for i, a in enumerate(arrays)}, None, None
        if is_empty:
            raise self.describe_no_rows()

    def describe_no_rows(self) -> DataError:
        """The error of an epoch without rows."""
        assert self.loop is not None
        return DataError(f"Epoch {self.loop.n_iter + 1} has no rows: the data are empty, or an iterator that an "
                         f"epoch has used up; give an iterable that begins anew, such as a DataLoader.")

    def check_batch(self, batch: Batch) -> None:
        """Refuse a batch, as `read_batches` gives it, that no step reads."""
        self.program.check(list(batch[0].values()))

    def check_each(self, data: Data) -> None:
        """Refuse a batch of several before another one moves weights; data that are no batches pass."""
        if isinstance(data, tuple) and len(data) > 1:
            for batch in self.read_batches(data):
                self.check_batch(batch)

    def draw_from(self, rng: np.random.Generator, iteration: int) -> np.random.Generator:
        """The order of the rows follows from the seed and the number of batches seen."""
        return np.random.default_rng([*self.program.seed.view(np.uint32).tolist(), iteration])

    # -- steps

    def reset(self, rng: np.random.Generator, settings: FitSettings) -> None:
        """A module goes on from where it is, unless a fit is to start anew."""
        if self.loop is not None and not settings.warm_start:
            self.program.restart()
            self.loop.records = self.program.module.history_
            self.loop.records.clear()

    @property
    def overrides(self) -> Overrides:
        """Methods in place of the loop's own."""
        step = None if self.is_joined else self.train_step
        return Overrides(train_step=step, on_epoch_begin=self.begin_epoch, on_epoch_end=self.end_epoch)

    def begin_epoch(self) -> None:
        """Follow changes of the module by callbacks."""
        self._means = Means()
        if not self.is_joined or self.loop is None:
            return
        if self.program.is_changed() or self.program.runner is not self.loop.engine:
            self.program.prepare(list(self.rows.values()))
            assert self.program.runner is not None
            self.loop.engine = self.program.runner
            self.loop.engine.start(self.rows)

    def train_step(self, batch: Batch) -> float:
        """Take a step; a step whose loss is not finite is undone."""
        losses, rows = self._read_losses(self.program.step(list(batch[0].values()))), self.weigh(batch[0])
        if wrong := [n for n, loss in losses.items() if not np.isfinite(loss)]:
            self.program.undo()
            assert self.loop is not None
            raise ConvergenceError(self._describe(f"The {wrong[0]} is {losses[wrong[0]]}", self.loop.n_iter + 1))
        self._means.add(losses, rows)
        return next(iter(losses.values()), 0.0)

    def end_epoch(self) -> None:
        """Record the means of all losses of a step that returns several."""
        if means := self._means.read():
            assert self.loop is not None
            record = self.loop.records[-1]
            if "loss" not in means:
                del record["loss"]
            record.update({n: v for n, v in means.items() if n not in record})

    def validate(self, batches: Iterable[Data], meter: Meter | None = None, size: int | None = None
                 ) -> dict[str, float]:
        """The means of the losses in evaluation mode, by name; a meter is given the predictions."""
        assert self.loop is not None
        means = Means()
        for arrays, _, _ in self.read_batches(batches):
            rows = list(arrays.values())
            counts = [len(a) if a.shape else 0 for a in rows]
            if min(counts) < counts[0] or not rows[0].shape:
                raise DataError(f"The arrays of a batch have {', '.join(map(str, counts))} rows, not as many each.")
            for part in cut(rows, np.arange(len(rows[0])), size or self.loop.settings.batch_size):
                means.add(self._read_losses(self.program.evaluate(part, meter)), len(part[0]))
        return means.read()

    def validate_held(self, arrays: Mapping[str, np.ndarray], meter: Meter | None = None) -> dict[str, float]:
        """The same of rows as `to_arrays` gives them; in large parts, where these have the same losses as batches."""
        assert self.loop is not None
        size = self.loop.settings.batch_size
        if not self.is_joined:  # Its steps are several programs, or none.
            return self.validate([self.to_batch(arrays)], meter)
        if self.is_row_wise:
            size = choose_part(arrays, size)
        if any(isinstance(a, SparseRows) for a in arrays.values()):  # Held, they would be dense all at once.
            return self.validate([self.to_batch(arrays)], meter, size)
        if self._held[0] is not arrays:
            rows = list(arrays.values())
            parts = cut(rows, np.arange(len(rows[0])), size)
            self._held = arrays, [(len(part[0]), self.program.hold(part)) for part in parts]
        means = Means()
        for count, part in self._held[1]:
            means.add(self._read_losses(self.program.evaluate_held(part, meter)), count)
        return means.read()

    def _read_losses(self, result: Nested) -> dict[str, float]:
        """The losses that a step returns, by name."""
        losses = flatten(result[1] if isinstance(result, tuple) and len(result) == 2 else result, "loss")
        return {n: float(loss) for n, loss in losses.items() if loss.size == 1}

    # -- what is recorded

    def describe_rate(self) -> float | None:
        """The step size of the last batch, where there is a single optimizer."""
        return self.program.find_rate()

    def describe_divergence(self, loss: float, iteration: int, epoch: int) -> str:
        """The message about a loss that is not finite."""
        return self._describe(f"The loss is {loss}" if not np.isfinite(loss) else "A weight is NaN or infinite", epoch)

    def _describe(self, what: str, epoch: int) -> str:
        """The message, which names data that hold no numbers."""
        advice = "Lower the learning rate, or scale the data."
        if any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in self.rows.values()):
            advice = "The data hold NaN or infinite numbers; leave these rows out, or fill them in."
        return f"{what} in epoch {epoch}; the weights are those before that batch. {advice}"
