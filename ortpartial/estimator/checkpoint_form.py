"""The form of a checkpoint: the layout of the state of a training, checked before any of it is used."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields
from typing import Any

import numpy as np

from ortpartial.annotations import Entries, Json
from ortpartial.exceptions import CheckpointError
from ortpartial.execution import FitPosition
from ortpartial.training import ShapePolicy

__all__ = ["BITS", "FORM", "check_form"]

#: Whether a part of a state is what it should be; it may raise an error instead, of any kind.
Check = Callable[[Any], bool]

#: Sources of random bits that numpy has.
BITS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")

#: What `capture_state` yields; a former one has no number.
FORM = 2

#: Counters are 64-bit numbers in a graph, and sums of them have to be.
_MOST = 2**62


def check_form(state: Entries, origin: str) -> None:
    """Check that a state has the form that `capture_state` yields.

    Parameters
    ----------
    state : dict of str to object
        The state, which may be forged.
    origin : str
        Where it is from, for the error.

    Raises
    ------
    CheckpointError
        The message names the part that is wrong.
    """
    for name, check in _STATE.items():
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
    if bits in BITS:
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


_STATE: dict[str, Check] = {
    "settings": _record(learning_rate=_record(**{"class": lambda name: isinstance(name, str)}),
                        **dict.fromkeys(("learning_penalty", "gradient_clipping", "averaging", "max_iter"),
                                        _is_anything)),
    "changes": _dict_of(_is_anything),
    "operators": _dict_of(_is_count),
    "engine": lambda value: _record(iteration=_is_count, seed=_is_seed, arrays=_dict_of(_is_array))(value)
    and ("shapes" not in value or _is_policy(value["shapes"])),
    "learned": _dict_of(_is_array),
    "class_weights": _dict_of(_is_anything),
    "batches": _optional(_is_count),
    "rate_starts": _dict_of(_is_count),
    "average_start": _is_count,
    "progress": _record(train_losses_=_list_of(_is_number), validation_losses_=_list_of(_is_number),
                        n_iter_=_is_count, history_=_list_of(_dict_of(_is_anything))),
    "random": _is_random,
    "place": _is_place,
    "callbacks": _list_of(_record(**{"class": lambda name: isinstance(name, str), "state": _is_anything})),
}
