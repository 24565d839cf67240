"""Inputs of language models that data may leave out: the key-value cache, states, the attention mask, position ids.

They are recognized by name, rank and type, in files of onnxruntime-genai's model builder, of optimum and
transformers.js, of onnxruntime's conversion scripts and of torch's exporters:

* ``input_ids`` of shape (rows, tokens), or ``inputs_embeds`` of (rows, tokens, width), from which the others follow. A
  model without them has no such inputs.
* The cache: a name with "past", or with "cache" beside "k", "v", "key" or "value", such as ``past_key_values.0.key``,
  ``past_key_values.0.decoder.value``, ``past_key_0``, ``past_0`` and ``key_cache_0``; of shape (rows, heads, tokens,
  size), (rows, tokens, heads, size) or (2, rows, heads, tokens, size), where the number of tokens is open. Other sizes
  that are open follow from the attention that reads it, or the output that it becomes. A name with "cross" or "encoder"
  is no cache of this kind: the states of an encoder cannot be empty.
* The states of convolutions and of linear attention, 0 before the first token: a name such as ``past.0.conv`` or
  ``past.0.recurrent``, of any shape in which the number of rows alone is open.
* ``attention_mask`` and ``position_ids`` of shape (rows, tokens), ``cache_position`` of (tokens,); of models that see
  images, ``position_ids`` of (3, rows, tokens), in which the positions of text are equal.
* ``use_cache_branch``, ``logits_to_keep`` and ``num_logits_to_keep``, of a single element: False, and 0 for all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto

from ortpartial.annotations import DTypeLike
from ortpartial.exceptions import DataError
from ortpartial.graph import Node, Value, constant, op, topological

from .load import Model
from .specialize import replace_inputs

__all__ = ["ComputedInputs", "find_computed_inputs", "is_cache"]

#: The inputs that are the tokens, with their ranks.
_TOKENS = {"input_ids": 2, "inputs_embeds": 3}
_FIXED = {"logits_to_keep": 0, "num_logits_to_keep": 0, "use_cache_branch": 0}
_CACHE = re.compile(r"past|present|(^|[._])(k|v|key|value)[._]?cache|cache[._]?(k|v|key|value)([._]|$)", re.IGNORECASE)
_STATE = re.compile(r"(past|present)[._].*(conv|recurrent|ssm)", re.IGNORECASE)
_OF_ENCODER = re.compile("cross|encoder", re.IGNORECASE)

#: The sizes of a batch, in the shapes of inputs that follow from it.
_ROWS, _NEW, _ALL = "rows", "tokens", "tokens with those of the cache"

_POSITIONS: dict[str, tuple[int | str, ...]] = {"position_ids": (_ROWS, _NEW), "cache_position": (_NEW,)}

#: Operators that return the cache with further tokens, of as many axes as their input.
_CACHING = re.compile("Attention|Concat$")

#: The difference between the names of a cache and of the cache after a step.
_TENSE = re.compile("past(_key_values)?|present(_key_values)?")


@dataclass(frozen=True)
class ComputedInputs:
    """The inputs of a language model that follow from its tokens, where data leave them out.

    Parameters
    ----------
    tokens : str
        The input that has the tokens; empty for models of other kinds.
    shapes : dict of str to tuple of int or str
        The shapes of the inputs that can be computed, by name, where the sizes of a batch have a name.
    caches : tuple of str
        The inputs that are the key-value cache.
    is_counted : bool
        Whether attention counts the tokens of a row from the left, and reads no mask.
    """

    tokens: str = ""
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    caches: tuple[str, ...] = ()
    is_counted: bool = False

    @property
    def past_axes(self) -> dict[str, int]:
        """The axis of the former tokens in each cache; states have none."""
        return {n: self.shapes[n].index(0) for n in self.caches if 0 in self.shapes[n]}

    def choose(self, names: Collection[str]) -> list[str]:
        """The inputs that data with these names have to hold: the named inputs, and the whole cache or nothing."""
        is_cached = any(n in names for n in self.caches)
        return [n for n in self.shapes if n in names or (is_cached and n in self.caches)]

    def measure(self, sizes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """The shapes of all of them, by the shapes of inputs that are given."""
        if not self.shapes:
            return {}
        rows, new, *_ = sizes[self.tokens]
        past = next((sizes[n][axis] for n, axis in self.past_axes.items() if n in sizes), 0)
        numbers = {_ROWS: rows, _NEW: new, _ALL: past + new}
        return {n: tuple(numbers[d] if isinstance(d, str) else d for d in s) for n, s in self.shapes.items()}

    def check(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Refuse, in a model with a cache, masks and positions of other tokens, and padding that it would not see.

        Parameters
        ----------
        arrays : dict of str to numpy.ndarray
            The inputs that are given.

        Raises
        ------
        DataError
        """
        for name, shape in self.measure({n: a.shape for n, a in arrays.items()}).items():
            if name in arrays and name not in self.caches and arrays[name].shape != shape:
                raise DataError(f"Input {name!r} has shape {arrays[name].shape}, where {shape} was expected, by the "
                                f"tokens of {self.tokens!r}.")
        ids, mask = arrays.get("input_ids"), arrays.get("attention_mask")
        if ids is not None and ids.min(initial=0) < 0:
            raise DataError(f"Input 'input_ids' has the token {ids.min()}, and ids begin at 0; what pads a row is any "
                            f"token with a 0 in 'attention_mask', as pad_rows gives.")
        if mask is None or not self.is_counted:
            return
        if (is_wrong := ((mask != 0) & (mask != 1)).any(axis=1) | ~mask.any(axis=1)).any():
            raise DataError(f"Row {is_wrong.argmax()} of 'attention_mask' has no token, or numbers other than 0 and 1; "
                            f"mark tokens by 1, at least one of each row.")
        if (is_late := (mask[:, 1:] > mask[:, :-1]).any(axis=1)).any():
            raise DataError(f"Row {is_late.argmax()} of 'attention_mask' has tokens behind padding, where the model's "
                            f"GroupQueryAttention counts them from the left; pad at the right, as pad_rows does.")

    def compute(self, model: Model, given: Collection[str]) -> Model:
        """The model without the inputs that are not given: the graph computes them.

        The cache is empty and all tokens are there. The position of a token is the number of tokens before it, as
        transformers counts: cumsum(mask) - 1, at least 0.

        Parameters
        ----------
        model : Model
            The model, with static or symbolic sizes.
        given : collection of str
            The names of its inputs that are given.

        Returns
        -------
        Model
            Itself if nothing is missing.
        """
        absent = {n: shape for n, shape in self.shapes.items() if n not in given}
        if not absent:
            return model
        tokens = model.inputs[self.tokens]
        rows, new = _measure(tokens, 0), _measure(tokens, 1)
        caches = [_measure(model.inputs[n], axis) for n, axis in self.past_axes.items() if n in given]
        sizes = {_ROWS: rows, _NEW: new, _ALL: caches[0] + new if caches else new}
        names = dict(zip((_ROWS, _NEW), tokens.shape or (), strict=False))
        mask = _fill(1, np.int64, (_ROWS, _ALL), sizes)
        if "attention_mask" in given:
            mask = op.Cast(model.inputs["attention_mask"], to=TensorProto.INT64)
        values: dict[str, Value] = {}
        for name, shape in absent.items():
            v = model.inputs[name]
            if name in _POSITIONS:
                places = op.Max(op.CumSum(mask, 1) - 1, 0) if v.rank > 1 else op.Range(0, op.Squeeze(sizes[_ALL]), 1)
                last = op.Slice(places, op.Neg(new), [np.iinfo(np.int64).max], [-1]) if caches else places
                if v.rank == 3:  # Text has the same position in time, height and width.
                    last = op.Tile(op.Unsqueeze(last, [0]), [3, 1, 1])
                values[name] = op.Cast(last, to=v.type.tensor_type.elem_type)
            else:
                filled = _fill(int(name == "attention_mask"), v.dtype, shape, sizes)
                values[name] = filled.stated([names.get(d) if isinstance(d, str) else d for d in shape])
        return replace_inputs(model, values)


