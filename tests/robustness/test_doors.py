"""Models made to kill at every door: a result or a clear error, before anything of the file is run or folded."""

import json
import pickle
import re
import subprocess
import sys
from collections import Counter

import pytest
from killers import CASES
from once import ON_BOTH
from paths import SUPPORT, environment

#: Divisions of the least number by -1, in constants: what killed a process that read the model.
LEAST = [name for name in CASES if name.startswith(("div min, ", "mod min, "))]

#: Doors that read, run and list a model.
SAMPLE = ("load", "OrtGradientForwardBackward", "OnnxLayer", "info", "TrainingKit")

#: Doors of code, and divisions of which each is known when it is written, or when it runs.
CODE = ("nn, forward", "nn, native", "nn, eager")
DIVISIONS = ("div 0 int32", "div min, branch", "div by input", "mod min by input", "div min of input")


def enter(tmp_path, cases):
    """How models end at doors; `cases` has the names of both, None for all doors that a model has."""
    path = tmp_path / "models.pickle"
    path.write_bytes(pickle.dumps([(name, *CASES[name], doors) for name, doors in cases.items()]))
    done = subprocess.run([sys.executable, str(SUPPORT / "sandbox.py"), "--doors", str(path)],
                          env=environment(), capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@ON_BOTH
def test_a_sample(tmp_path):
    outcomes = enter(tmp_path, dict.fromkeys(LEAST[::20], SAMPLE) | dict.fromkeys(DIVISIONS, CODE))
    assert len(outcomes) == len(LEAST[::20]) * len(SAMPLE) + len(DIVISIONS) * len(CODE)
    assert [row for row in outcomes if row[2] not in ("result", "clear error")] == []
    refusals = {(name, re.sub(r"^\w+: (The module .*: )?", "", text)) for name, door, kind, text in outcomes
                if door in CODE and kind == "clear error"}
    assert sorted(name for name, _ in refusals) == sorted(DIVISIONS)  # the same sentence at all of them
    assert all(re.match(r"A (Div|Mod) (may )?divides? ", text) for _, text in refusals)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_all(part, tmp_path, record_property):
    from doors import list_doors

    names = list(CASES)[part::10]
    outcomes = enter(tmp_path, dict.fromkeys(names))
    assert len(outcomes) == sum(len(list_doors(CASES[name][0])) for name in names)
    for (door, kind), n in sorted(Counter((door, kind) for _, door, kind, _ in outcomes).items()):
        record_property("count", f"{door}: {n} {kind}")
    assert [row for row in outcomes if row[2] not in ("result", "clear error")] == []
