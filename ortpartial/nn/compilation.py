"""Compilation: a module becomes a model that holds its training, and the session that runs it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial, wraps
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import Data, Reduced
from ortpartial.autodiff import Gradient, grad
from ortpartial.exceptions import DataError, GraphError, ModelError, ModelWarning, SettingError
from ortpartial.execution import (
    MANY_STEPS,
    HeldRows,
    IdleRunner,
    RunLocal,
    StepEngine,
    StepRunner,
    describe_graphs,
    describe_settings,
    describe_versions,
    has_hooks,
    require_bfloat16,
    select_for_device,
    select_for_length,
    select_for_memory,
    share_cores,
)
from ortpartial.graph import Value, build
from ortpartial.learning import Meter, Piece, explain_classes, fingerprint, is_settled
from ortpartial.model import Range, check_empty
from ortpartial.rewrites import LossScale, Precision, resolve_checkpointing, resolve_precision
from ortpartial.runtime import Buffer, Device, DeviceName, FairLock, Session, choose_threads
from ortpartial.training import AVERAGE
from ortpartial.training_info import strip_training_info

from .changes import count_changes, note_change
from .data_parallel import RESIDUAL, Processes
from .function import Function, compile_function
from .losses import Loss
from .measuring import list_measured, read_predictions
from .nested import Nested
from .optimized_state import OptimizedState
from .optimizer import Optimizer
from .parameter import Parameter, find_holder, hold
from .parts import Part, has_own_step, is_in_evaluation, list_attributes
from .placeholders import convert
from .signature import Signature
from .trace import ITERATION, SEED
from .traced_source import make_source
from .tracing import Writing, write, write_step
from .training_model import write_model

__all__ = ["Program", "in_turn"]

#: What to do about one-hot rows, and about labels of 0.0 and 1.0.
_ADVICE = "give y.argmax(1)", "write a train_one_batch that takes nn.Loss('log_loss')"

_P = ParamSpec("_P")
_S = TypeVar("_S", bound="Program")
_T = TypeVar("_T")


def in_turn(method: Callable[Concatenate[_S, _P], _T]) -> Callable[Concatenate[_S, _P], _T]:
    """A method of a program that a single thread runs at a time."""

    @wraps(method)
    def run(self: _S, *args: _P.args, **settings: _P.kwargs) -> _T:
        with self.turn.lock:
            return method(self, *args, **settings)

    return run


def select_gradient(checkpointing: bool | str | None) -> Gradient:
    """The gradient of a step, with the values of the forward pass or recomputed values."""
    if isinstance(checkpointing, Sequence) and not isinstance(checkpointing, str):
        raise SettingError(f"checkpointing is None or 'auto' for a module, whose values have no names, not "
                           f"{checkpointing!r}.")
    return resolve_checkpointing(checkpointing) or grad


def select_module_engine(engine: str, device: DeviceName, precision: Precision | None = None
                         ) -> tuple[type[StepRunner], str]:
    """The engine of a module's steps by its name, and the reason for it."""
    kind, reason = select_for_device(engine, Device.parse(device))
    if kind.name == "native" and precision is not None and not precision.rounds:
        raise SettingError(f"precision={str(precision.dtype)!r} trains with engine='step' or 'epoch', not 'native'.")
    if engine == "auto" and precision is not None and precision.rounds:
        require_bfloat16()
    if kind.name == "agent":
        raise SettingError("engine='agent' takes loss and update apart, and the step of a module is one graph; leave "
                           "engine at 'auto', or choose 'epoch', 'step' or 'native'.")
    return kind, reason


