"""Data parallelism: compression, differences between processes, and descriptions of data and settings."""

import numpy as np
import pytest
from once import ON_BOTH
from scipy.sparse import csr_array

from ortpartial.exceptions import DataError, SettingError
from ortpartial.execution.exchange import (
    DataParallel,
    Exchange,
    describe_arrays,
    describe_settings,
    resolve_distributed,
    share_cores,
)
from ortpartial.execution.sparse_rows import SparseRows
from ortpartial.graph import build, variable
from ortpartial.runtime import Buffer, Session

pytestmark = ON_BOTH
NUMBERS = np.float32([3, -1, 0.25, -4, 2])


class Group:
    """Two processes, of which this is the second and the first does what `others` say."""

    rank, size, bytes_sent = 1, 2, 0

    def __init__(self, first=None):
        self.first, self.messages = first, []

    def broadcast(self, value):
        return self.first

    def gather(self, value):
        return [self.first, value]

    def all_reduce(self, buffer):
        self.messages.append("all_reduce")
        buffer.fill(buffer.numpy() + self.first)

    def all_gather(self, array):
        self.messages.append("all_gather")
        return np.stack([array, array])


def exchange(first=None):
    """The exchange of the second of two processes."""
    one = object.__new__(Exchange)
    one.group, one.is_first = Group(first), False
    return one


def compress(how, numbers, residual=None):
    """The numbers that are sent, and those that wait."""
    flat, rest = variable("flat", "float32", [5]), None if residual is None else variable("rest", "float32", [5])
    outputs = dict(zip(("sent", "rest_new"), how.compress(flat, rest), strict=True))
    inputs = {"flat": flat} if rest is None else {"flat": flat, "rest": rest}
    arrays = {"flat": numbers} if rest is None else {"flat": numbers, "rest": residual}
    return Session(build(inputs, {n: v for n, v in outputs.items() if v is not None})).run(arrays)


def test_half_precision():
    sent = compress(DataParallel("float16"), np.float32([1 / 3, 1e-9, 2, 0, 1]))["sent"]
    assert sent.dtype == np.float16
    np.testing.assert_array_equal(sent, np.float16([1 / 3, 0, 2, 0, 1]))


def test_what_is_not_sent_waits():
    """Two of five numbers; in the next step those that wait are among the largest."""
    how = DataParallel(top_k=0.4)
    first = compress(how, NUMBERS, np.zeros(5, np.float32))
    np.testing.assert_array_equal(first["sent"], [3, 0, 0, -4, 0])
    np.testing.assert_array_equal(first["rest_new"], [0, -1, 0.25, 0, 2])
    second = compress(how, np.float32([0, -5, 0, 0, 1]), first["rest_new"])
    np.testing.assert_array_equal(second["sent"], [0, -6, 0, 0, 3])
    assert (how.count_sent(5), DataParallel().count_sent(5), DataParallel(top_k=1e-9).count_sent(5)) == (2, None, 1)


@pytest.mark.parametrize("kept", [None, 2])
def test_a_sum(kept):
    sent = np.float32([0, 2, 0, -1, 0])
    exchange(sent).add_up({"gradients": (buffer := Buffer(sent.copy()), kept)})
    np.testing.assert_array_equal(buffer.numpy(), 2 * sent)


def test_small_numbers_share_a_message():
    """Of any dtype, dense or sparse; large ones go by themselves, and so does one that is alone."""
    dense, half, sparse = np.float32([1, 2]), np.float16([3, 4, 5]), np.float32([0, 7, 0])
    large = np.ones(2**15, np.float32)
    passed = {n: (Buffer(a.copy()), kept) for n, a, kept in (
        ("dense", dense, None), ("half", half, None), ("sparse", sparse, 1), ("large", large, None))}
    one = exchange(large)
    one.add_up(passed)
    assert one.group.messages == ["all_reduce", "all_gather"]
    for n, a in (("dense", dense), ("half", half), ("sparse", sparse), ("large", large)):
        assert passed[n][0].numpy().dtype == a.dtype
        np.testing.assert_array_equal(passed[n][0].numpy(), 2 * a, n)
    one = exchange(dense)
    one.add_up({"dense": passed["dense"]})
    assert one.group.messages == ["all_reduce"]


def test_rows_of_a_process():
    assert exchange().take(np.arange(5)).tolist() == [1, 3]


def test_the_state_of_the_first_but_for_what_waits():
    first = {"w": np.ones(2), "a.rest": np.ones(2), "b.rest": np.ones(2), "c.rest": np.ones(2)}
    state = {"w": np.zeros(2), "a.rest": np.full(2, 3), "b.rest": np.ones(2)}
    taken = exchange(first).take_first(state, lambda n: n.endswith("rest"))
    assert {n: a.tolist() for n, a in taken.items()} == {
        "w": [1, 1], "a.rest": [3, 3], "b.rest": [0, 0], "c.rest": [0, 0]}


def test_facts_that_differ():
    is_two = "a is 1 in process 0 and 2 in process 1; give every process the same model, settings and rows, all of them"
    exchange({"a": "1"}).check_same({"a": "1"})
    with pytest.raises(DataError, match=rf"^The processes do not train the same: {is_two}\.$"):
        exchange({"a": "1"}).check_same({"a": "2"})
    with pytest.raises(DataError, match="b is missing in process 0 and 3 in process 1"):
        exchange({"a": "1"}).check_same({"a": "1", "b": "3"})
    with pytest.raises(DataError) as error:
        exchange({"a": "x" * 10**6}).check_same({"a": "y" * 10**6})
    assert len(str(error.value)) < 1000


def describe(a):
    return describe_arrays({"x": a})["'x'"]


def test_arrays_of_other_content_have_other_descriptions():
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    other = x.copy()
    other[17, 1] += 1e-6
    assert describe(x) == describe(x.copy(order="F")) == describe(SparseRows(csr_array(x))) != describe(other)
    assert describe(x) != describe(x[:39])
    assert describe(x) != describe(x.astype(np.float64))
    texts = np.array(["a", "b"], object)
    assert describe(texts) == describe(texts.copy()) != describe(texts[::-1])
    assert describe(np.array(1, np.float32)).startswith("float32 of shape () and checksum ")
    assert (describe(csr_array(x)), describe([1])) == ("csr_array", "list")


def test_big_arrays_are_sampled():
    """Of 32 MB every other row is read."""
    x = np.zeros((2**15, 2**8), np.float32)
    plain = describe(x)
    x[-1, 0] = 1
    assert describe(x) != plain


def test_settings_have_no_address():
    assert describe_settings(loss=lambda y, t: y)["loss"] == (
        "<function test_settings_have_no_address.<locals>.<lambda>>")


def test_the_setting():
    assert [resolve_distributed(v) for v in (True, 0, DataParallel(np.float16))] == [
        True, False, DataParallel("float16")]
    for wrong, message in [(lambda: resolve_distributed("yes"),
                            "distributed is True, False or a DataParallel, not 'yes'"),
                           (lambda: DataParallel("float32"), "gradient_dtype is 'float16' or None, not 'float32'"),
                           (lambda: DataParallel(top_k=True), "top_k is the share of the gradients that are sent")]:
        with pytest.raises(SettingError, match=message):
            wrong()


def test_cores_are_shared(monkeypatch):
    monkeypatch.setattr("ortpartial.execution.exchange.cores", lambda: 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert [share_cores(None), share_cores(3), share_cores(None, 2)] == [2, 3, 2]
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert [share_cores(None), share_cores(None, 2), share_cores(None, 16)] == [None, 4, 1]
