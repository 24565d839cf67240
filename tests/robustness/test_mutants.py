"""Broken models end in a result or a clear error; none kills or hangs the process."""

import json
import pickle
import subprocess
import sys
from collections import Counter

import pytest
from killers import CASES, chain
from paths import SUPPORT, environment

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.runtime.device import has_training

ENGINES = ["epoch", "step", *(["agent"] if has_training() else [])]
SAMPLE, ALL = 8, 1000


def sandbox(*arguments, timeout=580):
    """The output of the sandbox: a list for each model and engine."""
    done = subprocess.run([sys.executable, str(SUPPORT / "sandbox.py"), *map(str, arguments), *ENGINES],
                          env=environment(), capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(outcomes, expected, models, record):
    """Check that all outcomes are results or clear errors, and record their numbers."""
    assert len(outcomes) == expected * len(ENGINES)
    counts = Counter((engine, kind) for _, engine, kind, *_ in outcomes)
    numbers = ", ".join(f"{engine}: {n} {kind}" for (engine, kind), n in sorted(counts.items()))
    record("count", f"{expected} {models}: {numbers}")
    assert [row for row in outcomes if row[2] not in ("result", "clear error")] == []
    return counts


def test_a_sample_of_mutants(record_property):
    """Others on onnxruntime-training than on onnxruntime."""
    first = SAMPLE * has_training()
    check(sandbox(first, first + SAMPLE), SAMPLE, "broken models", record_property)


@pytest.mark.slow
def test_mutants(record_property):
    counts = check(sandbox(0, ALL), ALL, "broken models", record_property)
    # If all mutants were refused, nothing would be tested about running them.
    assert all(counts[engine, "result"] > ALL // 10 for engine in ENGINES)


def pickled(tmp_path, cases):
    path = tmp_path / "models.pickle"
    path.write_bytes(pickle.dumps([(name, model, feeds, None) for name, (model, feeds) in cases.items()]))
    return "--models", path


def test_a_sample_of_killers(tmp_path, record_property):
    """Others on onnxruntime-training than on onnxruntime."""
    some = dict(list(CASES.items())[8 * has_training() :: 16])
    check(sandbox(*pickled(tmp_path, some)), len(some), "models made to kill", record_property)


@pytest.mark.slow
def test_killers(tmp_path, record_property):
    check(sandbox(*pickled(tmp_path, CASES)), len(CASES), "models made to kill", record_property)


@pytest.mark.slow
@pytest.mark.parametrize("op_type", ["Add", "Relu"])
def test_20_000_nodes_in_a_row(op_type):
    model, feeds = chain(20_000, op_type)
    optimizer = OrtGradientForwardBackwardOptimizer(model, learning_rate=1e-9, max_iter=1, engine="step")
    optimizer.fit(feeds["x"], feeds["x"])
    assert optimizer.n_iter_ == 1


def test_sandbox_reports_the_outcome():
    """The sandbox distinguishes a killed process, one that hangs, and an error."""
    code = """
import os, time
from sandbox import in_child
def die(): os.abort()
def hang(): time.sleep(60)
def fail(): raise KeyError("unclear")
def step(f): return outcome(f)
import sandbox
sandbox.step = lambda f: f()
print([in_child(f, seconds=2)[0] for f in (die, hang, fail, int)])
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True,
                          text=True, check=True)
    assert done.stdout.strip() == "['killed', 'hang', 'unclear error', 'result']"
