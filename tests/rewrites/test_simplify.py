"""Graph simplification: fewer nodes, the same bits."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from numbered_cases import check_case

from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.model.load import load
from ortpartial.rewrites.simplify import simplify
from ortpartial.runtime.session import Session

NOTHING = constant(np.zeros((2, 0, 4), np.float32))


def x_of(*shape):
    return variable("x", "float32", shape)


def types(model):
    """The operators of a model, in order."""
    return [n.op_type for n in build(model.inputs, model.outputs).graph.node]


def three(x):
    """Queries, keys and values."""
    return [op.Gather(x, i, axis=1) for i in (0, -2, [2])]


def picked(x):
    a, b, c = three(x)
    return a * b + op.Squeeze(c, [1])


def sizes(x):
    return op.Reshape(x, op.Concat(op.Gather(op.Shape(x), [0]), [-1], axis=0)) / op.Sqrt(
        op.Cast(op.Gather(op.Shape(x), 1), to=onnx.TensorProto.FLOAT)
    )


def heads(shape, perm, last):
    """Axes merged, moved and cut apart again."""
    return lambda x: op.Reshape(op.Transpose(op.Reshape(x, shape), perm=perm), last)


def packed(perm, squeezed=()):
    """Slices of an axis that was moved to the front."""

    def f(x):
        y = op.Transpose(op.Unsqueeze(x, [0]) if squeezed else x, perm=perm)
        y = op.Squeeze(y, list(squeezed)) if squeezed else y
        return op.Concat(*(op.Gather(y, i, axis=0) * float(i + 1) for i in range(y.shape[0])), axis=0)

    return f


def pooled(x):
    return op.MaxPool(x, kernel_shape=[2])


CASES = {
    "heads": (heads([2, 12], [1, 0], [3, 4, 2]), [2, 3, 4], ["Reshape", "Transpose"]),
    "heads of a batch": (heads([2, 12, 1], [1, 0, 2], [3, 4, 2, 1]), [2, 3, 4], ["Reshape", "Transpose"]),
    "heads, axes of one": (heads([6, 4], None, [1, 4, 2, 1, 3]), [2, 3, 4], ["Reshape", "Transpose"]),
    "axes merged": (heads([6, 4], [1, 0], [24]), [2, 3, 4], ["Reshape", "Transpose", "Reshape"]),
    "axes cut across": (heads([6, 4], [1, 0], [3, 8]), [2, 3, 4], ["Reshape", "Transpose", "Reshape"]),
    "packed": (packed([1, 0, 2]), [2, 3, 4], ["Split"] + 3 * ["Squeeze", "Mul"] + ["Concat"]),
    "packed by torch": (packed([2, 1, 0, 3], [2]), [2, 3, 4], ["Split"] + 3 * ["Squeeze", "Mul"] + ["Concat"]),
    "packed, turned": (packed([1, 2, 0]), [2, 3, 4], ["Transpose", "Split"] + 3 * ["Squeeze", "Mul"] + ["Concat"]),
    "picks": (picked, [2, 3, 4], ["Split", "Squeeze", "Squeeze", "Mul", "Squeeze", "Add"]),
    "two of three": (lambda x: op.Add(*three(x)[:2]), [2, 3, 4], ["Gather", "Gather", "Add"]),
    "picks of an unknown size": (lambda x: op.Add(*three(x)[:2]), [2, "M", 4], ["Gather", "Gather", "Add"]),
    "sizes": (sizes, [2, 3, 4], ["Reshape", "Div"]),
    "some sizes": (
        lambda x: op.Reshape(x, op.Concat(op.Shape(x, start=-2, end=2), [-1], axis=0)), [2, 3, 4], ["Reshape"]),
    "unknown sizes": (lambda x: op.Reshape(x, op.Shape(x)), ["N", 3, 4], ["Shape", "Reshape"]),
    "a slice of nothing": (lambda x: op.Concat(x, op.Slice(NOTHING, [0], op.Cast(x[0, 0, :1], to=7), [1]), axis=1),
                           [2, 3, 4], ["Concat"]),
    "idle Dropout": (lambda x: op.Exp(op.Dropout(x)), ["N", 3, 4], ["Exp"]),
    "a Relu under a pool": (lambda x: pooled(op.Relu(x)), [2, 3, 4], ["MaxPool", "Relu"]),
    "a Relu that something else reads, too": (
        lambda x: op.Add(pooled(y := op.Relu(x)), op.ReduceSum(y)), [2, 3, 4], ["Relu", "MaxPool", "ReduceSum", "Add"]),
    "a Relu under a pool that tells where": (
        lambda x: op.Cast(op.MaxPool(op.Relu(x), kernel_shape=[2]).node.outputs[1], to=1), [2, 3, 4],
        ["Relu", "MaxPool", "Cast"]),
    "what cannot be computed": (
        lambda x: x * op.Cast(op.Pow(constant(np.array([2])), constant(np.array([-1]))), to=1),
        [2, 3, 4], ["Pow", "Cast", "Mul"]),
}


@pytest.mark.parametrize("name", CASES)
def test_simplified(name):
    make, shape, expected = CASES[name]
    x = x_of(*shape)
    model = load(build([x], {"y": make(x)}))
    actual = simplify(model)
    assert types(actual) == expected
    if name != "what cannot be computed":
        a = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
        before, after = (Session(build(m.inputs, m.outputs)).run({"x": a})["y"] for m in (model, actual))
        np.testing.assert_array_equal(before, after)


NUMBERED = {
    "simplify 1": "some sizes",
    "simplify 2": "a slice of nothing",
    "simplify 3": "heads",
    "simplify 4": "packed",
    "simplify 5": "a Relu under a pool",
    "simplify 6": "idle Dropout",
    "simplify 7": "some sizes",
    "simplify 8": "sizes",
}


@pytest.mark.parametrize("case", NUMBERED)
def test_numbered_case(case):
    make, shape, _ = CASES[NUMBERED[case]]
    x = x_of(*shape)
    model = load(build([x], {"y": make(x)}))
    check_case(case, lambda: simplify(model))


def test_dropout_is_kept_on_request():
    x = x_of("N")
    model = load(build([x], {"y": op.Dropout(x)}))
    assert types(simplify(model, dropout=True)) == ["Dropout"]


@pytest.mark.parametrize("bounds", [([1], [3]), ([-2], [2**63 - 1], [0]), ([4], [-(2**63)], [-1], [-2]), ([3], [1]),
                                    ([-9], [-9], [0], [-1])])
def test_sizes_fold_without_the_evaluator_of_onnx(bounds, monkeypatch):
    """Its import takes 60 ms of a first step."""
    x = x_of(2, 3, 4, 5, 6)
    outputs = {"y": op.Concat(op.Slice(op.Shape(x), *bounds), [7], axis=0)}
    expected = Session(build([x], outputs)).run({"x": np.zeros(x.shape, np.float32)})["y"]
    monkeypatch.setattr("ortpartial.rewrites.simplify.evaluate", None)
    np.testing.assert_array_equal(simplify(load(build([x], outputs))).outputs["y"].array, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", [
    lambda n, a, b: a / n.astype(a.dtype), lambda n, a, b: n.astype(a.dtype) * b, lambda n, a, b: a - b,
    lambda n, a, b: op.Expand(a / b, [4, 2]), lambda n, a, b: a / (b - b), lambda n, a, b: op.Expand(a, [2])],
    ids=["quotient", "product", "difference", "expand", "zero", "scalar"])
def test_arithmetic_of_constants_folds_without_the_evaluator_of_onnx(make, dtype, monkeypatch):
    """A model for each of these nodes is a third of what the first step of a module takes more."""
    x = variable("x", dtype, [3, 7])
    y = make(op.Size(x), constant(np.array(0.1, dtype)), constant(np.array([3, -0.7], dtype)))
    outputs = {"y": y + op.Size(x).astype(y.dtype)}
    expected = Session(build([x], outputs)).run({"x": np.zeros(x.shape, dtype)})["y"]
    monkeypatch.setattr("ortpartial.rewrites.simplify.evaluate", None)
    array = simplify(replace(load(build([x], {"y": 2 * x})), inputs={"x": x}, outputs=outputs)).outputs["y"].array
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, expected)
