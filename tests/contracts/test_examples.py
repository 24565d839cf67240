"""The examples are short, and the demonstration and the code of the README run and give what they promise."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from scripts import run
from skl2onnx import to_onnx
from sklearn.linear_model import LinearRegression

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
from ortpartial.learning.losses import ElasticLearningLoss
from ortpartial.learning.optimizers import LearningRateSGDNesterov
from ortpartial.learning.penalties import ElasticLearningPenalty
from ortpartial.runtime.device import has_training
from ortpartial.runtime.session import Session

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_an_example_asked_for_a_device_that_is_not_there(tmp_path):
    with pytest.raises(AssertionError, match="DeviceError: The device is 'tpu'; expected 'cpu', 'cuda', 'cuda:<"):
        run(ROOT / "examples" / "plot_neural_network.py", tmp_path, "tpu", cwd=tmp_path)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.stem)
def test_example_is_short_and_says_what_it_shows(example):
    text = example.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    assert re.match(r'"""\n(.+)\n=+\n\n\S', text), "a title, underlined, and a paragraph about what the example shows"
    # Without a folder nothing is drawn, so neither a window nor matplotlib is needed.
    assert ".show(" not in text
    assert "find_spec" in text
    assert 'plt.style.use("ortpartial.figure")' in text, "all figures have one style"


def test_demo(tmp_path):
    printed = run(ROOT / "examples" / "demo.py", cwd=tmp_path)
    line = r"^(\w.*?)  +(skl2onnx|notation|saved ONNX) +(\w+) .* (\S+) +(\S+) +(\S+)$"
    rows = re.findall(line, printed, re.MULTILINE)
    assert len(rows) == 4, printed
    scores = {name: (float(before), float(after), sklearn) for name, _, _, before, after, sklearn in rows}
    for name, (before, after, sklearn) in scores.items():
        assert after > before + 0.3, name
        if sklearn != "-":
            assert after > float(sklearn) - 0.03, f"{name}: {after}, scikit-learn {sklearn}"
    assert scores["negatives: layer 1 only"][1] > 0.9
    assert [engine for _, _, engine, *_ in rows][:2] == ["agent" if has_training() else "step", "epoch"]
    assert "W2 and b2 did not change by a bit" in printed

    output = tmp_path / "demo_output"
    written = {f.name: f for f in output.iterdir()}
    assert sorted(written) == ["digits.onnx", "digits_negative.onnx", "linear.onnx", "logistic.onnx", "losses.png"]
    assert written["losses.png"].stat().st_size > 20_000
    for name in (n for n in written if n.endswith(".onnx")):
        model = onnx.load(written[name])
        onnx.checker.check_model(model, full_check=True)
        width = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
        results = Session(model).run({model.graph.input[0].name: np.ones((2, width), np.float32)})
        assert all(np.isfinite(r).all() for r in results.values())


def test_readme(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    after = """
    assert 0.85 < accuracy < 0.95, accuracy
    assert [s.shape for s in state_tensors] == [(10, 32), (10,)]
    assert len(losses) == 100 and losses[-1] < losses[0]
    from onnxruntime import InferenceSession
    session = InferenceSession("trained.onnx", providers=["CPUExecutionProvider"])
    (trained,) = session.run(None, {session.get_inputs()[0].name: X})
    assert abs(trained - optimizer.predict(X)).max() < 1e-5
    assert abs(trained - layer(torch.tensor(X)).detach().numpy()).max() < 1e-5
    assert classifier.score(X[1400:], y[1400:]) > 0.85
    """
    script = tmp_path / "readme.py"
    script.write_text("\n".join([*blocks, *map(str.strip, after.splitlines())]), encoding="utf-8")
    run(script, cwd=tmp_path, torch=True)
    assert README.count("\n") <= 115


def linear_model(origin: str, X: np.ndarray, y: np.ndarray) -> onnx.ModelProto:
    """A linear model with the initializers coef and intercept."""
    if origin == "skl2onnx":
        # Without black_op the weights are attributes of one LinearRegressor and cannot be trained.
        return to_onnx(LinearRegression().fit(X, y), X[:1], black_op={"LinearRegressor"})
    x = variable("X", "float32", ["N", X.shape[1]])
    coef = constant(np.zeros((X.shape[1], 1), np.float32), hint="coef")
    return build([x], {"y": x @ coef + constant(np.zeros(1, np.float32), hint="intercept")})


@pytest.mark.parametrize("origin", ["notation", "skl2onnx"])
def test_head_of_the_documentation(origin, rng):
    X_train = rng.normal(size=(100, 4)).astype(np.float32)
    y_train, w_train = X_train @ np.float32([1, -2, 0, 3]) + np.float32(1), rng.uniform(0.5, 2, size=100)
    onx = linear_model(origin, X_train, y_train)

    train_session = OrtGradientForwardBackwardOptimizer(
        onx, ["coef", "intercept"],
        learning_rate=LearningRateSGDNesterov(),
        learning_loss=ElasticLearningLoss(l1_weight=0.1, l2_weight=0.9),
        learning_penalty=ElasticLearningPenalty(l1=0.1, l2=0.9))
    train_session.fit(X_train, y_train, w_train)
    state_tensors = train_session.get_state()
    losses = train_session.train_losses_

    assert [s.shape for s in state_tensors] == [(4, 1), (1,)]
    assert len(losses) == 100
    coef = state_tensors[0].ravel()
    # The penalty shrinks all coefficients; without a seed two trainings differ by 0.15 at most.
    np.testing.assert_allclose(coef, [0.57, -1.11, 0.03, 2.10], atol=0.3)
