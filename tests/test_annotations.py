"""Signatures of the fronts say which data they take, so that an editor shows it: mypy checks contracts/typed_use.py."""

import inspect
from typing import get_args

import pytest
import scipy.sparse

import ortpartial
from ortpartial import OnnxClassifier, OnnxRegressor, OrtGradientForwardBackwardOptimizer, OrtGradientOptimizer, nn
from ortpartial.annotations import DataLike, SparseMatrix

FRONTS = [OrtGradientForwardBackwardOptimizer, OrtGradientOptimizer, OnnxRegressor, OnnxClassifier, nn.Module]
METHODS = ["fit", "partial_fit", "predict", "predict_proba", "decision_function", "losses", "evaluate"]


@pytest.mark.parametrize("front", FRONTS)
def test_fronts_name_their_data(front):
    methods = [m for name in METHODS if (m := getattr(front, name, None)) is not None]
    assert len(methods) > 2
    for method in methods:
        for name, p in inspect.signature(method).parameters.items():
            if name in ("X", "y", "sample_weight", "X_val", "y_val"):
                assert p.annotation in ("DataLike", "DataLike | None"), (method.__qualname__, name)
                assert p.annotation.endswith("None") == (p.default is None)


def test_data_like():
    assert SparseMatrix in get_args(DataLike)
    assert callable(scipy.sparse.csr_matrix((2, 2)).tocsr)
    assert "Any" not in dir(ortpartial)
