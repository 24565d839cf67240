"""The record of an adapter in a model's metadata: its method, and the products that it was added to."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from onnx import ModelProto

from ortpartial.exceptions import ModelError
from ortpartial.texts import parse_json

__all__ = ["Adapter", "Target", "is_base", "note_adapter", "read_adapter"]

#: The key of the metadata.
_KEY = "ortpartial.adapter"

#: The format that is written, and the newest that is read.
_FORMAT = 1


@dataclass(frozen=True)
class Target:
    """A product that an adapter was added to, or a part of its columns.

    Parameters
    ----------
    name : str
        The module in the names of the file, such as ``"model.layers.0.attn.q_proj"``.
    node : str
        The name of the node, or of its first output where it has none.
    kind : str
        Its operator.
    weight : str
        The initializer that it reads.
    inputs, outputs : int
        Features that go in, and that come out.
    start, stop : int
        The columns of the product that are this target, where several projections share a product.
    scale : float
        The factor of the adapter's own product: alpha / rank.
    feedforward : bool
        Whether IA3 scales the input, and not the output.
    weights : dict of str to str
        The adapter's initializers: present among ``"lora_A"``, ``"lora_B"``, ``"magnitude"`` and ``"ia3_l"``.
    module : str, optional
        The name of the module in Hugging Face, of which it may be a part.
    """

    name: str
    node: str
    kind: str
    weight: str
    inputs: int
    outputs: int
    start: int
    stop: int
    scale: float
    feedforward: bool
    weights: Mapping[str, str]
    module: str = ""


@dataclass(frozen=True)
class Adapter:
    """An adapter: small trained weights beside the frozen weights of a model.

    Parameters
    ----------
    method : str
        ``"lora"``, ``"dora"`` or ``"ia3"``.
    rank : int
        The rank of the products A @ B, where a target has no other; 0 for IA3.
    alpha : float
        The numerator of their scale.
    dropout : float
        The share of the inputs that a training drops.
    targets : tuple of Target
        Where it was added.
    ir_version : int
        That of the model before; an adapter needs 4.
    """

    method: str
    rank: int
    alpha: float
    dropout: float
    targets: tuple[Target, ...]
    ir_version: int = 4

    @property
    def weights(self) -> list[str]:
        """The initializers that it trains, in order."""
        return [n for t in self.targets for n in t.weights.values()]


def note_adapter(proto: ModelProto, adapter: Adapter | None) -> None:
    """Write the record of an adapter into a model's metadata, or remove it."""
    kept = [p for p in proto.metadata_props if p.key != _KEY]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    if adapter is not None:
        proto.metadata_props.add(key=_KEY, value=json.dumps({"format": _FORMAT, **asdict(adapter)}))


def is_base(proto: ModelProto, adapter: Adapter) -> bool:
    """Whether a model is a base that `save_adapter` has written: the weights of its adapter are inputs."""
    weights = set(adapter.weights)
    return any(i.name in weights for i in proto.graph.input)


def read_adapter(proto: ModelProto) -> Adapter | None:
    """The record of the adapter that a model holds, if any.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.

    Returns
    -------
    Adapter or None

    Raises
    ------
    ModelError
        The record is of a newer format or damaged, or the model lacks a weight that it names.

    Examples
    --------
    >>> read_adapter(ModelProto()) is None
    True
    """
    text = next((p.value for p in proto.metadata_props if p.key == _KEY), None)
    if text is None:
        return None
    try:
        record = parse_json(text)
        version = int(record.pop("format"))
        _check(version > 0 and isinstance(record["targets"], list), "format", version)
        if version <= _FORMAT:
            record["targets"] = tuple(Target(**t) for t in record["targets"])
            adapter = Adapter(**record)
            _check_types(adapter)
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise ModelError(f"The model's record of its adapter, {_KEY!r} in its metadata, is damaged ({e}); add the "
                         f"adapter to the base again.") from None
    if version > _FORMAT:
        raise ModelError(f"The model's adapter is recorded in format {version}, and this version of ortpartial reads "
                         f"formats up to {_FORMAT}; update it.")
    names = {t.name for t in proto.graph.initializer}
    if missing := [n for n in adapter.weights if n not in names]:
        raise ModelError(f"The model's record of its adapter names the weight {missing[0]!r}, which the model does not "
                         f"have; add the adapter again.")
    return adapter


def _check_types(adapter: Adapter) -> None:
    """Raise an error where an entry is of another type: the model may be of a stranger."""
    _check(isinstance(adapter.method, str), "method", adapter.method)
    for n, low, high in (("rank", 0, 2**31), ("ir_version", 1, 2**31)):
        _check_whole(n, getattr(adapter, n), low, high)
    for n in ("alpha", "dropout"):
        _check_number(n, getattr(adapter, n))
    _check(0 <= adapter.dropout < 1, "dropout", adapter.dropout)
    for target in adapter.targets:
        for n in ("name", "node", "kind", "weight", "module"):
            _check(isinstance(getattr(target, n), str), n, getattr(target, n))
        for n in ("inputs", "outputs", "start", "stop"):
            _check_whole(n, getattr(target, n), 0, 2**62)
        _check(target.start <= target.stop <= target.outputs, "stop", target.stop)
        _check_number("scale", target.scale)
        _check(isinstance(target.feedforward, bool), "feedforward", target.feedforward)
        weights = target.weights
        _check(isinstance(weights, dict) and all(isinstance(n, str) for n in weights.values()), "weights", weights)


def _check_whole(name: str, number: object, low: int, high: int) -> None:
    _check(type(number) is int and low <= number < high, name, number)


def _check_number(name: str, number: object) -> None:
    _check(type(number) in (int, float) and abs(number) < math.inf, name, number)  # type: ignore[arg-type]


def _check(is_right: bool, name: str, entry: object) -> None:
    if not is_right:
        raise ValueError(f"{name} is {entry!r:.60}")
