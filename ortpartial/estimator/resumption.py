"""Resumption: settings described so that they can be stored, compared and rebuilt, and checks of a stored training."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Mapping
from dataclasses import is_dataclass
from hashlib import sha256
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np

from ortpartial.annotations import Entries, Estimator, Settings
from ortpartial.exceptions import CheckpointError
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
from ortpartial.training import Engine, TrainingSpec, spec_of

from .changes import WEIGHTS

__all__ = ["LOOP", "PIECES", "check_arrays", "check_model", "check_settings", "count_operators", "describe",
           "read_settings", "rebuild_piece", "rebuild_setting"]

#: A setting as `describe` writes it: None, a number, a text, or a tuple or dict of them.
Described: TypeAlias = Any

#: Settings that the steps do not depend on, or that are compared by the arrays that follow from them.
_FREE = frozenset({"model", "weights_to_train", "init", "max_iter", "random_state", "device", "engine", "warm_start",
                   "validation_every", "callbacks", "metrics", "distributed", "checkpointing", "timeout", "verbose",
                   "raise_on_divergence", "use_average"})

#: The pieces of the update, which a callback may change, and their names in a `TrainingSpec`.
PIECES = {"learning_rate": "rate", "learning_penalty": "penalty", "gradient_clipping": "gradient_clipping",
           "averaging": "averaging"}

#: What each is, where it is not left out.
_KINDS = {"learning_rate": BaseLearningRate, "learning_penalty": BaseLearningPenalty,
          "gradient_clipping": GradientClipping, "averaging": WeightAverage}

#: Settings of the loop that a callback may change.
LOOP = ("max_iter", "batch_size", "shuffle", "validation_every")


def read_settings(optimizer: Estimator) -> Settings:
    """The settings that a checkpoint tells of.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer.

    Returns
    -------
    dict of str to object
        By name, as they were given.
    """
    params = optimizer.get_params(deep=False)
    settings = {n: getattr(optimizer, n) for n in params if n not in _FREE or n in LOOP}
    return {**settings, **{n: params[n] for n in WEIGHTS}}


def check_settings(settings: Entries, stored: Entries, origin: str) -> None:
    """Check that settings agree with the beginning of a training.

    Parameters
    ----------
    settings : dict of str to object
        The result of `read_settings`.
    stored : dict of str to object
        The settings of then, described.
    origin : str
        Where they are from, for errors.

    Raises
    ------
    CheckpointError
        A setting that the steps depend on differs.
    """
    for name, value in settings.items():
        if name in stored and name not in _FREE and (described := describe(value)) != stored[name]:
            raise CheckpointError(f"{origin} is of a training with {name}={_write(stored[name])}, and this one has "
                                  f"{_write(described)}; give the former setting or choose another folder, or go on "
                                  f"with the new one by load_checkpoint and warm_start=True.")


def count_operators(spec: TrainingSpec) -> dict[str, int]:
    """Count the operators of the model, by which models with weights of the same shapes differ.

    Parameters
    ----------
    spec : TrainingSpec
        The training.

    Returns
    -------
    dict of str to int
        By operator.
    """
    return dict(Counter(node.op_type for node in topological(list(spec.model.outputs.values()))))


def check_model(spec: TrainingSpec, state: Entries, origin: str) -> None:
    """Check that a state is that of the same model, with the same optimizer.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    state : dict of str to object
        The state.
    origin : str
        Where it is from, for errors.

    Raises
    ------
    CheckpointError
        It is not.
    """
    former = state["settings"]["learning_rate"]["class"]
    if former != type(spec.rate).__name__:
        raise CheckpointError(f"{origin} is of a training with {former}, and this one has {type(spec.rate).__name__}.")
    stored, operators = state["operators"], count_operators(spec)
    for n in {**stored, **operators}:
        if stored.get(n) != operators.get(n):
            raise CheckpointError(f"{origin} is of another model, which has {stored.get(n, 0)} of the operator {n}, "
                                  f"and this one has {operators.get(n, 0)}.")


def check_arrays(engine: Engine, stored: Mapping[str, np.ndarray], origin: str) -> None:
    """Check that a state has the weights, statistics and optimizer states of an engine, in their shapes and dtypes.

    Parameters
    ----------
    engine : Engine
        The engine.
    stored : dict of str to numpy.ndarray
        The arrays of the state.
    origin : str
        Where it is from, for errors.

    Raises
    ------
    CheckpointError
        It has others.
    """
    expected = {n: f"{b.dtype} of shape {b.shape}" for n, b in engine.buffers[0].items()}
    names = spec_of(engine.source).names
    described = {n: f"{a.dtype} of shape {a.shape}" for n, a in stored.items()
                 if n not in (names.rate_scale, names.plateau)}
    for n in [*spec_of(engine.source).moving, *expected, *described]:
        if described.get(n) != expected.get(n):
            here = {n: text or "nothing" for n, text in (("there", described.get(n)), ("here", expected.get(n)))}
            raise CheckpointError(f"{origin} is of another training: {n!r} is {here['there']} there, and "
                                  f"{here['here']} here.")


def describe(value: object) -> Described:
    """A setting in a form that can be written and compared: an object by its class and its settings.

    Parameters
    ----------
    value : object
        The setting.

    Returns
    -------
    object
        None, a number, a text, or a tuple or dict of them.

    Examples
    --------
    >>> describe([np.float64(0.5), "w"])
    (0.5, 'w')
    """
    if isinstance(value, Piece) or (is_dataclass(value) and not isinstance(value, type)):
        held = {**list_settings(value), **list_attributes(value)}
        return {"class": type(value).__name__, **{n: describe(v) for n, v in held.items()}}
    if isinstance(value, FunctionType):
        code = sha256(repr(_list_code(value.__code__)).encode()).hexdigest()
        return {"function": value.__qualname__, "code": code, "held": describe(list_held(value))}
    if isinstance(value, MethodType):
        return {"function": value.__qualname__, "code": describe(value.__func__), "held": describe(value.__self__)}
    if isinstance(value, functools.partial):
        return {"function": "partial", "code": describe(value.func), "held": describe([value.args, value.keywords])}
    if isinstance(value, Mapping):
        return {str(n): describe(v) for n, v in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(describe(v) for v in value)
    if isinstance(value, np.ndarray):
        return describe(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    name = getattr(value, "__qualname__", type(value).__name__)
    is_foreign = isinstance(value, type | ModuleType) or type(value).__module__.startswith("ortpartial.")
    attributes = {} if is_foreign else list_attributes(value)
    return {"function": name, "code": "", "held": describe(attributes)} if attributes else name


def _list_code(code: CodeType) -> tuple[object, ...]:
    """The content of code, whatever file and line it stands in."""
    constants = tuple(_list_code(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def rebuild_setting(described: Described, former: Any, origin: str) -> Any:
    """The setting that was described, in place of a former setting.

    Parameters
    ----------
    described : object
        The result of `describe`.
    former : object
        The setting of now.
    origin : str
        The origin of the description, for errors.

    Returns
    -------
    object

    Raises
    ------
    CheckpointError
        It is code, or of a class that is not defined.
    """
    if described == describe(former):
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
    settings = {n: rebuild_setting(v, getattr(former, n, None), origin) for n, v in names.items()}
    if kind is type(former) and "__dataclass_params__" not in vars(kind):
        return replace_settings(former, **settings)
    known = inspect.signature(kind).parameters
    return kind(**{n: v for n, v in settings.items() if n in known})


def rebuild_piece(name: str, described: Described, former: Any, origin: str) -> Any:
    """The piece of the update that was described.

    Parameters
    ----------
    name : str
        A name of `PIECES`.
    described, former, origin : object
        As for `rebuild_setting`.

    Returns
    -------
    object

    Raises
    ------
    CheckpointError
        It is none.
    """
    try:
        piece = rebuild_setting(described, former, origin)
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


def _write(described: Described) -> str:
    """A described setting as Python code."""
    if not isinstance(described, Mapping):
        return repr(described)
    settings = ", ".join(f"{n}={_write(v)}" for n, v in described.items() if n != "class")
    return f"{described.get('class', 'dict')}({settings})"
