"""The cost model of engine "auto": the cost of a step, and when compiling it pays off."""

from dataclasses import replace

import numpy as np
import pytest
from models import mlp

from ortpartial.graph import constant, op, scan, variable
from ortpartial.learning import LearningRateAdam, LearningRateSGD, SquareLearningLoss
from ortpartial.model import load
from ortpartial.native import cost as cost_module
from ortpartial.native.cost import StepCost, estimate_cost
from ortpartial.training import TrainingSpec, step_values

SMALL = StepCost(nodes=40, flops=29_000, numbers=39_000, rows=2, length=40, products=6)


def cost(batch, rate, hidden=100, features=20):
    """What a step of a perceptron costs."""
    model = load(mlp(features, 1, hidden=hidden))
    weights = tuple(n for n, v in model.initializers.items() if v.is_float and v.rank)
    loss = {next(iter(model.outputs)): SquareLearningLoss()}
    spec = TrainingSpec(model, weights, loss, rate=rate, branches=False).for_batch(batch)
    inputs, outputs = step_values(spec)
    rows = [v for n, v in inputs.items() if spec.names.new(n) not in outputs and v.rank]
    return estimate_cost(outputs.values(), rows)


def test_step_is_measured():
    c = cost(32, LearningRateSGD())
    products = 2 * 32 * (2 * 20 * 100 + 3 * 100)  # forward, gradients of weights, gradient of the hidden layer
    assert products < c.flops < 1.1 * products
    assert c.rows == 64
    assert 10 < c.nodes <= c.length < 25
    assert 5 <= c.products <= 7


def test_nodes_in_a_body_count_as_often_as_they_run():
    x = variable("x", "float32", [50, 4])
    plain = estimate_cost([op.Tanh(x)], [x])
    _, ys = scan(lambda s, row: [s + row, op.Tanh(s * row)], [constant(np.zeros(4, np.float32))], [x])
    looped = estimate_cost([ys], [x])
    assert looped.nodes == 1 + 50 * 3
    assert looped.flops == 50 * 3 * 4
    assert (looped.length, looped.products) == (4, 0)
    assert plain.flops == 200


def test_looking_up_rows_of_a_table_does_not_read_all_of_it():
    table, rows = variable("table", "float32", [10_000, 16]), variable("rows", "int64", [8])
    assert estimate_cost([op.Gather(table, rows)], [rows]).numbers == 2 * 8 * 16


@pytest.mark.parametrize("field", ["nodes", "flops", "numbers", "rows"])
def test_more_takes_longer(field):
    more = replace(SMALL, **{field: 2 * getattr(SMALL, field)})
    assert more.seconds > SMALL.seconds
    assert more.seconds_compiled > SMALL.seconds_compiled


def test_more_steps_pay_off_more():
    answers = [SMALL.pays_off(10**power) for power in range(9)]
    assert answers == sorted(answers)
    assert not answers[0]
    assert answers[-1]


def test_longer_compiling_pays_off_later():
    longer = replace(SMALL, products=12)
    assert longer.seconds_compiling > SMALL.seconds_compiling
    assert [SMALL.pays_off(n) for n in range(0, 10**6, 10**4)].index(True) < [
        longer.pays_off(n) for n in range(0, 10**6, 10**4)].index(True)


@pytest.mark.parametrize(
    ("batch", "rate", "steps", "pays_off"),
    [
        (1, LearningRateSGD(), 10_000, False),  # 50 ms
        (1, LearningRateSGD(), 1_000_000, True),  # 5 s
        (1, LearningRateAdam(), 10_000, False),
        (1, LearningRateAdam(), 200_000, True),
        (32, LearningRateAdam(), 1_000, False),
        (32, LearningRateAdam(), 200_000, True),
        (1024, LearningRateAdam(), 1_000, False),
        (1024, LearningRateAdam(), 50_000, True),
        (1, LearningRateAdam(), 0, False),
    ],
)
def test_small_steps_pay_off_where_there_are_many(batch, rate, steps, pays_off):
    assert cost(batch, rate).pays_off(steps) is pays_off


