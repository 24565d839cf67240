"""A fit that was cut off goes on from the checkpoints of the callback, and ends as if it had not been, to the bit."""

import copy
import errno
import os
import re
import signal
import threading
import time

import numpy as np
import pytest
from models import images, mlp, net
from trainings import ENGINES, X_VAL, Y_VAL, X, Y, optimizer, same

from ortpartial import LearningRateAdam, LearningRateSGD, LossScale, SoftmaxCrossEntropyLearningLoss
from ortpartial.estimator import Checkpoint
from ortpartial.estimator.callbacks import EarlyStopping, ReduceOnPlateau
from ortpartial.exceptions import CheckpointError, CheckpointWarning, DataError, SettingError
from ortpartial.execution.checkpoint import list_checkpoints, read_checkpoint, write_checkpoint

BATCHES = [(X[i : i + 7], Y[i : i + 7]) for i in range(0, 60, 7)]


class Callback:
    """A callback that does nothing."""

    batches_between_calls = None

    def setup(self, estimator, context):
        pass

    on_fit_task_begin = on_fit_task_end = teardown = setup


class Cut(Callback):
    """Ends a training by an error, the n-th time that it is told that a task is over."""

    batches_between_calls = 3

    def __init__(self, n):
        self.n = n

    def on_fit_task_end(self, estimator, context):
        self.n -= 1
        if not self.n:
            raise InterruptedError


def records(o):
    return [{n: v for n, v in record.items() if n != "seconds"} for record in o.history_]


def equal(a, b):
    buffers = zip(a.get_state("buffer"), b.get_state("buffer"), strict=True)
    return (same(a, b) and a.validation_losses_ == b.validation_losses_ and records(a) == records(b)
            and all((u == v).all() for u, v in buffers) and a.learning_rate_ == b.learning_rate_)


def cut_and_resume(make, folder, data, n, **validation):
    """A training that is cut off the n-th time that callbacks are told, and goes on without them, or with others."""
    first = make()
    with pytest.raises(InterruptedError):
        first.set_params(callbacks=[*first.callbacks, Cut(n), Checkpoint(folder, seconds=0)]).fit(*data, **validation)
    return make().fit(*data, **validation, resume=folder)


@pytest.mark.parametrize("engine", [*ENGINES, "in place"])
def test_engines(engine, tmp_path):
    """Cut off between epochs, and after any batch."""

    def make():
        settings = {"checkpointing": "auto"} if engine == "in place" else {"engine": engine}
        return optimizer(learning_rate="Adam", max_iter=3, **settings)

    expected = make().fit(X, Y, X_val=0.2)
    for n in (2, 3, 4, 6):
        assert equal(cut_and_resume(make, tmp_path / str(n), (X, Y), n, X_val=0.2), expected)


SETTINGS = {
    "plan": {"learning_rate": LearningRateSGD(0.1, schedule="cosine")},
    "loss scale": {"precision": "float16", "loss_scale": LossScale(growth_interval=3)},
    "random first weights": {"init": "random"},
    "a generator": {"random_state": np.random.Generator(np.random.MT19937(5))},
    "no shuffling": {"shuffle": False},
    "averages and accumulation": {"averaging": "ema", "accumulate": 2, "gradient_clipping": 0.5},
    "plateau": {"learning_rate": LearningRateSGD(0.1, schedule="plateau")},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name, tmp_path):
    def make():
        return optimizer(max_iter=4, **copy.deepcopy(SETTINGS[name]))

    expected = make().fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    for n in (5, 8):
        assert equal(cut_and_resume(make, tmp_path / str(n), (X, Y), n, X_val=X_VAL, y_val=Y_VAL), expected)


def test_running_statistics_and_masks(tmp_path):
    def make():
        return optimizer(net(ratio=0.3), train_mode=True, max_iter=3)

    assert equal(cut_and_resume(make, tmp_path, images(60), 4), make().fit(*images(60)))


@pytest.mark.parametrize("n", [2, 4, 5, 9])
def test_batches_of_an_iterable(tmp_path, n):
    """Those that are over are skipped, also where all of an epoch are."""
    def make():
        return optimizer(max_iter=3, learning_rate="Adam")

    assert equal(cut_and_resume(make, tmp_path, (BATCHES,), n), make().fit(BATCHES))


