"""The form of a checkpoint: the content that every door writes, checked before any of it is used."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from ortpartial.annotations import Entries, Json
from ortpartial.exceptions import CheckpointError

from .fit_position import FitPosition
from .shape_policy import ShapePolicy

__all__ = ["check_form", "rebuild_generator"]

#: Whether a part of a state is what it should be; it may raise an error instead, of any kind.
Check = Callable[[Any], bool]

#: Sources of random bits that numpy has.
_BITS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")

#: Counters are 64-bit numbers in a graph, and sums of them have to be.
_MOST = 2**62


def check_form(state: Entries, origin: str, module: str | None = None) -> None:
    """Check that a state has the form that `Loop.capture` returns.

    Parameters
    ----------
    state : dict of str to object
        The state, which may be forged.
    origin : str
        Where it is from, for the error.
    module : str, optional
        The class of the module that goes on; an optimizer does without it.

    Raises
    ------
    CheckpointError
        It is the state of another door; or the message names the part that is wrong.
    """
    if isinstance(state, dict) and (name := state.get("module")) != module:
        there, here = (f"a {n}" if n else "an optimizer" for n in (name, module))
        raise CheckpointError(f"{origin} is of {there}, and this is {here}.")
    for name, check in {**(_MODULE if module else _OPTIMIZER), **_SHARED}.items():
        try:
            is_right = check(state[name])
        except Exception:  # Numpy's generators and others have errors of many kinds.
            is_right = False
        if not is_right:
            raise CheckpointError(f"{origin} is damaged: its {name!r} is not what a training writes.")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_seed(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.int32 and value.shape == (2,)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def _is_anything(value: object) -> bool:
    return True


def _dict_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(isinstance(n, str) and check(v) for n, v in value.items())


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _record(**checks: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(check(value[n]) for n, check in checks.items())


def _is_random(value: Json) -> bool:
    """Whether a source of random bits takes it; sources that numpy lacks are named later."""
    bits = value["bit_generator"]
    if bits in _BITS:
        getattr(np.random, bits)().state = value
    return isinstance(bits, str)


def _is_place(value: Json) -> bool:
    FitPosition.from_state(value)
    return value.keys() == {f.name for f in fields(FitPosition)} and isinstance(value["is_stopped"], bool) and _record(
        epoch=_is_count, batches=_is_count, start=_is_count, rows=_optional(_is_count),
        held_out=_optional(_is_random), order=_optional(_is_random))(value)


def _is_policy(value: Any) -> bool:
    policy = ShapePolicy(*value)
    counts = [*policy.chosen.values(), *policy.counts.values(), policy.frequent]
    return len(value) == 4 and isinstance(policy.first, Hashable) and all(map(_is_count, counts))


#: Parts that every door writes.
_SHARED: Mapping[str, Check] = {
    "engine": lambda value: _record(iteration=_is_count, seed=_is_seed, arrays=_dict_of(_is_array))(value)
    and (value.get("shapes") is None or _is_policy(value["shapes"])),
    "progress": _record(train_losses_=_list_of(_is_number), validation_losses_=_list_of(_is_number),
                        n_iter_=_is_count, history_=_list_of(_dict_of(_is_anything))),
    "random": _is_random,
    "place": _is_place,
    "callbacks": _list_of(_record(**{"class": lambda name: isinstance(name, str), "state": _is_anything})),
}

#: The parts that an optimizer adds.
_OPTIMIZER: Mapping[str, Check] = {
    "settings": _record(learning_rate=_record(**{"class": lambda name: isinstance(name, str)}),
                        **dict.fromkeys(("learning_penalty", "gradient_clipping", "averaging", "max_iter"),
                                        _is_anything)),
    "changes": _dict_of(_is_anything),
    "operators": _dict_of(_is_count),
    "learned": _dict_of(_is_array),
    "class_weights": _dict_of(_is_anything),
    "batches": _optional(_is_count),
    "rate_starts": _dict_of(_is_count),
    "average_start": _is_count,
}

#: The parts that a module adds: by optimizer the planned batches, and the factor of the step sizes.
_MODULE: Mapping[str, Check] = {"batches": _dict_of(_optional(_is_count)), "rate_scale": _is_number}


def rebuild_generator(rng: np.random.Generator, bits: str, origin: str) -> np.random.Generator:
    """A generator that draws from a source of this name: the present generator, where it does.

    Parameters
    ----------
    rng : numpy.random.Generator
        The present generator.
    bits : str
        The class of the source.
    origin : str
        Where the name is from, for errors.

    Returns
    -------
    numpy.random.Generator

    Raises
    ------
    CheckpointError
        numpy has no such source.
    """
    if bits == type(rng.bit_generator).__name__:
        return rng
    if bits not in _BITS:
        raise CheckpointError(f"{origin} is of a training whose random_state draws from {bits}; give such a Generator.")
    return np.random.Generator(getattr(np.random, bits)())
