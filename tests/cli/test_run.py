"""Trainings of models that store them: rows, validation, outputs that lose nothing, Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from interruptions import interrupt_at
from models import data, weights_of
from paths import environment
from step_engines import list_step_engines

from ortpartial.cli import main
from ortpartial.training_info import TrainingSession


def run(words):
    return main(["run", "training.onnx", "data.npz", *words.split()])


def weights(path):
    return weights_of(onnx.load(path))


def test_run_shuffles(training):
    assert run("--epochs 2 --batch 3 --seed 1 -o a.onnx") == 0
    assert run("--epochs 2 --batch 3 --seed 1 -o b.onnx") == 0
    assert run("--epochs 2 --batch 3 --seed 2 -o c.onnx") == 0
    assert run("--epochs 2 --batch 3 --no-shuffle -o d.onnx") == 0
    assert (weights("a.onnx")["W1"] == weights("b.onnx")["W1"]).all()
    assert len({weights(f"{name}.onnx")["W1"].tobytes() for name in "bcd"}) == 3
    assert TrainingSession("a.onnx").state["iteration"] == 14  # the last batch of an epoch has two rows


def test_run_initializes_when_asked(training):
    assert run("--epochs 1 --no-shuffle -o a.onnx") == 0
    assert run("--epochs 1 --no-shuffle --initialize --seed 1 -o b.onnx") == 0
    assert run("--epochs 1 --no-shuffle --initialize --seed 1 -o c.onnx") == 0
    assert abs(weights("a.onnx")["W1"] - weights("mlp.onnx")["W1"]).max() < 0.1
    assert abs(weights("b.onnx")["W1"] - weights("mlp.onnx")["W1"]).max() > 0.1
    assert (weights("b.onnx")["W1"] == weights("c.onnx")["W1"]).all()


def test_run_validates(training, capsys):
    """The loss on rows of a file, and on a share of the rows, which are not trained on."""
    X, y, _ = data(30, seed=5)
    np.savez("validation.npz", x=X, y_target=y)
    assert run("--epochs 2 --batch 7 -o a.onnx --validation validation.npz") == 0
    loss = float(capsys.readouterr().out.splitlines()[1].rpartition(" ")[2])
    predicted = TrainingSession("a.onnx").evaluate({"x": X, "y_target": y})["y"]
    assert loss == pytest.approx(np.mean((predicted - y) ** 2), rel=1e-5)
    assert run("--epochs 1 --batch 5 --dry-run --validation 0.25") == 0
    assert ", validation loss " in capsys.readouterr().out
    assert run("--epochs 3 --batch 5 -o b.onnx --validation 0.25") == 0
    assert TrainingSession("b.onnx").state["iteration"] == 9


def test_run_strips_when_asked(training, capsys):
    assert run("--epochs 1 -o a.onnx --strip") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "a.onnx: the trained model, without its training"
    assert not onnx.load("a.onnx").training_info
    assert run("--epochs 1 -o training.onnx") == 0
    assert onnx.load("training.onnx").training_info
    assert TrainingSession("training.onnx").state["iteration"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-o mlp.onnx", "'mlp.onnx' exists; choose another name for the trained model, or say --force."),
        ("-o training.onnx --strip", "With --strip, 'training.onnx' would lose its training; choose another name"),
        ("-o training.onnx --initialize", "With --initialize, 'training.onnx' would lose what was trained; choose"),
        ("-o nowhere/trained.onnx", "There is no folder 'nowhere' for the trained model."),
        ("-o .", "'.' is a folder; name a file for the trained model."),
    ],
)
def test_run_throws_no_training_away(training, capsys, words, message):
    """It says so before the training, not after it."""
    before = {path.name: path.read_bytes() for path in training.iterdir()}
    assert run(f"--epochs 1 {words}") == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert {path.name: path.read_bytes() for path in training.iterdir()} == before
    if words not in ("-o nowhere/trained.onnx", "-o ."):
        assert run(f"--epochs 1 {words} --force") == 0


def test_run_has_an_output(training, capsys):
    with pytest.raises(SystemExit):
        run("--epochs 1")
    assert "one of the arguments -o/--output --dry-run is required" in capsys.readouterr().err
    before = sorted(training.iterdir())
    assert run("--epochs 1 --dry-run") == 0
    assert sorted(training.iterdir()) == before


def test_run_that_diverges_writes_nothing(training, capsys):
    assert main(["export", "mlp.onnx", "-o", "training.onnx", "--eta0", "3e38"]) == 0
    before = Path("training.onnx").read_bytes()
    assert run("--epochs 9 --batch 5 -o training.onnx") == 2
    assert re.search(r"The output 'loss' is (nan|inf) in step \d+ \(epoch \d\); lower", capsys.readouterr().err)
    assert run("--steps 1 -o training.onnx") == 2
    assert re.search(r"'W\d' is no longer finite, and nothing is written", capsys.readouterr().err)
    assert Path("training.onnx").read_bytes() == before


def test_a_training_goes_on_when_nobody_reads_its_lines(training, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert run("--epochs 3 -o trained.onnx") == 0
    assert TrainingSession("trained.onnx").state["iteration"] == 3


def test_run_prints_json(training, capsys):
    assert run("--epochs 2 --batch 5 --validation 0.25 --dry-run --json") == 0
    first, second, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["event"], first["epoch"], second["epoch"]) == ("epoch", 1, 2)
    assert second["loss"] < first["loss"]
    assert second["validation"].keys() == {"loss"}
    assert end == {"event": "end", "steps": 6, "model": None}
    assert run("--epochs 2 --json -o trained.onnx") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["model"] == "trained.onnx"


@pytest.mark.parametrize("engine", ["step", "epoch", *list_step_engines()[1:]])
def test_run_by_an_engine(training, capsys, engine):
    """The same lines and the same steps; `--steps` may end within an epoch."""
    assert run("--epochs 3 --batch 6 --seed 1 --validation 0.2 -o a.onnx") == 0
    expected = capsys.readouterr().out.splitlines()
    assert run(f"--epochs 3 --batch 6 --seed 1 --validation 0.2 --engine {engine} -o b.onnx") == 0
    for line, other in zip(capsys.readouterr().out.splitlines()[:-1], expected[:-1], strict=True):
        numbers, others = (list(map(float, re.findall(r"[\d.]+(?:e-\d+)?", text))) for text in (line, other))
        assert numbers == pytest.approx(others, rel=1e-4)
    assert TrainingSession("b.onnx").state["iteration"] == TrainingSession("a.onnx").state["iteration"] == 9
    for n, a in weights("a.onnx").items():
        np.testing.assert_allclose(weights("b.onnx")[n], a, rtol=1e-5, atol=1e-7)
    assert run(f"--steps 4 --batch 7 --engine {engine} -o c.onnx") == 0
    assert TrainingSession("c.onnx").state["iteration"] == 4


@pytest.mark.parametrize("engine", ["auto", "epoch"])
def test_a_timeout_writes_nothing(training, capsys, engine):
    assert run(f"--epochs 1000000 --timeout 0.3 --engine {engine} -o a.onnx") == 2
    assert "ortpartial: The training was not over after 0.3 s, the timeout." in capsys.readouterr().err
    assert not Path("a.onnx").exists()
    assert run("--timeout 0 -o a.onnx") == 2
    assert "timeout is None or a number of seconds above 0, not 0.0" in capsys.readouterr().err


def test_ctrl_c_writes_what_was_trained(training, ctrl_c, capsys, monkeypatch):
    monkeypatch.setattr(TrainingSession, "step", interrupt_at(8, TrainingSession.step))
    assert run("--epochs 5 --batch 5 -o trained.onnx") == 130
    out, err = capsys.readouterr()
    assert err == "ortpartial: interrupted after step 7 of 20\n"
    assert out.splitlines()[0].startswith("epoch 1/5: ")
    assert out.splitlines()[1:] == ["trained.onnx: the trained model"]
    assert TrainingSession("trained.onnx").state["iteration"] == 7


def test_ctrl_c_while_the_model_is_written(training, ctrl_c, capsys, monkeypatch):
    """The writing goes on."""
    monkeypatch.setattr(os, "fsync", interrupt_at(1, os.fsync))
    assert run("--epochs 5 -o trained.onnx") == 130
    assert TrainingSession("trained.onnx").state["iteration"] == 5


def test_ctrl_c_that_is_ignored(training, ctrl_c, monkeypatch):
    """As by a shell, for a program in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(TrainingSession, "step", interrupt_at(2, TrainingSession.step))
    assert run("--epochs 5 -o trained.onnx") == 0
    assert TrainingSession("trained.onnx").state["iteration"] == 5


