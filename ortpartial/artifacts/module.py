"""Modules, optimizers and learning rate schedulers with the interface of `onnxruntime.training.api`, on any runtime."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from ortpartial.arguments import checked
from ortpartial.exceptions import (
    CheckpointError,
    CompilerError,
    ConvergenceError,
    DataError,
    FileMissingError,
    ModelError,
    SettingError,
)
from ortpartial.execution import (
    OFTEN,
    EngineNames,
    NativeEngine,
    StepEngine,
    Stepper,
    fits,
    repays_compilation,
)
from ortpartial.graph import to_dtype
from ortpartial.learning import ClassWatch, NamedSettings
from ortpartial.model import Model, Range, check_indices, index_ranges, prune_outputs, use_libraries, write
from ortpartial.model import load as load_model
from ortpartial.runtime import Device, DeviceName

from .checkpoint import Checkpoint as Checkpoint
from .graphs import load_lowered, read_eval_graph, read_training_graph
from .habit import StepHabit
from .optimizers import OptimizerModel, read_optimizer
from .programs import CALLS, EVALUATION, RATE, SEED, STEP, UPDATE, ArtifactSource, Training
from .state import CheckpointState, to_array

__all__ = ["LinearLRScheduler", "Module", "Optimizer", "load"]

#: The engines that take single steps.
_ENGINES = ("step", "native")

#: Kinds of steps, by whether they update and accumulate.
_KINDS = {(updates, accumulates): Training(updates, accumulates) for updates in (False, True)
          for accumulates in (False, True)}


class Module(EngineNames, NamedSettings):
    """A model that is trained, as `onnxruntime.training.api.Module`.

    In training mode a call computes the outputs and the gradients, which are added to the gradients of the calls
    before; in evaluation mode it computes the outputs alone. `Optimizer.step` changes the parameters, and
    `lazy_reset_grad` lets the next gradients replace the present gradients. `step` does all three in a single graph.
    So does a call where a step of the optimizer has followed each of the last: it computes the update, too, which the
    next `Optimizer.step` takes over, to the same bits.

    The gradient is taken from the file, its kernels in standard operators. Where the model has a Dropout in training
    mode, its masks follow from `seed` and the number of calls.

    Parameters
    ----------
    train_model_uri : onnx.ModelProto, bytes or path
        ``training_model.onnx``.
    state : CheckpointState
        The state, whose parameters it trains.
    eval_model_uri : onnx.ModelProto, bytes or path, optional
        ``eval_model.onnx``.
    device : str or Device
        ``"cpu"``, ``"cuda"``, or as in `OrtGradientForwardBackwardOptimizer`.
    seed : int
        Of the masks of Dropout.
    engine : str
        ``"step"``: a graph for each call. ``"native"``: machine code, which a C compiler makes of the graphs for the
        shapes that come often; an operator that cannot be written in C is an error. ``"auto"``: graphs, and machine
        code from the call on for which so many were computed that compiling would have paid; the next numbers agree
        with those of graphs within rounding.
    timeout : float, optional
        Seconds that a call or a step may take, compilation included; then `DeadlineError` ends it, without an effect.
    custom_ops_library : path or sequence of path, optional
        The shared library of the model's custom operators, as for `ortpartial.load`.
    raise_on_divergence : bool
        Whether a loss that is NaN or infinite raises ConvergenceError; otherwise it warns, and is returned. Parameters
        and gradients are those before that batch in both cases.

    Attributes
    ----------
    training : bool
        Whether it is in training mode, as it is at first.
    engine_, engine_reason_ : str
        The engine, and why it was chosen.
    optimizer : Optimizer or None
        The optimizer of `step`: the last that was made for the module.
    state : CheckpointState
        The state.

    Raises
    ------
    ModelError
        The model has a kernel that is not known in standard operators; the message names it.
    CheckpointError
        The state is that of another model.

    Examples
    --------
    A model that `generate_artifacts` might have written, as text; `load` takes the files.

    >>> from onnx.parser import parse_model
    >>> training_model = parse_model('''
    ...     <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    ...     training (float[N, 1] x, float[N, 1] t, float[1, 1] w, float[1, 1] buffer, bool[1] reset)
    ...         => (float loss, bool[1] done)
    ...     <float two = {2}>
    ...     {
    ...         y = MatMul (x, w)
    ...         e = Sub (y, t)
    ...         square = Mul (e, e)
    ...         loss = ReduceMean <keepdims = 0> (square)
    ...         e2 = Mul (e, two)
    ...         n = Size (e)
    ...         e_grad = com.microsoft.Scale <scale_down = 1> (e2, n)
    ...         w_grad = com.microsoft.FusedMatMul <transA = 1> (x, e_grad)
    ...         done = com.microsoft.InPlaceAccumulatorV2 (buffer, w_grad, reset)
    ...     }''')
    >>> optimizer_model = parse_model('''
    ...     <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    ...     optimizer (float[1] learning_rate, int64[1] step, seq(float[]) params, seq(float[]) gradients,
    ...                seq(float[]) first_order_moments) => (bool[1] done)
    ...     { done = com.microsoft.SGDOptimizerV2 (learning_rate, params, gradients) }''')
    >>> state = CheckpointState(Checkpoint({"w": np.zeros((1, 1), np.float32)}))
    >>> module = Module(training_model, state)
    >>> optimizer = Optimizer(optimizer_model, module)
    >>> optimizer.set_learning_rate(0.25)
    >>> x = np.ones((4, 1), np.float32)
    >>> module(x, 2 * x).item()
    4.0
    >>> optimizer.step()
    >>> module.lazy_reset_grad()
    >>> state.parameters["w"].data.tolist()
    [[1.0]]
    >>> module.step(x, 2 * x).item(), state.parameters["w"].data.tolist()
    (1.0, [[1.5]])
    """

    def __init__(self, train_model_uri: Any, state: CheckpointState, eval_model_uri: Any = None,
                 device: DeviceName | Device = "cpu", *, seed: int = 0, engine: str = "auto",
                 timeout: float | None = None,
                 custom_ops_library: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
                 raise_on_divergence: bool = True):
        if not isinstance(state, CheckpointState):
            raise SettingError(f"state is a CheckpointState of ortpartial.artifacts, not {type(state).__name__}.")
        use_libraries(train_model_uri, custom_ops_library)
        self._graph = read_training_graph(train_model_uri, state.parameters.keys())
        self._eval = None if eval_model_uri is None else read_eval_graph(eval_model_uri)
        self._device = Device.parse(device)
        # A kernel that is not known is an error now, and not at the first call.
        self._values = load_lowered(self._graph)
        self._check_files(state)
        #: The whole numbers that inputs may hold which are indices.
        self._ranges = self._find_ranges(self._values)
        self._watch = ClassWatch(list(self._values.outputs.values()),
                                 {n: self._values.inputs[n] for n in self._graph.inputs}, "the training model")
        self._seed = np.frombuffer(_to_seed(seed).tobytes(), np.int32)
        self.training, self.state = True, state
        self.optimizer: Optimizer | None = None
        self._settings = engine, timeout, raise_on_divergence
        state.open(list(self._graph.gradients))
        self._number = state.n_modules
        self._resets, self._calls = True, 0
        self._habit = StepHabit()
        #: Where the last call has left an update that it computed ahead; None if it has not.
        self._ahead: tuple[object, ...] | None = None
        #: By mode, dtypes and shapes of the last inputs that were checked.
        self._checked: dict[bool, list[tuple[np.dtype, tuple[int, ...]]]] = {}
        self._steps = self._open(None)

    def _open(self, optimizer: OptimizerModel | None) -> Stepper:
        """The steps of the module, and of an optimizer, from the numbers of the state."""
        source = ArtifactSource(self._graph, self._eval, optimizer, self.state, self._device)
        return self._hold(self._make_steps(source, self._settings[0]))

    def _make_steps(self, source: ArtifactSource, engine: str) -> Stepper:
        """The steps of a source by an engine, from the numbers of the state."""
        steps = Stepper(source, engine, _ENGINES, *self._settings[1:])
        steps.engine.controls[SEED].fill(self._seed)
        return steps

    def _hold(self, steps: Stepper) -> Stepper:
        """Let steps go on with the state, and the state with their numbers."""
        self._n_steps = 0
        self.state.hold(steps.engine)
        return steps

    def _compile(self, feeds: Mapping[str, np.ndarray], kind: Training) -> None:
        """Go on in machine code, where so many short steps were taken that it pays."""
        source, n = self._steps.engine.source, self._n_steps
        assert isinstance(source, ArtifactSource)
        if type(self._steps.engine) is not StepEngine or not source.is_translatable:
            return
        sized = source.for_shapes({name: a.shape for name, a in feeds.items()}).for_kind(kind)
        if not repays_compilation(sized.compose().outputs.values(), n, sized.threads()):
            return
        steps = self._make_steps(source, "native")
        if isinstance(engine := steps.engine, NativeEngine):
            engine.reason = f"{n:,} short steps were taken, and the next take less time in machine code"
            engine.may_run_graphs = True
            with suppress(CompilerError):
                engine.evaluate(feeds, kind)
                self._steps = self._hold(steps)

    def _check_files(self, state: CheckpointState) -> None:
        """Refuse a checkpoint or an evaluation model of another model."""
        parameters = state.parameters
        for n in self._graph.parameters:
            declared, found = self._values.inputs[n], state.read(n)
            if state.is_nominal:  # generate_artifacts of 1.19.2 writes no shapes either.
                state.write(n, found := np.zeros([d if isinstance(d, int) else 0 for d in declared.shape or ()],
                                                 declared.dtype))
            if declared.dtype != found.dtype or (declared.shape is not None and not fits(found.shape, declared.shape)):
                raise CheckpointError(f"The parameter {n!r} is {found.dtype} of shape {found.shape} in the checkpoint, "
                                      f"and {declared.dtype} of shape {declared.shape} in the training model; give the "
                                      f"checkpoint that was made with it.")
        if self._eval is not None:
            known = {*self._graph.inputs, *parameters.keys(), *(i.name for i in self._eval.graph.initializer)}
            if other := [i.name for i in self._eval.graph.input if i.name not in known]:
                raise ModelError(f"The evaluation model has the input {other[0]!r}, which neither the training model "
                                 f"nor the checkpoint has; give the eval_model.onnx that was made with them.")

    def _find_ranges(self, model: Model) -> dict[str, Range]:
        """By input that is an index, the range of its numbers."""
        inputs = {n: v for n, v in model.inputs.items() if n not in self._graph.parameters}
        return index_ranges(inputs, list(model.outputs.values()))

    def _check_turn(self) -> None:
        """Refuse to compute with parameters that another module has taken over."""
        if self.state.n_modules != self._number:
            raise SettingError("Another Module has been made of the state since, and trains it; use that one, or load "
                               "the checkpoint once for each.")

    def __reduce__(self) -> Any:
        raise TypeError("A Module cannot be pickled or copied; pickle its state, and make a Module of that.")

    # Names.

    def input_names(self) -> list[str]:
        """The names of the inputs, in the order of the arguments of a call.

        Returns
        -------
        list of str
        """
        return list(self._graph.inputs if self.training else self._eval_names[0])

    def output_names(self) -> list[str]:
        """The names of the outputs of a call; the first of training is the loss.

        Returns
        -------
        list of str
        """
        return list(self._graph.outputs if self.training else self._eval_names[1])

    def train(self, mode: bool = True) -> Module:
        """Turn training mode on.

        Parameters
        ----------
        mode : bool
            Whether it is on.

        Returns
        -------
        Module
            Itself.
        """
        self.training = mode
        return self

    def eval(self) -> Module:
        """Turn training mode off.

        Returns
        -------
        Module
            Itself.
        """
        return self.train(False)

    # Running.

    def __call__(self, *user_inputs: object) -> np.ndarray | tuple[np.ndarray, ...]:
        """Compute the outputs, and in training mode the gradients.

        Parameters
        ----------
        *user_inputs : array_like
            An array for each of `input_names`.

        Returns
        -------
        numpy.ndarray or tuple of numpy.ndarray
            The outputs; a single output is returned alone.

        Raises
        ------
        DataError
            An input is missing, or has the wrong type or shape.
        ConvergenceError
            The loss of training is NaN or infinite; parameters and gradients are as before that batch.
        SettingError
            Another module has been made of the state.
        """
        self.state.check_loaded("Please load the model parameters first")
        with self.state.turn.lock:
            self._check_turn()
            if not self.training:
                outputs = self._steps.step(self._check(user_inputs), EVALUATION)
                return _unpack([outputs[n] for n in self.output_names()], user_inputs)
            results = self._train(user_inputs, updates=False)
            self._resets = False
            return results

    def step(self, *user_inputs: object) -> np.ndarray | tuple[np.ndarray, ...]:
        """Compute outputs and gradients, take a step of the optimizer, and reset the gradients, in a single graph.

        It does the work of ``module(...)``, ``optimizer.step()`` and ``module.lazy_reset_grad()``.

        Parameters
        ----------
        *user_inputs : array_like
            As for a call.

        Returns
        -------
        numpy.ndarray or tuple of numpy.ndarray
            The outputs, computed before the parameters change.

        Raises
        ------
        SettingError
            There is no optimizer, or the module is in evaluation mode.
        DataError, ConvergenceError
            As for a call.
        """
        if self.optimizer is None:
            raise SettingError("A step needs an Optimizer of the module; make one, Optimizer(path, module).")
        if not self.training:
            raise SettingError("A step needs training mode; call train() first.")
        self.state.check_loaded("Please load the model parameters first")
        with self.state.turn.lock:
            self._check_turn()
            results = self._train(user_inputs, updates=True)
            self.optimizer._count()
            self._resets = True
            return results

    def lazy_reset_grad(self) -> None:
        """Let the next gradients replace the present gradients."""
        self._resets = True

    def _train(self, user_inputs: Sequence[object], *, updates: bool) -> Any:
        """Forward and backward, and a step of the optimizer where it is asked for."""
        feeds = self._check(user_inputs)
        self._calls += 1
        optimizer, accumulates, self._ahead = self.optimizer, not self._resets, None
        ahead = (self._habit.expects_step(accumulates) and not updates and optimizer is not None
                 and self._steps.engine.copies > 1)
        kind = _KINDS[updates or ahead, accumulates]
        self._n_steps += 1
        if self._n_steps % OFTEN == 0 and self._settings[0] == "auto":
            self._compile(feeds, kind)
        steps, engine = self._steps, self._steps.engine
        engine.write_control(CALLS, self._calls)
        if optimizer is not None and (ahead or updates):
            optimizer._write_numbers()
        side = engine.side
        outputs = steps.step(feeds, kind, self._check_loss, ahead=ahead)
        self._habit.note_call(accumulates, updates)
        if ahead and engine.side != side:  # else it was refused, with a warning
            self._ahead = self._locate()
        return _unpack([outputs[n] for n in self._graph.outputs], user_inputs)

    def _locate(self) -> tuple[object, ...]:
        """All that an update depends on beside the gradients of the last call."""
        optimizer, engine = self.optimizer, self._steps.engine
        assert optimizer is not None
        return optimizer, optimizer._rate, optimizer._state.step, engine, engine.side, engine.changes

    def _update(self) -> None:
        """Change the parameters by the gradients that are there, or as the last call has done ahead."""
        self._habit.note_step()
        if self._ahead is not None and self._ahead == self._locate():
            self._steps.engine.advance()
        else:
            assert self.optimizer is not None
            self.optimizer._write_numbers()
            self._steps.step({}, UPDATE)
        self._ahead = None

    def _check_loss(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Refuse a step whose loss is not finite."""
        name = self._graph.outputs[0]
        loss = outputs[name]
        if loss.dtype.kind == "f" and not (isfinite(loss.item()) if loss.size == 1 else np.isfinite(loss).all()):
            raise ConvergenceError(f"The loss {name!r} is {loss}; parameters and gradients are those before that "
                                   f"batch. Look for NaN in the data, or lower the learning rate.")

    def _check(self, user_inputs: Sequence[object]) -> dict[str, np.ndarray]:
        """The inputs by name, in the dtypes of the graph."""
        names = self._graph.inputs if self.training else self._eval_names[0]
        ranges = self._ranges if self.training else self._eval_ranges
        if _are_alike(user_inputs, self._checked.get(self.training)):
            feeds: dict[str, Any] = dict(zip(names, user_inputs, strict=True))
            check_indices(ranges, feeds)
        else:
            feeds = self._convert(names, user_inputs)
            check_indices(ranges, feeds)
            # All are arrays that are taken as they are.
            if all(a is feeds[n] for n, a in zip(names, user_inputs, strict=True)):
                self._checked[self.training] = [(a.dtype, a.shape) for a in feeds.values()]
        if self.training and self._watch.watched:
            self._watch.look({n: to_array(a, f"The input {n!r}") for n, a in zip(names, user_inputs, strict=True)})
        return feeds

    def _convert(self, names: Sequence[str], user_inputs: Sequence[object]) -> dict[str, np.ndarray]:
        """The inputs by name, checked, in the dtypes of the graph."""
        if len(user_inputs) != len(names):
            raise DataError(f"A call takes {len(names)} inputs, {', '.join(names)}; {len(user_inputs)} were given.")
        known, feeds = (self._values if self.training else self._eval_values).inputs, {}
        for name, value in zip(names, user_inputs, strict=True):
            declared, array = known[name], to_array(value, f"The input {name!r}")
            if declared.dtype != array.dtype:
                array = to_dtype(array, declared.dtype, f"The input {name!r}")
            if declared.shape is not None and not fits(array.shape, declared.shape):
                raise DataError(f"The input {name!r} has shape {array.shape}, and the model reads "
                                f"{list(declared.shape)}.")
            if not array.size:
                raise DataError(f"The input {name!r} has no elements, by its shape {array.shape}; leave the batch out.")
            feeds[name] = array
        return feeds

    # Evaluation.

    def _eval_model(self) -> ModelProto:
        if self._eval is None:
            raise SettingError("The module has no evaluation model; give eval_model_uri.")
        return self._eval

    @cached_property
    def _eval_names(self) -> tuple[list[str], list[str]]:
        """The inputs of the user, and the outputs."""
        graph = self._eval_model().graph
        return ([i.name for i in graph.input if i.name not in self.state.parameters], [o.name for o in graph.output])

    @cached_property
    def _eval_values(self) -> Model:
        return load_model(self._eval_model())

    @cached_property
    def _eval_ranges(self) -> dict[str, Range]:
        return self._find_ranges(self._eval_values)

    # Flat parameters.

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """The number of elements of the parameters.

        Parameters
        ----------
        trainable_only : bool
            Whether frozen parameters are left out.

        Returns
        -------
        int
        """
        return sum(self.state.read(n).size for n in self._listed(trainable_only))

    def get_contiguous_parameters(self, trainable_only: bool = False) -> FlatParameters:
        """All parameters in a vector, in the order of the inputs of the model.

        Parameters
        ----------
        trainable_only : bool
            Whether frozen parameters are left out.

        Returns
        -------
        numpy.ndarray
            float32, a copy, whose method `numpy` returns it, as that of onnxruntime's vector does.
        """
        self.state.check_loaded("Please load the model parameters first")
        arrays = [self.state.read(n).reshape(-1) for n in self._listed(trainable_only)]
        return np.concatenate([*arrays, np.zeros(0, np.float32)]).astype(np.float32, copy=False).view(FlatParameters)

    def copy_buffer_to_parameters(self, buffer: object, trainable_only: bool = True) -> None:
        """Set all parameters from a vector.

        Parameters
        ----------
        buffer : array_like
            The vector of `get_contiguous_parameters`.
        trainable_only : bool
            As it was there.

        Raises
        ------
        DataError
            It has another number of elements.
        """
        flat = to_array(buffer, "The buffer").reshape(-1)
        if flat.size != (size := self.get_parameters_size(trainable_only)):
            raise DataError(f"The parameters have {size} elements together, and the buffer {flat.size}.")
        if trainable_only:
            self.state.check_loaded("Please load the model parameters first")
        self.state.is_nominal = False
        flat, start = to_dtype(flat, np.dtype(np.float32), "The buffer"), 0
        for n in self._listed(trainable_only):
            shape = self.state.read(n).shape
            end = start + int(np.prod(shape, dtype=np.int64))
            self.state.parameters[n] = flat[start:end].reshape(shape)
            start = end

    def _listed(self, trainable_only: bool) -> list[str]:
        trained = {n for n, p in self.state.parameters if p.requires_grad}
        return [n for n in self._graph.parameters if not trainable_only or n in trained]

    # Models.

    def forward_model(self) -> ModelProto:
        """The model with its loss and the parameters as initializers: an ordinary ONNX model.

        `OrtGradientOptimizer` trains it, and its weights have the names of the parameters.

        Returns
        -------
        onnx.ModelProto

        Raises
        ------
        SettingError
            There is no evaluation model.
        """
        model = ModelProto()
        model.CopyFrom(self._eval_model())
        parameters = self.state.parameters
        kept = [i for i in model.graph.input if i.name not in parameters]
        stored = [i.name for i in model.graph.input if i.name in parameters]
        del model.graph.input[:]
        model.graph.input.extend(kept)
        model.graph.initializer.extend(numpy_helper.from_array(parameters[n].data, n) for n in stored)
        return model

    def export_model_for_inferencing(self, inference_model_uri: str | os.PathLike[str],
                                     graph_output_names: Sequence[str]) -> None:
        """Write the model for inference, with the parameters as they are.

        Parameters
        ----------
        inference_model_uri : path
            The file.
        graph_output_names : sequence of str
            The tensors that become its outputs, such as the scores from which the loss was computed.

        Raises
        ------
        SettingError
            There is no evaluation model.
        DataError
            It has no such tensor.
        ConvergenceError
            The training has made a parameter NaN or infinite; the file remains as it is.
        """
        model = self.forward_model()
        names = [graph_output_names] if isinstance(graph_output_names, str) else list(graph_output_names or ())
        values = load_model(model).values
        computed = [n for n in values if n not in self.state.parameters]
        if not names or (unknown := [n for n in names if n not in computed]):
            what = f"the evaluation model does not compute {unknown[0]!r}" if names else "none was given"
            raise DataError(f"The outputs are names of tensors, and {what}; it has "
                            f"{', '.join(map(repr, computed))}.")
        self.state.check_finite("forward_model")
        have = {o.name for o in model.graph.output}
        for n in names:
            if n not in have:
                model.graph.output.add(name=n, type=values[n].type)
        pruned = prune_outputs(model, names)
        ordered = {o.name: o for o in pruned.graph.output}
        copies = [type(o).FromString(o.SerializeToString()) for o in (ordered[n] for n in names)]
        del pruned.graph.output[:]
        pruned.graph.output.extend(copies)
        write(pruned, inference_model_uri)

    def __repr__(self) -> str:
        trained = sum(self.state.read(n).size for n in self._graph.gradients)
        return (f"<Module {', '.join(self._graph.inputs)} -> {', '.join(self._graph.outputs)}; "
                f"{len(self._graph.gradients)} trained parameters ({trained:,} numbers)>")


