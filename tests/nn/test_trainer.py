"""The trainer of a module: callbacks of the library, gradients, and trainings that go on to the same bits."""

import os
import signal
import subprocess
import sys
import textwrap
from threading import Thread
from time import sleep

import numpy as np
import pytest

from ortpartial import LearningRateAdam, nn, op
from ortpartial.callbacks import Checkpoint, EarlyStopping, GradientMonitor, LearningRateFinder, ReduceOnPlateau
from ortpartial.exceptions import CheckpointError, DataError, SettingError
from ortpartial.execution.checkpoint import list_checkpoints, read_checkpoint, write_checkpoint
from ortpartial.nn.trainer import ModuleTrainer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype(np.float32)
Y = (X @ np.array([[1.0], [2.0], [-1.0], [0.5]])).astype(np.float32)


class Net(nn.Module):
    def __init__(self, size: int = 8):
        self.first, self.last, self.drop = nn.Linear(4, size), nn.Linear(size, 1), nn.Dropout(0.2)

    def forward(self, x):
        return self.last(self.drop(op.Relu(self.first(x))))


def make(rate="adam", size=8, engine="auto"):
    return Net(size).set_optimizer(rate).compile(nn.placeholder(["N", 4]), random_state=0, engine=engine)


def assert_same(a, b):
    for name, expected in b.state_dict().items():
        np.testing.assert_array_equal(a.state_dict()[name], expected, name)


class Stop(Exception):
    """Ends a training from within."""


def stop_after(batches):
    def count(module):
        if module.training_view().iteration >= batches:
            raise Stop

    return count


def test_early_stopping_restores_the_best_weights():
    stopping = EarlyStopping(patience=2, restore_best=True)
    model = make(0.3).fit(X, Y, epochs=50, X_val=0.3, callbacks=stopping)
    losses = [record["validation_loss"] for record in model.history_]
    assert len(losses) < 50
    assert stopping.best_ == min(losses)
    assert stopping.best_epoch_ == 1 + int(np.argmin(losses))


def test_a_plateau_lowers_the_step_size():
    reduce = ReduceOnPlateau("loss", factor=0.5, patience=0, threshold=0.99)
    model = make(0.125).fit(X, Y, epochs=3, callbacks=[reduce])
    assert [record["learning_rate"] for record in model.history_] == [0.125, 0.125, 0.0625]


def test_gradients_are_those_of_a_step_of_sgd():
    model = make(0.5)
    model.drop.p = 0.0
    with pytest.raises(DataError, match="There are no rows yet"):
        model.training_view().gradients()
    before = model.state_dict()
    gradients = model.training_view().gradients(X, Y)
    model.train_one_batch(X, Y)
    for name, gradient in gradients.items():
        after = model.state_dict()[name.removesuffix("_grad")]
        np.testing.assert_allclose(before[name.removesuffix("_grad")] - after, 0.5 * gradient, rtol=1e-4, atol=1e-6)
    monitor = GradientMonitor()
    model.fit(X, Y, epochs=2, callbacks=[monitor])
    assert len(monitor.norms_) == 2
    assert model.history_[-1]["gradient_norm"] > 0


def test_a_module_has_no_copies_to_try_step_sizes_with():
    with pytest.raises(SettingError, match="LearningRateFinder trains copies of an OrtGradient"):
        make().fit(X, Y, callbacks=[LearningRateFinder()])


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_fit_that_was_cut_off_goes_on_to_the_same_bits(tmp_path, epochs, schedule):
    """The checkpoint is that of the epoch before, as the callback that ends the training comes first."""
    rate = LearningRateAdam(0.01, schedule=schedule)
    settings = {"epochs": 4, "batch_size": 8, "X_val": 0.2}
    expected = make(rate).fit(X, Y, **settings)
    with pytest.raises(Stop):
        make(rate).fit(X, Y, **settings, callbacks=[Checkpoint(tmp_path), stop_after(5 * epochs)])
    model = make(rate).fit(X, Y, **settings, callbacks=[Checkpoint(tmp_path)], resume=tmp_path)
    assert_same(model, expected)
    columns = ("epoch", "iteration", "loss", "validation_loss")
    assert [[r[c] for c in columns] for r in model.history_] == [[r[c] for c in columns] for r in expected.history_]


