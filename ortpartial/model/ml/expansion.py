"""Expansion of operators of ai.onnx.ml: their weights, which are attributes, as initializers of standard operators."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, defs, helper, numpy_helper

from ortpartial.annotations import Attributes, Settings
from ortpartial.exceptions import GraphError, ModelError
from ortpartial.graph import FLOATS, OPSET, Value, attribute_value, build, constant, defaults, op, schema_of, variable

from ..walk import walk_graphs
from .linear import LINEAR
from .operator import MlOperator
from .preprocessing import OUTPUTS, PREPROCESSING
from .svm import SVM
from .trees import TREES

__all__ = ["ML_OPERATORS", "compute_ml", "expand", "expand_ml", "list_ml_outputs", "list_preprocessing",
           "read_ml_weights", "write_ml_weights"]

DOMAIN = "ai.onnx.ml"

#: By name.
ML_OPERATORS: dict[str, MlOperator] = {**LINEAR, **OUTPUTS, **PREPROCESSING, **SVM, **TREES}


def read_ml_weights(proto: ModelProto) -> dict[str, np.ndarray]:
    """The weights that are attributes of the nodes of a model.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; its bodies and functions do not count.

    Returns
    -------
    dict of str to numpy.ndarray
        By name, ``<last output of the node>.<attribute>``.

    Examples
    --------
    >>> from onnx import parser
    >>> model = parser.parse_model('''<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 1]>
    ... g (float[N, 2] x) => (float[N, 1] y) {
    ...     y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0], intercepts = [3.0]> (x)
    ... }''')
    >>> {n: a.shape for n, a in read_ml_weights(model).items()}
    {'y.coefficients': (2, 1), 'y.intercepts': (1,)}
    """
    named: dict[str, np.ndarray] = {}
    version = _version(proto)
    for node, operator in _list_nodes(proto.graph):
        attributes = _read_attributes(node, version)
        for what, array in (_read_arrays(node, operator, attributes) or {}).items():
            name = f"{_prefix(node)}.{what}"
            if name in named or any(t.name == name for t in proto.graph.initializer):
                raise ModelError(f"Two tensors are called {name!r}: a weight of node {node.name or '(unnamed)'} "
                                 f"({node.op_type}) and another one; rename the output {_prefix(node)!r}.")
            named[name] = array
    return named


def write_ml_weights(proto: ModelProto, weights: Mapping[str, np.ndarray]) -> None:
    """Write weights into the attributes that they were read from.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; its nodes are written to.
    weights : dict of str to numpy.ndarray
        New content by name, of the same shape and dtype; names of no weight count for nothing.
    """
    version = _version(proto)
    for node, operator in _list_nodes(proto.graph):
        prefix = _prefix(node)
        attributes = _read_attributes(node, version)
        former = _read_arrays(node, operator, attributes) or {}
        new = {what: np.asarray(weights.get(f"{prefix}.{what}", a)).astype(a.dtype).reshape(a.shape)
               for what, a in former.items()}
        changed = {what: a for what, a in new.items() if not np.array_equal(a, former[what], equal_nan=True)}
        if not changed:
            continue
        written = operator.write(attributes, changed)
        kept = [a for a in node.attribute if a.name not in written]
        del node.attribute[:]
        node.attribute.extend([*kept, *(helper.make_attribute(n, v) for n, v in written.items())])


def list_ml_outputs(proto: ModelProto) -> set[str]:
    """The outputs of nodes that the names of weights begin with.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; its bodies and functions do not count.

    Returns
    -------
    set of str
    """
    return {_prefix(node) for node, _ in _list_nodes(proto.graph)}


def list_preprocessing(proto: ModelProto) -> set[str]:
    """The weights of nodes that scale and impute features, which are statistics of the data.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; its bodies and functions do not count.

    Returns
    -------
    set of str
        Their names, as in `read_ml_weights`.
    """
    version = _version(proto)
    return {f"{_prefix(node)}.{what}" for node, operator in _list_nodes(proto.graph) if node.op_type in PREPROCESSING
            for what in _read_arrays(node, operator, _read_attributes(node, version)) or {}}


def expand(graph: GraphProto, opsets: dict[str, int], stored: Collection[str]) -> None:
    """Write each operator of ai.onnx.ml that has a gradient or weights as standard operators.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph, of opset 21 or later; it is written to, and so are the graphs inside it.
    opsets : dict of str to int
        Its opsets; written to.
    stored : collection of str
        The outputs of nodes whose weights are kept elsewhere: big weights become inputs.
    """
    for g in walk_graphs(graph):
        if not any(_list_nodes(g)):
            continue
        opsets.setdefault("", OPSET)
        types = {v.name: v.type.tensor_type for v in (*g.input, *g.value_info)}
        nodes = [new for node in g.node for new in _expand_node(node, g, opsets, stored if g is graph else (), types)]
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        zipped = {o for node in g.node if node.op_type == "ZipMap" and node.domain == DOMAIN for o in node.output}
        for v in (v for v in (*g.output, *g.value_info) if v.name in zipped):
            v.type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, [None, None]))
        del g.node[:]
        g.node.extend(nodes)


def expand_ml(proto: ModelProto) -> ModelProto:
    """A model whose weights are initializers, where they were attributes.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model, of opset 21 or later where it has operators of ai.onnx.ml with weights; it is not written to.

    Returns
    -------
    onnx.ModelProto
        The same object where there are none.
    """
    if not read_ml_weights(proto):
        return proto
    expanded = ModelProto()
    expanded.CopyFrom(proto)
    opsets = {o.domain: o.version for o in proto.opset_import}
    expand(expanded.graph, opsets, ())
    del expanded.opset_import[:]
    expanded.opset_import.extend(helper.make_opsetid(d, v) for d, v in opsets.items())
    return expanded


def compute_ml(schema: defs.OpSchema, inputs: Sequence[Value | None],
               attributes: Attributes) -> Sequence[Value | None] | None:
    """Compute an operator of ai.onnx.ml as an expression of standard operators.

    Parameters
    ----------
    schema : onnx.defs.OpSchema
        The operator, in `ML_OPERATORS`.
    inputs : sequence of Value
        Its inputs.
    attributes : dict of str to object
        Its attributes.

    Returns
    -------
    sequence of Value, or None
        The outputs; None where attributes are not supported.

    Examples
    --------
    >>> from ortpartial.graph import Operators, variable
    >>> y = Operators("ai.onnx.ml").Scaler(variable("x", "float32", ["N", 2]), scale=[2.0])
    >>> compute_ml(y.node.schema, y.node.inputs, y.node.attributes)
    [<Value Mul float32[Nx2]>]
    """
    operator = ML_OPERATORS[schema.name]
    attributes = {**defaults(schema), **attributes, "version": schema.since_version}
    arrays = operator.read(attributes)
    if arrays is None:
        return None
    kinds = [(x, x.type.tensor_type.elem_type) for x in inputs if x is not None]
    casts = [x if operator.input_type(attributes, kind) in (0, kind)
             else op.Cast(x, to=operator.input_type(attributes, kind)) for x, kind in kinds]
    return operator.compute(attributes, casts, {what: constant(a) for what, a in arrays.items()})


def _list_nodes(graph: GraphProto) -> Iterator[tuple[NodeProto, MlOperator]]:
    """The nodes of a graph that `ML_OPERATORS` has, with their operators."""
    for node in graph.node:
        if node.domain == DOMAIN and node.op_type in ML_OPERATORS:
            yield node, ML_OPERATORS[node.op_type]


def _version(proto: ModelProto) -> int:
    return next((o.version for o in proto.opset_import if o.domain == DOMAIN), 1)


def _prefix(node: NodeProto) -> str:
    """The prefix of the names of weights."""
    return next((o for o in reversed(node.output) if o), node.name)


def _read_attributes(node: NodeProto, version: int) -> Settings:
    """The attributes of a node and the defaults of others."""
    schema = schema_of(node.op_type, DOMAIN, version)
    return {**defaults(schema), **{a.name: attribute_value(a) for a in node.attribute}, "version": version}


def _read_arrays(node: NodeProto, operator: MlOperator, attributes: Attributes) -> dict[str, np.ndarray] | None:
    """The weights of a node, None where it is left as it is."""
    with _naming(node):
        return operator.read(attributes)


@contextmanager
def _naming(node: NodeProto) -> Iterator[None]:
    """Name the node whose attributes are malformed."""
    try:
        yield
    except (AttributeError, GraphError, IndexError, KeyError, TypeError, ValueError) as e:
        raise ModelError(f"Node {node.name or '(unnamed)'} ({node.op_type}, output {_prefix(node)!r}) has attributes "
                         f"that are missing or do not fit together: {e}") from None


def _expand_node(node: NodeProto, graph: GraphProto, opsets: Mapping[str, int], stored: Collection[str],
                 types: Mapping[str, object]) -> Iterator[NodeProto]:
    """The nodes in place of an operator of `ML_OPERATORS`; their constants become initializers of the graph."""
    operator = ML_OPERATORS.get(node.op_type) if node.domain == DOMAIN else None
    attributes = {} if operator is None else _read_attributes(node, opsets.get(DOMAIN, 1))
    arrays = None if operator is None else _read_arrays(node, operator, attributes)
    if operator is None or arrays is None:
        yield node
        return
    prefix = _prefix(node)
    weights = {what: variable(what, a.dtype, a.shape) for what, a in arrays.items()}
    with _naming(node):
        inputs, casts = _write_inputs(node, operator, attributes, types)
        outputs = operator.compute(attributes, inputs, weights)
    named = {o: v for o, v in zip(node.output, outputs, strict=False) if o and v is not None}
    kept = {v.hint: v for v in inputs} | weights
    expanded = build(kept, named, reserved=[*node.input]).graph
    _name_inside(expanded, node.name or prefix, prefix, named)
    for what, array in arrays.items():
        name = f"{prefix}.{what}"
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        if prefix in stored and array.size > 64 and kind in FLOATS:
            graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
        else:
            graph.initializer.append(numpy_helper.from_array(array, name))
    graph.initializer.extend(expanded.initializer)
    yield from casts
    yield from expanded.node


def _write_inputs(node: NodeProto, operator: MlOperator, attributes: Attributes,
                  types: Mapping[str, Any]) -> tuple[list[Value], list[NodeProto]]:
    """The inputs of a node as an operator takes them, and the nodes that convert them."""
    inputs, casts, prefix = [], [], _prefix(node)
    for i, name in enumerate(node.input):
        declared = types.get(name, TypeProto.Tensor())
        if operator.reads_rows and len(declared.shape.dim) != 2:  # of unknown rank, it may be a vector
            casts.append(helper.make_node("Flatten", [name], [f"{prefix}.row_{i}"], axis=-1))
            name = f"{prefix}.row_{i}"
        elem_type = operator.input_type(attributes, declared.elem_type)
        settings: Settings = {"op_type": "Cast", "to": elem_type} if elem_type else {"op_type": "Identity"}
        casts.append(helper.make_node(inputs=[name], outputs=[f"{prefix}.input_{i}"], **settings))
        dtype = helper.tensor_dtype_to_np_dtype(elem_type or TensorProto.FLOAT)
        inputs.append(variable(f"input_{i}", dtype, [None, None]))
    return inputs, casts


def _name_inside(graph: GraphProto, name: str, prefix: str, outputs: Collection[str]) -> None:
    """Let the names of the nodes of a graph begin with the name in the file, and the names of tensors with a prefix."""
    def rename(names: Any) -> None:
        names[:] = [n if n in outputs or not n else f"{prefix}.{n}" for n in names]

    for g in walk_graphs(graph):
        for node in g.node:
            node.name = f"{name}.{node.name}"
            rename(node.input)
            rename(node.output)
        for v in (*g.initializer, *([] if g is graph else [*g.input, *g.output, *g.value_info])):
            v.name = f"{prefix}.{v.name}"
