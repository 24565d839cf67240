"""Loading: models of many exporters compute the same before and after."""

import copy
import pickle
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from models import linear, mlp, weights_of
from onnx import parser
from skl2onnx import to_onnx
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPClassifier
from torch import nn

from ortpartial.autodiff.trainable import resolve_weights
from ortpartial.exceptions import ModelError
from ortpartial.graph import op
from ortpartial.graph.build import build
from ortpartial.model.external_data import replace_weights
from ortpartial.model.load import load, read
from ortpartial.model.specialize import specialize


def run(model, feeds):
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def text(body, opset=21, ir=8, rest=""):
    return parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}, "here" : 1]>\n{body}\n{rest}')


def assert_same(model, feeds, tol=1e-6):
    """Outputs of the model, and of what is built of its values, are the same; the model itself is not written to."""
    before = model.SerializeToString()
    found = load(model)
    rebuilt = build(found.inputs, found.outputs)
    onnx.checker.check_model(rebuilt, full_check=True)
    for y, e in zip(run(rebuilt, feeds), run(model, feeds), strict=True):
        assert y.dtype == e.dtype
        np.testing.assert_allclose(y, e, rtol=tol, atol=tol)
    assert model.SerializeToString() == before
    return found


FUNCTION = """<domain: "here", opset_import: ["" : 13]>
shrink <rate> (x, w) => (y) { z = MatMul(x, w)  r = Constant <value_float: float = @rate> ()  y = Mul(z, r) }"""

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)

TEXTS = {
    "constants": text("""g (float[N, 3] x) => (float[N, 3] y) {
        a = Constant <value_float: float = 2.5> ()
        b = Constant <value = float[3] {1, 2, 3}> ()
        c = Constant <value_ints: ints = [0, -1]> ()
        d = Constant <value_floats: floats = [1, 2, 3]> ()
        z = Mul(x, a)  u = Add(z, b)  v = Mul(u, d)  y = Reshape(v, c) }"""),
    "initializers": text("g (float[N, 3] x) => (float[N, 1] y) <float[3, 1] w = {1, 2, 3}> { y = MatMul(x, w) }"),
    "function": text("""g (float[N, 3] x) => (float[N, 1] y) <float[3, 1] w = {1, 2, 3}> {
        y = here.shrink <rate = 0.5> (x, w) }""", 18, rest=FUNCTION),
    "function at 21": text("""g (float[N, 3] x) => (float[N, 1] y) <float[3, 1] w = {1, 2, 3}> {
        y = here.shrink <rate = 0.5> (x, w) }""", 21, rest=FUNCTION.replace("13", "21")),
    "opset 13": text("""g (float[N, 3] x) => (float[N, 1] y) <int64[1] axes = {1}> {
        s = ReduceSum <keepdims = 1> (x, axes)  m = ReduceMax <axes = [1]> (x)  y = Div(s, m) }""", 13),
    "opset 17": text("""g (float[N, 3] x) => (float[N, 3] y) <float[3] a = {1, 2, 3}> {
        m = ReduceMean <axes = [0]> (x)  z = Sub(x, m)  y = LayerNormalization(z, a) }""", 17),
    "opset 18": text("""g (float[N, 3] x) => (float[N, 2] y, float[N, 1] z) <int64[1] axes = {1}> {
        y, u = Split <axis = 1, num_outputs = 2> (x)  z = ReduceMin(x, axes) }""", 18),
    "opset 20": text("g (float[N, 3] x) => (float[N, 3] y) { y = Gelu <approximate = \"tanh\"> (x) }", 20),
    "identity": text("g (float[N, 3] x) => (float[N, 3] y) { y = Identity(x) }"),
    "initializer among inputs": text("""g (float[N, 3] x, float[3] w) => (float[N, 3] y) <float[3] w = {1, 2, 3}> {
        y = Mul(x, w) }""", ir=3),
    "optional input left out": text("""g (float[N, 3] x) => (float[N, 3] y) <float top = {0.5}> {
        y = Clip(x, , top) }"""),
    "running statistics": text("""g (float[N, 3] x) => (float[N, 3] y) <float[3] a = {1, 2, 3}> {
        y = BatchNormalization(x, a, a, a, a) }""", 17),
    "second output": text("""g (float[N, 3] x) => (int64[N, 1] i) <int64[1] k = {1}> { v, i = TopK(x, k) }"""),
    "same twice": text("g (float[N, 3] x) => (float[N, 3] y, float[N, 3] z) { y = Exp(x)  z = Exp(x) }"),
}


