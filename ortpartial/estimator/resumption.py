"""Resumption: the whole state of a training as a dict, and a training that goes on from it."""

from __future__ import annotations

import functools
import inspect
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from hashlib import sha256
from threading import get_ident
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpartial.exceptions import CheckpointError, SettingError
from ortpartial.graph import topological
from ortpartial.learning import (
    BaseLearningPenalty,
    BaseLearningRate,
    GradientClipping,
    Piece,
    Schedule,
    WeightAverage,
    list_attributes,
    list_held,
    list_settings,
    replace_settings,
)
from ortpartial.logs import logger
from ortpartial.training import Engine, TrainingSpec, spec_of

from .changes import WEIGHTS, change_settings, keep_learned, note_pieces
from .checkpoint import find_checkpoint
from .checkpoint_form import BITS, check_form
from .fit_loop import Place
from .params import PROGRESS
from .tasks import get_states

if TYPE_CHECKING:
    from .optimizer import OrtGradientForwardBackwardOptimizer as Optimizer

__all__ = ["borrow_state", "note_settings", "restore_fit", "restore_state"]

#: Settings that the steps do not depend on, or that are compared by the arrays that follow from them.
_FREE = frozenset({"model", "weights_to_train", "init", "max_iter", "random_state", "device", "engine", "warm_start",
                   "validation_every", "callbacks", "distributed", "checkpointing", "timeout", "verbose", "exc",
                   "use_average"})

#: The pieces of the update, which a callback may change, and their names in a `TrainingSpec`.
_PIECES = {"learning_rate": "rate", "learning_penalty": "penalty", "gradient_clipping": "gradient_clipping",
           "averaging": "averaging"}

#: What each is, where it is not left out.
_KINDS = {"learning_rate": BaseLearningRate, "learning_penalty": BaseLearningPenalty,
          "gradient_clipping": GradientClipping, "averaging": WeightAverage}

#: Settings of the loop that a callback may change.
_LOOP = ("max_iter", "batch_size", "shuffle", "validation_every")


@contextmanager
def borrow_state(optimizer: Optimizer) -> Iterator[dict[str, Any]]:
    """A context in which a training stands still, with all that its next steps depend on, and its history.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer, which may be training.

    Yields
    ------
    dict of str to object
        As `write_checkpoint` takes it. Its arrays are those of the training, and not copies.

    Raises
    ------
    SettingError
        Another thread is training.
    """
    if optimizer._loop.thread not in (None, get_ident()):
        raise SettingError("A checkpoint is written between two steps: in a callback, not in another thread.")
    now = _read_settings(optimizer)
    start = {**now, **optimizer._origin}
    with optimizer._engine.turn.lock:
        yield {
            "settings": {n: _describe(v) for n, v in start.items()},
            "changes": {n: _describe(v) for n, v in now.items() if v != start[n]},
            "operators": _count_operators(optimizer._spec),
            "engine": optimizer._engine.snapshot(copy=False),
            "learned": dict(optimizer._learned),
            "class_weights": dict(optimizer._class_weights),
            "batches": optimizer._batches,
            "rate_starts": dict(optimizer._spec.rate_starts),
            "average_start": optimizer._spec.average_start,
            "progress": {n: getattr(optimizer, n) for n in PROGRESS if n != "_rng"},
            "random": optimizer._rng.bit_generator.state,
            "place": optimizer._loop.place.state,
            "callbacks": get_states(optimizer.callbacks),
        }


def note_settings(optimizer: Optimizer) -> None:
    """Note the settings with which a training begins, that callbacks may change.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer.
    """
    own, loop = vars(optimizer), vars(optimizer._loop.settings)  # Attributes take calls in Python, in every fit.
    optimizer._origin = {**{n: own[n] for n in _PIECES}, **{n: loop[n] for n in _LOOP},
                         **{n: optimizer._arguments[n] for n in WEIGHTS}}


def _read_settings(optimizer: Optimizer) -> dict[str, Any]:
    """The settings that a state tells of, by name."""
    params = optimizer.get_params(deep=False)
    settings = {n: getattr(optimizer, n) for n in params if n not in _FREE or n in _LOOP}
    return {**settings, **{n: params[n] for n in WEIGHTS}}


