"""The notation: Python arithmetic on values, and models built from them."""

from . import indexing, ops, refusals  # noqa: F401  (x[...] calls indexing)
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
from .ops import *
from .pickling import NodeList
from .refusals import *
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

__all__ = ["CONTROL", "FLOATS", "LABEL_LOSSES", "MISTAKEN_DEFAULTS", "OPSET", "PRODUCTS", "RANDOM", "VIEWS",
           "WITH_BODIES", "Arithmetic", "Immutable", "Node", "NodeList", "OpaqueSchema", "Subgraph", "Value",
           "accepted_types", "attribute_value", "body_inputs", "build", "cast", "check_required", "cond", "count_flops",
           "count_runs", "counter", "defaults", "describe_misfit", "describe_opaque", "drop_straight_through",
           "evaluating", "find_boundary", "find_inputs", "find_numbers", "find_reached", "forget_zero_sizes",
           "gradient_reads", "is_gradient_stop", "loop", "make_rewriter", "mark_gradient_stop", "ones_like",
           "onnx_type", "parameter", "read_array", "register_evaluator", "register_schema", "register_type_finder",
           "replace_gradient", "reshape_like", "rewrite", "scan", "schema_of", "shape_of", "stop_gradient", "to_dtype",
           "topological", "unbroadcast", "walk_back", "walk_nodes", "widen_body", "with_numbers", "zeros_like"]
__all__ += [*ops.__all__, *refusals.__all__]
