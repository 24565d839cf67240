"""Habits: an option of another program ends in one line that says which one to write."""

import pytest

from ortpartial.cli import main


@pytest.mark.parametrize(("words", "message"), [
    ("--lr 0.1", "unknown option --lr; write --rate adam:1e-3"),
    ("--learning-rate=0.1", "unknown option --learning-rate; write --rate adam:1e-3"),
    ("--optimizer adam", "unknown option --optimizer; write --rate adam:1e-3"),
    ("--weight_decay 0.1", "unknown option --weight_decay; write --rate adamw:1e-3:weight_decay=0.01"),
    ("--patience 3", "unknown option --patience; write --early-stopping 5"),
    ("--max_iter 3", "unknown option --max_iter; write --epochs 20"),
    ("--num-train-epochs 3", "unknown option --num-train-epochs; write --epochs 20"),
    ("--batch_size 3", "unknown option --batch_size; did you mean --batch-size?"),
    ("--random-state 3", "unknown option --random-state; write --seed 0"),
    ("--gpu", "unknown option --gpu; write --device cuda"),
    ("--label t", "unknown option --label; write --target COLUMN"),
    ("--bf16", "unknown option --bf16; write --precision bfloat16"),
    ("--xyzw", "unknown option --xyzw; --help lists them"),
    ("more", "one word too many: 'more'; --help lists the arguments")])
def test_options_of_other_programs(words, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "m.onnx", "d.csv", "-o", "o.onnx", *words.split()])
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"ortpartial train: error: {message}"


def test_an_option_of_another_command_is_not_advised(capsys):
    with pytest.raises(SystemExit):
        main(["predict", "m.onnx", "d.csv", "-o", "p.csv", "--lr", "3"])
    assert capsys.readouterr().err.endswith("unknown option --lr; --help lists them\n")
