"""
The page of the benchmarks in the documentation, from the results of all of them.

    python bench/page.py

writes docs/benchmarks.md and the table of README.md from the JSON files in bench/results, and draws their charts.
"""

from __future__ import annotations

import itertools
import json
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from machine import ENGINES, compare_engines, runtime_version
from models import model
from peers import OURS
from runtimes import WORSE, figures, numbers, regressions

from bench import arguments

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
#: As the columns of tables are called.
PEERS = {"torch": "torch", "torch.compile": "torch.compile", "jax scan": "JAX", "jax step": "JAX, a call a step",
         "onnxsim": "onnxsim", "sklearn": "scikit-learn", "numpy": "numpy"}
#: How the table of the README begins.
TABLE = "| model | ortpartial |"
RATES = {"sgd": "SGD", "nesterov": "Nesterov", "adam": "Adam"}

INTRODUCTION = """\
# Benchmarks

What a training step costs beside other libraries, on every version of onnxruntime, and in memory: figures that you can
measure again.

One command measures, draws the charts and writes this page:

```bash
make bench
```

Each benchmark is a script of the folder `bench`, which the headings below name; `--help` or the first lines of the file
say what it can be asked. Contestants have processes of their own, are pinned to the measured cores, take turns, and
must reach the same weights or losses before their times count. Results are kept as JSON in `bench/results`, with the
machine and the versions of all packages; figures of other machines differ, and their ratios less so.
"""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown; columns after the first ones are aligned to the right."""
    escaped = ([cell.replace("|", r"\|") for cell in row] for row in rows)
    lines = [head, [":--"] * left + ["--:"] * (len(head) - left), *escaped]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def picture(source: Path, alt: str) -> str:
    """The chart beside a file of results, in the theme of the page."""
    name = f"../{(source.parent / source.stem).relative_to(ROOT).as_posix()}"
    return "\n".join(f"```{{image}} {name}{suffix}.png\n:alt: {alt}\n:class: only-{theme}\n:width: 100%\n```\n"
                     for theme, suffix in (("light", ""), ("dark", "-dark")))


def prose(text: str) -> str:
    """A paragraph."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def folded(title: str, text: str) -> str:
    """Text that a click shows."""
    return f"````{{dropdown}} {title}\n{text.rstrip()}\n````\n"


def measured(results: dict[str, Any]) -> str:
    """A sentence: on what machine, when, with which packages."""
    this = dict(results["machine"])
    cpu, cores, day = this.pop("cpu"), this.pop("cores"), results["when"][:10]
    cpu += f" ({features})" if (features := this.pop("features", "")) else ""
    packages = ", ".join(f"{name if name != 'python' else 'Python'} {v}" for name, v in this.items()
                         if name != "ortpartial")
    return prose(f"Measured on {day}: {cpu}, {cores} cores; {packages}.")


def digits(us: float) -> str:
    """Three digits, and no more after the comma than a time has."""
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def short_title(name: str) -> str:
    return model(name).title.split(",")[0]


def command(settings: dict[str, Any]) -> str:
    """The command that measured, with the settings that are not those of today."""
    words = ["python bench/bench.py"]
    today = vars(arguments([]))
    for name in ("models", "peers", "rates", "batches", "cores", "parts"):
        if settings[name] != today[name]:
            words.append(shlex.join([f"--{name}", *map(str, settings[name] or ())]))
    if settings["rounds"] != today["rounds"]:
        words.append(f"--rounds {settings['rounds']}")
    return " \\\n  ".join(words)


