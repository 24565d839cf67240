"""Export of `detach` and `torch.no_grad`, which torch's exporters drop: an Identity that stops the gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from onnx import ModelProto
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ortpartial.graph import mark_gradient_stop
from ortpartial.model import walk_graphs

__all__ = ["NoGradientMode", "list_detach_translations", "mark_detached", "writing_detach"]

_DOMAIN = "ortpartial"


class NoGradientMode(TorchFunctionMode):
    """A context in which a module detaches tensors computed under `torch.no_grad`, so that exporters see it.

    Parameters
    ----------
    module : torch.nn.Module
        The module, whose buffers need no detaching.
    """

    def __init__(self, module: torch.nn.Module):
        super().__init__()
        self._buffers = {StorageWeakRef(b.untyped_storage()) for b in module.buffers()}
        self._is_stopped = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        if function is torch._C._set_grad_enabled:
            # The forward pass of a torch.autograd.Function has no gradient either, but its backward pass writes one.
            if self._is_stopped or torch.is_grad_enabled():
                self._is_stopped = not args[0]
            return function(*args, **kwargs or {})
        outputs = function(*args, **kwargs or {})
        if not self._is_stopped:
            return outputs
        passed = {id(t) for t in tree_leaves((args, kwargs))}  # What is written in place is returned.

        def detach(t: object) -> Any:
            if not isinstance(t, torch.Tensor) or not t.is_floating_point() or id(t) in passed:
                return t
            return t if StorageWeakRef(t.untyped_storage()) in self._buffers else t.detach()

        return tree_map(detach, outputs)


@contextmanager
def writing_detach(opset: int) -> Iterator[None]:
    """A context in which the TorchScript exporter writes `detach` as an operator of ours.

    Parameters
    ----------
    opset : int
        The opset that it writes.

    Yields
    ------
    None
    """

    def write(g: Any, x: Any) -> Any:
        is_real = x.type().scalarType() in ("Float", "Double", "Half", "BFloat16")
        if not is_real or "Constant" in x.node().kind():
            return x
        return g.op(f"{_DOMAIN}::StopGradient", x).setType(x.type())

    torch.onnx.register_custom_op_symbolic("aten::detach", write, opset)
    try:
        yield
    finally:
        torch.onnx.unregister_custom_op_symbolic("aten::detach", opset)


def list_detach_translations() -> dict[Any, Any]:
    """The `custom_translation_table` by which the newer exporter writes `detach` as an operator of ours.

    Returns
    -------
    dict of torch.OpOverload to callable
    """
    return {torch.ops.aten.detach.default: _translate}


def _translate(self: Any) -> Any:
    """Write a StopGradient, as the exporter asks for it: by the name that the operator has for its argument."""
    import onnx_ir
    from onnxscript import evaluator

    recorder: Any = evaluator.default()
    node = onnx_ir.Node(_DOMAIN, "StopGradient", [self], num_outputs=1, version=1)
    recorder.nodes.append(node)
    return node.outputs[0]


def mark_detached(model: ModelProto) -> ModelProto:
    """Turn each StopGradient of a new model into an Identity that stops the gradient.

    Parameters
    ----------
    model : onnx.ModelProto
        The model; it is written to.

    Returns
    -------
    onnx.ModelProto
        The same object.
    """
    for node in (node for g in walk_graphs(model.graph) for node in g.node):
        if (node.domain, node.op_type) == (_DOMAIN, "StopGradient"):
            node.op_type, node.domain = "Identity", ""
            mark_gradient_stop(node)
    if not any(f.domain == _DOMAIN for f in model.functions):
        imports = [i for i in model.opset_import if i.domain != _DOMAIN]
        del model.opset_import[:]
        model.opset_import.extend(imports)
    return model
