"""Constants that are small in the file, and computed at once they fill the memory: 2^40 zeros from one number.

An attacker hopes for a reader that folds constants, as optimizers of graphs do.
"""

import numpy as np
from onnx import helper
from victims import model, node

from ortpartial import OrtGradientForwardBackwardOptimizer, load

N = 2**40


def naive():
    return np.zeros(N, np.float32).any() or np.broadcast_to(np.float32(1), N).copy().any()


def whole(name, *numbers, shape=None):
    return helper.make_tensor(name, 7, [len(numbers)] if shape is None else shape, numbers)


#: y = (x + the sum of c) * w
ADDED = [node("Cast", ["c"], ["f"], to=1), node("ReduceSum", ["f"], ["s"], keepdims=0), node("Add", ["x", "s"], ["h"]),
         node("Mul", ["h", "w"], ["y"])]


def bomb(op_type, tensors, **settings):
    """A model that needs what an operator computes."""
    return model([node(op_type, [t.name for t in tensors], ["c"], **settings), *ADDED], tensors)


ONE = helper.make_tensor("one", 1, [1], [1.0])
BOMBS = {
    "ConstantOfShape": lambda: bomb("ConstantOfShape", [whole("n", N)]),
    "Expand": lambda: bomb("Expand", [ONE, whole("n", N)]),
    "Tile": lambda: bomb("Tile", [ONE, whole("n", N)]),
    "Pad": lambda: bomb("Pad", [ONE, whole("n", 0, N)]),
    "Range": lambda: bomb("Range", [whole("a", 0, shape=[]), whole("b", N, shape=[]), whole("c", 1, shape=[])]),
    "OneHot": lambda: bomb("OneHot", [whole("i", 0), whole("n", N, shape=[]), helper.make_tensor("v", 1, [2], [0, 1])]),
    "Expand, a computed size": lambda: computed(),
    "RandomNormal": lambda: bomb("RandomNormal", [], shape=[N]),
    "Reshape": lambda: bomb("Reshape", [ONE, whole("n", N)]),
    "EyeLike": lambda: bomb("EyeLike", [helper.make_tensor("e", 1, [0, 2**20], [])]),
}


def computed():
    """The size is a product of the sizes of an input."""
    nodes = [node("Shape", ["i"], ["n0"]), *(node("Mul", [f"n{i}", f"n{i}"], [f"n{i + 1}"]) for i in range(5)),
             node("Expand", ["one", "n5"], ["c"]), *ADDED]
    proto = model(nodes, [ONE])
    proto.graph.input.append(helper.make_tensor_value_info("i", 1, [4]))
    return proto


def attacks():
    for name, make in BOMBS.items():
        yield f"load: {name}", lambda make=make: load(make()) and "unharmed: read, and not computed"
        yield f"fit: {name}", lambda make=make: fit(make())


def fit(proto):
    x = np.ones((4, 4), np.float32)
    OrtGradientForwardBackwardOptimizer(proto, max_iter=1).fit(x, x)
    return "unharmed: trained"
