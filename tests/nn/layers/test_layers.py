"""Layers are torch's: weights by name, outputs, gradients and running statistics are equal, and so are the settings."""

import inspect

import numpy as np
import pytest
import torch
from layer_cases import assert_close, assert_like_torch, gradients, layer, torch_gradients

from ortpartial import nn
from ortpartial.exceptions import GraphError

LAYERS = [
    layer("Linear", (3, 4), 4, 5),
    layer("Linear", (3, 4), 4, 5, bias=False),
    layer("Linear", (3, 2, 4), 4, 5),
    layer("Conv1d", (2, 4, 9), 4, 6, 3, stride=2, padding=1, groups=2),
    layer("Conv1d", (2, 3, 9), 3, 2, 4, padding="same", dilation=2),
    layer("Conv1d", (2, 3, 6), 3, 2, 3, padding=2, padding_mode="circular"),
    layer("Conv2d", (2, 3, 6, 5), 3, 4, 3),
    layer("Conv2d", (2, 3, 6, 5), 3, 4, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1), bias=False),
    layer("Conv2d", (2, 3, 6, 5), 3, 3, 3, padding="valid", groups=3),
    layer("Conv2d", (2, 2, 6, 5), 2, 3, 3, padding=1, padding_mode="reflect"),
    layer("Conv2d", (2, 2, 6, 5), 2, 3, 2, padding="same", padding_mode="replicate"),
    layer("Conv3d", (2, 2, 4, 5, 4), 2, 3, 3, padding=1),
    layer("ConvTranspose1d", (2, 3, 5), 3, 2, 3, stride=2, padding=1, output_padding=1),
    layer("ConvTranspose2d", (2, 4, 3, 4), 4, 6, 3, stride=2, groups=2, dilation=2, output_padding=(1, 0)),
    layer("ConvTranspose2d", (2, 4, 3, 4), 4, 2, 4, 2, 1, bias=False),
    layer("ConvTranspose3d", (2, 2, 3, 2, 3), 2, 3, 2, stride=2),
    layer("MaxPool1d", (2, 3, 9), 3, stride=2, padding=1),
    layer("MaxPool1d", (2, 3, 9), 3, return_indices=True),
    layer("MaxPool2d", (2, 3, 6, 5), 2),
    layer("MaxPool2d", (2, 3, 8, 7), 3, stride=2, padding=1, ceil_mode=True),
    layer("MaxPool2d", (2, 3, 8, 7), (3, 2), stride=(2, 3), dilation=(1, 2), return_indices=True),
    layer("MaxPool3d", (2, 2, 4, 4, 5), 2, ceil_mode=True),
    layer("AvgPool1d", (2, 3, 9), 3, stride=2, padding=1),
    layer("AvgPool2d", (2, 3, 6, 5), 2),
    layer("AvgPool2d", (2, 3, 8, 7), 3, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
    layer("AvgPool3d", (2, 2, 4, 4, 5), 2, stride=1, padding=1, divisor_override=2),
    layer("AdaptiveAvgPool2d", (2, 3, 6, 5), 1),
    layer("BatchNorm1d", (5, 3), 3),
    layer("BatchNorm1d", (3, 4, 5), 4, momentum=None),
    layer("BatchNorm2d", (3, 4, 5, 2), 4),
    layer("BatchNorm2d", (3, 4, 5, 2), 4, eps=0.1, momentum=0.3, affine=False),
    layer("BatchNorm2d", (3, 4, 5, 2), 4, track_running_stats=False),
    layer("BatchNorm3d", (2, 3, 2, 3, 2), 3, bias=False),
    layer("InstanceNorm1d", (2, 3, 7), 3),
    layer("InstanceNorm2d", (2, 3, 4, 5), 3, affine=True),
    layer("InstanceNorm2d", (2, 3, 4, 5), 3, affine=True, track_running_stats=True),
    layer("InstanceNorm3d", (2, 3, 2, 3, 2), 3, track_running_stats=True, momentum=0.2),
    layer("GroupNorm", (2, 6, 4, 3), 3, 6),
    layer("GroupNorm", (2, 6), 2, 6),
    layer("GroupNorm", (2, 6, 4), 1, 6, affine=False, eps=0.1),
    layer("LayerNorm", (2, 3, 4), 4),
    layer("LayerNorm", (2, 3, 4), (3, 4), bias=False),
    layer("LayerNorm", (2, 3, 4), 4, elementwise_affine=False, eps=0.1),
    layer("RMSNorm", (2, 3, 4), 4),
    layer("RMSNorm", (2, 3, 4), (3, 4), eps=0.1),
    layer("RMSNorm", (2, 3, 4), 4, elementwise_affine=False),
    layer("Embedding", (3, 4), 5, 2, indices=5),
    layer("Embedding", (3, 4), 5, 2, padding_idx=-3, indices=5),
    layer("Flatten", (2, 3, 4, 5)),
    layer("Flatten", (2, 3, 4, 5), 0, 1),
    layer("Flatten", (2, 3, 4, 5), 1, -2),
    layer("Unflatten", (2, 6, 5), 1, (2, -1)),
    layer("Unflatten", (2, 6), -1, (2, 3)),
    layer("Identity", (2, 3), 4, some="thing"),
    layer("GLU", (3, 4)),
    layer("CELU", (3, 4), 0.5, inplace=False),
    layer("ELU", (3, 4), 0.5),
    layer("ELU", (3, 4), 2),
    layer("CELU", (3, 4), 2),
    layer("LeakyReLU", (3, 4), 1),
    layer("Softshrink", (3, 4), 1),
    layer("Hardshrink", (3, 4), 1),
    layer("GELU", (3, 4), approximate="tanh"),
    layer("GLU", (3, 4, 2), 1),
    layer("Hardtanh", (3, 4), -0.5, 2.0),
    layer("LeakyReLU", (3, 4), 0.2),
    layer("PReLU", (3, 4, 2), 4),
    layer("Softplus", (3, 4), 2.0, 0.5),
    layer("Threshold", (3, 4), 0.1, 20.0),
    layer("Softmax", (3, 4), -1),
    layer("Softmax", (3, 4, 2), dim=1),
    layer("LogSoftmax", (3, 4), 1),
    layer("Softmin", (3, 4), -1),
    layer("Softmax2d", (2, 3, 2, 2)),
    layer("Dropout", (3, 4), 0.0),
    layer("Dropout", (3, 4), 1.0),
]

