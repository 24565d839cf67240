"""The order of kernels, and those that nothing needs."""

import numpy as np

from ortpartial.native.expressions import Affine, Array, Load
from ortpartial.native.kernels import Branch, Loop, Repeat, Store
from ortpartial.native.scheduling import drop_unread

FLOAT = np.dtype(np.float32)


def load(array):
    return Load(FLOAT, (4,), array, Affine.contiguous((4,)))


def copy(source, target):
    return Store(load(target), load(source))


def test_what_nothing_reads_is_dropped_inside_of_loops_too():
    state, kept, used, unused, only_for_it = (Array(FLOAT, 4, role) for role in ("state", *["scratch"] * 4))
    body = [Loop([copy(state, only_for_it), copy(state, used)]), Loop([copy(only_for_it, unused)])]
    branch = Branch(load(state), [Loop([copy(used, kept)])], [Loop([copy(only_for_it, unused)])])
    (repeat, left) = drop_unread([Repeat("t1", 2, body), branch], kept)
    assert [s.to.array for loop in repeat.kernels for s in loop.stores] == [used]
    assert [s.to.array for loop in left.then for s in loop.stores] == [kept]
    assert left.otherwise == []
