"""Tags: with them, pipelines and searches of scikit-learn take an optimizer."""

import pytest
from models import data, mlp
from once import ON_BOTH
from sklearn.base import is_classifier, is_regressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from ortpartial import OrtGradientForwardBackwardOptimizer


def optimizer():
    return OrtGradientForwardBackwardOptimizer(mlp(), learning_rate=0.05, max_iter=3, random_state=0)


@ON_BOTH
def test_what_an_optimizer_is():
    pytest.importorskip("sklearn", minversion="1.6")
    from sklearn.utils import get_tags

    tags = get_tags(optimizer())
    assert tags.target_tags.multi_output
    assert not tags.target_tags.required
    assert not is_classifier(optimizer())
    assert not is_regressor(optimizer())
    check_is_fitted(optimizer())


def test_pipelines_and_searches():
    X, y, _ = data()
    pipeline = make_pipeline(StandardScaler(), optimizer())
    assert pipeline.fit(X, y).score(X, y) > 0.1
    name = "ortgradientforwardbackwardoptimizer__max_iter"
    assert GridSearchCV(pipeline, {name: [1, 5]}, cv=2).fit(X, y).best_params_ == {name: 5}
    assert cross_val_score(optimizer(), X, y, cv=2, scoring="neg_mean_squared_error").shape == (2,)
