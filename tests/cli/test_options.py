"""Options that commands share, and paths that are refused before any work is done."""

import os
from argparse import ArgumentParser
from pathlib import Path

import pytest

from ortpartial.cli.options import (
    add_command,
    add_data_options,
    add_output_option,
    add_weights_options,
    check_output,
)
from ortpartial.exceptions import SettingError


@pytest.fixture
def parser():
    parser = ArgumentParser()
    command = add_command(parser.add_subparsers(), "teach", lambda args: 7, "teach a model",
                          description="Teach it.", examples="teach a.onnx -o b.onnx")
    add_output_option(command)
    add_weights_options(command)
    add_data_options(command)
    return parser


def test_a_command(parser, capsys):
    args = parser.parse_args(["teach", "m.onnx", "d.csv", "-o", "out.onnx", "--weights", "a*", "b", "--target", "y"])
    assert (args.model, args.data, args.output) == (Path("m.onnx"), Path("d.csv"), Path("out.onnx"))
    assert (args.weights, args.freeze, args.target, args.run(args)) == (["a*", "b"], (), ["y"], 7)
    with pytest.raises(SystemExit):
        parser.parse_args(["teach", "--help"])
    text = capsys.readouterr().out
    assert "ortpartial teach a.onnx -o b.onnx" in text
    assert "--weights NAME ..." in text
    assert "-o, --output, --out FILE" in text


def test_outputs(tmp_path):
    path = tmp_path / "a.onnx"
    check_output(path, False, "the model")
    path.touch()
    check_output(path, True, "the model")
    for wrong, message in ((path, "exists; choose another name for the model, or say --force"),
                           (tmp_path, "is a folder; name a file for the model"),
                           (tmp_path / "none" / "a", "There is no folder .* for the model")):
        with pytest.raises(SettingError, match=message):
            check_output(wrong, False, "the model")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_closed(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(SettingError, match="Nothing can be written into the folder of"):
        check_output(tmp_path / "a.onnx", False, "the model")
