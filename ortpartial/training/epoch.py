"""The epoch: all its steps in one graph, a Scan over the batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.graph import VIEWS, Value, build, make_node, op, rewrite, scan, topological, variable

from .ahead import compute_ahead, find_ahead
from .flat_weights import FlatGroup, find_flat_groups
from .names import Names
from .spec import TrainingSpec
from .step import step_values

__all__ = ["epoch_graph", "split_inputs"]

#: Operators that give the same bits wherever in memory their inputs are, as views do. A sum of onnxruntime depends on
#: where its numbers start.
_EXACT = frozenset({"Add", "Cast", "Conv", "Div", "Equal", "Gather", "Gemm", "Greater", "Less", "MatMul", "Mul", "Neg",
                    "Split", "Sub", "Transpose", "Where"})


def epoch_graph(spec: TrainingSpec, *, weighted: bool | str = False,
                apart: dict[str, np.ndarray] | None = None) -> ModelProto:
    """All steps of an epoch as one model: a Scan over the batches, whose rows are gathered inside.

    Parameters
    ----------
    spec : TrainingSpec
        What is trained, with the sizes of one batch.
    weighted : bool or "elements"
        Whether the rows have weights, or the elements of the targets.

    apart : dict of str to numpy.ndarray, optional
        Receives the big constants: see `build`.

    Returns
    -------
    onnx.ModelProto
        Inputs: those of the step, where the model's inputs, the targets and the weights hold all the rows, and the
        iteration is the number of batches seen; and ``order``, (steps, rows of a batch), the rows of every batch.
        Outputs: those of the step, with one loss a batch.
    """
    names, groups = spec.names, find_flat_groups(spec)
    inputs, outputs = step_values(spec, weighted=weighted, groups=groups)
    carried, rows, batch = split_inputs(inputs, outputs, names)
    k, fixed = inputs[names.iteration], {n: v for n, v in inputs.items() if n in (names.seed, names.rate_scale)}
    order = variable(names.free("order"), np.int64, ["steps", batch])

    # A slice of what is gathered for all steps at once is no copy, and a node in the body costs each time.
    ahead = [n for n in rows if _may_be_anywhere(inputs[n], list(outputs.values()))]
    slices = [op.Gather(rows[n], order, axis=0) for n in ahead] + [order] * (len(ahead) < len(rows))
    loss, scaled = _scaled_apart(outputs[names.loss])
    results = [loss, *list(outputs.values())[1:]]
    numbers = find_ahead(results, k, [*fixed.values()])
    ks = k + op.Range(1, op.Squeeze(op.Shape(order, start=0, end=1)) + 1, 1)

    def step(*values: Value) -> list[Value]:
        arrays = dict(zip([*carried, *ahead], [*values[: len(carried)], *values[-len(slices) :]], strict=False))
        arrays |= {n: op.Gather(v, values[-1], axis=0) for n, v in rows.items() if n not in ahead}
        new = dict(zip(numbers, values[len(carried) :], strict=False)) | {inputs[n]: v for n, v in arrays.items()}
        each, *after = rewrite(results, new)
        return [*after, each]

    vectors = _find_vectors(spec, groups, inputs)
    start = [vectors[n][0].join([*vectors[n][1].values()]) if n in vectors else inputs[n] for n in carried]
    *after, each = scan(step, start, [*compute_ahead(numbers, k, ks), *slices])
    for schema, by in reversed(scaled):
        each = make_node(schema, [each, by], {}).outputs[0]
    named = {**rows, names.free("order"): order, **fixed, names.iteration: k}
    new = {names.loss: each}
    for n, v in zip(carried, after, strict=True):
        group, parts = vectors.get(n, (None, {n: inputs[n]}))
        named |= parts
        new.update(zip(map(names.new, parts), [v] if group is None else group.split(v).values(), strict=True))
    return build(named, new, name="epoch", apart=apart)


def _find_vectors(
    spec: TrainingSpec, groups: Sequence[FlatGroup], inputs: Mapping[str, Value]
) -> dict[str, tuple[FlatGroup, dict[str, Value]]]:
    """By the names of the vectors of a step, their groups, and variables for the tensors that they consist of."""
    return {vector: (group, {n: variable(n, inputs[vector].dtype, shape)
                             for n, shape in zip(members, group.shapes.values(), strict=True)})
            for group in groups
            for vector, members in group.names(spec.names, spec.shapes_of_states(group.first)).items()}


def split_inputs(
    inputs: Mapping[str, Value], outputs: Mapping[str, Value], names: Names
) -> tuple[list[str], dict[str, Value], int | str | None]:
    """How a step is fed that gathers its rows itself.

    Parameters
    ----------
    inputs, outputs : dict of str to Value
        Those of a step, as of `step_values`.
    names : Names
        How the values are called.

    Returns
    -------
    carried : list of str
        Inputs that the step gives anew.
    rows : dict of str to Value
        For each input that is a batch, a variable for all the rows.
    batch : int, str or None
        The rows of a batch.
    """
    carried = [n for n in inputs if names.new(n) in outputs]
    rows = {n: variable(n, v.dtype, ["rows", *(v.shape or ())[1:]])
            for n, v in inputs.items() if n not in {*carried, names.iteration, names.seed, names.rate_scale}}
    return carried, rows, (inputs[next(iter(rows))].shape or (None,))[0]


def _may_be_anywhere(v: Value, outputs: Sequence[Value]) -> bool:
    """Whether expressions have the same bits wherever in memory v begins."""
    sizes = [n for n in v.shape or () if isinstance(n, int)]
    if v.is_static and prod(sizes) * v.dtype.itemsize % 64 == 0:
        return True  # Then all slices begin where tensors do.
    views = {v}
    for node in topological(outputs):
        if views.intersection(node.reads):
            if node.domain or node.op_type not in _EXACT | VIEWS:
                return False
            if node.op_type in VIEWS:
                views.update(node.outputs)
    return True


def _scaled_apart(loss: Value) -> tuple[Value, list[tuple[Any, Value]]]:
    """What a loss is a multiple of, and how and by what: that can be done once for all steps."""
    scaled: list[tuple[Any, Value]] = []
    while loss.node is not None and loss.node.op_type in ("Div", "Mul") and loss.rank == 0:
        a, b = loss.node.reads
        if b.array is None or a.rank:
            break
        scaled.append((loss.node.schema, b))
        loss = a
    return loss, scaled
