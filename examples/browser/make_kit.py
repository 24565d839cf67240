"""
Write the training kit of the page: a small network that has learned the digits 0 to 4, and no others.

    python make_kit.py [folder, by default kit]
"""

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.graph import build, constant, op, variable
from ortpartial.learning_rate import LearningRateAdam

folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "kit")
rng = np.random.default_rng(0)


def weight(name, *shape):
    inputs = np.prod(shape[1:]) if len(shape) == 4 else shape[0]
    return constant((rng.normal(size=shape) * np.sqrt(2 / inputs)).astype(np.float32), hint=name)


def bias(name, size):
    return constant(np.zeros(size, np.float32), hint=name)


# Two convolutions; pixels are numbers from 0 to 16, as scikit-learn has them.
x = variable("x", "float32", ["N", 64])
h = op.Reshape(x / 16, [-1, 1, 8, 8])
h = op.Relu(op.Conv(h, weight("conv1", 16, 1, 3, 3), bias("bias1", 16), pads=[1, 1, 1, 1]))
h = op.MaxPool(h, kernel_shape=[2, 2], strides=[2, 2])
h = op.Relu(op.Conv(h, weight("conv2", 32, 16, 3, 3), bias("bias2", 32), pads=[1, 1, 1, 1]))
h = op.Flatten(op.MaxPool(h, kernel_shape=[2, 2], strides=[2, 2]))
model = build([x], {"scores": h @ weight("dense", 128, 10) + bias("bias3", 10)})

X, y = load_digits(n_class=5, return_X_y=True)
X = X.astype(np.float32)
optimizer = OrtGradientForwardBackwardOptimizer(
    model, learning_loss="softmax_cross_entropy", learning_rate=LearningRateAdam(1e-3), batch_size=32, max_iter=10,
    random_state=0)
optimizer.fit(X[:800], y[:800])
share = (optimizer.predict(X[800:]).argmax(axis=1) == y[800:]).mean()
print(f"{share:.1%} of {len(X) - 800} new digits are right")

optimizer.export_step(folder, targets=("web",))
inputs = {"x": X[:800], "scores_target": y[:800].astype(np.int64)}
save_file(inputs, folder / "data.safetensors")
print(f"the kit is in {folder}")
