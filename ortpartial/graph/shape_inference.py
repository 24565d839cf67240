"""Repairs of onnx's shape inference: shapes that it leaves out or gets wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from onnx import TensorShapeProto, TypeProto

from ortpartial.annotations import Attributes

__all__ = ["MISTAKEN_DEFAULTS", "fix_shapes", "forget_zero_sizes", "name_size"]

#: Defaults that inference mistakes where they are not written, in onnx 1.23.2 and onnxruntime 1.19.2 to 1.31.1.
MISTAKEN_DEFAULTS: Mapping[str, Attributes] = {"STFT": {"onesided": 1}}

#: Operators whose first output has the shape of the first input.
_SAME_SHAPE = frozenset({"GroupNormalization", "MeanVarianceNormalization"})

#: Operators whose first output has the rank of the first input.
_SAME_RANK = frozenset({"Attention", "Conv", "ConvTranspose", "DeformConv", "MaxUnpool"})


def fix_shapes(op_type: str, inputs: Sequence[TypeProto | None], attributes: Attributes,
               outputs: Sequence[TypeProto]) -> None:
    """Set the shapes of a node's outputs that the inference of onnx 1.23.2 leaves out or gets wrong.

    It infers no shape for some operators with function bodies, and no rank where a size of a window or the axes of a
    reduction are unknown. For Attention, it computes with unknown sizes as if they were 0.

    Parameters
    ----------
    op_type : str
        The operator, of the default domain.
    inputs : sequence of onnx.TypeProto or None
        The types of its inputs.
    attributes : dict of str to object
        Its attributes.
    outputs : sequence of onnx.TypeProto
        The inferred types of its outputs; they are written to.

    Examples
    --------
    >>> from onnx import TensorProto, helper
    >>> x = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 3])
    >>> y = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    >>> fix_shapes("MeanVarianceNormalization", [x], {}, [y])
    >>> y == x
    True
    """
    first, *others = [None if x is None or not _has_shape(x) else x.tensor_type.shape for x in inputs] or [None]
    if first is None:
        return
    if op_type == "Attention" and not all(d.HasField("dim_value") for s in (first, *others) if s for d in s.dim):
        forget_zero_sizes(outputs[0].tensor_type.shape)
        for y in outputs[1:]:
            y.tensor_type.shape.CopyFrom(_axes(4))
    if _has_shape(outputs[0]):
        return
    if op_type in _SAME_SHAPE:
        outputs[0].tensor_type.shape.CopyFrom(first)
    elif op_type in _SAME_RANK or (op_type.startswith("Reduce") and attributes.get("keepdims", 1)):
        outputs[0].tensor_type.shape.CopyFrom(_axes(len(first.dim)))


def name_size(x: TypeProto, sizes: Sequence[int], y: TypeProto) -> None:
    """Name the size that a Reshape finds itself after the only symbolic size that it depends on.

    ``4*tokens`` is four times ``tokens``. Sizes of the same name are equal, so that heads, normalized each and put
    together again, are known to have the shape from before.

    Parameters
    ----------
    x : onnx.TypeProto
        The type of the input.
    sizes : sequence of int
        The sizes: 0 copies a size, and -1 is computed.
    y : onnx.TypeProto
        The inferred type of the output; it is written to.

    Examples
    --------
    >>> from onnx import TensorProto, helper
    >>> x = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", "tokens", 64])
    >>> y = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", None, 16])
    >>> name_size(x, [0, -1, 16], y)
    >>> y.tensor_type.shape.dim[1].dim_param
    '4*tokens'
    """
    if -1 not in sizes or not _has_shape(x) or not _has_shape(y):
        return
    size = y.tensor_type.shape.dim[sizes.index(-1)]
    product = _multiply(d for i, d in enumerate(x.tensor_type.shape.dim) if i >= len(sizes) or sizes[i])
    if size.WhichOneof("value") or product is None:
        return
    count, name = product
    whole, remainder = divmod(count, math.prod(n for n in sizes if n > 0))
    if whole and not remainder:
        size.dim_param = name if whole == 1 else f"{whole}*{name}"


def _multiply(dims: Iterable[TensorShapeProto.Dimension]) -> tuple[int, str] | None:
    """The product of sizes, of which a single one is symbolic: a number, and the name it is multiplied by."""
    dims = list(dims)
    named = [d.dim_param for d in dims if not d.HasField("dim_value")]
    if len(named) != 1:
        return None
    factor, _, name = named[0].rpartition("*")
    if not name or (factor and not factor.isdecimal()):
        return None
    return int(factor or 1) * math.prod(d.dim_value for d in dims if d.HasField("dim_value")), name


def _has_shape(kind: TypeProto) -> bool:
    return kind.tensor_type.HasField("shape")


def _axes(n: int) -> TensorShapeProto:
    """A shape of n unknown sizes."""
    return TensorShapeProto(dim=[TensorShapeProto.Dimension() for _ in range(n)])


def forget_zero_sizes(shape: TensorShapeProto) -> None:
    """Make sizes of 0 unknown, where inference may write 0 for a size that it does not know.

    Parameters
    ----------
    shape : onnx.TensorShapeProto
        The shape; it is written to.

    Examples
    --------
    >>> shape = TensorShapeProto(dim=[TensorShapeProto.Dimension(dim_value=n) for n in (0, 3)])
    >>> forget_zero_sizes(shape)
    >>> [d.WhichOneof("value") for d in shape.dim]
    [None, 'dim_value']
    """
    for d in shape.dim:
        if not d.dim_value:
            d.ClearField("dim_value")
