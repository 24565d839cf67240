"""
Time of a training step, beside other libraries.

    make bench        or        python bench/bench.py [--quick] [--models ...] [--peers ...] [--rates ...] [--cores 1 2]

Eight models, from a linear regression to BERT-small, take the same steps in

* native, epoch, step, agent, auto: the public `fit` of ortpartial, checks of the data, shuffling and bookkeeping
  included;
* torch: eager mode, and torch.compile: forward, backward and optimizer compiled;
* jax scan: an epoch as one function by `jit` and `lax.scan`, and jax step: a call of a jitted function for every step;
* onnxsim: `compile_training_loop`; sklearn: `partial_fit`, an epoch a call; numpy: the formulas, written by hand.

Each contestant has a process of its own, pinned to the measured cores, with one thread per core. First, all must reach
the same weights in an epoch of a fixed order. Then they take turns of a tenth of a second or an epoch each, and medians
are compared: in every cell, "auto" for a long training to the fastest other library. New processes measure the time to
the first step, the time to the same loss, and the memory. The results are written to bench/results/ as JSON and as a
chart, with targets beside measurements; a profile of the worst misses shows where the time goes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from machine import cpu_name, machine, now, runtime_version
from models import LARGE, MODELS, RATES, Task, model
from peers import OURS, PEERS
from race import HERE, Cannot, Process, check, first, pinned, race

#: For each axis along which cost grows: the varied quantity, and the models and steps of its points.
GROWTH = {
    "rows": ("rows of an epoch, 20-100-1, batch 32", [("20-100-1", s) for s in (30, 300, 3000)]),
    "parameters": ("parameters, 64-w-w-10, batch 32", [(f"64-{w}-{w}-10", 50) for w in (16, 64, 256, 1024)]),
    "nodes": ("layers of width 16, batch 32", [("-".join(["16"] * n + ["1"]), 50) for n in (1, 4, 16, 64)]),
}
#: The largest allowed ratio of the time to the first step, compilation included.
FIRST = {"jax scan": 0.2, "torch.compile": 0.2}


class Bench:
    """The measurements of a run and their results."""

    def __init__(self, args: argparse.Namespace, folder: str):
        self.args, self.folder = args, folder
        self.results: dict[str, Any] = {"when": now(),
                                      "machine": machine(), "settings": vars(args), "steps": [], "left_out": [],
                                      "floors": [], "first": [], "growth": {}}
        self.exported: set[str] = set()

    def task(self, name: str, rate: str, batch: int, steps: int | None = None) -> Task:
        """A training whose files have been written."""
        if name not in self.exported:
            subprocess.run([sys.executable, str(HERE / "nets.py"), self.folder, name], check=True)
            self.exported.add(name)
        steps = steps or self.args.steps or model(name).steps_at(batch)
        return Task(name, rate, batch, steps, self.folder, device=self.args.device)

    def leave_out(self, where: str, who: dict[str, str]) -> None:
        for peer, why in who.items():
            print(f"  without {peer}: {why}" if "not compared" not in why else f"  {peer}: {why}", flush=True)
            self.results["left_out"].append({"where": where, "peer": peer, "why": why})

    @contextlib.contextmanager
    def processes(self, names: Iterable[str], cores: int) -> Iterator[list[Process]]:
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(Process(name, cores)) for name in names]

    def steps(self, names: Sequence[str], cores: int) -> None:
        """Microseconds per step of every model, optimizer and batch."""
        with self.processes(self.args.peers, cores) as processes:
            for name in names:
                rates = self.args.rates if model(name).widths else self.args.rates[:1]
                for rate in rates:
                    m = model(name)
                    batches = [b for b in self.args.batches or m.batches if m.widths or b in m.batches]
                    print(f"\n{model(name).title}, {rate}, {cores} core{'s' * (cores > 1)}", flush=True)
                    out = check(processes, self.task(name, rate, 10 if 10 in batches else batches[0]))
                    self.leave_out(f"{name} {rate}", out)
                    running = [p for p in processes if p.name not in out or "not compared" in out[p.name]]
                    print("batch" + "".join(f"{p.name:>20}" for p in running))
                    for batch in batches:
                        times = race(running, self.task(name, rate, batch), self.args.rounds)
                        entry = {"model": name, "rate": rate, "batch": batch, "cores": cores, "peers": times}
                        self.results["steps"].append(entry)
                        print(self.line(batch, [times.get(p.name) for p in running]), flush=True)
                    if m.widths and "epoch" in self.args.peers:
                        n = self.nodes(name, rate, batches[0])
                        self.results["floors"].append({k: v for k, v in n.items() if k != "operators"})
                        print(f"floor: {n['nodes']} nodes a step would take {n['floor']:.1f} us if they did nothing "
                              f"({n['iteration']:.2f} us an iteration with one, {n['node']:.2f} each more)", flush=True)

    def line(self, batch: int, times: list[dict[str, float] | None]) -> str:
        """Microseconds, and the ratio to the reference."""
        reference = self.results["steps"][-1]["peers"].get("torch")
        cells = []
        for t in times:
            ratio = f" ({self.us(t) / self.us(reference):5.3f}x)" if t and reference else ""
            cells.append(f"{self.us(t):.1f}{ratio}" if t else "-")
        return f"{batch:5d}" + "".join(f"{c:>20}" for c in cells)

    def us(self, times: dict[str, float]) -> float:
        return times["cpu_us" if self.args.cpu else "us"]

    def firsts(self, names: Sequence[str]) -> None:
        """Time to the first step and to the same loss, and memory, in new processes."""
        for name in names:
            batch = 32 if model(name).widths else model(name).batches[0]
            task, loss = self.task(name, self.args.rates[0], batch), None
            print(f"\n{model(name).title}, batch {batch}, new processes\n{'':16}{'import s':>10}{'first step s':>14}"
                  f"{'to the same loss s':>20}{'megabytes':>12}", flush=True)
            for peer in sorted(self.args.peers, key=lambda p: p != "torch"):  # sets the loss that the others must reach
                try:
                    times = first(peer, task, 1, loss)
                except Cannot as e:
                    self.leave_out(f"first step, {name}", {peer: str(e)})
                    continue
                loss = times["loss"] if loss is None else loss
                self.results["first"].append({"model": name, "peer": peer, **times})
                print(f"{peer:16}{times['import']:10.2f}{times['first']:14.3f}{times['to_loss']:20.3f}"
                      f"{times['megabytes']:12.0f}", flush=True)

    def growth(self) -> None:
        """Growth of the time of a step with rows, parameters and nodes, beside torch."""
        with self.processes([p for p in ("epoch", "torch") if p in self.args.peers], 1) as processes:
            for axis, (title, points) in GROWTH.items():
                print(f"\nmicroseconds a step by {title}", flush=True)
                results = self.results["growth"][axis] = []
                for name, steps in points:
                    task = self.task(name, self.args.rates[0], 32, steps)
                    widths = task.model.widths
                    size = {"rows": 32 * steps, "nodes": len(widths) - 1,
                            "parameters": sum((a + 1) * b for a, b in itertools.pairwise(widths))}[axis]
                    times = race(processes, task, 3)
                    results.append({"model": name, "at": size, "peers": times})
                    print(f"{size:9d}" + "".join(f"{p:>10}{self.us(t):10.1f}" for p, t in times.items()), flush=True)

    def nodes(self, name: str, rate: str, batch: int) -> dict[str, Any]:
        """The profile of a step, and the time of as many nodes that do nothing."""
        task = self.task(name, rate, batch)
        said = subprocess.run([sys.executable, str(HERE / "nodes.py"), self.folder, name, rate, str(batch)], check=True,
                              capture_output=True, text=True, preexec_fn=pinned(1),
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        return {"name": task.name, **json.loads(said.stdout)}

    def targets(self) -> list[dict[str, Any]]:
        """For every cell the time of "auto", or of our fastest engine, over the fastest other library's: at most 1."""
        results = []
        for e in self.results["steps"]:
            ours, theirs = ({p: self.us(t) for p, t in e["peers"].items() if (p in OURS) == is_ours}
                            for is_ours in (True, False))
            if ours and theirs:
                engine = "auto" if "auto" in ours else min(ours, key=ours.__getitem__)
                other = min(theirs, key=theirs.__getitem__)
                results.append({**{key: e[key] for key in ("model", "rate", "batch", "cores")}, "most": 1.0,
                                "engine": engine, "us": ours[engine], "other": other, "others_us": theirs[other],
                                "measured": ours[engine] / theirs[other]})
        times = {(f["model"], f["peer"]): f["first"] for f in self.results["first"]}
        for (name, peer), seconds in times.items():
            if peer in FIRST and (name, "epoch") in times:
                results.append({"target": f"first step, epoch / {peer}: {name}", "most": FIRST[peer],
                                "measured": times[name, "epoch"] / seconds})
        return [{**f, "holds": f["measured"] <= f["most"]} for f in results]

    def conclude(self) -> None:
        """Print the targets and profile the worst misses."""
        self.results["targets"] = results = self.targets()
        cells = [f for f in results if "model" in f]
        if cells:
            print(f"\nOurs and the fastest other library: {sum(f['holds'] for f in cells)} of {len(cells)} cells hold\n"
                  f"{'model':16}{'rate':10}{'cores':>6}{'batch':>6}{'us':>10} {'engine':8}{'us':>10} {'other':15}ratio")
        for f in cells:
            print(f"{f['model']:16}{f['rate']:10}{f['cores']:6}{f['batch']:6}{f['us']:10.1f} {f['engine']:8}"
                  f"{f['others_us']:10.1f} {f['other']:15}{f['measured']:7.3f}{'' if f['holds'] else '  MISSED'}")
        for f in (f for f in results if "target" in f):
            print(f"  {'holds ' if f['holds'] else 'MISSED'} {f['measured']:7.3f} <= {f['most']:<5g} {f['target']}")
        misses = [f for f in results if not f["holds"] and "model" in f]
        missed = sorted(misses, key=lambda f: -f["measured"] / f["most"])
        worst = list(dict.fromkeys((f["model"], f["rate"], f["batch"]) for f in missed))[: self.args.profiles]
        self.results["profiles"] = [self.nodes(*w) for w in worst]
        for p in self.results["profiles"]:
            print(f"\n{p['model']}, {p['rate']}, batch {p['batch']}: {p['nodes']} nodes a step")
            print("  " + ", ".join(f"{o['operator']} {o['us']:.0f} us {o['share']:.0%}" for o in p["operators"][:8]))
        share = statistics.median([t["cores"] / e["cores"] for e in self.results["steps"] for t in e["peers"].values()]
                                  or [1.0])
        if share < 0.95:
            print(f"\nOther programs took {1 - share:.0%} of the cores meanwhile: figures are too high, ratios rough.")
        greedy = {p for e in self.results["steps"] for p, t in e["peers"].items() if t["cores"] > 1.05 * e["cores"]}
        if greedy:
            print(f"\n{', '.join(sorted(greedy))} took more cores than they were argv.")

    def write(self) -> None:
        """JSON and chart."""
        from chart import draw_both

        this = self.results["machine"]
        name = f"{cpu_name(this)}-onnxruntime-{runtime_version(this)}{'-quick' * self.args.quick}.json"
        path = Path(self.args.out) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.results, indent=1) + "\n")
        draw_both(self.results, path.with_suffix(".png"), cpu=self.args.cpu)
        print(f"\nWritten to {path} and {path.with_suffix('.png').name}")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="20-100-1 and the encoder, two batches, plain SGD, three rounds: a minute")
    add("--models", nargs="+", default=list(MODELS), help="names, or widths as in 20-100-100-1")
    add("--peers", nargs="+", default=[p for p in PEERS if p != "torch graphs"], choices=list(PEERS))
    add("--rates", nargs="+", default=list(RATES), choices=list(RATES))
    add("--batches", nargs="+", type=int)
    add("--cores", nargs="+", type=int, default=[1, 2], help="two cores: the large models alone")
    add("--parts", nargs="+", default=["steps", "first", "growth"], choices=["steps", "first", "growth"])
    add("--rounds", type=int, default=5)
    add("--steps", type=int, help="of an epoch; by default as many as are measured well")
    add("--profiles", type=int, default=8, help="of how many misses to show where the time goes")
    add("--cpu", action="store_true", help="compare the time of the processor, where others use it, too")
    add("--out", default=str(HERE / "results"))
    add("--device", default="cpu")
    args = parser.parse_args(argv)
    if args.quick:
        args.models, args.batches, args.rates, args.cores = ["20-100-1", "encoder"], [32, 1024], ["sgd"], [1]
        args.parts, args.rounds, args.peers = ["steps"], 3, [p for p in args.peers if p != "torch.compile"]
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args, start = arguments(argv), time.perf_counter()
    unit = "of the processor " * args.cpu
    print(f"Microseconds {unit}a step, and as a multiple of torch's eager mode: medians of {args.rounds} rounds\n"
          + ", ".join(f"{k} {v}" for k, v in machine().items()))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, folder)
        if "steps" in args.parts:
            for cores in args.cores:
                names = [m for m in args.models if cores == 1 or m in LARGE]
                bench.steps(names, cores)
        if "first" in args.parts:
            bench.firsts([m for m in ("20-100-1", *LARGE) if m in args.models])
        if "growth" in args.parts:
            bench.growth()
        bench.conclude()
        bench.write()
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
