"""Trainings on execution providers, beside those on the CPU."""

import pickle

import numpy as np
import pytest
from providers import OPENVINO, RNG, X, Y, azure, distance, network, openvino

from ortpartial import OrtGradientForwardBackward, TrainingSession
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import DeviceWarning
from ortpartial.graph import build, constant, op, variable


@azure
def test_training_on_a_provider_that_takes_nothing():
    with pytest.warns(DeviceWarning):
        optimizer = Optimizer(network(), max_iter=2, random_state=0, device="AzureExecutionProvider").fit(X, Y)
    assert optimizer.engine_ == "step"
    assert optimizer.engine_reason_.endswith("the CPU runs all nodes, as AzureExecutionProvider takes none of them")
    assert pickle.loads(pickle.dumps(optimizer)).device == "AzureExecutionProvider"
    same = Optimizer(network(), max_iter=2, random_state=0).fit(X, Y)
    assert all((a == b).all() for a, b in zip(optimizer.get_state(), same.get_state(), strict=True))


@openvino
def test_a_graph_that_openvino_does_not_compile_runs_on_the_cpu():
    """It takes the gradient of a recurrent network, and then fails."""
    x, weights = variable("X", "float32", ["N", 4, 5]), [RNG.normal(size=s) for s in ((1, 8, 5), (1, 8, 2))]
    w, r = (constant(a.astype(np.float32), hint=n) for a, n in zip(weights, "WR", strict=True))
    recurrent = build([x], {"y": op.LSTM(op.Transpose(x, perm=[1, 0, 2]), w, r, hidden_size=2, n_outputs=3)[1]})
    with pytest.warns(DeviceWarning, match=f"the CPU runs all nodes, as {OPENVINO} does not compile it "):
        layer = OrtGradientForwardBackward(recurrent, device=OPENVINO)
    (y,), state = layer.forward(X[:, :20].reshape(-1, 4, 5))
    assert layer.backward([np.ones_like(y)], state)[0]["W"].any()


@openvino
@pytest.mark.parametrize("setting", [
    {"learning_rate": "SGD"}, {"learning_rate": "Adam"}, {"learning_rate": "Adam", "engine": "step", "batch_size": 10},
    {"engine": "epoch"}, {"learning_rate": "Adam", "train_mode": True}], ids=str)
def test_training_on_openvino(setting):
    """As on the CPU, masks of Dropout and the bias correction of Adam included, which it computes in too few bits."""
    model = network(0.5 if setting.get("train_mode") else 0.0)
    optimizer, expected = (Optimizer(model, **{"max_iter": 5, "batch_size": 32, **setting}, random_state=0, device=d)
                           .fit(X, Y) for d in ((OPENVINO, {"num_of_threads": 1}), "cpu"))
    assert distance(optimizer.get_state(), expected.get_state()) < 1e-5
    assert distance([optimizer.predict(X)], [expected.predict(X)]) < 1e-5
    assert OPENVINO in optimizer.placement_.nodes
    assert f"{OPENVINO} runs " in optimizer.engine_reason_
    copy = pickle.loads(pickle.dumps(optimizer))
    assert copy.device == (OPENVINO, {"num_of_threads": 1})
    assert (copy.predict(X) == optimizer.predict(X)).all()


@openvino
def test_forward_and_backward_on_openvino():
    layers = [OrtGradientForwardBackward(network(), device=d) for d in (OPENVINO, "cpu")]
    ys = [layer.forward(X, training=True) for layer in layers]
    gradients = [layer.backward([np.ones_like(y)], state) for layer, ((y,), state) in zip(layers, ys, strict=True)]
    assert layers[0].engine_ == "step"
    assert distance(ys[0][0], ys[1][0]) < 1e-6
    for mine, others in zip(*gradients, strict=True):
        assert distance(mine.values(), others.values()) < 1e-5


@openvino
def test_a_stored_training_on_openvino():
    """Its count of steps is an output, of what the CPU computes for Adam."""
    graph = Optimizer(network(), learning_rate="Adam", random_state=0).get_training_onnx()
    sessions = [TrainingSession(graph, device=d) for d in (OPENVINO, "cpu")]
    for _ in range(5):
        for session in sessions:
            session.step({"X": X, "y_target": Y})
    states = [[s.state[n] for n in sorted(s.state)] for s in sessions]
    assert distance(*states) < 1e-5


@openvino
def test_onnx_layer_on_openvino():
    import torch

    from ortpartial.torch import OnnxLayer

    weights = []
    for device in (OPENVINO, (OPENVINO, {"num_of_threads": 1}), None):
        layer = OnnxLayer(network(), device=device)
        for _ in range(3):
            layer(torch.from_numpy(X)).square().mean().backward()
        weights.append([p.grad.numpy() for p in layer.parameters()])
    assert distance(weights[0], weights[2]) < 1e-5
    assert distance(weights[1], weights[2]) < 1e-5
