"""Are the operators of onnxruntime-training found where a gradient is what they compute, and nowhere else?"""

import numpy as np
import pytest

from ortpartial.builder import build
from ortpartial.device import CPU, Device
from ortpartial.gradient import grad
from ortpartial.graph import op, topological, variable
from ortpartial.kernels import offered
from ortpartial.runtime import Session, has_training


def real(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def types(outputs):
    return [n.op_type for n in topological(outputs)]


def x_of(*shape):
    return variable("x", "float32", shape)


S, B = variable("s", "float32", [4]), variable("b", "float32", [4])
SOFTMAX, NORM = "SoftmaxGrad", "LayerNormalizationGrad"


def norm(x, s=S, b=B, **settings):
    return op.LayerNormalization(x, s, b, epsilon=1e-3, **settings)


# By name: an expression of x and perhaps of S and B, the shape of x, and the kernels of its gradient.
CASES = {
    "softmax": (op.Softmax, (2, 3, 4), [SOFTMAX]),
    "softmax of open sizes": (op.Softmax, ("N", 3, 4), [SOFTMAX]),
    "softmax along another axis": (lambda x: op.Softmax(x, axis=1), (2, 3, 4), []),
    "log of softmax": (op.LogSoftmax, (2, 3, 4), []),
    "norm": (norm, (2, 3, 4), [NORM]),
    "norm of open sizes": (norm, ("N", 3, 4), [NORM]),
    "norm of a matrix": (norm, (3, 4), [NORM]),
    "norm of two axes": (lambda x: op.LayerNormalization(x, op.Expand(S, [3, 4]), axis=1), (2, 3, 4), []),
    "norm by a row for all": (lambda x: norm(x, op.ReduceSum(S, keepdims=1)), (2, 3, 4), []),
    "norm without an own mean": (lambda x: op.Add(*op.LayerNormalization(x, S).node.outputs[:2]), (2, 3, 4), [NORM]),
    "one after the other": (lambda x: norm(op.Softmax(norm(x, b=None))), (2, 3, 4), [NORM, NORM, SOFTMAX]),
    "mean and variance": (lambda x: op.MeanVarianceNormalization(x, axes=[2]), (2, 3, 4), []),
}  # fmt: skip


def gradients(name):
    """Variables, and the gradients of a cost by them: as the rules write them, and with kernels."""
    make, shape, _ = CASES[name]
    x = x_of(*shape)
    y = make(x)
    wrt = [v for v in (x, S, B) if v is x or v in {u for n in topological([y]) for u in n.reads}]
    found = grad(op.ReduceSum(op.Sin(3.0 * y)), wrt)
    return wrt, found, offered(found)


@pytest.mark.parametrize("name", CASES)
def test_found_in_a_gradient(name):
    _, plain, found = gradients(name)
    kernels = sorted(t for t in types(found) if t in (SOFTMAX, NORM))
    assert kernels == CASES[name][2]
    assert [v.shape for v in found] == [v.shape for v in plain]
    if not kernels:
        assert found == plain
    elif NORM in kernels:  # its second output is the gradient by the scale, nothing is left of x̂
        assert not any(n.op_type == "Sub" for n in topological(found))


@pytest.mark.skipif(not has_training(), reason="onnxruntime 1.31.1 and others without training lack these operators")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2]])
def test_the_same_numbers(name):
    wrt, plain, found = gradients(name)
    names = [f"g{i}" for i in range(2 * len(plain))]
    arrays = {"x": real(2, 3, 4) if CASES[name][1] != (3, 4) else real(3, 4), "s": real(4, seed=1),
              "b": real(4, seed=2)}  # fmt: skip
    ran = Session(build(wrt, dict(zip(names, plain + found, strict=True)))).run({v.hint: arrays[v.hint] for v in wrt})
    for a, b in zip(names[: len(plain)], names[len(plain) :], strict=True):
        np.testing.assert_allclose(ran[b], ran[a], rtol=1e-4, atol=1e-5)


def near(y, dy):
    """Expressions that are no gradient of a Softmax, though they look like it."""
    total = op.ReduceSum(y * dy, [-1])
    other = variable("other", "float32", y.shape)
    yield y * (total - dy)
    yield y * (dy - op.ReduceSum(y * other, [-1]))
    yield other * (dy - total)
    yield y * (dy - op.ReduceSum(y * dy, [-1], keepdims=0))
    yield y * (dy - op.ReduceMean(y * dy, [-1]))
    yield y * (dy - op.ReduceSum(y * dy))


@pytest.mark.parametrize("i", range(6))
def test_what_only_looks_like_a_gradient_stays(i):
    y = list(near(variable("y", "float32", [4, 4]), variable("dy", "float32", [4, 4])))[i]
    assert offered([y]) == [y]


def test_float64_stays():
    x = variable("x", "float64", [2, 3])
    found = grad(op.ReduceSum(op.Sin(op.Softmax(x))), [x])
    assert offered(found) == found


def test_what_is_given_is_where_the_expressions_start():
    y, dy = variable("y", "float32", [2, 3]), variable("dy", "float32", [2, 3])
    total = op.ReduceSum(y * dy, [-1])
    (found,) = offered([y * (dy - total)], [total])
    assert SOFTMAX not in types([found])


def test_they_are_on_the_cpu_of_a_training_build():
    assert CPU.has_kernels == has_training()
    assert not Device("cuda").has_kernels
