"""Optimizers, beside those of torch."""

import numpy as np
import pytest
import torch
from reference_optimizers import LAMB, Lion

from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import SettingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.optimizers import (
    LearningRateAdafactor,
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateAdamW,
    LearningRateLAMB,
    LearningRateLion,
    LearningRateNAdam,
    LearningRateRAdam,
    LearningRateRMSProp,
    LearningRateSGD,
    LearningRateSGDNesterov,
    resolve_rate,
)
from ortpartial.learning.schedules import (
    CosineRestartsSchedule,
    CosineSchedule,
    InvScalingSchedule,
    OneCycleSchedule,
    PolynomialSchedule,
    StepSchedule,
    WarmUpSchedule,
)
from ortpartial.runtime.session import Session
from ortpartial.testing import evaluate

# The rate, and what makes it in torch.
TABLE = [
    (LearningRateSGD(0.05), lambda p: torch.optim.SGD(p, lr=0.05)),
    (LearningRateSGDNesterov(), lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True)),
    (LearningRateSGDNesterov(0.05, momentum=0.5), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5, nesterov=True)),
    (LearningRateSGDNesterov(0.05, nesterov=False), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    (LearningRateSGDNesterov(0.05, momentum=0), lambda p: torch.optim.SGD(p, lr=0.05)),
    (LearningRateAdam(), lambda p: torch.optim.Adam(p)),
    (LearningRateAdam(0.05, beta1=0.8, beta2=0.95, epsilon=1e-3),
     lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3)),
    (LearningRateAdam(0.05, beta1=0, beta2=0), lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.0, 0.0))),
    (LearningRateAdamW(), lambda p: torch.optim.AdamW(p)),
    (LearningRateAdamW(0.05, weight_decay=0.3, beta1=0.8, beta2=0.95, epsilon=1e-3),
     lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.3, betas=(0.8, 0.95), eps=1e-3)),
    (LearningRateAdamW(0.05, weight_decay=0), lambda p: torch.optim.Adam(p, lr=0.05)),
    (LearningRateAdagrad(), lambda p: torch.optim.Adagrad(p)),
    (LearningRateAdagrad(0.5, epsilon=1e-2), lambda p: torch.optim.Adagrad(p, lr=0.5, eps=1e-2)),
    (LearningRateRMSProp(), lambda p: torch.optim.RMSprop(p)),
    (LearningRateRMSProp(0.05, alpha=0.9, epsilon=1e-3),
     lambda p: torch.optim.RMSprop(p, lr=0.05, alpha=0.9, eps=1e-3)),
    (LearningRateRMSProp(momentum=0.8), lambda p: torch.optim.RMSprop(p, momentum=0.8)),
    (LearningRateRMSProp(centered=True), lambda p: torch.optim.RMSprop(p, centered=True)),
    (LearningRateRMSProp(momentum=0.8, centered=True), lambda p: torch.optim.RMSprop(p, momentum=0.8, centered=True)),
    (LearningRateNAdam(), lambda p: torch.optim.NAdam(p)),
    (LearningRateNAdam(0.05, beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.3, momentum_decay=0.2),
     lambda p: torch.optim.NAdam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3, momentum_decay=0.2,
                                 decoupled_weight_decay=True)),
    (LearningRateNAdam(momentum_decay=1e-9), lambda p: torch.optim.NAdam(p, momentum_decay=1e-9)),
    (LearningRateRAdam(0.05), lambda p: torch.optim.RAdam(p, lr=0.05)),
    (LearningRateRAdam(0.05, beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.3),
     lambda p: torch.optim.RAdam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3,
                                 decoupled_weight_decay=True)),
    (LearningRateLion(), lambda p: Lion(p)),
    (LearningRateLion(0.01, beta1=0.8, beta2=0.9, weight_decay=0.3),
     lambda p: Lion(p, lr=0.01, betas=(0.8, 0.9), weight_decay=0.3)),
    (LearningRateLAMB(), lambda p: LAMB(p)),
    (LearningRateLAMB(0.05, beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.3),
     lambda p: LAMB(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)),
    (LearningRateLAMB(0.05, weight_decay=0, epsilon=1e-8), lambda p: torch.optim.Adam(p, lr=0.05)),
    (LearningRateLAMB(0.05, weight_decay=0, always_adapt=True),
     lambda p: LAMB(p, lr=0.05, weight_decay=0, always_adapt=True)),
    (LearningRateAdafactor(), lambda p: torch.optim.Adafactor(p)),
    (LearningRateAdafactor(1.0, weight_decay=0.1), lambda p: torch.optim.Adafactor(p, lr=1.0, weight_decay=0.1)),
    (LearningRateAdafactor(0.5, decay_power=0.5, epsilon=1e-3, least_scale=0.5, threshold=1.2),
     lambda p: torch.optim.Adafactor(p, lr=0.5, beta2_decay=-0.5, eps=(1e-3, 0.5), d=1.2)),
]
A_STEP = pytest.mark.parametrize(("rate", "in_torch"), TABLE, ids=lambda v: repr(v) if not callable(v) else "")


