"""Tensors of four bytes that say that they have 2^40 numbers, or so many that the product overflows.

An attacker hopes for a reader that takes the memory first, or reads beyond the end of what is there.
"""

import numpy as np
from onnx import SparseTensorProto, TensorProto, helper
from victims import model, node, sum_model

from ortpartial import load

SHAPES = ([2**40], [2**32, 2**32], [2**63 - 1, 2], [0, 2**62, 2**62], [-1], [-4], [3], [1] * 100)


def naive():
    return np.ones(SHAPES[0], np.float32).sum() > 0


def tensor(shape, data=bytes(4), dtype=TensorProto.FLOAT):
    return TensorProto(name="w", data_type=dtype, dims=shape, raw_data=data)


def sparse(shape, index):
    proto = model([node("Add", ["x", "s"], ["y"])])
    values, indices = helper.make_tensor("s", 1, [1], [1.0]), helper.make_tensor("i", 7, [1], [index])
    proto.graph.sparse_initializer.append(SparseTensorProto(values=values, indices=indices, dims=shape))
    return proto


def attacks():
    for shape in SHAPES:
        yield f"shape {shape}"[:34], lambda shape=shape: load(sum_model(tensor(shape)))
        yield f"sparse {shape}"[:34], lambda shape=shape: load(sparse(shape, 0))
    for dtype in (0, 99, 2**31 - 1):
        yield f"element type {dtype}", lambda dtype=dtype: load(sum_model(tensor([1], dtype=dtype)))
    yield "a sparse index beyond the end", lambda: load(sparse([4], 10**6))
    yield "an input of 2^62 columns", lambda: load(helper.make_model(helper.make_graph(
        [node("Relu", ["x"], ["y"])], "g", [helper.make_tensor_value_info("x", 1, [2**31, 2**31])],
        [helper.make_tensor_value_info("y", 1, [2**31, 2**31])])))
