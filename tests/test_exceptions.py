"""Errors: one base, the built-in class that a caller would catch, and messages that give a terminal no orders."""

import pickle
import traceback

import pytest

import ortpartial
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


MISTAKE = """
from ortpartial import LearningRateAdam, build, grad, variable
def descend():
    x = variable("x", "float32", [2])
    return grad(x, 3)  # a line of the user
"""


@pytest.mark.parametrize("call", ["descend()", "LearningRateAdam(lr=3)", "build(3, [])"])
def test_ipython_shows_the_lines_of_the_user_alone(call, capsys):
    shell = pytest.importorskip("IPython").core.interactiveshell.InteractiveShell
    try:
        shell.instance(colors="nocolor").run_cell(MISTAKE)
        result = shell.instance().run_cell(call)
    finally:
        shell.clear_instance()
    shown = capsys.readouterr().out
    assert isinstance(result.error_in_exec, OrtPartialError)
    assert call in shown
    assert shown.count("# a line of the user") == (call == "descend()")
    assert "ortpartial/" not in shown


@pytest.mark.slow
def test_notebooks_show_the_lines_of_the_user_alone():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(f"{MISTAKE}descend()")])
    nbclient.NotebookClient(notebook, allow_errors=True).execute()
    (output,) = notebook.cells[0].outputs
    assert output.ename == "GraphError"
    assert "ortpartial/" not in "".join(output.traceback)


def test_plain_python_shows_all_frames():
    with pytest.raises(OrtPartialError) as error:
        ortpartial.grad(3, [3])
    assert "ortpartial/autodiff" in "".join(traceback.format_exception(error.value))
