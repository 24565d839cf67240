"""What went wrong, in a type that a program can catch and a message that a person can act on."""

__all__ = [
    "ConvergenceError",
    "ConvergenceWarning",
    "DataError",
    "DeadlineError",
    "DeviceError",
    "GraphError",
    "ModelError",
    "NoGradientError",
    "OrtPartialError",
    "ProcessError",
    "RuntimeMissingError",
    "SettingError",
]


class OrtPartialError(Exception):
    """Base of every error that ortpartial raises on purpose."""


class GraphError(OrtPartialError, ValueError):
    """An operator was called as the ONNX specification does not allow: its name, inputs, attributes or types."""


class ModelError(OrtPartialError, ValueError):
    """A model cannot be loaded or used: not ONNX, truncated, without what was asked for, or refused by the runtime."""


class NoGradientError(OrtPartialError, NotImplementedError):
    """An operator on the way from the outputs to a trained weight has neither a rule nor a body to differentiate."""


class SettingError(OrtPartialError, ValueError):
    """A setting of an optimizer, a loss, a penalty or a rate is out of its range or not a known name."""


class DataError(OrtPartialError, ValueError):
    """X, y or the weights of the rows do not fit the model: shape, dtype, length, or values that are not numbers."""


class DeadlineError(OrtPartialError, TimeoutError):
    """The time that was given is over before the work is done; what had been trained until then is kept."""


class DeviceError(OrtPartialError, RuntimeError):
    """The device is unknown or the installed runtime cannot drive it."""


class ProcessError(OrtPartialError, RuntimeError):
    """Another process of a training has ended or hangs, so that this one cannot go on."""


class RuntimeMissingError(OrtPartialError, ImportError):
    """No onnxruntime, or none with the training symbols, is installed; the message names the extra to install."""


class ConvergenceError(OrtPartialError, ArithmeticError):
    """The loss or a weight is no finite number any more: the rate is too high, or X and y are not scaled."""


class ConvergenceWarning(UserWarning):
    """Training ended, or went on, in a state that is probably not what was wanted."""
