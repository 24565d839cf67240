"""Gradients of the operator tests that ship with onnx."""

from collections import Counter

import numpy as np
import pytest
from corpus import CASES, ELSEWHERE, FIRST, FLOATS, LEFT_OUT, OPSETS, SINGLE, expression, has_body, has_rule
from onnx import defs, helper
from table import cotangent

from ortpartial import testing
from ortpartial.autodiff.registry import CONSTANT, RULES
from ortpartial.exceptions import DataError, ModelError
from ortpartial.graph.build import build
from ortpartial.graph.ops import CONTROL, OPSET, constant, variable
from ortpartial.graph.schemas import schema_of
from ortpartial.graph.rewriter import rewrite
from ortpartial.model.load import load as model_of
from ortpartial.runtime.session import Session
from ortpartial.testing import _gradient, _make_runner, _runs, check_gradient


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
    """All cases; most of those of Attention, which are many and slow, only in the long proof."""
    many = [n for n, (graph, _, _) in CASES.items() if graph.node[0].op_type == "Attention"]
    slow = set(many) - set(many[::10])
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
@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith((*LEFT_OUT, *JUMPS)) and n not in KNOTS])
def test_second_order(name):
    graph, inputs, outputs = CASES[name]
    op_type = graph.node[0].op_type
    if "batchwise" in name:
        pytest.skip("layout 1 does not run in onnxruntime 1.19.2 to 1.31.1")
    f, args = body_expression(name, inputs) if op_type in CONTROL else expression(graph, inputs)
    computed(f, args, op_type)
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
    return expression(graph, inputs, opset)


def run(f, args):
    """The outputs of a case."""
    x = [variable(f"x{i}", a.dtype, a.shape) for i, a in enumerate(args)]
    compiled = _make_runner(build(x, {f"y{i}": v for i, v in enumerate(f(*x))}))
    return compiled({v.hint: a for v, a in zip(x, args, strict=True)})


class NoSession:
    """In place of the sessions of onnxruntime, so that the reference evaluator computes."""

    def __init__(self, model):
        raise ModelError("There is no kernel.")


def leave_onnxruntime(name, f, args):
    """Why onnxruntime does not compute a case; None where it does."""
    if reason := next((ELSEWHERE[k] for k in ELSEWHERE if name.startswith(k)), None):
        return reason
    try:
        x = [variable(f"x{i}", a.dtype, a.shape) for i, a in enumerate(args)]
        Session(build(x, {f"y{i}": v for i, v in enumerate(f(*x))})).run(
            {v.hint: a for v, a in zip(x, args, strict=True)})
    except (DataError, ModelError) as e:
        return str(e)
    return None


@pytest.mark.proof
@pytest.mark.parametrize("name", sampled())
def test_case(name, record_property, monkeypatch):
    graph, _, outputs = CASES[name]
    op_type = graph.node[0].op_type
    record_property("operator", op_type)
    record_property("case", name)
    if reason := next((LEFT_OUT[k] for k in LEFT_OUT if name.startswith(k)), None):
        pytest.skip(reason)
    f, args = case(name)
    if reason := leave_onnxruntime(name, f, args):
        record_property("elsewhere", reason)
        monkeypatch.setattr(testing, "Session", NoSession)
    for a, b in zip(run(f, args).values(), outputs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    g = (lambda *x: f(*x)[0]) if op_type in FIRST else f
    if has_rule(graph) and op_type not in SINGLE and _runs(f, args, np.float64):
        precision = {}
    else:
        # Some bodies compute in float32, whatever the dtype of the input, and some kernels exist in float32 only.
        precision = {"dtype": np.float32, "step": 1e-2, "rtol": 1e-2}
    check_gradient(g, args, order=1, directions=1, skip_kinks=True, **precision)


def test_every_exception_matches_a_case():
    assert [k for k in LEFT_OUT if not any(name.startswith(k) for name in CASES)] == []


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
