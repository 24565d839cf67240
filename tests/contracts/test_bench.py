"""The benchmark measures and records as it says, and rejects contestants that compute something else."""

import json
import math
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import onnxruntime
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_rgb
from once import ON_NEWEST, ON_TRAINING
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).parents[2]
MODULES = {path.stem for path in (ROOT / "bench").glob("*.py")}
PEERS = ["epoch", "torch", "numpy"]


def bench(script, *arguments):
    """The output of a benchmark script."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, ROOT / "bench" / script, *arguments], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path}, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def benchmark_modules(monkeypatch):
    """Modules of the benchmark can be imported as its scripts import one another; those of the tests are put back."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "bench"))
        for name in MODULES:
            patch.delitem(sys.modules, name, raising=False)
        try:
            yield
        finally:
            for name in MODULES:
                sys.modules.pop(name, None)


@ON_TRAINING
def test_the_smallest_table(tmp_path):
    """All take the same steps, are measured, and stand in the JSON and in the picture."""
    said = bench("bench.py", "--models", "5-4-1", "--peers", *PEERS, "--rates", "sgd", "--batches", "8",
                 "--rounds", "1", "--steps", "20", "--cores", "1", "--parts", "steps", "--profiles", "0",
                 "--out", str(tmp_path))
    assert "without" not in said
    (written,) = tmp_path.glob("*.json")
    results = json.loads(written.read_text())
    (entry,) = results["steps"]
    assert (entry["model"], entry["batch"], list(entry["peers"])) == ("5-4-1", 8, PEERS)
    assert all(0 < t["us"] < 1e6 and 0 < t["cpu_us"] < 1e6 for t in entry["peers"].values())
    (floor,) = results["floors"]
    assert floor["nodes"] > 5
    assert math.isclose(floor["floor"], floor["iteration"] + (floor["nodes"] - 1) * floor["node"])
    assert written.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_many_lengths():
    """Every way to train is measured; whether it is fast enough depends on what else the machine does."""
    lines = bench("lengths.py", "2", "5", "1").splitlines()
    assert [line.split()[0] for line in lines[2:-1]] == ["fit", "partial_fit", "predict", "OnnxLayer", "torch"]
    assert lines[-1].startswith("at most 1.3 times: ")


@pytest.mark.slow
def test_sparse_features():
    """The times of a network that is small, and so needs no long test; `tests/training` counts denormal numbers."""
    lines = bench("sparse.py", "20", "10", "5").splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["ortpartial", "torch", "slowest"]
    assert len(lines[1].split()) == 11


@pytest.mark.slow
def test_settings():
    lines = bench("settings.py", "10", "4", "1").splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["SGD"] * 6 + ["Adam"] * 6


# Those with a chart beside them hold the whole table; others a part, such as one engine beside one library.
RESULTS = {path: json.loads(path.read_text()) for path in sorted((ROOT / "bench" / "results").glob("*.json"))}
KEPT = [path for path, results in RESULTS.items() if "steps" in results and path.with_suffix(".png").exists()]


def test_a_chart_is_kept():
    assert KEPT


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_the_chart_answers_a_question_in_each_panel(tmp_path, monkeypatch, kept):
    with benchmark_modules(monkeypatch):
        from chart import draw

        figure = draw(json.loads(kept.read_text()), tmp_path / "chart.png")
    panels = [a for a in figure.axes if a.axison]
    assert len(panels) >= 3
    assert all(a.get_title(loc="left").split(" (")[0].endswith("?") for a in panels)
    for a in panels:
        assert any(text.get_text().startswith("ortpartial") for text in a.get_legend().get_texts())
        assert {text.get_text() for text in a.get_legend().get_texts()} >= {"torch"}
    assert figure.get_figwidth() * 120 < 1024, "it is read at the width of a page"


def test_charts_for_dark_pages(tmp_path, monkeypatch):
    """They have no background, and nothing is as dark as the page."""
    with benchmark_modules(monkeypatch):
        from chart import draw

        figure = draw(json.loads(KEPT[0].read_text()), tmp_path / "chart.png", theme="dark")
    assert pyplot.imread(tmp_path / "chart.png")[0, 0, 3] == 0
    for axes in figure.axes:
        assert all(max(to_rgb(line.get_color())) > 0.5 for line in axes.get_lines())


