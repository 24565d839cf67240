"""The notation: Python arithmetic becomes values, and values become an ONNX model."""

from .build import build
from .control_flow import body_inputs, cond, loop, nested, scan, widened
from .ops import (
    CONTROL,
    OPSET,
    SMALL,
    Node,
    Operators,
    Subgraph,
    Value,
    constant,
    make_node,
    op,
    topological,
    variable,
    with_outputs,
)
from .rewriter import rewriting, rewritten
from .schemas import attribute_value, check_required, defaults, onnx_type, schema_of
from .shape_inference import without_zeros
from .shaping import cast, ones_like, reshape_like, shape_of, unbroadcast, zeros_like
from .values import FLOATS, RANDOM, counter
from .walk import boundary, reached, read_by

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
    "attribute_value",
    "body_inputs",
    "boundary",
    "build",
    "cast",
    "check_required",
    "cond",
    "constant",
    "counter",
    "defaults",
    "loop",
    "make_node",
    "nested",
    "ones_like",
    "onnx_type",
    "op",
    "reached",
    "read_by",
    "reshape_like",
    "rewriting",
    "rewritten",
    "scan",
    "schema_of",
    "shape_of",
    "topological",
    "unbroadcast",
    "variable",
    "widened",
    "with_outputs",
    "without_zeros",
    "zeros_like",
]