def train(rate, w, gradient, steps):
    """The weight after each of some steps of the update graph."""
    run = Session(rate.build_onnx_function(dtype=w.dtype, shape=w.shape)).run
    values = {s: np.zeros(shape, w.dtype) for s, shape in rate.state_shapes(w.shape).items()}
    for k in range(1, steps + 1):
        actual = run({"w": w, "g": gradient(w, k), "k": np.array(k), **values})
        w, values = actual["w_out"], {s: actual[f"{s}_out"] for s in values}
        yield w


def train_torch(in_torch, w, gradient, steps, factor=None):
    p = torch.nn.Parameter(torch.tensor(w))
    optimizer = in_torch([p])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor or (lambda step: 1.0))
    for k in range(1, steps + 1):
        p.grad = torch.tensor(gradient(p.detach().numpy(), k))
        optimizer.step()
        scheduler.step()
        yield p.detach().numpy().copy()


def noisy(dtype, shape=(4, 3)):
    """The gradient of a quadratic with noise, which depends on the weight and on the batch."""
    rng = np.random.default_rng(0)
    noise, scale = rng.normal(size=(101, *shape)).astype(dtype), rng.uniform(0.1, 2, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype), lambda w, k: scale * w + noise[k]


def tolerate(rate, dtype):
    """How far a weight may be off, in parts of the largest one."""
    if dtype == "float64":
        return 1e-7 if isinstance(rate, LearningRateNAdam) else 1e-13  # torch multiplies its momenta in float32
    # torch rounds 1 - ηλ to float32, and is 2.4e-6 off float64 itself where ours is 1.2e-6 off.
    return 4e-6 if getattr(rate, "weight_decay", 0) else 2e-6


@A_STEP
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hundred_steps_of_torch(rate, in_torch, dtype):
    w, gradient = noisy(dtype)
    tolerance = tolerate(rate, dtype)
    for k, (actual, expected) in enumerate(zip(train(rate, w, gradient, 100), train_torch(in_torch, w, gradient, 100),
                                              strict=True), 1):
        assert abs(actual - expected).max() <= tolerance * abs(expected).max(), f"step {k}"


@pytest.mark.sampled(3)
@A_STEP
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 2, 3, 3), (1, 4)], ids=str)
def test_fifty_steps_of_torch_in_other_shapes(rate, in_torch, dtype, shape):
    w, gradient = noisy(dtype, shape)
    *_, actual = train(rate, w, gradient, 50)
    *_, expected = train_torch(in_torch, w, gradient, 50)
    assert abs(actual - expected).max() <= tolerate(rate, dtype) * abs(expected).max()


@A_STEP
def test_hundred_steps_of_torch_with_a_schedule(rate, in_torch):
    rate = type(rate)(**{**vars(rate), "schedule": InvScalingSchedule(power_t=0.25)})
    w, gradient = noisy("float64")
    *_, actual = train(rate, w, gradient, 100)
    *_, expected = train_torch(in_torch, w, gradient, 100, lambda step: (step + 1) ** -0.25)
    assert abs(actual - expected).max() <= tolerate(rate, "float64") * abs(expected).max()


def test_momentum_of_nadam():
    """The product of all momenta follows from k, where torch multiplies them, in float32."""
    for decay in (0.004, 1e-9, 0.3, 20):
        rate, k = LearningRateNAdam(momentum_decay=decay), variable("k", np.int64, [])
        graph = build([k], {"product": rate._product(k)})
        momenta = 0.9 * (1 - 0.5 * 0.96 ** (np.arange(1, 2001) * decay))
        for i in (1, 2, 3, 10, 100, 2000):
            actual = evaluate(graph, {"k": np.array(i)})["product"]
            np.testing.assert_allclose(actual, np.prod(momenta[:i]), rtol=1e-12, atol=1e-300)


