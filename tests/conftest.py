"""What may run here: tests are skipped where the installed runtime cannot run them, and say what they lack.

`--proof folder` writes what tests gave to `record_property` into a table of this folder: "operator", that of a case;
"error", the largest of a model; "count", a sentence.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi import _pybind_state


def missing(marker: str) -> str | None:
    """Why tests with this marker cannot run here, or None if they can."""
    version = onnxruntime.__version__
    # `onnxruntime.training` would need torch to be imported, so the symbol is looked for where it is defined.
    if marker == "agent" and not hasattr(_pybind_state, "TrainingAgent"):
        return f"needs onnxruntime-training-cpu 1.19.2 (ortpartial[training]), found onnxruntime {version}"
    providers = onnxruntime.get_available_providers()
    if marker == "cuda" and "CUDAExecutionProvider" not in providers:
        return f"needs CUDAExecutionProvider, onnxruntime {version} has {', '.join(providers)}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {marker: missing(marker) for marker in ("agent", "cuda")}
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--proof", metavar="FOLDER", help="write a table of what was proved into this folder")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if folder := config.getoption("--proof"):
        outcomes = {k: terminalreporter.stats.get(k, []) for k in ("passed", "failed", "skipped")}
        path = Path(folder, f"proof-{onnxruntime.__version__}.md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(proof(outcomes)) + "\n", encoding="utf-8")


def proof(outcomes: dict[str, list[pytest.TestReport]]) -> list[str]:
    """The lines of the table of what was proved."""
    operators = defaultdict(lambda: {"passed": 0, "failed": 0, "skipped": []})
    models, counts = [], []
    for outcome, reports in outcomes.items():
        for report in reports:
            for key, value in report.user_properties:
                if key == "operator" and outcome == "skipped":
                    why = str(report.longrepr[2]).removeprefix("Skipped: ").partition(":")[0]
                    operators[value][outcome].append(why)
                elif key == "operator":
                    operators[value][outcome] += 1
                elif key == "error":
                    models.append(f"| {report.nodeid.partition('::')[2]} | {value:.1e} |")
                elif key == "count":
                    counts.append(f"* {value}")
    rows = [f"| {name} | {o['passed']} | {o['failed']} | {len(o['skipped'])} | {'; '.join(sorted(set(o['skipped'])))} |"
            for name, o in sorted(operators.items())]
    numbers = ", ".join(f"{len(reports)} {outcome}" for outcome, reports in outcomes.items())
    return [f"# Proved on onnxruntime {onnxruntime.__version__}", "", f"Tests: {numbers}.", "", *sorted(counts), "",
            "## Gradients of the operator tests of onnx", "", "| operator | right | wrong | not run | why |",
            "|---|---|---|---|---|",
            *rows, "",
            "## Gradients of models, beside torch", "", "| model | largest relative error |", "|---|---|",
            *sorted(models)]


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator of random numbers, the same ones in every test."""
    return np.random.default_rng(0)
