"""The common part of commands that train: the folder of checkpoints, lines for epochs, and how to go on."""

from argparse import ArgumentParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from models import data, linear

from ortpartial import Checkpoint, OrtGradientForwardBackwardOptimizer
from ortpartial.cli.fitting import (
    add_fitting_options,
    check_folder,
    find_folder,
    format_losses,
    make_callbacks,
    print_interruption,
    remove_checkpoints,
)
from ortpartial.exceptions import SettingError

X, Y, _ = data(10)


def parse(*words):
    parser = ArgumentParser()
    add_fitting_options(parser)
    args = parser.parse_args(words)
    args.output, args.epochs, args.words = Path("out.onnx"), 4, ["train", "a b.onnx"]
    return args


@pytest.fixture
def folder(tmp_path):
    """A folder with a checkpoint."""
    OrtGradientForwardBackwardOptimizer(linear(), max_iter=1, callbacks=[Checkpoint(tmp_path / "c", keep=1)]).fit(X, Y)
    return tmp_path / "c"


def test_the_folder():
    assert find_folder(parse()) == Path("out.onnx.checkpoints")
    assert find_folder(parse("--checkpoint", "there")) == Path("there")


def test_checkpoints_of_another_training_are_not_lost(folder):
    with pytest.raises(SettingError, match=r"holds checkpoints of a training; go on with it by --resume, or say"):
        check_folder(folder, parse())
    check_folder(folder, parse("--resume"))
    check_folder(folder, parse("--force"))


def test_nothing_to_go_on_from(tmp_path, capsys):
    check_folder(tmp_path / "new", parse("--resume"))
    assert "to go on from; training from the beginning" in capsys.readouterr().err
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="is no folder; name one for the checkpoints by --checkpoint"):
        check_folder(tmp_path / "file", parse())


def test_they_are_removed_unless_asked_for(folder):
    remove_checkpoints(folder, parse("--checkpoint", str(folder)))
    assert folder.exists()
    remove_checkpoints(folder, parse())
    assert not folder.exists()


def test_lines_for_epochs(tmp_path, capsys):
    line, checkpoint = make_callbacks(parse(), tmp_path)
    assert isinstance(checkpoint, Checkpoint)
    OrtGradientForwardBackwardOptimizer(linear(), max_iter=2, callbacks=[line]).fit(X, Y)
    assert capsys.readouterr().out.startswith("epoch 1/2: loss ")
    assert len(make_callbacks(parse("--quiet"), tmp_path)) == 1
    assert format_losses({"loss": 0.5, "validation_loss": 0.25, "x": 1}) == "loss 0.5, validation loss 0.25"


def test_how_to_go_on(tmp_path, capsys):
    print_interruption(parse(), SimpleNamespace(n_iter_=2), tmp_path)
    err = capsys.readouterr().err
    assert "interrupted after 2 of 4 epochs; go on with:" in err
    assert "ortpartial train 'a b.onnx' --resume" in err
