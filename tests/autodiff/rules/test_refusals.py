"""Operators of com.microsoft without a rule say why, with advice."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.autodiff.registry import REASONS, RULES
from ortpartial.exceptions import NoGradientError


@pytest.mark.parametrize(("op_type", "advice"), [
    ("SparseAttention", "export the model with attention to all keys"),
    ("MatMulFpQ4", "quantize to MatMulNBits"), ("BeamSearch", "train the decoder inside of it"),
    ("PackedAttention", "build the model for the CPU"), ("UnfoldTensor", "train an output before it")])
def test_reasons(op_type, advice):
    assert advice in REASONS["com.microsoft", op_type]
    assert ("com.microsoft", op_type) not in RULES


def test_the_error_of_a_training_has_the_reason():
    w = helper.make_tensor("w", TensorProto.FLOAT, [2, 3], np.ones(6))
    unfold = helper.make_node("UnfoldTensor", ["h"], ["y"], domain="com.microsoft", dim=1, size=2, step=1)
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["h"]), unfold], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2, 2])], [w])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with pytest.raises(NoGradientError, match=r"UnfoldTensor.*it finds the times of words; train an output before it"):
        OrtGradientForwardBackwardOptimizer(model, ["w"])
