"""The command line: models that are written, text that is printed, errors of one line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import assert_close, data, linear, mlp, net, weights_of
from onnx import parser
from paths import environment

import ortpartial
from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, gradient_model, op, variable
from ortpartial.cli import main
from ortpartial.learning.optimizers import LearningRateAdam
from ortpartial.runtime import runtime_version
from ortpartial.training_info.graphs import strip_training_info

BLOCKED = """
<ir_version: 9, opset_import: ["" : 21]>
agraph (float[N, 8, 1] x, int64 n, int64 k) => (float[a, b, c, d] y)
<float[1] w = {2}, float[1] v = {3}, float e = {2}>
{ h = Mul (x, w)  [spectrum] f = STFT (h, n, , k)  m = Mish (f) g = Floor (m) s = Add (g, m) y = Mul (s, v) }
"""


@pytest.fixture
def at(tmp_path, monkeypatch):
    """A folder with several models."""
    monkeypatch.chdir(tmp_path)
    x = variable("x", "float32", ["N"])
    models = {"linear": linear(), "mlp": mlp(), "blocked": parser.parse_model(BLOCKED)}
    for name, model in {**models, "bare": build([x], {"y": op.Exp(x)})}.items():
        onnx.save(model, f"{name}.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x07broken")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("", {}),
        ("--wrt x W1 --outputs y --suffix _bar", {"wrt": ["x", "W1"], "outputs": ["y"], "suffix": "_bar"}),
        ("--cotangents ones --wrt x", {"cotangents": "ones", "wrt": ["x"]}),
    ],
    ids=["default", "names", "ones"],
)
def test_gradient(at, capsys, words, settings):
    assert main(["gradient", "mlp.onnx", "-o", "grad.onnx", *words.split()]) == 0
    expected = gradient_model("mlp.onnx", **settings)
    assert onnx.load("grad.onnx") == expected
    names = [", ".join(v.name for v in vs) for vs in (expected.graph.input, expected.graph.output)]
    assert capsys.readouterr().out == f"grad.onnx: {names[0]} -> {names[1]}\n"


def test_info(at, capsys):
    assert main(["info", "mlp.onnx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["operator", "nodes", "gradient", "engines"]
    assert [line.split() for line in lines[1:4]] == [
        ["Add", "2", "rule", "agent", "step", "epoch"],
        ["MatMul", "2", "rule", "agent", "step", "epoch"],
        ["Tanh", "1", "rule", "agent", "step", "epoch"],
    ]
    assert lines[4:] == ["", "trained: 4 of 4 float initializers, 49 of 49 numbers"]


def test_info_names_one_refused_node_per_operator(at, capsys):
    x, w = variable("x", "float32", ["N"]), constant([2.0], hint="w")
    onnx.save(build([x], {"y": op.Elu(op.Selu(op.Elu(op.Elu(x * w))))}), "elu.onnx")
    assert main(["info", "elu.onnx"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not by the agent: ")]
    assert sorted(line.split(": ", 1)[1] for line in lines if "lu" in line) == [
        "Elu (node 'Elu_node_0'): no test covers its gradient. (and 2 more)",
        "Selu (node 'Selu_node_0'): no test covers its gradient.",
    ]


def test_info_lists_blocking_nodes(at, capsys):
    assert main(["info", "blocked.onnx"]) == 1
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    assert rows["STFT"] == ["1", "none", "-"]
    assert rows["Mish"] == ["1", "body", "step", "epoch"]
    assert rows["Floor"][:2] == ["1", "zero"]
    assert rows["Mul"][:2] == ["2", "rule"]
    assert "trained: 2 of 3 float initializers, 2 of 3 numbers\n" in text
    assert "not by the agent: STFT (node 'spectrum'): no test covers its gradient." in text
    assert text.endswith("blocked: STFT (node 'spectrum') has no gradient.\n")
    # A node before the first weight blocks nothing.
    assert main(["info", "blocked.onnx", "--weights", "v"]) == 0
    assert "blocked" not in capsys.readouterr().out


def test_info_of_a_model_without_weights(at, capsys):
    assert main(["info", "bare.onnx"]) == 1
    text = capsys.readouterr().out
    assert "trained: 0 of 0 float initializers" in text
    assert "blocked: No float initializer of rank one or more leads to the outputs 'y'" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("info nothing.onnx", "There is no file 'nothing.onnx'"),
        ("info broken.onnx", "'broken.onnx' is no ONNX model, or one that was cut short."),
        ("info linear.onnx --weights W9", "The weight 'W9' is no initializer of the model"),
        ("gradient linear.onnx -o g.onnx --wrt W9", "The model has no tensor 'W9'"),
        ("gradient linear.onnx -o nowhere/g.onnx", "No such file or directory: 'nowhere/g.onnx'"),
        ("gradient blocked.onnx -o g.onnx", "<Node spectrum: STFT> has no gradient"),
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
        ("train linear.onnx", "invalid choice: 'train'"),
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
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})

    done = program("info", "blocked.onnx")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("operator ")
    done = program("gradient", "nothing.onnx", "-o", "g.onnx")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_help_imports_no_runtime():
    """onnxruntime-training imports torch, which takes two seconds."""
    code = ("import sys; from ortpartial.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
            "print({'onnxruntime', 'torch', 'sklearn'} & sys.modules.keys())")
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: ortpartial ")
    assert done.stdout.splitlines()[-1] == "set()"


def test_version(capsys):
    with pytest.raises(SystemExit) as e:
        main(["--version"])
    assert e.value.code == 0
    first, second, *others = capsys.readouterr().out.splitlines()
    assert (first, second) == (f"ortpartial {ortpartial.__version__}", f"onnx {onnx.__version__}")
    assert [line.split()[1] for line in others] == [runtime_version()]


@pytest.mark.parametrize("style", ["standard", "lowered"])
def test_export_and_run(at, capsys, style):
    """Export and run from a shell give the same weights as `fit`."""
    X, y, _ = data(20)
    np.savez("data.npz", x=X, y_target=y, unused=X)
    words = ["--training", style, "--rate", "Adam", "--eta0", "0.05", "--init", "model", "--weights", "W1", "b1"]
    assert main(["export", "mlp.onnx", "-o", "training.onnx", *words]) == 0
    assert capsys.readouterr().out.startswith("training.onnx: a step reads x, y_target, gives loss, y, and changes W1")
    assert main(["run", "training.onnx", "data.npz", "--steps", "12", "--batch", "5", "-o", "trained.onnx"]) == 0
    expected = OrtGradientForwardBackwardOptimizer(
        mlp(), ["W1", "b1"], learning_rate=LearningRateAdam(0.05), batch_size=5, shuffle=False, max_iter=3).fit(X, y)
    weights = weights_of(strip_training_info(onnx.load("trained.onnx")))
    assert_close(weights, expected.trained_coef_, 1e-5)
    first, last, wrote = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"step 1: loss [\d.e-]+", first)
    assert last.startswith("step 12: loss ")
    assert wrote == "trained.onnx: the model with its new weights"
    assert main(["run", "training.onnx", "data.npz", "--steps", "3", "--seed", "0"]) == 0


def test_export_in_training_mode(at, capsys):
    onnx.save(net(0.5), "net.onnx")
    assert main(["export", "net.onnx", "-o", "training.onnx", "--train-mode"]) == 0
    assert capsys.readouterr().out.endswith("K, scale1, b1, mean1, var1, W, scale2, b2, mean2, var2, iteration, seed\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run mlp.onnx data.npz", "training"),
        ("run training.onnx nowhere.npz", "No such file"),
        ("run training.onnx short.npz", "'short.npz' lacks 'y_target'; a step reads 'x', 'y_target'."),
        ("run training.onnx uneven.npz", "The arrays of 'uneven.npz' have different numbers of rows."),
        ("run training.onnx mlp.onnx", "'mlp.onnx' is no .npz file of arrays of numbers."),
        ("run training.onnx array.npy", "'array.npy' is no .npz file of arrays of numbers."),
        ("run training.onnx cut.npz", "'cut.npz' is no .npz file of arrays of numbers."),
        ("run training.onnx empty.npz", "'empty.npz' is no .npz file of arrays of numbers."),
        ("run training.onnx data.npz --steps 0", "--steps and --batch are integers of at least 1"),
        ("export mlp.onnx -o out.onnx --loss none", "learning_loss: 'none' is not known."),
        ("export mlp.onnx -o out.onnx --eta0 -1", "eta0 is -1.0"),
        ("export mlp.onnx -o out.onnx --weights W9", "The weight 'W9' is no initializer of the model"),
    ],
    ids=range(12),
)
def test_errors_of_training(at, capsys, words, message):
    X, y, _ = data(20)
    np.savez("data.npz", x=X, y_target=y)
    np.savez("short.npz", x=X)
    np.savez("uneven.npz", x=X, y_target=y[:3])
    np.save("array.npy", X)
    Path("cut.npz").write_bytes(Path("data.npz").read_bytes()[:300])
    Path("empty.npz").touch()
    assert main(["export", "mlp.onnx", "-o", "training.onnx"]) == 0
    capsys.readouterr()
    assert main(words.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith("ortpartial: ")
    assert message in err
    assert err.count("\n") == 1
