"""
Several processes train one module
==================================

An optimizer with `distributed=True` trains a module in several processes: each is given all the rows and reads its
share of every batch, and the gradients are averaged before the update. The weights are those of one process with the
same batches, which this script prints when it runs as one process. `gradient_dtype="float16"` halves what is sent, and
`top_k=0.01` sends the largest gradients alone.

    torchrun --standalone --nproc_per_node=2 examples/ddp_module.py
"""

import os

import numpy as np
import torch.distributed as dist
from sklearn.datasets import load_digits

from ortpartial import nn, op

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
train, test = slice(0, 1400), slice(1400, None)


class Net(nn.Module):
    def __init__(self):
        self.hidden, self.out = nn.Linear(64, 128), nn.Linear(128, 10)

    def forward(self, x):
        return self.out(op.Relu(self.hidden(x)))


together = "RANK" in os.environ  # set by torchrun
if together:
    dist.init_process_group("gloo")
model = Net().set_optimizer("adam", distributed=together)
model.compile(nn.placeholder(["N", 64]), random_state=0)
model.fit(X[train], y[train], epochs=20, batch_size=64)
if not together or dist.get_rank() == 0:
    size = dist.get_world_size() if together else 1
    accuracy = np.mean(model.predict(X[test]).argmax(axis=1) == y[test])
    total = sum(np.abs(w).sum(dtype=np.float64) for w in model.state_dict().values())
    print(f"processes {size}: accuracy {accuracy:.3f}, sum of weights {total:.3f}")
if together:
    dist.destroy_process_group()
