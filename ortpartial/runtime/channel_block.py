"""The number of channels that onnxruntime convolves in one register of the processor."""

from __future__ import annotations

from functools import cache

import numpy as np
from onnx import ModelProto, TensorProto, helper

from ortpartial.graph import build, op, variable
from ortpartial.rewrites import BLOCKS, write_convolutions

from .device import import_onnxruntime

__all__ = ["channel_block"]


@cache
def channel_block() -> int | None:
    """The number of channels in a block of onnxruntime's layout NCHWc: 16 with AVX-512, 8 with AVX.

    Returns
    -------
    int or None
        None where the processor, or the build of onnxruntime, has no such convolutions, or none that are right.
    """
    try:
        block = _run(_write_probe(), np.zeros((1, 4, 1, 1), np.float32)).shape[1]
        return block if block > 1 and _is_right(block) else None
    except Exception:  # The errors of onnxruntime have no common base class below Exception.
        return None


def _write_probe() -> ModelProto:
    """A model that lays out four channels in a block."""
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("ReorderInput", ["x"], ["y"], domain=BLOCKS)], "block",
                              types[:1], types[1:])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21),
                                                                  helper.make_opsetid(BLOCKS, 1)])


def _is_right(block: int) -> bool:
    """Whether a convolution in blocks equals the plain convolution, exactly as its numbers are whole."""
    x, w = np.arange(32 * 18 * 18) % 7, np.arange(32 * 32 * 9) % 5
    arrays = [x.reshape(1, 32, 18, 18).astype(np.float32), w.reshape(32, 32, 3, 3).astype(np.float32)]
    values = [variable(n, "float32", a.shape) for n, a in zip("xw", arrays, strict=True)]
    model = build(values, {"y": op.Conv(*values)})
    written = write_convolutions(model, block)
    return written is not model and np.array_equal(_run(written, *arrays), _run(model, *arrays))


def _run(model: ModelProto, *arrays: np.ndarray) -> np.ndarray:
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip("xw", arrays, strict=False)))[0]
