"""Writing: the values that code returns, by name, and results that are no values."""

import pytest

from ortpartial import nn
from ortpartial.exceptions import GraphError
from ortpartial.graph import variable
from ortpartial.nn.tracing import write, write_step

X, T = variable("x", "float32", ["N", 3]), variable("t", "float32", ["N", 2])


class Net(nn.Module):
    def __init__(self):
        self.fc, self.loss, self.optimizer = nn.Linear(3, 2), nn.Loss(), nn.Optimizer(0.1)

    def forward(self, x):
        return {"scores": self.fc(x), "twice": [self.fc(x) * 2]}

    def train_one_batch(self, x, t):
        y = self.fc(x)
        loss = self.loss(y, t)
        self.optimizer(loss)
        return y, loss


def test_outputs_by_name():
    net = Net()
    writing = write(net, net, {"x": X}, training=False)
    assert list(writing.outputs) == ["output_scores", "output_twice_0"]
    assert writing.rebuild({"output_scores": 1, "output_twice_0": 2}) == {"scores": 1, "twice": [2]}
    assert writing.trace.changed == {}


def test_a_step():
    writing = write_step(Net(), {"x": X, "t": T}, training=True)
    assert list(writing.outputs) == ["step_output", "loss"]
    assert {"fc.weight", "fc.bias"} <= writing.trace.changed.keys()
    assert writing.rebuild({"step_output": 1, "loss": 2}) == (1, 2)


def test_a_name_that_is_taken():
    net = Net()
    assert list(write(net, net.fc, {"output": X}, training=False).outputs) == ["output_"]


def test_what_is_no_value():
    net = Net()
    with pytest.raises(GraphError, match="Net returns 3, of type int, where values, or tuples, lists"):
        write(net, lambda x: 3, {"x": X}, training=False)


def test_labels():
    class Classes(Net):
        def __init__(self):
            super().__init__()
            self.loss = nn.Loss("softmax_cross_entropy")

    t = variable("t", "int64", ["N"])
    writing = write_step(Classes(), {"x": X, "t": t}, training=True)
    classes, _ = writing.labels["t"]
    assert classes == 2
    assert writing.find_ranges(writing.outputs)["t"].high == 1
