"""Which initializers are trained: names, aliases, patterns, functions, and the default choice."""

import re
from dataclasses import replace

import numpy as np
import pytest
from models import parameter

from ortpartial.autodiff.trainable import explain_untrained, resolve_weights
from ortpartial.exceptions import ModelError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.model.aliases import Alias
from ortpartial.model.load import load


def layers():
    """Three layers, of which the second has numbered weights with aliases, and what cannot be trained."""
    h = x = variable("x", "float32", ["N", 4])
    names = [("a.0.weight", "a.0.bias"), ("val_1", "val_2"), ("b.weight", "b.bias")]
    for weight, bias in names:
        h = h @ parameter(weight, 4, 4) + parameter(bias, 4)
    statistics = [parameter(f"bn.{n}", 4, positive=True) for n in ("weight", "bias", "running_mean", "running_var")]
    h = op.BatchNormalization(h, *statistics, n_outputs=1)[0] * parameter("scalar", 1)
    h = op.Div(h * parameter("temperature"), parameter("val_7", 1))
    return replace(load(build([x], {"y": h})), aliases={"a.1.weight": Alias("val_1"), "a.1.bias": Alias("val_2")})


DEFAULT = ["a.0.weight", "a.0.bias", "val_1", "val_2", "b.weight", "b.bias", "bn.weight", "bn.bias", "scalar"]


@pytest.mark.parametrize(("weights", "names"), [
    (None, DEFAULT),
    ("a.1.weight", ["val_1"]),
    ("a.*", ["a.0.weight", "a.0.bias", "val_1", "val_2"]),
    ("*", [*DEFAULT, "temperature"]),
    ("val_?", ["val_1", "val_2"]),
    (["b.*", "a.1.weight", "a.[01].bias", "val_7"], ["b.weight", "b.bias", "val_1", "a.0.bias", "val_2", "val_7"]),
    (["a.0.bias", "a.0.*"], ["a.0.bias", "a.0.weight"]),
    ("bn.*", ["bn.weight", "bn.bias"]),
    ("bn.running_mean", ["bn.running_mean"]),
    ("temp*", ["temperature"]),
    (lambda name, shape, node: name.endswith("weight") and len(shape) == 2, ["a.0.weight", "val_1", "b.weight"]),
    (lambda name, shape, node: node.op_type == "BatchNormalization", ["bn.weight", "bn.bias"]),
    (lambda name, shape, node: name == "a.1.bias" and shape == (4,), ["val_2"]),
])
def test_weights(weights, names):
    assert resolve_weights(layers(), weights, ["y"]) == names


def test_class_weights_are_none():
    x, t = variable("x", "float32", ["N", 4]), variable("t", "int64", ["N"])
    scores, classes = x @ parameter("w", 4, 3), parameter("class_weight", 3, positive=True)
    loss = op.SoftmaxCrossEntropyLoss(scores, t, classes, n_outputs=1)[0]
    assert resolve_weights(load(build([x, t], {"loss": loss})), None, ["loss"]) == ["w"]


@pytest.mark.parametrize(("weights", "message"), [
    ("c.*", "The pattern 'c.*' matches no weight; its float initializers are 'a.0.weight', 'a.0.bias', 'a.1.weight', "),
    ("a.2.w*", "The pattern 'a.2.w*' matches no weight; did you mean 'a.*.w*', as in 'a.1.weight'?"),
    ("1.weigh?", "The pattern '1.weigh?' matches no weight; did you mean '*1.weigh?', as in 'a.1.weight'?"),
    ("[ab].*.b", "The pattern '[ab].*.b' matches no weight; did you mean '[ab].*.b*', as in 'a.1.bias'?"),
    ("a.0.weigh?s", "The pattern 'a.0.weigh?s' matches no weight; did you mean 'a.0.weight'"),
    ("bn.running_*", "The pattern 'bn.running_*' matches nothing that can be trained; 'bn.running_mean', for example: "
                     "running statistic."),
    ("val_7*", "The pattern 'val_7*' matches nothing that can be trained; 'val_7', for example: a number that Div"),
    ("a.1.wieght", "The weight 'a.1.wieght' is no initializer of the model; did you mean 'a.1.weight'"),
    (["b.bias", 3], "weights_to_train has 3, where a name, a string, was expected."),
    (["val_1", "a.1.weight"], "The weight 'a.1.weight' is given twice."),
    (lambda name, shape, node: False, "weights_to_train, a function, chooses none of the 10 weights: 'a.0.weight', "),
])
def test_errors(weights, message):
    with pytest.raises(ModelError, match=re.escape(message)):
        resolve_weights(layers(), weights, ["y"])


def test_the_weight_that_two_nodes_read_is_chosen_by_either():
    x, w = variable("x", "float32", ["N", 2]), parameter("w", 2, 2)
    model = load(build([x], {"y": op.Tanh(x @ w) @ op.Transpose(w, perm=[1, 0])}))
    for op_type in ("MatMul", "Transpose"):
        assert resolve_weights(model, lambda name, shape, node, o=op_type: node.op_type == o, ["y"]) == ["w"]


