"""Penalties, beside numpy and torch."""

import numpy as np
import pytest
import torch

from ortpartial.exceptions import SettingError
from ortpartial.learning.penalties import ElasticLearningPenalty, NoLearningPenalty, resolve_penalty
from ortpartial.testing import evaluate


@pytest.mark.parametrize(("l1", "l2"), [(0.1, 0.9), (0.3, 0), (0, 0.7), (2, 3), (0, 0)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 2, 2)], ids=str)
def test_formula(rng, l1, l2, dtype, shape):
    w = rng.normal(size=shape).astype(dtype)
    actual = evaluate(ElasticLearningPenalty(l1=l1, l2=l2).build_onnx_function(dtype=dtype, shape=shape), {"w": w})
    rtol = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(actual["penalty"], l1 * abs(w).sum() + l2 / 2 * (w**2).sum(), rtol=rtol)
    v = torch.tensor(w, requires_grad=True)
    (l1 * v.abs().sum() + l2 / 2 * (v**2).sum()).backward()
    np.testing.assert_allclose(actual["w_grad"], v.grad.numpy(), rtol=rtol, atol=rtol)


def test_no_gradient_at_zero():
    model = ElasticLearningPenalty(1, 1).build_onnx_function(shape=[1, 2])
    actual = evaluate(model, {"w": np.zeros((1, 2), np.float32)})
    np.testing.assert_array_equal(actual["w_grad"], 0)


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        (ElasticLearningPenalty(0.1, 0.9), {(3, 2): True, (3, 1): True, (3,): False, (): False}),
        (ElasticLearningPenalty(0.1, 0.9, penalize_biases=True), {(3, 2): True, (3,): True, (): True}),
        (ElasticLearningPenalty(), {(3, 2): False, (3,): False}),
        (ElasticLearningPenalty(penalize_biases=True), {(3, 2): False, (3,): False}),
        (NoLearningPenalty(), {(3, 2): False, (3,): False, (): False}),
    ],
    ids=repr,
)
def test_applies_to(penalty, expected):
    assert {shape: penalty.applies_to(shape) for shape in expected} == expected


@pytest.mark.parametrize("penalize_biases", [False, True])
def test_biases(penalize_biases):
    penalty = ElasticLearningPenalty(1, 2, penalize_biases=penalize_biases)
    actual = evaluate(penalty.build_onnx_function(shape=[2]), {"w": np.array([1, -3], np.float32)})
    np.testing.assert_array_equal(actual["penalty"], 14 if penalize_biases else 0)
    np.testing.assert_array_equal(actual["w_grad"], [3, -7] if penalize_biases else [0, 0])


def test_terms_of_weight_0_are_left_out():
    def operators(*settings):
        return {n.op_type for n in ElasticLearningPenalty(*settings).build_onnx_function(shape=[3, 2]).graph.node}

    assert operators(0.1, 0) & {"ReduceSumSquare"} == operators(0, 0.1) & {"ReduceL1", "Sign"} == set()


@pytest.mark.parametrize("choice", [None, "none", "NoLearningPenalty", NoLearningPenalty()])
def test_none(choice):
    assert resolve_penalty(choice) == NoLearningPenalty()


def test_names():
    assert resolve_penalty(ElasticLearningPenalty(l1=1)) == ElasticLearningPenalty(1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ElasticLearningPenalty(l1=-1), "ElasticLearningPenalty: l1 is -1, a finite number at least 0 was "),
        (lambda: ElasticLearningPenalty(l2="x"), "ElasticLearningPenalty: l2 is 'x', a finite number at least 0 was "),
        (lambda: resolve_penalty("l3"), "learning_penalty: 'l3' is not known. Known are none, elastic, "),
        (lambda: resolve_penalty(0.1), "learning_penalty: 0.1 is a number, and it is not said of which penalty; did "
                                       "you mean ElasticLearningPenalty(l2=0.1)?"),
        *((lambda elastic=elastic: resolve_penalty(elastic),
           "learning_penalty: 'elastic' has the weights l1 and l2, and both are 0 unless they are given; write "
           "ElasticLearningPenalty(l1=..., l2=...).")
          for elastic in ("elastic", "Elastic", "ElasticLearningPenalty", ElasticLearningPenalty)),
    ],
)
def test_errors(make, message):
    with pytest.raises(SettingError) as e:
        make()
    assert str(e.value).startswith(message)
