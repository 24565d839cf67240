"""States of modules: weights by name, files that hold all that a training goes on from, and ONNX files as both."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, TensorProto
from onnx.numpy_helper import from_array, to_array

from ortpartial.annotations import Data, Json, Settings
from ortpartial.exceptions import CheckpointError, ModelError, ModelWarning, SettingError
from ortpartial.execution import encode, parse_state, read_checkpoint, write_checkpoint
from ortpartial.model import check_finite, find_aliases, read, write
from ortpartial.texts import parse_json

from .compilation import Program
from .initializers import Constant
from .parameter import Parameter, find_holder
from .parts import Part, list_attributes
from .trace import ITERATION, SEED

__all__ = ["IncompatibleKeys", "is_held", "load", "load_state_dict", "load_states", "save", "save_states", "state_dict"]

#: What a file of states is called, and the keys of the metadata of an ONNX file: what its initializers are, and the
#: state of the user.
_KIND, _NAMES, _STATE = "state file", "ortpartial.module", "ortpartial.state"

#: A buffer of BatchNorm that nothing reads unless its momentum is None; exports and former versions of torch lack it.
_COUNTER = "num_batches_tracked"

#: The element types of parameters, where a file does not say which initializers they are.
_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


class IncompatibleKeys(NamedTuple):
    """Keys that did not fit when a state dict was loaded.

    Parameters
    ----------
    missing_keys : list of str
        The parameters that the state dict does not have.
    unexpected_keys : list of str
        Further names in it.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


def state_dict(module: Part) -> dict[str, np.ndarray]:
    """Copy the parameters and the buffers of a module.

    Parameters
    ----------
    module : Module
        The module, or a part of it.

    Returns
    -------
    dict of str to numpy.ndarray
        By name; a parameter that two layers share stands there under each of its names.
    """
    return {n: p.numpy() for n, p in _walk(module, ())}


def load_state_dict(module: Part, state: Mapping[str, Data], strict: bool) -> IncompatibleKeys:
    """Overwrite parameters and buffers of a module.

    Parameters
    ----------
    module : Module
        The module, or a part of it.
    state : dict of str to array_like
        By name: arrays, or tensors of torch.
    strict : bool
        Whether missing and unexpected names are errors.

    Returns
    -------
    IncompatibleKeys

    Raises
    ------
    ModelError
        Something does not fit, and nothing is changed.
    """
    if not isinstance(state, Mapping):
        raise ModelError(f"A state dict holds arrays by name, and this is a {type(state).__name__}.")
    own = dict(_walk(module, ()))
    arrays = {n: _to_array(a, n) for n, a in state.items()}
    problems = _compare(own, arrays)
    kinds = ("missing", "unexpected", "mismatched") if strict else ("mismatched",)
    if listed := [text for kind in kinds for text in problems[kind].values()]:
        is_early = not is_held(module) and problems["unexpected"]
        hint = "; compile the module first, if layers take their sizes from its inputs" if is_early else ""
        raise ModelError(f"The state does not fit {type(module).__name__}: {_shorten(listed)}{hint}.")
    for n in own.keys() & arrays.keys():
        own[n].set(arrays[n])
    return IncompatibleKeys(list(problems["missing"]), list(problems["unexpected"]))


def save_states(program: Program, path: str | os.PathLike[str], aux_states: Mapping[str, object] | None) -> None:
    """Write the whole state of a module to a file.

    Parameters
    ----------
    program : Program
        The module, compiled.
    path : path
        The file.
    aux_states : dict of str to object, optional
        Further contents of the file.

    Raises
    ------
    ModelError
        The module is not compiled.
    ConvergenceError
        The state is not finite.
    SettingError
        `aux_states` hold something else than arrays, numbers, texts, and lists and dicts of them.
    OSError
        The file cannot be written.
    """
    module, states = program.module, program.states()
    _check_finite(module, states)
    parameters = dict(module.named_parameters(buffers=True))
    write_checkpoint({"module": type(module).__name__,
                      "parameters": {n: states[n] for n in parameters},
                      "states": {n: a for n, a in states.items() if n not in parameters},
                      "lengths": _list_lengths(module),
                      "aux_states": _check_dict(aux_states, "aux_states")}, path, _KIND)


def load_states(program: Program, path: str | os.PathLike[str]) -> Settings:
    """Go back to the state in a file.

    Parameters
    ----------
    program : Program
        The module, compiled.
    path : path
        A file of `save_states`.

    Returns
    -------
    dict of str to object
        The auxiliary states.

    Raises
    ------
    ModelError
        The module is not compiled.
    CheckpointError
        The file is damaged, no state file, or that of another architecture; nothing is changed.
    OSError
        It cannot be read.
    """
    module, stored = program.module, read_checkpoint(path, _KIND)
    own = dict(module.named_parameters(buffers=True))
    problems = _compare(own, stored["parameters"])
    problems["converted"] = {n: f"{n!r} is {a.dtype}, where {own[n].dtype} was expected"
                             for n, a in stored["parameters"].items() if n in own and a.dtype != own[n].dtype}
    if listed := [text for part in problems.values() for text in part.values()]:
        raise CheckpointError(f"{str(path)!r} is the state of another {stored['module']}, and does not fit this "
                              f"{type(module).__name__}: {_shorten(listed)}.")
    program.restore({**stored["parameters"], **stored["states"]})
    program.plan(stored["lengths"])
    return dict(stored["aux_states"])


