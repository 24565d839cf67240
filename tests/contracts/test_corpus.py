"""Do the gradients hold for the operator tests that ship inside onnx, which nobody here chose?"""

import warnings
from collections import Counter

import numpy as np
import pytest
from onnx import TensorProto, defs, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from table import OLD, cotangent

from ortpartial.autodiff.registry import CONSTANT, RULES
from ortpartial.exceptions import DataError, ModelError
from ortpartial.graph.build import build
from ortpartial.graph.ops import CONTROL, OPSET, constant, make_node, variable
from ortpartial.graph.rewriter import rewrite
from ortpartial.graph.schemas import attribute_value, schema_of
from ortpartial.model.load import load as model_of
from ortpartial.testing import _gradient, _runner, _runs, check_gradient

FLOATS = (np.float32, np.float64)

# What is tested elsewhere, or what has nothing to compare: the beginning of the name of a case, and why.
LEFT_OUT = {
    "cast_DOUBLE_to_FLOAT": "rounds to float32, so that differences are noise",
    **dict.fromkeys(
        (
            "attention_4d_diff_heads_mask4d_padded_kv",
            "attention_4d_gqa_causal_nonpad_decode",
            "attention_4d_causal_nonpad",
            "attention_local_window_ext_cache",
        ),
        "an input that is younger than the opset in which Attention appeared",
    ),
    **dict.fromkeys(
        (
            "attention_causal_boolmask_nan_robustness",
            "attention_23_boolmask_fullymasked",
            "attention_23_fullymasked",
            "attention_24_fullymasked",
        ),
        "a row that is masked as a whole is not a number inside the body, and so is its gradient",
    ),
    **dict.fromkeys(
        (
            "attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
            "attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
            "resize_downsample_scales_linear_align_corners",
            "resize_downsample_scales_cubic_align_corners",
            "maxunpool_export_with_output_shape",
        ),
        "onnxruntime computes something else than the specification",
    ),
    "castlike_DOUBLE_to_FLOAT": "rounds to float32, so that differences are noise",
    "castlike_FLOAT4E2M1": "a type that is younger than opset 21",
    "castlike_INT2": "a type that is younger than opset 21",
    "castlike_UINT2": "a type that is younger than opset 21",
    "dropout_default_old": "older than opset 21",
    "dropout_random_old": "older than opset 21",
    "scan_sum": "older than opset 9, before which Scan read a batch",
    "spacetodepth_dcr_mode": "younger than opset 21",
    "spacetodepth_crd_mode": "younger than opset 21",
    "split_equal_parts_1d_opset13": "older than opset 21",
    "split_equal_parts_2d_opset13": "older than opset 21",
    "split_equal_parts_default_axis_opset13": "older than opset 21",
    "training_dropout": "draws random numbers: tests/rules/test_normalize.py compares it with its own mask",
    "l2normalization_axis_0": "has a norm of 0, where the operator jumps",
    "dynamicquantizelinear": "exists in float32 alone",
    "reduce_log_sum_empty_set": "the logarithm of 0 and its gradient are infinite",
    "reduce_log_sum_exp_empty_set": "the logarithm of 0 and its gradient are infinite",
    "reduce_max_empty_set": "the largest of no elements is infinite and comes from none of them",
    "reduce_min_empty_set": "the smallest of no elements is infinite and comes from none of them",
}
# Inputs that are floating-point numbers and yet settings, which cannot be moved by a step.
SETTINGS = {"OneHot": ("depth",), "Resize": ("roi", "scales")}
# Operators whose further outputs are float32 always, or running statistics: differences of them would be noise.
FIRST = ("BatchNormalization", "LayerNormalization")
# What onnxruntime computes in float32 whatever the input is.
SINGLE = ("GroupNormalization", "RMSNormalization", "Shrink") if OLD else ("GroupNormalization", "Shrink")
# What no runtime has a kernel for, so that onnx's reference evaluator runs it.
REFERENCE = ("CausalConvWithState", "SwiGLU")
LEFT_OUT_OLD = {
    "rotary_embedding": "onnxruntime 1.19.2 fails on tensors without elements, or dies of them",
    "reduce_l1_empty_set": "onnxruntime 1.19.2 fails on tensors without elements, or dies of them",
    "reduce_sum_square_empty_set": "onnxruntime 1.19.2 fails on tensors without elements, or dies of them",
    **dict.fromkeys(
        (
            "averagepool_2d_ceil_last_window_starts_on_pad",
            "averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True",
            "maxpool_2d_ceil_output_size_reduce_by_one",
        ),
        "onnxruntime 1.19.2 computes something else than the specification",
    ),
    "reduce_prod_empty_set": "onnxruntime 1.19.2 fails on tensors without elements, or dies of them",
    "reduce_l2_empty_set": "onnxruntime 1.19.2 fails on tensors without elements, or dies of them",
    "reversesequence_batch": "onnxruntime 1.19.2 does not write sequences of length zero",
}
if OLD:
    LEFT_OUT |= LEFT_OUT_OLD


OPSETS = {}


