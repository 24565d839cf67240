"""The operator tests of onnx: cases of one node, as expressions whose gradient can be checked."""

import numpy as np
from node_tests import load_node_tests
from onnx import TensorProto, numpy_helper
from table import OLD

from ortpartial.autodiff.registry import CONSTANT, RULES
from ortpartial.graph.ops import OPSET, constant, make_node
from ortpartial.graph.schemas import attribute_value, schema_of

FLOATS = (np.float32, np.float64)

# Cases that are not compared: the beginning of their names, and the reason.
LEFT_OUT = {
    **dict.fromkeys(
        ("dequantizelinear_float4e2m1", "dequantizelinear_int2", "dequantizelinear_uint2"),
        "younger than opset 21, for which rules are written: Reshape and DequantizeLinear take no such type there",
    ),
    "unique_": "a difference takes equal elements apart, which gives another shape; see test_zero_gradients.py",
    "maxunpool_export_with_output_shape": "onnx 1.23.2 and onnxruntime 1.19.2 to 1.31.1 count indices in other tensors",
}

# Cases that onnx's reference evaluator computes, since onnxruntime does otherwise: the beginning of their names, and
# why.
ELSEWHERE = {
    **dict.fromkeys(
        (
            "attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
            "attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
            "resize_downsample_scales_linear_align_corners",
            "resize_downsample_scales_cubic_align_corners",
        ),
        "onnxruntime 1.19.2 to 1.31.1 computes something else than the specification",
    ),
}
# Floating-point inputs that are settings: differences by them have no meaning.
SETTINGS = {"Dropout": ("r",), "OneHot": ("depth",), "Resize": ("roi", "scales")}
# Operators of which only the first output is compared: the others are float32 or running statistics.
FIRST = ("BatchNormalization", "LayerNormalization")
# Cases of which only the first output is compared: masked scores, the last one, are infinite.
INFINITE = ("attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
            "attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal")
# Cases that round to float32, so that differences in float64 are noise: the beginning of their names.
ROUNDED = ("cast_DOUBLE_to_FLOAT", "castlike_DOUBLE_to_FLOAT")
# Cases that are compared at a point beside their own, where the operator jumps: the beginning of their names.
SHIFTED = ("range_float", "l2normalization_axis_0", "mod_float_edge_cases")
# Operators that onnxruntime computes in float32, whatever the dtype of the input.
SINGLE = ("DequantizeLinear", "GroupNormalization", "Shrink", *(("DeformConv", "RMSNormalization") if OLD else ()))


ELSEWHERE_OLD = {
    **dict.fromkeys(
        ("rotary_embedding", "reduce_l1_empty_set", "reduce_l2_empty_set", "reduce_prod_empty_set",
         "reduce_sum_square_empty_set", "reduce_log_sum_empty_set", "reduce_log_sum_exp_empty_set",
         "reduce_max_empty_set", "reduce_min_empty_set", "reduce_sum_empty_set"),
        "onnxruntime 1.19.2 fails on tensors without elements, or dies of them",
    ),
    **dict.fromkeys(
        (
            "averagepool_2d_ceil_last_window_starts_on_pad",
            "averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True",
            "maxpool_2d_ceil_output_size_reduce_by_one",
        ),
        "onnxruntime 1.19.2 computes something else than the specification",
    ),
    "reversesequence_batch": "onnxruntime 1.19.2 does not write sequences of length zero",
}
if OLD:
    ELSEWHERE |= ELSEWHERE_OLD


# Cases that are compared to the first order alone, and not in half precision: the beginning of their names.
PLAIN = (*LEFT_OUT, *ELSEWHERE, *ROUNDED, *SHIFTED, "attention_2", "attention_4d_causal_nonpad",
         "attention_4d_diff_heads_mask4d_padded_kv", "attention_4d_gqa_causal_nonpad_decode",
         "attention_causal_boolmask", "attention_local_window_ext_cache", "castlike_FLOAT4E2M1", "castlike_INT2",
         "castlike_UINT2", "dropout_", "dynamicquantizelinear", "reduce_log_sum_", "reduce_max_empty_set",
         "reduce_min_empty_set", "scan_sum", "spacetodepth_", "split_equal_parts_", "training_dropout")


OPSETS = {}


def load():
    """Cases of one node of floats, by name: (node, its inputs, its outputs); with a gradient, and without by nature."""
    cases, constant_cases = {}, {}
    for test in load_node_tests():
        nodes = test.model.graph.node
        is_constant = ("", nodes[0].op_type) in CONSTANT
        if len(nodes) == 1 and nodes[0].domain == "" and (is_constant or differentiable(nodes[0].op_type)):
            inputs, outputs = ([array(v) for v in some] for some in test.data_sets[0])
            if all(any(v.dtype in FLOATS for v in some) for some in (inputs, outputs)):
                name = test.name.removeprefix("test_")
                (constant_cases if is_constant else cases)[name] = test.model.graph, inputs, outputs
                OPSETS[name] = test.model.opset_import
    return cases, constant_cases


def array(v):
    """A tensor of a case as an array; a sequence or a missing tensor becomes a string."""
    if isinstance(v, TensorProto):
        return numpy_helper.to_array(v)
    return np.asarray("no tensor" if v is None or isinstance(v, list) else v)


def differentiable(op_type):
    if ("", op_type) in RULES:
        return True
    return ("", op_type) not in CONSTANT and has_body(schema_of(op_type, "", OPSET))


def has_body(schema):
    return schema.has_function or schema.has_context_dependent_function


CASES, CONSTANT_CASES = load()


def expression(graph, inputs, opset=OPSET, settings=SETTINGS):
    """The node of a case as a function of its floating-point inputs, the others being constants; and these inputs."""
    (node,) = graph.node
    attributes = {a.name: attribute_value(a) for a in node.attribute}
    schema = schema_of(node.op_type, "", max(opset, OPSET))
    arrays = dict(zip((i.name for i in graph.input), inputs, strict=True))
    names = [n for n in arrays if arrays[n].dtype in FLOATS and n not in settings.get(node.op_type, ())]

    def f(*x):
        values = {n: constant(v) for n, v in arrays.items()} | dict(zip(names, x, strict=True)) | {"": None}
        # A node owns all outputs of its schema, but for these two.
        n_outputs = len(node.output) if node.op_type in ("Split", "BatchNormalization") else None
        rebuilt = make_node(schema, [values[n] for n in node.input], attributes, n_outputs=n_outputs)
        return [y for y, n in zip(rebuilt.outputs, node.output, strict=False) if n]

    return f, [arrays[n] for n in names]


def has_rule(graph):
    return ("", graph.node[0].op_type) in RULES