def steps(source: Path, results: dict[str, Any]) -> list[str]:
    """The sections of `bench.py`: a step beside other libraries, and the first step."""
    us = "cpu_us" if results["settings"].get("cpu") else "us"
    rates = " and ".join(filter(None, [", ".join(RATES[r] for r in results["settings"]["rates"][:-1]),
                                       RATES[results["settings"]["rates"][-1]]]))
    engines = [p for p in results["settings"]["peers"] if p in OURS]
    others = [p for p in PEERS if p in results["settings"]["peers"]]
    title = f"Engine native beside others: {rates}" if engines == ["native"] else f"A training step with {rates}"
    parts = [f"## {title}\n", measured(results), f"```bash\n{command(results['settings'])}\n```\n"]
    if source.with_suffix(".png").exists():
        parts.append(picture(source, f"Time of a training step beside other libraries, {rates}"))
    fastest = ("the engine that `\"auto\"` takes for a long training" if "auto" in engines else
               f"the fastest of the engines {', '.join(f'`{e}`' for e in engines)}" if len(engines) > 1
               else f"engine `{engines[0]}`")
    columns = [e for e in engines if e != "auto"] if "auto" in engines else []
    unit = "Microseconds of the processor" if us == "cpu_us" else "Microseconds"
    parts.append(prose(
        f"{unit} of a step: a `fit` divided by its steps, with checks of the data, shuffling and bookkeeping. "
        f"Ours is {fastest}; the last column is its time over that of the fastest other library."))
    head = ["model", *["optimizer"] * (len(results["settings"]["rates"]) > 1), "cores", "batch", "ours",
            *(columns or ["engine"]), *(PEERS[p] for p in others), "ours / fastest other"]
    rows, former = [], None
    for e in results["steps"]:
        ours = {p: t[us] for p, t in e["peers"].items() if p in OURS}
        theirs = {p: t[us] for p, t in e["peers"].items() if p not in OURS}
        if not ours:
            continue
        engine = "auto" if "auto" in ours else min(ours, key=ours.__getitem__)
        rate = [RATES[e["rate"]]] if "optimizer" in head else []
        here = [short_title(e["model"]), *rate, str(e["cores"])]
        rows.append([*(here if here != former else [""] * len(here)), f"{e['batch']}", digits(ours[engine]),
                     *([digits(ours[c]) if c in ours else "" for c in columns] or [engine]),
                     *(digits(theirs[p]) if p in theirs else "" for p in others),
                     f"{ours[engine] / min(theirs.values()):.2f}" if theirs else ""])
        former = here
    parts.append(table(head, rows, 1))
    out = {(o["peer"], o["why"], o["where"].removeprefix("first step, ").split()[0]) for o in results["left_out"]}
    if out:
        why = [(PEERS.get(peer, peer), ", ".join(o[2] for o in group), reason)
               for (peer, reason), group in itertools.groupby(sorted(out), key=lambda o: o[:2])]
        parts.append(folded("Who is left out, and why", table(["library", "where", "reason"], why, 3)))
    if results["first"]:
        parts += first_steps(results)
    return parts


def first_steps(results: dict[str, Any]) -> list[str]:
    """Seconds from the start to the end of the first step, the import, and megabytes."""
    peers = list(dict.fromkeys(f["peer"] for f in results["first"]))
    at = {(f["model"], f["peer"]): f for f in results["first"]}
    rows = [[short_title(name), *(f"{at[name, p]['first']:.2f}" if (name, p) in at else "" for p in peers)]
            for name in dict.fromkeys(f["model"] for f in results["first"])]
    imports = [f"{max(f['import'] for f in results['first'] if f['peer'] == p):.1f}" for p in peers]
    return ["### The first step\n",
            prose("Seconds that the first step takes in a new process, compilation included, after the import of the "
                  "library, which takes the seconds of the last line."),
            table(["model", *(PEERS.get(p, f"engine {p}") for p in peers)], [*rows, ["import", *imports]])]


def runtimes(source: Path, results: dict[str, Any]) -> list[str]:
    """The section of `runtimes.py`."""
    cpu, versions = results["settings"]["cpu"], sorted(results["versions"], key=numbers)
    parts = ["## Versions of onnxruntime\n", measured(results), "```bash\npython bench/runtimes.py\n```\n",
             prose(
                 f"The same trainings (steps and epochs of `fit`), inferences, creations of a session and imports on "
                 f"onnxruntime {versions[0]} to {versions[-1]}, the last release of each minor version. Every turn is "
                 f"divided by one of a reference in the same process at the same moment: numpy or torch with the same "
                 f"model, the shape inference of onnx, the import of onnx. Red is slower than the median of the row, "
                 f"and blue is faster. A version has a number where it is more than {WORSE:.0%} slower than the best "
                 f"version before it, beyond half the interquartile range of the rounds, and after a second "
                 f"measurement in new processes; a cross is a version that cannot run the cell. "
                 f"{'Times are those of the processor. ' * cpu}Inference is that of a plain "
                 f"session of onnxruntime with one thread."),
             picture(source, "Trainings are as fast on every version of onnxruntime; encoders infer slower since 1.30")]
    parts += [slower(results), (RESULTS / "runtimes-notes.md").read_text(encoding="utf-8")]
    return [*parts, *ratios(results, versions), *failures(results)]