schedulers = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    ("schedule", "in_torch"),
    [
        (CosineSchedule(n=100, minimum=1e-3), lambda o: schedulers.CosineAnnealingLR(o, 100, eta_min=1e-3)),
        (CosineRestartsSchedule(n=17, minimum=1e-3),
         lambda o: schedulers.CosineAnnealingWarmRestarts(o, 17, eta_min=1e-3)),
        (CosineRestartsSchedule(n=9, factor=3), lambda o: schedulers.CosineAnnealingWarmRestarts(o, 9, T_mult=3)),
        (PolynomialSchedule(n=80), lambda o: schedulers.PolynomialLR(o, 80)),
        (PolynomialSchedule(n=120, power=2.5), lambda o: schedulers.PolynomialLR(o, 120, power=2.5)),
        (StepSchedule(n=30, factor=0.5), lambda o: schedulers.StepLR(o, 30, gamma=0.5)),
        (OneCycleSchedule(n=101), lambda o: schedulers.OneCycleLR(o, 0.05, total_steps=101, cycle_momentum=False)),
        (WarmUpSchedule(n=20), lambda o: schedulers.LinearLR(o, start_factor=1 / 20, total_iters=19)),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hundred_steps_of_torch_with_its_scheduler(schedule, in_torch, dtype):
    w, gradient = noisy(dtype)
    rate = LearningRateAdamW(0.05, weight_decay=0.3, schedule=schedule)
    p = torch.nn.Parameter(torch.tensor(w))
    optimizer = torch.optim.AdamW([p], lr=0.05, weight_decay=0.3)
    scheduler = in_torch(optimizer)
    tolerance = 4e-6 if dtype == "float32" else 1e-13
    for k, actual in enumerate(train(rate, w, gradient, 100), 1):
        p.grad = torch.tensor(gradient(p.detach().numpy(), k))
        optimizer.step()
        scheduler.step()
        expected = p.detach().numpy()
        assert abs(actual - expected).max() <= tolerance * abs(expected).max(), f"step {k}"


def test_weight_decay_is_decoupled(rng):
    w, zero = rng.normal(size=3), np.zeros(3)
    model = LearningRateAdamW(0.1, weight_decay=0.5).build_onnx_function(dtype="float64", shape=[3])
    actual = evaluate(model, {"w": w, "g": zero, "k": np.array(1), "m": zero, "v": zero})
    np.testing.assert_allclose(actual["w_out"], w * (1 - 0.1 * 0.5), rtol=1e-15)
    assert not actual["m_out"].any()


@pytest.mark.parametrize(
    ("settings", "state"),
    [({}, ("v",)), ({"momentum": 0.5}, ("v", "b")), ({"centered": True}, ("v", "a")),
     ({"momentum": 0.5, "centered": True}, ("v", "a", "b"))],
)
def test_state_of_rmsprop(settings, state):
    assert LearningRateRMSProp(**settings).state == state


def test_variance_of_a_constant_gradient_is_not_negative():
    # In float32, v - a² is -1e-8 at times where all gradients were the same, and its root would be no number.
    w, g = np.zeros(5, np.float32), np.array([0.1, 0.3, 0.7, 1.1, 3.3], np.float32)
    *_, actual = train(LearningRateRMSProp(centered=True, alpha=0.1), w, lambda w, k: g, 100)
    assert np.isfinite(actual).all()


def test_adam_equals_its_paper(rng):
    w, g, m, v = rng.uniform(0.1, 1, size=(4, 3))
    m1, v1 = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
    step = m1 / (1 - 0.8**7) / (np.sqrt(v1 / (1 - 0.95**7)) + 1e-3)
    rate = LearningRateAdam(0.1, beta1=0.8, beta2=0.95, epsilon=1e-3)
    actual = evaluate(rate.build_onnx_function(dtype="float64", shape=[3]),
                     {"w": w, "g": g, "k": np.array(7), "m": m, "v": v})
    for name, expected in (("w_out", w - 0.1 * step), ("m_out", m1), ("v_out", v1)):
        np.testing.assert_allclose(actual[name], expected, rtol=1e-13)


def test_first_step_of_adam_is_eta0_in_float32():
    # 1 - 0.999 in float32 would be 1.3e-5 off, and a half of that would reach the weight.
    zero = np.zeros(1, np.float32)
    model = LearningRateAdam(1.0, epsilon=1e-30).build_onnx_function(shape=[1])
    actual = evaluate(model, {"w": zero, "g": zero + 3, "k": np.array(1), "m": zero, "v": zero})["w_out"]
    np.testing.assert_allclose(actual, -1, rtol=3e-7)


@pytest.mark.parametrize(
    ("rate", "nodes"),
    [(LearningRateSGD(), 2), (LearningRateSGDNesterov(), 8), (LearningRateSGDNesterov(nesterov=False), 6),
     (LearningRateAdam(), 24), (LearningRateAdamW(), 26), (LearningRateAdamW(weight_decay=0), 24),
     (LearningRateAdagrad(), 7), (LearningRateRMSProp(), 11), (LearningRateRMSProp(momentum=0.9), 13),
     (LearningRateSGD(weight_decay=0.1), 4), (LearningRateLion(), 11), (LearningRateNAdam(), 48),
     (LearningRateRAdam(), 41), (LearningRateLAMB(), 37), (LearningRateAdafactor(), 35)],
    ids=repr,
)
def test_number_of_operators(rate, nodes):
    assert len(rate.build_onnx_function(shape=[3, 2]).graph.node) == nodes


def test_counters_of_adam_are_shared_by_all_weights():
    k, rate, outputs = variable("k", np.int64, []), LearningRateAdam(), {}
    inputs = {"k": k}
    for i in range(3):
        values = {n + str(i): variable(n, "float32", [3]) for n in ("w", "g", "m", "v")}
        w, g, m, v = values.values()
        inputs.update(values)
        outputs.update({f"{i}{j}": u for j, u in enumerate(rate.apply(w, g, k, m, v))})
    assert len(build(inputs, outputs).graph.node) == 3 * 12 + 12


@pytest.mark.parametrize("schedule", ["constant", "invscaling"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("trained", ["left", "right"])
def test_step_of_a_product_of_matrices(rng, schedule, dtype, trained):
    a, b, c = (rng.normal(size=s).astype(dtype) for s in ((5, 4), (4, 3), (5, 3)))
    x, y, t = (variable(n, dtype, v.shape) for n, v in (("x", a), ("y", b), ("t", c)))
    w, weight = (x, a) if trained == "left" else (y, b)
    (g,) = grad(op.ReduceSum(x @ y * t, keepdims=0), [w])
    k = variable("k", np.int64, [])
    (new,) = LearningRateSGD(0.1, schedule=schedule).apply(w, g, k)
    expected = weight - 0.1 / (4**0.5 if schedule == "invscaling" else 1) * (c @ b.T if trained == "left" else a.T @ c)
    actual = evaluate(build([x, y, t, k], {"new": new}), {"x": a, "y": b, "t": c, "k": np.array(4)})["new"]
    np.testing.assert_allclose(actual, expected, rtol=1e-12 if dtype == "float64" else 1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("SGD", LearningRateSGD()), ("LearningRateSGD", LearningRateSGD()), (0.5, LearningRateSGD(0.5)),
        (1, LearningRateSGD(1.0)), (np.float32(0.5), LearningRateSGD(0.5)), ("Nesterov", LearningRateSGDNesterov()),
        ("SGDNesterov", LearningRateSGDNesterov()), ("LearningRateSGDNesterov", LearningRateSGDNesterov()),
        ("AdamW", LearningRateAdamW()), ("Adagrad", LearningRateAdagrad()), ("RMSProp", LearningRateRMSProp()),
        ("rmsprop", LearningRateRMSProp()), ("LearningRateAdamW", LearningRateAdamW(weight_decay=0.01)),
        ("nadam", LearningRateNAdam()), ("RAdam", LearningRateRAdam()), ("lion", LearningRateLion()),
        ("lamb", LearningRateLAMB()), ("adafactor", LearningRateAdafactor()),
        ("Adam", LearningRateAdam()), ("adam", LearningRateAdam()),
    ],
)
def test_names(choice, expected):
    assert resolve_rate(choice) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LearningRateSGD(0), "LearningRateSGD: eta0 is 0, a finite number more than 0 was expected."),
        (lambda: LearningRateSGD("fast"), "LearningRateSGD: eta0 is 'fast', a finite number more than 0 was expected."),
        (lambda: LearningRateSGDNesterov(momentum=1),
         "LearningRateSGDNesterov: momentum is 1, a finite number at least 0 and less than 1 was expected."),
        (lambda: LearningRateAdam(beta1=1.0),
         "LearningRateAdam: beta1 is 1.0, a finite number at least 0 and less than 1 was expected."),
        (lambda: LearningRateAdam(beta2=-0.1), "LearningRateAdam: beta2 is -0.1, a finite number at least 0 and less "),
        (lambda: LearningRateAdam(epsilon=0), "LearningRateAdam: epsilon is 0, a finite number more than 0 was "),
        (lambda: LearningRateAdamW(weight_decay=-0.1),
         "LearningRateAdamW: weight_decay is -0.1, a finite number at least 0 was expected."),
        (lambda: LearningRateAdam(weight_decay=0.1),
         "LearningRateAdam has no setting 'weight_decay'; did you mean LearningRateAdamW(weight_decay=0.01)?"),
        (lambda: LearningRateRMSProp(weight_decay=0.1),
         "LearningRateRMSProp has no setting 'weight_decay'; did you mean LearningRateAdamW(weight_decay=0.01)?"),
        (lambda: LearningRateAdafactor(epsilon=0), "LearningRateAdafactor: epsilon is 0, a finite number more than 0 "),
        (lambda: resolve_rate("Adafctor"), "learning_rate: 'Adafctor' is not known. Did you mean 'Adafactor'? Known "),
        (lambda: resolve_rate("adamw_torch"), "learning_rate: 'adamw_torch' is not known. Did you mean 'AdamW'?"),
        (lambda: resolve_rate("FusedLAMB"), "learning_rate: 'FusedLAMB' is not known. Did you mean 'LAMB'? Known "),
        (lambda: resolve_rate("SGDW"),
         "learning_rate: 'SGDW' is not known. Did you mean LearningRateSGD(weight_decay=0.01)? Known "),
        (lambda: LearningRateAdagrad(epsilon=0),
         "LearningRateAdagrad: epsilon is 0, a finite number more than 0 was expected."),
        (lambda: LearningRateRMSProp(alpha=1),
         "LearningRateRMSProp: alpha is 1, a finite number at least 0 and less "),
        (lambda: LearningRateRMSProp(momentum=1.5),
         "LearningRateRMSProp: momentum is 1.5, a finite number at least 0 "),
        (lambda: LearningRateSGD(schedule="quick"), "schedule: 'quick' is not known. Known are constant, "),
        (lambda: resolve_rate(-0.1), "LearningRateSGD: eta0 is -0.1, a finite number more than 0 was expected."),
        (lambda: resolve_rate(True), "learning_rate: True is a bool; a name (SGD, Nesterov, Adam, AdamW, "),
        (lambda: resolve_rate("0.1"), "learning_rate: '0.1' is a string; did you mean the number 0.1?"),
        (lambda: resolve_rate("Adan"), "learning_rate: 'Adan' is not known. Did you mean 'Adam'? Known are SGD, "),
    ],
)
def test_errors(make, message):
    with pytest.raises((SettingError, TypeError)) as e:
        make()
    assert str(e.value).startswith(message)


