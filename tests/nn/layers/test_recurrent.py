"""RNN, LSTM and GRU: outputs, states, gradients and steps as torch's, by parameters of the same names."""

import inspect

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch_layers import compare

from ortpartial import OrtGradientForwardBackwardOptimizer, nn
from ortpartial.exceptions import DataError, GraphError, ModelError, SettingError

RNG = np.random.default_rng(0)
T, N, FEATURES, HIDDEN = 4, 3, 3, 5

# The class, its settings, whether the first states are given, and the algorithm of the three steps.
LAYERS = {
    "rnn": ("RNN", {"num_layers": 2}, False, "SGD"),
    "rnn, relu, both ways": ("RNN", {"nonlinearity": "relu", "bidirectional": True, "bias": False}, True, "SGD"),
    "lstm": ("LSTM", {}, False, "adam"),
    "lstm, two layers, both ways, batch first": (
        "LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}, True, "SGD"),
    "gru, two layers": ("GRU", {"num_layers": 2, "bias": False}, True, "adam"),
    "gru, both ways, batch first": ("GRU", {"bidirectional": True, "batch_first": True}, False, "SGD"),
}

CELLS = {
    "rnn": ("RNNCell", {"nonlinearity": "relu"}, 1),
    "lstm": ("LSTMCell", {"bias": False}, 2),
    "gru": ("GRUCell", {}, 1),
}


@pytest.fixture(autouse=True)
def same_numbers():
    """A test draws the same numbers whichever test has run before it."""
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state
    torch.manual_seed(0)


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def call_with_states(layer, x, *states):
    return layer(x, states if len(states) == 2 else states[0]) if states else layer(x)


@pytest.mark.parametrize(("name", "settings", "has_states", "rate"), LAYERS.values(), ids=LAYERS)
def test_layers_are_those_of_torch(name, settings, has_states, rate):
    theirs = getattr(torch.nn, name)(FEATURES, HIDDEN, **settings)
    ours = getattr(nn, name)(FEATURES, HIDDEN, **settings)
    inputs = [draw(*((N, T) if settings.get("batch_first") else (T, N)), FEATURES)]
    axes = settings.get("num_layers", 1) * (1 + settings.get("bidirectional", False))
    inputs += [draw(axes, N, HIDDEN) for _ in range((1 + (name == "LSTM")) * has_states)]
    compare(ours, theirs, inputs, call=call_with_states, rate=rate)


@pytest.mark.parametrize(("name", "settings", "n_states"), CELLS.values(), ids=CELLS)
def test_cells_are_those_of_torch(name, settings, n_states):
    """In a loop over steps, whose first state is 0."""
    theirs = getattr(torch.nn, name)(FEATURES, HIDDEN, **settings)
    ours = getattr(nn, name)(FEATURES, HIDDEN, **settings)

    def call(cell, x, y):
        return cell(y, cell(x))

    compare(ours, theirs, [draw(N, FEATURES), draw(N, FEATURES)], call=call)


def test_sequences_without_a_batch():
    compare(nn.LSTM(FEATURES, HIDDEN), torch.nn.LSTM(FEATURES, HIDDEN), [draw(T, FEATURES)])
    theirs = torch.nn.GRU(FEATURES, HIDDEN, 2)
    compare(nn.GRU(FEATURES, HIDDEN, 2), theirs, [draw(T, FEATURES), draw(2, HIDDEN)])


@pytest.mark.parametrize("shape", [(0, N, FEATURES), (T, 0, FEATURES)])
@pytest.mark.parametrize(("name", "use_graph"), [("RNN", True), ("LSTM", True), ("GRU", True), ("LSTM", False)])
def test_no_steps_or_no_sequences_are_an_error(name, use_graph, shape):
    """onnxruntime would end the process."""
    class Outputs(nn.Module):
        def __init__(self):
            self.rnn = getattr(nn, name)(FEATURES, FEATURES)

        def forward(self, x):
            return self.rnn(x)[0]

    model = Outputs().set_optimizer(0.1).compile(nn.placeholder(["T", "N", FEATURES]), use_graph=use_graph)
    x = np.zeros(shape, np.float32)
    for compute in (model.eval(), model.predict, lambda x: model.train().train_one_batch(x, x)):
        with pytest.raises((DataError, ModelError), match="elements"):
            compute(x)


def test_dropout_between_layers_is_that_of_training():
    """Of both layers' units, the first layer's are dropped; evaluation drops none."""
    class Last(nn.Module):
        def __init__(self):
            self.rnn = nn.RNN(2, 64, 2, dropout=0.5)

        def forward(self, x):
            return self.rnn(x)[1]

    model, x = Last().compile(nn.placeholder(["T", "N", 2]), random_state=0), draw(1, N, 2)
    first = model(x)
    assert (first[0] == model(x)[0]).all()
    assert abs(first[1] - model(x)[1]).max() > 1e-2
    assert (model.eval()(x) == model(x)).all()


def test_first_weights_are_drawn_as_by_torch():
    model = nn.GRU(3, 16, 2, bidirectional=True).compile(nn.placeholder(["T", "N", 3]), random_state=0)
    for name, w in model.state_dict().items():
        assert abs(w).max() <= 0.25, name
        assert abs(w).max() > 0.2, name
    assert model.weight_ih_l1_reverse.shape == (48, 32)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"])
def test_defaults_are_those_of_torch(name):
    """Each setting is an attribute of torch's layer; those of torch that are missing here say where and how."""
    theirs = getattr(torch.nn, name)(3, 5)
    parameters = inspect.signature(getattr(nn, name)).parameters
    for setting, parameter in list(parameters.items())[2:]:
        if setting != "dtype":
            assert getattr(theirs, setting) == parameter.default, setting
    assert list(parameters)[:2] == ["input_size", "hidden_size"]


def test_features_follow_from_the_first_input():
    model = nn.LSTM(None, 5, 2).compile(nn.placeholder(["T", "N", 3]), random_state=0)
    assert model.weight_ih_l0.shape == (20, 3)


def test_an_exported_layer_is_trained_by_names_of_torch():
    class Last(nn.Module):
        def __init__(self):
            self.gru, self.out = nn.GRU(FEATURES, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 1)

        def forward(self, x):
            return self.out(self.gru(x)[0][:, -1])

    model, x = Last().compile(nn.placeholder(["N", "T", FEATURES]), random_state=0).eval(), draw(8, T, FEATURES)
    (y,) = onnxruntime.InferenceSession(
        model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert abs(y - model(x)).max() < 1e-6
    optimizer = OrtGradientForwardBackwardOptimizer(model.to_onnx(), learning_rate=0.1, max_iter=50, random_state=0)
    optimizer.fit(x, x[:, -1, :1])
    assert optimizer.train_losses_[-1] < 0.5 * optimizer.train_losses_[0]
    assert optimizer.weights_to_train == list(model.state_dict())


def test_what_does_not_fit_is_named():
    class Net(nn.Module):
        def __init__(self, **settings):
            self.encoder = [nn.LSTM(3, 5, 2, **settings)]

        def forward(self, x, *states):
            return self.encoder[0](x, states or None)

    x, h = nn.placeholder(["T", "N", 3]), nn.placeholder([2, "N", 5])
    with pytest.raises(GraphError, match=r"^encoder\.0 \(LSTM\): x has 4 features, .*, where 3 were expected"):
        Net().compile(nn.placeholder(["T", "N", 4]))
    with pytest.raises(GraphError, match=r"x is float32\[N\], where \(N, T, features\) was expected, or"):
        Net(batch_first=True).compile(nn.placeholder(["N"]))
    with pytest.raises(GraphError, match=r"x is float64.*, and the weights are float32; cast x"):
        Net().compile(nn.placeholder(["T", "N", 3], "float64"))
    with pytest.raises(GraphError, match=r"\(LSTM\): x is a tuple, where \(T, N, features\) was expected"):
        nn.Sequential(nn.LSTM(3, 3), nn.LSTM(3, 3)).compile(x)
    with pytest.raises(GraphError, match=r"a first state has 4 features, .*, where 5 were expected"):
        Net().compile([x, nn.placeholder([2, "N", 4]), h])
    with pytest.raises(GraphError, match=r"a first state has 2 layers and directions, .*, where 4 were expected"):
        Net(bidirectional=True).compile([x, h, h])
    with pytest.raises(GraphError, match=r"a first state is .*, where \(layers and directions, N, hidden\)"):
        Net().compile([x, nn.placeholder([2, 5]), h])
    with pytest.raises(GraphError, match=r"where the pair of states \(h, c\) was expected"):
        Net().compile([x, h])
    with pytest.raises(GraphError, match=r"x has 4 features, .*, where 3 were expected"):
        nn.GRUCell(3, 5).compile(nn.placeholder(["N", 4]))
    with pytest.raises(GraphError, match=r"x is float32\[3\], where \(N, features\) was expected"):
        nn.GRUCell(3, 5).compile(nn.placeholder([3]))
    with pytest.raises(SettingError, match="proj_size is 2, and the LSTM of ONNX has no projection"):
        nn.LSTM(3, 5, proj_size=2)
    with pytest.raises(SettingError, match="GRU: hidden_size is 0; a whole number, at least 1, was expected"):
        nn.GRU(3, 0)
    with pytest.raises(SettingError, match="RNN: nonlinearity is 'tanh' or 'relu', not 'gelu'"):
        nn.RNN(3, 5, nonlinearity="gelu")
    with pytest.raises(ModelError, match="'weight_ih_l1' is missing"):
        nn.RNN(3, 5, 2).load_state_dict(torch.nn.RNN(3, 5).state_dict())


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_a_runtime_rearranges_weights_once(name, tmp_path):
    """A model keeps the weights of torch; onnxruntime puts their gates into the order of ONNX as it loads them."""
    model = getattr(nn, name)(FEATURES, HIDDEN, 2, bidirectional=True).compile(nn.placeholder(["T", "N", FEATURES]))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), options, providers=["CPUExecutionProvider"])
    nodes = [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]
    assert nodes.count(name) == 2
    assert "Split" not in nodes
    assert nodes.count("Concat") == 1 + (name == "LSTM")  # of the last states


@pytest.mark.slow
def test_eager_evaluation_computes_the_same_numbers():
    class Net(nn.Module):
        def __init__(self):
            self.lstm = nn.LSTM(FEATURES, 4, 2, batch_first=True, dropout=0.5)
            self.encoder = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)

        def forward(self, x):
            return self.encoder(self.lstm(x)[0], is_causal=True)

    x, y = draw(N, T, FEATURES), draw(N, T, 4)
    ours = [Net().set_optimizer("adam").compile(nn.placeholder(["N", "T", FEATURES]), use_graph=g, random_state=0)
            for g in (True, False)]
    for _ in range(2):
        (output, _), (eager, _) = (model.train_one_batch(x, y) for model in ours)
        assert abs(output - eager).max() < 1e-5
