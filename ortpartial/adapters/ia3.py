"""IA3: factors of the output of a product, or, in feedforward layers, of its input.

    y = l ∘ W(x)    or    y = W(l ∘ x)

Source: H. Liu et al., "Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning",
NeurIPS 2022.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from ortpartial.model import Adapter, Target

from .nodes import Nodes
from .products import Part, Product

__all__ = ["NAMES", "adapt", "draw", "scale_input"]

#: By role, the suffix of the module in the name of a weight.
NAMES = {"ia3_l": "ia3_l"}


def draw(product: Product, part: Part, on_input: bool) -> dict[str, np.ndarray]:
    """First factors, all 1, in the shape that they are multiplied in."""
    size = product.inputs if on_input else part.stop - part.start
    return {"ia3_l": np.ones((size, *(1 for _ in product.kernel)))}


def adapt(nodes: Nodes, adapter: Adapter, product: Product, target: Target, base: str) -> str:
    """Multiply the output of a product."""
    return nodes.compute("Mul", base, target.weights["ia3_l"])


def scale_input(nodes: Nodes, product: Product, target: Target) -> list[NodeProto]:
    """Multiply the input of a product by factors; returns the node that multiplies."""
    product.node.input[0] = nodes.compute("Mul", product.node.input[0], target.weights["ia3_l"])
    return nodes.nodes
