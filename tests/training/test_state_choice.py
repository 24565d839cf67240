import pytest
from models import mlp, net

from ortpartial.model import load
from ortpartial.training import choose_state


@pytest.mark.parametrize(("names", "parameters", "buffers"), [
    (None, ["K", "scale1", "b1", "W", "scale2", "b2"], ["mean1", "var1", "mean2", "var2"]),
    (["W", "K"], ["W", "K"], ["scale1", "b1", "mean1", "var1", "scale2", "b2", "mean2", "var2"]),
    ("b?", ["b1", "b2"], ["K", "scale1", "mean1", "var1", "W", "scale2", "mean2", "var2"]),
])
def test_initializers_are_parameters_or_buffers(names, parameters, buffers):
    assert choose_state(load(net()), names) == (parameters, buffers)


def test_nothing_may_be_a_parameter():
    assert choose_state(load(mlp()), ()) == ([], ["W1", "b1", "W2", "b2"])
