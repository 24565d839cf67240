"""Names that training adds: free of clashes with every tensor of a model."""

from models import mlp

from ortpartial.graph import build, op, variable
from ortpartial.model import load
from ortpartial.training.names import Names


def test_plain_words():
    names = Names.of(load(mlp()))
    assert (names.loss, names.sample_weight, names.rate_scale) == ("loss", "sample_weight", "rate_scale")
    assert (names.target("y"), names.weight("y"), names.loss_of("y")) == ("y_target", "y_weight", "y_loss")
    assert (names.grad("W1"), names.penalty_grad("W1")) == ("W1_grad", "W1_grad_penalty")
    assert names.state("W1", "m") == "W1_m"


def test_names_that_the_model_has():
    x = variable("y_target", "float32", ["N"])
    names = Names.of(load(build([x], {"y": op.Relu(x), "loss": op.Neg(x)})))
    assert names.target("y") == "y_target_"
    assert names.loss == "loss_"
