"""The contract of all losses, penalties, optimizers and schedules, which are discovered, not listed."""

import copy
import dataclasses
import inspect
import pickle
import re

import numpy as np
import onnx
import pytest

from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import SettingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import OPSET, constant, op, variable
from ortpartial.learning import (
    averaging,
)
from ortpartial.learning import (
    losses as learning_loss,
)
from ortpartial.learning import (
    optimizers as learning_rate,
)
from ortpartial.learning import (
    penalties as learning_penalty,
)
from ortpartial.learning import (
    schedules as schedule,
)
from ortpartial.learning.averaging import WeightAverage, resolve_averaging
from ortpartial.learning.losses import BaseLearningLoss, resolve_loss
from ortpartial.learning.optimizers import BaseLearningRate, resolve_rate
from ortpartial.learning.penalties import BaseLearningPenalty, resolve_penalty
from ortpartial.learning.schedules import Schedule, resolve_schedule
from ortpartial.testing import _make_runner, evaluate

MODULES = (schedule, learning_loss, learning_penalty, learning_rate, averaging)
RESOLVE = {Schedule: resolve_schedule, BaseLearningLoss: resolve_loss, BaseLearningPenalty: resolve_penalty,
           BaseLearningRate: resolve_rate, WeightAverage: resolve_averaging}


def kind(cls):
    return next(k for k in RESOLVE if issubclass(cls, k))


def descendants(cls):
    """Every final class of the library below one, but for those around a function or another piece."""
    classes = dict.fromkeys(d for child in cls.__subclasses__() for d in [child, *descendants(child)])
    return [d for d in classes if d.__module__.startswith("ortpartial.learning.") and not inspect.isabstract(d)
            and d.__name__ not in ("FunctionLearningLoss", "ProximalRate")]


def numbers(cls):
    """Settings that are numbers."""
    return {f.name: f.default for f in dataclasses.fields(cls) if type(f.default) is float}


def wholes(cls):
    """Settings that are whole numbers."""
    return {f.name: f.default for f in dataclasses.fields(cls) if type(f.default) is int}


def of(*kinds):
    """Classes of some kinds as parameters of a test."""
    classes = sorted({c for k in kinds for c in descendants(k)}, key=lambda c: c.__name__)
    return pytest.mark.parametrize("cls", classes, ids=lambda c: c.__name__)


