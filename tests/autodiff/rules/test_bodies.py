"""Gradients of operators without a rule, through their bodies in the specification."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from table import OLD, real, rows

from ortpartial.autodiff.grad import grad
from ortpartial.autodiff.registry import has_rule
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.testing import check_gradient, evaluate

NEW = pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 has no operators younger than opset 21")
# Bodies, or the runtime, compute in float32 whatever the input.
SINGLE = {"dtype": np.float32, "step": 1e-2, "rtol": 5e-3}
LINEAR = {"dtype": np.float32, "step": 1, "rtol": 1e-4}

I = np.array
COS, SIN = np.cos(real(3, 2)), np.sin(real(3, 2))

CASES = rows(
    ("CenterCropPad", lambda x: op.CenterCropPad(x, [3, 3]), [real(4, 2)], {}),
    ("CenterCropPad of one axis", lambda x: op.CenterCropPad(x, [5], axes=[1]), [real(4, 2)], {}),
    ("CenterCropPad axes", lambda x: op.CenterCropPad(x, [2, 7], axes=[-1, 0]), [real(4, 3, 5)], {}),
    ("Swish", lambda x: op.Swish(x, alpha=1.5), [real(2, 3)], {}, NEW),
    ("SwiGLU", op.SwiGLU, [real(2, 4), real(2, 4, seed=1)], {}),
    ("SwiGLU of one and the same", lambda x: op.SwiGLU(x, x), [real(2, 4)], {}),
    ("RotaryEmbedding", lambda x, c, s: op.RotaryEmbedding(x, c, s),
     [real(1, 2, 3, 4), COS[None], SIN[None]], LINEAR, NEW),
    ("RotaryEmbedding, interleaved", lambda x, c, s: op.RotaryEmbedding(x, c, s, num_heads=2, interleaved=1),
     [real(1, 3, 8), COS[None], SIN[None]], LINEAR, NEW),
    ("RotaryEmbedding, places and a part",
     lambda x, c, s: op.RotaryEmbedding(x, c, s, constant(I([[2, 0, 1]])), rotary_embedding_dim=2),
     [real(1, 2, 3, 4), COS[:, :1], SIN[:, :1]], LINEAR, NEW),
    ("Attention", lambda q, k, v: op.Attention(q, k, v, n_outputs=1),
     [real(1, 2, 3, 4), real(1, 2, 5, 4), real(1, 2, 5, 2)], SINGLE, NEW),
    ("Attention to itself", lambda x: op.Attention(x, x, x, is_causal=1, n_outputs=1), [real(1, 2, 3, 4)],
     SINGLE, NEW),
    ("Attention of heads in groups", lambda q, k, v: op.Attention(q, k, v, q_num_heads=4, kv_num_heads=2, n_outputs=1),
     [real(1, 3, 8), real(1, 3, 4), real(1, 3, 4, seed=1)], SINGLE, NEW),
)


def first(y):
    return y[0] if isinstance(y, (list, tuple)) else y


@pytest.mark.parametrize(("f", "args", "precision"), CASES)
def test_body(f, args, precision):
    assert not has_rule(first(f(*(variable("x", "float32", a.shape) for a in args))).node.op_type)
    check_gradient(f, args, directions=1, **precision)


def test_self_attention_as_torch():
    # One tensor as query, key and value gets one gradient of three, and not three of three.
    x, dy = real(1, 2, 3, 4).astype(np.float32), real(1, 2, 3, 4, seed=1).astype(np.float32)
    v = variable("x", "float32", x.shape)
    y = first(op.Attention(v, v, v, n_outputs=1))
    (dx,) = evaluate(build([v], grad(y, [v], [constant(dy)])), {"x": x}).values()
    t = torch.tensor(x, requires_grad=True)
    F.scaled_dot_product_attention(t, t, t).backward(torch.tensor(dy))
    np.testing.assert_allclose(dx, t.grad.numpy(), rtol=1e-4, atol=1e-5)
