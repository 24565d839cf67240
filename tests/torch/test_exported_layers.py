"""Layers that exporters refuse or lose compute the same in another form."""

import copy

import pytest
import torch

from ortpartial.torch.exported_layers import find_other_mode, prepare_layers

X = torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(0))


def prepared(layer, training):
    """A layer and its other form, with the same state."""
    layer.train(training)
    other = copy.deepcopy(layer)
    return layer, other, prepare_layers(other)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_without_statistics(training, affine):
    layer, other, _ = prepared(torch.nn.BatchNorm1d(4, track_running_stats=False, affine=affine), training)
    torch.testing.assert_close(other(X), layer(X))


def test_an_instance_norm_with_statistics():
    layer, other, special = prepared(torch.nn.InstanceNorm1d(4, track_running_stats=True), False)
    torch.testing.assert_close(other(X), layer(X))
    torch.testing.assert_close(other(X[0]), layer(X[0]))
    assert special.per_instance == ("running_mean", "running_var")


def test_a_cumulative_average_is_named():
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4, momentum=None))
    assert prepare_layers(net).cumulative == ("0.running_mean", "0.running_var")


@pytest.mark.parametrize("x", [X, X[0]])
def test_dropout_of_channels(x):
    """All of a channel or none of it, scaled."""
    _, other, _ = prepared(torch.nn.Dropout1d(0.5), True)
    torch.manual_seed(0)
    y = other(x)
    kept = (y != 0).any(-1, keepdim=True)
    torch.testing.assert_close(y, x * 2 * kept)
    other.eval()
    assert torch.equal(other(x), x)


def test_a_layer_with_formulas_of_its_own_is_left():
    class Mine(torch.nn.Dropout1d):
        def forward(self, x):
            return x + 1

    _, other, _ = prepared(Mine(0.5), True)
    assert torch.equal(other(X), X + 1)


def test_another_mode():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    assert find_other_mode(net) is None
    net[1].eval()
    assert find_other_mode(net) == "1"
    net[0].eval()
    assert find_other_mode(net.eval()) is None
