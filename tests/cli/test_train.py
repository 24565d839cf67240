"""Trainings from a shell: the same weights as `fit`, labels, validation, output, errors."""

import json
import re
import shlex
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from interruptions import interrupt_at
from models import data, mlp, two_in_two_out, weights_of
from paths import environment

from ortpartial import OrtGradientForwardBackwardOptimizer, build, load, op
from ortpartial.cli import main
from ortpartial.cli.roles import load_roles
from ortpartial.execution import list_checkpoints
from ortpartial.learning import ExponentialAverage, LearningRateAdam

X, Y, W = data(60)


def write_csv(name, columns):
    lines = zip(*columns.values(), strict=True)
    Path(name).write_text("\n".join([",".join(columns), *(",".join(map(str, line)) for line in lines)]) + "\n")


@pytest.fixture
def rows(at):
    """Data in files, and a classifier."""
    columns = {**dict(zip("abcd", X.T, strict=True)), "y": Y[:, 0], "w": W}
    write_csv("data.csv", columns)
    write_csv("animals.csv", {**dict(zip("abcd", X.T, strict=True)), "name": ["n"] * 60,
                              "kind": np.array(["dog", "bird", "cat"])[(X[:, 0] > 0) + (X[:, 1] > 0.5).astype(int)]})
    np.savez("data.npz", x=X, y=Y)
    onnx.save(mlp(outputs=3), "classifier.onnx")
    return at


def train(words):
    return main(["train", *words.split()])


@pytest.mark.parametrize("file", ["data.csv", "data.npz"])
def test_weights_are_those_of_fit(rows, capsys, file):
    assert train(f"mlp.onnx {file} --rate adam:0.01:cosine --loss square --penalty l2:1e-3 --epochs 3 --batch-size 16 "
                 "--validation 0.2 --seed 5 --weights W? --out trained.onnx"
                 + (" --features a b c d" if file == "data.csv" else "")) == 0
    from ortpartial import ElasticLearningPenalty

    expected = OrtGradientForwardBackwardOptimizer(
        mlp(), ["W1", "W2"], learning_rate=LearningRateAdam(0.01, schedule="cosine"), max_iter=3, batch_size=16,
        learning_penalty=ElasticLearningPenalty(l2=1e-3), random_state=5, validation_every=1).fit(X, Y, X_val=0.2)
    weights = weights_of(onnx.load("trained.onnx"))
    assert all((weights[n] == a).all() for n, a in expected.trained_coef_.items())
    lines = capsys.readouterr().out.splitlines()
    for k, (line, *losses) in enumerate(zip(lines[:3], expected.train_losses_, expected.validation_losses_,
                                            strict=True), 1):
        match = re.match(rf"epoch {k}/3: loss ([\d.e-]+), validation loss ([\d.e-]+), [\d.]+ s$", line)
        assert [float(n) for n in match.groups()] == pytest.approx(losses, rel=1e-3)
    assert re.fullmatch(r"trained.onnx: the trained model, loss [\d.]+, validation loss [\d.]+", lines[3])
    assert lines[4:] == [f"next: ortpartial evaluate trained.onnx {file}"]
    assert main(lines[4].split()[2:]) == 0


