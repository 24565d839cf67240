"""NaN is taken where the model asks for it, and refused elsewhere."""

import numpy as np
import pytest

from ortpartial import OrtGradientForwardBackwardOptimizer, load
from ortpartial.estimator.missing_values import find_nullable
from ortpartial.exceptions import DataError
from ortpartial.graph import build, constant, op, variable

X = np.array([[1.0, np.nan], [2.0, 3.0], [np.nan, 4.0]])


def impute(x):
    return op.Where(op.IsNaN(x), constant(np.array([1.0, 2.0], np.float32), hint="imputed"), x)


def fit(f):
    x, w = variable("x", "float32", ["N", 2]), constant(np.ones((2, 1), np.float32), hint="w")
    o = OrtGradientForwardBackwardOptimizer(build([x], {"y": f(x) @ w}), max_iter=5, learning_rate=0.01, random_state=0)
    return o.fit(X, [[1.0], [2.0], [3.0]])


def test_imputed_values_are_trained():
    o = fit(impute)
    assert o.train_losses_[-1] < o.train_losses_[0]
    assert np.isfinite(o.predict(X)).all()
    assert load(o.get_trained_onnx()).arrays["imputed"].tolist() != [1.0, 2.0]


def test_nan_is_refused_elsewhere():
    with pytest.raises(DataError, match="Input 'x' contains NaN or infinity; impute or drop those rows"):
        fit(op.Exp)
    with pytest.raises(DataError, match="Input 'x' contains infinity; impute or drop those rows"):
        fit(impute).predict(X * np.inf)


@pytest.mark.parametrize(("f", "names"), [
    (lambda x, z: impute(op.Concat(op.Slice(x, [0], [1], [1]), op.Slice(z, [0], [1], [1]), axis=1)), {"x", "z"}),
    (lambda x, z: impute(op.Exp(x)) + op.Cast(z, to=1), set()),
    (lambda x, z: impute(op.Identity(x)) + z, {"x"}),
])
def test_inputs(f, names):
    inputs = {n: variable(n, "float32", ["N", 2]) for n in "xz"}
    assert find_nullable([f(*inputs.values())], inputs) == names
