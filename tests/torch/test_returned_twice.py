"""Outputs that are another output, an input, a weight or a constant: all are returned, with their gradients."""

import io

import numpy as np
import onnx
import pytest
import torch
from once import ON_BOTH
from onnx import TensorProto, helper

from ortpartial import OrtGradientForwardBackward, OrtGradientForwardBackwardOptimizer, gradient_model, nn
from ortpartial.model import load
from ortpartial.runtime import Session
from ortpartial.torch import OnnxLayer

F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
W = np.array([[1, 2], [3, 4]], np.float32)
PRODUCT = helper.make_node("MatMul", ["x", "w"], ["y"])


def same(source, target):
    return helper.make_node("Identity", [source], [target])


#: The nodes after the product y = x w, the outputs, and how torch writes them.
CASES = {
    "twice": ([], "yy", lambda x, y, w: (y, y)),
    "several": ([helper.make_node("Relu", ["y"], ["y_1"])], ["y", "y_1", "y", "y", "y_1"],
                lambda x, y, w: (y, y.relu(), y, y, y.relu())),
    "input": ([], "xyx", lambda x, y, w: (x, y, x)),
    "weight": ([], "wyw", lambda x, y, w: (w, y, w)),
    "constant": ([helper.make_node("Constant", [], ["k"], value=helper.make_tensor("k", F, [2], [5, 6]))], "kyk",
                 lambda x, y, w: (torch.tensor([5.0, 6]), y, torch.tensor([5.0, 6]))),
    "alias": ([same("y", "z")], "zy", lambda x, y, w: (y, y)),
    "alias of the input": ([same("x", "z")], "zyx", lambda x, y, w: (x, y, x)),
    "alias of the weight": ([same("w", "z")], "zyw", lambda x, y, w: (w, y, w)),
    "integers and bools": ([helper.make_node("Cast", ["y"], ["i"], to=I),
                            helper.make_node("Greater", ["y", "x"], ["b"])], "ibybiy",
                           lambda x, y, w: (y.long(), y > x, y, y > x, y.long(), y)),
    "softmax": ([helper.make_node("Softmax", ["y"], ["s"])], "sys", lambda x, y, w: (y.softmax(1), y, y.softmax(1))),
}
SHAPES = {"w": (F, [2, 2]), "k": (F, [2]), "i": (I, ["N", 2]), "b": (B, ["N", 2])}


def model_of(case):
    nodes, outputs, _ = CASES[case]
    infos = [helper.make_tensor_value_info(n, *SHAPES.get(n[0] if n in SHAPES else "", (F, ["N", 2])))
             for n in outputs]
    if case == "alias of the weight":
        infos[0] = helper.make_tensor_value_info("z", F, [2, 2])
    graph = helper.make_graph([PRODUCT, *nodes], "twice", [helper.make_tensor_value_info("x", F, ["N", 2])], infos,
                              [onnx.numpy_helper.from_array(W, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def expected_of(case):
    """The outputs by torch, and the gradients of a weighted sum of all real ones by x and w, with its factors."""
    x, w = torch.tensor(X, requires_grad=True), torch.tensor(W, requires_grad=True)
    ys = CASES[case][2](x, x @ w, w)
    factors = [torch.tensor(np.random.default_rng(i).normal(size=y.shape), dtype=torch.float32)
               for i, y in enumerate(ys)]
    total = sum((f * y).sum() for f, y in zip(factors, ys, strict=True) if y.is_floating_point())
    return ys, factors, torch.autograd.grad(total, [x, w])


def assert_equal(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.as_tensor(a).detach(), b.detach())


ENGINES = ["auto", "step", pytest.param("agent", marks=pytest.mark.agent)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ENGINES)
@ON_BOTH
def test_layer(case, engine):
    if (case, engine) == ("constant", "agent"):
        pytest.skip("onnxruntime-training 1.19.2 refuses an output without an input; 'auto' takes 'step'")
    layer, x = OnnxLayer(model_of(case), engine=engine), torch.tensor(X, requires_grad=True)
    ys, (theirs, factors, gradients) = layer(x), expected_of(case)
    assert_equal(ys, theirs)
    assert [y.requires_grad for y in ys] == [y.requires_grad for y in theirs]
    total = sum((f * y).sum() for f, y in zip(factors, ys, strict=True) if y.is_floating_point())
    assert_equal(torch.autograd.grad(total, [x, layer.w]), gradients)


@pytest.mark.parametrize("case", CASES)
def test_written_outputs(case):
    """Each output has memory of its own: writing to one changes neither another one nor an input or a weight."""
    layer, x, expected = OnnxLayer(model_of(case)), torch.tensor(X), expected_of(case)[0]
    with torch.no_grad():
        for _ in range(2):
            ys = layer(x)
            assert_equal(ys, expected)
            for y in ys:
                y.zero_()
            assert_equal([x, layer.w], [torch.tensor(X), torch.tensor(W)])


@pytest.mark.parametrize("case", CASES)
def test_other_doors(case):
    model, (ys, factors, gradients) = model_of(case), expected_of(case)
    module = nn.Module.from_onnx(model)
    module.compile(nn.placeholder(["N", 2], np.float32))
    assert_equal(list(map(np.asarray, module(X))), ys)
    floats = [i for i, y in enumerate(ys) if y.is_floating_point()]
    trained = gradient_model(model, ["w", "x"])
    session = Session(trained)
    cotangents = dict(zip([i.name for i in trained.graph.input][2:], [factors[i].numpy() for i in floats], strict=True))
    feeds = {"x": X, "w": W, **cotangents}
    assert_equal(session.run({n: feeds[n] for n in session.inputs}).values(), gradients[::-1])
    exported = io.BytesIO()
    torch.onnx.export(OnnxLayer(model).eval(), (torch.tensor(X),), exported, dynamo=False)
    session = Session(exported.getvalue())
    assert_equal(session.run(dict.fromkeys(session.inputs, X)).values(), ys)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ENGINES)
@ON_BOTH
def test_forward_backward(case, engine):
    if (case, engine) == ("constant", "agent"):
        pytest.skip("onnxruntime-training 1.19.2 refuses an output without an input; 'auto' takes 'step'")
    both, (ys, factors, (dx, dw)) = OrtGradientForwardBackward(model_of(case), engine=engine), expected_of(case)
    floats = [i for i, y in enumerate(ys) if y.is_floating_point()]
    outputs, state = both.forward(X)
    assert_equal(outputs, [ys[i] for i in floats])
    weights, inputs = both.backward([factors[i].numpy() for i in floats], state)
    assert_equal([inputs["x"], weights["w"]], [dx, dw])


def test_training():
    """A tensor that is returned twice is one output to train; the trained file returns it twice as before."""
    for case in ("twice", "integers and bools"):
        model = model_of(case)
        optimizer = OrtGradientForwardBackwardOptimizer(model, max_iter=2, random_state=0).fit(X, X)
        assert np.asarray(optimizer.predict(X)).shape == (3, 2)
        assert [o.name for o in optimizer.get_trained_onnx().graph.output] == list(CASES[case][1])


def test_names():
    """The names of further outputs are no names of other tensors."""
    assert list(load(model_of("several")).outputs) == ["y", "y_1", "y_2", "y_3", "y_1_1"]


@ON_BOTH
def test_a_returned_input_is_kept_alive():
    session = Session(model_of("input"))
    returned = session.run({"x": X.copy()})["x"]
    others = [np.full((3, 2), 9, np.float32) for _ in range(50)]
    np.testing.assert_array_equal(returned, X)
    assert len(others) == 50
