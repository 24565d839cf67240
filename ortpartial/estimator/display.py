"""Display of an optimizer: the settings that differ from their defaults, as Python code, or a card of the training."""

from __future__ import annotations

import inspect
import os
import reprlib
from collections.abc import Iterator, Mapping

from ortpartial.annotations import Entries, Estimator
from ortpartial.autodiff import explain_untrained
from ortpartial.learning import Piece, list_attributes, list_settings
from ortpartial.model import Leaf, Model, draw_card, draw_tree, place_initializers
from ortpartial.training import TrainingSpec

__all__ = ["list_changed", "to_html", "to_text"]


class _Short(reprlib.Repr):
    """Texts of a limited length, in which losses, penalties and rates show their changed settings."""

    def repr1(self, x: object, level: int) -> str:
        if inspect.isroutine(x) or isinstance(x, type):
            return x.__name__
        if isinstance(x, Piece):
            return f"{type(x).__name__}({_join(_changed_fields(x))})"
        return super().repr1(x, level)


_short = _Short()
_short.maxstring = _short.maxother = 100
_short.maxlist = _short.maxtuple = _short.maxdict = 4


def _changed_fields(piece: object) -> dict[str, str]:
    """The settings of a piece that differ from the defaults of its class, as texts."""
    try:
        default = type(piece)()
    except TypeError:
        default = None  # A setting has no default.
    held = {**list_settings(piece), **list_attributes(piece)}
    return _changed(held, {n: getattr(default, n, inspect.Parameter.empty) for n in held})


def _changed(values: Entries, defaults: Entries) -> dict[str, str]:
    """Values that differ from their defaults, as texts; texts are compared, as arrays may be among the values."""
    return {n: _short.repr(v) for n, v in values.items() if repr(v) != repr(defaults[n])}


def _join(texts: Mapping[str, str]) -> str:
    return ", ".join(f"{n}={text}" for n, text in texts.items())


def list_changed(kind: type, model: Model, settings: Entries) -> dict[str, str]:
    """The model, and the settings of an optimizer that differ from their defaults.

    Parameters
    ----------
    kind : type
        The class of the optimizer.
    model : Model
        Its model.
    settings : dict of str to object
        Its settings, the model included, as they were given.

    Returns
    -------
    dict of str to str
        By name, as Python code where possible.
    """
    parameters = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    defaults = {n: p.default for n, p in parameters.items()}
    source = settings["model"]
    text = repr(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else repr(model)
    return {"model": text, **_changed({n: v for n, v in settings.items() if n != "model"}, defaults)}


def to_text(kind: type, changed: Mapping[str, str]) -> str:
    """An optimizer as the call that makes it.

    Parameters
    ----------
    kind : type
        Its class.
    changed : dict of str to str
        The result of `list_changed`.

    Returns
    -------
    str

    Examples
    --------
    >>> to_text(dict, {"model": "'model.onnx'", "weights_to_train": "['w']", "max_iter": "5"})
    "dict('model.onnx', ['w'], max_iter=5)"
    """
    named = {n: text for n, text in changed.items() if n not in ("model", "weights_to_train")}
    positional = [text for n, text in changed.items() if n not in named]
    return f"{kind.__name__}({', '.join([*positional, *([_join(named)] if named else [])])})"


def to_html(optimizer: Estimator, changed: Mapping[str, str]) -> str:
    """An optimizer as a card: settings, engine, losses with their curves, and the trained part of each module.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer.
    changed : dict of str to str
        The result of `list_changed`.

    Returns
    -------
    str
        HTML.
    """
    from ortpartial.plots import draw_curve  # late: few programs draw

    curves = {"train_losses_": optimizer.train_losses_, "validation_losses_": optimizer.validation_losses_}
    last = {f"{name}[-1]": f"{losses[-1]:.4g}" for name, losses in curves.items() if losses}
    rows = {**changed, "engine_": f"{optimizer.engine_}: {optimizer.engine_reason_}",
            "n_iter_": str(optimizer.n_iter_), **last}
    leaves = list(_list_leaves(optimizer.training.spec))
    trained = sum(leaf.size for leaf in leaves if leaf.is_trained)
    title = f"weights: {trained:,} of {sum(leaf.size for leaf in leaves):,} numbers are trained"
    picture = draw_curve(*curves.values())
    if picture and optimizer.validation_losses_:
        picture += "<div><small>losses by epoch: training (solid) and validation (dashed)</small></div>"
    model = optimizer.training.spec.model
    lines = model.ties.describe(model.main_names)
    texts = {"ties: weights that an exporter had merged or written twice": lines} if lines else {}
    return draw_card(type(optimizer).__name__, rows, picture, {title: draw_tree(leaves), **texts})


def _list_leaves(spec: TrainingSpec) -> Iterator[Leaf]:
    """The initializers of real numbers, and the reasons why some are not trained."""
    places = place_initializers(spec.model.proto.graph, spec.model.main_names)
    reasons = explain_untrained(spec.model, spec.weights, list(spec.losses))
    for n, v in spec.model.initializers.items():
        if v.is_float:
            yield Leaf(places[n], v.type_name, spec.model.arrays[n].size, n in spec.weights, reasons.get(n, ""))