def save(program: Program, path: str | os.PathLike[str], state: Mapping[str, object] | None) -> None:
    """Write a module to an ONNX file that holds its training.

    Parameters
    ----------
    program : Program
        The module, compiled.
    path : path
        The file.
    state : dict of str to object, optional
        Further contents of the file.

    Raises
    ------
    ModelError
        The module is not compiled.
    ConvergenceError
        The state is not finite.
    SettingError
        `state` holds something else than arrays, numbers, texts, and lists and dicts of them.
    OSError
        The file cannot be written.
    """
    module, arrays = program.module, dict[str, np.ndarray]()
    program.complete()
    states = program.states()
    _check_finite(module, states)
    text = json.dumps(encode(_check_dict(state, "state"), "state", arrays), allow_nan=False)
    parameters = [n for n, _ in module.named_parameters(buffers=True)]
    names = {"parameters": parameters, "states": [n for n in states if n not in parameters],
             "lengths": _list_lengths(module)}
    proto = program.write_model()
    info = proto.training_info[0]
    stored = {t.name for graph in (proto.graph, info.algorithm) for t in graph.initializer}
    # What the next step goes on from, and what no graph reads, stand where stock runtimes do not look.
    info.algorithm.initializer.extend(from_array(states[n], n)
                                      for n in names["states"] if n not in stored)
    info.initialization.initializer.extend(from_array(a, n) for n, a in arrays.items())
    for key, value in ((_NAMES, json.dumps(names)), (_STATE, text)):
        proto.metadata_props.add(key=key, value=value)
    write(proto, path)


def save_model(program: Program, path: str | os.PathLike[str], state: Mapping[str, object] | None) -> None:
    """Write a module to an ONNX file without its training.

    Parameters
    ----------
    program, path : object
        As for `save`.
    state : dict of str to object, optional
        None: it belongs to a training.

    Raises
    ------
    ModelError, ConvergenceError, OSError
        As for `save`.
    SettingError
        There is a `state`.
    """
    if state is not None:
        raise SettingError("state stands in the training of a file, which with_training=False leaves out; leave state "
                           "out, too.")
    program.complete()
    _check_finite(program.module, program.states())
    write(program.write_model(training=False), path)


def load(module: Part, path: str | os.PathLike[str], program: Program | None) -> Settings | None:
    """Overwrite parameters and buffers of a module by initializers of an ONNX file, as far as they fit.

    Parameters
    ----------
    module : Module
        The module, compiled, or a part of it.
    path : path
        A file of `save`, or another ONNX file with initializers of these names.
    program : Program or None
        The module, compiled, if its training goes on where it was.

    Returns
    -------
    dict of str to object, or None
        The `state` that `save` was given; None without `program`.

    Raises
    ------
    ModelError
        There is no such file, or it is no ONNX model.

    Warns
    -----
    ModelWarning
        For each parameter that is missing, unexpected or mismatched.
    """
    own = dict(_walk(module, ()))
    proto = _read(path)
    listed = next((parse_json(p.value) for p in proto.metadata_props if p.key == _NAMES), None)
    parameters, states = _read_tensors(proto, listed) if listed else (_find_parameters(proto, own), {})
    problems = _compare(own, parameters)
    for problem in (text for part in problems.values() for text in part.values()):
        warnings.warn(f"{str(path)!r} does not fit {type(module).__name__}: {problem}.", ModelWarning, stacklevel=3)
    for n in own.keys() & parameters.keys() - problems["mismatched"].keys():
        own[n].set(parameters[n])
    if program is None:
        return None
    if listed:
        now = program.states()
        kept = [SEED, ITERATION, *(n for n, _ in module.named_parameters(buffers=True))]
        program.restore({**{n: now[n] for n in kept}, **states})
        program.plan(listed["lengths"])
    return _read_state(proto)


def _read(path: str | os.PathLike[str]) -> ModelProto:
    """The model in a file."""
    if not isinstance(path, (str, os.PathLike)):
        raise ModelError(f"load takes the path of an ONNX file, not {type(path).__name__}.")
    try:
        return read(path)
    except ModelError:
        if Path(path).suffix == ".safetensors" and Path(path).is_file():
            raise ModelError(f"{str(path)!r} is no ONNX model; load_states reads what save_states writes.") from None
        raise