def test_what_an_exporter_has_merged():
    """The TorchScript exporter writes one of two equal parameters as an Identity of the other."""
    x, b = variable("x", "float32", ["N", 2]), parameter("a.bias", 2)
    model = load(build([x], {"b.bias": op.Identity(b), "y": x + b}))
    with pytest.raises(ModelError, match=r"The weight 'b\.bias' is one with 'a\.bias', which had the same"):
        resolve_weights(model, ["b.bias"], ["y"])


def numbers(name, shape=(1,), positive=True):
    return parameter(name, *shape, positive=positive)


X = variable("x", "float32", ["N", 3])
W = parameter("W", 3, 1)


@pytest.mark.parametrize("y", [
    lambda v: X * v, lambda v: X / v, lambda v: op.Pow(X, v), lambda v: X * op.Sqrt(v), lambda v: X - v,
    lambda v: X / op.Sqrt(op.ReduceMean(X * X, [1]) + v), lambda v: op.Tanh(X) + v, lambda v: op.Where(X > 0, X, v),
    lambda v: op.Max(X * v, v),
])
@pytest.mark.parametrize("name", ["val_68", "onnx::Mul_123", "123"])
def test_numbers_of_the_program_are_not_trained(y, name):
    model = load(build([X], {"y": y(numbers(name)) @ W}))
    assert resolve_weights(model, None, ["y"]) == ["W"]
    assert resolve_weights(model, [name, "W"], ["y"]) == [name, "W"]


@pytest.mark.parametrize("y", [
    lambda v: X @ W + v("val_1"), lambda v: op.Gemm(X, W, v("val_1")), lambda v: op.PRelu(X, v("val_1")) @ W,
    lambda v: op.Conv(op.Unsqueeze(X, [1]), constant(np.ones((1, 1, 2), np.float32)),
                      v("val_1")) @ parameter("W", 2, 1),
    lambda v: X @ W * v("scale"), lambda v: X * v("gamma") @ W, lambda v: X * v("val_1", (1, 1)) @ W,
    lambda v: X @ (W * op.Softplus(v("val_1"))), lambda v: op.Expand(v("val_1"), [3]) * X @ W,
])
def test_parameters_of_one_number_are_trained(y):
    """By the operator that reads them, by a name of their own, or by a shape that no number of a program has."""
    model = load(build([X], {"y": y(numbers)}))
    names = [n for n in model.initializers if model.initializers[n].is_float]
    assert len(resolve_weights(model, None, ["y"])) == len(names)


@pytest.mark.parametrize(("name", "values", "is_trained"), [
    ("val_160", [[0, -np.inf, -np.inf], [0, 0, 3.4e38 * -1]], False), ("val_160", np.zeros((2, 3)), False),
    ("val_160", [[0, -10000, 0]], False), ("val_160", [[0, -1, 0]], True), ("bias", [[0, -np.inf, 0]], False),
    ("bias", [[0, 0, 0]], True), ("val_160", [0, 0, 0], True),
])
def test_masks_of_the_program_are_not_trained(name, values, is_trained):
    """The additive mask of attention, which exporters compute beforehand where it does not depend on the inputs."""
    mask = constant(np.array(values, np.float32), hint=name)
    model = load(build([X], {"y": op.Softmax(op.Unsqueeze(X @ parameter("V", 3, 3), [1]) + mask)}))
    assert resolve_weights(model, None, ["y"]) == ["V", name][: 1 + is_trained]
    if not is_trained:
        assert explain_untrained(model, ["V"], ["y"])[name] == "a mask that Add reads"


def test_zeros_that_are_a_factor_of_a_product_are_trained():
    model = load(build([X], {"y": X @ constant(np.zeros((3, 2), np.float32), hint="val_3")}))
    assert resolve_weights(model, None, ["y"]) == ["val_3"]


def test_reasons():
    x, i = variable("x", "float32", ["N", 4]), constant(np.array([0, 1, 2, 3]), hint="i")
    model = layers()
    assert explain_untrained(model, DEFAULT[:2], ["y"]) == {
        **dict.fromkeys(DEFAULT[2:], "not among those to train"), "bn.running_mean": "running statistic",
        "bn.running_var": "running statistic", "temperature": "scalar, trained by name only",
        "val_7": "a number that Div reads"}
    other = load(build([x], {"y": op.Gather(x * parameter("w", 4), i, axis=1), "z": x + parameter("v", 4)}))
    assert explain_untrained(other, ["w"], ["y"]) == {"i": "int64, no real numbers", "v": "no gradient reaches it"}


# Numbers of the program by their use: angles, tables of positions, settings of operators.

TOKENS = variable("tokens", "int64", ["N", 5])
FREQUENCIES = 10000.0 ** (-np.arange(4) / 4)
STATES = op.Gather(parameter("E", 11, 8), TOKENS)


def turn(angles, states=STATES):
    """A rotary embedding: states turned by angles."""
    first, second = op.Split(states, [4, 4], axis=2, n_outputs=2)
    cos, sin = op.Cos(angles), op.Sin(angles)
    return op.Concat(first * cos - second * sin, second * cos + first * sin, axis=2)


def number(name, values):
    return constant(np.array(values, np.float32), hint=name)


