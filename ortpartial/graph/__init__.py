"""The notation: Python arithmetic becomes values, and values become an ONNX model."""

from .build import build
from .control_flow import body_inputs, cond, loop, scan, walk_nodes, widen_body
from .ops import (
    CONTROL,
    OPSET,
    SMALL,
    Node,
    Operators,
    Subgraph,
    Value,
    attach_outputs,
    constant,
    make_node,
    op,
    topological,
    variable,
)
from .rewriter import make_rewriter, rewrite
from .schemas import attribute_value, check_required, defaults, onnx_type, schema_of
from .shape_inference import forget_zero_sizes
from .shaping import cast, ones_like, reshape_like, shape_of, unbroadcast, zeros_like
from .values import FLOATS, RANDOM, counter
from .walk import find_boundary, find_inputs, find_reached

__all__ = [
    "CONTROL",
    "FLOATS",
    "OPSET",
    "RANDOM",
    "SMALL",
    "Node",
    "Operators",
    "Subgraph",
    "Value",
    "attach_outputs",
    "attribute_value",
    "body_inputs",
    "build",
    "cast",
    "check_required",
    "cond",
    "constant",
    "counter",
    "defaults",
    "find_boundary",
    "find_inputs",
    "find_reached",
    "forget_zero_sizes",
    "loop",
    "make_node",
    "make_rewriter",
    "ones_like",
    "onnx_type",
    "op",
    "reshape_like",
    "rewrite",
    "scan",
    "schema_of",
    "shape_of",
    "topological",
    "unbroadcast",
    "variable",
    "walk_nodes",
    "widen_body",
    "zeros_like",
]
