"""Counting parameters: how many numbers of a model are trained, by name and shape."""

from __future__ import annotations

import math
import os

from onnx import GraphProto, ModelProto, TensorProto

from ortpartial.autodiff import WeightSelection, find_default_weights, resolve_weights
from ortpartial.model import Model, load, read_adapter

from .products import find_products

__all__ = ["trainable_parameters"]

#: The types of quantized weights, whose numbers may be packed.
_QUANTIZED = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4)


def trainable_parameters(model: Model | ModelProto | bytes | str | os.PathLike[str],
                         weights_to_train: WeightSelection | None = None) -> None:
    """Print the weights that are trained, with their shapes, how many numbers they hold, and their share of all.

    Numbers that are packed, several to a byte, count singly.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path or Model
        The model.
    weights_to_train : str, sequence of str, or callable, optional
        As for `OrtGradientForwardBackwardOptimizer`; by default the weights of the adapter, where the model has one.

    Raises
    ------
    ModelError
        The model cannot be read, or a weight is unknown.

    Examples
    --------
    >>> from ortpartial.adapters import add_lora
    >>> from ortpartial.graph import build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 40]), constant([[1.0] * 30] * 40, hint="fc.weight")
    >>> trainable_parameters(add_lora(build([x], {"y": x @ w}), rank=2))
    fc.lora_A.weight  (40, 2)    80
    fc.lora_B.weight  (2, 30)    60
    trainable params: 140 || all params: 1,340 || trainable%: 10.4478
    """
    loaded = load(model)
    outputs = [n for n, v in loaded.outputs.items() if v.is_float]
    chosen = "adapter" if weights_to_train is None and read_adapter(loaded.proto) is not None else weights_to_train
    trained = {n: loaded.arrays[n].shape for n in resolve_weights(loaded, chosen, outputs)}
    weights = find_default_weights(loaded, outputs)
    frozen = {n: loaded.arrays[n].size for n, v in loaded.initializers.items() if v in weights}
    frozen |= _count_packed(loaded.proto.graph)
    rows = [(loaded.main_names[n], str(shape), f"{math.prod(shape):,}") for n, shape in trained.items()]
    name, shape, count = (max(map(len, column)) for column in zip(*rows, strict=True))
    for row in rows:
        print(f"{row[0]:<{name}}  {row[1]:<{shape}}  {row[2]:>{count}}")
    ours = sum(map(math.prod, trained.values()))
    total = ours + sum(size for n, size in frozen.items() if n not in trained)
    print(f"trainable params: {ours:,} || all params: {total:,} || trainable%: {100 * ours / total:.4f}")


def _count_packed(graph: GraphProto) -> dict[str, int]:
    """How many numbers each quantized weight holds."""
    sizes = {t.name: math.prod(t.dims) for t in graph.initializer if t.data_type in _QUANTIZED and len(t.dims) > 1}
    return sizes | {p.weight: p.inputs * p.outputs for p in find_products(graph) if p.weight in sizes and not p.kernel}