def variants(cls):
    """A piece with its defaults, and one in which all numbers and switches differ from them."""
    flags = {f.name: not f.default for f in dataclasses.fields(cls) if isinstance(f.default, bool)}
    others = {n: 0.75 * v or 0.375 for n, v in numbers(cls).items()}
    others |= {n: v // 2 or (-1 if n == "axis" else v + 1) for n, v in wholes(cls).items()}
    return [cls(), cls(**others, **flags)]


def pieces(*kinds):
    """Variants of the classes of some kinds as parameters of a test."""
    classes = sorted({c for k in kinds for c in descendants(k)}, key=lambda c: c.__name__)
    unique = dict.fromkeys(v for c in classes for v in variants(c))
    return pytest.mark.parametrize("piece", unique, ids=repr)


def rng():
    return np.random.default_rng(0)


def fit_shape(loss, shape):
    """The shape of a prediction for a loss, with tokens where it needs them."""
    has_tokens = isinstance(loss, learning_loss.NextTokenLearningLoss) and len(shape) == 2
    return (shape[0], 4, shape[1]) if has_tokens else shape


def example(loss, shape, dtype=np.float64):
    """A prediction and a target for a loss, away from the kink where they are equal."""
    y = rng().normal(size=shape).astype(dtype)
    if loss.target_dtype is not None:
        return y, rng().integers(0, shape[1], loss.target_shape(shape))
    return y, rng().integers(0, 2, shape).astype(dtype)


def differences(f, x, step=1e-5):
    """Central differences of a scalar function by each element of x."""
    slopes = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        d = np.zeros_like(x)
        d[i] = step
        slopes[i] = (f(x + d) - f(x - d)) / (2 * step)
    return slopes


# All pieces.


def test_all_are_found():
    names = {c.__name__ for k in RESOLVE for c in descendants(k)}
    assert {"SquareLearningLoss", "ElasticLearningPenalty", "LearningRateAdam", "OptimalSchedule"} <= names
    exported = {n for m in MODULES for n in m.__all__ if inspect.isclass(getattr(m, n))}
    assert exported - names == {"BaseLearningLoss", "BaseLearningPenalty", "BaseLearningRate", "Schedule",
                                "WeightAverage", "WeightDecay"}
    assert names <= exported


@of(*RESOLVE)
def test_docstring(cls):
    text = inspect.cleandoc(vars(cls)["__doc__"])
    formula = text.splitlines()[0]
    assert formula.endswith((".", ",", ";")), "the docstring begins with the formula as a sentence"
    assert re.search(r"[=|²₁∑Σ]|^-?log|^0\.", formula), "the docstring begins with the formula"
    expected = ["Examples"]
    if dataclasses.fields(cls):
        expected.append("Parameters")
    if cls.__name__ not in ("ConstantSchedule", "NoLearningPenalty"):
        expected.append("References")
    assert {e for e in expected if f"\n{e}\n---" in text} == set(expected)


@of(*RESOLVE)
def test_is_a_frozen_dataclass_of_its_settings(cls):
    assert "__dataclass_params__" in vars(cls)
    assert cls.__dataclass_params__.frozen
    with pytest.raises(dataclasses.FrozenInstanceError):
        cls().anything = 1
    for field in dataclasses.fields(cls):
        assert field.default is not dataclasses.MISSING, f"{field.name} has no default"
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(cls(), field.name, field.default)


@pieces(*RESOLVE)
def test_value_semantics(piece):
    names = {k: v for m in MODULES for k, v in vars(m).items()}
    for other in (copy.copy(piece), copy.deepcopy(piece), pickle.loads(pickle.dumps(piece)), dataclasses.replace(piece),
                  eval(repr(piece), names)):
        assert other == piece
        assert hash(other) == hash(piece)
        assert repr(other) == repr(piece)
    assert len({piece, copy.copy(piece)}) == 1


@of(*RESOLVE)
def test_settings_tell_pieces_apart(cls):
    assert cls() == cls()
    assert len({type(c()) for c in descendants(kind(cls))}) == len({c() for c in descendants(kind(cls))})
    for name, default in numbers(cls).items():
        other = cls(**{name: 0.75 * default or 0.375})
        assert other != cls()
        assert repr(other) != repr(cls())
        # numpy scalars become numbers of Python.
        number = getattr(other, name)
        assert cls(**{name: np.float64(number)}) == other
        assert type(getattr(cls(**{name: np.float64(number)}), name)) is float


@of(*RESOLVE)
@pytest.mark.parametrize("setting", ["1", None, float("nan"), float("inf"), True, -1.0, [0.1]], ids=repr)
def test_settings_are_validated(cls, setting):
    optional = [f.name for f in dataclasses.fields(cls) if "None" in str(f.type)]
    for name in [n for n in numbers(cls) if setting is not None or n not in optional]:
        message = rf"^{cls.__name__}: {name} is {re.escape(repr(setting))}, a finite number .* was expected\.$"
        with pytest.raises(SettingError, match=message):
            cls(**{name: setting})


@of(*RESOLVE)
@pytest.mark.parametrize("setting", ["1", None, 1.5, 2.0, True, 0, -1, [1]], ids=repr)
def test_whole_settings_are_validated(cls, setting):
    if issubclass(cls, (learning_loss.NextTokenLearningLoss, learning_loss.SoftmaxCrossEntropyLearningLoss)):
        pytest.skip("its whole numbers may be negative; tests/learning/test_losses.py")
    if cls is schedule.ReduceOnPlateauSchedule and setting == 0:
        pytest.skip("its whole numbers may be 0")
    for name, default in wholes(cls).items():
        message = rf"^{cls.__name__}: {name} is {re.escape(repr(setting))}, a whole number at least . was expected\.$"
        with pytest.raises(SettingError, match=message):
            cls(**{name: setting})
        other = cls(**{name: np.int32(default + 1)})
        assert other != cls()
        assert type(getattr(other, name)) is int


@of(*RESOLVE)
def test_resolved_by_name_class_or_object(cls):
    resolve = RESOLVE[kind(cls)]
    if cls.__name__ != "ElasticLearningPenalty":  # its name has no weights, so that it is an error
        assert resolve(cls.__name__) == resolve(cls.__name__.lower()) == cls()
        with pytest.warns(FutureWarning, match=rf"is the class {cls.__name__}, .* write {cls.__name__}\(\)"):
            assert resolve(cls) == cls()
    piece = cls()
    assert resolve(piece) is piece


@pytest.mark.parametrize("base", RESOLVE, ids=lambda base: base.__name__)
@pytest.mark.parametrize("setting", [object, 1j, ["SGD"], b"SGD", np.ones(2)], ids=repr)
def test_other_objects_are_refused(base, setting):
    message = rf"^{base.setting}: .* was expected\.$"
    with pytest.raises(SettingError, match=re.compile(message, re.DOTALL)):
        RESOLVE[base](setting)


@pytest.mark.parametrize("base", RESOLVE, ids=lambda base: base.__name__)
def test_unknown_name_lists_the_known(base):
    names = [c.__name__ for c in descendants(base)]
    with pytest.raises(SettingError) as e:
        RESOLVE[base](names[0][:-2])
    message = str(e.value)
    assert message.startswith(f"{base.setting}: {names[0][:-2]!r} is not known. Did you mean ")
    listed = message.split("Known are ")[1].split(", or an object")[0].split(", ")
    assert len(listed) == len(names)
    with pytest.raises(SettingError, match=r"'zzzzzzzzz' is not known\. Known are "):
        RESOLVE[base]("zzzzzzzzz")


@pieces(BaseLearningLoss, BaseLearningPenalty, BaseLearningRate)
@pytest.mark.parametrize("dtype", ["float32", np.float64])
def test_graph_is_plain_onnx(piece, dtype):
    shape = fit_shape(piece, (4, 3))
    model = piece.build_onnx_function(dtype=dtype, shape=shape)
    onnx.checker.check_model(model, full_check=True)
    assert model.graph.name == type(piece).__name__
    # The older runtime knows no later opset, and no other domain is needed.
    assert {(o.domain, o.version) for o in model.opset_import} == {("", OPSET)}
    assert piece.build_onnx_function(dtype=dtype, shape=shape).SerializeToString() == model.SerializeToString()
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    assert {o.type.tensor_type.elem_type for o in model.graph.output} == {kind}


# Schedules.


@pieces(Schedule)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_schedule(piece, dtype):
    k = variable("k", np.int64, [])
    eta = piece.over(1000)(constant(0.5, dtype), k)
    assert (eta.dtype, eta.shape) == (dtype, ())
    run = _make_runner(build({"k": k}, {"eta": eta}))
    steps = np.array([run({"k": np.array(i)})["eta"] for i in (1, 2, 10, 10**6)])
    assert steps.dtype == dtype
    assert (steps[1 if getattr(piece, "from_zero", False) else 0 : 3] > 0).all()
    assert (steps >= 0).all()
    if not isinstance(piece, schedule.WarmUpSchedule | schedule.OneCycleSchedule | schedule.CosineRestartsSchedule):
        assert (np.diff(steps) <= 0).all()


# Losses.


@pieces(BaseLearningLoss)
@pytest.mark.parametrize("shape", [(5, 1), (5, 3), (5, 3, 2)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_has_the_gradient_of_its_value(piece, shape, weighted):
    shape = fit_shape(piece, shape)
    y, t = example(piece, shape)
    feeds = {"t": t, **({"w": rng().uniform(0.1, 1, 5)} if weighted else {})}
    model = piece.build_onnx_function(dtype="float64", shape=shape, weighted=weighted)
    run = _make_runner(model)
    outputs = run({"y": y, **feeds})
    assert [i.name for i in model.graph.input] == ["y", "t", "w"][: 2 + weighted]
    assert {n: (v.shape, v.dtype) for n, v in outputs.items()} == {"loss": ((), y.dtype), "y_grad": (shape, y.dtype)}
    expected = differences(lambda v: run({"y": v, **feeds})["loss"], y)
    np.testing.assert_allclose(outputs["y_grad"], expected, rtol=1e-6, atol=1e-9)


@pieces(BaseLearningLoss)
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_with_sizes_that_are_not_known(piece, weighted):
    y, t = example(piece, (5, 3, 2))
    feeds = {"y": y, "t": t, **({"w": rng().uniform(0.1, 1, 5)} if weighted else {})}
    static = evaluate(piece.build_onnx_function(dtype="float64", shape=(5, 3, 2), weighted=weighted), feeds)
    for shape in (["N", 3, 2], [None, None, None], ["a", "b", "c"], [5, "b", 2], [None, 3, "c"]):
        outputs = evaluate(piece.build_onnx_function(dtype="float64", shape=shape, weighted=weighted), feeds)
        for name, value in static.items():
            np.testing.assert_allclose(outputs[name], value, rtol=1e-12, atol=1e-15)


@pieces(BaseLearningLoss)
@pytest.mark.parametrize("shape", [(4, 1), (4, 3)], ids=str)
def test_weights_of_the_rows(piece, shape):
    y, t = example(piece, fit_shape(piece, shape))

    def run(y, t, w=None):
        model = piece.build_onnx_function(dtype="float64", shape=y.shape, weighted=w is not None)
        return evaluate(model, {"y": y, "t": t} if w is None else {"y": y, "t": t, "w": np.asarray(w, np.float64)})

    plain, equal = run(y, t), run(y, t, [2, 2, 2, 2])
    np.testing.assert_allclose(equal["loss"], plain["loss"], rtol=1e-14)
    np.testing.assert_allclose(equal["y_grad"], plain["y_grad"], rtol=1e-13)
    # A row of weight two counts as two rows, a row of weight zero as none.
    some, twice = run(y, t, [2, 1, 0, 1]), run(y[[0, 0, 1, 3]], t[[0, 0, 1, 3]])
    np.testing.assert_allclose(some["loss"], twice["loss"], rtol=1e-14)
    np.testing.assert_allclose(some["y_grad"][[0, 1, 3]], (twice["y_grad"][[0, 2, 3]].T * [2, 1, 1]).T, rtol=1e-13)
    np.testing.assert_array_equal(some["y_grad"][2], 0)
    for nothing in ([0, 0, 0, 0], [1, -1, 2, -2]):
        none = run(y, t, nothing)
        np.testing.assert_array_equal(none["loss"], 0)
        np.testing.assert_array_equal(none["y_grad"], 0)


def to_prediction(piece, scores):
    """Scores, or the probabilities that they stand for where a loss takes these."""
    if getattr(piece, "from_logits", True):
        return scores
    odds = np.exp(scores - scores.max(1, keepdims=True)) if piece.target_dtype else np.exp(scores)
    return odds / odds.sum(1, keepdims=True) if piece.target_dtype else odds / (1 + odds)


@pieces(BaseLearningLoss)
def test_loss_in_float32_far_from_the_target(piece):
    if isinstance(piece, learning_loss.NextTokenLearningLoss):
        pytest.skip("its labels are those of other rows; tests/learning/test_next_token.py")
    y = np.array([[1e4, -1e4], [-1e4, 1e4], [0, 0], [1e4, 1e4], [-1e4, -1e4]], np.float32)
    if not getattr(piece, "from_logits", True):  # the smallest probability is another number in float64
        y = to_prediction(piece, y / 2e3)
    if isinstance(piece, learning_loss.PoissonLearningLoss):
        y /= 125  # the exponential of 1e4 is infinite, that of 80 is not
    t = np.array([0, 0, 1, 1, 0])
    if piece.target_dtype is None:
        t = np.array([[0, 1], [0, 1], [0, 1], [1, 0], [0, 1]], np.float32)
    single, double = (
        evaluate(piece.build_onnx_function(dtype=d, shape=y.shape, weighted=False),
                 {"y": y.astype(d), "t": t if piece.target_dtype else t.astype(d)})
        for d in ("float32", "float64")
    )
    for name, value in double.items():
        assert np.isfinite(single[name]).all()
        np.testing.assert_allclose(single[name], value, rtol=1e-5, atol=1e-7)


@pieces(BaseLearningLoss)
def test_loss_of_a_perfect_prediction_is_a_minimum(piece):
    if isinstance(piece, learning_loss.NextTokenLearningLoss):
        pytest.skip("its labels are those of other rows; tests/learning/test_next_token.py")
    shape = (3, 2)
    t = np.array([0, 1, 1]) if piece.target_dtype else np.array([[0, 1], [1, 0], [1, 1]], np.float32)
    best = 100 * (2.0 * np.eye(2)[t] - 1) if piece.target_dtype else (2 * t - 1) * 100
    least = 0
    model = piece.build_onnx_function(shape=shape, weighted=False)
    if piece.target_dtype is None and evaluate(model, {"y": t, "t": t})["loss"] == 0:
        best = t  # of real numbers, not of raw scores
    elif getattr(piece, "label_smoothing", 0) and hasattr(piece, "gamma"):
        pytest.skip("the minimum of a focal loss of smoothed labels has no formula")
    elif isinstance(piece, learning_loss.NegLogLearningLoss) and piece.label_smoothing:
        p = np.where(t > 0, 1 - piece.label_smoothing / 2, piece.label_smoothing / 2)
        best, least = np.log(p / (1 - p)), -(p * np.log(p) + (1 - p) * np.log(1 - p)).mean()
    elif getattr(piece, "label_smoothing", 0):  # scores whose softmax is the smoothed label
        p = np.where(best > 0, 1 - piece.label_smoothing / 2, piece.label_smoothing / 2)
        best, least = np.log(p), -(p * np.log(p)).sum(1).mean()
    elif isinstance(piece, learning_loss.PoissonLearningLoss):
        best, least = 100 * (t - 1), t.mean()  # the logarithm of t, and t - t log t
    outputs = evaluate(model, {"y": to_prediction(piece, best).astype(np.float32), "t": t})
    np.testing.assert_allclose(outputs["loss"], least, atol=1e-7)
    np.testing.assert_allclose(outputs["y_grad"], 0, atol=1e-7)


# Penalties.


@pieces(BaseLearningPenalty)
@pytest.mark.parametrize("shape", [(), (4,), (3, 2), (2, 2, 3)], ids=str)
def test_penalty_has_the_gradient_of_its_value(piece, shape):
    w = np.asarray(rng().normal(size=shape))
    run = _make_runner(piece.build_onnx_function(dtype="float64", shape=shape))
    outputs = run({"w": w})
    assert {n: (v.shape, v.dtype) for n, v in outputs.items()} == {"penalty": ((), w.dtype), "w_grad": (shape, w.dtype)}
    expected = differences(lambda v: run({"w": v})["penalty"], w)
    np.testing.assert_allclose(outputs["w_grad"], expected, rtol=1e-6, atol=1e-9)
    if not piece.applies_to(shape):
        assert not outputs["penalty"].any()
        assert not outputs["w_grad"].any()
    else:
        # The formula agrees with the model.
        v = variable("w", np.float64, shape)
        value = evaluate(build([v], {"p": piece(v)}), {"w": w})["p"]
        np.testing.assert_array_equal(value, outputs["penalty"])
        assert value > 0
    zero = run({"w": np.zeros(shape)})
    assert not zero["penalty"].any()
    assert not zero["w_grad"].any()


# Rates.


def run_rate(rate, dtype="float64", shape=(3, 2)):
    """The update of a rate as a function of arrays: (w, g, k, *state) -> (w, *state)."""
    model = rate.build_onnx_function(dtype=dtype, shape=shape)
    states = list(rate.state_shapes(shape))
    names = ["w", "g", "k", *states]
    assert [i.name for i in model.graph.input] == names
    assert [o.name for o in model.graph.output] == ["w_out", *(f"{s}_out" for s in states)]

    run = _make_runner(model)

    def update(w, g, k, *state):
        return list(run(dict(zip(names, [w, g, np.array(k), *state], strict=True))).values())

    return update


@pieces(BaseLearningRate)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(), (4,), (3, 2)], ids=str)
def test_rate_updates_a_weight_and_its_state(piece, dtype, shape):
    assert len({"w", "g", "k", *piece.state_shapes(shape)}) == 3 + len(piece.state_shapes(shape))
    update = run_rate(piece, dtype, shape)
    w, g = (np.asarray(rng().normal(size=shape) + i, dtype) for i in (0, 1))
    shapes = piece.state_shapes(shape)
    zeros = [np.zeros(s, dtype) for s in shapes.values()]
    first = update(w, g, 1, *zeros)
    assert [(v.shape, v.dtype) for v in first] == [(s, np.dtype(dtype)) for s in (shape, *shapes.values())]
    decayed = w * (1 - piece.eta0 * getattr(piece, "weight_decay", 0.0))
    assert (np.sign(decayed - first[0]) == np.sign(g)).all(), "the first step goes against the gradient"
    still = update(w, np.zeros_like(w), 1, *zeros)
    decay = piece.eta0 * getattr(piece, "weight_decay", 0.0)
    if isinstance(piece, learning_rate.LearningRateLAMB):
        decay = piece.eta0  # its step is as large as the weight
    np.testing.assert_allclose(still[0], w * (1 - decay), rtol=(1e-6 if dtype == "float32" else 1e-15) if decay else 0)
    for value, expected in zip(still[1:], zeros, strict=True):
        np.testing.assert_array_equal(value, expected)


@of(BaseLearningRate)
def test_rate_scales_its_step_by_the_schedule(cls):
    if cls is learning_rate.LearningRateAdafactor:
        pytest.skip("its step size has an upper bound; tests/learning/test_optimizers.py")
    w, g = rng().normal(size=(2, 3, 2))
    state = [rng().uniform(0.1, 1, (3, 2)) for _ in cls().state]

    def step(k, **settings):
        new, *states = run_rate(cls(**settings))(w, g, k, *state)
        return w - new, states

    constant_step, constant_states = step(16, eta0=0.5)
    for settings, factor in (
        ({"eta0": 0.25}, 0.5),
        ({"schedule": "invscaling", "eta0": 0.5}, 1 / 4),
        ({"schedule": schedule.InvScalingSchedule(power_t=0.25), "eta0": 0.5}, 1 / 2),
        ({"schedule": schedule.OptimalSchedule(alpha=1e-4)}, 2 / (1e-4 * (1000 + 16))),
    ):
        scaled_step, states = step(16, **settings)
        np.testing.assert_allclose(scaled_step, factor * constant_step, rtol=1e-12)
        np.testing.assert_array_equal(states, constant_states)


@of(BaseLearningRate)
def test_rate_finds_a_minimum(cls):
    # With a constant step, RMSProp circles about the minimum, as torch's does.
    update, target = run_rate(cls(eta0=0.1, schedule=schedule.CosineSchedule(n=400))), rng().normal(size=(3, 2))
    w, *state = [np.zeros(s) for s in ((3, 2), *cls().state_shapes((3, 2)).values())]
    for k in range(1, 401):
        w, *state = update(w, 2 * (w - target), k, *state)
    np.testing.assert_allclose(w, target, atol=1e-3)


@pieces(BaseLearningRate)
def test_rate_keeps_float32_as_torch_would(piece):
    # For a single number: no step may change the dtype of the weight, or lose precision where k is small.
    single, double = run_rate(piece, "float32", ()), run_rate(piece, "float64", ())
    for k in (1, 2, 1000, 10**7):
        feeds = [np.float64(v) for v in (0.0, 0.3)], [np.float64(0.2) for _ in piece.state_shapes(())]
        (w, g), state = feeds
        updated = single(np.float32(w), np.float32(g), k, *map(np.float32, state))[0]
        np.testing.assert_allclose(updated, double(w, g, k, *state)[0], rtol=1e-6)


# Custom pieces.


class CubicLearningLoss(BaseLearningLoss):
    def __call__(self, y, t):
        return op.Abs(y - t) ** 3


class OneRowLoss(BaseLearningLoss):
    def __call__(self, y, t):
        return op.ReduceMax(op.Abs(y - t), [1], keepdims=0)


class LargestPenalty(BaseLearningPenalty):
    def __call__(self, w):
        return op.ReduceMax(op.Abs(w), keepdims=0)


class SignRate(BaseLearningRate):
    def update(self, w, g, *, k):
        return op.Sign(g), ()


class HalvingSchedule(Schedule):
    def __call__(self, eta0, k):
        return eta0 / 2 if k is None else eta0 * op.Pow(constant(0.5, eta0.dtype), k)


@pytest.mark.parametrize("cls", [CubicLearningLoss, OneRowLoss, LargestPenalty, SignRate, HalvingSchedule])
def test_custom_piece(cls):
    piece = cls()
    assert RESOLVE[kind(cls)](piece) is piece
    with pytest.warns(FutureWarning, match=rf"write {cls.__name__}\(\)"):
        assert RESOLVE[kind(cls)](cls) == piece
    assert pickle.loads(pickle.dumps(piece)) == piece
    assert hash(piece) == hash(cls())
    assert repr(piece).startswith(f"{cls.__name__}(")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("cls", [CubicLearningLoss, OneRowLoss])
def test_custom_loss(cls, weighted):
    y, t = rng().normal(size=(2, 4, 3))
    w = np.array([1.0, 0, 2, 3])
    run = _make_runner(cls().build_onnx_function(dtype="float64", shape=["N", 3], weighted=weighted))
    feeds = {"y": y, "t": t, **({"w": w} if weighted else {})}
    outputs = run(feeds)
    rows = (abs(y - t) ** 3).mean(axis=1) if cls is CubicLearningLoss else abs(y - t).max(axis=1)
    np.testing.assert_allclose(outputs["loss"], np.average(rows, weights=w if weighted else None), rtol=1e-12)
    expected = differences(lambda v: run({**feeds, "y": v})["loss"], y)
    np.testing.assert_allclose(outputs["y_grad"], expected, rtol=1e-6, atol=1e-8)


def test_custom_optimizer_and_schedule():
    rate = SignRate(0.1, schedule=HalvingSchedule())
    assert rate == SignRate(eta0=0.1, schedule=HalvingSchedule())
    (w,) = run_rate(rate)(np.zeros((3, 2)), np.ones((3, 2)), 3)
    np.testing.assert_allclose(w, -0.1 / 8)


def test_custom_penalty():
    w = np.array([[1.0, -3], [2, 0]])
    outputs = evaluate(LargestPenalty().build_onnx_function(dtype="float64", shape=[2, 2]), {"w": w})
    np.testing.assert_array_equal(outputs["penalty"], 3)
    np.testing.assert_array_equal(outputs["w_grad"], [[0, -1], [0, 0]])


@pytest.mark.parametrize("base", [BaseLearningLoss, BaseLearningPenalty, BaseLearningRate, Schedule])
def test_a_piece_without_its_formula_cannot_be_made(base):
    with pytest.raises(TypeError, match="abstract method"):
        type("Empty", (base,), {})()


@pieces(BaseLearningLoss)
def test_loss_can_be_differentiated_again(piece):
    y, t = example(piece, fit_shape(piece, (3, 2)))
    v = variable("y", np.float64, y.shape)
    target = variable("t", t.dtype, t.shape)
    (dy,) = grad(op.ReduceMean(piece(v, target), keepdims=0), [v])
    (ddy,) = grad(op.ReduceSum(dy * dy, keepdims=0), [v])
    run = _make_runner(build([v, target], {"dy": dy, "ddy": ddy}))
    expected = differences(lambda u: (run({"y": u, "t": t})["dy"] ** 2).sum(), y)
    np.testing.assert_allclose(run({"y": y, "t": t})["ddy"], expected, rtol=1e-6, atol=1e-9)
