"""The rule by which estimators stop."""

import numpy as np
from models import data, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.estimator.sklearn.stopping import StoppingRule

X, Y, _ = data(50)


def test_the_averages_of_the_best_epoch_come_back():
    """With its weights, as the score is that of the averages."""
    seen = []

    def score(o):
        seen.append(o.predict(X))
        return -o.n_iter_

    rule = StoppingRule(0.0, 2, score)
    o = Optimizer(mlp(), learning_rate="Adam", averaging="ema", use_average=True, random_state=0, callbacks=[rule])
    o.fit(X, Y)
    assert o.n_iter_ == 4
    assert not np.array_equal(o.predict(X), seen[0])
    rule.restore(o)
    np.testing.assert_array_equal(o.predict(X), seen[0])
