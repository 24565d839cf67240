"""Estimators of scikit-learn, which compose an optimizer; importing them imports scikit-learn."""

from contextlib import suppress

from ortpartial.exceptions import RuntimeMissingError
from ortpartial.installation import install_command

try:
    from .classifier import OnnxClassifier
    from .onnx_export import register_converters
    from .regressor import OnnxRegressor
except ModuleNotFoundError as e:
    if e.name is None or e.name.split(".")[0] not in ("scipy", "sklearn"):  # the first comes with the second
        raise
    raise RuntimeMissingError("OnnxRegressor and OnnxClassifier need scikit-learn, which is not installed: run "
                              f"{install_command('sklearn')}.") from None

with suppress(ImportError):  # skl2onnx is optional.
    register_converters(OnnxClassifier, OnnxRegressor)

__all__ = ["OnnxClassifier", "OnnxRegressor"]
