"""The checker: a right training passes, and each mistake is named with its place."""

import re

import pytest
from models import mlp
from training_models import ALGORITHM, INITIALIZATION, WHOLE, by_hand, changed

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import ModelError
from ortpartial.training_info.checker import check_training_info

ENTRY = "training_info[0]"


@pytest.mark.parametrize("style", ["standard", "lowered"])
def test_what_is_written_here_passes(style):
    check_training_info(by_hand(WHOLE))
    check_training_info(OrtGradientForwardBackwardOptimizer(mlp(), learning_rate="Adam").get_training_onnx(style))


@pytest.mark.parametrize(("model", "message"), [
    (mlp(), "The model has no training_info; to_training_info writes one."),
    (changed(update=[("v", "w_new")]), f"{ENTRY}.update_binding: 'v' is no initializer of the model or an algorithm."),
    (changed(update=[("w", "none")]), f"{ENTRY}.update_binding: 'none', which is bound to 'w', is no output of"),
    (changed(update=[("w", "w_new"), ("w", "loss")]), f"{ENTRY}.update_binding: 'w' is bound 2 times."),
    (changed(first=[("n", "w0")]), f"{ENTRY}.initialization_binding: 'w0' is float32[], and 'n', which"),
    (changed(initialization="start (float a) => (float w0) { w0 = Identity (a) }"),
     f"{ENTRY}.initialization: it has the input 'a', where none is allowed."),
    (changed(algorithm=ALGORITHM.replace("Sub(w, s)", "Unheard(w, s)")), "is a Unheard, which is no operator of ONNX"),
    (changed(algorithm=ALGORITHM.replace("e = Sub", "y = Sub").replace("Mul(e, e)", "Mul(y, y)")),
     "in the combined graph 'y' is"),
])
def test_mistakes(model, message):
    with pytest.raises(ModelError, match=re.escape(message)):
        check_training_info(model)


def test_the_inference_graph_reads_nothing_of_an_algorithm():
    inference = by_hand(WHOLE)
    inference.graph.node[0].input[1] = "s"
    with pytest.raises(ModelError, match=r"the inference graph reads 's'"):
        check_training_info(inference)
    assert INITIALIZATION
