"""Attributes of local functions: defaults, references, nested calls, bodies, overloads."""

import numpy as np
import onnxruntime
import pytest
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator

from ortpartial import gradient_model
from ortpartial.graph import build
from ortpartial.model import load
from ortpartial.runtime import Session

HEAD = '<ir_version: 10, opset_import: ["" : 21, "here" : 1]>'


def model(body, *functions, opset=21):
    """A model and its functions, each with a name, attributes, inputs, outputs and nodes as text."""
    texts = [f'<domain: "here", opset_import: ["" : {opset}, "here" : 1]> {f}' for f in functions]
    return parser.parse_model("\n".join([f"{HEAD} g (float[2, 3] x) => (float[a, b] y) {{ {body} }}", *texts]))


SOFTMAX = "f <axis: int = 0> (x) => (y) { y = Softmax <axis: int = @axis> (x) }"
LEAKY = "f <slope: float = 0.3> (x) => (y) { y = LeakyRelu <alpha: float = @slope> (x) }"

#: Calls of functions, and the same without functions.
CASES = {
    "default": (model("y = here.f (x)", SOFTMAX), "y = Softmax <axis = 0> (x)"),
    "written": (model("y = here.f <axis = 1> (x)", SOFTMAX), "y = Softmax <axis = 1> (x)"),
    "both": (model("a = here.f (x)  b = here.f <axis = 1> (x)  y = Mul(a, b)", SOFTMAX),
             "a = Softmax <axis = 0> (x)  b = Softmax <axis = 1> (x)  y = Mul(a, b)"),
    "float": (model("y = here.f (x)", LEAKY), "y = LeakyRelu <alpha = 0.3> (x)"),
    "elu": (model("y = here.f (x)", "f <a: float = 0.5> (x) => (y) { y = Elu <alpha: float = @a> (x) }"),
            "y = Elu <alpha = 0.5> (x)"),
    "required": (model("y = here.f (x)", "f <axis: int = 1> (x) => (y) { y = Concat <axis: int = @axis> (x, x) }"),
                 "y = Concat <axis = 1> (x, x)"),
    "constant": (model("y = here.f (x)", "f <c: float = 2.5> (x) => (y) "
                       "{ k = Constant <value_float: float = @c> ()  y = Mul(x, k) }"),
                 "k = Constant <value_float = 2.5> ()  y = Mul(x, k)"),
    "tensor": (model("y = here.f (x)", "f <c: tensor = float[3] {1.0, 2.0, 4.0}> (x) => (y) "
                     "{ k = Constant <value: tensor = @c> ()  y = Mul(x, k) }"),
               "k = Constant <value_floats = [1.0, 2.0, 4.0]> ()  y = Mul(x, k)"),
    "ints": (model("y = here.f (x)", "f <p: ints = [1, 0]> (x) => (y) { y = Transpose <perm: ints = @p> (x) }"),
             "y = Transpose <perm = [1, 0]> (x)"),
    "text": (model("y = here.f (x)", 'f <a: string = "tanh"> (x) => (y) { y = Gelu <approximate: string = @a> (x) }'),
             'y = Gelu <approximate = "tanh"> (x)'),
    "of the schema": (model("y = here.f (x)", "f <a> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }"),
                      "y = LeakyRelu (x)"),
    "nested": (model("y = here.g (x)", SOFTMAX, "g (x) => (y) { z = here.f (x)  y = Exp(z) }"),
               "z = Softmax <axis = 0> (x)  y = Exp(z)"),
    "reference of a default": (
        model("y = here.g (x)", SOFTMAX, "g <k: int = 1> (x) => (y) { y = here.f <axis: int = @k> (x) }"),
        "y = Softmax <axis = 1> (x)"),
    "reference of a written one": (
        model("y = here.g <k = 1> (x)", SOFTMAX, "g <k: int = 0> (x) => (y) { y = here.f <axis: int = @k> (x) }"),
        "y = Softmax <axis = 1> (x)"),
    "reference of none": (model("y = here.g (x)", SOFTMAX, "g <k> (x) => (y) { y = here.f <axis: int = @k> (x) }"),
                          "y = Softmax <axis = 0> (x)"),
    "one with, one without": (
        model("a = here.g (x)  b = here.g <k = 1> (x)  y = Mul(a, b)", SOFTMAX,
              "g <k> (x) => (y) { y = here.f <axis: int = @k> (x) }"),
        "a = Softmax <axis = 0> (x)  b = Softmax <axis = 1> (x)  y = Mul(a, b)"),
    "three deep": (
        model("y = here.h (x)", SOFTMAX, "g <k: int = -1> (x) => (y) { y = here.f <axis: int = @k> (x) }",
              "h <j: int = 0> (x) => (y) { a = here.g <k: int = @j> (x)  b = here.g (x)  y = Mul(a, b) }"),
        "a = Softmax <axis = 0> (x)  b = Softmax <axis = -1> (x)  y = Mul(a, b)"),
    "in a branch of the model": (
        model("c = Constant <value: tensor = bool {1}> ()  y = If (c) "
              "<then_branch = t () => (float[2, 3] u) { u = here.f (x) }, "
              "else_branch = e () => (float[2, 3] v) { v = Neg(x) }>", SOFTMAX), "y = Softmax <axis = 0> (x)"),
    "in a branch of a function": (
        model("y = here.f (x)", "f <axis: int = 0> (x) => (y) { c = Constant <value: tensor = bool {1}> ()  y = If (c) "
              "<then_branch = t () => (u) { u = Softmax <axis: int = @axis> (x) }, "
              "else_branch = e () => (v) { v = Neg(x) }> }"), "y = Softmax <axis = 0> (x)"),
    "call in a branch of a function": (
        model("y = here.g (x)", SOFTMAX, "g <k> (x) => (y) { c = Constant <value: tensor = bool {1}> ()  y = If (c) "
              "<then_branch = t () => (u) { u = here.f <axis: int = @k> (x) }, "
              "else_branch = e () => (v) { v = here.f <axis = 1> (x) }> }"), "y = Softmax <axis = 0> (x)"),
    "an older opset": (model("y = here.f (x)", "f <axis: int = 0> (x) => (y) { y = Softmax <axis: int = @axis> (x) }",
                             opset=13), "y = Softmax <axis = 0> (x)"),
}


