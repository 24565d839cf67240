"""Which numbers does a training compute in? `Precision`: products in float16 or bfloat16, weights in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import ml_dtypes
import numpy as np
from onnx import helper

from ortpartial.exceptions import ModelError, SettingError
from ortpartial.graph import Node, Value, cast, constant, make_node, make_rewriter, onnx_type, op

from .train_mode import TrainingModel, _attribute

__all__ = ["LossScale", "Precision", "resolve_precision", "to_mixed_precision"]

#: Always in the low dtype: where the time goes, and where devices have units for it.
PRODUCTS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})

#: Never in the low dtype: sums of many numbers, and functions that leave its range.
WIDE = frozenset({"BatchNormalization", "CumProd", "CumSum", "Exp", "GroupNormalization",
                  "InstanceNormalization", "LayerNormalization", "Log", "LogSoftmax", "LpNormalization", "Mean",
                  "MeanVarianceNormalization", "NegativeLogLikelihoodLoss", "Pow", "RMSNormalization",
                  "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd",
                  "ReduceSum", "ReduceSumSquare", "Softmax", "SoftmaxCrossEntropyLoss", "Softplus", "Sum"})


@dataclass(frozen=True)
class LossScale:
    """The loss times s is differentiated: s grows after steps enough, and shrinks where a gradient overflows.

    g = ∇(s·J) / s;  where g is finite, the step is taken, and s becomes s·growth after `growth_interval` of them in a
    row; where it is not, nothing but s changes, s becomes s·backoff, and the step does not count for the rate.

    Parameters
    ----------
    init_scale : float
        The first s.
    growth_factor, backoff_factor : float
        Powers of two leave the gradient as it is.
    growth_interval : int
        Steps taken in a row before s grows.

    References
    ----------
    .. [1] P. Micikevicius et al., "Mixed Precision Training", ICLR 2018.

    Examples
    --------
    >>> LossScale(init_scale=1024.0).growth_factor
    2.0
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    state: ClassVar = ("loss_scale", "steps_in_row", "skipped_steps")

    def __post_init__(self) -> None:
        fits = 0 < self.init_scale < np.inf and 1 <= self.growth_factor < np.inf and 0 < self.backoff_factor <= 1
        if not fits or self.growth_interval < 1:
            raise SettingError(f"{self!r} needs a scale above 0, a growth of at least 1 after at least one step, and a "
                               f"backoff from 0 to 1.")

    def first(self) -> list[np.ndarray]:
        """The state before the first step: s, the steps in a row, and how many were skipped."""
        return [np.array(self.init_scale, np.float32), np.array(0, np.int64), np.array(0, np.int64)]

    def update(self, finite: Value, scale: Value, in_row: Value, skipped: Value) -> list[Value]:
        """The state after a step, whose gradient was finite or not."""
        in_row = in_row + 1
        grows = in_row >= self.growth_interval
        grown = op.Min(scale * self.growth_factor, 2.0**126)  # an infinite s would stay so
        return [op.Where(finite, op.Where(grows, grown, scale), scale * self.backoff_factor),
                op.Where(op.And(finite, op.Not(grows)), in_row, 0), op.Where(finite, skipped, skipped + 1)]


@dataclass(frozen=True)
class Precision:
    """In what dtype the products of a model are computed while it trains, and how its loss is scaled.

    Parameters
    ----------
    dtype : numpy.dtype
        float16 or bfloat16.
    loss_scale : LossScale or float
        A number scales every loss by it, and no step is skipped.
    """

    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.float16))
    loss_scale: LossScale | float = field(default_factory=LossScale)

    @property
    def state(self) -> dict[str, np.ndarray]:
        """What the step carries of the scale, before the first one."""
        scale = self.loss_scale
        return dict(zip(scale.state, scale.first(), strict=True)) if isinstance(scale, LossScale) else {}

    def moved(self, finite: Value, *state: Value) -> list[Value]:
        """The state after a step, whose gradient was finite or not."""
        return self.loss_scale.update(finite, *state) if isinstance(self.loss_scale, LossScale) else []


