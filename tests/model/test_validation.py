"""Validation and crash guards: models that crash onnxruntime are refused with advice."""

import numpy as np
import onnx
import pytest
from killers import CASES, functions, image, ints, model, real, row, whole
from models import linear
from onnx import TensorProto, helper

from ortpartial import OrtGradientForwardBackward, OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import DataError, GraphError, ModelError
from ortpartial.graph.ops import op, variable
from ortpartial.model import validation
from ortpartial.model.load import load
from ortpartial.model.validation import check_size
from ortpartial.runtime.session import Session
from ortpartial.training.split_graphs import forward_graph

# A case of killers.py, and the message by which loading it is refused.
REFUSED = {
    "div 0": r"Node \(unnamed\) \(Div, output 'q'\) divides whole numbers by 0, which crashes the process; divide by",
    "div 0 int32": "divides whole numbers by 0",
    "div 0 uint8": "divides whole numbers by 0",
    "mod 0": r"\(Mod, output 'q'\) divides whole numbers by 0",
    "groups 0": "has num_groups of 0, where 1 to 2147483647 were expected",
    "groups 3": "has num_groups of 3, which does not divide the 4 channels",
    "conv group 0": "has group of 0, where 1 to",
    "lrn 0": "has size of 0, where 1 to",
    "depth to space 0": "has blocksize of 0, where 1 to",
    "max unpool": "has indices up to 1000000000, and its output has 1152 elements",
    "max unpool -1": "has negative indices",
    "max unpool small": r"has indices of the shape \(1, 1, 1, 1\), where \(2, 4, 6, 6\) was expected",
    "roi batch": "has batch_indices from 1000000000 to 1000000000, which are no rows of its input",
    "roi nan": "has regions with coordinates that are not below 1048576",
    "label far": "has labels from 0 to 1099511627776, where 0 to 3 were expected",
    "label -1": "has labels from -1 to 0, where 0 to 3 were expected",
    "label nll": r"\(NegativeLogLikelihoodLoss, output 'y'\) has labels from 0 to 1099511627776",
    "gather": "has indices from 1099511627776 to 1099511627776, where -2 to 1 were expected",
    "conv strides 0": "has strides of 0, where 1 to 1048576 were expected",
    "conv pads huge": "has pads of 4611686018427387904, where -1048576 to 1048576 were expected",
    "average pool kernel huge": "has (kernel_shape|pads) of 1099511627776",
    "constant of shape": r"has the shape \(1099511627776, 1, 4\) and needs 16384.0 GiB, where .* are available",
    "range": "counts from 0.0 to 1000000000000.0, 1000000000000 numbers, where 16777216 are the most",
    "einsum names": "with a term of 15 dots, where one ellipsis of three was expected",
    "empty l2": "a tensor without elements, which crashes or hangs some versions of onnxruntime; leave the node",
    "uniform": "draws numbers from 1.0 to 0.0, which is no interval",
    "normal": "draws numbers with a scale of -1.0",
    "recursive": "The function 'l.f1' calls itself, which ONNX does not allow; write it as a Loop",
    "mutually recursive": "The function 'l.f1' calls itself",
    "nested functions": "Calls are nested more than 100 deep at the function .*; inline some of them",
    "a billion laughs": "would be inlined into .* nodes; 1000000 are the most",
    "loop without end": "can never end: it has no trip count, and its condition is always true. Give it a trip count",
    "loop max": "can never end",
    "gigabyte input": r"Input 'x' has the shape \(1099511627776, 4\) and needs 16384.0 GiB",
    "top k -": r"has the shape \(2, -5\) with a negative size",
}

# A case, and the message by which its run is refused.
FAILING = {
    "div by input": "Div of 'q' divides whole numbers by zero, or the least one by -1: 0.",
    "div by input int32": "Div of 'q' divides whole numbers by zero",
    "mod by input": "Mod of 'q' divides whole numbers by zero",
    "div min by input": "or the least one by -1",
    "div min of input": "or the least one by -1",
    "label computed": "SoftmaxCrossEntropyLoss of 'y' has a label that is not in 0 to 3: 1073741824.",
    "label computed nll": "NegativeLogLikelihoodLoss of 'y' has a label that is not in 0 to 3: 1073741824.",
    "bernoulli": "Bernoulli of 'r' has probabilities that are not in 0 to 1",
    "label input": r"^Input 'i' has labels from 0 to 1073741824, where 0 to 3 were expected by node '\(unnamed\)' "
                   r"\(SoftmaxCrossEntropyLoss\)\.$",
    "label input -1": "Input 'i' has labels from -1073741824 to 0",
    "gather input": r"Input 'i' has indices from 0 to 1099511627776, where -4 to 3 were expected by node '\(unnamed\)' "
                    r"\(Gather\)",
}

FINE = ["div by input is fine", "label ignored", "label computed is fine", "gather input fine", "bernoulli fine"]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(ModelError, match=REFUSED[name]):
        load(CASES[name][0])


