"""Weights of rows or of elements in the mean loss of a batch, and by how much a label counts."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from ortpartial.graph import Value, cast, variable

from .spec import TrainingSpec

__all__ = ["count_elements", "count_rows", "find_weighting", "make_weights", "weigh_elements"]


def make_weights(
    spec: TrainingSpec, targets: Mapping[str, Value], weighted: bool | str, rows: int | str | None
) -> dict[str, Value]:
    """Make variables for the weights of a batch.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    targets : dict of str to Value
        The targets of the trained outputs, in their order.
    weighted : bool or "elements"
        Whether the rows have weights, or the elements of the targets have.
    rows : int, str or None
        The number of rows.

    Returns
    -------
    dict of str to Value
        By name.
    """
    names, dtype = spec.names, spec.dtype
    if weighted == "elements":
        pairs = zip(spec.weight_names.values(), targets.values(), strict=True)
        return {name: variable(name, dtype, t.shape) for name, t in pairs}
    return {names.sample_weight: variable(names.sample_weight, dtype, [rows])} if weighted else {}


def weigh_elements(
    spec: TrainingSpec, targets: Mapping[str, Value], weights: Mapping[str, Value],
    costs: Mapping[str, Value] | None = None,
) -> list[tuple[Value, Value | None, Value | None]]:
    """Weigh the elements of every trained output.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    targets, weights : dict of str to Value
        As of `make_targets` and `make_weights`.
    costs : dict of str to Value, optional
        By output, the costs that are computed already.

    Returns
    -------
    list of tuple
        For each output the costs, their weights, if any, and by how much they count where that is not 1.
    """
    names, weighed = spec.names, []
    for (output, loss), t in zip(spec.losses.items(), targets.values(), strict=True):
        y, elements = spec.model.outputs[output], (costs or {}).get(output)
        elements = loss(y, t) if elements is None else elements
        w = weights.get(spec.weight_names[output], weights.get(names.sample_weight))
        weighed.append((elements, None if w is None else cast(w, elements), loss.counts(y, t)))
    return weighed


def find_weighting(spec: TrainingSpec, data: Mapping[str, np.ndarray]) -> bool | str:
    """Find out whether data hold weights: of the rows (True), of the elements of the targets ("elements"), or none.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    data : dict of str to numpy.ndarray
        The inputs of a step, by name.

    Returns
    -------
    bool or str
    """
    return "elements" if data.keys() & spec.weight_names.values() else spec.names.sample_weight in data


def count_elements(spec: TrainingSpec, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Count the elements of every trained output: Σⱼwᵢⱼcᵢⱼ for each row. A loss of the model's own counts its rows.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    data : dict of str to numpy.ndarray
        The inputs of a step: targets and weights, or all inputs where the model computes its loss itself.

    Returns
    -------
    dict of str to numpy.ndarray of float64
        By output.
    """
    names, counts = spec.names, {}
    if spec.own_loss is not None:
        rows = count_rows(spec, data)
        each = np.ones(len(next(iter(data.values())))) if rows is None else rows
        return dict.fromkeys(spec.losses, each)
    for output, loss in spec.losses.items():
        t = data[names.target(output)]
        w, c = data.get(spec.weight_names[output]), loss.count_array(t)
        weighed = c if w is None else w if c is None else w * c
        rows = np.full(len(t), float(prod(t.shape[1:]))) if weighed is None else _sum_rows(weighed)
        counts[output] = rows * data[names.sample_weight] if names.sample_weight in data else rows
    return counts


def _sum_rows(elements: np.ndarray) -> np.ndarray:
    """The sum of each row."""
    return elements.reshape(len(elements), -1).sum(axis=1, dtype=np.float64)


def count_rows(spec: TrainingSpec, data: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Count the rows, for means over several batches; with several outputs, by the mean of the counts of each.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    data : dict of str to numpy.ndarray
        The inputs of a step: targets and weights, or all inputs where the model computes its loss itself.

    Returns
    -------
    numpy.ndarray of shape (rows,) or None
        None where all rows count the same.
    """
    if spec.own_loss is not None:
        weights = data.get(spec.own_loss.row_weights or "")
        return weights if weights is None or weights.ndim == 1 else _sum_rows(weights)
    if not data or (spec.counts_alike and not data.keys() & spec.weight_names.values()):
        return data.get(spec.names.sample_weight)
    return np.mean(list(count_elements(spec, data).values()), axis=0)
