"""The estimator: fit, predict and score an ONNX graph, with settings, state and pickles."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import (
    ArrayLike,
    CallbackLike,
    Data,
    DataLike,
    Entries,
    MetricLike,
    Record,
    Settings,
    State,
)
from ortpartial.autodiff import WeightSelection
from ortpartial.checks import check_flag
from ortpartial.docstrings import document
from ortpartial.exceptions import CheckpointError, DataError, SettingError
from ortpartial.execution import (
    DataParallel,
    TrainingView,
    find_checkpoint,
    find_overrides,
    interruptible,
    view_training,
    write_checkpoint,
)
from ortpartial.learning import (
    BaseLearningPenalty,
    GradientClipping,
    NamedSettings,
    RateLike,
    WeightAverage,
    accept_former_names,
    check_keywords,
    expand_chain,
    rename_settings,
)
from ortpartial.model import AliasDict
from ortpartial.rewrites import LossScale
from ortpartial.runtime import DeviceName, NodePlacement
from ortpartial.training import RateFactors

from .display import list_changed, to_html, to_text
from .former_methods import FormerMethods
from .forms import Loss, ModelLike
from .output_loss import OutputLoss
from .params import (
    FormerName,
    ModelSetting,
    Progress,
    Setting,
    SettingMethod,
    check_names,
    collect_params,
    replace_nested,
)
from .resumption import read_settings
from .tags import make_tags
from .tasks import make_tasks
from .trainer import OptimizerTrainer
from .training import Training
from .weights import freeze_more

if TYPE_CHECKING:
    from typing_extensions import Self


__all__ = ["OrtGradientForwardBackwardOptimizer", "list_arguments"]

#: The settings of a stored training that are parts of an `OutputLoss`.
_OUTPUT_LOSS = ("loss_output_name", "label_names", "sample_weight_name")

#: Attributes that pickles of former versions hold, and that follow from the others.
_DERIVED = ("_data", "_engine", "_loop", "_losses", "_precision", "_predictor", "_read", "_spec", "_state",
            "_statistics", "_threads", "_turn")


@document()
class OrtGradientForwardBackwardOptimizer(FormerMethods, NamedSettings):
    """Train an ONNX graph, or only some of its weights, by stochastic gradient descent on ONNX Runtime.

    At batch k of rows B every weight becomes w - η(k) · step(∇J, state), with the objective J = Σᵢ∈B wᵢ ℓ(yᵢ, tᵢ) /
    Σᵢ∈B wᵢ + Σ penalty(w). The mean is over counted elements: the label `ignore_index` of a loss does not count, and a
    class counts by its `class_weight`. Where nothing in a batch counts, its loss and gradient are 0.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, or a `Model` returned by `load`
        The model, of any opset; it is never written to.
    weights_to_train : str, sequence of str, or callable, optional
        Initializers to train, in any order: names, aliases (see `load`), and patterns such as ``"encoder.layer.5.*"``;
        ``"adapter"`` for the weights of the adapter that `add_lora` and its kin added; or a function of a name, a shape
        and a `Node` that reads the weight, which returns whether to train it. By default the float initializers of rank
        1 or more on a differentiable path to a trained output, except BatchNormalization's mean and variance, and the
        numbers that exporters write, such as the scale of attention; in a model of `ortpartial.torch.export`, the
        parameters with ``requires_grad``.
    learning_loss : str, BaseLearningLoss, callable, or dict of str to them
        The loss: ``"square_error"``, ``"absolute_error"``, ``"elastic"``, ``"log_loss"``,
        ``"softmax_cross_entropy"``, an object, a function of prediction and target such as ``lambda y, t: abs(y - t)``,
        or a dict with any of these for every output that is trained. An `OutputLoss` for an output that is the loss:
        then `predict` and the trained model are the graph without it.
    learning_rate : str, float, BaseLearningRate or Chain
        The optimizer, with its learning rate and schedule: ``"SGD"``, ``"SGDNesterov"``, ``"Adam"``, an object, or a
        number for plain SGD. A `chain` is the whole update: it stands for the settings of its parts.
    learning_penalty : BaseLearningPenalty, optional
        The penalty of the weights.
    max_iter : int
        Number of epochs.
    batch_size : int
        Rows per step; the last batch of an epoch may be smaller and counts by its own size.
    shuffle : bool
        Whether every epoch takes the rows in a new order.
    init : str
        ``"model"`` starts from the weights of the model. ``"random"`` draws the factors of products anew, uniformly
        within ±√(6 / (fan in + fan out)), and keeps biases and the scales of normalizations.
    train_mode : bool, optional
        Whether Dropout and BatchNormalization are in training mode; otherwise they are in inference mode, even in a
        model that was exported in training mode. By default, a model of `ortpartial.torch.export` trains in the mode
        that its module was in, any other in inference mode. Dropout masks follow from a seed and the number of the
        step. Batches are normalized by their own statistics, which update the running statistics: with the population
        variance, as ONNX defines it; in a model of `ortpartial.torch.export` with torch's variance, n / (n - 1) of it.
        `predict` and the trained model stay in inference mode, with the current running statistics. Engines
        ``"step"`` and ``"epoch"``. A ModelWarning says where the model has nothing with a training mode.
    precision : str, optional
        Mixed precision, ``"float16"`` or ``"bfloat16"``: the dtype of products during training. Sums of many numbers,
        losses, weights and their update stay in the dtype of the model, as do `predict`, the trained model, and
        operators of other domains, such as products of packed weights. On the CPU, ``"bfloat16"`` rounds the operands
        of products, and their results are float32: engine ``"native"``, which ``"auto"`` takes where it saves time,
        computes them by AVX512-BF16; ``"epoch"`` and ``"step"`` compute the same in float32, and ``"auto"`` refuses a
        processor without it. float16 is meant for devices, with engines ``"step"`` and ``"epoch"``: on the CPU,
        onnxruntime runs it by float32 kernels, whose results it may leave unrounded.
    loss_scale : float or LossScale, optional
        Factor of the loss before differentiation, so that gradients do not vanish in float16. By default a `LossScale`
        for float16, which adapts the factor and skips steps whose gradient overflows; a number is fixed, and skips
        none.
    random_state : int or numpy.random.Generator, optional
        Source of row orders, random weights and the seed of masks.
    device : str or tuple of str and dict
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or an execution provider of onnxruntime, compiled in or a plug-in:
        ``"OpenVINOExecutionProvider"``, with options as a pair, ``("OpenVINOExecutionProvider", {"num_streams": 1})``,
        or as a text, ``"OpenVINOExecutionProvider:num_streams=1"``. It computes in float32, unless its options say
        otherwise, with as many threads as the CPU would. Nodes that it does not take, or computes in fewer bits than a
        dtype has, run on the CPU; `placement_` names the nodes.
    engine : str
        ``"epoch"`` (a graph for each epoch) or ``"step"`` (for each step), both on any onnxruntime, ``"native"`` (steps
        in machine code, by the system's C compiler; ``"epoch"`` where there is none), ``"agent"``
        (onnxruntime-training) or ``"auto"``. On a CUDA device ``"auto"`` records a step once, as a CUDA graph, and
        replays it; rows, their order, weights and losses stay on the device. Where a step cannot be recorded, or the
        rows do not fit, it is ``"epoch"``, and `engine_reason_` says why.
    warm_start : bool
        Whether `fit` continues from the last fit, with its weights, optimizer states and iteration, instead of
        starting again.
    validation_every : float or int
        The number of epochs between validations, in which the loss on ``X_val`` and the metrics are
        computed; less than 1, that number as a share of `max_iter`.
    callbacks : sequence of callbacks
        Functions, called with the optimizer after every epoch, which end the training by returning True; and
        objects with the hooks of scikit-learn's callbacks, as in `ortpartial.callbacks`, which are told of the
        tasks "fit", "epoch" and, where they have an attribute `batches_between_calls`, "batches": pieces of an epoch.
    metrics : sequence of str, callable or Metric
        Metrics that `fit` computes of the predictions for ``X_val``, every `validation_every` epochs, beside the loss:
        ``"accuracy"``, ``"f1_macro"``, ``"r2"``, ``"perplexity"`` and the others of `Metric`, or functions
        ``f(y_true, y_pred)`` or ``f(y_true, y_pred, sample_weight)``. They are columns of `history_`, with ``"val_"``
        before the name; metrics of the trained rows have no prefix: they are computed without ``X_val``, or beside it
        as ``"train_accuracy"``.
    distributed : bool or DataParallel
        Whether the processes of ``torch.distributed`` train together, or how they send gradients. Each is given all
        rows, as a memory map for example, and reads its share of every batch; the steps are as in a single process.
        Models, settings and rows are compared first. Only the first process shows the bar and calls the callbacks.
    checkpointing : None, "auto", or sequence of str
        Gradient checkpointing: recompute values in the backward pass instead of keeping them, for less memory, more
        time and the same numbers, up to the last bits; products of packed weights that round their inputs, with an
        accuracy level of 4, may make these a step of that rounding. ``"auto"`` (or True) cuts the model into the
        segments that take the least memory, about √n of n operators; a list names the tensors to keep, and all between
        them are recomputed.
    gradient_clipping : float or GradientClipping, optional
        How gradients are limited before they update the weights: a number is the largest norm of all gradients
        together, a `GradientClipping` the largest value, or the norm of each.
    accumulate : int
        Number of batches of an update, which takes the mean of their gradients: a step on batches of
        ``accumulate * batch_size`` rows, in the memory of one of `batch_size`. A smaller last batch counts as much as
        the others, and the rest of an epoch is carried into the next. Schedules and Adam count updates.
    averaging : str or WeightAverage, optional
        A running average of the weights that is kept beside them: ``"ema"``, an `ExponentialAverage`, ``"swa"``, a
        `StochasticWeightAverage`, or an object.
    use_average : bool
        Whether the averages take the place of the weights wherever these are used and not trained: in `predict`,
        `losses`, `score`, the validation of `fit`, `forward`, `trained_coef_`, `get_trained_onnx`, `save`. It can be
        changed at any time; `get_state` and `get_training_onnx` have both.
    rate_factors : dict of str to float, or LayerwiseDecay, optional
        Factors of the learning rate of weights, as ``{"encoder.*": 0.1}``: by names, aliases and patterns,
        of which a name counts, or else the pattern with the most letters, the most specific. A `LayerwiseDecay`
        multiplies by a power of the number of layers that follow.
    freeze : str or sequence of str
        Names, aliases and patterns of weights that are left out of `weights_to_train`. Behind "!" they are trained
        although an earlier pattern freezes them: ``("encoder.*", "!encoder.layer.11.*")``. `freeze` and `unfreeze` are
        methods, too, for a training that runs; `get_params` returns the setting.
    timeout : float, optional
        Seconds after which `fit`, `partial_fit`, `predict`, `losses` and `score` end with DeadlineError, even during a
        run; the training until then is kept. Engine ``"agent"`` checks it once a step.
    verbose : int
        1 shows a progress bar, which moves within an epoch and says how the training ended; where the output is no
        terminal, such as a file, it is a line for each epoch. 2 prints these lines. The logger "ortpartial" tells at
        level INFO which engine trains, how a training ended and which compilations took long, at level DEBUG every
        epoch and compilation.
    raise_on_divergence : bool
        Whether a loss that is NaN or infinite raises ConvergenceError; otherwise it warns and stops.
    check : bool
        Whether a training first compares loss and gradients of its first batch, as the engine computes them, with the
        model as it is written, run without an optimization: RewriteError names the difference, and the rewrite that
        causes it. It takes three steps or so, and compiles each.

    Attributes
    ----------
    train_losses_ : list of float
        The mean loss of every epoch, weighted by the count of each batch, each batch's before its step, without the
        penalty.
    validation_losses_ : list of float
        The mean loss on ``X_val``, a number for each time it was computed.
    history_ : list of dict
        A record of every epoch: its number, iteration, seconds, step size and losses.
    trained_coef_ : dict of str to numpy.ndarray
        The trained weights by name; an alias finds them, too.
    n_iter_ : int
        Number of epochs trained.
    learning_rate_ : float
        The step size of the next update, by which the schedule scales it.
    engine_, engine_reason_ : str
        The engine in use, and why.
    placement_ : NodePlacement or None
        Which execution provider runs which nodes of a step, from the first step on, where `device` names one.

    Raises
    ------
    ModelError, SettingError, DeviceError, NoGradientError, RuntimeMissingError
        The model, a setting, the device, an operator without a gradient or the installed runtime does not allow the
        training; raised by the constructor, not by `fit`.

    Notes
    -----
    Threads may share an optimizer. `fit` and `partial_fit` wait until a training in another thread is over, and only
    then their `timeout` begins; predictions and all that reads or sets the state have their turn between two epochs, or
    two batches of an iterable, and see the state of a single step. Copies, pickles and the children of a process share
    nothing.

    The constructor takes settings of onnxcustom, too, such as `device_index` and `weight_name`: the page "From
    onnxcustom" of the documentation has them.

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

    @accept_former_names
    def __init__(
        self,
        model: ModelLike,
        weights_to_train: WeightSelection | None = None,
        *,
        learning_loss: Loss | OutputLoss | Mapping[str, Loss] = "square_error",
        learning_rate: RateLike = "SGD",
        learning_penalty: BaseLearningPenalty | str | None = None,
        max_iter: int = 100,
        batch_size: int = 10,
        shuffle: bool = True,
        init: str = "model",
        train_mode: bool | None = None,
        precision: str | None = None,
        loss_scale: float | LossScale | None = None,
        random_state: int | np.random.Generator | None = None,
        device: DeviceName = "cpu",
        engine: str = "auto",
        warm_start: bool = False,
        validation_every: float = 1,
        callbacks: Sequence[CallbackLike] = (),
        metrics: Sequence[MetricLike] = (),
        distributed: bool | DataParallel = False,
        checkpointing: bool | str | Sequence[str] | None = None,
        gradient_clipping: float | GradientClipping | None = None,
        accumulate: int = 1,
        averaging: str | WeightAverage | None = None,
        use_average: bool = False,
        rate_factors: RateFactors | None = None,
        freeze: str | Sequence[str] = (),
        timeout: float | None = None,
        verbose: int = 0,
        raise_on_divergence: bool = True,
        check: bool = False,
    ):
        self.training = Training.begin(list_arguments(locals()), type(self).__name__, self._caller_level)

    #: The `stacklevel` of warnings of the constructor.
    _caller_level: ClassVar[int] = 5

    weights_to_train = ModelSetting()
    learning_loss = ModelSetting()
    learning_rate = ModelSetting()
    learning_penalty = ModelSetting()
    train_mode = ModelSetting()
    precision = ModelSetting()
    loss_scale = ModelSetting()
    device = ModelSetting()
    engine = ModelSetting()
    distributed = ModelSetting()
    checkpointing = ModelSetting()
    gradient_clipping = ModelSetting()
    accumulate = ModelSetting()
    averaging = ModelSetting()
    use_average = ModelSetting()
    rate_factors = ModelSetting()

    max_iter = Setting()
    batch_size = Setting()
    shuffle = Setting()
    init = Setting()
    random_state = Setting()
    warm_start = Setting()
    validation_every = Setting()
    callbacks = Setting()
    metrics = Setting()
    timeout = Setting()
    verbose = Setting()
    raise_on_divergence = Setting()
    exc = FormerName("raise_on_divergence", removal="0.3")
    check = Setting()

    # A small training takes microseconds, in which every call in Python counts.
    _spec, _engine, _data, _predictor, _loop, _state = (
        property(attrgetter(f"training.{name}")) for name in ("spec", "engine", "data", "predictor", "loop", "state"))

    train_losses_ = Progress()
    validation_losses_ = Progress()
    n_iter_ = Progress()
    _rng = Progress()

    @property
    def model(self) -> ModelLike:
        """The model as it was given; training starts again with another."""
        return self.training.arguments["model"]

    @model.setter
    def model(self, model: ModelLike) -> None:
        self.set_params(model=model)

    @classmethod
    def from_training_info(cls, model: ModelProto | bytes | str | os.PathLike[str], **settings: object) -> Self:
        """Make an optimizer that goes on with the training that a model stores.

        Weights, optimizer states and the number of batches seen are taken from the model, so that the next steps
        continue the exported training, to the last bit. `warm_start` is True: `fit` goes on from there.

        Parameters
        ----------
        model : onnx.ModelProto, bytes or path
            A model with ``training_info``: as `get_training_onnx` and `to_training_info` write it, with the settings in
            the metadata of the model, or a model of others, with the operators Gradient, Adam, Adagrad or Momentum,
            whose losses, penalty, optimizer and schedule are recognized as this library's.
        **settings : object
            Other settings, as for the constructor, such as ``max_iter`` and ``batch_size``, which a model does not
            store; stored settings can be replaced.

        Returns
        -------
        OrtGradientForwardBackwardOptimizer

        Raises
        ------
        ModelError
            The model has no training, its metadata are damaged, or the training is not recognized, such as a training
            with a custom loss, or a model that was edited after it was written; a `TrainingSession` runs any.

        Examples
        --------
        >>> import numpy as np
        >>> from ortpartial import build, constant, variable
        >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
        >>> X = np.arange(8, dtype=np.float32)[:, None] / 8
        >>> first = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate="Adam", shuffle=False)
        >>> stored = first.partial_fit(X, 3 * X).get_training_onnx()
        >>> again = OrtGradientForwardBackwardOptimizer.from_training_info(stored, shuffle=False)
        >>> again.partial_fit(X, 3 * X).trained_coef_ == first.partial_fit(X, 3 * X).trained_coef_
        True
        """
        from ortpartial.training_info import recognize_training  # late: few programs need it

        stored = recognize_training(model)
        optimizer = cls._from_stored(stored.model, {**stored.settings, "warm_start": True, **settings})
        optimizer.training.go_on(stored)
        return optimizer

    @classmethod
    def _from_stored(cls, model: ModelProto, settings: Entries) -> Self:
        """An optimizer with the settings that a model stores."""
        if "loss_output_name" not in settings:
            return cls(model, **settings)
        name, labels, row_weights = (settings[n] for n in _OUTPUT_LOSS)
        others = {n: v for n, v in settings.items() if n not in _OUTPUT_LOSS}
        return cls(model, **{"learning_loss": OutputLoss(name, labels, row_weights), **others})

    # -- training

    @check_keywords()
    def fit(self, X: DataLike, y: DataLike | None = None, sample_weight: DataLike | None = None,
            X_val: DataLike | None = None, y_val: DataLike | None = None, *,
            resume: str | os.PathLike[str] | None = None) -> Self:
        """Train for `max_iter` epochs, from the first weights unless `warm_start` or `resume`.

        Parameters
        ----------
        X : array_like of shape (rows, ...), table, dict of str to array_like, or iterable of batches
            Inputs; for a model with several, a dict or a table with a column for each. Arrays of numpy, memory maps and
            tensors of the input's dtype are read in place; tables of pandas, polars or pyarrow are copied column by
            column; rows of a sparse matrix of scipy become dense batch by batch. Without `y`, an iterable of batches,
            such as a DataLoader: it is iterated over once an epoch, a thread fetches the next batches during a step,
            and `batch_size` and `shuffle` do not apply; where it has a method `set_epoch`, this is told the number of
            epochs trained, before each. A batch is (X, y), (X, y, sample_weight), or a dict that holds the inputs by
            name, the target as "labels", "y" or by the name of its output, and "sample_weight"; other entries are
            ignored. For several inputs, X may be a tuple or list in their order, and the inputs and targets may stand
            beside each other, as in (a, b, y). Such a dict of whole arrays is taken as well. Of a language model,
            ``input_ids`` are enough, alone or in a dict: the graph computes an ``attention_mask`` of ones,
            ``position_ids`` and an empty key-value cache, unless X has them; `pad_rows` and `PaddedBatches` make arrays
            of rows of different lengths.
        y : array_like of shape (rows, ...), table, or dict of str to array_like
            Targets, of the shape of the output; integer labels where the loss takes them.
        sample_weight : array_like of shape (rows,) or of the shape of `y`, or dict of str to them, optional
            Weights of the rows, or of every element of the targets, such as tokens or pixels; not negative. For several
            outputs weights of rows, or a dict by name.
        X_val, y_val : like X and y, optional
            Validation data, whose loss is computed every `validation_every` epochs: arrays, an iterable of batches, or
            as `X_val` alone the share of the rows, between 0 and 1, that is not trained but validated, with its sample
            weights. These rows are drawn by `random_state`: if it is a number, they are the same in every call.
        resume : path, optional
            The folder of the callback `Checkpoint`, or a file of `save_checkpoint`. A `fit` that was cut off, on the
            same data with the same settings, goes on from there and ends as if it had not been, to the last bit; an
            ended fit has nothing left to do, unless `max_iter` is greater now. Where the folder holds nothing, or is
            not there, it starts from the beginning. Batches of an iterable that are over are skipped: it has to give
            the same batches as then. Of the data only the number of rows is checked: that they are the same rows is up
            to the caller.

        Returns
        -------
        OrtGradientForwardBackwardOptimizer
            The optimizer itself.

        Raises
        ------
        DataError
            The data do not fit the model.
        CheckpointError
            The content of the folder is damaged, or of a training with another model or other settings.
        ConvergenceError
            The loss or a weight is NaN or infinite; the weights are as after the last finite step.
        DeadlineError
            The `timeout` is over.
        RewriteError
            With `check`, a step computes something else than the model as it is written.

        Warns
        -----
        ConvergenceWarning
            There are fewer batches than `accumulate` takes for an update, so that no weight changes; or the loss is not
            finite, and `raise_on_divergence` is off.
        """
        X, y, sample_weight = self._predictor.reader.unpack(X, y, sample_weight)
        self.training.fit(X, y, sample_weight, X_val, y_val, make_tasks(self, X, y, sample_weight), resume,
                          find_overrides(self, OrtGradientForwardBackwardOptimizer))
        return self

    @check_keywords("max_iter")
    def partial_fit(self, X: DataLike, y: DataLike | None = None, sample_weight: DataLike | None = None) -> Self:
        """Train for an epoch on these rows, or batches, from the current weights and states.

        A schedule that lasts as long as the training, such as ``"cosine"``, keeps to the plan of a former `fit`;
        without a plan, or once it is over, `max_iter` calls like this one are planned.

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
        X, y, sample_weight = self._predictor.reader.unpack(X, y, sample_weight)
        self.training.partial_fit(X, y, sample_weight, find_overrides(self, OrtGradientForwardBackwardOptimizer))
        return self

    # -- what a subclass overrides

    def train_step(self, batch: Data) -> float:
        """Take a step on a batch; `fit` and `partial_fit` call it for each batch if a subclass overrides the method.

        Without it, `fit` takes many steps in a run, which is faster for small steps. It runs in the thread that
        trains, and may train other optimizers; the loss of an epoch is the mean of its results, by the rows of X.
        `on_epoch_begin` and `on_epoch_end`, which a subclass may define without an argument, are called around each
        epoch, before the callbacks; where the second returns True, `fit` ends.

        Parameters
        ----------
        batch : tuple
            (X, y, sample_weight), of which the last may be missing. Of an iterable, X and y are as it gives them, y is
            None where it gives no target; of rows, they are dicts of arrays, by the names of inputs and outputs.

        Returns
        -------
        float
            The loss of the batch.

        Raises
        ------
        ConvergenceError
            The loss or a weight is not finite; the weights are as before.

        Examples
        --------
        >>> import numpy as np
        >>> from ortpartial import build, constant, variable
        >>> class Noisy(OrtGradientForwardBackwardOptimizer):
        ...     def train_step(self, batch):
        ...         X, y, w = batch
        ...         return super().train_step(({"x": X["x"] + rng.normal(0, 0.1, X["x"].shape)}, y, w))
        >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
        >>> X, rng = np.arange(8, dtype=np.float32)[:, None] / 8, np.random.default_rng(0)
        >>> optimizer = Noisy(build([x], {"y": x @ w}), learning_rate=0.1, random_state=0).fit(X, 3 * X)
        >>> optimizer.n_iter_, bool(abs(optimizer.trained_coef_["w"] - 3).max() < 0.3)
        (100, True)
        """
        return self.training.step(batch)

    def validation_step(self, batch: Data) -> float | Mapping[str, float]:
        """Compute the loss of a batch; `fit` validates by it, batch by batch, if a subclass overrides the method.

        Parameters
        ----------
        batch : tuple
            As for `train_step`.

        Returns
        -------
        float, or dict of str to float
            The mean loss; or several numbers, "loss" among them, whose means over all rows are the columns
            ``"validation_loss"`` and the like of `history_`.
        """
        return self.training.compute_loss(batch)

    # -- weights that are trained

    @SettingMethod
    def freeze(self, *patterns: str) -> Self:
        """Exclude weights from the training, from the next step on; they keep their learned numbers.

        Between two calls of `fit`, or in a callback, it is ``set_params(freeze=...)`` with further patterns. Where all
        processes train together, the others follow the first.

        Parameters
        ----------
        *patterns : str
            Names, aliases and patterns, as for the setting `freeze`.

        Returns
        -------
        OrtGradientForwardBackwardOptimizer
            The optimizer itself.

        Raises
        ------
        ModelError
            A name or a pattern stands for no weight, or nothing would be left to train.

        Examples
        --------
        >>> from ortpartial.graph import build, constant, variable
        >>> x, a, b = variable("x", "float32", ["N", 1]), constant([[1.0]], hint="a"), constant([[2.0]], hint="b")
        >>> OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ a @ b})).freeze("a").weights_to_train
        ['b']
        """
        return self.set_params(freeze=freeze_more(self.training.arguments["freeze"], patterns))

    def unfreeze(self, *patterns: str) -> Self:
        """Train weights from the next step on, that were frozen or not among those to train.

        They start with optimizer states of zero, and Adam's bias correction counts from here; the schedule goes on from
        the start of the training. Between two calls of `fit`, or in a callback, it is ``set_params`` of `freeze` and,
        for weights that were never chosen, of `weights_to_train`. A `fit` that starts again trains them from its start.

        Parameters
        ----------
        *patterns : str
            Names, aliases and patterns, such as ``"encoder.layer.11.*"``. A pattern that stands for frozen weights
            unfreezes these alone, another pattern chooses its weights that are trained by default.

        Returns
        -------
        OrtGradientForwardBackwardOptimizer
            The optimizer itself.

        Raises
        ------
        ModelError
            A name or a pattern stands for nothing that can be trained.
        NoGradientError
            An operator between a weight and the loss has no gradient.

        References
        ----------
        .. [1] J. Howard and S. Ruder, Universal Language Model Fine-tuning for Text Classification, 2018.

        Examples
        --------
        >>> from ortpartial.graph import build, constant, variable
        >>> x, a, b = variable("x", "float32", ["N", 1]), constant([[1.0]], hint="a"), constant([[2.0]], hint="b")
        >>> optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ a @ b}), freeze="a")
        >>> optimizer.weights_to_train, optimizer.unfreeze("a").weights_to_train
        (['b'], ['a', 'b'])
        """
        return self.set_params(**self.training.list_unfrozen(patterns))

    # -- prediction

    def predict(self, X: DataLike) -> np.ndarray | dict[str, np.ndarray]:
        """Compute the raw outputs of the graph with the trained weights.

        Parameters
        ----------
        X : array_like of shape (rows, ...), dict of str to array_like, or iterable of batches
            Inputs. In batches as for `fit`, targets are ignored and may be missing; their outputs are joined.

        Returns
        -------
        numpy.ndarray, or dict of str to numpy.ndarray
            The trained output, or outputs by name where there are several.

        Raises
        ------
        DataError
            X does not fit the model.
        """
        with interruptible(self._predictor, self.timeout):
            return self._predictor.predict(X)

    def losses(self, X: DataLike, y: DataLike | None = None, sample_weight: DataLike | None = None) -> np.ndarray:
        """Compute the loss of every row, without the penalty.

        Parameters
        ----------
        X, y, sample_weight : array_like
            As in `fit`. A row with several elements has the mean over elements that count, and a loss of 0 where none
            does; weights of whole rows change nothing.

        Returns
        -------
        numpy.ndarray of shape (rows,)
            The sum over the trained outputs.

        Raises
        ------
        DataError
            X or y does not fit the model.
        """
        with interruptible(self._predictor, self.timeout):
            self.training.follow_pieces()
            return self._predictor.losses(X, y, sample_weight)

    def score(self, X: DataLike, y: DataLike | None = None,
              sample_weight: DataLike | None = None) -> float | dict[str, float]:
        """Compute the accuracy where the loss has labels, else R².

        R² = 1 - Σw(t - y)² / Σw(t - t̄)², averaged over the columns of y; accuracy = Σw[label = t] / Σw over the labels
        that count.

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
        with interruptible(self._predictor, self.timeout):
            return self._predictor.score(X, y, sample_weight)

    @check_keywords("metrics")
    def evaluate(self, X: DataLike, y: DataLike | None = None, sample_weight: DataLike | None = None, *,
                 metrics: Sequence[MetricLike] | None = None) -> dict[str, float]:
        """Compute the loss, without the penalty, and metrics, with the weights that predictions use.

        Parameters
        ----------
        X, y, sample_weight : array_like
            As in `fit`, also an iterable of batches as X alone.
        metrics : sequence of str, callable or Metric, optional
            The metrics; by default the metrics of the setting.

        Returns
        -------
        dict of str to float
            The mean loss as "loss", and the metrics by name.

        Raises
        ------
        DataError
            The data do not fit the model.
        SettingError
            A metric is unknown, or does not compare such predictions.

        Examples
        --------
        >>> import numpy as np
        >>> from ortpartial.graph import build, constant, variable
        >>> x, w = variable("x", "float32", ["N", 1]), constant([[1.0]], hint="w")
        >>> optimizer, X = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w})), np.ones((8, 1), np.float32)
        >>> optimizer.evaluate(X, 3 * X, metrics=["mae"])
        {'loss': 4.0, 'mae': 2.0}
        """
        with interruptible(self._predictor, self.timeout):
            return self.training.evaluate(X, y, sample_weight, self.metrics if metrics is None else metrics)

    # -- state

    @property
    def history_(self) -> list[Record]:
        """A record of every epoch, by column; `pandas.DataFrame(history_)` is a table of them.

        "epoch" is its number from 1 on, "iteration" the number of batches seen until its end, both over all calls;
        "seconds" how long it took; "learning_rate" the step size of its last batch; "loss" as in `train_losses_`; and
        "validation_loss", where it was computed, as in `validation_losses_`; `metrics` follow. Changes of a record
        stay; callbacks add columns by ``history_[-1]``, or by `training_view().record`.
        """
        return list(self._loop.history)

    @history_.setter
    def history_(self, records: Sequence[Entries]) -> None:
        self._loop.records = [dict(record) for record in records]

    def training_view(self) -> TrainingView:
        """Return the present state of a training, for callbacks: its place, last losses and rate.

        Returns
        -------
        TrainingView

        Examples
        --------
        >>> import numpy as np
        >>> from ortpartial.graph import build, constant, variable
        >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
        >>> optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate=0.5, max_iter=3)
        >>> view = optimizer.fit(np.ones((20, 1), np.float32), np.ones((20, 1), np.float32)).training_view()
        >>> view.epoch, view.iteration, view.rate, [record["iteration"] for record in view.history]
        (3, 6, 0.5, [2, 4, 6])
        """
        return view_training(self.trainer, self)

    @property
    def trainer(self) -> OptimizerTrainer:
        """The training, as callbacks see it."""
        return OptimizerTrainer(self)

    def get_state(self, kind: str = "weight") -> list[np.ndarray]:
        """Copy the weights, the optimizer states or the buffers.

        Parameters
        ----------
        kind : str
            ``"weight"``, ``"optimizer"`` or ``"buffer"``.

        Returns
        -------
        list of numpy.ndarray
            Weights in the order of `weights_to_train`. Optimizer states: all of the first weight, the sum of its
            gradients with `accumulate` and its average with `averaging`, then the states of the next, and last the
            number of batches seen, on which schedules and Adam depend. Buffers: in `train_mode` the running statistics,
            then the seed of the Dropout masks, two numbers; with a `LossScale` the scale, the number of steps since it
            changed, and the number of steps skipped.
        """
        return self._state.get(kind)

    @check_keywords()
    def set_state(self, state: Sequence[ArrayLike], kind: str = "weight") -> None:
        """Overwrite weights, states or buffers; `partial_fit`, or `fit` with `warm_start`, continues from them.

        Parameters
        ----------
        state : sequence of array_like
            In the order of `get_state`.
        kind : str
            ``"weight"``, ``"optimizer"`` or ``"buffer"``.

        Raises
        ------
        DataError
            The number of arrays or a shape differs, or an array is not finite.
        """
        self._state.set(state, kind)

    @property
    def trained_coef_(self) -> dict[str, np.ndarray]:
        """Copies of the weights by name; with `use_average`, of their averages."""
        with self._engine.turn.lock:
            return self._with_aliases({w: self._engine.get_used(w) for w in self.weights_to_train})

    def _with_aliases(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return AliasDict(arrays, self._spec.model.aliases)

    @check_keywords()
    @check_keywords()
    def get_trained_onnx(self, with_loss: bool = False) -> ModelProto:
        """Return the model with its trained weights and running statistics, and otherwise unchanged.

        Parameters
        ----------
        with_loss : bool
            Whether a graph that computes its loss itself is returned whole, to be trained further. A graph that has no
            output but its loss always is.

        Returns
        -------
        onnx.ModelProto
        """
        return self._state.to_model(with_loss)

    def get_training_onnx(
        self, style: str = "standard", *, init: str = "random", weighted: bool | str = False
    ) -> ModelProto:
        """Return the trained model with its training, which a `TrainingSession` continues.

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
        self.training.follow_pieces()
        from ortpartial.training_info import to_training_info

        return to_training_info(self._spec, style, state=self._state.take_snapshot(), init=init, weighted=weighted)

    def export_step(self, folder: str | os.PathLike[str], targets: str | Sequence[str] = ("web",), *,
                    batch_size: int | None = None, batch_sizes: Collection[int] | None = None,
                    weighted: bool | str = False) -> dict[str, Path]:
        """Write a training kit, which trains where there is no Python: in a browser, in Node, C, C++ or Java.

        The training goes on from its current weights and optimizer states. `TrainingKit` and `run_kit` run it here.

        Parameters
        ----------
        folder, targets : object
            As for `write_kit`.
        batch_size : int, optional
            The number of rows of a batch that a runner takes by default; that of the optimizer, or the first that there
            is a step for.
        batch_sizes : collection of int, optional
            As for `write_kit`.
        weighted : bool or "elements"
            As for `to_training_info`.

        Returns
        -------
        dict of str to pathlib.Path
            The files by name.

        Raises
        ------
        SettingError, ModelError, OSError
            As for `to_training_info` and `write_kit`.

        Examples
        --------
        >>> from ortpartial.graph import build, constant, variable
        >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
        >>> optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate=0.5)
        >>> sorted(optimizer.export_step("exported_kit", targets=()))
        ['README.md', 'kit.json', 'model.onnx', 'state.safetensors', 'step.onnx']
        """
        self.training.follow_pieces()
        if self.use_average:
            raise SettingError("use_average=True is not written into a kit, whose model takes the weights that are "
                               "trained; set it to False first.")
        if self._spec.planned_rate != self._spec.rate and 0 < self.training.batches <= self._engine.iteration:
            raise SettingError(f"{self.learning_rate.schedule!r} has come to its end with the training that fit was "
                               f"asked for; give the schedule the number of batches, n.")
        proto = self.get_training_onnx("lowered", init="model", weighted=weighted)
        rows = [v.shape[0] for v in self._spec.model.inputs.values() if v.shape]
        if batch_size is None and not batch_sizes and not any(isinstance(size, int) for size in rows):
            batch_size = self.batch_size
        from ortpartial.kits import write_kit  # late: few programs need it

        return write_kit(proto, folder, targets, batch_size=batch_size, batch_sizes=batch_sizes)

    def save(self, path: str | os.PathLike[str], *, with_training: bool = False) -> None:
        """Write the model with its trained weights and running statistics, as `get_trained_onnx` returns it.

        Any runtime reads the file; this library trains it further. It holds either its former content or the whole
        model, even if the process is interrupted.

        Parameters
        ----------
        path : path
            The file. The weights of a model of more than 2 GB stand beside it in ``<name>.data``.
        with_training : bool
            Whether the file holds the training, too, as `get_training_onnx` returns it: `from_training_info` and
            `TrainingSession` go on with it, with its optimizer states.

        Raises
        ------
        OSError
            The file cannot be written.
        ConvergenceError
            A weight has become NaN or infinite, and the file remains as it is; `get_trained_onnx` returns the model
            all the same.

        Examples
        --------
        >>> import numpy as np
        >>> from ortpartial.graph import build, constant, variable
        >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
        >>> optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate=0.5)
        >>> X = np.ones((8, 1), np.float32)
        >>> optimizer.fit(X, 3 * X).save("trained.onnx")
        >>> from onnxruntime import InferenceSession
        >>> session = InferenceSession("trained.onnx", providers=["CPUExecutionProvider"])
        >>> session.run(None, {"x": X[:1]})[0].round(3).tolist()
        [[3.0]]
        """
        self._state.save(path, self.get_training_onnx if check_flag("with_training", with_training) else None)

    @check_keywords()
    def save_onnx_graph(self, folder: str | os.PathLike[str] | type[bytes]) -> dict[str, Any]:
        """Write every graph in use, to look at or to run elsewhere; for the trained model alone, use `save`.

        Each is named for its results:

        - ``predict``: the outputs, the model with its trained weights;
        - ``losses``: the loss of every row;
        - ``learning_loss``, ``learning_penalty``: the loss and the penalty, with their gradients;
        - ``learning_rate``: the new weight and optimizer states, for the shape of the first weight;
        - ``step``, ``epoch``: the loss, the new weights and the new states after a step or many;
        - engine ``"agent"``: ``forward``, and ``forward_backward`` with the gradients, which only onnxruntime-training
          runs;
        - ``distributed=True``, and weights that are overwritten where they are: ``gradient`` and ``update``, the two
          parts of a step, of which ``sum`` takes the place of the second where no update is due.

        Parameters
        ----------
        folder : path, or the type bytes
            Where to write ``<name>.onnx``; with ``bytes``, return the bytes instead. The folder is complete or not
            there, even if the process is interrupted; in an existing folder, all graphs are written before the first
            replaces a former graph.

        Returns
        -------
        dict of str to pathlib.Path or bytes
            By name.

        Raises
        ------
        SettingError
            The name of the folder ends in ``.onnx``.
        OSError
            A file cannot be written; all former files remain.
        ConvergenceError
            As in `save`; ``save_onnx_graph(bytes)`` returns the graphs all the same.
        """
        self.training.follow_pieces()
        return self._state.save_graphs(folder)

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write the whole state of the training to a file, between two trainings or in a callback.

        That is weights, optimizer states, running statistics, loss scale, random state, the place in the epoch and in
        the schedule, history, and settings that callbacks have changed; and neither the model nor the data. The file is
        of safetensors, with the rest as JSON in its metadata, and a checksum. It holds either its former content or the
        whole state, whenever the process ends.

        Parameters
        ----------
        path : path
            The file, such as ``"last.safetensors"``.

        Raises
        ------
        OSError
            The file cannot be written, and the former file remains; the training is as it was.

        See Also
        --------
        load_checkpoint : Go back to the state in a file.
        ortpartial.Checkpoint : The callback that writes such files during `fit`, which goes on from them.

        Examples
        --------
        >>> import numpy as np
        >>> from ortpartial.graph import build, constant, variable
        >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
        >>> model, X = build([x], {"y": x @ w}), np.ones((8, 1), np.float32)
        >>> first, again = (OrtGradientForwardBackwardOptimizer(model, learning_rate="Adam") for _ in range(2))
        >>> first.partial_fit(X, 3 * X).save_checkpoint("last.safetensors")
        >>> again.load_checkpoint("last.safetensors")
        >>> again.partial_fit(X, 3 * X).get_state() == first.partial_fit(X, 3 * X).get_state()
        True
        """
        with self.training.capture(read_settings(self)) as state:
            write_checkpoint(state, path)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Go back to the state in a checkpoint: `partial_fit`, or `fit` with `warm_start`, continues from it.

        The learning rate and the penalty become the stored ones.

        Parameters
        ----------
        path : path
            A file, or a folder of the callback `Checkpoint`, in which the newest whole file is read.

        Raises
        ------
        CheckpointError
            There is no checkpoint, it is damaged, or that of another training: of another model, other weights or
            another optimizer. The state remains as it is.
        OSError
            The file cannot be read.

        Warns
        -----
        CheckpointWarning
            The newest checkpoint in the folder is damaged, and the checkpoint before it is read.
        """
        if (stored := find_checkpoint(path)) is None:
            raise CheckpointError(f"There is no checkpoint in {str(path)!r}.")
        with self.training.turn.lock:
            self.training.restore(stored[1], f"The checkpoint {str(stored[0])!r}")

    @property
    def learning_rate_(self) -> float:
        """The step size of the next update, by which the schedule scales it: η(k) after k - 1 updates."""
        return self._state.step_size()

    @property
    def learning_rate_scale_(self) -> float:
        """The factor of all step sizes, from `scale_learning_rate` or a `ReduceOnPlateauSchedule`."""
        return self._state.rate_scale

    def scale_learning_rate(self, scale: float) -> Self:
        """Multiply all step sizes by a number, from the next batch on, until another is set or `fit` starts anew.

        A callback may call it after each epoch. Only the first call of a training compiles its step anew: a callback
        that will call it avoids this by ``scale_learning_rate(1.0)`` before the first epoch. The number belongs to the
        state of the training: a pickle goes on with it.

        Parameters
        ----------
        scale : float
            The number, more than 0.

        Returns
        -------
        OrtGradientForwardBackwardOptimizer
            The optimizer itself.

        Raises
        ------
        SettingError
            The number is not finite or not more than 0, or it is set in another thread than that which trains.
        """
        self.training.scale_rate(scale)
        return self

    @property
    def engine_(self) -> str:
        """The engine in use."""
        return self._engine.name

    @property
    def engine_reason_(self) -> str:
        """Why this engine is in use."""
        placement = self._engine.placement
        return self._engine.reason if placement is None else f"{self._engine.reason}; {placement}"

    @property
    def placement_(self) -> NodePlacement | None:
        """Which execution provider runs which nodes of a step."""
        return self._engine.placement

    # -- forward and backward apart

    def forward(self, inputs: DataLike, training: bool = False) -> tuple[list[np.ndarray], Any]:
        """Compute the outputs with the trained weights, and the state that `backward` needs.

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
        with self._engine.turn.lock:
            return self.training.forward_backward().forward(inputs, training)

    def backward(
        self, output_gradients: Sequence[np.ndarray], state: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Compute the gradients of weights and inputs from the cotangents of the outputs, without an update.

        Parameters
        ----------
        output_gradients : sequence of numpy.ndarray
            A cotangent per output.
        state : object
            The state that `forward` returned.

        Returns
        -------
        weights, inputs : dict of str to numpy.ndarray
        """
        if (layer := self.training.last_layer) is None:
            raise DataError("There is no state to go back from; call forward with training=True.")
        weights, inputs = layer.backward(output_gradients, state)
        return self._with_aliases({w: weights[w] for w in self.weights_to_train}), inputs

    # -- pickling

    def __getstate__(self) -> State:
        return {**{n: v for n, v in vars(self).items() if n != "training"}, **self.training.pack()}

    def __setstate__(self, state: State) -> None:
        state = dict(state)
        names = [n for kind in type(self).__mro__ for n, v in vars(kind).items() if isinstance(v, ModelSetting)]
        training = Training.unpack(state, names)
        vars(self).update({n: v for n, v in state.items() if n not in _DERIVED}, training=training)

    # -- settings

    def get_params(self, deep: bool = True) -> Settings:
        """Return the settings by name.

        Parameters
        ----------
        deep : bool
            Whether to include the settings of loss, penalty and optimizer, as ``learning_rate__eta0``.

        Returns
        -------
        dict of str to object
        """
        return collect_params(self, self.training.arguments, deep)

    def set_params(self, **params: object) -> Self:
        """Change settings by name and keep the training; assigning an attribute does the same.

        In a callback, `learning_rate`, `learning_penalty`, `gradient_clipping`, `averaging`, `weights_to_train`,
        `freeze` and `rate_factors` change from the next step on: the schedule goes on with the batch where it is, and
        an optimizer or an average keeps its states unless it is of another class, and starts anew. `use_average`
        changes at once. `max_iter`, `batch_size`, `shuffle`, `validation_every`, `callbacks`, `verbose`,
        `raise_on_divergence` and `random_state` change from the next epoch on, `timeout`, `init` and `warm_start` from
        the next call on; these, and `use_average`, may be changed by any thread. All others are refused while `fit`
        runs. With ``distributed=True`` the other processes take over the changes of the first.

        Another rate or penalty compiles the step anew, which takes from 60 milliseconds for a small network to seconds:
        a step size that changes with every batch is a `Schedule`.

        Parameters
        ----------
        **params : object
            Any that `get_params` returns. With another model, training starts again. A weight that is no longer
            in `weights_to_train` keeps its learned numbers.

        Returns
        -------
        object
            The object itself.

        Raises
        ------
        SettingError
            A name is unknown, a value is not allowed, or `fit` is running and a graph depends on the setting.
        """
        params = rename_settings(type(self).__name__, params)
        direct = expand_chain({n: v for n, v in params.items() if "__" not in n})
        check_names(self, direct)
        if direct:
            self._change(direct)
        if nested := {n: v for n, v in params.items() if "__" in n}:
            self._change(replace_nested(self, nested))
        return self

    def _change(self, params: Entries) -> None:
        """Change settings; the further state of a subclass becomes that of an optimizer with the new settings."""

        def rebuild(params: Entries) -> OrtGradientForwardBackwardOptimizer:
            return type(self)(**{**self.get_params(deep=False), **params})

        if (new := self.training.change(params, rebuild)) is not None:
            vars(self).update({n: v for n, v in vars(new).items() if n != "training"})

    # -- display, and what scikit-learn asks for

    def __repr__(self) -> str:
        return to_text(type(self), list_changed(type(self), self._spec.model, self.get_params(deep=False)))

    def _repr_html_(self) -> str:
        return to_html(self, list_changed(type(self), self._spec.model, self.get_params(deep=False)))

    def __sklearn_tags__(self) -> Any:
        return make_tags()

    def __sklearn_is_fitted__(self) -> bool:
        """Always: without `fit`, the weights are the model's."""
        return True


def list_arguments(local: Entries) -> Settings:
    """The arguments of a constructor, from its local variables.

    Parameters
    ----------
    local : dict of str to object
        The result of `locals` at its beginning.

    Returns
    -------
    dict of str to object
        By name, without the instance.

    Examples
    --------
    >>> list_arguments({"self": None, "max_iter": 3})
    {'max_iter': 3}
    """
    return {n: v for n, v in local.items() if n not in ("self", "__class__")}
