"""Which operators keep the rows of a batch apart."""

import numpy as np
import pytest
from table import real, rows

from ortpartial.derivatives.rows import check_rows, find_rows
from ortpartial.exceptions import ModelError
from ortpartial.graph import build, op, variable
from ortpartial.testing import evaluate

W = real(4, 4)

# The expression of x, of N rows of 4 numbers or of 2 x 4, and whether rows mix.
TABLE = rows(
    ("elementwise", lambda x: op.Tanh(x) * real(4), True),
    ("between rows and others", lambda x: x + real(1, 4), True),
    ("one for each row", lambda x: x * real(5, 1), True),
    ("CastLike", lambda x: op.CastLike(op.Tanh(x), x), True),
    ("Softmax", op.Softmax, True),
    ("Softmax over rows", lambda x: op.Softmax(x, axis=0), False),
    ("MatMul", lambda x: x @ W, True),
    ("MatMul from the left", lambda x: real(5, 5) @ x, False),
    ("Gram", lambda x: x @ op.Transpose(x), False),
    ("Gemm", lambda x: op.Gemm(x, W, transB=1), True),
    ("Gemm of the transposed", lambda x: op.Gemm(op.Transpose(x), W, transA=1), True),
    ("Gemm over rows", lambda x: op.Gemm(real(3, 5), x), False),
    ("sum of columns", lambda x: op.ReduceSum(x, [1], keepdims=0), True),
    ("sum of rows", lambda x: op.ReduceSum(x, [0]), False),
    ("sum", lambda x: op.ReduceMean(x), False),
    ("there and back", lambda x: op.Transpose(op.Softmax(op.Transpose(x), axis=0)), True),
    ("columns in front", op.Transpose, False),
    ("Slice of columns", lambda x: x[:, 1:3], True),
    ("Slice of rows", lambda x: x[1:], False),
    ("Gather of columns", lambda x: op.Gather(x, [1, 2], axis=1), True),
    ("Gather of rows", lambda x: op.Gather(x, [1, 2, 0, 0, 0]), False),
    ("lookup", lambda x: op.Gather(W, op.Cast(op.Floor(op.Abs(x)), to=7)), True),
    ("Reshape of a row", lambda x: op.Reshape(x, [0, 2, 2]), True),
    ("Reshape by -1", lambda x: op.Reshape(x, [-1, 2, 2]), True),
    ("Reshape of rows", lambda x: op.Reshape(x, [-1, 2]), False),
    ("Concat of columns", lambda x: op.Concat(x, x, axis=1), True),
    ("Concat of rows", lambda x: op.Concat(x, x, axis=0), False),
    ("CumSum of columns", lambda x: op.CumSum(x, 1), True),
    ("CumSum of rows", lambda x: op.CumSum(x, 0), False),
    ("Squeeze", lambda x: op.Squeeze(op.Unsqueeze(x, [1]), [1]), True),
    ("LayerNormalization", lambda x: op.LayerNormalization(x, real(4)), True),
    ("LayerNormalization of all", lambda x: op.LayerNormalization(x, real(5, 4), axis=0), False),
    ("BatchNormalization", lambda x: op.BatchNormalization(x, *(np.ones(4, np.float64),) * 4), True),
    ("Einsum", lambda x: op.Einsum(x, W, equation="nj,jk->nk"), True),
    ("Einsum over rows", lambda x: op.Einsum(x, x, equation="nj,nk->jk"), False),
    ("Pad", lambda x: op.Pad(x, [0, 1, 0, 1]), True),
    ("Expand", lambda x: op.Expand(op.Unsqueeze(x, [1]), [1, 3, 1]), True),
    ("Conv", lambda x: op.Conv(op.Reshape(x, [0, 1, 4]), real(2, 1, 3)), True),
    ("unknown", lambda x: op.TopK(x, [2], axis=1)[0], True),
    ("ScatterElements", lambda x: op.ScatterElements(x, np.zeros((1, 4), np.int64), real(1, 4)), False),
)


@pytest.mark.parametrize(("f", "is_apart"), TABLE)
def test_rows(f, is_apart):
    """Rows that are said to stay apart do: another row changes no other result."""
    x = variable("x", "float64", ["N", 4])
    y = f(x)
    if not is_apart:
        with pytest.raises(ModelError, match="leave per_row out"):
            check_rows({"y": y}, [x])
        return
    check_rows({"y": y}, [x])
    a, model = real(5, 4), build([x], {"y": y})
    b = a.copy()
    b[2] += 1.5
    before, after = (evaluate(model, {"x": v})["y"] for v in (a, b))
    changed = (before != after).reshape(len(before), -1).any(1)
    assert not changed[[0, 1, 3, 4]].any()


def test_the_node_is_named():
    x = variable("x", "float32", ["N", 4])
    with pytest.raises(ModelError, match=r"Softmax> mixes the rows of a batch"):
        find_rows([op.Tanh(op.Softmax(x, axis=0))], [x])
    with pytest.raises(ModelError, match=r"ScatterElements> may mix the rows of a batch"):
        find_rows([op.ScatterElements(x, np.zeros((1, 4), np.int64), np.zeros((1, 4), np.float32))], [x])
