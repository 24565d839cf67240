"""A loss that the model computes: its steps, sums and counts."""

import numpy as np
import pytest
from models import data, mlp

from ortpartial import add_loss_output, grad
from ortpartial.model import load
from ortpartial.runtime import Session
from ortpartial.training import LossOutput, TrainingSpec, count_elements, row_loss_graph
from ortpartial.training.data_parallel_engine import sums_graph


def specify(weighted=True):
    model = load(add_loss_output(mlp(), lambda y, t: (y - t) ** 2, weighted=weighted), variables=["W2"])
    loss = LossOutput(("y_target",), "sample_weight" if weighted else None, ("y",))
    return TrainingSpec(model, ("W2",), {"loss": loss})


def run(model, feeds):
    session = Session(model)
    return session.run({n: feeds[n] for n in session.inputs})


@pytest.mark.parametrize("weighted", [True, False])
def test_the_sums_of_processes_make_the_whole(weighted):
    """Σw∇L, ΣwL and Σw of two parts, unequal in size, add up to those of all rows."""
    spec, (X, y, w) = specify(weighted), data(7)
    feeds = {"x": X, "y_target": y, "sample_weight": w, "W2": spec.model.arrays["W2"]}
    sums = [next(iter(run(sums_graph(spec), {**feeds, **{n: feeds[n][rows] for n in ("x", "y_target", "sample_weight")}}
                          ).values())) for rows in (slice(0, 2), slice(2, 7), slice(0, 7))]
    np.testing.assert_allclose(sums[0] + sums[1], sums[2], rtol=1e-4)
    np.testing.assert_allclose(sums[2][-1], w.sum() if weighted else 7, rtol=1e-6)


def test_rows_count_by_their_weights():
    X, y, w = data(5)
    arrays = {"x": X, "y_target": y, "sample_weight": w}
    assert count_elements(specify(), arrays)["loss"] is w
    np.testing.assert_array_equal(count_elements(specify(weighted=False), arrays)["loss"], np.ones(5))


def test_the_loss_of_a_row_is_a_vector():
    spec, (X, y, w) = specify(), data(5)
    feeds = {"x": X[:1], "y_target": y[:1], "sample_weight": w[:1], "W2": spec.model.arrays["W2"]}
    assert run(row_loss_graph(spec), feeds)["loss_"].shape == (1,)
    assert spec.predictions == ("y",)
    assert grad(spec.outputs["loss"], [spec.trained["W2"]])[0].shape == (8, 1)
