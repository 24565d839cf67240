"""Sessions and bindings: results, borrowed memory, errors."""

import gc
import sys
import time

import numpy as np
import onnxruntime
import pytest
from once import ON_BOTH, ON_NEWEST
from onnx import TensorProto, load, parser

from ortpartial.exceptions import DataError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.runtime.buffer import Buffer, as_numpy
from ortpartial.runtime.device import Device
from ortpartial.runtime.session import Binding, Session, _unwanted_optimizers
from ortpartial.runtime.session_options import session_options


def affine(shape=("N", 3), dtype="float32"):
    """y = 2x + b, and the sum of all its elements."""
    x, b = variable("x", dtype, shape), variable("b", dtype, [3])
    y = 2 * x + b
    return build([x, b], {"y": y, "total": op.ReduceSum(y, keepdims=0)})


@pytest.fixture
def session():
    return Session(affine())


X, B = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([1, 2, 3], np.float32)


def bound(session, x=X, b=B):
    binding = session.binding()
    binding.bind_input("x", x)
    binding.bind_input("b", b)
    return binding


# Session


@pytest.mark.parametrize("threads", [1, 2, None])
def test_session_runs(threads):
    session = Session(affine().SerializeToString(), threads=threads)
    assert (session.inputs, session.outputs) == (["x", "b"], ["y", "total"])
    outputs = session.run({"x": X, "b": B})
    np.testing.assert_array_equal(outputs["y"], 2 * X + B)
    assert isinstance(outputs["total"], np.ndarray)
    assert outputs["total"].shape == ()
    assert "x, b -> y, total" in repr(session)


def test_session_takes_scalars_strides_and_foreign_bytes():
    x = variable("x", "float32", [])
    session = Session(build([x], {"y": x + 1}))
    for value in (np.float32(1), np.array(1, np.float32), np.array(1, ">f4")):
        assert session.run({"x": value})["y"].tolist() == 2
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    outputs = Session(affine()).run({"x": wide[:, ::2], "b": B.astype(">f4")})
    np.testing.assert_array_equal(outputs["y"], 2 * wide[:, ::2] + B)


def test_session_multiplies_transposed_matrices_of_float64():
    a, b = (variable(name, "float64", [2, 3, 4]) for name in "ab")
    values = {n: np.arange(24.0).reshape(2, 3, 4) for n in "ab"}
    outputs = Session(build([a, b], {"y": a @ op.Transpose(b, perm=[0, 2, 1])})).run(values)["y"]
    np.testing.assert_allclose(outputs, values["a"] @ values["b"].swapaxes(1, 2))


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"x": X}, r"Missing input: 'b'\. Expected 'x', 'b'; got 'x'\."),
        ({"x": X, "b": B, "c": B}, r"Unknown input: 'c'\. Expected 'x', 'b'; got 'x', 'b', 'c'\."),
        ({"x": X[:, :2], "b": B}, r"^Input 'x' has 2 along axis 1, where 3 was expected\.$"),
        ({"x": X[0], "b": B}, r"^Input 'x' has 1 axes, where 2 were expected\.$"),
        ({"x": X.astype(np.float64), "b": B}, r"Unexpected input data type\. Actual: \(tensor\(double\)\)"),
    ],
)
def test_session_names_the_input_that_does_not_fit(session, feeds, message):
    with pytest.raises(DataError, match=message):
        session.run(feeds)


# Binding


def test_binding_reads_and_writes_in_place(session):
    x, y = X.copy(), Buffer.empty(X.shape)
    binding = bound(session, x)
    binding.bind_output("y", y)
    for factor in (1, 2):
        x *= factor
        binding.run()
        np.testing.assert_array_equal(y.array, 2 * x + B)
    assert binding.numpy()["total"] == y.array.sum()
    assert binding.numpy()["total"].shape == ()


