"""Gradients of the operators of ai.onnx.ml that scale and normalize rows."""

from ortpartial.graph import cast, op

from ..grad import composed

_NORMS = {"L1": op.ReduceL1, "L2": op.ReduceL2, "MAX": op.ReduceMax}


@composed("Normalizer", "ai.onnx.ml")
def _(x, *, y, norm):
    x = cast(x, y)
    size = _NORMS[norm](x, [-1])
    return x / op.Where(op.Equal(size, 0), 1, size)


@composed("Scaler", "ai.onnx.ml")
def _(x, *, y, offset, scale):
    return (cast(x, y) - (offset or [0.0])) * (scale or [1.0])
