"""Mixed precision with loss scaling, beside float32 and beside torch's GradScaler; a model in another dtype."""

import copy
import pickle

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from models import assert_close, data, images, linear, mlp, net, parameter, torch_linear, weights_of
from numbered_cases import check_case
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from sklearn.datasets import load_digits

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.autodiff import grad
from ortpartial.exceptions import ConvergenceError, ModelError, SettingError
from ortpartial.graph import PRODUCTS, drop_straight_through, topological
from ortpartial.graph.build import build
from ortpartial.graph.control_flow import cond
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.optimizers import LearningRateAdam, LearningRateSGD
from ortpartial.model.load import load
from ortpartial.rewrites.mixed_precision import LossScale, Precision, lower_products, round_products, to_dtype
from ortpartial.runtime import Session

ENGINES = ["step", "epoch"]
X, Y, _ = data(53)
#: So large that the first gradients overflow float32, which happens on any runtime.
HUGE = LossScale(init_scale=2.0**126, growth_interval=4)


def optimizer(model=None, engine="step", **settings):
    usual = {"random_state": 0, "max_iter": 4, "learning_rate": LearningRateAdam(0.01), "precision": "float16"}
    return Optimizer(mlp() if model is None else model, engine=engine, **usual | settings)


def everything(o):
    return [o.train_losses_, *(a.tolist() for kind in ("weight", "optimizer", "buffer") for a in o.get_state(kind))]


def stepped(o, x, y):
    """The outputs of the step's graph from the interpreter of onnx, which rounds each result to its dtype."""
    graph = o._engine.graphs()["step"]
    feeds = {"x": x, "y_target": y, "iteration": np.array(1), **o._engine.snapshot()["arrays"]}
    actual = ReferenceEvaluator(graph).run(None, {i.name: feeds[i.name] for i in graph.graph.input})
    return dict(zip([v.name for v in graph.graph.output], actual, strict=True))


@pytest.mark.filterwarnings("ignore:overflow encountered in multiply")  # HardSigmoid as a mask: infinity becomes 1
@pytest.mark.parametrize("model", [linear, mlp, net], ids=lambda f: f.__name__)
def test_a_step_equals_float32_up_to_rounding(model):
    x, y = (images(10) if model is net else (X[:10], Y[:10]))
    kept = {"train_mode": model is net, "learning_rate": LearningRateSGD(0.1)}
    low, high = (optimizer(model(), precision=p, loss_scale=s, **kept) for p, s in (("float16", 256.0), (None, None)))
    actual, expected = stepped(low, x, y), stepped(high, x, y)
    before = high._engine.snapshot()["arrays"]
    moves = [{n: a[f"{n}_new"] - before[n] for n in before} for a in (actual, expected)]
    assert all(actual[f"{n}_new"].dtype == np.float32 for n in before)
    assert_close(*moves, 20 * 2.0**-11)
    assert any((moves[0][n] != moves[1][n]).any() for n in before)  # float16 it is


def test_only_products_are_low():
    """A softmax, a mean and what follows them, up to the next product, are float32."""
    x = variable("x", "float32", ["N", 4])
    h = op.Relu(x @ parameter("U", 4, 4))
    h = op.Softmax(h) * parameter("s", 4) + h
    model = build([x], {"y": h @ parameter("V", 4, 2)})
    graph = onnx.shape_inference.infer_shapes(optimizer(model)._engine.graphs()["step"])
    types = {v.name: v.type.tensor_type.elem_type for v in [*graph.graph.value_info, *graph.graph.output]}
    low = [n for n in graph.graph.node if types.get(n.output[0]) == TensorProto.FLOAT16]
    assert {"MatMul", "Relu", "Gemm"} <= {n.op_type for n in low}
    assert not {"Softmax", "Div", "ReduceMean"} & {n.op_type for n in low}
    assert next(n for n in graph.graph.node if n.op_type == "Add") not in low


def lower_some():
    """A product, a Relu that follows it, and a softmax."""
    x, w = variable("x", "float32", ["N", 4]), variable("w", "float32", [4, 4])
    return lower_products([op.Softmax(op.Relu(x @ w))], np.dtype(np.float16), [w])


def round_some():
    x, w = variable("x", "float32", ["N", 4]), variable("w", "float32", [4, 4])
    return round_products([op.Transpose(x) @ op.Softmax(x @ w)], np.dtype(ml_dtypes.bfloat16))


def count_roundings(values):
    """The operands of products, and how many casts to bfloat16 there are."""
    nodes = topological(values)
    products = [v for n in nodes if n.op_type in PRODUCTS for v in n.reads[:2]]
    return products, sum(n.op_type == "Cast" and n.outputs[0].dtype == ml_dtypes.bfloat16 for n in nodes)


