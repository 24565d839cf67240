"""Operators that ONNX does not know: read, run, trained behind, and an error where a gradient has to pass."""

import importlib.util
import pickle
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from once import ON_BOTH
from onnx import TensorProto, defs, helper, numpy_helper
from onnxruntime import InferenceSession, SessionOptions

from ortpartial import (
    OnnxLayer,
    OrtGradientForwardBackwardOptimizer,
    TrainingKit,
    build,
    composed,
    gradient_model,
    load,
    op,
    vjp,
)
from ortpartial.autodiff.registry import RULES
from ortpartial.cli import main
from ortpartial.exceptions import ModelError, NoGradientError
from ortpartial.graph.gradient_stop import mark_gradient_stop
from ortpartial.model.reader import EXPANSIONS
from ortpartial.runtime import Session, has_training
from ortpartial.training_info import TrainingSession, to_training_info

pytestmark = ON_BOTH

#: It has operators of the domain ai.onnx.contrib, such as NegPos: min(x, 0) and max(x, 0).
EXTENSIONS = importlib.util.find_spec("onnxruntime_extensions")
needs_library = pytest.mark.skipif(EXTENSIONS is None, reason="onnxruntime-extensions, a library of custom operators, "
                                                              "is not installed")
IS_OLD = onnxruntime.__version__.startswith("1.19.")
ROWS = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
TARGETS = np.random.default_rng(1).normal(size=(20, 2)).astype(np.float32)


#: Operators that stand for any that nobody has declared, or written a rule for.
FORGOTTEN = ("CDist", "Inverse", "Pad", "Range", "Trilu", "Unique")


@pytest.fixture(autouse=True, scope="module")
def _forget():
    """What is known of some operators is unknown in these tests, so that they are opaque."""
    keys = [("com.microsoft", name) for name in FORGOTTEN]
    schemas = [defs.get_schema(name, domain) for domain, name in keys if defs.has(name, domain)]
    kept = [(table, key, table[key]) for table in (EXPANSIONS, RULES) for key in keys if key in table]
    for schema in schemas:
        defs.deregister_schema(schema.name, schema.since_version, schema.domain)
    for table, key, _ in kept:
        del table[key]
    yield
    for schema in schemas:
        defs.register_schema(schema)
    for table, key, value in kept:
        table[key] = value


def weight(name, *shape):
    rng = np.random.default_rng(sum(map(ord, name)))
    return numpy_helper.from_array(rng.normal(size=shape).astype(np.float32) * 0.5, name)


def between(*nodes, opset=21, initializers=(), declared=()):
    """y = f(x W0) W1, where nodes compute z = f(h)."""
    domains = {node.domain for node in nodes} - {""}
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W0"], ["h"]), *nodes, helper.make_node("MatMul", ["z", "W1"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        [weight("W0", 4, 4), weight("W1", 4, 2), *initializers], value_info=declared)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset),
                                                   *(helper.make_opsetid(d, 1) for d in domains)], ir_version=9)


def distances(**settings):
    """The distances to four points, by an operator of which onnxruntime infers no shape."""
    node = helper.make_node("CDist", ["h", "points"], ["z"], "d", domain="com.microsoft", metric="euclidean")
    return between(node, initializers=[weight("points", 4, 4)], **settings)


def run(model, rows=ROWS, library=None):
    options = SessionOptions()
    if library:
        options.register_custom_ops_library(library)
    model = model.SerializeToString()
    return InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, {"x": rows})[0]


def test_it_is_read_with_the_types_that_the_runtime_finds():
    model = load(distances())
    assert model.values["z"].type_name == "float32[?x?]"
    assert model.values["z"].node.op_type == "com.microsoft.CDist"
    node = helper.make_node("Inverse", ["h"], ["z"], domain="com.microsoft")
    assert load(between(node), batch=4).values["z"].shape == (4, 4)
    assert load(between(node)).outputs["y"].shape == ("N", 2)


