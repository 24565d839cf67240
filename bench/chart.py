"""
The charts of a benchmark, for light pages and for dark ones: one panel for each question.

    python bench/chart.py bench/results/<results>.json

writes <results>.png and <results>-dark.png.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from models import model
from peers import OURS
from themes import save, themed

#: What is drawn of the contestants: their names and colors.
PEERS = {"native": ("ortpartial, native", "#7a0c14"), "epoch": ("ortpartial, epoch", "#c1121f"),
         "torch": ("torch", "#1d3557"),
         "torch.compile": ("torch.compile", "#6a93b8"), "jax scan": ("JAX", "#2a9d8f"),
         "onnxsim": ("onnxsim", "#7b2cbf"), "sklearn": ("scikit-learn", "#e9a23b"), "numpy": ("numpy", "#9aa0a6")}
#: Colors of several lines or bars that are all ortpartial's.
SHADES = ["#c1121f", "#e9724c", "#f4a261", "#7a0c14"]
TITLES = {"lenet": "LeNet", "resnet18": "ResNet-18", "encoder": "encoder", "bert": "BERT-small"}
NUMBER = FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")

Panel = tuple[str, Callable[[Any], None]]


def draw(results: dict[str, Any], path: Path, *, cpu: bool = False, theme: str = "light") -> Figure:
    """Draw the panels for which there are results, at the width of a page."""
    panels = [*speedups(results, "cpu_us" if cpu else "us"), *comparisons(results, "cpu_us" if cpu else "us")]
    rows = max(1, -(-len(panels) // 2))
    with themed(theme):
        figure = Figure(figsize=(8.4, 3.1 * rows))
        axes = figure.subplots(rows, 2, squeeze=False)
        for ax, (title, write) in zip(axes.flat, panels, strict=False):
            ax.set_title(title)
            write(ax)
            ax.grid(axis="x", visible=False)
        for ax in axes.flat[len(panels):]:
            ax.axis("off")
        save(figure, path, theme)
    return figure


def draw_both(results: dict[str, Any], path: Path, *, cpu: bool = False) -> None:
    """The picture of a light page, and of a dark one beside it."""
    draw(results, path, cpu=cpu)
    draw(results, path.with_name(f"{path.stem}-dark{path.suffix}"), cpu=cpu, theme="dark")


def ours(peers: dict[str, Any], us: str) -> float:
    """The time of our fastest engine."""
    return min(t[us] for p, t in peers.items() if p in OURS)


def speedups(results: dict[str, Any], us: str) -> list[Panel]:
    """How many times as fast as torch ortpartial is: by batch, by size, and for large models."""
    cells = [e for e in results["steps"] if {"epoch", "torch"} <= e["peers"].keys()]
    small = [e for e in cells if e["cores"] == 1 and model(e["model"]).widths]
    large = [e for e in cells if not model(e["model"]).widths]
    panels: list[Panel] = []
    for rate in dict.fromkeys(e["rate"] for e in small):
        groups = {f"ortpartial, {model(name).title.split(',')[0]}":
                  [(e["batch"], e["peers"]) for e in small if (e["model"], e["rate"]) == (name, rate)]
                  for name in dict.fromkeys(e["model"] for e in small)}
        panels.append((f"How much faster than torch? ({rate})", write_ratios(groups, us, "rows of a batch")))
    for axis, label in (("parameters", "weights, 64-w-w-10, batch 32"), ("nodes", "layers of width 16, batch 32")):
        if points := [(p["at"], p["peers"]) for p in results["growth"].get(axis, ())]:
            title = {"parameters": "With more weights?", "nodes": "With more layers?"}[axis]
            panels.append((title, write_ratios({"ortpartial": points}, us, label)))
    if large:
        panels.append(("For large models?", write_large(large, us)))
    return panels


def comparisons(results: dict[str, Any], us: str) -> list[Panel]:
    """Times beside all libraries: of a step, and of the first one."""
    panels: list[Panel] = []
    steps = [e for e in results["steps"] if e["cores"] == 1 and model(e["model"]).widths]
    if steps:
        name = next((e["model"] for e in steps if e["model"] == "20-100-1"), steps[-1]["model"])
        rate = steps[0]["rate"]
        points = [(e["batch"], e["peers"]) for e in steps if (e["model"], e["rate"]) == (name, rate)]
        panels.append((f"And beside others? ({model(name).title}, {rate})", write_times(points, us)))
    if results["first"]:
        panels.append(("How long does the first step take?", write_firsts(results["first"])))
    return panels


def write_ratios(groups: dict[str, list[tuple[int, Any]]], us: str, xlabel: str) -> Callable[[Any], None]:
    """Lines of torch's time over ortpartial's."""
    def write(ax: Any) -> None:
        for color, (label, points) in zip(SHADES, groups.items(), strict=False):
            x, peers = zip(*points, strict=True)
            ax.loglog(x, [p["torch"][us] / ours(p, us) for p in peers], "o-", color=color, label=label)
        ax.axhline(1, color=PEERS["torch"][1], linestyle="--", label="torch")
        ax.set(xlabel=xlabel, ylabel="times as fast")
        mark(ax, [x for points in groups.values() for x, _ in points])
        ax.set_ylim(min(ax.get_ylim()[0], 0.7))
        leave_room(ax, 0.2 * len(groups))
        ax.legend(loc="upper right", fontsize=8)

    return write


def write_large(entries: list[dict[str, Any]], us: str) -> Callable[[Any], None]:
    """Bars of torch's time over ortpartial's, for each number of cores."""
    def write(ax: Any) -> None:
        names, cores = (list(dict.fromkeys(e[key] for e in entries)) for key in ("model", "cores"))
        for i, n in enumerate(cores):
            at = {e["model"]: e["peers"]["torch"][us] / ours(e["peers"], us) for e in entries if e["cores"] == n}
            x = [names.index(name) + (i - (len(cores) - 1) / 2) * 0.38 for name in at]
            bars = ax.bar(x, list(at.values()), 0.36, color=SHADES[i], label=f"ortpartial, {n} core{'s' * (n > 1)}")
            ax.bar_label(bars, fmt="{:.2f}", fontsize=8, label_type="center", color="white")
        ax.axhline(1, color=PEERS["torch"][1], linestyle="--", label="torch")
        ax.set(ylabel="times as fast")
        ax.set_xticks(range(len(names)), [TITLES.get(n, n) for n in names], fontsize=8)
        ax.set_ylim(0, 1.45 * ax.get_ylim()[1])
        ax.legend(loc="upper left", fontsize=8, ncols=2)

    return write


def write_times(points: list[tuple[int, Any]], us: str) -> Callable[[Any], None]:
    """A line of each library."""
    def write(ax: Any) -> None:
        for peer, (label, color) in PEERS.items():
            if at := [(x, peers[peer][us]) for x, peers in points if peer in peers]:
                ax.loglog(*zip(*at, strict=True), "o-", color=color, label=label, zorder=3 if peer in OURS else 2,
                          linewidth=2.6 if peer in OURS else 1.4)
        ax.set(xlabel="rows of a batch", ylabel="µs a step")
        mark(ax, [x for x, _ in points])
        leave_room(ax, 0.4)
        ax.legend(loc="upper left", fontsize=8, ncols=3)

    return write


def write_firsts(entries: list[dict[str, Any]]) -> Callable[[Any], None]:
    """A bar of each library that compiles, for every model."""
    def write(ax: Any) -> None:
        names = list(dict.fromkeys(e["model"] for e in entries))
        peers = [p for p in ("epoch", "torch", "jax scan", "torch.compile") if any(e["peer"] == p for e in entries)]
        for i, peer in enumerate(peers):
            at = {e["model"]: e["first"] for e in entries if e["peer"] == peer}
            x = np.array([names.index(n) for n in at]) + (i - (len(peers) - 1) / 2) * 0.8 / len(peers)
            ax.bar(x, list(at.values()), 0.8 / len(peers), color=PEERS[peer][1], label=PEERS[peer][0])
        ax.set(yscale="log", ylabel="seconds, compilation included")
        ax.set_xticks(range(len(names)), [TITLES.get(n, n) for n in names], fontsize=8)
        ax.yaxis.set(major_formatter=NUMBER, minor_locator=NullLocator())
        leave_room(ax, 0.3)
        ax.legend(loc="upper left", fontsize=8, ncols=2)

    return write


def leave_room(ax: Any, share: float) -> None:
    """Make a logarithmic axis longer, for the legend."""
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom, top * (top / bottom) ** share)


def mark(ax: Any, xs: list[int]) -> None:
    """Ticks that are plain numbers: on the first axis where points are."""
    shown = sorted(set(xs))
    ax.set_xticks(shown, [f"{x / 1000:,.0f},000" if x > 10_000 else f"{x:,}" for x in shown])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set(major_locator=LogLocator(subs=[1, 3] if ax.get_ylim()[1] < 1000 else [1]), major_formatter=NUMBER,
                 minor_locator=NullLocator())


if __name__ == "__main__":
    source = Path(sys.argv[1])
    draw_both(json.loads(source.read_text()), source.with_suffix(".png"))