@pytest.mark.parametrize("model", TEXTS.values(), ids=TEXTS)
def test_same_outputs(model):
    assert_same(model, {"x": X})


IF = """y = If (b) <
    then_branch = t () => (float[N, 3] u) <float[3] v = {1, 2, 3}> { k = Exp(x)  u = Mul(k, v) },
    else_branch = e () => (float[N, 3] u) { k = Add(x, w)  u = Identity(k) }>"""
LOOP = """n = Constant <value_int: int = 3> ()
    h, s = Loop (n, , x) <body = l (int64 i, bool c, float[N, 3] v) => (bool d, float[N, 3] u, float[N, 1] o) {
        d = Identity(c)  u = Mul(v, w)  o = ReduceSum <keepdims = 1> (u, axes) }>"""
SCAN = """h, s = Scan <num_scan_inputs = 1, body = b (float[3] v, float[3] a) => (float[3] u, float[3] o) {
        u = Add(v, a)  o = If (g) <
            then_branch = t () => (float[3] p) { p = Mul(u, w) },
            else_branch = e () => (float[3] q) { q = Exp(v) }> }> (w, x)"""
BODIES = {
    "function in a branch": text("""g (float[N, 3] x) => (float[N, 1] y)
        <float[3] w = {1, 2, 3}, float[3, 1] v = {1, 2, 3}, float zero = {0}> {
        m = ReduceSum <keepdims = 0> (x)  b = Greater(m, zero)  y = If (b) <
            then_branch = t () => (float[N, 1] u) { u = here.shrink <rate = 0.5> (x, v) },
            else_branch = e () => (float[N, 1] u) { k = Mul(x, w)  u = here.shrink <rate = 0.5> (k, v) }> }""", 18,
        rest=FUNCTION),
    "if": text(f"g (float[N, 3] x) => (float[N, 3] y) <bool b = {{1}}, float[3] w = {{1, 2, 3}}> {{ {IF} }}"),
    "if at run time": text(f"""g (float[N, 3] x) => (float[N, 3] y) <float[3] w = {{1, 2, 3}}, float zero = {{0}}> {{
        m = ReduceSum <keepdims = 0> (x)  b = Greater(m, zero)  {IF} }}"""),
    "loop": text(f"""g (float[N, 3] x) => (float[N, 3] h, float[K, N, 1] s)
        <float[3] w = {{1, 2, 3}}, int64[1] axes = {{1}}> {{ {LOOP} }}"""),
    "loop of opset 12": text(f"""g (float[N, 3] x) => (float[N, 3] h, float[K, N, 1] s) <float[3] w = {{1, 2, 3}}>
        {{ {LOOP.replace("<keepdims = 1> (u, axes)", "<keepdims = 1, axes = [1]> (u)")} }}""", 12),
    "scan": text(f"""g (float[N, 3] x) => (float[3] h, float[N, 3] s) <float[3] w = {{1, 2, 3}}, float zero = {{0}}> {{
        m = ReduceSum <keepdims = 0> (x)  g = Greater(m, zero)  {SCAN} }}"""),
    "function": text("""g (float[N, 3] x) => (float[N, 3] y) <bool b = {0}, float[3] w = {1, 2, 3}> {
        y = here.choose (x, w, b) }""", rest="""<domain: "here", opset_import: ["" : 21]>
        choose (x, w, b) => (y) { z = Exp(x)  y = If (b) <then_branch = t () => (float[N, 3] u) { u = Mul(z, w) },
        else_branch = e () => (float[N, 3] u) { u = Neg(z) }> }"""),
}


