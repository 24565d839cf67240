"""The bar, the lines in place of it, and the log of a training."""

import io
import logging
import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from terminals import Terminal
from trainings import X_VAL, Y_VAL, X, Y, linear_engine, optimizer, same

from ortpartial.exceptions import ConvergenceError, ConvergenceWarning, DeadlineError
from ortpartial.execution import progress
from ortpartial.execution.epoch_engine import EpochEngine
from ortpartial.logs import compiling

LINE = r"epoch {}/5: loss=[\d.]+, validation=[\d.]+, [\d.e-]+ s"


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(progress, "_PERIOD", 0.01)
    terminal = Terminal()
    monkeypatch.setattr(progress, "sys", terminal)  # pytest sets that of `sys` when the test begins.
    return terminal


class Slow:
    """Batches that take some time, without a length."""

    def __iter__(self):
        for i in range(0, 60, 10):
            time.sleep(0.02)
            yield X[i : i + 10], Y[i : i + 10]


def test_the_bar_moves_within_an_epoch(terminal):
    o = optimizer(verbose=1, max_iter=2)
    o.fit(Slow(), X_val=X_VAL, y_val=Y_VAL)
    states = terminal.states()
    counts = [int(m[1]) for s in states if (m := re.match(r"epoch 1/2, loss=[\d.]+, (\d) batches in 00:00", s))]
    assert len(set(counts) - {0, 6}) > 1
    shares = [int(m[1]) for s in states if (m := re.match(r"epoch 2/2, loss=[\d.e-]+, validation=[\d.]+ +(\d+)%", s))]
    assert len(set(shares) - {50, 100}) > 1
    losses = f"loss={o.train_losses_[-1]:.4g}, validation={o.validation_losses_[-1]:.4g}"
    assert states[-1].startswith(f"epoch 2/2, max_iter reached, {losses} 100%")


def test_the_bar_moves_within_an_epoch_of_rows(terminal, monkeypatch):
    train = EpochEngine._train

    def slow(self, batches, *arguments):
        for part in np.array_split(batches, len(batches)):
            time.sleep(0.02)
            train(self, part, *arguments)

    monkeypatch.setattr(EpochEngine, "_train", slow)
    assert same(optimizer(verbose=1, max_iter=1).fit(X, Y), optimizer(max_iter=1).fit(X, Y))
    shares = {int(m[1]) for s in terminal.states() if (m := re.match(r"epoch 1/1, loss=[\d.]+ +(\d+)%", s))}
    assert len(shares - {0, 100}) > 1


def test_the_bar_has_the_width_of_the_terminal(terminal):
    def shrink(o):
        time.sleep(0.05)
        if o.n_iter_ == 2:
            terminal.resize(70)

    optimizer(verbose=1, callbacks=[shrink]).fit(X, Y)
    widths = [len(s) for s in terminal.states()]
    assert max(widths) in (98, 99, 100)
    assert max(widths[-2:]) <= 70


def test_a_terminal_that_does_not_know_its_size(terminal):
    terminal.resize(0, 0)
    optimizer(verbose=1).fit(X, Y)
    assert re.match(r"epoch 5/5, max_iter reached, loss=[\d.]+ +100%", terminal.states()[-1])
    assert [progress._count_columns(stream) for stream in (None, io.StringIO())] == [None, None]


def test_the_bar_says_that_a_program_compiles(terminal, monkeypatch):
    open_program = EpochEngine._open

    def slow(self, key):
        time.sleep(0.2)
        return open_program(self, key)

    monkeypatch.setattr(EpochEngine, "_open", slow)
    monkeypatch.setattr(progress, "_LONG_COMPILATION", 0.05)
    optimizer(verbose=1, max_iter=1).fit(X, Y)
    states = terminal.states()
    assert any(s.startswith("epoch 1/1, compiling") for s in states)
    assert any(re.match(r"epoch 1/1 +0%", s) for s in states), "not before it takes long"
    assert states[-1].startswith("epoch 1/1, max_iter reached")


def test_short_compilations_and_those_of_others_are_not_told(terminal):
    def compile_elsewhere():
        with compiling("a program of another thread"):
            time.sleep(0.2)

    def callback(o):
        thread = threading.Thread(target=compile_elsewhere)
        thread.start()
        thread.join()

    optimizer(verbose=1, max_iter=1, callbacks=[callback]).fit(X, Y)
    assert not [s for s in terminal.states() if "compiling" in s]


