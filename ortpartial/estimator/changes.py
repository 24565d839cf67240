"""Changes of settings, between two trainings or in one that runs: of the loop, of the update, or of all graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from numbers import Real
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpartial.autodiff import WeightSelection, resolve_weights
from ortpartial.exceptions import SettingError
from ortpartial.learning import (
    fingerprint,
    is_settled,
    resolve_averaging,
    resolve_clipping,
    resolve_penalty,
    resolve_rate,
)
from ortpartial.model import Model, change_weights, specialize
from ortpartial.training import ACCUMULATED, select_engine

from .params import PROGRESS, FitSettings, check_flag
from .weights import choose_weights, freeze_less, leave_out_loss

if TYPE_CHECKING:
    from ortpartial.learning import BaseLearningPenalty, BaseLearningRate, GradientClipping, WeightAverage
    from ortpartial.training import TrainingSpec

    from .optimizer import OrtGradientForwardBackwardOptimizer as Optimizer

__all__ = ["WEIGHTS", "change_settings", "check_average", "check_lengths", "follow_pieces", "keep_learned",
           "list_unfrozen", "name_weights", "note_pieces", "scale_rate"]

#: Settings that no graph depends on, and those of the update, which change in a training that runs, too.
_LOOP = frozenset(f.name for f in fields(FitSettings))
_UPDATE: Mapping[str, Callable[[Any], Any]] = {
    "learning_rate": resolve_rate, "learning_penalty": resolve_penalty, "gradient_clipping": resolve_clipping,
    "averaging": resolve_averaging, "use_average": partial(check_flag, "use_average")}

#: Settings that choose the weights to train, and the factors of their rates: they change in a training that runs, too.
WEIGHTS = ("weights_to_train", "freeze", "rate_factors")


def change_settings(optimizer: Optimizer, params: Mapping[str, Any]) -> None:
    """Change settings, between two trainings or in the thread that trains.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer, which keeps what it has trained.
    params : dict of str to object
        Settings of its constructor.

    Raises
    ------
    SettingError
        A value is not allowed, or a training is running and a graph depends on the setting.
    """
    # Another thread changes settings of the loop at any time, and no others.
    if optimizer._loop.thread not in (None, get_ident()):
        _change(optimizer, params)
        return
    with optimizer._turn.lock:
        _change(optimizer, params)


def note_pieces(optimizer: Optimizer) -> None:
    """Note the content of the pieces of users with which the next steps are composed.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer.
    """
    loss = optimizer.learning_loss
    pieces = [*(loss.values() if isinstance(loss, Mapping) else [loss]), *(getattr(optimizer, n) for n in _UPDATE)]
    optimizer._unsettled = [piece for piece in pieces if not is_settled(piece)]
    optimizer._fingerprint = fingerprint(optimizer._unsettled)


def follow_pieces(optimizer: Optimizer) -> None:
    """Compose the steps anew where a piece of users has changed in itself since they were composed.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer.
    """
    if optimizer._loop.thread is not None or fingerprint(optimizer._unsettled) == optimizer._fingerprint:
        return
    with optimizer._engine.turn.lock:
        optimizer._parts.adopt(replace(optimizer._spec, losses=optimizer._resolve_losses(optimizer._spec.model)))
        optimizer._predictor.sessions.clear()
        note_pieces(optimizer)


def _change(optimizer: Optimizer, params: Mapping[str, Any]) -> None:
    """Change settings: those of the loop, of the weights and of the update, the others by composing anew."""
    update = {n: v for n, v in params.items() if n in _UPDATE}
    if params.keys() - _LOOP - _UPDATE.keys() - {*WEIGHTS}:
        _recompose(optimizer, {n: v for n, v in params.items() if n not in _UPDATE}, update)
        return
    settings = replace(optimizer._loop.settings, **{n: v for n, v in params.items() if n in _LOOP})
    weights = {n: v for n, v in params.items() if n in WEIGHTS}
    step = [n for n in (*update, *weights) if n != "use_average"]
    if step and optimizer._loop.thread not in (None, get_ident()):
        raise SettingError(f"{step[0]} changes between two steps: in a callback, not in another thread, such as that "
                           f"in which an iterable gives its batches.")
    if update and weights:  # An error in one of them comes before the other changes.
        choose_weights(_restore_model(optimizer), optimizer._spec.losses, {**optimizer._arguments, **weights})
    if update:
        _change_update(optimizer, update)
    if weights:
        _change_weights(optimizer, weights)
    optimizer._loop.settings = settings
    if "random_state" in params:
        optimizer._rng = np.random.default_rng(optimizer.random_state)


def _change_weights(optimizer: Optimizer, params: Mapping[str, Any]) -> None:
    """Go on with other weights to train, or with other factors of their rates, from the next step on."""
    model, arguments = _restore_model(optimizer), {**optimizer._arguments, **params}
    weights, factors = choose_weights(model, optimizer._spec.losses, arguments)
    with optimizer._engine.turn.lock:
        if (weights, factors) != (optimizer.weights_to_train, optimizer._factors):
            _train_weights(optimizer, model, weights, factors)
        vars(optimizer).update(weights_to_train=weights, _factors=factors, rate_factors=arguments["rate_factors"])
        optimizer._arguments.update(params)


def _train_weights(optimizer: Optimizer, model: Model, weights: Sequence[str], factors: Mapping[str, float]) -> None:
    """Train these weights of the model as it was read; all others become constants of what they have learned."""
    spec, engine, new = optimizer._spec, optimizer._engine, optimizer._specify(model, weights, factors)
    learned = {**optimizer._learned, **optimizer._state.arrays}
    kept = {n: a for n, a in learned.items() if n not in new.moving}
    new = replace(new, model=specialize(change_weights(new.model, kept)), rate_starts=_find_starts(optimizer, new),
                  average_start=spec.average_start, rescaled=spec.rescaled)
    kind, reason = select_engine(optimizer.engine, new, optimizer.distributed)
    optimizer._parts.adopt(new, kind, optimizer._learned)
    optimizer._engine.reason = engine.reason if kind is type(engine) else reason
    optimizer._learned, optimizer._first, optimizer._layer = kept, {n: model.arrays[n] for n in kept}, None


def _restore_model(optimizer: Optimizer) -> Model:
    """The model as it was read: without what weights have learned, and with constants alone."""
    spec = optimizer._spec
    return specialize(change_weights(spec.model, optimizer._first), constants=spec.moving)


def _find_starts(optimizer: Optimizer, new: TrainingSpec) -> dict[str, int]:
    """By weight the last update before its states began: the present one for weights that are trained from now on."""
    former, now = optimizer._spec, optimizer._engine.updates
    starts = {w: former.rate_starts.get(w, 0) if w in former.weights else now for w in new.weights}
    return {w: start for w, start in starts.items() if start}


def name_weights(optimizer: Optimizer) -> str | Sequence[str] | None:
    """The setting `weights_to_train`, with names in place of a function: one of a notebook cannot be pickled.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer.

    Returns
    -------
    str, sequence of str, or None
        What is frozen is among the names.
    """
    setting: WeightSelection | None = optimizer._arguments["weights_to_train"]
    if not callable(setting):
        return setting
    return resolve_weights(_restore_model(optimizer), setting, list(optimizer._spec.losses))


def list_unfrozen(optimizer: Optimizer, patterns: Sequence[str]) -> dict[str, Any]:
    """The settings of an optimizer that trains further weights: see `freeze_less`.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer.
    patterns : sequence of str
        Names, aliases and patterns of the weights.

    Returns
    -------
    dict of str to object
    """
    model, losses, settings = _restore_model(optimizer), optimizer._spec.losses, optimizer._arguments
    chosen = leave_out_loss(model, losses, settings["weights_to_train"])
    return freeze_less(model, list(losses), patterns, {**settings, "weights_to_train": chosen})


def _change_update(optimizer: Optimizer, params: Mapping[str, Any]) -> None:
    """Go on with another optimizer, penalty, clipping or average from the next step on."""
    new = {n: resolve(params.get(n, getattr(optimizer, n))) for n, resolve in _UPDATE.items()}
    check_average(new["use_average"], new["averaging"])
    if optimizer._loop.thread is not None and not optimizer._batches:
        check_lengths(new["learning_rate"], new["averaging"])
    if any(new[n] != getattr(optimizer, n) for n in params if n != "use_average"):
        optimizer._parts.adopt(_replace_update(optimizer, **new))
    optimizer._engine.use_average = new["use_average"]
    vars(optimizer).update({n: new[n] for n in params})
    optimizer._arguments.update({n: v for n, v in params.items() if n != "use_average"})
    note_pieces(optimizer)


def _replace_update(
    optimizer: Optimizer, learning_rate: BaseLearningRate, learning_penalty: BaseLearningPenalty,
    gradient_clipping: GradientClipping | None, averaging: WeightAverage | None, use_average: bool,
) -> TrainingSpec:
    """The training with another update; an optimizer or average of another class starts with the next one."""
    spec, batches, former = optimizer._spec, optimizer._batches, optimizer.learning_rate
    weight, updates = spec.model.arrays[optimizer.weights_to_train[0]], optimizer._engine.updates
    # An error in a formula is better now than in the next step.
    for piece in (learning_rate.over(max(batches, 1)), learning_penalty):
        piece.build_onnx_function(dtype=weight.dtype, shape=weight.shape)
    is_kept = isinstance(learning_rate, type(former)) or isinstance(former, type(learning_rate))
    return replace(
        spec, rate=learning_rate, penalty=learning_penalty, gradient_clipping=gradient_clipping, averaging=averaging,
        rate_starts=spec.rate_starts if is_kept else dict.fromkeys(spec.weights, updates), batches=batches,
        average_start=spec.average_start if type(averaging) is type(spec.averaging) else updates)


def check_lengths(rate: BaseLearningRate, averaging: WeightAverage | None) -> None:
    """Refuse what lasts as long as a training of which the length is not known.

    Parameters
    ----------
    rate : BaseLearningRate
        The optimizer, with its schedule.
    averaging : WeightAverage or None
        The averaging of the training.

    Raises
    ------
    SettingError
        One of them does.
    """
    if rate.over(1) is not rate:
        raise SettingError(f"{rate.schedule!r} lasts as long as the training, and the data do not say how many "
                           f"batches they give; give the schedule their number n.")
    if averaging is not None and averaging.over(1) is not averaging:
        raise SettingError(f"{averaging!r} starts with a share of the training, and the data do not say how many "
                           f"batches they give; let it start with a number of updates.")


def check_average(use_average: bool, averaging: WeightAverage | None) -> None:
    """Check that there is an average where one is to be used.

    Parameters
    ----------
    use_average : bool
        Whether predictions use averages.
    averaging : WeightAverage or None
        The averaging of the training.

    Raises
    ------
    SettingError
        There is none.
    """
    if use_average and averaging is None:
        raise SettingError("use_average=True takes the averages of the weights, and averaging is None; set it to "
                           "'ema' or 'swa' before the training.")


def scale_rate(optimizer: Optimizer, scale: Any) -> None:
    """Multiply all step sizes by a number from the next batch on.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer.
    scale : float
        The number, more than 0.

    Raises
    ------
    SettingError
        The number is not finite or not more than 0, or a training is running in another thread.
    """
    if isinstance(scale, bool) or not isinstance(scale, Real) or not 0 < float(scale) < np.inf:
        raise SettingError(f"scale is {scale!r}, a finite number more than 0 was expected.")
    if optimizer._loop.thread not in (None, get_ident()):
        raise SettingError("Step sizes are scaled between two steps: in a callback, not in another thread.")
    with optimizer._turn.lock:
        optimizer._parts.scale_rate(float(scale))


def _recompose(optimizer: Optimizer, params: Mapping[str, Any], update: Mapping[str, Any]) -> None:
    """Change settings that all graphs depend on, then those of the update, and continue from the current state."""
    if optimizer._loop.thread is not None:
        name = next(n for n in params if n not in _LOOP)
        raise SettingError(f"{name} belongs to the graphs that run now; change it before or after fit.")
    new = type(optimizer)(**{**optimizer.get_params(deep=False), **params})
    with optimizer._engine.turn.lock:
        if "model" not in params:
            _hand_over(optimizer, new)
            for name in PROGRESS:
                if not (name == "_rng" and "random_state" in params):
                    setattr(new, name, getattr(optimizer, name))
        _change_update(new, update)
        new._engine.turn = optimizer._engine.turn
        vars(optimizer).update({n: v for n, v in vars(new).items() if n != "_turn"})


def _hand_over(former: Optimizer, new: Optimizer) -> None:
    """Let another optimizer continue from the current state."""
    spec, engine = former._spec, former._engine
    new._batches, new._class_weights = former._batches, dict(former._class_weights)
    dropped = [n for n in spec.moving if n not in new._spec.moving]
    keep_learned(new, {**former._learned, **{n: engine.get(n) for n in dropped}})
    losses = new._resolve_losses(new._spec.model)
    starts = _find_starts(former, new._spec)
    if former._batches or starts or spec.average_start or losses != new._spec.losses:
        new._parts.adopt(replace(new._spec, losses=losses, batches=former._batches, rate_starts=starts,
                                 average_start=spec.average_start))
    snapshot = engine.snapshot()
    if new.accumulate != former.accumulate:
        # The count of updates goes on; what has been summed up for the next one is left out.
        snapshot["iteration"] += engine.updates * new.accumulate - engine.counted
        sums = {n for n, (_, s) in spec.states.items() if s == ACCUMULATED}
        snapshot["arrays"] = {n: a for n, a in snapshot["arrays"].items() if n not in sums}
    new._parts.restore(snapshot)


def keep_learned(optimizer: Optimizer, learned: Mapping[str, np.ndarray]) -> None:
    """Take over what was learned: as constants of the graphs, unless a step changes them.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer.
    learned : dict of str to numpy.ndarray
        Weights by name.
    """
    spec = optimizer._spec
    optimizer._learned = {n: a for n, a in learned.items() if n not in spec.moving}
    optimizer._first = {n: optimizer._first.get(n, spec.model.arrays[n]) for n in optimizer._learned}
    if optimizer._learned:
        model = change_weights(spec.model, optimizer._learned)
        optimizer._compose(optimizer._specify(model), optimizer._loop.settings)
    for n in spec.moving:
        if n in learned:
            optimizer._engine.set(n, learned[n])
