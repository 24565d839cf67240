"""Gradients of mixtures of experts in com.microsoft: every token passes through a few of many small networks.

The node computes the experts of each token; the gradient computes all of them, as a product each, with a weight of 0
where a token was not sent.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Value, constant, op, reshape_like, zeros_like
from ortpartial.model import declare_schema

from ..grad import composed
from .grouped_attention import infer_like_first
from .linear import flatten_rows, swap_last_axes
from .microsoft import refuse
from .packed_weights import unpack
from .shape import sizes_of

DOMAIN = "com.microsoft"

_SETTINGS: dict[str, Any] = {
    "activation_type": "relu", "k": 1, "normalize_routing_weights": 0, "use_sparse_mixer": 0, "activation_alpha": 1.0,
    "activation_beta": 0.0, "swiglu_fusion": 0, "swiglu_limit": float, "swiglu_limit_after_activation": 0}

declare_schema("MoE", "input router_probs fc1_experts_weights fc1_experts_bias? fc2_experts_weights fc2_experts_bias? "
               "fc3_experts_weights? fc3_experts_bias?", "output", infer_like_first, **_SETTINGS)

declare_schema("QMoE", "input router_probs fc1_experts_weights fc1_scales? fc1_experts_bias? fc2_experts_weights "
               "fc2_scales? fc2_experts_bias? fc3_experts_weights? fc3_scales? fc3_experts_bias? fc1_zero_points? "
               "fc2_zero_points? fc3_zero_points? router_weights? fc1_global_scale? fc2_global_scale? fc1_act_scale? "
               "fc2_act_scale? fc1_act_block_scale? fc2_act_block_scale?", "output", infer_like_first, **_SETTINGS,
               expert_weight_bits=4, fc1_expert_weight_bits=int, fc2_expert_weight_bits=int, fc3_expert_weight_bits=int,
               block_size=int, quant_type="int", weights_prepacked=-1, accuracy_level=0)


@composed("MoE", DOMAIN)
def _(x, router, w1, b1=None, w2=None, b2=None, w3=None, b3=None, *, node):
    refuse("MoE", {"a third product of each expert": w3 is not None})
    rows = flatten_rows(x)
    y = mix_experts(rows, choose_experts(router, None, node), (w1, b1), (w2, b2), node)
    return reshape_like(y, x)


@composed("QMoE", DOMAIN)
def _(x, router, w1, s1, b1=None, w2=None, s2=None, b2=None, w3=None, s3=None, b3=None, z1=None, z2=None, z3=None,
      weights=None, *scales, node):
    refuse("QMoE", {"a third product of each expert": w3 is not None,
                    "other numbers than integers": node.attribute("quant_type") != "int",
                    "prepacked weights": node.attribute("weights_prepacked") == 1})
    bits = [node.attribute(f"fc{i}_expert_weight_bits") or node.attribute("expert_weight_bits") for i in (1, 2)]
    rows, size = flatten_rows(x), node.attribute("block_size")
    w1, w2 = (dequantize_experts(*each, size) for each in ((w1, s1, z1, bits[0]), (w2, s2, z2, bits[1])))
    y = mix_experts(rows, choose_experts(router, weights, node), (w1, b1), (w2, b2), node)
    return reshape_like(y, x)


def choose_experts(router: Value, weights: Value | None, node: Any) -> Value:
    """The weight of each expert for each token, (tokens, experts): 0 but for the k most likely."""
    refuse(node.key[1], {"use_sparse_mixer": node.attribute("use_sparse_mixer")})
    p = op.Softmax(router, axis=-1)
    chosen, i = op.TopK(p, [node.attribute("k")])
    if weights is not None:
        chosen = op.GatherElements(weights, i, axis=1)
    if node.attribute("normalize_routing_weights"):
        chosen = chosen / op.ReduceSum(chosen, [1])
    return op.ScatterElements(zeros_like(p), i, chosen, axis=1)


def mix_experts(rows: Value, weights: Value, one: tuple[Value, Value | None], two: tuple[Value, Value | None],
                node: object) -> Value:
    """Σ weight (w₂ f(w₁ x + b₁) + b₂) over the experts."""
    a = apply_experts(op.Unsqueeze(rows, [0]), *one)
    y = apply_experts(activate(a, node), *two)
    return op.ReduceSum(y * op.Unsqueeze(op.Transpose(weights, perm=[1, 0]), [2]), [0], keepdims=0)


def apply_experts(x: Value, w: Value, b: Value | None) -> Value:
    """The product with the matrix of each expert, (experts, tokens, outputs)."""
    y = x @ swap_last_axes(w)
    return y if b is None else y + op.Unsqueeze(b, [1])


def activate(a: Value, node: Any) -> Value:
    """The activation between the two products, as the kernel computes it."""
    name = node.attribute("activation_type")
    if name == "swiglu":
        refuse(node.key[1], {"swiglu_fusion other than 1": node.attribute("swiglu_fusion") != 1,
                             "swiglu_limit_after_activation": node.attribute("swiglu_limit_after_activation")})
        gate, x = (op.Squeeze(v, [3]) for v in op.Split(op.Reshape(a, [0, 0, -1, 2]), [1, 1], axis=3, n_outputs=2))
        if (limit := node.attribute("swiglu_limit")) is not None:
            gate, x = op.Min(gate, limit), op.Clip(x, -limit, limit)
        return gate * op.Sigmoid(node.attribute("activation_alpha") * gate) * (x + node.attribute("activation_beta"))
    if name == "relu":
        return op.Relu(a)
    if name == "gelu":
        return op.Gelu(a, approximate="tanh")
    if name == "silu":
        return a * op.Sigmoid(a)
    if name == "identity":
        return a
    raise NoGradientError(f"com.microsoft.{node.key[1]} with the activation {name!r} has no gradient; relu, gelu, "
                          f"silu, swiglu and identity have.")


def dequantize_experts(packed: Value, scales: Value, zero: Value | None, bits: int, block_size: int | None) -> Value:
    """The matrices of experts, (experts, outputs, inputs), whose numbers stay packed until then."""
    experts, outputs, stored = sizes_of(packed)
    inputs = stored * 8 // bits
    blocks = inputs // block_size if block_size else 1

    def read(v: Value, each: int) -> Value:
        """Rows of whole numbers in 4 or 8 bits, less the default zero point."""
        if v.array is None or bits not in (2, 4, 8):
            raise NoGradientError("com.microsoft.QMoE has a gradient where its weights and zero points are "
                                  "initializers of 2, 4 or 8 bits.")
        rows = unpack(v.array, bits)[..., : outputs if v.rank == 2 else each]
        whole = (rows.reshape(-1, each) - np.uint8(2 ** (bits - 1))).view(np.int8)  # It wraps around.
        return constant(whole if bits == 8 else whole.astype(ml_dtypes.int4))

    w = op.DequantizeLinear(read(packed, inputs), op.Reshape(scales, [experts * outputs, blocks]),
                            None if zero is None else read(zero, blocks), axis=1, block_size=inputs // blocks)
    return op.Reshape(w, [experts, outputs, inputs])
