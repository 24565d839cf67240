"""The parts of a training: data adapter, predictor, loop and state, around a spec and an engine that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ortpartial.training import Engine, SpecSource, TrainingSpec

from .fit_loop import FitLoop
from .loss_data import LossDataAdapter
from .params import FitSettings
from .predictor import Predictor
from .state import TrainingState
from .validation import DataAdapter

__all__ = ["TrainingParts"]


class TrainingParts:
    """Parts that follow from a spec, an engine and settings; they are not pickled.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    engine : Engine
        Holds the weights and takes the steps.
    settings : FitSettings
        Those of the loop.
    """

    def __init__(self, spec: TrainingSpec, engine: Engine, settings: FitSettings):
        self.spec, self.engine = spec, engine
        self.data = DataAdapter(spec) if spec.own_loss is None else LossDataAdapter(spec)
        # Labels that do not count have a weight of 0 in what the adapter gives.
        self.predictor = Predictor(spec.counting_all(), engine, self.data)
        self.loop = FitLoop(spec, engine, self.predictor, settings)
        self.state = TrainingState(spec, engine)

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Back to a snapshot of an engine; one in which step sizes are rescaled makes a training that rescales them."""
        if self.spec.names.rate_scale in snapshot["arrays"].keys() - self.spec.controls:
            self.adopt(replace(self.spec, rescaled=True))
        self.engine.restore(snapshot)

    def scale_rate(self, scale: float) -> None:
        """Multiply all step sizes by a number from the next batch on."""
        with self.engine.turn.lock:
            if self.spec.names.rate_scale not in self.spec.controls:
                self.adopt(replace(self.spec, rescaled=True))
            self.engine.set(self.spec.names.rate_scale, np.array(scale))

    def adopt(self, spec: TrainingSpec, kind: type[Engine] | None = None,
              learned: Mapping[str, np.ndarray] | None = None) -> None:
        """Go on from the current state with another update, other weights to train or other class weights.

        The engine may be of another kind, and weights that are trained from now on begin with what they have learned.
        """
        with self.engine.turn.lock:
            engine = self.engine.continue_with(SpecSource(spec.counting_all()), kind, learned)
            if spec.weights != self.spec.weights:  # They are inputs of all graphs.
                engine.check()
                self.predictor.sessions.clear()
            self.spec, self.engine = spec, engine
            self.data.spec = spec
            self.predictor.spec, self.predictor.engine = spec.counting_all(), self.engine
            for part in (self.loop, self.state):
                part.spec, part.engine = spec, self.engine
