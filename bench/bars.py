"""
The charts of memory and of processes, for light pages and for dark ones.

    python bench/bars.py bench/results/memory-<machine>.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from themes import THEMES, save, themed

COLORS = {"ortpartial": "#c1121f", "torch": "#1d3557"}
SETTINGS = ("#9aa0a6", "#e9724c", "#c1121f")


def draw_memory(entries: list[dict[str, Any]]) -> Figure:
    """A panel for each model: megabytes by batch and optimizer, beside torch."""
    models = list(dict.fromkeys(e["model"] for e in entries))
    figure = Figure(figsize=(8.4, 3.0))
    for ax, name in zip(figure.subplots(1, len(models), sharey=True, squeeze=False).flat, models, strict=True):
        rows = [e for e in entries if e["model"] == name]
        for i, (peer, color) in enumerate(COLORS.items()):
            x = [k + (i - 0.5) * 0.4 for k in range(len(rows))]
            ax.bar(x, [e["megabytes"][peer]["grown"] for e in rows], 0.38, color=color, label=peer)
        ax.set_title(f"How much memory? ({name})")
        ax.set_xticks(range(len(rows)), [f"{e['rate']}\nbatch {e['batch']}" for e in rows], fontsize=7)
        ax.grid(axis="x", visible=False)
    figure.axes[0].set_ylabel("MB beyond the imports")
    figure.axes[0].legend(loc="upper left", fontsize=8)
    return figure


def draw_parallel(entries: list[dict[str, Any]]) -> Figure:
    """How many times as fast an epoch is as with one process of one thread."""
    figure = Figure(figsize=(8.4, 3.2))
    ax = figure.subplots()
    settings = list(entries[0]["ms"])
    for i, (setting, color) in enumerate(zip(settings, SETTINGS, strict=True)):
        x = [k + (i - 1) * 0.27 for k in range(len(entries))]
        bars = ax.bar(x, [e["ms"][settings[0]] / e["ms"][setting] for e in entries], 0.25, color=color, label=setting)
        ax.bar_label(bars, fmt="{:.2f}", fontsize=6.5)
    ax.set_title("How much faster on two cores?")
    ax.set_ylabel("times as fast")
    ax.set_xticks(range(len(entries)), [f"{e['model'].replace(', ', chr(10))}\nbatch {e['batch']}" for e in entries],
                  fontsize=7)
    ax.set_ylim(0, 1.1 * ax.get_ylim()[1])
    ax.grid(axis="x", visible=False)
    ax.legend(loc="upper left", fontsize=8)
    return figure


def draw_both(results: dict[str, Any], path: Path) -> None:
    """The picture of a light page, and of a dark one beside it."""
    kind, draw = ("memory", draw_memory) if "memory" in results else ("parallel", draw_parallel)
    for theme in THEMES:
        with themed(theme):
            figure = draw(results[kind])
            save(figure, path.with_name(f"{path.stem}{'-dark' * (theme == 'dark')}.png"), theme)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    draw_both(json.loads(source.read_text()), source.with_suffix(".png"))
