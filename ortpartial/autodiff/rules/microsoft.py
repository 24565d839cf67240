"""Gradients of com.microsoft operators: fused by onnxruntime's optimizers from standard operators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, TensorProto, TypeProto, defs, helper
from onnx.shape_inference import InferenceContext

from ortpartial.annotations import Attributes, Function
from ortpartial.exceptions import NoGradientError, OrtPartialError
from ortpartial.graph import Value, attribute_value, cast, constant, make_node, op, register_schema
from ortpartial.model import declare, dequantize, register_expansion

from ..grad import composed
from .linear import swap_last_axes
from .shape import concat_sizes, slice_shape

DOMAIN = "com.microsoft"
_KINDS = {int: AttributeProto.INT, float: AttributeProto.FLOAT, str: AttributeProto.STRING, list: AttributeProto.INTS}


def fused(inputs: str, outputs: str = "Y", **attributes: object) -> Callable[[Function], Function]:
    """Declare the operator that a function computes: its schema, its type inference and its gradient.

    `inputs` and `outputs` are names, optional names with a question mark; `_TYPES` holds names of other types than T.
    Attributes are given by their defaults, or else by their types.
    """

    def register(formula: Function) -> Function:
        name = formula.__name__
        if not defs.has(name, DOMAIN):  # another package may have declared it
            schema = defs.OpSchema(
                name, DOMAIN, 1, inputs=_formal(inputs), outputs=_formal(outputs), attributes=_declared(attributes),
                type_constraints=[("T", [f"tensor({t})" for t in ("float", "double", "float16", "bfloat16")], ""),
                                  ("M", ["tensor(int32)"], ""), ("U", ["tensor(float)"], "")])
            register_schema(schema, _inferred(formula, attributes))
        return composed(name, DOMAIN)(formula)

    return register


#: Type variables of integer inputs, and of outputs that are float32 whatever the other types.
_TYPES = {
    **dict.fromkeys(("cache_indirection", "input_ids", "key_padding_mask", "mask", "mask_index",
                     "past_sequence_length", "position_ids", "segment_ids"), "M"),
    "mean": "U", "inv_std_var": "U",
}


def _formal(names: str) -> list[defs.OpSchema.FormalParameter]:
    option = defs.OpSchema.FormalParameterOption
    return [
        defs.OpSchema.FormalParameter(n.rstrip("?"), _TYPES.get(n.rstrip("?"), "T"),
                                      param_option=option.Optional if n.endswith("?") else option.Single)
        for n in names.split()
    ]


def _declared(attributes: dict[str, object]) -> list[defs.OpSchema.Attribute]:
    declared = []
    for n, default in attributes.items():
        if isinstance(default, type):
            kind = AttributeProto.FLOATS if n == "activation_params" else _KINDS[default]
            name = AttributeProto.AttributeType.Name(kind)
            declared.append(defs.OpSchema.Attribute(n, getattr(defs.OpSchema.AttrType, name), required=False))
        else:
            declared.append(defs.OpSchema.Attribute(n, helper.make_attribute(n, default)))
    return declared


def _inferred(formula: Callable[..., Any], attributes: dict[str, Any]) -> Callable[[Any], None]:
    """Type inference: types and shapes of the formula's outputs, or the type alone where a rank is unknown."""
    parameters = inspect.signature(formula).parameters

    def infer(context: InferenceContext) -> None:
        kinds = [context.get_input_type(i) if context.has_input(i) else None for i in range(context.get_num_inputs())]
        inputs = [None if k is None else Value(k) for k in kinds]
        settings = {}
        for n, default in ((n, d) for n, d in attributes.items() if n in parameters):
            attribute = context.get_attribute(n)
            default = None if isinstance(default, type) else default
            settings[n] = default if attribute is None else attribute_value(attribute)
        try:
            ys = formula(*inputs, **settings)
            types = [None if y is None else y.type for y in ([ys] if isinstance(ys, Value) else ys)]
        except OrtPartialError:
            first = next(v.type.tensor_type.elem_type for v in inputs if v is not None and v.is_float)
            types = [TypeProto(tensor_type=TypeProto.Tensor(elem_type=first))]
        for i, kind in enumerate(types[: context.get_num_outputs()]):
            if kind is not None and context.has_output(i):
                context.set_output_type(i, kind)

    return infer


# Products.


@fused("A B", alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0)
def FusedMatMul(a, b, *, alpha, transA, transB, transBatchA, transBatchB):
    y = transpose_operand(a, transBatchA, transA) @ transpose_operand(b, transBatchB, transB)
    return y if alpha == 1 else alpha * y


