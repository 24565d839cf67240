"""Pickles of an optimizer: settings, the model as bytes and the state of the training; the rest follows from them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from ortpartial.model import Model, Ties, change_weights, load
from ortpartial.runtime import Turn

from .changes import name_weights, note_pieces
from .params import PROGRESS, FitSettings

if TYPE_CHECKING:
    from .optimizer import OrtGradientForwardBackwardOptimizer as Optimizer

__all__ = ["pack", "unpack"]

#: Attributes that are derived, and so left out of a pickle; the second line names those of former versions.
_DERIVED = ("_parts", "_layer", "_unsettled", "_fingerprint",
            "_data", "_engine", "_loop", "_losses", "_precision", "_predictor", "_read", "_spec", "_state",
            "_statistics", "_threads")

#: Attributes that pickles of former versions lack.
_ADDED: dict[str, Any] = {"gradient_clipping": None, "accumulate": 1, "averaging": None, "use_average": False,
                          "rate_factors": None, "_factors": {}, "_batches": 0, "_learned": {}, "_first": {}}


def pack(optimizer: Optimizer) -> dict[str, Any]:
    """The content of a pickle.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer.

    Returns
    -------
    dict of str to object
    """
    state = {n: v for n, v in vars(optimizer).items() if n not in _DERIVED}
    arguments = {n: v for n, v in optimizer._arguments.items() if n != "model"}
    model = change_weights(optimizer._spec.model, optimizer._first)
    with optimizer._engine.turn.lock:
        snapshot = optimizer._engine.snapshot()
    return {**state, **vars(optimizer._loop.settings), **{n: deepcopy(getattr(optimizer, n)) for n in PROGRESS},
            "_arguments": {**arguments, "weights_to_train": name_weights(optimizer)},
            "model": (model.proto.SerializeToString(), dict(model.arrays)),
            "straight_through": model.straight_through, "aliases": model.aliases, "ties": model.ties,
            "custom_ops_library": model.custom_ops_library, "rate_starts": optimizer._spec.rate_starts,
            "average_start": optimizer._spec.average_start, "engine_state": snapshot}


def unpack(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Let an optimizer without attributes be the one of a pickle.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        An instance that has not been initialized.
    state : dict of str to object
        What `pack` returned, in this version or a former one; it is consumed.
    """
    proto, arrays = state.pop("model")
    model = load(Model(ModelProto.FromString(proto), {}, {}, {}, arrays, {}, state.pop("straight_through"),
                       aliases=state.pop("aliases", {}), custom_ops_library=state.pop("custom_ops_library", ()),
                       ties=state.pop("ties", Ties())))
    # Pickles of version 0.1.0 have the name "_given".
    arguments = state.pop("_given", None) or state.pop("_arguments")
    snapshot, progress = state.pop("engine_state"), {n: state.pop(n) for n in PROGRESS if n in state}
    # Those of version 0.1.0 know no checks.
    settings = FitSettings(**{f.name: state.pop(f.name) for f in fields(FitSettings) if f.name in state})
    start = state.pop("rate_start", 0)  # Pickles of version 0.1.0 have one number for all weights.
    starts = {"rate_starts": state.pop("rate_starts", dict.fromkeys(state["weights_to_train"], start) if start else {}),
              "average_start": state.pop("average_start", 0)}
    attributes = {n: v for n, v in state.items() if n not in _DERIVED}
    vars(optimizer).update({**_ADDED, "_turn": Turn(), **attributes})
    optimizer._arguments = {"freeze": (), "rate_factors": None, **arguments, "model": model}
    spec = optimizer._specify(change_weights(model, optimizer._learned))
    optimizer._compose(replace(spec, **starts), settings)
    optimizer._parts.restore(snapshot)
    for name, value in progress.items():
        setattr(optimizer, name, value)
    note_pieces(optimizer)
