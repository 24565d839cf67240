"""Quantized weights in the forms that operators have for them: packed bytes, types of 4 bits, and integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from ortpartial.exceptions import ModelError

from .changes import Change
from .constants import Constants
from .products import Product, read_attributes
from .requantize import BlockQuantization, Requantized, pack, unpack

__all__ = ["QuantizedWeight", "find_quantized"]

#: By operator, the inputs that are numbers, scales and zero points. The scales of MatMulInteger are in a Mul behind it.
_INPUTS = {"DequantizeLinear": (0, 1, 2), "DynamicQuantizeMatMul": (1, 2, 3), "GatherBlockQuantized": (0, 2, 3),
           "MatMulInteger": (1, 1, 3), "MatMulIntegerToFloat": (1, 3, 5), "MatMulNBits": (1, 2, 3)}

#: The least number of a type.
_LOWEST = {"int4": -8, "int8": -128, "uint4": 0, "uint8": 0}


@dataclass(frozen=True)
class QuantizedWeight:
    """A quantized weight, and where a graph has it.

    Parameters
    ----------
    constants : Constants
        The constants of the graph.
    places : tuple of (onnx.NodeProto, int)
        The inputs that are its numbers, scales and zero points.
    is_turned : bool
        Whether its columns are the outputs.
    is_packed : bool
        Whether its numbers are packed in bytes, or unsigned.
    quantization : BlockQuantization
        The weight, with outputs or entries of a table as rows.
    """

    constants: Constants
    places: tuple[tuple[NodeProto, int], ...]
    is_turned: bool
    is_packed: bool
    quantization: BlockQuantization

    def change(self, change: Change) -> Requantized:
        """Change the weight in the graph, and quantize it again.

        Parameters
        ----------
        change : callable
            From rows and their slice to the changed rows.

        Returns
        -------
        Requantized
        """
        result = self.quantization.change(change)
        for (node, index), a in zip(self.places, (result.packed, result.scales, result.zeros), strict=True):
            former = self.constants.find(node, index)
            if a is None or former is None or (self.quantization.is_shared and a is result.zeros):
                continue
            if not self.is_packed and a is not result.scales:
                a = unpack(a.reshape(self.quantization.shape[0], -1), self.quantization.bits)
                a = a[:, : former.size // len(a)] + np.int16(_LOWEST[former.dtype.name])
            a = a.T if self.is_turned and former.ndim == 2 else a
            a = a[:1] if former.size == 1 else a
            self.constants.write(node, index, a.reshape(former.shape).astype(former.dtype))
        return result


def find_quantized(constants: Constants, product: Product) -> QuantizedWeight | None:
    """The weight of a product, if it is quantized.

    Parameters
    ----------
    constants : Constants
        The constants of the graph.
    product : Product
        The product.

    Returns
    -------
    QuantizedWeight or None
        None for a weight of floats.

    Raises
    ------
    ModelError
        It is quantized in a form that is not written here.
    """
    weight = product.node.input[0 if product.is_table else 1]
    node = product.node if product.node.op_type in _INPUTS else constants.makers.get(weight)
    if node is None or node.op_type not in _INPUTS:
        return None
    places = [(node, i) for i in _INPUTS[node.op_type]]
    if node.op_type == "MatMulInteger":
        places[1] = _find_scales(constants, product)
    numbers, scales, zeros = (constants.find(*place) for place in places)
    if numbers is None or scales is None:
        raise _refuse(product, "has no numbers or no scales that are constants")
    attributes = read_attributes(node)
    if node.op_type == "MatMulNBits":
        groups = constants.find(node, 4)
        if attributes.get("weight_prepacked", 0) or (groups is not None and zeros is not None and zeros.dtype == "u1"):
            raise _refuse(product, "is prepacked, or has packed zero points beside g_idx")
        shape, bits = (product.outputs, product.inputs), attributes.get("bits", 4)
        packed = BlockQuantization(numbers, scales, zeros, shape, bits, attributes["block_size"], groups)
        return QuantizedWeight(constants, tuple(places), False, True, packed)
    if node.op_type == "GatherBlockQuantized":
        if attributes.get("quantize_axis", 1) % 2 != 1:
            raise _refuse(product, "is quantized along its columns")
        if numbers.dtype == np.uint8:
            shape, bits = (product.inputs, product.outputs), attributes.get("bits", 4)
            packed = BlockQuantization(numbers, scales, zeros, shape, bits, attributes.get("block_size", 128))
            return QuantizedWeight(constants, tuple(places), False, True, packed)
    is_turned = product.is_linear and not read_attributes(product.node).get("transB", 0)
    return QuantizedWeight(constants, tuple(places), is_turned, False,
                           _read_integers(product, node, is_turned, numbers, scales, zeros))


def _find_scales(constants: Constants, product: Product) -> tuple[NodeProto, int]:
    """The scales of MatMulInteger: the factors of its activations' scales, which then multiply its result."""
    end = product.end
    factors = [] if end is None else [constants.makers.get(n) for n in end.input]
    for factor in factors:
        if factor is not None and factor.op_type == "Mul":
            for index, name in enumerate(factor.input):
                if name in constants.tensors:
                    return factor, index
    raise _refuse(product, "has no scales that are constants")


def _center(zeros: np.ndarray, lowest: int, bits: int) -> np.ndarray | None:
    """Zero points, counted from the lowest number; None where all of them are in the middle."""
    centers = zeros.astype(np.int16) - lowest
    return None if (centers == 2 ** (bits - 1)).all() else centers


def _read_integers(product: Product, node: NodeProto, is_turned: bool, numbers: np.ndarray, scales: np.ndarray,
                   zeros: np.ndarray | None) -> BlockQuantization:
    """A weight of integers, with scales for all of it, for its outputs, or for blocks along its input."""
    attributes = read_attributes(node)
    lowest = _LOWEST[numbers.dtype.name]
    bits = 4 if numbers.dtype.name.endswith("int4") else 8
    rows = (numbers.T if is_turned else numbers.reshape(len(numbers), -1)).astype(np.int16) - lowest
    block_size = attributes.get("block_size", 0) or rows.shape[1]
    axis = attributes.get("axis", 1) % numbers.ndim if node.op_type == "DequantizeLinear" else int(is_turned)
    is_by_row = scales.ndim == 1 and axis == int(is_turned)
    is_blocked = scales.ndim == 2 == numbers.ndim and (axis != int(is_turned) or node.op_type == "GatherBlockQuantized")
    is_shared = scales.size == 1 < len(rows)
    if not (is_by_row or is_blocked or is_shared or scales.size == 1):
        raise _refuse(product, "has scales along what it reads")

    def by_row(a: np.ndarray) -> np.ndarray:
        a = a.T if is_turned and a.ndim == 2 else a.reshape(a.size if a.ndim < 2 else len(a), -1)
        return np.broadcast_to(a, (len(rows), -(-rows.shape[1] // block_size)))

    if zeros is None and lowest == 0 and not is_shared:
        raise _refuse(product, "has numbers from 0 on without zero points")
    centers = _center(np.zeros((len(rows), 1)) if zeros is None else by_row(zeros), lowest, bits)
    return BlockQuantization(pack(rows.astype(np.uint8), bits), by_row(scales),
                             None if centers is None else pack(centers.astype(np.uint8), bits),
                             (len(rows), rows.shape[1]), bits, block_size, is_shared=is_shared)


def _refuse(product: Product, why: str) -> ModelError:
    return ModelError(f"The weight of {product.name!r} {why}, which merge does not write; deploy the adapter beside "
                      f"the base instead, by save_adapter.")