def transpose_operand(x: Value, batch: int, matrix: int) -> Value:
    """x with its first axis moved before the last (`batch`), then with its last two axes swapped (`matrix`)."""
    if batch and x.rank > 2:
        x = op.Transpose(x, perm=[*range(1, x.rank - 1), 0, x.rank - 1])
    return swap_last_axes(x) if matrix and x.rank > 1 else x


@fused("A B C?", alpha=1.0, beta=1.0, transA=0, transB=0, activation=str, activation_alpha=float,
       activation_beta=float, activation_gamma=float)
def FusedGemm(a, b, c=None, *, alpha, beta, transA, transB, activation, activation_alpha, activation_beta):
    y = op.Gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return apply_activation(y, activation, [p for p in (activation_alpha, activation_beta) if p is not None])


@fused("X W B? Z?", auto_pad="NOTSET", dilations=list, group=1, kernel_shape=list, pads=list, strides=list,
       activation=str, activation_params=list)
def FusedConv(x, w, b=None, z=None, *, auto_pad, dilations, group, kernel_shape, pads, strides, activation,
              activation_params):
    y = op.Conv(x, w, b, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads,
                strides=strides)
    return apply_activation(y if z is None else y + z, activation, activation_params or [])


def apply_activation(y: Value, name: str | None, p: Sequence[float]) -> Value:
    """The activation that is fused into an operator, with its parameters."""
    if not name:
        return y
    if name in ("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign"):
        return getattr(op, name)(y)
    if name in ("LeakyRelu", "Elu"):
        return getattr(op, name)(y, alpha=p[0] if p else None)
    if name == "HardSigmoid":
        return op.HardSigmoid(y, **dict(zip(("alpha", "beta"), p, strict=False)))
    if name == "Clip":
        return op.Clip(y, *p)
    raise NoGradientError(f"The activation {name!r} is fused into an operator and has no gradient; export the model "
                          f"without optimization.")


# Elements.


@fused("X")
def Gelu(x):
    return op.Gelu(x)


@fused("A B", "C")
def BiasGelu(a, b):
    return op.Gelu(a + b)


@fused("X bias?")
def FastGelu(x, bias=None):
    return op.Gelu(x if bias is None else x + bias, approximate="tanh")


@fused("X", alpha=1.702)
def QuickGelu(x, *, alpha):
    return x * op.Sigmoid(alpha * x)


# Normalization.


@fused("input skip gamma beta? bias?", "output mean? inv_std_var? input_skip_bias_sum?", epsilon=1e-12)
def SkipLayerNormalization(x, skip, gamma, beta=None, bias=None, *, epsilon):
    total = x + skip if bias is None else x + skip + bias
    return *op.LayerNormalization(total, gamma, beta, epsilon=epsilon, n_outputs=3), total


@fused("input skip gamma bias?", "output mean? inv_std_var? input_skip_bias_sum?", epsilon=1e-12)
def SkipSimplifiedLayerNormalization(x, skip, gamma, bias=None, *, epsilon):
    total = x + skip if bias is None else x + skip + bias
    y, r = normalize_by_squares(total, gamma, epsilon)
    return y, None, r, total


def normalize_by_squares(x: Value, scale: Value, epsilon: float, axis: int = -1) -> tuple[Value, Value]:
    """x r scale and r = 1 / √(mean x² + ε), in float32 at least, as onnxruntime fuses it."""
    wide = x if x.dtype == np.float64 else op.Cast(x, to=TensorProto.FLOAT)
    root = op.Sqrt(op.ReduceMean(op.Pow(wide, 2.0), list(range(axis % x.rank, x.rank))) + epsilon)
    return cast(wide / root, x) * scale, 1 / root


def read_simplified(inputs: Sequence[Value], attributes: Attributes, _: Sequence[bool]) -> list[Value | None]:
    """SimplifiedLayerNormalization, which onnxruntime runs under a name of ONNX's domain that ONNX does not have."""
    x, scale = inputs
    return [*normalize_by_squares(x, scale, attributes.get("epsilon", 1e-5), attributes.get("axis", -1))]


register_expansion("SimplifiedLayerNormalization", DOMAIN, read_simplified)


def read_expand_dims(inputs: Sequence[Value], attributes: Attributes, _: Sequence[bool]) -> list[Value | None]:
    """ExpandDims, whose type inference in onnxruntime 1.19.2 ends the process for an axis in raw data."""
    x, axis = inputs
    return [op.Unsqueeze(x, [int(axis.array)] if axis.array is not None else op.Reshape(
        op.Cast(axis, to=TensorProto.INT64), [1]))]


register_expansion("ExpandDims", DOMAIN, read_expand_dims)