def test_binding_follows_new_arrays(session):
    binding = bound(session)
    for rows in (4, 1, 7):
        x = np.full((rows, 3), rows, np.float32)
        binding.bind_input("x", x)
        binding.run()
        np.testing.assert_array_equal(binding.numpy()["y"], 2 * x + B)


def test_binding_skips_what_is_bound_already(session, monkeypatch):
    binding, calls = session.binding(), []
    monkeypatch.setattr(Binding, "_bind", lambda self, name, value: calls.append(name))
    x, buffer = X.copy(), Buffer(X)
    binding.bind_input("x", x)
    binding.bind_input("x", x)
    assert len(calls) == 1
    binding.bind_input("x", buffer)
    binding.bind_input("x", buffer)
    assert len(calls) == 2
    binding.bind_input("x", x)
    assert len(calls) == 3
    x.resize((2, 6), refcheck=False)
    binding.bind_input("x", x)
    assert len(calls) == 4
    binding.bind_input("x", buffer.ortvalue)
    binding.bind_input("x", x)
    assert len(calls) == 6
    strided = np.zeros((4, 6), np.float32)[:, ::2]
    binding.bind_input("x", strided)
    binding.bind_input("x", strided)
    assert len(calls) == 8, "a copy does not follow writes to the array that it was made of"


def test_binding_when_the_memory_of_a_freed_array_is_reused(session):
    binding, pointers = bound(session), set()
    for k in range(200):
        # Each array has the size of the one before, so that numpy hands out the same memory with another shape.
        x = np.full((4, 3) if k % 2 else (2, 3), k, np.float32 if k % 3 else np.float64).astype(np.float32)
        pointers.add(x.ctypes.data)
        binding.bind_input("x", x)
        del x
        gc.collect(0)
        binding.run()
        outputs = binding.numpy()["y"]
        assert outputs.shape == ((4, 3) if k % 2 else (2, 3))
        np.testing.assert_array_equal(outputs, 2 * k + np.tile(B, (len(outputs), 1)))
    assert len(pointers) < 200, "no memory was reused, so nothing was tested"


def test_binding_keeps_alive_what_it_borrows(session):
    binding = session.binding()
    binding.bind_input("x", np.full((4, 3), 7, np.float32))
    binding.bind_input("b", Buffer(np.full(3, 1, np.float32)))
    binding.bind_output("y", Buffer.empty((4, 3)))
    gc.collect()
    noise = [np.full((4, 3), k, np.float32) for k in range(100)]
    binding.run()
    assert (binding.numpy()["y"] == 15).all()
    assert len(noise) == 100


def test_binding_does_not_overwrite_results_that_are_kept(session):
    binding = bound(session)
    binding.run()
    first = binding.ortvalues()["y"]
    binding.bind_input("x", X + 1)
    binding.run()
    np.testing.assert_array_equal(as_numpy(first), 2 * X + B)
    np.testing.assert_array_equal(binding.numpy()["y"], 2 * X + 2 + B)
    # The next session reads the result where it is.
    following = session.binding()
    following.bind_ortvalue_input("x", first)
    following.bind_input("b", B)
    del first, binding
    gc.collect()
    following.run()
    np.testing.assert_array_equal(following.numpy()["y"], 2 * (2 * X + B) + B)


def test_binding_outlives_its_session():
    binding = bound(Session(affine()))
    gc.collect()
    binding.run()
    np.testing.assert_array_equal(binding.numpy()["y"], 2 * X + B)


def test_binding_names_the_tensor_that_does_not_fit(session):
    binding = session.binding()
    with pytest.raises(DataError, match=r"Unknown input: 'z'\. Expected 'x', 'b'; got"):
        binding.bind_input("z", X)
    with pytest.raises(DataError, match=r"Unknown output: 'z'\. Expected 'y', 'total'; got"):
        binding.bind_output("z")
    binding.bind_input("x", X)  # The unknown name must not spoil the binding.
    with pytest.raises(DataError, match=r"Missing input: 'b'\. Expected 'x', 'b'; got 'x'\."):
        binding.run()
    binding.bind_input("b", X)
    with pytest.raises(DataError, match=r"^Input 'b' has 2 axes, where 1 were expected"):
        binding.run()
    binding.bind_input("b", B.astype(np.float64))
    with pytest.raises(DataError, match="Unexpected input data type"):
        binding.run()
    binding.bind_input("b", B)
    binding.run()
    binding.bind_output("y", Buffer.empty((5, 3)))
    with pytest.raises(DataError, match=r"\{5,3\}"):
        binding.run()
    binding.bind_output("y", Buffer.empty((4, 3), np.float64))
    with pytest.raises(DataError, match="Unexpected output data type"):
        binding.run()


