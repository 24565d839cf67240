"""Changed files of every kind end in a result or a clear error; none kills or hangs the process."""

from collections import Counter

import pytest
from file_mutants import USES, try_mutants
from once import ON_NEWEST
from sandbox import CLEAR, RESULT

SAMPLE, MANY = 7, 400


def check(seeds, record):
    rows = list(try_mutants(list(USES), seeds))
    assert len(rows) == len(USES) * len(seeds)
    assert [row for row in rows if row[2] not in (RESULT, CLEAR)] == []
    assert [row for row in rows if row[1] is None and row[2] != RESULT] == []  # The true files.
    counts = Counter(kind for _, _, kind, _ in rows)
    record("count", f"{len(rows)} changed files: {counts[RESULT]} results, {counts[CLEAR]} clear errors")
    return counts


@ON_NEWEST
def test_a_sample(record_property):
    counts = check([None, *range(SAMPLE - 1)], record_property)
    # If none was refused, or all were, nothing would be tested.
    assert min(counts[RESULT], counts[CLEAR]) > len(USES)


@pytest.mark.slow
def test_many(record_property):
    check(range(SAMPLE, MANY), record_property)
