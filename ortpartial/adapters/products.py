"""Products of a model that adapters are added to: their nodes, names and parts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from ortpartial.model import is_generated_name, read_scope, walk_graphs

from .nodes import MARK

__all__ = ["PROJECTIONS", "Part", "Product", "find_closed", "find_products", "read_attributes"]

#: By operator, the input that is the weight.
_WEIGHTS = {("", "MatMul"): 1, ("", "Gemm"): 1, ("", "Conv"): 1, ("", "Gather"): 0,
            ("com.microsoft", "MatMulNBits"): 1, ("com.microsoft", "FusedMatMul"): 1,
            ("com.microsoft", "GatherBlockQuantized"): 0, ("com.microsoft", "Attention"): 1,
            ("", "MatMulInteger"): 1, ("com.microsoft", "MatMulIntegerToFloat"): 1,
            ("com.microsoft", "DynamicQuantizeMatMul"): 1}

#: Products of integers that dynamic quantization makes of floats, and in which floats are made of the result.
_DYNAMIC = frozenset({"DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat"})

#: Products of integers that read and compute integers, or attention inside, and have no place for an adapter.
_CLOSED = frozenset({"ConvInteger", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul"})

#: Names of the projections that attention begins with, in BERT and elsewhere.
PROJECTIONS = ("query", "key", "value", "q_proj", "k_proj", "v_proj")

#: Projections that onnxruntime-genai's builder computes at once.
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}

#: Operators through which a weight is read: it is stored transposed, in another dtype or quantized.
_THROUGH = frozenset({"Cast", "DequantizeLinear", "Identity", "Transpose"})

#: Suffixes of a module in the name of a weight: by torch, and by onnxruntime-genai's builder.
_WEIGHT_SUFFIX = re.compile(r"(\.MatMul)?\.(weight|qweight|weight_Q4|weight_Q8|weight_quant\w*)(_[A-Za-z0-9]+)?$")

#: A module, and its suffix in the names of inserted nodes.
_INSERTED = re.compile(rf"(.+?)({MARK}|\.lora_(A|B|factor|offset|magnitude_vector)\b|\.ia3_l\b)")


@dataclass(frozen=True)
class Part:
    """Columns of a product with a name of their own: such as the queries in a product for queries, keys and values.

    Parameters
    ----------
    name : str
        The module.
    start, stop : int
        The columns.
    """

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Product:
    """A node that multiplies its input by a weight, or looks rows of it up.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.
    name : str
        The module, unique in the model.
    weight : str
        The initializer.
    inputs, outputs : int
        Features that go in, or rows of the table, and features that come out.
    dtype : int
        The type of its output, a ``TensorProto.DataType``.
    parts : tuple of Part
        The projections that it computes at once; a single part, where it is none but itself.
    bias : onnx.NodeProto, optional
        The Add behind it.
    kernel : tuple of int
        The size of the kernel of a convolution.
    source : str
        The floats that it multiplies, where the node itself reads integers that were made of them.
    end : onnx.NodeProto, optional
        The node that turns its result into floats, where that is another.
    tensors : dict of str to onnx.TensorProto
        The constants of the graph.
    node_name : str
        The identity of the node: its name, or its output where it has none of its own.
    """

    node: NodeProto
    name: str
    weight: str
    inputs: int
    outputs: int
    dtype: int
    parts: tuple[Part, ...]
    bias: NodeProto | None = None
    kernel: tuple[int, ...] = ()
    source: str = ""
    end: NodeProto | None = None
    tensors: Mapping[str, TensorProto] = field(default_factory=dict, repr=False, compare=False)
    node_name: str = ""

    def read_tensor(self, index: int) -> np.ndarray | None:
        """The content of an input, where it is a constant."""
        t = self.tensors.get(self.node.input[index]) if len(self.node.input) > index else None
        return None if t is None else numpy_helper.to_array(t)

    @property
    def reads(self) -> str:
        """The floats that it multiplies."""
        return self.source or self.node.input[0]

    @property
    def is_inside(self) -> bool:
        """Whether its result is read by attention in the same node: its weight is changed, and not the result."""
        return self.node.op_type == "Attention"

    @property
    def is_head(self) -> bool:
        """Whether it computes the logits of a language model."""
        return self.name.rpartition(".")[2] == "lm_head"

    @property
    def is_linear(self) -> bool:
        """Whether it is a linear layer: no convolution, and no table."""
        return not self.kernel and not self.is_table

    @property
    def is_table(self) -> bool:
        """Whether it looks rows up."""
        return self.node.op_type in ("Gather", "GatherBlockQuantized")


@dataclass
class _Weights:
    """The tensors of a graph as products read them: constants, through nodes that change their form."""

    graph: GraphProto
    makers: dict[str, NodeProto] = field(init=False)
    readers: dict[str, list[NodeProto]] = field(init=False)

    def __post_init__(self) -> None:
        self.makers = {o: node for node in self.graph.node for o in node.output}
        self.readers = defaultdict(list)
        for node in (node for graph in walk_graphs(self.graph) for node in graph.node):
            for name in node.input:
                self.readers[name].append(node)

    @cached_property
    def tensors(self) -> dict[str, TensorProto]:
        """The initializers, and the constants that nodes hold."""
        constants = {node.output[0]: a.t for node in self.graph.node if node.op_type == "Constant"
                     for a in node.attribute if a.name == "value"}
        return constants | {t.name: t for t in self.graph.initializer}

    @cached_property
    def constants(self) -> dict[str, TensorProto]:
        """The same, by the names that Identity gives them as well."""
        constants = dict(self.tensors)
        for node in self.graph.node:
            if node.op_type == "Identity" and node.input[0] in constants:
                constants[node.output[0]] = constants[node.input[0]]
        return constants

    @cached_property
    def node_names(self) -> Counter[str]:
        """How many nodes have a name, or an output that is called so."""
        return Counter([n for node in self.graph.node for n in {node.name, *node.output[:1]}])

    def find_taken(self) -> Counter[str]:
        """The modules that nodes and weights of an adapter seem to stand beside, although no record says so."""
        names = {*self.readers, *self.makers, *self.tensors, *self.node_names}
        return Counter([match[1] for n in sorted(names) if (match := _INSERTED.match(n))])

    def trace(self, name: str) -> tuple[str, tuple[int, ...], int] | None:
        """The initializer that a product reads by some name, with the shape and the dtype that it has there."""
        if name in self.tensors:
            t = self.tensors[name]
            return name, tuple(t.dims), t.data_type
        node = self.makers.get(name)
        if node is None or node.op_type not in _THROUGH or (traced := self.trace(node.input[0])) is None:
            return None
        origin, shape, dtype = traced
        if node.op_type == "Transpose":
            perm = read_attributes(node).get("perm", range(len(shape))[::-1])
            shape = tuple(shape[i] for i in perm)
        elif node.op_type == "Cast":
            dtype = read_attributes(node)["to"]
        elif node.op_type == "DequantizeLinear":
            scale = self.trace(node.input[1])
            dtype = TensorProto.FLOAT if scale is None else scale[2]
        return origin, shape, dtype

    def find_reader(self, node: NodeProto, op_type: str) -> NodeProto | None:
        """The node of an operator that alone reads the output of a node."""
        if any(o.name == node.output[0] for o in self.graph.output):
            return None
        readers = self.readers[node.output[0]]
        is_here = len(readers) == 1 and readers[0].op_type == op_type and readers[0].output[0] in self.makers
        return readers[0] if is_here else None

    def find_array(self, name: str) -> list[int] | None:
        """The whole numbers of a small constant."""
        t = self.tensors.get(name)
        return None if t is None else [int(n) for n in numpy_helper.to_array(t).ravel()]


def find_products(graph: GraphProto) -> list[Product]:
    """The products of a graph, in its order.

    They are MatMul, Gemm, Conv without groups, Gather of rows, and FusedMatMul, MatMulNBits, GatherBlockQuantized and
    Attention of onnxruntime, with a constant weight: an initializer as it is, transposed, cast or dequantized; and
    products of integers by dynamic quantization. Products inside of branches, loops and functions are none of them.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph.

    Returns
    -------
    list of Product
    """
    weights = _Weights(graph)
    taken = weights.find_taken()
    return [product for node in graph.node if (product := _read(node, weights, taken)) is not None]


def _read(node: NodeProto, weights: _Weights, taken: Counter[str]) -> Product | None:
    """The product that a node is, if any."""
    index = _WEIGHTS.get(_kind(node))
    traced = None if index is None or len(node.input) <= index else weights.trace(node.input[index])
    sizes = None if traced is None else _find_sizes(node, *traced[1:])
    floats = _find_floats(node, weights)
    if traced is None or sizes is None or 0 in sizes or floats is None:
        return None
    origin, shape, dtype = traced
    if node.op_type in ("MatMulNBits", "GatherBlockQuantized"):
        scales = weights.trace(node.input[2])
        if scales is None:
            return None
        dtype = scales[2]
    elif node.op_type in _DYNAMIC:
        dtype = TensorProto.FLOAT
    if dtype not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE):
        return None
    source, end = floats
    name = _name(node, origin, taken)
    bias = None if node.op_type == "Conv" else _find_bias(end or node, sizes[1], weights)
    parts = _find_parts(node, name, sizes[1], bias, weights)
    kernel = tuple(shape[2:]) if node.op_type == "Conv" else ()
    node_name = node.name if node.name and weights.node_names[node.name] == 1 else node.output[0]
    return Product(node, name, origin, *sizes, dtype, parts, bias, kernel, source, end, weights.constants, node_name)


def _kind(node: NodeProto) -> tuple[str, str]:
    """The domain and the name of an operator."""
    return "" if node.domain == "ai.onnx" else node.domain, node.op_type


def find_closed(graph: GraphProto) -> list[NodeProto]:
    """The products that have no place for an adapter: of integers from integers, and with attention around them.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph.

    Returns
    -------
    list of onnx.NodeProto
    """
    return [node for node in graph.node if node.op_type in _CLOSED]


def _find_floats(node: NodeProto, weights: _Weights) -> tuple[str, NodeProto | None] | None:
    """The floats that integers were made of, which a product reads, and the node that makes floats of its result.

    They are none where the node reads and computes floats, and nothing is returned where either is not found.
    """
    if node.op_type not in ("MatMulInteger", "MatMulIntegerToFloat"):
        return "", None
    maker = weights.makers.get(node.input[0])
    if maker is None or maker.op_type not in ("DynamicQuantizeLinear", "QuantizeLinear"):
        return None
    end = None
    if node.op_type == "MatMulInteger":
        cast = weights.find_reader(node, "Cast")
        if cast is None or read_attributes(cast)["to"] != TensorProto.FLOAT:
            return None
        end = weights.find_reader(cast, "Mul")
        if end is None:
            return None
    return maker.input[0], end


def _find_sizes(node: NodeProto, shape: Sequence[int], dtype: int) -> tuple[int, int] | None:
    """Features that go into a product and come out of it; None where it is none that an adapter stands beside."""
    attributes = read_attributes(node)
    match node.op_type:
        case "MatMulNBits":
            return attributes["K"], attributes["N"]
        case "GatherBlockQuantized":
            if len(shape) != 2 or attributes.get("gather_axis", 0) != 0:
                return None
            numbers = 8 // attributes.get("bits", 4) if dtype == TensorProto.UINT8 else 1  # a byte
            return shape[0], shape[1] * numbers
        case "Gather":
            return (shape[0], shape[1]) if len(shape) == 2 and attributes.get("axis", 0) == 0 else None
        case "Conv":
            return (shape[1], shape[0]) if attributes.get("group", 1) == 1 else None
        case _:
            turned = {"transA", "transBatchA", "transBatchB"} & {n for n, v in attributes.items() if v}
            if len(shape) != 2 or turned:
                return None
            return (shape[1], shape[0]) if attributes.get("transB", 0) else (shape[0], shape[1])


def _name(node: NodeProto, weight: str, taken: Counter[str]) -> str:
    """The module of a product: from the name of its weight, the scope of its node, or any other name that it has."""
    module = _WEIGHT_SUFFIX.sub("", weight)
    is_named = module != weight and not is_generated_name(weight)
    scope = read_scope(node)
    if node.op_type == "Attention":  # named by onnxruntime's optimizer, but after its output
        scope, is_named = read_scope(NodeProto(name=node.output[0])), False
    elif node.op_type == "Gather" and scope and not module.startswith(scope):
        is_named = False  # A tied weight is named for the head, also where a table reads it.
    names = [module if is_named else None, scope, weight, node.name, node.output[0]]
    name = next((n for n in names if n and n not in taken), node.output[0])
    taken[name] += 1
    return name if taken[name] == 1 else f"{name}_{taken[name] - 1}"


def _find_bias(node: NodeProto, columns: int, weights: _Weights) -> NodeProto | None:
    """The Add of a constant that alone reads the output of a node."""
    reader = weights.find_reader(node, "Add")
    others = [] if reader is None else [n for n in reader.input if n != node.output[0]]
    traced = weights.trace(others[0]) if others else None
    return reader if traced is not None and traced[1] in ((1,), (columns,)) else None


def _find_parts(node: NodeProto, name: str, columns: int, bias: NodeProto | None,
                weights: _Weights) -> tuple[Part, ...]:
    """The projections that a product named qkv_proj or gate_up_proj computes at once, else itself."""
    if node.op_type == "Attention":
        sizes = read_attributes(node).get("qkv_hidden_sizes") or [columns // 3] * 3
        names = PROJECTIONS[:3] if name.endswith(".self") else PROJECTIONS[3:]  # as BERT calls them, and all others
        return tuple(Part(f"{name}.{n}", sum(sizes[:i]), sum(sizes[: i + 1])) for i, n in enumerate(names))
    module, _, last = name.rpartition(".")
    if last in _FUSED:
        readers = weights.readers[(bias or node).output[0]]
        sizes = next((s for r in readers if (s := _read_sizes(r, columns, weights)) is not None), None)
        if sizes is not None and len(sizes) == len(_FUSED[last]) and sum(sizes) == columns:
            return tuple(Part(f"{module}.{n}".removeprefix("."), sum(sizes[:i]), sum(sizes[: i + 1]))
                         for i, n in enumerate(_FUSED[last]))
    return (Part(name, 0, columns),)


def _read_sizes(reader: NodeProto, columns: int, weights: _Weights) -> list[int] | None:
    """The widths of the projections, where a node takes them apart."""
    attributes = read_attributes(reader)
    if reader.op_type == "GroupQueryAttention" and not any(reader.input[1:3]):
        heads, shared = attributes["num_heads"], attributes["kv_num_heads"]
        width = columns // (heads + 2 * shared)
        return [heads * width, shared * width, shared * width]
    if reader.op_type == "Split" and len(reader.input) > 1:
        return weights.find_array(reader.input[1])
    if reader.op_type == "Split" and columns % len(reader.output) == 0 and "split" not in attributes:
        return [columns // len(reader.output)] * len(reader.output)
    return None


def read_attributes(node: NodeProto) -> dict[str, Any]:
    """The attributes of a node by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}