def test_operands_are_rounded_once():
    """Before and behind a Transpose, in the model and in its gradient; and a second time nothing changes."""
    x, w = variable("x", "float32", [5, 4]), variable("w", "float32", [4, 4])
    dtype = np.dtype(ml_dtypes.bfloat16)
    y = op.Transpose(x) @ op.Tanh(x @ w)
    lowered = round_products([y], dtype)[y]
    gradients = Precision(dtype, 1.0, rounds=True).finish(grad(op.ReduceSum(lowered, keepdims=0), [w, x]))
    again = round_products([lowered, *gradients], dtype)
    assert [again.get(v, v) for v in (lowered, *gradients)] == [lowered, *gradients]
    step = drop_straight_through([lowered, *gradients])
    products, casts = count_roundings(step)
    assert len(products) == 2 * 6
    assert casts == 5  # x, w, the result of Tanh, and what comes back to each of both products
    assert all(v.dtype == np.float32 for v in products)


def test_gradients_pass_the_rounding():
    """The gradient of a rounded product is that of the product by rounded operands, in float32."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(4, 2)).astype(np.float32)
    x, w = variable("x", "float32", [3, 4]), variable("w", "float32", [4, 2])
    y = x @ w
    rounded = round_products([y], np.dtype(ml_dtypes.bfloat16))[y]
    (dw,) = Precision(np.dtype(ml_dtypes.bfloat16), 1.0, rounds=True).finish(grad(op.ReduceSum(rounded * rounded,
                                                                                                 keepdims=0), [w]))
    actual = Session(build([x, w], {"dw": dw})).run({"x": a, "w": b})["dw"]
    low = [v.astype(ml_dtypes.bfloat16).astype(np.float64) for v in (a, b)]
    back = (2 * (low[0] @ low[1])).astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    np.testing.assert_allclose(actual, low[0].T @ back, rtol=1e-2, atol=1e-2)
    assert (actual.astype(ml_dtypes.bfloat16) != actual).any()  # sums are not rounded


def widen_some():
    """A constant, the scales of Resize, and a dequantization, of which the last two are of float32 alone."""
    x, q = variable("x", "float32", ["N", 1, 3]), variable("q", "int8", ["N", 1, 6])
    y = op.Resize(x * 0.5, None, np.float32([1, 1, 2]), mode="nearest")
    return to_dtype(load(build([x, q], {"y": y + op.DequantizeLinear(q, np.float32(0.1))})), np.float64)


NUMBERED = {
    **dict.fromkeys(["lower_products 1", "lower_products 2", "lower_products 3"], lower_some),
    "round_products 1": round_some,
    **dict.fromkeys(["to_dtype 1", "to_dtype 2", "to_dtype 3"], widen_some),
}


@pytest.mark.parametrize("case", NUMBERED)
def test_numbered_case(case):
    check_case(case, NUMBERED[case])


def test_grad_scaler_of_torch():
    """The scale, the skipped steps and the weights are those of a GradScaler with the same gradients."""
    o = optimizer(linear(), loss_scale=HUGE, shuffle=False, batch_size=10, max_iter=1)
    w = {n: torch.tensor(a, requires_grad=True) for n, a in weights_of(linear()).items()}
    rate = torch.optim.Adam(w.values(), lr=0.01)
    scale, row, skipped = 2.0**126, 0, 0
    for epoch in range(4):
        o.partial_fit(X[:50], 100 * Y[:50])
        for i in range(0, 50, 10):
            rate.zero_grad()
            loss = ((torch_linear(w, torch.tensor(X[i : i + 10])) - torch.tensor(100 * Y[i : i + 10])) ** 2).mean()
            (loss * scale).backward()
            if all(torch.isfinite(v.grad).all() for v in w.values()):
                for v in w.values():
                    v.grad /= scale
                rate.step()
                row += 1
                scale, row = (min(scale * 2, 2.0**126), 0) if row == 4 else (scale, row)
            else:
                scale, row, skipped = scale / 2, 0, skipped + 1
        assert [float(a) for a in o.get_state("buffer")] == [scale, row, skipped], epoch
    assert 0 < skipped < 20
    assert_close(o.trained_coef_, {n: v.detach().numpy() for n, v in w.items()}, 2e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_skipped_step_changes_only_the_scale(engine):
    o = optimizer(net(), engine, train_mode=True, loss_scale=LossScale(init_scale=2.0**126))
    x, y = images(10)
    before = everything(o)
    o.partial_fit(x, 1e3 * y)
    after = everything(o)
    n = len(o.get_state())
    assert after[1 : n + 1] == before[1 : n + 1]  # weights
    assert [a.tolist() for a in o.get_state("optimizer")[:-1]] == before[n + 1 : -len(o.get_state("buffer")) - 1]
    *kept, scale, row, skipped = o.get_state("buffer")
    assert [a.tolist() for a in kept] == before[-len(kept) - 3 : -3]  # running statistics and seed
    assert (scale, row, skipped) == (2.0**125, 0, 1)
    assert np.isfinite(o.train_losses_).all()


@pytest.mark.parametrize("rows", [50, 53])
@pytest.mark.parametrize("scale", [None, HUGE, 256.0])
def test_step_and_epoch_are_equal_bit_for_bit(rows, scale):
    a, b = (optimizer(engine=e, loss_scale=scale).fit(X[:rows], 100 * Y[:rows]) for e in ENGINES)
    assert everything(a) == everything(b)
    assert a.train_losses_[-1] < a.train_losses_[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_training_continues(engine):
    whole = optimizer(engine=engine, loss_scale=HUGE).fit(X, 100 * Y)
    part = optimizer(engine=engine, loss_scale=HUGE, max_iter=2).fit(X, 100 * Y)
    other = optimizer(engine=engine, loss_scale=HUGE)
    for kind in ("weight", "optimizer", "buffer"):
        other.set_state(part.get_state(kind), kind)
    other._rng = copy.deepcopy(part._rng)
    for o in (pickle.loads(pickle.dumps(part)), part, other):
        for _ in range(2):
            o.partial_fit(X, 100 * Y)
        assert everything(o)[1:] == everything(whole)[1:]
    assert everything(whole.fit(X, 100 * Y)) == everything(optimizer(engine=engine, loss_scale=HUGE).fit(X, 100 * Y))


def test_a_model_of_float64():
    low, high = (optimizer(mlp(dtype="float64"), precision=p).fit(X, Y) for p in ("float16", None))
    assert low.get_state()[0].dtype == np.float64
    assert_close(low.trained_coef_, high.trained_coef_, 1e-2)
    assert (low.get_state()[0] != high.get_state()[0]).any()


def test_a_fixed_scale_skips_nothing():
    with pytest.raises(ConvergenceError, match="the weights are those of iteration 0"):
        optimizer(loss_scale=2.0**127).fit(X, Y)
    assert optimizer(loss_scale=128).get_state("buffer") == []
    assert optimizer(precision="bfloat16").get_state("buffer") == []


def test_large_constants_stay_finite():
    """-1e38, as attention masks have it, stays finite in float16, where a row of infinities would be NaN."""
    x = variable("x", "float32", ["N", 4])
    model = build([x], {"y": x @ parameter("U", 4, 2) + constant(np.full(2, -1e38, np.float32))})
    o = optimizer(model, weights_to_train=["U"], loss_scale=0.25)
    assert stepped(o, X[:5], np.zeros((5, 2), np.float32))["loss"] < np.inf


def test_trained_models_are_float32():
    o = optimizer().fit(X, Y)
    trained = o.get_trained_onnx()
    assert {t.data_type for t in trained.graph.initializer} == {TensorProto.FLOAT}
    assert [n.op_type for n in trained.graph.node] == [n.op_type for n in mlp().graph.node]
    assert (o.predict(X).dtype, o.get_state()[0].dtype) == (np.float32, np.float32)
    assert o.set_params(precision=None).precision is None
    assert o.get_params()["precision"] is None


@pytest.mark.parametrize("model", [mlp, pytest.param(net, marks=pytest.mark.slow)], ids=["mlp", "net"])
def test_bfloat16_on_a_processor_rounds_operands(model):
    """All engines compute the same numbers, and float32 but for the rounding: operands have 8 bits, sums 24."""
    x, y = images(30) if model is net else (X, Y)
    low, again, native, high = (
        optimizer(model(), engine, precision=p, loss_scale=None, train_mode=model is net).fit(x, y)
        for engine, p in (("step", "bfloat16"), ("epoch", "bfloat16"), ("native", "bfloat16"), ("step", None)))
    assert everything(low) == everything(again)
    assert_close(native.trained_coef_, low.trained_coef_, 1e-4)
    assert_close(low.trained_coef_, high.trained_coef_, 5e-3)
    assert any((a != b).any() for a, b in zip(low.get_state(), high.get_state(), strict=True))
    assert all(a.dtype == np.float32 for a in low.get_state() + low.get_state("optimizer")[:-1])


def test_accuracy_on_digits_is_that_of_float32():
    """Within half a point, by the engine that computes products in bfloat16."""
    digits = load_digits()
    X, y = (digits.data / 16).astype(np.float32), digits.target
    rng = np.random.default_rng(0)
    x = variable("x", "float32", ["N", 64])
    u, v = (constant((rng.normal(size=s) / np.sqrt(s[0])).astype(np.float32), hint=n)
            for s, n in (((64, 48), "U"), ((48, 10), "V")))
    model = build([x], {"y": op.Relu(x @ u) @ v})
    rows = rng.permutation(len(X))
    scores = [(np.argmax(optimizer(model, "native", precision=p, loss_scale=None, batch_size=32, max_iter=12,
                                   learning_loss="softmax_cross_entropy", weights_to_train=["U", "V"])
                         .fit(X[rows[:1200]], y[rows[:1200]]).predict(X[rows[1200:]]), axis=1) == y[rows[1200:]]).mean()
              for p in ("bfloat16", None)]
    assert min(scores) > 0.94
    assert abs(scores[0] - scores[1]) <= 0.005


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("engine", ENGINES)
def test_cuda(precision, engine):
    low, high = (optimizer(engine=engine, device="cuda", precision=p).fit(X, Y) for p in (precision, None))
    assert_close(low.trained_coef_, high.trained_coef_, 5e-2)
    assert any((a != b).any() for a, b in zip(low.get_state(), high.get_state(), strict=True))


def branches():
    x = variable("x", "float32", ["N", 4])
    y = x @ parameter("U", 4, 1)
    return build([x], {"y": cond(op.ReduceSum(x, keepdims=0) > 0, lambda: y, lambda: 2 * y)})


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"precision": "float8"}, SettingError, "precision is None, 'float16' or 'bfloat16', not 'float8'"),
        ({"precision": None, "loss_scale": 2.0}, SettingError, "loss_scale belongs to precision='float16' or"),
        ({"loss_scale": -1.0}, SettingError, "loss_scale is None, a LossScale or a number above 0, not -1.0"),
        ({"loss_scale": "dynamic"}, SettingError, "loss_scale is None, a LossScale or a number above 0"),
        ({"engine": "agent"}, SettingError, "precision='float16' trains with engine='step' or 'epoch', in one process"),
        ({"distributed": True}, SettingError, "in one process, not distributed=True"),
        ({"model": linear(dtype="float16")}, ModelError, "'coef' holds float16, and precision='float16' is for"),
        ({"model": branches()}, ModelError, "has a graph inside, and precision='float16' trains none that has one"),
    ],
    ids=range(8),
)
def test_errors(settings, error, message):
    with pytest.raises(error, match=message):
        optimizer(**settings)


@pytest.mark.parametrize("wrong", [{"init_scale": 0.0}, {"growth_factor": 0.5}, {"backoff_factor": 2.0},
                                   {"growth_interval": 0}])
def test_invalid_scales(wrong):
    with pytest.raises(SettingError, match="needs a scale above 0"):
        LossScale(**wrong)


def test_error_of_an_export():
    with pytest.raises(SettingError, match=r"precision='float16' is not written in style 'standard'.*style='lowered'"):
        optimizer().get_training_onnx()


def test_a_model_in_another_dtype():
    """Every real number is cast but for those that an operator takes in one dtype alone."""
    x = variable("x", "float32", ["N", 1, 3])
    y = op.Resize(x * 0.5, None, np.float32([1, 1, 2]), mode="nearest")
    y = op.Cast(op.Cast(y, to=TensorProto.FLOAT16), to=TensorProto.FLOAT) + constant(np.float32([1.5]), hint="w")
    y = y + op.ConstantOfShape(op.Shape(y), value=np.float32([2]))
    converted = to_dtype(load(build([x], {"y": y, "i": op.ArgMax(y)})), np.float64)
    graph = build(converted.inputs, converted.outputs).graph
    kinds = {n.op_type: [a for a in n.attribute if a.name == "to"] for n in graph.node}
    assert [a.i for a in kinds["Cast"]] == [TensorProto.DOUBLE]
    resize = next(n for n in graph.node if n.op_type == "Resize")
    stored = {t.name: t.data_type for t in graph.initializer}
    assert stored[resize.input[2]] == TensorProto.FLOAT
    assert stored["w"] == TensorProto.DOUBLE
    assert [v.dtype.name for v in converted.outputs.values()] == ["float64", "int64"]
    onnx.checker.check_model(build(converted.inputs, converted.outputs), full_check=True)
