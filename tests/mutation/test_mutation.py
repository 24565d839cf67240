"""Mutation testing: the tests of the rules notice a change of a rule in one place."""

import json
import subprocess
import sys

import pytest
from equivalent import EQUIVALENT
from once import ON_NEWEST
from paths import SUPPORT, environment
from table import OLD


def results(*arguments):
    """The output of `mutation.py`: (function, change, number of tests that call it, the test that noticed it)."""
    done = subprocess.run([sys.executable, str(SUPPORT / "mutation.py"), *map(str, arguments)], check=True, text=True,
                          env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return [json.loads(line) for line in done.stdout.splitlines()]


@ON_NEWEST
def test_a_sample():
    mutants = results("einsum", 2)
    assert len(mutants) == 2
    assert [row for row in mutants if not row[-1]] == []


@pytest.mark.slow
@pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 runs fewer of the tests; rules are the same on every runtime")
def test_all(record_property):
    mutants = results()
    survivors = {(where, change) for where, change, _, noticed in mutants if not noticed}
    noticed = len(mutants) - len(survivors)
    record_property("count", f"{len(mutants)} changes of rules: {noticed} noticed by their tests, "
                    f"{len(survivors & set(EQUIVALENT))} that change no number")
    assert sorted(survivors - set(EQUIVALENT)) == []
    # The tables hold no change that is noticed or does not exist.
    assert sorted(set(EQUIVALENT) - survivors) == []
