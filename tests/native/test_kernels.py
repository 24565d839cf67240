"""Kernels: the places that each reads and writes, inside of others as well."""

import numpy as np
import pytest

from ortpartial.native.expressions import Affine, Array, Call, Load
from ortpartial.native.kernels import Branch, Check, Loop, Reduction, Repeat, Store

DTYPE = np.dtype(np.float32)


def load(n=3):
    return Load(DTYPE, (n,), Array(DTYPE, n), Affine.contiguous((n,)))


@pytest.fixture
def loop():
    a, b, to = load(), load(), load()
    return Loop([Store(to, Call(DTYPE, (3,), "{0} * {1}", (a, b)))]), [a, b], to


def test_a_loop(loop):
    kernel, reads, to = loop
    assert (list(kernel.reads()), list(kernel.writes())) == (reads, [to])
    assert (kernel.shape, kernel.bodies) == ((3,), [])


def test_a_store_that_adds_reads_its_target():
    a, to = load(), load()
    assert not Store(to, a).adds
    assert list(Loop([Store(to, a, "{0} + {1}")]).reads()) == [a, to]


def test_an_index_is_read():
    places = load()
    gathered = Load(DTYPE, (3,), Array(DTYPE, 9), Affine.contiguous((3,)), places, 3)
    assert list(Loop([Store(load(), gathered)]).reads()) == [gathered, places]


def test_a_reduction():
    a, to = load(6), load(1)
    kernel = Reduction(to, a, "{0} + {1}", "0")
    assert (list(kernel.reads()), list(kernel.writes())) == ([a], [to])


def test_kernels_inside(loop):
    kernel, reads, to = loop
    repeat, condition = Repeat("t", 5, [kernel, kernel]), load(1)
    assert list(repeat.reads()) == reads * 2
    branch = Branch(condition, [repeat], [])
    assert list(branch.reads()) == [condition, *reads, *reads]
    assert list(branch.writes()) == [to, to]
    assert branch.bodies == [[repeat], []]


def test_a_check_refuses_and_so_do_kernels_around_it(loop):
    value, to = load(), load()
    check = Check(value, -3, 2, "A Gather has an index that is not in -3 to 2:", to=to)
    assert (list(check.reads()), list(check.writes())) == ([value], [to])
    assert list(Check(value, 0, 2, "").writes()) == []
    assert [k.refuses for k in (check, loop[0], Repeat("t", 5, [check]), Branch(load(1), [], [check]))] == [
        True, False, True, True]