def test_it_is_read_with_the_rank_that_the_file_declares():
    """Its sizes are those of the rows that an exporter traced."""
    node = helper.make_node("Nothing", ["h"], ["z"], domain="here")
    model = between(node, declared=[helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4])])
    assert load(model).values["z"].type_name == "float32[?x?]"
    with pytest.raises(ModelError, match=r"onnxruntime \S+ has no operator here.Nothing; if a library of custom "):
        OrtGradientForwardBackwardOptimizer(load(model), ["W1"]).predict(ROWS)


def test_what_is_behind_it_has_the_declared_rank():
    node = helper.make_node("Nothing", ["h"], ["z"], domain="here")
    model = between(node, helper.make_node("Sink", ["z"], [], domain="here"),
                    declared=[helper.make_tensor_value_info("z", TensorProto.FLOAT, None)])
    assert load(model).values["z"].shape is None
    assert load(model).outputs["y"].shape == (None, None)


@pytest.mark.parametrize("engine", ["step", "epoch", *["agent"] * has_training()])
def test_weights_behind_it_are_trained(engine):
    model = distances()
    optimizer = OrtGradientForwardBackwardOptimizer(model, ["W1"], max_iter=3, learning_rate=0.05, engine=engine,
                                                    random_state=0)
    np.testing.assert_array_equal(optimizer.predict(ROWS), run(model))
    z = run(between_output(model, "z"))
    graph = onnx.helper.make_graph([helper.make_node("MatMul", ["z", "W1"], ["y"])], "g",
                                   [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 4])],
                                   list(model.graph.output), [weight("W1", 4, 2)])
    alone = OrtGradientForwardBackwardOptimizer(onnx.helper.make_model(graph, opset_imports=model.opset_import[:1]),
                                                max_iter=3, learning_rate=0.05, engine=engine, random_state=0)
    optimizer.fit(ROWS, TARGETS)
    alone.fit(z, TARGETS)
    np.testing.assert_allclose(optimizer.trained_coef_["W1"], alone.trained_coef_["W1"], rtol=1e-5)
    np.testing.assert_array_equal(run(optimizer.get_trained_onnx()), optimizer.predict(ROWS))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(optimizer)).predict(ROWS), optimizer.predict(ROWS))


def between_output(model, name):
    """The model up to an inner tensor."""
    part = onnx.ModelProto()
    part.CopyFrom(model)
    del part.graph.output[:], part.graph.node[-1:]
    part.graph.output.extend([helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])
    return part


@pytest.mark.parametrize("weights", [None, ["W0"], ["points"]])
def test_a_gradient_through_it_is_an_error_that_names_it(weights):
    with pytest.raises(NoGradientError, match=r"<Node d: com.microsoft.CDist> has no gradient: .*ortpartial.vjp\("
                                              r"'CDist', 'com.microsoft'\)"):
        OrtGradientForwardBackwardOptimizer(distances(), weights)


def test_a_rule_needs_no_schema(monkeypatch):
    monkeypatch.setattr("ortpartial.autodiff.registry.RULES", RULES | {})

    @vjp("Inverse", "com.microsoft")
    def _(x, *, y, dy):
        t = [y.transpose(1, 0), dy]
        return -(t[0] @ t[1] @ t[0])

    model = between(helper.make_node("Inverse", ["h"], ["z"], domain="com.microsoft"))
    gradient = gradient_model(model, ["x"], cotangents="ones")
    x = np.eye(4, dtype=np.float32) + 0.1 * ROWS[:4]
    step, numeric = 1e-2, np.zeros((4, 4), np.float32)
    for i in np.ndindex(4, 4):
        d = np.zeros((4, 4), np.float32)
        d[i] = step
        numeric[i] = (run(model, x + d) - run(model, x - d)).sum() / (2 * step)
    np.testing.assert_allclose(run(gradient, x), numeric, rtol=0.05, atol=0.05 * abs(numeric).max())


