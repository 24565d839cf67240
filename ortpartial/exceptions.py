"""Exceptions and warnings of ortpartial, all errors with one base class.

Their messages name tensors and files: characters that give orders to a terminal are shown as escapes, and long names
are cut in the middle; ``error.args[0]`` is the whole.
"""

import sys
from types import TracebackType

from .texts import shorten

__all__ = ["ArgumentError", "CheckpointError", "CheckpointWarning", "CompilerError", "CompilerMissingError",
           "ConvergenceError", "ConvergenceWarning", "DataError", "DeadlineError", "DeviceError", "DeviceWarning",
           "FileMissingError", "GraphError", "ModelError", "ModelWarning", "NoGradientError", "NotComputedError",
           "OrtPartialError", "ProcessError", "RewriteError", "RuntimeMissingError", "SettingError",
           "UnknownOperatorError", "UntranslatableError"]


class OrtPartialError(Exception):
    """Base of every error that ortpartial raises on purpose.

    Examples
    --------
    >>> from ortpartial import OrtPartialError, load
    >>> try:
    ...     load(b"no model")
    ... except OrtPartialError as error:
    ...     print(type(error).__name__, isinstance(error, ValueError))
    ModelError True
    """

    def __str__(self) -> str:
        return shorten(super().__str__(), keep="\n")

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows: the frames of the user, without the frames of this library."""
        shown = _leave_out_own(self.__traceback__) or self.__traceback__
        lines: list[str] = sys.modules["IPython"].get_ipython().InteractiveTB.structured_traceback(
            type(self), self, shown)
        return lines


def _leave_out_own(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this library, of which `%debug` still knows."""
    if trace is None:
        return None
    rest = _leave_out_own(trace.tb_next)
    if str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == __name__.partition(".")[0]:
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


class _NamingWarning(UserWarning):
    """Base of the warnings."""

    def __str__(self) -> str:
        return shorten(super().__str__(), keep="\n")


class ArgumentError(OrtPartialError, TypeError):
    """A setting or an argument does not exist under this name, or is to be given by name.

    Examples
    --------
    >>> from ortpartial import LearningRateSGD
    >>> LearningRateSGD(lr=0.1)
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ArgumentError: LearningRateSGD has no setting 'lr'; did you mean 'eta0'?
    """


class GraphError(OrtPartialError, ValueError):
    """An operator was called as the ONNX specification does not allow: its name, inputs, attributes or types.

    Examples
    --------
    >>> from ortpartial import op, variable
    >>> op.Relu(variable("x", "float32", [2]), alpha=1.0)
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.GraphError: Relu has no attribute 'alpha'; its attributes are: none.
    """


class UnknownOperatorError(GraphError, AttributeError):
    """ONNX has no operator of this name; an AttributeError as well, so that ``hasattr(op, name)`` is False.

    Examples
    --------
    >>> from ortpartial import op
    >>> op.Rellu
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.UnknownOperatorError: ONNX has no operator Rellu at opset 21. Did you mean Relu?
    """


class ModelError(OrtPartialError, ValueError):
    """A model cannot be loaded or used: not ONNX, truncated, without a named tensor, or refused by the runtime.

    Examples
    --------
    >>> from ortpartial import load
    >>> load(b"no model")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ModelError: The 8 bytes given are no ONNX model, or one that was cut short.
    """


class NotComputedError(OrtPartialError, TypeError):
    """The numbers of a value were asked for that is an expression, of a graph that has not been run.

    Examples
    --------
    >>> from ortpartial import variable
    >>> float(variable("x", "float32", []))
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.NotComputedError: ... has no numbers before it is computed; write the formula ...
    """


class NoGradientError(OrtPartialError, NotImplementedError):
    """An operator between a trained weight and the outputs has neither a gradient rule nor a function body.

    Examples
    --------
    >>> from ortpartial import grad, op, variable
    >>> x, scales = variable("x", "float32", [4]), variable("scales", "float32", [1])
    >>> grad(op.Resize(x, None, scales, mode="linear"), [scales])
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.NoGradientError: ... has no gradient by its scales; leave out of weights_to_train ...
    """


class SettingError(OrtPartialError, ValueError):
    """A setting of an optimizer, a loss, a penalty or a learning rate is out of range or an unknown name.

    Examples
    --------
    >>> from ortpartial import LearningRateSGD
    >>> LearningRateSGD(-1)
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.SettingError: LearningRateSGD: eta0 is -1, a finite number more than 0 was expected.
    """


