"""
Several processes train one model
=================================

With `distributed=True`, several processes train one model: each is given all the rows and reads its share of every
batch, and the gradients are added up before the update. The weights are those of one process with the same batches,
which this script checks when it runs as one process.

    torchrun --standalone --nproc_per_node=2 examples/ddp_fit.py
"""

import os

import numpy as np
import torch.distributed as dist
from sklearn.datasets import load_digits

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
train, test = slice(0, 1400), slice(1400, None)

x = variable("x", "float32", ["N", 64])
W1, b1 = constant(np.zeros((64, 128), np.float32), hint="W1"), constant(np.zeros(128, np.float32), hint="b1")
W2, b2 = constant(np.zeros((128, 10), np.float32), hint="W2"), constant(np.zeros(10, np.float32), hint="b2")
model = build([x], {"scores": op.Relu(x @ W1 + b1) @ W2 + b2})

together = "RANK" in os.environ  # set by torchrun
if together:
    dist.init_process_group("gloo")
optimizer = OrtGradientForwardBackwardOptimizer(
    model, learning_loss="softmax_cross_entropy", learning_rate="Adam", init="random", random_state=0, max_iter=20,
    batch_size=64, distributed=together)
optimizer.fit(X[train], y[train])
if not together or dist.get_rank() == 0:
    size = dist.get_world_size() if together else 1
    total = sum(np.abs(w).sum(dtype=np.float64) for w in optimizer.get_state())
    print(f"processes {size}: accuracy {optimizer.score(X[test], y[test]):.3f}, sum of weights {total:.3f}")
if together:
    dist.destroy_process_group()
