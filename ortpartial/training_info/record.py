"""Record of a stored training: its settings, as JSON in the metadata of the model.

A record is the text of a stranger: it names classes of this library and their settings, never code, and it counts only
as long as the graphs beside it are unchanged.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from ortpartial import learning
from ortpartial.annotations import Entries, Settings
from ortpartial.exceptions import ModelError, OrtPartialError
from ortpartial.learning import Piece, list_settings
from ortpartial.texts import parse_json, printable
from ortpartial.training import TrainingSpec

__all__ = ["StoredTraining", "forget_settings", "read_record", "remember_settings"]

#: The key of the metadata.
_KEY = "ortpartial.training"

#: The format that is written, and the newest that is read.
_FORMAT = 1

#: Characters of the longest record that is read.
_LONGEST = 2**20

_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}

#: By name, the classes that a record may name: classes of the library, none of a user's; a chain is recorded as its
#: settings.
_CLASSES: dict[str, type[Piece]] = {
    n: kind for n, kind in vars(learning).items()
    if isinstance(kind, type) and issubclass(kind, Piece) and not inspect.isabstract(kind)
    and kind not in (learning.FunctionLearningLoss, learning.Accumulation, learning.Chain)}

#: Element types of the arrays that settings may be.
_DTYPES = ("float16", "float32", "float64", "int32", "int64")


@dataclass(frozen=True)
class StoredTraining:
    """A training that a model stores.

    Parameters
    ----------
    model : onnx.ModelProto
        The model without its training.
    settings : dict of str to object
        Arguments of an optimizer: ``weights_to_train``, ``train_mode``, ``learning_loss``, ``learning_rate``,
        ``rate_factors``, ``learning_penalty`` and, of a record, ``gradient_clipping``, ``accumulate``, ``averaging``.
    states : dict of (str, str) to numpy.ndarray
        The states of the weights, by the weight and their own name.
    iteration : int
        Number of batches seen.
    seed : numpy.ndarray of shape (2,), optional
        That of the masks.
    rate_scale : float
        The factor of all step sizes.
    rate_starts : dict of str to int
        By weight, the number of the update after which its states were zero.
    average_start : int
        Number of the update after which averaging began.
    """

    model: ModelProto
    settings: Settings
    states: dict[tuple[str, str], np.ndarray]
    iteration: int
    seed: np.ndarray | None = None
    rate_scale: float = 1.0
    rate_starts: Mapping[str, int] = field(default_factory=dict)
    average_start: int = 0


# -- writing


def remember_settings(proto: ModelProto, spec: TrainingSpec) -> None:
    """Write the settings of a training into the metadata of its model.

    Nothing is written where a setting is code of a user, such as a custom loss.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model with the training, which is changed.
    spec : TrainingSpec
        The training.
    """
    names, own = spec.names, spec.own_loss
    loss: Mapping[str, object] = {"learning_loss": dict(spec.losses)} if own is None else {
        "loss_output_name": next(iter(spec.losses)), "label_names": own.label_names,
        "sample_weight_name": own.row_weights}
    settings = {"weights_to_train": spec.weights, "train_mode": spec.train_mode, **loss,
                "learning_rate": spec.planned_rate, "learning_penalty": spec.penalty,
                "rate_factors": dict(spec.rate_factors) or None, "gradient_clipping": spec.gradient_clipping,
                "accumulate": spec.accumulate, "averaging": spec.planned_averaging}
    try:
        record = {"format": _FORMAT, "graphs": _digest(proto), "settings": {n: _encode(v) for n, v in settings.items()},
                  "states": [[*state, n] for n, state in spec.states.items()],
                  "names": {"iteration": names.iteration, "seed": names.seed, "rate_scale": names.rate_scale},
                  "rate_starts": dict(spec.rate_starts), "average_start": spec.average_start}
        proto.metadata_props.add(key=_KEY, value=json.dumps(record))
    except TypeError:
        return


def _encode(value: object) -> object:
    """A setting as JSON; TypeError where it is none of the library."""
    if isinstance(value, Piece):
        if _CLASSES.get(name := type(value).__name__) is not type(value):
            raise TypeError(name)
        return {"class": name, **{n: _encode(v) for n, v in list_settings(value).items()}}
    if isinstance(value, np.ndarray):
        return {"class": "array", "dtype": value.dtype.name, "items": value.tolist()}
    if isinstance(value, Mapping):
        return {"class": "dict", "items": [[_encode(k), _encode(v)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_encode(v) for v in value]
    if isinstance(value, np.generic):
        return _encode(value.item())
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(type(value).__name__)


def forget_settings(proto: ModelProto) -> None:
    """Remove the record of a training from the metadata of a model.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model, which is changed.
    """
    if any(p.key == _KEY for p in proto.metadata_props):
        kept = [p for p in proto.metadata_props if p.key != _KEY]
        del proto.metadata_props[:]
        proto.metadata_props.extend(kept)


def _digest(proto: ModelProto) -> str:
    """The checksum of a step's nodes, interfaces and constants, without the numbers that a training changes."""
    info = proto.training_info[0]
    changing = {b.key for b in (*info.update_binding, *info.initialization_binding)}
    digest = sha256()
    for graph in (proto.graph, info.algorithm):
        for part in (*graph.node, *graph.input, *graph.output):
            digest.update(part.SerializeToString(deterministic=True))
    for binding in info.update_binding:
        digest.update(binding.SerializeToString(deterministic=True))
    for t in info.algorithm.initializer:
        digest.update(b"" if t.name in changing else b"".join(_list_content(t)))
    return digest.hexdigest()


