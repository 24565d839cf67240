"""The chart of a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from models import model

#: One color for each contestant; those of ortpartial are similar.
COLORS = {"epoch": "#c1121f", "step": "#e36414", "agent": "#f4a261", "auto": "#9b2226", "torch": "#1d3557",
          "torch.compile": "#457b9d", "torch graphs": "#a8dadc", "jax scan": "#2a9d8f", "jax step": "#8ab17d",
          "onnxsim": "#7b2cbf", "sklearn": "#6c757d", "numpy": "#adb5bd"}


def draw(results: dict[str, Any], path: Path, *, cpu: bool = False) -> None:
    """Draw steps of the small models, of the large ones, first steps, and growth."""
    us, steps = "cpu_us" if cpu else "us", [e for e in results["steps"] if e["cores"] == 1]
    small = list(dict.fromkeys((e["model"], e["rate"]) for e in steps if model(e["model"]).widths))
    large = [e for e in results["steps"] if not model(e["model"]).widths]
    panels = [("small", s) for s in small] + [("large", c) for c in sorted({e["cores"] for e in large})]
    panels += [("first", None)] * bool(results["first"])
    panels += [("growth", axis) for axis in results["growth"]]
    columns, rows = min(4, max(2, len(panels))), max(1, -(-len(panels) // 4))
    figure = Figure(figsize=(4.6 * columns, 3.6 * rows + 0.6))
    axes = figure.subplots(rows, columns, squeeze=False)
    for a, (kind, what) in zip(axes.flat, panels, strict=False):
        if kind == "small":
            name, rate = what
            entries = [e for e in steps if (e["model"], e["rate"]) == what]
            lines(a, [(e["batch"], {p: t[us] for p, t in e["peers"].items()}) for e in entries])
            a.set(title=f"{model(name).title}, {rate}", xlabel="batch", ylabel="µs a step")
        elif kind == "large":
            groups = {e["model"]: e["peers"] for e in large if e["cores"] == what}
            bars(a, {g: {p: t[us] / peers["torch"][us] for p, t in peers.items()}
                     for g, peers in groups.items() if "torch" in peers}, base=1)
            a.set(title=f"large models, {what} core{'s' * (what > 1)}", ylabel="a step, times torch's")
        elif kind == "first":
            firsts = results["first"]
            names = list(dict.fromkeys(f["model"] for f in firsts))
            bars(a, {n: {f["peer"]: f["first"] for f in firsts if f["model"] == n} for n in names}, base=0.001)
            a.set(title="first step, in a new process", ylabel="seconds")
        else:
            lines(a, [(p["at"], {n: t[us] for n, t in p["peers"].items()}) for p in results["growth"][what]])
            a.set(title=f"growth with {what}", xlabel=what, ylabel="µs a step")
    for a in axes.flat[len(panels) :]:
        a.axis("off")
    handles = {label: h for a in axes.flat for h, label in zip(*a.get_legend_handles_labels(), strict=True)}
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.6 / (3.6 * rows + 0.6)))
    figure.legend(handles.values(), handles.keys(), loc="upper center", ncols=5, frameon=False)
    figure.savefig(path, dpi=100)


def lines(a: Any, points: list[tuple[int, dict[str, float]]]) -> None:
    """A line for each contestant, both axes logarithmic."""
    for name in dict.fromkeys(n for _, t in points for n in t):
        x, y = zip(*((x, t[name]) for x, t in points if name in t), strict=True)
        a.loglog(x, y, marker="o", markersize=3, color=COLORS[name], label=name)
    a.grid(alpha=0.3)


def bars(a: Any, groups: dict[str, dict[str, float]], base: float) -> None:
    """A bar for each contestant in every group, from a base, up or down."""
    names = list(dict.fromkeys(n for t in groups.values() for n in t))
    for i, name in enumerate(names):
        at = [(k, t[name]) for k, t in enumerate(groups.values()) if name in t]
        x = np.array([k for k, _ in at]) + (i - len(names) / 2) * 0.8 / len(names)
        a.bar(x, [v - base for _, v in at], 0.8 / len(names), bottom=base, color=COLORS[name], label=name)
    a.set_xticks(range(len(groups)), groups, fontsize=6)
    a.set_yscale("log")
    a.grid(alpha=0.3, axis="y")
