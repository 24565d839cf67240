"""Preparation: functions, opsets, shapes and constant folding, without copies of weights."""

import sys

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from ortpartial import gradient_model
from ortpartial.graph import WITH_BODIES
from ortpartial.model.load import load
from ortpartial.runtime import Session

passes = sys.modules["ortpartial.model.prepare"]  # the face has a function of this name


def text(body, opset=21, rest=""):
    opsets = f'"" : {opset}, "here" : 1, "ai.onnx.ml" : 3'
    return parser.parse_model(f"<ir_version: 8, opset_import: [{opsets}]>\n{body}\n{rest}")


@pytest.mark.parametrize(
    ("source", "shapes"),
    [
        ("g (float[N, 3] x) => (float[N, 3] y) { y = Exp(x) }", {"x": (5, 3), "y": (5, 3)}),
        ("g (float[N, 3] x) => (float[7, 9] y) { y = Exp(x) }", {"y": (5, 3)}),
        ("g (float[2, 3] x) => (float[2, 3] y) { y = Exp(x) }", {"x": (2, 3), "y": (2, 3)}),
        ("g (float[N, 3] x, float[T, N] z) => (float[T, 3] y) { y = MatMul(z, x) }", {"x": (5, 3), "z": (5, 5)}),
        ("g (float[N, 6] x) => (float[n, a, b] y) <int64[3] s = {0, 2, -1}> { y = Reshape(x, s) }", {"y": (5, 2, 3)}),
        ("g (float[N, 6] x) => (float[n, a] y) <int64[1] i = {-1}> "
         "{ s = Shape <end = 1> (x) t = Concat <axis = 0> (s, i) y = Reshape(x, t) }", {"y": (5, 6)}),
        ("g (double[N, 3] x) => (float[a, b] y) { u = ai.onnx.ml.Imputer <imputed_value_floats = [0.0]> (x) "
         "v = ai.onnx.ml.Scaler <offset = [0.0], scale = [2.0]> (u) z = ai.onnx.ml.Normalizer(v) y = Exp(z) }",
         {"y": (5, 3)}),
    ],
)
def test_batch(source, shapes):
    model = load(text(source), batch=5)
    found = {**model.inputs, **model.outputs}
    assert {n: found[n].shape for n in shapes} == shapes


def spied(original, sizes):
    """A function that notes how many bytes the model has that it is given."""
    def spy(model, *args, **kwargs):
        sizes.append(model.ByteSize())
        return original(model, *args, **kwargs)

    return spy


def test_passes_do_not_copy_weights(monkeypatch):
    sizes = []
    for module, name in ((passes.inliner, "inline_local_functions"),
                         (onnx.shape_inference, "infer_shapes")):
        monkeypatch.setattr(module, name, spied(getattr(module, name), sizes))
    model = text("g (float[N, 512] x) => (float[N, 512] y) { z = MatMul(x, w)  y = here.half(z) }", 12, rest="""
        <domain: "here", opset_import: ["" : 12]> half (x) => (y) { y = Softmax(x) }""")
    model.graph.initializer.append(numpy_helper.from_array(np.eye(512, dtype=np.float32), "w"))
    found = load(model)
    assert len(sizes) == 3
    assert max(sizes) < 1000
    assert found.initializers["w"].array.shape == (512, 512)


def test_arithmetic_of_shapes_is_done():
    """As torch's older exporter writes it: the rank of y hangs on a slice whose end is computed."""
    model = text("""g (float[N, 6] x) => (float[a, b, c] y) {
        two = Constant <value_ints: ints = [5]> ()  three = Constant <value_ints: ints = [4]> ()
        zero = Constant <value_ints: ints = [0]> ()  end = Mod(two, three)
        s = Shape(x)  n = Slice(s, zero, end)
        parts = Constant <value_ints: ints = [2, 3]> ()  t = Concat <axis = 0> (n, parts)  y = Reshape(x, t) }""")
    graph, opsets = passes.prepare(model)
    assert [n.op_type for n in graph.node if n.output[0] == "end"] == ["Constant"]
    assert passes.infer_types(graph, opsets)["y"].tensor_type.shape.dim[2].dim_value == 3
    assert load(model).outputs["y"].shape == ("N", 2, 3)


@pytest.mark.parametrize("expression", ["Add(w, w)", "RandomNormalLike(i)", "Range(i, i, i)"])
def test_what_is_not_folded(expression):
    """Weights may change, random numbers are drawn anew, and what fails is left to fail when it runs."""
    model = text(f"""g (float[N] x) => (float[M] y) <float[2] w = {{1, 2}}, int64 i = {{0}}> {{
        z = {expression}  y = Identity(z) }}""")
    graph, _ = passes.prepare(model)
    assert graph.node[0].op_type == expression.partition("(")[0]


def test_every_operator_with_a_body_is_known():
    graphs = onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS
    schemas = [s for s in onnx.defs.get_all_schemas() if not s.domain]
    found = {s.name for s in schemas if any(a.type in graphs for a in s.attributes.values())}
    assert found == WITH_BODIES


def test_nodes_in_any_order():
    """As onnxruntime runs them, and as its converter to float16 leaves them: the casts of inputs come last."""
    body = "<body = b (int64 i, bool c, float[N] s) => (bool d, float[N] t) { d = Identity(c) t = Mul(s, k) }>"
    model = text(f"""g (float[N] x) => (float[N] y) {{
        y = Add(u, h)
        u = Loop {body} (n, , h)
        k = Exp(h)
        h = Cast <to = 1> (x)
        n = Constant <value = int64 {{2}}> ()
    }}""")
    written = model.SerializeToString(deterministic=True)
    graph, _ = passes.prepare(model)
    assert [n.op_type for n in graph.node] == ["Cast", "Constant", "Exp", "Loop", "Add"]
    assert load(model).outputs["y"].shape == ("N",)
    assert model.SerializeToString(deterministic=True) == written


def test_declarations_without_a_type():
    """So `select_model_inputs_outputs` of skl2onnx leaves them, and onnxruntime reads them."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[N, 2] x) => (float[N, 2] y) {
        h = Exp(x) y = Neg(h) }""")
    model.graph.output[0].ClearField("type")
    model.graph.value_info.add(name="h")
    x = np.array([[0.5, 1]], np.float32)
    np.testing.assert_allclose(Session(model).run({"x": x})["y"], -np.exp(x), rtol=1e-6)
    loaded = load(model)
    assert repr(loaded.outputs["y"]) == "<Value y float32[Nx2]>"
    np.testing.assert_allclose(Session(gradient_model(model, ["x"], cotangents="ones")).run({"x": x})["x_grad"],
                               -np.exp(x), rtol=1e-6)
