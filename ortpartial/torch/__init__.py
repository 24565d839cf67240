"""ONNX graphs as torch modules, and torch modules as ONNX graphs."""

from ortpartial.exceptions import RuntimeMissingError
from ortpartial.installation import install_command

try:
    from .functional import as_torch_function
    from .module_export import export
    from .onnx_layer import OnnxLayer
except ModuleNotFoundError as e:
    if e.name != "torch":
        raise
    raise RuntimeMissingError(f"ortpartial.torch and OnnxLayer need torch, which is not installed: run "
                              f"{install_command('torch')}.") from None

__all__ = [
    "OnnxLayer",
    "as_torch_function",
    "export",
]
