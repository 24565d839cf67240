"""The inputs of a step in a kit count the rows of one batch."""

import pytest
from kits import write_kit_and_data

from ortpartial.exceptions import ModelError
from ortpartial.kits.step import name_sizes, share_rows


def test_sizes_that_are_not_known_have_names():
    assert share_rows({"x": ("N", 3), "y": (None, None)}) == {"x": ("N", 3), "y": ("N", "y_1")}
    assert share_rows({"x": (None, 3), "y": (20,)}) == {"x": (20, 3), "y": (20,)}
    assert name_sizes("x", (None, 2, "T"))[1:] == (2, "T")


@pytest.mark.parametrize(("shapes", "message"), [
    ({"x": ("N", 3), "eps": ()}, "The input 'eps' of the step has no rows; a kit needs inputs whose first axis counts"),
    ({"x": (20, 3), "y": (30,)}, "The inputs of the step have (20 and 30|30 and 20) rows; a kit needs inputs whose"),
])
def test_inputs_without_rows_in_common(shapes, message):
    with pytest.raises(ModelError, match=message):
        share_rows(shapes)


def test_how_a_kit_is_shown(tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "sgd")
    kit.train(tmp_path / "kit" / "data.safetensors", 3)
    assert repr(kit).startswith("<TrainingKit x float32[")
    assert repr(kit).endswith(f"state: {len(kit.state)} ({sum(a.size for a in kit.state.values())} numbers); "
                              f"3 steps taken>")
