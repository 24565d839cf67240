"""Summaries: a row for each call of a layer, with parameters and operations counted by hand."""

import numpy as np
import pytest

from ortpartial import nn, op
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.nn.summary import Row


class Block(nn.Module):
    def __init__(self, n):
        self.linear1, self.linear2 = nn.Linear(n, 2 * n), nn.Linear(2 * n, n)

    def forward(self, x):
        return x + self.linear2(op.Relu(self.linear1(x)))


class Net(nn.Module):
    def __init__(self):
        self.embed = nn.Linear(10, 4)
        self.layers = [Block(4), Block(4)]
        self.count = nn.Buffer([3])
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        h = self.embed(x)
        for layer in (*self.layers, self.layers[0]):
            h = layer(h)
        return {"y": op.Softmax(h), "h": h.reshape(-1)}


def block(path, is_repeated, rows):
    """The rows of a Block for so many rows of data."""
    return [
        Row(path, "Block", 1, (("N", "T", 4),), 76, rows * (64 + 8 + 8 + 64 + 4 + 4), is_repeated),
        Row(f"{path}.linear1", "Linear", 2, (("N", "T", 8),), 40, rows * (64 + 8), is_repeated),
        Row(f"{path}.linear2", "Linear", 2, (("N", "T", 4),), 36, rows * (64 + 4), is_repeated),
    ]


def test_rows_are_the_calls_of_layers():
    summary = Net().compile(nn.placeholder(["N", "T", 10])).summary(sizes={"T": 10})
    assert summary.rows == (
        Row("", "Net", 0, (("N", "T", 4), (None,)), 44 + 2 * 76 + 6, 10 * (84 + 3 * 152 + 5 * 4), False),
        Row("embed", "Linear", 1, (("N", "T", 4),), 44, 840, False),
        *block("layers.0", False, 10), *block("layers.1", False, 10), *block("layers.0", True, 10),
        Row("unused", "Linear", 1, (), 6, 0, False),
    )
    assert (summary.parameters, summary.buffers, summary.n_bytes) == (202, 3, 4 * 205)
    assert summary.flops == summary.rows[0].flops
    assert summary.sizes == {"N": 1, "T": 10}


def test_the_table(capsys):
    model = Net().compile(nn.placeholder(["N", "T", 10]))
    print(model.summary(sizes={"N": 2, "T": 500}))
    assert capsys.readouterr().out == """\
layer                 output shape    parameters  FLOPs
-------------------------------------------------------
Net                   [N, T, 4], [?]         202  560 k
  embed (Linear)      [N, T, 4]               44   84 k
  layers.0 (Block)    [N, T, 4]               76  152 k
    linear1 (Linear)  [N, T, 8]               40   72 k
    linear2 (Linear)  [N, T, 4]               36   68 k
  layers.1 (Block)    [N, T, 4]               76  152 k
    linear1 (Linear)  [N, T, 8]               40   72 k
    linear2 (Linear)  [N, T, 4]               36   68 k
  layers.0 (Block)    [N, T, 4]            again  152 k
    linear1 (Linear)  [N, T, 8]            again   72 k
    linear2 (Linear)  [N, T, 4]            again   68 k
  unused (Linear)     not called               6      0
-------------------------------------------------------
parameters: 202, and 3 numbers in buffers; 820 B
forward pass: 560 kFLOPs with N = 2, T = 500
"""
    assert [row.depth for row in model.summary(depth=1).rows] == [0, 1, 1, 1, 1, 1]
    assert repr(model.summary()) == str(model.summary())


def test_a_table_fits_80_columns():
    class LayerOfAVeryLongName(nn.Module):
        def __init__(self, depth):
            self.layer_inside_of_a_layer = LayerOfAVeryLongName(depth - 1) if depth else nn.Linear(3, 3)

        def forward(self, x):
            y = self.layer_inside_of_a_layer(x)
            return y if isinstance(y, list) else [y] * 9

    model = LayerOfAVeryLongName(12).compile(nn.placeholder(["N", 3]))
    lines = str(model.summary()).splitlines()
    assert {len(line) for line in lines[1:-2]} == {80}
    assert all("…" in line for line in lines[3:-4])


