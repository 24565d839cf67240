"""A step as C: its fields, a run that equals the expression, and refused sizes."""

import shutil

import numpy as np
import pytest
from native_cases import compute_in_c

from ortpartial.exceptions import UntranslatableError
from ortpartial.graph import constant, op, variable
from ortpartial.native.step import translate

X, T, W = variable("x", "float32", [4, 3]), variable("t", "float32", [4, 1]), variable("w", "float32", [3, 1])
RATE, K = variable("rate", "float32", []), variable("k", "int64", [])


def make_step():
    e = X @ W - T
    loss = op.ReduceMean(e * e, keepdims=0)
    new = W - RATE * op.Transpose(X, perm=[1, 0]) @ e
    return translate({"x": X, "t": T, "w": W, "rate": RATE, "k": K}, {"w_new": new, "loss": loss}, rows=["x", "t"],
                     state={"w": "w_new"}, loss="loss", iteration="k", name="train")


def test_fields():
    step = make_step()
    assert (step.name, step.batch, step.loss_dtype) == ("train", 4, np.float32)
    assert [(f.name, f.shape) for f in step.rows] == [("x", (3,)), ("t", (1,))]
    assert [(f.name, f.shape) for f in step.state] == [("w", (3, 1))]
    assert [f.name for f in step.given] == ["rate"]
    assert step.memory_bytes >= 4 * 4 * 4
    assert "train_step" in step.header


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_run():
    arrays = {v: np.random.default_rng(i).normal(size=v.shape).astype(np.float32) for i, v in enumerate((X, T, W))}
    e = X @ W - T
    values = compute_in_c({"g": op.Transpose(X, perm=[1, 0]) @ e}, arrays)
    x, t, w = arrays.values()
    np.testing.assert_allclose(values["g"], x.T @ (x @ w - t), rtol=1e-5, atol=1e-5)


def test_what_32_bits_do_not_index():
    w = variable("w", "float32", [2**31])
    with pytest.raises(UntranslatableError, match=r"w has 2147483648 elements, more than a step in C indexes\."):
        translate({"w": w}, {"n": w * 2, "loss": constant(0.0, np.float32)}, rows=[], state={"w": "n"}, loss="loss")
