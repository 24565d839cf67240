"""The page that `make coverage` writes, and when it fails."""

import json
import sys

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import coverage_table


def measured(lines, run):
    return {"summary": {"num_statements": lines, "covered_lines": run}}


def test_rooms_are_counted_with_the_folders_inside():
    files = {"ortpartial/names.py": measured(10, 9), "ortpartial/nn/module.py": measured(100, 99),
             "ortpartial/nn/layers/sizes.py": measured(50, 50), "ortpartial/cli/__init__.py": measured(0, 0)}
    rooms = coverage_table.count(files)
    assert rooms == {"cli": (0, 0), "nn": (150, 149), "ortpartial": (10, 9), "all": (160, 158)}
    assert "| nn | 150 | 149 | 99.3% |\n" in coverage_table.write_page(rooms)


@pytest.mark.parametrize(("run", "result"), [(96_999, "Tests must run 97% of the lines."), (97_000, None)])
def test_too_few_lines_are_an_error(tmp_path, capsys, run, result):
    (tmp_path / "coverage.json").write_text(json.dumps({"files": {"ortpartial/nn/module.py": measured(100_000, run)}}))
    assert coverage_table.main(tmp_path / "coverage.json", tmp_path / "page.md") == result
    assert capsys.readouterr().out.startswith(f"{run} of 100000 lines, ")
    share = (tmp_path / "page.md").read_text(encoding="utf-8").splitlines()[-1]
    assert share == f"| all | 100000 | {run} | {'97.0' if result is None else '96.9'}% |"
