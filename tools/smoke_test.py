"""Train, call the command line and write files with the installed package alone: `python -I tools/smoke_test.py`."""

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx

import ortpartial
from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable


def main() -> None:
    here = Path(ortpartial.__file__)
    assert here.is_relative_to(sys.prefix), f"{here} is not what is installed in {sys.prefix}"
    assert version("ortpartial") == ortpartial.__version__
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        training = train(folder / "model.onnx")
        call_command_line(folder)
        write_files(training, folder)
    print(f"ortpartial {ortpartial.__version__} works where it is installed: {here.parent}")


def train(path: Path) -> OrtGradientForwardBackwardOptimizer:
    """Fit a line, and write the model."""
    x = variable("x", "float32", ["N", 3])
    model = build([x], {"y": x @ constant(np.zeros((3, 1), np.float32), hint="w")})
    X = np.random.default_rng(0).normal(size=(256, 3)).astype(np.float32)
    w = np.array([[1], [-2], [3]], np.float32)
    training = OrtGradientForwardBackwardOptimizer(model, learning_rate=0.1, max_iter=20).fit(X, X @ w)
    np.testing.assert_allclose(training.get_state()[0], w, atol=1e-3)
    onnx.save(training.get_trained_onnx(), path)
    np.savez(path.with_name("data.npz"), x=X, y=X @ w)
    return training


def call_command_line(folder: Path) -> None:
    """`ortpartial` as it is installed."""
    program = Path(sys.executable).with_name("ortpartial")
    for arguments in (["--version"], ["info", "model.onnx"]):
        done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=True)
        assert (bool(done.stdout), done.stderr) == (True, ""), done


def write_files(training: OrtGradientForwardBackwardOptimizer, folder: Path) -> None:
    """A training in C, and kits with the runners that the wheel holds."""
    assert {"training.c", "training.h"} <= {p.name for p in ortpartial.export_c(training, folder / "c").values()}
    ortpartial.write_kit(training.get_training_onnx(), folder / "kit", ["web", "node", "c", "cpp", "java"])
    written = {p.suffix for p in (folder / "kit").rglob("*")}
    assert {".onnx", ".mjs", ".c", ".h", ".cpp", ".hpp", ".java"} <= written, written


if __name__ == "__main__":
    main()
