"""Single nodes computed by onnxruntime, for eager evaluation: a model of one node, in a kept session."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from onnx import GraphProto, ModelProto, helper

from ortpartial.annotations import Reduced
from ortpartial.exceptions import DataError, OrtPartialError
from ortpartial.graph import (
    RANDOM,
    SMALL,
    Node,
    Value,
    build,
    describe_refusal,
    find_bound,
    find_refused,
    register_evaluator,
    state_refusal,
    walk_nodes,
)
from ortpartial.model import load

from .fair_lock import FairLock
from .session import Session
from .threads import choose_threads

__all__ = ["compute_node"]

#: The sessions used last, by operator, attributes, types of inputs and numbers of small constants; the most of them.
_SESSIONS: OrderedDict[Hashable, Session] = OrderedDict()
_MOST_SESSIONS = 1024
_turn = FairLock()


def compute_node(node: Node, outputs: Sequence[Value], numbers: Mapping[Value, Any], seed: int) -> list[Any]:
    """Compute outputs of one node.

    Parameters
    ----------
    node : Node
        The node.
    outputs : sequence of Value
        Outputs of it, or values tapped from its bodies.
    numbers : mapping of Value to numpy.ndarray
        An array, or a list of arrays for a sequence, for all that the node reads.
    seed : int
        The seed of random operators that have none; the same seed gives the same draw.

    Returns
    -------
    list of numpy.ndarray
        An array for each output.

    Raises
    ------
    ModelError
        onnxruntime has no kernel for the node, or the kernel fails on these numbers.
    DataError
        onnxruntime refuses these numbers as inputs of the node.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", [3])
    >>> y = op.Exp(x)
    >>> compute_node(y.node, [y], {x: np.zeros(3, np.float32)}, 0)
    [array([1., 1., 1.], dtype=float32)]
    """
    bound = find_bound(node)
    indices = None if bound is None else node.inputs[bound.position]
    if bound is not None and indices is not None and (refused := find_refused(bound, numbers[indices])) is not None:
        raise DataError(state_refusal(describe_refusal(node), refused))
    fed = [v for v in dict.fromkeys(node.reads) if not _is_small(v)]
    try:
        results = _open(node, fed, outputs, seed).run({f"i{i}": numbers[v] for i, v in enumerate(fed)})
    except OrtPartialError as e:
        if isinstance(e, DataError) and describe_refusal(node):
            raise  # It names the node.
        what = node.op_type + f" (node {node.name!r})" * bool(node.name)
        read = ", ".join("nothing" if v is None else v.type_name for v in node.inputs)
        raise type(e)(f"{what} cannot be computed from ({read}): {e}") from None
    return [results[f"{node.op_type}_{i}"] for i in range(len(outputs))]


def _is_small(v: Value) -> bool:
    """Whether a value is part of the model: kernels want axes, and some want bounds and scales, as constants."""
    return v.array is not None and v.array.size <= SMALL


def _open(node: Node, fed: Sequence[Value], outputs: Sequence[Value], seed: int) -> Session:
    """A session that computes these outputs: that of an equal node, unless random numbers are drawn."""
    key = None if node.bodies or node.op_type in RANDOM else _key(node, fed, outputs)
    if session := _find_session(key):
        return session
    named = {f"{node.op_type}_{i}": y for i, y in enumerate(outputs)}
    model = _guard(build({f"i{i}": v for i, v in enumerate(fed)}, named, name=node.op_type))
    threads = choose_threads(outputs, cut=node.reads)
    if any(n.op_type in RANDOM for n in walk_nodes([node])):
        _set_seeds(model.graph, count(seed))
        return Session(model, threads=threads)
    key = key or model.SerializeToString(deterministic=True)  # Equal bodies make equal models.
    session = _find_session(key) or Session(model, threads=threads)
    with _turn.lock:
        _SESSIONS[key] = session
        while len(_SESSIONS) > _MOST_SESSIONS:
            _SESSIONS.popitem(last=False)
    return session


def _guard(model: ModelProto) -> ModelProto:
    """A model in which numbers that would end the process are an error, as in every model that is loaded."""
    if not all(v.type.HasField("tensor_type") for v in (*model.graph.input, *model.graph.output)):
        return model
    loaded = load(model)
    return build(loaded.inputs, loaded.outputs, name=model.graph.name)


def _find_session(key: object) -> Session | None:
    """The session of this key, which then counts as used last."""
    with _turn.lock:
        if key in _SESSIONS:
            _SESSIONS.move_to_end(key)
        return _SESSIONS.get(key)


def _key(node: Node, fed: Sequence[Value], outputs: Sequence[Value]) -> Reduced:
    """A key that is equal for nodes that can share a session."""
    positions = {v: i for i, v in enumerate(fed)}
    arrays = [v.array.tobytes() if v is not None and v.array is not None and v not in positions else None
              for v in node.inputs]
    inputs = tuple([None if v is None else (v.type_key, positions.get(v)) for v in node.inputs])
    attributes = b"".join([a.SerializeToString(deterministic=True) for a in node.protos()])
    return (*node.key, node.schema.since_version, inputs, *arrays, attributes, tuple([y.index for y in outputs]))


def _set_seeds(graph: GraphProto, seeds: Iterator[int]) -> None:
    """Give each random node without a seed its own, in place: without seeds, all sessions would draw alike."""
    for node in graph.node:
        if node.op_type in RANDOM and not any(a.name == "seed" for a in node.attribute):
            seed: Any = next(seeds)
            # Multinomial and its kin take a real number, Dropout a whole number.
            node.attribute.append(helper.make_attribute("seed", seed if node.op_type == "Dropout" else float(seed)))
        for a in node.attribute:
            if a.HasField("g"):
                _set_seeds(a.g, seeds)


register_evaluator(compute_node)

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_SESSIONS.clear)