def test_labels(rows, capsys):
    """Texts are numbered in sorted order, which the model remembers, as it does its columns."""
    assert train("classifier.onnx animals.csv --target kind --loss cross_entropy -o animals.onnx --rate adam:0.02 "
                 "--epochs 30") == 0
    assert capsys.readouterr().err == ("kind: 3 labels, numbered from 0: bird, cat, dog\n"
                                       "left out, as they are of texts: name\n")
    roles = load_roles(onnx.load("animals.onnx"))
    assert roles.labels == {"kind": ["bird", "cat", "dog"]}
    assert roles.features == {"x": ["a", "b", "c", "d"]}
    assert main(["evaluate", "animals.onnx", "animals.csv", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    accuracy = metrics["outputs"]["y"]["accuracy"]
    assert main(["evaluate", "animals.onnx", "animals.csv", "--json", "--batch-size", "7"]) == 0
    by_batch = json.loads(capsys.readouterr().out)
    assert by_batch == {**metrics, "loss": pytest.approx(metrics["loss"], rel=1e-6)}
    assert accuracy > 0.6
    assert main(["predict", "animals.onnx", "animals.csv", "-o", "predicted.npz"]) == 0
    kinds = np.genfromtxt("animals.csv", dtype=str, delimiter=",", skip_header=1)[:, 5]
    assert (np.load("predicted.npz")["label"] == kinds).mean() == pytest.approx(accuracy)
    # A training that goes on with fewer kinds numbers them as before.
    lines = Path("animals.csv").read_text().splitlines()
    Path("two.csv").write_text("\n".join([lines[0], *(line for line in lines if line.endswith(("cat", "dog")))]))
    assert train("animals.onnx two.csv -o further.onnx --epochs 1 -q") == 0
    assert load_roles(onnx.load("further.onnx")) == roles
    Path("cow.csv").write_text(f"{lines[0]}\n0,0,0,0,n,cow\n")
    assert train("animals.onnx two.csv -o further.onnx --force --validation cow.csv") == 2
    assert "'kind' of 'cow.csv' has the label 'cow' in row 1, where 'bird', 'cat', 'dog'" in capsys.readouterr().err


def test_early_stopping(rows, capsys):
    """The weights of the best epoch are written."""
    words = "mlp.onnx data.npz --epochs 50 --rate 2 --clip 1 --validation 0.3"
    assert train(f"{words} --early-stopping 3 --json -o a.onnx") == 0
    *epochs, end = map(json.loads, capsys.readouterr().out.splitlines())
    losses = [record["validation_loss"] for record in epochs]
    assert end["epoch"] == int(np.argmin(losses)) + 1 == len(epochs) - 3
    assert (end["epochs"], end["validation_loss"]) == (len(epochs), min(losses))
    assert train(f"{words.replace('50', str(end['epoch']))} -o b.onnx -q") == 0
    best, expected = weights_of(onnx.load("a.onnx")), weights_of(onnx.load("b.onnx"))
    assert all((best[n] == a).all() for n, a in expected.items())
    assert train("mlp.onnx data.npz --early-stopping 3 -o c.onnx") == 2
    assert "--early-stopping looks at the validation loss; set rows apart" in capsys.readouterr().err


def test_sample_weights(rows):
    assert train("mlp.onnx data.csv --features a b c d --sample-weight w --epochs 2 --no-shuffle --rate 0.01 -o a.onnx "
                 "--validation data.csv") == 0
    expected = OrtGradientForwardBackwardOptimizer(mlp(), max_iter=2, batch_size=32, shuffle=False, learning_rate=0.01)
    expected.fit(X, Y, W)
    weights = weights_of(onnx.load("a.onnx"))
    assert all((weights[n] == a).all() for n, a in expected.trained_coef_.items())


def test_settings_of_the_graph(rows):
    """Clipping, accumulation and the average of the weights, which is written."""
    assert train("mlp.onnx data.npz --clip 0.5 --accumulate 2 --average ema:0.9 --epochs 2 -o a.onnx") == 0
    expected = OrtGradientForwardBackwardOptimizer(
        mlp(), learning_rate="adam", max_iter=2, batch_size=32, random_state=0, gradient_clipping=0.5, accumulate=2,
        averaging=ExponentialAverage(0.9), use_average=True).fit(X, Y)
    weights = weights_of(onnx.load("a.onnx"))
    assert all((weights[n] == a).all() for n, a in expected.trained_coef_.items())


def test_frozen_weights(rows, capsys):
    before = weights_of(mlp())
    assert train("mlp.onnx data.npz --freeze W? --rate-factors b1=0.5 --rate sgd:0.01 --epochs 1 -o a.onnx") == 0
    expected = OrtGradientForwardBackwardOptimizer(mlp(), learning_rate=0.01, max_iter=1, batch_size=32, random_state=0,
                                                   freeze=["W?"], rate_factors={"b1": 0.5}).fit(X, Y).trained_coef_
    weights = weights_of(onnx.load("a.onnx"))
    assert all((weights[n] == expected.get(n, a)).all() for n, a in before.items())
    assert sorted(expected) == ["b1", "b2"]
    assert train("mlp.onnx data.npz --freeze V* -o b.onnx") == 2
    assert "V*" in capsys.readouterr().err


def test_plot(rows, capsys, monkeypatch):
    assert train("mlp.onnx data.npz --validation 0.1 --epochs 3 -o a.onnx --plot losses.svg") == 0
    assert "losses.svg: the losses\n" in capsys.readouterr().out
    assert "validation" in Path("losses.svg").read_text()
    for words, message in [("--plot losses.svg", "'losses.svg' exists; choose another name for the picture"),
                           ("--plot losses.txt", "--plot is to end in .png, .svg or .pdf, not '.txt'.")]:
        assert train(f"mlp.onnx data.npz -o b.onnx {words}") == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr(sys.modules["ortpartial.cli.train"], "find_spec", lambda name: None)
    assert train("mlp.onnx data.npz -o b.onnx --plot losses.png") == 2
    assert "--plot needs matplotlib: run `pip install '.[cli]'`" in capsys.readouterr().err


def test_several_outputs(rows, capsys):
    onnx.save(two_in_two_out(), "two.onnx")
    np.savez("two.npz", a=X[:, :3], b=X[:, 1:], price=Y, kind=np.array(["u", "v"])[(X[:, 0] > 0).astype(int)])
    assert train("two.onnx two.npz --loss price=square kind=cross_entropy --target price kind -o t.onnx") == 0
    capsys.readouterr()
    assert main(["evaluate", "t.onnx", "two.npz"]) == 0
    assert re.fullmatch(r"rows +60\nloss +[\d.]+\nR2 of price +-?[\d.]+\naccuracy of kind +[\d.]+\n",
                        capsys.readouterr().out)
    np.savez("inputs.npz", a=X[:, :3], b=X[:, 1:], c=X[:, :3])
    assert main(["predict", "t.onnx", "inputs.npz", "-o", "out.npz"]) == 0
    outputs = np.load("out.npz")
    assert sorted(outputs) == ["kind", "kind_label", "price", "unused"]
    assert set(outputs["kind_label"]) <= {"u", "v"}


def test_json(rows, capsys):
    assert train("mlp.onnx data.npz --epochs 2 --validation 0.5 --json -o trained.onnx") == 0
    out, err = capsys.readouterr()
    assert err == ""
    first, second, end = map(json.loads, out.splitlines())
    assert [first["event"], second["event"], end["event"]] == ["epoch", "epoch", "end"]
    assert (second["epoch"], second["validation_loss"]) == (2, end["validation_loss"])
    assert end["model"] == "trained.onnx"


def test_warnings_are_one_line(rows, capsys):
    """Without the place in the code."""
    save_ending_in(op.Exp, "exp.onnx", outputs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert train("exp.onnx data.csv --target w --features a b c d --loss poisson --epochs 1 -o a.onnx") == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: The output 'y' ends in Exp")


def save_ending_in(activation, path, outputs):
    onnx.save(mlp(outputs=outputs), path)
    model = load(path)
    onnx.save(build(model.inputs, {"y": activation(model.outputs["y"])}), path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("option", ["", "--loss cross_entropy", "--loss log_loss"])
@pytest.mark.parametrize("activation", [op.Softmax, op.Sigmoid])
def test_probabilities(rows, capsys, activation, option):
    """An output that ends in Softmax or Sigmoid has the loss of probabilities; texts have it by default."""
    save_ending_in(activation, "probabilities.onnx", outputs=3)
    assert train(f"probabilities.onnx animals.csv --target kind {option} --epochs 30 --rate adam:0.1 -o a.onnx") == 0
    said = "y is of probabilities, so that the loss is cross_entropy:from_logits=false"
    assert said in capsys.readouterr().err.splitlines()
    assert load_roles(onnx.load("a.onnx")).losses == ["cross_entropy:from_logits=false"]
    assert main(["evaluate", "a.onnx", "animals.csv", "--json"]) == 0
    text = capsys.readouterr()
    assert text.err == ""
    assert json.loads(text.out)["outputs"]["y"]["accuracy"] > 0.8
    assert main(["evaluate", "probabilities.onnx", "animals.csv", "--target", "kind", *option.split()]) == 0
    assert capsys.readouterr().err == f"{said}\n"


@pytest.mark.filterwarnings("error")
def test_probability(rows, capsys):
    """Of labels of 0 and 1; a word that says from_logits stays."""
    save_ending_in(op.Sigmoid, "probability.onnx", outputs=1)
    write_csv("kinds.csv", {**dict(zip("abcd", X.T, strict=True)), "kind": (X[:, 0] > 0).astype(int)})
    assert train("probability.onnx kinds.csv --target kind --loss log_loss --epochs 30 --rate adam:0.02 -o p.onnx") == 0
    assert capsys.readouterr().err == "y is of probabilities, so that the loss is log_loss:from_logits=false\n"
    assert main(["evaluate", "p.onnx", "kinds.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"]["y"]["accuracy"] > 0.8
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert train("probability.onnx kinds.csv --target kind --loss log_loss:from_logits=true -o q.onnx") == 0
    assert "warning: The output 'y' ends in Sigmoid" in capsys.readouterr().err


def test_texts_have_a_cross_entropy(rows, capsys):
    assert train("classifier.onnx animals.csv --target kind -o a.onnx --epochs 1") == 0
    assert load_roles(onnx.load("a.onnx")).losses == ["cross_entropy"]


def test_quiet(rows, capsys):
    assert train("mlp.onnx data.npz --epochs 2 --quiet -o trained.onnx") == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mlp.onnx data.csv --target z", "'data.csv' has no column 'z'; it has 'a', 'b', 'c', 'd', 'y', 'w'."),
        ("mlp.onnx data.csv --target kin", "'data.csv' has no column 'kin'; it has"),
        ("mlp.onnx animals.csv", "Say which column is the target, by --target; 'animals.csv' has 'a', 'b', 'c', 'd', "),
        ("mlp.onnx animals.csv --target kind", "The target 'kind' is of texts, such as 'bird', and Square"),
        ("mlp.onnx data.csv", "The input 'x' has 4 columns, and 'data.csv' has 5 for it: 'a', 'b', 'c', 'd', 'w'; n"),
        ("mlp.onnx nan.csv", "Column 'b' of input 'x' contains NaN or infinity; impute or drop those rows."),
        ("mlp.onnx wide.npz", "Input 'x' has shape (3, 5), where (N, 4) was expected."),
        ("mlp.onnx data.npz --rate adm", "--rate: 'adm' is not known. Did you mean 'Adam'?"),
        ("mlp.onnx data.npz --epochs 0", "--epochs is a whole number of at least 1, not 0."),
        ("mlp.onnx data.npz --validation 3", "--validation is a file, or a share of the rows between 0 and 1, not 3."),
        ("mlp.onnx data.npz --weights V?", "V?"),
        ("mlp.onnx object.npz", "'x' of 'object.npz' cannot be read: it holds Python objects."),
        ("mlp.onnx data.npz --rate 1e30", "Lower the rate, or scale X and y."),
        ("nothing.onnx data.npz", "There is no file 'nothing.onnx'"),
    ],
    ids=range(14),
)
def test_errors(rows, capsys, words, message):
    write_csv("nan.csv", {"a": [1, 2], "b": [0.5, ""], "c": [1, 2], "d": [1, 2], "y": [1, 2]})
    np.savez("wide.npz", x=np.zeros((3, 5)), y=np.zeros(3))
    np.savez("object.npz", x=np.array([None, {}]), y=np.zeros(2))
    assert train(f"{words} -o trained.onnx") == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("ortpartial: ")
    assert err.count("\n") == 1
    assert not Path("trained.onnx").exists()


def test_no_file_is_lost(rows, capsys):
    before = Path("linear.onnx").read_bytes()
    assert train("mlp.onnx data.npz -o linear.onnx") == 2
    assert "'linear.onnx' exists; choose another name for the trained model, or say --force." in capsys.readouterr().err
    assert Path("linear.onnx").read_bytes() == before
    assert train("mlp.onnx data.npz -o linear.onnx --force --epochs 1") == 0
    assert Path("linear.onnx").read_bytes() != before


def start(words):
    """A training in a process of its own, which prints its lines."""
    command = [sys.executable, "-m", "ortpartial", "train", *words.split()]
    # A shell starts what runs in the background with Ctrl-C ignored, which processes inherit.
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))


def test_ctrl_c_and_resume(rows, capsys):
    """A training that is interrupted, and goes on by the command that it prints, ends with the same bits."""
    X, y, _ = data(2000)
    np.savez("many.npz", x=X, y=y)
    words = "mlp.onnx many.npz --batch-size 2 --epochs 30 --validation 0.1 --average ema --accumulate 3 --rate adam"
    with start(f"{words} -o cut.onnx") as process:
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert line.startswith("epoch 1/30: loss "), err
    assert process.returncode == 130
    first, command = err.splitlines()
    epochs = int(re.fullmatch(r"ortpartial: interrupted after (\d+) of 30 epochs; go on with:", first)[1])
    assert 1 <= epochs < 30
    assert command == f"  ortpartial train {words} -o cut.onnx --resume"
    assert not Path("cut.onnx").exists()
    assert main(shlex.split(command)[1:]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"epoch {epochs + 1}/30: loss ")
    assert train(f"{words} -o whole.onnx -q") == 0
    cut, whole = weights_of(onnx.load("cut.onnx")), weights_of(onnx.load("whole.onnx"))
    assert all((cut[n] == a).all() for n, a in whole.items())
    assert list(rows.glob("*.checkpoints")) == []


def test_ctrl_c_as_the_model_is_written(rows, ctrl_c, capsys, monkeypatch):
    """The writing goes on."""
    module = sys.modules["ortpartial.cli.train"]
    monkeypatch.setattr(module, "write", interrupt_at(1, module.write))
    assert train("mlp.onnx data.npz --epochs 1 -o a.onnx") == 0
    assert "next: ortpartial evaluate a.onnx data.npz" in capsys.readouterr().out


def test_interruption_in_json(rows, ctrl_c, capsys, monkeypatch):
    module = sys.modules["ortpartial.cli.fitting"]
    monkeypatch.setattr(module, "_print_json", interrupt_at(2, module._print_json))
    assert train("mlp.onnx data.npz --epochs 9 --json -o a.onnx") == 130
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == {"event": "interrupted", "epochs": 2, "checkpoints": "a.onnx.checkpoints",
                    "resume": "ortpartial train mlp.onnx data.npz --epochs 9 --json -o a.onnx --resume"}


def test_checkpoints_are_not_lost(rows, capsys):
    assert train("mlp.onnx data.npz --epochs 2 --checkpoint run -o a.onnx -q") == 0
    assert train("mlp.onnx data.npz --epochs 2 --checkpoint run -o b.onnx") == 2
    assert "'run' holds checkpoints of a training; go on with it by --resume, or say --force" in capsys.readouterr().err
    assert train("mlp.onnx data.npz --epochs 2 --checkpoint run -o b.onnx --resume --rate 0.1") == 2
    assert "is of a training with learning_rate=" in capsys.readouterr().err
    assert train("mlp.onnx data.npz --epochs 3 --checkpoint run -o b.onnx --resume") == 0
    out, err = capsys.readouterr()
    assert (out.count("epoch"), err) == (1, "")
    assert train("mlp.onnx data.npz --epochs 3 -o c.onnx -q") == 0
    assert onnx.load("b.onnx") == onnx.load("c.onnx")
    assert len(list_checkpoints("run")) == 3
    assert train("mlp.onnx data.npz --epochs 1 --checkpoint none -o d.onnx --resume -q") == 0
    assert capsys.readouterr().err == "no checkpoint in 'none' to go on from; training from the beginning\n"
    assert train("mlp.onnx data.npz --checkpoint mlp.onnx -o e.onnx") == 2
    assert "'mlp.onnx' is no folder; name one for the checkpoints by --checkpoint." in capsys.readouterr().err
    assert list(rows.glob("*.checkpoints")) == []


@pytest.mark.slow
def test_two_processes_train_as_one(rows):
    """The first one alone prints and writes."""
    words = ["train", "mlp.onnx", "data.npz", "--epochs", "2", "-o"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run([*torchrun, "-m", "ortpartial", *words, "two.onnx", "--distributed"], env=environment(),
                          capture_output=True, text=True, timeout=120, check=True)
    assert main([*words, "one.onnx", "-q"]) == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["epoch", "epoch", "two.onnx:", "next:"]
    two, one = weights_of(onnx.load("two.onnx")), weights_of(onnx.load("one.onnx"))
    assert all(np.allclose(two[n], a, rtol=1e-5, atol=1e-7) for n, a in one.items())


def test_a_timeout_leaves_the_checkpoints(rows, capsys):
    """The training can go on."""
    words = "mlp.onnx data.npz --epochs 1000000 --checkpoint run -o a.onnx -q"
    assert train(f"{words} --timeout 0.3") == 2
    assert "ortpartial: The run was not over after 0.3 s, the timeout" in capsys.readouterr().err
    assert not Path("a.onnx").exists()
    assert list_checkpoints("run")
