"""Checks of arguments by annotations."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping, Sequence

import pytest

from ortpartial.annotations import DTypeLike
from ortpartial.arguments import check_arguments, checked
from ortpartial.checks import check_flag
from ortpartial.exceptions import SettingError


@checked
def call(path: str | os.PathLike[str], steps: int = 1, rate: float | None = None, *, log: bool = False,
         names: str | Sequence[str] = "*", sizes: Collection[int] | None = None, data: Mapping[str, int] | None = None,
         dtype: DTypeLike = "float32", title: str = "", content: bytes = b"", other: Sequence[int] | float = 0,
         free=None):
    """What it says."""
    return path, steps, rate


@pytest.mark.parametrize(("settings", "message"), [
    ({"path": None}, "path is a path, a string or a Path, not None."),
    ({"steps": "3"}, "steps is a whole number, not '3'."),
    ({"rate": "0.1"}, "rate is '0.1', a finite number was expected."),
    ({"log": "no"}, "log is True or False, not 'no'."),
    ({"names": [3]}, "names has 3, where a name, a string, was expected."), ({"sizes": 3}, "sizes is a list, not 3."),
    ({"data": []}, "data is a dict by name, not []."), ({"title": None}, "title is a string, not None."),
    ({"dtype": "S3"}, "dtype is a dtype of numbers, such as 'float32', not 'S3'."),
    ({"content": "b"}, "content is bytes, not 'b'."), ({"steps": None}, "steps is a whole number, not None."),
])
def test_wrong_types(settings, message):
    with pytest.raises(SettingError) as error:
        call(**{"path": "a", **settings})
    assert str(error.value) == message


def test_what_is_taken():
    assert call("a", 2, None, names=("b",), sizes=[1], data={"c": 1}, other="anything", free=3) == ("a", 2, None)


def test_positional_arguments():
    with pytest.raises(SettingError, match="steps is a whole number, not 'b'"):
        call("a", "b")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'path'"):
        call()
    with pytest.raises(TypeError, match="unexpected keyword argument 'stepps'"):
        call("a", stepps=3)


def test_a_checked_function_is_known_as_it_was():
    assert (call.__name__, call.__doc__) == ("call", "What it says.")
    assert list(inspect.signature(call).parameters)[:3] == ["path", "steps", "rate"]


def test_one_kind_alone():
    check_arguments(call, ["a", "b"], {}, kinds=[check_flag])
    with pytest.raises(SettingError, match=r"^Call: log is True or False, not 3\.$"):
        check_arguments(call, ["a", "b"], {"log": 3}, "Call: ", [check_flag])
