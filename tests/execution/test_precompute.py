"""Numbers that follow from the batch alone are computed ahead, with the very bits that they have step by step."""

import numpy as np
import pytest

from ortpartial.execution import EpochEngine, GraphPart, GraphSource, StepEngine, StepNames
from ortpartial.execution.epoch import epoch_graph
from ortpartial.execution.precompute import compute_ahead, find_ahead, find_counts
from ortpartial.execution.step import Step
from ortpartial.graph import build, cast, constant, op, variable
from ortpartial.runtime import Session

K, KS, W = variable("k", "int64", []), variable("ks", "int64", ["n"]), variable("w", "float32", [3])
ONE = constant(np.float32(1))


def test_what_follows_from_the_number_of_the_batch():
    eta = ONE / op.Sqrt(cast(K, ONE))
    new = W - eta * W
    assert find_ahead([new], [K]) == [eta]
    assert find_ahead([W * 2], [K]) == []


def test_an_operator_that_may_give_other_bits_is_left():
    power = op.Exp(cast(K, ONE))
    (number,) = find_ahead([W * power], [K])
    assert number.node.op_type == "Cast"


@pytest.mark.parametrize("formula", [
    lambda k: ONE / op.Sqrt(k), lambda k: op.Min(k / 7, 1.0) * 0.3, lambda k: k * k - 2])
def test_the_same_bits(formula):
    eta = formula(cast(K, ONE))
    (vector,) = compute_ahead([eta], {K: KS})
    ks = np.arange(1, 1000)
    ahead = Session(build([KS], {"y": vector})).run({"ks": ks})["y"]
    session = Session(build([K], {"y": eta}))
    assert ahead.tolist() == [session.run({"k": np.array(k)})["y"].item() for k in ks]


def count(before, after):
    return find_counts(Step({"n": before}, {"n_new": after}, StepNames(frozenset())))


def test_counts():
    """A whole number to which each step adds a constant."""
    w = variable("w", "int64", [1])
    assert count(K, K + 3)["n"].array == count(K, 3 + K)["n"].array == 3
    for before, after in ((K, K + K), (K, 2 * K), (K, K), (w, w + 1), (ONE, ONE + 1)):
        assert count(before, after) == {}


def test_what_follows_from_a_count_is_computed_ahead():
    """The state that counts leaves the loop of an epoch."""
    count, w, x = variable("count", "int64", []), variable("w", "float32", [2]), variable("x", "float32", [2, 2])
    eta = ONE / cast(count + 2, ONE)
    part = GraphPart.from_values({"x": x, "w": w, "count": count},
                                 {"loss": op.ReduceSum(x * w, keepdims=0), "a": w - eta * w, "b": count + 2},
                                 {"w": "a", "count": "b"})
    source = GraphSource((part,), {"w": np.ones(2, np.float32), "count": np.array(5)},
                         StepNames.beside(["x", "w", "count"]), loss="loss")
    graph = epoch_graph(source)
    (scan,) = (n for n in graph.graph.node if n.op_type == "Scan")
    assert list(scan.input)[:1] == ["w"]
    assert "count" not in scan.input
    runs = {}
    for engine in (StepEngine, EpochEngine):
        runner = engine(source)
        runner.start({"x": np.arange(16, dtype=np.float32).reshape(8, 2)})
        runner.epoch(np.arange(8), 2)
        runs[engine] = runner.get("w").tolist(), runner.get("count").item()
    assert runs[StepEngine] == runs[EpochEngine]
    assert runs[EpochEngine][1] == 13
