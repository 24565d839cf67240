"""The notation: Python arithmetic on values, and models built from them."""

from . import indexing  # noqa: F401  (x[...] calls it)
from .arithmetic import Arithmetic
from .body_types import CONTROL, body_inputs
from .build import build
from .casting import describe_misfit, read_array, to_dtype
from .control_flow import cond, loop, scan, widen_body
from .eager import evaluating, find_numbers, register_evaluator, with_numbers
from .flops import count_flops, count_runs
from .gradient_stop import (
    drop_straight_through,
    gradient_reads,
    is_gradient_stop,
    mark_gradient_stop,
    replace_gradient,
    stop_gradient,
)
from .immutable import Immutable
from .opaque import describe_opaque, register_type_finder
from .opaque_schema import OpaqueSchema
from .ops import (
    SMALL,
    Operators,
    attach_outputs,
    constant,
    make_node,
    op,
    register_guard,
    register_writer,
    variable,
    without_guards,
)
from .pickling import NodeList
from .refusals import (
    GUARD,
    LEAST_GUARDED,
    REFUSING,
    SHIFT,
    Bound,
    describe_bound,
    describe_refusal,
    find_bound,
    find_refused,
    name_node,
    state_refusal,
)
from .rewriter import make_rewriter, rewrite
from .schemas import (
    OPSET,
    accepted_types,
    attribute_value,
    check_required,
    defaults,
    onnx_type,
    parameter,
    register_schema,
    schema_of,
)
from .shape_inference import MISTAKEN_DEFAULTS, forget_zero_sizes
from .shaping import cast, ones_like, reshape_like, shape_of, unbroadcast, zeros_like
from .traits import FLOATS, LABEL_LOSSES, PRODUCTS, RANDOM, VIEWS, WITH_BODIES
from .values import Node, Subgraph, Value, counter, topological, walk_back
from .walk import find_boundary, find_inputs, find_reached, walk_nodes

__all__ = ["CONTROL", "FLOATS", "GUARD", "LABEL_LOSSES", "LEAST_GUARDED", "MISTAKEN_DEFAULTS", "OPSET", "PRODUCTS",
           "RANDOM", "REFUSING", "SHIFT", "SMALL", "VIEWS", "WITH_BODIES", "Arithmetic", "Bound", "Immutable", "Node",
           "NodeList", "OpaqueSchema", "Operators", "Subgraph", "Value", "accepted_types", "attach_outputs",
           "attribute_value", "body_inputs", "build", "cast", "check_required", "cond", "constant", "count_flops",
           "count_runs", "counter", "defaults", "describe_bound", "describe_misfit", "describe_opaque",
           "describe_refusal", "drop_straight_through", "evaluating", "find_bound", "find_boundary", "find_inputs",
           "find_numbers", "find_reached", "find_refused", "forget_zero_sizes", "gradient_reads", "is_gradient_stop",
           "loop", "make_node", "make_rewriter", "mark_gradient_stop", "name_node", "ones_like", "onnx_type", "op",
           "parameter", "read_array", "register_evaluator", "register_guard", "register_schema", "register_type_finder",
           "register_writer", "replace_gradient", "reshape_like", "rewrite", "scan", "schema_of", "shape_of",
           "state_refusal", "stop_gradient", "to_dtype", "topological", "unbroadcast", "variable", "walk_back",
           "walk_nodes", "widen_body", "with_numbers", "without_guards", "zeros_like"]
