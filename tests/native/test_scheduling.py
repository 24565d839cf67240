"""The order of kernels, and unneeded kernels."""

import numpy as np

from ortpartial.native.expressions import Affine, Array, Load
from ortpartial.native.kernels import Branch, Check, Loop, Repeat, Store
from ortpartial.native.scheduling import drop_unread, order_kernels

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


def test_states_change_behind_all_checks():
    """Whatever is refused leaves them as they were; one that a check depends on is computed beside, and copied."""
    w = Array(FLOAT, 4, "state", "w")
    v = Array(FLOAT, 4, "state", "v")
    new_w, new_v = (Array(FLOAT, 4, "state", a.name, former=a) for a in (w, v))
    first, second = Loop([copy(v, new_w)]), Loop([copy(w, new_v)])
    check, late = Check(load(Array(FLOAT, 4, "row", "x")), 0, 1, "x"), Check(load(new_w), 0, 1, "w")
    *_, last = order_kernels([second, check])
    assert [s.to.array for s in last.stores] == [new_v]
    kernels = order_kernels([first, second, check, late])
    checks = [i for i, k in enumerate(kernels) if isinstance(k, Check)]
    changes = [i for i, k in enumerate(kernels) if any(a.array.memory in (w, v) for a in k.writes())]
    assert len(checks) == len(changes) == 2
    assert max(checks) < min(changes)


def test_a_check_is_never_dropped():
    check = Check(load(Array(FLOAT, 4, "row", "x")), 0, 1, "x")
    unused, kept = Array(FLOAT, 4), Array(FLOAT, 4)
    (repeat,) = drop_unread([Repeat("t1", 2, [check, Loop([copy(kept, unused)])])], kept)
    assert repeat.kernels == [check]