@pytest.mark.parametrize("model", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("sign", [1, -1])
def test_graphs_inside_nodes(model, sign):
    found = assert_same(model, {"x": X + sign})
    assert found.initializers["w"].shape == (3,)
    # Weights that a body reads are found, and can be inputs.
    changing = load(model, variables=["w"])
    rebuilt = build([*changing.inputs.values(), changing.initializers["w"]], changing.outputs)
    w = np.array([1, 2, 3], np.float32)
    for a, b in zip(run(rebuilt, {"x": X + sign, "w": w}), run(model, {"x": X + sign}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_sizes_that_a_body_declares_are_not_believed():
    grow = """h = Loop (n, , x) <body = l (int64 i, bool c, float[2, 3] v) => (bool d, float[2, 3] u) {
        d = Identity(c)  u = Concat <axis = 0> (v, v) }>"""
    model = text(f"g (float[2, 3] x, int64 n) => (float[K, 3] h) {{ {grow} }}")
    found = load(model)
    assert found.outputs["h"].shape == (None, 3)
    (h,) = run(build(found.inputs, found.outputs), {"x": X, "n": np.array(3)})
    assert h.shape == (16, 3)


def test_a_condition_that_is_known_is_decided():
    model = load(BODIES["if"])
    assert [n.op_type for n in build(model.inputs, model.outputs).graph.node] == ["Exp", "Mul"]
    model = load(BODIES["function"])
    assert [n.op_type for n in build(model.inputs, model.outputs).graph.node] == ["Exp", "Neg"]


def test_what_is_stored_in_a_body_is_a_weight():
    model = load(BODIES["if at run time"])
    assert resolve_weights(model, None, ["y"]) == ["w", "v"]
    found = replace_weights(BODIES["if at run time"], {"v": np.zeros(3, np.float32)})
    assert (run(found, {"x": X + 1})[0] == 0).all()
    assert (run(found, {"x": X - 1})[0] == run(BODIES["if at run time"], {"x": X - 1})[0]).all()
    # Of one name in two bodies there is no telling which is meant.
    twice = text(str(onnx.printer.to_text(BODIES["if at run time"].graph)).replace(
        "else_branch: graph = e () => (float[N,3] u) {",
        "else_branch: graph = e () => (float[N,3] u) <float[3] v = {7, 7, 7}> { r = Identity(v)"))
    assert "v" not in load(twice).initializers
    assert_same(twice, {"x": X + 1})


def test_names_and_values():
    model = load(TEXTS["constants"])
    assert list(model.inputs) == ["x"]
    assert list(model.outputs) == ["y"]
    assert not model.initializers
    assert model.values["b"].array.tolist() == [1, 2, 3]
    assert list(load(TEXTS["initializer among inputs"]).inputs) == ["x"]
    assert load(linear()).initializers["coef"].shape == (4, 1)


# What cannot be read


def external(folder: Path) -> Path:
    """A model on disk whose weights stand in a file beside it."""
    path = folder / "model.onnx"
    onnx.save(linear(300), path, save_as_external_data=True, location="model.data", size_threshold=100)
    return path


def test_external_data(tmp_path):
    path = external(tmp_path)
    assert path.stat().st_size < 1000
    x = np.ones((2, 300), np.float32)
    found = load(path)
    assert (found.initializers["coef"].array == weights_of(linear(300))["coef"]).all()
    (y,), (e,) = run(build(found.inputs, found.outputs), {"x": x}), run(linear(300), {"x": x})
    np.testing.assert_allclose(y, e, rtol=1e-6)


@pytest.mark.parametrize("kind", [str, Path])
def test_read(tmp_path, kind):
    model = mlp()
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert read(kind(path)) == read(model.SerializeToString()) == read(bytearray(model.SerializeToString())) == model
    assert read(model) is model


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no ONNX model, or one that was cut short"),
        (b"PK\x03\x04 a zip file", "is no ONNX model, or one that was cut short"),
        (linear().SerializeToString()[:60], "is no ONNX model, or one that was cut short"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "is no ONNX model, or one that was cut short"),
    ],
    ids=["empty", "zip", "truncated", "without a graph"],
)
def test_not_a_model(tmp_path, content, message):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=f"model.onnx' {message}"):
        load(path)
    with pytest.raises(ModelError, match=f"The {len(content)} bytes given are {message[3:]}"):
        load(content)


