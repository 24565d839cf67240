"""Careless mistakes are answered with advice."""

import re
import types

import numpy as np
import onnx
import pytest

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import build, constant, variable
from ortpartial.estimator.hints import hint_encoding, hint_labels, hint_shape
from ortpartial.exceptions import DataError, ModelError, SettingError

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)


def linear(outputs=1):
    x, w = variable("x", "float32", ["N", 3]), constant(np.ones((3, outputs), np.float32), hint="w")
    return build([x], {"y": x @ w})


@pytest.mark.parametrize(
    ("shape", "declared", "hint"),
    [
        ((5, 9, 8, 3), ("N", 3, 9, 8), "X.transpose(0, 3, 1, 2)"),
        ((5, 3, 9, 8), ("N", 9, 8, 3), "X.transpose(0, 2, 3, 1)"),
        ((3, 9, 8), ("N", 3, 9, 8), "a single row is X[None]"),
        ((5, 9), ("N", "T", 1), "a single column is X[:, None]"),
        ((5, 28, 28), ("N", 784), "flatten its rows"),
        ((3, 5), ("N", 3), "transpose it"),
        ((5, 6), ("N", 3), ""),
        ((2, 1), ("N", 2), ""),
    ],
)
def test_shapes(shape, declared, hint):
    assert hint in hint_shape(shape, declared)
    assert bool(hint_shape(shape, declared)) == bool(hint)


def test_no_hints():
    assert hint_labels(0, 5, 3) == hint_labels(-1, 1, 3) == ""
    assert hint_encoding("a", "Input 'x'") == "; encode it as numbers first"


@pytest.mark.parametrize(
    ("args", "settings", "message"),
    [
        ((X.T, X[:, :1]), {}, "Input 'x' has shape (3, 20), where (N, 3) was expected; transpose it."),
        (("data.csv", X), {}, "expected; read the file first, as with numpy.load or pandas.read_csv."),
        (((row for row in X), X), {}, "Input 'x' holds generator, where float32 was expected; make an array of it"),
        (((X, X[:, :1]),), {}, "X is a tuple of 2 arrays; give them as arguments of their own: fit(X, y)."),
        ((X, ["a", "b"] * 10), {}, "number the classes, as np.unique(y, return_inverse=True)[1] does."),
        ((X, X[:, :1], "balanced"), {}, "for weights by class give the loss class_weight='balanced'"),
        ((X, np.arange(20) % 2 + 1), {"learning_loss": "cross_entropy"}, "what does not count; subtract 1."),
        ((X, X[:, 0]), {"learning_loss": "cross_entropy"}, "a fraction, where int64 was expected; quantities"),
        ((X, X[:, :1], None, X[:, :2], X[:, :1]), {}, "The validation data do not fit: Input 'x' has shape (20, 2)"),
    ],
)
def test_data(args, settings, message):
    o = Optimizer(linear(2 if settings else 1), max_iter=1, **settings)
    with pytest.raises(DataError, match=re.escape(message)):
        o.fit(*args)


def foreign(module):
    """An object of a class of another library."""
    return types.new_class("Linear", (), {}, lambda body: body.update(__module__=module))()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (foreign("torch.nn"), "not Linear; export it first, with ortpartial.torch.export(module, *inputs)."),
        (foreign("sklearn.linear_model"), "convert it first, with skl2onnx.to_onnx(estimator, X[:1])."),
        (foreign("keras.layers"), "convert it first, with tf2onnx."),
        (foreign("onnxruntime.capi"), "give the path or the bytes that the session was made from."),
        (onnx.GraphProto(), "not GraphProto; make a model of it, with onnx.helper.make_model."),
        (Optimizer(linear()), "give what its get_trained_onnx() returns."),
        (3, "A model is a ModelProto, bytes or a path, not int."),
    ],
)
def test_models(model, message):
    with pytest.raises(ModelError, match=re.escape(message)):
        Optimizer(model)


def test_files(tmp_path):
    with pytest.raises(ModelError, match="is a folder; give a path"):
        Optimizer(tmp_path)
    (tmp_path / "model.pt").write_bytes(b"abc" * 9)
    with pytest.raises(ModelError, match=r"a \.pt file is of another library: export its model to ONNX"):
        Optimizer(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"callbacks": [lambda: True]}, "does not take one argument."),
        ({"learning_rate": "0.1"}, "did you mean the number 0.1?"),
        ({"max_iter": 10.0}, "max_iter is a whole number of at least 1, not 10.0; did you mean 10?"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        Optimizer(linear(), **settings)


def test_pieces_of_torch():
    torch = pytest.importorskip("torch")
    with pytest.raises(SettingError, match=r"torch\.optim\.adam\.Adam is a type; .* Did you mean 'Adam'\?"):
        Optimizer(linear(), learning_rate=torch.optim.Adam)
    with pytest.raises(SettingError, match=r"MSELoss is a MSELoss; .* Did you mean 'square_error'\?"):
        Optimizer(linear(), learning_loss=torch.nn.MSELoss())


def test_settings_given_to_fit():
    o = Optimizer(linear())
    with pytest.raises(TypeError, match=re.escape("fit takes no 'epochs'; did you mean the setting 'max_iter', as in "
                                                  "set_params(max_iter=...)?")):
        o.fit(X, X[:, :1], epochs=3)
    with pytest.raises(TypeError, match="fit takes no 'batch_size'; did you mean the setting 'batch_size'"):
        o.fit(X, X[:, :1], batch_size=3)
    with pytest.raises(TypeError, match="fit takes no 'zzz'; its arguments are X, y, sample_weight, X_val, y_val"):
        o.fit(X, X[:, :1], zzz=3)
    with pytest.raises(TypeError, match="partial_fit takes no 'epochs'; its arguments are X, y, sample_weight"):
        o.partial_fit(X, X[:, :1], epochs=3)
