"""Merging: an adapter becomes a part of the weights that it stands beside, and leaves no node behind."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

import numpy as np
from onnx import GraphProto, ModelProto, numpy_helper

from ortpartial.arguments import checked
from ortpartial.exceptions import ModelError, ModelWarning
from ortpartial.model import Adapter, Model, Target, read_adapter

from .changes import Change, make_bias_change, make_change
from .constants import Constants
from .insertion import read_copy, strip_adapter
from .matching import match_products
from .products import Product, read_attributes
from .quantized_weights import find_quantized
from .requantize import Requantized
from .saving import load_adapter

__all__ = ["merge"]

#: By operator, the input that is added to a product.
_BIASES = {"Attention": 2, "Conv": 2, "DynamicQuantizeMatMul": 4, "Gemm": 2, "MatMulIntegerToFloat": 6,
           "MatMulNBits": 5}

#: About as many numbers are float64 at a time, whatever the size of the weight.
_AT_ONCE = 2**20


@checked
def merge(model: Model | ModelProto | bytes | str | os.PathLike[str],
          adapter: str | os.PathLike[str] | None = None) -> ModelProto:
    """A model whose weights contain an adapter: it has the nodes of the base, and its size and speed.

    Weights of floats become the sum with the adapter, rounded once. Quantized weights of 2, 4 or 8 bits are rounded
    again in the form that they have, some rows at a time, and a warning says how far they are from the exact sum.
    Nearest numbers would undo changes below half a step, which are most: instead, each output follows its change as a
    whole. An adapter that is deployed beside the base, by `save_adapter`, has no such error.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, or a `Model` returned by `load`
        The base, or a model that holds an adapter; it is not written to.
    adapter : path, optional
        The adapter, as `load_adapter` takes it; without it, the adapter that the model holds.

    Returns
    -------
    onnx.ModelProto
        The model, with the names, nodes, shapes and dtypes of the base. A weight that other nodes read, too, is copied.

    Raises
    ------
    ModelError
        The model holds no adapter, the adapter belongs to another base, or a weight has a form that is not written
        here.
    OSError
        The adapter cannot be read.

    Warns
    -----
    ModelWarning
        Quantized weights were rounded again; it says the error.

    Examples
    --------
    >>> from ortpartial.adapters import add_ia3
    >>> from ortpartial.graph import build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 2]), constant([[1.0], [2.0]], hint="fc.weight")
    >>> base = build([x], {"y": x @ w})
    >>> merge(add_ia3(base, "fc")) == base
    True
    """
    proto = read_copy(model) if adapter is None else load_adapter(model, adapter)
    record = read_adapter(proto)
    if record is None:
        raise ModelError("The model holds no adapter; name the file of one, as in merge(model, 'my.onnx_adapter').")
    names = set(record.weights)
    arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer if t.name in names}
    strip_adapter(proto)
    constants = Constants(proto.graph)
    rounded = {}
    for product, targets in _pair(proto.graph, record, arrays):
        change = make_change(product, targets, arrays)
        if (weight := find_quantized(constants, product)) is not None:
            rounded[product.name] = weight.change(change)
        else:
            _merge_floats(constants, product, change)
        factors = make_bias_change(targets, arrays, product.outputs)
        if factors is not None:
            _scale_bias(constants, product, factors)
    if rounded:
        warnings.warn(_describe(rounded), ModelWarning, stacklevel=2)
    return proto


def _pair(graph: GraphProto, adapter: Adapter, arrays: Mapping[str, np.ndarray]
          ) -> list[tuple[Product, list[Target]]]:
    """The products that an adapter stands beside, and its targets in each."""
    products = match_products(graph, adapter, arrays)
    targets: dict[str, list[Target]] = {}
    for target in adapter.targets:
        targets.setdefault(target.node, []).append(target)
    return [(products[node], in_node) for node, in_node in targets.items()]


def _merge_floats(constants: Constants, product: Product, change: Change) -> None:
    """Change a weight of floats, some rows at a time."""
    index = 0 if product.is_table else 1
    w = constants.read(product.node.input[index])
    merged = np.empty(w.shape, w.dtype)
    is_turned = product.is_linear and not read_attributes(product.node).get("transB", 0)
    rows, merged_rows = (a.T if is_turned else a.reshape(len(a), -1) for a in (w, merged))
    at_once = max(1, _AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), at_once):
        chosen = slice(start, min(start + at_once, len(rows)))
        merged_rows[chosen] = change(rows[chosen], chosen)
    constants.write(product.node, index, merged)


def _scale_bias(constants: Constants, product: Product, factors: np.ndarray) -> None:
    """Multiply the bias of a product."""
    index = _BIASES.get(product.node.op_type)
    bias = None if index is None else constants.find(product.node, index)
    if bias is not None and index is not None:
        constants.write(product.node, index, (bias * factors).astype(bias.dtype))
    if product.bias is not None:
        index = 1 - list(product.bias.input).index((product.end or product.node).output[0])
        bias = constants.read(product.bias.input[index])
        constants.write(product.bias, index, (bias * factors).astype(bias.dtype))


def _describe(rounded: dict[str, Requantized]) -> str:
    """How far requantized weights are from their exact numbers."""
    errors = {name: (r.error / r.size) ** 0.5 if r.size else 0.0 for name, r in rounded.items()}
    worst = max(errors, key=errors.__getitem__)
    change = sum(r.change for r in rounded.values())
    share = (sum(r.error for r in rounded.values()) / change) ** 0.5 if change else 0.0
    weights = f"{len(errors)} quantized weights" if len(errors) > 1 else "1 quantized weight"
    mean = sum(errors.values()) / len(errors)
    return (f"merge rounded {weights} again, with an error of {mean:.2%} on average and {errors[worst]:.2%} at worst "
            f"({worst!r}), {share:.2f} times what the adapter changes; deployed beside the base, by save_adapter, an "
            f"adapter has no such error.")
