"""The benchmark measures and records what it says, and rejects contestants that compute something else."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from once import ON_TRAINING

ROOT = Path(__file__).parents[2]
PEERS = ["epoch", "torch", "numpy", "sklearn"]


def bench(script, *arguments):
    """The output of a benchmark script."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, ROOT / "bench" / script, *arguments], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path}, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@ON_TRAINING
def test_the_smallest_table(tmp_path):
    """All take the same steps, are measured, and stand in the JSON and in the picture."""
    said = bench("bench.py", "--models", "5-4-1", "--peers", *PEERS, "--rates", "sgd", "--batches", "8",
                 "--rounds", "2", "--cores", "1", "--parts", "steps", "--out", str(tmp_path))
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
KEPT = sorted(path for path in (ROOT / "bench" / "results").glob("*.json") if path.with_suffix(".png").exists())


def test_a_chart_is_kept():
    assert KEPT


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_the_chart_answers_a_question_in_each_panel(tmp_path, monkeypatch, kept):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    for name in ("models", "chart"):  # `models` is a module of the tests as well, which is put back.
        monkeypatch.delitem(sys.modules, name, raising=False)
    from chart import draw

    figure = draw(json.loads(kept.read_text()), tmp_path / "chart.png")
    for name in ("models", "chart"):
        monkeypatch.delitem(sys.modules, name)
    panels = [a for a in figure.axes if a.axison]
    assert len(panels) >= 3
    assert all(a.get_title(loc="left").split(" (")[0].endswith("?") for a in panels)
    for a in panels:
        assert any(text.get_text().startswith("ortpartial") for text in a.get_legend().get_texts())
        assert {text.get_text() for text in a.get_legend().get_texts()} >= {"torch"}
    assert figure.get_figwidth() * 120 < 1024, "it is read at the width of a page"


@pytest.fixture
def race(monkeypatch):
    """The module of the benchmark, imported as its scripts import one another."""
    # `models` is a module of the tests as well, which is put back.
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    for name in ("models", "race"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import race

    yield race
    for name in ("models", "race"):
        monkeypatch.delitem(sys.modules, name)


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
    """It runs, goes on from its checkpoints, and the table of the README has what is counted."""
    folder = ROOT / "bench" / "fine_tuning"
    table = bench("fine_tuning/count_lines.py").splitlines()[1:]
    counts = {library: (int(lines), int(statements)) for library, lines, statements in map(str.split, table)}
    assert len(counts) == 5
    assert counts["ortpartial"][0] < min(lines for library, (lines, _) in counts.items() if library != "ortpartial")
    readme = (ROOT / "README.md").read_text()
    for lines, statements in counts.values():
        assert f"| {lines} | {statements} |" in readme

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