def test_the_page_is_written_from_the_results():
    """`python bench/page.py` writes it: a change of results, or of the script, comes with the page."""
    code = ("import sys; sys.path.insert(0, 'bench'); import page; sys.stdout.write(page.page()); "
            "shown = page.README.read_text(encoding='utf-8'); "
            "assert page.write_readme(shown, page.find_shown()) == shown, 'the table of README.md'")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"})
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert done.stdout.decode() == text, done.stderr.decode()
    pictures = re.findall(r"{image} (\S+)", text)
    assert len(pictures) >= 8
    assert all((ROOT / "docs" / picture).exists() for picture in pictures)


@pytest.fixture
def engines(monkeypatch):
    """The module of the benchmark of engines, with numpy on one thread, as all recorded ratios."""
    with benchmark_modules(monkeypatch), threadpool_limits(1):
        import engines

        yield engines


def test_no_engine_is_slower_beside_numpy_than_recorded(engines):
    """Time of the processor in the same process, in turns: whatever else the machine does, in three tries."""
    recorded, most = engines.guarded(json.loads(engines.GUARD.read_text())["guard"])
    assert len(recorded) == len(engines.CELLS) == 8
    assert list(engines.find_slower(recorded, most)) == []


def test_a_slower_engine_is_found(monkeypatch, engines):
    """It is measured three times; a cell that is fast once is not slow."""
    measured = iter([1.4, 1.35, 1.31, *[1.4, 1.4, 1.29], *[1.0] * 6])
    monkeypatch.setattr(engines, "find_ratio", lambda cell: next(measured))
    keys = [" ".join(map(str, cell)) for cell in engines.CELLS]
    assert list(engines.find_slower(dict.fromkeys(keys, 1.0), 1.3)) == [
        f"{keys[0]}: 1.31 of numpy's time, recorded is 1"]
    assert next(measured, None) is None


def test_another_machine_is_allowed_more(monkeypatch, engines):
    """It has recorded no ratios, and is compared with the largest of all."""
    kept = {f"One ({features}), onnxruntime 1.0.0": ratios for features, ratios in (
        ("fma", {"a": 1.0, "b": 4.0}), ("avx512f", {"a": 2.0, "b": 3.0}))}
    monkeypatch.setattr(engines, "machine", lambda: {"cpu": "One", "features": "fma", "onnxruntime": "1.0.0"})
    assert engines.guarded(kept) == ({"a": 1.0, "b": 4.0}, 1.3)
    monkeypatch.setattr(engines, "machine", lambda: {"cpu": "One", "features": "", "onnxruntime": "1.0.0"})
    assert engines.guarded(kept) == ({"a": 2.0, "b": 4.0}, 2.5)


def test_the_table_of_engines(engines, capsys):
    """The engine that "auto" took is measured twice, and has one time."""
    settings = {"models": "linear", "batches": "8", "dtypes": "float32", "seconds": "0.01", "steps": "10"}
    engines.main(["--engines", "step", "auto", *(word for name, value in settings.items()
                                               for word in (f"--{name}", value))])
    said = capsys.readouterr().out.splitlines()
    assert said[2].split()[-2:] == ["step", "auto"]
    assert said[3].split()[-1] == "epoch"
    assert engines.compare_engines({"us": {"step": 4.0, "epoch": 2.0, "auto": 2.2}, "auto": "epoch"}) == {
        "step": 2.0, "epoch": 1.0, "auto": 1.0}
    assert engines.compare_engines({"us": {"step": 2.0, "epoch": 4.0, "auto": 3.0}, "auto": "epoch"})["auto"] == 1.5


@pytest.fixture
def runtimes(monkeypatch):
    """The module of the benchmark of versions, imported as its scripts import one another."""
    with benchmark_modules(monkeypatch):
        import runtimes

        yield runtimes


