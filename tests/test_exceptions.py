"""Errors: one base, the built-in class that a caller would catch, and messages that give a terminal no orders."""

import pickle

import pytest

from ortpartial import exceptions
from ortpartial.exceptions import ConvergenceWarning, ModelError, OrtPartialError, SettingError, UnknownOperatorError

ERRORS = [c for n in exceptions.__all__ if issubclass(c := getattr(exceptions, n), Exception)
          and not issubclass(c, Warning)]


@pytest.mark.parametrize("kind", [e for e in ERRORS if e is not OrtPartialError])
def test_every_error_is_one_of_ours_and_a_built_in_one(kind):
    assert issubclass(kind, OrtPartialError)
    assert any(base.__module__ == "builtins" and base not in (Exception, BaseException, object)
               for base in kind.__mro__)
    assert str(pickle.loads(pickle.dumps(kind("what to do")))) == "what to do"


def test_hasattr_is_false_for_an_unknown_operator():
    from ortpartial import op

    assert not hasattr(op, "Unheard")
    assert issubclass(UnknownOperatorError, AttributeError)


@pytest.mark.parametrize("kind", [ModelError, SettingError, ConvergenceWarning])
def test_a_name_gives_a_terminal_no_orders(kind):
    text = str(kind("the weight '\x1b[2Jw'\nand more"))
    assert "\x1b" not in text
    assert text.splitlines()[1] == "and more"


def test_all_are_listed():
    defined = {n for n, c in vars(exceptions).items() if isinstance(c, type) and c.__module__ == exceptions.__name__}
    assert {n for n in defined if not n.startswith("_")} == set(exceptions.__all__)
