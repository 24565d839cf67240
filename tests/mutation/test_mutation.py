"""Do the tests of the rules notice when a rule is changed in one place?"""

import json
import subprocess
import sys

import pytest
from equivalent import EQUIVALENT
from paths import SUPPORT, environment
from table import OLD


def results(*arguments):
    """What `mutation.py` prints: (function, change, how many tests call it, what noticed it)."""
    done = subprocess.run([sys.executable, str(SUPPORT / "mutation.py"), *map(str, arguments)], check=True, text=True,
                          env=environment(), stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_sample():
    found = results("einsum", 5)
    assert len(found) == 5
    assert [row for row in found if not row[-1]] == []


@pytest.mark.slow
@pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 runs fewer of the tests; rules are the same on every runtime")
def test_all(record_property):
    found = results()
    survivors = {(where, change) for where, change, _, noticed in found if not noticed}
    noticed = len(found) - len(survivors)
    record_property("count", f"{len(found)} changes of rules: {noticed} noticed by their tests, "
                    f"{len(survivors & set(EQUIVALENT))} that change no number")
    assert sorted(survivors - set(EQUIVALENT)) == []
    # What is noticed, or is not there any more, has no place in the tables.
    assert sorted(set(EQUIVALENT) - survivors) == []
