"""Protocol of rewrites: reports and log lines of numbered cases, and a selection in one thread alone."""

import logging
import threading

import pytest

from ortpartial.rewrites.protocol import (
    REWRITES,
    RewriteReport,
    attempt,
    count_case,
    discard_cases,
    is_selected,
    numbered,
    select_rewrites,
)


def _merge(x):
    return x + 1 if x else None


def split(x):
    return -x


@pytest.fixture(autouse=True)
def _forget():
    before = dict(REWRITES)
    yield
    REWRITES.clear()
    REWRITES.update(before)


@pytest.fixture
def change():
    """A rewrite of numbers with two cases."""

    @numbered("merge", "split")
    def change(numbers):
        return [attempt([_merge, split], x) for x in numbers]

    return change


def test_without_a_selection_all_apply(change):
    assert (change([1, 0]), is_selected("merge")) == ([2, 0], True)
    assert (REWRITES["change"].apply, REWRITES["change"].cases) == (change, ("merge", "split"))


def test_a_report_counts_each_case(change):
    with select_rewrites() as reports:
        change([])
        assert reports == []
        change([1, 0, 3])
        change([0])
    assert reports == [RewriteReport("change", {"merge": 2, "split": 1}),
                       RewriteReport("change", {"merge": 0, "split": 1})]
    assert [report.applied for report in reports] == [["merge", "split"], ["split"]]


def test_a_line_for_each_rewrite_that_has_changed_something(change, caplog):
    with caplog.at_level(logging.DEBUG, logger="ortpartial"):
        change([])
        change([1, 0, 3])
        change([0])
    assert caplog.messages == ["rewrite change: 2 x merge (case 1), 1 x split (case 2)",
                               "rewrite change: 1 x split (case 2)"]


def test_a_rewrite_inside_of_another_has_a_report_of_its_own(change):
    @numbered("whole")
    def outer(numbers):
        result = change(numbers)
        count_case("whole", len(numbers))
        return result

    with select_rewrites() as reports:
        outer([1])
    assert [(r.rewrite, r.counts) for r in reports] == [("change", {"merge": 1, "split": 0}), ("outer", {"whole": 1})]


def test_a_result_that_is_not_used_is_not_reported():
    @numbered("merge")
    def undo():
        count_case("merge", 2)
        discard_cases()

    with select_rewrites() as reports:
        undo()
    assert reports == []


def test_a_case_that_is_not_numbered_is_an_error():
    @numbered("merge")
    def forget():
        count_case("split")

    with pytest.raises(KeyError, match="split"):
        forget()


@pytest.mark.parametrize(("left_out", "expected"), [(["merge"], [-1]), (["*"], [None])])
def test_a_case_that_is_left_out_is_not_called(left_out, expected, change):
    with select_rewrites(left_out):
        assert change([1]) == expected
        assert not is_selected("merge")
    assert is_selected("merge")


def test_another_thread_has_no_selection(change):
    results = []
    with select_rewrites(["*"]) as reports:
        thread = threading.Thread(target=lambda: results.append(change([1])))
        thread.start()
        thread.join()
    assert (results, reports) == ([[2]], [])


def test_an_inner_selection_ends_with_its_context():
    with select_rewrites(["merge"]):
        with select_rewrites():
            assert is_selected("merge")
        assert not is_selected("merge")
