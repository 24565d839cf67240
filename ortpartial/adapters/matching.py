"""The products that an adapter stands beside, found by its record, which may be that of another model or forged."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from onnx import GraphProto

from ortpartial.exceptions import ModelError
from ortpartial.model import Adapter, Target

from .products import Product, find_products

__all__ = ["match_products"]


def match_products(graph: GraphProto, adapter: Adapter, arrays: Mapping[str, np.ndarray]) -> dict[str, Product]:
    """The products of a graph by the names of their nodes, checked at the targets of an adapter.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph, without the adapter.
    adapter : Adapter
        Its record.
    arrays : dict of str to numpy.ndarray
        Its weights.

    Returns
    -------
    dict of str to Product

    Raises
    ------
    ModelError
        A target is at no product, or at a product of other sizes.
    """
    products = {product.node_name: product for product in find_products(graph)}
    for target in adapter.targets:
        product = products.get(target.node)
        if product is None or not _fits(target, product, arrays):
            raise ModelError(f"The model's record of its adapter does not fit the model: {target.name!r} is at "
                             f"{target.node!r}, where there is no such product; add the adapter to the base again.")
    return products


def _fits(target: Target, product: Product, arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether a product has the sizes of a target, and the weights fit both."""
    outputs, sizes = target.stop - target.start, {role: arrays[n].size for role, n in target.weights.items()}
    if (target.inputs, target.outputs) != (product.inputs, product.outputs) or outputs < 1:
        return False
    expected = {"magnitude": outputs, "factor": outputs, "offset": outputs,
                "ia3_l": target.inputs if target.feedforward else outputs}
    if "lora_A" in target.weights and "lora_B" in target.weights:
        shape = arrays[target.weights["lora_A"]].shape
        if len(shape) != 2 + len(product.kernel):
            return False
        rank = shape[0] if product.kernel else shape[1]
        expected |= {"lora_A": rank * target.inputs * math.prod(product.kernel), "lora_B": rank * outputs}
    return all(expected.get(role) == size for role, size in sizes.items())
