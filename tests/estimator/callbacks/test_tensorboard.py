"""Event files, read by TensorBoard's own reader."""

import sys

import pytest
from sklearn.linear_model import LogisticRegression
from trainings import X_VAL, Y_VAL, X, Y, optimizer

from ortpartial.callbacks import TensorBoard
from ortpartial.exceptions import RuntimeMissingError


def read(folder):
    """Steps and values by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_a_scalar_for_each_column(tmp_path):
    seen = []
    o = optimizer(callbacks=[TensorBoard(tmp_path), lambda o: seen.append(len(read(tmp_path)["loss"]))],
                  validation_every=2).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    scalars = read(tmp_path)
    assert seen == [1, 2, 3, 4, 5], "after every epoch"
    assert set(scalars) == {"iteration", "seconds", "learning_rate", "loss", "validation_loss"}
    assert scalars["loss"] == [(i + 1, pytest.approx(loss)) for i, loss in enumerate(o.train_losses_)]
    assert [step for step, _ in scalars["validation_loss"]] == [2, 4, 5]


@pytest.mark.sklearn_callbacks
def test_an_estimator_of_scikit_learn(tmp_path):
    callback = TensorBoard(tmp_path, scoring="accuracy")
    model = LogisticRegression().set_callbacks(callback).fit(X, Y[:, 0] > 0)
    assert read(tmp_path)["score"][-1] == (model.n_iter_[0], pytest.approx(model.score(X, Y[:, 0] > 0)))


def test_the_file_is_closed_after_an_error(tmp_path):
    closed = []
    callback = TensorBoard(tmp_path)
    callback._tear_down = lambda run, tear_down=callback._tear_down: closed.append(tear_down(run))
    with pytest.raises(ZeroDivisionError):
        optimizer(callbacks=[callback, lambda o: 1 / 0]).fit(X, Y)
    assert closed == [None]
    assert len(read(tmp_path)["loss"]) == 1


def test_without_tensorboard(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(RuntimeMissingError, match="needs the package tensorboard: pip install tensorboard"):
        TensorBoard()
