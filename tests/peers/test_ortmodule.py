"""Calls of the kinds that ORTModule's tests make: what differs from torch is what the page tells."""

import re

import pytest
from ortmodule_calls import compare, list_cases
from paths import ROOT

PAGE = ROOT / "docs/explanations/peers_suites.md"
CASES = list_cases()
#: Calls that are tried always.
SAMPLE = ["a named tuple", "returns a dict"]


def read_table():
    """Calls that are as in torch and all, by the heading, and by other call the result."""
    text = PAGE.read_text(encoding="utf-8")
    heading = re.search(r"^### Calls of a module: (\d+) of (\d+) are as in torch$", text, re.MULTILINE)
    rows = re.findall(r"^\| (.+) \| (.+) \| .+ \|$", text[heading.end():].partition("\n## ")[0], re.MULTILINE)
    return int(heading[1]), int(heading[2]), dict(rows[1:])


def test_the_page_counts():
    passed, every, others = read_table()
    assert (every, every - passed) == (len(CASES), len(others))
    assert others.keys() <= CASES.keys()


@pytest.mark.filterwarnings("ignore")  # torch 2.13.0 warns of its own exporters.
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in SAMPLE else pytest.mark.slow) for n in CASES])
def test_call(name):
    problem, (*_, others) = compare(*CASES[name]), read_table()
    if "warning" in others.get(name, ""):
        assert problem == "AssertionError, with a warning"
    else:
        assert problem == others.get(name, "").strip("`")
