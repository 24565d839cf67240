"""Gradients of the operator tests that ship with onnx."""

from collections import Counter

import numpy as np
import onnx
import pytest
from corpus import (
    CASES,
    ELSEWHERE,
    FIRST,
    FLOATS,
    INFINITE,
    LEFT_OUT,
    OPSETS,
    PLAIN,
    ROUNDED,
    SHIFTED,
    SINGLE,
    expression,
    has_body,
    has_rule,
)
from onnx import defs, helper
from table import cotangent

from ortpartial import testing
from ortpartial.autodiff.grad import grad
from ortpartial.autodiff.registry import CONSTANT, RULES
from ortpartial.exceptions import DataError, ModelError, OrtPartialError
from ortpartial.graph.build import build
from ortpartial.graph.ops import CONTROL, OPSET, constant, variable
from ortpartial.graph.rewriter import rewrite
from ortpartial.graph.schemas import schema_of
from ortpartial.model.load import load as model_of
from ortpartial.runtime.device import has_training
from ortpartial.testing import _gradient, _make_runner, _runs, check_gradient, evaluate


def body_expression(name, inputs):
    """The same for a node with bodies, which are read as those of any model."""
    graph, opsets = CASES[name][0], OPSETS[name]
    arrays = dict(zip((i.name for i in graph.input), inputs, strict=True))
    names = [n for n in arrays if arrays[n].dtype in FLOATS]

    def f(*x):
        values = {n: constant(v) for n, v in arrays.items()} | dict(zip(names, x, strict=True))
        kinds = [helper.make_value_info(n, v.type) for n, v in values.items()]
        typed = helper.make_graph(graph.node, "case", kinds, graph.output)
        model = model_of(helper.make_model(typed, opset_imports=opsets))
        return rewrite(list(model.outputs.values()), {model.inputs[n]: values[n] for n in model.inputs})

    return f, [arrays[n] for n in names]


def sampled():
    """One half of the cases on onnxruntime-training, the other on onnxruntime; few of Attention. A proof has all."""
    many = [n for n, (graph, _, _) in CASES.items() if graph.node[0].op_type == "Attention"]
    slow = {*many, *list(CASES)[has_training() :: 2]} - {*many[::10]}
    return [pytest.param(n, marks=pytest.mark.slow if n in slow else ()) for n in CASES]


# Cases at a jump of the gradient, where central differences average both sides.
JUMPS = (
    "basic_deform_conv_with_padding",
    "gridsample_bilinear_align_corners_0_additional_1",
    "gridsample_volumetric_nearest_align_corners_0",
    "l1normalization_axis_last",
    "scatternd_max",
    "scatternd_min",
)
# A grid point lies on a point of X, where the second derivative of the cubic spline jumps.
KNOTS = {"gridsample_bicubic"}
# Operators that saturate in their cases: the small elements of the second order are lost in float32.
COARSE = ("RNN", "ReduceLogSumExp")


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith((*PLAIN, *JUMPS)) and n not in KNOTS])
def test_second_order(name):
    graph, _, outputs = CASES[name]
    op_type = graph.node[0].op_type
    f, args = case(name)
    if reason := leave_onnxruntime(name, f, args):
        pytest.skip(f"does not run here: {reason}")
    cotangents = [cotangent(y.shape) for y in outputs[: 1 if op_type in FIRST else None] if y.dtype in FLOATS]
    wrt = list(range(len(args)))
    g = _gradient((lambda *x: f(*x)[0]) if op_type in FIRST else f, wrt, len(args))
    args = [a.astype(np.float64) for a in (*args, *cotangents)]
    exact = has_rule(graph) and op_type not in SINGLE and _runs(g, args, np.float64)
    precision = {} if exact else {"dtype": np.float32, "step": 1e-2, "rtol": 1e-2}
    check_gradient(g, args, order=1, directions=1, skip_kinks=True,
                   rtol_float32=1e-3 if op_type in COARSE else 1e-4, **precision)


def case(name):
    """The node of a case as a function of its floating-point inputs, and these inputs.

    A node with bodies, and one of an opset in which the operator had another form, is read as that of any model.
    """
    graph, inputs, _ = CASES[name]
    opset = next(o.version for o in OPSETS[name] if not o.domain)
    op_type = graph.node[0].op_type
    if op_type in CONTROL or schema_of(op_type, "", opset).since_version < schema_of(op_type, "", OPSET).since_version:
        return body_expression(name, inputs)
    # onnxruntime 1.31.1 has no kernel for RoiAlign of opset 22, which is that of opset 16 with other types.
    return expression(graph, inputs, OPSET if op_type == "RoiAlign" else opset)


