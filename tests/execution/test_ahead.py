"""Numbers that follow from the batch alone are computed ahead, with the very bits that they have step by step."""

import numpy as np
import pytest

from ortpartial.execution.ahead import compute_ahead, find_ahead
from ortpartial.graph import build, cast, constant, op, variable
from ortpartial.runtime import Session

K, KS, W = variable("k", "int64", []), variable("ks", "int64", ["n"]), variable("w", "float32", [3])
ONE = constant(np.float32(1))


def test_what_follows_from_the_number_of_the_batch():
    eta = ONE / op.Sqrt(cast(K, ONE))
    new = W - eta * W
    assert find_ahead([new], K) == [eta]
    assert find_ahead([W * 2], K) == []


def test_an_operator_that_may_give_other_bits_is_left():
    power = op.Exp(cast(K, ONE))
    (number,) = find_ahead([W * power], K)
    assert number.node.op_type == "Cast"


@pytest.mark.parametrize("formula", [
    lambda k: ONE / op.Sqrt(k), lambda k: op.Min(k / 7, 1.0) * 0.3, lambda k: k * k - 2])
def test_the_same_bits(formula):
    eta = formula(cast(K, ONE))
    (vector,) = compute_ahead([eta], K, KS)
    ks = np.arange(1, 1000)
    ahead = Session(build([KS], {"y": vector})).run({"ks": ks})["y"]
    session = Session(build([K], {"y": eta}))
    assert ahead.tolist() == [session.run({"k": np.array(k)})["y"].item() for k in ks]
