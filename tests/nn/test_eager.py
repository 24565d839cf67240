import copy
import sys
import traceback

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from ortpartial import ElasticLearningPenalty, nn, op
from ortpartial.exceptions import DataError, GraphError, NotComputedError
from ortpartial.graph import Value


class Perceptron(nn.Module):
    shape = (5,)

    def __init__(self):
        self.hidden, self.out = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(op.Relu(self.hidden(x)))


class Convolution(nn.Module):
    """Running statistics and masks, which differ from training to evaluation; without a bias that has no effect."""

    shape = (2, 4, 4)

    def __init__(self):
        self.net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
                                 nn.Dropout(0.3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))

    def forward(self, x):
        return self.net(x)


class Recurrent(nn.Module):
    shape = (6, 4)

    def __init__(self):
        self.lstm, self.out = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        y, _ = self.lstm(x)
        return self.out(y[:, -1])


class Encoder(nn.Module):
    shape = (5, 4)

    def __init__(self):
        self.layer, self.out = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.1, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.layer(x).mean(1))


def data(model, rows=20):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, *model.shape)).astype(np.float32), rng.integers(0, 3, rows)


def compiled(module, optimizer="adam", **settings):
    """The module with an optimizer; random state 0."""
    return module.set_optimizer(optimizer).compile(nn.placeholder(["N", *module.shape]), random_state=0, **settings)


CASES = [
    (Perceptron, "adam"),
    (Perceptron, nn.Optimizer(0.05, gradient_clipping=0.5, penalty=ElasticLearningPenalty(l1=1e-3, l2=1e-2))),
    (Convolution, "adam"),
    (Recurrent, "adam"),
    (Encoder, "nesterov"),
]


@pytest.mark.parametrize(("module", "optimizer"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_numbers_are_those_of_the_graph(module, optimizer):
    X, y = data(module, 14)
    models = [compiled(module(), copy.copy(optimizer), use_graph=g) for g in (True, False)]
    for m in models:
        m.fit(X, y, epochs=3, batch_size=7, X_val=X[:7], y_val=y[:7])
    (expected, computed), (history, eager) = [m.state_dict() for m in models], [m.history_ for m in models]
    for n, w in expected.items():
        assert np.abs(computed[n] - w).max() <= 1e-6 * np.abs(w).max(), n
    assert eager[-1]["iteration"] == history[-1]["iteration"] == 6
    for n in ("loss", "validation_loss"):
        assert_allclose([r[n] for r in eager], [r[n] for r in history], rtol=1e-6)
    assert_allclose(models[1].predict(X[:7]), models[0].predict(X[:7]), rtol=1e-5, atol=1e-6)
    outputs, losses = zip(*(m.train_one_batch(X[:7], y[:7]) for m in models), strict=True)
    assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-6)
    assert_allclose(losses[1], losses[0], rtol=1e-6)


def test_a_forward_in_training_mode_leaves_what_the_graph_leaves():
    X, _ = data(Convolution)
    models = [compiled(Convolution(), use_graph=g) for g in (True, False)]
    outputs = [[m(X), m(X), m.eval()(X)] for m in models]
    assert (outputs[0][0] != outputs[0][1]).any()
    assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-6)
    assert_allclose(*(m.state_dict()["net.1.running_mean"] for m in models), rtol=1e-6)


class Inspected(Perceptron):
    """Shows what it computes."""

    def __init__(self, inspect):
        super().__init__()
        self.inspect = inspect

    def forward(self, x):
        h = self.hidden(x)
        self.inspect(h)
        return self.out(op.Relu(h))


def test_values_have_numbers_where_they_are_computed():
    seen = []
    X, y = data(Perceptron)
    model = compiled(Inspected(lambda h: seen.append(h.numpy())), use_graph=False)
    assert seen == []  # A placeholder has no numbers, and nothing stands in for them.
    w, b = model.hidden.weight.numpy(), model.hidden.bias.numpy()
    model.train_one_batch(X, y)
    model.predict(X[:2])
    assert_allclose(seen[0], X @ w.T + b, rtol=1e-5, atol=1e-6)
    assert [a.shape for a in seen] == [(20, 8), (2, 8)]
    for write in (lambda: model.graph, model.to_onnx):
        with pytest.raises(NotComputedError, match=r"^Inspected has no graph, as its code reads numbers .*: The mod"):
            write()
    with pytest.raises(NotComputedError, match=r"has no numbers before it is computed"):
        compiled(Inspected(lambda h: h.numpy()))


def test_values_are_printed(capsys):
    X, y = data(Perceptron, 1)
    model = compiled(Inspected(lambda h: print(f"{h} and {h.mean():.3f}" if h.shape[0] == 1 else h)), use_graph=False)
    assert capsys.readouterr().out == "<Value Gemm float32[Nx8]>\n"
    model.train_one_batch(X, y)
    out = capsys.readouterr().out
    assert "float32[1x8] [[" in out
    assert f"{(X @ model.hidden.weight.numpy().T).mean():.0f}"[:1] in out


