"""Broken models: small models with one to three random changes each that onnx's checker accepts."""

import pickle
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
from node_tests import load_node_tests
from onnx import AttributeProto, ModelProto, TensorProto, defs, helper, numpy_helper

from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable

INTS = [0, -1, 1, 2, -2, 3, 7, 100, 2**31 - 1, 2**31, 2**62, -(2**31), -(2**63)]
FLOATS = [0.0, -1.0, 0.5, 1e-30, 1e38, float("inf"), float("-inf"), float("nan")]
STRINGS = ["", "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET", "add", "mul", "max", "none", "linear", "cubic", "nearest",
           "reflect", "edge", "wrap", "constant", "floor", "ceil", "align_corners", "sum", "mean", "DCR", "tanh",
           "LT"]
DTYPES = [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT64,
          TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL, TensorProto.STRING]
SCHEMAS = {s.name: s for s in defs.get_all_schemas() if not s.domain and not s.deprecated}


# -- models before they are changed


def networks():
    """Small networks: (model, feeds, targets)."""
    rng = np.random.default_rng(0)

    def w(name, *shape):
        return constant(rng.normal(size=shape).astype(np.float32) / 2, hint=name)

    def net(expression, x, a, t, loss="square_error"):
        return build([x], {"y": expression}), {"x": a}, {"y": (loss, t)}

    def real(*shape):
        return rng.normal(size=shape).astype(np.float32)

    x, image, tokens = variable("x", "float32", ["N", 4]), variable("x", "float32", ["N", 2, 8, 8]), \
        variable("x", "int64", ["N", 5])
    yield net(op.Gemm(op.Tanh(op.Gemm(x, w("W1", 4, 6), w("b1", 6))), w("W2", 6, 2), w("b2", 2)), x,
              real(8, 4), real(8, 2))
    h = op.LayerNormalization(op.Relu(x @ w("W1", 4, 6)), w("scale", 6), w("bias", 6))
    yield net(h @ w("W2", 6, 3), x, real(8, 4), rng.integers(0, 3, 8), "softmax_cross_entropy")
    h = op.MaxPool(op.Relu(op.Conv(image, w("K", 3, 2, 3, 3), w("k", 3), pads=[1, 1, 1, 1])), kernel_shape=[2, 2],
                   strides=[2, 2])
    h = op.AveragePool(op.Conv(h, w("K2", 4, 3, 3, 3), strides=[1, 1]), kernel_shape=[2, 2])
    yield net(op.Gemm(op.Flatten(h), w("W", 4, 3), w("b", 3)), image, real(8, 2, 8, 8), rng.integers(0, 3, 8),
              "softmax_cross_entropy")
    h = op.ConvTranspose(image, w("K", 2, 3, 2, 2), w("k", 3), strides=[2, 2])
    yield net(op.ReduceMean(op.Pad(h, constant([0, 0, 1, 1, 0, 0, 1, 1])), constant([2, 3]), keepdims=0), image,
              real(8, 2, 8, 8), real(8, 3))
    e = op.Gather(w("E", 11, 6), tokens) + w("P", 5, 6)
    q = op.Reshape(op.MatMul(e, w("Q", 6, 6)), constant([0, 5, 2, 3]))
    a = op.Softmax(op.MatMul(op.Transpose(q, perm=[0, 2, 1, 3]), op.Transpose(q, perm=[0, 2, 3, 1])), axis=-1)
    o = op.Reshape(op.Transpose(op.MatMul(a, op.Transpose(q, perm=[0, 2, 1, 3])), perm=[0, 2, 1, 3]),
                   constant([0, 0, -1]))
    yield net(op.ReduceMean(e + o, constant([1]), keepdims=0) @ w("W", 6, 3), tokens, rng.integers(0, 11, (8, 5)),
              rng.integers(0, 3, 8), "softmax_cross_entropy")
    n = op.Gather(op.Shape(x), constant(0))
    half = op.Div(op.Gather(op.Shape(x), constant(1)), constant(2))
    parts = op.Slice(x, constant([0]), op.Unsqueeze(half, constant([0])), constant([1]))
    tiled = op.Tile(op.Reshape(parts, op.Concat(op.Unsqueeze(n, constant([0])), constant([1, 2]), axis=0)),
                    constant([1, 2, 1]))
    yield net(op.ReduceSum(tiled * w("W", 2, 2), constant([1]), keepdims=0), x, real(8, 4), real(8, 2))


