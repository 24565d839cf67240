"""State of a training: weights, optimizer states and buffers, read, overwritten and written as ONNX models."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import ArrayLike, Record
from ortpartial.exceptions import DataError, SettingError
from ortpartial.graph import build, to_dtype, variable
from ortpartial.learning import fingerprint, is_settled
from ortpartial.model import check_finite, restore_weights, write, write_folder
from ortpartial.runtime import Session
from ortpartial.training import (
    AVERAGE,
    Engine,
    TrainingSpec,
    find_weighting,
    gradient_graph,
    loss_graph,
    row_loss_graph,
    spec_of,
)

from .loss_graph import drop_loss

if TYPE_CHECKING:
    from ortpartial.training_info import TrainingSnapshot

__all__ = ["TrainingState"]


class TrainingState:
    """The arrays that a training has changed so far.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    engine : Engine
        Holds the arrays.
    """

    def __init__(self, spec: TrainingSpec, engine: Engine):
        self.spec, self.engine = spec, engine
        #: The outputs of the trained model; all by default.
        self.outputs: Sequence[str] | None = None
        self._rate: Hashable = None  # The fingerprint of the optimizer whose schedule is at hand.
        self._schedule: Session | float = 0.0  # a number where it is constant
        self._settled: TrainingSpec | None = None  # of which it is, where the optimizer never changes
        self._gradient: tuple[Hashable, Session] | None = None  # with what it was made for

    def list_names(self, kind: str) -> list[str]:
        """The names of the arrays of a kind, ``"weight"``, ``"optimizer"`` or ``"buffer"``, in order."""
        names = self.spec.names
        if kind == "weight":
            return list(self.spec.weights)
        if kind in ("optimizer", "grad"):  # The second is its former name.
            return [*self.spec.states, names.iteration]
        if kind == "buffer":
            seed = [names.seed] if self.spec.train_mode else []
            return [*self.spec.statistics, *seed, *self.spec.scaling, *self.spec.controls]
        raise SettingError(f"kind is 'weight', 'optimizer' or 'buffer', not {kind!r}.")

    def get(self, kind: str) -> list[np.ndarray]:
        """Copies of the arrays of a kind."""
        with self.engine.turn.lock:
            return [self.engine.get(n) for n in self.list_names(kind)]

    def set(self, arrays: Sequence[ArrayLike], kind: str) -> None:
        """Overwrite the arrays of a kind: all of them, or none if any does not fit."""
        names = self.list_names(kind)
        if len(arrays) != len(names):
            raise DataError(f"There are {len(names)} arrays of kind {kind!r} and {len(arrays)} given; set_state takes "
                            f"what get_state({kind!r}) returns.")
        with self.engine.turn.lock:
            checked = [_check_array(name, a, self.engine.get(name)) for name, a in zip(names, arrays, strict=True)]
            for name, a in zip(names, checked, strict=True):
                self.engine.set(name, a)

    def step_size(self, spec: TrainingSpec | None = None, update: int | None = None, scale: float | None = None
                  ) -> float:
        """η of the next update, as the step computes it; or of a former update, with spec and scale of its time."""
        spec = spec or self.spec
        if spec is not self._settled:  # A callback asks after every epoch.
            rate = spec.planned_rate
            if (key := fingerprint(rate)) != self._rate:
                k = variable("k", np.int64, [])
                eta = rate.step_size(k, next(iter(spec.trained.values())).dtype)
                self._schedule = Session(build([k], {"eta": eta})) if eta.array is None else float(eta.array)
                self._rate = key
            self._settled = spec if is_settled(rate) else None
        schedule = self._schedule
        if not isinstance(schedule, float):
            schedule = float(schedule.run({"k": np.array(update or self.engine.updates + 1)})["eta"])
        return schedule * (self.rate_scale if scale is None else scale)

    @property
    def rate_scale(self) -> float:
        """The factor of all step sizes."""
        name = self.spec.names.rate_scale
        return float(self.engine.get(name)) if name in self.spec.controls else 1.0

    def add_rates(self, records: Sequence[Record]) -> None:
        """Write η of the last update into the last records of epochs that lack it."""
        with self.engine.turn.lock:
            for record in reversed(records):
                if not isinstance(due := record["learning_rate"], tuple):
                    return
                spec, update, scale = due
                record["learning_rate"] = self.step_size(spec, max(update, 1), scale)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Copies of all initializers that a training changes, by name."""
        with self.engine.turn.lock:
            return {n: self.engine.get(n) for n in self.spec.moving}

    @property
    def used(self) -> dict[str, np.ndarray]:
        """The same, as predictions use them: with `use_average` the averages of the weights."""
        with self.engine.turn.lock:
            return {n: self.engine.get_used(n) for n in self.spec.moving}

    def compute_gradients(self, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The gradient of the objective by each weight, on rows as an engine is given them."""
        spec, names = replace(spec_of(self.engine.source).for_inputs(data), precision=None), self.spec.names
        weighted = find_weighting(spec, data)
        pieces = fingerprint([spec.penalty, *spec.losses.values()])  # It does not depend on the rate.
        key = weighted, pieces, tuple(spec.losses), tuple(spec.model.inputs)
        if self._gradient is None or self._gradient[0] != key:
            graph = gradient_graph(spec, weighted=weighted)
            self._gradient = key, Session(graph, device=spec.device, threads=spec.threads())
        session = self._gradient[1]
        with self.engine.turn.lock:
            own = {names.iteration: np.array(self.engine.iteration + 1), names.seed: self.engine.get(names.seed)}
            feeds = {**data, **self.arrays, **own}
        outputs = session.run({n: feeds[n] for n in session.inputs}, self.engine.local.options)
        return {w: outputs[names.grad(w)] for w in spec.weights}

    def copy_used(self) -> dict[str, np.ndarray]:
        """Copies of all arrays that predictions depend on: weights, their averages and running statistics."""
        averages = [n for n, (_, state) in self.spec.states.items() if state == AVERAGE]
        with self.engine.turn.lock:
            return {n: self.engine.get(n) for n in (*self.spec.moving, *averages)}

    def restore_used(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrite the weights in use with former weights."""
        with self.engine.turn.lock:
            for n in arrays.keys() & self.copy_used().keys():
                self.engine.set(n, arrays[n])

    def to_model(self, whole: bool = False) -> ModelProto:
        """The model with the weights and running statistics that predictions use; with its own loss, if whole."""
        model = restore_weights(self.spec.model, self.used)
        return model if whole or self.outputs is None else drop_loss(model, self.outputs)

    def take_snapshot(self) -> TrainingSnapshot:
        """The state that `to_training_info` writes."""
        from ortpartial.training_info import TrainingSnapshot

        with self.engine.turn.lock:
            *optimizer, iteration = self.get("optimizer")
            seed = self.engine.get(self.spec.names.seed)
            scaling = {n: self.engine.get(n) for n in self.spec.scaling}
            return TrainingSnapshot(self.arrays, optimizer, int(iteration), seed, self.rate_scale, scaling)

    def save(self, path: str | os.PathLike[str], make: Callable[[], ModelProto] | None = None) -> None:
        """Write the trained model to a file, or a model of it."""
        with self.engine.turn.lock:
            check_finite(self.used, self.spec.model.arrays, "get_trained_onnx")
            model = (make or self.to_model)()
        write(model, path)

    def save_graphs(self, folder: str | os.PathLike[str] | type[bytes]) -> dict[str, Any]:
        """Write the graphs in use to a folder, or return their bytes."""
        with self.engine.turn.lock:
            graphs = self._list_graphs()
            arrays = self.used
        if folder is bytes:
            return {n: g.SerializeToString() for n, g in graphs.items()}
        root = Path(folder)  # type: ignore[arg-type]
        if root.suffix.lower() == ".onnx" and not root.is_dir():
            raise SettingError(f"save_onnx_graph writes several graphs into a folder, and {str(root)!r} is named like "
                               f"a file; write the trained model with save({str(root)!r}).")
        check_finite(arrays, self.spec.model.arrays, "get_trained_onnx")
        return dict(write_folder(graphs, root))

    def _list_graphs(self) -> dict[str, ModelProto]:
        """The graphs in use by name; loss, optimizer and penalty are written apart unless the engine has them."""
        spec = self.spec
        first = spec.model.arrays[spec.weights[0]]
        apart = {
            "learning_loss": loss_graph(spec_of(self.engine.source), weighted=self.engine.weighting),
            "learning_rate": spec.planned_rate.build_onnx_function(dtype=first.dtype, shape=first.shape),
            "learning_penalty": spec.penalty.build_onnx_function(dtype=first.dtype, shape=first.shape),
        }
        graphs = {"predict": self.to_model(), **self.engine.graphs(), "losses": row_loss_graph(spec)}
        return graphs | {n: g for n, g in apart.items() if n not in graphs}


def _check_array(name: str, array: ArrayLike, former: np.ndarray) -> np.ndarray:
    """An array in place of a former array, of its dtype and shape, without NaN or infinity."""
    with np.errstate(over="ignore"):
        new = to_dtype(array, former.dtype, f"The array for {name!r}")
    if former.shape != new.shape:
        raise DataError(f"The array for {name!r} has shape {new.shape}, where {former.shape} was expected.")
    if not np.isfinite(new).all():
        raise DataError(f"The array for {name!r} is not finite.")
    return new
