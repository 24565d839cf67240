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

COLORS = {"step": "#c1121f", "torch": "#1d3557"}
SETTINGS = ("#9aa0a6", "#c1121f")


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
    figure = Figure(figsize=(8.4, 3.8))
    ax = figure.subplots()
    one, *settings = entries[0]["ms"]
    for i, (setting, color) in enumerate(zip(settings, SETTINGS, strict=True)):
        speeds = [e["ms"][one] / e["ms"][setting] for e in entries]
        bars = ax.barh([k + (i - 0.5) * 0.38 for k in range(len(entries))], [s - 1 for s in speeds], 0.36, left=1,
                       color=color, label=setting)
        ax.bar_label(bars, [f"{s:.2g}" for s in speeds], padding=3, fontsize=7.5)
    ax.axvline(1, color="#6c757d", linewidth=1)
    ax.set_title("Do two processes pay? For convolutions")
    ax.set_xlabel(f"times as fast as {one}")
    ax.set_yticks(range(len(entries)), [f"{e['model']}\nbatch {e['batch']}" for e in entries], fontsize=8)
    ax.set_xscale("log", base=2)
    ticks = [1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.set_xlim(1 / 12, 12)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
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
