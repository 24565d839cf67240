"""A wrong input or setting of a layer is an error in a sentence that names the layer."""

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.exceptions import GraphError, SettingError

MISFITS = [
    (nn.Linear(4, 2), ["N", 3], "x has 3 features, float32[Nx3], where 4 were expected."),
    (nn.Linear(4, 2), [], "x is float32[], which has no axis -1."),
    (nn.Linear(None, 2), ["N", "T"], "the weights follow from the size of axis -1 of x, float32[NxT], which is not "
                                     "known; give the layer the size."),
    (nn.Linear(4, 2, dtype="float16"), ["N", 4], "x is float32[Nx4], and the weights are float16; cast x, such as by "
                                                 "x.astype('float16'), or give the layer its dtype."),
    (nn.Conv1d(3, 2, 3), ["N", 2, 8], "x has 2 channels, float32[Nx2x8], where 3 were expected."),
    (nn.Conv2d(3, 2, 3), ["N", 3, 8], "x is float32[Nx3x8], where (N, C, H, W) was expected."),
    (nn.Conv2d(3, 2, 3, padding=1, dilation=3), ["N", 3, 4, "W"],
     "x is float32[Nx3x4xW], and a window spans 7 x 7 elements."),
    (nn.Conv2d(3, 2, 3, padding=4, padding_mode="reflect"), ["N", 3, 4, 8],
     "x is float32[Nx3x4x8], and reflect padding takes 5 x 5 elements."),
    (nn.Conv3d(None, 2, 3), ["N", "C", 8, 8, 8], "the weights follow from the size of axis 1 of x"),
    (nn.ConvTranspose2d(3, 2, 3), ["N", 1, 8, 8], "x has 1 channels, float32[Nx1x8x8], where 3 were expected."),
    (nn.MaxPool2d(2), ["N", 8], "x is float32[Nx8], where (N, C, H, W) was expected."),
    (nn.MaxPool1d(2, padding=1, ceil_mode=True), ["N", 1, "L"], "with ceil_mode, stride=(2,) and padding=(1,) need "
     "spatial sizes that are known, and x is float32[Nx1xL]."),
    (nn.AvgPool1d(5), ["N", 1, 4], "x is float32[Nx1x4], and a window spans 5 elements."),
    (nn.AdaptiveAvgPool2d(1), ["N", 8], "x is float32[Nx8], where (N, C, H, W) was expected."),
    (nn.BatchNorm1d(3), ["N", 4], "x has 4 channels, float32[Nx4], where 3 were expected."),
    (nn.BatchNorm1d(3), ["N", 3, 2, 2], "x is float32[Nx3x2x2], where (N, C) or (N, C, L) was expected."),
    (nn.BatchNorm2d(None), ["N", "C", 2, 2], "the weights follow from the size of axis 1 of x"),
    (nn.InstanceNorm2d(3), ["N", 4, 2, 2], "x has 4 channels, float32[Nx4x2x2], where 3 were expected."),
    (nn.GroupNorm(2, 4), ["N", 6, 3], "x has 6 channels, float32[Nx6x3], where 4 were expected."),
    (nn.GroupNorm(2, 4), [4], "x is float32[4], which has no axis 1."),
    (nn.LayerNorm(4), ["N", 3], "x has 3 features, float32[Nx3], where 4 were expected."),
    (nn.LayerNorm((3, 4)), ["N", 2, 4], "x has 2 elements along axis -2, float32[Nx2x4], where 3 were expected."),
    (nn.RMSNorm((3, 4)), [4], "x is float32[4], which has no axis -2."),
    (nn.Embedding(4, 3), ["N"], "x is float32[N], and indices, int64 or int32, were expected."),
    (nn.Dropout2d(), ["N", 3], "x is float32[Nx3], where (N, C, H, W) was expected."),
    (nn.Flatten(), ["N"], "x is float32[N], which has no axes from 1 to -1."),
    (nn.Unflatten(1, (2, -1)), ["N", 5], "axis 1 of x, float32[Nx5], cannot become (2, -1)."),
    (nn.PReLU(3), ["N", 4], "x has 4 channels, float32[Nx4], where 3 were expected."),
    (nn.GLU(), ["N", 3], "axis -1 of x, float32[Nx3], has 3 elements, which cannot be halved."),
    (nn.Softmax2d(), ["N", 3], "x is float32[Nx3], where (N, C, H, W) was expected."),
]

