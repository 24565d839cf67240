"""A log as a table: the content of the file while a training runs, after it, and when it goes on."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from trainings import X_VAL, Y_VAL, X, Y, optimizer

from ortpartial.callbacks import CSVLogger
from ortpartial.exceptions import SettingError


def test_a_row_for_each_epoch_as_soon_as_it_is_over(tmp_path):
    path, seen = tmp_path / "new" / "log.csv", []
    o = optimizer(callbacks=[CSVLogger(path), lambda o: seen.append(len(pd.read_csv(path)))], validation_every=2)
    o.fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert seen == [1, 2, 3, 4, 5]
    pd.testing.assert_frame_equal(pd.read_csv(path), pd.DataFrame(o.history_)[pd.read_csv(path).columns])
    assert path.read_text().splitlines()[0] == "epoch,iteration,seconds,learning_rate,loss,validation_loss"
    o.fit(X, Y)
    assert len(pd.read_csv(path)) == 5, "another fit starts anew"


def test_a_training_that_goes_on(tmp_path):
    """Rows of epochs that are repeated, as after a checkpoint, are left out."""
    path = tmp_path / "log.csv"
    o = optimizer(max_iter=3, warm_start=True, callbacks=[CSVLogger(path)]).fit(X, Y)
    with path.open("a") as file:
        file.write("4,24,0.1,0.05,7.0,\n5,30,0.1")
    o.fit(X, Y)
    table = pd.read_csv(path)
    assert table.epoch.tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(table.loss, o.train_losses_)


@pytest.mark.parametrize(("append", "rows"), [(True, 10), (False, 5)])
def test_append(tmp_path, append, rows):
    path = tmp_path / "log.csv"
    o = optimizer(callbacks=[CSVLogger(path, append=append)]).fit(X, Y)
    o.fit(X, Y)
    assert len(pd.read_csv(path)) == rows


def test_columns_that_come_later(tmp_path):
    path = tmp_path / "log.csv"
    o = optimizer(callbacks=[lambda o: o.training_view().record(norm=2.0) if o.n_iter_ == 3 else None, CSVLogger(path)])
    o.fit(X, Y)
    assert pd.read_csv(path).norm.isna().tolist() == [True, True, False, True, True]


@pytest.mark.sklearn_callbacks
def test_estimators_of_scikit_learn(tmp_path):
    path = tmp_path / "log.csv"
    logger = CSVLogger(path, scoring="accuracy")
    model = LogisticRegression().set_callbacks(logger).fit(X, Y[:, 0] > 0)
    table = pd.read_csv(path)
    assert table.epoch.tolist() == list(range(1, model.n_iter_[0] + 1))
    assert table.score.iloc[-1] == model.score(X, Y[:, 0] > 0)
    path.unlink()
    GridSearchCV(model, {"C": [0.1, 1.0]}, cv=2).fit(X, Y[:, 0] > 0)
    table = pd.read_csv(path)
    assert table.fit.nunique() == 5
    assert table.groupby("fit").epoch.min().tolist() == [1] * 5


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"log\.csv' cannot be written, as '.*file' is no folder; choose another"):
        CSVLogger(tmp_path / "file" / "log.csv")


def test_metrics_are_columns(tmp_path):
    path = tmp_path / "log.csv"
    o = optimizer(callbacks=[CSVLogger(path)], metrics=["r2", "train_mae"], validation_every=2, max_iter=4)
    o.fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    table = pd.read_csv(path)
    assert [*table.columns[-3:]] == ["validation_loss", "val_r2", "mae"]
    assert table["val_r2"].isna().tolist() == [True, False, True, False]
    assert table["mae"].iloc[-1] == o.history_[-1]["mae"]