def test_no_rewrite_takes_it_for_the_operator_of_onnx_that_has_its_name():
    """And two equal nodes stay two, as one may be random."""
    nodes = [helper.make_node("Pad", ["h", "pads"], [f"p{i}"], domain="com.microsoft") for i in range(2)]
    model = between(*nodes, helper.make_node("Add", ["p0", "p1"], ["z"]),
                    initializers=[numpy_helper.from_array(np.array([0, 1, 0, -1]), "pads")])
    loaded = load(model)
    built = build(loaded.inputs, loaded.outputs)
    assert [(n.domain, n.op_type) for n in built.graph.node][1:3] == [("com.microsoft", "Pad")] * 2
    optimizer = OrtGradientForwardBackwardOptimizer(model, ["W1"], max_iter=1)
    np.testing.assert_array_equal(optimizer.fit(ROWS, TARGETS).predict(ROWS), run(optimizer.get_trained_onnx()))


@pytest.mark.parametrize("name", ["Dropout", "Einsum", "Identity", "If", "Loop", "MatMul", "Relu", "Transpose"])
def test_a_name_of_onnx_in_another_domain(name):
    node = helper.make_node(name, ["h", "W2", "on"], ["z"], domain="here", axis=1)
    model = between(node, initializers=[weight("W2", 4, 4), numpy_helper.from_array(np.array(True), "on")],
                    declared=[helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4])])
    optimizer = OrtGradientForwardBackwardOptimizer(model, ["W1"])
    assert onnx.NodeProto.FromString(node.SerializeToString()) == optimizer.get_trained_onnx().graph.node[1]
    gradient = gradient_model(model, ["W1"])
    assert [list(n.input[1:]) for n in gradient.graph.node if n.domain == "here"] == [["W2", "on"]]
    with pytest.raises(NoGradientError, match=f"here.{name}"):
        gradient_model(model, ["W2"])


def parsed(body, opset=21, function=""):
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}, "com.microsoft": 1, "f": 1]> '
                                    f'g (float[4, 4] x) => (float[4, 2] y) {{ {body} y = MatMul(z, W1) }} {function}')
    model.graph.initializer.extend([weight("W0", 4, 4), weight("W1", 4, 2)])
    return model


INSIDE = {
    "a branch": ("s = ReduceSum <keepdims = 0> (x)  c = Cast <to = 9> (s)  "
                 "z = If (c) <then_branch = t () => (float[4, 4] u) { u = com.microsoft.Trilu(x) }, "
                 "else_branch = e () => (float[4, 4] v) { w = com.microsoft.Trilu <upper = 0> (x)  v = Neg(w) }>", ""),
    "a loop": ("n = Constant <value = int64 {3}> ()  z = Loop (n, , x) <body = b (int64 i, bool c, float[4, 4] a) => "
               "(bool d, float[4, 4] o) { d = Identity(c)  k = com.microsoft.Trilu(x)  m = MatMul(a, W0)  "
               "e = Add(m, k)  o = Tanh(e) }>", ""),
    "a function": ("h = MatMul(x, W0)  q = f.low(x)  z = Mul(h, q)",
                   '<domain: "f", opset_import: ["": OPSET, "com.microsoft": 1]> low (a) => (b) '
                   "{ k = com.microsoft.Trilu <upper = 0> (a)  b = Neg(k) }"),
}


