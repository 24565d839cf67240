"""
Linear regression with a training loop of your own
==================================================

`OrtGradientForwardBackward` runs a graph forward and backward and does nothing else: the loss, its gradient and the
step are yours, written here in numpy. Use it for a loss that ONNX cannot express, for the optimizer of another library,
or for a model of which ONNX is only one part. ::

    python examples/plot_linear_regression_forward_backward.py [folder for the figure] [device]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ortpartial import OrtGradientForwardBackward, build, constant, variable

rng = np.random.default_rng(0)
true_coef, true_intercept = np.array([[2.0], [-1.0], [0.5]]), 3.0
X = rng.normal(size=(500, 3)).astype(np.float32)
y = (X @ true_coef + true_intercept + 0.1 * rng.normal(size=(500, 1))).astype(np.float32)

# The model, in the notation; any ONNX file will do.
x = variable("X", "float32", ["N", 3])
coef = constant(np.zeros((3, 1), np.float32), hint="coef")
intercept = constant(np.zeros(1, np.float32), hint="intercept")
model = build([x], {"variable": x @ coef + intercept})

layer = OrtGradientForwardBackward(model, ["coef", "intercept"], device=[*sys.argv[2:], "cpu"][0])
losses = []
for _ in range(20):
    for batch in np.array_split(rng.permutation(len(X)), 25):
        (prediction,), state = layer.forward(X[batch])
        error = prediction - y[batch]
        losses.append(float((error**2).mean()))
        gradients, _ = layer.backward([2 * error / len(batch)], state)
        layer.set_state([w - 0.02 * g for w, g in zip(layer.get_state(), gradients.values(), strict=True)])

coef, intercept = layer.get_state()
exact, *_ = np.linalg.lstsq(np.c_[X, np.ones(len(X))], y, rcond=None)
print(f"engine         {layer.engine_}: {layer.engine_reason_}")
print(f"loss           {losses[0]:.3f} -> {losses[-1]:.3f}")
print(f"trained        {np.r_[coef.ravel(), intercept].round(2)}")
print(f"least squares  {exact.ravel().round(2)}")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    fig, ax = plt.subplots(figsize=(6, 3.5))
    ax.semilogy(range(1, len(losses) + 1), losses, linewidth=1, label="batches")
    ax.axhline(0.01, color="gray", linestyle=":", label="noise in the data")
    ax.set(xlabel="step", ylabel="square error of the batch", title="Linear regression with a custom training loop")
    ax.legend()
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    fig.savefig(folder / "linear_regression_forward_backward.png")
