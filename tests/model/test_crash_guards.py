"""Nodes that would crash or hang onnxruntime are refused by name, and their neighbours are not."""

import re

import numpy as np
import pytest

from ortpartial.exceptions import ModelError
from ortpartial.graph import constant, op, variable
from ortpartial.model.crash_guards import check_node, count_classes, find_source

X, I = variable("x", "float32", [4, 3]), variable("i", "int64", [2])
EMPTY = variable("e", "float32", [0, 3])


def ints(*numbers):
    return constant(np.array(numbers, np.int64))


REFUSED = {
    "division by zero": ("Div", (I, ints(1, 0)), {}, "divides whole numbers by 0, which crashes the process"),
    "the least by -1": ("Div", (ints(-(2**63), 1), ints(-1, 1)), {}, "may divide -9223372036854775808, the least of"),
    "indices": ("Gather", (X, ints(0, 4)), {}, "has indices from 0 to 4, where -4 to 3 were expected."),
    "indices of an axis": ("Gather", (X, ints(3)), {"axis": 1}, "has indices from 3 to 3, where -3 to 2 were"),
    "labels": ("SoftmaxCrossEntropyLoss", (X, ints(0, 1, 2, 3)), {}, "has labels from 0 to 3, where 0 to 2 were"),
    "groups": ("GroupNormalization", (variable("g", "float32", [1, 3, 2]), X, X), {"num_groups": 2},
               "has num_groups of 2, which does not divide the 3 channels."),
    "an interval": ("RandomUniform", (), {"low": 1.0, "high": 0.0}, "draws numbers from 1.0 to 0.0, which is no"),
    "a scale": ("RandomNormal", (), {"scale": 0.0}, "draws numbers with a scale of 0.0."),
    "more than all": ("Dropout", (X, constant(np.float32(2))), {}, "has a ratio of 2, which is no share from 0 to 1."),
    "fewer labels than axes": ("Einsum", (X,), {"equation": "i->i"},
                               "has the equation 'i->i', whose term 'i' is for 1 axes, not for <Value x"),
    "terms": ("Einsum", (X,), {"equation": "ij,ij"}, "has the equation 'ij,ij' of 2 terms for 1 inputs."),
    "nothing": ("Conv", (EMPTY,), {}, "a tensor without elements, which crashes or hangs some versions"),
}
TAKEN = {
    "division": ("Div", (I, ints(1, -1)), {}), "real numbers": ("Div", (X, constant(np.zeros(3, np.float32))), {}),
    "indices from the end": ("Gather", (X, ints(-4, 3)), {}), "an axis of unknown size": (
        "Gather", (variable("u", "float32", ["N", 3]), ints(99)), {}),
    "labels that do not count": ("SoftmaxCrossEntropyLoss", (X, ints(0, 1, 2, -1)), {"ignore_index": -1}),
    "all": ("Dropout", (X, constant(np.float32(1))), {}), "an ellipsis": ("Einsum", (X,), {"equation": "i ... -> ..."}),
    "no elements": ("Add", (EMPTY, EMPTY), {}), "a reduction over no axes": (
        "ReduceL2", (X, EMPTY), {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    op_type, inputs, attributes, message = REFUSED[name]
    with pytest.raises(ModelError, match=re.escape(f"Node n {message}") if name != "nothing" else message):
        check_node(op_type, inputs, attributes, "Node n")


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name):
    check_node(*TAKEN[name], "Node n")


def test_what_a_value_is_a_view_of():
    assert find_source(op.Reshape(op.Cast(I, to=6), ints(2, 1))) is I
    assert find_source(I + I) is not I
    assert (count_classes(X), count_classes(I)) == (3, None)
