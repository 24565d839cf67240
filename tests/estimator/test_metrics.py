"""R² and accuracy are those of scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, r2_score

from ortpartial.estimator.metrics import accuracy, r2


@pytest.mark.parametrize("shape", [(20,), (20, 1), (20, 3), (20, 2, 2)])
def test_r2(rng, shape):
    t, w = rng.normal(size=shape), rng.uniform(0.1, 2, 20)
    y = t + 0.3 * rng.normal(size=shape)
    assert np.isclose(r2(y, t, w), r2_score(t.reshape(20, -1), y.reshape(20, -1), sample_weight=w))


@pytest.mark.parametrize("prediction", [2.0, 3.0])
def test_r2_of_a_constant(prediction):
    t = np.full((5, 1), 2.0)
    y = np.full((5, 1), prediction)
    assert r2(y, t, np.ones(5)) == r2_score(t, y)


def test_accuracy(rng):
    t, y, w = rng.integers(0, 3, 30), rng.integers(0, 3, 30), rng.uniform(0.1, 2, 30)
    assert np.isclose(accuracy(y, t, w), accuracy_score(t, y, sample_weight=w))
    several = rng.integers(0, 2, (30, 4)), rng.integers(0, 2, (30, 4))
    assert np.isclose(accuracy(*several, np.ones(30)), (several[0] == several[1]).mean())