#: Pools that need spatial sizes.
SIZED = [
    layer("MaxPool2d", (2, 3, 5, 6), 2, padding=1, ceil_mode=True),
    layer("AvgPool2d", (2, 3, 8, 7), 2, stride=3, ceil_mode=True),
    layer("AvgPool2d", (2, 3, 8, 7), 3, stride=2, padding=1, ceil_mode=True),
    layer("AvgPool2d", (2, 3, 8, 7), 3, stride=2, padding=1, ceil_mode=True, divisor_override=4),
    layer("AdaptiveAvgPool1d", (2, 3, 9), 4),
    layer("AdaptiveAvgPool2d", (2, 3, 6, 4), (3, 2)),
    layer("AdaptiveAvgPool2d", (2, 3, 6, 5), (4, 3)),
    layer("AdaptiveAvgPool2d", (2, 3, 3, 5), (7, None)),
    layer("AdaptiveAvgPool2d", (2, 3, 3, 5), (1, 2)),
]

#: How the names of layers begin that write something else where sizes are known.
READ_SIZES = ("MaxPool", "AvgPool", "AdaptiveAvgPool", "Flatten", "Unflatten", "BatchNorm2d", "InstanceNorm2d")

#: Activations of a single element.
ACTIVATIONS = [
    layer(name, (3, 4)) for name in (
        "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "Mish",
        "PReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink")
]

#: Layers whose weights are drawn, with sizes that make the distribution visible.
DRAWN = [
    layer("Linear", (), 50, 200),
    layer("Conv2d", (), 12, 60, 3, groups=2),
    layer("ConvTranspose2d", (), 60, 12, 3, groups=2),
    layer("Embedding", (), 200, 50),
]

#: Arguments of torch that layers lack: where weights are stored is a matter of `compile`.
LEFT_OUT = {"device", "_weight", "_freeze", "min_value", "max_value", "args", "kwargs"}


def axes_with_names(case):
    """The sizes of a case, by name where weights do not fix them."""
    last = {"Linear": 1, "LayerNorm": np.size(case.args[:1]), "RMSNorm": np.size(case.args[:1])}.get(case.name)
    fixed = [1] if last is None else range(len(case.shape) - last, len(case.shape))
    return [n if i in fixed else f"size_{i}" for i, n in enumerate(case.shape)]


@pytest.mark.parametrize("case", LAYERS, ids=repr)
def test_layer_is_that_of_torch(case):
    """Sizes that weights do not fix are not known."""
    assert_like_torch(case, axes_with_names(case))