class RewriteError(OrtPartialError, ArithmeticError):
    """A step computes something else than the model as it is written: a rewrite, an engine or the runtime is at fault.

    Examples
    --------
    >>> from ortpartial.exceptions import OrtPartialError, RewriteError
    >>> issubclass(RewriteError, OrtPartialError)
    True
    """


class CheckpointError(OrtPartialError, ValueError):
    """A checkpoint is damaged, none of this library, or that of another training.

    Examples
    --------
    >>> from pathlib import Path
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> model = build([x := variable("x", "float32", ["N", 2])], {"y": x @ constant([[1.0], [1.0]], hint="w")})
    >>> Path("state.safetensors").write_text("cut off")
    7
    >>> OrtGradientForwardBackwardOptimizer(model).load_checkpoint("state.safetensors")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.CheckpointError: 'state.safetensors' is no safetensors file, or a damaged one.
    """


class DataError(OrtPartialError, ValueError):
    """X, y or the sample weights do not fit the model: wrong shape, dtype or length, or values that are no numbers.

    Examples
    --------
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> model = build([x := variable("x", "float32", ["N", 2])], {"y": x @ constant([[1.0], [1.0]], hint="w")})
    >>> OrtGradientForwardBackwardOptimizer(model).fit([[1.0], [2.0]], [1.0, 2.0])
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.DataError: Input 'x' has shape (2, 1), where (N, 2) was expected.
    """


class FileMissingError(ModelError, DataError, CheckpointError, FileNotFoundError):
    """A file or a folder that is to be read, of a model, of data or of a state, is not there.

    It is also the error that other damage of such a file is.

    Examples
    --------
    >>> from ortpartial import TrainingKit
    >>> TrainingKit("nowhere")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.FileMissingError: There is no file 'nowhere/kit.json'; give the folder that export_step ...
    """


class DeadlineError(OrtPartialError, TimeoutError):
    """The timeout ended a run; the training until then is kept.

    Examples
    --------
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> model = build([x := variable("x", "float32", ["N", 2])], {"y": x @ constant([[1.0], [1.0]], hint="w")})
    >>> optimizer = OrtGradientForwardBackwardOptimizer(model, max_iter=10**9, timeout=0.01)
    >>> optimizer.fit([[1.0, 2.0]], [1.0])
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.DeadlineError: The run was not over after 0.01 s, the timeout.
    """


class DeviceError(OrtPartialError, RuntimeError):
    """The device is unknown, or the installed onnxruntime has no support for it.

    Examples
    --------
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> model = build([x := variable("x", "float32", ["N", 2])], {"y": x @ constant([[1.0], [1.0]], hint="w")})
    >>> OrtGradientForwardBackwardOptimizer(model, device="tpu")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.DeviceError: The device is 'tpu'; expected 'cpu', 'cuda', ...
    """


class ProcessError(OrtPartialError, RuntimeError):
    """Another process of a data-parallel training has ended or hangs, or this process was forked in a training.

    Examples
    --------
    The other process of two trains for an epoch and ends.

    >>> import multiprocessing, pathlib
    >>> import torch.distributed as dist
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> model = build([x := variable("x", "float32", ["N", 2])], {"y": x @ constant([[1.0], [1.0]], hint="w")})
    >>> def train(rank):
    ...     store = pathlib.Path("store").absolute().as_uri()
    ...     dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    ...     optimizer = OrtGradientForwardBackwardOptimizer(model, max_iter=1000, distributed=True)
    ...     (optimizer.partial_fit if rank else optimizer.fit)([[1.0, 2.0], [2.0, 1.0]], [1.0, 2.0])
    >>> other = multiprocessing.get_context("fork").Process(target=train, args=(1,))
    >>> other.start()
    >>> train(0)
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ProcessError: Process 0 of 2 has lost the others: ... What was trained until then is kept.
    >>> dist.destroy_process_group()
    >>> other.join()
    """


class RuntimeMissingError(OrtPartialError, ImportError):
    """onnxruntime, its training build or torch is not installed; the message names the extra to install.

    Examples
    --------
    >>> from unittest.mock import patch
    >>> from ortpartial.callbacks import MLflow
    >>> with patch.dict("sys.modules", mlflow=None):  # as if it were not installed
    ...     MLflow()
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.RuntimeMissingError: MLflow() needs the package mlflow: pip install mlflow.
    """


