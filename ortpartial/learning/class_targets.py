"""Class-like targets: labels and one-hot rows of which a training takes the square loss, recognized for every door."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import ModelWarning
from ortpartial.graph import Node, Value, read_array, topological

__all__ = ["ClassWatch", "are_classes", "explain_classes", "is_one_hot"]

#: Rows that tell the kind of targets, and the fewest rows of 0.0 and 1.0 alone that are labels rather than quantities.
_READ, _FEWEST = 1024, 32

#: Operators that hand targets on as they are.
_SAME = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})

#: The advice of a door whose loss is a setting, for one-hot rows and for labels.
_SETTING = "give learning_loss='softmax_cross_entropy' and y.argmax(1)", "give learning_loss='log_loss'"
#: The advice of a door whose loss is that of a file.
_FILE = ("export the training with learning_loss='softmax_cross_entropy' and give y.argmax(1)",
         "export the training with learning_loss='log_loss'")


def is_one_hot(target: np.ndarray) -> bool:
    """Whether targets are labels as one-hot rows, in which a single column is 1 and the others are 0.

    Parameters
    ----------
    target : numpy.ndarray of shape (rows, columns)
        The targets, of which the first are read.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_one_hot(np.eye(3)), is_one_hot(np.ones((3, 1))), is_one_hot(np.ones((3, 2)))
    (True, False, False)
    """
    first = target[:_READ] if target.ndim == 2 else target
    if first.ndim != 2 or first.shape[1] < 2 or not first.size or first.dtype.kind not in "biuf":
        return False
    return bool(np.isin(first, (0, 1)).all() and (first.sum(axis=1) == 1).all())


def are_classes(labels: np.ndarray, scores: int | str | None) -> bool:
    """Whether numbers are labels of as many classes as there are scores, of which a single one tells 0 from 1.

    Parameters
    ----------
    labels : numpy.ndarray of shape (rows,)
        The numbers.
    scores : int, str or None
        The number of scores of a row, where it is known.

    Returns
    -------
    bool

    Examples
    --------
    >>> are_classes(np.array([0, 2, 1]), 3), are_classes(np.array([0.0, 1.0]), 1), are_classes(np.array([0.5]), 3)
    (True, True, False)
    """
    if labels.ndim != 1 or not labels.size or not (labels == np.floor(labels)).all():
        return False
    if scores == 1:
        return set(np.unique(labels)) == {0, 1}
    return bool(labels.min() >= 0) and not (isinstance(scores, int) and labels.max() >= scores)


def explain_classes(target: np.ndarray, what: str, who: str, otherwise: str,
                    advice: tuple[str, str] = _SETTING) -> str:
    """The loss that targets call for of which the square loss is taken: one-hot rows, and labels 0 and 1.

    Parameters
    ----------
    target : numpy.ndarray
        The targets, of which the first ones are read; 0.0 and 1.0 are labels in many rows alone.
    what, who : str
        What they are called, and what takes the square loss.
    otherwise : str
        How the square loss is taken on purpose.
    advice : pair of str
        What to do about one-hot rows, and about labels.

    Returns
    -------
    str
        Empty where they are quantities.

    Examples
    --------
    >>> explain_classes(np.array([0.5, 1.5]), "y", "fit", "give SquareLearningLoss()")
    ''
    """
    first = np.atleast_1d(target)[:_READ]
    first = first[:, 0] if first.ndim == 2 and first.shape[1] == 1 else first
    if is_one_hot(first):
        kind, way = "one-hot rows of labels", advice[0]
    elif first.dtype.kind in "biuf"[: 3 if len(first) < _FEWEST else 4] and are_classes(first, 1):
        kind, way = "labels, 0 and 1", advice[1]
    else:
        return ""
    return (f"{what} is {kind}, of which {who} takes the square loss, as of all quantities; for classes {way}, and for "
            f"the square loss {otherwise}.")


class ClassWatch:
    """A watch on the batches of a training in a file: targets of its square loss that look like classes are told, once.

    Parameters
    ----------
    outputs : sequence of Value
        All that a step computes.
    inputs : dict of str to Value
        The data that it reads.
    who : str
        What the training is called.

    Attributes
    ----------
    watched : list of str
        The targets of the square loss that may still be labels.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> y, t = variable("y", "float32", ["N", 1]), variable("t", "float32", ["N", 1])
    >>> watch = ClassWatch([op.ReduceMean((op.Tanh(y) - t) ** 2)], {"y": y, "t": t}, "the training")
    >>> watch.watched
    ['t']
    >>> watch.look({"t": [[0.5]]})
    >>> watch.watched
    []
    """

    def __init__(self, outputs: Sequence[Value], inputs: Mapping[str, Value], who: str):
        self._who = who
        self._rows: dict[str, np.ndarray] = {}  # of 0 and 1 alone, too few to tell
        self.watched = _find_square_targets(outputs, inputs)

    def look(self, feeds: Mapping[str, Data]) -> None:
        """Look at a batch.

        Parameters
        ----------
        feeds : dict of str to array_like
            The data as the user gives them.

        Warns
        -----
        ModelWarning
            The targets are class-like.
        """
        for name in [n for n in self.watched if n in feeds]:
            rows = read_array(feeds[name], f"The input {name!r}")
            if rows.dtype.kind == "f" and rows.ndim and rows.size == len(rows):
                rows = np.concatenate([self._rows.pop(name, rows.ravel()[:0]), rows.ravel()])
            text = explain_classes(rows, f"The input {name!r}", self._who, "nothing has to be done", _FILE)
            if text:
                warnings.warn(text, ModelWarning, stacklevel=4)
            elif rows.size and len(rows) < _FEWEST and rows.ndim == 1 and np.isin(rows, (0, 1)).all():
                self._rows[name] = rows
                continue
            self.watched.remove(name)


def _find_square_targets(outputs: Sequence[Value], inputs: Mapping[str, Value]) -> list[str]:
    """The inputs that nothing but a difference reads whose square is taken, as of a prediction and its target.

    The square loss of probabilities is the Brier score, which is meant for labels.
    """
    nodes = topological(list(outputs))
    names, sources = {v: n for n, v in inputs.items()}, dict[Value, Value]()
    squared = {node.inputs[0] for node in nodes if _is_square(node)}
    read, targets = set[str](), dict[str, None]()
    for node in nodes:
        origins = [sources.get(v, v) for v in node.inputs if v is not None]
        if node.op_type in _SAME and origins[0] in names:
            sources[node.outputs[0]] = origins[0]
            continue
        here = [names[v] for v in origins if v in names]
        if node.op_type == "Sub" and node.outputs[0] in squared and len(here) == 1 and all(
                v.array is None and not _is_probability(v) for v in origins):
            targets[here[0]] = None
        else:
            read |= {*here}
    return [n for n in targets if n not in read]


def _is_probability(v: Value) -> bool:
    """Whether a value is probabilities of classes, in any form."""
    while v.node is not None and v.node.op_type in _SAME and v.node.inputs[0] is not None:
        v = v.node.inputs[0]
    return v.node is not None and v.node.op_type in ("Sigmoid", "Softmax")


def _is_square(node: Node) -> bool:
    """Whether a node computes a square."""
    first, second = (*node.inputs, None)[:2]
    if node.op_type == "Pow":
        return second is not None and second.array is not None and bool((second.array == 2).all())
    return node.op_type == "ReduceSumSquare" or (node.op_type == "Mul" and first == second)
