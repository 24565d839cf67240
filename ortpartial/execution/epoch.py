"""The epoch: all its steps in a graph, a Scan over the batches."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from onnx import ModelProto
from onnx.defs import OpSchema

from ortpartial.graph import VIEWS, OpaqueSchema, Value, build, make_node, op, rewrite, scan, topological, variable

from .precompute import compute_ahead, find_ahead, find_counts
from .step import StepSource
from .vectors import Vector

__all__ = ["epoch_graph"]

#: Operators that give the same bits wherever in memory their inputs are, as views do. A sum of onnxruntime depends on
#: where its numbers start.
_EXACT = frozenset({"Add", "Cast", "Conv", "Div", "Equal", "Gather", "Gemm", "Greater", "Less", "MatMul", "Mul", "Neg",
                    "Split", "Sub", "Transpose", "Where"})


def epoch_graph(source: StepSource, weighting: bool | str = False,
                apart: dict[str, np.ndarray] | None = None) -> ModelProto:
    """All steps of an epoch as a model: a Scan over the batches, whose rows are gathered inside.

    Parameters
    ----------
    source : StepSource
        Composes the step, with the sizes of a batch.
    weighting : bool or "elements"
        Whether the rows have weights, or the elements of the targets.
    apart : dict of str to numpy.ndarray, optional
        Receives the big constants: see `build`.

    Returns
    -------
    onnx.ModelProto
        Inputs: as of the step, where the inputs that are a batch hold all the rows, and the iteration is the number of
        batches seen; and ``order``, (steps, rows of a batch), the rows of every batch. Outputs: as of the step, with a
        loss for each batch.
    """
    flat = source.compose(weighting, flat=True)
    inputs, outputs, names = flat.inputs, flat.outputs, flat.names
    rows, fixed = flat.all_rows, flat.fixed
    counted = find_counts(flat)
    carried = [n for n in flat.state if n not in counted]
    k = inputs.get(names.iteration, variable(names.iteration, np.int64, []))
    order = variable(names.free("order"), np.int64, ["steps", flat.batch_size])

    # A slice of rows gathered for all steps at once is no copy, and a node in the body costs each time.
    ahead = [n for n in rows if _may_be_anywhere(inputs[n], list(outputs.values()))]
    slices = [op.Gather(rows[n], order, axis=0) for n in ahead] + [order] * (len(ahead) < len(rows))
    loss, scaled = _scaled_apart(outputs[names.loss])
    results = [loss, *(outputs[flat.state[n]] for n in carried)]
    numbers = find_ahead(results, [k, *(inputs[n] for n in counted)], [*fixed.values()])
    steps = op.Squeeze(op.Shape(order, start=0, end=1))
    counts = {}
    if numbers:
        places = op.Range(0, steps, 1)
        counts = {k: k + 1 + places, **{inputs[n]: inputs[n] + by * places for n, by in counted.items()}}

    def step(*values: Value) -> list[Value]:
        arrays = dict(zip([*carried, *ahead], [*values[: len(carried)], *values[-len(slices) :]], strict=False))
        arrays |= {n: op.Gather(v, values[-1], axis=0) for n, v in rows.items() if n not in ahead}
        new = dict(zip(numbers, values[len(carried) :], strict=False)) | {inputs[n]: v for n, v in arrays.items()}
        each, *after = rewrite(results, new)
        return [*after, each]

    vectors = {n: (vector, _make_parts(vector, inputs[n])) for n, vector in source.vectors.items() if n in inputs}
    start = [vectors[n][0].join([*vectors[n][1].values()]) if n in vectors else inputs[n] for n in carried]
    *after, each = scan(step, start, [*compute_ahead(numbers, counts), *slices])
    for schema, by in reversed(scaled):
        each = make_node(schema, [each, by], {}).outputs[0]
    named = {**rows, names.free("order"): order, **fixed, names.iteration: k, **{n: inputs[n] for n in counted}}
    new = {names.loss: each, **{names.new(n): inputs[n] + by * steps for n, by in counted.items()}}
    for n, v in zip(carried, after, strict=True):
        vector, parts = vectors.get(n, (None, {n: inputs[n]}))
        named |= parts
        new.update(zip(map(names.new, parts), [v] if vector is None else vector.split(v).values(), strict=True))
    return build(named, new, name="epoch", apart=apart)


def _make_parts(vector: Vector, flat: Value) -> dict[str, Value]:
    """Variables for the tensors that a vector consists of."""
    return {n: variable(n, flat.dtype, shape) for n, shape in vector.shapes.items()}


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


def _scaled_apart(loss: Value) -> tuple[Value, list[tuple[OpSchema | OpaqueSchema, Value]]]:
    """A loss without its constant factors, and these factors, which are applied once for all steps."""
    scaled: list[tuple[OpSchema | OpaqueSchema, Value]] = []
    while loss.node is not None and loss.node.op_type in ("Div", "Mul") and loss.rank == 0:
        a, b = loss.node.reads
        if b.array is None or a.rank:
            break
        scaled.append((loss.node.schema, b))
        loss = a
    return loss, scaled
