"""The check of an export: silent where the graph computes the same as the module, else a sentence."""

import io

import pytest
import torch
from onnx import load_model_from_string, numpy_helper

from ortpartial.torch.export_check import find_difference, list_unkept
from ortpartial.torch.module_call import read_axes, read_call


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return torch.tanh(self.norm(self.a(x)))


@pytest.fixture
def exported():
    """A module, its graph and its call."""
    module, x = Net().eval(), torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    file = io.BytesIO()
    torch.onnx.export(module, (x,), file, dynamo=False, input_names=["x"], output_names=["output"],
                      dynamic_axes={"x": {0: "N"}, "output": {0: "N"}}, training=torch.onnx.TrainingMode.PRESERVE)
    call = read_call(module, (x,))
    return module, load_model_from_string(file.getvalue()), call, read_axes(call, None)


pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_same_numbers(exported):
    assert find_difference(*exported) is None


def test_other_numbers(exported):
    module, proto, call, axes = exported
    with torch.no_grad():
        module.a.weight[0, 0] += 1
    assert find_difference(module, proto, call, axes).startswith("the output 'output' differs from the module's by ")


def test_another_shape(exported):
    module, proto, call, axes = exported
    module.forward = lambda x: Net.forward(module, x)[:, :2]
    problem = find_difference(module, proto, call, axes)
    assert problem == "the output 'output' has the shape [5, 4], and the module's has [5, 2]"


def test_a_module_that_draws_is_not_compared(exported):
    module, proto, call, axes = exported
    module.forward = lambda x: torch.rand(5, 4)
    assert find_difference(module, proto, call, axes) is None


def test_buffers_that_are_not_kept(exported):
    """Those of BatchNormalization are."""
    _, proto, *_ = exported
    proto.graph.initializer.append(numpy_helper.from_array(torch.zeros(2).numpy(), "ema"))
    assert list_unkept(proto, ["ema", "none"]) == ["ema"]