def _list_content(t: TensorProto) -> Iterator[bytes]:
    """The content of a tensor, however it is written."""
    a = numpy_helper.to_array(t)
    yield f"{t.name} {t.data_type} {a.shape}".encode()
    yield repr(a.tolist()).encode() if a.dtype.hasobject else a.tobytes()


# -- reading


def read_record(proto: ModelProto, inference: ModelProto) -> StoredTraining | None:
    """Read the training that the metadata of a model describe.

    Parameters
    ----------
    proto : onnx.ModelProto
        A model with ``training_info`` of a single entry, which was checked.
    inference : onnx.ModelProto
        The model without it.

    Returns
    -------
    StoredTraining or None
        None where there is no record, or the graphs have changed since it was written.

    Raises
    ------
    ModelError
        The record is damaged, or of a newer version.
    """
    text = next((p.value for p in proto.metadata_props if p.key == _KEY), None)
    if text is None:
        return None
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"it is {len(text):,} characters long, and {_LONGEST:,} are read")
        record = parse_json(text)
        if not isinstance(record, dict) or type(record.get("format")) is not int:
            raise ValueError("it has no format")
        if record["format"] > _FORMAT:
            raise ValueError(f"its format is {min(record['format'], 10**9)}, and this version reads up to {_FORMAT}; "
                             f"install a newer one")
        if record["graphs"] != _digest(proto):
            return None
        return _rebuild(record, proto, inference)
    except KeyError as e:
        raise _describe_damage(f"it lacks {e.args[0]!r}") from None
    except RecursionError:
        raise _describe_damage("it is nested too deeply") from None
    except (ArithmeticError, AttributeError, LookupError, OrtPartialError, TypeError, ValueError) as e:
        raise _describe_damage(str(e)) from None


def _describe_damage(reason: str) -> ModelError:
    reason = printable(reason)
    reason = reason if len(reason) < 300 else f"{reason[:200]} ... {reason[-50:]}"
    return ModelError(f"The metadata {_KEY!r} of the model do not describe a training: {reason.rstrip('.')}. Remove "
                      f"them, and the training is recognized by its formulas, if it can be.")


def _rebuild(record: Entries, proto: ModelProto, inference: ModelProto) -> StoredTraining:
    """The training that a record of these graphs describes."""
    settings = _read_settings(record["settings"], inference)
    arrays = {t.name: numpy_helper.to_array(t) for t in proto.training_info[0].algorithm.initializer}
    shapes = {t.name: tuple(t.dims) for t in inference.graph.initializer}
    states: dict[tuple[str, str], np.ndarray] = {}
    for weight, state, name in record["states"]:
        sizes = settings["learning_rate"].state_shapes(shapes[weight])
        if arrays[name].shape != tuple(sizes.get(state, shapes[weight])):
            raise ValueError(f"the state {state!r} of {weight!r} has the shape {arrays[name].shape}")
        states[weight, state] = arrays[name]
    names = record["names"]
    iteration, scale = arrays[names["iteration"]], arrays.get(names["rate_scale"], np.ones(()))
    seed = arrays.get(names["seed"], np.zeros(2, np.int32))
    if not all([iteration.dtype == np.int64, iteration.shape == (), scale.shape == (), seed.dtype == np.int32,
                seed.shape == (2,)]) or iteration < 0 or not np.isfinite(scale):
        raise ValueError("iteration, seed or scale of the step sizes are no such numbers")
    starts, start = record["rate_starts"], record["average_start"]
    if not all(type(n) is int and 0 <= n <= iteration for n in (*starts.values(), start)) or starts.keys() - shapes:
        raise ValueError("the updates after which states begin are no such numbers")
    return StoredTraining(inference, settings, states, int(iteration), arrays.get(names["seed"]), float(scale), starts,
                          start)


def _read_settings(record: Entries, inference: ModelProto) -> Settings:
    """The arguments of an optimizer that a record has; with a single output, its loss has no name."""
    settings: Settings = {n: _decode(v) for n, v in record.items()}
    if unknown := settings.keys() - _SETTINGS:
        raise ValueError(f"it has a setting {min(unknown)!r}")
    if losses := settings.get("learning_loss"):
        outputs = {o.name: o.type.tensor_type.elem_type in _FLOATS for o in inference.graph.output}
        if unknown := losses.keys() - outputs:
            raise ValueError(f"it has a loss of {min(unknown)!r}, which is no output")
        if sum(outputs.values()) == 1:
            settings["learning_loss"] = next(iter(losses.values()))
    return settings


#: The arguments that a record may have.
_SETTINGS = frozenset({"weights_to_train", "train_mode", "learning_loss", "learning_rate", "learning_penalty",
                       "rate_factors", "gradient_clipping", "accumulate", "averaging", "loss_output_name",
                       "label_names", "sample_weight_name"})


def _decode(value: object) -> object:
    """A setting from JSON: an object of a class of the library, whose constructor checks its arguments."""
    if isinstance(value, list):
        return [_decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    kind, rest = value["class"], {n: v for n, v in value.items() if n != "class"}
    if kind == "array":
        if rest["dtype"] not in _DTYPES:
            raise ValueError(f"it has an array of {str(rest['dtype'])[:80]!r}")
        return np.array(rest["items"], rest["dtype"])
    if kind == "dict":
        return {k: _decode(v) for k, v in rest["items"]}
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise ValueError(f"{str(kind)[:80]!r} is no class of this library that a record may name")
    return _CLASSES[kind](**{n: _decode(v) for n, v in rest.items()})
