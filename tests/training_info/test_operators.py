"""Gradient, Adagrad, Adam and Momentum compute as the specification says, on every runtime."""


import numpy as np
import onnx
import pytest
from node_tests import load_node_tests
from onnx import helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

from ortpartial import lower_training_operators
from ortpartial.exceptions import ModelError, NoGradientError
from ortpartial.runtime.session import Session
from ortpartial.training_info.operators import DOMAIN

HEADER = f'<ir_version: 8, opset_import: ["": 21, "{DOMAIN}": 1]>'


def cases():
    """Inputs and outputs of the tests of training inside onnx: name, model, inputs, outputs."""
    begins = ("adagrad", "adam", "momentum", "nesterov", "gradient_of", "sce_", "nllloss_", "training_dropout",
              "batchnorm")
    tests = {}
    for case in (*load_node_tests(), *load_model_tests(kind="simple")):
        name = case.name.removeprefix("test_")
        if not name.startswith(begins) or (name.startswith("batchnorm") and "training" not in name):
            continue
        if case.model is not None:
            tests[name] = case.model, *case.data_sets[0]
            continue
        model, folder = onnx.load(f"{case.model_dir}/model.onnx"), f"{case.model_dir}/test_data_set_0"
        tests[name] = model, *(
            [numpy_helper.to_array(onnx.load_tensor(f"{folder}/{kind}put_{i}.pb")) for i in range(len(values))]
            for kind, values in (("in", model.graph.input), ("out", model.graph.output)))
    return tests


CASES = cases()


def run(model, *inputs, **named):
    """Outputs of a model once its training operators are lowered."""
    lowered = lower_training_operators(parse_model(HEADER + model) if isinstance(model, str) else model)
    assert {node.domain for node in lowered.graph.node} <= {""}
    names = [i.name for i in lowered.graph.input]
    return list(Session(lowered).run({**dict(zip(names, map(np.asarray, inputs), strict=False)), **named}).values())


def f32(*numbers):
    return np.array(numbers, np.float32)


def test_the_cases_are_all_that_onnx_has():
    count = {begin: sum(name.startswith(begin) for name in CASES)
             for begin in ("ada", "momentum", "nesterov", "gradient", "sce", "nll", "training_dropout", "batch")}
    assert count == {"ada": 4, "momentum": 2, "nesterov": 1, "gradient": 2, "sce": 68, "nll": 36,
                     "training_dropout": 6, "batch": 2}


@pytest.mark.parametrize("name", sorted(CASES))
def test_case_of_onnx(name):
    model, inputs, outputs = CASES[name]
    kept = [i for i in range(len(model.graph.input)) if model.graph.input[i].name]
    results = run(model, *[inputs[i] for i in kept])
    random = name.startswith("training_dropout") and "zero_ratio" not in name
    for f, e, o in zip(results, outputs, model.graph.output, strict=True):
        assert f.dtype == e.dtype
        assert f.shape == e.shape
        if not random:
            # onnxruntime 1.19.2 adds up thousands of float32 numbers one after the other.
            np.testing.assert_allclose(f, e, rtol=5e-5, atol=1e-6, err_msg=o.name)
    if random:  # Which elements are dropped is left to chance, what becomes of the others is not.
        x, ratio = inputs[0], float(inputs[1]) if len(inputs) > 1 else 0.5
        y, mask = results[0], results[1] if len(results) > 1 else results[0] != 0
        np.testing.assert_allclose(y, np.where(mask, x / (1 - ratio), 0), rtol=1e-5)
        assert abs(mask.mean() - (1 - ratio)) < 5 * np.sqrt(ratio * (1 - ratio) / mask.size)


# -- optimizers

SETTINGS = [
    ("Adagrad", 1, {"norm_coefficient": 0.01, "decay_factor": 0.1, "epsilon": 1e-5}),
    ("Adagrad", 1, {}),
    # The reference takes 1 minus the last coefficient in float32, in which this one is exact.
    ("Adam", 2, {"norm_coefficient": 0.01, "norm_coefficient_post": 2**-6, "alpha": 0.8, "beta": 0.95}),
    ("Adam", 2, {}),
    ("Momentum", 1, {"alpha": 0.9, "beta": 0.7, "norm_coefficient": 0.01, "mode": "standard"}),
    ("Momentum", 1, {"alpha": 0.9, "beta": 0.7, "norm_coefficient": 0.01, "mode": "nesterov"}),
    ("Momentum", 1, {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0, "mode": "nesterov"}),
]


