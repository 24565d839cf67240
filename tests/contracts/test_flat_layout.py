"""Pickles and files written before the package had rooms still load and continue where they were.

The files were written by the modules of commit 22c86e9, whose names are in them.
"""

import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest
from paths import TESTS, environment

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingSession

FOLDER = TESTS / "data" / "flat_layout"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_optimizer(number):
    """Adam with Dropout in training; float16 with a scale that moves; a gradient through a quantization."""
    stored = pickle.loads((FOLDER / f"optimizer_{number}.pickle").read_bytes())
    optimizer = stored["optimizer"]
    assert isinstance(optimizer, OrtGradientForwardBackwardOptimizer)
    for found, expected in zip(optimizer.get_state(), stored["weights"], strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(optimizer.predict(stored["X"][:5]), stored["predicted"], rtol=1e-6)
    optimizer.partial_fit(stored["X"], stored["y"])
    assert len(optimizer.train_losses_) == 4
    assert any((a != b).any() for a, b in zip(optimizer.get_state(), stored["weights"], strict=True))


def test_pieces():
    pieces = pickle.loads((FOLDER / "pieces.pickle").read_bytes())
    assert len(pieces) == 24
    for piece in pieces:
        assert type(piece)(**{f.name: getattr(piece, f.name) for f in dataclasses.fields(piece)}) == piece
        assert type(piece).__module__.startswith(("ortpartial.learning.", "ortpartial.rewrites."))


def test_a_training_in_its_model():
    session = TrainingSession.from_model(FOLDER / "training.onnx")
    before = session.state
    X = np.ones((2, 3), np.float32)
    session.step({"X": X, "y_target": np.ones((2, 1), np.float32)})
    assert any((before[n] != a).any() for n, a in session.state.items())


def test_a_layer():
    torch = pytest.importorskip("torch")
    stored = torch.load(FOLDER / "layer.pt", weights_only=False)
    torch.testing.assert_close(stored["layer"](stored["x"]), stored["y"])


def test_public_modules_are_attributes():
    """In a process that has imported nothing else."""
    names = ("learning_loss", "learning_penalty", "learning_rate", "precision", "schedule", "subgraph", "runtime",
             "graph", "model", "training_info")
    code = f"import ortpartial; print([n for n in {names} if not hasattr(ortpartial, n)])"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
