"""The source of a module's steps: its loss, and new states behind the end of a gradient."""

import numpy as np

from ortpartial import nn
from ortpartial.graph import stop_gradient, variable
from ortpartial.nn.traced_source import find_loss, make_source, unwrap
from ortpartial.nn.tracing import write_step

X, T = variable("x", "float32", ["N", 3]), variable("t", "float32", ["N", 1])


def write(*results):
    """A step that returns some of prediction and loss."""

    class Net(nn.Module):
        def __init__(self):
            self.fc, self.loss, self.optimizer = nn.Linear(3, 1), nn.Loss(), nn.Optimizer(0.1)

        def forward(self, x):
            return self.fc(x)

        def train_one_batch(self, x, t):
            y = self.forward(x)
            loss = self.loss(y, t)
            self.optimizer(loss)
            return tuple({"y": y, "loss": loss}[r] for r in results) if len(results) > 1 else loss

    return write_step(Net(), {"x": X, "t": T}, training=True)


def test_the_loss():
    assert find_loss(write("y", "loss")) == "loss"
    assert find_loss(write("loss")) == "loss"
    assert find_loss(write("loss", "y")) is None


def test_a_source():
    writing = write("y", "loss")
    state = {n: np.zeros(v.shape, v.dtype) for n, v in writing.trace.before.items()}
    source = make_source(writing, state, device="cpu", threads=1)
    assert set(source.inputs) == {"x", "t"}
    assert {"fc.weight", "fc.bias"} <= set(source.first)
    assert source.compose().batch_size is not None


def test_the_end_of_a_gradient_means_nothing_at_the_end_of_a_step():
    assert unwrap(stop_gradient(X)) is X
    assert unwrap(X) is X
    assert unwrap(X * 2) is not X
