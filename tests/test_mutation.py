"""Do the tests of the rules notice when a rule is changed in one place?"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from table import OLD

TESTS = Path(__file__).parent


def results(*arguments):
    """What `mutation.py` prints: (function, line, change, how many tests call it, what noticed it)."""
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    done = subprocess.run([sys.executable, str(TESTS / "mutation.py"), *map(str, arguments)], check=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL)  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_sample():
    found = results("einsum", 5)
    assert len(found) == 5
    assert [row for row in found if not row[-1]] == []


@pytest.mark.slow
@pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 runs fewer of the tests; rules are the same on every runtime")
def test_all(record_property):
    found = results()
    survivors = [f"`{where}:{line}` {change}" for where, line, change, _, noticed in found if not noticed]
    record_property("count", f"{len(found)} changes of rules, {len(found) - len(survivors)} noticed by their tests")
    for survivor in survivors:
        record_property("count", f"not noticed: {survivor}")
    # What is left declares operators when it is imported, or chooses between ways to compute the same, but for holes in
    # the tests of microsoft.py, Dropout and lengths of sequences.
    assert len(survivors) <= 0.08 * len(found)
