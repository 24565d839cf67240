"""Every public name has a numpydoc docstring, and its examples run."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from collections import Counter
from itertools import pairwise

import pytest
from once import ON_TRAINING
from paths import ROOT
from printed import FLAGS, NumberChecker

import ortpartial
from ortpartial.autodiff.registry import RULES
from ortpartial.native import find_compiler

# The sections of a numpydoc docstring, in the order in which they stand.
SECTIONS = (
    "Parameters",
    "Attributes",
    "Methods",
    "Returns",
    "Yields",
    "Raises",
    "Warns",
    "See Also",
    "Notes",
    "References",
    "Examples",
)

# These rooms need an extra and cannot be imported without it.
NEED_AN_EXTRA = {"torch"}


def load():
    """Every public module that can be imported here, the package first."""
    modules = [ortpartial]
    for info in sorted(pkgutil.walk_packages(ortpartial.__path__, "ortpartial."), key=lambda info: info.name):
        if any(part.startswith("_") for part in info.name.split(".")):
            continue
        try:
            modules.append(importlib.import_module(info.name))
        except ImportError:
            if info.name.split(".")[1] not in NEED_AN_EXTRA:
                raise
    return modules


MODULES = load()


def callables():
    """Public functions, classes and their public methods by their full name, each once and where it is defined."""
    by_name = {}
    for module in MODULES:
        for name in getattr(module, "__all__", ()):
            # A name that does not exist is what test_module reports.
            value = getattr(module, name, None)
            if not (inspect.isclass(value) or inspect.isroutine(value)):
                continue
            if not value.__module__.startswith("ortpartial"):  # as what of scikit-learn differs by version
                continue
            by_name[f"{value.__module__}.{value.__qualname__}"] = value
            if not inspect.isclass(value):
                continue
            for cls in value.__mro__:
                # A base class of another package answers for its own methods.
                if cls.__module__.split(".")[0] != "ortpartial":
                    continue
                for attribute, member in vars(cls).items():
                    method = inspect.isroutine(member) or isinstance(member, property | staticmethod | classmethod)
                    if method and not attribute.startswith("_"):
                        by_name[f"{value.__module__}.{value.__qualname__}.{attribute}"] = getattr(value, attribute)
    return by_name


CALLABLES = callables()


def documentation(value):
    """The docstring of a class, a function or a method, which may be inherited; empty where there is none."""
    # The docstring of a base class says nothing about the class, and that of a dataclass is generated.
    text = inspect.cleandoc(vars(value).get("__doc__") or "") if inspect.isclass(value) else inspect.getdoc(value) or ""
    return "" if inspect.isclass(value) and text.startswith(f"{value.__name__}(") else text


def sections(text):
    """The titles of a docstring and the lines below each."""
    lines = text.splitlines()
    starts = [i - 1 for i, line in enumerate(lines) if i and re.fullmatch("-{3,}", line) and lines[i - 1].strip()]
    return [(lines[i], lines[i + 1], lines[i + 2 : end]) for i, end in pairwise([*starts, len(lines)])]


def parameters(value):
    """Names in the signature, or None where Python cannot tell it."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    return [name for name in signature.parameters if name not in ("self", "cls") and not name.startswith("_")]


def problems(value):
    """Faults of the docstring of a function, class or method, a sentence each."""
    text = documentation(value)
    if not text.strip():
        return ["has no docstring"]
    faults = []
    titles = [title for title, _, _ in sections(text)]
    unknown = [title for title in titles if title not in SECTIONS]
    if unknown:
        return [f"{unknown} are not sections of numpydoc"]
    if titles != sorted(set(titles), key=SECTIONS.index):
        faults.append(f"{titles} do not stand once each in the order of numpydoc")
    for title, underline, lines in sections(text):
        if len(underline) != len(title):
            faults.append(f"{title} is underlined by {len(underline)} dashes")
        if title == "Parameters" and (expected := parameters(value)) is not None:
            # `x, y : array` documents two; descriptions are indented and are not read.
            heads = [line.split(":")[0] for line in lines if line.strip() and not line.startswith(" ")]
            named = [name.strip().lstrip("*") for head in heads for name in head.split(",")]
            if named != expected:
                faults.append(f"Parameters are {named} in the docstring and {expected} in the signature")
    return faults


def examples():
    """Every docstring of the package that holds an example, by its name: private ones must run, too."""
    finder = doctest.DocTestFinder()
    return {test.name: test for module in MODULES for test in finder.find(module) if test.examples}


EXAMPLES = examples()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_module(module):
    assert (module.__doc__ or "").strip(), f"{module.__name__} has no docstring"
    # A family of rules registers formulas with the gradient and needs to export nothing.
    if not module.__name__.startswith("ortpartial.autodiff.rules"):
        assert hasattr(module, "__all__"), f"{module.__name__} does not say which of its names are public"
    names = list(getattr(module, "__all__", ()))
    assert len(names) == len(set(names)), f"{module.__name__}.__all__ names something twice"
    assert [name for name in names if not hasattr(module, name)] == []


@ON_TRAINING
@pytest.mark.parametrize("room", sorted({".".join(name.split(".")[:2]) for name in CALLABLES}))
def test_documented(room):
    """All names of a room in one test: thousands of tests would take longer than their checks."""
    faults = {name: problems(value) for name, value in CALLABLES.items() if name.startswith(f"{room}.")}
    assert {name: found for name, found in faults.items() if found} == {}


