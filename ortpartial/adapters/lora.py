"""LoRA: a product of two small matrices beside a frozen weight.

    y = W(x) + alpha / rank * (dropout(x) @ A) @ B

Beside a convolution stand two, the second of which has a kernel of size 1; of a table, rows of A are looked up, and
multiplied by B; inside of fused attention, A @ B is added to W. Source: E. Hu et al., "LoRA: Low-Rank Adaptation of
Large Language Models", ICLR 2022.
"""

from __future__ import annotations

import math

import numpy as np

from ortpartial.model import Adapter, Target

from .nodes import Nodes
from .products import Part, Product, read_attributes

__all__ = ["NAMES", "adapt", "draw", "multiply"]

#: By role, the suffix of the module in the name of a weight.
NAMES = {"lora_A": "lora_A.weight", "lora_B": "lora_B.weight"}


def draw(product: Product, part: Part, rank: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """First weights, whose product is zero: A is uniform within ±1/√inputs and B zero, and of a table B is normal."""
    outputs = part.stop - part.start
    if product.is_table:
        return {"lora_A": np.zeros((product.inputs, rank)), "lora_B": generator.standard_normal((rank, outputs))}
    if product.kernel:
        shape, ones = (rank, product.inputs, *product.kernel), [1] * len(product.kernel)
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        return {"lora_A": generator.uniform(-bound, bound, shape), "lora_B": np.zeros((outputs, rank, *ones))}
    bound = 1 / math.sqrt(product.inputs)
    return {"lora_A": generator.uniform(-bound, bound, (product.inputs, rank)), "lora_B": np.zeros((rank, outputs))}


def adapt(nodes: Nodes, adapter: Adapter, product: Product, target: Target, base: str) -> str:
    """Add the small product to the output of a product."""
    return nodes.compute("Add", base, multiply(nodes, adapter, product, target))


def multiply(nodes: Nodes, adapter: Adapter, product: Product, target: Target) -> str:
    """The product of the input of a product with A and B, or of A and B alone, where it is added to the weight."""
    a, b = target.weights["lora_A"], target.weights["lora_B"]
    node = product.node
    if product.is_inside:
        return nodes.compute("MatMul", nodes.scale(a, target.scale), b)
    if product.is_table:
        rows = nodes.compute("Gather", a, node.input[1])
        return nodes.compute("MatMul", nodes.scale(rows, target.scale), b)
    x = nodes.drop(product.reads, adapter.dropout)
    if node.op_type == "Conv":
        h = nodes.compute("Conv", x, a, **read_attributes(node))
        return nodes.compute("Conv", nodes.scale(h, target.scale), b, kernel_shape=[1] * len(product.kernel))
    h = nodes.compute("MatMul", x, a)
    return nodes.compute("MatMul", nodes.scale(h, target.scale), b)