def test_balanced_classes(tmp_path):
    labels = np.arange(60) % 7 % 3

    def make():
        return optimizer(mlp(outputs=3), learning_loss=SoftmaxCrossEntropyLearningLoss(class_weight="balanced"))

    assert equal(cut_and_resume(make, tmp_path, (X, labels), 5), make().fit(X, labels))


def test_without_a_seed(tmp_path):
    """All is the same from the first checkpoint on, which is written before the first step: weights and rows, too."""
    first = optimizer(random_state=None, init="random", max_iter=3, callbacks=[Checkpoint(tmp_path, keep=99)])
    first.fit(X, Y, X_val=0.2)
    files = list_checkpoints(tmp_path)
    assert [read_checkpoint(f)["place"]["epoch"] for f in files] == [0, 1, 2, 3]
    for file in files:
        again = optimizer(random_state=None, init="random", max_iter=3).fit(X, Y, X_val=0.2, resume=file)
        assert equal(again, first)


def test_when_there_is_nothing(tmp_path):
    assert same(optimizer().fit(X, Y, resume=tmp_path), optimizer().fit(X, Y))
    assert same(optimizer().fit(X, Y, resume=tmp_path / "new"), optimizer().fit(X, Y))
    with pytest.raises(FileNotFoundError):
        optimizer().fit(X, Y, resume=tmp_path / "new.safetensors")


def test_when_it_had_ended(tmp_path):
    """Nothing is left to do, unless there are to be more epochs."""
    callback = Checkpoint(tmp_path)
    first = optimizer(max_iter=4, callbacks=[callback]).fit(X, Y)
    assert equal(optimizer(max_iter=4).fit(X, Y, resume=callback.path_), first)
    assert same(optimizer(max_iter=6, callbacks=[callback]).fit(X, Y, resume=tmp_path), optimizer(max_iter=6).fit(X, Y))


def test_a_longer_schedule(tmp_path):
    """With more epochs, the rest has the plan of all of them."""
    rate = LearningRateSGD(0.1, schedule="cosine")
    optimizer(max_iter=4, learning_rate=rate, callbacks=[Checkpoint(tmp_path)]).fit(X, Y)
    longer = optimizer(max_iter=8, learning_rate=rate).fit(X, Y, resume=tmp_path)
    assert longer.history_[-1]["learning_rate"] == optimizer(max_iter=8, learning_rate=rate).fit(X, Y).history_[-1][
        "learning_rate"]


def test_warm_start(tmp_path):
    """The second of two calls of fit is cut off."""
    def make():
        return optimizer(warm_start=True, max_iter=2, learning_rate=LearningRateAdam(schedule="cosine"))

    expected = make().fit(X, Y).fit(X, Y)
    first = make().fit(X, Y)
    with pytest.raises(InterruptedError):
        first.set_params(callbacks=[Cut(4), Checkpoint(tmp_path, seconds=0)]).fit(X, Y)
    assert equal(make().fit(X, Y, resume=tmp_path), expected)


class Plateau(Callback):
    """Divides the rate by two after every second epoch, and stops after six."""

    count = 0

    def on_fit_task_begin(self, estimator, context):
        if context.task_name == "fit":
            self.count = 0

    def on_fit_task_end(self, estimator, context):
        if context.task_name != "epoch":
            return False
        self.count += 1
        if self.count % 2 == 0:
            estimator.set_params(learning_rate__eta0=estimator.learning_rate.eta0 / 2)
        return self.count == 6

    def get_state(self):
        return {"count": self.count, "weights": np.full(3, self.count)}

    def set_state(self, state):
        assert (state["weights"] == state["count"]).all()
        self.count = state["count"]


@pytest.mark.parametrize("n", [4, 14, 15, 19])
def test_other_callbacks(tmp_path, n):
    """Their states, what they have changed and whether they have ended the training are part of it, whatever their
    order."""
    def make():
        return optimizer(max_iter=20, callbacks=[Plateau()])

    expected = make().fit(X, Y)
    assert expected.n_iter_ == 6
    cut = optimizer(max_iter=20, callbacks=[Checkpoint(tmp_path, seconds=0), Cut(n), Plateau()])
    with pytest.raises(InterruptedError):
        cut.fit(X, Y)
    assert equal(make().fit(X, Y, resume=tmp_path), expected)


