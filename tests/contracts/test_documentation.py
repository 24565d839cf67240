"""The pages of the documentation: their commands exist, and every public name has a page."""

import doctest
import importlib
import inspect
import re
import shlex
from importlib.util import find_spec

import pytest
from pages import DOCS, PAGES, read_blocks
from paths import ROOT

from ortpartial.cli.program import _parser

# What stands on a page is public by these modules; elsewhere rooms share names.
PUBLIC = ("", ".nn", ".artifacts", ".torch", ".testing", ".plots", ".exceptions", ".callbacks", ".adapters",
          ".learning_loss", ".learning_penalty", ".learning_rate", ".schedule")
OPTIONAL = {"OnnxClassifier", "OnnxRegressor", "OnnxLayer"}  # Imported on first use, so not in __all__.


def read_pictures(text):
    """By picture of a page, in either form, its alternative text."""
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text)
    for path, options in re.findall(r"^`{3,}\{(?:image|figure)\} (\S+)\n(.*?)^`{3,}$", text, re.MULTILINE | re.DOTALL):
        alt = re.search(r"^:alt: (.*)$", options, re.MULTILINE)
        pictures.append((alt[1] if alt else "", path))
    return {path: alt for alt, path in pictures}


def test_pictures_have_alternative_texts():
    """They say what a picture shows, in more than two words, and each file is there."""
    count = 0
    readmes = [page for page in ROOT.glob("examples/**/README.md") if "node_modules" not in page.parts]
    for page in [*PAGES, *ROOT.glob("*.md"), *readmes]:
        for path, alt in read_pictures(page.read_text(encoding="utf-8")).items():
            assert len(alt.split()) > 2, f"{page.relative_to(ROOT)}: {path}"
            assert path.startswith("http") or (page.parent / path).exists(), f"{page.relative_to(ROOT)}: {path}"
            count += 1
    assert count >= 20
    assert read_pictures("![](a.png)\n```{image} b.png\n:width: 9\n```\n") == {"a.png": "", "b.png": ""}


def test_commands_of_pages():
    """Lines of a shell that call the program name commands and options that it has."""
    parse, count = _parser().parse_args, 0
    for page in [*PAGES, ROOT / "README.md"]:
        for language, code, line, _ in read_blocks(page.read_text(encoding="utf-8")):
            if language != "bash":
                continue
            for command in code.replace("\\\n", " ").splitlines():
                words = shlex.split(command, comments=True)
                words = words[2:] if words[:2] == ["python", "-m"] else words
                if words[:1] != ["ortpartial"] or {"--help", "--version"} & set(words):
                    continue
                try:
                    parse(words[1 : next((i for i, w in enumerate(words) if w in "|>&&;"), None)])
                except SystemExit:
                    pytest.fail(f"{page.relative_to(ROOT)}, line {line}: {command}")
                count += 1
    assert count


def test_every_public_name_has_one_page():
    listed = [name for page in sorted((DOCS / "reference").glob("*.md")) for name in read_names(page)]
    objects = [find(name) for name in listed]
    assert len(set(map(id, objects))) == len(listed), "a name stands twice"
    public = [f"ortpartial.{name}" for name in sorted(OPTIONAL)]
    for suffix in PUBLIC:
        module = importlib.import_module(f"ortpartial{suffix}")
        names = getattr(module, "_ROOMS", module.__all__)
        public += [f"ortpartial{suffix}.{name}" for name in names if not name.startswith("resolve_")]
    assert [name for name in public if id(find(name)) not in set(map(id, objects))] == []


def test_every_name_on_a_page_has_an_example():
    """In its own docstring, not in that of a base class; test_public_api.py runs it."""
    names = [name for page in sorted((DOCS / "reference").glob("*.md")) for name in read_names(page)]
    assert [name for name in names if not has_example(find(name))] == []


def has_example(value):
    """Whether a docstring has lines that are run, of which none is skipped."""
    examples = doctest.DocTestParser().get_examples(inspect.cleandoc(vars(value).get("__doc__") or "")
                                                    if inspect.isclass(value) else inspect.getdoc(value) or "")
    return bool(examples) and not any(doctest.SKIP in example.options for example in examples)


class Exemplary:
    """It has an example.

    >>> 1 + 1
    2
    """


class Inherited(Exemplary):
    pass


class Skipped:
    """It has an example that is not run.

    >>> 1 + 1
    2
    >>> 1 + 1  # doctest: +SKIP
    3
    """


@pytest.mark.parametrize(
    ("value", "has"), [(Exemplary, True), (Inherited, False), (Skipped, False), (find_spec, False)])
def test_what_is_an_example(value, has):
    assert has_example(value) is has


def read_names(page):
    """The names that a page of the reference lists."""
    text = page.read_text(encoding="utf-8")
    for module, names in re.findall(r"currentmodule:: (\S+)\n\n\.\. autosummary::\n(.*?)^```", text, re.M | re.S):
        yield from (f"{module}.{name}" for name in re.findall(r"^   (\w+)$", names, re.M))


def find(name):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)
