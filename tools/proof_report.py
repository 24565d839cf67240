"""Pytest plugin of `make proof`: `--proof FOLDER` writes a table of the tests' proofs into the folder.

Tests hand over what is to be reported by `record_property`: "operator" and "case", those of a case; "elsewhere", why
onnx's reference evaluator computed it and not onnxruntime; "error", the largest of a model; "value", a row of the table
of numbers out of range and its results and errors; "count", a sentence.
"""

from collections import Counter, defaultdict
from pathlib import Path

import onnxruntime
import pytest

#: What may become of a case.
RESULTS = ("right", "right in the reference", "wrong", "not run")


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
    operators: dict[str, Counter[str]] = defaultdict(Counter)
    models, counts, values, cases = [], [], [], []
    for outcome, reports in reports_by_outcome.items():
        for report in reports:
            properties = dict(report.user_properties)
            if "operator" in properties:
                result, reason = judge(report, outcome, properties.get("elsewhere"))
                operators[properties["operator"]][result] += 1
                if reason:
                    cases.append(f"| {properties['case']} | {result} | {reason} |")
            if "error" in properties:
                models.append(f"| {report.nodeid.partition('::')[2]} | {properties['error']:.1e} |")
            values += ["| {} | {} | {} |".format(*v) for k, v in report.user_properties if k == "value"]
            counts += [f"* {v}" for k, v in report.user_properties if k == "count"]
    operators = {**dict(sorted(operators.items())), "all": sum(operators.values(), Counter())}
    rows = [f"| {name} | {' | '.join(str(counter[r]) for r in RESULTS)} |" for name, counter in operators.items()]
    numbers = ", ".join(f"{len(reports)} {outcome}" for outcome, reports in reports_by_outcome.items())
    return [f"# Proved on onnxruntime {onnxruntime.__version__}", "", f"Tests: {numbers}.", "", *sorted(counts), "",
            "## Gradients of the operator tests of onnx", "", f"| operator | {' | '.join(RESULTS)} |",
            "|---" * (1 + len(RESULTS)) + "|", *rows, "",
            "### The cases that onnxruntime does not prove", "", "| case | result | why |", "|---|---|---|",
            *sorted(cases), "",
            "## Gradients of models, beside torch", "", "| model | largest relative error |", "|---|---|",
            *sorted(models), "",
            "## Numbers out of range when a graph runs: no process dies", "",
            "| operator and input | results | clear errors |", "|---|---|---|", *sorted(values)]


def judge(report: pytest.TestReport, outcome: str, elsewhere: str | None) -> tuple[str, str]:
    """The result of a case, and what explains it unless it is right in onnxruntime."""
    if outcome == "skipped":
        return "not run", str(report.longrepr[2]).removeprefix("Skipped: ")
    if outcome == "failed":
        return "wrong", report.longreprtext.strip().splitlines()[-1].replace("|", "/")
    return ("right", "") if elsewhere is None else ("right in the reference", " ".join(elsewhere.split())[:300])