@pytest.mark.parametrize("opset", [13, 17, 21, *[22] * (not IS_OLD)])
@pytest.mark.parametrize("where", INSIDE)
def test_inside(where, opset):
    body, function = INSIDE[where]
    model = parsed(body, opset, function.replace("OPSET", "17"))
    x = ROWS[:4]
    weights = ["W1"] if where == "a branch" else ["W0", "W1"]
    optimizer = OrtGradientForwardBackwardOptimizer(model, weights)
    np.testing.assert_array_equal(optimizer.predict(x), run(model, x))
    gradient = gradient_model(model, [weights[0]], cotangents="ones")
    w = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == weights[0]))
    (analytic,) = InferenceSession(gradient.SerializeToString()).run(None, {"x": x, weights[0]: w})
    d = np.random.default_rng(1).normal(size=w.shape).astype(np.float32)

    def total(step):
        moved = onnx.ModelProto.FromString(model.SerializeToString())
        next(t for t in moved.graph.initializer if t.name == weights[0]).CopyFrom(
            numpy_helper.from_array(w + np.float32(step) * d, weights[0]))
        return run(moved, x).sum(dtype=np.float64)

    assert (analytic * d).sum() == pytest.approx((total(1e-2) - total(-1e-2)) / 2e-2, rel=1e-2)


#: What computes z = f(x) by operators that have no rule, without the weights.
FOREIGN = {
    "of real numbers": "z = com.microsoft.Inverse(x)",
    "of several outputs": "f = Reshape(x, flat)  u, i, c = com.microsoft.Unique(f)  j = Reshape(i, square)  "
                          "m = Cast <to = 1> (j)  k = com.microsoft.CDist <metric = \"sqeuclidean\"> (x, x)  "
                          "z = Add(k, m)",
    "of whole numbers": "i = Cast <to = 6> (x)  h = com.microsoft.MurmurHash3(i)  f = Cast <to = 1> (h)  "
                        "g = Sigmoid(f)  z = Mul(g, x)",
    "of indices": "o = Constant <value = int64[1] {0}> ()  i = com.microsoft.Range(a, b)  e = Cast <to = 7> (i)  "
                  "z = Gather(x, e)",
    "of strings": "t = Cast <to = 8> (x)  r = com.microsoft.Tokenizer <mark = 0, pad_value = \"0\", mincharnum = 1, "
                  "separators = [\" \"]> (t)  s = Cast <to = 1> (r)  z = Squeeze(s, two)",
    "of a quantization": "s = Constant <value = float {0.1}> ()  o = Constant <value = uint8 {128}> ()  "
                         "q = com.microsoft.QuantizeLinear(x, s, o)  "
                         "p = com.microsoft.QLinearMul(q, s, o, q, s, o, s, o)  "
                         "z = com.microsoft.DequantizeLinear(p, s, o)",
}


@pytest.mark.parametrize("opset", [13, 17, *[22] * (not IS_OLD)])
@pytest.mark.parametrize("what", FOREIGN)
def test_in_front_of_the_weight(what, opset):
    """Operators without a rule never keep a graph from being trained where no gradient goes through them."""
    model = parsed(FOREIGN[what], opset)
    model.graph.initializer.extend([numpy_helper.from_array(np.array(a, d), n) for n, a, d in (
        ("a", 0, np.int32), ("b", 4, np.int32), ("two", [2], np.int64), ("flat", [-1], np.int64),
        ("square", [4, 4], np.int64))])
    used = {i for node in model.graph.node for i in node.input}
    for t in [t for t in model.graph.initializer if t.name not in used]:
        model.graph.initializer.remove(t)
    x = ROWS[:4]
    z = run(with_output(model, "z"), x)
    gradient = gradient_model(model, ["W1"], cotangents="ones")
    w = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "W1"))
    found = Session(gradient).run({"x": x, "W1": w})["W1_grad"]
    np.testing.assert_allclose(found, z.T @ np.ones((4, 2), np.float32), rtol=1e-4)
    optimizer = OrtGradientForwardBackwardOptimizer(model, max_iter=1, batch_size=4, learning_rate=1e-3)
    optimizer.fit(x, x[:, :2])
    assert optimizer.weights_to_train == ["W1"]


def with_output(model, name):
    """A model with an inner tensor as its first output."""
    other = onnx.ModelProto.FromString(model.SerializeToString())
    other.graph.output.insert(0, onnx.ValueInfoProto(name=name))
    return other


