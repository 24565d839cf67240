"""
The chart of the versions of onnxruntime, for light pages and for dark ones: a row for each cell, a column a version.

    python bench/runtimes_chart.py bench/results/runtimes-<machine>.json
"""

from __future__ import annotations

import json
import sys
from math import log2
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from runtimes import figures, numbers, regressions
from themes import THEMES, save, themed

#: The change at which a color is full, as a power of two.
REACH = 0.6
#: By theme, the colors of faster, usual and slower.
COLORS = {"light": ["#1d5c94", "#f7f7f7", "#c1121f"], "dark": ["#6fb1ff", "#20252e", "#ff6b6b"]}


def draw(results: dict[str, Any], path: Path, theme: str = "light") -> Figure:
    """Draw times beside the median of their row: blue is faster, red is slower; what is marked has a number.

    A version that cannot run a cell has a cross.
    """
    versions, cpu = sorted(results["versions"], key=numbers), results["settings"]["cpu"]
    entries = results["cells"]
    with themed(theme):
        figure = Figure(figsize=(8.4, 0.22 * len(entries) + 1.1))
        ax = figure.subplots()
        rows = []
        for y, entry in enumerate(entries):
            at = {v: f["ratio"] for v, turns in entry["versions"].items() if (f := figures(turns, cpu))}
            usual = median(at.values())
            rows.append([log2(at[v] / usual) if v in at else float("nan") for v in versions])
            for x in (x for x, v in enumerate(versions) if isinstance(entry["versions"].get(v), str)):
                ax.text(x, y, "×", ha="center", va="center", fontsize=8)
            for mark in regressions(entry, cpu):
                x = versions.index(mark["version"])
                is_full = abs(rows[-1][x]) > 0.6 * REACH
                ax.text(x, y, f"+{100 * mark['worse']:.0f}", ha="center", va="center", fontsize=7, fontweight="bold",
                        color="#fffffe" if is_full == (theme == "light") else "#1a1a1a")
        colors = LinearSegmentedColormap.from_list("times", COLORS[theme])
        image = ax.imshow(rows, cmap=colors, vmin=-REACH, vmax=REACH, aspect="auto")
        ax.set_title("Slower in red, faster in blue; numbers: % above the best version before", fontsize=10)
        ax.set_xticks(range(len(versions)), [".".join(v.split(".")[:2]) for v in versions], fontsize=8)
        ax.set_yticks(range(len(entries)), [entry["title"] for entry in entries], fontsize=8)
        ax.grid(visible=False)
        bar = figure.colorbar(image, ax=ax, pad=0.01, fraction=0.02, ticks=[-log2(1.4), 0, log2(1.4)])
        bar.ax.set_yticklabels(["0.7", "usual\ntime", "1.4"], fontsize=7)
        save(figure, path, theme)
    return figure


def draw_both(results: dict[str, Any], path: Path) -> None:
    """The picture of a light page, and of a dark one beside it."""
    for theme in THEMES:
        draw(results, path.with_name(f"{path.stem}{'-dark' * (theme == 'dark')}.png"), theme)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    draw_both(json.loads(source.read_text()), source.with_suffix(".png"))