def test_steps_follow_the_schedule():
    # k is an int64: as a float32 it is exact up to 2^24 and good to 6e-8 beyond.
    k = variable("k", np.int64, [])
    eta = InvScalingSchedule(power_t=1)(constant(1.0), k)
    actual = evaluate(build({"k": k}, {"eta": eta}), {"k": np.array(10**10)})["eta"]
    np.testing.assert_allclose(actual, 1e-10, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("rate", "factors"),
    [(LearningRateSGDNesterov(momentum=0.7), {"v": 0.7}), (LearningRateAdam(), {"m": 0.9, "v": 0.999}),
     (LearningRateAdamW(beta2=0.99), {"m": 0.9, "v": 0.99}), (LearningRateRMSProp(), {"v": 0.99}),
     (LearningRateRMSProp(momentum=0.7, centered=True), {"v": 0.99, "a": 0.99, "b": 0.7}),
     (LearningRateNAdam(), {"m": 0.9, "v": 0.999}), (LearningRateRAdam(), {"m": 0.9, "v": 0.999}),
     (LearningRateLAMB(), {"m": 0.9, "v": 0.999}), (LearningRateLion(), {"m": 0.99})], ids=repr)
def test_denormal_states_become_zero_every_32nd_batch(rate, factors, dtype):
    tiny = np.finfo(dtype).tiny
    s = np.array([tiny / 2**20, tiny * 0.99, tiny, tiny * 1.01, 1, np.nan], dtype)
    run = Session(rate.build_onnx_function(dtype=dtype, shape=s.shape)).run
    feeds = {"w": np.zeros_like(s), "g": np.zeros_like(s), **dict.fromkeys(rate.state, s)}
    for k, before in ((31, s), (32, np.where(s < tiny, 0, s)), (33, s)):
        after = run({**feeds, "k": np.array(k)})
        for n, beta in factors.items():
            np.testing.assert_array_equal(after[f"{n}_out"], np.array(beta, dtype) * before)


def test_float16_keeps_its_denormal_numbers():
    model = LearningRateAdam().build_onnx_function(dtype="float16", shape=[3])
    assert "If" not in {node.op_type for node in model.graph.node}