def restore_fit(optimizer: Optimizer, path: str | os.PathLike[str]) -> tuple[Place, list[Any]] | None:
    """Let an optimizer go on with a fit that was cut off, from a file or the newest one in a folder that is whole.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        An optimizer with the settings with which the fit began; `max_iter` may be another one.
    path : path
        A file, or a folder, which need not be there.

    Returns
    -------
    tuple of Place and list, or None
        The place of the fit, and the states of callbacks; None where the folder holds no checkpoint.

    Raises
    ------
    SettingError
        The path is none.
    CheckpointError
        There is none that is whole, or it is that of another training.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise SettingError(f"resume is the folder of a Checkpoint, or a file of it, not {path!r}.")
    optimizer._engine.connect()
    stored = optimizer._engine.broadcast(find_checkpoint(path) if optimizer._engine.is_first else None)
    if stored is None:
        return None
    file, state = stored
    origin, max_iter = f"The checkpoint {str(file)!r}", optimizer.max_iter
    check_form(state, origin)
    _check_settings(optimizer, state["settings"], origin)
    restore_state(optimizer, state, origin)
    if max_iter != state["settings"]["max_iter"]:
        optimizer._batches = 0  # The training has another length.
    logger.info("the training goes on from %s", file)
    return Place.from_state(state["place"]), state["callbacks"]


def restore_state(optimizer: Optimizer, state: Mapping[str, Any], origin: str) -> None:
    """Let an optimizer go on from a state, with the settings that callbacks have changed until then.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        An optimizer of the same model, weights and states, which is not training.
    state : dict of str to object
        What `borrow_state` yielded.
    origin : str
        Where it is from, for errors.

    Raises
    ------
    CheckpointError
        It is the state of another training; the optimizer goes on with its own.
    """
    check_form(state, origin)
    _check_model(optimizer._spec, state, origin)
    rng = _find_generator(optimizer._rng, state["random"]["bit_generator"], origin)
    note_settings(optimizer)
    weights = {n: _rebuild(state["changes"][n], None, origin) for n in WEIGHTS if n in state["changes"]}
    settings = {**state["settings"], **state["changes"]}
    update = {n: _rebuild_piece(n, settings[n], getattr(optimizer, n), origin) for n in _PIECES}
    starts = {"rate_starts": state["rate_starts"], "average_start": state["average_start"]}
    former, class_weights = optimizer._spec, optimizer._class_weights
    try:
        change_settings(optimizer, weights)
        former = optimizer._spec
        optimizer._class_weights = state["class_weights"]
        _adopt(optimizer, replace(former, **{_PIECES[n]: piece for n, piece in update.items()}, **starts,
                                  batches=state["batches"], losses=optimizer._resolve_losses(former.model)))
        _check_arrays(optimizer._engine, state["engine"]["arrays"], origin)
    except Exception as e:
        optimizer._class_weights = class_weights
        _adopt(optimizer, former)
        change_settings(optimizer, {n: optimizer._origin[n] for n in weights})
        if isinstance(e, CheckpointError | MemoryError):
            raise
        raise CheckpointError(f"{origin} is damaged, or that of another training: {e}") from e
    _set_pieces(optimizer, **update)
    note_pieces(optimizer)
    optimizer._batches = state["batches"]
    if state["learned"] or optimizer._learned:
        keep_learned(optimizer, {**optimizer._first, **state["learned"]})
        _adopt(optimizer, replace(optimizer._spec, **starts))
    with optimizer._engine.turn.lock:
        optimizer._parts.restore(state["engine"])
        rng.bit_generator.state = state["random"]
        for name, value in {**state["progress"], "_rng": rng}.items():
            setattr(optimizer, name, value)
    for name in state["changes"].keys() & set(_LOOP):
        setattr(optimizer, name, state["changes"][name])


def _check_settings(optimizer: Optimizer, stored: Mapping[str, Any], origin: str) -> None:
    """Check that the settings of an optimizer are those with which a training began."""
    for name, value in _read_settings(optimizer).items():
        if name in stored and name not in _FREE and (described := _describe(value)) != stored[name]:
            raise CheckpointError(f"{origin} is of a training with {name}={_write(stored[name])}, and this one has "
                                  f"{_write(described)}; give the former setting or choose another folder, or go on "
                                  f"with the new one by load_checkpoint and warm_start=True.")


def _adopt(optimizer: Optimizer, spec: TrainingSpec) -> None:
    """Compose the steps anew if they are others."""
    former = optimizer._spec
    compared = (*_PIECES.values(), "rate_starts", "average_start", "batches", "losses")
    if any(getattr(spec, n) != getattr(former, n) for n in compared):
        optimizer._parts.adopt(spec)


def _count_operators(spec: TrainingSpec) -> dict[str, int]:
    """The operators of the model, by which models with weights of the same shapes differ."""
    return dict(Counter(node.op_type for node in topological(list(spec.model.outputs.values()))))


def _check_model(spec: TrainingSpec, state: Mapping[str, Any], origin: str) -> None:
    """Check that a state is that of the same model, with the same optimizer."""
    former = state["settings"]["learning_rate"]["class"]
    if former != type(spec.rate).__name__:
        raise CheckpointError(f"{origin} is of a training with {former}, and this one has {type(spec.rate).__name__}.")
    stored, operators = state["operators"], _count_operators(spec)
    for n in {**stored, **operators}:
        if stored.get(n) != operators.get(n):
            raise CheckpointError(f"{origin} is of another model, which has {stored.get(n, 0)} of the operator {n}, "
                                  f"and this one has {operators.get(n, 0)}.")


def _check_arrays(engine: Engine, stored: Mapping[str, np.ndarray], origin: str) -> None:
    """Check that a state has the weights, statistics and optimizer states of an engine, in their shapes and dtypes."""
    expected = {n: f"{b.dtype} of shape {b.shape}" for n, b in engine.sides[0].items()}
    names = spec_of(engine.source).names
    described = {n: f"{a.dtype} of shape {a.shape}" for n, a in stored.items()
                 if n not in (names.rate_scale, names.plateau)}
    for n in [*spec_of(engine.source).moving, *expected, *described]:
        if described.get(n) != expected.get(n):
            here = {n: text or "nothing" for n, text in (("there", described.get(n)), ("here", expected.get(n)))}
            raise CheckpointError(f"{origin} is of another training: {n!r} is {here['there']} there, and "
                                  f"{here['here']} here.")


def _set_pieces(optimizer: Optimizer, **pieces: Any) -> None:
    """Set the pieces of the update that are others."""
    for name, piece in pieces.items():
        if piece != getattr(optimizer, name):
            vars(optimizer)[name] = optimizer._arguments[name] = piece


def _find_generator(rng: np.random.Generator, bits: str, origin: str) -> np.random.Generator:
    """A generator that draws from a source of this name: the one that was given, where it does."""
    if bits == type(rng.bit_generator).__name__:
        return rng
    if bits not in BITS:
        raise CheckpointError(f"{origin} is of a training whose random_state draws from {bits}; give such a Generator.")
    return np.random.Generator(getattr(np.random, bits)())


def _describe(value: Any) -> Any:
    """A setting in a form that can be written and compared: an object by its class and its settings."""
    if isinstance(value, Piece) or (is_dataclass(value) and not isinstance(value, type)):
        held = {**list_settings(value), **list_attributes(value)}
        return {"class": type(value).__name__, **{n: _describe(v) for n, v in held.items()}}
    if isinstance(value, FunctionType):
        code = sha256(repr(_list_code(value.__code__)).encode()).hexdigest()
        return {"function": value.__qualname__, "code": code, "held": _describe(list_held(value))}
    if isinstance(value, MethodType):
        return {"function": value.__qualname__, "code": _describe(value.__func__), "held": _describe(value.__self__)}
    if isinstance(value, functools.partial):
        return {"function": "partial", "code": _describe(value.func), "held": _describe([value.args, value.keywords])}
    if isinstance(value, Mapping):
        return {str(n): _describe(v) for n, v in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_describe(v) for v in value)
    if isinstance(value, np.ndarray):
        return _describe(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    name = getattr(value, "__qualname__", type(value).__name__)
    is_foreign = isinstance(value, type | ModuleType) or type(value).__module__.startswith("ortpartial.")
    attributes = {} if is_foreign else list_attributes(value)
    return {"function": name, "code": "", "held": _describe(attributes)} if attributes else name


def _list_code(code: CodeType) -> tuple[Any, ...]:
    """The content of code, whatever file and line it stands in."""
    constants = tuple(_list_code(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def _rebuild(described: Any, former: Any, origin: str) -> Any:
    """The setting that was described, in place of a former one."""
    if described == _describe(former):
        return former
    if isinstance(former, np.ndarray):
        return np.array(described, former.dtype)
    if isinstance(described, Mapping) and "function" in described:
        raise CheckpointError(f"{origin} is of a training with another {described['function']}, which is code; give "
                              f"the former one.")
    if not isinstance(described, Mapping) or "class" not in described:
        return described
    names = dict(described)
    kind = _find_class(names.pop("class"), type(former), origin)
    settings = {n: _rebuild(v, getattr(former, n, None), origin) for n, v in names.items()}
    if kind is type(former) and "__dataclass_params__" not in vars(kind):
        return replace_settings(former, **settings)
    known = inspect.signature(kind).parameters
    return kind(**{n: v for n, v in settings.items() if n in known})


def _rebuild_piece(name: str, described: Any, former: Any, origin: str) -> Any:
    """The piece of the update that was described."""
    try:
        piece = _rebuild(described, former, origin)
    except (AttributeError, TypeError, ValueError) as e:
        if isinstance(e, CheckpointError):
            raise
        raise CheckpointError(f"{origin} is damaged: its {name} is none ({e}).") from None
    if not isinstance(piece, _KINDS[name]) and (piece is not None or name in ("learning_rate", "learning_penalty")):
        raise CheckpointError(f"{origin} is damaged: its {name} is {_write(described)}.")
    return piece


def _find_class(name: str, former: type, origin: str) -> type:
    """The class of an optimizer, a penalty or a schedule by its name: that of a former setting, if it has the name."""
    classes = [former, BaseLearningRate, BaseLearningPenalty, Schedule, GradientClipping, WeightAverage]
    for kind in classes:
        classes += kind.__subclasses__()
    for kind in (classes[0], *classes[:0:-1]):  # In a notebook, the last one of several with the same name.
        if kind.__name__ == name:
            return kind
    raise CheckpointError(f"{origin} has the setting {name}, which is not defined here; define or import it.")


def _write(described: Any) -> str:
    """A described setting as Python code."""
    if not isinstance(described, Mapping):
        return repr(described)
    settings = ", ".join(f"{n}={_write(v)}" for n, v in described.items() if n != "class")
    return f"{described.get('class', 'dict')}({settings})"