def test_behind_a_stop():
    """What is behind the end of a gradient may be computed by any operator."""
    stop = helper.make_node("Identity", ["h"], ["s"])
    mark_gradient_stop(stop)
    nodes = [stop, helper.make_node("CDist", ["s", "s"], ["d"], domain="com.microsoft", metric="euclidean"),
             helper.make_node("ReduceMean", ["d"], ["m"], keepdims=0), helper.make_node("Mul", ["h", "m"], ["z"])]
    model = between(*nodes)
    gradient = gradient_model(model, ["W0"], cotangents="ones")
    w0, w1 = (numpy_helper.to_array(t) for t in model.graph.initializer)
    h = ROWS @ w0
    mean = np.sqrt(((h[:, None] - h) ** 2).sum(-1)).mean()
    found = Session(gradient).run({"x": ROWS, "W0": w0})["W0_grad"]
    np.testing.assert_allclose(found, mean * ROWS.T @ np.ones((20, 2), np.float32) @ w1.T, rtol=1e-3)
    del stop.metadata_props[:]
    with pytest.raises(NoGradientError, match="CDist> has no gradient"):
        gradient_model(between(*nodes), ["W0"])


def test_an_operator_of_a_newer_runtime():
    """One sentence says what the installed onnxruntime lacks."""
    node = helper.make_node("Futuristic", ["h"], ["z"], domain="com.microsoft")
    with pytest.raises(ModelError, match=r"Neither ONNX nor the installed onnxruntime has an operator com\.micro"):
        load(between(node))
    model = between(node, declared=[helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4])])
    with pytest.raises(ModelError, match=r"^onnxruntime \S+ has no operator com.microsoft.Futuristic; a newer "
                                         r"onnxruntime may have it\.$"):
        OrtGradientForwardBackwardOptimizer(load(model), ["W1"]).predict(ROWS)


@pytest.mark.skipif(not IS_OLD, reason="Only onnxruntime 1.19.2 lacks them.")
def test_operators_that_the_old_runtime_lacks():
    node = helper.make_node("GatedRMSNorm", ["h", "g", "h"], ["z"], domain="com.microsoft")
    with pytest.raises(ModelError, match=r"^onnxruntime 1.19.2 has no operator com.microsoft.GatedRMSNorm; a newer "
                                         r"onnxruntime may have it\.$"):
        OrtGradientForwardBackwardOptimizer(between(node, initializers=[weight("g", 4)])).predict(ROWS)


def test_whole_numbers_end_a_gradient():
    """Those of 8 bits are a quantization, and an error; those of 32 bits are indices."""
    pool = [helper.make_node("Cast", ["h"], ["i"], to=TensorProto.INT32),
            helper.make_node("MurmurHash3", ["i"], ["m"], "hash", domain="com.microsoft"),
            helper.make_node("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["f", "h"], ["z"])]
    optimizer = OrtGradientForwardBackwardOptimizer(between(*pool), ["W0"])  # by the other path
    with pytest.raises(ModelError, match="No gradient leads from 'y' to the weight 'W0'"):
        OrtGradientForwardBackwardOptimizer(between(*pool[:3], helper.make_node("Neg", ["f"], ["z"])), ["W0"])
    assert optimizer.weights_to_train == ["W0"]
    declared = [helper.make_tensor_value_info("q", TensorProto.UINT8, None)]
    codes = [helper.make_node("Encode", ["h"], ["q"], "codes", domain="here"),
             helper.make_node("Cast", ["q"], ["z"], to=TensorProto.FLOAT)]
    with pytest.raises(NoGradientError, match=r"<Node codes: here.Encode> \(output 'q'\) rounds"):
        gradient_model(between(*codes, declared=declared), ["W0"])


def test_a_node_that_its_schema_does_not_cover_has_no_gradient():
    """The rule of FastGelu knows of no second output."""
    declared = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "zo"]
    model = between(helper.make_node("FastGelu", ["h"], ["z", "o"], "gelu", domain="com.microsoft"), declared=declared)
    assert load(model).values["z"].type_name == "float32[?x?]"
    with pytest.raises(NoGradientError, match="it has inputs, outputs or attributes that the rule of"):
        gradient_model(model, ["W0"])


def test_a_graph_inside_it_stays_as_it_is():
    branch = helper.make_graph([helper.make_node("Neg", ["a"], ["b"])], "inner",
                               [helper.make_tensor_value_info("a", TensorProto.FLOAT, [4])],
                               [helper.make_tensor_value_info("b", TensorProto.FLOAT, [4])])
    node = helper.make_node("Search", ["h"], ["z"], domain="here", decoder=branch, words=["a", b"\xff"])
    model = between(node, declared=[helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4])])
    loaded = pickle.loads(pickle.dumps(load(model)))
    assert build(loaded.inputs, loaded.outputs).graph.node[1].attribute == sorted(node.attribute, key=lambda a: a.name)
    branch.node[0].input[0] = "x"
    node = helper.make_node("Search", ["h"], ["z"], domain="here", decoder=branch)
    with pytest.raises(ModelError, match="has a graph that reads 'x' from the graph around it"):
        load(between(node, declared=list(model.graph.value_info)))