def overloaded():
    """Two functions of one name, told apart by overload, with other defaults."""
    proto = model("a = here.f (x)  b = here.f (x)  y = Mul(a, b)", LEAKY, LEAKY)
    for overload, f, node in zip(("one", "two"), proto.functions, proto.graph.node, strict=False):
        f.overload, node.overload = overload, overload
    del proto.functions[1].attribute_proto[:]
    proto.functions[1].attribute_proto.append(helper.make_attribute("slope", 0.6))
    return proto


def overload_of_an_overload():
    """A function that calls another one of its name."""
    proto = model("y = here.f (x)", LEAKY, "f <slope: float = 0.6> (x) => (y) { z = here.f (x)  y = Neg(z) }")
    proto.functions[0].overload = proto.functions[1].node[0].overload = "inner"
    return proto


CASES["overload of an overload"] = (overload_of_an_overload(), "z = LeakyRelu <alpha = 0.3> (x)  y = Neg(z)")
CASES["overloads"] = (overloaded(), "a = LeakyRelu <alpha = 0.3> (x)  b = LeakyRelu <alpha = 0.6> (x)  y = Mul(a, b)")


@pytest.mark.parametrize("case", CASES)
def test_forward_and_gradient(case, rng):
    """Those of the model without functions; forward also that of onnx's evaluator."""
    proto, plain = CASES[case][0], model(CASES[case][1])
    feeds = {"x": rng.normal(size=(2, 3)).astype(np.float32)}
    loaded = load(proto)
    y = Session(build(loaded.inputs, loaded.outputs)).run(feeds)["y"]
    np.testing.assert_allclose(y, ReferenceEvaluator(plain).run(None, feeds)[0], rtol=1e-6)
    feeds["y_grad"] = rng.normal(size=y.shape).astype(np.float32)
    gradients = [Session(gradient_model(m, ["x"])).run(feeds)["x_grad"] for m in (proto, plain)]
    np.testing.assert_array_equal(*gradients)


@pytest.mark.parametrize("case", ["default", "both", "required", "constant", "nested", "reference of a default",
                                  "in a branch of a function"])
def test_as_onnxruntime_runs_the_file(case, rng):
    feeds = {"x": rng.normal(size=(2, 3)).astype(np.float32)}
    loaded = load(CASES[case][0])
    y = Session(build(loaded.inputs, loaded.outputs)).run(feeds)["y"]
    file = onnxruntime.InferenceSession(CASES[case][0].SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(y, file.run(None, feeds)[0], rtol=1e-6)


def test_the_model_is_not_written_to():
    proto = CASES["three deep"][0]
    before = proto.SerializeToString()
    load(proto)
    assert proto.SerializeToString() == before
