"""Pytest plugin of `make proof`: `--proof FOLDER` writes a table of what the tests proved into the folder.

Tests hand over what is to be reported by `record_property`: "operator", that of a case; "error", the largest of a
model; "value", a row of the table of numbers out of range and its results and errors; "count", a sentence.
"""

from collections import defaultdict
from pathlib import Path

import onnxruntime
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--proof", metavar="FOLDER", help="write a table of what was proved into this folder")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if folder := config.getoption("--proof"):
        reports = {outcome: terminalreporter.stats.get(outcome, []) for outcome in ("passed", "failed", "skipped")}
        path = Path(folder, f"proof-{onnxruntime.__version__}.md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(table(reports)) + "\n", encoding="utf-8")


def table(reports_by_outcome: dict[str, list[pytest.TestReport]]) -> list[str]:
    """The lines of the report."""
    operators = defaultdict(lambda: {"passed": 0, "failed": 0, "skipped": []})
    models, counts, values = [], [], []
    for outcome, reports in reports_by_outcome.items():
        for report in reports:
            for key, value in report.user_properties:
                if key == "operator" and outcome == "skipped":
                    reason = str(report.longrepr[2]).removeprefix("Skipped: ").partition(":")[0]
                    operators[value][outcome].append(reason)
                elif key == "operator":
                    operators[value][outcome] += 1
                elif key == "error":
                    models.append(f"| {report.nodeid.partition('::')[2]} | {value:.1e} |")
                elif key == "value":
                    values.append("| {} | {} | {} |".format(*value))
                elif key == "count":
                    counts.append(f"* {value}")
    rows = [f"| {name} | {o['passed']} | {o['failed']} | {len(o['skipped'])} | {'; '.join(sorted(set(o['skipped'])))} |"
            for name, o in sorted(operators.items())]
    numbers = ", ".join(f"{len(reports)} {outcome}" for outcome, reports in reports_by_outcome.items())
    return [f"# Proved on onnxruntime {onnxruntime.__version__}", "", f"Tests: {numbers}.", "", *sorted(counts), "",
            "## Gradients of the operator tests of onnx", "", "| operator | right | wrong | not run | why |",
            "|---|---|---|---|---|",
            *rows, "",
            "## Gradients of models, beside torch", "", "| model | largest relative error |", "|---|---|",
            *sorted(models), "",
            "## Numbers out of range when a graph runs: no process dies", "",
            "| operator and input | results | clear errors |", "|---|---|---|", *sorted(values)]