def test_a_checkpoint_in_the_former_form_goes_on_to_the_same_bits(tmp_path):
    """It has all of the state in one dict, and the attributes' names in its history."""
    make(LearningRateAdam(0.01, schedule="cosine")).fit(X, Y, epochs=2, batch_size=8, callbacks=[Checkpoint(tmp_path)])
    state = read_checkpoint(file := list_checkpoints(tmp_path)[-1])
    engine, history, names = state.pop("engine"), state.pop("progress"), ("train_losses", "validation_losses", "n_iter")
    del state["random"]
    state |= {"form": 2, "lengths": state.pop("batches"), "shapes": engine["shapes"], "states": {
        **engine["arrays"], "seed": engine["seed"], "iteration": np.array(engine["iteration"])}, "progress": {
        "records": history["history_"], **{n: history[f"{n}_"] for n in names}}}
    write_checkpoint(state, file)
    first, again = (make(LearningRateAdam(0.01, schedule="cosine")) for _ in range(2))
    first.fit(X, Y, epochs=2, batch_size=8)
    assert_same(again.fit(X, Y, epochs=2, batch_size=8, resume=file), first)
    assert_same(again.fit(X, Y, epochs=1, batch_size=8), first.fit(X, Y, epochs=1, batch_size=8))
    assert [r["loss"] for r in again.history_] == [r["loss"] for r in first.history_]


def test_what_cannot_go_on(tmp_path):
    make().fit(X, Y, epochs=1, callbacks=[Checkpoint(tmp_path)])
    with pytest.raises(CheckpointError, match=r"is of another Net: 'first\.weight' is missing or has another shape"):
        make(size=3).fit(X, Y, resume=tmp_path)
    assert len(make().fit(X, Y, epochs=1, resume=tmp_path / "empty").history_) == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_killed_process_goes_on_to_the_same_bits(tmp_path):
    code = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from test_trainer import *
        checkpoint = Checkpoint({str(tmp_path)!r}, seconds=0.01)
        make(engine="epoch").fit(X, Y, epochs=100000, batch_size=8, callbacks=[
            checkpoint, lambda module: print(len(module.history_), flush=True)])
    """)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert any(int(line) >= 5 for line in process.stdout)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    model = make(engine="epoch").fit(X, Y, epochs=1, batch_size=8, resume=tmp_path)  # It is over.
    done = len(model.history_)
    model = make(engine="epoch").fit(X, Y, epochs=done + 2, batch_size=8, resume=tmp_path)
    assert_same(model, make(engine="epoch").fit(X, Y, epochs=done + 2, batch_size=8))


def test_threads_share_a_trainer(monkeypatch):
    """Also where both ask for the first time, at the same time."""
    begin = ModuleTrainer.__init__
    monkeypatch.setattr(ModuleTrainer, "__init__", lambda self, program: (sleep(0.05), begin(self, program))[1])
    model, trainers = make(), []
    threads = [Thread(target=lambda: trainers.append(model.trainer)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trainers[0] is trainers[1]


def test_threads_and_callbacks_fit_one_after_the_other():
    model = make()
    threads = [Thread(target=lambda: model.fit(X, Y, epochs=20, batch_size=8)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same(model, make().fit(X, Y, epochs=40, batch_size=8))

    def train_more(module):
        if len(module.history_) == 1:
            module.fit(X[:8], Y[:8], epochs=2, batch_size=4, shuffle=False)
            module.train_one_batch(X[:8], Y[:8])

    nested = make().fit(X, Y, epochs=2, batch_size=8, shuffle=False, callbacks=train_more)
    expected = make().fit(X, Y, epochs=1, batch_size=8, shuffle=False)
    expected.fit(X[:8], Y[:8], epochs=2, batch_size=4, shuffle=False).train_one_batch(X[:8], Y[:8])
    assert_same(nested, expected.fit(X, Y, epochs=1, batch_size=8, shuffle=False))
    assert [record["iteration"] for record in nested.history_] == [7, 9, 11, 19]