@pytest.mark.parametrize("case", [*SIZED, *ACTIVATIONS, *[c for c in LAYERS if c.name.startswith(READ_SIZES)]],
                         ids=repr)
def test_layer_is_that_of_torch_for_sizes_that_are_known(case):
    assert_like_torch(case)


@pytest.mark.parametrize("case", ACTIVATIONS, ids=repr)
def test_activations_far_from_zero_and_at_zero(case):
    assert_like_torch(case, batches=[np.float32([[-100, 0, 100]])])


@pytest.mark.parametrize("name", sorted({case.name for case in ACTIVATIONS} - {"Hardshrink", "Softshrink"}))
def test_nan_stays_nan(name):
    """But for ONNX's Shrink, which makes it 0."""
    assert np.isnan(getattr(nn, name)().compile(nn.placeholder(["N"]))(np.float32([np.nan]))).all()


@pytest.mark.parametrize("name", ["CELU", "GELU", "Hardswish", "InstanceNorm1d", "Mish", "PReLU", "RMSNorm", "ReLU6"])
def test_layers_of_operators_without_a_kernel_in_float64(name):
    has_weights = name in ("InstanceNorm1d", "PReLU", "RMSNorm")
    sizes = {"InstanceNorm1d": [3], "RMSNorm": [4]}.get(name, [])
    theirs = getattr(torch.nn, name)(*sizes).double()
    ours = getattr(nn, name)(*sizes, **({"dtype": "float64"} if has_weights else {}))
    ours.compile(nn.placeholder(["N", 3, 4], "float64"))
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    factors, expected = torch_gradients(theirs, x)
    assert_close(ours(x), theirs(torch.from_numpy(x)).detach().numpy(), name, 1e-9)
    for n, d in gradients(ours, x, ["N", 3, 4], factors, training=True).items():
        assert_close(d, expected[n], f"gradient by {n}", 1e-7)  # attributes are float32


@pytest.mark.parametrize("case", SIZED, ids=repr)
def test_some_pools_say_that_they_need_sizes(case):
    sentence = "with ceil_mode, .* known" if "ceil_mode" in case.settings else "the windows follow from axis"
    with pytest.raises(GraphError, match=sentence):
        case.ours().compile(nn.placeholder(axes_with_names(case)))


@pytest.mark.parametrize("case", DRAWN, ids=repr)
def test_first_weights_are_distributed_as_those_of_torch(case):
    torch.manual_seed(0)
    theirs = getattr(torch.nn, case.name)(*case.args, **case.settings).state_dict()
    x = nn.placeholder(["N"], "int64") if case.name == "Embedding" else nn.placeholder(
        ["N", case.args[0], 5, 5][:2 if case.name == "Linear" else 4])
    ours = case.ours().compile(x, random_state=0).state_dict()
    assert ours.keys() == theirs.keys()
    for n, w in ours.items():
        t = theirs[n].numpy()
        assert w.shape == t.shape
        assert w.std() == pytest.approx(t.std(), rel=0.3 if w.size < 100 else 0.03), n
        is_bounded = w.size > 100 and case.name != "Embedding"
        assert abs(w).max() == pytest.approx(abs(t).max(), rel=0.01 if is_bounded else 0.2)


NAMES = {case.name for case in [*LAYERS, *SIZED, *ACTIVATIONS]} | {"Dropout1d", "Dropout2d", "Dropout3d"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_settings_are_those_of_torch(name):
    theirs = inspect.signature(getattr(torch.nn, name)).parameters
    ours = inspect.signature(getattr(nn, name)).parameters if name != "Identity" else {}
    assert list(ours) == sorted([n for n in theirs if n not in LEFT_OUT], key=[*ours, *theirs].index)
    for n, p in ours.items():
        if n == "dtype":
            assert p.default == "float32"
        else:
            assert p.default == theirs[n].default, n
            assert p.kind == theirs[n].kind, n


def test_embedding_has_a_row_of_zeros_that_is_not_trained():
    model = nn.Embedding(4, 3, padding_idx=1).compile(nn.placeholder(["N"], "int64"), random_state=0)
    model.set_optimizer(0.1)
    before = model.weight.numpy()
    assert not before[1].any()
    assert before[[0, 2, 3]].all()
    model.train_one_batch(np.array([0, 1, 1]), np.ones((3, 3), np.float32))
    after = model.weight.numpy()
    assert (after != before).any(axis=1).tolist() == [True, False, False, False]
