"""Attention and the layers of a transformer: outputs, gradients and steps as torch's, with every kind of mask."""

import inspect

import numpy as np
import pytest
import torch
from torch_layers import compare

from ortpartial import OrtGradientForwardBackwardOptimizer, nn, op
from ortpartial.exceptions import GraphError, SettingError

RNG = np.random.default_rng(0)
L, S, N, FEATURES, HEADS = 4, 5, 3, 8, 2
HIDDEN = np.triu(np.ones((L, L), bool), 1)
PADDING = np.zeros((N, L), bool)
PADDING[1, 2:] = True


@pytest.fixture(autouse=True)
def same_numbers():
    """A test draws the same numbers whichever test has run before it."""
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state
    torch.manual_seed(0)


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def like(array, x):
    """A mask for ours, or for torch's."""
    return torch.from_numpy(array) if isinstance(x, torch.Tensor) else array


def attend(**masks):
    return lambda layer, x, *padding: layer(
        x, x, x, **{n: like(m, x) if isinstance(m, np.ndarray) else m for n, m in masks.items()},
        **({"key_padding_mask": padding[0]} if padding else {}))


def encode(name, mask=None):
    return lambda layer, x, *padding: layer(
        x, **({} if mask is None else {name: like(mask, x)}),
        **({"src_key_padding_mask": padding[0]} if padding else {}))


# Settings, how the layer is called, whether positions are padding, and the algorithm of the three steps.
SELF_ATTENTION = {
    "weights": ({}, attend(), False, "SGD"),
    "no weights, bool mask, padding": (
        {"batch_first": True}, attend(attn_mask=HIDDEN, need_weights=False), True, "SGD"),
    "weights of heads, mask of heads": (
        {"bias": False}, attend(attn_mask=draw(N * HEADS, L, L), average_attn_weights=False), False, "adam"),
}

ENCODER_LAYERS = {
    "padding": ({}, encode("src_mask"), True, "SGD"),
    "batch first, mask, padding": ({"batch_first": True}, encode("src_mask", HIDDEN), True, "SGD"),
    "gelu, norm first": ({"activation": "gelu", "norm_first": True}, encode("src_mask", draw(L, L)), False, "SGD"),
    "without bias": ({"bias": False, "layer_norm_eps": 1e-3}, encode("src_mask"), False, "adam"),
}


@pytest.mark.parametrize(("settings", "call", "has_padding", "rate"), SELF_ATTENTION.values(), ids=SELF_ATTENTION)
def test_self_attention_is_that_of_torch(settings, call, has_padding, rate):
    theirs = torch.nn.MultiheadAttention(FEATURES, HEADS, **settings)
    ours = nn.MultiheadAttention(FEATURES, HEADS, **settings)
    x = draw(N, L, FEATURES) if settings.get("batch_first") else draw(L, N, FEATURES)
    compare(ours, theirs, [x, PADDING][: 1 + has_padding], call=call, rate=rate)


@pytest.mark.parametrize("settings", [{"batch_first": True}, {"kdim": 3, "vdim": 6}], ids=["same sizes", "other sizes"])
def test_attention_to_another_sequence_is_that_of_torch(settings):
    theirs = torch.nn.MultiheadAttention(FEATURES, HEADS, **settings)
    ours = nn.MultiheadAttention(FEATURES, HEADS, **settings)
    batch_first = settings.get("batch_first")
    key, value = (draw(N, S, n) if batch_first else draw(S, N, n) for n in (theirs.kdim, theirs.vdim))
    query = draw(N, L, FEATURES) if batch_first else draw(L, N, FEATURES)
    time, batch = (1, 0) if batch_first else (0, 1)
    sizes = {batch: "N", time: "S"}
    shapes = [[{**sizes, time: length}[0], {**sizes, time: length}[1], n]
              for length, n in (("L", FEATURES), ("S", theirs.kdim), ("S", theirs.vdim))]
    compare(ours, theirs, [query, key, value], shapes)


def test_sequences_without_a_batch():
    theirs = torch.nn.MultiheadAttention(FEATURES, HEADS)
    hidden = np.stack([HIDDEN, np.zeros_like(HIDDEN)])
    compare(nn.MultiheadAttention(FEATURES, HEADS), theirs, [draw(L, FEATURES), PADDING[1]], [["T", FEATURES], ["T"]],
            call=attend(attn_mask=hidden))


@pytest.mark.parametrize(("settings", "call", "has_padding", "rate"), ENCODER_LAYERS.values(), ids=ENCODER_LAYERS)
def test_encoder_layers_are_those_of_torch(settings, call, has_padding, rate):
    sizes = FEATURES, HEADS, 12, 0.0
    theirs, ours = torch.nn.TransformerEncoderLayer(*sizes, **settings), nn.TransformerEncoderLayer(*sizes, **settings)
    x = draw(N, L, FEATURES) if settings.get("batch_first") else draw(L, N, FEATURES)
    compare(ours, theirs, [x, PADDING][: 1 + has_padding], call=call, rate=rate)


