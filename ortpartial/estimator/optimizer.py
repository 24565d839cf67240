"""How is an ONNX graph trained? `OrtGradientForwardBackwardOptimizer`: fit, predict, score, state."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import find_reached_weights, resolve_weights
from ortpartial.exceptions import DataError, ModelError, SettingError
from ortpartial.graph import find_inputs
from ortpartial.learning import (
    BaseLearningLoss,
    BaseLearningPenalty,
    BaseLearningRate,
    resolve_loss,
    resolve_penalty,
    resolve_rate,
)
from ortpartial.model import Model, index_ranges, load, offload_weights, restore_weights
from ortpartial.rewrites import (
    LossScale,
    find_moving_statistics,
    resolve_checkpointing,
    resolve_precision,
    to_inference_mode,
)
from ortpartial.runtime import Session
from ortpartial.training import (
    DataParallelEngine,
    Engine,
    InplaceEngine,
    OrtGradientForwardBackward,
    TrainingSpec,
    prefers_inplace,
    select_for_device,
    select_for_fit,
)

from .fit_loop import Fitting
from .params import validate_settings

__all__ = ["OrtGradientForwardBackwardOptimizer"]


class OrtGradientForwardBackwardOptimizer(Fitting):
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
    >>> from ortpartial.graph import build
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
                       "learning_rate": learning_rate, "learning_penalty": learning_penalty}
        self.learning_rate = resolve_rate(learning_rate)
        self.learning_penalty = resolve_penalty(learning_penalty)
        vars(self).update(validate_settings(
            max_iter=max_iter, batch_size=batch_size, shuffle=shuffle, init=init, random_state=random_state,
            warm_start=warm_start, validation_every=validation_every, callbacks=callbacks, timeout=timeout,
            verbose=verbose, exc=exc))
        self.device, self.engine, self.distributed, self.train_mode = device, engine, distributed, bool(train_mode)
        self.checkpointing, self.precision, self.loss_scale = checkpointing, precision, loss_scale
        self._precision = resolve_precision(precision, loss_scale)

        if train_mode:
            given = model if isinstance(model, Model) else load(model)
            model = load(to_inference_mode(given.proto), straight_through=given.straight_through)
        # A copy: nothing that the caller does to the model may change a training.
        self._model = offload_weights(load(model))
        self.learning_loss = self._resolve_losses(learning_loss)
        self.weights_to_train = resolve_weights(self._model, weights_to_train, list(self._losses))
        self._check_reached()
        self._open()
        self.train_losses_: list[float] = []
        self.validation_losses_: list[float] = []
        self.n_iter_ = 0
        self._start()
        self._engine.check()

    def _check_reached(self) -> None:
        """Refuse weights that no gradient comes to."""
        trained = {n: self._model.initializers[n] for n in self.weights_to_train}
        reached = find_reached_weights([self._model.outputs[o] for o in self._losses], trained.values())
        if still := [n for n, w in trained.items() if w not in reached]:
            raise ModelError(f"No gradient leads from {', '.join(map(repr, self._losses))} to the weight {still[0]!r}, "
                             f"so that it would not be trained; leave it out.")

    def _open(self) -> None:
        """What is derived from the model and never pickled."""
        self._statistics = []
        if self.train_mode:
            self._statistics = find_moving_statistics(self._model, self._losses, self.weights_to_train)
        self._model = load(self._model, variables=self._moving)
        if self._model.file is not None:
            gc.collect()  # Nodes and their values refer to each other, and values to the content of big initializers.
        # A model may have inputs that the trained outputs do not depend on.
        self._read = find_inputs([self._model.outputs[o] for o in self._losses], self._model.inputs)
        if not self._read:
            raise ModelError(f"The outputs {', '.join(map(repr, self._losses))} depend on no input of the model.")
        self._ranges = index_ranges(self._read, [self._model.outputs[o] for o in self._losses])
        self._sessions: dict[tuple[str, int | None], Session] = {}
        self._threads: dict[int, int | None] = {}  # by the number of rows
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
                               f"to train with learning_loss={{output: loss}}.")
        self._losses = {floats[0]: loss}
        return loss

    def _start(self) -> None:
        """An engine that starts from the first weights."""
        kind, reason = select_for_fit(self.engine)
        if self.distributed:
            if self.engine not in ("auto", "step"):
                raise SettingError(f"distributed=True trains with engine='step', not {self.engine!r}.")
            kind, reason = DataParallelEngine, "several processes add their gradients between two graphs"
        wants = ["train_mode=True"] * self.train_mode + [f"precision={self.precision!r}"] * bool(self.precision)
        if wants and (self.distributed or self.engine == "agent"):
            asked = "distributed=True" if self.distributed else "engine='agent'"
            raise SettingError(f"{wants[0]} trains with engine='step' or 'epoch', in one process, not {asked}.")
        self._rng = np.random.default_rng(self.random_state)
        gradient = resolve_checkpointing(self.checkpointing, self._model.values)
        setup = TrainingSpec(self._model, tuple(self.weights_to_train), self._losses, self.learning_penalty,
                      self.learning_rate, self.device, self.train_mode, tuple(self._statistics), gradient,
                      self._precision)
        if self.engine != "epoch" and prefers_inplace(kind, setup):
            kind, reason = InplaceEngine, "memory counts, so weights are overwritten where they are"
        elif gradient is not None:
            missing = {
                "in one process, not with distributed=True": self.distributed,
                f"in the dtype of the model, not with precision={self.precision!r}": self.precision,
                f"with engine='step', not {self.engine!r}": self.engine not in ("auto", "step"),
                f"on the CPU, not on {self.device!r}": True,
            }
            raise SettingError(f"checkpointing trains {next(what for what, lacks in missing.items() if lacks)}.")
        elif self.engine == "auto" and not self.distributed:
            kind, reason = select_for_device(setup) or (kind, reason)
        self._engine: Engine = kind(setup)
        self._engine.reason = reason
        self._restart()

    @property
    def engine_(self) -> str:
        """The engine in use."""
        return self._engine.name

    @property
    def engine_reason_(self) -> str:
        """Why this engine is in use."""
        return self._engine.reason

    # -- forward and backward apart

    def _forward_backward(self) -> OrtGradientForwardBackward:
        if self._layer is None:
            settings = {"device": self.device, "engine": self.engine}
            self._layer = OrtGradientForwardBackward(restore_weights(self._model), self._moving, **settings)
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

    # -- pickling

    def __getstate__(self) -> dict[str, Any]:
        """Settings, the model as bytes, and the state of the training; sessions are made anew."""
        left_out = ("_model", "_sessions", "_options", "_layer", "_engine", "_ranges")
        state = {k: v for k, v in vars(self).items() if k not in left_out}
        state["_given"] = {k: v for k, v in self._given.items() if k != "model"}
        state["straight_through"] = self._model.straight_through
        return {**state, "model": (self._model.proto.SerializeToString(), dict(self._model.arrays)),
                "engine_state": self._engine.snapshot()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        model, engine_state, rng = state.pop("model"), state.pop("engine_state"), state["_rng"]
        straight_through = state.pop("straight_through")
        vars(self).update(state)
        self._given["model"] = self._model = load(Model(ModelProto.FromString(model[0]), {}, {}, {}, model[1], {},
                                                        straight_through))
        self._open()
        self._start()
        self._rng = rng
        self._engine.restore(engine_state)

    # -- settings

    def _change(self, params: Mapping[str, Any]) -> None:
        """Take settings; where a graph depends on one, by a new object that goes on from where this one is."""
        built = (*self._given, "device", "engine", "distributed", "train_mode", "checkpointing", "precision",
                 "loss_scale")
        simple = {n: v for n, v in self.get_params(deep=False).items() if n not in built}
        if params.keys() <= simple.keys():
            vars(self).update(validate_settings(**{**simple, **params}))
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
                f"learning_rate={self.learning_rate!r}, engine={self.engine_!r})")
