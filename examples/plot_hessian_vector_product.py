"""
Second derivatives: the product of a Hessian and a vector
=========================================================

A gradient is an expression like any other, so it has a gradient too. With g = ∇f(x), the gradient of g·v is H·v, the
Hessian times a vector, as an ONNX graph that never holds H: its cost grows with the size of x, not with its square.
Here f is Rosenbrock's function Σ 100 (xᵢ₊₁ - xᵢ²)² + (1 - xᵢ)², whose exact Hessian serves as a check. ::

    python examples/plot_hessian_vector_product.py [folder for the figure]
"""

import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ortpartial import build, grad, op, variable
from ortpartial.runtime import Session

x, v = variable("x", "float64", ["N"]), variable("v", "float64", ["N"])
this, following = op.Slice(x, [0], [-1], [0]), op.Slice(x, [1], [2**31], [0])
f = op.ReduceSum(100 * (following - this**2) ** 2 + (1 - this) ** 2, keepdims=0)
(g,) = grad(f, [x])
(product,) = grad(op.ReduceSum(g * v, keepdims=0), [x])
gradient, times_vector = Session(build([x], {"g": g})), Session(build([x, v], {"Hv": product}))


def exact(x):
    """The Hessian of f by its formula, tridiagonal."""
    diagonal = np.zeros_like(x)
    diagonal[:-1] = 1200 * x[:-1] ** 2 - 400 * x[1:] + 2
    diagonal[1:] += 200
    return np.diag(diagonal) + np.diag(-400 * x[:-1], 1) + np.diag(-400 * x[:-1], -1)


rng = np.random.default_rng(0)
at = rng.normal(size=12)
columns = [times_vector.run({"x": at, "v": e})["Hv"] for e in np.eye(12)]
hessian = np.stack(columns, axis=1)
difference = np.abs(hessian - exact(at)).max() / np.abs(exact(at)).max()
print(f"largest relative difference from the exact Hessian: {difference:.16f}")


def microseconds(call, *arguments):
    """The median time of a call."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        call(*arguments)
        times.append(1e6 * (time.perf_counter() - start))
    return np.median(times)


sizes, rows = [10, 30, 100, 300, 1000, 2000], []
print("size   microseconds of  ∇f    H·v    H and H @ v in numpy")
for n in sizes:
    at, vector = rng.normal(size=(2, n))
    rows.append([microseconds(gradient.run, {"x": at}), microseconds(times_vector.run, {"x": at, "v": vector}),
                 microseconds(lambda x, v: exact(x) @ v, at, vector)])
    print("{:4}  {:18.0f} {:6.0f} {:10.0f}".format(n, *rows[-1]))

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    plt.style.use("ortpartial.figure")
    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
    image = left.imshow(hessian, cmap="RdBu", norm=matplotlib.colors.SymLogNorm(100, vmin=-5000, vmax=5000))
    left.set(title="The Hessian, from 12 products", xticks=[], yticks=[])
    fig.colorbar(image, ax=left)
    for label, column in zip(("∇f", "H·v", "H whole, times v (numpy)"), zip(*rows, strict=True), strict=True):
        right.loglog(sizes, column, "o-", label=label)
    right.set(xlabel="size of x", title="Microseconds")
    right.legend()
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    fig.savefig(Path(sys.argv[1]) / "hessian_vector_product.png")
