"""Selection of rewrites: one by name is left out, in one thread alone, and what has applied is noted."""

import threading

import pytest

from ortpartial.rewrites.selection import attempt, is_selected, select_rewrites


def _merge(x):
    return x + 1 if x else None


def split(x):
    return -x


def test_without_a_selection_all_apply():
    assert (attempt(_merge, 1), attempt(_merge, 0), is_selected("merge")) == (2, None, True)


def test_what_applies_is_noted_by_name():
    with select_rewrites() as applied:
        attempt(_merge, 0)
        assert applied == set()
        attempt(_merge, 1)
        attempt(split, 1)
    assert applied == {"merge", "split"}


@pytest.mark.parametrize(("left_out", "expected"), [(["merge"], [None, -1]), (["*"], [None, None])])
def test_what_is_left_out_is_not_called(left_out, expected):
    with select_rewrites(left_out):
        assert [attempt(_merge, 1), attempt(split, 1)] == expected
        assert not is_selected("merge")
    assert is_selected("merge")


def test_another_thread_has_no_selection():
    results = []
    with select_rewrites(["*"]):
        thread = threading.Thread(target=lambda: results.append(attempt(split, 1)))
        thread.start()
        thread.join()
    assert results == [-1]


def test_an_inner_selection_ends_with_its_context():
    with select_rewrites(["merge"]):
        with select_rewrites():
            assert is_selected("merge")
        assert not is_selected("merge")
