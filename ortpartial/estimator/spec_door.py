"""The door of a spec: data, losses and first weights of a `TrainingSpec`, as a loop asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ortpartial.annotations import Data, Record
from ortpartial.execution import Batch, Door, FitSettings, StepRunner
from ortpartial.learning import Meter, ReduceOnPlateauSchedule, draw_weights
from ortpartial.training import TrainingSpec, check_rewrites, count_elements

from .predictor import Predictor
from .state import TrainingState

__all__ = ["SpecDoor"]


class SpecDoor(Door):
    """The `Door` of a training that a spec describes.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    engine : StepRunner
        Holds the weights.
    predictor : Predictor
        Computes validation losses, and has the data adapter.
    state : TrainingState
        Computes step sizes.
    """

    def __init__(self, spec: TrainingSpec, engine: StepRunner, predictor: Predictor, state: TrainingState):
        self.spec, self.engine, self.predictor, self.state = spec, engine, predictor, state

    @property
    def target(self) -> str:  # type: ignore[override]
        """The name of y in errors."""
        return self.predictor.reader.target

    def unpack(self, X: Data, y: Data, sample_weight: Data) -> Batch:
        """X, y and sample_weight, where X may hold all of them."""
        return self.predictor.reader.unpack(X, y, sample_weight)

    def to_arrays(self, X: Data, y: Data, sample_weight: Data, batch_size: int | None
                  ) -> tuple[dict[str, np.ndarray], int]:
        """The arrays that steps of so many rows read, or a single step on all rows, by name; and the number of rows."""
        data = self.predictor.data
        size = (data.fixed_batch or 0) if batch_size is None else batch_size
        return data.to_arrays(X, y, sample_weight, size, self.predictor.forward)

    def to_batch(self, arrays: Mapping[str, np.ndarray]) -> Batch:
        """The batch that some rows of such arrays are."""
        return self.predictor.data.to_batch(arrays)

    def choose_size(self, rows: int) -> int:
        """The number of rows of a step, where a batch has so many."""
        return self.predictor.data.fixed_batch or rows

    def read_batches(self, batches: Iterable[Data], *, with_target: bool = True) -> Iterator[Batch]:
        """The batches that an iterable gives, fetched in advance; y may be missing without `with_target`."""
        return self.predictor.reader.read_batches(batches, with_target=with_target)

    def check_batch(self, batch: Batch) -> None:
        """Refuse a batch, as `read_batches` gives it, that no step reads."""
        self.to_arrays(*batch, None)

    def check_counts(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Refuse arrays of which nothing counts in the loss."""
        self.predictor.data.check_counts(arrays)

    def weigh(self, arrays: Mapping[str, np.ndarray]) -> float:
        """By how much a batch counts in the mean of an epoch: the mean of its outputs."""
        return float(np.mean([rows.sum() for rows in count_elements(self.spec, arrays).values()]))

    def reset(self, rng: np.random.Generator, settings: FitSettings) -> None:
        """Return to the first weights: of the model, or random."""
        first = dict(self.spec.model.arrays)
        if settings.init == "random":
            first |= draw_weights(self.spec.model, self.spec.weights, rng)
        seed = rng.integers(-(2**31), 2**31, 2).tolist() if self.spec.train_mode else (0, 0)
        with self.engine.turn.lock:
            self.engine.reset(first, seed)

    def validate(self, batches: Iterable[Data], meter: Meter | None = None) -> float:
        """The mean loss of validation data, over the counts of all their batches; a meter is given the predictions."""
        sums = sum(self.predictor.sum_losses(*batch, meter=meter) for batch in self.read_batches(batches))
        return sum(total / count for total, count in np.asarray(sums).tolist() if count)

    def validate_held(self, arrays: Mapping[str, np.ndarray], meter: Meter | None = None) -> float:
        """The same of rows as `to_arrays` gives them, which a fit asks for again and again."""
        return sum(total / count for total, count in self.predictor.sum_held(arrays, meter) if count)

    def compute_loss(self, batch: Data) -> float:
        """The mean loss of a batch with the weights that predictions use, without an update."""
        sums = self.predictor.sum_losses(*batch)
        return sum(total / count for total, count in sums.tolist() if count)

    def check_step(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Compare a step on these arrays with the model as it is written."""
        check_rewrites(self.engine, arrays)

    def watch(self, loss: float, *, is_last: bool = False) -> None:
        """Let a schedule reduce the step size where the loss no longer falls, or `is_last` of its patience has come."""
        plateau = self.spec.rate.plateau
        if plateau is None or (is_last and not isinstance(plateau, ReduceOnPlateauSchedule)):
            return
        names, engine = self.spec.names, self.engine
        with engine.turn.lock:
            memory = engine.get(names.plateau)
            if is_last and isinstance(plateau, ReduceOnPlateauSchedule):
                loss, memory[1:] = np.finfo(np.float64).max, (plateau.patience, 0)
            scale, memory = plateau.watch(loss, float(engine.get(names.rate_scale)), memory, self.spec.rate.eta0)
            engine.set(names.rate_scale, np.array(scale))
            engine.set(names.plateau, memory)

    def complete(self, records: Sequence[Record]) -> None:
        """Compute the step sizes of the last epochs."""
        self.state.add_rates(records)

    def describe_rate(self) -> tuple[TrainingSpec, int, float]:
        """The inputs of the last step size: a schedule is a graph, and an epoch may take microseconds."""
        engine, spec = self.engine, self.spec
        update = engine.updates if spec.accumulate > 1 or spec.precision else engine.iteration
        return spec, update, float(engine.get(spec.names.rate_scale)) if engine.controls else 1.0

    def describe_divergence(self, loss: float, iteration: int, epoch: int) -> str:
        """The message about a loss, or weights where it is finite, that this iteration has made infinite."""
        weights = ", and a weight is NaN or infinite," if np.isfinite(loss) else ""
        return (f"The loss is {loss}{weights} at iteration {iteration} (epoch {epoch}) with {self.spec.rate!r}; the "
                f"weights are those of iteration {iteration - 1}. Lower the rate, or scale X and y.")
