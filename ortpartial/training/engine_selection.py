"""Engine selection: the engine that trains, by its name and the training, with the reason for it."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto

from ortpartial.exceptions import SettingError
from ortpartial.execution import (
    InplaceEngine,
    StepRunner,
    needs_one_copy,
    register_engine,
    require_bfloat16,
    select_for_device,
    select_for_fit,
)
from ortpartial.runtime import Device, find_untrusted, has_training

from .agent_engine import AgentEngine
from .data_parallel_engine import DataParallelEngine
from .source import SpecSource
from .spec import TrainingSpec

__all__ = ["select_engine", "select_for_backward"]

register_engine(AgentEngine)


def select_engine(name: str, spec: TrainingSpec, distributed: bool = False) -> tuple[type[StepRunner], str]:
    """The engine of a training, and the reason for it.

    Parameters
    ----------
    name : str
        ``"auto"``, ``"agent"``, ``"epoch"``, ``"native"`` or ``"step"``.
    spec : TrainingSpec
        The training.
    distributed : bool
        Whether several processes train together.

    Returns
    -------
    tuple of type and str

    Raises
    ------
    SettingError
        The name is unknown, or the engine does not support the training.
    """
    select_for_fit(name)
    _check_support(name, spec, distributed)
    if distributed:
        return DataParallelEngine, "several processes add their gradients between two graphs"
    device = Device.parse(spec.device)
    if spec.gradient is not None or (spec.precision is None and device.is_cpu
                                     and needs_one_copy(name, SpecSource(spec))):
        return InplaceEngine, "memory counts, so weights are overwritten where they are"
    return select_for_device(name, device)


def _check_support(name: str, spec: TrainingSpec, distributed: bool) -> None:
    """Refuse settings that the engine of this name does not support."""
    if distributed and name not in ("auto", "step"):
        raise SettingError(f"distributed=True trains with engine='step', not {name!r}.")
    precision, rounds = None, False
    if spec.precision is not None:
        precision, rounds = f"precision={str(spec.precision.dtype)!r}", spec.precision.rounds
        _check_precision(name, precision, rounds)
    if name == "native":
        select_for_device(name, spec.device)
    settings = ["train_mode=True"] * spec.train_mode + ([precision] if precision else [])
    if settings and (distributed or name == "agent"):
        other = "distributed=True" if distributed else "engine='agent'"
        names = "'native', 'step'" if rounds else "'step'"
        raise SettingError(f"{settings[0]} trains with engine={names} or 'epoch', in one process, not {other}.")
    unsupported = {
        "in one process, not with distributed=True": distributed,
        f"in the dtype of the model, not with {precision}": precision is not None,
        f"with engine='step', not {name!r}": name not in ("auto", "step"),
        f"on the CPU, not on {spec.device!r}": not Device.parse(spec.device).is_cpu,
    }
    if spec.gradient is not None and any(unsupported.values()):
        raise SettingError(f"checkpointing trains {next(what for what, applies in unsupported.items() if applies)}.")


def _check_precision(name: str, precision: str, rounds: bool) -> None:
    """Refuse a mixed precision that the engine of this name has not, or that would only be slower."""
    if name == "native" and not rounds:
        raise SettingError(f"{precision} trains with engine='step' or 'epoch', not 'native'.")
    if name == "auto" and rounds:
        require_bfloat16()


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
    selected = select_for_fit(engine)[0].name
    if engine in ("epoch", "native"):
        return "step", "forward and backward apart know no epoch"
    if engine != "auto":
        return selected, "asked for"
    if not has_training():
        return "step", "onnxruntime-training is not installed"
    if reasons := find_untrusted(model, weights, input_grads=input_grads):
        return "step", reasons[0]
    return "agent", "onnxruntime-training is installed and right about every operator of the graph"
