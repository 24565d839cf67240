"""The ranges of labels that a training reads, stored with its inputs, so that a session refuses others."""

from __future__ import annotations

import json
from collections.abc import Mapping

from onnx import GraphProto

from ortpartial.exceptions import ModelError
from ortpartial.model import Range
from ortpartial.texts import parse_json
from ortpartial.training import TrainingSpec, known_shape

__all__ = ["declare_labels", "find_labels", "read_labels"]

#: The key of the metadata of an input: in the graph of a step, labels are whole numbers like others.
_KEY = "ortpartial.labels"


def find_labels(spec: TrainingSpec) -> dict[str, tuple[int, int | None]]:
    """Find the targets that are labels.

    Parameters
    ----------
    spec : TrainingSpec
        A training.

    Returns
    -------
    dict of str to tuple
        By the name of the target the number of classes, where it is known, and the label that does not count.
    """
    labels: dict[str, tuple[int, int | None]] = {}
    for output, loss in spec.losses.items():
        if (classes := loss.count_classes(known_shape(spec.model.outputs[output]))) is not None:
            labels[spec.names.target(output)] = classes, loss.ignore_index
    return labels


def declare_labels(algorithm: GraphProto, labels: Mapping[str, tuple[int, int | None]]) -> None:
    """Store the ranges of labels with the inputs of a step.

    Parameters
    ----------
    algorithm : onnx.GraphProto
        The step; its inputs are changed.
    labels : dict of str to tuple
        As `find_labels` returns them.
    """
    for i in algorithm.input:
        if i.name in labels:
            classes, ignored = labels[i.name]
            i.metadata_props.add(key=_KEY, value=json.dumps({"classes": classes, "ignore_index": ignored}))


def read_labels(algorithm: GraphProto, where: str) -> dict[str, Range]:
    """Read the ranges of labels that are stored with the inputs of a step.

    Parameters
    ----------
    algorithm : onnx.GraphProto
        The step.
    where : str
        Its name in errors.

    Returns
    -------
    dict of str to Range
        By the names of the inputs.
    """
    stored = {i.name: p.value for i in algorithm.input for p in i.metadata_props if p.key == _KEY}
    return {n: _parse_range(n, text, where) for n, text in stored.items()}


def _parse_range(name: str, text: str, where: str) -> Range:
    """The range that a text describes."""
    try:
        labels = parse_json(text)
        classes, ignored = labels["classes"], labels["ignore_index"]
    except (LookupError, TypeError, ValueError):
        classes, ignored = None, None
    if type(classes) is not int or classes < 1 or not (ignored is None or type(ignored) is int):
        raise ModelError(f"The input {name!r} of {where} has {_KEY!r} in its metadata, which does not say how many "
                         f"classes there are; export the training again.")
    return Range("labels", 0, classes - 1, ignored, where)
