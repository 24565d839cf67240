"""Normalization in a training: statistics of several calls in a batch, of parts in evaluation mode, and of steps."""

import numpy as np
import pytest
import torch

from ortpartial import nn

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


class Twice(nn.Module):
    def __init__(self, momentum):
        self.norm = nn.BatchNorm1d(3, momentum=momentum)

    def forward(self, a, b):
        return self.norm(a), self.norm(b)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_follow_each_call_in_a_batch(momentum):
    a, b = draw(4, 3), draw(6, 3) + 1
    theirs = torch.nn.BatchNorm1d(3, momentum=momentum)
    ours = Twice(momentum).compile([nn.placeholder(["N", 3]), nn.placeholder(["M", 3])])
    for _ in range(2):
        for y, x in zip(ours(a, b), (a, b), strict=True):
            assert abs(y - theirs(torch.from_numpy(x)).detach().numpy()).max() < 1e-5
    for name, t in theirs.state_dict().items():
        assert abs(ours.norm.state_dict()[name] - t.numpy()).max() < 1e-6, name
    assert ours.norm.num_batches_tracked.numpy() == 4


def test_a_batch_of_one_row_leaves_the_statistics_finite():
    """torch refuses it; the number of rows is known to us only when the graph runs."""
    model = nn.BatchNorm1d(2).compile(nn.placeholder(["N", 2]))
    model(np.float32([[1, 2]]))
    assert np.isfinite(model.running_var.numpy()).all()


def build(library):
    return library.Sequential(
        library.Conv2d(1, 4, 3, padding=1), library.BatchNorm2d(4), library.ReLU(), library.MaxPool2d(2),
        library.Conv2d(4, 4, 3), library.BatchNorm2d(4), library.Flatten(), library.LayerNorm(16),
        library.Linear(16, 3))


def test_steps_of_a_network_are_those_of_torch():
    torch.manual_seed(0)
    theirs, ours = build(torch.nn), build(nn)
    ours.set_optimizer(0.1)
    ours.compile(nn.placeholder(["N", 1, 8, 8]))
    ours.load_state_dict(theirs.state_dict())
    for module in (ours, theirs):
        module.train()
        module[5].eval()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(3):
        x, y = draw(5, 1, 8, 8), RNG.integers(0, 3, 5)
        _, loss = ours.train_one_batch(x, y)
        expected = torch.nn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(y))
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=1e-5)
    for name, t in theirs.state_dict().items():
        assert abs(ours.state_dict()[name] - t.numpy()).max() <= 1e-5 * max(1, t.abs().max()), name


def test_exported_networks_have_a_node_for_each_layer():
    model = build(nn).compile(nn.placeholder(["N", 1, 8, 8]))
    assert [node.op_type for node in model.to_onnx().graph.node] == [
        "Conv", "BatchNormalization", "Relu", "MaxPool", "Conv", "BatchNormalization", "Flatten", "LayerNormalization",
        "Gemm"]


@pytest.mark.parametrize(("layer", "axes", "nodes"), [
    (nn.Linear(4, 2), ["N", "T", 4], ["Transpose", "MatMul", "Add"]),
    (nn.Linear(4, 2, bias=False), ["N", 4], ["Gemm"]),
    (nn.Conv2d(1, 2, 3, padding="same", bias=False), ["N", 1, 8, 8], ["Conv"]),
    (nn.ConvTranspose2d(1, 2, 3), ["N", 1, 8, 8], ["ConvTranspose"]),
    (nn.MaxPool2d(3, 2, 1, ceil_mode=True), ["N", 1, 8, 8], ["MaxPool"]),
    (nn.AvgPool2d(3, 2, 1), ["N", 1, "H", "W"], ["AveragePool"]),
    (nn.AdaptiveAvgPool2d(1), ["N", 1, "H", "W"], ["GlobalAveragePool"]),
    (nn.GroupNorm(2, 4), ["N", 4, 8], ["GroupNormalization"]),
    (nn.InstanceNorm1d(4), ["N", 4, 8], ["InstanceNormalization"]),
    (nn.RMSNorm(4), ["N", 4], ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul"]),
    (nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Identity(), nn.GELU()), ["N", 2, 3], ["Flatten", "Gelu"]),
], ids=repr)
def test_exported_layers(layer, axes, nodes):
    model = layer.compile(nn.placeholder(axes)).to_onnx()
    assert [node.op_type for node in model.graph.node] == nodes
    assert max(o.version for o in model.opset_import) == 21  # which onnxruntime 1.19 reads
