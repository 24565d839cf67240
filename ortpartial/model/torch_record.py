"""The record of a torch module in a model's metadata: its parameters and buffers, ties, and its mode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from onnx import ModelProto

from ortpartial.exceptions import ModelError
from ortpartial.texts import parse_json

__all__ = ["TorchRecord", "note_torch", "read_torch"]

#: The key of the metadata.
_KEY = "ortpartial.torch"

#: The format that is written, and the newest that is read.
_FORMAT = 1


@dataclass(frozen=True)
class TorchRecord:
    """Facts of a torch module that its graph does not say.

    Parameters
    ----------
    parameters : tuple of str
        The initializers that are parameters with ``requires_grad``.
    frozen : tuple of str
        The initializers that are parameters without it.
    buffers : tuple of str
        The initializers that are buffers, running statistics included.
    constants : tuple of str
        The initializers that the exporter wrote for numbers of the program.
    ties : dict of str to str
        Other names of parameters and buffers that are used twice, by the names of the initializers.
    training : bool
        The mode of the module.
    per_instance : tuple of str
        The running statistics that each row updates by itself, as in InstanceNorm.
    cumulative : tuple of str
        The running statistics that are the mean of all batches, as with a momentum of None.
    """

    parameters: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    ties: Mapping[str, str] = field(default_factory=dict)
    training: bool = False
    per_instance: tuple[str, ...] = ()
    cumulative: tuple[str, ...] = ()

    @property
    def untrained(self) -> dict[str, str]:
        """By initializer that is not trained by default, the reason."""
        return {**dict.fromkeys(self.frozen, "requires_grad is False in torch"),
                **dict.fromkeys(self.buffers, "buffer of a torch module, trained by name only"),
                **dict.fromkeys(self.constants, "number of the program, trained by name only")}


def note_torch(proto: ModelProto, record: TorchRecord) -> None:
    """Write the record of a torch module into a model's metadata.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model, which is written to.
    record : TorchRecord
        The record, which replaces a former record.

    Examples
    --------
    >>> proto = ModelProto()
    >>> note_torch(proto, TorchRecord(("fc.weight",), training=True))
    >>> read_torch(proto).parameters
    ('fc.weight',)
    """
    kept = [p for p in proto.metadata_props if p.key != _KEY]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    proto.metadata_props.add(key=_KEY, value=json.dumps({"format": _FORMAT, **asdict(record)}))


def read_torch(proto: ModelProto) -> TorchRecord | None:
    """The record of the torch module that a model was exported from, if written by `ortpartial.torch.export`.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.

    Returns
    -------
    TorchRecord or None

    Raises
    ------
    ModelError
        The record is of a newer format or damaged.

    Examples
    --------
    >>> read_torch(ModelProto()) is None
    True
    """
    text = next((p.value for p in proto.metadata_props if p.key == _KEY), None)
    if text is None:
        return None
    try:
        entries = parse_json(text)
        version = int(entries.pop("format"))
        if version <= _FORMAT:
            return TorchRecord(**{n: _read_entry(n, entry) for n, entry in entries.items()})
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise ModelError(f"The model's record of its torch module, {_KEY!r} in its metadata, is damaged ({e}); export "
                         f"the module again, or delete the entry.") from None
    raise ModelError(f"The model's torch module is recorded in format {version}, and this version of ortpartial reads "
                     f"formats up to {_FORMAT}; update it.")


def _read_entry(name: str, entry: object) -> Any:
    """An entry of the record, in the type of its field: the model may be of a stranger."""
    if name == "training":
        is_right = isinstance(entry, bool)
    elif name == "ties":
        is_right = isinstance(entry, dict) and all(isinstance(n, str) for n in entry.values())
    else:
        is_right = isinstance(entry, list) and all(isinstance(n, str) for n in entry)
    if not is_right:
        raise ValueError(f"{name} is {entry!r:.60}")
    return tuple(entry) if isinstance(entry, list) else entry