def test_names_that_an_optimizer_has_given_before():
    """MatMulAddFusion of onnxruntime 1.31.1 takes them for new ones, in models that it wrote itself."""
    rng = np.random.default_rng(0)
    w, b = (constant(rng.normal(size=s).astype(np.float32)) for s in ((4, 4), 4))
    rows, steps = constant([6, 4], hint="gemm_input_shape"), constant([2, 3, 4], hint="gemm_output_shape")
    x = variable("x", "float32", [2, 3, 4])
    y = op.Reshape(op.Gemm(op.Reshape(x @ w + b, rows), w, b), steps) @ w + b
    model = build([x], {"y": y, "z": op.Reshape(x @ w @ w + b, rows)})
    assert Session(model).run({"x": rng.normal(size=(2, 3, 4)).astype(np.float32)})["y"].shape == (2, 3, 4)


@ON_NEWEST
@pytest.mark.skipif(int(onnxruntime.__version__.split(".")[1]) < 30, reason="onnxruntime 1.30 and later.")
def test_sums_and_layer_normalizations_are_not_fused(tmp_path):
    """From 1.30 to 1.32 SkipLayerNormalization takes 5 times as long as the nodes that it stands for."""
    rng = np.random.default_rng(0)
    w, b = (constant(rng.normal(size=8).astype(np.float32)) for _ in range(2))
    x, y = (variable(n, "float32", [2, 4, 8]) for n in "xy")
    model, path = build([x, y], {"z": op.LayerNormalization(x + y, w, b)}), tmp_path / "optimized.onnx"

    def operators(open_session):
        options = session_options(1)
        options.optimized_model_filepath = str(path)
        open_session(options)
        return [node.op_type for node in load(path).graph.node]

    plain = operators(lambda options: onnxruntime.InferenceSession(model.SerializeToString(), options))
    assert plain == ["SkipLayerNormalization"], "otherwise the fusion need not be switched off"
    assert operators(lambda options: Session(model, options=options)) == ["Add", "LayerNormalization"]


def test_dequantized_numbers_that_a_body_reads():
    """onnxruntime 1.19.2 would end the process when it moves the dequantization behind the transposition."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["": 19]>
    g (float[N, 2] x) => (float[N, 3] y) <int8[3, 2] w = {3, -5, 1, 0, 2, 7}, float s = {0.5}, int8 z = {0}> {
      d = DequantizeLinear (w, s, z)
      t = Transpose (d)
      y = Scan <num_scan_inputs = 1, body = b (float[2] row) => (float[3] product) { product = MatMul (row, t) }> (x)
    }""")
    x = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(Session(model).run({"x": x})["y"], [[-1, 0.5, 4.5]] * 2)


def test_a_dequantized_bias_that_is_reshaped():
    """onnxruntime 1.19.2 would quantize what is reshaped as the bias is, to int32, which no operator does."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["": 19]>
    g (float[N, 3] x) => (float[N, 3] y) <int32[3] b = {3, -5, 100}, float s = {0.5}, int32 z = {0}, int64[1] a = {0}> {
      d = DequantizeLinear (b, s, z)
      u = Unsqueeze (d, a)
      y = Add (x, u)
    }""")
    np.testing.assert_array_equal(Session(model).run({"x": np.ones((1, 3), np.float32)})["y"], [[2.5, -1.5, 51]])


