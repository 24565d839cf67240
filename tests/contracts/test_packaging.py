"""What is uploaded: links of the page on PyPI lead somewhere, and the archive of sources holds what README names."""

import fnmatch
import re

import pytest
from paths import ROOT

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or later")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HATCH = PYPROJECT["tool"]["hatch"]
URLS = PYPROJECT["project"]["urls"]


def page():
    """README as it stands on PyPI."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for change in HATCH["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    return text


def test_links_of_the_page_are_absolute():
    links = re.findall(r"\]\(([^)]*)\)", page())
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    files = [link.removeprefix(URLS["Homepage"]) for link in links if link.startswith(URLS["Homepage"])]
    assert any(f.startswith("/raw/HEAD/bench/results/") and f.endswith(".png") for f in files)
    assert "/blob/HEAD/CONTRIBUTING.md" in files
    assert [f for f in files if not (ROOT / re.sub("^/(raw|blob)/HEAD/|#.*$", "", f)).exists()] == []


def test_links_within_the_page_lead_to_its_headings():
    headings = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", page(), re.M)}
    assert [a for a in re.findall(r"\]\(#([^)]*)\)", page()) if a not in headings] == []


def test_urls_of_the_project():
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= URLS.keys()
    assert all(url.startswith(URLS["Homepage"]) for url in URLS.values())


def test_the_archive_of_sources_holds_what_its_documents_name():
    included = [p.lstrip("/") for p in HATCH["build"]["targets"]["sdist"]["include"]]
    documents = "".join((ROOT / d).read_text(encoding="utf-8") for d in ("README.md", "CONTRIBUTING.md", "Makefile"))
    words = set(re.findall(r"[\w./-]+", documents))
    # Without what is written there.
    named = {word.split("/")[0] for word in words} - {"__pycache__", "build", "demo_output", "dist"}
    named = {name for name in named if name and not name.startswith(".") and (ROOT / name).exists()}
    assert {"bench", "tools", "ARCHITECTURE.md", "examples"} <= named
    always = {"LICENSE", "pyproject.toml"}
    assert {n for n in named - always if not any(fnmatch.fnmatch(n, p) for p in included)} == set()


def test_the_style_of_figures_is_found_where_the_package_is_installed():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    with pyplot.style.context("ortpartial.figure"):
        assert not pyplot.rcParams["axes.spines.top"]
