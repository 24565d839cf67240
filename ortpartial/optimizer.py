"""How is an ONNX graph trained? `OrtGradientForwardBackwardOptimizer`: fit, predict, score, state."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto
from tqdm import tqdm

from .batches import parts, prefetched
from .captured import choose_for_device
from .checkpointing import resolve_checkpointing
from .data import check_inputs, check_sample_weight, check_target, columns
from .engine import Engine, Setup, choose_for_fit
from .exceptions import ConvergenceError, ConvergenceWarning, DataError, ModelError, SettingError
from .forward_backward import OrtGradientForwardBackward, resolve_weights
from .gradient import reached_by
from .indices import check_indices, index_ranges
from .initial import drawn
from .lean import LeanEngine, leaner
from .learning_loss import BaseLearningLoss, resolve_loss
from .learning_penalty import BaseLearningPenalty, resolve_penalty
from .learning_rate import BaseLearningRate, resolve_rate
from .metrics import accuracy, r2
from .model import Model, lightened, load, whole
from .modes import in_inference, own_statistics
from .parallel import ParallelEngine
from .precision import LossScale, resolve_precision
from .runtime import Session
from .settings import Configurable, checked
from .step import Names, forward_graph, read_by, row_loss_graph
from .training_info import to_training_info
from .watch import Watch

__all__ = ["OrtGradientForwardBackwardOptimizer"]


class OrtGradientForwardBackwardOptimizer(Configurable):
    """Train an ONNX graph, or only some of its weights, by stochastic gradient descent on ONNX Runtime.

    At batch k of rows B every weight becomes w - η(k) · step(∇J, state), with the objective
    J = Σᵢ∈B wᵢ ℓ(yᵢ, tᵢ) / Σᵢ∈B wᵢ + Σ penalty(w).

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, or what `load` made of them
        The model, of any opset; it is never written to.
    weights_to_train : sequence of str, optional
        Initializers to train, in any order. By default the float initializers of rank one or more on a differentiable
        path to a trained output, except BatchNormalization's mean and variance.
    learning_loss : str, BaseLearningLoss, or dict of str to them
        What a prediction costs: ``"square_error"``, ``"absolute_error"``, ``"elastic"``, ``"log_loss"``,
        ``"softmax_cross_entropy"``, an object, or one of these for every output that is trained.
    learning_rate : str, float or BaseLearningRate
        How a gradient becomes a step: ``"SGD"``, ``"SGDNesterov"``, ``"Adam"``, an object, or a number for plain SGD.
    learning_penalty : BaseLearningPenalty, optional
        What a weight costs.
    max_iter : int
        Number of epochs.
    batch_size : int
        Rows a step; the last batch of an epoch may be smaller and counts by its own size.
    shuffle : bool
        Whether every epoch takes the rows in a new order.
    init : str
        ``"model"`` starts from the weights that the model holds. ``"random"`` draws those that something is multiplied
        with anew, uniformly within ±√(6 / (fan in + fan out)), and keeps biases and the scales of normalizations.
    train_mode : bool
        Whether Dropout and BatchNormalization train; without it, a training computes what the model computes as it was
        exported. Masks follow from a seed and the number of the step, batches are normalized by their own statistics,
        which move the running ones as ONNX has it, with the variance of the population. All else, such as `predict` and
        the trained model, is for inference, with the running statistics of now. Engines ``"step"`` and ``"epoch"``.
    precision : str, optional
        ``"float16"`` or ``"bfloat16"``: products are computed in it while the model trains; sums of many numbers,
        losses, weights and their update stay in the dtype of the model, as do `predict` and the trained model. Engines
        ``"step"`` and ``"epoch"``. It is for devices: on the CPU, onnxruntime runs float16 by kernels of float32, whose
        results it may leave unrounded, and has no kernels of bfloat16.
    loss_scale : float or LossScale, optional
        What the loss is multiplied by before it is differentiated, so that gradients do not vanish in float16. By
        default a `LossScale` for float16, which skips steps whose gradient overflows and finds the scale by itself; a
        number is fixed, and skips none.
    random_state : int or numpy.random.Generator, optional
        Where orders, random weights and the seed of masks come from.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
    engine : str
        ``"epoch"`` (one graph an epoch) or ``"step"`` (one a step), both on any onnxruntime, ``"agent"``
        (onnxruntime-training) or ``"auto"``. On a CUDA device ``"auto"`` takes steps that the device records once, as a
        CUDA graph, and replays: rows, their order, weights and losses stay there. Where a step cannot be recorded, or
        the rows find no room, it is ``"epoch"``, and `engine_reason_` says why.
    warm_start : bool
        Whether `fit` goes on from the last one, weights, optimizer state and iteration, instead of starting again.
    validation_every : float or int
        How often to compute the loss on ``X_val``: a share of `max_iter`, or a number of epochs.
    callbacks : sequence of callable
        Called with the optimizer after every epoch; one that returns True ends the training.
    distributed : bool
        Whether the processes of ``torch.distributed`` train together. Each is given all rows, a memory map for example,
        and reads its share of every batch; the steps are those of one process. The first process alone shows the bar
        and calls the callbacks.
    checkpointing : None, "auto", or sequence of str
        What the backward pass computes once more instead of keeping it, for less memory and more time; the numbers are
        the same. ``"auto"`` (or True) cuts the model into the segments that take the least memory, about √n of n
        operators; a list names the tensors to keep, and all between them is computed again.
    timeout : float, optional
        Seconds after which `fit`, `partial_fit`, `predict`, `losses` and `score` end with DeadlineError, even in the
        midst of a run; what had been trained until then is kept. Engine ``"agent"`` looks at it once a step.
    verbose : int
        1 shows a bar.
    exc : bool
        Whether a loss that is no finite number raises ConvergenceError; else it warns and stops.

    Attributes
    ----------
    train_losses_ : list of float
        The weighted mean loss of every epoch, each batch's before its step, without the penalty.
    validation_losses_ : list of float
        The weighted mean loss on ``X_val``, whenever it was computed.
    trained_coef_ : dict of str to numpy.ndarray
        The trained weights by name.
    n_iter_ : int
        Epochs trained.
    engine_, engine_reason_ : str
        The engine in use, and why.

    Raises
    ------
    ModelError, SettingError, DeviceError, NoGradientError, RuntimeMissingError
        At once, not in `fit`, where the model, a setting, the device, an operator without a gradient or the runtime
        that is installed does not allow it.

    References
    ----------
    .. [1] L. Bottou, F. E. Curtis, J. Nocedal, "Optimization Methods for Large-Scale Machine Learning", SIAM Review
       60(2), 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial.builder import build
    >>> from ortpartial.graph import constant, variable
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> X = np.arange(8, dtype=np.float32)[:, None] / 8
    >>> optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate=0.5, random_state=0)
    >>> optimizer.fit(X, 3 * X).trained_coef_["w"].round(3).tolist()
    [[3.0]]
    """

    def __init__(
        self,
        model: Model | ModelProto | bytes | str | os.PathLike[str],
        weights_to_train: Sequence[str] | None = None,
        *,
        learning_loss: str | BaseLearningLoss | Mapping[str, str | BaseLearningLoss] = "square_error",
        learning_rate: str | float | BaseLearningRate = "SGD",
        learning_penalty: BaseLearningPenalty | str | None = None,
        max_iter: int = 100,
        batch_size: int = 10,
        shuffle: bool = True,
        init: str = "model",
        train_mode: bool = False,
        precision: str | None = None,
        loss_scale: float | LossScale | None = None,
        random_state: int | np.random.Generator | None = None,
        device: str = "cpu",
        engine: str = "auto",
        warm_start: bool = False,
        validation_every: float = 0.1,
        callbacks: Sequence[Callable[[Any], Any]] = (),
        distributed: bool = False,
        checkpointing: bool | str | Sequence[str] | None = None,
        timeout: float | None = None,
        verbose: int = 0,
        exc: bool = True,
    ):
        self._given = {"model": model, "weights_to_train": weights_to_train, "learning_loss": learning_loss,
                       "learning_rate": learning_rate, "learning_penalty": learning_penalty}  # fmt: skip
        self.learning_rate = resolve_rate(learning_rate)
        self.learning_penalty = resolve_penalty(learning_penalty)
        vars(self).update(checked(
            max_iter=max_iter, batch_size=batch_size, shuffle=shuffle, init=init, random_state=random_state,
            warm_start=warm_start, validation_every=validation_every, callbacks=callbacks, timeout=timeout,
            verbose=verbose, exc=exc))  # fmt: skip
        self.device, self.engine, self.distributed, self.train_mode = device, engine, distributed, bool(train_mode)
        self.checkpointing, self.precision, self.loss_scale = checkpointing, precision, loss_scale
        self._precision = resolve_precision(precision, loss_scale)

        if train_mode:
            given = model if isinstance(model, Model) else load(model)
            model = load(in_inference(given.proto), straight_through=given.straight_through)
        self._model = lightened(load(model))  # A copy: nothing that is done to the caller's own may change a training.
        self.learning_loss = self._resolve_losses(learning_loss)
        self.weights_to_train = resolve_weights(self._model, weights_to_train, list(self._losses))
        trained = {n: self._model.initializers[n] for n in self.weights_to_train}
        reached = reached_by([self._model.outputs[o] for o in self._losses], trained.values())
        if still := [n for n, w in trained.items() if w not in reached]:
            raise ModelError(f"No gradient leads from {', '.join(map(repr, self._losses))} to the weight {still[0]!r}, "
                             f"so that it would not be trained; leave it out.")  # fmt: skip
        self._open()
        self.train_losses_: list[float] = []
        self.validation_losses_: list[float] = []
        self.n_iter_ = 0
        self._start()
        self._engine.graphs()  # An operator without a gradient is better found now than in `fit`.

    def _open(self) -> None:
        """What is derived from the model and never pickled."""
        self._statistics = own_statistics(self._model, self._losses, self.weights_to_train) if self.train_mode else []
        self._model = load(self._model, variables=self._moving)
        # A model may have inputs that the trained outputs do not depend on.
        self._read = read_by([self._model.outputs[o] for o in self._losses], self._model.inputs)
        if not self._read:
            raise ModelError(f"The outputs {', '.join(map(repr, self._losses))} depend on no input of the model.")
        self._ranges = index_ranges(self._read, [self._model.outputs[o] for o in self._losses])
        self._sessions: dict[str, Session] = {}
        self._options: Any = None
        self._layer: OrtGradientForwardBackward | None = None

    def _resolve_losses(self, learning_loss: Any) -> BaseLearningLoss | dict[str, BaseLearningLoss]:
        """The loss of every trained output; without names, of the only output of real numbers."""
        if isinstance(learning_loss, Mapping):
            if unknown := sorted(set(learning_loss) - set(self._model.outputs)):
                known = ", ".join(map(repr, self._model.outputs))
                raise SettingError(f"learning_loss names {unknown[0]!r}, which is no output of the model: {known}.")
            if not learning_loss:
                raise SettingError("learning_loss is an empty dict; name at least one output.")
            self._losses = {o: resolve_loss(v) for o, v in learning_loss.items()}
            return dict(self._losses)
        loss = resolve_loss(learning_loss)
        floats = [n for n, v in self._model.outputs.items() if v.is_float]
        if len(floats) != 1:
            outputs = ", ".join(map(repr, self._model.outputs))
            raise SettingError(f"The model has the outputs {outputs}, {len(floats)} of them of real numbers; say which "
                               f"to train with learning_loss={{output: loss}}.")  # fmt: skip
        self._losses = {floats[0]: loss}
        return loss

    def _start(self) -> None:
        """An engine that starts from the first weights."""
        kind, reason = choose_for_fit(self.engine)
        if self.distributed:
            if self.engine not in ("auto", "step"):
                raise SettingError(f"distributed=True trains with engine='step', not {self.engine!r}.")
            kind, reason = ParallelEngine, "several processes add their gradients between two graphs"
        wants = ["train_mode=True"] * self.train_mode + [f"precision={self.precision!r}"] * bool(self.precision)
        if wants and (self.distributed or self.engine == "agent"):
            asked = "distributed=True" if self.distributed else "engine='agent'"
            raise SettingError(f"{wants[0]} trains with engine='step' or 'epoch', in one process, not {asked}.")
        self._rng = np.random.default_rng(self.random_state)
        gradient = resolve_checkpointing(self.checkpointing, self._model.values)
        setup = Setup(self._model, tuple(self.weights_to_train), self._losses, self.learning_penalty,
                      self.learning_rate, self.device, self.train_mode, tuple(self._statistics), gradient,
                      self._precision)  # fmt: skip
        if self.engine != "epoch" and leaner(kind, setup):
            kind, reason = LeanEngine, "memory counts, so weights are overwritten where they are"
        elif gradient is not None:
            raise SettingError(f"checkpointing trains on the CPU with engine='step', not with {self.engine!r} on "
                               f"{self.device!r}, in one process and in the dtype of the model.")  # fmt: skip
        elif self.engine == "auto" and not self.distributed:
            kind, reason = choose_for_device(setup) or (kind, reason)
        self._engine: Engine = kind(setup)
        self._engine.reason = reason
        self._restart()

    def _restart(self) -> None:
        """Bring the engine to where a training starts."""
        first = dict(self._model.arrays)
        if self.init == "random":
            first |= drawn(self._model, self.weights_to_train, self._rng)
        seed = self._rng.integers(-(2**31), 2**31, 2).tolist() if self.train_mode else (0, 0)
        self._engine.reset(first, seed)

    @property
    def engine_(self) -> str:
        """The engine in use."""
        return self._engine.name

    @property
    def engine_reason_(self) -> str:
        """Why this engine is in use."""
        return self._engine.reason

    @property
    def _moving(self) -> list[str]:
        """The initializers that a training changes."""
        return [*self.weights_to_train, *self._statistics]

    # -- training

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, X_val: Any = None, y_val: Any = None) -> Any:
        """Train for `max_iter` epochs, from the first weights unless `warm_start`.

        Parameters
        ----------
        X : array_like of shape (rows, ...), table, dict of str to array_like, or iterable of batches
            Inputs; where the model has several, a dict or a table with a column for each. Arrays of numpy, memory maps
            and tensors are read where they are if they have the dtype of the input; tables of pandas, polars or pyarrow
            are copied, column by column. Without `y`, what gives batches (X, y) or (X, y,
            sample_weight) every time it is iterated over, such as a DataLoader: they are fetched by a thread while the
            step before runs, and `batch_size` and `shuffle` are left to them.
        y : array_like of shape (rows, ...), table, or dict of str to array_like
            Targets, of the shape of the output; integer labels where the loss takes them.
        sample_weight : array_like of shape (rows,), optional
            Weights of the rows, not negative.
        X_val, y_val : like X and y, optional
            Data on which the loss is computed now and then, without a change of the training.

        Returns
        -------
        OrtGradientForwardBackwardOptimizer
            The optimizer itself.

        Raises
        ------
        DataError
            The data do not fit the model.
        ConvergenceError
            The loss or a weight is no finite number any more; the weights are those of the last finite step.
        DeadlineError
            The `timeout` is over.
        """
        batches = self._batches(X) if y is None else None
        data, rows = self._data(X, y, sample_weight) if batches is None else ({}, 0)
        if (X_val is None) != (y_val is None):
            raise DataError("X_val and y_val belong together; one of them is missing.")
        if X_val is not None:
            self._data(X_val, y_val, None)  # An error is better now than after the first epochs.
        if not self.warm_start:
            self._reset()
        every = self.validation_every if self.validation_every >= 1 else self.validation_every * self.max_iter
        every = max(1, round(every))
        first = batches is not None or self._begin(data, rows)
        hidden = not (self.verbose and first)
        shown = nullcontext() if hidden else tqdm(total=self.max_iter, unit="epoch")
        with self._watched(always=True), shown as bar:
            for epoch in range(1, self.max_iter + 1):
                if not (self._epoch(rows) if batches is None else self._epoch_of(batches)):
                    break
                if X_val is not None and (epoch % every == 0 or epoch == self.max_iter):
                    self.validation_losses_.append(float(self.losses(X_val, y_val).mean()))
                if bar is not None:
                    bar.set_postfix(self._progress(), refresh=False)
                    bar.update()
                if self.callbacks and self._told(first and self._called()):
                    break
        return self

    def _begin(self, data: Mapping[str, np.ndarray], rows: int) -> bool:
        """Tell the engine where the rows are; of several processes, all go on from the first, whether it is this."""
        self._engine.start(data)
        group = getattr(self._engine, "group", None)
        if group is None:
            return True
        told, self._rng, snapshot = group.told((rows, self._rng, self._engine.snapshot()))
        if told != rows:
            raise DataError(f"This process has {rows} rows, the first one {told}; every process is given all rows.")
        self._engine.restore(snapshot)
        return bool(group.rank == 0)

    def _told(self, what: Any) -> Any:
        """What the first process says, which may be the only one."""
        group = getattr(self._engine, "group", None)
        return what if group is None else group.told(what)

    def _called(self) -> bool:
        """Call every callback; whether one wants the training to end."""
        answers = [callback(self) for callback in self.callbacks]  # none is left out
        return any(answer is True for answer in answers)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train for one epoch on these rows, going on from where the training is.

        Parameters
        ----------
        X, y, sample_weight : array_like
            As in `fit`.

        Returns
        -------
        OrtGradientForwardBackwardOptimizer
            The optimizer itself.

        Raises
        ------
        DataError, ConvergenceError, DeadlineError
            As in `fit`.
        """
        data, rows = self._data(X, y, sample_weight)
        self._begin(data, rows)
        with self._watched():
            self._epoch(rows)
        return self

    @contextmanager
    def _watched(self, always: bool = False) -> Iterator[None]:
        """A time in which runs end at the timeout and at Ctrl-C; the watch costs some microseconds."""
        if self._options is not None or not (always or self.timeout):
            yield
            return
        with Watch(self.timeout) as watch:
            self._options = self._engine.options = watch.options
            try:
                yield
            finally:
                self._options = self._engine.options = None

    def _reset(self) -> None:
        """Back to the first weights, with what is compiled kept."""
        self._rng = np.random.default_rng(self.random_state)
        self._restart()
        self.train_losses_, self.validation_losses_, self.n_iter_ = [], [], 0

    def _epoch(self, rows: int) -> bool:
        """Train on every row once; whether all stayed finite."""
        order = self._rng.permutation(rows) if self.shuffle else np.arange(rows)
        before = self._engine.snapshot() if self._engine.copies > 1 else None
        loss = self._engine.epoch(order, self.batch_size)
        if not (np.isfinite(loss) and self._engine.is_finite()):
            self._diverged(before, order, loss)
            return False
        self.train_losses_.append(loss)
        self.n_iter_ += 1
        return True

    def _diverged(self, before: Any, order: np.ndarray, loss: float) -> None:
        """Replay the epoch up to its last finite step, then say what happened."""
        engine = self._engine
        if before is None:  # The step was not taken.
            self._say_diverged(loss, engine.iteration + 1)
            return
        engine.restore(before)
        for start in range(0, len(order), self.batch_size):
            last = engine.snapshot()
            loss = engine.epoch(order[start : start + self.batch_size], self.batch_size)
            if not (np.isfinite(loss) and engine.is_finite()):
                break
        at = engine.iteration
        engine.restore(last)
        self._say_diverged(loss, at)

    def _say_diverged(self, loss: float, at: int) -> None:
        """The error or the warning."""
        message = (f"The loss is {loss} at iteration {at} (epoch {self.n_iter_ + 1}) with {self.learning_rate!r}; the "
                   f"weights are those of iteration {at - 1}. Lower the rate, or scale X and y.")  # fmt: skip
        if self.exc:
            raise ConvergenceError(message)
        warnings.warn(message, ConvergenceWarning, stacklevel=5)

    def _batches(self, X: Any) -> Iterable[Any]:
        """What gives batches, for as many epochs as there are to be."""
        if isinstance(X, Mapping) or hasattr(X, "__array__") or not isinstance(X, Iterable):
            raise DataError("y is missing; without it, X is to give batches (X, y), one after the other.")
        if iter(X) is X and self.max_iter > 1:
            raise DataError(f"X gives its batches once, and max_iter is {self.max_iter}: give what can be iterated "
                            f"over again, such as a list or a DataLoader, or max_iter=1.")  # fmt: skip
        if self.distributed:
            raise DataError("distributed=True needs all rows as arrays, memory maps for example, not batches.")
        return X

    def _epoch_of(self, batches: Iterable[Any]) -> bool:
        """Train on every batch once; whether all stayed finite."""
        total = weight = 0.0
        engine = self._engine
        with closing(prefetched(batches)) as fetched:
            for batch in fetched:
                X, y, w = parts(batch)
                data, rows = self._data(X, y, w)
                engine.start(data)
                loss = engine.epoch(np.arange(rows), rows)
                if not (np.isfinite(loss) and engine.is_finite()):
                    engine.undo()
                    self._say_diverged(loss, engine.iteration + 1)
                    return False
                share = float(rows if w is None else np.sum(w))
                total, weight = total + share * loss, weight + share
        if not weight:
            raise DataError("There are no batches in X.")
        self.train_losses_.append(total / weight)
        self.n_iter_ += 1
        return True

    def _progress(self) -> dict[str, str]:
        last = {"loss": self.train_losses_[-1:], "validation": self.validation_losses_[-1:]}
        return {n: f"{v[0]:.4g}" for n, v in last.items() if v}

    # -- data

    def _inputs(self, X: Any) -> tuple[dict[str, np.ndarray], int]:
        """Arrays for the inputs that are read, and how many rows they have."""
        if isinstance(X, Mapping):
            X = {n: a for n, a in X.items() if n in self._read or n not in self._model.inputs}
        inputs, rows = check_inputs(self._read, X)
        check_indices(self._ranges, inputs)
        for name, v in self._read.items():
            fixed = v.shape[0] if v.shape else None
            if isinstance(fixed, int) and rows % fixed:
                raise DataError(f"Input {name!r} has a fixed batch dimension of {fixed} and there are {rows} rows; "
                                f"export it with a dynamic one, or give a multiple of {fixed} rows.")  # fmt: skip
        return inputs, rows

    def _shape(self, output: str, inputs: Mapping[str, np.ndarray]) -> tuple[int | str | None, ...]:
        """The shape of an output, found by a run on the first rows where the model does not declare its sizes."""
        shape = self._model.outputs[output].shape
        if shape is not None and all(isinstance(d, int) for d in shape[1:]):
            return shape
        return self._run("predict", {n: a[: self._fixed or 1] for n, a in inputs.items()})[output].shape

    def _target(self, y: Any, inputs: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        """Targets by the names that the graphs give them."""
        if not isinstance(y, Mapping) and len(self._losses) == 1:
            y = {next(iter(self._losses)): y}
        elif not isinstance(y, Mapping):
            if (table := columns(y)) is None:
                names = ", ".join(map(repr, self._losses))
                raise DataError(f"The trained outputs are {names}; give y as a dict by name.")
            y = table
        if wrong := sorted(set(y) ^ set(self._losses)):
            state = "is missing from y" if wrong[0] in self._losses else "is no trained output"
            raise DataError(f"{wrong[0]!r} {state}; they are {', '.join(map(repr, self._losses))}.")
        found = {}
        for output, loss in self._losses.items():
            value, shape = self._model.outputs[output], self._shape(output, inputs)
            dtype = np.dtype(value.dtype if loss.target_dtype is None else loss.target_dtype)
            classes = shape[1] if dtype.kind in "iu" and len(shape) > 1 else None
            what = "y" if len(self._losses) == 1 else f"y[{output!r}]"
            t = check_target(y[output], dtype, loss.target_shape(shape), rows, what,
                             classes if isinstance(classes, int) else None)  # fmt: skip
            loss.check_target(t, what)
            found[Names.of(self._model).target(output)] = t
        return found

    def _data(self, X: Any, y: Any, sample_weight: Any) -> tuple[dict[str, np.ndarray], int]:
        """Everything that a step reads row by row."""
        inputs, rows = self._inputs(X)
        if self._fixed not in (None, self.batch_size):
            raise DataError(f"The model has a fixed batch dimension of {self._fixed} and batch_size is "
                            f"{self.batch_size}; export it with a dynamic one, or use batch_size={self._fixed}.")
        data = {**inputs, **self._target(y, inputs, rows)}
        if sample_weight is not None:
            w = check_sample_weight(sample_weight, self._engine.setup.dtype, rows)
            if not w.any():
                raise DataError("All sample weights are zero.")
            data[Names.of(self._model).sample_weight] = w
        return data, rows

    @property
    def _fixed(self) -> int | None:
        """The static first size that some input has, which is what every batch must have."""
        return next((v.shape[0] for v in self._read.values() if v.shape and isinstance(v.shape[0], int)), None)

    # -- inference

    def _session(self, what: str) -> Session:
        """A session that reads the weights as inputs, so that it need not be made anew when they change."""
        if what not in self._sessions:
            if what == "predict":
                graph = forward_graph(self._model, self._moving, list(self._losses), used_only=True)
            else:
                graph = row_loss_graph(self._model, self._moving, self._losses)
            self._sessions[what] = Session(graph, device=self.device, threads=None)
        return self._sessions[what]

    def _run(self, what: str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run a graph with the trained weights; in pieces where its batch dimension is fixed."""
        session, weights = self._session(what), self._arrays()
        rows = len(next(iter(feeds.values())))
        parts = []
        for start in range(0, rows, self._fixed or rows):
            piece = {n: a[start : start + (self._fixed or rows)] for n, a in feeds.items()}
            with self._watched():
                given = {n: a for n, a in {**piece, **weights}.items() if n in session.inputs}
                parts.append(session.run(given, self._options))
        return parts[0] if len(parts) == 1 else {n: np.concatenate([p[n] for p in parts]) for n in parts[0]}

    def predict(self, X: Any) -> Any:
        """The raw outputs of the graph with the trained weights.

        Parameters
        ----------
        X : array_like of shape (rows, ...), or dict of str to array_like
            Inputs.

        Returns
        -------
        numpy.ndarray, or dict of str to numpy.ndarray
            The trained output, or outputs by name where there are several.

        Raises
        ------
        DataError
            X does not fit the model.
        """
        found = self._run("predict", self._inputs(X)[0])
        return next(iter(found.values())) if len(found) == 1 else found

    def losses(self, X: Any, y: Any) -> np.ndarray:
        """The loss of every row, in order, without the penalty.

        Parameters
        ----------
        X, y : array_like
            As in `fit`.

        Returns
        -------
        numpy.ndarray of shape (rows,)
            The sum over the trained outputs.

        Raises
        ------
        DataError
            X or y does not fit the model.
        """
        inputs, rows = self._inputs(X)
        return next(iter(self._run("losses", {**inputs, **self._target(y, inputs, rows)}).values()))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Accuracy where the loss has labels, else R².

        R² = 1 - Σw(t - y)² / Σw(t - t̄)², averaged over the columns of y; accuracy = Σw[label = t] / Σw.

        Parameters
        ----------
        X, y, sample_weight : array_like
            As in `fit`.

        Returns
        -------
        float, or dict of str to float
            By output where there are several.

        Raises
        ------
        DataError
            The data do not fit the model.

        References
        ----------
        .. [1] scikit-learn, `r2_score` and `accuracy_score`.
        """
        inputs, rows = self._inputs(X)
        targets = self._target(y, inputs, rows)
        w = np.ones(rows) if sample_weight is None else check_sample_weight(sample_weight, np.dtype(np.float64), rows)
        found = self._run("predict", inputs)
        triples = zip(self._losses.items(), targets.values(), strict=True)
        scores = {}
        for (o, loss), t in triples:
            labels = loss.labels(found[o])
            scores[o] = r2(loss.mean(found[o]), t, w) if labels is None else accuracy(labels, t, w)
        return next(iter(scores.values())) if len(scores) == 1 else scores

    # -- forward and backward apart

    def _forward_backward(self) -> OrtGradientForwardBackward:
        if self._layer is None:
            settings = {"device": self.device, "engine": self.engine}
            self._layer = OrtGradientForwardBackward(whole(self._model), self._moving, **settings)
        self._layer.set_state(list(self._arrays().values()))
        return self._layer

    def forward(self, inputs: Any, training: bool = False) -> tuple[list[np.ndarray], Any]:
        """Outputs with the trained weights, and what `backward` needs.

        Parameters
        ----------
        inputs : numpy.ndarray, sequence of them, or dict of str to them
            Inputs of the graph.
        training : bool
            Whether `backward` will follow.

        Returns
        -------
        outputs : list of numpy.ndarray
        state : object
        """
        return self._forward_backward().forward(inputs, training)

    def backward(
        self, output_gradients: Sequence[np.ndarray], state: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Gradients of weights and inputs from those of the outputs; nothing is updated.

        Parameters
        ----------
        output_gradients : sequence of numpy.ndarray
            One an output.
        state : object
            What `forward` returned.

        Returns
        -------
        weights, inputs : dict of str to numpy.ndarray
        """
        if self._layer is None:
            raise DataError("There is no state to go back from; call forward with training=True.")
        weights, inputs = self._layer.backward(output_gradients, state)
        return {w: weights[w] for w in self.weights_to_train}, inputs

    # -- state

    def _names(self, kind: str) -> list[str]:
        if kind == "weight":
            return list(self.weights_to_train)
        if kind == "optimizer":
            return [*self._engine.setup.states, Names.of(self._model).iteration]
        if kind == "buffer":
            seed = [Names.of(self._model).seed] if self.train_mode else []
            return [*self._statistics, *seed, *self._engine.setup.scaling]
        raise SettingError(f"kind is 'weight', 'optimizer' or 'buffer', not {kind!r}.")

    def get_state(self, kind: str = "weight") -> list[np.ndarray]:
        """Copies of the weights, of the optimizer's states or of the buffers, that the caller owns.

        Parameters
        ----------
        kind : str
            ``"weight"``, ``"optimizer"`` or ``"buffer"``.

        Returns
        -------
        list of numpy.ndarray
            In the order of `weights_to_train`; of the optimizer, all states of the first weight, then of the next, and
            at last the number of batches seen, on which schedules and Adam depend. The buffers of `train_mode` are the
            running statistics, and then the seed, two numbers that the masks of Dropout follow from; those of a
            `LossScale` are the scale, the steps taken in a row since it moved, and the number of those skipped.
        """
        return [self._engine.get(n) for n in self._names(kind)]

    def set_state(self, state: Sequence[Any], kind: str = "weight") -> None:
        """Overwrite weights, states or buffers; a `fit` with `warm_start` or a `partial_fit` goes on from it.

        Parameters
        ----------
        state : sequence of array_like
            In the order of `get_state`.
        kind : str
            ``"weight"``, ``"optimizer"`` or ``"buffer"``.

        Raises
        ------
        DataError
            Another number of arrays, another shape, or what is no finite number.
        """
        names = self._names(kind)
        if len(state) != len(names):
            raise DataError(f"There are {len(names)} arrays of kind {kind!r} and {len(state)} given.")
        arrays = []
        for name, given in zip(names, state, strict=True):
            old = self._engine.get(name)
            try:
                with np.errstate(over="ignore"):
                    arrays.append(a := np.asarray(given, old.dtype))
            except (TypeError, ValueError):
                raise DataError(f"The array for {name!r} does not hold numbers.") from None
            if old.shape != a.shape:
                raise DataError(f"The array for {name!r} has shape {a.shape}, where {old.shape} was expected.")
            if not np.isfinite(a).all():
                raise DataError(f"The array for {name!r} is not finite.")
        for name, a in zip(names, arrays, strict=True):
            self._engine.set(name, a)

    @property
    def trained_coef_(self) -> dict[str, np.ndarray]:
        """Copies of the weights by name."""
        return dict(zip(self.weights_to_train, self.get_state(), strict=True))

    def _arrays(self) -> dict[str, np.ndarray]:
        """Copies of all initializers that a training changes."""
        return {n: self._engine.get(n) for n in self._moving}

    def get_trained_onnx(self) -> ModelProto:
        """The model with its trained weights, and running statistics; nothing else of it is changed.

        Returns
        -------
        onnx.ModelProto
        """
        return whole(self._model, self._arrays())

    def get_training_onnx(self, style: str = "standard", *, init: str = "random", weighted: bool = False) -> ModelProto:
        """The model with its trained weights and its training, which a `TrainingSession` goes on with.

        Parameters
        ----------
        style, init, weighted : object
            As for `to_training_info`.

        Returns
        -------
        onnx.ModelProto

        Raises
        ------
        SettingError, ModelError
            As for `to_training_info`.
        """
        return to_training_info(self, style, init=init, weighted=weighted)

    def save_onnx_graph(self, folder: str | os.PathLike[str] | type[bytes]) -> dict[str, Any]:
        """Every graph in use: predict, losses, and those of the engine.

        Parameters
        ----------
        folder : path, or the type bytes
            Where to write ``<name>.onnx``; with ``bytes`` nothing is written and the bytes are returned.

        Returns
        -------
        dict of str to pathlib.Path or bytes
        """
        graphs = {"predict": self.get_trained_onnx(), **self._engine.graphs(),
                  "losses": row_loss_graph(self._model, self._moving, self._losses)}  # fmt: skip
        first = self._model.arrays[self.weights_to_train[0]]
        graphs.setdefault("learning_loss", self._engine.loss_graph())
        rate = self.learning_rate.build_onnx_function(dtype=first.dtype, shape=first.shape)
        graphs.setdefault("learning_rate", rate)
        penalised = self.learning_penalty.build_onnx_function(dtype=first.dtype, shape=first.shape)
        graphs.setdefault("learning_penalty", penalised)
        raw = {n: g.SerializeToString() for n, g in graphs.items()}
        if folder is bytes:
            return raw
        root = Path(folder)  # type: ignore[arg-type]
        root.mkdir(parents=True, exist_ok=True)
        for n, content in raw.items():
            (root / f"{n}.onnx").write_bytes(content)
        return {n: root / f"{n}.onnx" for n in raw}

    # -- pickling

    def __getstate__(self) -> dict[str, Any]:
        """Settings, the model as bytes, and the state of the training; sessions are made anew."""
        left_out = ("_model", "_sessions", "_options", "_layer", "_engine", "_ranges")
        state = {k: v for k, v in vars(self).items() if k not in left_out}
        state["_given"] = {k: v for k, v in self._given.items() if k != "model"}
        state["straight_through"] = self._model.straight_through
        return {**state, "model": (self._model.proto.SerializeToString(), dict(self._model.arrays)),
                "engine_state": self._engine.snapshot()}  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        model, engine_state, rng = state.pop("model"), state.pop("engine_state"), state["_rng"]
        straight_through = state.pop("straight_through")
        vars(self).update(state)
        self._given["model"] = self._model = load(Model(ModelProto.FromString(model[0]), {}, {}, {}, model[1], {},
                                                        straight_through))  # fmt: skip
        self._open()
        self._start()
        self._rng = rng
        self._engine.restore(engine_state)

    # -- settings

    def _change(self, params: Mapping[str, Any]) -> None:
        """Take settings; where a graph depends on one, by a new object that goes on from where this one is."""
        built = (*self._given, "device", "engine", "distributed", "train_mode", "checkpointing", "precision",
                 "loss_scale")  # fmt: skip
        simple = {n: v for n, v in self.get_params(deep=False).items() if n not in built}
        if params.keys() <= simple.keys():
            vars(self).update(checked(**{**simple, **params}))
            if "random_state" in params:
                self._rng = np.random.default_rng(self.random_state)
            return
        new = type(self)(**{**self.get_params(deep=False), **params})
        if "model" not in params:
            new._engine.restore(self._engine.snapshot())
            for name in ("train_losses_", "validation_losses_", "n_iter_", "_rng"):
                if not (name == "_rng" and "random_state" in params):
                    setattr(new, name, getattr(self, name))
        vars(self).update(vars(new))

    def __repr__(self) -> str:
        return (f"{type(self).__name__}({', '.join(self.weights_to_train)}; learning_loss={self.learning_loss!r}, "
                f"learning_rate={self.learning_rate!r}, engine={self.engine_!r})")  # fmt: skip
