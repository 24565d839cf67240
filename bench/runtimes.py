"""
The same trainings and inferences on every version of onnxruntime, from 1.19 to the newest.

    make bench        or        python bench/runtimes.py [--quick] [--versions 1.19.2 1.32.0 ...] [--all] [--rounds 5]

Every version is installed alone into a folder of `bench/.runtimes`, which stands first in the path of its process. In
each cell, the processes of all versions take turns on one core. A turn runs the cell and a reference that does not use
onnxruntime, alternately: numpy, or torch where the model is no chain of layers; `onnx.shape_inference` beside the
creation of a session; the import of onnx beside that of onnxruntime. What is compared is the ratio of the two, in which
the noise of the machine cancels.

A version is marked where its ratio is more than 10 % above that of the best version before it, beyond the noise of
the rounds of both. What would be marked is measured again in new processes first. The results are written to
bench/results/runtimes-<machine>.json, and drawn beside it for light and dark pages.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from machine import cpu_name, machine, now
from models import Task, model
from race import HERE, Cannot, Process, pinned

OLDEST = (1, 19)
#: Seconds that a turn takes at least.
TURN = 0.08
#: How much slower a version may be than the best before it, beyond the noise.
WORSE = 0.10
CACHE = HERE / ".runtimes"


#: With what is compared what is no model.
REFERENCES = {"operator": "numpy", "open": "shape inference of onnx, 20 times", "import": "import of onnx"}


@dataclass(frozen=True)
class Cell:
    """What is measured, of which model or operator, at which batch, by which engine."""

    kind: str
    model: str = ""
    batch: int = 0
    engine: str = ""

    @property
    def title(self) -> str:
        """As it stands above a panel and in a table."""
        if self.kind in ("import", "operator"):
            return self.model or "import onnxruntime"
        name = {"linear": "linear", "lenet": "LeNet", "bert-tiny": "BERT-tiny"}.get(self.model, self.model)
        words = {"train": f"train {name}", "infer": f"infer {name}", "open": f"open step of {name}"}[self.kind]
        return f"{words}, batch {self.batch}{f', {self.engine}' * bool(self.engine)}"

    @property
    def reference(self) -> str:
        """With what it is compared."""
        if self.kind in REFERENCES:
            return REFERENCES[self.kind]
        return "numpy" if model(self.model).widths else "torch"

    @property
    def steps(self) -> int:
        """Steps of an epoch, or calls of a session, that take about 10 ms."""
        if self.kind in REFERENCES:
            return 50 if self.kind == "operator" else 1
        return min(1000, max(2, 20_000 // self.batch)) if model(self.model).widths else 2


KINDS = ("train", "infer", "operator", "open", "import")
CELLS = [
    *(Cell("train", name, batch, engine) for name in ("linear", "20-100-1") for batch in (1, 32, 1024)
      for engine in ("step", "epoch")),
    *(Cell("train", "64-128-64-10", 32, engine) for engine in ("step", "epoch")),
    *(Cell("train", name, batch, "step") for name, batch in (("lenet", 64), ("encoder", 32), ("bert-tiny", 8))),
    *(Cell("infer", name, batch) for name, batch in (
        ("linear", 32), ("20-100-1", 1), ("20-100-1", 32), ("20-100-1", 1024), ("64-128-64-10", 32), ("lenet", 64),
        ("encoder", 32), ("bert-tiny", 8))),
    *(Cell("operator", name) for name in ("LayerNormalization", "SkipLayerNormalization", "MatMul")),
    Cell("open", "20-100-1", 32), Cell("open", "encoder", 32),
    Cell("import"),
]
QUICK = [Cell("train", "20-100-1", 32, "epoch"), Cell("infer", "20-100-1", 32), Cell("open", "20-100-1", 32),
         Cell("import")]

#: Prints the seconds, by the clock and of the processor, of the imports of onnx and of onnxruntime, and what came.
IMPORT = """
import json, time
import numpy
def clock():
    return time.perf_counter(), time.process_time()
