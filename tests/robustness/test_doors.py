"""Models made to kill at every door: a result or a clear error, before anything of the file is run or folded."""

import json
import pickle
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


def enter(tmp_path, names, doors=()):
    """How models end at doors."""
    path = tmp_path / "models.pickle"
    path.write_bytes(pickle.dumps([(name, *CASES[name], None) for name in names]))
    done = subprocess.run([sys.executable, str(SUPPORT / "sandbox.py"), "--doors", str(path), ",".join(doors)],
                          env=environment(), capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@ON_BOTH
def test_a_sample(tmp_path):
    names = LEAST[::10]
    outcomes = enter(tmp_path, names, SAMPLE)
    assert len(outcomes) == len(names) * len(SAMPLE)
    assert [row for row in outcomes if row[2] not in ("result", "clear error")] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_all(part, tmp_path, record_property):
    from doors import DOORS

    names = list(CASES)[part::10]
    outcomes = enter(tmp_path, names)
    assert len(outcomes) == len(names) * len(DOORS)
    for (door, kind), n in sorted(Counter((door, kind) for _, door, kind, _ in outcomes).items()):
        record_property("count", f"{door}: {n} {kind}")
    assert [row for row in outcomes if row[2] not in ("result", "clear error")] == []