def _read_tensors(proto: ModelProto, listed: Json) -> list[dict[str, np.ndarray]]:
    """Parameters, buffers and the further state of a training in a file, as they are listed there."""
    graphs = (proto.graph, *(info.algorithm for info in proto.training_info))
    tensors = {t.name: t for graph in graphs for t in graph.initializer}
    return [{n: to_array(tensors[n]) for n in listed[kind] if n in tensors} for kind in ("parameters", "states")]


def _find_parameters(proto: ModelProto, own: Collection[str]) -> dict[str, np.ndarray]:
    """Parameters and buffers in a file that does not list them.

    They are the initializers of the inference graph that a training changes, or, without a training, all of
    floating-point numbers but for single numbers.
    """
    if proto.training_info:
        changed = {p.key for t in proto.training_info for p in (*t.update_binding, *t.initialization_binding)}
        return {t.name: to_array(t) for t in proto.graph.initializer if t.name in changed}
    readers = {x: node.op_type for node in proto.graph.node for x in node.input}
    names = {a.initializer: alias for alias, a in find_aliases(proto.graph).items()}
    parameters = {}
    for t in proto.graph.initializer:
        if t.name in own or (t.data_type in _FLOATS and t.dims):
            # torch's exporters transpose the weight of a Linear for a MatMul, and give it another name.
            is_transposed = t.name in names and readers.get(t.name) == "MatMul"
            parameters[names.get(t.name, t.name)] = to_array(t).T if is_transposed else to_array(t)
    return parameters


def _read_state(proto: ModelProto) -> Settings:
    """The state of the user in a file."""
    text = next((p.value for p in proto.metadata_props if p.key == _STATE), "{}")
    tensors = (t for info in proto.training_info for t in info.initialization.initializer)
    arrays = {t.name: to_array(t) for t in tensors if t.name.startswith("state/")}
    return parse_state(text, arrays, "The state in the model")


def is_held(module: Part) -> bool:
    """Whether a program holds the numbers of a module, or of a part of it."""
    return any(find_holder(p) is not None for _, p in _walk(module, ()))


def _walk(module: Part, outer: Sequence[Part], prefix: str = "") -> Iterator[tuple[str, Parameter]]:
    """Parameters and buffers under all of their names, as torch lists them."""
    for n, p in list_attributes(module, Parameter):
        yield f"{prefix}{n}", p
    for n, child in list_attributes(module, Part):
        if not any(child is m for m in (*outer, module)):
            yield from _walk(child, (*outer, module), f"{prefix}{n}.")


def _list_lengths(module: Part) -> dict[str, int]:
    """The numbers of batches that schedules last as long as, by optimizer."""
    lengths = {n: optimizer.planned_batches for n, optimizer in module.named_optimizers()}
    return {n: batches for n, batches in lengths.items() if batches is not None}


def _compare(own: Mapping[str, Parameter], arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, str]]:
    """Missing, unexpected and mismatched arrays, by kind and name."""
    first = {id(p): n for n, p in reversed(list(own.items()))}  # One that layers share has several names.
    present = {id(own[n]) for n in arrays if n in own}
    return {
        "missing": {n: f"{n!r} is missing" for n, p in own.items()
                    if id(p) not in present and n == first[id(p)] and not n.endswith(_COUNTER)},
        "unexpected": {n: f"{n!r} is unexpected" for n in arrays if n not in own and not n.endswith(_COUNTER)},
        "mismatched": {n: f"{n!r} has the shape {a.shape}, where {own[n].shape} was expected"
                       for n, a in arrays.items() if n in own and a.shape != own[n].shape},
    }


def _shorten(problems: Sequence[str]) -> str:
    """The first problems of a list."""
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more


def _check_finite(module: Part, states: Mapping[str, np.ndarray]) -> None:
    """Check that the training has not failed; infinite constants, such as a mask, are meant."""
    first = dict.fromkeys(states, np.zeros(()))
    for n, p in module.named_parameters(buffers=True):
        if isinstance(p.initializer, Constant):
            first[n] = np.asarray(p.initializer.value)
    check_finite(states, first, "to_onnx")


def _check_dict(state: Mapping[str, object] | None, name: str) -> Mapping[str, object]:
    """The state of the user, empty by default."""
    if state is not None and not isinstance(state, Mapping):
        raise SettingError(f"{name} is a dict by name, such as {{'epoch': 3}}, not a {type(state).__name__}.")
    return state or {}


def _to_array(numbers: Data, name: str) -> np.ndarray:
    """An array, or the numbers of a tensor of torch; numpy has none of the small floats of torch 2."""
    if hasattr(numbers, "detach"):
        numbers = numbers.detach().cpu()
        is_small = numbers.is_floating_point() and numbers.element_size() < 4
        numbers = (numbers.float() if is_small else numbers).numpy()
    try:
        array = np.asarray(numbers)
    except ValueError as e:
        raise ModelError(f"{name!r} is no array of numbers: {e}") from None
    if array.dtype.kind not in "biufV":
        raise ModelError(f"{name!r} is {array.dtype}, where an array of numbers was expected.")
    return array
