"""The inference model of a training kit: its weights as they are now, and its outputs for rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from onnx import ModelProto, load_model_from_string

from ortpartial.exceptions import DataError, ModelError
from ortpartial.execution import Arrays
from ortpartial.graph import build
from ortpartial.model import load, read_regular
from ortpartial.runtime import Device, Session
from ortpartial.training_info import TrainingSession

from .checks import check_inputs
from .manifest import Manifest, Tensor
from .opset import lower_opset

__all__ = ["fill_model", "place_weights", "predict"]


#: The most bytes that protobuf writes into a message.
_LIMIT = 2**31 - 1


def place_weights(session: TrainingSession) -> tuple[bytes, dict[str, int]]:
    """Write the inference model of a training, for older runtimes to run it, too.

    Parameters
    ----------
    session : TrainingSession
        The training.

    Returns
    -------
    data : bytes
        The file.
    offsets : dict of str to int
        By weight, where its numbers begin in it.

    Raises
    ------
    ModelError
        The model is larger than 2 GB.
    """
    proto, state = lower_opset(session.inference_model()), session.state
    if proto.ByteSize() > _LIMIT:
        raise ModelError("A kit holds models of up to 2 GB, as protobuf does, and this one is larger.")
    data, offsets = proto.SerializeToString(), {}
    for t in proto.graph.initializer:
        if t.name in state and t.raw_data:
            message = t.SerializeToString()  # Its name makes it unique; its numbers come last.
            offsets[t.name] = data.index(message) + len(message) - len(t.raw_data)
    return data, offsets


def fill_model(folder: Path, manifest: Manifest, state: Arrays) -> ModelProto:
    """Read the model of a kit, and give it the weights of a state.

    Parameters
    ----------
    folder : pathlib.Path
        The kit.
    manifest : Manifest
        Where weights stand in the file of the model.
    state : dict of str to numpy.ndarray
        The state.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        The file is damaged, or not that of the manifest.
    """
    data = read_regular(folder / Manifest.MODEL)
    try:
        model = load_model_from_string(data)
    except Exception:  # protobuf has errors of its own.
        raise ModelError(f"{Manifest.MODEL} is damaged: export the kit again.") from None
    weights = {t.name: t for t in model.graph.initializer if t.name in state and t.raw_data}
    offsets = manifest.weights
    if weights.keys() != offsets.keys() or any(
            data[offsets[n] : offsets[n] + state[n].nbytes] != t.raw_data for n, t in weights.items()):
        raise ModelError(f"{Manifest.MODEL} is not that of {Manifest.NAME}: export the kit again.")
    for name, t in weights.items():
        t.raw_data = np.asarray(state[name], state[name].dtype.newbyteorder("<"), order="C").tobytes()
    return model


def predict(model: ModelProto, manifest: Manifest, data: Mapping[str, object], device: Device
            ) -> dict[str, np.ndarray]:
    """Run the model of a kit.

    Parameters
    ----------
    model : onnx.ModelProto
        The model with its weights.
    manifest : Manifest
        The description of the inputs that a step reads, too, by which they are checked.
    data : dict of str to array_like
        Rows by the names of inputs; inputs that only a step reads, such as targets, are left out.
    device : Device
        Where it runs.

    Returns
    -------
    dict of str to numpy.ndarray
        By output.

    Raises
    ------
    DataError
        An input is missing or unknown, or does not fit.
    ModelError
        onnxruntime refuses the model.
    """
    graph = load(model, ties="file")  # With its guards: it may be of a stranger.
    read = {t.name: t for t in manifest.inputs}
    tensors = [read.get(n) or Tensor(n, v.dtype.name, (*("N" if size is None else size for size in v.shape or ()),))
               for n, v in graph.inputs.items()]
    arrays = check_inputs(tensors, data, read)
    for n, v in graph.inputs.items():
        rows = v.shape[0] if v.shape else None
        if isinstance(rows, int) and len(arrays[n]) != rows:
            raise DataError(f"Input {n!r} has {len(arrays[n])} rows, and the model takes {rows} alone: predict so many "
                            f"at a time.")
    return Session(build(graph.inputs, graph.outputs), device=device).run(arrays)