def count(dtype=1):
    """The positions of the tokens."""
    return op.Unsqueeze(op.Cast(op.Range(0, op.Squeeze(op.Shape(TOKENS, start=1), [0]), 1), to=dtype), [1])


LEARNED = {"E", "learned"}


@pytest.mark.parametrize(("values", "y", "is_trained"), [
    (FREQUENCIES, lambda v: turn(count() * v), False),
    (FREQUENCIES[None], lambda v: turn(count() @ v), False),
    (FREQUENCIES[:, None], lambda v: turn(op.Transpose(v @ op.Transpose(count(), perm=[1, 0]), perm=[1, 0])), False),
    (FREQUENCIES[::-1], lambda v: turn(6.28 * count() / op.Expand(v, [1, 4])), False),
    (FREQUENCIES[:2], lambda v: turn(op.Concat(*[op.Unsqueeze(op.Range(0.0, 5.0, 1.0), [1]) * v] * 2, axis=1)), False),
    # Numbers in any order, a matrix, of real inputs (as in a network of sines), and angles that are read elsewhere.
    (FREQUENCIES[[1, 0, 3, 2]], lambda v: turn(count() * v), True),
    (np.outer([1, 2], FREQUENCIES), lambda v: turn(op.Concat(count(), count(), axis=1) @ v), True),
    (FREQUENCIES, lambda v: turn(STATES[:, :, :4] * v), True),
    (FREQUENCIES, lambda v: op.Concat(op.Sin(count() * v), op.Sin(2 * count() * v), axis=1) * STATES, True),
    (FREQUENCIES, lambda v: op.Concat(turn(count() * v), STATES[:, :, :4] * v, axis=2), True),
    (FREQUENCIES, lambda v: op.Concat(turn(count() * v), op.Expand(count() * v, [2, 5, 4]), axis=2), True),
])
def test_angles_are_not_trained(values, y, is_trained):
    model = load(build([TOKENS], {"y": y(number("learned", values))}))
    trained = resolve_weights(model, None, ["y"])
    assert set(trained) == (LEARNED if is_trained else {"E"})
    if not is_trained:
        assert explain_untrained(model, trained, ["y"])["learned"] == (
            "angles of a rotary embedding, which feed cos and sin alone: trained by name only")
        assert resolve_weights(model, ["learned"], ["y"]) == ["learned"]
        with pytest.raises(ModelError, match="matches nothing that can be trained; 'learned', for example: angles of "):
            resolve_weights(model, "learned*", ["y"])


SINES = np.outer(np.arange(6), FREQUENCIES)
RANDOM = np.random.default_rng(0).normal(size=(6, 8))


@pytest.mark.parametrize(("values", "is_trained"), [
    (np.concatenate([np.sin(SINES), np.cos(SINES)], 1), False),
    (np.stack([np.sin(SINES), np.cos(SINES)], 2).reshape(1, 6, 8), False),
    (np.repeat(np.cos(SINES), 2, 1), False),
    (RANDOM, True), (np.zeros((6, 8)), True), (np.ones((6, 8)), True),
    (np.concatenate([np.sin(SINES), np.cos(SINES)], 1) + 0.01 * RANDOM, True),
])
def test_tables_of_sines_are_not_trained(values, is_trained):
    """Unlike learned positions, whatever their names are."""
    table = number("learned", values)
    rows = op.Slice(table, [0], [5], [1]) if values.ndim == 3 else op.Gather(table, [0, 1, 2, 3, 4])
    model = load(build([TOKENS], {"y": STATES + rows}))
    assert set(resolve_weights(model, None, ["y"])) == (LEARNED if is_trained else {"E"})
    if not is_trained:
        assert explain_untrained(model, ["E"], ["y"])["learned"] == (
            "a table of the sines and cosines of positions: trained by name only")


def test_sines_that_a_product_reads_are_trained():
    model = load(build([TOKENS], {"y": STATES @ number("learned", np.sin(np.outer(np.arange(8), FREQUENCIES)))}))
    assert set(resolve_weights(model, None, ["y"])) == LEARNED


def test_learned_scales_are_trained():
    """The weight of a root mean square norm, a scale of each layer, and the slopes of one."""
    y = op.Mul(STATES, number("learned", FREQUENCIES.repeat(2)))
    y = y + op.PRelu(y, number("slope", [0.25])) * number("gamma", np.full(8, 1e-5))
    assert set(resolve_weights(load(build([TOKENS], {"y": y})), None, ["y"])) == LEARNED | {"slope", "gamma"}


def test_settings_of_operators_are_not_trained():
    image = variable("image", "float32", ["N", 1, 4, 4])
    y = op.Conv(image, parameter("W", 2, 1, 3, 3))
    y = op.Resize(y, number("roi", np.zeros(8)), number("scales", [1, 1, 2, 1.5]), mode="linear",
                  coordinate_transformation_mode="tf_crop_and_resize")
    model = load(build([image], {"y": y}))
    assert resolve_weights(model, None, ["y"]) == ["W"]
    assert explain_untrained(model, ["W"], ["y"])["scales"] == "a setting of Resize"