def test_every_truncation_is_an_error():
    content = linear().SerializeToString()
    for length in range(0, len(content), 7):
        with pytest.raises(ModelError):
            load(content[:length])


def test_unknown_path(tmp_path):
    with pytest.raises(ModelError, match=r"There is no file .*nowhere.onnx'; give a path to an ONNX model, bytes or"):
        load(tmp_path / "nowhere.onnx")
    with pytest.raises(ModelError, match="A model is a ModelProto, bytes or a path, not int"):
        load(3)


def test_missing_external_data(tmp_path):
    path = external(tmp_path)
    (tmp_path / "model.data").unlink()
    with pytest.raises(ModelError, match=r"The external data of 'coef' cannot be read: .*model.data"):
        load(path)
    with pytest.raises(ModelError, match=r"The data of 'coef' are in another file \(external data\); give the path"):
        load(onnx.load(path, load_external_data=False))


# Who writes models


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Flatten(), nn.Dropout(0.5))
        self.head = nn.Sequential(nn.Linear(64, 10), nn.LayerNorm(10), nn.GELU())

    def forward(self, x):
        return self.head(self.features(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x):
        return self.layer(self.embed(x)).mean(1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize(("make", "shape"), [(Net, (3, 1, 8, 8)), (Encoder, (3, 5, 6))], ids=["cnn", "transformer"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_torch(tmp_path, make, shape, dynamo):
    torch.manual_seed(0)
    net, x, file = make().eval(), torch.randn(shape), tmp_path / "net.onnx"
    settings = {"dynamic_shapes": ({0: torch.export.Dim("N")},)} if dynamo else {"dynamic_axes": {"x": {0: "N"}}}
    torch.onnx.export(net, (x,), file, dynamo=dynamo, input_names=["x"], output_names=["y"], opset_version=18,
                      verbose=False, **settings)
    model = read(file)
    found = assert_same(model, {"x": x.numpy()}, tol=1e-5)
    (y,) = run(build(found.inputs, found.outputs), {"x": x[:2].numpy()})
    np.testing.assert_allclose(y, net(x[:2]).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        (LinearRegression(), {"black_op": {"LinearRegressor"}}),
        (MLPClassifier((5,), max_iter=20, random_state=0), {"options": {"zipmap": False}}),
    ],
    ids=["linear", "mlp"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_skl2onnx(estimator, options):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 4)).astype(np.float32)
    model = to_onnx(estimator.fit(x, x[:, 0] > 0), x[:1], target_opset=18, **options)
    found = assert_same(model, {"X": x}, tol=1e-5)
    assert len(found.initializers) >= 2


def test_a_pickle_and_a_copy():
    model = specialize(load(mlp()), batch=3, variables=["W1"])
    again = pickle.loads(pickle.dumps(model))
    graphs = [build({**m.inputs, "W1": m.initializers["W1"]}, m.outputs) for m in (again, model)]
    assert graphs[0] == graphs[1]
    assert again.proto == model.proto
    assert repr(again) == repr(model)
    assert {n: v.type_name for n, v in again.values.items()} == {n: v.type_name for n, v in model.values.items()}
    assert again.values[next(iter(again.outputs))] == next(iter(again.outputs.values()))
    for n, a in model.arrays.items():
        np.testing.assert_array_equal(again.arrays[n], a)
    assert copy.deepcopy(model) is model
    both = pickle.loads(pickle.dumps((model, op.Exp(next(iter(model.outputs.values()))))))
    assert both[1].node.inputs[0] == next(iter(both[0].outputs.values()))