def test_an_end_that_was_asked_for(tmp_path):
    optimizer(max_iter=20, callbacks=[Checkpoint(tmp_path), Plateau()]).fit(X, Y)
    again = optimizer(max_iter=20, callbacks=[Plateau()]).fit(X, Y, resume=tmp_path)
    assert again.n_iter_ == 6


def test_a_callback_that_trains_on_other_rows(tmp_path):
    """What it does within an epoch is part of the state, and does not change the place of the fit."""
    class Also(Callback):
        batches_between_calls = 4

        def on_fit_task_end(self, estimator, context):
            if context.task_name == "batches":
                estimator.partial_fit(X_VAL, Y_VAL)

    def make():
        return optimizer(max_iter=3, callbacks=[Also()])

    assert equal(cut_and_resume(make, tmp_path, (X, Y), 5), make().fit(X, Y))


def test_what_is_written(tmp_path):
    """Every second epoch, and the last one."""
    epochs = []

    def note(o):
        epochs.append([read_checkpoint(f)["place"]["epoch"] for f in list_checkpoints(tmp_path)])

    optimizer(max_iter=5, callbacks=[Checkpoint(tmp_path, keep=2, every=2), note]).fit(X, Y)
    note(None)
    assert epochs == [[0], [0], [0, 2], [0, 2], [2, 4], [4, 5]]


def test_after_so_many_seconds(tmp_path):
    """Also within an epoch; how often it looks at the clock follows from how long that takes."""
    rows = np.tile(X, (2000, 1))
    callback = Checkpoint(tmp_path, keep=99, every=None, seconds=0.01)
    optimizer(max_iter=1, callbacks=[callback], engine="step").fit(rows, np.tile(Y, (2000, 1)))
    places = [read_checkpoint(f)["place"] for f in list_checkpoints(tmp_path)]
    assert len(places) > 3
    assert [p["epoch"] for p in places] == [*[0] * (len(places) - 1), 1]
    assert sorted(p["batches"] for p in places[:-1])[-1] > 0
    assert callback.batches_between_calls > 8


def test_a_former_training_in_the_folder(tmp_path):
    """A new one in the same folder is never taken for it, even if it is cut off at once."""
    optimizer(max_iter=2, callbacks=[Checkpoint(tmp_path)]).fit(X, Y)
    cut_and_resume(lambda: optimizer(max_iter=2, random_state=1), tmp_path, (X, Y), 1)
    again = optimizer(max_iter=2, random_state=1).fit(X, Y, resume=tmp_path)
    assert same(again, optimizer(max_iter=2, random_state=1).fit(X, Y))


def test_a_damaged_one(tmp_path):
    """It is named, and the one before it goes on."""
    optimizer(max_iter=3, callbacks=[Checkpoint(tmp_path)]).fit(X, Y)
    list_checkpoints(tmp_path)[-1].write_bytes(b"nothing")
    with pytest.warns(CheckpointWarning, match=r"4\.safetensors' is no safetensors file, or a damaged one\. The tr"):
        again = optimizer(max_iter=3).fit(X, Y, resume=tmp_path)
    assert same(again, optimizer(max_iter=3).fit(X, Y))


