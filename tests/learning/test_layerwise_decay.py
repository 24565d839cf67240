"""Layer-wise decay: a power of the number of layers that follow."""

import pytest
from models import stack_layers

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import SettingError
from ortpartial.learning.layerwise_decay import LayerwiseDecay


def test_the_factor_of_a_depth():
    assert [LayerwiseDecay(0.5)(depth) for depth in range(4)] == [1, 0.5, 0.25, 0.125]
    assert LayerwiseDecay(1.0)(7) == 1
    assert LayerwiseDecay(0.5) == LayerwiseDecay(0.5) != LayerwiseDecay(0.6)


def test_an_optimizer_takes_it():
    """The steps of earlier layers are smaller."""
    model = stack_layers("layers.0.fc", "layers.1.fc", "layers.2.fc")
    settings = {"learning_rate": 1e-3, "random_state": 0, "max_iter": 1}
    plain, decayed = (OrtGradientForwardBackwardOptimizer(model, rate_factors=factors, **settings)
                      for factors in (None, LayerwiseDecay(0.1)))
    X, y = [[1.0, 2, 3, 4]], [[1.0, 1, 1, 1]]
    before = plain.trained_coef_
    shares = []
    for n in before:
        if n.endswith("weight"):
            a, b = (abs(o.fit(X, y).trained_coef_[n] - before[n]).max() for o in (plain, decayed))
            shares.append(b / a)
    assert shares == pytest.approx(sorted(shares))
    assert shares[2] / shares[0] == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("decay", [0, 1.1, -0.5])
def test_settings_out_of_range(decay):
    with pytest.raises(SettingError, match="decay"):
        LayerwiseDecay(decay)
