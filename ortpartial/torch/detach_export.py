"""Export of `detach`, which torch's TorchScript exporter drops: an Identity that stops the gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from onnx import ModelProto

from ortpartial.graph import mark_gradient_stop

__all__ = ["mark_detached", "writing_detach"]


@contextmanager
def writing_detach(opset: int) -> Iterator[None]:
    """A context in which the exporter writes `detach` as an operator of ours.

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
        return g.op("ortpartial::StopGradient", x).setType(x.type())

    torch.onnx.register_custom_op_symbolic("aten::detach", write, opset)
    try:
        yield
    finally:
        torch.onnx.unregister_custom_op_symbolic("aten::detach", opset)


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
    for node in model.graph.node:
        if node.op_type == "StopGradient":
            node.op_type, node.domain = "Identity", ""
            mark_gradient_stop(node)
    imports = [i for i in model.opset_import if i.domain != "ortpartial"]
    del model.opset_import[:]
    model.opset_import.extend(imports)
    return model
