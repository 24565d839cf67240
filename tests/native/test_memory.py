"""The memory plan of kernels that repeat."""

import numpy as np

from ortpartial.native.expressions import Affine, Array, Load
from ortpartial.native.kernels import Branch, Loop, Repeat, Store
from ortpartial.native.memory import plan_memory

FLOAT, SIZE = np.dtype(np.float32), 32


def load(array):
    return Load(FLOAT, (SIZE,), array, Affine.contiguous((SIZE,)))


def copy(source, target):
    """A loop of its own: the places of what it reads are not those of what another one writes."""
    turned = Load(FLOAT, (SIZE,), source, Affine((SIZE,), (-1,), SIZE - 1))
    return Loop([Store(load(target), turned)])


def overlap(plan, a, b):
    return plan.offsets[a] < plan.offsets[b] + SIZE and plan.offsets[b] < plan.offsets[a] + SIZE


def test_a_state_of_a_loop_is_kept_during_all_of_it():
    x, y = Array(FLOAT, SIZE, "state", "x"), Array(FLOAT, SIZE, "state", "y")
    state, first, second, third = (Array(FLOAT, SIZE) for _ in range(4))
    # The last kernel of a time step is the first of the next one that reads the state.
    body = [copy(state, first), copy(first, second), copy(second, third), copy(third, state)]
    plan = plan_memory([copy(x, state), Repeat("t1", 3, body), copy(state, y)])
    assert not any(overlap(plan, state, a) for a in (first, second, third))
    assert plan.offsets[first] == plan.offsets[third]


def test_what_a_loop_reads_is_kept_until_its_end():
    x, y = Array(FLOAT, SIZE, "state", "x"), Array(FLOAT, SIZE, "state", "y")
    read, first, second = (Array(FLOAT, SIZE) for _ in range(3))
    inner = Repeat("t2", 2, [copy(read, first), copy(first, second), copy(second, y)])
    plan = plan_memory([copy(x, read), Repeat("t1", 3, [inner])])
    assert not any(overlap(plan, read, a) for a in (first, second))


def test_branches_share_memory():
    x, y, flag = (Array(FLOAT, SIZE, "state", name) for name in ("x", "y", "flag"))
    one, other = Array(FLOAT, SIZE), Array(FLOAT, SIZE)
    kernel = Branch(load(flag), [copy(x, one), copy(one, y)], [copy(x, other), copy(other, y)])
    plan = plan_memory([kernel])
    assert plan.offsets[one] == plan.offsets[other]
