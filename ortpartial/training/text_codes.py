"""Text in a training step: a number for each string, as onnxruntime binds no memory of strings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ortpartial.exceptions import ModelError
from ortpartial.graph import VIEWS, constant, op, rewrite, topological, variable
from ortpartial.model import Model, walk_graphs

__all__ = ["encode_text", "find_vocabulary", "read_codes"]

#: Operators that give strings as they are.
_MOVES = VIEWS | {"Concat", "Expand", "Gather", "Slice", "Split", "Tile", "Transpose", "Where"}

#: Operators that compare strings with others that the model holds.
_COMPARISONS = frozenset({"CategoryMapper", "Equal", "LabelEncoder", "OneHotEncoder"})

#: The stand-in for strings that a model does not hold.
_UNKNOWN = "\x00unknown"


def find_vocabulary(model: Model) -> np.ndarray | None:
    """The strings that a model holds: the strings of its inputs are compared with them.

    Parameters
    ----------
    model : Model
        The model, of whatever sizes.

    Returns
    -------
    numpy.ndarray of str, or None
        Sorted; None where no input holds strings.
    """
    if not any(v.dtype == object for v in model.inputs.values()):
        return None
    words: set[str] = set()
    for graph in walk_graphs(model.proto.graph):
        attributes = [a for node in graph.node for a in node.attribute]
        words.update(text.decode() for a in attributes for text in (a.s, *a.strings) if text)
        for t in (*graph.initializer, *(a.t for a in attributes)):
            words.update(text.decode() for text in t.string_data)
    return np.array(sorted(words), str)


def read_codes(model: Model, vocabulary: np.ndarray | None) -> Model:
    """The model with inputs of integers in place of strings.

    Parameters
    ----------
    model : Model
        The model.
    vocabulary : numpy.ndarray of str, or None
        The result of `find_vocabulary`; the inputs hold the places of strings in it.

    Returns
    -------
    Model
        The same object where no input holds strings.

    Raises
    ------
    ModelError
        An operator takes strings apart, such as a tokenizer; the message names it.
    """
    if vocabulary is None:
        return model
    _check_readers(model)
    words = constant(np.array([*vocabulary.tolist(), _UNKNOWN], object), hint="vocabulary")
    codes = {n: variable(n, np.int64, v.shape) for n, v in model.inputs.items() if v.dtype == object}
    outputs = rewrite(list(model.outputs.values()), {model.inputs[n]: op.Gather(words, c) for n, c in codes.items()})
    return replace(model, inputs={**model.inputs, **codes}, outputs=dict(zip(model.outputs, outputs, strict=True)))


def _check_readers(model: Model) -> None:
    """Check that strings are moved and compared alone, so that all strings unknown to the model are alike."""
    texts = {v for v in model.inputs.values() if v.dtype == object}
    for node in topological(list(model.outputs.values())):
        if texts.isdisjoint(node.reads) or node.op_type in _COMPARISONS:
            continue
        if node.op_type not in _MOVES:
            where = f" (node {node.name!r})" if node.name else ""
            raise ModelError(f"{node.op_type}{where} reads strings, and in a training strings are only compared, as by "
                             f"OneHotEncoder; compute what it returns before the training, and train what follows.")
        texts.update(node.outputs)


def encode_text(data: Mapping[str, np.ndarray], vocabulary: np.ndarray | None) -> Mapping[str, np.ndarray]:
    """Arrays with the places of strings in a vocabulary; an unknown string has the place after the last.

    Parameters
    ----------
    data : dict of str to numpy.ndarray
        Arrays by name.
    vocabulary : numpy.ndarray of str, or None
        The result of `find_vocabulary`.

    Returns
    -------
    dict of str to numpy.ndarray
        The same object where there is no vocabulary.

    Examples
    --------
    >>> encode_text({"color": np.array(["red", "blue", "?"], object)}, np.array(["blue", "red"]))
    {'color': array([1, 0, 2])}
    """
    if vocabulary is None:
        return data
    return {n: _find_places(a.astype(str), vocabulary) if a.dtype == object else a for n, a in data.items()}


def _find_places(strings: np.ndarray, vocabulary: np.ndarray) -> np.ndarray:
    if not vocabulary.size:
        return np.zeros(strings.shape, np.int64)
    places = np.searchsorted(vocabulary, strings).clip(max=vocabulary.size - 1)
    return np.where(vocabulary[places] == strings, places, vocabulary.size)