def find_computed_inputs(model: Model) -> ComputedInputs:
    """Find the inputs of a language model that follow from its tokens.

    Parameters
    ----------
    model : Model
        The model.

    Returns
    -------
    ComputedInputs

    Examples
    --------
    >>> from ortpartial.graph import build, variable
    >>> from ortpartial.model import load
    >>> ids, mask = (variable(n, "int64", ["rows", "tokens"]) for n in ("input_ids", "attention_mask"))
    >>> model = load(build([ids, mask], {"y": ids * mask}))
    >>> computed = find_computed_inputs(model)
    >>> list(computed.shapes), list(computed.compute(model, ["input_ids"]).inputs)
    (['attention_mask'], ['input_ids'])
    """
    ranks = {n: _rank(v) for n, v in model.inputs.items()}
    tokens = next((n for n, rank in _TOKENS.items() if ranks.get(n) == rank), None)
    if tokens is None:
        return ComputedInputs()
    nodes = list(topological(list(model.outputs.values())))
    shapes: dict[str, tuple[int | str, ...]] = {}
    caches = []
    for name, v in model.inputs.items():
        if name == "attention_mask" and ranks[name] == 2:
            shapes[name] = _ROWS, _ALL
        elif name in _POSITIONS and ranks[name] == len(_POSITIONS[name]):
            shapes[name] = _POSITIONS[name]
        elif name == "position_ids" and ranks[name] == 3 and v.shape is not None and v.shape[0] == 3:
            shapes[name] = 3, _ROWS, _NEW
        elif name in _FIXED and v.shape in ((), (1,)):
            shapes[name] = v.shape
        elif is_cache(name, v):
            is_state = _STATE.search(name) is not None
            shape = _shape_state(v) if is_state else _shape_cache(v, _list_longer(model, name, nodes))
            if shape is not None:
                shapes[name] = shape
                caches.append(name)
    return ComputedInputs(tokens, shapes, tuple(caches), any(node.op_type == "GroupQueryAttention" for node in nodes))