@pytest.mark.parametrize("name", FAILING)
def test_run_ends_in_an_error(name):
    made, feeds = CASES[name]
    layer = OrtGradientForwardBackward(made, engine="step")
    with pytest.raises(DataError, match=FAILING[name]):
        layer.forward(feeds)


@pytest.mark.parametrize("name", FINE)
def test_fine(name):
    made, feeds = CASES[name]
    layer = OrtGradientForwardBackward(made, engine="step")
    ys, state = layer.forward(feeds)
    layer.backward([np.ones_like(y) for y in ys], state)


def test_guards_do_not_change_numbers():
    made, feeds = whole("q = Div(c, i) r = Mod(c, i) s = Add(q, r) f = Cast<to = 1>(s) y = Add(h, f)", 1, 3, -2, 3,
                        weights={"c": ints(4, 5, -7, 4)})
    (y,), _ = OrtGradientForwardBackward(made, engine="step").forward(feeds)
    (expected,) = onnx.reference.ReferenceEvaluator(made).run(None, feeds)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("divisor", [2, -3])
def test_constant_divisors_cost_nothing(divisor):
    made, _ = whole("q = Div(i, c) f = Cast<to = 1>(q) y = Add(h, f)", 4, 4, 4, 4, weights={"c": ints(divisor)})
    kinds = [n.op_type for n in forward_graph(load(made), []).graph.node]
    assert sorted(kinds) == ["Add", "Cast", "Div", "Mul"]


def test_labels_that_are_ignored():
    made, feeds = whole("y = SoftmaxCrossEntropyLoss<ignore_index = -100>(h, i)", 0, -100)
    OrtGradientForwardBackward(made, engine="step").forward(feeds)
    with pytest.raises(DataError, match="Input 'i' has labels from -7 to 0"):
        OrtGradientForwardBackward(made, engine="step").forward({**feeds, "i": ints(0, -7)})


def embedding():
    """Tokens to a row of an embedding, through a Cast and a Reshape."""
    body = "j = Cast<to = 6>(i) k = Reshape(j, s) e = Gather(E, k) y = ReduceMean<keepdims = 0>(e, a)"
    made = model(body, "int64[N, 3] i", {"s": ints(-1, 3), "E": real(11, 2), "a": ints(1)})
    next(n for n in made.graph.node if n.op_type == "Gather").name = "embed"
    return made


def test_indices_of_fit():
    optimizer = OrtGradientForwardBackwardOptimizer(embedding(), max_iter=1, batch_size=2)
    optimizer.fit(np.array([[0, 10, -11]] * 4), np.zeros((4, 2)))
    message = r"Input 'i' has indices from 0 to 11, where -11 to 10 were expected by node 'embed' \(Gather\)"
    for call in (lambda X: optimizer.fit(X, np.zeros((4, 2))), optimizer.predict):
        with pytest.raises(DataError, match=message):
            call(np.array([[0, 11, 3]] * 4))


def test_no_rows():
    made, _ = image("y = Conv(h, k)", {"k": real(4, 4, 3, 3)})
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    layer = OrtGradientForwardBackward(made, engine="step")
    with pytest.raises(DataError, match=r"Input 'x' has no elements, which crashes <Node .*: Conv>; leave"):
        layer.forward(np.zeros((0, 4, 6, 6), np.float32))


def test_declared_shapes_are_dropped():
    made, feeds = row("a = Add(h, h) y = Mul(a, a)")
    made.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.INT64, [7, 7, 7]))
    del made.graph.output[:]
    made.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [99]))
    (y,), _ = OrtGradientForwardBackward(made, engine="step").forward(feeds)
    assert y.shape == (2, 4)


def test_left_out_inputs():
    x = variable("x", "float32", [3])
    assert len(op.LayerNormalization(x, x, None).node.inputs) == 2
    with pytest.raises(GraphError, match="Sum requires its input 'data_0'"):
        op.Sum(x, None, x)


def test_not_valid():
    made = linear()
    made.graph.node.append(made.graph.node[0])
    with pytest.raises(ModelError, match="The model is not valid ONNX: "):
        load(made)


def test_functions_that_do_not_fit():
    made, _ = functions(("f1", "y = Relu(x)"))
    made.graph.node[-1].input.append("x")
    with pytest.raises(ModelError, match="The functions of the model cannot be inlined: "):
        load(made)


def test_size_of_what_is_not_known():
    check_size(variable("x", "float32", ["N", None, 10]), "x")
    check_size(variable("x", "float32", None), "x")
    Session(forward_graph(load(linear()), []))  # and a common model is left in peace


def test_the_memory_of_a_container(tmp_path, monkeypatch):
    (tmp_path / "limit").write_text("1073741824\n")
    (tmp_path / "unlimited").write_text("max\n")
    monkeypatch.setattr(validation, "_CONTAINER", [tmp_path / "unlimited", tmp_path / "nowhere"])
    assert validation.available_memory() > 2**30
    monkeypatch.setattr(validation, "_CONTAINER", [tmp_path / "unlimited", tmp_path / "limit"])
    assert validation.available_memory() == 2**30