class Program(OptimizedState):
    """A compiled module: the graphs that its code has written, and the session that holds its state.

    Parameters
    ----------
    module : Module
        The module.
    inputs : sequence of Value or array_like
        The inputs of its `forward`.
    targets : sequence of Value or array_like, optional
        The further arguments of its `train_one_batch`.
    use_graph, sequential, random_state, device, engine, checkpointing, precision, loss_scale
        As for `Module.compile`.
    """

    #: The engine that takes the steps, and why.
    _engine: tuple[type[StepRunner], str]

    def __init__(self, module: Part, inputs: Sequence[Data], targets: Sequence[Data] | None, *, use_graph: bool,
                 sequential: bool, random_state: int | None, device: DeviceName, engine: str = "auto",
                 checkpointing: bool | str | None = None, precision: str | None = None,
                 loss_scale: LossScale | float | None = None):
        self._precision = resolve_precision(precision, loss_scale, on_cpu=Device.parse(device).is_cpu)
        if self._precision is not None and not use_graph:
            raise SettingError(f"use_graph=False runs operators one by one in the dtype of the module; precision="
                               f"{precision!r} needs a graph.")
        self._engine = select_module_engine(engine, device, self._precision)
        super().__init__(module, device, random_state)
        self.engine, self.sequential, self.use_graph = engine, sequential, use_graph
        self._gradient = select_gradient(checkpointing)
        #: What the code of the module takes.
        self.signature = Signature.of(module, inputs)
        self.inputs = self.signature.inputs
        self._inference = self._write_inference()
        self._step: Writing | None = None
        self._ranges: Mapping[str, Range] = {}  # of the labels and indices that it reads
        self._step_key: list[tuple[str, int]] | None = None  # the types of its targets
        self._settings: tuple[list[Optimizer], object] | None = None  # what else the step depends on
        self._seen = -1  # how many changes of modules have been looked at
        #: The pieces that may change in themselves, and their fingerprint when they were looked at.
        self._unsettled: list[object] = []
        self._fingerprint: object = fingerprint([])
        self._parts = list(module.named_modules())
        self._processes: Processes | None = None  # those that train together
        self._is_together = False  # whether they go on from one state
        self._is_told = False  # whether the first targets have been looked at
        #: Threads take turns, and runs have the options of their threads.
        self.turn, self.local = FairLock(), RunLocal()
        self._extra: dict[str, Session] = {}  # sessions that follow from the step
        #: The shapes of batches that had programs of their own where a training was cut off that goes on.
        self.former_policy: object = None
        #: By what they are for, the sessions that take no step.
        self._sessions: dict[str, Function] = {}
        self._attach()
        if targets is not None or self.signature.takes_no_target():
            self._prepare_step([t if isinstance(t, Value) else np.asarray(t) for t in targets or ()])

    # -- state

    def follow(self) -> None:
        """Follow changes of the module since the last call: modes, optimizers, losses, and frozen or shared weights."""
        is_same = not self._unsettled or fingerprint(self._unsettled) == self._fingerprint
        if is_same and self._seen == count_changes():
            return
        parts = dict(self.module.named_modules())
        parameters = {n: p for n, p in self.module.named_parameters(buffers=True) if n in self._shapes}
        new = [n for n, m in self._parts if parts.get(n) is not m]
        new += [n for n, p in parameters.items() if find_holder(p) is None or p.shape != self._shapes[n]]
        if new:
            raise ModelError(f"{new[0]!r} of {type(self.module).__name__} is another one than when it was compiled; "
                             f"compile it again, which keeps the numbers of all other parameters.")
        lost = {n: p.numpy() for n, p in parameters.items() if find_holder(p) is not self}
        self.set(lost)
        for n in lost:
            hold(parameters[n], n, self)
        if lost:
            note_change()
        self._seen = count_changes()
        self._forget_settings(parameters)

    def _forget_settings(self, parameters: Mapping[str, Parameter]) -> None:
        """Have graphs written anew whose modes, optimizers, losses or frozen weights have changed."""
        modes = [n for n, m in self._parts if is_in_evaluation(m, self.module)]
        optimizers = list(self.optimizers.values())
        for optimizer in optimizers:
            optimizer.plan_again()
        pieces: list[Piece | None] = [
            p for o in optimizers
            for p in (o.rate, o.planned_rate, o.penalty, o.gradient_clipping, o.planned_averaging)]
        modules = [m for _, m in self.module.named_modules()]
        pieces += [x.loss for m in modules for _, x in list_attributes(m, Loss)]
        pieces += [x for m in modules for _, x in list_attributes(m, Piece)]
        self._unsettled = [p for p in pieces if not is_settled(p)]
        self._fingerprint = fingerprint(self._unsettled)
        settings = modes, [n for n, p in parameters.items() if not p.is_trained], fingerprint(pieces)
        if self._settings not in (None, (optimizers, settings)):
            self._sessions.pop("train", None)
            self.forget_steps(keep_states=optimizers == self._settings[0])
        self._settings = optimizers, settings

    def states(self) -> dict[str, np.ndarray]:
        """Copies of all of the state by name: parameters, buffers, and further state of steps."""
        self.follow()
        return self._read_all()

    def restore(self, states: Mapping[str, np.ndarray]) -> None:
        """Overwrite all of the state; state that no step reads yet waits for a step that does."""
        if states.keys() != self.states().keys():
            self._step = self.runner = None
            self._aside = {}
        self.set(states)

    def restart(self) -> None:
        """Return to the first weights, drawn again from the seed, and to optimizers that have seen no batch."""
        self._is_together = False
        drawn = self.draw_first()
        if self._step is None or self.runner is None:
            self.restore(drawn)
            return
        self.runner.reset({})
        first = {n: a for n, a in self._step.trace.first.items() if self._runs(n)}
        self._aside = {}
        self.set({**first, **{average: drawn[n] for average, n in self.averages.items()}, **drawn})

    def forget_steps(self, *, keep_states: bool = False) -> None:
        """Let the step be written anew; with the states of optimizers, unless they are to begin again."""
        self._step, self._is_together = None, False
        if not keep_states:
            kept = {SEED, ITERATION, *(n for n, _ in self.module.named_parameters(buffers=True))}
            self.restore({n: a for n, a in self.states().items() if n in kept})

    def synchronize(self, facts: Mapping[str, str] = MappingProxyType({})) -> bool:
        """Let processes that train together go on from the state of the first; return whether this is the first."""
        self._is_together = True
        if not any(optimizer.distributed for optimizer in self.optimizers.values()):
            self._processes = None
            return True
        self._processes = self._processes or Processes()
        self._processes.check_same({**describe_versions(), **self._describe(), **facts})
        self.restore(self._processes.take_first(self.states(), lambda n: n.endswith(RESIDUAL)))
        return self._processes.is_first

    def _describe(self) -> dict[str, str]:
        """Describe the weights that are trained, the optimizers and the step, which all processes must share."""
        facts = {n: f"{p.dtype} of shape {p.shape}{'' if p.is_trained else ', frozen'}"
                 for n, p in self.module.named_parameters(buffers=True)}
        facts |= describe_settings(**{n: f"{o!r}, {o.penalty!r}, {o.gradient_clipping!r}, {o.parallel!r}"
                                      for n, o in self.optimizers.items()})
        if self._step is not None:
            graph = build({**self._step.inputs, **self._step.trace.before}, {**self._step.outputs,
                                                                             **self._step.trace.changed})
            facts |= describe_graphs({"the step": graph})
        return facts

    def agree(self, answer: bool) -> bool:
        """The answer of the first process."""
        return answer if self._processes is None else bool(self._processes.broadcast(answer))

    # -- writing

    def _write_inference(self) -> Writing:
        """Write the graph of `forward` in evaluation mode."""
        name = type(self.module).__name__
        try:
            inspect.signature(self.module.forward).bind(*self.inputs)
        except TypeError as e:
            raise DataError(f"{name}.forward does not take {len(self.inputs)} inputs: {e}; compile takes a placeholder "
                            f"or an array for each.") from None
        writing = write(self.module, lambda *values: self.module(*values), self.inputs, training=False)
        if not writing.outputs:
            raise GraphError(f"{name}.forward returns nothing; it is to return its output.")
        return writing

    def _prepare_step(self, targets: Sequence[Value | np.ndarray], inputs: Sequence[np.ndarray] = ()) -> None:
        """Write the step for these targets, if it is not."""
        self.follow()
        if not self._is_told:
            self._tell_of_labels(targets)
        key: list[tuple[str, int]] = [(t.dtype.kind, len(t.shape or ())) for t in targets]
        if self._step is not None and self._step_key == key:
            return
        self._step = None
        self._sessions.pop("evaluate", None)
        self._sessions.pop("measure", None)
        self._extra.clear()
        step = write_step(self.module, self.signature.name_batch(targets, inputs, self._shapes), training=True,
                          gradient=self._gradient, precision=self._precision)
        if step.trace.changed.keys().isdisjoint(n for n, p in self.module.named_parameters() if p.is_trained):
            warnings.warn(f"A batch changes no weight of {type(self.module).__name__}: train_one_batch calls no "
                          f"optimizer with a loss.", ModelWarning, stacklevel=2)
        step.trace.count_batch()
        parameters = dict(self.module.named_parameters(buffers=True))
        self._drop_foreign_states(step.trace.first, {SEED, ITERATION, *parameters})
        state, read = self.states(), step.trace.before
        # A weight that is trained from now on has no average yet.
        state |= {a: state[n] for own, o in self.optimizers.items() if o.averaging is not None for n in parameters
                  if (a := o.name_state(own, n, AVERAGE)) in step.trace.first and a not in state}
        self.runner = self._open(step, {**step.trace.first, **{n: a for n, a in state.items() if n in read}})
        self._step, self._step_key, self._ranges = step, key, step.find_ranges({**step.outputs, **step.trace.changed})
        self._aside = {n: state[n] for n in parameters if n not in read}
        self.set({n: state[n] for n in (SEED, ITERATION)})
        self._is_together = False

    def _tell_of_labels(self, targets: Sequence[Value | np.ndarray]) -> None:
        """Warn, once, where the step that is not written by the user takes the square loss of labels."""
        first = targets[0] if targets else None
        if not isinstance(first, np.ndarray):
            return
        self._is_told = True
        if first.dtype.kind == "f" and not has_own_step(self.module) and (text := explain_classes(
                first, "The target", "train_one_batch", "write a train_one_batch of your own", _ADVICE)):
            warnings.warn(text, ModelWarning, stacklevel=2)

    def complete(self) -> None:
        """Write the graph as far as it has been run: nothing here."""
        self.follow()

    def _open(self, step: Writing, state: Mapping[str, np.ndarray]) -> StepRunner:
        """The runner of a step."""
        threads = 1 if self.sequential else None
        if step.trace.exchanges and not self.sequential:
            threads = share_cores(choose_threads(list(step.trace.changed.values())))
        kept = {n: e.kept for n, e in step.trace.exchanges.items()}
        source = make_source(step, state, device=self.device, threads=threads,
                             exchange=lambda new: self._exchange({n: (b, kept[n]) for n, b in new.items()}))
        kind, reason = select_for_memory(self.engine, self._engine, source)
        if kept:
            kind, reason = StepEngine, "several processes exchange numbers within a step"
        runner = kind(source)
        runner.reason, runner.turn, runner.local = reason, self.turn, self.local
        if self.former_policy is not None:
            runner.restore({**runner.snapshot(), "shapes": self.former_policy})
            self.former_policy = None
        return runner

    def change_engine(self, kind: type[StepRunner], reason: str) -> None:
        """Go on with another engine."""
        assert self.runner is not None
        if type(self.runner) is not kind:
            chosen = self.runner.lengths
            self.runner = self.runner.continue_with(self.runner.source, kind)
            self.runner.lengths = chosen
        self.runner.reason = reason

    @property
    def engine_name(self) -> str:
        """The engine that takes the steps."""
        return (self._engine[0] if self.runner is None else self.runner).name

    @property
    def engine_reason(self) -> str:
        """Why it was chosen."""
        return self._engine[1] if self.runner is None else self.runner.reason

    def _exchange(self, passed: Mapping[str, tuple[Buffer, int | None]]) -> None:
        """Add up the numbers of the processes."""
        assert self._processes is not None
        self._processes.add_up(passed)

    def write_model(self, *, training: bool = True) -> ModelProto:
        """The inference graph with the current weights, and the training as far as it is written."""
        parameters = dict(self.module.named_parameters(buffers=True))
        states = self.states()
        if not training:
            states.update({n: self.get_used(n) for n in self._shapes})
        model = write_model(type(self.module).__name__, self._inference, {n: parameters[n] for n in self._shapes},
                            states, self._step if training else None)
        return model if training else strip_training_info(model)

    def __reduce__(self) -> Reduced:
        name = type(self.module).__name__
        raise ModelError(f"A compiled {name} is neither pickled nor copied; save writes it to a file, and state_dict() "
                         f"holds copies of its numbers.")

    # -- running

    @cached_property
    def idle(self) -> IdleRunner:
        """The runner that the loop asks where steps are taken batch by batch."""
        return IdleRunner(self.engine_name, self.engine_reason, lambda: self.iteration, self.turn, self.local)

    @property
    def step_inputs(self) -> Mapping[str, Value]:
        """The placeholders of the step that is written."""
        assert self._step is not None
        return self._step.inputs

    def find_session(self, name: str, compile_session: Callable[[], Session]) -> Session:
        """A session that takes no step, which is compiled where the step has changed since."""
        if name not in self._extra:
            self._extra[name] = compile_session()
        return self._extra[name]

    def read_policy(self) -> object:
        """The shapes of batches that have programs of their own, for a training that goes on."""
        return None if self.runner is None else self.runner.snapshot(copy=False)["shapes"]

    def prepare(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Write the step for rows like these, and convert them to its inputs."""
        self._prepare_step(arrays[len(self.inputs):], arrays[:len(self.inputs)])
        assert self._step is not None
        return convert(arrays, self._step.inputs, self._ranges)

    def check(self, batch: Sequence[Data]) -> None:
        """Refuse arrays that no step reads."""
        self.prepare(self.signature.split_batch(batch))

    def is_changed(self) -> bool:
        """Whether the step has to be written anew, as the module has changed."""
        self.follow()
        return self._step is None

    def can_join(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether the runner takes all steps of an epoch on rows like these."""
        self.signature.check_parts(arrays)
        sizes = [v.shape[0] for v in self.inputs.values() if v.shape]
        if any(isinstance(size, int) for size in sizes) or self._processes is not None:
            return False
        self._prepare_step(arrays[len(self.inputs):], arrays[:len(self.inputs)])
        return self.runner is not None and self.runner.source.loss is not None

    def choose_runner(self, rows: int, steps: int) -> StepRunner:
        """The runner of so many steps to come."""
        assert self.runner is not None
        if self.engine == "auto" and (steps >= MANY_STEPS or self.runner.source.rounds):
            self.change_engine(*select_for_length(self.runner, rows, steps))
        return self.runner

    def share_answers(self, callbacks: Sequence[Any]) -> Sequence[Any]:
        """Callbacks, of which the functions of the first of several processes decide for all."""
        if self._processes is None:
            return callbacks
        return [c if has_hooks(c) else lambda module, c=c: self.agree(c(module) is True) for c in callbacks]

    @in_turn
    def step(self, batch: Sequence[Data]) -> Nested:
        """Run a step on arrays."""
        arrays = self.signature.split_batch(batch)
        self._prepare_step(arrays[len(self.inputs):], arrays[:len(self.inputs)])
        assert self._step is not None
        if not self._is_together:
            self.synchronize()
        assert self.runner is not None
        feeds, run = convert(arrays, self._step.inputs, self._ranges), self.runner.step
        if self._processes is not None and self._step.trace.exchanges:
            run = partial(self._processes.step, self.runner, self._step.inputs, labels=self._step.labels)
        return self._step.rebuild(run(feeds))

    def undo(self) -> None:
        """Back to before the last step."""
        assert self.runner is not None
        self.runner.undo()

    @in_turn
    def evaluate(self, batch: Sequence[Data], meter: Meter | None = None) -> Nested:
        """The results of a step in evaluation mode and without an update; a meter is given the predictions."""
        arrays = self.signature.split_batch(batch)
        function = self._open_evaluation(arrays, meter)
        return self._read(function, function(arrays, self.get_used), meter)

    @in_turn
    def hold(self, batch: Sequence[Data]) -> HeldRows:
        """Rows of which `evaluate_held` is asked again and again."""
        arrays = self.signature.split_batch(batch)
        function, feeds = self._open_evaluation(arrays, None), self.prepare(arrays)
        check_empty(function.outputs, feeds)
        return HeldRows(feeds)

    @in_turn
    def evaluate_held(self, rows: HeldRows, meter: Meter | None = None) -> Nested:
        """The results of `evaluate` for rows that are held."""
        function = self._open_evaluation(arrays := list(rows.rows.values()), meter)
        if not rows.is_bindable:
            return self._read(function, function(arrays, self.get_used), meter)

        def find_weights() -> dict[str, Buffer | np.ndarray]:
            return {n: self._find_used(n) for n in function.session.inputs if n in function.writing.trace.before}

        return self._read(function, rows.run(function.session, find_weights, self.local), meter)

    def _find_used(self, name: str) -> Buffer | np.ndarray:
        """The memory that `get_used` copies, where the runner has it."""
        name = self._name_used(name)
        assert self.runner is not None
        return self.runner.find_used(name) if name in self.runner.source.names_of_state else self.get(name)

    def _open_evaluation(self, arrays: Sequence[np.ndarray], meter: Meter | None) -> Function:
        """The session of a step in evaluation mode, on arrays like these."""
        self._prepare_step(arrays[len(self.inputs):], arrays[:len(self.inputs)])
        assert self._step is not None
        name = "evaluate" if meter is None else "measure"
        if name not in self._sessions:
            writing = write_step(self.module, self._step.inputs, training=False, updates=False)
            measured = {} if meter is None else list_measured(writing, [*self.inputs])
            self._sessions[name] = self._compile(writing, {**writing.outputs, **measured})
        return self._sessions[name]

    def _read(self, function: Function, outputs: Mapping[str, np.ndarray], meter: Meter | None) -> Nested:
        """The results of a step from the outputs of its session; a meter is given the predictions."""
        if meter is not None:
            for output, prediction in read_predictions(function.writing, [*self.inputs], outputs).items():
                meter.add(output, prediction)
        return function.writing.rebuild(outputs)

    @in_turn
    def forward(self, inputs: Sequence[Data], *, training: bool) -> Nested:
        """Run the module on arrays."""
        self.follow()
        mode = "train" if training else "eval"
        if mode not in self._sessions:
            writing = self._inference if not training else write(
                self.module, lambda *values: self.module(*values), self.inputs, training=True)
            if training:
                writing.trace.count_batch()
            changed = {f"{n}_new": v for n, v in writing.trace.changed.items()}
            self._sessions[mode] = self._compile(writing, {**writing.outputs, **changed})
        function = self._sessions[mode]
        writing = function.writing
        self.signature.check_count(inputs)
        self._aside = {**{n: a for n, a in writing.trace.first.items() if not self.holds(n)}, **self._aside}
        outputs = function(inputs, self.get if training else self.get_used)
        self.set({n: outputs[f"{n}_new"] for n in writing.trace.changed})
        return writing.rebuild(outputs)

    def _compile(self, writing: Writing, outputs: Mapping[str, Value]) -> Function:
        """A session of a graph."""
        return compile_function(writing, outputs, device=self.device, sequential=self.sequential)
