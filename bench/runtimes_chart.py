"""
The chart of the versions of onnxruntime, for light pages and for dark ones: a small panel for each cell.

    python bench/runtimes_chart.py bench/results/runtimes-<machine>.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from runtimes import figures, numbers, regressions
from themes import THEMES, save, themed

COLORS = {"step": "#1d3557", "epoch": "#2a9d8f", "": "#1d3557"}
MARKERS = {"step": "o-", "epoch": "s--", "": "o-"}
MARKED = "#c1121f"
COLUMNS = 3
#: References whose names are longer than an axis.
SHORT = {"open": "shape inference", "import": "import onnx"}


def panels_of(results: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The cells of each panel by its title: engines of one training stand in the same."""
    panels: dict[str, list[dict[str, Any]]] = {}
    for entry in results["cells"]:
        panels.setdefault(entry["title"].removesuffix(f", {entry['engine']}"), []).append(entry)
    return panels


def draw(results: dict[str, Any], path: Path, theme: str = "light") -> Figure:
    """Draw the panels at the width of a page; a version that is slower than one before it is red and has a number."""
    panels = panels_of(results)
    rows = -(-len(panels) // COLUMNS)
    with themed(theme):
        figure = Figure(figsize=(8.4, 1.6 * rows + 0.3))
        axes = figure.subplots(rows, COLUMNS, squeeze=False)
        for i, (ax, (title, entries)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
            write(ax, title, entries, results, is_last=i + COLUMNS >= len(panels))
        for ax in axes.flat[len(panels):]:
            ax.axis("off")
        save(figure, path, theme)
    return figure


def draw_both(results: dict[str, Any], path: Path) -> None:
    """The picture of a light page, and of a dark one beside it."""
    for theme in THEMES:
        draw(results, path.with_name(f"{path.stem}{'-dark' * (theme == 'dark')}.png"), theme)


def numbered(marks: list[dict[str, Any]], versions: list[str]) -> list[dict[str, Any]]:
    """Of the marks of a line, the worst, and the last one where it is not beside it."""
    if not marks:
        return []
    worst = max(marks, key=lambda mark: mark["worse"])
    apart = versions.index(marks[-1]["version"]) - versions.index(worst["version"])
    return [worst, marks[-1]] if apart > 2 else [worst]


def write(ax: Any, title: str, entries: list[dict[str, Any]], results: dict[str, Any], is_last: bool) -> None:
    """Ratios by version, a line for each engine; where a version cannot run a cell, a cross."""
    versions, cpu = sorted(results["versions"], key=numbers), results["settings"]["cpu"]
    lowest, highest = float("inf"), 0.0
    for entry in entries:
        at = {v: f for v, turns in entry["versions"].items() if (f := figures(turns, cpu))}
        x = [versions.index(v) for v in at]
        y = [f["ratio"] for f in at.values()]
        ax.errorbar(x, y, [f["noise"] for f in at.values()], fmt=MARKERS[entry["engine"]], linewidth=1.2,
                    markersize=2.6, elinewidth=0.8, color=COLORS[entry["engine"]], label=entry["engine"] or None)
        marks = regressions(entry, cpu)
        for mark in marks:
            ax.plot(versions.index(mark["version"]), at[mark["version"]]["ratio"], "o", color=MARKED, markersize=4.5,
                    zorder=4)
        # Numbers of all would cover one another.
        for mark in numbered(marks, versions):
            ax.annotate(f"+{mark['worse']:.0%}", (versions.index(mark["version"]), at[mark["version"]]["ratio"]),
                        (0, 5), textcoords="offset points", ha="center", fontsize=6, color=MARKED, fontweight="bold")
        lowest, highest = min([lowest, *y]), max([highest, *y])
    middle = (lowest + highest) / 2 if highest else 1.0
    # The axis holds 30 % of the value at least, so that noise does not look like a change.
    reach = max(0.62 * (highest - lowest), 0.15 * middle)
    ax.set_ylim(max(0.0, middle - reach), middle + 1.25 * reach)
    failed = sorted({v for e in entries for v, turns in e["versions"].items() if isinstance(turns, str)}, key=numbers)
    if failed:
        ax.plot([versions.index(v) for v in failed], [0.06] * len(failed), "x", color=MARKED, markersize=5,
                transform=ax.get_xaxis_transform(), clip_on=False)
    ax.set_title(title, fontsize=8)
    ax.set_ylabel(f"time / {SHORT.get(entries[0]['kind'], entries[0]['reference'])}", fontsize=6.5)
    ax.set_xticks(range(len(versions)), [".".join(v.split(".")[:2]) for v in versions], rotation=90)
    ax.tick_params(labelbottom=is_last)
    ax.tick_params(labelsize=6)
    ax.set_xlim(-0.6, len(versions) - 0.4)
    ax.yaxis.set_major_locator(MaxNLocator(4))
    if len(entries) > 1:
        ax.legend(fontsize=6, loc="best", ncols=2, handlelength=1.8)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    draw_both(json.loads(source.read_text()), source.with_suffix(".png"))
