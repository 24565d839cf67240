"""The model of a module: its inference graph, and a training that a session runs."""

import numpy as np
import onnx
import pytest

from ortpartial import TrainingSession, nn
from ortpartial.nn.training_model import initial_values
from ortpartial.training_info import check_training_info

X, T = np.ones((4, 3), np.float32), np.zeros((4, 1), np.float32)


@pytest.fixture
def net():
    net = nn.Linear(3, 1).set_optimizer("adam").compile(nn.placeholder(["N", 3]), random_state=0)
    net.train_one_batch(X, T)
    return net


def test_first_values():
    net = nn.Linear(3, 1)
    net.compile(nn.placeholder(["N", 3]), random_state=0)
    values = initial_values(dict(net.named_parameters()))
    assert {n: v.shape for n, v in values.items()} == {"weight": (1, 3), "bias": (1,)}


def test_the_model_holds_its_training(net, tmp_path):
    net.save(tmp_path / "a.onnx")
    proto = onnx.load(tmp_path / "a.onnx")
    onnx.checker.check_model(proto)
    check_training_info(proto)
    info = proto.training_info[0]
    assert {"weight", "bias"} <= {p.key for p in info.update_binding}
    assert {"weight", "bias"} <= {p.key for p in info.initialization_binding}


def test_a_session_goes_on_where_the_module_is(net, tmp_path):
    net.save(tmp_path / "a.onnx")
    session = TrainingSession(tmp_path / "a.onnx")
    outputs = session.step(dict(zip(session.inputs, (X, T), strict=True)))
    _, loss = net.train_one_batch(X, T)
    assert outputs["loss"] == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(session.state["weight"], net.state_dict()["weight"], rtol=1e-5)
