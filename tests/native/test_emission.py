"""The text of kernels: loops that are merged, indices as text, and statements that stand once."""

import re

import numpy as np
import pytest

from ortpartial.graph import constant, op, variable
from ortpartial.native import translate
from ortpartial.native.emission import Counter, affine_text, collapse, indent
from ortpartial.native.expressions import Affine

AT = Affine.contiguous((2, 3, 4))


@pytest.mark.parametrize(("places", "expected"), [
    ([AT], [(2, 24)]), ([AT.permuted((1, 0, 2))], [(0, 2), (1, 3), (2, 4)]),
    ([AT, Affine((2, 3, 4), (0, 4, 1))], [(0, 2), (2, 12)]), ([], [(2, 24)])])
def test_axes_that_are_neighbors_everywhere_are_one_loop(places, expected):
    assert collapse((2, 3, 4), places) == expected


def test_an_axis_of_size_one_is_no_loop():
    assert collapse((1, 5, 1), [Affine.contiguous((1, 5, 1))]) == [(1, 5)]


@pytest.mark.parametrize(("at", "offset", "text"), [
    (AT, 0, "i * 12 + j * 4 + k"), (Affine((2, 3, 4), (0, 0, 0)), 0, "0"),
    (Affine((2, 3, 4), (0, 1, 0), 5, (("t", 7),)), 2, "j + t * 7 + 7")])
def test_indices(at, offset, text):
    assert affine_text(at, {0: "i", 1: "j", 2: "k"}, offset) == text


def test_heads_of_loops():
    assert Counter("i", 0, 8).head == "for (int32_t i = 0; i < 8; ++i) {"
    lane = Counter("l", 0, 4, base="i", start=1, step=2)
    assert (lane.head, lane.index) == ("for (int32_t l = 1; l < 4; l += 2) {", "(i + l)")
    assert indent(["a", "b"]) == ["  a", "  b"]


def test_an_expression_that_is_read_twice_is_computed_once():
    x = variable("x", "float32", [5])
    e = op.Exp(x)
    outputs = {"y": e * e + e, "loss": constant(0.0, np.float32)}
    step = translate({"x": x}, outputs, rows=[], state={"x": "y"}, loss="loss")
    body = step.source[step.source.index("step_run("):]
    assert len(re.findall(r"op_exp\w*\(", body)) == 1
