"""Floating-point operations: counted by hand, and for products by torch."""

import numpy as np
import pytest

from ortpartial.graph import cond, constant, count_flops, loop, op, scan, topological, variable


def x(*shape, dtype="float32"):
    return variable("x", dtype, list(shape))


def flops(*outputs):
    return count_flops(topological(list(outputs)))


#: Expressions, and what they take.
CASES = {
    "matrix product": (lambda: x(4, 10) @ x(10, 3), 2 * 4 * 10 * 3),
    "products of a batch": (lambda: x(2, 5, 4, 10) @ x(5, 10, 3), 2 * 2 * 5 * 4 * 10 * 3),
    "vectors": (lambda: x(10) @ x(10), 20),
    "Gemm": (lambda: op.Gemm(x(4, 10), x(10, 3)), 2 * 4 * 10 * 3),
    "Gemm with bias": (lambda: op.Gemm(x(10, 4), x(3, 10), x(3), transA=1, transB=1), 2 * 4 * 10 * 3 + 4 * 3),
    "Einsum": (lambda: op.Einsum(x(2, 3, 4), x(2, 4, 5), equation="bij,bjk->bik"), 2 * 2 * 3 * 4 * 5),
    "Einsum of any batch": (lambda: op.Einsum(x(7, 2, 3, 4), x(4, 5), equation="...j,jk->...k"), 2 * 7 * 2 * 3 * 4 * 5),
    "Einsum of one": (lambda: op.Einsum(x(3, 4), equation="ij->i"), 12),
    "Conv": (lambda: op.Conv(x(2, 3, 8, 8), x(6, 3, 3, 3)), 2 * 2 * 6 * 6 * 6 * 27),
    "Conv with bias": (lambda: op.Conv(x(2, 3, 8), x(6, 3, 3), x(6)), 2 * 2 * 6 * 6 * 9 + 2 * 6 * 6),
    "Conv in groups": (lambda: op.Conv(x(2, 4, 8, 8), x(4, 1, 3, 3), group=4), 2 * 2 * 4 * 36 * 9),
    "ConvTranspose": (lambda: op.ConvTranspose(x(2, 4, 5), x(4, 3, 3), x(3)), 2 * 2 * 4 * 5 * 3 * 3 + 2 * 3 * 7),
    "LSTM": (lambda: op.LSTM(x(5, 2, 3), x(1, 16, 3), x(1, 16, 4), n_outputs=3)[0],
             5 * 2 * (4 * (2 * 4 * 3 + 2 * 4 * 4 + 4) + 9 * 4)),
    "GRU both ways with bias": (lambda: op.GRU(x(5, 2, 3), x(2, 12, 3), x(2, 12, 4), x(2, 24), hidden_size=4,
                                               direction="bidirectional", n_outputs=2)[0],
                                2 * 5 * 2 * (3 * (2 * 4 * 3 + 2 * 4 * 4 + 2 * 4) + 8 * 4)),
    "RNN": (lambda: op.RNN(x(5, 2, 3), x(1, 4, 3), x(1, 4, 4), n_outputs=2)[0],
            5 * 2 * (2 * 4 * 3 + 2 * 4 * 4 + 4 + 4)),
    "Attention": (lambda: op.Attention(x(2, 4, 5, 8), x(2, 4, 6, 8), x(2, 4, 6, 7), n_outputs=1)[0],
                  2 * 4 * 5 * 6 * (2 * 8 + 2 * 7 + 6)),
    "Attention of three axes with a mask": (
        lambda: op.Attention(x(2, 5, 32), x(2, 6, 16), x(2, 6, 14), x(5, 6), q_num_heads=4, kv_num_heads=2,
                             n_outputs=1)[0], 2 * 4 * 5 * 6 * (2 * 8 + 2 * 7 + 7)),
    "elementwise": (lambda: op.Tanh(x(2, 3)) * 2 + x(3), 3 * 6),
    "comparison of reals": (lambda: x(2, 3) > 0, 6),
    "reduction": (lambda: op.ReduceSum(x(4, 5), [1]), 20),
    "mean over all": (lambda: op.GlobalAveragePool(x(2, 3, 4, 4)), 96),
    "pooling": (lambda: op.MaxPool(x(1, 2, 4, 4), kernel_shape=[2, 2], strides=[2, 2]), 8 * 4),
    "Softmax": (lambda: op.Softmax(x(4, 5)), 100),
    "LayerNormalization": (lambda: op.LayerNormalization(x(4, 5), x(5), x(5)), 140),
    "BatchNormalization": (lambda: op.BatchNormalization(x(2, 3, 4), x(3), x(3), x(3), x(3)), 48),
    "moves": (lambda: op.Transpose(op.Reshape(x(2, 6), [3, 4]))[1:] .astype(np.float64), 0),
    "whole numbers": (lambda: x(3, dtype="int64") * 2 + 1, 0),
    "sizes": (lambda: op.Shape(x(3)) + 1, 0),
    "a size that is not known": (lambda: x("N", 4) @ x(4, 5), 40),
    "a Scan": (lambda: scan(lambda s, v: (s + v * v, s), x(3), x(7, 3))[0], 7 * 6),
    "a Loop": (lambda: loop(lambda i, going, s: (None, s * 2), 5, x(3)), 5 * 3),
    "an If": (lambda: cond(constant(True), lambda: op.Exp(op.Exp(x(3))), lambda: op.Exp(x(3))), 6),
}


@pytest.mark.parametrize("name", CASES)
def test_counts(name):
    write, expected = CASES[name]
    y = write()
    assert flops(y[0] if isinstance(y, tuple) else y) == expected


def test_products_count_as_in_torch():
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    nn, t = torch.nn.functional, torch.zeros
    for ours, theirs in [
        (op.Gemm(x(4, 10), x(3, 10), transB=1), lambda: nn.linear(t(4, 10), t(3, 10))),
        (x(2, 4, 10) @ x(2, 10, 3), lambda: t(2, 4, 10) @ t(2, 10, 3)),
        (op.Conv(x(2, 4, 9, 9), x(6, 2, 3, 3), group=2, strides=[2, 2]),
         lambda: nn.conv2d(t(2, 4, 9, 9), t(6, 2, 3, 3), groups=2, stride=2)),
        (op.ConvTranspose(x(2, 4, 5, 5), x(4, 3, 3, 3), strides=[2, 2]),
         lambda: nn.conv_transpose2d(t(2, 4, 5, 5), t(4, 3, 3, 3), stride=2)),
        (op.Einsum(x(2, 3, 4), x(2, 4, 5), equation="bij,bjk->bik"), lambda: torch.bmm(t(2, 3, 4), t(2, 4, 5))),
    ]:
        with FlopCounterMode(display=False) as counter:
            theirs()
        assert flops(ours) == counter.get_total_flops()