def run(f, args, session=False):
    """The outputs of a case, in onnxruntime or, unless `session` asks for it alone, in the reference evaluator."""
    x = [variable(f"x{i}", a.dtype, a.shape) for i, a in enumerate(args)]
    compiled = _make_runner(build(x, {f"y{i}": v for i, v in enumerate(f(*x))}), reference=not session)
    return list(compiled({v.hint: a for v, a in zip(x, args, strict=True)}).values())


def no_session(model):
    """In place of a session of onnxruntime, so that the reference evaluator computes."""
    raise ModelError("There is no kernel.")


def leave_onnxruntime(name, f, args):
    """Why onnxruntime does not compute a case; None where it does, in float64 at least."""
    if reason := find(ELSEWHERE, name):
        return reason
    try:
        run(f, args, session=True)
    except (DataError, ModelError) as e:
        return None if _runs(f, args, np.float64) else str(e)
    return None


def find(reasons, name):
    """The reason for a case, by the beginning of its name."""
    return next((reasons[k] for k in reasons if name.startswith(k)), None)


@pytest.mark.sampled(4)
@pytest.mark.proof
@pytest.mark.parametrize("name", sampled())
def test_case(name, record_property, monkeypatch):
    op_type = CASES[name][0].node[0].op_type
    record_property("operator", op_type)
    record_property("case", name)
    if reason := find(LEFT_OUT, name):
        pytest.skip(reason)
    f, args = case(name)
    if reason := leave_onnxruntime(name, f, args):
        record_property("elsewhere", reason)
        monkeypatch.setattr(testing, "Session", no_session)
    try:
        compare_with_mask(f, args) if "training_dropout" in name else check(name, f, args, elsewhere=bool(reason))
    except (RuntimeError, TypeError, ValueError) as e:
        if not reason or isinstance(e, OrtPartialError):
            raise
        pytest.skip(f"onnx {onnx.__version__} fails in its reference evaluator, {e}, and: {reason}")


def check(name, f, args, elsewhere):
    """Compare the outputs of a case with its own, and the gradient with central differences."""
    graph, _, outputs = CASES[name]
    op_type = graph.node[0].op_type
    for a, b in zip(run(f, args), outputs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 + 1e-6 * np.abs(b[np.isfinite(b)]).max(initial=0))
    if name.startswith(SHIFTED):
        args = [0.3 + np.resize(np.arange(5) / 7, a.shape).astype(a.dtype) + k for k, a in enumerate(args)]
    g = (lambda *x: f(*x)[0]) if op_type in FIRST or name.startswith(INFINITE) else f
    rounds = op_type in SINGLE or name.startswith(ROUNDED)
    if has_rule(graph) and not rounds and (elsewhere or _runs(f, args, np.float64)):
        precision = {}
    else:
        # Some bodies compute in float32, whatever the dtype of the input, and some kernels exist in float32 only.
        precision = {"dtype": np.float32, "step": 1e-2, "rtol": 1e-2}
    check_gradient(g, args, order=1, directions=1, skip_kinks=True, **precision)


def compare_with_mask(f, args):
    """Compare the gradient of Dropout, which draws anew in each run, with the mask of the same run."""
    x = variable("x", args[0].dtype, args[0].shape)
    y, *_ = f(x)
    dy = constant(cotangent(y.shape).astype(x.dtype))
    (dx,) = grad(y, [x], [dy])
    results = evaluate(build([x], {"y": y, "dx": dx}), {"x": args[0]})
    kept = results["y"] != 0
    np.testing.assert_allclose(results["dx"][kept], (dy.array * results["y"] / args[0])[kept], rtol=1e-5)
    assert not results["dx"][~kept].any()


def test_every_exception_matches_a_case():
    exceptions = (*LEFT_OUT, *ELSEWHERE, *ROUNDED, *SHIFTED)
    assert [k for k in exceptions if not any(name.startswith(k) for name in CASES)] == []


def test_there_are_enough_cases():
    counts = Counter(graph.node[0].op_type for graph, _, _ in CASES.values())
    print(", ".join(f"{op_type} {n}" for op_type, n in sorted(counts.items())))
    with_rule = {op_type for op_type in counts if ("", op_type) in RULES}
    assert len(with_rule) >= 105
    assert sum(counts[op_type] for op_type in with_rule) >= 650


def test_every_operator_that_onnx_calls_differentiable_has_a_rule_or_a_body():
    newest = {s.name: s for s in defs.get_all_schemas() if not s.domain and not s.deprecated}
    differentiable = defs.OpSchema.DifferentiationCategory.Differentiable
    marked = [n for n, s in newest.items() if any(i.differentiation_category == differentiable for i in s.inputs)]
    assert len(marked) >= 120
    missing = [n for n in marked if ("", n) not in RULES and ("", n) not in CONSTANT and not has_body(newest[n])]
    assert missing == []