class FlatParameters(np.ndarray):
    """All parameters in one vector, which has `numpy`, as an OrtValue has."""

    def numpy(self) -> np.ndarray:
        """The vector as an array."""
        return np.asarray(self)


def _are_alike(arrays: Sequence[object], expected: Sequence[tuple[np.dtype, tuple[int, ...]]] | None) -> bool:
    """Whether these are arrays of such dtypes and shapes; microseconds count here."""
    if expected is None or len(arrays) != len(expected):
        return False
    for a, (dtype, shape) in zip(arrays, expected, strict=True):
        if type(a) is not np.ndarray or a.dtype is not dtype or a.shape != shape:
            return False
    return True


def _unpack(results: Sequence[np.ndarray], user_inputs: Sequence[object]) -> Any:
    """The outputs, as OrtValues where the inputs are."""
    kinds = {type(value) for value in user_inputs}
    if len(kinds) == 1 and np.ndarray not in kinds and hasattr(kind := kinds.pop(), "ortvalue_from_numpy"):
        results = [kind.ortvalue_from_numpy(np.ascontiguousarray(a)) for a in results]
    return results[0] if len(results) == 1 else tuple(results)


def _to_seed(seed: Any) -> np.int64:
    try:
        return np.int64(operator.index(seed))
    except (TypeError, OverflowError):
        raise SettingError(f"seed is {seed!r}; a whole number of 64 bits was expected.") from None