def load():
    """Cases of one node that has a gradient, by name: (node, its inputs, its outputs)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases divide by zero on purpose when they are made
        tests = load_model_tests(kind="node")
    found = {}
    for test in tests:
        nodes = test.model.graph.node
        if len(nodes) == 1 and nodes[0].domain == "" and differentiable(nodes[0].op_type):
            inputs, outputs = ([array(v) for v in some] for some in test.data_sets[0])
            if all(any(v.dtype in FLOATS for v in some) for some in (inputs, outputs)):
                name = test.name.removeprefix("test_")
                found[name], OPSETS[name] = (test.model.graph, inputs, outputs), test.model.opset_import
    return found


def array(v):
    """What a case holds, as an array: some hold a TensorProto. Sequences and nothing at all become strings."""
    if isinstance(v, TensorProto):
        return numpy_helper.to_array(v)
    return np.asarray("no tensor" if v is None or isinstance(v, list) else v)


def differentiable(op_type):
    if ("", op_type) in RULES:
        return True
    return ("", op_type) not in CONSTANT and has_body(schema_of(op_type, "", OPSET))


def has_body(schema):
    return schema.has_function or schema.has_context_dependent_function


CASES = load()


def expression(graph, inputs):
    """The node as a function of its floating-point inputs; the others are constants."""
    (node,) = graph.node
    attributes = {a.name: attribute_value(a) for a in node.attribute}
    schema = schema_of(node.op_type, "", OPSET)
    given = dict(zip((i.name for i in graph.input), inputs, strict=True))
    names = [n for n in given if given[n].dtype in FLOATS and n not in SETTINGS.get(node.op_type, ())]

    def f(*x):
        values = {n: constant(v) for n, v in given.items()} | dict(zip(names, x, strict=True)) | {"": None}
        # A node owns all outputs of its schema, but for these two.
        n_outputs = len(node.output) if node.op_type in ("Split", "BatchNormalization") else None
        made = make_node(schema, [values[n] for n in node.input], attributes, n_outputs=n_outputs)
        return [y for y, n in zip(made.outputs, node.output, strict=False) if n]

    return f, [given[n] for n in names]


def body_expression(name, inputs):
    """The same for a node that has bodies, which are read as those of any model are."""
    graph, opsets = CASES[name][0], OPSETS[name]
    given = dict(zip((i.name for i in graph.input), inputs, strict=True))
    names = [n for n in given if given[n].dtype in FLOATS]

    def f(*x):
        values = {n: constant(v) for n, v in given.items()} | dict(zip(names, x, strict=True))
        kinds = [helper.make_value_info(n, v.type) for n, v in values.items()]
        typed = helper.make_graph(graph.node, "case", kinds, graph.output)
        model = model_of(helper.make_model(typed, opset_imports=opsets))
        return rewrite(list(model.outputs.values()), {model.inputs[n]: values[n] for n in model.inputs})

    return f, [given[n] for n in names]


def has_rule(graph):
    return ("", graph.node[0].op_type) in RULES


def sampled():
    """All cases; most of those of Attention, which are many and long, for the long proof alone."""
    many = [n for n, (graph, _, _) in CASES.items() if graph.node[0].op_type == "Attention"]
    slow = set(many) - set(many[::10])
    return [pytest.param(n, marks=pytest.mark.slow if n in slow else ()) for n in CASES]


# Cases at a place where the gradient jumps, by as much to the one side as to the other, or one of many elements.
JUMPS = (
    "basic_deform_conv_with_padding",
    "gridsample_bilinear_align_corners_0_additional_1",
    "gridsample_volumetric_nearest_align_corners_0",
    "l1normalization_axis_last",
    "scatternd_max",
    "scatternd_min",
)
# A point of its grid is on one of X, where the second derivative of the cubic spline jumps by as much to either side.
KNOTS = {"gridsample_bicubic"}
# Operators that saturate in their cases, so that float32 does not hold the small elements of the second order.
COARSE = ("RNN", "ReduceLogSumExp")


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith((*LEFT_OUT, *JUMPS)) and n not in KNOTS])
def test_the_second_order(name):
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


def computed(f, args, op_type):
    """The outputs of a case; a case that the runtime cannot run is skipped."""
    x = [variable(f"x{i}", a.dtype, a.shape) for i, a in enumerate(args)]
    try:
        run = _runner(build(x, {f"y{i}": v for i, v in enumerate(f(*x))}), reference=op_type in REFERENCE)
        return run({v.hint: a for v, a in zip(x, args, strict=True)})
    except (DataError, ModelError) as e:
        pytest.skip(f"does not run here: {e}")


@pytest.mark.proof
@pytest.mark.parametrize("name", sampled())
def test_case(name, record_property):
    record_property("operator", CASES[name][0].node[0].op_type)
    if reason := next((LEFT_OUT[k] for k in LEFT_OUT if name.startswith(k)), None):
        pytest.skip(reason)
    graph, inputs, outputs = CASES[name]
    f, args = body_expression(name, inputs) if graph.node[0].op_type in CONTROL else expression(graph, inputs)
    found = computed(f, args, graph.node[0].op_type)
    for a, b in zip(found.values(), outputs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    g = (lambda *x: f(*x)[0]) if graph.node[0].op_type in FIRST else f
    if has_rule(graph) and graph.node[0].op_type not in SINGLE and _runs(f, args, np.float64):
        precision = {}
    else:
        # A body computes some of it in float32 whatever the input is, and some kernels are in float32 alone.
        precision = {"dtype": np.float32, "step": 1e-2, "rtol": 1e-2}
    check_gradient(g, args, order=1, directions=1, skip_kinks=True, **precision)


def test_every_reason_is_that_of_a_case():
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
