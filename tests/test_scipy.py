"""scipy's optimizers on ONNX models, with exact derivatives."""

import numpy as np
import pytest
from scipy.optimize import check_grad, least_squares, minimize, root, rosen, rosen_der, rosen_hess, rosen_hess_prod

from ortpartial.exceptions import DataError, ModelError, SettingError
from ortpartial.graph import build, constant, op, variable
from ortpartial.scipy import objective


def rosenbrock(n=5):
    x = variable("x", "float64", [n])
    return build([x], {"y": op.ReduceSum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2, keepdims=0)})


POINT = np.random.default_rng(0).normal(size=5)


def test_derivatives_are_those_of_scipy():
    f, p = objective(rosenbrock()), np.arange(5.0)
    assert f.value(POINT) == pytest.approx(rosen(POINT))
    np.testing.assert_allclose(f.gradient(POINT), rosen_der(POINT))
    np.testing.assert_allclose(f.hessian(POINT), rosen_hess(POINT), atol=1e-9)
    np.testing.assert_allclose(f.hessian_product(POINT, p), rosen_hess_prod(POINT, p))
    assert f.n_evaluations == 4


@pytest.mark.parametrize(("method", "settings"), [
    ("L-BFGS-B", ()), ("trust-ncg", ("hessp",)), ("trust-exact", ("hess",)), ("Newton-CG", ("hessp",))])
def test_minimize(method, settings):
    f = objective(rosenbrock())
    ours, theirs = {"hessp": f.hessian_product, "hess": f.hessian}, {"hessp": rosen_hess_prod, "hess": rosen_hess}
    result = minimize(f.value_and_gradient, POINT, jac=True, method=method, **{n: ours[n] for n in settings})
    expected = minimize(rosen, POINT, jac=rosen_der, method=method, **{n: theirs[n] for n in settings})
    assert result.nit == expected.nit
    np.testing.assert_allclose(result.x, expected.x, atol=1e-6)


def curve():
    """a exp(-b t) + c, less the observed numbers."""
    t, seen = variable("t", "float64", ["N"]), variable("seen", "float64", ["N"])
    a, b, c = (constant(np.array([v]), hint=n) for n, v in (("a", 1.0), ("b", 0.5), ("c", 0.0)))
    return build([t, seen], {"residual": a * op.Exp(-b * t) + c - seen})


def test_least_squares_on_weights():
    t = np.linspace(0, 4, 30)
    f = objective(curve(), ["a", "b", "c"], data={"t": t, "seen": 2.5 * np.exp(-1.3 * t) + 0.5})
    assert f.x0.tolist() == [1.0, 0.5, 0.0]
    result = least_squares(f.residuals, f.x0, jac=f.jacobian)
    np.testing.assert_allclose(result.x, [2.5, 1.3, 0.5], atol=1e-6)
    assert f.jacobian(f.x0).shape == (30, 3)
    assert result.njev < 20
    assert list(f.split(result.x)) == ["a", "b", "c"]


def test_root():
    x = variable("x", "float64", [2])
    f = objective(build([x], {"y": op.Concat(x[:1] + 2 * x[1:] - 2, x[:1] ** 2 + 4 * x[1:] ** 2 - 4, axis=0)}))
    result = root(f.residuals, [1.5, 0.3], jac=f.jacobian)
    np.testing.assert_allclose(f.residuals(result.x), 0, atol=1e-9)


def test_tensors_of_several_shapes_in_float32():
    x, w = variable("x", "float32", ["N", 3]), variable("w", "float32", [3, 2])
    f = objective(build([x, w], {"y": op.Tanh(x @ w)}), ["x", "w"], data={"x": np.ones((4, 3))})
    point = np.random.default_rng(0).normal(size=18) / 2
    assert f.x0.size == 18
    assert check_grad(f.value, f.gradient, point, epsilon=1e-2) < 0.1
    hessian = f.hessian(point)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-6)
    np.testing.assert_allclose(hessian @ point, f.hessian_product(point, point), atol=1e-5)


def test_mistakes():
    with pytest.raises(DataError, match=r"Input 't' has no array; give data=\{'t': ...\}"):
        objective(curve(), ["a"], data={"seen": np.ones(3)})
    with pytest.raises(ModelError, match=r"The shape of 'x' is float32\[Nx3\]; give an array in data"):
        objective(build([x := variable("x", "float32", ["N", 3])], {"y": x * x}), "x")
    with pytest.raises(DataError, match="The vector has 2 numbers, and 'x' have 5"):
        objective(rosenbrock()).value([1, 2])
    with pytest.raises(DataError, match=r"data\['t'\] is no array of float64"):
        objective(curve(), ["a"], data={"t": ["a"], "seen": np.ones(1)})
    with pytest.raises(ModelError, match="no tensor 'z'"):
        objective(rosenbrock(), "z")
    with pytest.raises(SettingError, match="data is a dict by name"):
        objective(rosenbrock(), data=[1])
    with pytest.raises(DataError, match="data has 'q'; there are 't', 'seen', 'a'"):
        objective(curve(), "a", data={"t": [1], "seen": [1], "q": [1]})
    with pytest.raises(DataError, match="A vector of 5 numbers was expected, not 'abc'"):
        objective(rosenbrock()).value("abc")