def test_encoders_are_those_of_torch():
    """Two layers, of a causal mask that ours writes by itself for sequences of any length."""
    def call(encoder, x):
        hidden = torch.from_numpy(HIDDEN) if isinstance(x, torch.Tensor) else None
        return encoder(x, mask=hidden, is_causal=True)

    sizes = FEATURES, HEADS, 12, 0.0
    theirs = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(*sizes), 2, torch.nn.LayerNorm(FEATURES), enable_nested_tensor=False)
    ours = nn.TransformerEncoder(nn.TransformerEncoderLayer(*sizes), 2, nn.LayerNorm(FEATURES))
    compare(ours, theirs, [draw(L, N, FEATURES)], call=call)


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoders_are_those_of_torch(norm_first):
    """Two layers, with a causal mask of the sequences and padding of the memory."""
    def call(decoder, x, memory, padding):
        hidden = torch.from_numpy(HIDDEN) if isinstance(x, torch.Tensor) else None
        return decoder(x, memory, tgt_mask=hidden, memory_key_padding_mask=padding, tgt_is_causal=True)

    sizes = {"d_model": FEATURES, "nhead": HEADS, "dim_feedforward": 12, "dropout": 0.0, "norm_first": norm_first}
    theirs = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(**sizes), 2, torch.nn.LayerNorm(FEATURES))
    ours = nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), 2, nn.LayerNorm(FEATURES))
    padding = np.zeros((N, S), bool)
    padding[1, 2:] = True
    compare(ours, theirs, [draw(L, N, FEATURES), draw(S, N, FEATURES), padding],
            [["T", "N", FEATURES], ["S", "N", FEATURES], ["N", "S"]], call=call)


def test_numbers_added_to_products_may_be_padding():
    """A mask of real numbers, as an input, that is differentiated as well."""
    mask = draw(N, L)
    theirs = torch.nn.MultiheadAttention(FEATURES, HEADS, batch_first=True)
    compare(nn.MultiheadAttention(FEATURES, HEADS, batch_first=True), theirs, [draw(N, L, FEATURES), mask],
            [["N", "T", FEATURES], ["N", "T"]], call=attend())


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_where_no_position_is_seen_numbers_are_finite(dtype):
    class Masked(nn.Module):
        def __init__(self):
            self.attention = nn.MultiheadAttention(FEATURES, HEADS, batch_first=True, dtype=dtype)

        def forward(self, x, padding):
            return self.attention(x, x, x, key_padding_mask=padding, is_causal=True)

    model = Masked().compile([nn.placeholder(["N", "T", FEATURES], dtype), nn.placeholder(["N", "T"], "bool")])
    output, weights = model.eval()(draw(N, L, FEATURES).astype(dtype), np.ones((N, L), bool))
    assert output.dtype == dtype
    assert np.isfinite(output).all()
    assert abs(weights.sum(-1) - 1).max() < 1e-3


