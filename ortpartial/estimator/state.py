"""What has been learned? `Trained` reads, overwrites and writes down the weights and the state of a training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.exceptions import DataError, SettingError
from ortpartial.learning import BaseLearningLoss, BaseLearningPenalty, BaseLearningRate
from ortpartial.model import Model, restore_weights
from ortpartial.training import Engine, Names, row_loss_graph
from ortpartial.training_info import to_training_info

from .params import Configurable

__all__ = ["Trained"]


class Trained(Configurable):
    """A model, and an engine that holds what a training has made of its weights."""

    _model: Model
    _losses: dict[str, BaseLearningLoss]
    _statistics: list[str]
    _engine: Engine
    weights_to_train: list[str]
    learning_rate: BaseLearningRate
    learning_penalty: BaseLearningPenalty
    train_mode: bool

    @property
    def _moving(self) -> list[str]:
        """The initializers that a training changes."""
        return [*self.weights_to_train, *self._statistics]

    def _names(self, kind: str) -> list[str]:
        if kind == "weight":
            return list(self.weights_to_train)
        if kind == "optimizer":
            return [*self._engine.setup.states, Names.of(self._model).iteration]
        if kind == "buffer":
            seed = [Names.of(self._model).seed] if self.train_mode else []
            return [*self._statistics, *seed, *self._engine.setup.scaling]
        raise SettingError(f"kind is 'weight', 'optimizer' or 'buffer', not {kind!r}.")

    def get_state(self, kind: str = "weight") -> list[np.ndarray]:
        """Copies of the weights, of the optimizer's states or of the buffers, that the caller owns.

        Parameters
        ----------
        kind : str
            ``"weight"``, ``"optimizer"`` or ``"buffer"``.

        Returns
        -------
        list of numpy.ndarray
            In the order of `weights_to_train`; of the optimizer, all states of the first weight, then of the next, and
            at last the number of batches seen, on which schedules and Adam depend. The buffers of `train_mode` are the
            running statistics, and then the seed, two numbers that the masks of Dropout follow from; those of a
            `LossScale` are the scale, the steps taken in a row since it moved, and the number of those skipped.
        """
        return [self._engine.get(n) for n in self._names(kind)]

    def set_state(self, state: Sequence[Any], kind: str = "weight") -> None:
        """Overwrite weights, states or buffers; a `fit` with `warm_start` or a `partial_fit` goes on from it.

        Parameters
        ----------
        state : sequence of array_like
            In the order of `get_state`.
        kind : str
            ``"weight"``, ``"optimizer"`` or ``"buffer"``.

        Raises
        ------
        DataError
            Another number of arrays, another shape, or what is no finite number.
        """
        names = self._names(kind)
        if len(state) != len(names):
            raise DataError(f"There are {len(names)} arrays of kind {kind!r} and {len(state)} given.")
        arrays = []
        for name, given in zip(names, state, strict=True):
            old = self._engine.get(name)
            try:
                with np.errstate(over="ignore"):
                    arrays.append(a := np.asarray(given, old.dtype))
            except (TypeError, ValueError):
                raise DataError(f"The array for {name!r} does not hold numbers.") from None
            if old.shape != a.shape:
                raise DataError(f"The array for {name!r} has shape {a.shape}, where {old.shape} was expected.")
            if not np.isfinite(a).all():
                raise DataError(f"The array for {name!r} is not finite.")
        for name, a in zip(names, arrays, strict=True):
            self._engine.set(name, a)

    @property
    def trained_coef_(self) -> dict[str, np.ndarray]:
        """Copies of the weights by name."""
        return dict(zip(self.weights_to_train, self.get_state(), strict=True))

    def _arrays(self) -> dict[str, np.ndarray]:
        """Copies of all initializers that a training changes."""
        return {n: self._engine.get(n) for n in self._moving}

    def get_trained_onnx(self) -> ModelProto:
        """The model with its trained weights, and running statistics; nothing else of it is changed.

        Returns
        -------
        onnx.ModelProto
        """
        return restore_weights(self._model, self._arrays())

    def get_training_onnx(self, style: str = "standard", *, init: str = "random", weighted: bool = False) -> ModelProto:
        """The model with its trained weights and its training, which a `TrainingSession` goes on with.

        Parameters
        ----------
        style, init, weighted : object
            As for `to_training_info`.

        Returns
        -------
        onnx.ModelProto

        Raises
        ------
        SettingError, ModelError
            As for `to_training_info`.
        """
        return to_training_info(self, style, init=init, weighted=weighted)

    def save_onnx_graph(self, folder: str | os.PathLike[str] | type[bytes]) -> dict[str, Any]:
        """Every graph in use: predict, losses, and those of the engine.

        Parameters
        ----------
        folder : path, or the type bytes
            Where to write ``<name>.onnx``; with ``bytes`` nothing is written and the bytes are returned.

        Returns
        -------
        dict of str to pathlib.Path or bytes
        """
        graphs = {"predict": self.get_trained_onnx(), **self._engine.graphs(),
                  "losses": row_loss_graph(self._model, self._moving, self._losses)}
        first = self._model.arrays[self.weights_to_train[0]]
        graphs.setdefault("learning_loss", self._engine.loss_graph())
        rate = self.learning_rate.build_onnx_function(dtype=first.dtype, shape=first.shape)
        graphs.setdefault("learning_rate", rate)
        penalised = self.learning_penalty.build_onnx_function(dtype=first.dtype, shape=first.shape)
        graphs.setdefault("learning_penalty", penalised)
        raw = {n: g.SerializeToString() for n, g in graphs.items()}
        if folder is bytes:
            return raw
        root = Path(folder)  # type: ignore[arg-type]
        root.mkdir(parents=True, exist_ok=True)
        for n, content in raw.items():
            (root / f"{n}.onnx").write_bytes(content)
        return {n: root / f"{n}.onnx" for n in raw}
