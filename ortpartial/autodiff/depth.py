"""The depth of weights: how many layers follow theirs on the way to the outputs, from their names or from the graph."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ortpartial.graph import PRODUCTS, Node, Value, topological
from ortpartial.model import Model

from .trainable import find_readers, is_exported_number

__all__ = ["find_depths"]

#: Operators that make a layer of the weights that they read.
_LAYERS = PRODUCTS | {"GRU", "LSTM", "RNN"}


class _Use(NamedTuple):
    """The place where a weight meets values that depend on an input of the model."""

    node: Node
    #: The place of the node in the file.
    place: int


def find_depths(model: Model, outputs: Iterable[str]) -> dict[str, int]:
    """The number of layers that follow the layer of a weight, 0 next to the outputs.

    A layer is a numbered module: the path up to the first number in the name or alias of a weight, such as
    ``encoder.layer.5``. Layers are in the order in which the graph reads their first weights. Weights before the first
    layer, such as embeddings, are a further layer, and so are weights after the last, the head. Where fewer than two
    layers have numbers, the depth is the largest number of products with weights that follow on a way to an output.

    Parameters
    ----------
    model : Model
        The model, whose initializers are constants.
    outputs : iterable of str
        The outputs that are trained.

    Returns
    -------
    dict of str to int
        By initializer, for all that a gradient reaches.

    References
    ----------
    .. [1] K. Clark, M.-T. Luong, Q. V. Le and C. D. Manning, ELECTRA, ICLR 2020, whose fine-tuning counts so.

    Examples
    --------
    >>> from ortpartial.graph import build, constant, variable
    >>> from ortpartial.model import load
    >>> h = x = variable("x", "float32", ["N", 1])
    >>> for name in ("embeddings", "layer.0", "layer.1", "head"):
    ...     h = h @ constant([[1.0]], hint=f"{name}.weight")
    >>> find_depths(load(build([x], {"y": h})), ["y"])
    {'embeddings.weight': 3, 'layer.0.weight': 2, 'layer.1.weight': 1, 'head.weight': 0}
    """
    roots = [model.outputs[o] for o in outputs]
    readers = find_readers(roots)
    weights = {n: v for n, v in model.initializers.items()
               if v in readers and not is_exported_number(v, readers[v])}
    nodes = topological(roots)
    uses = _find_uses(model, nodes, weights)
    layers = _group_by_layer(model, uses)
    return _count_layers(uses, layers) if len(layers) > 1 else _count_products(nodes, uses)


def _find_uses(model: Model, nodes: Sequence[Node], weights: Mapping[str, Value]) -> dict[str, list[_Use]]:
    """The nodes that each weight reaches first among the nodes that depend on an input of the model.

    An exporter may have written nodes that depend on weights alone, such as a transposition, in front of all the rest.
    """
    places = {v: i for i, v in enumerate(model.values.values())}
    carried: dict[Value, set[str]] = defaultdict(set)
    for n, v in weights.items():
        carried[v].add(n)
    dependent, uses = set(model.inputs.values()), defaultdict(list)
    for node in nodes:
        names = {n for v in node.reads if v not in dependent for n in carried.get(v, ())}
        if dependent.isdisjoint(node.reads):
            for y in node.outputs:
                carried[y] |= names
            continue
        dependent.update(node.outputs)
        place = min((places[y] for y in node.outputs if y in places), default=len(places))
        for n in names:
            uses[n].append(_Use(node, place))
    return uses


def _group_by_layer(model: Model, uses: Iterable[str]) -> dict[tuple[str, ...], list[str]]:
    """The weights of every numbered module, by its path."""
    layers: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for n in uses:
        *modules, _ = re.split(r"[./]", model.main_names[n])
        if first := next((i for i, module in enumerate(modules, 1) if module.isdigit()), 0):
            layers[tuple(modules[:first])].append(n)
    return layers


def _count_layers(uses: Mapping[str, Sequence[_Use]], layers: Mapping[tuple[str, ...], Sequence[str]]
                  ) -> dict[str, int]:
    """How many layers follow, where modules are numbered."""
    first = {n: min(use.place for use in each) for n, each in uses.items()}
    ordered = sorted(layers.values(), key=lambda names: min(first[n] for n in names))
    starts = [min(first[n] for n in names) for names in ordered]
    end = max(first[n] for n in ordered[-1])
    ranks = {n: rank for rank, names in enumerate(ordered, 1) for n in names}
    for n in uses.keys() - ranks:  # Before the first layer, within the layers, or behind the last.
        ranks[n] = len(ordered) + 1 if first[n] > end else bisect_right(starts, first[n])
    last = max(ranks.values())
    return {n: last - ranks[n] for n in uses}


def _count_products(nodes: Sequence[Node], uses: Mapping[str, Sequence[_Use]]) -> dict[str, int]:
    """How many products with weights follow, where names do not tell."""
    reading = {use.node for each in uses.values() for use in each}
    below: dict[Node, int] = {}
    heights: dict[Value, int] = defaultdict(int)
    for node in reversed(nodes):
        below[node] = max(heights[y] for y in node.outputs)
        height = below[node] + (node in reading and node.op_type in _LAYERS)
        for v in node.reads:
            heights[v] = max(heights[v], height)
    return {n: max(below[use.node] for use in each) for n, each in uses.items()}