a = clock(); import onnx
b = clock(); import onnxruntime
c = clock()
print(json.dumps({"reference": b[0] - a[0], "reference_cpu": b[1] - a[1], "runtime": c[0] - b[0],
                  "runtime_cpu": c[1] - b[1], "version": onnxruntime.__version__}))
"""


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, to sort by."""
    return tuple(map(int, re.findall(r"\d+", version)))


def released(every: bool = False) -> list[str]:
    """The versions that the registry has for this Python: the last of each minor version, or all."""
    done = subprocess.run([sys.executable, "-m", "pip", "index", "versions", "onnxruntime",
                           "--disable-pip-version-check"], capture_output=True, text=True)
    line = re.search(r"Available versions: (.+)", done.stdout)
    if line is None:
        raise SystemExit(f"pip does not say which versions there are: {done.stderr.strip()}")
    versions = sorted((v for v in line[1].split(", ") if numbers(v) >= OLDEST), key=numbers)
    return versions if every else list({numbers(v)[:2]: v for v in versions}.values())


def install(version: str, cache: Path) -> Path:
    """The folder with this version alone, which is installed where it is not there yet.

    Raises
    ------
    Cannot
        pip cannot install it.
    """
    folder = cache / version
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            # pip compiles the modules: where Python may not keep what it compiles, every import would compile them.
            done = subprocess.run(
                [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                 "--compile", "--only-binary=:all:", "--target", f"{temporary}/new", f"onnxruntime=={version}"],
                capture_output=True, text=True)
            if done.returncode:
                raise Cannot(next((line for line in done.stderr.splitlines() if line.startswith("ERROR")),
                                  "pip cannot install it."))
            Path(temporary, "new").rename(folder)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process that imports the version in this folder."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))}


class Runtime(Process):
    """A process with one version of onnxruntime; it is started anew where a cell has killed it."""

    script = "runtimes_worker.py"

    def __init__(self, version: str, folder: Path):
        super().__init__(version, 1, **environment(folder))
        answer = self.ask(start=version)
        if answer["version"] != version or not Path(answer["file"]).is_relative_to(folder):
            self.__exit__()
            raise Cannot(f"{answer['version']} of {answer['file']} was imported in its place.")


