"""A model with an ONNX layer, trained by torch's optimizers, follows the same model in pure torch step for step."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from once import ON_NEWEST
from torch import nn

from ortpartial.torch.onnx_layer import OnnxLayer

ROOT = Path(__file__).parents[2]
STEPS = 100


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.embed, self.layers = nn.Embedding(11, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, i):
        return self.layers(self.embed(i)).mean(1)


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.pool, self.drop, self.fc = nn.MaxPool2d(2), nn.Dropout(0.2), nn.Linear(36, 4)

    def forward(self, x):
        return self.fc(self.drop(self.pool(torch.relu(self.norm(self.conv(x)))).flatten(1)))


# The part that is exported, what stands around it in torch, the sizes of a row (None: tokens), the optimizer. No Adam
# where a gradient is zero but for rounding, as that of the keys' bias in attention is: it makes whole steps of it.
PARTS = {
    "linear": (lambda: nn.Linear(5, 3), lambda m: m, (5,), torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)),
            lambda m: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), m, nn.Tanh(), nn.Linear(4, 3)), (8,),
            torch.optim.Adam, {"lr": 0.005}),
    "conv": (Conv, lambda m: nn.Sequential(m, nn.Tanh(), nn.Linear(4, 3)), (1, 6, 6),
             torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "encoder": (Encoder, lambda m: nn.Sequential(m, nn.Linear(8, 3)), None,
                torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
}


def example(shape, rows=2):
    return torch.randint(0, 11, (rows, 6)) if shape is None else torch.randn(rows, *shape)


def follow(name, engine, training):
    """Both models after the steps, on batches of which every fourth is smaller."""
    make, around, shape, optimizer, settings = PARTS[name]
    torch.manual_seed(0)
    part = make()
    module = around(part)
    for t in part.buffers():  # as after some training, so that inference has something to do
        if t.is_floating_point():
            t.add_(0.1 * torch.rand_like(t))
    layer = OnnxLayer.from_torch(part, example(shape), engine=engine)
    # The same model, around the layer in place of the part.
    wrapped = layer if module is part else nn.Sequential(*(layer if m is part else copy.deepcopy(m) for m in module))
    batches = [(example(shape, 3 if k % 4 == 3 else 8), k) for k in range(STEPS)]
    for m in (module, wrapped):
        m.train(training)
        rate = optimizer(m.parameters(), **settings)
        for x, k in batches:
            torch.manual_seed(k)
            rate.zero_grad()
            nn.functional.cross_entropy(m(x), torch.arange(len(x)) % 3).backward()
            rate.step()
    return module, wrapped


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["step", "auto"])
@pytest.mark.parametrize("name", PARTS)
def test_follows_torch(name, engine):
    module, wrapped = follow(name, engine, training=False)
    parameters = dict(wrapped.named_parameters())
    assert sorted(parameters) == sorted(n for n, _ in module.named_parameters())
    for n, p in module.named_parameters():
        error = (parameters[n] - p).abs().max() / p.abs().max()
        assert error <= 1e-5, f"{n} is off by {float(error):.1e}"


def test_follows_torch_in_training_mode():
    """The same masks from the same seeds, and statistics of batches; the running ones differ by n / (n - 1)."""
    module, wrapped = follow("conv", "step", training=True)
    state = {**dict(wrapped.named_parameters()), **dict(wrapped.named_buffers())}
    for n, p in [*module.named_parameters(), *module.named_buffers()]:
        if n in state:
            error = (state[n] - p).abs().max() / p.abs().max()
            assert error <= (1e-2 if n.endswith("running_var") else 1e-5), f"{n} is off by {float(error):.1e}"
    assert not torch.equal(state["0.norm.running_var"], module[0].norm.running_var)


@ON_NEWEST
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this build of torch 2.13.0 has no torch.distributed")
def test_ddp(tmp_path):
    """Two processes with half of each batch each come to the weights of one process with all of it."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
         str(ROOT / "examples" / "ddp_onnx_layer.py")],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    printed = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert float(printed["largest difference between the two processes"]) == 0
    assert float(printed["largest difference from one process with all rows"]) < 1e-5
    first, last = map(float, printed["loss"].split(" -> "))
    assert last < 0.5 * first
