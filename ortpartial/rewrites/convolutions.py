"""Convolutions in the form that is fastest on a processor: in blocks of channels (NCHWc), or as products (im2col).

onnxruntime 1.19 to 1.32 convolves blocks of channels in place of making columns where weights are constant, which they
are not in a training step. Its operators take images (N, C/B, H, W, B) and kernels (O/B, C/B, H, W, B, B), with a block
of B channels in a register, or plain images and kernels (O/B, C, H, W, B) where there are fewer channels than B.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, defs, helper
from onnx.shape_inference import InferenceContext

from ortpartial.annotations import Inputs
from ortpartial.autodiff import Window, has_small_kernel, im2col, pad_input
from ortpartial.exceptions import ModelError
from ortpartial.graph import Node, Operators, Value, build, op, register_schema, rewrite
from ortpartial.limits import limits
from ortpartial.model import load, walk_graphs

from .protocol import attempt, numbered

__all__ = ["BLOCKS", "has_convolutions", "write_convolutions"]

#: The domain of onnxruntime's operators on blocks of channels.
BLOCKS = "com.microsoft.nchwc"


def _declare(op_type: str, inputs: str, **kinds: Any) -> None:
    """Declare an operator, whose outputs get their shapes where it is called."""
    formal, options = defs.OpSchema.FormalParameter, defs.OpSchema.FormalParameterOption
    schema = defs.OpSchema(
        op_type, BLOCKS, 1, type_constraints=[("T", ["tensor(float)"], "")], outputs=[formal("Y", "T")],
        inputs=[formal(n, "T", param_option=options.Optional if n == "B" else options.Single) for n in inputs],
        attributes=[defs.OpSchema.Attribute(n, kind, required=False) for n, kind in kinds.items()])
    register_schema(schema, _infer)


def _infer(context: InferenceContext) -> None:
    context.set_output_type(0, helper.make_tensor_type_proto(TensorProto.FLOAT, None))


_INT, _INTS = defs.OpSchema.AttrType.INT, defs.OpSchema.AttrType.INTS
for _name, _inputs, _kinds in (("ReorderInput", "X", {}), ("ReorderOutput", "X", {"channels": _INT}),
                               ("Conv", "XWB", {"dilations": _INTS, "group": _INT, "pads": _INTS, "strides": _INTS})):
    if not defs.has(_name, BLOCKS):
        _declare(_name, _inputs, **_kinds)

_op: Any = Operators(BLOCKS)


def has_convolutions(model: ModelProto) -> bool:
    """Whether `write_convolutions` reads a model, as it may change it.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.

    Returns
    -------
    bool
    """
    graphs = list(walk_graphs(model.graph))
    constants = {t.name for graph in graphs for t in graph.initializer}
    return any(node.op_type in _FORMULAS and not node.domain and node.input[1] not in constants
               for graph in graphs for node in graph.node)


@numbered("convolve", "convolve_transposed")
def write_convolutions(model: ModelProto, block: int | None = None) -> ModelProto:
    """The model with convolutions by weights that are not constant in the form that is fastest.

    1. `convolve`: Conv, or the gradient of its weights, becomes a convolution in blocks of channels, or a product.
    2. `convolve_transposed`: ConvTranspose, the gradient of images, becomes a convolution by flipped kernels in blocks.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is not changed.
    block : int, optional
        The number of channels that a register of the processor holds, where onnxruntime convolves blocks of channels.

    Returns
    -------
    onnx.ModelProto
        The same object where there is no such convolution.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x, w = variable("x", "float32", [1, 32, 18, 18]), variable("w", "float32", [16, 32, 3, 3])
    >>> [node.op_type for node in write_convolutions(build([x, w], {"y": op.Conv(x, w)}), 16).graph.node]
    ['ReorderInput', 'Reshape', 'ReorderInput', 'Reshape', 'Transpose', 'Reshape', 'Conv', 'ReorderOutput']
    """
    if not has_convolutions(model):
        return model
    try:
        loaded = load(model)
    except ModelError:  # The runtime may read models that we do not; if not, its error says why.
        return model
    written: list[Node] = []

    def change(node: Node, inputs: Inputs) -> list[Value] | None:
        formula = None if node.domain else _FORMULAS.get(node.op_type)
        if formula is None or not _is_plain(node) or (y := attempt([formula], node, block, *inputs)) is None:
            return None
        written.append(node)
        return [y]

    outputs = rewrite(list(loaded.outputs.values()), {}, change)
    if not written:
        return model
    return build(loaded.inputs, dict(zip(loaded.outputs, outputs, strict=True)), name=model.graph.name)


def _is_plain(node: Node) -> bool:
    """Whether a node convolves images of known sizes, all channels of them, by weights that are not constant."""
    is_static = all(v.is_static and 0 not in (v.shape or ()) for v in [*node.reads, *node.outputs])
    return is_static and node.outputs[0].rank == 4 and node.reads[1].array is None and node.attribute("group") == 1


def _convolve(node: Node, block: int | None, x: Value, w: Value, b: Value | None = None) -> Value | None:
    """A convolution, or the gradient of its weights, with its images in place of channels."""
    x, window = pad_input(x, node, w)
    y = node.outputs[0]
    (o, c, *_), (n, _, *sizes) = _sizes(w), _sizes(y)
    is_gradient = prod(window.kernel) > prod(sizes)
    depth = n * prod(sizes) if is_gradient else prod(_sizes(w)[1:])
    if block and not (is_gradient and c < block) and _is_worth_blocks(node, o, c, depth, block):
        turned = _turned(w)
        kernels = _block_kernels(w, block) if turned is None else _block_turned_kernels(turned, block)
        return _convolve_blocks(_block_images(x, block), kernels, b, y, window, block, is_gradient)
    if not is_gradient or b is not None:
        return None
    if (product := _correlate(x, w, window, sizes)) is not None:
        return product
    is_gray = n == 1 and block and c >= block and _is_worth_blocks(node, block, c, limits().block_depth, block)
    return _correlate_each(x, w, window, y, block) if is_gray and block else None


def _correlate(x: Value, w: Value, window: Window, sizes: Sequence[int]) -> Value | None:
    """A convolution with few positions, of the sizes, as a product of its kernels and the columns of all positions."""
    turned = op.Transpose(x, perm=[1, 0, 2, 3])
    seen = Window(sizes, window.dilations, window.strides, window.pads)
    if not has_small_kernel(turned, w, seen):
        return None
    product = op.Gemm(op.Flatten(w), im2col(turned, _sizes(w)[2:], seen), transB=1)
    return op.Transpose(op.Reshape(product, [_sizes(w)[0], _sizes(x)[0], *sizes]), perm=[1, 0, 2, 3])


def _correlate_each(x: Value, w: Value, window: Window, y: Value, block: int) -> Value:
    """The gradient of the weights of single-channel images: a convolution for each image and kernel, then their sum.

    With an image in each lane, none is empty, however few kernels there are.
    """
    (o, c, *kernel), (*_, h, width) = _sizes(w), _sizes(x)
    turned = _turned(w)
    if turned is None:
        turned = op.Transpose(w, perm=[1, 0, 2, 3])
    images = _pad_blocks(_to_blocks(x, [1, c, h, width], block), window.pads, block)
    *_, h, width = _sizes(images)
    blocks = _fill(c, block) // block
    each = op.Expand(op.Reshape(images, [blocks, 1, h * width * block]), [blocks, o, h * width * block])
    kernels = op.Reshape(_to_blocks(turned, [1, c, o * kernel[0], kernel[1]], block), [o * blocks * block, 1, *kernel])
    sums = _op.Conv(op.Reshape(each, [1, o * blocks * block, h, width]), kernels, group=o * blocks * block,
                    pads=[0] * 4, strides=list(window.strides), dilations=list(window.dilations))
    places = prod(_sizes(y)[2:])
    sums = op.Reshape(sums.stated([1, o * blocks * block, *_sizes(y)[2:]]), [blocks, o, places, block])
    return op.Reshape(op.ReduceSum(sums, [0, 3], keepdims=0), _sizes(y))


def _convolve_transposed(node: Node, block: int | None, dy: Value, w: Value, b: Value | None = None) -> Value | None:
    """The gradient of images, a convolution by flipped kernels."""
    kernel, y = _sizes(w)[2:], node.outputs[0]
    moves = [*(node.attribute("strides") or []), *(node.attribute("dilations") or [])]
    is_shifted = b is not None or any(node.attribute("output_padding") or []) or set(moves) - {1}
    if block is None or is_shifted or node.attribute("auto_pad") != "NOTSET" or node.attribute("output_shape"):
        return None
    pads = [k - 1 - p for k, p in zip(kernel * 2, node.attribute("pads") or [0] * 4, strict=True)]
    c, o = _sizes(w)[:2]
    if min(pads) < 0 or not _is_worth_blocks(node, o, c, c * prod(kernel), block):
        return None
    kernels = _block_turned_kernels(w, block, is_flipped=True)
    return _convolve_blocks(_block_images(dy, block), kernels, None, y, Window(kernel, [1, 1], [1, 1], pads), block)


_FORMULAS = {"Conv": _convolve, "ConvTranspose": _convolve_transposed}


def _is_worth_blocks(node: Node, outputs: int, inputs: int, depth: int, block: int) -> bool:
    """Whether blocks of these channels are mostly full, and convolving them takes longer than laying them out."""
    y, w = node.outputs[0], node.reads[1]
    is_full = all(_fill(n, block) <= limits().block_waste * n for n in (outputs, max(inputs, block)))
    cost = prod(_sizes(node.reads[0])) * prod(_sizes(w)[1:]) if node.op_type == "ConvTranspose" else \
        prod(_sizes(y)) * prod(_sizes(w)[1:])
    return is_full and y.dtype == np.float32 and depth >= limits().block_depth and cost >= limits().block_cost


def _fill(n: int, block: int) -> int:
    """The number of channels, rounded up to whole blocks."""
    return -(-n // block) * block


def _sizes(v: Value) -> list[int]:
    return [int(n) for n in v.shape or ()]  # type: ignore[arg-type]


def _turned(v: Value) -> Value | None:
    """The operand of which a value is the transpose of the first two axes."""
    node = v.node
    if node is None or node.op_type != "Transpose" or list(node.attribute("perm") or ()) != [1, 0, 2, 3]:
        return None
    return node.reads[0]


def _to_blocks(v: Value, shape: Sequence[int], block: int) -> Value:
    """A value, read as images of this shape, in blocks of channels."""
    n, c, *rest = shape
    images = v if _sizes(v) == list(shape) else op.Reshape(v, list(shape))
    if c % 4:  # onnxruntime 1.19 to 1.32 refuses it.
        images = _fill_axis(images, 1, block)
    return _op.ReorderInput(images).stated([n, _fill(c, block), *rest])


def _fill_axis(v: Value, axis: int, block: int) -> Value:
    """A value with zeros that fill up the last block of an axis."""
    missing = -_sizes(v)[axis] % block
    pads = [0] * 2 * v.rank
    pads[v.rank + axis] = missing
    return op.Pad(v, pads) if missing else v


def _block_images(x: Value, block: int) -> Value:
    """Images in blocks, of the shape (N, C, H, W) with all channels."""
    n, c, *size = _sizes(x)
    if c < block:
        return x
    turned = _turned(x)
    if turned is None:
        return _to_blocks(x, [n, c, *size], block)
    apart = _to_blocks(turned, [1, c, n * size[0], size[1]], block)
    blocks = _fill(c, block) // block
    if n > 1 and blocks > 1:
        apart = op.Transpose(op.Reshape(apart, [blocks, n, block * prod(size)]), perm=[1, 0, 2])
    return op.Reshape(apart, [n, blocks * block, *size])


def _block_kernels(w: Value, block: int) -> Value:
    """Kernels (O, C, H, W) in blocks."""
    o, c, *kernel = _sizes(w)
    if c >= block:
        w, c = _fill_axis(w, 1, block), _fill(c, block)
    apart = _to_blocks(w, [1, o, c, prod(kernel)], block)
    o = _fill(o, block)
    if c >= block:
        apart = op.Reshape(apart, [o // block * c // block, block, prod(kernel), block])
        apart = op.Transpose(apart, perm=[0, 2, 1, 3])
    return op.Reshape(apart, [o, c, *kernel])


def _block_turned_kernels(w: Value, block: int, is_flipped: bool = False) -> Value:
    """Kernels (C, O, H, W) in blocks."""
    c, o, *kernel = _sizes(w)
    if c >= block:
        w, c = _fill_axis(w, 0, block), _fill(c, block)
    apart, places = _to_blocks(w, [c, o, *kernel], block), prod(kernel)
    o = _fill(o, block)
    inner = min(c, block)
    if o > block:
        apart = op.Transpose(op.Reshape(apart, [c, o // block, places * block]), perm=[1, 0, 2])
    apart = op.Reshape(apart, [o // block * c // inner, inner, places, block])
    if c >= block:
        apart = op.Transpose(apart, perm=[0, 2, 1, 3])
    if is_flipped:
        apart = op.Gather(apart, list(range(places))[::-1], axis=1 if c >= block else 2)
    return op.Reshape(apart, [o, c, *kernel])


def _pad_blocks(images: Value, pads: Sequence[int], block: int) -> Value:
    """Images in blocks with zeros around them."""
    n, c, h, w = _sizes(images)
    inner = block if c >= block else 1
    lines = op.Reshape(images, [n * c // inner, h, w * inner]) if inner > 1 else images
    top, left, bottom, right = pads
    axes = [0] * (lines.rank - 2)
    padded = op.Pad(lines, [*axes, top, left * inner, *axes, bottom, right * inner])
    return op.Reshape(padded, [n, c, h + top + bottom, w + left + right])


def _convolve_blocks(images: Value, kernels: Value, b: Value | None, y: Value, window: Window, block: int,
                     is_gradient: bool = False) -> Value:
    """The convolution of images by kernels, both in blocks, as plain images like y."""
    n, o, *sizes = _sizes(y)
    pads = list(window.pads)
    if is_gradient and any(pads):  # Most of its few positions are at the border, where each is computed by itself.
        images, pads = _pad_blocks(images, pads, block), [0] * 4
    shift = None if b is None else _fill_axis(b, 0, block)
    blocks = _op.Conv(images, kernels, shift, pads=pads, strides=list(window.strides),
                      dilations=list(window.dilations)).stated([n, _fill(o, block), *sizes])
    return _op.ReorderOutput(blocks, channels=o).stated(y.shape)
