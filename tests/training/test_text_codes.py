"""Inputs of strings in a training: their comparison with strings of the model."""

import pickle

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, load, op, variable
from ortpartial.exceptions import DataError, ModelError
from ortpartial.graph import Operators
from ortpartial.training.text_codes import encode_text, find_vocabulary

ML = Operators("ai.onnx.ml")
COLORS = ["blue", "green", "red"]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2)).astype(np.float32)
WORDS = RNG.choice(np.array([*COLORS, "pink"], object), (40, 1))
ONE_HOT = (np.array([COLORS]) == WORDS).astype(np.float32)
Y = (X @ [[1.0], [-2.0]] + ONE_HOT @ [[3.0], [0.0], [1.0]]).astype(np.float32)


def weight():
    return constant(np.linspace(-1, 1, 5, dtype=np.float32)[:, None], hint="w")


def numeric():
    """The model with one-hot columns as inputs."""
    x, columns = variable("x", "float32", ["N", 2]), variable("columns", "float32", ["N", 3])
    return build([x, columns], {"y": op.Concat(x, columns, axis=1) @ weight()})


def with_text(encoder="OneHotEncoder"):
    """The same model with an encoder before it."""
    x, color = variable("x", "float32", ["N", 2]), variable("color", object, ["N", 1])
    if encoder == "Equal":
        columns = op.Cast(op.Equal(color, constant(np.array([COLORS], object))), to=1)
    elif encoder == "LabelEncoder":
        codes = ML.LabelEncoder(color, keys_strings=COLORS, values_int64s=[0, 1, 2], default_int64=3)
        columns = op.Reshape(op.OneHot(codes, 4, np.float32([0, 1])), [-1, 4])[:, :3]
    else:
        columns = op.Reshape(ML.OneHotEncoder(color, cats_strings=COLORS, zeros=1), [-1, 3])
    return build([x, color], {"y": op.Concat(x, columns, axis=1) @ weight()})


def optimizer(model, **settings):
    settings = {"max_iter": 3, "batch_size": 7, "random_state": 0, **settings}
    return OrtGradientForwardBackwardOptimizer(model, "w", **settings)


@pytest.mark.parametrize("engine", ["epoch", "step"])
@pytest.mark.parametrize("encoder", ["OneHotEncoder", "LabelEncoder", "Equal"])
def test_as_numbers(encoder, engine):
    """The weights are those of a training on columns of numbers, to the last bit, with strings that nobody knows."""
    text, numbers = {"x": X, "color": WORDS}, {"x": X, "columns": ONE_HOT}
    o = optimizer(with_text(encoder), engine=engine).fit(text, Y, X_val=0.2)
    expected = optimizer(numeric(), engine=engine).fit(numbers, Y, X_val=0.2)
    assert o.trained_coef_["w"].tobytes() == expected.trained_coef_["w"].tobytes()
    assert o.train_losses_ == expected.train_losses_
    np.testing.assert_allclose(o.validation_losses_, expected.validation_losses_, rtol=1e-6)
    np.testing.assert_allclose(o.predict(text), expected.predict(numbers), rtol=1e-5)
    assert o.score(text, Y) == pytest.approx(expected.score(numbers, Y))


def test_tables_batches_and_pickles():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"color": WORDS.ravel()})
    model = with_text()
    whole = optimizer(model, shuffle=False).fit({"x": X, "color": WORDS}, Y)
    text = optimizer(model, shuffle=False).fit({"x": X, "color": WORDS.astype(str)}, Y)
    batches = [({"x": X[i : i + 7], "color": table[["color"]][i : i + 7].to_numpy()}, Y[i : i + 7])
               for i in range(0, 40, 7)]
    streamed = optimizer(model, shuffle=False).fit(batches)
    for o in (text, streamed):
        assert o.trained_coef_["w"].tobytes() == whole.trained_coef_["w"].tobytes()
    copy = pickle.loads(pickle.dumps(whole)).partial_fit({"x": X, "color": WORDS}, Y)
    whole.partial_fit({"x": X, "color": WORDS}, Y)
    assert copy.trained_coef_["w"].tobytes() == whole.trained_coef_["w"].tobytes()


def test_file_is_unchanged():
    model = with_text()
    trained = optimizer(model).fit({"x": X, "color": WORDS}, Y).get_trained_onnx()
    assert list(trained.graph.node) == list(model.graph.node)
    assert list(trained.graph.input) == list(model.graph.input)
    assert not np.array_equal(numpy_helper.to_array(trained.graph.initializer[-1]), weight().array)


def test_text_that_is_taken_apart():
    """A training of what reads more of a string than whether it is equal is refused by name."""
    x, color = variable("x", "float32", ["N", 2]), variable("color", object, ["N", 1])
    length = op.Cast(op.Equal(op.StringConcat(color, color), constant(np.array([COLORS], object))), to=1)
    with pytest.raises(ModelError, match=r"StringConcat .*reads strings, and in a training strings are only compared"):
        optimizer(build([x, color], {"y": op.Concat(x, length, axis=1) @ weight()})).fit({"x": X, "color": WORDS}, Y)


@pytest.mark.agent
def test_agent():
    with pytest.raises(ModelError, match="engine='agent' reads no inputs of strings; use engine='step'"):
        optimizer(with_text(), engine="agent")


def test_what_is_no_text():
    with pytest.raises(DataError, match="Input 'color' holds 3, where strings were expected"):
        optimizer(with_text()).fit({"x": X, "color": np.full((40, 1), 3, object)}, Y)


def test_vocabulary():
    """All strings of the file, whatever sizes are known: the places do not depend on them."""
    assert find_vocabulary(load(numeric())) is None
    assert set(COLORS) <= set(find_vocabulary(load(with_text())).tolist())
    assert encode_text({"a": np.array(["x"], object)}, np.array([], str))["a"].tolist() == [0]
    model = with_text("Equal")
    model.graph.node[0].name = "n"
    model.graph.input[1].type.CopyFrom(helper.make_tensor_type_proto(8, [4, 1]))
    np.testing.assert_array_equal(find_vocabulary(load(model)), find_vocabulary(load(with_text("Equal"))))
