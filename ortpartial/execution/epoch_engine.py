"""The epoch engine: many steps in a run of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import ModelProto

from ortpartial.limits import limits
from ortpartial.runtime import Device, Session

from .epoch import epoch_graph
from .mean import WeightedMean
from .program import bind, directions
from .rows import DeviceRows
from .runner import ProgramKey
from .step import Shapes, StepSource
from .step_engine import StepEngine

__all__ = ["EpochEngine"]

#: Most steps in a run of an epoch: with short steps some tenths of a second, which is all that Ctrl-C can take away;
#: and the most bytes of rows that a run gathers, so that they are still near when they are read.
_CHUNK, _NEAR = 2000, 2**20


class EpochEngine(StepEngine):
    """Many steps in a run: a Scan over the batches of an epoch, with the data where they are.

    The last batch of an epoch, where it is smaller, is a step of its own. So are all where a step is long: then calling
    onnxruntime for each costs nothing beside it, and it reuses memory better outside of a Scan, as with images; and
    where batches have so many rows that numpy saves more by gathering them than a call costs. The numbers are the same
    to the last bit.

    Parameters
    ----------
    source : StepSource
        Composes the steps.
    """

    name = "epoch"
    runs = (("epoch", ("model", "loss", "gradient", "update")),)

    def __init__(self, source: StepSource):
        super().__init__(source)
        self._trained = source.count_trained()
        self._most = limits().scanned_step

    def graphs(self) -> dict[str, ModelProto]:
        """The steps of an epoch, with symbolic sizes where the model has them, and the step."""
        return {"epoch": epoch_graph(self.source, self.weighting), **super().graphs()}

    def _train(self, batches: np.ndarray, shapes: Shapes, mean: WeightedMean, steps: int) -> None:
        """Take a step for each row of `batches`, many in a run."""
        rows = batches.shape[1]
        if steps == 1 or rows * self._trained > self._most or not self._is_whole or self._is_gathered_apart(rows):
            super()._train(batches, shapes, mean, steps)
            return
        program = self._program("epoch", shapes, rows)
        self._run(program, batches, max(1, min(_CHUNK, self._count_near(rows))), mean, steps)

    def _is_gathered_apart(self, rows: int) -> bool:
        """Whether steps on so many rows take less time by a call for each, for which numpy gathers the rows."""
        at, data = limits(), list(self._data.values())
        is_far = sum([a.nbytes for a in data]) > _NEAR  # noqa: C419 - a list is faster
        is_long = rows > at.scanned_rows // (3 if is_far else 1) or max(a.ndim for a in data) > at.scanned_axes
        return is_long and Device.parse(self.source.device).shares_memory

    def _count_near(self, rows: int) -> int:
        """How many batches of so many rows are still near when they are read."""
        return _NEAR // (rows * sum([a[:1].nbytes for a in self._data.values()]))  # noqa: C419 - a list is faster

    def _run(self, program: Callable[[int, np.ndarray], np.ndarray], batches: np.ndarray, chunk: int,
             mean: WeightedMean, steps: int) -> None:
        """Run a program on chunks of so many batches."""
        count, start = len(batches), 0
        while start < count:
            losses = program(self.side, part := batches[start : start + chunk - mean.waiting])
            self.side ^= 1
            self.iteration += len(part)
            start += len(part)
            weights = self._weights_of(part)
            if count == steps:
                mean.add(float(losses @ weights), float(weights.sum()))
            else:
                mean.collect(losses, weights, chunk)

    def _open(self, key: ProgramKey) -> object:
        """The steps of an epoch, or a single step."""
        return _EpochProgram(self, self._compile(key, epoch_graph)) if key.kind == "epoch" else super()._open(key)


class _EpochProgram:
    """The steps of an epoch, bound twice: from the first set of buffers into the second, and back."""

    source: tuple[int, int] | None = None

    def __init__(self, engine: EpochEngine, session: Session):
        names, self.engine = engine.source.names, engine
        self.names, self.rows = names, DeviceRows(engine.data, engine.source.device)
        self.bindings = [bind(session, {**read, **engine.fixed_inputs}, new)
                         for read, new in directions(engine.buffers, names)]
        self.data = [n for n in session.inputs if n in engine.data]
        self.order = next(n for n in session.inputs
                          if n not in {*self.data, *engine.buffers[0], *engine.fixed_inputs})

    def read_from(self, data: Mapping[str, np.ndarray], rows: int) -> None:
        """Take the rows from these arrays from now on; each run chooses the batch among them."""
        self.rows.read_from(data)

    def __call__(self, side: int, batches: np.ndarray) -> np.ndarray:
        binding = self.bindings[side]
        self.engine.k.numpy()[...] = self.engine.iteration
        for name in self.data:
            binding.bind_input(name, self.rows.arrays[name])
        binding.bind_input(self.order, np.ascontiguousarray(batches, np.int64))
        binding.run(self.engine.local.options)
        return binding.ortvalues()[self.names.loss].numpy()
