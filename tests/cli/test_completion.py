"""Completion of commands, options and files in shells."""

import shutil
import subprocess
import sys

import pytest

from ortpartial.cli import main

BASH = """
complete_words() {{
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _shtab_ortpartial ortpartial "${{COMP_WORDS[COMP_CWORD]}}"
    echo "${{COMPREPLY[*]}}"
}}
complete_words {words}
"""


@pytest.fixture
def script(at, capsys):
    pytest.importorskip("shtab")

    def make(shell):
        assert main(["completion", shell]) == 0
        return capsys.readouterr().out

    return make


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize(
    ("words", "completions"),
    [("ortpartial tr", "train"), ("ortpartial lo", "lora"), ("ortpartial train --ep", "--epochs"),
     ("ortpartial lora lin", "linear.onnx"), ("ortpartial predict lin", "linear.onnx"),
     ("ortpartial train mlp.onnx data.csv --engine st", "step"), ("ortpartial completion fi", "fish")],
)
def test_bash(script, words, completions):
    done = subprocess.run(["bash", "-c", script("bash") + BASH.format(words=words)], capture_output=True, text=True,
                          check=True)
    assert done.stdout.split() == completions.split()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(script, at, shell):
    text = script(shell)
    assert "train" in text
    assert "early" in text or "epochs" in text
    if shutil.which(shell):
        (at / "script").write_text(text)
        subprocess.run([shell, "-n", "script"], check=True)


def test_without_shtab(at, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    message = "shtab, which writes completions of shells, is not installed: run `pip install '.[cli]'`"
    assert message in capsys.readouterr().err