def test_dropout_is_that_of_training():
    """Of the weights of attention, which a mean of equal values shows, and of the feed-forward part."""
    class Mean(nn.Module):
        def __init__(self):
            self.attention = nn.MultiheadAttention(FEATURES, HEADS, dropout=0.5, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[1]

    model, x = Mean().compile(nn.placeholder(["N", "T", FEATURES]), random_state=0), draw(2, 32, FEATURES)
    sums = model(x).sum(-1)
    assert sums.std() > 0.05
    assert abs(sums.mean() - 1) < 0.1
    assert abs(model.eval()(x).sum(-1) - 1).max() < 1e-5

    layer = nn.TransformerEncoderLayer(FEATURES, HEADS, 16).compile(nn.placeholder(["T", "N", FEATURES]))
    assert [m.p for _, m in layer.named_modules() if isinstance(m, type(layer.dropout))] == [0.1] * 4
    assert abs(layer(x) - layer(x)).max() > 0.1
    assert (layer.eval()(x) == layer(x)).all()


def test_first_weights_are_drawn_as_by_torch():
    layer = nn.TransformerEncoderLayer(64, 4, 32)
    model = nn.TransformerEncoder(layer, 2).compile(nn.placeholder(["T", "N", 64]), random_state=0)
    bounds = {"self_attn.in_proj_weight": (6 / 256) ** 0.5, "self_attn.in_proj_bias": 0, "self_attn.out_proj.bias": 0,
              "self_attn.out_proj.weight": 1 / 8, "linear1.weight": 1 / 8, "linear1.bias": 1 / 8,
              "linear2.weight": 32**-0.5, "linear2.bias": 32**-0.5}
    state = model.state_dict()
    for name, bound in bounds.items():
        w = state[f"layers.1.{name}"]
        assert 0.9 * bound <= abs(w).max() <= bound, name
    assert not (state["layers.0.linear1.weight"] == state["layers.1.linear1.weight"]).any()


@pytest.mark.parametrize("name", ["MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder",
                                  "TransformerDecoderLayer", "TransformerDecoder"])
def test_settings_and_defaults_are_those_of_torch(name):
    ours, theirs = (inspect.signature(getattr(room, name)).parameters for room in (nn, torch.nn))
    shared = [n for n in theirs if n not in ("device", "dtype")]
    assert [n for n in ours if n != "dtype"] == shared
    for setting in shared:
        default = theirs[setting].default
        assert ours[setting].default == ("relu" if callable(default) and setting == "activation" else default), setting


@pytest.mark.parametrize("name", ["MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder",
                                  "TransformerDecoderLayer", "TransformerDecoder"])
def test_inputs_are_those_of_torch(name):
    ours, theirs = (inspect.signature(getattr(room, name).forward).parameters for room in (nn, torch.nn))
    assert list(ours) == list(theirs)


def test_the_activation_may_be_a_module():
    class Scaled(nn.Module):
        def __init__(self):
            self.scale = nn.Parameter([1], 1.0)

        def forward(self, x):
            return op.Tanh(x) * self.scale

    layer = nn.TransformerEncoderLayer(FEATURES, HEADS, 12, activation=Scaled())
    assert "activation.scale" in dict(layer.named_parameters())
    assert layer.compile(nn.placeholder(["T", "N", FEATURES]))(draw(L, N, FEATURES)).shape == (L, N, FEATURES)


def test_an_exported_encoder_is_trained_by_names_of_torch():
    layer = nn.TransformerEncoderLayer(FEATURES, HEADS, 12, 0.0, batch_first=True)
    model = layer.compile(nn.placeholder(["N", "T", FEATURES]), random_state=0).eval()
    x = draw(8, L, FEATURES)
    optimizer = OrtGradientForwardBackwardOptimizer(model.to_onnx(), learning_rate=0.1, max_iter=40, random_state=0)
    optimizer.fit(x, x)
    assert optimizer.train_losses_[-1] < 0.8 * optimizer.train_losses_[0]
    assert sorted(optimizer.weights_to_train) == sorted(model.state_dict())


def test_what_does_not_fit_is_named():
    class Net(nn.Module):
        def __init__(self, **masks):
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(FEATURES, HEADS, 12), 2)
            self.masks = masks

        def forward(self, x):
            return self.encoder(x, **self.masks)

    class Pair(nn.Module):
        def __init__(self):
            self.attention = nn.MultiheadAttention(FEATURES, HEADS)

        def forward(self, x, y):
            return self.attention(x, y, y)

    x = nn.placeholder(["T", "N", FEATURES])
    with pytest.raises(GraphError, match=r"^encoder\.layers\.0\.self_attn \(MultiheadAttention\): query has 7 "
                                         r"features, float32\[TxNx7\], where 8 were expected"):
        Net().compile(nn.placeholder(["T", "N", 7]))
    with pytest.raises(GraphError, match=r"query is float32\[8\], where \(T, N, features\) was expected"):
        Net().compile(nn.placeholder([8]))
    with pytest.raises(GraphError, match=r"self_attn .*: attn_mask is .*bool or float \(L, S\) or"):
        Net(mask=np.zeros((4, 4), np.int64)).compile(x)
    with pytest.raises(GraphError, match=r"self_attn .*: key_padding_mask is .*bool or float \(N, S\) was expected"):
        Net(src_key_padding_mask=np.zeros(4, bool)).compile(x)
    with pytest.raises(GraphError, match=r"x is float16.*, and the weights are float32"):
        Net().compile(nn.placeholder(["T", "N", FEATURES], "float16"))
    with pytest.raises(GraphError, match=r"key is float32\[Sx8\], and query float32\[TxNx8\]; give both a batch"):
        Pair().compile([x, nn.placeholder(["S", FEATURES])])
    with pytest.raises(SettingError, match="8 features cannot be divided among 3 heads"):
        nn.MultiheadAttention(8, 3)
    with pytest.raises(SettingError, match=r"num_heads is a whole number, not 2\.0"):
        nn.MultiheadAttention(8, 2.0)
    with pytest.raises(SettingError, match="add_bias_kv and add_zero_attn are not supported"):
        nn.MultiheadAttention(8, 2, add_zero_attn=True)
    with pytest.raises(SettingError, match="activation is 'elu', 'relu', 'gelu' or a function was expected"):
        nn.TransformerEncoderLayer(8, 2, activation="elu")
    with pytest.raises(SettingError, match="num_layers is 0; a whole number, at least 1, was expected"):
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 0)
