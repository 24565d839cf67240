"""Reductions over no axes, which is all of them or, with noop_with_empty_axes, none: values and gradients."""

import numpy as np
import pytest
from onnx import parser

from ortpartial import gradient_model
from ortpartial.graph.build import build
from ortpartial.model.load import load
from ortpartial.runtime.session import Session

#: By reduction, what it does to the elements that it does not sum, and the derivative of that.
MAPS = {
    "ReduceL1": (np.abs, np.sign), "ReduceL2": (np.abs, np.sign), "ReduceLogSum": (np.log, np.reciprocal),
    "ReduceLogSumExp": (np.positive, np.ones_like), "ReduceMax": (np.positive, np.ones_like),
    "ReduceMean": (np.positive, np.ones_like), "ReduceMin": (np.positive, np.ones_like),
    "ReduceProd": (np.positive, np.ones_like), "ReduceSum": (np.positive, np.ones_like),
    "ReduceSumSquare": (np.square, lambda x: 2 * x),
}
X = np.array([[-0.5, 2, 3], [1, -1.5, 0.25]], np.float32)


def model(axes, noop):
    """The reductions of x, each by these axes."""
    nodes = " ".join(f"{name} = {name} <noop_with_empty_axes = {noop}> ({'z' if 'Log' in name else 'x'}{axes})"
                     for name in MAPS)
    outputs = ", ".join(f"float[a, b] {name}" for name in MAPS)
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]> g (float[N, 3] x, int64[K] k) => ({outputs})
                              <int64[0] c = {{}}> {{ z = Abs(x) {nodes} }}""")


@pytest.mark.parametrize("axes", ["", ", c", ", k"], ids=["absent", "constant", "input"])
def test_no_axes_are_none(axes):
    """1.19.2 fails, or gives x."""
    proto, feeds = model(axes, 1), {"x": X, "k": np.zeros(0, np.int64)}
    loaded = load(proto)
    found = Session(build(loaded.inputs, loaded.outputs)).run(feeds)
    for name, (function, derivative) in MAPS.items():
        x, inner = (np.abs(X), np.sign(X)) if "Log" in name else (X, 1)
        np.testing.assert_allclose(found[name], function(x), rtol=1e-6)
        gradient = Session(gradient_model(proto, ["x"], [name], cotangents="ones")).run(feeds)["x_grad"]
        np.testing.assert_allclose(gradient, derivative(x) * inner, rtol=1e-6)


@pytest.mark.parametrize("axes", ["", ", c"], ids=["absent", "constant"])
def test_no_axes_are_all(axes):
    loaded = load(model(axes, 0))
    found = Session(build(loaded.inputs, loaded.outputs)).run({"x": X, "k": np.zeros(0, np.int64)})
    assert all(y.shape == (1, 1) for y in found.values())
    np.testing.assert_allclose(found["ReduceSumSquare"], [[np.square(X).sum()]], rtol=1e-6)
    np.testing.assert_allclose(found["ReduceL1"], [[np.abs(X).sum()]], rtol=1e-6)
