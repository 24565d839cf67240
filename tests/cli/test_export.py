"""Models that are written with their training."""

import re

import numpy as np
import onnx
import pytest
from models import assert_close, data, mlp, net, weights_of

from ortpartial import OrtGradientForwardBackwardOptimizer, run_kit
from ortpartial.cli import main
from ortpartial.learning.optimizers import LearningRateAdam
from ortpartial.training_info.graphs import strip_training_info


@pytest.mark.parametrize("style", ["standard", "lowered"])
def test_export_and_run(at, capsys, style):
    """Export and run from a shell give the same weights as `fit`."""
    X, y, _ = data(20)
    np.savez("data.npz", x=X, y_target=y, unused=X)
    words = ["--training", style, "--rate", "Adam", "--eta0", "0.05", "--init", "model", "--weights", "W1", "b1"]
    assert main(["export", "mlp.onnx", "-o", "training.onnx", *words]) == 0
    assert capsys.readouterr().out.startswith("training.onnx: a step reads x, y_target, gives loss, y, and changes W1")
    words = "--steps 12 --batch 5 --no-shuffle -o trained.onnx"
    assert main(["run", "training.onnx", "data.npz", *words.split()]) == 0
    expected = OrtGradientForwardBackwardOptimizer(
        mlp(), ["W1", "b1"], learning_rate=LearningRateAdam(0.05), batch_size=5, shuffle=False, max_iter=3).fit(X, y)
    weights = weights_of(strip_training_info(onnx.load("trained.onnx")))
    assert_close(weights, expected.trained_coef_, 1e-5)
    *epochs, wrote = capsys.readouterr().out.splitlines()
    assert len(epochs) == 3
    for k, (line, loss) in enumerate(zip(epochs, expected.train_losses_, strict=True), 1):
        match = re.fullmatch(rf"epoch {k}/3: loss ([\d.e-]+)", line)
        assert float(match[1]) == pytest.approx(loss, rel=1e-4)
    assert wrote == "trained.onnx: the trained model"


def test_export_in_training_mode(at, capsys):
    onnx.save(net(0.5), "net.onnx")
    assert main(["export", "net.onnx", "-o", "training.onnx", "--train-mode"]) == 0
    assert capsys.readouterr().out.endswith("K, scale1, b1, mean1, var1, W, scale2, b2, mean2, var2, iteration, seed\n")


def test_export_of_a_kit(at, capsys):
    X, y, _ = data(20)
    words = "--rate Adam --eta0 0.05 --target web --batch-size 5"
    assert main(["export", "mlp.onnx", "--kit", "-o", "kit", *words.split()]) == 0
    assert capsys.readouterr().out.startswith("kit: a step reads x, y_target, gives loss, and changes W1, b1, W2, b2,")
    assert main(["export", "mlp.onnx", "-o", "training.onnx", *words.split()[:4], "--init", "model"]) == 0
    words = "--kit -o stored --target node --batch-size 5 10"
    assert main(["export", "training.onnx", *words.split()]) == 0
    losses = [run_kit(folder, {"x": X, "y_target": y}, 12) for folder in ("kit", "stored")]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert (at / "kit" / "kit.mjs").is_file()
    assert (at / "stored" / "train.mjs").is_file()
    assert (at / "stored" / "step-10.onnx").is_file()


@pytest.mark.parametrize(("words", "message"), [
    ("-o kit.onnx", "A kit is a folder, and 'kit.onnx' is named like a file."),
    ("-o kit --target php", "targets has 'php'; expected some of 'web'"),
    ("-o kit --batch-size 0 4", "batch_sizes is a whole number of at least 1, not 0."),
])
def test_kits_that_cannot_be_written(at, capsys, words, message):
    assert main(["export", "mlp.onnx", "--kit", *words.split()]) == 2
    assert message in capsys.readouterr().err
    assert not (at / "kit").exists()


@pytest.mark.parametrize("words", ["--target c", "--batch-size 8"])
def test_options_of_a_kit_need_one(at, capsys, words):
    assert main(["export", "mlp.onnx", "-o", "out.onnx", *words.split()]) == 2
    assert "--target and --batch-size are for a training kit; add --kit." in capsys.readouterr().err
    assert not (at / "out.onnx").exists()