def test_a_training_in_a_file_keeps_it():
    optimizer = OrtGradientForwardBackwardOptimizer(distances(), ["W1"], learning_rate=0.05, batch_size=20)
    session = TrainingSession(to_training_info(optimizer))
    losses = [session.step({"x": ROWS, "y_target": TARGETS})["loss"].item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert "CDist" in {node.op_type for node in session.inference_model().graph.node}


@needs_library
class TestLibrary:
    """Operators of a library that onnxruntime has not by itself."""

    @pytest.fixture
    def library(self, monkeypatch):
        monkeypatch.setattr("ortpartial.model.custom_ops._LIBRARIES", {})
        return importlib.import_module("onnxruntime_extensions").get_library_path()

    def model(self):
        return between(helper.make_node("NegPos", ["h"], ["z", "p"], "n", domain="ai.onnx.contrib"))

    def test_it_runs_in_every_session(self, library, tmp_path):
        model = self.model()
        with pytest.raises(ModelError, match=r"Node n \(NegPos, output 'z'\) cannot be .*custom_ops_library=path"):
            load(model)
        loaded = load(model, custom_ops_library=library)
        assert loaded.values["p"].type_name == "float32[?x?]"
        optimizer = OrtGradientForwardBackwardOptimizer(loaded, ["W1"], max_iter=3, random_state=0).fit(ROWS, TARGETS)
        assert optimizer.train_losses_[-1] < optimizer.train_losses_[0]
        expected = run(optimizer.get_trained_onnx(), library=library)
        np.testing.assert_array_equal(optimizer.predict(ROWS), expected)
        (tmp_path / "o.pickle").write_bytes(pickle.dumps((optimizer, loaded)))
        np.save(tmp_path / "x.npy", ROWS)
        code = ("import pickle, sys, numpy as np; o, m = pickle.load(open('o.pickle', 'rb')); "
                "np.save('y.npy', o.predict(np.load('x.npy')))")
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected)

    def test_a_composition_is_its_gradient(self, library, monkeypatch):
        monkeypatch.setattr("ortpartial.autodiff.registry.RULES", RULES | {})
        composed("NegPos", "ai.onnx.contrib")(lambda x: (op.Min(x, 0), op.Max(x, 0)))
        twice = helper.make_node("Sub", ["p", "n"], ["z"])  # |h|
        node = helper.make_node("NegPos", ["h"], ["n", "p"], domain="ai.onnx.contrib")
        gradients = [gradient_model(m, ["W0"], cotangents="ones")
                     for m in (load(between(node, twice), custom_ops_library=library),
                               between(helper.make_node("Abs", ["h"], ["z"])))]
        w = numpy_helper.to_array(weight("W0", 4, 4))
        ours, expected = (Session(g).run({"x": ROWS, "W0": w})["W0_grad"] for g in gradients)
        np.testing.assert_allclose(ours, expected, rtol=1e-5)

    def test_trainings_and_layers_find_it(self, library):
        loaded = load(self.model(), custom_ops_library=library)
        optimizer = OrtGradientForwardBackwardOptimizer(loaded, ["W1"], batch_size=20)
        session = pickle.loads(pickle.dumps(TrainingSession(to_training_info(optimizer))))
        assert session.step({"x": ROWS, "y_target": TARGETS})["loss"] > 0
        layer = pickle.loads(pickle.dumps(OnnxLayer(self.model(), ["W1"])))
        np.testing.assert_array_equal(layer(torch.tensor(ROWS)).detach(), run(self.model(), library=library))

    def test_a_session_takes_it(self, library, monkeypatch):
        loaded = load(self.model(), custom_ops_library=library)
        stored = to_training_info(OrtGradientForwardBackwardOptimizer(loaded, ["W1"], batch_size=20))
        monkeypatch.setattr("ortpartial.model.custom_ops._LIBRARIES", {})
        session = TrainingSession(stored, custom_ops_library=library)
        assert session.step({"x": ROWS, "y_target": TARGETS})["loss"] > 0
        monkeypatch.setattr("ortpartial.model.custom_ops._LIBRARIES", {})
        with pytest.raises(ModelError, match=r"There is no library of custom operators 'missing\.so'"):
            TrainingSession(stored, custom_ops_library="missing.so")

    def test_a_kit_takes_it(self, library, monkeypatch, tmp_path):
        loaded, libraries = load(self.model(), custom_ops_library=library), "ortpartial.model.custom_ops._LIBRARIES"
        OrtGradientForwardBackwardOptimizer(loaded, ["W1"], batch_size=20).export_step(tmp_path / "kit", targets=())
        monkeypatch.setattr(libraries, {})
        with pytest.raises(ModelError, match="custom_ops_library"):
            TrainingKit(tmp_path / "kit").step({"x": ROWS, "y_target": TARGETS})
        kit = TrainingKit(tmp_path / "kit", custom_ops_library=library)
        stored = pickle.dumps(kit)
        assert kit.step({"x": ROWS, "y_target": TARGETS})["loss"] > 0
        monkeypatch.setattr(libraries, {})
        again = pickle.loads(stored)
        assert again.predict({"x": ROWS})["y"].shape == TARGETS.shape
        assert again.step({"x": ROWS, "y_target": TARGETS})["loss"] > 0

    def test_the_command_line(self, library, tmp_path, capsys):
        path = str(tmp_path / "m.onnx")
        onnx.save(self.model(), path)
        assert main(["info", path]) == 2
        assert main(["info", path, "--custom-ops", library, "--weights", "W1"]) == 0
        assert "ai.onnx.contrib.NegPos      1  none      -" in capsys.readouterr().out

    def test_no_gradient(self, library):
        with pytest.raises(NoGradientError, match=r"<Node n: ai.onnx.contrib.NegPos> has no gradient"):
            OrtGradientForwardBackwardOptimizer(load(self.model(), custom_ops_library=library), ["W0"])

    def test_a_library_that_is_missing(self, library, tmp_path):
        with pytest.raises(ModelError, match=r"There is no library of custom operators 'nowhere.so'\."):
            load(self.model(), custom_ops_library="nowhere.so")
        (tmp_path / "text.so").write_text("no library")
        model = between(helper.make_node("Inverse", ["h"], ["z"], domain="ai.onnx.contrib"))
        with pytest.raises(ModelError, match=r"library of custom operators '.*text.so' cannot be loaded"):
            load(model, custom_ops_library=tmp_path / "text.so")