def ratios(results: dict[str, Any], versions: list[str]) -> list[str]:
    """Tables of every cell, on the oldest and the newest version, and on all."""
    rows, every, cpu = [], [], results["settings"]["cpu"]
    for entry in results["cells"]:
        at = {v: f for v in versions if (f := figures(entry["versions"].get(v, ""), cpu))}
        every.append([entry["title"], *(f"{at[v]['ratio']:.3g}" if v in at else "×" for v in versions)])
        if at:
            oldest, newest, best = min(at, key=numbers), max(at, key=numbers), min(at, key=lambda v: at[v]["ratio"])
            rows.append([entry["title"], digits(at[newest]["seconds"] / entry["steps"] * 1e6), entry["reference"],
                         *(f"{at[v]['ratio']:.3g}" for v in (oldest, newest)),
                         f"{at[newest]['ratio'] / at[oldest]['ratio']:.2f}", best])
    head = ["cell", f"µs on {versions[-1]}", "reference", f"ratio on {versions[0]}", f"on {versions[-1]}",
            "newest / oldest", "fastest"]
    return [table(head, rows), folded("The ratio on every version", table(["cell", *versions], every))]


def failures(results: dict[str, Any]) -> list[str]:
    """What a version cannot run."""
    cells: dict[tuple[str, str], list[str]] = {}
    for entry in results["cells"]:
        for version, why in entry["versions"].items():
            if isinstance(why, str):
                cells.setdefault((version, why), []).append(entry["title"])
    rows = [[version, "all" if len(titles) == len(results["cells"]) else "; ".join(titles), f"`{why}`"]
            for (version, why), titles in cells.items()]
    return ["What a version cannot run, by the first line of its error:\n",
            table(["version", "cell", "error"], rows, 3)] if rows else []


def slower(results: dict[str, Any]) -> str:
    """What is marked, with the operators in which the time goes; or that nothing is."""
    cpu, lines = results["settings"]["cpu"], []
    for entry in results["cells"]:
        marks = regressions(entry, cpu)
        if not marks:
            continue
        slow = [f"than {best} on " + ", ".join(f"{m['version']} ({m['worse']:+.0%})" for m in group)
                for best, group in itertools.groupby(marks, key=lambda m: m["best"])]
        line = f"* {entry['title']}: slower {'; '.join(slow)}."
        worst = max(marks, key=lambda m: m["worse"])
        profiles = [entry.get("profiles", {}).get(worst[which], {}) for which in ("best", "version")]
        if all(profiles):
            changes = [(operator, *(p.get(operator, 0.0) for p in profiles))
                       for operator in {**profiles[0], **profiles[1]}]
            longer = [f"{name} ({before:,.0f} → {after:,.0f} µs)"
                      for name, before, after in sorted(changes, key=lambda c: c[1] - c[2])[:3] if after > before]
            line += (f" Operators that take longer on {worst['version']} than on {worst['best']}: "
                     f"{', '.join(longer) or 'none; it is the call that does'}.")
        lines.append(line)
    if not lines:
        return "No version is slower than one before it by more than that.\n"
    return "\n".join(["What is marked:\n", *lines]) + "\n"


def memory(source: Path, results: dict[str, Any]) -> list[str]:
    """The section of `memory.py`."""
    rows, former = [], None
    names = results["memory"][0]["megabytes"]
    for e in results["memory"]:
        here = f"{e['model']}, {e['weights'] / 1e6:.1f} million weights"
        figures = {name: e["megabytes"][name] for name in names}
        rows.append([here if here != former else "", str(e["batch"]), e["rate"],
                     *(f"{x['grown']:,.0f} ({x['peak']:,.0f})" for x in figures.values()),
                     *(f"{x['grown'] / figures['torch']['grown']:.2f}" for n, x in figures.items() if n != "torch")])
        former = here
    return ["## Memory\n", measured(results), "```bash\npython bench/memory.py\n```\n",
            picture(source, "Peak memory of a training beside torch"),
            prose("Megabytes at the peak beyond what the imports take, and in brackets those of the whole process. "
                  "Engine `\"step\"` holds weights and states once, `\"auto\"` twice where there is memory."),
            table(["model", "batch", "optimizer", *names, *(f"{n} / torch" for n in names if n != "torch")], rows)]