SETTINGS = [
    (lambda: nn.Conv2d(3, 4, 0), "Conv2d: kernel_size is 0; a whole number or 2 of them, at least 1, was expected."),
    (lambda: nn.Conv1d(3, 4, (3, 3)), "Conv1d: kernel_size is (3, 3); a whole number, at least 1, was expected."),
    (lambda: nn.Conv2d(3, 4, 3, groups=2), "Conv2d: in_channels is 3, which 2 groups do not divide."),
    (lambda: nn.Conv2d(4, 3, 3, groups=2), "Conv2d: out_channels is 3, which 2 groups do not divide."),
    (lambda: nn.Conv2d(3, 4, 3, stride=2, padding="same"), "padding='same' keeps the size"),
    (lambda: nn.Conv2d(3, 4, 3, padding="full"), "Conv2d: padding is 'full'; a whole number or 2 of them"),
    (lambda: nn.Conv2d(3, 4, 3, padding_mode="wrap"), "'replicate' or 'circular', not 'wrap'."),
    (lambda: nn.ConvTranspose2d(3, 4, 3, padding_mode="reflect"), "a transposed convolution has only 'zeros'."),
    (lambda: nn.ConvTranspose2d(3, 4, 3, output_padding=1), "output_padding is 1; less than the stride, 1, was"),
    (lambda: nn.ConvTranspose2d(3, 4, 3, 2, output_padding=(1, 2), dilation=3), "output_padding is (1, 2); less than"),
    (lambda: nn.MaxPool2d(2, padding=2), "MaxPool2d: padding is 2, and at most half of a window was expected."),
    (lambda: nn.AvgPool2d(2, divisor_override=0), "divisor_override is 0, and another number was expected."),
    (lambda: nn.AdaptiveAvgPool2d((2, 3, 4)), "output_size is [2, 3, 4]; a whole number or 2 of them, at least 1"),
    (lambda: nn.GroupNorm(2, 3), "GroupNorm: num_channels is 3, which 2 groups do not divide."),
    (lambda: nn.Embedding(4, 3, padding_idx=4), "Embedding: padding_idx is 4, one of 4 indices was expected."),
    (lambda: nn.Embedding(4, 3, max_norm=1.0), "max_norm rewrites the weight in forward"),
    (lambda: nn.Embedding(4, 3, scale_grad_by_freq=True), "scale_grad_by_freq=True is not supported"),
    (lambda: nn.Dropout(1.5), "Dropout: p is 1.5, a finite number at least 0 and at most 1 was expected."),
    (lambda: nn.GELU("fast"), "GELU: approximate is 'none' or 'tanh', not 'fast'."),
    (lambda: nn.Softmax(), "Softmax: dim, the axis whose elements sum to 1, has no default; -1 is the last one."),
]


class Block(nn.Module):
    def __init__(self, layer):
        self.linear1 = layer

    def forward(self, x):
        return self.linear1(x)


class Model(nn.Module):
    def __init__(self, layer):
        self.encoder = nn.ModuleList([Block(layer)])

    def forward(self, x):
        return self.encoder[0](x)


@pytest.mark.parametrize(("layer", "shape", "sentence"), MISFITS)
def test_what_does_not_fit_names_the_layer(layer, shape, sentence):
    with pytest.raises(GraphError) as error:
        Model(layer).compile(nn.placeholder(shape))
    assert str(error.value).startswith(f"encoder.0.linear1 ({type(layer).__name__}): {sentence}")


@pytest.mark.parametrize(("make", "sentence"), SETTINGS)
def test_settings_that_make_no_sense(make, sentence):
    with pytest.raises(SettingError) as error:
        make()
    assert sentence in str(error.value)


def test_a_layer_is_given_several_values():
    model = nn.Sequential(nn.MaxPool1d(2, return_indices=True), nn.Linear(2, 2))
    with pytest.raises(GraphError, match=r"^1 \(Linear\): x is a tuple, where a single value was expected\.$"):
        model.compile(nn.placeholder(["N", 1, 4]))


@pytest.mark.parametrize(("layer", "shape", "weight"), [
    (nn.Linear(None, 2), (1, 3), (2, 3)),
    (nn.Conv1d(None, 4, 3, groups=2), (1, 6, 5), (4, 3, 3)),
    (nn.ConvTranspose2d(None, 4, 3), (1, 6, 2, 2), (6, 4, 3, 3)),
    (nn.BatchNorm2d(None), (1, 6, 2, 2), (6,)),
])
def test_sizes_are_read_from_the_first_input(layer, shape, weight):
    layer.compile(nn.placeholder(["N", *shape[1:]]))
    assert layer.weight.shape == weight
    assert np.isfinite(layer(np.ones(shape, np.float32))).all()


def test_a_batch_may_be_empty():
    model = nn.Unflatten(1, (2, -1)).compile(nn.placeholder(["N", 6, "L"]))
    assert model(np.zeros((0, 6, 3), np.float32)).shape == (0, 2, 3, 3)
