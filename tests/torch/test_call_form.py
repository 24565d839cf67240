"""Forms of calls: names of arguments and outputs, constants that differ, and outputs as the module returns them."""

import inspect
import pickle
from collections import namedtuple

import pytest
import torch

from ortpartial.exceptions import DataError
from ortpartial.torch.call_form import list_strangers, list_tensors, name_leaves, name_outputs, read_form

A, B = torch.ones(2, 3), torch.zeros(4)
Pair = namedtuple("Pair", "mean scale")


def forward(x, pair, flag=True, *others, factor: float = 2.0, **named):
    """A signature of every kind of argument."""


SIGNATURE = inspect.signature(forward)


@pytest.fixture
def form():
    args, named = (A, {"a": [B, 3]}), {"more": A}
    names = {n: n for n, v in name_leaves(SIGNATURE, args, named).items() if isinstance(v, torch.Tensor)}
    return read_form(SIGNATURE, args, named, names, {"y": Pair(A, [B, None]), "n": 3, "z": object()})


def test_names_of_outputs():
    assert name_outputs(A, ["output"]) == ["output_output"]
    assert name_outputs({"a": A, "b": B}, []) == ["a", "b"]
    assert name_outputs(Pair(A, B), ["mean"]) == ["mean_output", "scale"]
    assert name_outputs((A, [B, None]), []) == ["output_0", "output_1_0"]
    assert name_outputs({"a_b": A, "a": {"b": B}}, []) == ["a_b", "a_b_"]
    assert len(list(list_tensors((A, {"a": [B, A]}, 3)))) == 3
    assert list_strangers((A, {"a": object(), "b": 1.5})) == {"1_a": "object"}


def test_names_of_arguments():
    leaves = name_leaves(SIGNATURE, (A, Pair(B, 1), False, A), {"u": B})
    assert list(leaves) == ["x", "pair_mean", "pair_scale", "flag", "others_0", "factor", "u"]
    assert "factor" not in name_leaves(SIGNATURE, (A, B), {}, with_defaults=False)


def test_bind(form):
    """Arguments come in any order and by position or keyword; defaults may be written out."""
    assert form.bind((A, {"a": [B, 3]}), {"more": B})["more"] is B
    inputs = form.bind((), {"more": B, "factor": 2.0, "flag": True, "pair": {"a": [A, 3]}, "x": B})
    assert inputs["pair_a_0"] is A
    assert list(inputs) == ["x", "pair_a_0", "more"]
    assert form.bind((A, B, A), {}) is None  # the inputs one by one
    assert form.bind((A,), {}) is None


@pytest.mark.parametrize(("args", "named", "message"), [
    ((A, {"a": [B, 3]}, False), {"more": A}, "The argument 'flag' is False, and was True in the example of the export"),
    ((A, {"a": [B, 3.0]}), {"more": A}, "The argument 'pair_a_1' is 3.0, and was 3 in the example"),
    ((A, {"a": [B, 3]}), {}, "The argument 'more' is missing, and was a tensor in the example"),
    ((A, {"a": [None, 3]}), {"more": A}, "The argument 'pair_a_0' is None, and was a tensor in the example"),
    ((A, {"a": [B, 3]}), {"more": A, "less": A}, "The argument 'less' is a tensor, and was missing in the example"),
    ((A, None), {"x": A}, "The module takes no such call: multiple values for argument 'x'"),
])
def test_other_calls(form, args, named, message):
    with pytest.raises(DataError, match=message):
        form.bind(args, named)


def test_pack(form):
    for now in (form, pickle.loads(pickle.dumps(form))):
        packed = now.pack([B, A])
        assert list(packed) == ["y", "n", "z"]
        assert packed["y"].mean is B
        assert packed["y"].scale == [A, None]
        assert (packed["n"], packed["z"]) == (3, None)


@pytest.mark.parametrize(("args", "outputs", "is_plain"), [
    ((A, B), A, True), ((A, B, True), (A, B), True), ((A, B, False), A, False), ((A, [B]), A, False),
    ((A, B), [A, B], False), ((A, B), (A,), False), ((A, B), (A, None), False)])
def test_plain_forms(args, outputs, is_plain):
    names = {n: n for n, v in name_leaves(SIGNATURE, args, {}).items() if isinstance(v, torch.Tensor)}
    assert read_form(SIGNATURE, args, {}, names, outputs).is_plain(["x", "pair"]) is is_plain