def parallel(source: Path, results: dict[str, Any]) -> list[str]:
    """The section of `parallel.py`."""
    settings = list(results["parallel"][0]["ms"])
    rows = [[e["model"], str(e["batch"]), *(f"{e['ms'][s]:,.1f}" for s in settings),
             *(f"{e['ms'][settings[0]] / e['ms'][s]:.2f}" for s in settings[1:])] for e in results["parallel"]]
    return ["## Two processes\n", measured(results), "```bash\npython bench/parallel.py\n```\n",
            picture(source, "Two processes are twice as fast for convolutions, and slower for small networks"),
            prose("Milliseconds of an epoch, and how many times as fast that is as one process of one thread. The "
                  "first and the last are trained with `distributed=True`, which adds up gradients after every step; "
                  "the second is a plain `fit`."),
            table(["model", "batch", *settings, *(f"speed of {s}" for s in settings[1:])], rows)]


def llm(source: Path, results: dict[str, Any]) -> list[str]:
    """The section of `llm.py`."""
    r = results["llm"]
    rows = [[{"torch": "torch with PEFT"}.get(name, name),
             *(f"{p[key]:,.{n}f}" for key, n in (("seconds", 2), ("first", 1), ("ready", 1), ("megabytes", 0)))]
            for name, p in r["peers"].items()]
    ratio, least = sorted(r["ratios"])[len(r["ratios"]) // 2], r["peers"]["ortpartial"]["megabytes"] - r["activations"]
    return ["## An adapter of a language model\n", measured(results),
            "```bash\ntaskset -c 0 python bench/llm.py\n```\n",
            prose(f"A step of a LoRA adapter of rank 8 on a Qwen2 of 0.5 billion weights, {r['tokens']} tokens, on one "
                  f"core: here on weights of 4 bits, as the builder of onnxruntime-genai writes them, with torch on "
                  f"the same in float32. Memory is the peak beyond the imports."),
            table(["library", "seconds a step", "first step", "until ready", "MB"], rows),
            prose(f"A step takes {ratio:.2f} times as long as torch's. Without activations, of {r['activations']:,.0f} "
                  f"MB, training takes {least / r['file_megabytes']:.1f} times the size of the file, "
                  f"{r['file_megabytes']:,.0f} MB. The gradient, of {r['gradient']['nodes']:,} nodes, is written in "
                  f"{r['gradient']['grad'] + r['gradient']['build']:.1f} seconds.")]


def engines(source: Path, results: dict[str, Any]) -> list[str]:
    """The section of `engines.py`."""
    rows, former = [], None
    columns = [e for e in ENGINES if e != "auto"]
    for e in results["engines"]:
        at, here = compare_engines(e), [e["model"], e["dtype"]]
        rows.append([*(here if here != former else ["", ""]), str(e["batch"]), digits(min(e["us"].values())),
                     *(f"{at[c]:.2f}" if c in at else "" for c in columns), e["auto"], f"{at['auto']:.2f}"])
        former = here
    within = sum(compare_engines(e)["auto"] <= 1.03 for e in results["engines"])
    cores = f"{results['cores']} core" + "s" * (results["cores"] > 1)
    runtime = runtime_version(results["machine"])
    return [f"## Engines on {cores}, onnxruntime {runtime}\n", measured(results),
            f"```bash\ntaskset -c {','.join(map(str, range(results['cores'])))} python bench/engines.py\n```\n",
            prose(f"Microseconds of a step with SGD by the fastest engine, the time of each engine as a multiple, "
                  f"and the engine that `\"auto\"` takes for a long training, which is within 1.03 of the fastest in "
                  f"{within} of {len(results['engines'])} cells."),
            table(["weights", "dtype", "batch", "fastest, µs", *columns, "auto takes", "auto"], rows, 2)]


def layers(source: Path, results: dict[str, Any]) -> list[str]:
    """The section of `layer.py`."""
    cells = results["layers"]
    ours = list(dict.fromkeys(n for c in cells.values() for n in list(c["ratios"])[1:]))
    rows = [[name, digits(next(iter(c["us"].values()))), *(f"{c['ratios'][n]:.2f}" if n in c["ratios"] else ""
                                                           for n in ours)] for name, c in cells.items()]
    return [f"## Layers in torch, and artifacts, onnxruntime {runtime_version(results['machine'])}\n",
            measured(results), "```bash\ntaskset -c 0 python bench/layer.py\n```\n",
            prose("Microseconds of the processor of a training step of a torch module, and by its `OnnxLayer` with "
                  "each engine as a multiple; `loss` is a layer whose graph holds the loss. The rows of artifacts "
                  "are beside onnxruntime.training 1.19.2 on the same files."),
            table(["module", "torch, µs", *ours], rows)]


def derivatives(source: Path, results: dict[str, Any]) -> list[str]:
    """The section of `derivatives.py`."""
    rows, former = [], None
    names = list(dict.fromkeys(n for e in results["derivatives"] for n in e["us"]))
    for e in results["derivatives"]:
        us, here = e["us"], [e["network"], str(e["rows"])]
        rows.append([*(here if here != former else ["", ""]), e["derivative"],
                     *(digits(us[n]) if n in us else "" for n in names), f"{e['runs']:.1f}",
                     *(f"{us['ours'] / us[n]:.2f}" if n in us else "" for n in names[1:])])
        former = here
    return ["## Derivatives\n", measured(results),
            "```bash\ntaskset -c 0 python bench/derivatives.py\n```\n",
            prose("Microseconds of a call of a network with tanh between its layers and of its derivatives as models, "
                  "beside torch.func and JAX with `jit`, their cost in runs of the network, and ours over the others' "
                  "time. Jacobian and Hessian are those of each row by its inputs."),
            table(["network", "rows", "derivative", *names, "runs", *(f"ours / {n}" for n in names[1:])], rows, 3)]


def readme_table(shown: Sequence[dict[str, Any]]) -> str:
    """The table of the README: engine "auto" beside other libraries on one core, with 32 rows of small networks.

    The newest results that have a model count.
    """
    columns, rows = ("auto", "torch", "torch.compile", "jax scan"), {}
    for results in sorted(shown, key=lambda r: r["when"]):
        us = "cpu_us" if results["settings"]["cpu"] else "us"
        for e in results["steps"]:
            if e["cores"] == 1 and e["rate"] == "sgd" and (e["batch"] == 32 or not model(e["model"]).widths):
                rows[e["model"]] = [model(e["model"]).title,
                                    *(digits(e["peers"][p][us]) if p in e["peers"] else "" for p in columns)]
    return table(["model", "ortpartial", "torch, eager", "torch, compiled", "JAX"], rows.values())


def write_readme(text: str, shown: Sequence[dict[str, Any]]) -> str:
    """The README with the table of these results in place of its own."""
    if not shown:
        return text
    head, _, rest = text.partition(f"\n{TABLE}")
    return f"{head}\n{readme_table(shown)}\n{rest.partition(chr(10) * 2)[2]}"


def find_shown() -> list[dict[str, Any]]:
    """The results that have engine "auto"."""
    return [r for p in kept() if "steps" in (r := json.loads(p.read_text())) and "auto" in r["settings"]["peers"]]


#: The section of a file of results, by a key that it has, in the order of the page.
SECTIONS = {"steps": steps, "engines": engines, "versions": runtimes, "memory": memory, "parallel": parallel,
            "llm": llm, "layers": layers, "derivatives": derivatives}


def kept() -> list[Path]:
    """The files of results, but for those of quick runs."""
    return sorted(p for p in RESULTS.glob("*.json") if not p.stem.endswith("-quick"))


def page() -> str:
    """The text of the page."""
    parts = [INTRODUCTION]
    for key, section in SECTIONS.items():
        for source in sorted(kept(), key=lambda p: (p.stem.startswith("native"), p.stem)):
            results = json.loads(source.read_text())
            if key in results:
                parts += section(source, results)
    options = (RESULTS / "session-options.md").read_text().replace("# Options", "## Options")
    return "\n".join([*parts, options.rstrip() + "\n"])


def draw() -> None:
    """Draw the charts of all results."""
    import bars
    import chart
    import runtimes_chart

    for source in kept():
        results = json.loads(source.read_text())
        if "versions" in results:
            runtimes_chart.draw_both(results, source.with_suffix(".png"))
        elif "memory" in results or "parallel" in results:
            bars.draw_both(results, source.with_suffix(".png"))
        elif source.with_suffix(".png").exists():
            chart.draw_both(results, source.with_suffix(".png"), cpu=results["settings"]["cpu"])


if __name__ == "__main__":
    draw()
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    README.write_text(write_readme(README.read_text(encoding="utf-8"), find_shown()), encoding="utf-8")
    print(f"Written to {PAGE} and {README}")
