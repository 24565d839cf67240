"""
Several processes train one ONNX layer
======================================

An ONNX graph under torch's `DistributedDataParallel`, without further code: each process computes the gradients of
its half of every batch, and torch averages them. At the end, the first process trains alone on whole batches and
compares the weights.

    torchrun --standalone --nproc_per_node=2 examples/ddp_onnx_layer.py
"""

import copy
import gc

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ortpartial import build, constant, op, variable
from ortpartial.torch import OnnxLayer

ROWS, BATCH, EPOCHS = 256, 32, 5


def network():
    """A network whose second layer is ONNX; any file will do."""
    rng = np.random.default_rng(0)
    x = variable("x", "float32", ["N", 16])
    weight = constant(rng.normal(size=(16, 16)).astype(np.float32) / 4, hint="weight")
    onx = build([x], {"y": op.Tanh(x @ weight + constant(np.zeros(16, np.float32), hint="bias"))})
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), OnnxLayer(onx), nn.Linear(16, 1))


def train(model, X, y, rank, size):
    """Train; returns the mean losses of the epochs over the rows of this process."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(EPOCHS):
        total = 0.0
        for rows in torch.arange(ROWS).split(BATCH):
            mine = rows[rank::size]
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(X[mine]), y[mine])
            loss.backward()
            optimizer.step()
            total += loss.item() / (ROWS / BATCH)
        losses.append(total)
    return losses


def difference(a, b):
    return max(float((p - q).detach().abs().max()) for p, q in zip(a, b, strict=True))


def compare(rank, size):
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(ROWS, 8, generator=generator)
    y = torch.sin(X[:, :1]) + X[:, 1:2]
    model = network()
    alone = copy.deepcopy(model)
    losses = train(DistributedDataParallel(model), X, y, rank, size)

    weights = [p.detach().clone() for p in model.parameters()]
    for p in weights:
        dist.broadcast(p, 0)
    apart = torch.tensor(difference(weights, list(model.parameters())))
    dist.all_reduce(apart, dist.ReduceOp.MAX)
    if rank == 0:
        train(alone, X, y, 0, 1)
        print(f"processes: {size}")
        print(f"loss: {losses[0]:.4f} -> {losses[-1]:.4f}")
        print(f"largest difference between the two processes: {float(apart):.1e}")
        print(f"largest difference from one process with all rows: {difference(weights, alone.parameters()):.1e}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    compare(dist.get_rank(), dist.get_world_size())
    # Free what gloo's threads hold of Python: torch 2.13.0 aborts if they release it during shutdown.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