# The example of ProcessError starts a process, which does nothing but train.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_example(name, tmp_path, monkeypatch):
    if name.endswith(".TensorBoard"):
        pytest.importorskip("tensorboard", reason="this example needs tensorboard")
    if name.endswith(".ProcessError"):
        pytest.importorskip("torch", reason="this example needs torch")
    if name.endswith(".CompilerError") and not find_compiler():
        pytest.skip("this example needs a C compiler")
    # Examples may write files, and register rules whose names end with the example.
    monkeypatch.chdir(tmp_path)
    rules = dict(RULES)
    report = []
    runner = doctest.DocTestRunner(NumberChecker(), optionflags=FLAGS)
    runner.run(EXAMPLES[name], out=report.append)
    RULES.clear()
    RULES.update(rules)
    assert runner.failures == 0, "".join(report)


def test_names_of_the_package_are_those_that_type_checkers_see():
    """Each in its room, those of `__all__` and those that are not listed; and nothing else is a name without a room."""
    tree = ast.parse(inspect.getsource(ortpartial))
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "_TYPE_CHECKING")
    seen = {a.name: f".{n.module}" for n in block.body if n.module for a in n.names}
    rooms = {n: room.removesuffix(".sklearn") for n, room in ortpartial._ROOMS.items()}
    assert seen == rooms
    assert {*ortpartial.__all__} <= {*rooms, "nn"}
    shown = {a.asname for n in block.body for a in n.names if a.asname}
    assert shown | {*ortpartial.__all__} >= {*rooms}


def test_stability_names_what_is_listed():
    """The page says how many names `dir` has, and names the rooms of the others."""
    text = (ROOT / "STABILITY.md").read_text(encoding="utf-8")
    silent = {room.split(".")[1] for n, room in ortpartial._ROOMS.items() if n not in ortpartial.__all__}
    line = next(line for line in text.split("\n* ") if line.startswith("`ortpartial`: "))
    assert silent <= {*re.findall(r"`(\w+)`", line)}


def right(x, y, *rest):
    """Add.

    Parameters
    ----------
    x, y : float
        Two numbers.
    *rest : float
        And more.

    Returns
    -------
    float
        Their sum.
    """
    return x + y + sum(rest)


def undocumented(x):
    return x


def stale(x, y):
    """Add.

    Parameters
    ----------
    x : float
    z : float
    """
    return x + y


def misordered(x):
    """Return it.

    Returns
    -------
    float

    Parameters
    ----------
    x : float
    """
    return x


def invented(x):
    """Return it.

    Arguments
    ---------
    x : float
    """
    return x


def test_checker_lets_through():
    assert problems(right) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (undocumented, "has no docstring"),
        (stale, "Parameters are ['x', 'z'] in the docstring and ['x', 'y'] in the signature"),
        (misordered, "order of numpydoc"),
        (invented, "['Arguments'] are not sections"),
    ],
)
def test_checker_finds(value, expected):
    (found,) = problems(value)
    assert expected in found


@pytest.mark.parametrize(
    ("want", "got", "agree"),
    [
        ("0.33", "0.3333333", True),
        ("0.33", "0.336", False),
        ("[1.  2.5]", "[ 1.0000001  2.5     ]", True),
        ("array([1e-05])", "array([1.2e-05])", True),
        ("array([1.0e-05])", "array([1.2e-05])", False),
        ("3", "4", False),
        ("(2, 3)", "(2, 3)", True),
        ("float32", "float64", False),
        ("[1.0, 2.0]", "[1.0]", False),
    ],
)
def test_numbers_agree_as_far_as_written(want, got, agree):
    assert NumberChecker().check_output(want + "\n", got + "\n", 0) is agree


#: How often words that stand for nouns may be in 1,000 words of docstrings: "what a step reads" is "its inputs".
MOST = {"what": 1.0, "those": 0.5, "one": 2.0}


def count_words(sources):
    """The share of each word in 1,000 of the docstrings of sources, without their examples, and their first words."""
    texts = [text for source in sources for text in re.findall(r'^\s*r?"""(.*?)"""', source, re.DOTALL | re.MULTILINE)]
    words = [w for t in texts for w in re.findall("[a-z]+", re.sub(r">>>.*|\.\.\. .*", "", t.lower()))]
    counts = Counter("one" if w == "ones" else w for w in words)
    return {w: 1000 * n / len(words) for w, n in counts.items()}, {t.split(maxsplit=1)[0] for t in texts if t.strip()}


@ON_TRAINING
def test_docstrings_name_their_nouns():
    shares, first = count_words(path.read_text(encoding="utf-8") for path in (ROOT / "ortpartial").rglob("*.py"))
    assert {w: shares[w] for w, most in MOST.items() if shares[w] > most} == {}
    assert "What" not in first


def test_words_of_docstrings_are_counted():
    shares, first = count_words(['def f():\n    """What a step reads, and ones.\n\n    >>> those\n    """\n', "x = 1"])
    assert first == {"What"}
    assert shares == dict.fromkeys(["what", "a", "step", "reads", "and", "one"], 1000 / 6)
