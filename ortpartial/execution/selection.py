"""Engine selection: the engine of a name, and the fastest engine for a number of steps."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from ortpartial.exceptions import CompilerError, GraphError, SettingError, UntranslatableError
from ortpartial.graph import Value
from ortpartial.model import available_memory
from ortpartial.runtime import Device, cores

from .cuda_graph_engine import CudaGraphEngine
from .epoch_engine import EpochEngine
from .inplace_engine import InplaceEngine
from .native_engine import NativeEngine, write_step
from .runner import StepRunner
from .step import StepSource
from .step_engine import StepEngine

__all__ = ["MANY_STEPS", "OFTEN", "needs_one_copy", "register_engine", "repays_compilation", "require_bfloat16",
           "select_for_device", "select_for_fit", "select_for_length", "select_for_memory", "select_for_steps"]

#: Steps below which nothing is worth a compilation.
MANY_STEPS = 200
#: Steps of which there are enough however short they are; fewer have to take some seconds: rows times weights in sum.
_MANY_SHORT_STEPS, _MUCH_WORK = 5000, 2**36

#: Bytes of weights from which on their memory is looked at.
_BIG = 2**24

#: The engines that may be asked for, by name; rooms above add theirs.
_ENGINES: dict[str, type[StepRunner]] = {"epoch": EpochEngine, "step": StepEngine, "native": NativeEngine}


def register_engine(kind: type[StepRunner]) -> type[StepRunner]:
    """Let an engine be asked for by its name; usable as a decorator.

    Parameters
    ----------
    kind : type
        The engine.

    Returns
    -------
    type
        The same.
    """
    _ENGINES[kind.name] = kind
    return kind


def select_for_fit(engine: str) -> tuple[type[StepRunner], str]:
    """The engine of a name, for a training of any kind, and the reason for it.

    Parameters
    ----------
    engine : str
        ``"auto"``, or the name of an engine.

    Returns
    -------
    tuple of type and str

    Raises
    ------
    SettingError
        The name is unknown.
    """
    if isinstance(engine, str) and engine == "auto":
        return EpochEngine, "one graph an epoch runs on any onnxruntime and is the fastest"
    if not isinstance(engine, str) or engine not in _ENGINES:
        *names, last = map(repr, _ENGINES)
        raise SettingError(f"engine={engine!r} is not known; leave it at 'auto', which takes the fastest that the "
                           f"training allows, or choose {', '.join(names)} or {last}.")
    if engine == "native":
        from ortpartial.native import find_compiler  # late: short trainings need none of it

        if find_compiler() is None:
            return EpochEngine, "there is no C compiler that works, which engine='native' needs"
    return _ENGINES[engine], "asked for"


def select_for_device(engine: str, device: str | Device) -> tuple[type[StepRunner], str]:
    """The engine of a name on a device, and the reason for it.

    Parameters
    ----------
    engine : str
        As for `select_for_fit`.
    device : str or Device
        Where it runs.

    Returns
    -------
    tuple of type and str

    Raises
    ------
    SettingError
        The name is unknown, or the engine does not run there.
    """
    selected, where = select_for_fit(engine), Device.parse(device)
    if engine == "native" and not where.is_cpu:
        raise SettingError(f"engine='native' trains on the CPU, not on {device!r}.")
    if engine == "auto" and where.is_provider:
        return StepEngine, "an execution provider compiles a step as a whole"
    if engine == "auto" and not where.is_cpu:
        return CudaGraphEngine, "the device records a step once, and replays it without the host (experimental)"
    return selected


def needs_one_copy(engine: str, source: StepSource) -> bool:
    """Whether big weights are held once, by the engine in place.

    They are with ``"step"``, which saves memory, and with ``"auto"`` where a second copy of weights and states would
    leave less than half of the memory to data and activations. The memory is all that the process may use, and not the
    part of it that is free at the moment, so that a training repeats itself.

    Parameters
    ----------
    engine : str
        ``"auto"``, or the name of an engine.
    source : StepSource
        Composes the steps.

    Returns
    -------
    bool
    """
    weights = sum(a.nbytes for a in source.first.values())
    if engine not in ("auto", "step") or weights < _BIG:
        return False
    state = weights + sum(prod(shape) * dtype.itemsize for shape, dtype in source.zeros.values())
    # Beside two copies there are the weights of the model itself and their gradients.
    return engine == "step" or 2 * (state + weights) > available_memory() // 2


def select_for_steps(engine: str, source: StepSource, engines: Collection[str]) -> tuple[type[StepRunner], str]:
    """The engine of a name where single steps are taken, and the reason for it.

    Parameters
    ----------
    engine : str
        ``"auto"``, or the name of an engine.
    source : StepSource
        Composes the steps.
    engines : collection of str
        The names that make sense there.

    Returns
    -------
    tuple of type and str

    Raises
    ------
    SettingError
        The name is not among these, or the engine cannot take the steps of the source.
    """
    if isinstance(engine, str) and engine == "auto":
        return StepEngine, "one graph takes a step that is asked for"
    if not isinstance(engine, str) or engine not in engines:
        *names, last = map(repr, engines)
        raise SettingError(f"engine={engine!r} takes no single steps; leave it at 'auto', or choose "
                           f"{', '.join(names)} or {last}.")
    kind, reason = select_for_device(engine, source.device)
    if engine == "native" and source.exchanges:
        raise SettingError("engine='native' takes a step in one call, and exchanges come between its parts; leave it "
                           "at 'auto'.")
    return (kind, reason) if kind.name == engine else (StepEngine, reason)


def select_for_memory(engine: str, selected: tuple[type[StepRunner], str], source: StepSource
                      ) -> tuple[type[StepRunner], str]:
    """The engine in place of another that takes the same steps, where big weights are held once.

    Parameters
    ----------
    engine : str
        ``"auto"``, or the name of an engine.
    selected : tuple of type and str
        The engine that was selected, and the reason for it.
    source : StepSource
        Composes the steps.

    Returns
    -------
    tuple of type and str
    """
    if source.is_cut and not source.exchanges and Device.parse(source.device).is_cpu and needs_one_copy(engine, source):
        return InplaceEngine, "memory counts, so weights are overwritten where they are"
    return selected


def select_for_length(runner: StepRunner, rows: int, steps: int) -> tuple[type[StepRunner], str]:
    """The engine with which ``"auto"`` takes a number of steps, and the reason for it.

    It follows from the training and from the number of steps alone, and on whether there is a compiler: never from
    former measurements or compilations, so that a training repeats itself to the last bit.

    Parameters
    ----------
    runner : StepRunner
        The training so far.
    rows : int
        The rows of a batch.
    steps : int
        The steps to come.

    Returns
    -------
    tuple of type and str
    """
    if type(runner) not in (EpochEngine, NativeEngine):
        return type(runner), runner.reason
    default = select_for_fit("auto")
    is_short = not runner.source.rounds and not _are_many(runner.source, rows, steps)
    if is_short or not runner.source.is_translatable:
        return default
    from ortpartial.native import find_compiler

    if find_compiler() is None:
        return default
    if (rows, steps) not in runner.lengths:  # A fit that goes on, epoch by epoch, asks again and again.
        runner.lengths = {(rows, steps): _choose_for_length(runner.source, rows, steps) or default}
    return runner.lengths[rows, steps]


#: Single steps after each of which a compilation is looked at.
OFTEN = 5000
#: Seconds of a call of a small graph beside its nodes, between other work that has taken the caches.
_CALL = 2e-5


def repays_compilation(values: Collection[Value], steps: int, threads: int | None, *, calls: int = 0) -> bool:
    """Whether machine code would have saved more in so many steps than its compilation takes.

    A training that nobody has announced the length of is compiled then: it never takes much more than twice the time
    of the better choice.

    Parameters
    ----------
    values : collection of Value
        All that a step computes, of static sizes.
    steps : int
        The steps that were taken.
    threads : int or None
        Number of threads of a step.
    calls : int
        The calls of graphs in a step that take longer than those of machine code.

    Returns
    -------
    bool
    """
    from ortpartial.native import estimate_cost, find_compiler

    if find_compiler() is None:
        return False
    cost = estimate_cost(values, ())
    saved = cost.take_on(threads or cores()) + calls * _CALL - cost.seconds_compiled
    return steps * saved > cost.seconds_compiling


def _are_many(source: StepSource, rows: int, steps: int) -> bool:
    """Whether so many steps may take long enough for a compilation to be worth a look."""
    if steps >= _MANY_SHORT_STEPS:
        return True
    return steps >= MANY_STEPS and steps * rows * sum(a.size for a in source.first.values()) >= _MUCH_WORK


def _choose_for_length(source: StepSource, rows: int, steps: int) -> tuple[type[StepRunner], str] | None:
    """The native engine, or another with what is missing for it; None where it does not pay off."""
    from ortpartial.native import compile_library, estimate_cost

    try:
        batch = source.for_rows(rows)
        step, threads = batch.compose(branches=False), batch.threads() or cores()
        if not estimate_cost(step.outputs.values(), list(step.rows.values())).pays_off(steps, threads, source.rounds):
            return None
        native = write_step(batch)
        compile_library(native.source, {f"{native.name}.h": native.header})
    except (CompilerError, GraphError, UntranslatableError) as e:
        kind, reason = select_for_fit("auto")
        return kind, f"{reason} that trains this: {e}"
    described = "steps with products in bfloat16" if source.rounds else "steps"
    return NativeEngine, f"{steps:,} {described} take less time in machine code, compilation included"


def require_bfloat16() -> None:
    """Refuse products in bfloat16 where nothing computes them faster than products in float32.

    Raises
    ------
    SettingError
        There is no compiler, or the processor has no instructions for them.
    """
    from ortpartial.native import find_compiler, multiplies_bfloat16

    reason = ("there is no C compiler that works" if find_compiler() is None else
              "" if multiplies_bfloat16() else "the processor has no AVX512-BF16")
    if reason:
        raise SettingError(f"precision='bfloat16' would only be slower than float32 here, as {reason}; leave it out, or"
                           f" ask for engine='epoch' or 'step', which compute the same numbers by products in float32.")
