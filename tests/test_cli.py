"""The command line: models that are written, text that is printed, errors of one line."""

import os
import re
import signal
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
from ortpartial import OrtGradientForwardBackwardOptimizer, build, cli, constant, gradient_model, op, variable
from ortpartial.cli import main
from ortpartial.learning.optimizers import LearningRateAdam
from ortpartial.runtime import runtime_version
from ortpartial.training_info import TrainingSession
from ortpartial.training_info.graphs import strip_training_info

BLOCKED = """
<ir_version: 9, opset_import: ["" : 21]>
agraph (float[N, 8] x) => (float[a] y)
<float[1] w = {2}, float[1] v = {3}, float e = {2}>
{ h = Mul (x, w)  [distinct] f = Unique (h)  m = Mish (f) g = Floor (m) s = Add (g, m) y = Mul (s, v) }
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


def test_quantized_models(at, capsys):
    """What rounding would lose is named, and passes through it where asked to."""
    x, w = variable("x", "float32", ["N", 2]), constant(np.eye(2, dtype=np.float32), hint="w")
    zero = np.array(0, np.int8)
    rounded = [op.DequantizeLinear(op.QuantizeLinear(v, 0.1, zero), 0.1, zero) for v in (x, w)]
    onnx.save(build([x], {"y": rounded[0] @ rounded[1]}), "quantized.onnx")
    assert main(["gradient", "quantized.onnx", "-o", "grad.onnx", "--wrt", "x"]) == 2
    assert "QuantizeLinear> (output 'QuantizeLinear_0') rounds" in capsys.readouterr().err
    assert main(["gradient", "quantized.onnx", "-o", "grad.onnx", "--wrt", "x", "--straight-through"]) == 0
    assert main(["info", "quantized.onnx"]) == 1
    assert "rounds, and no gradient passes through it" in capsys.readouterr().out
    assert main(["info", "quantized.onnx", "--straight-through"]) == 0
    assert "trained: 1 of 2 float initializers" in capsys.readouterr().out
    words = "export quantized.onnx -o training.onnx --init model --straight-through"
    assert main(words.split()) == 0
    np.savez("data.npz", x=np.eye(2, dtype=np.float32), y_target=np.ones((2, 2), np.float32))
    assert main(["run", "training.onnx", "data.npz", "-o", "trained.onnx", "--epochs", "3"]) == 0


def test_info(at, capsys):
    assert main(["info", "mlp.onnx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:11] == ["inputs", "  x  float32[Nx4]", "", "outputs", "  y  float32[Nx1]", "",
                          "initializer  type          numbers",
                          "W1           float32[4x8]       32  trained",
                          "b1           float32[8]          8  trained",
                          "W2           float32[8x1]        8  trained",
                          "b2           float32[1]          1  trained"]
    assert lines[12].split() == ["operator", "nodes", "gradient", "engines"]
    assert [line.split() for line in lines[13:16]] == [
        ["Add", "2", "rule", "agent", "step", "epoch"],
        ["MatMul", "2", "rule", "agent", "step", "epoch"],
        ["Tanh", "1", "rule", "agent", "step", "epoch"],
    ]
    assert lines[16:] == ["", "trained: 4 of 4 float initializers, 49 of 49 numbers"]


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
    assert rows["Unique"] == ["1", "none", "-"]
    assert rows["Mish"] == ["1", "body", "step", "epoch"]
    assert rows["Floor"][:2] == ["1", "zero"]
    assert rows["Mul"][:2] == ["2", "rule"]
    assert "trained: 2 of 3 float initializers, 2 of 3 numbers\n" in text
    assert "not by the agent: Unique (node 'distinct'): no test covers its gradient." in text
    assert text.endswith("blocked: Unique (node 'distinct') has no gradient.\n")
    # A node before the first weight blocks nothing.
    assert main(["info", "blocked.onnx", "--weights", "v"]) == 0
    assert "blocked" not in capsys.readouterr().out


def test_info_says_why_a_weight_is_not_trained(at, capsys, monkeypatch):
    onnx.save(net(0.5), "net.onnx")
    assert main(["info", "net.onnx", "--weights", "K", "scale?"]) == 0
    notes = {line.split()[0]: line.split("  ")[-1].strip() for line in capsys.readouterr().out.splitlines() if line}
    assert (notes["K"], notes["W"], notes["mean1"]) == ("trained", "not among those to train", "running statistic")
    onnx.save(parser.parse_model(BLOCKED), "blocked.onnx")
    assert main(["info", "blocked.onnx", "--weights", "v"]) == 0
    notes = {line.split()[0]: line.split("  ")[-1].strip() for line in capsys.readouterr().out.splitlines() if line}
    assert (notes["v"], notes["e"]) == ("trained", "no gradient reaches it")
    assert main(["info", "net.onnx", "--depth", "0"]) == 2
    assert capsys.readouterr().err == "ortpartial: --depth is a whole number of at least 1, not 0.\n"


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
    assert done.stdout.startswith("inputs\n  x  float32[Nx8]\n")
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
    assert [line.split()[1] for line in others if "extensions" not in line] == [runtime_version()]


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


@pytest.fixture
def training(at, capsys):
    """A training in a model, and data of 20 rows for it."""
    X, y, _ = data(20)
    np.savez("data.npz", x=X, y_target=y)
    assert main(["export", "mlp.onnx", "-o", "training.onnx", "--init", "random"]) == 0
    capsys.readouterr()
    return at


def run(words):
    return main(["run", "training.onnx", "data.npz", *words.split()])


def weights(path):
    return weights_of(onnx.load(path))


def test_run_shuffles(training):
    assert run("--epochs 2 --batch 3 --seed 1 -o a.onnx") == 0
    assert run("--epochs 2 --batch 3 --seed 1 -o b.onnx") == 0
    assert run("--epochs 2 --batch 3 --seed 2 -o c.onnx") == 0
    assert run("--epochs 2 --batch 3 --no-shuffle -o d.onnx") == 0
    assert (weights("a.onnx")["W1"] == weights("b.onnx")["W1"]).all()
    assert len({weights(f"{name}.onnx")["W1"].tobytes() for name in "bcd"}) == 3
    assert TrainingSession("a.onnx").state["iteration"] == 14  # the last batch of an epoch has two rows


def test_run_initializes_when_asked(training):
    assert run("--epochs 1 --no-shuffle -o a.onnx") == 0
    assert run("--epochs 1 --no-shuffle --initialize --seed 1 -o b.onnx") == 0
    assert run("--epochs 1 --no-shuffle --initialize --seed 1 -o c.onnx") == 0
    assert abs(weights("a.onnx")["W1"] - weights("mlp.onnx")["W1"]).max() < 0.1
    assert abs(weights("b.onnx")["W1"] - weights("mlp.onnx")["W1"]).max() > 0.1
    assert (weights("b.onnx")["W1"] == weights("c.onnx")["W1"]).all()


def test_run_validates(training, capsys):
    """The loss on rows of a file, and on a share of the rows, which are not trained on."""
    X, y, _ = data(30, seed=5)
    np.savez("validation.npz", x=X, y_target=y)
    assert run("--epochs 2 --batch 7 -o a.onnx --validation validation.npz") == 0
    loss = float(capsys.readouterr().out.splitlines()[1].rpartition(" ")[2])
    predicted = TrainingSession("a.onnx").evaluate({"x": X, "y_target": y})["y"]
    assert loss == pytest.approx(np.mean((predicted - y) ** 2), rel=1e-5)
    assert run("--epochs 1 --batch 5 --dry-run --validation 0.25") == 0
    assert ", validation loss " in capsys.readouterr().out
    assert run("--epochs 3 --batch 5 -o b.onnx --validation 0.25") == 0
    assert TrainingSession("b.onnx").state["iteration"] == 9


def test_run_strips_when_asked(training, capsys):
    assert run("--epochs 1 -o a.onnx --strip") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "a.onnx: the trained model, without its training"
    assert not onnx.load("a.onnx").training_info
    assert run("--epochs 1 -o training.onnx") == 0
    assert onnx.load("training.onnx").training_info
    assert TrainingSession("training.onnx").state["iteration"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-o mlp.onnx", "'mlp.onnx' exists; choose another name for the trained model, or say --force."),
        ("-o training.onnx --strip", "With --strip, 'training.onnx' would lose its training; choose another name"),
        ("-o training.onnx --initialize", "With --initialize, 'training.onnx' would lose what was trained; choose"),
        ("-o nowhere/trained.onnx", "There is no folder 'nowhere' for the trained model."),
        ("-o .", "'.' is a folder; name a file for the trained model."),
    ],
)
def test_run_throws_no_training_away(training, capsys, words, message):
    """It says so before the training, not after it."""
    before = {path.name: path.read_bytes() for path in training.iterdir()}
    assert run(f"--epochs 1 {words}") == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert {path.name: path.read_bytes() for path in training.iterdir()} == before
    if words not in ("-o nowhere/trained.onnx", "-o ."):
        assert run(f"--epochs 1 {words} --force") == 0


def test_run_has_an_output(training, capsys):
    with pytest.raises(SystemExit):
        run("--epochs 1")
    assert "one of the arguments -o/--output --dry-run is required" in capsys.readouterr().err
    before = sorted(training.iterdir())
    assert run("--epochs 1 --dry-run") == 0
    assert sorted(training.iterdir()) == before


def test_run_that_diverges_writes_nothing(training, capsys):
    assert main(["export", "mlp.onnx", "-o", "training.onnx", "--eta0", "3e38"]) == 0
    before = Path("training.onnx").read_bytes()
    assert run("--epochs 9 --batch 5 -o training.onnx") == 2
    assert re.search(r"The output 'loss' is (nan|inf) in step \d+ \(epoch \d\); lower", capsys.readouterr().err)
    assert run("--steps 1 -o training.onnx") == 2
    assert re.search(r"'W\d' is no longer finite, and nothing is written", capsys.readouterr().err)
    assert Path("training.onnx").read_bytes() == before


def test_a_training_goes_on_when_nobody_reads_its_lines(training, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert run("--epochs 3 -o trained.onnx") == 0
    assert TrainingSession("trained.onnx").state["iteration"] == 3


@pytest.fixture
def ctrl_c():
    """The handler of a program in the foreground: in the background, these tests run with SIGINT ignored."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def interrupt_at(call, function):
    """A function that sends this process SIGINT in the given call, and once more in the next."""
    calls = []

    def interrupted(*args, **settings):
        calls.append(args)
        if len(calls) in (call, call + 1):
            os.kill(os.getpid(), signal.SIGINT)
        return function(*args, **settings)

    return interrupted


