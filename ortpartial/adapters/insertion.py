"""Insertion: the nodes and weights of an adapter in the graph of a model, and the model without them again.

The former output ``y`` of a node is called ``<module>/adapter/base``, and the last inserted node computes ``y``, so
that nothing else in the file changes. A node that computes attention, too, reads another weight.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from ortpartial.exceptions import ModelError
from ortpartial.model import (
    Adapter,
    Model,
    Target,
    note_adapter,
    read,
    read_adapter,
    remove_named,
    replace_messages,
)

from . import dora, ia3, lora
from .nodes import MARK, Nodes
from .products import Product, find_products

__all__ = ["insert", "read_copy", "remove_adapter", "strip_adapter"]

#: The function of each method, from the input and the output of a product.
_METHODS = {"lora": lora.adapt, "dora": dora.adapt, "ia3": ia3.adapt}


def read_copy(model: Model | ModelProto | bytes | str | os.PathLike[str]) -> ModelProto:
    """A model that may be written to: read from a file, or a copy of the caller's."""
    proto = read(model)
    if isinstance(model, (Model, ModelProto)) and proto in (model, getattr(model, "proto", None)):
        copy = ModelProto()
        copy.CopyFrom(proto)
        return copy
    return proto


def insert(proto: ModelProto, adapter: Adapter, arrays: Mapping[str, np.ndarray]) -> None:
    """Insert an adapter into a model, which is written to.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    adapter : Adapter
        The adapter that is inserted, and recorded.
    arrays : dict of str to numpy.ndarray
        The weights of the adapter.
    """
    products = {product.node_name: product for product in find_products(proto.graph)}
    opset = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    targets: dict[str, list[Target]] = defaultdict(list)
    for target in adapter.targets:
        targets[target.node].append(target)
    before: dict[str, list[NodeProto]] = {}
    behind: dict[str, list[NodeProto]] = {}
    for name, beside in targets.items():
        product = products[name]
        nodes = Nodes(beside[0].name, product.dtype, opset)
        if beside[0].feedforward:
            before[product.node.output[0]] = ia3.scale_input(nodes, product, beside[0])
        elif product.is_inside:
            before[product.node.output[0]] = _replace_weight(adapter, product, beside, nodes)
        else:
            end = product.bias if adapter.method == "ia3" and product.bias is not None else product.end or product.node
            behind[_replace_output(end, adapter, product, beside, nodes)] = nodes.nodes
    ordered = [n for node in proto.graph.node
               for first in [next(iter(node.output), "")]
               for n in (*before.get(first, ()), node, *behind.get(first, ()))]
    replace_messages(proto.graph.node, ordered)
    proto.graph.initializer.extend(numpy_helper.from_array(np.ascontiguousarray(arrays[n]), n) for n in adapter.weights)
    note_adapter(proto, replace(adapter, ir_version=proto.ir_version))
    proto.ir_version = max(proto.ir_version, 4)  # from which on initializers need not be inputs


def _replace_output(end: NodeProto, adapter: Adapter, product: Product, targets: Sequence[Target],
                    nodes: Nodes) -> str:
    """Let inserted nodes compute a node's output; returns the new name of the node's own output."""
    output, base = end.output[0], f"{nodes.module}{MARK}base"
    end.output[0] = base
    _adapt(nodes, adapter, product, targets, base)
    nodes.nodes[-1].output[0] = output
    return base


def _replace_weight(adapter: Adapter, product: Product, targets: Sequence[Target], nodes: Nodes) -> list[NodeProto]:
    """Let a node read a weight, and for factors a bias, that inserted nodes compute; returns these nodes."""
    for index in (1, 2) if adapter.method == "ia3" else (1,):
        if len(product.node.input) > index and product.node.input[index]:
            product.node.input[index] = _adapt(nodes, adapter, product, targets, product.node.input[index])
    return nodes.nodes


def _adapt(nodes: Nodes, adapter: Adapter, product: Product, targets: Sequence[Target], base: str) -> str:
    """Change the columns of some targets."""
    adapt = _METHODS[adapter.method]
    if len(product.parts) == 1:
        return adapt(nodes, adapter, product, targets[0], base)
    by_part = {t.start: t for t in targets}
    parts = nodes.split(base, [part.stop - part.start for part in product.parts])
    for i, part in enumerate(product.parts):
        if part.start in by_part:
            target = by_part[part.start]
            nodes.module = target.name
            parts[i] = adapt(nodes, adapter, product, target, parts[i])
    nodes.module = targets[0].name
    return nodes.compute("Concat", *parts, axis=-1)


def remove_adapter(model: Model | ModelProto | bytes | str | os.PathLike[str]) -> ModelProto:
    """The model that an adapter was added to, as it was before.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path or Model
        The model; it is not written to. A model without an adapter is returned as it is.

    Returns
    -------
    onnx.ModelProto

    Examples
    --------
    >>> from ortpartial.adapters import add_lora
    >>> from ortpartial.graph import build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 3]), constant([[1.0], [2.0], [3.0]], hint="fc.weight")
    >>> model = build([x], {"y": x @ w})
    >>> remove_adapter(add_lora(model, "fc")) == model
    True
    """
    proto = read_copy(model)
    strip_adapter(proto)
    return proto


def strip_adapter(proto: ModelProto) -> None:
    """Remove the adapter that a model holds, which is written to: big weights are not copied for that.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    """
    adapter = read_adapter(proto)
    if adapter is None:
        return
    prefixes = tuple(f"{t.name}{MARK}" for t in adapter.targets)
    inserted, kept = ([node for node in proto.graph.node if node.name.startswith(prefixes) is is_inserted]
                      for is_inserted in (True, False))
    outputs = {node.name.partition(MARK)[0]: o for node in inserted for o in node.output if not o.startswith(prefixes)}
    scaled = {node.output[0]: node.input[0] for node in inserted
              if node.input and node.output and node.output[0].startswith(prefixes)}
    _rejoin(kept, prefixes, outputs, scaled)
    replace_messages(proto.graph.node, kept)
    remove_named(proto.graph.initializer, set(adapter.weights))
    remove_named(proto.graph.input, set(adapter.weights))
    proto.ir_version = adapter.ir_version
    note_adapter(proto, None)


def _rejoin(kept: Sequence[NodeProto], prefixes: tuple[str, ...], outputs: Mapping[str, str], scaled: Mapping[str, str]
            ) -> None:
    """Let nodes read and compute the same as before the nodes of some prefixes were inserted."""
    former = {o: o.partition(MARK)[0] for node in kept for o in node.output if o.startswith(prefixes)}
    if missing := [o for o, target in former.items() if target not in outputs]:
        raise ModelError(f"Nothing reads {missing[0]!r}, beside which an adapter stands by the model's record; add "
                         f"the adapter to the base again.")
    for node in kept:
        node.output[:] = [outputs[former[o]] if o in former else o for o in node.output]
        node.input[:] = [_trace(i, scaled) for i in node.input]


def _trace(name: str, first: Mapping[str, str]) -> str:
    """The input of the first of nodes in a row, by the output and the first input of each."""
    for _ in first:  # Nodes of a damaged model may be in a circle.
        name = first.get(name, name)
    return name
