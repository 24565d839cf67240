"""Names of a step: the plain word, with underscores until it is free."""

from ortpartial.execution.names import StepNames


def test_plain_words():
    names = StepNames.beside(["x", "w"])
    assert (names.loss, names.iteration, names.seed, names.new("w")) == ("loss", "iteration", "seed", "w_new")


def test_names_that_are_taken():
    names = StepNames.beside(["loss", "loss_", "w", "w_new"])
    assert (names.loss, names.new("w")) == ("loss__", "w_new_")


def test_equal_ones_are_equal():
    assert StepNames.beside(["a", "b"]) == StepNames.beside(["b", "a"])
    assert StepNames.beside([]) != StepNames.beside(["a"])
