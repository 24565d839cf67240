"""The program: errors of one line, usage, versions, quick help."""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest
from interruptions import interrupt_at
from once import ON_BOTH
from paths import ROOT, environment

import ortpartial
from ortpartial.cli import main
from ortpartial.runtime import runtime_version


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("info nothing.onnx", "There is no file 'nothing.onnx'"),
        ("info broken.onnx", "'broken.onnx' is no ONNX model, or one that was cut short."),
        ("info linear.onnx --weights W9", "The weight 'W9' is no initializer of the model"),
        ("gradient linear.onnx -o g.onnx --wrt W9", "The model has no tensor 'W9'"),
        ("gradient linear.onnx -o nowhere/g.onnx",
         "No such file or directory; create its folder first: 'nowhere/g.onnx'"),
        ("gradient blocked.onnx -o g.onnx", "<Node distinct: Unique> has no gradient"),
    ],
)
def test_errors_are_one_line(at, capsys, words, message):
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(f"ortpartial: .*{re.escape(message)}.*\n", err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("gradient linear.onnx", "the following arguments are required: -o/--output"),
        ("gradient linear.onnx -o g.onnx --cotangents zeros", "invalid choice: 'zeros'"),
        ("tarin linear.onnx", "invalid choice: 'tarin'"),
    ],
)
def test_usage(at, capsys, words, message):
    with pytest.raises(SystemExit) as e:
        main(words.split())
    assert e.value.code == 2
    assert message in capsys.readouterr().err


def test_program(at):
    def program(*words):
        command = [sys.executable, "-W", "error", "-m", "ortpartial", *words]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})

    done = program("info", "bare.onnx")  # which has no weights
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("inputs\n  x  float32[N]\n")
    done = program("gradient", "nothing.onnx", "-o", "g.onnx")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_help_imports_no_runtime():
    """Nothing that takes time to import, and is not needed to print a text."""
    code = ("import sys; from ortpartial.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
            "print({'onnxruntime', 'torch', 'sklearn', 'matplotlib', 'pandas', 'pyarrow', 'shtab'}"
            " & sys.modules.keys())")
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: ortpartial ")
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("words", ["predict mlp.onnx many.npz", "info mlp.onnx --json"])
def test_output_that_nobody_reads(at, capsys, monkeypatch, words):
    """As after `head`: no traceback; the exit code of a broken pipe, unless the output was a line."""
    np.savez("many.npz", x=np.zeros((20000, 4), np.float32))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(words.split()) == (141 if "predict" in words else 0)
    assert capsys.readouterr().err == ""


@ON_BOTH
def test_version(capsys):
    with pytest.raises(SystemExit) as e:
        main(["--version"])
    assert e.value.code == 0
    first, second, *others = capsys.readouterr().out.splitlines()
    assert (first, second) == (f"ortpartial {ortpartial.__version__}", f"onnx {onnx.__version__}")
    versions = dict(line.split() for line in others)
    assert [v for n, v in versions.items() if not n.endswith(("extensions", "genai"))] == [runtime_version()]


def test_ctrl_c_as_the_process_ends(training, ctrl_c, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ortpartial", "gradient", "mlp.onnx", "-o", "gradient.onnx"])
    assert main() == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert main(["run", "training.onnx", "data.npz", "--epochs", "1", "--dry-run"]) == 0


def test_ctrl_c_in_a_command(at, ctrl_c, capsys, monkeypatch):
    """Nothing is written."""
    module = sys.modules["ortpartial.cli.derivatives"]
    monkeypatch.setattr(module, "write", interrupt_at(1, module.write))
    before = sorted(at.iterdir())
    assert main(["gradient", "mlp.onnx", "-o", "gradient.onnx"]) == 130
    assert capsys.readouterr() == ("", "ortpartial: interrupted\n")
    assert sorted(at.iterdir()) == before
