"""Which engine trains, and why? `choose_for_fit`, and `choose_for_backward` where forward and backward are apart."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto

from ortpartial.exceptions import SettingError
from ortpartial.runtime import has_training, untrusted

from .agent_engine import AgentEngine
from .engine import Engine
from .step_engine import EpochEngine, StepEngine

__all__ = ["choose_for_backward", "choose_for_fit"]


def choose_for_fit(engine: str) -> tuple[type[Engine], str]:
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


def choose_for_backward(engine: str, model: ModelProto, weights: Sequence[str] | None = None,
                        input_grads: Sequence[str] | None = None) -> tuple[str, str]:  # fmt: skip
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
        return choose_for_fit(engine)[0].name, "asked for"
    if not has_training():
        return "step", "onnxruntime-training is not installed"
    if reasons := untrusted(model, weights, input_grads=input_grads):
        return "step", reasons[0]
    return "agent", "onnxruntime-training is installed and right about every operator of the graph"
