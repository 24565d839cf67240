"""The trained outputs: which they are, the loss of each, and the activations that a loss has in it already."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping

from ortpartial.exceptions import ModelWarning, SettingError
from ortpartial.graph import Node, Value
from ortpartial.learning import BaseLearningLoss, is_normalization, list_settings, resolve_loss
from ortpartial.model import Model, is_cache

from .forms import Loss

__all__ = ["ends_in_probabilities", "explain_output", "resolve_losses", "warn_of_activations"]

#: Operators that change the form of what they read, and not what it means.
_FORM = frozenset({"ArrayFeatureExtractor", "Cast", "Dropout", "Flatten", "Gather", "Identity", "Normalizer",
                   "Reshape", "Squeeze", "Transpose", "Unsqueeze"})

#: What an output of whole numbers is usually made by, from scores.
_CHOICES = frozenset({"ArgMax", "ArgMin", "TopK"})


def resolve_losses(model: Model, learning_loss: Loss | Mapping[str, Loss]) -> dict[str, BaseLearningLoss]:
    """The loss of every trained output by name; a single loss belongs to the only output of real numbers.

    The key-value cache of a language model is none of these, and among several others "logits" is meant.

    Parameters
    ----------
    model : Model
        The model.
    learning_loss : str, BaseLearningLoss, or dict of str to them
        The setting of the user.

    Returns
    -------
    dict of str to BaseLearningLoss

    Raises
    ------
    SettingError
        A loss or an output is unknown, or it is open which output is meant.
    """
    outputs = ", ".join(map(repr, model.outputs))
    if isinstance(learning_loss, Mapping):
        if unknown := sorted(set(learning_loss) - set(model.outputs)):
            raise SettingError(f"learning_loss names {unknown[0]!r}, which is no output of the model: {outputs}.")
        if not learning_loss:
            raise SettingError("learning_loss is an empty dict; name at least one output.")
        for name in learning_loss:
            if not model.outputs[name].is_float:
                raise SettingError(f"learning_loss names {name!r}. {explain_output(model, name)}")
        return {output: resolve_loss(loss) for output, loss in learning_loss.items()}
    loss = resolve_loss(learning_loss)
    floats = [n for n, v in model.outputs.items() if v.is_float]
    if not floats:
        reasons = " ".join(explain_output(model, n) for n in model.outputs)
        raise SettingError(f"The model has no output of real numbers that could be trained. {reasons}")
    floats = list({model.outputs[n]: n for n in reversed(floats)}.values())[::-1]  # A tensor may have several names.
    computed = [n for n in floats if not is_cache(n, model.outputs[n])]  # A decoder returns its cache, too.
    if len(computed) == 1 or (len(computed) < len(floats) and "logits" in computed):
        return {"logits" if "logits" in computed else computed[0]: loss}
    if len(floats) > 1:
        raise SettingError(f"The model has the outputs {outputs}, {len(floats)} of them of real numbers; say which "
                           f"to train by a dict, {{output: loss}}, such as {{{floats[0]!r}: {learning_loss!r}}}.")
    return {floats[0]: loss}


def explain_output(model: Model, name: str) -> str:
    """Explain why an output cannot be trained.

    Parameters
    ----------
    model : Model
        The model.
    name : str
        An output that is not of real numbers.

    Returns
    -------
    str
        Its origin, and an output to train instead.
    """
    v = model.outputs[name]
    if (node := _find(v, _CHOICES)) is not None:
        scores = node.inputs[0]
        assert scores is not None
        return (f"The output {name!r} is an index that {_describe(node)} chooses, which has no gradient: train the "
                f"scores that it reads; {_show_cut(model, name, scores)}.")
    return f"The output {name!r} is of {v.dtype if v.type.HasField('tensor_type') else 'no tensor type'}."


def _describe(node: Node) -> str:
    """An operator and its node, as in "Softmax (node 'probabilities')"."""
    return f"{node.op_type} (node {node.name!r})" if node.name else node.op_type


def _show_cut(model: Model, name: str, v: Value) -> str:
    """How to train another value in place of an output."""
    cut = (f", or cut it with m = ortpartial.load(path); ortpartial.build(m.inputs, {{{name!r}: m.values[{v.hint!r}]}})"
           if v.hint in model.values else "")
    return f"export the model with it as an output{cut}"


def _find(v: Value, op_types: Collection[str]) -> Node | None:
    """The node of these operators that gives a value, but for its form."""
    while v.node is not None and v.node.op_type not in op_types:
        # Of a table and an index, the table is a constant: the names of classes, for example.
        computed = [x for x in v.node.inputs if x is not None and x.array is None]
        if not computed or not (v.node.op_type in _FORM or is_normalization(v.node)):
            return None
        v = computed[0]
    return v.node


def warn_of_activations(model: Model, losses: Mapping[str, BaseLearningLoss], stacklevel: int) -> None:
    """Warn where an output ends in an activation that its loss applies itself, which would be applied twice.

    So where it ends in logarithms of probabilities, and the loss takes probabilities.

    Parameters
    ----------
    model : Model
        The model.
    losses : dict of str to BaseLearningLoss
        The losses by output.
    stacklevel : int
        As for `warnings.warn`.
    """
    for name, loss in losses.items():
        if not loss.from_logits and (node := _find(model.outputs[name], ("LogSoftmax",))) is not None:
            warnings.warn(f"The output {name!r} ends in {_describe(node)}, and from_logits=False takes probabilities, "
                          f"not their logarithms: leave from_logits of {type(loss).__name__} at True, as the softmax "
                          "of logarithms of probabilities is these probabilities.", ModelWarning,
                          stacklevel=stacklevel + 1)
            continue
        node = _find(model.outputs[name], loss.activations) if loss.activations and loss.from_logits else None
        if node is None:
            continue
        scores = node.inputs[0]
        assert scores is not None
        kind = type(loss).__name__
        simply = f"use {kind}(from_logits=False), or " if ends_in_probabilities(model.outputs[name], loss) else ""
        warnings.warn(f"The output {name!r} ends in {_describe(node)}, and {kind} applies {loss.activations[0]} "
                      f"itself, to raw scores, so that the training would be slow and end early: {simply}train what "
                      f"{node.op_type} reads; {_show_cut(model, name, scores)}.",
                      ModelWarning, stacklevel=stacklevel + 1)


def ends_in_probabilities(y: Value, loss: BaseLearningLoss) -> bool:
    """Whether an output ends in a Softmax or Sigmoid that its loss would apply once more.

    Parameters
    ----------
    y : Value
        The output.
    loss : BaseLearningLoss
        Its loss; a setting `from_logits` of False is for such outputs.

    Returns
    -------
    bool
    """
    return "from_logits" in list_settings(loss) and loss.from_logits and (
        _find(y, loss.activations) is not None)
