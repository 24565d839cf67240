"""The loop of training kits: epochs in the order of the format, validation, callbacks, a bar and a clock."""

import copy
import pickle

import numpy as np
import pytest
from kits import make_data, write_kit_and_data

from ortpartial import TrainingKit
from ortpartial.exceptions import ConvergenceError, DataError, DeadlineError, SettingError
from ortpartial.kits.door import KitBatches
from ortpartial.kits.order import draw_order

DATA = make_data("linear")
HELD = {n: a[:70] for n, a in DATA.items()}


@pytest.fixture
def kit(tmp_path):
    """A small kit of batches of 32 rows, of which its data have nine."""
    return write_kit_and_data(tmp_path / "kit", "linear", "sgd")


@pytest.mark.parametrize(("start", "steps"), [(0, 9), (0, 4), (7, 2), (7, 3), (7, 20), (9, 9)])
def test_batches_begin_where_the_kit_stands(start, steps):
    arrays = {"x": np.arange(20)}
    taken, each = start, []
    batches = KitBatches(arrays, 4, 3, lambda: taken, start, start + steps)
    for _ in range(batches.epochs):
        each.append([])
        for batch, *_ in batches:
            each[-1].append(batch["x"])
            taken += 1
    expected = [draw_order(3, k // 5, 20)[k % 5 * 4 :][:4] for k in range(start, start + steps)]
    np.testing.assert_array_equal(np.concatenate(each), expected)
    assert all(each)


def test_each_epoch_has_a_record(kit):
    told = []
    losses = kit.train(DATA, 20, X_val=HELD, callbacks=[lambda k: told.append((k.steps_taken, k.state["coef"].copy()))])
    assert [n for n, _ in told] == [9, 18, 20]
    assert [record["epoch"] for record in kit.history_] == [1, 2, 3]
    np.testing.assert_allclose([r["loss"] for r in kit.history_], [losses[:9].mean(), losses[9:18].mean(),
                                                                  losses[18:].mean()], rtol=1e-6)
    parts = [(kit.evaluate({n: a[i : i + 32] for n, a in HELD.items()})["loss"].item(), len(HELD["x"][i : i + 32]))
             for i in range(0, 70, 32)]
    assert kit.history_[-1]["validation_loss"] == pytest.approx(sum(a * n for a, n in parts) / 70, rel=1e-6)
    np.testing.assert_array_equal(told[-1][1], kit.state["coef"])
    kit.train(DATA, 7)
    assert [record["epoch"] for record in pickle.loads(pickle.dumps(kit)).history_] == [1, 2, 3, 4]


def test_a_validation_fills_up_the_last_batch_of_a_fixed_size(tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "sgd", batch_sizes=(32,))
    kit.train(DATA, 9, X_val=HELD)
    order = np.arange(96) % 70
    losses = [kit.evaluate({n: a[order[i : i + 32]] for n, a in HELD.items()})["loss"] for i in range(0, 96, 32)]
    assert kit.history_[0]["validation_loss"] == pytest.approx(np.mean(losses), rel=1e-6)


def test_an_evaluation_takes_no_step(kit):
    other, batch = copy.copy(kit), {n: a[:32] for n, a in DATA.items()}
    expected = kit.evaluate(batch)
    assert kit.steps_taken == 0
    assert kit.step(batch) == expected == other.step(batch)
    for n, a in kit.state.items():
        np.testing.assert_array_equal(a, other.state[n])


@pytest.mark.parametrize(("setting", "message"), [
    ({"X_val": 0.2}, "X_val is of type float; expected a dict with an array for each input"),
    ({"X_val": {"x": DATA["x"]}}, "The validation data do not fit: The data lack the input"),
    ({"callbacks": [3]}, "callbacks are functions"), ({"timeout": -1}, "timeout is None or a number of seconds"),
    ({"verbose": "a"}, "verbose is 0, 1 or 2")])
def test_a_training_anew_that_is_refused_loses_nothing(kit, setting, message):
    kit.train(DATA, 3)
    before = {n: a.copy() for n, a in kit.state.items()}
    with pytest.raises((DataError, SettingError), match=message):
        kit.train(DATA, 3, warm_start=False, **setting)
    assert kit.steps_taken == 3
    for n, a in kit.state.items():
        np.testing.assert_array_equal(a, before[n])


def test_no_steps_of_a_training_anew(kit):
    first = {n: a.copy() for n, a in kit.state.items()}
    kit.train(DATA, 3)
    kit.train(DATA, 0, warm_start=False)
    assert kit.steps_taken == 0
    for n, a in kit.state.items():
        np.testing.assert_array_equal(a, first[n])


def test_a_callback_ends_the_training(kit):
    losses = kit.train(DATA, 100, callbacks=[lambda k: len(k.history_) == 2])
    assert (len(losses), kit.steps_taken) == (18, 18)
    whole = TrainingKit(kit.folder)
    np.testing.assert_array_equal(whole.train(DATA, 18), losses)


def test_the_lines_of_a_training(kit, capsys):
    kit.train(DATA, 10, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2", "training ended after 2 of 2 epochs"]


def test_a_timeout_keeps_the_steps_until_then(kit):
    with pytest.raises(DeadlineError):
        kit.train(DATA, 10**7, timeout=0.2)
    assert 0 < kit.steps_taken < 10**7
    kit.train(DATA, 1)


@pytest.mark.parametrize(("words", "error", "message"), [
    ({"X_val": 0.2}, DataError, "X_val is of type float; expected a dict with an array for each input"),
    ({"X_val": {"x": DATA["x"]}}, DataError, "The validation data do not fit: The data lack the input 'y_target'"),
    ({"X_val": {**HELD, "x": np.full_like(HELD["x"], np.nan)}}, ConvergenceError,
     "The output 'loss' is nan in the validation; lower the learning rate, or scale the data"),
    ({"timeout": 0}, SettingError, "timeout is None or a number of seconds above 0, not 0"),
    ({"callbacks": 3}, SettingError, "callbacks is a sequence of callbacks, not 3"),
    ({"verbose": "x"}, SettingError, "verbose is 0, 1 or 2, not 'x'"),
])
def test_words_that_do_not_fit(kit, words, error, message):
    with pytest.raises(error, match=message):
        kit.train(DATA, 2, **words)
