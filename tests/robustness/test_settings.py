"""Careless settings: whatever a public constructor or function is given, it takes it or names what it expects."""

import contextlib
import io
import sys
import traceback
import warnings

import pytest
from public_calls import LOOP, ROWS, VALUES, Shared, show

from ortpartial.exceptions import OrtPartialError

#: Calls that compile a graph or write one by torch take too long to stand in the short sample.
SLOW = ("torch.export", "export_c", "torch.OnnxLayer")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return Shared(tmp_path_factory.mktemp("shared"))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def refuse(call, settings):
    """Where it ends otherwise than in a result or a sentence of the library, how."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            call(**settings)
    except OSError:  # the system's own, of a path
        return ""
    except OrtPartialError as e:
        text = str(e)
        return f"{len(text)} characters" if len(text) >= 1000 else "" if text else "no message"
    except Exception as e:
        is_their_own = traceback.extract_tb(e.__traceback__)[-1].name == "divide"
        return "" if is_their_own else f"{type(e).__name__}: {str(e)[:100]}"
    return ""


def test_the_table_is_long():
    assert len(ROWS) > 700


@pytest.mark.parametrize("part", range(4))
def test_settings_of_a_sample(part, shared):
    """Every second setting is given one of the values."""
    failures = []
    for k, (name, call, settings, setting) in enumerate(ROWS):
        value = VALUES[7 * k % len(VALUES)]
        if k % 8 == 2 * part and name not in SLOW and (
                text := refuse(call, {**shared.fill(settings), setting: value})):
            failures.append((name, setting, show(value), text))
    assert failures == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({row.name for row in ROWS}))
def test_settings(name, shared):
    failures = [(row.setting, show(value), text) for row in ROWS if row.name == name for value in VALUES
                if (text := refuse(row.call, {**shared.fill(row.settings), row.setting: value}))]
    assert failures == []


@pytest.mark.parametrize("name", sorted({row.name for row in ROWS if row.name not in SLOW}))
def test_the_calls_work(name, shared):
    """What a single setting of is replaced."""
    row = next(row for row in ROWS if row.name == name)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        with contextlib.suppress(ImportError):  # an extra that is not installed
            assert "DataError" not in refuse(row.call, shared.fill(row.settings))


@pytest.mark.parametrize(("name", "setting", "value", "sentence"), [
    ("export_c", "folder", None, "folder is a path, a string or a Path, not None."),
    ("write_kit", "folder", 3, "folder is a path, a string or a Path, not 3."),
    ("run_kit", "steps", 2.5, "steps is a whole number, not 2.5."),
    ("run_kit", "save", "no", "save is True or False, not 'no'."),
    ("save_adapter", "path", b"a", "path is a path, a string or a Path, not b'a'."),
    ("pad_rows", "multiple_of", "8", "multiple_of is a whole number, not '8'."),
    ("plot_losses", "ax", 3, "ax is None or axes of matplotlib, not 3."),
    ("plots.plot_histograms", "names", 3, "names is a name or a list of names, not 3."),
    ("build", "outputs", [1], "build: the output 'output_0' is 1, where a value was expected, as variable, constant "
     "and op return them."),
    ("variable", "dtype", "floot", "dtype is 'floot'; an element type of ONNX was expected, such as 'float32'."),
    ("constant", "array", LOOP, "A constant is made of numbers of one shape, and [[...]] is none; an input is "
     "variable(name, dtype, shape)."),
    ("grad", "wrt", None, "grad: wrt is a list of values, not None; write grad(y, [x])."),
    ("callbacks.find_learning_rate", "optimizer", 3, "optimizer is an OrtGradientForwardBackwardOptimizer, not 3."),
    ("artifacts.load", "folder", None, "folder is a path, a string or a Path, not None."),
    ("to_training_info", "style", [], "style is a string, not []."),
    ("gradient_model", "wrt", 3, "wrt is a name or a list of names, not 3."),
    ("PaddedBatches", "random_state", LOOP, "random_state is None, a seed from 0 on or a Generator, not [[...]]."),
])
def test_sentences(name, setting, value, sentence, shared):
    row = next(row for row in ROWS if row.name == name and row.setting == setting)
    with pytest.raises(OrtPartialError) as error:
        row.call(**{**shared.fill(row.settings), setting: value})
    assert str(error.value) == sentence
