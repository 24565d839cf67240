"""The printed count of trained parameters, and its share of all."""

from models import mlp, stack_layers

from ortpartial import add_lora, trainable_parameters


def lines(capsys, *arguments):
    trainable_parameters(*arguments)
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_a_model_without_an_adapter(capsys):
    *rows, total = lines(capsys, mlp(), ["W1", "b2"])
    assert rows == [["W1", "(4,", "8)", "32"], ["b2", "(1,)", "1"]]
    assert total == ["trainable", "params:", "33", "||", "all", "params:", "49", "||", "trainable%:", "67.3469"]


def test_the_weights_of_an_adapter(capsys):
    """By default they alone are trained: 2 · 4 · 2 of them beside 20 frozen numbers."""
    *rows, total = lines(capsys, add_lora(stack_layers("fc"), rank=2))
    assert len(rows) == 2
    assert total[2:7] == ["16", "||", "all", "params:", "36"]
