"""DoRA: LoRA whose columns have a trained length.

    y = m / ‖W + s A B‖ ∘ (W(x) + s (x @ A) @ B)        with s = alpha / rank

The norm is that of each column, and a constant of the gradient, as the paper suggests. W itself is not read for it:
with n = ‖W‖², which is computed once, and U = Aᵀ W, which the product itself computes of the few rows of Aᵀ,

    ‖W + s A B‖² = n + Σ B ∘ (2 s U + s² (Aᵀ A) B)      over the rows of B

so that a packed weight stays packed. Source: S.-Y. Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation", ICML
2024.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from ortpartial.exceptions import SettingError
from ortpartial.model import Adapter, Target

from . import lora
from .nodes import Nodes
from .products import Part, Product, read_attributes
from .requantize import BlockQuantization

__all__ = ["NAMES", "adapt", "check", "deploy", "draw", "read_bias", "restore"]

#: By role, the suffix of the module in the name of a weight. A deployed adapter has the quotient instead of the length,
#: multiplied into B as well, and its change of the bias of a Gemm.
NAMES = {**lora.NAMES, "magnitude": "lora_magnitude_vector", "factor": "lora_factor", "offset": "lora_offset"}

#: The operators, and the input that is a bias.
_KINDS = {"MatMul", "Gemm", "MatMulNBits"}
_BIAS = {"Gemm": 2, "MatMulNBits": 5}

#: How many columns of a weight are real numbers at a time.
_AT_ONCE = 1024

#: The least square of a norm: a column of zeros stays so.
_TINY = 1e-30


def draw(product: Product, part: Part, rank: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """First weights: as in LoRA, and the lengths of the columns of the frozen weight."""
    lengths = np.sqrt(_sum_squares(product)[part.start : part.stop])
    return {**lora.draw(product, part, rank, generator), "magnitude": lengths}


def adapt(nodes: Nodes, adapter: Adapter, product: Product, target: Target, base: str) -> str:
    """Add the small product to the output of a product, and give the columns of the sum their lengths."""
    change = lora.multiply(nodes, adapter, product, target)
    if "factor" in target.weights:
        y = nodes.compute("Add", nodes.compute("Mul", base, target.weights["factor"]), change)
        return nodes.compute("Add", y, target.weights["offset"]) if "offset" in target.weights else y
    factor = compute_factor(nodes, product, target)
    y = nodes.compute("Mul", nodes.compute("Add", base, change), factor)
    bias = read_bias(product, target)
    if bias is None:
        return y
    kept = nodes.compute("Sub", nodes.constant(1.0), factor)  # of the bias, which is no part of a column
    return nodes.compute("Add", y, nodes.compute("Mul", kept, nodes.constant(bias)))


def compute_factor(nodes: Nodes, product: Product, target: Target) -> str:
    """The trained length of each column over its norm, in float32 where the product computes in 16 bits."""
    a, b, magnitude = (target.weights[role] for role in ("lora_A", "lora_B", "magnitude"))
    dtype = TensorProto.DOUBLE if product.dtype == TensorProto.DOUBLE else TensorProto.FLOAT
    exact = Nodes(nodes.module, dtype, nodes.opset, nodes.nodes)
    turned = nodes.compute("Transpose", a, perm=[1, 0])
    u = _multiply(nodes, product, turned)
    if len(product.parts) > 1:
        i = next(i for i, part in enumerate(product.parts) if part.start == target.start)
        u = nodes.split(u, [part.stop - part.start for part in product.parts])[i]
    u, a, b, turned = (exact.cast(x, product.dtype) for x in (u, a, b, turned))
    squared = exact.compute("MatMul", exact.compute("MatMul", turned, a), b)
    sides = exact.compute("Add", exact.scale(u, 2 * target.scale), exact.scale(squared, target.scale**2))
    frozen = _sum_squares(product)[target.start : target.stop]
    least = np.full(frozen.shape if nodes.opset < 8 else (), _TINY)  # before which Max does not broadcast
    squares = exact.compute("Add", exact.constant(frozen), exact.sum_rows(exact.compute("Mul", b, sides)))
    norm = exact.stop_gradient(exact.compute("Sqrt", exact.compute("Max", squares, exact.constant(least))))
    return nodes.cast(exact.compute("Div", exact.cast(magnitude, product.dtype), norm), exact.dtype)


def _multiply(nodes: Nodes, product: Product, x: str) -> str:
    """The product of other rows with the same weight, without a bias, in full accuracy."""
    node = NodeProto()
    node.CopyFrom(product.node)
    inputs = list(node.input[1 : _BIAS.get(node.op_type, len(node.input))])
    if node.op_type == "Gemm" and nodes.opset < 11:  # in which it has a bias
        inputs.append(nodes.constant([0.0]))
    attributes = {n: v for n, v in read_attributes(node).items() if n != "accuracy_level"}
    return nodes.compute(node.op_type, x, *inputs, domain=node.domain, **attributes)


def read_bias(product: Product, target: Target) -> np.ndarray | None:
    """The bias of a product in the columns of a target, None where it has none."""
    bias = product.read_tensor(_BIAS.get(product.node.op_type, len(product.node.input)))
    return None if bias is None else np.broadcast_to(bias, (1, product.outputs))[0, target.start : target.stop]


def check(product: Product) -> None:
    """Refuse a product whose columns are not read here."""
    attributes = read_attributes(product.node)
    if product.node.op_type not in _KINDS or attributes.get("alpha", 1.0) != 1 or attributes.get("beta", 1.0) != 1:
        raise SettingError(f"DoRA is for MatMul, Gemm and MatMulNBits, and {product.name!r} is another product or has "
                           f"a factor; leave it out of targets, or use LoRA.")
    biases = [n for n in product.node.input[_BIAS.get(product.node.op_type, len(product.node.input)) :] if n]
    if biases and not _is_row(product.tensors.get(biases[0]), product.outputs):
        raise SettingError(f"DoRA reads the bias of a product, and {biases[0]!r} of {product.name!r} is computed, or "
                           f"has several rows; leave it out of targets, or use LoRA.")
    if product.node.input[1] not in product.tensors:
        raise SettingError(f"DoRA reads the columns of a weight, and {product.weight!r} of {product.name!r} is cast, "
                           f"transposed or dequantized by nodes; leave it out of targets, or use LoRA.")


def _is_row(t: TensorProto | None, columns: int) -> bool:
    """Whether a tensor is a constant that has the same for each row of a product."""
    return t is not None and math.prod(t.dims[:-1]) == 1 and t.dims[-1:] in ([], [1], [columns])


def deploy(product: Product, target: Target, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The deployed weights by role: the quotient of length and norm takes the place of the length, and is part of B."""
    a, b, magnitude = (weights[role].astype(np.float64) for role in ("lora_A", "lora_B", "magnitude"))
    factor = magnitude / _measure(product, target, a, target.scale * b)
    bias = read_bias(product, target)
    exact = {"lora_A": a, "lora_B": target.scale * b * factor, "factor": factor,
             **({} if bias is None else {"offset": bias * (1 - factor)})}
    return {role: w.astype(weights["lora_A"].dtype) for role, w in exact.items()}


