"""Refusals: the range of every operator that has one, and the words of its error."""

import numpy as np
import onnx
import pytest

from ortpartial.graph import build, constant, op, variable
from ortpartial.graph.refusals import (
    GUARD,
    LEAST_GUARDED,
    REFUSING,
    SHIFT,
    Bound,
    describe_bound,
    describe_refusal,
    find_bound,
    name_node,
    state_refusal,
)

X, I = variable("x", "float32", [5, 3]), variable("i", "int64", [2, 1])
SEQUENCE, PICTURE = variable("s", "float32", [7, 2, 4]), variable("p", "float32", [2, 3, 4, 6])
LENGTHS, W, R = variable("n", "int32", [2]), variable("W", "float32", [1, 3, 4]), variable("R", "float32", [1, 3, 3])
TABLE, LABELS = variable("c", "float32", [9, 3]), variable("t", "int64", [5])


def attend(lengths):
    y = op.Attention(PICTURE, PICTURE, PICTURE, None, None, None, lengths)
    return y if isinstance(y, type(X)) else y[0]


NODES = {
    "Gather": (lambda: op.Gather(X, I, axis=1), "an index that is not in -3 to 2:"),
    "GatherElements": (lambda: op.GatherElements(X, I), "an index that is not in -5 to 4:"),
    "GatherND": (lambda: op.GatherND(X, constant([[0, 1]])), "an index that is not in -5 to 4 and -3 to 2:"),
    "ScatterElements": (lambda: op.ScatterElements(X, I, variable("u", "float32", [2, 1]), axis=-1),
                        "an index that is not in -3 to 2:"),
    "ScatterND": (lambda: op.ScatterND(X, I, variable("u", "float32", [2, 3])), "an index that is not in -5 to 4:"),
    "ReverseSequence": (lambda: op.ReverseSequence(SEQUENCE, variable("n", "int64", [2])),
                        "a length of a sequence that is not in 0 to 7:"),
    "RNN": (lambda: op.RNN(SEQUENCE, W, R, None, LENGTHS, hidden_size=3)[0],
            "a length of a sequence that is not in 0 to 7:"),
    "GRU": (lambda: op.GRU(SEQUENCE, variable("W", "float32", [1, 9, 4]), variable("R", "float32", [1, 9, 3]), None,
                           LENGTHS, hidden_size=3)[0], "a length of a sequence that is not in 0 to 7:"),
    "LSTM": (lambda: op.LSTM(SEQUENCE, variable("W", "float32", [1, 12, 4]), variable("R", "float32", [1, 12, 3]), None,
                             LENGTHS, hidden_size=3)[0], "a length of a sequence that is not in 0 to 7:"),
    "Attention": (lambda: attend(variable("n", "int64", [2])),
                  "a length of a sequence that is not in 0 to 4:"),
    "RotaryEmbedding": (lambda: op.RotaryEmbedding(PICTURE, TABLE, TABLE, variable("q", "int64", [2, 4])),
                        "a position that is not in 0 to 8:"),
    "NegativeLogLikelihoodLoss": (lambda: op.NegativeLogLikelihoodLoss(X, LABELS), "a label that is not in 0 to 2:"),
    "SoftmaxCrossEntropyLoss": (lambda: op.SoftmaxCrossEntropyLoss(X, LABELS, ignore_index=-100),
                                "a label that is not in 0 to 2 or -100:"),
}


def test_every_operator_has_a_row():
    assert NODES.keys() == REFUSING


@pytest.mark.parametrize("name", NODES)
def test_ranges(name):
    """The sentence has the range, and a built graph keeps it beside the node."""
    make, expected = NODES[name]
    y = make()
    assert describe_refusal(y.node) == f"{name_node('', name, '')} has {expected}"
    model = build([v for v in dict.fromkeys(y.node.reads) if v.array is None], {"y": y})
    (proto,) = (n for n in model.graph.node if n.op_type == name)
    assert proto.doc_string == describe_refusal(y.node)


def test_without_lengths_nothing_is_refused():
    assert find_bound(op.RNN(SEQUENCE, W, R, hidden_size=3)[0].node) is None
    assert describe_refusal(op.Exp(X).node) == ""


def test_a_size_that_is_not_known():
    y = op.Gather(variable("x", "float32", ["N", 3]), I)
    assert find_bound(y.node).ranges is None
    assert describe_refusal(y.node) == "A Gather has an index that is out of range:"


def test_names():
    assert name_node("embed", "Gather", "y") == "Node 'embed' (Gather)"
    assert name_node("", "Gather", "y") == name_node("Gather_node_3", "Gather", "y") == "Gather of 'y'"
    assert (name_node("", "Gather", ""), name_node("", "Einsum", "")) == ("A Gather", "An Einsum")
    assert name_node("", "Gather", "Gather_12") == name_node("", "Gather", "") == "A Gather"


@pytest.mark.parametrize("number", [0, -1, 3, 2**63 - 1, LEAST_GUARDED])
def test_the_number_of_a_guard(number):
    """What a guard adds keeps it out of the table of one element, whatever the number is."""
    index = (number + SHIFT + 2**63) % 2**64 - 2**63
    assert index not in (-1, 0)
    assert state_refusal(f"{GUARD}Div of 'q' divides by zero:", index) == f"Div of 'q' divides by zero: {number}."
    assert state_refusal(f"{GUARD}Bernoulli of 'b' has numbers beyond 1", 1) == "Bernoulli of 'b' has numbers beyond 1."


def test_a_bound_in_words():
    assert describe_bound("Input 't'", Bound(0, "a label", ((0, 2),), -1)) == (
        "Input 't' has a label that is not in 0 to 2 or -1:")
    assert state_refusal("Input 't' has a label that is out of range:") == "Input 't' has a label that is out of range."


def test_models_carry_the_range_through_a_file():
    y = op.Gather(X, I, axis=0)
    model = onnx.load_from_string(build([X, I], {"y": y}).SerializeToString())
    assert [n.doc_string for n in model.graph.node] == ["A Gather has an index that is not in -5 to 4:"]
    assert np.array_equal(onnx.reference.ReferenceEvaluator(model).run(None, {
        "x": np.ones((5, 3), np.float32), "i": np.array([[0], [-5]])})[0], np.ones((2, 1, 3)))