@pytest.fixture(params=[False, True], ids=["Intel", "AMD"])
def on_amd(request, monkeypatch):
    monkeypatch.setattr(cost_module, "_is_amd", lambda: request.param)
    return request.param


def test_steps_of_large_products_pay_off_where_onnxruntime_has_no_further_vector_units(on_amd):
    large = cost(1024, LearningRateSGD(), hidden=512, features=512)
    assert (large.seconds_compiled < large.seconds) == large.pays_off(10**6) == on_amd
    assert large.pays_off(10**6, cores=2) == on_amd


def test_steps_of_larger_products_pay_off_there_as_well_and_reading_large_weights_does_everywhere(on_amd):
    assert cost(32, LearningRateSGD(), hidden=2048, features=1024).pays_off(10**6) == on_amd
    assert cost(1, LearningRateSGD(), hidden=2048, features=1024).pays_off(10**6)


def test_small_convolutions_pay_off_in_float64_alone(on_amd):
    for dtype, pays_off in (("float32", False), ("float64", True)):
        x, w = variable("x", dtype, [32, 8, 16, 16]), variable("w", dtype, [16, 8, 3, 3])
        c = estimate_cost([op.Conv(x, w)], [x])
        assert c.convolutions + c.lowered == c.flops == 2 * 32 * 16 * 14 * 14 * 8 * 9
        assert c.pays_off(10**6) == (c.lowered > 0) == pays_off


def test_large_convolutions_pay_off():
    """Forward, and the gradient by kernels, in which images stand for channels."""
    x, w = variable("x", "float32", [8, 16, 20, 20]), variable("w", "float32", [16, 16, 3, 3])
    turned, dy = variable("t", "float32", [16, 8, 20, 20]), variable("dy", "float32", [16, 8, 18, 18])
    for y in (op.Conv(x, w), op.Conv(turned, dy)):
        c = estimate_cost([y], [x])
        assert c.large == c.flops
        assert c.pays_off(10**6)
    for less in ((15, 16), (16, 15)):
        c = estimate_cost([op.Conv(variable("x", "float32", [8, less[0], 20, 20]),
                                   variable("w", "float32", [less[1], less[0], 3, 3]))], [])
        assert c.convolutions == c.flops


def test_onnxruntime_gains_by_cores():
    c = cost(1024, LearningRateSGD())
    assert c.take_on(1) == c.seconds > c.take_on(2) > c.seconds / 2


@pytest.mark.parametrize(
    ("batch", "rate", "microseconds", "compiled"),
    [
        (1, LearningRateSGD(), 5.7, 0.2),
        (32, LearningRateSGD(), 11.6, 4.3),
        (1024, LearningRateSGD(), 270.0, 179.0),
        (1, LearningRateAdam(), 15.8, 1.0),
        (32, LearningRateAdam(), 24.5, 5.4),
        (256, LearningRateAdam(), 93.6, 40.0),
    ],
)
def test_estimates_are_near_what_was_measured(on_amd, batch, rate, microseconds, compiled):
    """Of engines "epoch" and "native" on one core, for 20-100-1."""
    c = cost(batch, rate)
    assert 0.5 < c.seconds * 1e6 / microseconds < 2
    assert 0.5 < c.seconds_compiled * 1e6 / compiled < 2


def test_large_products_are_not_compiled_and_are_shared_by_threads():
    x, w = variable("x", "float32", [64, 1024]), variable("w", "float32", [1024, 1024])
    c = estimate_cost([x @ w, x @ op.Tanh(x).T], [x])
    assert (c.products, c.shared) == (0, c.flops - 64 * 1024)
    assert c.take_compiled(2) < 0.7 * c.take_compiled(1)
    assert estimate_cost([variable("y", "float32", [4, 8]) @ variable("v", "float32", [8, 8])], []).shared == 0
