"""Scores and labels of operators of ai.onnx.ml: and `post_transform` of scores."""

import numpy as np
import pytest
from scipy.special import ndtri, softmax

from ortpartial.graph import build, variable
from ortpartial.model.ml.operator import MlOperator, post_transform, to_labels
from ortpartial.runtime import Session

SCORES = np.array([[0.2, 0.7, 0.1], [0, 0.5, 0.25]])


def run(transform, width=3):
    x = variable("x", "float64", ["N", width])
    return Session(build([x], {"y": post_transform(x, transform, width)})).run({"x": SCORES[:, :width]})["y"]


@pytest.mark.parametrize(("transform", "expected"), [
    ("NONE", SCORES), ("LOGISTIC", 1 / (1 + np.exp(-SCORES))), ("SOFTMAX", softmax(SCORES, 1))])
def test_transforms(transform, expected):
    np.testing.assert_allclose(run(transform), expected, rtol=1e-7)


def test_softmax_zero_keeps_zeros():
    y = run("SOFTMAX_ZERO")
    assert y[1, 0] == 0
    np.testing.assert_allclose(y[1, 1:], softmax(SCORES[1, 1:]))
    np.testing.assert_allclose(y[0], softmax(SCORES[0]))


def test_probit():
    """Winitzki's formula is within 2e-3 of the inverse error function."""
    np.testing.assert_allclose(run("PROBIT")[0], ndtri(SCORES[0]), atol=5e-3)


def test_one_score_stays_unless_it_is_a_probit():
    np.testing.assert_array_equal(run("SOFTMAX", 1), SCORES[:, :1])
    np.testing.assert_array_equal(run("LOGISTIC", 1), SCORES[:, :1])


@pytest.mark.parametrize(("attributes", "expected"), [({"classlabels_ints": [7, 3]}, [3, 7]),
                                                      ({"classlabels_int64s": [7, 3]}, [3, 7])])
def test_labels(attributes, expected):
    i = variable("i", "int64", ["N"])
    assert Session(build([i], {"y": to_labels(attributes, i)})).run({"i": np.array([1, 0])})["y"].tolist() == expected


def test_by_default_weights_are_written_row_by_row():
    operator = MlOperator(lambda a: None, lambda a, x, w: [])
    assert operator.write({}, {"coefficients": np.array([[1.0, 2], [3, 4]])}) == {"coefficients": [1, 2, 3, 4]}