@pytest.mark.parametrize(("settings", "data", "error", "message"), [
    ({"batch_size": 7}, (X, Y), CheckpointError, "is of a training with batch_size=10, and this one has 7; give the "
     "former setting or choose another folder, or go on with the new one by load_checkpoint and warm_start=True."),
    ({"learning_rate": 0.01}, (X, Y), CheckpointError, "learning_rate=LearningRateSGD(eta0=0.05, "),
    ({"learning_loss": "absolute_error"}, (X, Y), CheckpointError, "learning_loss=SquareLearningLoss("),
    ({"model": mlp(hidden=3)}, (X, Y), CheckpointError, "is of another training: 'W1' is float32 of shape (4, 8)"),
    ({}, (X[:50], Y[:50]), DataError, "The checkpoint is of a training on 60 rows, and this one is on 50 rows; give "),
    ({}, (BATCHES,), DataError, "The checkpoint is of a training on 60 rows, and this one is on batches; give the"),
])
def test_another_training(tmp_path, settings, data, error, message):
    optimizer(max_iter=2, callbacks=[Checkpoint(tmp_path)]).fit(X, Y)
    with pytest.raises(error, match=re.escape(message)):
        optimizer(**{"max_iter": 3, **settings}).fit(*data, resume=tmp_path)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c(tmp_path):
    """The batch that runs is the last one, a checkpoint follows, and the error says how to go on."""
    rows, targets = np.tile(X, (2000, 1)), np.tile(Y, (2000, 1))
    expected = optimizer(max_iter=2).fit(rows, targets)
    o = optimizer(max_iter=2, callbacks=[Checkpoint(tmp_path), Callback()])
    is_running = threading.Event()

    class Begin(Callback):
        def on_fit_task_begin(self, estimator, context):
            is_running.set()

    def interrupt():
        is_running.wait()
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt, match=r"^The training was interrupted after \d epochs and \d+ batches; "
                                                rf"fit\(X, y, resume='{tmp_path}'\) goes on from there\.$"):
        o.set_params(callbacks=[Begin(), *o.callbacks]).fit(rows, targets)
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert read_checkpoint(list_checkpoints(tmp_path)[-1])["engine"]["iteration"] == o._engine.iteration
    assert same(optimizer(max_iter=2).fit(rows, targets, resume=tmp_path), expected)


def test_no_room_on_the_disk(tmp_path, monkeypatch):
    """The error is clear, the former checkpoints remain, and the training goes on from where it was."""
    o = optimizer(max_iter=3, learning_rate="Adam", callbacks=[Checkpoint(tmp_path, keep=1)])
    expected = optimizer(max_iter=3, learning_rate="Adam").fit(X, Y)

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(estimator):
        if estimator.n_iter_ == 2:
            monkeypatch.setattr(os, "fsync", refuse)

    o.set_params(callbacks=[*o.callbacks, fill])
    with pytest.raises(OSError, match=r"No space left on device; nothing was written; .*000003\.safetensors'$"):
        o.fit(X, Y)
    monkeypatch.undo()
    assert o.n_iter_ == 2
    assert os.listdir(tmp_path) == ["checkpoint-000002.safetensors"]
    o.set_params(callbacks=()).partial_fit(X, Y)
    assert equal(o, expected)


