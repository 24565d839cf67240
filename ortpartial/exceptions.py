"""Exceptions and warnings of ortpartial, all errors with one base class.

Their messages name tensors and files: what could give orders to a terminal is shown as an escape.
"""

from .texts import printable

__all__ = ["CheckpointError", "CheckpointWarning", "CompilerError", "CompilerMissingError", "ConvergenceError",
           "ConvergenceWarning", "DataError", "DeadlineError", "DeviceError", "DeviceWarning", "GraphError",
           "ModelError", "ModelWarning", "NoGradientError", "NotComputedError", "OrtPartialError", "ProcessError",
           "RuntimeMissingError", "SettingError", "UnknownOperatorError", "UntranslatableError"]


class OrtPartialError(Exception):
    """Base of every error that ortpartial raises on purpose."""

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")


class _NamingWarning(UserWarning):
    """Base of the warnings."""

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")


class GraphError(OrtPartialError, ValueError):
    """An operator was called as the ONNX specification does not allow: its name, inputs, attributes or types."""


class UnknownOperatorError(GraphError, AttributeError):
    """ONNX has no operator of this name; an AttributeError as well, so that ``hasattr(op, name)`` is False."""


class ModelError(OrtPartialError, ValueError):
    """A model cannot be loaded or used: not ONNX, truncated, without a named tensor, or refused by the runtime."""


class NotComputedError(OrtPartialError, TypeError):
    """The numbers of a value were asked for that is an expression, of a graph that has not been run."""


class NoGradientError(OrtPartialError, NotImplementedError):
    """An operator between a trained weight and the outputs has neither a gradient rule nor a function body."""


class SettingError(OrtPartialError, ValueError):
    """A setting of an optimizer, a loss, a penalty or a learning rate is out of range or an unknown name."""


class CheckpointError(OrtPartialError, ValueError):
    """A checkpoint is damaged, none of this library, or that of another training."""


class DataError(OrtPartialError, ValueError):
    """X, y or the sample weights do not fit the model: wrong shape, dtype or length, or values that are no numbers."""


class DeadlineError(OrtPartialError, TimeoutError):
    """The timeout ended a run; what was trained until then is kept."""


class DeviceError(OrtPartialError, RuntimeError):
    """The device is unknown, or the installed onnxruntime has no support for it."""


class ProcessError(OrtPartialError, RuntimeError):
    """Another process of a data-parallel training has ended or hangs, so that this one cannot continue."""


class RuntimeMissingError(OrtPartialError, ImportError):
    """onnxruntime, its training build or torch is not installed; the message names the extra to install."""


class UntranslatableError(OrtPartialError, NotImplementedError):
    """A step holds an operator that cannot be written in C; the message names it."""


class CompilerMissingError(OrtPartialError, ImportError):
    """There is no C compiler that runs; the message says what to install."""


class CompilerError(OrtPartialError, RuntimeError):
    """The C compiler refused a file or took too long, or what it wrote cannot be loaded; the message has its words."""


class ConvergenceError(OrtPartialError, ArithmeticError):
    """The loss or a weight is no longer finite: the learning rate is too high, or X and y are not scaled."""


class ConvergenceWarning(_NamingWarning):
    """Training ended or continued in a questionable state, such as before it converged."""


class CheckpointWarning(_NamingWarning):
    """A checkpoint is damaged or none of this library, and the one before it is used."""


class DeviceWarning(_NamingWarning):
    """An execution provider was asked for and does not run a graph, which runs on the CPU instead."""


class ModelWarning(_NamingWarning):
    """A model was exported in a way that a setting does not fit, so that it does nothing or not what is meant."""