def test_ctrl_c_before_the_first_step(training, ctrl_c, capsys, monkeypatch):
    monkeypatch.setattr(TrainingSession, "step", interrupt_at(1, TrainingSession.step))
    assert run("--epochs 5 -o trained.onnx") == 130
    assert capsys.readouterr() == ("", "ortpartial: interrupted before the first step; nothing is written\n")
    assert not Path("trained.onnx").exists()


def test_ctrl_c_before_the_training(training, ctrl_c, capsys, monkeypatch):
    """Nothing is written."""
    module = sys.modules["ortpartial.cli.run"]
    monkeypatch.setattr(module, "read_rows", interrupt_at(1, module.read_rows))
    before = sorted(training.iterdir())
    assert run("--epochs 5 -o trained.onnx") == 130
    assert capsys.readouterr() == ("", "ortpartial: interrupted\n")
    assert sorted(training.iterdir()) == before


def test_ctrl_c_in_a_shell(training, ctrl_c):
    command = [sys.executable, "-m", "ortpartial", "run", "training.onnx", "data.npz", "--epochs", "1000000",
               "-o", "training.onnx"]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("epoch 1/1000000: loss ")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.fullmatch(r"ortpartial: interrupted after step \d+ of 1000000\n", err)
    assert out.splitlines()[-1] == "training.onnx: the trained model"
    # Ctrl-C may come between a step and its count.
    assert TrainingSession("training.onnx").state["iteration"] - int(err.split()[4]) in (0, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run mlp.onnx data.npz", "training"),
        ("run training.onnx nowhere.npz", "There is no file 'nowhere.npz'; give an .npz or a .csv file of rows."),
        ("run training.onnx short.npz", "'short.npz' lacks 'y_target'; a step reads 'x', 'y_target'."),
        ("run training.onnx data.npz --steps 0", "--epochs, --steps and --batch are integers of at least 1."),
        ("run training.onnx data.npz --validation 2", "--validation is a file, or a share of the rows between 0 and 1"),
        ("run training.onnx data.npz --validation no.npz", "There is no file 'no.npz'"),
        ("export mlp.onnx -o out.onnx --loss none", "--loss: 'none' is not known."),
        ("export mlp.onnx -o out.onnx --eta0 -1", "eta0 is -1.0"),
        ("export mlp.onnx -o out.onnx --weights W9", "The weight 'W9' is no initializer of the model"),
    ],
    ids=range(9),
)
def test_errors_of_training(at, capsys, words, message):
    X, y, _ = data(20)
    np.savez("data.npz", x=X, y_target=y)
    np.savez("short.npz", x=X)
    assert main(["export", "mlp.onnx", "-o", "training.onnx"]) == 0
    capsys.readouterr()
    assert main([*words.split(), *(["--dry-run"] if words.startswith("run") else [])]) == 2
    err = capsys.readouterr().err
    assert err.startswith("ortpartial: ")
    assert message in err
    assert err.count("\n") == 1
