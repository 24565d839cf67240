"""
The networks in torch, and the files that all contestants start from.

    python bench/nets.py FOLDER NAME ...

writes NAME.onnx, NAME.npz, the parameters by their names in torch, and NAME.json, their names in NAME.onnx.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from models import model
from onnx import numpy_helper
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, max_pool2d, mse_loss

COSTS = {"square": mse_loss, "binary": binary_cross_entropy_with_logits, "labels": cross_entropy}


def dense(*widths: int) -> nn.Module:
    """A chain of layers."""
    layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def lenet() -> nn.Module:
    """Two convolutions with pooling, then three layers."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, a: int, b: int, stride: int):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.norm2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        past = nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b)
        self.past = nn.Sequential(*past if stride > 1 else ())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))) + self.past(x))


class ResNet(nn.Module):
    """ResNet-18 with ten outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        stages = [(Block(a, b, 1 + (a < b)), Block(b, b, 1)) for a, b in itertools.pairwise((64, 64, 128, 256, 512))]
        self.blocks, self.head = nn.Sequential(*itertools.chain(*stages)), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = max_pool2d(torch.relu(self.norm(self.conv(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class Encoder(nn.Module):
    """Transformer layers, and a linear head on the mean of the tokens."""

    def __init__(self, width: int, heads: int, depth: int, outputs: int):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean(1))


class Bert(Encoder):
    """An encoder with word and position embeddings."""

    def __init__(self, tokens: int, width: int, heads: int, depth: int, length: int = 64):
        super().__init__(width, heads, depth, 2)
        self.token, self.place = nn.Embedding(tokens, width), nn.Parameter(torch.zeros(length, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(self.token(x) + self.place))


NETS = {"lenet": lenet, "resnet18": ResNet, "encoder": lambda: Encoder(64, 4, 2, 1),
        "bert": lambda: Bert(30522, 512, 8, 4), "bert-tiny": lambda: Bert(5000, 128, 2, 2)}


def net(name: str) -> nn.Module:
    """A network in torch, in the mode in which it is exported."""
    torch.manual_seed(0)
    return (dense(*model(name).widths) if model(name).widths else NETS[name]()).eval()


def export(name: str, folder: Path) -> None:
    """Write the network as ONNX, by torch's exporter, and its parameters and buffers."""
    module, m = net(name), model(name)
    with torch.no_grad():  # The exporter merges equal tensors, such as biases and scales before training.
        for p in module.parameters():
            p.add_(0.02 * torch.rand_like(p) - 0.01)
    if name == "resnet18":  # With frozen statistics, the sum over blocks would grow without bound.
        for norm in (n for b in module.blocks for n in (b.norm2, *b.past[1:])):
            norm.running_var.fill_(2.0)
    path, x = folder / f"{name}.onnx", torch.from_numpy(m.data(4)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)  # that torchvision is missing, for example
        # Optimized, the statistics of BatchNormalization would be folded into Conv.
        torch.onnx.export(module, (x,), str(path), dynamo=True, input_names=["x"], output_names=["y"], verbose=False,
                          dynamic_shapes=({0: torch.export.Dim("N")},), external_data=False,
                          optimize=name != "resnet18")
    proto = onnx.load(path)
    parameters = {n: p.detach().numpy() for n, p in module.named_parameters()}
    name_weights(proto, parameters)
    onnx.save(proto, path)
    trained = [t.name for t in proto.graph.initializer if t.name.removesuffix(".T") in parameters]
    (folder / f"{name}.json").write_text(json.dumps(trained))
    np.savez(folder / f"{name}.npz", **parameters, **{n: b.numpy() for n, b in module.named_buffers()})


def name_weights(proto: onnx.ModelProto, parameters: dict[str, np.ndarray]) -> None:
    """Name the initializers that the exporter has transposed after their parameters, with the suffix `.T`."""
    arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    for name in parameters.keys() - arrays.keys():
        stored = next(n for n, a in arrays.items() if np.array_equal(a, parameters[name].T))
        for t in (t for t in proto.graph.initializer if t.name == stored):
            t.name = f"{name}.T"
        for node in proto.graph.node:
            node.input[:] = [f"{name}.T" if n == stored else n for n in node.input]


if __name__ == "__main__":
    for each in sys.argv[2:]:
        export(each, Path(sys.argv[1]))
