"""Rules in float16 and bfloat16, and for tensors of one element, without elements and without axes."""

import re

import numpy as np
import onnx
import pytest
from corpus import CASES, FIRST, PLAIN, SINGLE, expression, has_rule
from ml_dtypes import bfloat16, finfo
from once import ON_BOTH
from table import OLD

from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import DataError, GraphError, ModelError
from ortpartial.graph.build import build
from ortpartial.graph.ops import CONTROL, constant, op, variable
from ortpartial.graph.shaping import cast
from ortpartial.runtime.device import runtime_version
from ortpartial.runtime.session import Session
from ortpartial.testing import _runs, check_gradient

pytestmark = ON_BOTH

VERSIONS = f"onnx {onnx.__version__} or onnxruntime {runtime_version()}"


#: Operators whose rules compare numbers or add them up, by a name.
COMPARISONS = {
    "MaxPool": lambda v: op.MaxPool(v, kernel_shape=[2, 2], strides=[2, 2]),
    "MaxPool that overlaps": lambda v: op.MaxPool(v, kernel_shape=[3, 3], strides=[2, 2]),
    "GlobalMaxPool": lambda v: op.GlobalMaxPool(v),
    "ReduceMax": lambda v: op.ReduceMax(v, [2, 3]),
    "Max": lambda v: op.Max(v, 0.7 * v + 0.1, 0.2),
    "Min": lambda v: op.Min(v, 0.7 * v + 0.1),
    "Clip": lambda v: op.Clip(v, -0.5, 0.5),
    "Gather": lambda v: op.Gather(v, np.array([0, 1, 1, 5]), axis=3),
    "GatherElements": lambda v: op.GatherElements(v, np.array([0, 1, 1, 5]).reshape(1, 1, 1, 4), axis=3),
    "GatherND": lambda v: op.GatherND(v, np.array([[0, 1], [0, 1], [1, 1]])),
    "Slice": lambda v: op.Slice(v, [0], [8], [3], [2]),
    "Pad": lambda v: op.Pad(v, [0, 0, 1, 1, 0, 0, 1, 1], mode="reflect"),
    "ScatterElements": lambda v: op.ScatterElements(v, np.array([0, 1, 1, 5]).reshape(1, 1, 1, 4),
                                                    v[:1, :1, :1, :4] * 1.5, axis=3, reduction="max"),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_products_in_float16(name):
    """The gradient is that of float32, also where the runtime rounds a product for some of its readers alone."""
    rng = np.random.default_rng(0)
    xs, ws, gradients = rng.normal(size=(2, 2, 8, 8)), 1 + rng.random((2, 1, 1)), {}
    for dtype in ("float16", "float32"):
        x, w = variable("x", dtype, xs.shape), variable("w", dtype, ws.shape)
        y = COMPARISONS[name](x * w)
        dy = constant(np.random.default_rng(1).normal(size=y.shape).astype(dtype))
        model = build([x, w], dict(zip(("dx", "dw"), grad(y, [x, w], [dy]), strict=True)))
        gradients[dtype] = Session(model).run({"x": xs.astype(dtype), "w": ws.astype(dtype)})
    for n, expected in gradients["float32"].items():
        np.testing.assert_allclose(gradients["float16"][n], expected, rtol=0, atol=0.02 * np.abs(expected).max())


def cases():
    """Cases of operators with a rule: the first one of every sixth operator, and the rest in the long proof."""
    seen: set[str] = set()
    for name, (graph, _, _) in CASES.items():
        op_type = graph.node[0].op_type
        if has_rule(graph) and op_type not in CONTROL and not name.startswith(PLAIN):
            quick = op_type not in seen and len(seen) % 6 == 0
            seen.add(op_type)
            yield pytest.param(name, marks=[] if quick else [pytest.mark.slow])


def expressions(name, args, dtype):
    """Inputs and cotangents in float32, and the outputs and gradients of a case computed in a dtype."""
    graph, inputs, outputs = CASES[name]
    variables = [variable(f"x{i}", np.float32, a.shape) for i, a in enumerate(args)]
    x = [cast(v, constant(np.zeros((), dtype))) for v in variables]
    try:
        y = [v.stated(a.shape) for v, a in zip(expression(graph, inputs)[0](*x), outputs, strict=True) if v.is_float]
    except GraphError as e:
        pytest.skip(f"{VERSIONS} does not know the operator in this dtype: {e}")
    seeds = [variable(f"dy{i}", np.float32, v.shape) for i, v in enumerate(y)]
    dys = [cast(d, v) for d, v in zip(seeds, y, strict=True)]
    dxs = grad(y, x, dys)
    assert [d.dtype for d in dxs] == [v.dtype for v in x]
    onnx.checker.check_model(build([*x, *dys], {f"dx{i}": d for i, d in enumerate(dxs)}), full_check=True)
    return [*variables, *seeds], y, dxs


def computed(inputs, outputs, feeds):
    """The outputs in float32."""
    like = constant(np.zeros((), np.float32))
    return list(Session(build(inputs, {f"y{i}": cast(v, like) for i, v in enumerate(outputs)})).run(feeds).values())


@pytest.mark.parametrize("dtype", [np.float16, bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", list(cases()))
def test_in_half_precision(name, dtype):
    graph, inputs, _ = CASES[name]
    args = [a.astype(dtype).astype(np.float32) for a in expression(graph, inputs)[1]]
    inputs_and_seeds, y, dxs = expressions(name, args, dtype)
    if OLD:
        pytest.skip("onnxruntime 1.19.2 dies of Acosh and others in float16: types alone are compared")
    rng = np.random.default_rng(0)
    feeds = {v.hint: a for v, a in zip(inputs_and_seeds, args, strict=False)}
    feeds |= {v.hint: rng.normal(size=v.shape).astype(dtype).astype(np.float32) for v in inputs_and_seeds[len(args) :]}
    try:
        computed(inputs_and_seeds, y, feeds)
    except (DataError, ModelError) as e:
        pytest.skip(f"{VERSIONS} does not run the operator in this dtype: {e}")
    try:
        gradients = computed(inputs_and_seeds, dxs, feeds)
    except (DataError, ModelError) as e:
        # In half precision nothing is added up where indices may be equal, and bfloat16 has few kernels. onnxruntime
        # 1.31.1 plans memory for a window of MaxPool behind the image, which it then leaves out.
        if not re.search("not supported with Scatter|no kernel|attempting to re-use buffer", str(e)):
            raise
        pytest.skip(f"{VERSIONS} does not run the gradient in this dtype: {e}")
    inputs_and_seeds, _, dxs = expressions(name, args, np.float32)
    largest, eps = (float(getattr(finfo(dtype), k)) for k in ("max", "eps"))
    for a, e in zip(gradients, computed(inputs_and_seeds, dxs, feeds), strict=True):
        a, e = a[np.abs(e) < largest], e[np.abs(e) < largest]
        assert np.abs(a - e).max(initial=0) <= 10 * eps * (np.abs(e).max(initial=0) + 1e-3)


SIZES = {"one": lambda a: a[:1], "none": lambda a: a[:0], "scalar": lambda a: np.resize(a, ())}
# Operators that depend on these sizes by their attributes, or that onnxruntime accepts and ONNX does not.
NOT_LITTLE = {
    "AffineGrid": "its second input holds the number of images",
    "Einsum": "onnxruntime 1.31.1 dies of some of tensors without elements",
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), "takes images, and scalars where their shape is known"),
    **dict.fromkeys(("LRN", "RMSNormalization"), "has an axis, and onnxruntime 1.19.2 takes tensors without one"),
    "Resize": "nothing cannot be resized",
}
# Cases whose weights would be empty with the first argument: the beginning of their names, and the reason.
NOT_EMPTY = {
    **dict.fromkeys(("gru_", "lstm_", "rnn_", "simple_rnn_"), "there is one direction at least"),
    "averagepool": "the interpreter of onnx 1.23.2 computes no ConvTranspose without images",
    "convtranspose_group_2": "there is one channel at least in a group",
}


@pytest.mark.parametrize("how", SIZES)
@pytest.mark.parametrize("name", list(cases()))
def test_few_elements(name, how):
    graph, inputs, _ = CASES[name]
    op_type = graph.node[0].op_type
    f, args = expression(graph, inputs)
    batch = args[0].shape[0] if args[0].ndim else None
    args = [SIZES[how](a) if how == "scalar" or (a.ndim and a.shape[0] == batch) else a for a in args]
    if OLD and how == "none":
        pytest.skip("onnxruntime 1.19.2 fails on tensors without elements, or dies of them")
    if "batchwise" in name:
        pytest.skip("onnxruntime 1.19.2 to 1.31.1 runs no recurrence of layout 1")
    if op_type in NOT_LITTLE:
        pytest.skip(f"{VERSIONS}: {op_type} {NOT_LITTLE[op_type]}")
    if how == "none" and (reason := next((NOT_EMPTY[k] for k in NOT_EMPTY if name.startswith(k)), None)):
        pytest.skip(f"{VERSIONS}: {reason}")
    double = op_type not in SINGLE and _runs(f, args, np.float64)
    if not double and not _runs(f, args, np.float32):
        pytest.skip(f"{VERSIONS} does not take the operator with tensors of this size")
    precision = {} if double else {"dtype": np.float32, "step": 1e-2, "rtol": 1e-2}
    g = (lambda *x: f(*x)[0]) if op_type in FIRST else f
    check_gradient(g, args, order=1, directions=1, skip_kinks=True, **precision)
