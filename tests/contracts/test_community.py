"""The pages for users and contributors that no code reads: the citation, the forms, and the content of the archive."""

import re

import pytest
from paths import ROOT

import ortpartial

yaml = pytest.importorskip("yaml", reason="PyYAML, which transformers needs, from Python 3.11 on")
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def test_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == ortpartial.__version__
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


@pytest.mark.parametrize("form", [f for f in FORMS if f.stem != "config"], ids=lambda f: f.stem)
def test_form(form):
    """It has what GitHub requires of a form."""
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert content["name"]
    assert content["description"]
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert len({f["id"] for f in fields}) == len({f["attributes"]["label"] for f in fields}) == len(fields)
    assert any(f["validations"]["required"] for f in fields if "validations" in f)


def test_the_forms_are_there():
    assert {f.stem for f in FORMS} == {"bug", "config", "feature", "model"}


@pytest.mark.parametrize("page", ["SECURITY.md", "STABILITY.md", "ROADMAP.md", "CODE_OF_CONDUCT.md"])
def test_links_work_in_the_repository_and_on_the_site(page):
    """They are absolute, and what they name in the repository is there."""
    links = re.findall(r"\]\(([^)]*)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not link.startswith("https://")] == []
    ours = [re.fullmatch(r"https://github\.com/ortpartial/ortpartial/(?:blob|tree)/HEAD/([^#]*)(?:#.*)?", link)
            for link in links]
    assert [m[1] for m in ours if m and not (ROOT / m[1]).exists()] == []