def restore(product: Product, target: Target, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The trained weights by role, from the weights that `deploy` has returned."""
    a, b, factor = (weights[role].astype(np.float64) for role in ("lora_A", "lora_B", "factor"))
    b = np.divide(b, factor, out=np.zeros_like(b), where=factor != 0)
    exact = {"lora_A": a, "lora_B": b, "magnitude": factor * _measure(product, target, a, b)}
    return {role: w.astype(weights["lora_A"].dtype) for role, w in exact.items()}


def _measure(product: Product, target: Target, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The norms of the columns of W + A B."""
    squares = np.concatenate([np.square(rows + (a @ b[:, columns]).T).sum(axis=1)
                              for columns, rows in _read_columns(product, target.start, target.stop)])
    return np.sqrt(np.maximum(squares, _TINY))


def _sum_squares(product: Product) -> np.ndarray:
    """The sum of the squares of each column of a weight."""
    return np.concatenate([np.square(rows).sum(axis=1) for _, rows in _read_columns(product, 0, product.outputs)])


def _read_columns(product: Product, first: int, stop: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Columns of a weight as real numbers, some at a time, each with its place among the wanted columns."""
    attributes, arrays = read_attributes(product.node), [product.read_tensor(i) for i in range(1, 5)]
    weight = numpy_helper.to_array(product.tensors[product.weight])
    turned = weight if attributes.get("transB", 0) else weight.T
    packed = None
    if product.node.op_type == "MatMulNBits" and arrays[1] is not None:
        packed = BlockQuantization(weight, arrays[1], arrays[2], (product.outputs, product.inputs),
                                   attributes.get("bits", 4), attributes["block_size"], arrays[3])
    for start in range(first, stop, _AT_ONCE):
        chosen = slice(start, min(start + _AT_ONCE, stop))
        rows = turned[chosen] if packed is None else packed.dequantize(chosen)
        yield slice(start - first, chosen.stop - first), rows.astype(np.float64)