@pytest.mark.parametrize(("settings", "error", "message"), [
    ({"keep": 0}, SettingError, "Checkpoint: keep is 0, a whole number at least 1 was expected."),
    ({"every": 0}, SettingError, "Checkpoint: every is 0, a whole number at least 1 was expected."),
    ({"every": True}, SettingError, "Checkpoint: every is True"), ({"keep": None}, SettingError, "keep is None, a"),
    ({"seconds": -1}, SettingError, "Checkpoint: seconds is -1, a finite number at least 0 was expected."),
    ({"seconds": "30s"}, SettingError, "Checkpoint: seconds is '30s', a finite number at least 0 was expected."),
    ({"folder": None}, SettingError, "folder is a path, a string or a Path, not None"),
    ({"folder": "a.safetensors"}, SettingError, "folder is 'a.safetensors', the name of a file; it writes several of"),
    ({"folder": __file__}, SettingError, "the name of a file; it writes several of them, give a folder."),
    ({"filepath": "a"}, TypeError, "Checkpoint has no setting 'filepath'; did you mean 'folder'?"),
    ({"save_top_k": 3}, TypeError, "Checkpoint has no setting 'save_top_k'; did you mean 'keep'?"),
])
def test_wrong_settings(settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Checkpoint(**{"folder": "folder", **settings})


@pytest.mark.parametrize("folder", [True, 3])
def test_what_is_no_folder(folder):
    with pytest.raises(SettingError, match=f"resume is the folder of a Checkpoint, or a file of it, not {folder}"):
        optimizer().fit(X, Y, resume=folder)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n", [3, 8, 17])
@pytest.mark.parametrize("engine", ENGINES)
def test_all_at_once(engine, n, tmp_path):
    """Averages, accumulation, held-out rows, clipping, a weight that is unfrozen and callbacks with a memory."""
    def unfreeze(o):
        if o.n_iter_ == 2:
            o.unfreeze("W1")

    def make():
        callbacks = [unfreeze, EarlyStopping(patience=3, min_delta=0.03), ReduceOnPlateau(patience=1, threshold=0.2)]
        return optimizer(max_iter=12, learning_rate="Adam", freeze="W1", averaging="ema", accumulate=2, engine=engine,
                         gradient_clipping=0.5, validation_every=1, callbacks=callbacks)

    expected = make().fit(X, Y, X_val=0.2)
    again = cut_and_resume(make, tmp_path, (X, Y), n, X_val=0.2)
    assert equal(again, expected)
    assert again.get_trained_onnx() == expected.get_trained_onnx()
    assert again.callbacks[1].best_epoch_ == expected.callbacks[1].best_epoch_


def test_an_estimator_without_a_state(tmp_path):
    with pytest.raises(SettingError, match="Checkpoint writes the state of an optimizer of ortpartial, and a list has"):
        Checkpoint(tmp_path).on_fit_task_begin([], None)


def test_another_thread_does_not_write(tmp_path):
    errors = []

    def save(o):
        def write():
            try:
                o.save_checkpoint(tmp_path / "a.safetensors")
            except SettingError as e:
                errors.append(str(e))

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()

    optimizer(max_iter=1, callbacks=[save]).fit(X, Y)
    assert errors == ["A checkpoint is written between two steps: in a callback, not in another thread."]


@pytest.mark.parametrize("n", [2, 4, 9])
def test_weights_that_are_unfrozen_on_the_way(tmp_path, n):
    def unfreeze(o):
        if o.n_iter_ == 1:
            o.freeze("W2")
        if o.n_iter_ == 2:
            o.unfreeze("W1")

    def make():
        return optimizer(max_iter=4, learning_rate="Adam", freeze="W1", callbacks=[unfreeze])

    expected = make().fit(X, Y)
    assert expected.weights_to_train == ["W1", "b1", "b2"]
    again = cut_and_resume(make, tmp_path, (X, Y), n)
    assert equal(again, expected)
    assert again.get_trained_onnx() == expected.get_trained_onnx()


@pytest.mark.parametrize("n", [2, 8, 15, 16])
def test_early_stopping_and_a_plateau(tmp_path, n):
    """They go on from what they have seen, also where nothing but their end is left."""
    def make():
        callbacks = [EarlyStopping(patience=3, min_delta=0.02), ReduceOnPlateau(patience=1, factor=0.3, threshold=0.1)]
        return optimizer(max_iter=30, learning_rate=0.3, validation_every=1, callbacks=callbacks)

    expected = make().fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert expected.n_iter_ == 5
    assert expected.learning_rate_ < 0.3
    again = cut_and_resume(make, tmp_path, (X, Y), n, X_val=X_VAL, y_val=Y_VAL)
    assert equal(again, expected)
    for name in ("best_", "best_epoch_", "stopped_epoch_"):
        assert getattr(again.callbacks[0], name) == getattr(expected.callbacks[0], name)


def test_a_former_checkpoint_goes_on_as_it_began(tmp_path):
    """It validates at each tenth of the epochs, the default of then, and patience counts these values."""
    def make(*others, **settings):
        return optimizer(max_iter=30, callbacks=[EarlyStopping(patience=4, min_delta=10), *others], **settings)

    with pytest.raises(InterruptedError):
        make(Checkpoint(tmp_path, every=1), Cut(10), validation_every=0.1).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    state = read_checkpoint(list_checkpoints(tmp_path)[-1])
    assert state.pop("form") == 3
    del state["callbacks"][0]["state"]["counted"]
    write_checkpoint(state, tmp_path / "former.safetensors")
    o = make().fit(X, Y, X_val=X_VAL, y_val=Y_VAL, resume=tmp_path / "former.safetensors")
    assert (o.validation_every, o.n_iter_, len(o.validation_losses_)) == (0.1, 15, 5)


def test_what_is_shown(tmp_path, capsys):
    """The number of the epoch, also where none is left."""
    optimizer(max_iter=3, callbacks=[Checkpoint(tmp_path)]).fit(X, Y)
    optimizer(max_iter=4, verbose=2).fit(X, Y, resume=tmp_path)
    optimizer(max_iter=3, verbose=2).fit(X, Y, resume=tmp_path)
    lines = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["epoch 4/4", "training ended after 4 of 4 epochs", "training ended after 3 of 3 epochs"]