class Bench:
    """The measurements of a run, and its results."""

    def __init__(self, args: argparse.Namespace, folder: str):
        self.args, self.folder, self.cache = args, folder, Path(args.cache).absolute()
        self.cells = [c for c in (QUICK if args.quick else CELLS) if c.kind in args.kinds]
        self.broken: dict[str, str] = {}
        self.exported: set[str] = set()
        this = {k: v for k, v in machine().items() if not k.startswith("onnxruntime")}
        self.results: dict[str, Any] = {
            "when": now(), "machine": this,
            "settings": {"rounds": args.rounds, "turn": TURN, "cpu": args.cpu}, "versions": args.versions, "cells": []}

    def task(self, cell: Cell) -> dict[str, Any]:
        """A training whose files have been written."""
        if cell.model not in self.exported:
            subprocess.run([sys.executable, str(HERE / "nets.py"), self.folder, cell.model], check=True)
            self.exported.add(cell.model)
        steps = replace(cell, kind="train").steps
        return asdict(Task(cell.model, "sgd", cell.batch, steps, self.folder, shuffle=False))

    def start(self, version: str) -> Runtime | None:
        """A process, unless this version cannot be installed or imported, which is kept for all cells."""
        if version in self.broken:
            return None
        try:
            return Runtime(version, install(version, self.cache))
        except Cannot as e:
            self.broken[version] = str(e)
            return None

    @contextlib.contextmanager
    def running(self, versions: Iterable[str]) -> Iterator[dict[str, Runtime]]:
        """Processes by version."""
        processes: dict[str, Runtime] = {}
        try:
            for version in versions:
                if (process := self.start(version)) is not None:
                    processes[version] = process
            yield processes
        finally:
            for process in processes.values():
                process.__exit__()

    def restart(self, processes: dict[str, Runtime], version: str) -> None:
        """Where a process has died, another takes its place."""
        if processes[version].process.poll() is not None:
            processes.pop(version).__exit__()
            if (process := self.start(version)) is not None:
                processes[version] = process

    def measure(self, cell: Cell, processes: dict[str, Runtime], rounds: int) -> dict[str, Any]:
        """By version, the rounds of a cell, or why there are none."""
        if cell.kind == "import":
            return self.imports(list(processes), rounds)
        asked = {"cell": asdict(cell), **({} if cell.kind == "operator" else {"task": self.task(cell)})}
        result: dict[str, Any] = {}
        if cell.kind == "open":
            self.write_graph(cell, processes)
        for version in list(processes):
            try:
                processes[version].ask(**asked)
                result[version] = []
            except Cannot as e:
                result[version] = str(e)
                self.restart(processes, version)
        for _ in range(rounds):
            for version in [v for v, turns in result.items() if isinstance(turns, list)]:
                try:
                    answer = processes[version].ask(turn=TURN)
                except Cannot as e:
                    result[version] = str(e)
                    self.restart(processes, version)
                    continue
                result[version].append({k: answer[k] for k in ("runtime", "reference", "runtime_cpu", "reference_cpu")})
        return result

    def write_graph(self, cell: Cell, processes: dict[str, Runtime]) -> None:
        """The graph of a step, which the oldest version writes that can, so that all know its operators."""
        for version in processes:
            with contextlib.suppress(Cannot):
                processes[version].ask(graph=asdict(cell), task=self.task(cell))
                return

    def imports(self, versions: Sequence[str], rounds: int) -> dict[str, Any]:
        """Imports in new processes; those of the first round fill the caches of the machine."""
        result: dict[str, Any] = {version: [] for version in versions}
        for k in range(rounds + 1):
            for version in [v for v in versions if isinstance(result[v], list)]:
                done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True,
                                      preexec_fn=pinned(1), env={**os.environ, **environment(self.cache / version)})
                if done.returncode:
                    result[version] = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
                elif k:
                    answer = json.loads(done.stdout)
                    answer.pop("version")
                    result[version].append(answer)
        return result

    def run(self) -> None:
        """All cells, one after the other."""
        with self.running(self.args.versions) as processes:
            for cell in self.cells:
                turns = self.measure(cell, processes, self.args.rounds)
                turns |= {version: why for version, why in self.broken.items() if version not in turns}
                entry = {**asdict(cell), "title": cell.title, "reference": cell.reference,
                         "steps": cell.steps,
                         "versions": {v: turns[v] for v in self.args.versions if v in turns}}
                self.results["cells"].append(entry)
                self.show(entry)
        self.confirm()

    def confirm(self) -> None:
        """Measure in new processes, against the best version before it, what would be marked; profile what remains."""
        for entry in self.results["cells"]:
            marks = regressions(entry, self.args.cpu)
            if not marks:
                continue
            cell = Cell(entry["kind"], entry["model"], entry["batch"], entry["engine"])
            suspects = list(dict.fromkeys(v for m in marks for v in (m["best"], m["version"])))
            with self.running(suspects) as processes:
                again = self.measure(cell, processes, self.args.rounds)
                for version, turns in again.items():
                    if isinstance(turns, list) and isinstance(entry["versions"][version], list):
                        entry["versions"][version] += turns
            if marks := regressions(entry, self.args.cpu):
                self.profile(entry, cell, marks)
            print(f"{entry['title']}, measured again: "
                  + (", ".join(f"{m['version']} {m['worse']:+.0%}" for m in marks) or "no difference"), flush=True)

    def profile(self, entry: dict[str, Any], cell: Cell, marks: list[dict[str, Any]]) -> None:
        """The time of each operator, in the best versions and in those that are marked."""
        if cell.kind not in ("train", "infer"):
            return
        versions = sorted({v for m in marks for v in (m["best"], m["version"])}, key=numbers)
        with self.running(versions) as processes:
            if cell.kind == "train":
                self.write_graph(cell, processes)
            for version in processes:
                try:
                    answer = processes[version].ask(profile=asdict(cell), task=self.task(cell))
                except Cannot as e:
                    print(f"{cell.title}, {version}: no profile: {e}")
                    continue
                entry.setdefault("profiles", {})[version] = answer["operators"]

    def show(self, entry: dict[str, Any]) -> None:
        """A line of the ratios."""
        shown = []
        for version, turns in entry["versions"].items():
            f = figures(turns, self.args.cpu)
            shown.append(f"{version} {f['ratio']:.3g}" if f else f"{version} ({turns})")
        print(f"{entry['title']:44} / {entry['reference']}: {', '.join(shown)}", flush=True)

    def write(self) -> Path:
        """The results, and their picture."""
        from runtimes_chart import draw_both

        path = Path(self.args.out) / f"runtimes-{cpu_name(self.results['machine'])}{'-quick' * self.args.quick}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(rounded(self.results), indent=1)
        # A round stands in one line.
        path.write_text(re.sub(r'\{\s+"runtime"[^{}]*\}', lambda m: " ".join(m[0].split()), text) + "\n")
        draw_both(self.results, path.with_suffix(".png"))
        return path