def _to_rate(rate: Any, name: str) -> float:
    try:
        number = float(rate)
    except (TypeError, ValueError, OverflowError):
        number = np.nan
    if not 0 <= number <= float(np.finfo(np.float32).max):
        raise SettingError(f"{name} is {rate!r}; a finite number of at least 0 was expected.")
    return number


class Optimizer:
    """An optimizer, as `onnxruntime.training.api.Optimizer`: AdamW or SGD, with or without clipping of gradients.

    Parameters
    ----------
    optimizer_uri : onnx.ModelProto, bytes or path
        ``optimizer_model.onnx``.
    module : Module
        The module, whose state has the momentums if it was saved with them.

    Raises
    ------
    ModelError
        The model has an operator that is not known; the message names it.

    Examples
    --------
    The loss is w·x; the models, written as text here, are files that `generate_artifacts` wrote.

    >>> from onnx.parser import parse_model
    >>> training_model = parse_model('''
    ...     <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    ...     training (float[2] x, float[2] w, float[2] buffer, bool[1] reset) => (float loss, bool[1] done)
    ...     {
    ...         y = Mul (x, w)
    ...         loss = ReduceSum <keepdims = 0> (y)
    ...         w_grad = Identity (x)
    ...         done = com.microsoft.InPlaceAccumulatorV2 (buffer, w_grad, reset)
    ...     }''')
    >>> optimizer_model = parse_model('''
    ...     <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    ...     optimizer (float[1] learning_rate, int64[1] step, seq(float[]) params, seq(float[]) gradients,
    ...                seq(float[]) first_order_moments) => (bool[1] done)
    ...     { done = com.microsoft.SGDOptimizerV2 (learning_rate, params, gradients) }''')
    >>> state = CheckpointState(Checkpoint({"w": np.ones(2, np.float32)}))
    >>> module = Module(training_model, state)
    >>> optimizer = Optimizer(optimizer_model, module)
    >>> optimizer.set_learning_rate(0.5)
    >>> module(np.array([1.0, 2.0], np.float32)).item()
    3.0
    >>> optimizer.step()
    >>> state.parameters["w"].data
    array([0.5, 0. ], dtype=float32)
    """

    def __init__(self, optimizer_uri: Any, module: Module):
        if not isinstance(module, Module):
            raise SettingError(f"module is a Module of ortpartial.artifacts, not {type(module).__name__}.")
        module._check_turn()
        self._model, self._module = read_optimizer(optimizer_uri), module
        self._state = module.state.open_optimizer(self._model.momentums)
        self._rate = self._state.learning_rate
        module._steps = module._open(self._model)
        module.optimizer = self

    def step(self) -> None:
        """Change the parameters by the gradients that are there.

        Raises
        ------
        SettingError
            Another optimizer has been made for the module, or another module of its state.
        """
        module = self._module
        module.state.check_loaded("Please load the model parameters first")
        with module.state.turn.lock:
            module._check_turn()
            if module.optimizer is not self:
                raise SettingError("Another Optimizer has been made for the module since, and has its momentums; use "
                                   "that one.")
            module._update()
            self._count()

    def _write_numbers(self) -> None:
        engine = self._module._steps.engine
        engine.write_control(RATE, self._rate)
        engine.write_control(STEP, self._state.step)

    def _count(self) -> None:
        self._state.step += 1

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the next steps.

        Parameters
        ----------
        learning_rate : float
            A number of at least 0.

        Raises
        ------
        SettingError
            It is negative, NaN or no number.
        """
        self._rate = _to_rate(learning_rate, "The learning rate")

    def get_learning_rate(self) -> float:
        """The learning rate of the next step.

        Returns
        -------
        float
        """
        return self._rate

    def __reduce__(self) -> Any:
        raise TypeError("An Optimizer cannot be pickled or copied; pickle the state of its module.")

    def __repr__(self) -> str:
        return f"<Optimizer {self._model!r}, {self._state.step} steps taken>"


class LinearLRScheduler:
    """A learning rate that rises from 0 and then falls to 0, as `onnxruntime.training.api.LinearLRScheduler` says.

    The scheduler of 1.19.2 takes its first count for the second and its second for the first: trainings by it go on
    with the two swapped.

    Parameters
    ----------
    optimizer : Optimizer
        The optimizer.
    warmup_step_count : int
        The number of steps in which it rises.
    total_step_count : int
        The number of all steps.
    initial_lr : float
        The largest learning rate.

    Examples
    --------
    The loss is w·x; the models, written as text here, are files that `generate_artifacts` wrote.

    >>> from onnx.parser import parse_model
    >>> training_model = parse_model('''
    ...     <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    ...     training (float[2] x, float[2] w, float[2] buffer, bool[1] reset) => (float loss, bool[1] done)
    ...     {
    ...         y = Mul (x, w)
    ...         loss = ReduceSum <keepdims = 0> (y)
    ...         w_grad = Identity (x)
    ...         done = com.microsoft.InPlaceAccumulatorV2 (buffer, w_grad, reset)
    ...     }''')
    >>> optimizer_model = parse_model('''
    ...     <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    ...     optimizer (float[1] learning_rate, int64[1] step, seq(float[]) params, seq(float[]) gradients,
    ...                seq(float[]) first_order_moments) => (bool[1] done)
    ...     { done = com.microsoft.SGDOptimizerV2 (learning_rate, params, gradients) }''')
    >>> state = CheckpointState(Checkpoint({"w": np.ones(2, np.float32)}))
    >>> module = Module(training_model, state)
    >>> optimizer = Optimizer(optimizer_model, module)
    >>> scheduler = LinearLRScheduler(optimizer, warmup_step_count=2, total_step_count=4, initial_lr=0.1)
    >>> for _ in range(4):
    ...     loss = module.step(np.array([1.0, 2.0], np.float32))
    ...     scheduler.step()
    ...     print(f"{optimizer.get_learning_rate():.2f}")
    0.05
    0.10
    0.05
    0.00
    """

    def __init__(self, optimizer: Optimizer, warmup_step_count: int, total_step_count: int, initial_lr: float):
        if not isinstance(optimizer, Optimizer):
            raise SettingError(f"optimizer is an Optimizer of ortpartial.artifacts, not {type(optimizer).__name__}.")
        counts = warmup_step_count, total_step_count
        if not all(isinstance(n, int | np.integer) for n in counts) or counts[0] < 0 or counts[1] < max(1, counts[0]):
            raise SettingError(f"warmup_step_count is a whole number of at least 0, and total_step_count one of at "
                               f"least 1 that is not less, not {warmup_step_count!r} and {total_step_count!r}.")
        self._optimizer, self._warmup, self._total = optimizer, warmup_step_count, total_step_count
        self._initial = _to_rate(initial_lr, "initial_lr")
        self.step()

    def step(self) -> None:
        """Set the learning rate of the optimizer: once after each of its steps, and at first by itself."""
        k = self._optimizer._state.step
        if k < self._warmup:
            factor = k / max(1, self._warmup)
        else:
            factor = max(0.0, (self._total - k) / max(1, self._total - self._warmup))
        self._optimizer.set_learning_rate(self._initial * factor)


@checked
def load(folder: str | os.PathLike[str], *, prefix: str = "", checkpoint: str | os.PathLike[str] | None = None,
         device: DeviceName | Device = "cpu", seed: int = 0, engine: str = "auto", timeout: float | None = None,
         custom_ops_library: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
         raise_on_divergence: bool = True) -> Module:
    """Go on with a training that `onnxruntime.training.artifacts.generate_artifacts` has prepared.

    Parameters
    ----------
    folder : path
        Where ``training_model.onnx``, ``eval_model.onnx``, ``optimizer_model.onnx`` and ``checkpoint`` are. The second
        and the third may be missing.
    prefix : str
        The prefix of their names.
    checkpoint : path, optional
        Another checkpoint, such as a checkpoint saved during the training.
    device : str or Device
        As for `Module`.
    seed : int
        As for `Module`.
    engine : str
        As for `Module`.
    timeout : float, optional
        As for `Module`.
    custom_ops_library : path or sequence of path, optional
        As for `Module`.
    raise_on_divergence : bool
        As for `Module`.

    Returns
    -------
    Module
        Its attribute `optimizer` is the `Optimizer`, if any.

    Raises
    ------
    ModelError, CheckpointError
        A file is missing, malformed, or has unknown parts; the message names them.

    Examples
    --------
    The loss is w·x; `generate_artifacts` writes the models, which are text here.

    >>> from onnx.parser import parse_model
    >>> training_model = parse_model('''
    ...     <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    ...     training (float[2] x, float[2] w, float[2] buffer, bool[1] reset) => (float loss, bool[1] done)
    ...     {
    ...         y = Mul (x, w)
    ...         loss = ReduceSum <keepdims = 0> (y)
    ...         w_grad = Identity (x)
    ...         done = com.microsoft.InPlaceAccumulatorV2 (buffer, w_grad, reset)
    ...     }''')
    >>> optimizer_model = parse_model('''
    ...     <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    ...     optimizer (float[1] learning_rate, int64[1] step, seq(float[]) params, seq(float[]) gradients,
    ...                seq(float[]) first_order_moments) => (bool[1] done)
    ...     { done = com.microsoft.SGDOptimizerV2 (learning_rate, params, gradients) }''')
    >>> Path("folder").mkdir()
    >>> Path("folder/training_model.onnx").write_bytes(training_model.SerializeToString()) > 0
    True
    >>> Path("folder/optimizer_model.onnx").write_bytes(optimizer_model.SerializeToString()) > 0
    True
    >>> weights = CheckpointState(Checkpoint({"w": np.ones(2, np.float32)}))
    >>> CheckpointState.save_checkpoint(weights, "folder/checkpoint")

    This is how a training goes on:

    >>> from ortpartial import artifacts
    >>> module = artifacts.load("folder")
    >>> module.optimizer.set_learning_rate(0.5)
    >>> for x in np.eye(2, dtype=np.float32):
    ...     print(module.step(x))
    1.0
    1.0
    >>> artifacts.CheckpointState.save_checkpoint(module.state, "trained")
    >>> artifacts.load("folder", checkpoint="trained").state.parameters["w"].data
    array([0.5, 0.5], dtype=float32)
    """
    folder = Path(folder)
    files = {kind: folder / f"{prefix}{kind}_model.onnx" for kind in ("training", "eval", "optimizer")}
    if not files["training"].is_file():
        ort = files["training"].with_suffix(".ort")
        hint = "; models in ORT format have to be generated again without ort_format" if ort.is_file() else ""
        raise FileMissingError(f"There is no file {str(files['training'])!r}{hint}; give the folder that "
                               f"generate_artifacts wrote to, and its prefix.")
    state = CheckpointState.load_checkpoint(folder / f"{prefix}checkpoint" if checkpoint is None else checkpoint)
    evaluation = files["eval"] if files["eval"].exists() else None
    module = Module(files["training"], state, evaluation, device, seed=seed, engine=engine, timeout=timeout,
                    custom_ops_library=custom_ops_library, raise_on_divergence=raise_on_divergence)
    if files["optimizer"].exists():
        Optimizer(files["optimizer"], module)
    return module
