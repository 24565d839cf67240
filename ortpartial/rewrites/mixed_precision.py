"""Mixed precision, loss scaling, and casts: products in float16 or bfloat16, or a whole model in another dtype."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
from onnx import helper

from ortpartial.annotations import DTypeLike
from ortpartial.checks import check_choice, is_whole, to_number
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.graph import (
    FLOATS,
    PRODUCTS,
    VIEWS,
    Node,
    Value,
    accepted_types,
    cast,
    constant,
    make_node,
    make_rewriter,
    onnx_type,
    op,
    replace_gradient,
    topological,
    variable,
)
from ortpartial.model import Model

from .protocol import count_case, numbered
from .train_mode import TrainingModel

__all__ = ["LossScale", "Precision", "lower_products", "resolve_precision", "to_mixed_precision"]

#: Never in the low dtype: sums of many numbers, and functions that overflow in its range.
WIDE = frozenset({"BatchNormalization", "CumProd", "CumSum", "Exp", "GroupNormalization",
                  "InstanceNormalization", "LayerNormalization", "Log", "LogSoftmax", "LpNormalization", "Mean",
                  "MeanVarianceNormalization", "NegativeLogLikelihoodLoss", "Pow", "RMSNormalization",
                  "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd",
                  "ReduceSum", "ReduceSumSquare", "Softmax", "SoftmaxCrossEntropyLoss", "Softplus", "Sum"})


@dataclass(frozen=True)
class LossScale:
    """Dynamic loss scaling: g = ∇(s·J) / s, where s grows after a run of finite steps and shrinks after an overflow.

    Where g is finite, the step is taken, and after `growth_interval` such steps in a row s ← s·growth_factor.
    Otherwise the step is skipped, does not count for the schedule, and s ← s·backoff_factor.

    Parameters
    ----------
    init_scale : float
        The first s.
    growth_factor, backoff_factor : float
        The factors of s; powers of two do not round the gradient.
    growth_interval : int
        The number of finite steps in a row after which s grows.

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
        numbers = (to_number(self.init_scale, above=0), to_number(self.growth_factor, low=1),
                   to_number(self.backoff_factor, above=0, high=1))
        if None in numbers or not is_whole(self.growth_interval, 1):
            raise SettingError(f"{self!r} needs a scale above 0, a growth of at least 1 after at least one step, and a "
                               f"backoff from 0 to 1.")

    def initial_state(self) -> list[np.ndarray]:
        """The state before the first step: s, the finite steps in a row, and the number of skipped steps."""
        return [np.array(self.init_scale, np.float32), np.array(0, np.int64), np.array(0, np.int64)]

    def update(self, finite: Value, scale: Value, in_row: Value, skipped: Value) -> list[Value]:
        """The state after a step."""
        in_row = in_row + 1
        grows = in_row >= self.growth_interval
        grown = op.Min(scale * self.growth_factor, 2.0**126)  # an infinite s would never shrink
        return [op.Where(finite, op.Where(grows, grown, scale), scale * self.backoff_factor),
                op.Where(op.And(finite, op.Not(grows)), in_row, 0), op.Where(finite, skipped, skipped + 1)]


@dataclass(frozen=True)
class Precision:
    """The low dtype of a mixed-precision training, and its loss scaling.

    Parameters
    ----------
    dtype : numpy.dtype
        float16 or bfloat16.
    loss_scale : LossScale or float
        Dynamic loss scaling, or a constant scale, which skips no step.
    rounds : bool
        Whether the operands of products are rounded to the low dtype and all else stays in the dtype of the model, as a
        processor multiplies; otherwise results are in the low dtype, too.
    """

    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.float16))
    loss_scale: LossScale | float = field(default_factory=LossScale)
    rounds: bool = False

    @property
    def initial_state(self) -> dict[str, np.ndarray]:
        """The state of the loss scale before the first step, by name."""
        scale = self.loss_scale
        return dict(zip(scale.state, scale.initial_state(), strict=True)) if isinstance(scale, LossScale) else {}

    def update(self, finite: Value, *state: Value) -> list[Value]:
        """The state of the loss scale after a step."""
        return self.loss_scale.update(finite, *state) if isinstance(self.loss_scale, LossScale) else []

    def finish(self, gradients: Sequence[Value]) -> list[Value]:
        """Gradients whose products are in the low dtype, as those of the model have become before."""
        if not self.rounds:
            return list(gradients)
        new = round_products(gradients, self.dtype)
        return [new.get(g, g) for g in gradients]