def rounded(x: Any) -> Any:
    """The same, with floats of five digits."""
    if isinstance(x, dict):
        return {k: rounded(v) for k, v in x.items()}
    if isinstance(x, list):
        return [rounded(v) for v in x]
    return float(f"{x:.5g}") if isinstance(x, float) else x


def figures(turns: list[dict[str, float]] | str, cpu: bool = False) -> dict[str, float] | None:
    """Of the rounds of a version: the median ratio, half its interquartile range, the smallest, and median seconds."""
    if isinstance(turns, str) or not turns:
        return None
    a, b = ("runtime_cpu", "reference_cpu") if cpu else ("runtime", "reference")
    ratios = sorted(t[a] / t[b] for t in turns)
    quarters = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [ratios[0]] * 3
    return {"ratio": quarters[1], "noise": (quarters[2] - quarters[0]) / 2, "least": ratios[0],
            "seconds": statistics.median(t[a] for t in turns), "of_reference": statistics.median(t[b] for t in turns)}


def regressions(entry: dict[str, Any], cpu: bool = False) -> list[dict[str, Any]]:
    """The versions that are slower than the best version before them by more than 10 % beyond the noise of both."""
    marks: list[dict[str, Any]] = []
    best: tuple[str, dict[str, float]] | None = None
    for version in sorted(entry["versions"], key=numbers):
        f = figures(entry["versions"][version], cpu)
        if f is None:
            continue
        if best is not None and f["ratio"] - f["noise"] > (1 + WORSE) * (best[1]["ratio"] + best[1]["noise"]):
            marks.append({"version": version, "best": best[0], "worse": f["ratio"] / best[1]["ratio"] - 1})
        if best is None or f["ratio"] < best[1]["ratio"]:
            best = version, f
    return marks


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="four cells, in two rounds, of the oldest and the newest version")
    add("--versions", nargs="+", help="by default, the last of each minor version from 1.19 on")
    add("--all", action="store_true", help="every version from 1.19 on")
    add("--kinds", nargs="+", default=KINDS, choices=KINDS, help="what to measure")
    add("--rounds", type=int, default=5)
    add("--cpu", action="store_true", help="compare the time of the processor, where other programs use it, too")
    add("--cache", default=str(CACHE), help="where the versions are installed")
    add("--out", default=str(HERE / "results"))
    args = parser.parse_args(argv)
    versions = args.versions or released(args.all)
    args.versions = sorted(versions, key=numbers)
    if args.quick:
        args.rounds = 2
        args.versions = args.versions if len(versions) < 3 else [args.versions[0], args.versions[-1]]
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args, start = arguments(argv), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, folder)
        print(", ".join(f"{k} {v}" for k, v in bench.results["machine"].items())
              + f"\nratios to the reference, medians of {args.rounds} rounds", flush=True)
        bench.run()
        path = bench.write()
    for entry in bench.results["cells"]:
        for m in regressions(entry, args.cpu):
            print(f"SLOWER: {entry['title']}: {m['version']} by {m['worse']:.0%} than {m['best']}")
    print(f"Written to {path}; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
