"""Modules: models written in Python, compiled into a graph that holds their training."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import CallbackLike, Data, DataLike, DTypeLike, Json, MetricLike, Settings
from ortpartial.checks import check_count, check_flag
from ortpartial.exceptions import DataError, GraphError, ModelError, SettingError
from ortpartial.execution import SparseRows, TrainingView, view_training
from ortpartial.graph import Arithmetic, Value, variable
from ortpartial.learning import Meter, Piece, RateLike, answer_keywords, check_metrics, resolve_metric
from ortpartial.model import draw_card
from ortpartial.rewrites import LossScale
from ortpartial.runtime import DeviceName

from . import serialization
from .changes import note_change
from .compilation import Program
from .eager import EagerProgram
from .fitting import fit
from .losses import Loss
from .nested import Nested
from .optimizer import Optimizer
from .parameter import Buffer, Parameter, find_holder
from .parts import Part, has_own_step, is_in_evaluation, list_attributes, set_default_step, set_mode
from .placeholders import list_arguments
from .rows import concatenate, cut, to_arrays
from .summary import Summary, summarize
from .trace import WEIGHTS, current_trace
from .trainer import ModuleTrainer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ModelModule", "Module", "placeholder", "register_reader"]


#: How the step size of a module is written.
_STEP_SIZE = "the step size stands in the algorithm, as in set_optimizer(LearningRateAdam(0.01))"
_SEED = "compile takes random_state, which the order of the rows follows from, too"


@answer_keywords(type="its name is dtype")
def placeholder(shape: Sequence[int | str | None], dtype: DTypeLike = "float32", name: str = "") -> Value:
    """An input without data, to compile a module on.

    Parameters
    ----------
    shape : sequence of int, str or None
        Its sizes; a name such as ``"N"`` stands for a size that may differ in every batch.
    dtype : numpy dtype or its name
        Its element type.
    name : str
        The name of the input; by default as in the signature of `forward` or `train_one_batch`.

    Returns
    -------
    Value

    Raises
    ------
    SettingError
        The number of axes is not known.

    Examples
    --------
    >>> placeholder(["N", 1, 8, 8])
    <Value input float32[Nx1x8x8]>
    """
    if shape is None:
        raise SettingError("A placeholder needs a shape, as its rank decides which graph is written; write a name, "
                           "such as 'N', for each size that is not known.")
    return variable(name, dtype, shape)


def _run_compiled(function: Callable[..., Nested]) -> Callable[..., Nested]:
    """A `train_one_batch` that is called with arrays as well: then the step that it has written is run."""

    @wraps(function)
    def train_one_batch(self: Module, *batch: Nested) -> Nested:
        return self._compiled.step(batch) if current_trace() is None else function(self, *batch)

    return train_one_batch


class Module(Part):
    """A model, or a part of it, written in Python: its `forward` computes values from values.

    Parameters, buffers and other modules are found by attribute, also in lists, tuples and dicts, and are named by it.
    `compile` calls `forward` on placeholders, which hold no data, and makes the weights and the graph; arrays are then
    taken by the module itself, by `train_one_batch`, `fit` and `predict`. Optimizers and losses may be replaced, and
    change in themselves, between two batches. Other attributes that the code reads, such as numbers, are constants of
    the graph: after a change, compile again, which keeps the weights.

    Attributes
    ----------
    training : bool
        Whether the module is in training mode: see `train` and `eval`.
    optimizer : Optimizer or None
        The optimizer of `set_optimizer`.

    Examples
    --------
    >>> from ortpartial import nn, op
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         self.hidden, self.out = nn.Linear(2, 8), nn.Linear(8, 1)
    ...     def forward(self, x):
    ...         return self.out(op.Tanh(self.hidden(x)))
    >>> model = Net()
    >>> model.set_optimizer("adam")
    <Net>
    >>> model.compile(nn.placeholder(["N", 2]), random_state=0)
    <Net, 33 parameters>
    >>> x = np.float32([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> output, loss = model.train_one_batch(x, x[:, :1] * x[:, 1:])
    >>> output.shape, loss.shape
    ((4, 1), ())
    """

    _program: Program | None = None
    _trainer: ModuleTrainer | None = None
    optimizer: Optimizer | None = None

    def __init_subclass__(cls, **settings: object) -> None:
        super().__init_subclass__(**settings)
        if "train_one_batch" in vars(cls):
            cls.train_one_batch = _run_compiled(vars(cls)["train_one_batch"])  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: object) -> None:
        old = vars(self).get(name)
        if isinstance(old, Parameter) and value is not None and not isinstance(value, Parameter):
            trace = current_trace()
            if trace is None or not isinstance(old, Buffer) or not isinstance(value, Value):
                raise SettingError(f"{name!r} is a {type(old).__name__} of {type(self).__name__}, and a "
                                   f"{type(value).__name__} cannot take its place; its method set changes its numbers.")
            trace.write(old, value)
            return
        super().__setattr__(name, value)
        if any(isinstance(x, (Module, Parameter, Optimizer, Loss, Piece)) for x in (old, value)):
            note_change()

    # -- what users write

    def forward(self, *inputs: Nested) -> Nested:
        """Compute the outputs of the module from its inputs; subclasses write it.

        Returns
        -------
        Value, or tuple, list or dict of them
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward(self, x), which computes its output.")

    def train_one_batch(self, *batch: Nested) -> Nested:
        """A step of the training, which subclasses may write: losses, and the updates of optimizers.

        With arrays, the step is run; its code is called once, on placeholders. The default takes the outputs of
        `forward`, the softmax cross entropy for whole numbers as targets and the square loss for others, and
        `optimizer`.

        Parameters
        ----------
        *batch : array_like
            The inputs of `forward`, then the target, and the weights of the rows where `fit` is given some.

        Returns
        -------
        output, loss : numpy.ndarray
            The results of the code, with arrays in place of values; the loss is taken before the update.

        Raises
        ------
        ModelError
            The module is not compiled, or has no optimizer.
        DataError
            An array does not fit its placeholder.
        """
        weights = batch[-1] if getattr(batch[-1], "hint", "") == WEIGHTS else None
        *inputs, target = batch if weights is None else batch[:-1]
        if self.optimizer is None:
            raise ModelError(f"{type(self).__name__} has no optimizer; call set_optimizer, as in "
                             f"set_optimizer('adam').")
        output = self.forward(*inputs)
        if not isinstance(output, Value):
            raise GraphError(f"{type(self).__name__}.forward returns a {type(output).__name__}, and train_one_batch "
                             f"takes the loss of one output; write one that takes those of several.")
        loss = Loss("square_error" if target.is_float else "softmax_cross_entropy")(output, target, weights)
        self.optimizer(loss)
        return output, loss

    @staticmethod
    def from_onnx(model: Any, trainable: Any = None) -> ModelModule:
        """Make a module of an ONNX model, to be trained, by itself or as a part of another module.

        Parameters
        ----------
        model : onnx.ModelProto, bytes, path or Model
            The model.
        trainable : str, sequence of str, or callable, optional
            The initializers that become parameters, by default all that a gradient reaches: see `OnnxModule`.

        Returns
        -------
        OnnxModule

        Raises
        ------
        ModelError
            The model cannot be read, or has no such weight.
        """
        return _READERS[0](model, trainable)

    # -- attributes

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """Iterate over the module itself, under the empty name, and all modules in it.

        Yields
        ------
        name : str
            Such as ``"encoder.0.linear1"``.
        module : Module
            Each once.
        """
        seen: set[int] = set()

        def walk(module: Module, prefix: str) -> Iterator[tuple[str, Module]]:
            if id(module) not in seen:
                seen.add(id(module))
                yield prefix, module
                for name, child in list_attributes(module, Module):
                    yield from walk(child, f"{prefix}.{name}" if prefix else name)

        yield from walk(self, "")

    def named_parameters(self, *, buffers: bool = False) -> Iterator[tuple[str, Parameter]]:
        """Iterate over the parameters of the module and of all modules in it.

        Parameters
        ----------
        buffers : bool
            Whether buffers, such as running means, are included.

        Yields
        ------
        name : str
            Such as ``"encoder.0.linear1.weight"``.
        parameter : Parameter
            Each once.
        """
        seen: set[int] = set()
        for prefix, module in self.named_modules():
            for name, p in list_attributes(module, Parameter):
                if id(p) not in seen and (buffers or not isinstance(p, Buffer)):
                    seen.add(id(p))
                    yield f"{prefix}.{name}" if prefix else name, p

    def named_optimizers(self) -> Iterator[tuple[str, Optimizer]]:
        """Iterate over the optimizers of the module and of all modules in it.

        Yields
        ------
        name : str
            Such as ``"optimizer"``.
        optimizer : Optimizer
        """
        for prefix, module in self.named_modules():
            for name, optimizer in list_attributes(module, Optimizer):
                yield f"{prefix}.{name}" if prefix else name, optimizer

    def get_params(self) -> Iterator[tuple[str, Parameter]]:
        """`named_parameters` under a former name, until version 0.3: at other doors `get_params` has settings.

        Returns
        -------
        iterator of pairs of str and Parameter

        Warns
        -----
        FutureWarning
            The name is a former one.
        """
        warnings.warn(f"{type(self).__name__}: 'get_params' is a former name of a method, and goes in version 0.3; its "
                      f"name is named_parameters.", FutureWarning, stacklevel=2)
        return self.named_parameters()

    def parameters(self) -> Iterator[Parameter]:
        """Iterate over the parameters.

        Yields
        ------
        Parameter
        """
        yield from (p for _, p in self.named_parameters())

    # -- modes

    @property
    def training(self) -> bool:
        """Whether the module is in training mode; while a graph is written, that of the graph."""
        trace = current_trace()
        return bool(self._mode) if trace is None else trace.training and not is_in_evaluation(self, trace.module)

    def train(self, mode: bool = True) -> Self:
        """Put the module and all modules in it into training mode.

        In evaluation, a part of a model stays so while the whole is trained: call `eval` of the part after that.

        Parameters
        ----------
        mode : bool
            False for evaluation.

        Returns
        -------
        Module
            Itself.
        """
        note_change()
        for _, module in self.named_modules():
            set_mode(module, mode)
        return self

    def eval(self) -> Self:
        """Put the module and all modules in it into evaluation mode.

        Returns
        -------
        Module
            Itself.
        """
        return self.train(False)

    # -- compilation

    @answer_keywords(lr=_STEP_SIZE, learningrate=_STEP_SIZE, eta0=_STEP_SIZE)
    def set_optimizer(self, rate: Optimizer | RateLike, **settings: Any) -> Self:
        """Set the optimizer of `train_one_batch` and `fit`.

        Parameters
        ----------
        rate : Optimizer, BaseLearningRate, str, float or Chain
            The optimizer, or its algorithm and step size, or a `chain` of the update.
        **settings : object
            As for `Optimizer`.

        Returns
        -------
        Module
            Itself.
        """
        self.optimizer = rate if isinstance(rate, Optimizer) else Optimizer(rate, **settings)
        if self._program is not None:
            self._program.forget_steps()
        return self

    @answer_keywords(optimizer="call set_optimizer('adam') before", lr=_STEP_SIZE, learningrate=_STEP_SIZE,
                     loss="whole numbers as targets have the softmax cross entropy and others the square loss, and a "
                          "train_one_batch of your own takes any nn.Loss",
                     metrics="give them to fit or evaluate, as in fit(X, y, metrics=['accuracy'])")
    def compile(self, inputs: Data, is_train: bool = True, use_graph: bool = True, sequential: bool = False, *,
                targets: Data = None, random_state: int | None = None, device: DeviceName = "cpu",
                engine: str = "auto", checkpointing: bool | str | None = None,
                precision: str | None = None, loss_scale: LossScale | float | None = None) -> Self:
        """Write the graph of the module, and make its weights.

        Parameters
        ----------
        inputs : Value, array_like, or sequence of them
            The inputs of `forward`: placeholders, or arrays as examples, whose first axis is the rows.
        is_train : bool
            Whether the module is put into training mode, or into evaluation.
        use_graph : bool
            Whether a batch is a run of a graph. Without, the code is called with every batch, and operators are run
            singly, on the CPU: values show their numbers when they are printed, ``x.numpy()`` and ``float(x)`` return
            them, and a breakpoint stops in `forward`. The numbers are the same.
        sequential : bool
            Whether a single thread computes, so that numbers do not depend on the cores of the machine, to the last
            bit.
        targets : like inputs, optional
            The arguments of `train_one_batch` after the inputs; the step is then written here, and else at the first
            batch, for targets of its sizes and any number of rows.
        random_state : int, optional
            The seed of the first weights, the Dropout masks and the order of the rows.
        device : str or tuple of str and dict
            ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or an execution provider, as in `OrtGradientForwardBackwardOptimizer`.
        engine : str
            The engine of the steps: ``"epoch"``, ``"step"``, ``"native"``, or ``"auto"``, as in
            `OrtGradientForwardBackwardOptimizer`; `engine_` and `engine_reason_` say which.
        checkpointing : None or "auto"
            Gradient checkpointing: ``"auto"`` (or True) recomputes values in the backward pass instead of keeping them,
            for less memory, more time and the same numbers, as in `OrtGradientForwardBackwardOptimizer`.
        precision : str, optional
            Mixed precision, ``"float16"`` or ``"bfloat16"``: the dtype of products during training. Sums of many
            numbers, results of `Loss`, weights and their update stay in the dtype of the module, as does all that is
            computed in evaluation mode. ``"bfloat16"`` is fast on processors with AVX512-BF16, by engine ``"native"``;
            float16 is meant for devices, and engines ``"step"`` and ``"epoch"``: see
            `OrtGradientForwardBackwardOptimizer`.
        loss_scale : float or LossScale, optional
            The factor of losses before differentiation, by default a `LossScale` for float16, which adapts the factor
            and skips updates whose gradients overflow; a number is fixed, and skips none.

        Returns
        -------
        Module
            Itself.

        Raises
        ------
        SettingError
            The engine is not known, or does not run on the device; or a setting is out of range.
        GraphError
            Shapes or types do not fit together; the message names the layer.
        """
        program = Program if use_graph else EagerProgram
        self._program = program(self, _to_list(inputs), None if targets is None else _to_list(targets),
                                use_graph=use_graph, sequential=sequential, random_state=random_state, device=device,
                                engine=engine, checkpointing=checkpointing,
                                precision=precision, loss_scale=loss_scale)
        return self.train(is_train)

    @property
    def _compiled(self) -> Program:
        """The program that `compile` has made."""
        if self._program is None:
            raise ModelError(f"{type(self).__name__} is not compiled; call compile with a placeholder for each input, "
                             f"such as nn.placeholder(['N', 3]), or with arrays.")
        return self._program

    @property
    def _whole(self) -> Program:
        """The program that `compile` has made; a part of a compiled module has no training of its own."""
        if self._program is None:
            for p in self.parameters():
                if (holder := find_holder(p)) is not None:
                    whole, part = type(holder.module).__name__, type(self).__name__
                    raise ModelError(f"This {part} is a part of a {whole}, which has the training of both; save and "
                                     f"load that, or take state_dict() and load_state_dict of the {part}.")
        return self._compiled

    @property
    def engine_(self) -> str:
        """The engine that takes the steps."""
        return self._compiled.engine_name

    @property
    def engine_reason_(self) -> str:
        """Why this engine was chosen."""
        return self._compiled.engine_reason

    @property
    def graph(self) -> ModelProto:
        """The ONNX model with the current weights and, as far as it is written, the training of the module."""
        self._compiled.complete()
        return self._compiled.write_model()

    def to_onnx(self) -> ModelProto:
        """Write the module in evaluation mode as an ONNX model.

        Returns
        -------
        onnx.ModelProto
            With the current weights, without the training.
        """
        self._compiled.complete()
        return self._compiled.write_model(training=False)

    def export_step(self, folder: str | os.PathLike[str], targets: str | Sequence[str] = ("web",), *,
                    batch_size: int | None = None, batch_sizes: Sequence[int] | None = None) -> dict[str, Path]:
        """Write a training kit, which trains the module where there is no Python, such as in a browser.

        Parameters
        ----------
        folder, targets, batch_size, batch_sizes : object
            As for `write_kit`.

        Returns
        -------
        dict of str to pathlib.Path
            The files by name.

        Raises
        ------
        SettingError, ModelError, OSError
            As for `write_kit`.
        """
        from ortpartial.kits import write_kit  # late: few programs need it

        return write_kit(self.graph, folder, targets, batch_size=batch_size, batch_sizes=batch_sizes)

    def summary(self, *, sizes: Mapping[str, int] | None = None, depth: int | None = None) -> Summary:
        """The shapes, parameters and costs of the layers in evaluation; ``print(model.summary())`` shows a table.

        An element of an elementwise operator or a reduction counts as a floating-point operation, a product that is
        summed as two.

        Parameters
        ----------
        sizes : dict of str to int, optional
            By their names, sizes that placeholders leave open, such as ``{"N": 32}``; 1 by default.
        depth : int, optional
            How deep the layers may be nested that have a row; all by default.

        Returns
        -------
        Summary
            Its ``rows`` are the table as data.

        Raises
        ------
        SettingError
            No placeholder has a size of this name.
        """
        return summarize(self._compiled, sizes, depth)

    # -- arrays

    def __call__(self, *inputs: Nested, **settings: Nested) -> Nested:
        """Apply the module to values, while a graph is written, or to arrays, once it is compiled.

        Parameters
        ----------
        *inputs : Value or array_like
            The inputs of `forward`.
        **settings : object
            Inputs by name; with values, all that `forward` takes.

        Returns
        -------
        Value or numpy.ndarray, or tuple, list or dict of them
            The results of `forward`. In training mode, Dropout and batch statistics are as in training.
        """
        trace = current_trace()
        if trace is not None:
            return trace.call(self, inputs, settings)
        if values := [x for x in inputs if isinstance(x, Arithmetic)]:
            raise ModelError(f"{values[0]!r} holds no data, and no graph is written; compile the module on it, then "
                             f"call the module with arrays.")
        return self._compiled.forward(self._order(inputs, settings), training=bool(self._mode))

    def _order(self, inputs: Sequence[Data], others: Mapping[str, Data]) -> list[Data]:
        """Inputs by position and by name, in the order of `forward`."""
        names = list_arguments(self.forward)[len(inputs):len(self._compiled.inputs)]
        if unknown := [n for n in others if n not in names]:
            raise DataError(f"{type(self).__name__} was compiled without {unknown[0]!r}; arrays are taken for its "
                            f"inputs, {', '.join(self._compiled.inputs)}, and a setting is an attribute of the module, "
                            f"written before compile.")
        return [*inputs, *(others[n] for n in names if n in others)]

    @answer_keywords(lr=_STEP_SIZE, learningrate=_STEP_SIZE, eta0=_STEP_SIZE, seed=_SEED, randomstate=_SEED,
                     optimizer="call set_optimizer('adam') before", exc="its name is raise_on_divergence",
                     validationdata="write X_val=... and y_val=...",
                     validationsplit="write X_val=0.1 for a tenth of the rows")
    def fit(self, X: DataLike, y: DataLike | None = None, sample_weight: DataLike | None = None, *, epochs: int = 10,
            batch_size: int = 32, shuffle: bool = True, X_val: DataLike | None = None, y_val: DataLike | None = None,
            callbacks: Sequence[CallbackLike] = (), metrics: Sequence[MetricLike] = (), verbose: int = 0,
            validation_every: float = 1, timeout: float | None = None, resume: str | os.PathLike[str] | None = None,
            raise_on_divergence: bool = True, warm_start: bool = True) -> Self:
        """Train for some epochs by `train_one_batch`, from where the module is.

        Parameters
        ----------
        X : array_like of shape (rows, ...), tuple or dict of them, or iterable of batches
            The inputs of `forward`, also as sparse matrices, whose rows become dense batch by batch; without `y`, an
            iterable of batches, such as a DataLoader, each with the arguments of `train_one_batch`.
        y : array_like of shape (rows, ...), or tuple of them, optional
            The further arguments of `train_one_batch`.
        sample_weight : array_like of shape (rows,), optional
            Weights of the rows; the code of `train_one_batch`, where it is written, takes them as ``sample_weight``.
        epochs, batch_size : int
            How often to go over the rows, and the rows of a batch; the last of an epoch may have fewer.
        shuffle : bool
            Whether the rows are in another order in every epoch.
        X_val, y_val : like X and y, optional
            Validation data, whose losses in evaluation mode are computed; or as `X_val` alone the share of the rows,
            between 0 and 1, that is not trained but validated.
        callbacks : callback, or sequence of them
            Objects of `ortpartial.callbacks`, and functions that are called with the module after each epoch; where one
            returns True, the training ends.
        metrics : sequence of str, callable or Metric
            Metrics of the predictions for `X_val`, in evaluation mode, beside the loss, as for
            `OrtGradientForwardBackwardOptimizer`: ``"accuracy"``, ``"r2"``, functions. They compare the same as
            `nn.Loss` in `train_one_batch`, or else its output with the target.
        verbose : int
            1 for a progress bar, 2 for a line an epoch.
        validation_every : float
            The number of epochs between validations, or, less than 1, that number as a share of `epochs`.
        timeout : float, optional
            Seconds after which the training ends with an error; the training until then is kept.
        resume : path, optional
            The folder of the callback `Checkpoint`: a `fit` that was cut off, on the same data with the same settings,
            goes on from there and ends as if it had not been, to the last bit.
        raise_on_divergence : bool
            Whether a loss or a weight that is NaN or infinite raises ConvergenceError; otherwise it warns and stops.
        warm_start : bool
            Whether the training goes on from where the module is. False starts anew: with the weights that `compile`
            makes of a new module, of optimizers that have seen no batch, and an empty `history_`.

        Returns
        -------
        Module
            Itself; `history_` has a dict for each epoch: the mean losses by name, with ``"validation_"`` before the
            validation's, ``"epoch"``, ``"iteration"``, the batches seen, ``"seconds"``, and ``"learning_rate"``, the
            step size of the last batch where there is a single optimizer.

        Raises
        ------
        DataError
            The data do not fit the module.
        ConvergenceError
            A loss or a weight is NaN or infinite; the weights are as before that batch.
        DeadlineError
            The `timeout` is over.
        """
        epochs, batch_size = check_count("epochs", epochs), check_count("batch_size", batch_size)
        if X_val is None and y_val is not None:
            raise DataError("X_val and y_val belong together; X_val is missing.")
        program, mode = self._compiled, self._mode
        callbacks = [callbacks] if callable(callbacks) or hasattr(callbacks, "setup") else callbacks
        data = program.signature.to_batches(X, y, sample_weight)
        validation = X_val if X_val is None or isinstance(X_val, Real) else program.signature.to_batches(X_val, y_val)
        if sample_weight is not None and isinstance(validation, list):
            validation.append(np.ones(len(validation[0]), np.float32))
        if not mode:
            self.train()
        self.trainer.door.is_row_wise = not has_own_step(self)
        try:
            fit(self.trainer, data, validation, resume, max_iter=epochs, batch_size=batch_size, shuffle=shuffle,
                callbacks=callbacks, metrics=metrics, verbose=verbose, validation_every=validation_every,
                timeout=timeout, raise_on_divergence=raise_on_divergence, warm_start=warm_start)
        finally:
            if not mode:
                self.eval()
        return self

    @answer_keywords()
    def evaluate(self, X: DataLike, y: DataLike | None = None, sample_weight: DataLike | None = None, *,
                 batch_size: int = 32, metrics: Sequence[MetricLike] = ()) -> dict[str, float]:
        """Compute losses and metrics in evaluation mode.

        Parameters
        ----------
        X, y, sample_weight : object
            As for `fit`.
        batch_size : int
            How many rows are computed at once.
        metrics : sequence of str, callable or Metric
            As for `fit`.

        Returns
        -------
        dict of str to float
            The mean losses, and the metrics, by name.

        Raises
        ------
        DataError
            The data do not fit the module.

        Examples
        --------
        >>> from ortpartial import nn
        >>> model = nn.Linear(2, 1).set_optimizer("sgd").compile(nn.placeholder(["N", 2]))
        >>> sorted(model.evaluate(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32), metrics=["mae"]))
        ['loss', 'mae']
        """
        size, data = check_count("batch_size", batch_size), self._compiled.signature.to_batches(X, y, sample_weight)
        meter = Meter([resolve_metric(metric) for metric in check_metrics(metrics)])
        batches = [tuple(data)] if isinstance(data, list) else data
        losses = self.trainer.door.validate(batches, meter if meter.metrics else None, size)
        return {**losses, **meter.read()}

    @property
    def trainer(self) -> ModuleTrainer:
        """The training, as callbacks see it."""
        program = self._compiled
        if self._trainer is None or self._trainer.program is not program:
            with program.turn.lock:  # Threads share a trainer, by which they take turns.
                if self._trainer is None or self._trainer.program is not program:
                    self._trainer = ModuleTrainer(program)
        return self._trainer

    def training_view(self) -> TrainingView:
        """Return the present state of a training, for callbacks: its place, last losses and rate.

        Returns
        -------
        TrainingView
        """
        return view_training(self.trainer, self)

    @property
    def history_(self) -> list[Json]:
        """A record of each epoch of `fit`, with its mean losses."""
        return self.__dict__.setdefault("_history", [])

    def predict(self, X: DataLike, *, batch_size: int | None = None) -> Nested:
        """Compute `forward` in evaluation mode.

        Parameters
        ----------
        X : array_like of shape (rows, ...), or tuple or dict of them
            The inputs of `forward`.
        batch_size : int, optional
            How many rows are computed at once; all by default, and some of a sparse matrix.

        Returns
        -------
        numpy.ndarray, or tuple, list or dict of them
            The results of `forward`.

        Raises
        ------
        DataError
            The data do not fit the module.
        """
        arrays = to_arrays(X, list(self._compiled.inputs), "X")
        parts = [a.part for a in list[Data](arrays) if isinstance(a, SparseRows)]
        if not parts and (batch_size is None or len(arrays[0]) <= batch_size):
            return self._compiled.forward(arrays, training=False)
        batch_size = min(parts) if batch_size is None else check_count("batch_size", batch_size)
        return concatenate([(len(rows[0]), self._compiled.forward(rows, training=False))
                            for rows in cut(arrays, np.arange(len(arrays[0])), batch_size)])

    # -- states

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers, of a module or of a part of it.

        Returns
        -------
        dict of str to numpy.ndarray
            By name, as in a torch module of the same layers; a parameter that two layers share is under both names.

        Raises
        ------
        ModelError
            The module is not compiled, and a parameter has no numbers yet.
        """
        return serialization.state_dict(self)

    def load_state_dict(self, state: Mapping[str, Data], strict: bool = True) -> serialization.IncompatibleKeys:
        """Overwrite parameters and buffers, of a module or of a part of it; optimizers keep their states.

        Parameters
        ----------
        state : dict of str to array_like
            By name: numpy arrays, or the state dict of a torch module. Each is converted to the element type of its
            parameter.
        strict : bool
            Whether missing and unexpected names are errors.

        Returns
        -------
        IncompatibleKeys
            ``missing_keys`` and ``unexpected_keys``, as in torch.

        Raises
        ------
        ModelError
            A name is missing or unexpected, or a shape differs; nothing is changed.

        Examples
        --------
        >>> from ortpartial import nn
        >>> model = nn.Linear(2, 1).compile(nn.placeholder(["N", 2]))
        >>> model.load_state_dict({"weight": [[1, 2]], "bias": [3]})
        IncompatibleKeys(missing_keys=[], unexpected_keys=[])
        >>> model(np.ones((1, 2), np.float32)).tolist()
        [[6.0]]
        """
        return serialization.load_state_dict(self, state, strict)

    def save_states(self, path: str | os.PathLike[str], aux_states: Mapping[str, object] | None = None) -> None:
        """Write all that the training goes on from to a file: `load_states` of an equal module reads it.

        That is parameters, buffers, the states of optimizers, the number of batches seen and the seed. The file is one
        of safetensors with a checksum; it holds either its former content or the whole state, whenever it is read.

        Parameters
        ----------
        path : path
            The file, such as ``"last.safetensors"``.
        aux_states : dict of str to object, optional
            Further contents of the file: arrays, numbers, texts, and lists and dicts of them.

        Raises
        ------
        ModelError
            The module is not compiled, or it is a part of a compiled module.
        ConvergenceError
            The training has made a part of the state NaN or infinite; the file remains as it is.
        SettingError
            `aux_states` hold something else.
        OSError
            The file cannot be written; the former file remains.

        See Also
        --------
        save : Writes the model, too.

        Examples
        --------
        >>> from ortpartial import nn
        >>> model = nn.Linear(2, 1).set_optimizer("adam").compile(nn.placeholder(["N", 2]), random_state=0)
        >>> X = np.float32([[1, 2], [3, 4]])
        >>> model.fit(X, X[:, :1], epochs=3).save_states("last.safetensors", {"epoch": 3})
        >>> again = nn.Linear(2, 1).set_optimizer("adam").compile(nn.placeholder(["N", 2]))
        >>> again.load_states("last.safetensors")
        {'epoch': 3}
        >>> loss, expected = (m.fit(X, X[:, :1]).history_[-1]["loss"] for m in (again, model))
        >>> loss == expected
        True
        """
        serialization.save_states(self._whole, path, aux_states)

    def load_states(self, path: str | os.PathLike[str]) -> Settings:
        """Go back to the state in a file, from which the training goes on to the last bit.

        Parameters
        ----------
        path : path
            A file of `save_states`, of a module with the same parameters and the same optimizers.

        Returns
        -------
        dict of str to object
            The `aux_states` that were saved.

        Raises
        ------
        ModelError
            The module is not compiled, or it is a part of a compiled module.
        CheckpointError
            The file is damaged, no state file, or that of another architecture; nothing is changed.
        OSError
            It cannot be read.

        Warns
        -----
        ModelWarning
            By the next step: optimizers differ, and begin anew as far as their states do not fit.
        """
        return serialization.load_states(self._whole, path)

    def save(self, path: str | os.PathLike[str], state: Mapping[str, object] | None = None, *,
             with_training: bool = True) -> None:
        """Write an ONNX file that holds the model and its training, in the form of the ONNX training standard.

        It has the graph in evaluation mode, which any runtime runs, the weights and running statistics, and, as soon as
        a batch was trained, the step and the states of optimizers: `TrainingSession` goes on from it.

        Parameters
        ----------
        path : path
            The file. It holds either its former content or the whole model, whenever it is read; the weights of a
            model of more than 2 GB stand beside it in ``<name>.data``.
        state : dict of str to object, optional
            Further contents of the file: arrays, numbers, texts, and lists and dicts of them.
        with_training : bool
            Whether the file holds the training; without, it is the model of `to_onnx`.

        Raises
        ------
        ModelError
            The module is not compiled, or it is a part of a compiled module.
        ConvergenceError
            The training has made a part of the state NaN or infinite; the file remains as it is.
        SettingError
            `state` holds something else, or there is no training to hold it.
        OSError
            The file cannot be written; the former file remains.

        Examples
        --------
        >>> from ortpartial import TrainingSession, nn
        >>> model = nn.Linear(2, 1).set_optimizer("adam").compile(nn.placeholder(["N", 2]), random_state=0)
        >>> X = np.float32([[1, 2], [3, 4]])
        >>> model.fit(X, X[:, :1], epochs=3).save("linear.onnx", state={"epoch": 3})
        >>> again = nn.Linear(2, 1).set_optimizer("adam").compile(nn.placeholder(["N", 2]))
        >>> again.load("linear.onnx", include_state=True)
        {'epoch': 3}
        >>> session = TrainingSession("linear.onnx")
        >>> outputs = session.step({"x": X, "target": X[:, :1]})
        >>> bool(outputs["loss"] == again.train_one_batch(X, X[:, :1])[1])
        True
        """
        if check_flag("with_training", with_training):
            serialization.save(self._whole, path, state)
        else:
            serialization.save_model(self._whole, path, state)

    def load(self, path: str | os.PathLike[str], include_state: bool = False) -> Settings | None:
        """Overwrite parameters and buffers by initializers of the same names in an ONNX file, as far as they fit.

        Parameters
        ----------
        path : path
            A file of `save`, or any ONNX file with initializers of these names, such as an export of torch.
        include_state : bool
            Whether the training goes on where it was when the file was written: with the states of optimizers, the
            number of batches seen and the seed.

        Returns
        -------
        dict of str to object, or None
            The `state` that was saved; None without `include_state`.

        Raises
        ------
        ModelError
            There is no such file, it is no ONNX model, or the module is not compiled.

        Warns
        -----
        ModelWarning
            For each parameter that is missing, unexpected or of another shape; it stays as it is, and the rest is
            loaded.
        """
        program = None if self._program is None and serialization.is_held(self) and not include_state else self._whole
        return serialization.load(self, path, program if include_state else None)

    def __repr__(self) -> str:
        if self._program is None:
            return f"<{type(self).__name__}>"
        size = sum(p.size for p in self.parameters())
        return f"<{type(self).__name__}, {size:,} parameters>"

    def _repr_html_(self) -> str:
        from ortpartial.plots import draw_curve  # late: few programs draw

        if self._program is None:
            return draw_card(type(self).__name__, {"compiled": "no; call compile with a placeholder for each input"})
        losses, validation = ([r[n] for r in self.history_ if n in r] for n in ("loss", "validation_loss"))
        rows = {"parameters": f"{sum(p.size for p in self.parameters()):,}",
                "inputs": ", ".join(f"{n} {v.type_name}" for n, v in self._program.inputs.items()),
                "optimizer": repr(self.optimizer), "engine_": f"{self.engine_}: {self.engine_reason_}",
                "epochs": str(len(self.history_)), **({"loss": f"{losses[-1]:.4g}"} if losses else {})}
        return draw_card(type(self).__name__, rows, draw_curve(losses, validation),
                         {"layers": str(self.summary()).splitlines()})


Module.train_one_batch = _run_compiled(Module.train_one_batch)  # type: ignore[method-assign]
set_default_step(Module)


class ModelModule(Module):
    """A module that is a model with weights by name, inputs and outputs, as `Module.from_onnx` makes it."""

    weights: Mapping[str, Parameter]
    input_names: list[str]
    output_names: list[str]

    @property
    def placeholders(self) -> list[Value]:
        """A placeholder for each input."""
        raise NotImplementedError


_Kind = TypeVar("_Kind", bound=type[ModelModule])

#: The module of ONNX models, which a module of this room has registered.
_READERS: list[Callable[..., ModelModule]] = []


def register_reader(kind: _Kind) -> _Kind:
    """Let `Module.from_onnx` make modules of a kind."""
    _READERS[:] = [kind]
    return kind


def _to_list(inputs: Data) -> list[Data]:
    """An input or several; a shape, a text, a dict, a class and objects without rows are taken for mistakes."""
    several = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if any(x is None or isinstance(x, (str, bytes, Mapping, type)) for x in several) or (
            several and all(isinstance(x, int) for x in several)):
        raise DataError(f"compile takes placeholders or arrays in the order of forward, as in "
                        f"compile(nn.placeholder(['N', 4])), not {inputs!r}.")
    return several
