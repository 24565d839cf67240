"""Engine selection: the engine that trains, by its name and the training, with the reason for it."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto

from ortpartial.exceptions import CompilerError, GraphError, SettingError, UntranslatableError
from ortpartial.native import compile_library, estimate_cost, find_compiler
from ortpartial.runtime import Device, find_untrusted, has_training

from .agent_engine import AgentEngine
from .cuda_graph_engine import CudaGraphEngine
from .data_parallel_engine import DataParallelEngine
from .engine import Engine
from .epoch_engine import EpochEngine
from .inplace_engine import InplaceEngine
from .native_engine import NativeEngine, compose_native, write_step
from .spec import TrainingSpec
from .step_engine import StepEngine

__all__ = ["MANY_STEPS", "select_engine", "select_for_backward", "select_for_fit", "select_for_length"]

#: Steps below which nothing is worth a compilation.
MANY_STEPS = 5000

#: Bytes of trained weights from which on a second copy of them takes too much memory.
_BIG = 2**24


def select_engine(name: str, spec: TrainingSpec, distributed: bool = False) -> tuple[type[Engine], str]:
    """The engine of a training, and the reason for it.

    Parameters
    ----------
    name : str
        ``"auto"``, ``"agent"``, ``"epoch"``, ``"native"`` or ``"step"``.
    spec : TrainingSpec
        What is trained.
    distributed : bool
        Whether several processes train together.

    Returns
    -------
    tuple of type and str

    Raises
    ------
    SettingError
        The name is unknown, or the engine does not support what is trained.
    """
    engine, reason = select_for_fit(name)
    _check_support(name, spec, distributed)
    if distributed:
        return DataParallelEngine, "several processes add their gradients between two graphs"
    device = Device.parse(spec.device)
    if spec.gradient is not None or (name in ("auto", "step") and spec.precision is None and device.is_cpu
                                     and sum(spec.model.arrays[w].nbytes for w in spec.weights) >= _BIG):
        return InplaceEngine, "memory counts, so weights are overwritten where they are"
    if name == "auto" and device.is_provider:
        return StepEngine, "an execution provider compiles a step as a whole"
    if name == "auto" and not device.is_cpu:
        return CudaGraphEngine, "the device records a step once, and replays it without the host (experimental)"
    return engine, reason


def _check_support(name: str, spec: TrainingSpec, distributed: bool) -> None:
    """Refuse settings that the engine of this name does not support."""
    if distributed and name not in ("auto", "step"):
        raise SettingError(f"distributed=True trains with engine='step', not {name!r}.")
    precision = None if spec.precision is None else f"precision={str(spec.precision.dtype)!r}"
    if name == "native" and precision:
        raise SettingError(f"{precision} trains with engine='step' or 'epoch', not 'native'.")
    if name == "native" and not Device.parse(spec.device).is_cpu:
        raise SettingError(f"engine='native' trains on the CPU, not on {spec.device!r}.")
    settings = ["train_mode=True"] * spec.train_mode + ([precision] if precision else [])
    if settings and (distributed or name == "agent"):
        other = "distributed=True" if distributed else "engine='agent'"
        raise SettingError(f"{settings[0]} trains with engine='step' or 'epoch', in one process, not {other}.")
    unsupported = {
        "in one process, not with distributed=True": distributed,
        f"in the dtype of the model, not with {precision}": precision is not None,
        f"with engine='step', not {name!r}": name not in ("auto", "step"),
        f"on the CPU, not on {spec.device!r}": not Device.parse(spec.device).is_cpu,
    }
    if spec.gradient is not None and any(unsupported.values()):
        raise SettingError(f"checkpointing trains {next(what for what, applies in unsupported.items() if applies)}.")


def select_for_fit(engine: str) -> tuple[type[Engine], str]:
    """The engine of a name, for a training of any kind, and the reason for it.

    Parameters
    ----------
    engine : str
        ``"auto"``, ``"agent"``, ``"epoch"``, ``"native"`` or ``"step"``.

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
    if engine not in (table := {"agent": AgentEngine, "epoch": EpochEngine, "native": NativeEngine,
                                "step": StepEngine}):
        raise SettingError(f"engine={engine!r} is not known; leave it at 'auto', which takes the fastest that the "
                           f"training allows, or choose 'epoch', 'step', 'native' or 'agent'.")
    if engine == "native" and find_compiler() is None:
        return EpochEngine, "there is no C compiler that works, which engine='native' needs"
    return table[engine], "asked for"


def select_for_length(engine: Engine, rows: int, steps: int) -> tuple[type[Engine], str]:
    """The engine with which ``"auto"`` takes a number of steps, and the reason for it.

    It follows from the training and from the number of steps alone, and on whether there is a compiler: never from what
    has been measured or compiled before, so that a training repeats itself to the last bit.

    Parameters
    ----------
    engine : Engine
        The engine so far.
    rows : int
        The rows of a batch.
    steps : int
        The steps to come.

    Returns
    -------
    tuple of type and str
    """
    if type(engine) not in (EpochEngine, NativeEngine):
        return type(engine), engine.reason
    spec, default = engine.spec, select_for_fit("auto")
    is_supported = spec.precision is None and Device.parse(spec.device).is_cpu
    if steps < MANY_STEPS or not is_supported or find_compiler() is None:
        return default
    try:
        batch = spec.for_batch(rows)
        if batch.threads() != 1:  # Compiled steps take one core.
            return default
        inputs, outputs, batches = compose_native(batch)
        if not estimate_cost(outputs.values(), [inputs[n] for n in batches]).pays_off(steps):
            return default
        step = write_step(batch)
        compile_library(step.source, {f"{step.name}.h": step.header})
    except (CompilerError, GraphError, UntranslatableError) as e:
        return default[0], f"{default[1]} that trains this: {e}"
    return NativeEngine, f"{steps:,} short steps take less time in machine code, compilation included"


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
    if engine in ("epoch", "native"):
        return "step", "forward and backward apart know no epoch"
    if engine != "auto":
        return select_for_fit(engine)[0].name, "asked for"
    if not has_training():
        return "step", "onnxruntime-training is not installed"
    if reasons := find_untrusted(model, weights, input_grads=input_grads):
        return "step", reasons[0]
    return "agent", "onnxruntime-training is installed and right about every operator of the graph"