@fused("input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta mask? position_ids?",
       "output mask_index? embedding_sum?", epsilon=1e-12, mask_index_type=int)
def EmbedLayerNormalization(ids, segments, words, positions, kinds, gamma, beta, mask=None, places=None, *, epsilon):
    total = op.Gather(words, ids)
    if places is None:
        total = total + op.Slice(positions, [0], slice_shape(ids, 1, 2), [0])
    else:
        total = total + op.Gather(positions, places)
    if kinds is not None:
        total = total + op.Gather(kinds, segments)
    # Of the second output only the type counts: its readers have no gradient by it.
    lengths = op.ReduceSum(ids if mask is None else mask, [1], keepdims=0)
    return op.LayerNormalization(total, gamma, beta, epsilon=epsilon), lengths, total


# Attention.


@fused("query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? past_sequence_length? "
       "cache_indirection?", "output present_key? present_value?",
       num_heads=int, mask_filter_value=float, scale=float, unidirectional=0)
def MultiHeadAttention(query, key=None, value=None, bias=None, key_padding_mask=None, attention_bias=None,
                       past_key=None, past_value=None, past_sequence_length=None, cache_indirection=None, *,
                       num_heads, mask_filter_value, scale, unidirectional):
    refuse("MultiHeadAttention", {"key and value packed with other inputs": query.rank != 3 or key is None
            or value is None or key.rank == 5, "a shared buffer": past_sequence_length is not None
            or cache_indirection is not None})
    q, k, v = query, key, value
    if bias is not None:
        width = slice_shape(q, 2, 3)
        parts = split_at(bias, [width, width, rest_of(slice_shape(bias, 0, 1), width)], 0)
        q, k, v = (x + b if x.rank == 3 else x for x, b in zip((q, k, v), parts, strict=True))
    q, k, v = (split_heads(x, num_heads) for x in (q, k, v))
    if past_key is not None:
        k, v = op.Concat(past_key, k, axis=2), op.Concat(past_value, v, axis=2)
    y = attend(q, k, v, key_padding_mask, attention_bias, scale, mask_filter_value, unidirectional)
    return y, k, v


@fused("input weights bias? mask_index? past? attention_bias? past_sequence_length?", "output present?",
       num_heads=int, unidirectional=0, qkv_hidden_sizes=list, scale=float, mask_filter_value=float, do_rotary=int,
       past_present_share_buffer=int, rotary_embedding_dim=int)
def Attention(x, weights, bias=None, mask_index=None, past=None, attention_bias=None, past_sequence_length=None, *,
              num_heads, unidirectional, qkv_hidden_sizes, scale, mask_filter_value, do_rotary,
              past_present_share_buffer):
    refuse("Attention", {"do_rotary": do_rotary, "a shared buffer": past_present_share_buffer})
    y = x @ weights if bias is None else x @ weights + bias
    width = slice_shape(y, 2, 3)
    widths = [constant([n]) for n in qkv_hidden_sizes] if qkv_hidden_sizes else [third_of(width)] * 3
    q, k, v = (split_heads(part, num_heads) for part in split_at(y, widths, 2))
    if past is not None:
        k, v = (op.Concat(op.Gather(past, i), part, axis=2) for i, part in enumerate((k, v)))
    y = attend(q, k, v, mask_index, attention_bias, scale, mask_filter_value, unidirectional)
    same = not qkv_hidden_sizes or qkv_hidden_sizes[1] == qkv_hidden_sizes[2]
    return y, op.Concat(op.Unsqueeze(k, [0]), op.Unsqueeze(v, [0]), axis=0) if same else None


def read_attention(inputs: Sequence[Value | None], attributes: Attributes,
                   outputs: Sequence[bool]) -> list[Value | None] | None:
    """Attention with a bias of zeros where it has none, without which onnxruntime 1.19.2 crashes."""
    x, weights, *others = inputs
    if weights is None or (others and others[0] is not None):
        return None
    zeros = op.Expand(constant(np.zeros(1, weights.dtype)), slice_shape(weights, 1, 2))
    schema = defs.get_schema("Attention", DOMAIN)
    return [*make_node(schema, [x, weights, zeros, *others[1:]], attributes, n_outputs=len(outputs)).outputs]


register_expansion("Attention", DOMAIN, read_attention)


@declare("QAttention", "input weight bias input_scale weight_scale mask_index? input_zero_point? weight_zero_point? "
         "past?", "output present?", num_heads=int, unidirectional=0, past_present_share_buffer=int, do_rotary=int,
         mask_filter_value=float, scale=float)
