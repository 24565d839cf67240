"""Verdicts on the float inputs of operators: whether a node has a gradient by each, none by nature, or an error."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from corpus import CASES, CONSTANT_CASES, FLOATS, OPSETS
from onnx import defs, parser
from onnx.helper import make_graph, make_model, make_value_info
from table import generator

from ortpartial.autodiff import has_rule
from ortpartial.autodiff.grad import backpropagate
from ortpartial.exceptions import ModelError, NoGradientError
from ortpartial.graph.ops import CONTROL, OPSET, constant, make_node, variable
from ortpartial.graph.rewriter import rewrite
from ortpartial.graph.schemas import attribute_value, schema_of
from ortpartial.graph.shaping import ones_like
from ortpartial.model.load import load

DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
REAL = ("tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)")

#: By operator of com.microsoft, inputs of whole numbers whose type its declaration leaves open.
WHOLE = {"GatedDeltaNet": "cu_seqlens capture_count state_update_active",
         "GatherBlockQuantized": "data indices zero_points",
         "GroupQueryAttention": "seqlens_k total_sequence_length position_ids query_seqlens",
         "MRotaryEmbedding": "position_ids", "MatMulBnb4": "B", "MatMulNBits": "B g_idx",
         "QMoE": "fc1_experts_weights fc2_experts_weights fc3_experts_weights fc1_zero_points fc2_zero_points "
                 "fc3_zero_points",
         "RotaryEmbedding": "position_ids"}


@cache
def list_schemas():
    """By domain and name, the schemas of operators that are current at opset 21 or later."""
    schemas = {}
    for s in defs.get_all_schemas_with_history():
        if s.domain in DOMAINS or has_rule(s.name, s.domain):
            schemas.setdefault((s.domain, s.name), []).append(s)
    return {key: [s for s in every if not s.deprecated and is_current(s, every)] for key, every in schemas.items()}


def is_current(schema, every):
    """Whether no other version of an operator replaced this one by opset 21."""
    return schema.domain != "" or not any(schema.since_version < s.since_version <= OPSET for s in every)


def is_real(parameter):
    """Whether an input or output may hold real numbers, perhaps in a sequence, an optional or a map."""
    return any(t in kind or "float)" in kind for kind in parameter.types for t in REAL)


def list_float_inputs():
    """Float inputs of the operators that return floats, as "domain.Operator.input"; maps do not count."""
    names = set()
    for (domain, name), versions in list_schemas().items():
        for s in versions:
            if any(is_real(p) and not all("map(" in kind for kind in p.types) for p in s.outputs):
                whole = WHOLE.get(name, "").split() if domain == "com.microsoft" else []
                names |= {spell(domain, name, p.name) for p in s.inputs if is_real(p) and p.name not in whole}
    return names


def spell(domain, op_type, name):
    return ".".join(filter(None, (domain, op_type, name)))


def input_name(schema, i):
    """The name of the i-th input of a node, of which the last one may be variadic."""
    return schema.inputs[min(i, len(schema.inputs) - 1)].name


@dataclass(frozen=True)
class Case:
    """A function of arrays, and the float inputs of an operator that these are."""

    f: object
    args: tuple
    inputs: tuple


def node_case(domain, op_type, inputs, attributes, n_outputs=None):
    """A case of a node: shapes and arrays of floats are variables, whole numbers constants, and None is left out."""
    schema = schema_of(op_type, domain, OPSET) if not domain else max(
        list_schemas()[domain, op_type], key=lambda s: s.since_version)
    arrays = [draw(op_type, i, a) for i, a in enumerate(inputs)]
    places = [i for i, a in enumerate(arrays) if a is not None and a.dtype.kind == "f"]

    def f(*x):
        values = [None if a is None else constant(a) for a in arrays]
        for i, v in zip(places, x, strict=True):
            values[i] = v
        ys = make_node(schema, values, attributes, n_outputs=n_outputs).outputs
        return [y for y in ys if y.is_float]

    return Case(f, tuple(arrays[i] for i in places),
                tuple(spell(domain, op_type, input_name(schema, i)) for i in places))


def draw(op_type, i, a):
    """An array for a shape; arrays and what is left out remain."""
    if not isinstance(a, tuple):
        return a
    return generator(op_type, i, a).normal(size=a).astype(np.float32)


def corpus_case(name):
    """A case of onnx's own operator tests, of which all float inputs are variables."""
    graph, inputs, _ = (CASES | CONSTANT_CASES)[name]
    (node,) = graph.node
    opset = max(OPSET, next((o.version for o in OPSETS[name] if not o.domain), OPSET))
    newest = schema_of(node.op_type, "", opset)
    arrays = dict(zip((i.name for i in graph.input), inputs, strict=True))
    floats = [n for n in arrays if arrays[n].dtype in FLOATS]

    def f(*x):
        values = {n: constant(v) for n, v in arrays.items()} | dict(zip(floats, x, strict=True))
        if node.op_type not in CONTROL and is_upgraded(name):
            attributes = {a.name: attribute_value(a) for a in node.attribute}
            n_outputs = len(node.output) if node.op_type in ("Split", "BatchNormalization") else None
            made = make_node(newest, [values[n] if n else None for n in node.input], attributes, n_outputs=n_outputs)
            ys = [y for y, n in zip(made.outputs, node.output, strict=False) if n]
        else:
            kinds = [make_value_info(n, v.type) for n, v in values.items()]
            model = load(make_model(make_graph(graph.node, "case", kinds, graph.output), opset_imports=OPSETS[name]))
            ys = rewrite(list(model.outputs.values()), {model.inputs[n]: values[n] for n in model.inputs})
        return [y for y in ys if y.is_float]

    names = tuple(spell("", node.op_type, input_name(newest, list(node.input).index(n))) for n in floats)
    return Case(f, tuple(arrays[n] for n in floats), names)


def is_upgraded(name):
    """Whether a case is of an opset whose form of the operator is the one of opset 21 or later."""
    op_type = CASES.get(name, CONSTANT_CASES.get(name))[0].node[0].op_type
    opset = next(o.version for o in OPSETS[name] if not o.domain)
    return schema_of(op_type, "", opset).since_version >= schema_of(op_type, "", OPSET).since_version


def model_case(name, text, shape):
    """A case of a model of x, of this shape, in onnx's textual form, which is read as any model."""
    sizes = ", ".join(map(str, shape))
    model = f'<ir_version: 10, opset_import: ["": 21]> g (float[{sizes}] x) => (float y) {{ {text} }}'

    def f(x):
        typed = parser.parse_model(model)
        typed.graph.input[0].type.CopyFrom(x.type)
        loaded = load(typed)
        return rewrite(list(loaded.outputs.values()), {loaded.inputs["x"]: x})

    return Case(f, (generator(name, shape).normal(size=shape).astype(np.float32),), (name,))


def judge(case):
    """For each float input of a case: "gradient", "zero" where it has none by nature, or the message of an error."""
    x = [variable(f"x{i}", a.dtype, a.shape) for i, a in enumerate(case.args)]
    try:
        ys = case.f(*x)
    except ModelError as e:
        return [str(e)] * len(x)
    try:
        return _spell(backpropagate(ys, list(map(ones_like, ys)), x))
    except NoGradientError:
        return [_judge_one(ys, v) for v in x]


def _judge_one(ys, x):
    try:
        return _spell(backpropagate(ys, list(map(ones_like, ys)), [x]))[0]
    except NoGradientError as e:
        return str(e)


def _spell(cotangents):
    return ["zero" if d is None else "gradient" for d in cotangents]