def optimizer_model(op_type, states, settings, dtype, shapes, rate_dtype=None):
    """The node, and inputs R, T, X, G and the states, each kind for all tensors; states are not negative."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rate_kind = helper.np_dtype_to_tensor_dtype(np.dtype(rate_dtype or dtype))
    n = len(shapes)
    values = [(f"{k}{i}", shapes[i]) for k in ["X", "G", *"VH"[:states]] for i in range(n)]
    outputs = [(f"{k}{i}_new", shapes[i]) for k in ["X", *"VH"[:states]] for i in range(n)]
    node = helper.make_node(op_type, ["R", "T", *(n for n, _ in values)], [n for n, _ in outputs], domain=DOMAIN,
                            **settings)
    infos = [helper.make_tensor_value_info("R", rate_kind, []),
             helper.make_tensor_value_info("T", onnx.TensorProto.INT64, []),
             *(helper.make_tensor_value_info(n, kind, s) for n, s in values)]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info(n, kind, s) for n, s in outputs])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    rng = np.random.default_rng(0)
    arrays = {n: np.asarray(abs(rng.normal(size=s)) if n[0] in "VH" else rng.normal(size=s), dtype) for n, s in values}
    return model, {"R": np.asarray(0.1, rate_dtype or dtype), **arrays}


@pytest.mark.parametrize("t", [0, 1, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("op_type", "states", "settings"), SETTINGS, ids=[f"{o}{i}" for i, (o, *_) in
                                                                            enumerate(SETTINGS)])
@pytest.mark.parametrize("shapes", [[[2, 3]], [[], [4], [2, 1, 3]]], ids=["one", "three"])
def test_optimizer_equals_the_reference(op_type, states, settings, dtype, shapes, t):
    model, feeds = optimizer_model(op_type, states, settings, dtype, shapes)
    feeds["T"] = np.asarray(t, np.int64)
    results = run(model, **feeds)
    for i, _ in enumerate(shapes):
        # The reference computes several tensors of Adam in float32 whatever they are, so each is given to it alone.
        one, _ = optimizer_model(op_type, states, settings, dtype, [shapes[i]])
        tensors = {k if k in "RT" else f"{k[0]}0": v for k, v in feeds.items() if k in "RT" or k.endswith(str(i))}
        for f, e in zip(results[i :: len(shapes)], ReferenceEvaluator(one).run(None, tensors), strict=True):
            assert f.dtype == dtype
            np.testing.assert_allclose(f, e, rtol=1e-6 if dtype == "float32" else 1e-12)


def test_the_rate_may_be_of_another_type_and_of_rank_one():
    model, feeds = optimizer_model("Momentum", 1, SETTINGS[-1][2], "float32", [[2]], "float64")
    expected = run(model, **feeds, T=np.asarray(1, np.int64))
    model.graph.input[0].type.tensor_type.shape.dim.add(dim_value=1)
    results = run(model, **{**feeds, "R": feeds["R"].reshape(1)}, T=np.asarray(1, np.int64))
    assert [f.tolist() for f in results] == [e.tolist() for e in expected]
    assert [f.shape for f in results] == [(2,), (2,)]


# -- Gradient

CONV = """g (float[1,1,4,4] X, float[1,1,3,3] W, float[4,2] Z, float[1,4] H_1, float[4,2] Z_1) => (%s) {
    conv = Conv(X, W)
    four = Constant <value_ints = [1, 4]> ()
    H = Reshape(conv, four)
    Y = Gemm(H, Z)
    %s
}"""


def conv_feeds(rng):
    shapes = {"X": (1, 1, 4, 4), "W": (1, 1, 3, 3), "Z": (4, 2), "H_1": (1, 4), "Z_1": (4, 2)}
    return {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}


def h_of(a):
    return np.array([[(a["X"][0, 0, i : i + 3, j : j + 3] * a["W"][0, 0]).sum() for i in (0, 1) for j in (0, 1)]])


def test_first_order_of_the_documentation(rng):
    a = conv_feeds(rng)
    text = CONV % ("float[1,1,3,3] dW, float[4,2] dZ",
                   f'dW, dZ = {DOMAIN}.Gradient <xs = ["W", "Z"], zs = ["X"], y = "Y"> (W, Z, X)')
    dW, dZ = run(text, **a)
    # Y is no scalar: the gradient is that of the sum of its elements.
    dh = a["Z"].sum(1)
    windows = [a["X"][0, 0, i : i + 3, j : j + 3] for i in (0, 1) for j in (0, 1)]
    np.testing.assert_allclose(dW[0, 0], sum(d * w for d, w in zip(dh, windows, strict=True)), rtol=1e-5)
    np.testing.assert_allclose(dZ, np.repeat(h_of(a).T, 2, axis=1), rtol=1e-5)


def test_intermediate_tensors_of_the_documentation(rng):
    a = conv_feeds(rng)
    dH, dZ = run(CONV % ("float[1,4] dH, float[4,2] dZ",
                         f'dH, dZ = {DOMAIN}.Gradient <xs = ["H", "Z"], y = "Y"> (H, Z)'), **a)
    np.testing.assert_allclose(dH, a["Z"].sum(1)[None], rtol=1e-5)
    np.testing.assert_allclose(dZ, np.repeat(h_of(a).T, 2, axis=1), rtol=1e-5)


def test_at_other_values_than_those_of_the_tensors_named(rng):
    a = conv_feeds(rng)
    dH, dZ = run(CONV % ("float[1,4] dH, float[4,2] dZ",
                         f'dH, dZ = {DOMAIN}.Gradient <xs = ["H", "Z"], y = "Y"> (H_1, Z_1)'), **a)
    np.testing.assert_allclose(dH, a["Z_1"].sum(1)[None], rtol=1e-5)
    np.testing.assert_allclose(dZ, np.repeat(a["H_1"].T, 2, axis=1), rtol=1e-5)


def test_what_is_named_is_independent_even_where_it_is_computed_from_what_else_is_named(rng):
    dx, dh = run(f"""g (float[3] x) => (float[3] dx, float[3] dh) {{
        h = Mul(x, x)
        y = Mul(h, x)
        dx, dh = {DOMAIN}.Gradient <xs = ["x", "h"], y = "y"> (x, h)
    }}""", x := f32(1, -2, 3))
    assert dx.tolist() == (x * x).tolist()
    assert dh.tolist() == x.tolist()


def test_one_tensor_in_place_of_two(rng):
    da, db = run(f"""g (float[2] a, float[2] b, float[2] p) => (float[2] da, float[2] db) {{
        aa = Mul(a, a)
        y = Mul(aa, b)
        da, db = {DOMAIN}.Gradient <xs = ["a", "b"], y = "y"> (p, p)
    }}""", f32(0, 0), f32(0, 0), p := f32(2, 3))
    assert da.tolist() == (2 * p * p).tolist()
    assert db.tolist() == (p * p).tolist()


def test_second_order_of_the_documentation(rng):
    X, W, L = (rng.normal(size=s).astype(np.float32) for s in ((5, 3), (3, 1), (5, 1)))
    results = run(f"""g (float[5,3] X, float[3,1] W, float[5,1] L)
            => (float[5,3] dX, float[3,1] dW, float[5,3] dWdX, float[3,1] ddW) {{
        Y = Gemm(X, W)
        e = Sub(Y, L)
        ee = Mul(e, e)
        O = ReduceSum <keepdims = 0> (ee)
        dX, dW = {DOMAIN}.Gradient <xs = ["X", "W"], zs = ["L"], y = "O"> (X, W, L)
        dWdX, ddW = {DOMAIN}.Gradient <xs = ["X", "W"], zs = ["L"], y = "dW"> (X, W, L)
    }}""", X, W, L)
    e, ones = X @ W - L, np.ones((3, 1), np.float32)
    expected = [2 * e @ W.T, 2 * X.T @ e, 2 * e @ ones.T + 2 * (X @ ones) @ W.T, 2 * X.T @ (X @ ones)]
    for f, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(f, wanted, rtol=1e-4, atol=1e-4)


def test_fourth_order(rng):
    nodes = "".join(f'{b} = {DOMAIN}.Gradient <xs = ["x"], y = "{a}"> (x)\n' for a, b in
                    (("y", "d1"), ("d1", "d2"), ("d2", "d3"), ("d3", "d4")))
    gradients = run(f"""g (double[3] x) => (double[3] d1, double[3] d2, double[3] d3, double[3] d4) {{
        x2 = Mul(x, x)
        x4 = Mul(x2, x2)
        y = Mul(x4, x)
        {nodes}
    }}""", x := np.array([1.0, -2.0, 0.5]))
    for f, e in zip(gradients, (5 * x**4, 20 * x**3, 60 * x**2, 120 * x), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-12)


def test_outputs_that_are_left_out_are_not_computed():
    model = parse_model(HEADER + f"""g (float[2] a, float[2] b) => (float[2] db) {{
        y = Mul(a, b)
        skipped, db = {DOMAIN}.Gradient <xs = ["a", "b"], y = "y"> (a, b)
    }}""")
    model.graph.node[-1].output[0] = ""
    assert run(model, f32(2, 3), f32(4, 5))[0].tolist() == [2, 3]
    del model.graph.node[-1].output[1:]
    model.graph.node[-1].output[0] = "db"
    assert run(model, f32(2, 3), f32(4, 5))[0].tolist() == [4, 5]


def test_what_y_does_not_depend_on_has_a_gradient_of_zeros():
    (db,) = run(f"""g (float[2] a, float[N] b) => (float[N] db) {{
        y = Exp(a)
        db = {DOMAIN}.Gradient <xs = ["b"], zs = ["a"], y = "y"> (b, a)
    }}""", f32(2, 3), f32(1, 2, 3))
    assert db.tolist() == [0, 0, 0]


def test_inside_of_a_loop(rng):
    (last,) = run(f"""g (float[2] x) => (float[2] last) {{
        n = Constant <value_int = 5> ()
        yes = Constant <value = bool {{1}}> ()
        last = Loop (n, yes, x) <body = b (int64 i, bool go, float[2] v) => (bool go_on, float[2] v_new) {{
            vv = Mul(v, v)
            g = {DOMAIN}.Gradient <xs = ["v"], y = "vv"> (v)
            tenth = Constant <value_float = 0.1> ()
            s = Mul(tenth, g)
            v_new = Sub(v, s)
            go_on = Identity(go)
        }}>
    }}""", x := f32(1, -2))
    np.testing.assert_allclose(last, x * 0.8**5, rtol=1e-6)


def test_before_what_it_differentiates():
    """It reads x alone, and that is the order of a graph; what it names comes after it, here in both of two."""
    lines = f"""xx = Mul(x, x)
        dxx = {DOMAIN}.Gradient <xs = ["x"], y = "dx"> (x)
        dx = {DOMAIN}.Gradient <xs = ["x"], y = "y"> (x)
        y = Mul(xx, x)
        both = Add(dx, dxx)"""
    onnx.checker.check_model(parse_model(f"{HEADER} g (float[2] x) => (float[2] both) {{ {lines} }}"))
    x = f32(1, -2)
    (both,) = run(f"g (float[2] x) => (float[2] both) {{ {lines} }}", x)
    np.testing.assert_allclose(both, 3 * x * x + 6 * x)
    (both,) = run(f"""g (float[2] x, bool c) => (float[2] o) {{ o = If (c) <
        then_branch = a () => (float[2] p) {{ {lines}
            p = Identity(both) }}, else_branch = b () => (float[2] q) {{ q = Neg(x) }}> }}""", x, np.array(True))
    np.testing.assert_allclose(both, 3 * x * x + 6 * x)


def test_a_circle():
    with pytest.raises(ModelError, match="reads 'y', which nothing computes before it"):
        run(f"""g (float[2] x) => (float[2] o) {{
            o = {DOMAIN}.Gradient <xs = ["x"], y = "y"> (x)
            y = Mul(x, o)
        }}""", f32(1, 2))


def test_inside_of_a_function_and_of_an_old_opset():
    # Inlining and the upgrade rename tensors, and the names that the node holds must go with them.
    model = parse_model(f"""<ir_version: 8, opset_import: ["": 12, "{DOMAIN}": 1, "own": 1]>
    g (float[2,2] x) => (float[2,2] p, float[2,2] dx) {{
        p = Softmax <axis = 1> (x)
        h = own.slope(x)
        dx = Identity(h)
    }}
    <domain: "own", opset_import: ["": 12, "{DOMAIN}": 1]>
    slope (x) => (dx) {{
        p = Softmax <axis = 1> (x)
        y = Mul(p, p)
        dx = {DOMAIN}.Gradient <xs = ["x"], y = "y"> (x)
    }}""")
    p, dx = run(model, np.array([[0, 1], [2, 4]], np.float32))
    np.testing.assert_allclose(dx, 2 * p * (p - (p * p).sum(1, keepdims=True)), rtol=1e-5)


def node_text(text, inputs="float[2] x, float[2] v, int64[2] i, float[3] z, float r, int64 t", output="float[2] o"):
    return f"g ({inputs}) => ({output}) {{ y = Mul(x, x)\n {text} }}"


ADAM = f"o, a, b = {DOMAIN}.Adam"

BROKEN = {
    "no y": (f'o = {DOMAIN}.Gradient <xs = ["x"]> (x)', "Gradient needs the attribute 'y'"),
    "y unknown": (f'o = {DOMAIN}.Gradient <xs = ["x"], y = "none"> (x)', "reads 'none', which nothing computes before"),
    "x unknown": (f'o = {DOMAIN}.Gradient <xs = ["u"], y = "y"> (x)', "reads 'u', which nothing computes before it"),
    "too few inputs": (f'o = {DOMAIN}.Gradient <xs = ["x"], zs = ["v"], y = "y"> (x)',
                       "names 2 tensors in xs and zs, and has 1 inputs; one for each was expected"),
    "too many outputs": (f'o, p = {DOMAIN}.Gradient <xs = ["x"], y = "y"> (x)', "Gradient has 1 outputs and not 2"),
    "whole numbers": (f'o = {DOMAIN}.Gradient <xs = ["i"], y = "y"> (i)', "'i' holds int64, and only real numbers"),
    "another shape": (f'o = {DOMAIN}.Gradient <xs = ["x"], y = "y"> (z)', r"'x' is <Value x float32\[2\]> and is fed"),
    "another type": (f'o = {DOMAIN}.Gradient <xs = ["x"], y = "y"> (i)', r"'x' is <Value x float32\[2\]> and is fed"),
    "unknown attribute": (f"{ADAM} <gamma = 1.0> (r, t, x, x, x, x)", "Adam has no attribute 'gamma'"),
    "number of inputs": (f"{ADAM} (r, t, x, x, x)", "Adam has 3 inputs after R and T; a multiple of 4 was expected"),
    "no tensors": (f"{ADAM} (r, t)", "Adam takes 3 or more inputs, 2 given"),
    "shapes differ": (f"{ADAM} (r, t, x, z, x, x)", r"<Value z float32\[3\]> belongs to <Value x float32\[2\]>"),
    "types differ": (f"{ADAM} (r, t, x, i, x, x)", r"<Value i int64\[2\]> belongs to <Value x float32\[2\]>"),
    "mode": (f'o, a = {DOMAIN}.Momentum <alpha = 1.0, beta = 1.0, norm_coefficient = 0.0, mode = "no">(r, t, x, x, x)',
             "Momentum: mode is 'no'; expected 'standard' or 'nesterov'"),
    "attribute missing": (f"o, a = {DOMAIN}.Momentum <alpha = 1.0, beta = 1.0> (r, t, x, x, x)",
                          "Momentum needs the attribute 'mode'"),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_message(text, message):
    with pytest.raises(ModelError, match=message):
        run(node_text(text))


@pytest.mark.usefixtures("unruled")
def test_an_operator_without_a_gradient_is_named():
    with pytest.raises(NoGradientError, match="operator Unique has neither a rule nor a body"):
        run(f"""g (float[1,4,1] x) => (float[1,4,1] o) {{
            y = Unique(x)
            o = {DOMAIN}.Gradient <xs = ["x"], y = "y"> (x)
        }}""", np.zeros((1, 4, 1), np.float32))