def test_ctrl_c_writes_what_was_trained(training, ctrl_c, capsys, monkeypatch):
    monkeypatch.setattr(TrainingSession, "step", interrupt_at(8, TrainingSession.step))
    assert run("--epochs 5 --batch 5 -o trained.onnx") == 130
    out, err = capsys.readouterr()
    assert err == "ortpartial: interrupted after step 7 of 20\n"
    assert out.splitlines()[0].startswith("epoch 1/5: ")
    assert out.splitlines()[1:] == ["trained.onnx: the trained model"]
    assert TrainingSession("trained.onnx").state["iteration"] == 7


def test_ctrl_c_while_the_model_is_written(training, ctrl_c, capsys, monkeypatch):
    """The writing goes on."""
    monkeypatch.setattr(os, "fsync", interrupt_at(1, os.fsync))
    assert run("--epochs 5 -o trained.onnx") == 130
    assert TrainingSession("trained.onnx").state["iteration"] == 5


def test_ctrl_c_that_is_ignored(training, ctrl_c, monkeypatch):
    """As by a shell, for a program in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(TrainingSession, "step", interrupt_at(2, TrainingSession.step))
    assert run("--epochs 5 -o trained.onnx") == 0
    assert TrainingSession("trained.onnx").state["iteration"] == 5


def test_ctrl_c_before_the_first_step(training, ctrl_c, capsys, monkeypatch):
    monkeypatch.setattr(TrainingSession, "step", interrupt_at(1, TrainingSession.step))
    assert run("--epochs 5 -o trained.onnx") == 130
    assert capsys.readouterr() == ("", "ortpartial: interrupted before the first step; nothing is written\n")
    assert not Path("trained.onnx").exists()


@pytest.mark.parametrize("name", ["read_rows", "write"])
def test_ctrl_c_elsewhere(training, ctrl_c, capsys, monkeypatch, name):
    """Before the training, and in other commands, nothing is written."""
    monkeypatch.setattr(cli, name, interrupt_at(1, getattr(cli, name)))
    before = sorted(training.iterdir())
    assert (run("--epochs 5 -o trained.onnx") if name == "read_rows" else
            main(["gradient", "mlp.onnx", "-o", "gradient.onnx"])) == 130
    assert capsys.readouterr() == ("", "ortpartial: interrupted\n")
    assert sorted(training.iterdir()) == before


def test_ctrl_c_as_the_process_ends(training, ctrl_c, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ortpartial", "gradient", "mlp.onnx", "-o", "gradient.onnx"])
    assert main() == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert run("--epochs 1 --dry-run") == 0


def test_ctrl_c_in_a_shell(training, ctrl_c):
    command = [sys.executable, "-m", "ortpartial", "run", "training.onnx", "data.npz", "--epochs", "1000000",
               "-o", "training.onnx"]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("epoch 1/1000000: loss ")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.fullmatch(r"ortpartial: interrupted after step \d+ of 1000000\n", err)
    assert out.splitlines()[-1] == "training.onnx: the trained model"
    # Ctrl-C may come between a step and its count.
    assert TrainingSession("training.onnx").state["iteration"] - int(err.split()[4]) in (0, 1)


def test_export_in_training_mode(at, capsys):
    onnx.save(net(0.5), "net.onnx")
    assert main(["export", "net.onnx", "-o", "training.onnx", "--train-mode"]) == 0
    assert capsys.readouterr().out.endswith("K, scale1, b1, mean1, var1, W, scale2, b2, mean2, var2, iteration, seed\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run mlp.onnx data.npz", "training"),
        ("run training.onnx nowhere.npz", "There is no file 'nowhere.npz'; give an .npz or a .csv file of rows."),
        ("run training.onnx short.npz", "'short.npz' lacks 'y_target'; a step reads 'x', 'y_target'."),
        ("run training.onnx data.npz --steps 0", "--epochs, --steps and --batch are integers of at least 1."),
        ("run training.onnx data.npz --validation 2", "--validation is a file, or a share of the rows between 0 and 1"),
        ("run training.onnx data.npz --validation no.npz", "There is no file 'no.npz'"),
        ("export mlp.onnx -o out.onnx --loss none", "learning_loss: 'none' is not known."),
        ("export mlp.onnx -o out.onnx --eta0 -1", "eta0 is -1.0"),
        ("export mlp.onnx -o out.onnx --weights W9", "The weight 'W9' is no initializer of the model"),
    ],
    ids=range(9),
)
def test_errors_of_training(at, capsys, words, message):
    X, y, _ = data(20)
    np.savez("data.npz", x=X, y_target=y)
    np.savez("short.npz", x=X)
    assert main(["export", "mlp.onnx", "-o", "training.onnx"]) == 0
    capsys.readouterr()
    assert main([*words.split(), *(["--dry-run"] if words.startswith("run") else [])]) == 2
    err = capsys.readouterr().err
    assert err.startswith("ortpartial: ")
    assert message in err
    assert err.count("\n") == 1
