"""The order of kernels, and unneeded kernels."""

import numpy as np

from ortpartial.native.convolutions import ConvolutionShape
from ortpartial.native.expressions import Affine, Array, Call, Literal, Load
from ortpartial.native.kernels import Branch, Check, Convolution, Loop, Repeat, Store
from ortpartial.native.scheduling import drop_unread, fuse_updates, order_kernels

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


def test_an_update_is_a_part_of_the_gradient_that_nothing_else_reads():
    """W - η G of whole arrays; not of elements in another order, of another array, or of a gradient that is kept."""
    w, other = Array(FLOAT, 4, "state", "w"), Array(FLOAT, 4, "state", "v")
    x, scratch, kept = Array(FLOAT, 4, "row", "x"), Array(FLOAT, 4), Array(FLOAT, 4)
    shape = ConvolutionShape("kernels", 1, 1, 2, 2, (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (0, 0), FLOAT)

    def write(g, subtracted_from=w, turned=False, template="{0} - {1}"):
        new = Array(FLOAT, 4, "state", "w", former=w)
        at = Affine((2, 2), (1, 2) if turned else (2, 1))
        read = Load(FLOAT, (2, 2), g, at)
        step = Call(FLOAT, (2, 2), "{0} * {1}", (Literal(FLOAT, (2, 2), 0.5), read))
        square = Affine.contiguous((2, 2))
        value = Call(FLOAT, (2, 2), template, (Load(FLOAT, (2, 2), subtracted_from, square), step))
        gradient = Convolution(shape, load(x), load(x), load(g), None, load(scratch))
        return gradient, Loop([Store(Load(FLOAT, (2, 2), new, square), value)])

    (fused,) = fuse_updates(write(Array(FLOAT, 4)))
    assert (fused.shape.alpha, fused.shape.beta) == (-0.5, 1.0)
    assert (fused.to.array.former, fused.addend.array) == (w, w)
    assert order_kernels([fused]) == [fused]
    for settings in ({"subtracted_from": other}, {"turned": True}, {"template": "{0} + {1}"}):
        kernels = write(Array(FLOAT, 4), **settings)
        assert tuple(fuse_updates(kernels)) == kernels, settings
    g = Array(FLOAT, 4)
    kernels = (*write(g), Loop([copy(g, kept)]))
    assert tuple(fuse_updates(kernels)) == kernels


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