def make_apart(monkeypatch, formula, dtype="float32"):
    """A graph of a big constant that stays apart, and its array."""
    monkeypatch.setattr(sys.modules[build.__module__], "_BIG", 0)
    monkeypatch.setattr(sys.modules[build.__module__], "_MANY", 0)
    x, apart = variable("x", dtype, ["N", 3]), {}
    model = build([x], {"y": formula(x, constant(np.arange(3, dtype=dtype), hint="w"))}, apart=apart)
    return model, apart


def test_content_that_stays_apart_is_borrowed(monkeypatch):
    model, apart = make_apart(monkeypatch, lambda x, w: x + w)
    (t,) = model.graph.initializer
    assert (t.name, t.raw_data, t.data_location) == ("w", b"", TensorProto.EXTERNAL)
    session = Session(model, arrays=apart)
    np.testing.assert_array_equal(session.run({"x": np.ones((1, 3), np.float32)})["y"], [[1, 2, 3]])
    apart["w"][:] = 7  # as the session has no copy
    np.testing.assert_array_equal(session.run({"x": np.ones((1, 3), np.float32)})["y"], [[8, 8, 8]])


@pytest.mark.parametrize(("formula", "dtype"), [
    (op.Mean, "float64"),  # which onnxruntime has no kernel for
    (lambda x, w: op.Swish(x + w), "float32"),  # of opset 24, which onnxruntime 1.19.2 does not know
])
def test_content_that_stays_apart_is_there_for_other_operators(formula, dtype, monkeypatch):
    model, apart = make_apart(monkeypatch, formula, dtype)
    x = np.array([[0.5, -1, 2]], dtype)
    expected = Session(make_apart(monkeypatch, formula, dtype)[0], arrays=apart).run({"x": x})["y"]
    w = np.arange(3, dtype=dtype)
    computed = (x + w) / 2 if dtype == "float64" else (x + w) / (1 + np.exp(-(x + w)))
    np.testing.assert_allclose(expected, computed, rtol=1e-6)
    np.testing.assert_array_equal(Session(model, arrays=apart).run({"x": x})["y"], expected)


def test_many_outputs_are_looked_through_once():
    """A step returns thousands of tensors; comparing each with each node took 4 seconds of an adapter's first step."""
    x = variable("x", "float32", ["N"])
    model = build([x], {f"y{i}": x * float(i) for i in range(3000)})
    start = time.process_time()
    _unwanted_optimizers(model, Device.parse("cpu"))
    assert time.process_time() - start < 0.2


@ON_BOTH
def test_a_range_that_is_an_output():
    """GatherToSliceFusion of 1.19.2 removes it where a Gather reads it, and returned None in its place."""
    x, t = variable("x", "float32", ["N"]), variable("t", "float32", [9, 3])
    i = op.Range(constant(np.int64(0)), op.Squeeze(op.Shape(x), [0]), constant(np.int64(1)))
    session = Session(build([x, t], {"y": op.Gather(t, i), "i": i}))
    outputs = session.run({"x": np.zeros(2, np.float32), "t": np.ones((9, 3), np.float32)})
    assert outputs["i"].tolist() == [0, 1]


class CountedName(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    count = 0

    def __eq__(self, other):
        CountedName.count += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_binding_takes_a_time_that_grows_with_the_number_of_tensors():
    """It was 71 times as long for 8 times as many."""
    counts = []
    for size in (20, 160):
        xs = [variable(f"x{i}", "float32", [1]) for i in range(size)]
        session = Session(build(xs, {f"y{i}": 2 * x for i, x in enumerate(xs)}))
        binding, CountedName.count = session.binding(), 0
        for i in range(size):
            binding.bind_input(CountedName(f"x{i}"), Buffer.empty([1]))
            binding.bind_output(CountedName(f"y{i}"), Buffer.empty([1]))
        binding.run()
        assert not binding._unbound_outputs
        counts.append(CountedName.count)
    assert counts[1] <= 10 * counts[0] + 100