def resolve_precision(precision: str | None, loss_scale: LossScale | float | None, *, on_cpu: bool = False
                      ) -> Precision | None:
    """The mixed precision of two settings; None where a model is trained in its own dtype.

    Parameters
    ----------
    precision : str or None
        ``"float16"``, ``"bfloat16"``, or None.
    loss_scale : LossScale, float or None
        By default a `LossScale` for float16, and 1 for bfloat16, whose range is that of float32.
    on_cpu : bool
        Whether a processor trains, where results of products in bfloat16 are float32.

    Returns
    -------
    Precision or None

    Raises
    ------
    SettingError
        Another dtype or an invalid scale.

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
    check_choice("precision", precision, (None, *dtypes))
    if loss_scale is None:
        loss_scale = LossScale() if precision == "float16" else 1.0
    if not isinstance(loss_scale, LossScale) and to_number(loss_scale, above=0) is None:
        raise SettingError(f"loss_scale is None, a LossScale or a number above 0, not {loss_scale!r}.")
    return Precision(dtypes[precision], loss_scale, on_cpu and precision == "bfloat16")


def to_mixed_precision(training: TrainingModel, dtype: np.dtype, rounds: bool = False) -> TrainingModel:
    """The model with its products in a low dtype; its inputs, initializers and outputs keep theirs.

    Products read their inputs in the low dtype; sums of many numbers and functions that overflow in it are computed in
    the dtype of the model; any other operator follows its inputs, and parameters are cast to the dtype of the others.

    Parameters
    ----------
    training : TrainingModel
        The model, and the statistics of its batches.
    dtype : numpy.dtype
        float16 or bfloat16.
    rounds : bool
        Whether operands are rounded, and nothing else is in the low dtype: see `Precision`.

    Returns
    -------
    TrainingModel

    Raises
    ------
    ModelError
        A node has a body, or the model itself holds float16 or bfloat16.
    """
    model, parameters = training.model, set(training.model.initializers.values())
    if small := [n for n, v in model.initializers.items() if v.is_float and v.dtype.itemsize < 4]:
        raise ModelError(f"{small[0]!r} holds {model.initializers[small[0]].dtype}, and precision={str(dtype)!r} is "
                         f"for models of float32.")
    batches = [s.batch for s in training.statistics]
    values = [*model.outputs.values(), *batches]
    new = dict(round_products(values, dtype) if rounds else lower_products(values, dtype, parameters))
    outputs = {n: cast(new.get(v, v), v) for n, v in model.outputs.items()}
    statistics = [replace(s, batch=cast(new.get(s.batch, s.batch), s.batch)) for s in training.statistics]
    return replace(training, model=replace(model, outputs=outputs), statistics=statistics)


@numbered("product", "follow", "widen")
def lower_products(
    values: Sequence[Value], dtype: np.dtype, parameters: Collection[Value], *,
    lowered: Mapping[Value, Value] = MappingProxyType({}), wide: Collection[Value] = ()
) -> dict[Value, Value]:
    """Expressions with their products in a low dtype, by the rules of `to_mixed_precision`.

    1. `product`: A product reads its inputs in the low dtype.
    2. `follow`: Another operator follows its inputs, which are in the low dtype.
    3. `widen`: A sum of many numbers, or a function that overflows, reads its inputs in the dtype of the model.

    Parameters
    ----------
    values : sequence of Value
        The expressions.
    dtype : numpy.dtype
        float16 or bfloat16.
    parameters : collection of Value
        Values that are cast to the dtype of the other inputs of an operator, as constants are.
    lowered : dict of Value to Value
        Values rewritten before.
    wide : collection of Value
        Values that keep their dtype wherever they are read.

    Returns
    -------
    dict of Value to Value
        By value of the expressions, its replacement, which may be in the low dtype.

    Raises
    ------
    ModelError
        A node has a body.
    """
    kind, type_name, largest = helper.np_dtype_to_tensor_dtype(dtype), onnx_type(dtype), ml_dtypes.finfo(dtype).max

    def lower(x: Value) -> Value:
        if x.array is None:
            return x if x.dtype == dtype else op.Cast(x, to=kind)
        # Clipped: the -1e38 of an attention mask must not become -∞.
        return constant(x.array.clip(-float(largest), float(largest)).astype(dtype))

    def change(node: Node, inputs: Sequence[Value | None]) -> list[Value] | None:
        outputs = choose(node, inputs)
        return outputs and [cast(y, old) if old in wide else y for y, old in zip(outputs, node.outputs, strict=True)]

    def choose(node: Node, inputs: Sequence[Value | None]) -> list[Value] | None:
        if node.bodies:
            raise ModelError(f"{node!r} has a graph inside, and precision={str(dtype)!r} trains none that has one.")
        floats = [x for x in inputs if x is not None and x.is_float]
        if not floats or node.domain:
            is_same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            return None if is_same else apply(node, inputs, low=False)
        computed = [x for x in floats if x.dtype != dtype and x.array is None and x not in parameters]
        follows = not computed and any(x.dtype == dtype for x in floats) and node.op_type not in WIDE
        # Products are always in the low dtype, for which devices have units.
        return apply(node, inputs, low=follows or node.op_type in PRODUCTS)

    def apply(node: Node, inputs: Sequence[Value | None], low: bool) -> list[Value]:
        takes = [type_name in accepted_types(node.schema, i) for i in range(len(inputs))]
        low = low and takes[0]
        if low:
            count_case("product" if node.op_type in PRODUCTS else "follow")
        elif any(x is not None and old is not None and x.is_float and x.dtype != old.dtype
                 for x, old in zip(inputs, node.inputs, strict=True)):
            count_case("widen")
        inputs = [x if x is None or old is None or not x.is_float else lower(x) if low and takes[i] else cast(x, old)
                  for i, (x, old) in enumerate(zip(inputs, node.inputs, strict=True))]
        return list(_copy_node(node, inputs, kind if low else None).outputs)

    new = make_rewriter(values, lowered, change)
    return {**lowered, **{y: new(y) for node in topological(values, lowered) for y in node.outputs}}


@numbered("round")
def round_products(values: Sequence[Value], dtype: np.dtype, *, rounded: Mapping[Value, Value] = MappingProxyType({})
                   ) -> dict[Value, Value]:
    """Expressions whose products read operands that are rounded to a low dtype, and stay in their own.

    1. `round`: The operands of a product are rounded. The gradient passes the rounding.

    Products in the bodies of loops and branches, and of recurrent layers, are left as they are.

    Parameters
    ----------
    values : sequence of Value
        The expressions.
    dtype : numpy.dtype
        float16 or bfloat16.
    rounded : dict of Value to Value
        Values rewritten before.

    Returns
    -------
    dict of Value to Value
        By value of the expressions, its replacement.
    """
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    operands: dict[Value, Value] = {}

    def is_rounded(x: Value) -> bool:
        while x.node is not None and (x.node.op_type in VIEWS or x.node.op_type == "Transpose"):
            x = x.node.reads[0]
        if x.array is not None:
            return bool((x.array == x.array.astype(dtype).astype(x.dtype)).all())
        node = x.node
        if node is not None and node.op_type == "StraightThrough":
            node = node.reads[0].node
        return node is not None and node.op_type == "Cast" and node.reads[0].dtype == dtype

    def round_operand(x: Value) -> Value:
        if x not in operands:
            operands[x] = write_rounding(x)
        return operands[x]

    def write_rounding(x: Value) -> Value:
        """Below a Transpose, which peephole patterns look for at a product."""
        if x.array is not None:
            return constant(x.array.astype(dtype).astype(x.dtype), hint=x.hint)
        if x.node is not None and x.node.op_type == "Transpose":
            return op.Transpose(round_operand(x.node.reads[0]), perm=x.node.attribute("perm"))
        return replace_gradient(op.Cast(op.Cast(x, to=kind), to=helper.np_dtype_to_tensor_dtype(x.dtype)), x)

    def change(node: Node, inputs: Sequence[Value | None]) -> list[Value] | None:
        if node.op_type not in PRODUCTS or node.domain or not node.outputs[0].is_float:
            return None
        count = len(inputs) if node.op_type == "Einsum" else 2  # the others have a bias
        new = [x if x is None or i >= count or is_rounded(x) else round_operand(x) for i, x in enumerate(inputs)]
        if new == list(node.inputs):
            return None
        count_case("round", new != list(inputs))
        return list(_copy_node(node, new, None).outputs)

    new = make_rewriter(values, rounded, change)
    return {**rounded, **{y: new(y) for node in topological(values, rounded) for y in node.outputs}}


def all_finite(values: Sequence[Value]) -> Value:
    """Whether no number is NaN or infinite: 0 times NaN or ∞ is NaN."""
    zeros = [op.ReduceSum(cast(v, values[0]) * 0, keepdims=0) for v in values]
    return op.Equal(zeros[0] if len(zeros) == 1 else op.Sum(*zeros), 0)


@numbered("cast_leaf", "keep_input", "cast_output")
def to_dtype(model: Model, dtype: DTypeLike) -> Model:
    """The model with all real numbers in the same dtype.

    1. `cast_leaf`: An input or a constant takes the dtype.
    2. `keep_input`: An input that an operator takes in a single dtype keeps it.
    3. `cast_output`: An output that an operator gives in a single dtype is cast.

    Parameters
    ----------
    model : Model
        The model.
    dtype : numpy dtype
        float64, for example.

    Returns
    -------
    Model
        Inputs that an operator takes in a single dtype, such as the scales of Resize, keep it.

    Raises
    ------
    ModelError
        A node has a body.
    """
    dtype = np.dtype(dtype)
    kind, type_name = helper.np_dtype_to_tensor_dtype(dtype), onnx_type(dtype)
    roots = list(model.outputs.values())
    reads = [x for node in topological(roots) for x in node.inputs if x is not None]
    leaves = {v: _cast_leaf(v, dtype)
              for v in [*reads, *roots, *model.inputs.values(), *model.initializers.values()]
              if v.node is None and v.is_float}
    count_case("cast_leaf", sum(v.dtype != dtype for v in leaves))

    def change(node: Node, inputs: Sequence[Value | None]) -> list[Value]:
        if node.bodies:
            raise ModelError(f"{node!r} has a graph inside, whose dtypes are fixed; leave the layer in its own.")
        inputs = list(inputs)
        for i, (x, old) in enumerate(zip(inputs, node.inputs, strict=True)):
            if x is not None and old is not None and x.is_float and type_name not in accepted_types(node.schema, i):
                count_case("keep_input")
                inputs[i] = old if old.array is not None else cast(x, old)
        outputs = _copy_node(node, inputs, kind).outputs
        count_case("cast_output", sum(y.is_float and y.dtype != dtype for y in outputs))
        return [op.Cast(y, to=kind) if y.is_float and y.dtype != dtype else y for y in outputs]

    new = make_rewriter(roots, leaves, change)
    inputs, outputs, initializers = ({n: new(v) for n, v in values.items()}
                                     for values in (model.inputs, model.outputs, model.initializers))
    return replace(model, inputs=inputs, outputs=outputs, initializers=initializers)


def _cast_leaf(v: Value, dtype: np.dtype) -> Value:
    """An input or a constant in another dtype."""
    return variable(v.hint, dtype, v.shape) if v.array is None else constant(v.array.astype(dtype), hint=v.hint)


def _copy_node(node: Node, inputs: Sequence[Value | None], kind: int | None) -> Node:
    """The node with other inputs and, unless `kind` is None, with float attributes of that element type."""
    attributes = node.attributes if kind is None or node.is_opaque else {k: _cast_attribute(node, k, v, kind)
                                                       for k, v in node.attributes.items()}
    return make_node(node.schema, inputs, attributes, n_outputs=len(node.outputs), name=node.name,
                     hints=[y.hint for y in node.outputs])


def _cast_attribute(node: Node, name: str, value: object, kind: int) -> Any:
    """An attribute with another element type, where it is the dtype of an output or holds its elements."""
    if name in ("to", "dtype") and value in FLOATS:
        return kind
    if isinstance(value, np.ndarray) and node.op_type == "ConstantOfShape" and value.dtype.kind == "f":
        return value.astype(helper.tensor_dtype_to_np_dtype(kind))
    return value