def resolve_precision(precision: str | None, loss_scale: LossScale | float | None) -> Precision | None:
    """What two settings mean; None where a model is trained in its own dtype.

    Parameters
    ----------
    precision : str or None
        ``"float16"``, ``"bfloat16"``, or None.
    loss_scale : LossScale, float or None
        None is a `LossScale` for float16, and 1 for bfloat16, whose range is that of float32.

    Returns
    -------
    Precision or None

    Raises
    ------
    SettingError
        Another dtype, or a scale that is none.

    Examples
    --------
    >>> resolve_precision("bfloat16", None).loss_scale
    1.0
    """
    if precision is None:
        if loss_scale is not None:
            raise SettingError("loss_scale belongs to precision='float16' or 'bfloat16', and precision is None.")
        return None
    dtypes = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
    if precision not in dtypes:
        raise SettingError(f"precision is None, 'float16' or 'bfloat16', not {precision!r}.")
    if loss_scale is None:
        loss_scale = LossScale() if precision == "float16" else 1.0
    real = isinstance(loss_scale, (int, float)) and not isinstance(loss_scale, bool)
    if not isinstance(loss_scale, LossScale) and not (real and 0 < loss_scale < np.inf):
        raise SettingError(f"loss_scale is None, a LossScale or a number above 0, not {loss_scale!r}.")
    return Precision(dtypes[precision], loss_scale)


def to_mixed_precision(training: TrainingModel, dtype: np.dtype) -> TrainingModel:
    """The model with its products in a low dtype; its inputs, initializers and outputs stay what they are.

    A product reads its inputs in the low dtype; sums of many numbers and functions that leave its range are computed in
    that of the model; any other operator follows its inputs, of which parameters follow the others.

    Parameters
    ----------
    training : Training
        The model, and the statistics of its batches.
    dtype : numpy.dtype
        float16 or bfloat16.

    Returns
    -------
    Training

    Raises
    ------
    ModelError
        A node has a graph inside, or the model itself holds float16 or bfloat16.
    """
    model = training.model
    kind, spelled, largest = helper.np_dtype_to_tensor_dtype(dtype), onnx_type(dtype), ml_dtypes.finfo(dtype).max
    given = frozenset(model.inputs.values())
    if small := [n for n, v in model.initializers.items() if v.is_float and v.dtype.itemsize < 4]:
        own = model.initializers[small[0]].dtype
        raise ModelError(f"{small[0]!r} holds {own}, and precision={str(dtype)!r} is for models of float32.")

    def lowered(x: Value) -> Value:
        if x.array is None:
            return x if x.dtype == dtype else op.Cast(x, to=kind)
        return constant(x.array.clip(-float(largest), float(largest)).astype(dtype))  # -1e38 hides what is not read

    def change(node: Node, inputs: Sequence[Value | None]) -> list[Value] | None:
        if node.bodies:
            raise ModelError(f"{node!r} has a graph inside, and precision={str(dtype)!r} trains none that has one.")
        floats = [x for x in inputs if x is not None and x.is_float]
        if not floats or node.domain:
            return None if all(a is b for a, b in zip(inputs, node.inputs, strict=True)) else made(node, inputs, False)
        strong = [x for x in floats if x.dtype != dtype and (x.node is not None or x in given)]
        follows = len(strong) == 0 and any(x.dtype == dtype for x in floats) and node.op_type not in WIDE
        return made(node, inputs, follows or node.op_type in PRODUCTS)

    def made(node: Node, inputs: Sequence[Value | None], low: bool) -> list[Value]:
        formal = node.schema.inputs
        takes = [spelled in formal[min(i, len(formal) - 1)].types for i in range(len(inputs))]
        low = low and takes[0]
        new = [x if x is None or was is None or not x.is_float else lowered(x) if low and takes[i] else cast(x, was)
               for i, (x, was) in enumerate(zip(inputs, node.inputs, strict=True))]
        attributes = {k: _attribute(node, k, v, kind) for k, v in node.attributes.items()} if low else node.attributes
        return list(make_node(node.schema, new, attributes, n_outputs=len(node.outputs), name=node.name,
                              hints=[y.hint for y in node.outputs]).outputs)

    statistics = [s.batch for s in training.statistics]
    current = make_rewriter([*model.outputs.values(), *statistics], {}, change)
    outputs = {n: cast(current(v), v) for n, v in model.outputs.items()}
    moved = [replace(s, batch=cast(current(s.batch), s.batch)) for s in training.statistics]
    return replace(training, model=replace(model, outputs=outputs), statistics=moved)


def all_finite(values: Sequence[Value]) -> Value:
    """Whether no number is NaN or infinite: zero times one of these is NaN."""
    zeros = [op.ReduceSum(cast(v, values[0]) * 0, keepdims=0) for v in values]
    return op.Equal(zeros[0] if len(zeros) == 1 else op.Sum(*zeros), 0)