def _(x, weights, bias, x_scale, w_scale, mask_index=None, x_zero=None, w_zero=None, past=None, *, num_heads,
      unidirectional, past_present_share_buffer, do_rotary, mask_filter_value, scale):
    weights = dequantize(weights, w_scale, w_zero, axis=1)
    return Attention(dequantize(x, x_scale, x_zero), weights, bias, mask_index, past, num_heads=num_heads,
                     unidirectional=unidirectional, qkv_hidden_sizes=None, scale=scale, do_rotary=do_rotary,
                     mask_filter_value=mask_filter_value, past_present_share_buffer=past_present_share_buffer)


def third_of(n: Value) -> Value:
    """A third of a size, constant if the size is."""
    return op.Div(n, 3) if n.array is None else constant(n.array // 3)


def rest_of(n: Value, width: Value) -> Value:
    """n - 2 width, constant if both are."""
    return n - 2 * width if n.array is None or width.array is None else constant(n.array - 2 * width.array)


def split_at(x: Value, sizes: Sequence[Value], axis: int) -> list[Value]:
    """x split into parts of the given sizes along an axis."""
    shape = list(x.shape or [None] * x.rank)
    parts = op.Split(x, concat_sizes(*sizes), axis=axis, n_outputs=len(sizes))
    return [part.stated([*shape[:axis], None, *shape[axis + 1 :]]) for part in parts]


def refuse(name: str, variants: dict[str, object]) -> None:
    """Raise for a variant of attention that has no gradient."""
    for what, is_present in variants.items():
        if is_present:
            raise NoGradientError(f"com.microsoft.{name} with {what} has no gradient; export the model without it.")


def split_heads(x: Value, n: int) -> Value:
    """(batch, length, n · size) reshaped to (batch, n, length, size)."""
    if x.rank == 4:
        return x
    width = x.shape[2] // n if x.shape and isinstance(x.shape[2], int) else -1
    return op.Transpose(op.Reshape(x, [0, 0, n, width]), perm=[0, 2, 1, 3])


def attend(q: Value, k: Value, v: Value, mask: Value | None, bias: Value | None, scale: float | None,
              filler: float | None, unidirectional: int) -> Value:
    """softmax(scale q kᵀ + bias + mask) v, the heads concatenated."""
    factor = op.Cast(scale, to=q.type.tensor_type.elem_type) if scale else 1 / op.Sqrt(cast(slice_shape(q, 3, 4), q))
    scores = (q * factor) @ swap_last_axes(k)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores + cast(find_padding(mask, slice_shape(q, 0, 1), slice_shape(k, 2, 3)), q) * (filler or -10000.0)
    if unidirectional:
        n, total = slice_shape(q, 2, 3), slice_shape(k, 2, 3)
        ones = op.Expand(constant(np.ones((1, 1), q.dtype)), op.Concat(n, total, axis=0)).stated([None, None])
        later = op.Trilu(ones, op.Squeeze(total - n, [0]) + 1, upper=1)
        scores = scores + later * float(np.finfo(np.float16 if q.dtype == np.float16 else np.float32).min / 2)
    y = op.Transpose(op.Softmax(scores, axis=-1) @ v, perm=[0, 2, 1, 3])
    sizes = [n for n in (y.shape or ())[2:] if isinstance(n, int)]
    width = sizes[0] * sizes[1] if len(sizes) == 2 else -1
    return op.Reshape(y, [0, 0, width])


def find_padding(mask: Value, batch: Value, total: Value) -> Value:
    """The mask of keys that are padding, (batch, 1, 1 or queries, keys)."""
    if mask.rank in (2, 3):
        return op.Equal(op.Unsqueeze(mask, [1, 2] if mask.rank == 2 else [1]), 0)
    if mask.rank != 1:
        raise NoGradientError(f"A mask of {mask.rank} axes has no gradient; give one of (batch, keys).")
    (length,) = mask.shape or (None,)
    if isinstance(length, int) and batch.array is not None and length not in (batch.array[0], 2 * batch.array[0]):
        raise NoGradientError(f"A mask of shape {mask.shape} has no gradient; give one of (batch, keys).")
    place = op.Cast(op.Range(0, op.Squeeze(total, [0]), 1), to=mask.type.tensor_type.elem_type)
    # Ends of the sequences, perhaps followed by their starts, which are 0 otherwise.
    ends = op.Slice(mask, [0], batch, [0])
    starts = op.Slice(op.Concat(mask, 0 * ends, axis=0), batch, 2 * batch, [0])
    return op.Or(place >= op.Reshape(ends, [-1, 1, 1, 1]), place < op.Reshape(starts, [-1, 1, 1, 1]))