ENDINGS = {
    "max_iter reached": ({}, None),
    "stopped by a callback": ({"callbacks": [lambda o: o.n_iter_ == 2]}, None),
    "interrupted": ({"callbacks": [lambda o: exec("raise KeyboardInterrupt")]}, KeyboardInterrupt),
    "loss not finite": ({"learning_rate": 1e20}, ConvergenceError),
    "timeout": ({"timeout": 0.2, "max_iter": 10**9}, DeadlineError),
    "ZeroDivisionError": ({"callbacks": [lambda o: 1 / 0]}, ZeroDivisionError),
}


@pytest.mark.parametrize(("ending", "case"), ENDINGS.items(), ids=ENDINGS)
@pytest.mark.parametrize("where", ["terminal", "file"])
def test_the_end_is_told(ending, case, where, request, capsys, caplog):
    terminal = request.getfixturevalue("terminal") if where == "terminal" else None
    caplog.set_level(logging.INFO, "ortpartial")
    settings, error = case
    o = optimizer(verbose=1, **settings)
    if error is None:
        o.fit(X, Y)
    else:
        with pytest.raises(error):
            o.fit(X, Y)
    expected = f"training ended after {o.n_iter_} of {o.max_iter} epochs: {ending}"
    if terminal is None:
        assert capsys.readouterr().err.splitlines()[-1] == expected
    else:
        assert re.match(rf"epoch \d+/{o.max_iter}, {ending}[, ]", terminal.states()[-1])
    first = next(r.message for r in caplog.records if r.levelname == "INFO")
    assert first == f"training by engine {o.engine_!r}: {o.engine_reason_}"
    assert re.fullmatch(rf"{expected}, [\d.]+ s", caplog.records[-1].message)


def test_a_warning_in_place_of_an_error_is_told(capsys):
    with pytest.warns(ConvergenceWarning):
        optimizer(verbose=1, learning_rate=1e20, raise_on_divergence=False).fit(X, Y)
    assert capsys.readouterr().err.splitlines()[-1] == "training ended after 0 of 5 epochs: loss not finite"


@pytest.mark.parametrize(("verbose", "stream"), [(1, "err"), (2, "out")])
def test_lines_in_a_file(verbose, stream, capsys):
    optimizer(verbose=verbose).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    written = capsys.readouterr()
    *lines, last = getattr(written, stream).splitlines()
    assert getattr(written, "out" if stream == "err" else "err") == ""
    assert len(lines) == 5
    assert all(re.fullmatch(LINE.format(i + 1), line) for i, line in enumerate(lines))
    assert last == "training ended after 5 of 5 epochs: max_iter reached"


def test_verbose_2_has_lines_on_a_terminal(terminal, capsys):
    optimizer(verbose=2).fit(X, Y)
    assert len(capsys.readouterr().out.splitlines()) == 6
    assert terminal.states() == []


def test_silence(capsys):
    optimizer().fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert capsys.readouterr() == ("", "")


def test_verbose_changes_while_it_runs(terminal, capsys):
    def change(o):
        time.sleep(0.03)
        o.verbose = {1: 1, 2: 2, 3: 0, 4: 1}.get(o.n_iter_, o.verbose)

    optimizer(callbacks=[change]).fit(X, Y)
    shown = [re.match(r"epoch (\d)", s)[1] for s in terminal.states()]
    assert (set(shown), shown[-1]) == ({"2", "5"}, "5")
    assert [line[:9] for line in capsys.readouterr().out.splitlines()] == ["epoch 3/5"]
    assert not [t for t in threading.enumerate() if t.name == "ortpartial progress"]


def test_the_log_has_epochs_and_compilations(caplog):
    caplog.set_level(logging.DEBUG, "ortpartial")
    optimizer(max_iter=2).fit(X, Y)
    messages = [r.message for r in caplog.records if r.levelname == "DEBUG"]
    assert any(re.match(r"compiled the epoch for 10 rows in 0\.\d\d s", m) for m in messages)
    assert [m[:10] for m in messages if m.startswith("epoch")] == ["epoch 1/2:", "epoch 2/2:"]


def test_the_bar_is_drawn_by_time_and_not_by_step(terminal, monkeypatch):
    monkeypatch.setattr(progress, "_PERIOD", 0.05)
    start = time.monotonic()
    optimizer(verbose=1, max_iter=300, batch_size=1).fit(X, Y)
    seconds = time.monotonic() - start
    assert len(terminal.states()) <= seconds / 0.05 + 3


def test_a_stream_that_is_missing(monkeypatch):
    """As in a program without a console."""
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=None))
    assert not progress.is_interactive()
    assert linear_engine().mean.value == 0