def measured_versions(folder, *arguments):
    """What is printed and written of the installed version, and of one that cannot be imported."""
    broken, whole = (folder / "cache" / version for version in ("0.0.1", onnxruntime.__version__))
    (broken / "onnxruntime").mkdir(parents=True)
    (broken / "onnxruntime" / "__init__.py").write_text("raise ImportError('This version needs\\nanother machine.')")
    whole.mkdir()
    (whole / "onnxruntime").symlink_to(Path(onnxruntime.__file__).parent)
    said = bench("runtimes.py", "--quick", "--versions", broken.name, whole.name, "--cache", str(folder / "cache"),
                 "--out", str(folder), *arguments)
    (written,) = folder.glob("*.json")
    for suffix in ("", "-dark"):
        assert written.with_name(f"{written.stem}{suffix}.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads(written.read_text())
    for cell in results["cells"]:
        assert cell["versions"]["0.0.1"] == "ImportError: This version needs"
        turns = cell["versions"][whole.name]
        assert len(turns) == 2
        assert all(0 < turn[key] < 60 for turn in turns for key in ("runtime", "reference", "runtime_cpu"))
    assert "(ImportError: This version needs)" in said
    return [(cell["kind"], cell["model"], cell["steps"]) for cell in results["cells"]]


@ON_NEWEST
def test_versions_of_the_runtime(tmp_path):
    assert measured_versions(tmp_path, "--kinds", "import") == [("import", "", 1)]


@pytest.mark.slow
def test_versions_of_the_runtime_in_all_kinds_of_cells(tmp_path):
    assert measured_versions(tmp_path) == [
        ("train", "20-100-1", 625), ("infer", "20-100-1", 625), ("open", "20-100-1", 1), ("import", "", 1)]


def test_another_version_than_the_asked_one(tmp_path, runtimes):
    """What is measured is the version that stands beside the figures."""
    folder = tmp_path / "1.0.0" / "onnxruntime"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("__version__ = '1.0.1'")
    with pytest.raises(Exception, match=r"1\.0\.1 of .* was imported in its place"):
        runtimes.Runtime("1.0.0", folder.parent)


def test_slower_versions(runtimes):
    """Marked is what is more than 10 % slower than the best before it, beyond the noise of the rounds of both."""
    def turns(*ratios):
        return [{"runtime": 2.0 * r, "reference": 2.0, "runtime_cpu": r, "reference_cpu": 1.0} for r in ratios]

    cell = {"versions": {"1.9.0": turns(1.2, 1.2, 1.2, 1.2), "1.10.0": turns(0.99, 1.0, 1.0, 1.01),
                         "1.20.0": "it cannot", "1.21.0": turns(1.08, 1.09, 1.09, 1.1),
                         "1.22.0": turns(0.9, 1.0, 1.4, 1.5), "1.23.1": turns(1.2, 1.21, 1.21, 1.3),
                         "1.24.0": turns(0.8, 0.8, 0.8, 0.8), "1.25.0": turns(0.95, 0.95, 0.95, 0.95)}}
    marks = [(m["version"], m["best"], round(m["worse"], 2)) for m in runtimes.regressions(cell)]
    assert marks == [("1.23.1", "1.10.0", 0.21), ("1.25.0", "1.24.0", 0.19)]


def test_slower_versions_on_the_page(monkeypatch):
    """What is marked stands there with its operators, and what a version cannot run with its error."""
    def turns(ratio):
        return [{"runtime": ratio, "reference": 1.0, "runtime_cpu": ratio, "reference_cpu": 1.0}] * 3

    cell = {"kind": "infer", "title": "infer encoder", "engine": "", "steps": 2, "reference": "torch",
            "versions": {"1.19.2": "Error: a|b", "1.20.1": turns(1.0), "1.21.0": turns(1.5)},
            "profiles": {"1.20.1": {"Gemm": 5.0, "Add": 2.0}, "1.21.0": {"Gemm": 5.0, "Add": 9.0}}}
    results = {"settings": {"cpu": False}, "versions": list(cell["versions"]), "cells": [cell]}
    with benchmark_modules(monkeypatch):
        import page

        assert page.slower(results) == (
            "What is marked:\n\n* infer encoder: slower than 1.20.1 on 1.21.0 (+50%). Operators that take longer on "
            "1.21.0 than on 1.20.1: Add (2 → 9 µs).\n")
        assert r"| 1.19.2 | all | `Error: a\|b` |" in page.failures(results)[1]
        rows = page.ratios(results, results["versions"])
    assert "| infer encoder | 750,000 | torch | 1 | 1.5 | 1.50 | 1.20.1 |" in rows[0]
    assert "| infer encoder | × | 1 | 1.5 |" in rows[1]


@pytest.fixture
def race(monkeypatch):
    """The module of the benchmark, imported as its scripts import one another."""
    with benchmark_modules(monkeypatch):
        import race

        yield race


def test_other_weights_and_sentences(race):
    """Who comes to other weights is left out, and so is who cannot train; who cannot be compared says so."""
    import numpy as np

    class Fake:
        def __init__(self, name, weights):
            self.name, self.trained = name, weights

        def make(self, task):
            if self.name == "unable":
                raise race.Cannot("It cannot.")

        def ask(self, **what):
            return {}

        def weights(self):
            if self.trained is None:
                raise race.Cannot("It steps otherwise.")
            return {"w": np.array(self.trained)}

    task = race.Task("5-4-1", "sgd", 2, 3, "nowhere")
    fakes = {"same": [1, 2.001], "other": [1, 2.1], "nan": [1, np.nan], "alone": None, "unable": [], "torch": [1, 2.0]}
    out = race.check([Fake(n, w) for n, w in fakes.items()], task)
    assert out == {"other": "It comes to other weights: they differ by 5.0e-02.",
                   "nan": "It comes to other weights: they differ by nan.", "unable": "It cannot.",
                   "alone": "It steps otherwise. Its weights are not compared."}


#: In place of the encoder of the benchmark, whose export takes seconds.
ENCODER = """
import numpy as np
from onnx import save
from ortpartial import build, constant, op, variable

rng = np.random.default_rng(0)
X, y = rng.integers(0, 17, (60, 8)), rng.integers(0, 10, 60)

def export(path):
    tokens, table = variable("tokens", "int64", ["rows", 8]), rng.normal(size=(17, 4)).astype(np.float32)
    w = rng.normal(size=(32, 10)).astype(np.float32)
    save(build([tokens], {"scores": op.Flatten(op.Gather(constant(table), tokens)) @ constant(w)}), path)
"""


@ON_TRAINING
def test_fine_tuning_takes_the_fewest_lines_here(tmp_path):
    """It runs, goes on from its checkpoints, and the table of the tour has what is counted."""
    folder = ROOT / "bench" / "fine_tuning"
    table = bench("fine_tuning/count_lines.py").splitlines()[1:]
    counts = {library: (int(lines), int(statements)) for library, lines, statements in map(str.split, table)}
    assert len(counts) == 5
    assert counts["ortpartial"][0] < min(lines for library, (lines, _) in counts.items() if library != "ortpartial")
    tour = (ROOT / "docs" / "tour.md").read_text()
    for lines, statements in counts.values():
        assert f"| {lines} | {statements} |" in tour

    measured = (ROOT / "docs" / "measured.md").read_text(encoding="utf-8")
    for stem, row in json.loads((ROOT / "bench/results/fine_tuning.json").read_text())["rows"].items():
        counted = (row["lines"], row["statements"])
        assert counts.get(stem.removeprefix("with_"), counted) == counted
        assert "| {lines} | {start:.1f} s | {first:.1f} s | {ten:.1f} s | {misses} |".format(**row) in measured

    (tmp_path / "encoder.py").write_text(ENCODER)
    script = (folder / "with_ortpartial.py").read_text()
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    for epochs, first in ((2, 1), (3, 3)):
        (tmp_path / "script.py").write_text(script.replace("max_iter=10", f"max_iter={epochs}, validation_every=1"))
        done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path,
                              env={**os.environ, "PYTHONPATH": path, "MPLBACKEND": "agg"}, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith(f"epoch {first}/{epochs}:")
    assert {"tuned.onnx", "losses.png", "checkpoints"} <= {found.name for found in tmp_path.iterdir()}
