"""Which engine trains, and why? `select_for_fit`, and `select_for_backward` where forward and backward are apart."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto

from ortpartial.exceptions import SettingError
from ortpartial.runtime import find_untrusted, has_training

from .agent_engine import AgentEngine
from .engine import Engine
from .step_engine import EpochEngine, StepEngine

__all__ = ["select_for_backward", "select_for_fit"]


def select_for_fit(engine: str) -> tuple[type[Engine], str]:
    """The engine that `fit` uses, and why.

    Parameters
    ----------
    engine : str
        ``"auto"``, ``"agent"`` or ``"step"``.

    Returns
    -------
    tuple of type and str

    Raises
    ------
    SettingError
        The name is unknown.
    """
    if engine == "auto":
        return EpochEngine, "one graph an epoch runs on any onnxruntime and is the fastest"
    if engine not in (table := {"agent": AgentEngine, "epoch": EpochEngine, "step": StepEngine}):
        raise SettingError(f"engine is 'auto', {', '.join(map(repr, table))}, not {engine!r}.")
    return table[engine], "asked for"


def select_for_backward(engine: str, model: ModelProto, weights: Sequence[str] | None = None,
                        input_grads: Sequence[str] | None = None) -> tuple[str, str]:
    """The engine for forward and backward apart, and why.

    Parameters
    ----------
    engine : str
        ``"auto"``, ``"agent"`` or ``"step"``.
    model : onnx.ModelProto
        The graph that would be run.
    weights : sequence of str, optional
        The weights that it is differentiated by, beside its inputs; all where left out.
    input_grads : sequence of str, optional
        The inputs that it is differentiated by; all of a floating-point type where left out.

    Returns
    -------
    tuple of str and str
    """
    if engine == "epoch":
        return "step", "forward and backward apart know no epoch"
    if engine != "auto":
        return select_for_fit(engine)[0].name, "asked for"
    if not has_training():
        return "step", "onnxruntime-training is not installed"
    if reasons := find_untrusted(model, weights, input_grads=input_grads):
        return "step", reasons[0]
    return "agent", "onnxruntime-training is installed and right about every operator of the graph"
