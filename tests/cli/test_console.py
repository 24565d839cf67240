"""Colors on a terminal alone, JSON of any numbers, tables."""

import io
import json

import numpy as np
import pytest

from ortpartial.cli import main
from ortpartial.cli.console import clean, format_table, paint, print_json


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "variables", "is_painted"),
    [(Terminal(), {}, True), (io.StringIO(), {}, False), (Terminal(), {"NO_COLOR": "1"}, False),
     (Terminal(), {"NO_COLOR": ""}, True), (Terminal(), {"TERM": "dumb"}, False)],
)
def test_colors(monkeypatch, stream, variables, is_painted):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for n, value in variables.items():
        monkeypatch.setenv(n, value)
    assert paint("model", "bold", stream) == ("\033[1mmodel\033[0m" if is_painted else "model")


def test_info_on_a_terminal(at, monkeypatch):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout", terminal)
    assert main(["info", "mlp.onnx"]) == 0
    assert "\033[32mW1           float32[4x8]       32  trained\033[0m\n" in terminal.getvalue()


def test_json(capsys):
    print_json({"a": np.float32(0.5), "b": np.array([1, 2]), "c": float("nan"), "d": [None, True, ("x", np.inf)]})
    assert json.loads(capsys.readouterr().out) == {"a": 0.5, "b": [1, 2], "c": None, "d": [None, True, ["x", None]]}


def test_table():
    assert format_table(["a", "b", "c"], [["xx", "1", "2"]], align="<<") == ["a   b  c", "xx  1  2"]
    assert format_table(["n", "number"], [["a", "1"]]) == ["n  number", "a       1"]


def test_colors_of_a_name_are_shown_as_escapes():
    """Only what `paint` has written stays, even where a name has the very codes that it writes."""
    assert clean("w\033[31mred\033[0m") == r"w\x1b[31mred\x1b[0m"
