"""Random expressions, found by Hypothesis: their gradients, their graphs, and the files of their trainings."""

import numpy as np
import pytest

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from once import ON_NEWEST  # noqa: E402

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, grad, load, op, variable  # noqa: E402
from ortpartial.runtime import Session  # noqa: E402

#: The same examples in every run: what a longer search finds is written down as a test.
PROFILE = settings(derandomize=True, deadline=None, max_examples=40, database=None,
                   suppress_health_check=list(HealthCheck))

UNARY = ["Tanh", "Sigmoid", "Exp", "Sin", "Cos", "Softplus", "Atan", "Neg", "Erf", "Identity"]
BINARY = ["Add", "Sub", "Mul", "Max", "Min"]
SHAPES = st.sampled_from([(), (1,), (3,), (2, 3), (2, 1), (1, 3), (4, 2, 3)])


@st.composite
def expressions(draw):
    """A function of x and w, their shapes, and a seed of their numbers."""
    shapes = draw(SHAPES), draw(SHAPES)
    steps = draw(st.lists(st.one_of(
        st.tuples(st.sampled_from(UNARY), st.integers(0, 9)),
        st.tuples(st.sampled_from(BINARY), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.sampled_from(["ReduceSum", "ReduceMean", "Softmax", "Transpose"]), st.integers(0, 9))),
        min_size=1, max_size=6))

    def compute(x, w):
        values = [x, w]
        for name, *operands in steps:
            inputs = [values[i % len(values)] for i in operands]
            if name in BINARY:
                try:
                    np.broadcast_shapes(*(v.shape for v in inputs))
                except ValueError:
                    continue
            if name in ("Softmax", "Transpose") and not inputs[0].shape:
                continue
            settings = {"keepdims": 1} if name.startswith("Reduce") else {}
            values.append(getattr(op, name)(*inputs, **settings))
        return op.ReduceSum(op.Tanh(values[-1]) + 0.0 * op.ReduceSum(w, keepdims=0), keepdims=0)

    return compute, shapes, draw(st.integers(0, 2**31))


@ON_NEWEST
@PROFILE
@given(expressions())
def test_gradient(expression):
    """Along a random direction, against central differences in float64; and after the way through a file."""
    compute, (first, second), seed = expression
    rng = np.random.default_rng(seed)
    x, w = (variable(n, "float64", shape) for n, shape in zip("xw", (first, second), strict=True))
    y = compute(x, w)
    proto = build([x, w], {"y": y, "dx": grad(y, [x, w])[0] if _reads(y, x) else 0.0 * x, "dw": grad(y, [w])[0]})
    values = {"x": rng.normal(size=first), "w": rng.normal(size=second)}
    session = Session(proto)
    outputs = session.run(values)
    direction = {n: rng.normal(size=a.shape) for n, a in values.items()}
    step = 1e-5
    high, low = (session.run({n: np.asarray(a + sign * step * direction[n]) for n, a in values.items()})["y"]
                 for sign in (1, -1))
    expected = sum((outputs[f"d{n}"] * direction[n]).sum() for n in "xw")
    np.testing.assert_allclose((high - low) / (2 * step), expected, rtol=1e-4, atol=1e-6)
    loaded = load(proto.SerializeToString())
    again = Session(build(loaded.inputs, loaded.outputs)).run(values)
    for n, a in outputs.items():
        np.testing.assert_allclose(again[n], a, rtol=1e-12, atol=1e-12)


def _reads(y, x):
    """Whether an expression depends on a variable."""
    from ortpartial.graph import topological

    return any(x is i for node in topological([y]) for i in node.inputs)


@ON_NEWEST
@settings(PROFILE, max_examples=5)
@given(st.sampled_from(["sgd", "adam", "adamw", "rmsprop"]), st.integers(1, 9), st.integers(0, 3),
       st.integers(0, 2**31), st.text(min_size=1, max_size=8))
def test_checkpoint(tmp_path_factory, rate, batch_size, epochs, seed, name):
    """A training that goes on from a file ends as one that was never cut off, whatever its weight is called."""
    folder = tmp_path_factory.mktemp("c")
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(9, 3)).astype(np.float32)

    def make():
        x, w = variable("x", "float32", ["N", 3]), constant(np.full((3, 1), 0.5, np.float32), hint=name)
        return OrtGradientForwardBackwardOptimizer(build([x], {"y": op.Tanh(x @ w)}), learning_rate=rate,
                                                   max_iter=1, batch_size=batch_size, random_state=seed)

    whole, part, resumed = make(), make(), make()
    for _ in range(epochs + 2):
        whole.partial_fit(X, X[:, :1])
    for _ in range(epochs):
        part.partial_fit(X, X[:, :1])
    part.save_checkpoint(folder / "c.safetensors")
    resumed.load_checkpoint(folder / "c.safetensors")
    for _ in range(2):
        resumed.partial_fit(X, X[:, :1])
    assert resumed.get_trained_onnx() == whole.get_trained_onnx()