def test_a_breakpoint_stops_in_forward(monkeypatch):
    frames = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: frames.append(sys._getframe(1)))
    X, y = data(Perceptron)
    model = compiled(Inspected(lambda h: breakpoint()), use_graph=False)
    frames.clear()
    model.train_one_batch(X, y)
    (frame,) = frames
    assert frame.f_back.f_code.co_name == "forward"
    assert isinstance(frame.f_locals["h"], Value)
    assert frame.f_locals["h"].numpy().shape == (20, 8)


def test_python_may_choose_by_numbers():
    class Choice(Perceptron):
        def forward(self, x):
            h = self.hidden(x)
            return self.out(h if float(h.sum()) > 0 else -h)

    X, y = data(Choice)
    model = compiled(Choice(), use_graph=False).fit(X, y, epochs=2)
    assert (model.predict(X) == model.predict(X)).all()
    assert len(model.state_dict()) == 4


def test_a_layer_may_be_made_by_the_first_batch():
    class Lazy(Perceptron):
        def __init__(self):
            self.hidden, self.out = nn.Linear(None, 8), nn.Linear(None, 3)

        def forward(self, x):
            assert float(op.ReduceSum(x * 0, keepdims=0)) == 0  # It reads numbers, so that compile cannot make weights.
            return self.out(op.Relu(self.hidden(x)))

    X, y = data(Lazy)
    model = compiled(Lazy(), use_graph=False)
    first = model.predict(X)
    assert [p.shape for p in model.parameters()] == [(8, 5), (8,), (3, 8), (3,)]
    assert_array_equal(model.predict(X), first)
    before = model.state_dict()
    model.train_one_batch(X, y)
    assert all((before[n] != w).any() for n, w in model.state_dict().items())


def test_compiling_again_keeps_the_weights():
    X, y = data(Perceptron)
    model = compiled(Perceptron(), use_graph=False).fit(X, y, epochs=2)
    expected = model.predict(X)
    compiled(model)
    assert_allclose(model.predict(X), expected, rtol=1e-6)
    model.fit(X, y, epochs=2)
    expected = model.predict(X)
    compiled(model, use_graph=False)
    assert_allclose(model.predict(X), expected, rtol=1e-6)


def test_the_graph_holds_the_training():
    X, y = data(Perceptron)
    eager, model = compiled(Perceptron(), use_graph=False), compiled(Perceptron())
    for m in (eager, model):
        m.fit(X, y, epochs=2)
    graph, expected = eager.graph.training_info[0], model.graph.training_info[0]
    assert [n.op_type for n in graph.algorithm.node] == [n.op_type for n in expected.algorithm.node]
    assert {t.name for t in graph.algorithm.initializer} == {t.name for t in expected.algorithm.initializer}
    eager.fit(X, y, epochs=2)
    assert_allclose(eager.predict(X), model.fit(X, y, epochs=2).predict(X), rtol=1e-5, atol=1e-6)


def test_states_go_from_one_way_to_the_other(tmp_path):
    X, y = data(Perceptron)
    eager = compiled(Perceptron(), use_graph=False).fit(X, y, epochs=2, shuffle=False)
    eager.save_states(tmp_path / "states")
    models = [compiled(Perceptron(), use_graph=g) for g in (True, False)]
    for m in models:
        m.load_states(tmp_path / "states")
    expected = eager.fit(X, y, epochs=2, shuffle=False).predict(X)
    for m in models:
        assert_allclose(m.fit(X, y, epochs=2, shuffle=False).predict(X), expected, rtol=1e-5, atol=1e-6)


def test_another_optimizer_begins_anew():
    X, y = data(Perceptron)
    models = [compiled(Perceptron(), use_graph=g).fit(X, y, epochs=2) for g in (True, False)]
    for m in models:
        m.set_optimizer("adam").fit(X, y, epochs=2, shuffle=False)
    assert_allclose(models[1].predict(X), models[0].predict(X), rtol=1e-5, atol=1e-6)


def test_an_error_points_at_the_line_and_names_the_layer():
    class Wrong(nn.Module):
        def forward(self, x):
            return op.Gather(x, op.Cast(op.ReduceMax(x) * 0 + 99, to=7))  # this line

    class Net(Perceptron):
        def __init__(self):
            self.parts = [nn.Linear(5, 3), Wrong()]

        def forward(self, x):
            return self.parts[1](self.parts[0](x))

    X, y = data(Net)
    model = compiled(Net(), use_graph=False)
    with pytest.raises(DataError, match=r"^parts\.1 \(Wrong\): A Gather has an index that is not in -20 to 19") as e:
        model.train_one_batch(X, y)
    assert any("# this line" in frame.line for frame in traceback.extract_tb(e.value.__traceback__))
    model.parts[1].forward = lambda x: x.numpy()[20, 0]
    with pytest.raises(IndexError, match="out of bounds") as e:
        model.predict(X)
    assert sys.version_info < (3, 11) or e.value.__notes__ == ["in parts.1 (Wrong)"]
    with pytest.raises(DataError, match=r"The input 'x' has the shape \(20, 4\), and the module was compiled for flo"):
        model.predict(X[:, :4])
    with pytest.raises(DataError, match="label that is not in 0 to"):
        compiled(Perceptron(), use_graph=False).train_one_batch(X, y + 1)
    with pytest.raises(GraphError, match=r"^parts\.0 \(Linear\): .*5"):
        Net().compile(nn.placeholder(["N", 4]), use_graph=False)
