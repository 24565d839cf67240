"""A training as a whole: spec, engine, loop, settings and random generator, changed, captured and restored together."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, replace
from numbers import Real
from threading import get_ident
from typing import TYPE_CHECKING

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import Data, Entries, Estimator, MetricLike, Settings, State
from ortpartial.autodiff import WeightSelection, find_frozen, resolve_weights
from ortpartial.checks import check_count, check_flag
from ortpartial.exceptions import CheckpointError, ConvergenceWarning, DataError, ModelWarning, SettingError
from ortpartial.execution import (
    DataParallel,
    FitPosition,
    FitSettings,
    FitTasks,
    Loop,
    Overrides,
    check_form,
    count_batches,
    is_batches,
    is_prefetching,
    rebuild_generator,
    resolve_distributed,
)
from ortpartial.learning import (
    BaseLearningLoss,
    Meter,
    check_average,
    check_metrics,
    expand_chain,
    fingerprint,
    is_settled,
    replace_settings,
    resolve_metric,
)
from ortpartial.logs import logger
from ortpartial.model import (
    Model,
    Ties,
    change_weights,
    load,
    offload_weights,
    read,
    restore_weights,
    specialize,
)
from ortpartial.rewrites import (
    choose_train_mode,
    find_mode_problems,
    find_moving_statistics,
    resolve_checkpointing,
    resolve_precision,
    to_inference_mode,
)
from ortpartial.runtime import Device, FairLock
from ortpartial.training import (
    ACCUMULATED,
    MANY_STEPS,
    Engine,
    OrtGradientForwardBackward,
    SpecSource,
    TrainingSpec,
    select_engine,
    select_for_length,
)

from .changes import UPDATE, WEIGHTS, check_lengths, replace_update
from .forms import ModelLike
from .loss_data import LossBatchReader, LossDataAdapter, Roles
from .loss_graph import find_loss, list_predictions
from .output_loss import OutputLoss
from .outputs import resolve_losses, warn_of_activations
from .params import PROGRESS
from .predictor import Predictor
from .resumption import (
    LOOP,
    PIECES,
    check_arrays,
    check_model,
    check_settings,
    count_operators,
    describe,
    read_settings,
    rebuild_piece,
    rebuild_setting,
)
from .spec_door import SpecDoor
from .state import TrainingState
from .validation import DataAdapter
from .weights import choose_weights, find_loss_weights, freeze_less, leave_out_loss

if TYPE_CHECKING:
    from ortpartial.training_info import StoredTraining

__all__ = ["Training"]

#: Settings that no graph depends on.
_FIT = tuple(f.name for f in fields(FitSettings))

#: The former default of `validation_every`, with which a fit of then goes on.
_FORMER_PERIOD = 0.1

#: Settings that are kept as they were given, too, as a training holds another form of them.
_ARGUMENTS = ("model", "weights_to_train", "learning_loss", "learning_rate", "learning_penalty", "gradient_clipping",
              "averaging", "rate_factors", "freeze", "train_mode")

#: Attributes that are pickled under names with an underscore before them, and the values that older pickles lack.
_PICKLED: Settings = {"factors": {}, "batches": 0, "learned": {}, "first": {}, "class_weights": {}, "origin": {}}

#: Settings of former pickles that are parts of an `OutputLoss`.
_OUTPUT_LOSS = ("loss_output_name", "label_names", "sample_weight_name")

#: Settings that pickles of former versions lack.
_ADDED: Settings = {"gradient_clipping": None, "accumulate": 1, "averaging": None, "use_average": False,
                          "rate_factors": None}


class Training:
    """A training: its specification, its state, and the parts that carry it out.

    Parts follow from the spec and the settings: they are composed anew, and not pickled.

    Parameters
    ----------
    arguments : dict of str to object
        Settings as they were given, where the training holds another form of them.
    settings : dict of str to object
        The settings that graphs depend on.

    Attributes
    ----------
    spec, engine : TrainingSpec, Engine
        The training, and the engine that holds its weights and takes its steps.
    data, predictor, door, loop, state : DataAdapter, Predictor, SpecDoor, Loop, TrainingState
        The parts around them. The loop has the other settings, the history and the random generator.
    factors : dict of str to float
        The factors of the rates of weights.
    learned, first : dict of str to numpy.ndarray
        Formerly trained weights, as they have learned, and as they are in the model.
    batches : int
        Number of batches of the whole training, which `fit` plans where the schedule asks for it; 0 if it is not known.
    class_weights : dict of str to object
        By output the class weights that "balanced" stood for in the last `fit`.
    origin : dict of str to object
        The settings with which the last `fit` began, that callbacks may change.
    roles : Roles or None
        The inputs that are labels and weights of rows, where the model computes its loss itself.
    unsettled, fingerprint : sequence of object, object
        The pieces that may change in themselves, and their content when the steps were composed.
    turn : FairLock
        The turn to train, for a whole call of `fit`; the engine has a turn for each epoch or batch.
    """

    def __init__(self, arguments: Entries, settings: Entries):
        self.arguments, self.settings = dict(arguments), dict(settings)
        self.factors: Mapping[str, float] = {}
        self.learned: Mapping[str, np.ndarray] = {}
        self.first: Mapping[str, np.ndarray] = {}
        self.batches = 0
        self.class_weights: Entries = {}
        self.origin: Entries = {}
        self.unsettled: Sequence[object] = ()
        self.fingerprint: Hashable = None
        self.roles: Roles | None = None
        self.turn = FairLock()

    @classmethod
    def begin(cls, given: Entries, owner: str, stacklevel: int) -> Training:
        """A training with the settings of a constructor.

        Parameters
        ----------
        given : dict of str to object
            All settings of the constructor, as they were given.
        owner : str
            The class of the optimizer, for warnings.
        stacklevel : int
            That of warnings about the model.
        """
        given = expand_chain(given)
        arguments = {n: given[n] for n in _ARGUMENTS}
        if arguments["train_mode"] is not None:
            arguments["train_mode"] = check_flag("train_mode", arguments["train_mode"])
        pieces = {n: resolve(given[n]) for n, resolve in UPDATE.items() if n != "use_average"}
        fit_settings = FitSettings(**{n: given[n] for n in _FIT})
        others = {n: v for n, v in given.items() if n not in (*_FIT, "model", "freeze")}
        settings = {**others, **pieces, "distributed": resolve_distributed(given["distributed"]),
                    "accumulate": check_count("accumulate", given["accumulate"]),
                    "use_average": check_flag("use_average", given["use_average"])}
        check_average(settings["use_average"], settings["averaging"])
        training = cls(arguments, settings)
        training.compose(training.specify(training.read(owner, stacklevel)), fit_settings)
        training.engine.check()
        training.note_pieces()
        return training

    # -- composition

    def read(self, owner: str, stacklevel: int) -> Model:
        """Load a copy of the model; resolve the losses and weights of the settings in it."""
        # It is a copy, so that nothing the caller does to the model changes a training.
        loaded = offload_weights(_load(self.arguments["model"]))
        if loaded.proto.training_info:
            warnings.warn(f"The model stores a training, which is not read: {owner}.from_training_info("
                          f"model) goes on with it, training_info.strip_training_info(model) leaves it out.",
                          ModelWarning, stacklevel=stacklevel)
        losses, train_mode = self.find_losses(loaded, stacklevel), self.arguments["train_mode"]
        self.settings["train_mode"] = choose_train_mode(loaded, losses) if train_mode is None else train_mode
        for problem in find_mode_problems(loaded, losses, self.settings["train_mode"]):
            warnings.warn(problem, ModelWarning, stacklevel=stacklevel)
        is_named = isinstance(self.arguments["learning_loss"], (Mapping, OutputLoss))
        self.settings["learning_loss"] = losses if is_named else next(iter(losses.values()))
        self.settings["weights_to_train"], self.factors = choose_weights(loaded, losses, self.arguments)
        warn_of_activations(loaded, losses, stacklevel=stacklevel)
        return loaded

    def find_losses(self, model: Model, stacklevel: int) -> dict[str, BaseLearningLoss]:
        """The loss of every trained output, or the loss that the model computes."""
        loss = self.arguments["learning_loss"]
        if not isinstance(loss, OutputLoss):
            return resolve_losses(model, loss)
        losses, labels, row_weights = find_loss(model, loss.name, loss.label_names, loss.sample_weight_name)
        self.roles = Roles(labels, row_weights)
        if self.arguments["weights_to_train"] is None:
            self._warn_of_loss_weights(model, losses, stacklevel + 2)
        return losses

    def _warn_of_loss_weights(self, model: Model, losses: Mapping[str, BaseLearningLoss], stacklevel: int) -> None:
        """Warn of weights that are not trained as the loss alone reads them: it might have learned them."""
        frozen = find_frozen(model, self.arguments["freeze"])
        if names := [n for n in find_loss_weights(model, losses) if n not in frozen]:
            warnings.warn(f"The loss {self.arguments['learning_loss'].name!r} alone reads "
                          f"{', '.join(map(repr, names))}, taken for constants such as class weights and not trained; "
                          f"add to weights_to_train what is a weight, or to freeze what is none.", ModelWarning,
                          stacklevel=stacklevel)

    def compose(self, spec: TrainingSpec, settings: FitSettings) -> None:
        """Compose the parts from a spec and the settings of the loop."""
        if spec.model.file is not None:
            gc.collect()  # Nodes and their values refer to each other, and values to the content of big initializers.
        kind, reason = select_engine(self.settings["engine"], spec, self.settings["distributed"])
        engine = kind(SpecSource(spec.without_ignored_labels()))
        engine.reason, engine.use_average = reason, self.settings["use_average"]
        self.spec, self.engine = spec, engine
        self.data = DataAdapter(spec) if spec.own_loss is None else LossDataAdapter(spec)
        self.data.is_told = not isinstance(self.arguments["learning_loss"], str)
        # Labels that do not count have a weight of 0 in what the adapter gives.
        self.predictor = Predictor(spec.without_ignored_labels(), engine, self.data)
        self.state = TrainingState(spec, engine)
        self.door = SpecDoor(spec, engine, self.predictor, self.state)
        self.loop = Loop(engine, self.door, settings)
        if (roles := self.roles) is not None:
            self.predictor.reader = LossBatchReader(self.data, roles.labels, roles.row_weights)
            self.state.outputs = list_predictions(spec.model, self.arguments["learning_loss"].name, roles.names) or None
        #: Forward and backward apart, as they were used last; None if they were not.
        self.last_layer: OrtGradientForwardBackward | None = None

    def specify(self, model: Model, weights: Sequence[str] | None = None, factors: Mapping[str, float] | None = None
                ) -> TrainingSpec:
        """The description of the training, of these weights with these factors, or of the present weights."""
        losses, settings = self.resolve_losses(model), self.settings
        weights, factors = weights or settings["weights_to_train"], self.factors if factors is None else factors
        statistics = find_moving_statistics(model, losses, weights) if settings["train_mode"] else []
        # Weights become variables, so that no rewrite relies on their content, and the others constants.
        former = [n for n, v in model.initializers.items() if v.array is None and n in model.arrays]
        model = specialize(model, variables=[*weights, *statistics], constants=former)
        gradient = resolve_checkpointing(settings["checkpointing"], model.values)
        precision = resolve_precision(settings["precision"], settings["loss_scale"],
                                      on_cpu=Device.parse(settings["device"]).is_cpu)
        device, parallel = settings["device"], settings["distributed"]
        parallel = parallel if isinstance(parallel, DataParallel) else DataParallel()
        device = device if isinstance(device, str) else str(Device.parse(device))
        return TrainingSpec(model, tuple(weights), losses, settings["learning_penalty"], settings["learning_rate"],
                            device, settings["train_mode"], tuple(statistics), gradient, precision,
                            batches=self.batches, gradient_clipping=settings["gradient_clipping"],
                            accumulate=settings["accumulate"], averaging=settings["averaging"],
                            rate_factors={w: factors[w] for w in weights if w in factors}, parallel=parallel)

    def resolve_losses(self, model: Model) -> dict[str, BaseLearningLoss]:
        """The loss of every output, with the class weights of the last `fit` for balanced losses."""
        return {o: replace_settings(loss, class_weight=self.class_weights[o])
                if loss.is_unbalanced and o in self.class_weights else loss
                for o, loss in resolve_losses(model, self.settings["learning_loss"]).items()}

    def switch_spec(self, spec: TrainingSpec, kind: type[Engine] | None = None,
                    learned: Mapping[str, np.ndarray] | None = None) -> None:
        """Go on from the current state with another update, other weights to train or other class weights.

        The engine may be of another kind, and weights that are trained from now on begin with their learned numbers.
        """
        with self.engine.turn.lock:
            engine = self.engine.continue_with(SpecSource(spec.without_ignored_labels()), kind, learned)
            if spec.weights != self.spec.weights:  # They are inputs of all graphs.
                engine.check()
                self.predictor.sessions.clear()
            self.spec, self.engine = spec, engine
            self.data.spec = spec
            self.predictor.spec, self.predictor.engine = spec.without_ignored_labels(), engine
            self.loop.engine = engine
            for part in (self.door, self.state):
                part.spec, part.engine = spec, engine

    def restore_arrays(self, snapshot: Entries) -> None:
        """Back to a snapshot of an engine; rescaled step sizes in it make a training that rescales them."""
        if self.spec.names.rate_scale in snapshot["arrays"].keys() - self.spec.controls:
            self.switch_spec(replace(self.spec, rescaled=True))
        self.engine.restore(snapshot)

    def go_on(self, stored: StoredTraining) -> None:
        """Go on from the state that a model stores beside its settings, as far as the settings are still the same."""
        starts = {w: n for w, n in stored.rate_starts.items() if w in self.spec.weights}
        if starts or stored.average_start:
            self.switch_spec(replace(self.spec, rate_starts=starts, average_start=stored.average_start))
        names, snapshot = self.spec.names, self.engine.snapshot()
        arrays = {names.state(*state): a for state, a in stored.states.items()}
        if stored.rate_scale != 1:
            arrays[names.rate_scale] = np.array(stored.rate_scale)
        seed = snapshot["seed"] if stored.seed is None else stored.seed
        self.restore_arrays({**snapshot, "iteration": stored.iteration, "arrays": arrays, "seed": seed})

    def forward_backward(self) -> OrtGradientForwardBackward:
        """Forward and backward apart, with the weights of now."""
        if self.last_layer is None:
            model = restore_weights(self.spec.model)
            self.last_layer = OrtGradientForwardBackward(model, list(self.spec.moving), device=self.settings["device"],
                                                         engine=self.settings["engine"])
        self.last_layer.set_state(list(self.state.used.values()))
        return self.last_layer

    # -- training

    def fit(self, X: Data, y: Data, sample_weight: Data, X_val: Data, y_val: Data, tasks: FitTasks,
            path: str | os.PathLike[str] | None = None, overrides: Overrides | None = None) -> None:
        """Train, and tell of the tasks; go on with a fit that was cut off, where there is a path of checkpoints.

        Warnings name the caller of the method that calls this method, which is decorated.
        """
        if self.loop.thread is not None:
            _check_thread()
        with self.turn.lock:
            if self.unsettled:
                self.follow_pieces()
            place, tasks.states = (path is not None and self.resume(path, read_settings(tasks.owner))) or (
                None, ())
            if place is None:
                self.note_origin()
                if (self.spec.rate_starts or self.spec.average_start) and not self.loop.settings.warm_start:
                    # The optimizer and the average, too, start again.
                    self.switch_spec(replace(self.spec, rate_starts={}, average_start=0))
            if place is None or not self.batches:
                start = self.engine.iteration if self.loop.settings.warm_start else 0
                self._plan(place.start if place else start, X, y, X_val)
            if 0 < self.batches < self.spec.accumulate:
                warnings.warn(f"accumulate={self.spec.accumulate} takes as many batches for an update, and there are "
                              f"{self.batches}: no weight changes.", ConvergenceWarning, stacklevel=4)
            if y is not None:
                self._balance(X, y)
                steps = self.batches - (place.start if place else start)
                if steps >= MANY_STEPS or self.engine.name == "native" or self.engine.source.rounds:
                    self._adapt_engine(X, steps)
            self.loop.fit(X, y, sample_weight, X_val, y_val, tasks, place, overrides)
            self._note_rates()

    def partial_fit(self, X: Data, y: Data, sample_weight: Data, overrides: Overrides | None = None) -> None:
        """Train for an epoch."""
        if self.loop.thread is not None:
            _check_thread()
        with self.turn.lock:
            if self.unsettled:
                self.follow_pieces()
            if (seen := self.engine.iteration) >= self.batches:
                self._plan(seen, X, y)
            self.loop.partial_fit(X, y, sample_weight, overrides)
            self._note_rates()

    def step(self, batch: Data) -> float:
        """Take a step on a batch; return its loss."""
        if self.loop.thread is not None:
            _check_thread()
        with self.turn.lock:
            return self.loop.step(batch)

    def compute_loss(self, batch: Data) -> float:
        """The mean loss of a batch, without an update."""
        return self.door.compute_loss(batch)

    def evaluate(self, X: Data, y: Data, sample_weight: Data, metrics: Sequence[MetricLike]) -> dict[str, float]:
        """The mean loss and metrics of rows, or of batches."""
        self.follow_pieces()
        X, y, sample_weight = self.predictor.reader.unpack(X, y, sample_weight)
        if y is None and not is_batches(X):
            raise DataError(f"{self.door.target} is missing; evaluate takes X and y, or batches of them.")
        by_name = {metric.name: metric for metric in map(resolve_metric, check_metrics(metrics))}
        meter = Meter(list(by_name.values()))
        batches = X if y is None else [(X, y, sample_weight)]
        return {"loss": self.door.validate(batches, meter if meter.metrics else None), **meter.read()}

    def _note_rates(self) -> None:
        """Compute step sizes of the history now, where the optimizer may have changed when they are read."""
        if self.unsettled and not is_settled(self.settings["learning_rate"]):
            self.door.complete(self.loop.records)

    def _plan(self, seen: int, X: Data, y: Data, X_val: Data = None) -> None:
        """Let a schedule without a length of its own end with the batches that are asked for, after the seen."""
        rate, averaging = self.settings["learning_rate"], self.settings["averaging"]
        is_planned = any(piece.over(1) is not piece for piece in (rate, averaging) if piece)
        loop = self.loop.settings
        try:
            self.batches = seen + loop.max_iter * count_batches(X, y, loop.batch_size, X_val)
        except SettingError:
            if rate.over(1) is not rate:
                raise
            check_lengths(rate, averaging)
            self.batches = 0
        if is_planned and self.spec.batches != self.batches:
            self.switch_spec(replace(self.spec, batches=self.batches))

    def _adapt_engine(self, X: Data, steps: int) -> None:
        """Go on with the engine that is the fastest for so many steps, where it is chosen by itself."""
        if self.settings["engine"] != "auto":
            return
        rows = len(next(iter(X.values()), ())) if isinstance(X, Mapping) else len(X)
        kind, reason = select_for_length(self.engine, min(rows, self.loop.settings.batch_size), steps)
        if kind is not type(self.engine):
            chosen = self.engine.lengths
            self.switch_spec(self.spec, kind)
            self.engine.lengths = chosen  # for the next fit, which would compose the step again to choose
        self.engine.reason = reason

    def _balance(self, X: Data, y: Data) -> None:
        """Go on with the class weights that "balanced" stands for in all labels."""
        if not self.class_weights and not any(loss.is_unbalanced for loss in self.spec.losses.values()):
            return
        losses = resolve_losses(self.spec.model, self.settings["learning_loss"])
        inputs, rows = self.data.to_inputs(X)
        targets = self.data.to_targets(y, inputs, rows, self.predictor.forward)
        losses = {o: loss.balanced(targets[self.spec.names.target(o)]) for o, loss in losses.items()}
        self.class_weights = {o: loss.class_weight for o, loss in losses.items()}
        if losses != self.spec.losses:
            self.switch_spec(replace(self.spec, losses=losses))
            self.predictor.sessions.clear()

    # -- pieces of users, which may change in themselves

    def note_pieces(self) -> None:
        """Note the content of the pieces of users with which the next steps are composed."""
        loss = self.settings["learning_loss"]
        pieces = [*(loss.values() if isinstance(loss, Mapping) else [loss]), *(self.settings[n] for n in UPDATE)]
        self.unsettled = [piece for piece in pieces if not is_settled(piece)]
        self.fingerprint = fingerprint(self.unsettled)

    def follow_pieces(self) -> None:
        """Compose the steps anew where a piece of users has changed in itself since they were composed."""
        if self.loop.thread is not None or fingerprint(self.unsettled) == self.fingerprint:
            return
        with self.engine.turn.lock:
            self.switch_spec(replace(self.spec, losses=self.resolve_losses(self.spec.model)))
            self.predictor.sessions.clear()
            self.note_pieces()

    # -- history

    @property
    def progress(self) -> State:
        """Losses, epochs, generator and history, by the names of the optimizer's attributes; records are copies."""
        return {**self.loop.progress, "_rng": self.loop.rng}

    @progress.setter
    def progress(self, values: Entries) -> None:
        self.loop.progress, self.loop.rng = values, values.get("_rng", self.loop.rng)

    # -- changes

    def change(self, params: Entries, rebuild: Callable[[Entries], Estimator]) -> Estimator:
        """Change settings, between two trainings or in the thread that trains, and keep the training.

        Parameters
        ----------
        params : dict of str to object
            Settings of the constructor.
        rebuild : callable
            From settings that all graphs depend on to a new owner of a `training`, which has them.

        Returns
        -------
        object or None
            The result of `rebuild`, if it was called: this training now belongs to it.

        Raises
        ------
        SettingError
            A value is not allowed, or a training is running and a graph depends on the setting.
        """
        # Another thread changes settings of the loop at any time, and no others.
        if self.loop.thread not in (None, get_ident()):
            return self._change(params, rebuild)
        with self.turn.lock:
            return self._change(params, rebuild)

    def _change(self, params: Entries, rebuild: Callable[[Entries], Estimator]) -> Estimator:
        """Change settings of the loop, the weights and the update, and others by composing anew."""
        update = {n: v for n, v in params.items() if n in UPDATE}
        if params.keys() - {*_FIT, *UPDATE, *WEIGHTS}:
            return self._recompose({n: v for n, v in params.items() if n not in UPDATE}, update, rebuild)
        settings = replace(self.loop.settings, **{n: v for n, v in params.items() if n in _FIT})
        weights = {n: v for n, v in params.items() if n in WEIGHTS}
        step = [n for n in (*update, *weights) if n != "use_average"]
        if step and self.loop.thread not in (None, get_ident()):
            raise SettingError(f"{step[0]} changes between two steps: in a callback, not in another thread, such as "
                               f"that in which an iterable gives its batches.")
        if update and weights:  # An error in one of them comes before the other changes.
            choose_weights(self._restore_model(), self.spec.losses, {**self.arguments, **weights})
        if update:
            self._change_update(update)
        if weights:
            self._change_weights(weights)
        self.loop.settings = settings
        if "random_state" in params:
            self.loop.rng = np.random.default_rng(settings.random_state)
        return None

    def _change_weights(self, params: Entries) -> None:
        """Go on with other weights to train, or with other factors of their rates, from the next step on."""
        model, arguments = self._restore_model(), {**self.arguments, **params}
        weights, factors = choose_weights(model, self.spec.losses, arguments)
        with self.engine.turn.lock:
            if (weights, factors) != (self.settings["weights_to_train"], self.factors):
                self._train_weights(model, weights, factors)
            self.settings |= {"weights_to_train": weights, "rate_factors": arguments["rate_factors"]}
            self.factors = factors
            self.arguments.update(params)

    def _train_weights(self, model: Model, weights: Sequence[str], factors: Mapping[str, float]) -> None:
        """Train these weights of the model as it was read; all others become constants with their learned numbers."""
        spec, engine, new = self.spec, self.engine, self.specify(model, weights, factors)
        learned = {**self.learned, **self.state.arrays}
        kept = {n: a for n, a in learned.items() if n not in new.moving}
        new = replace(new, model=specialize(change_weights(new.model, kept)), rate_starts=self._find_starts(new),
                      average_start=spec.average_start, rescaled=spec.rescaled)
        kind, reason = select_engine(self.settings["engine"], new, self.settings["distributed"])
        self.switch_spec(new, kind, self.learned)
        self.engine.reason = engine.reason if kind is type(engine) else reason
        self.learned, self.first, self.last_layer = kept, {n: model.arrays[n] for n in kept}, None

    def _restore_model(self) -> Model:
        """The model as it was read: with its first weights, and with constants alone."""
        return specialize(change_weights(self.spec.model, self.first), constants=self.spec.moving)

    def _find_starts(self, new: TrainingSpec) -> dict[str, int]:
        """By weight the last update before its states began: the present for newly trained weights."""
        former, now = self.spec, self.engine.updates
        starts = {w: former.rate_starts.get(w, 0) if w in former.weights else now for w in new.weights}
        return {w: start for w, start in starts.items() if start}

    def name_weights(self) -> str | Sequence[str] | None:
        """The setting `weights_to_train`, as names in place of a function, which pickles may not find again."""
        setting: WeightSelection | None = self.arguments["weights_to_train"]
        if not callable(setting):
            return setting
        return resolve_weights(self._restore_model(), setting, list(self.spec.losses))

    def list_unfrozen(self, patterns: Sequence[str]) -> Settings:
        """The settings of a training of further weights, by names, aliases and patterns: see `freeze_less`."""
        model, losses = self._restore_model(), self.spec.losses
        chosen = leave_out_loss(model, losses, self.arguments["weights_to_train"])
        return freeze_less(model, list(losses), patterns, {**self.arguments, "weights_to_train": chosen})

    def _change_update(self, params: Entries) -> None:
        """Go on with another optimizer, penalty, clipping or average from the next step on."""
        settings = self.settings
        new = {n: resolve(params.get(n, settings[n])) for n, resolve in UPDATE.items()}
        check_average(new["use_average"], new["averaging"])
        if self.loop.thread is not None and not self.batches:
            check_lengths(new["learning_rate"], new["averaging"])
        if any(new[n] != settings[n] for n in params if n != "use_average"):
            pieces = {n: piece for n, piece in new.items() if n != "use_average"}
            self.switch_spec(replace_update(self.spec, self.batches, self.engine.updates, **pieces))
        self.engine.use_average = new["use_average"]
        settings.update({n: new[n] for n in params})
        self.arguments.update({n: v for n, v in params.items() if n != "use_average"})
        self.note_pieces()

    def scale_rate(self, scale: object) -> None:
        """Multiply all step sizes by a number from the next batch on.

        Raises
        ------
        SettingError
            The number is not finite or not more than 0, or a training is running in another thread.
        """
        if isinstance(scale, bool) or not isinstance(scale, Real) or not 0 < float(scale) < np.inf:
            raise SettingError(f"scale is {scale!r}, a finite number more than 0 was expected.")
        if self.loop.thread not in (None, get_ident()):
            raise SettingError("Step sizes are scaled between two steps: in a callback, not in another thread.")
        with self.turn.lock, self.engine.turn.lock:
            if self.spec.names.rate_scale not in self.spec.controls:
                self.switch_spec(replace(self.spec, rescaled=True))
            self.engine.set(self.spec.names.rate_scale, np.array(float(scale)))

    def _recompose(self, params: Entries, update: Entries, rebuild: Callable[[Entries], Estimator]) -> Estimator:
        """Change settings that all graphs depend on, then those of the update, and continue from the current state."""
        if self.loop.thread is not None:
            name = next(n for n in params if n not in _FIT)
            raise SettingError(f"{name} belongs to the graphs that run now; change it before or after fit.")
        owner = rebuild(params)
        new: Training = owner.training
        with self.engine.turn.lock:
            if "model" not in params:
                new.continue_from(self)
                progress = self.progress
                new.progress = {n: v for n, v in progress.items() if n != "_rng" or "random_state" not in params}
            new.change(update, rebuild)
            new.engine.turn = self.engine.turn
            vars(self).update({n: v for n, v in vars(new).items() if n != "turn"})
        return owner

    def continue_from(self, former: Training) -> None:
        """Continue from the current state of another training."""
        spec, engine = former.spec, former.engine
        self.batches, self.class_weights = former.batches, dict(former.class_weights)
        dropped = [n for n in spec.moving if n not in self.spec.moving]
        self._keep_learned({**former.learned, **{n: engine.get(n) for n in dropped}})
        losses = self.resolve_losses(self.spec.model)
        starts = former._find_starts(self.spec)
        if former.batches or starts or spec.average_start or losses != self.spec.losses:
            self.switch_spec(replace(self.spec, losses=losses, batches=former.batches, rate_starts=starts,
                                     average_start=spec.average_start))
        snapshot = engine.snapshot()
        if self.spec.accumulate != spec.accumulate:
            # The count of updates goes on; what has been summed up for the next one is left out.
            snapshot["iteration"] += engine.updates * self.spec.accumulate - engine.counted
            sums = {n for n, (_, s) in spec.states.items() if s == ACCUMULATED}
            snapshot["arrays"] = {n: a for n, a in snapshot["arrays"].items() if n not in sums}
        self.restore_arrays(snapshot)

    def _keep_learned(self, learned: Mapping[str, np.ndarray]) -> None:
        """Take over learned weights: as constants of the graphs, unless a step changes them."""
        spec = self.spec
        self.learned = {n: a for n, a in learned.items() if n not in spec.moving}
        self.first = {n: self.first.get(n, spec.model.arrays[n]) for n in self.learned}
        if self.learned:
            self.compose(self.specify(change_weights(spec.model, self.learned)), self.loop.settings)
        for n in spec.moving:
            if n in learned:
                self.engine.set(n, learned[n])

    # -- checkpoints

    @contextmanager
    def capture(self, settings: Entries) -> Iterator[State]:
        """A context in which a training stands still, with all that its next steps depend on, and its history.

        Parameters
        ----------
        settings : dict of str to object
            The settings of now: see `read_settings`.

        Yields
        ------
        dict of str to object
            As `write_checkpoint` takes it. Its arrays are the training's own, not copies.

        Raises
        ------
        SettingError
            Another thread is training.
        """
        if self.loop.thread not in (None, get_ident()):
            raise SettingError("A checkpoint is written between two steps: in a callback, not in another thread.")
        start = {**settings, **self.origin}
        with self.engine.turn.lock:
            yield self.loop.capture(
                settings={n: describe(v) for n, v in start.items()},
                changes={n: describe(v) for n, v in settings.items() if v != start[n]},
                operators=count_operators(self.spec), engine=self.engine.snapshot(copy=False),
                learned=dict(self.learned), class_weights=dict(self.class_weights), batches=self.batches,
                rate_starts=dict(self.spec.rate_starts), average_start=self.spec.average_start)

    def note_origin(self) -> None:
        """Note the settings with which a training begins, that callbacks may change."""
        loop = vars(self.loop.settings)  # Attributes take calls in Python, in every fit.
        self.origin = {**{n: self.settings[n] for n in PIECES}, **{n: loop[n] for n in LOOP},
                       **{n: self.arguments[n] for n in WEIGHTS}}

    def resume(self, path: str | os.PathLike[str], settings: Entries
               ) -> tuple[FitPosition, Sequence[Entries]] | None:
        """Go on with a fit that was cut off, from a file or the newest whole file in a folder.

        Parameters
        ----------
        path : path
            A file, or a folder, which need not be there.
        settings : dict of str to object
            The settings with which the fit began: see `read_settings`; `max_iter` may differ.

        Returns
        -------
        tuple of FitPosition and list, or None
            The place of the fit, and the states of callbacks; None where the folder holds no checkpoint.

        Raises
        ------
        SettingError
            The path is none.
        CheckpointError
            There is none that is whole, or it is that of another training.
        """
        self.engine.connect()
        if (stored := self.loop.find(path)) is None:
            return None
        (origin, state), max_iter = stored, self.loop.settings.max_iter
        check_form(state, origin)
        check_settings(settings, state["settings"], origin)
        self.restore(state, origin)
        if max_iter != state["settings"]["max_iter"]:
            self.batches = 0  # The training has another length.
        former = state["settings"].get("validation_every") if "form" not in state else None
        if isinstance(former, float) and former == _FORMER_PERIOD and self.loop.settings.validation_every == 1:
            self.loop.settings = replace(self.loop.settings, validation_every=former)
        logger.info("%s: the training goes on", origin)
        return FitPosition.from_state(state["place"]), state["callbacks"]

    def restore(self, state: Entries, origin: str) -> None:
        """Go on from a state, with the settings that callbacks have changed until then.

        Parameters
        ----------
        state : dict of str to object
            The state that `capture` yielded, in a training of the same model, weights and states.
        origin : str
            Where it is from, for errors.

        Raises
        ------
        CheckpointError
            It is the state of another training; this training goes on with its own.
        """
        check_form(state, origin)
        check_model(self.spec, state, origin)
        rng = rebuild_generator(self.loop.rng, state["random"]["bit_generator"], origin)
        self.note_origin()
        settings = {**state["settings"], **state["changes"]}
        update = {n: rebuild_piece(n, settings[n], self.settings[n], origin) for n in PIECES}
        starts = {"rate_starts": state["rate_starts"], "average_start": state["average_start"]}
        self._restore_steps(state, update, starts, origin)
        for name, piece in update.items():
            if piece != self.settings[name]:
                self.settings[name] = self.arguments[name] = piece
        self.note_pieces()
        self.batches = state["batches"]
        if state["learned"] or self.learned:
            self._keep_learned({**self.first, **state["learned"]})
            self._adopt_changed(replace(self.spec, **starts))
        with self.engine.turn.lock:
            self.restore_arrays(state["engine"])
            self.loop.restore(state, rng)
        changes = {n: state["changes"][n] for n in LOOP if n in state["changes"]}
        self.loop.settings = replace(self.loop.settings, **changes)

    def _restore_steps(self, state: Entries, update: Entries, starts: Entries,
                       origin: str) -> None:
        """Go on with the weights, the update and the losses of a state; after an error, with the former."""
        weights = {n: rebuild_setting(state["changes"][n], None, origin) for n in WEIGHTS if n in state["changes"]}
        former, class_weights = self.spec, self.class_weights
        try:
            self.change(weights, _refuse)
            former = self.spec
            self.class_weights = state["class_weights"]
            self._adopt_changed(replace(former, **{PIECES[n]: piece for n, piece in update.items()}, **starts,
                                        batches=state["batches"], losses=self.resolve_losses(former.model)))
            check_arrays(self.engine, state["engine"]["arrays"], origin)
        except Exception as e:
            self.class_weights = class_weights
            self._adopt_changed(former)
            self.change({n: self.origin[n] for n in weights}, _refuse)
            if isinstance(e, CheckpointError | MemoryError):
                raise
            raise CheckpointError(f"{origin} is damaged, or that of another training: {e}") from e

    def _adopt_changed(self, spec: TrainingSpec) -> None:
        """Compose the steps anew if they are others."""
        compared = (*PIECES.values(), "rate_starts", "average_start", "batches", "losses")
        if any(getattr(spec, n) != getattr(self.spec, n) for n in compared):
            self.switch_spec(spec)

    # -- pickles

    def pack(self) -> State:
        """The content of a pickle: settings, the model as bytes and the state; the rest follows from them."""
        arguments = {n: v for n, v in self.arguments.items() if n != "model"}
        model = change_weights(self.spec.model, self.first)
        with self.engine.turn.lock:
            snapshot = self.engine.snapshot()
        roles = {"_labels": self.roles.labels, "_row_weights": self.roles.row_weights} if self.roles else {}
        return {**self.settings, **roles, **{f"_{n}": getattr(self, n) for n in _PICKLED},
                **vars(self.loop.settings), **deepcopy(self.progress),
                "_arguments": {**arguments, "weights_to_train": self.name_weights()},
                "model": (model.proto.SerializeToString(), dict(model.arrays)),
                "straight_through": model.straight_through, "aliases": model.aliases, "ties": model.ties,
                "custom_ops_library": model.custom_ops_library, "rate_starts": self.spec.rate_starts,
                "average_start": self.spec.average_start, "engine_state": snapshot}

    @classmethod
    def unpack(cls, state: State, names: Sequence[str]) -> Training:
        """The training of a pickle.

        Parameters
        ----------
        state : dict of str to object
            The result of `pack`, in this version or a former one; the training's part is taken out.
        names : sequence of str
            The settings that graphs depend on.
        """
        proto, arrays = state.pop("model")
        model = load(Model(ModelProto.FromString(proto), {}, {}, {}, arrays, {}, state.pop("straight_through"),
                           aliases=state.pop("aliases", {}), custom_ops_library=state.pop("custom_ops_library", ()),
                           ties=state.pop("ties", Ties())))
        # Pickles of version 0.1.0 have the name "_given".
        arguments = state.pop("_given", None) or state.pop("_arguments")
        if "exc" in state:
            state["raise_on_divergence"] = state.pop("exc")
        snapshot, progress = state.pop("engine_state"), {n: state.pop(n) for n in PROGRESS if n in state}
        # Those of version 0.1.0 know no checks.
        fit_settings = FitSettings(**{
            "validation_every": _FORMER_PERIOD, **{n: state.pop(n) for n in _FIT if n in state}})
        settings = {**_ADDED, **{n: state.pop(n) for n in names if n in state}}
        training = cls({"freeze": (), "rate_factors": None, **arguments, "model": model}, settings)
        for name, missing in _PICKLED.items():
            setattr(training, name, state.pop(f"_{name}", missing))
        start = state.pop("rate_start", 0)  # Pickles of version 0.1.0 have one number for all weights.
        starts = {"rate_starts": state.pop("rate_starts", dict.fromkeys(settings["weights_to_train"], start) if start
                                           else {}),
                  "average_start": state.pop("average_start", 0)}
        if "_labels" in state:
            training.roles = Roles(state.pop("_labels"), state.pop("_row_weights"))
            if "loss_output_name" in state:  # Pickles of version 0.1.0 have its parts as settings.
                training.arguments["learning_loss"] = OutputLoss(*map(state.pop, _OUTPUT_LOSS))
        spec = training.specify(change_weights(model, training.learned))
        training.compose(replace(spec, **starts), fit_settings)
        training.restore_arrays(snapshot)
        training.progress = progress
        training.note_pieces()
        return training


def _refuse(params: Entries) -> Estimator:
    """A checkpoint changes no setting that all graphs depend on."""
    raise AssertionError(params)


def _check_thread() -> None:
    """Refuse to train in a thread that gives batches: the training that waits for them would wait for itself."""
    if is_prefetching():
        raise SettingError("A training waits for the batches that this thread gives, which therefore cannot train; "
                           "train in a callback.")


def _load(model: ModelLike) -> Model:
    """The model as values, in inference mode: a training sets its mode itself, and predictions need inference mode."""
    if not isinstance(model, Model):
        return load(to_inference_mode(read(model)))
    proto = to_inference_mode(model.proto)
    has_variables = any(v.array is None for v in model.initializers.values())
    return load(replace(model, proto=proto)) if has_variables or proto is not model.proto else model
