"""The choice of the weights to train and of the factors of their rates, and how `freeze` and `unfreeze` change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import dropwhile

from ortpartial.annotations import Entries, Settings
from ortpartial.autodiff import (
    WeightSelection,
    find_default_weights,
    find_frozen,
    find_named,
    find_reached_weights,
    resolve_weights,
)
from ortpartial.exceptions import ModelError
from ortpartial.graph import find_inputs
from ortpartial.learning import BaseLearningLoss
from ortpartial.model import Model
from ortpartial.training import LossOutput, resolve_rate_factors

__all__ = ["choose_weights", "find_loss_weights", "freeze_less", "freeze_more", "leave_out_loss"]


def choose_weights(model: Model, losses: Mapping[str, BaseLearningLoss], settings: Entries
                   ) -> tuple[list[str], dict[str, float]]:
    """Resolve the settings that choose weights.

    Parameters
    ----------
    model : Model
        The model, whose initializers are constants.
    losses : dict of str to BaseLearningLoss
        The loss of every trained output.
    settings : dict of str to object
        The settings of an optimizer, of which `weights_to_train`, `freeze` and `rate_factors` count.

    Returns
    -------
    weights : list of str
        The initializers to train.
    factors : dict of str to float
        The factors of the rates of initializers, where they are not 1.

    Raises
    ------
    ModelError
        A name or a pattern stands for nothing, there is nothing to train, or no gradient reaches a weight.
    SettingError
        A factor is not allowed.
    """
    chosen = leave_out_loss(model, losses, settings["weights_to_train"])
    weights = resolve_weights(model, chosen, list(losses), settings["freeze"])
    reached = find_reached_weights([model.outputs[o] for o in losses], [model.initializers[w] for w in weights])
    if constant := [w for w in weights if model.initializers[w] not in reached]:
        raise ModelError(f"No gradient leads from {', '.join(map(repr, losses))} to the weight {constant[0]!r}, "
                         f"so that it would not be trained; leave it out.")
    return weights, resolve_rate_factors(model, settings["rate_factors"], list(losses))


def find_loss_weights(model: Model, losses: Mapping[str, BaseLearningLoss]) -> list[str]:
    """The initializers that lead to the loss alone and to no prediction: class weights, for example.

    Parameters
    ----------
    model : Model
        The model, whose initializers are constants.
    losses : dict of str to BaseLearningLoss
        The loss of every trained output.

    Returns
    -------
    list of str
        The weights among the defaults that the loss alone reads; none where these are all of them.
    """
    loss = next(iter(losses.values()))
    if not isinstance(loss, LossOutput):
        return []
    weights = find_default_weights(model, losses)
    default = {n: v for n, v in model.initializers.items() if v in weights}
    predicting = find_inputs([model.outputs[o] for o in loss.predictions], default)
    return [n for n in default if predicting and n not in predicting]


def leave_out_loss(model: Model, losses: Mapping[str, BaseLearningLoss], weights: WeightSelection | None
                   ) -> WeightSelection | None:
    """The setting `weights_to_train`, which by default has no weights of the loss: see `find_loss_weights`.

    Parameters
    ----------
    model : Model
        The model, whose initializers are constants.
    losses : dict of str to BaseLearningLoss
        The loss of every trained output.
    weights : str, sequence of str, or callable, optional
        The setting.

    Returns
    -------
    str, sequence of str, or callable, optional
    """
    if weights is None and (left := find_loss_weights(model, losses)):
        return [n for n in resolve_weights(model, None, list(losses)) if n not in left]
    return weights


def freeze_more(freeze: str | Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """The setting `freeze` with further patterns.

    Parameters
    ----------
    freeze : str or sequence of str
        The setting.
    patterns : sequence of str
        The weights to freeze, too.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> freeze_more(("a.*", "!a.b", "c"), ["a.b"])
    ('a.*', 'c', 'a.b')
    """
    added = {*patterns, *(f"!{p}" for p in patterns)}
    return (*(item for item in _list_items(freeze) if item not in added), *patterns)


def freeze_less(model: Model, outputs: Sequence[str], patterns: Sequence[str], settings: Entries
                ) -> Settings:
    """The settings that train further weights: frozen weights, or else weights that were never chosen.

    Parameters
    ----------
    model : Model
        The model, whose initializers are constants.
    outputs : sequence of str
        The outputs that are trained.
    patterns : sequence of str
        Names, aliases and patterns of the weights. A pattern that stands for frozen weights unfreezes these alone,
        another pattern chooses its weights that are trained by default, if any.
    settings : dict of str to object
        The settings of an optimizer, of which `weights_to_train` and `freeze` count.

    Returns
    -------
    dict of str to object
        These two settings.

    Raises
    ------
    ModelError
        A name or a pattern stands for nothing that can be trained.
    """
    weights, freeze = settings["weights_to_train"], _list_items(settings["freeze"])
    chosen, default = resolve_weights(model, weights, outputs), find_default_weights(model, outputs)
    for pattern in patterns:
        named, frozen = resolve_weights(model, [pattern], outputs), find_frozen(model, freeze)
        if not any(n in frozen for n in named if n in chosen):
            usual = [n for n in named if n in chosen or model.initializers[n] in default]
            if missing := [n for n in usual or named if n not in chosen]:
                chosen = weights = [*chosen, *missing]
        freeze = [item for item in freeze if item not in (pattern, f"!{pattern}")]
        freeze = list(dropwhile(lambda item: item.startswith("!"), freeze))  # Nothing is frozen before them.
        if not find_named(model, pattern).isdisjoint(find_frozen(model, freeze)):
            freeze.append(f"!{pattern}")
    return {"weights_to_train": weights, "freeze": tuple(freeze)}


def _list_items(freeze: str | Sequence[str]) -> list[str]:
    """The setting `freeze` as a list."""
    return [freeze] if isinstance(freeze, str) else list(freeze)
