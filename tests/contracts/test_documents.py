"""The documents of the repository name files and definitions that exist."""

import re

import pytest
from paths import ROOT

WRITTEN = {ROOT / "docs" / folder for folder in ("_build", "examples", "reference/generated")}  # by `make docs`
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "ortpartial").rglob("README.md"),
                    *(page for page in (ROOT / "docs").rglob("*.md") if WRITTEN.isdisjoint(page.parents))])
PATH = r"`((?:ortpartial|tests|tools|examples|bench)/[\w./]*[\w/])`"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_files_exist(document):
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", re.sub(r"(?ms)^ *```.*?^ *```", "", text))
    assert [link for link in links if not (document.parent / link).exists()] == []
    assert [path for path in re.findall(PATH, text) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_definitions_exist(document):
    """What stands as `name` in `path` is in this file."""
    pairs = re.findall(rf"`(\w+)`(?: of `\w+`)? in {PATH}", document.read_text(encoding="utf-8"))
    assert [(n, p) for n, p in pairs if not re.search(rf"\b{n}\b", (ROOT / p).read_text(encoding="utf-8"))] == []


def test_a_missing_definition_is_found():
    assert re.findall(rf"`(\w+)` in {PATH}", "`lost` in `tools/nowhere.py`") == [("lost", "tools/nowhere.py")]
