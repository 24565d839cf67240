"""Exported trainings run without Python: in JavaScript, by onnxruntime-web in Node."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import mlp
from sklearn.datasets import load_digits

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingSession, lowered_step
from ortpartial.learning.optimizers import LearningRateAdagrad, LearningRateAdam, LearningRateSGDNesterov

FOLDER = Path(__file__).parent / "node"


def missing() -> str | None:
    """Why this machine cannot run JavaScript with onnxruntime-web, or None."""
    node = shutil.which("node")
    if node is None:
        return "needs Node 20 or later, and there is no `node`"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < 20:
        return f"needs Node 20 or later, found {version}"
    if not (FOLDER / "node_modules" / "onnxruntime-web").is_dir():
        return "needs onnxruntime-web 1.30.0, which `make node` installs"
    return None


pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


SGD, ADAM, ADAGRAD = LearningRateSGDNesterov(0.05), LearningRateAdam(0.005, epsilon_hat=True), LearningRateAdagrad(0.05)


@pytest.mark.parametrize(
    ("rate", "style"),
    [(SGD, "lowered"), (ADAM, "standard"),
     *(pytest.param(*case, marks=pytest.mark.slow)
       for case in ((SGD, "standard"), (ADAM, "lowered"), (ADAGRAD, "standard"), (ADAGRAD, "lowered")))],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__)
def test_digits_train_to_the_same_weights_in_javascript(rate, style, tmp_path):
    X, y = load_digits(return_X_y=True)
    X, y = (X / 16).astype(np.float32), y.astype(np.int64)
    optimizer = OrtGradientForwardBackwardOptimizer(
        mlp(64, 10, hidden=20), learning_loss="softmax_cross_entropy", learning_rate=rate)
    model = optimizer.get_training_onnx(style)
    session = TrainingSession(model)
    session.initialize(seed=0)
    rows, steps, total = 32, 280, 1792
    step = lowered_step(session.training_model())
    arrays = {"x": X[:total], "y_target": y[:total], **session.state}
    described = [{"name": n, "dtype": a.dtype.name, "dims": list(a.shape)} for n, a in arrays.items()]
    plan = {"data": described[:2], "state": described[2:], "rows": rows, "steps": steps, "total": total,
            "updates": {p.key: p.value for p in step.metadata_props}, "loss": "loss"}
    onnx.save(step, tmp_path / "step.onnx")
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    for n, a in arrays.items():
        (tmp_path / f"{n}.bin").write_bytes(a.tobytes())
    done = subprocess.run(["node", "train.mjs", str(tmp_path)], cwd=FOLDER, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout)["losses"]
    for k in range(steps):
        batch = slice(k * rows % total, k * rows % total + rows)
        loss = session.step({"x": X[batch], "y_target": y[batch]})["loss"]
        assert abs(losses[k] - loss) < 1e-3
    for n, a in session.state.items():
        trained = np.frombuffer((tmp_path / f"{n}.out.bin").read_bytes(), a.dtype).reshape(a.shape)
        assert abs(trained - a).max() <= 1e-4 * abs(a).max(), n
    assert np.mean(losses[-20:]) < 0.3 * losses[0]
