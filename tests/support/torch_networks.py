"""Twelve ordinary networks of torch as they are made, with rows to train on, and SGD of torch on them."""

import copy
from dataclasses import dataclass

import torch
from torch import nn


def _block(inputs, outputs, stride=1, groups=1):
    return [nn.Conv2d(inputs, outputs, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """Blocks of two convolutions with batch norms, one of them with a convolution on the short way."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(*_block(3, 8), nn.ReLU())
        self.first = nn.Sequential(*_block(8, 8), nn.ReLU(), *_block(8, 8))
        self.second = nn.Sequential(*_block(8, 12, 2), nn.ReLU(), *_block(12, 12))
        self.short = nn.Sequential(nn.Conv2d(8, 12, 1, 2, bias=False), nn.BatchNorm2d(12))
        self.fc = nn.Linear(12, 3)

    def forward(self, x):
        h = self.stem(x)
        h = torch.relu(self.first(h) + h)
        h = torch.relu(self.second(h) + self.short(h))
        return self.fc(h.mean((2, 3)))


class Norms(nn.Module):
    """Residual layers with layer norms of one size."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + torch.tanh(layer(norm(x)))
        return self.fc(x)


class Encoder(nn.Module):
    """A transformer encoder over tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(13, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(16, 3)

    def forward(self, i):
        return self.fc(self.encoder(self.embedding(i)).mean(1))


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self):
        super().__init__()
        self.embedding, self.fc = nn.Embedding(13, 8), nn.Linear(8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.head = nn.Linear(8, 13, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, i):
        h = self.norms[0](self.embedding(i))
        return self.head(self.norms[1](h + torch.tanh(self.fc(h))))


class Recurrent(nn.Module):
    """An LSTM or a GRU, and a layer on its last output."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.fc = layer(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(self.layer(x)[0][:, -1])


class Twice(nn.Module):
    """A layer, its norm and its slopes, used twice, and another norm of the size."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.slope = nn.Linear(8, 8), nn.LayerNorm(8), nn.PReLU(8)
        self.last, self.fc = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        for _ in range(2):
            x = self.slope(self.norm(self.layer(x)))
        return self.fc(self.last(x))


def _mlp():
    hidden = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(8, 3))


def _depthwise():
    layers = [*_block(3, 8), nn.Hardswish(), *_block(8, 8, groups=8), nn.Hardswish(), nn.Conv2d(8, 8, 1, bias=False),
              nn.BatchNorm2d(8), nn.Hardswish()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))


def _normed(make):
    """A convolutional network with two norms of one size."""
    layers = [nn.Conv2d(3, 8, 3, padding=1), make(), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), make(), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 36, 3))


def _prelus():
    hidden = [nn.Linear(6, 8), nn.PReLU(), nn.Linear(8, 8), nn.PReLU(), nn.Linear(8, 8), nn.PReLU(8), nn.Linear(8, 8)]
    return nn.Sequential(*hidden, nn.PReLU(8), nn.Linear(8, 3))


#: The module, and the sizes of one row; None: seven tokens.
NETWORKS = {
    "mlp": (_mlp, (6,)),
    "residual": (Residual, (3, 6, 6)),
    "depthwise": (_depthwise, (3, 6, 6)),
    "group norm": (lambda: _normed(lambda: nn.GroupNorm(2, 8)), (3, 6, 6)),
    "instance norm": (lambda: _normed(lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True)), (3, 6, 6)),
    "layer norm": (Norms, (8,)),
    "encoder": (Encoder, None),
    "tied": (Tied, None),
    "prelu": (_prelus, (6,)),
    "lstm": (lambda: Recurrent(nn.LSTM), (5, 4)),
    "gru": (lambda: Recurrent(nn.GRU), (5, 4)),
    "twice": (Twice, (8,)),
}

#: Networks with norms that an exporter may fold into the layer before them.
FOLDED = ("mlp", "residual", "depthwise", "instance norm")
ROWS, BATCH, STEPS, RATE = 48, 16, 20, 0.05


@dataclass(frozen=True)
class TorchNetwork:
    """A fresh network, the example for an exporter, a batch of rows, and all rows with their targets."""

    net: nn.Module
    example: torch.Tensor
    X: torch.Tensor
    y: torch.Tensor

    def train(self, steps=STEPS, train_mode=False, rate=RATE, dtype=torch.float32):
        """A copy after steps of SGD on the mean square error of batches in order, in training or evaluation mode."""
        net = copy.deepcopy(self.net).to(dtype).train(train_mode)
        X, y = (v.to(dtype) if v.is_floating_point() else v for v in (self.X, self.y))
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=rate)
        for k in range(steps):
            rows = torch.arange(k * BATCH, (k + 1) * BATCH) % len(X)
            optimizer.zero_grad()
            nn.functional.mse_loss(net(X[rows]), y[rows]).backward()
            optimizer.step()
        return net

    def predict(self, net):
        """The predictions of a network in evaluation mode for all rows, as an array."""
        X = self.X.to(next(net.parameters()).dtype) if self.X.is_floating_point() else self.X
        with torch.no_grad():
            return net.eval()(X).numpy()


def make_network(name, seed=0):
    """A fresh network of the table in evaluation mode."""
    make, sizes = NETWORKS[name]
    torch.manual_seed(seed)
    net = make().eval()

    X = torch.randint(0, 13, (ROWS, 7)) if sizes is None else torch.randn(ROWS, *sizes)
    with torch.no_grad():
        y = torch.randn(net(X[:2]).shape[1:])
    return TorchNetwork(net, X[:BATCH], X, y + 0.5 * torch.randn(ROWS, *y.shape))
