"""Pads in mode wrap of any length: values and gradients."""

import numpy as np
import pytest
from onnx import parser

from ortpartial import gradient_model
from ortpartial.exceptions import OrtPartialError
from ortpartial.graph.build import build
from ortpartial.model.load import load
from ortpartial.runtime.session import Session

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def model(pads, size):
    """x padded along its last axis, of this size, by these pads or, without, by an input."""
    stored, declared = ("", ", int64[2] p") if pads is None else (f", int64[2] p = {{{pads[0]}, {pads[1]}}}", "")
    return parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
                              g (float[N, {size}] x{declared}) => (float[N, M] y) <int64[1] a = {{-1}}{stored}>
                              {{ y = Pad<mode = "wrap">(x, p, , a) }}""")


@pytest.mark.parametrize("pads", [(1, 1), (3, 3), (4, 4), (7, 5), (-1, 4), (5, -2), (-2, 0)])
@pytest.mark.parametrize("form", ["known", "sizes unknown", "pads unknown"])
def test_values_and_gradients(pads, form):
    """1.19.2 gives zeros or what was in its memory where a tensor is repeated more than once."""
    proto = model(None if form == "pads unknown" else pads, 3 if form == "known" else "K")
    feeds = {"x": X} | ({"p": np.array(pads)} if form == "pads unknown" else {})
    loaded = load(proto)
    kept = X[:, max(-pads[0], 0) : 3 + min(pads[1], 0)]
    expected = np.pad(kept, [(0, 0), np.maximum(pads, 0)], "wrap")
    np.testing.assert_array_equal(Session(build(loaded.inputs, loaded.outputs)).run(feeds)["y"], expected)
    gradient = Session(gradient_model(proto, ["x"], ["y"], cotangents="ones")).run(feeds)["x_grad"]
    np.testing.assert_array_equal(gradient, [[(expected[n] == v).sum() for v in X[n]] for n in range(2)])


def test_a_pad_that_repeats_once_remains():
    loaded = load(model((3, 3), 3))
    assert [node.op_type for node in build(loaded.inputs, loaded.outputs).graph.node] == ["Pad"]


def test_nothing_to_repeat():
    loaded = load(model(None, "K"))
    with pytest.raises(OrtPartialError, match="Pad of 'y' has pads that its input is too small for in mode 'wrap'"):
        Session(build(loaded.inputs, loaded.outputs)).run({"x": X, "p": np.array([5, -3])})