class UntranslatableError(OrtPartialError, NotImplementedError):
    """A step holds an operator that cannot be written in C; the message names it.

    Examples
    --------
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable
    >>> model = build([x := variable("x", "float32", ["N", 2, 2])], {"y": op.Det(x) * constant([1.0], hint="w")})
    >>> OrtGradientForwardBackwardOptimizer(model, engine="native").fit([[[1.0, 2.0], [3.0, 4.0]]], [1.0])
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.UntranslatableError: Det ... is not among the operators that are written in C. ...
    """


class CompilerMissingError(OrtPartialError, ImportError):
    """There is no C compiler that runs; the message names packages to install.

    Examples
    --------
    >>> from unittest.mock import patch
    >>> from ortpartial.native import compile_library
    >>> with patch.dict("os.environ", CC="", PATH="nowhere"):  # as if none were installed
    ...     compile_library("int twice(int x) { return 2 * x; }")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.CompilerMissingError: There is no C compiler that works (cc is not installed; ...
    """


class CompilerError(OrtPartialError, RuntimeError):
    """The C compiler refused a file or took too long, or its library cannot be loaded; the message has its words.

    Examples
    --------
    >>> from ortpartial.native import compile_library
    >>> compile_library("int twice(int x) { return 2 * y; }")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.CompilerError: ... ends with status 1: source.c: ...
    """


class ConvergenceError(OrtPartialError, ArithmeticError, ValueError):
    """The loss or a weight is no longer finite: the learning rate is too high, or X and y are not scaled.

    Examples
    --------
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> model = build([x := variable("x", "float32", ["N", 2])], {"y": x @ constant([[1.0], [1.0]], hint="w")})
    >>> OrtGradientForwardBackwardOptimizer(model, learning_rate=1e30).fit([[1.0, 2.0]], [1.0])
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ConvergenceError: The loss is inf at iteration 2 ... Lower the rate, or scale X and y.
    """


class ConvergenceWarning(_NamingWarning):
    """Training ended or continued in a questionable state, such as before it converged.

    Examples
    --------
    >>> import warnings
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> model = build([x := variable("x", "float32", ["N", 2])], {"y": x @ constant([[1.0], [1.0]], hint="w")})
    >>> optimizer = OrtGradientForwardBackwardOptimizer(model, max_iter=3, accumulate=4)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     optimizer = optimizer.fit([[1.0, 2.0]], [1.0])
    >>> str(caught[0].message)
    'accumulate=4 takes as many batches for an update, and there are 3: no weight changes.'
    """


class CheckpointWarning(_NamingWarning):
    """A checkpoint is damaged or none of this library, and the checkpoint before it is used.

    Examples
    --------
    >>> import warnings
    >>> from pathlib import Path
    >>> from ortpartial import Checkpoint, OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> model = build([x := variable("x", "float32", ["N", 2])], {"y": x @ constant([[1.0], [1.0]], hint="w")})
    >>> settings = {"max_iter": 3, "callbacks": [Checkpoint("run")]}
    >>> optimizer = OrtGradientForwardBackwardOptimizer(model, **settings).fit([[1.0, 2.0]], [1.0])
    >>> newest = max(Path("run").glob("*.safetensors"))
    >>> newest.write_text("cut off")
    7
    >>> again = OrtGradientForwardBackwardOptimizer(model, **settings)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     again = again.fit([[1.0, 2.0]], [1.0], resume="run")
    >>> str(caught[0].message)
    "...checkpoint-000004.safetensors' is no safetensors file, or a damaged one. The training goes on from ..."
    """


class DeviceWarning(_NamingWarning):
    """An execution provider was asked for and does not run a graph, which runs on the CPU instead.

    Examples
    --------
    A training that is to run on its device, or not at all, takes the warning for an error.

    >>> import warnings
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> model = build([x := variable("x", "float32", ["N", 2])], {"y": x @ constant([[1.0], [1.0]], hint="w")})
    >>> from ortpartial.exceptions import DeviceWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", DeviceWarning)
    ...     optimizer = OrtGradientForwardBackwardOptimizer(model, device="cpu").fit([[1.0, 2.0]], [1.0])
    """


class ModelWarning(_NamingWarning):
    """A model was exported in a way that a setting does not fit, so that it has no effect or an unintended one.

    Examples
    --------
    >>> import warnings
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> model = build([x := variable("x", "float32", ["N", 2])], {"y": x @ constant([[1.0], [1.0]], hint="w")})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     optimizer = OrtGradientForwardBackwardOptimizer(model, train_mode=True)
    >>> str(caught[0].message)
    'train_mode=True changes nothing, as the model has no Dropout and no BatchNormalization: ...'
    """