def is_cache(name: str, v: Value) -> bool:
    """Whether an input or output is a key-value cache of a decoder, or a state of its convolutions or linear attention.

    Parameters
    ----------
    name : str
        Its name.
    v : Value
        Its type is read.

    Returns
    -------
    bool
    """
    is_named = _rank(v) in (4, 5, None) and _CACHE.search(name) and not _OF_ENCODER.search(name)
    return bool(is_named or (_rank(v) in (3, 4, 5) and _STATE.search(name)))


def _list_longer(model: Model, name: str, nodes: Sequence[Node]) -> list[Value]:
    """The cache of an input with further tokens: the output of its name, and the results of operators that read it."""
    v, tail = model.inputs[name], _TENSE.sub("", name)
    outputs = [y for n, y in model.outputs.items() if n != name and _TENSE.sub("", n) == tail]
    # Of a cache of a window, attention reads the rows that hold something.
    read = {v, *(node.outputs[0] for node in nodes if node.op_type == "Slice" and node.inputs[0] is v)}
    readers = [node for node in nodes if _CACHING.search(node.op_type) and not read.isdisjoint(node.inputs)]
    return [y for y in [*outputs, *(y for node in readers for y in node.outputs)] if _rank(y) == _rank(v)]


def _shape_state(v: Value) -> tuple[int | str, ...] | None:
    """The shape of a state of zeros; None where another size than the number of rows is open."""
    sizes = v.shape or ()
    if sum(not isinstance(n, int) for n in sizes) != 1:
        return None
    return tuple(n if isinstance(n, int) else _ROWS for n in sizes)


def _shape_cache(v: Value, longer: Sequence[Value]) -> tuple[int | str, ...] | None:
    """The shape of an empty cache; None where it is not known, or has a fixed length."""
    if (sizes := v.shape) is None:
        return None
    rows = len(sizes) - 4
    is_set = [isinstance(n, int) and n > 0 for n in sizes]
    # Heads stand before tokens, unless their numbers say otherwise: the number of heads never changes.
    past = rows + 1 if is_set[rows + 2] and not is_set[rows + 1] else rows + 2
    if is_set[past]:
        return None
    shape: list[Any] = [{rows: _ROWS, past: 0}.get(i, n) for i, n in enumerate(sizes)]
    for y in longer:
        pairs = zip(shape, y.shape or (), strict=True)
        shape = [n if isinstance(n, int) or i == rows else m for i, (n, m) in enumerate(pairs)]
    return tuple(shape) if all(isinstance(n, int) or i == rows for i, n in enumerate(shape)) else None


def _rank(v: Value) -> int | None:
    """The number of axes; None where it is not known."""
    return None if v.shape is None else len(v.shape)


def _measure(v: Value, axis: int) -> Value:
    """A size, of shape (1,): a constant where it is known."""
    size = (v.shape or ())[axis]
    return constant([size]) if isinstance(size, int) else op.Shape(v, start=axis, end=axis + 1)


def _fill(number: int, dtype: DTypeLike, shape: Sequence[int | str], sizes: Mapping[str, Value]) -> Value:
    """A tensor filled with a number, of a shape in which sizes have names."""
    each = [sizes[n] if isinstance(n, str) else constant([n]) for n in shape]
    known = [int(n.array[0]) for n in each if n.array is not None]
    if len(known) == len(each):
        return constant(np.full(known, number, dtype))
    return op.Expand(constant(np.full((), number, dtype)), op.Concat(*each, axis=0))
