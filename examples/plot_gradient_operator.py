"""
Derivatives of any order, as nodes of a graph
=============================================

Gradient is an operator of ONNX that no runtime executes: its node names tensors of its own graph and computes the
derivative of one by the others. The next node may name this derivative, so four nodes compute the derivatives up to the
fourth. Those of exp(-x²/2) are Hermite's polynomials times the function itself, which serves as a check. ::

    python examples/plot_gradient_operator.py [folder for the figure] [device]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.polynomial.hermite_e import HermiteE
from onnx.parser import parse_model

from ortpartial import lower_training_operators
from ortpartial.runtime import Session

ORDERS = (1, 2, 3, 4)
NODES = "\n".join(f'd{n} = ai.onnx.preview.training.Gradient <xs = ["x"], y = "d{n - 1}"> (x)' for n in ORDERS)
model = parse_model(f"""
<ir_version: 8, opset_import: ["": 21, "ai.onnx.preview.training": 1]>
bell (double[N] x) => ({", ".join(f"double[N] d{n}" for n in (0, *ORDERS))}) {{
    minus_half = Constant <value = double {{-0.5}}> ()
    square = Mul(x, x)
    exponent = Mul(minus_half, square)
    d0 = Exp(exponent)
    {NODES}
}}""")

plain = lower_training_operators(model)
print(f"{len(model.graph.node)} nodes, 4 of them Gradient, are {len(plain.graph.node)} that any runtime executes")
device = sys.argv[2] if len(sys.argv) > 2 else "cpu"
x = np.linspace(-4, 4, 401)
derivatives = Session(plain, device=device).run({"x": x})

# The n-th derivative is (-1)ⁿ Heₙ(x) exp(-x²/2). A node differentiates the sum of the elements of a tensor.
exact = [(-1) ** n * HermiteE.basis(n)(x) * np.exp(-x * x / 2) for n in (0, *ORDERS)]
difference = max(abs(f - e).max() for f, e in zip(derivatives.values(), exact, strict=True))
print(f"largest difference from Hermite's polynomials: {difference:.16f}")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    fig, axes = plt.subplots(figsize=(6, 4))
    for name, derivative in derivatives.items():
        axes.plot(x, derivative, label=f"order {name[1:]}")
    axes.set(xlabel="x", title="exp(-x²/2) and its derivatives")
    axes.legend()
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    fig.savefig(Path(sys.argv[1]) / "gradient_operator.png")