def test_names_come_before_further_outputs_and_after_first_ones():
    class Words(nn.Module):
        def __init__(self):
            self.recurrent_layer_of_words = nn.LSTM(16, 32, bidirectional=True, dropout=0.5, num_layers=2)
            self.norm = nn.LayerNorm(64)

        def forward(self, x):
            return self.norm(self.recurrent_layer_of_words(x)[0])

    lines = str(Words().compile(nn.placeholder(["T", "N", 16])).summary()).splitlines()
    assert lines[3] == "  recurrent_layer_of_words (LSTM)  [T, N, 64], [4, N, 32], …      37,888  75.9 k"
    assert [line.split()[0] for line in lines[2:-3]] == ["Words", "recurrent_layer_of_words", "norm"]


def test_layers_take_as_many_products_as_in_torch():
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    def layers(nn):
        return nn.Sequential(nn.Conv2d(1, 6, 5, padding=2, bias=False), nn.MaxPool2d(2),
                             nn.Conv2d(6, 16, 5, groups=2, bias=False), nn.ConvTranspose2d(16, 2, 3, bias=False),
                             nn.Flatten(), nn.Linear(288, 10, bias=False))

    with FlopCounterMode(display=False) as counter:
        layers(torch.nn)(torch.zeros(3, 1, 28, 28))
    summary = layers(nn).compile(nn.placeholder(["N", 1, 28, 28])).summary(sizes={"N": 3})
    ours = {row.path: row.flops for row in summary.rows if row.kind in ("Conv2d", "ConvTranspose2d", "Linear")}
    assert len(ours) == 4
    assert sum(ours.values()) == counter.get_total_flops()


def test_operations_are_counted_in_evaluation_with_the_sizes_of_the_placeholders():
    linear = nn.Linear(10, 3)
    assert linear.compile(nn.placeholder(["N", 10])).summary().flops == 63
    assert linear.compile(nn.placeholder([4, 10])).summary().flops == 4 * 63
    assert linear.compile(np.zeros((5, 10), np.float32)).summary().flops == 63  # of any number of rows
    assert str(linear.compile(nn.placeholder([None, 10])).summary()).endswith("forward pass: 63 FLOPs with ? = 1")
    assert str(linear.compile(nn.placeholder([4, 10])).summary()).endswith("forward pass: 252 FLOPs")
    half = nn.Linear(10, 3, dtype="float16").compile(nn.placeholder([4, 10], "float16")).summary()
    assert half.n_bytes == 66


def test_a_model_that_takes_no_single_row():
    class Window(nn.Module):
        def forward(self, x):
            return op.Conv(x, np.ones((1, 1, 3), np.float32))

    summary = Window().compile(nn.placeholder(["N", 1, "T"])).summary()
    assert summary.rows[0].shapes == (("N", 1, None),)
    assert Window().compile(nn.placeholder(["N", 1, "T"])).summary(sizes={"T": 7}).flops == 2 * 5 * 3


def test_what_has_no_summary():
    with pytest.raises(ModelError, match=r"^Net is not compiled; call compile"):
        Net().summary()
    model = Net().compile(nn.placeholder(["N", "T", 10]))
    with pytest.raises(SettingError, match=r"^No placeholder has a size 'M'; the names in them are N, T\.$"):
        model.summary(sizes={"M": 3})
    with pytest.raises(SettingError, match=r"^summary: depth is -1, a whole number of at least 0 was expected\.$"):
        model.summary(depth=-1)
    with pytest.raises(SettingError, match=r"^No placeholder has a size 'N'; they name none\.$"):
        nn.Linear(3, 3).compile(nn.placeholder([2, 3])).summary(sizes={"N": 3})