def functional():
    """A model with local functions, one of which calls the other."""
    sub = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        agraph (float[N, 4] x) => (float[N, 2] y) <float[4, 6] W1, float[6, 2] W2> {
            h = local.layer<alpha = 0.1>(x, W1)
            y = local.half(h, W2)
        }
        <domain: "local", opset_import: ["" : 21]>
        half (x, w) => (y) { two = Constant<value_float = 2.0>() m = MatMul(x, w) y = Div(m, two) }
        <domain: "local", opset_import: ["" : 21, "local" : 1]>
        layer <alpha> (x, w) => (y) { m = local.half(x, w) y = LeakyRelu<alpha: float = @alpha>(m) }
    """)
    rng = np.random.default_rng(0)
    for name, shape in (("W1", (4, 6)), ("W2", (6, 2))):
        sub.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return sub, {"x": rng.normal(size=(8, 4)).astype(np.float32)}, {"y": ("square_error", np.ones((8, 2), np.float32))}


def single_nodes():
    """The tests of one operator that ship inside onnx: float inputs become weights, some other inputs constants."""
    for test in load_node_tests():
        graph = test.model.graph
        declared = [*graph.input, *graph.output]
        if not all(v.type.HasField("tensor_type") for v in declared) or graph.initializer or not test.data_sets:
            continue
        if not any(o.type.tensor_type.elem_type in (1, 11) for o in graph.output):
            continue
        content = {i.name: _array(v) for i, v in zip(graph.input, test.data_sets[0][0], strict=False)}
        if any(a.dtype.kind not in "biuf" for a in content.values()) or sum(a.size for a in content.values()) > 20_000:
            continue
        yield test.name, with_weights(older(test.model), content)


def older(model):
    """The same nodes in opset 21 where they are the same there, so that both runtimes know them."""
    copy = ModelProto.FromString(model.SerializeToString())
    copy.opset_import[0].version, copy.ir_version = 21, 10
    try:
        onnx.checker.check_model(copy, full_check=True)
    except Exception:
        return model
    return copy


def _array(v):
    return numpy_helper.to_array(v) if isinstance(v, TensorProto) else np.asarray("" if v is None or isinstance(v, list)
                                                                                  else v)


def with_weights(model, content):
    """The first float input is x + w; other floats are weights, and whole numbers are so in every other model."""
    model = ModelProto.FromString(model.SerializeToString())
    graph, feeds = model.graph, {}
    inputs = list(graph.input)
    del graph.input[:]
    stored, behind = zlib.crc32(graph.name.encode()) % 2, zlib.crc32(graph.name.encode()) % 4 > 1
    first = next((i.name for i in inputs if content[i.name].dtype in (np.float32, np.float64)), None)
    out = next((o for o in graph.output if o.type.tensor_type.elem_type in (1, 11)), graph.output[0])
    if behind:  # The node is not differentiated but run: the weight is behind it.
        kind = helper.tensor_dtype_to_np_dtype(out.type.tensor_type.elem_type)
        graph.initializer.append(numpy_helper.from_array(np.ones(1, kind), "w_"))
        for node in graph.node:
            node.output[:] = ["before_" if o == out.name else o for o in node.output]
            node.input[:] = ["before_" if n == out.name else n for n in node.input]
        graph.node.append(helper.make_node("Mul", ["before_", "w_"], [out.name], name="mul_"))
        first = None if stored else first
    for i in inputs:
        a = content[i.name]
        if i.name == first and not behind:
            graph.initializer.append(numpy_helper.from_array(np.zeros_like(a), "w_"))
            for node in graph.node:
                node.input[:] = ["sum_" if n == i.name else n for n in node.input]
            graph.node.insert(0, helper.make_node("Add", [i.name, "w_"], ["sum_"], name="add_"))
        if i.name == first or (a.dtype.kind in "biu" and not stored) or len(inputs) == 1:
            graph.input.append(i)
            feeds[i.name] = a
        else:
            graph.initializer.append(numpy_helper.from_array(a, i.name))
    return model, feeds, None


def seeds(exported=None):
    """The models that are changed: networks by name, and those of one operator by operator and name."""
    by_name = {f"network_{i}": v for i, v in enumerate(networks())}
    by_name["functions"] = functional()
    if exported:
        by_name |= pickle.loads(Path(exported).read_bytes())
    by_operator = {}
    for name, seed in single_nodes():
        first, last = seed[0].graph.node[0], seed[0].graph.node[-1]
        by_operator.setdefault((first if last.name == "mul_" else last).op_type, {})[name] = seed
    return by_name, by_operator


# -- changes


def pick(rng, items):
    return items[int(rng.integers(len(items)))]


def attribute(rng, model, graph):
    """Another value of an attribute, one more, or one less."""
    nodes = [n for n in all_nodes(model) if n.op_type in SCHEMAS]
    node = pick(rng, nodes)
    formals = list(SCHEMAS[node.op_type].attributes.values())
    if not formals:
        return
    formal = pick(rng, formals)
    have = [a for a in node.attribute if a.name == formal.name]
    kind = int(getattr(formal.type, "value"))  # noqa: B009
    if have and rng.random() < 0.15:
        node.attribute.remove(have[0])
        return
    if kind == AttributeProto.INT:
        value = pick(rng, INTS)
    elif kind == AttributeProto.FLOAT:
        value = pick(rng, FLOATS)
    elif kind == AttributeProto.STRING:
        value = pick(rng, STRINGS)
    elif kind == AttributeProto.INTS:
        value = list(have[0].ints) if have else [1] * int(rng.integers(0, 5))
        value = change_list(rng, value)
    elif kind == AttributeProto.FLOATS:
        value = [pick(rng, FLOATS) for _ in range(int(rng.integers(0, 4)))]
    elif kind == AttributeProto.TENSOR and have:
        array = content(rng, numpy_helper.to_array(have[0].t))
        value = numpy_helper.from_array(array)
    else:
        return
    if have:
        node.attribute.remove(have[0])
    node.attribute.append(helper.make_attribute(formal.name, value, attr_type=kind))


def change_list(rng, value):
    how = int(rng.integers(5))
    if how == 0:
        return []
    if how == 1:
        return [*value, pick(rng, INTS)]
    if how == 2:
        return value[:-1]
    if how == 3:
        return [pick(rng, INTS)] * len(value)
    if value:
        value[int(rng.integers(len(value)))] = pick(rng, INTS)
    return value


def content(rng, array):
    """Other numbers in an array: one or all of them."""
    array = array.copy()
    if not array.size:
        return array
    if array.dtype.kind == "f":
        number = pick(rng, FLOATS)
    elif array.dtype.kind in "iu":
        info = np.iinfo(array.dtype)
        number = min(max(pick(rng, INTS), info.min), info.max)
    elif array.dtype.kind == "b":
        number = bool(rng.integers(2))
    else:
        return array
    with np.errstate(all="ignore"):
        if rng.random() < 0.5:
            array[...] = number
        else:
            array.flat[int(rng.integers(array.size))] = number
    return array


def initializer(rng, model, graph):
    """Other numbers in an initializer; whole numbers rather than others."""
    whole = [t for t in graph.initializer if t.data_type in (TensorProto.INT64, TensorProto.INT32)]
    tensors = whole if whole and rng.random() < 0.8 else list(graph.initializer)
    if tensors:
        t = pick(rng, tensors)
        t.CopyFrom(numpy_helper.from_array(content(rng, numpy_helper.to_array(t)), t.name))


def sizes(rng, model, graph):
    """Another shape of an initializer, with content that fits."""
    if not graph.initializer:
        return
    t = pick(rng, graph.initializer)
    shape, array = list(t.dims), numpy_helper.to_array(t)
    how = int(rng.integers(4))
    if how == 0:
        shape.insert(int(rng.integers(len(shape) + 1)), pick(rng, [0, 1, 2]))
    elif shape and how == 1:
        del shape[int(rng.integers(len(shape)))]
    elif shape:
        shape[int(rng.integers(len(shape)))] = pick(rng, [0, 1, 2, 3, 5])
    t.CopyFrom(numpy_helper.from_array(np.resize(array, shape) if array.size else np.zeros(shape, array.dtype), t.name))


def wiring(rng, model, graph):
    """Inputs of a node swapped, dropped, repeated, or another tensor in place of one."""
    node = pick(rng, all_nodes(model))
    names = list(node.input)
    if not names:
        return
    i, how = int(rng.integers(len(names))), int(rng.integers(5))
    if how == 0:
        j = int(rng.integers(len(names)))
        names[i], names[j] = names[j], names[i]
    elif how == 1:
        del names[i]
    elif how == 2:
        names.append(names[i])
    elif how == 3:
        names[i] = ""
    else:
        sources = [t.name for t in graph.initializer] + [v.name for v in graph.input]
        names[i] = pick(rng, sources + [o for n in graph.node for o in n.output])
    node.input[:] = names


def operator(rng, model, graph):
    """Another operator that takes as many inputs."""
    node = pick(rng, all_nodes(model))
    fitting = [s for s in SCHEMAS.values() if s.min_input <= len(node.input) <= s.max_input and s.max_output
               >= len(node.output)]
    schema = pick(rng, fitting)
    node.op_type = schema.name
    kept = [a for a in node.attribute if a.name in schema.attributes]
    required = [a for a in schema.attributes.values() if a.required and a.name not in {k.name for k in kept}]
    del node.attribute[:]
    node.attribute.extend(kept)
    for a in required:
        kind = int(getattr(a.type, "value"))  # noqa: B009
        some = {AttributeProto.INT: 1, AttributeProto.FLOAT: 1.0, AttributeProto.STRING: "mean",
                AttributeProto.INTS: [1, 1], AttributeProto.FLOATS: [1.0]}.get(kind)
        if some is not None:
            node.attribute.append(helper.make_attribute(a.name, some, attr_type=kind))


def dtype(rng, model, graph):
    """Another type of an initializer, of an input or of an output."""
    how = int(rng.integers(3))
    if how == 0 and graph.initializer:
        t = pick(rng, graph.initializer)
        with np.errstate(all="ignore"):
            array = numpy_helper.to_array(t).astype(pick(rng, [np.float64, np.float16, np.int64, np.int32, np.bool_]))
        t.CopyFrom(numpy_helper.from_array(array, t.name))
    elif how == 1:
        pick(rng, [*graph.input, *graph.output]).type.tensor_type.elem_type = pick(rng, DTYPES)
    else:
        casts = [a for n in all_nodes(model) for a in n.attribute if a.name in ("to", "dtype")]
        if casts:
            pick(rng, casts).i = pick(rng, DTYPES)


def nodes(rng, model, graph):
    """A node repeated behind itself, or taken out."""
    i = int(rng.integers(len(graph.node)))
    node = graph.node[i]
    if rng.random() < 0.6 and node.input:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        node.output[0] += "_before"
        copy.name, copy.input[0] = copy.name + "_again", node.output[0]
        for j in range(1, len(copy.output)):
            copy.output[j] += "_again"
        graph.node.insert(i + 1, copy)
    elif node.input and node.output:
        out, new = node.output[0], node.input[0]
        del graph.node[i]
        for n in graph.node:
            n.input[:] = [new if name == out else name for name in n.input]


def declared(rng, model, graph):
    """Another shape that an input, an output or a value inside declares."""
    names = [o for n in graph.node for o in n.output if o]
    how = int(rng.integers(3))
    if how == 0 and names:
        shape = [pick(rng, [0, 1, 2, 3, "N", None, 2**40]) for _ in range(int(rng.integers(0, 5)))]
        graph.value_info.append(helper.make_tensor_value_info(pick(rng, names), pick(rng, [1, 1, 7, 11]), shape))
        return
    kind = pick(rng, graph.input if how == 1 and graph.input else graph.output).type.tensor_type
    if rng.random() < 0.2:
        kind.ClearField("shape")
    elif kind.shape.dim:
        d = pick(rng, kind.shape.dim)
        new = pick(rng, [0, 1, 2, 3, 5, "N", "M", 2**31, 2**62, -1])
        if isinstance(new, str):
            d.dim_param = new
        else:
            d.dim_value = new


def versions(rng, model, graph):
    """Another opset or IR version."""
    if rng.random() < 0.8:
        pick(rng, model.opset_import).version = int(rng.integers(1, 28))
    else:
        model.ir_version = int(rng.integers(3, 13))


CHANGES = [(attribute, 6), (initializer, 5), (sizes, 3), (wiring, 3), (operator, 2), (dtype, 1), (nodes, 1),
           (declared, 2), (versions, 2)]


def all_nodes(model):
    return [*model.graph.node, *(n for f in model.functions for n in f.node)]


def mutant(seed, rng):
    """The names of one to three changes, and the changed model; None if the checker rejects it or it is unchanged."""
    model = ModelProto.FromString(seed.SerializeToString())
    weights = np.asarray([w for _, w in CHANGES], float)
    names = []
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        change, _ = CHANGES[int(rng.choice(len(CHANGES), p=weights / weights.sum()))]
        names.append(change.__name__)
        try:
            change(rng, model, model.graph)
        except (ValueError, TypeError, OverflowError):  # numbers that a type cannot hold
            return None
        if not model.graph.node:
            return None
    if model.SerializeToString(deterministic=True) == seed.SerializeToString(deterministic=True):
        return None
    try:
        onnx.checker.check_model(model)
    except Exception:
        return None
    return "+".join(names), model


def fitting(model, feeds, rng):
    """Data of the shapes that the mutant declares, where they are small."""
    arrays = {}
    for i in model.graph.input:
        if any(t.name == i.name for t in model.graph.initializer):
            continue
        tensor = i.type.tensor_type
        old = feeds.get(i.name, np.zeros((8, 4), np.float32))
        rank = len(tensor.shape.dim) if tensor.HasField("shape") else old.ndim
        sizes = [tensor.shape.dim[k].dim_value if tensor.HasField("shape") and tensor.shape.dim[k].HasField("dim_value")
                 else (old.shape[k] if k < old.ndim else 2) for k in range(rank)]
        kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if tuple(sizes) == old.shape or any(s < 0 for s in sizes) or np.prod([float(s) for s in sizes]) > 1e6:
            array = old
        else:
            array = np.resize(old, sizes) if old.size else np.zeros(sizes, old.dtype)
        try:
            with np.errstate(all="ignore"):
                arrays[i.name] = array if kind == np.dtype(object) else array.astype(kind)
        except (TypeError, ValueError):
            arrays[i.name] = array
    return arrays


def mutants(first, last, exported=None):
    """Mutants by number: name, model, feeds and targets. The same number is always the same mutant."""
    networks, single = seeds(exported)
    for number in range(first, last):
        rng = np.random.default_rng([7, number])
        while True:
            some = networks if rng.random() < 0.4 else single[pick(rng, list(single))]
            name = pick(rng, list(some))
            model, feeds, targets = some[name]
            if (changed := mutant(model, rng)) is not None:
                changes, broken = changed
                yield f"{number} {name} {changes}", broken, fitting(broken, feeds, rng), targets
                break


if __name__ == "__main__":
    for name, model, *_ in mutants(int(sys.argv[1]), int(sys.argv[2])):
        print(name)
        print(onnx.printer.to_text(model)[:6000])
