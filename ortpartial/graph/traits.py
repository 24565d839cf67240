"""Operator traits: properties of the operators of ONNX, a set of names for each."""

from onnx import TensorProto

__all__ = ["FLOATS", "LABEL_LOSSES", "PRODUCTS", "RANDOM", "VIEWS", "WITH_BODIES"]

#: Element types of real numbers, which can have a gradient.
FLOATS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})

#: Operators that sum products of two inputs: the operators of layers, which take most of the time.
PRODUCTS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})

#: Operators that draw random numbers: two equal calls are two draws, never the same node.
RANDOM = frozenset({"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
                    "RandomUniformLike"})

#: Operators that give the elements of their first input in the same order, in another shape.
VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})

#: Losses whose second input holds labels, whole numbers.
LABEL_LOSSES = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})

#: Operators that have graphs among their attributes.
WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
