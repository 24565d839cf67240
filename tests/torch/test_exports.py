"""Plain exports of fresh networks, by both exporters of torch: they train as the networks do in torch."""

import io
import warnings

import numpy as np
import onnx
import pytest
import torch
from torch_networks import BATCH, FOLDED, NETWORKS, RATE, ROWS, STEPS, make_network

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import ModelWarning

#: Networks whose norms an exporter folds, repeats or leaves out.
BY_EXPORTER = {"torchscript": ("residual", "depthwise"), "dynamo": FOLDED}
#: Those of the normal run.
SAMPLE = {("torchscript", "mlp"), ("torchscript", "encoder"), ("dynamo", "group norm"), ("dynamo", "tied"),
          ("dynamo", "residual")}


def export(network, exporter):
    """The network as the tutorials export it."""
    file, is_dynamo = io.BytesIO(), exporter == "dynamo"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network.net.eval(), (network.example,), file, dynamo=is_dynamo, verbose=False)
    return onnx.load_from_string(file.getvalue())


def train(model, network):
    """The predictions after the steps of `network.train`."""
    X, y = network.X.numpy(), network.y.numpy()
    trained = Optimizer(model, learning_rate=RATE, batch_size=BATCH, shuffle=False, max_iter=1)
    for k in range(STEPS):
        rows = np.arange(k * BATCH, (k + 1) * BATCH) % ROWS
        trained.partial_fit(X[rows], y[rows])
    return trained


CASES = [pytest.param(e, n, marks=[] if (e, n) in SAMPLE else pytest.mark.slow)
         for e in BY_EXPORTER for n in NETWORKS]


@pytest.mark.parametrize(("exporter", "name"), CASES)
def test_an_export_trains_as_its_network(exporter, name):
    network = make_network(name)
    model = export(network, exporter)
    if name in BY_EXPORTER[exporter]:
        with pytest.warns(ModelWarning, match=r"ortpartial\.torch\.export\(module, \*example\)"):
            Optimizer(model)
        return
    expected = network.predict(network.train())
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        trained = train(model, network)
    y = np.concatenate([trained.predict(x) for x in np.split(network.X.numpy(), ROWS // BATCH)])
    assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max()
