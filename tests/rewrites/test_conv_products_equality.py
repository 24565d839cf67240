"""Convolutions of few windows, or of few places, as one product, and their gradients, beside sums over the places."""

from math import prod

import numpy as np
import pytest
from random_graphs import Case, Draw, assert_equal, check_rewrite, run
from window_formulas import convolve, convolve_back, draw_geometry, window_columns

from ortpartial.autodiff import Window, grad, im2col, spatial_sizes
from ortpartial.graph import build, op, topological
from ortpartial.limits import limits
from ortpartial.model import load
from ortpartial.rewrites import rewrite_step
from ortpartial.rewrites.convolutions import write_convolutions
from ortpartial.rewrites.peephole import apply_peepholes

#: The cases set the limits themselves.
pytestmark = pytest.mark.usual_limits
FEW, MANY = 40, 800


def draw_convolution(d, limit):
    """A Conv of random images with its geometry, its arrays, and whether its windows are few enough for one product."""
    limit(few_windows=d.one(0, 4, 9, 16, 30), kernel_places=d.one(1, 4, 9, 25, 25))
    r = d.one(1, 2, 2, 2, 2, 2, 3)
    g, sizes, settings = draw_geometry(d, r)
    group = d.one(1, 1, 1, 1, 1, 2)
    batch, channels, outputs = d.one(1, 2, 3, 3, 5), group * d.size(empty=0, most=4), group * d.size(empty=0, most=4)
    dtype = d.one("float32", "float32", "float32", "float64")
    x = d.variable([batch, channels, *sizes], dtype, open_axes=0.3 if d.chance(0.1) else 0.0)
    w = d.variable([outputs, channels // group, *g.kernel], dtype, strange=0.0)
    b = d.variable([outputs], dtype, strange=0.0) if d.chance() else None
    y = op.Conv(x, w, b, group=group, **settings)
    m = g.positions(sizes)
    is_one = r == 2 and group == 1 and spatial_sizes(x) is not None and prod(m) <= limits().few_windows
    return y, (x, w, b), g, group, is_one


def as_product(d, limit):
    y, (x, w, b), g, group, is_one = draw_convolution(d, limit)
    expected = convolve(*(d.of(v).astype(np.float64) for v in (x, w)), g, group)
    if b is not None:
        expected += d.of(b).reshape(-1, *[1] * (x.rank - 2))
    applies = is_one and x.is_static and x.shape[0] > 1 and prod(g.kernel) <= limits().kernel_places
    return Case([y], applies, [expected])


def check_gradient(seed, limit):
    """The gradients of a convolution as those of its definition; that of few windows by Col2Im."""
    d = Draw(np.random.default_rng([7, seed]))
    y, (x, w, b), g, group, is_one = draw_convolution(d, limit)
    arrays = [np.nan_to_num(d.of(v), nan=0.5, posinf=1.0, neginf=-1.0) for v in (x, w)]
    d.arrays.update(zip((x, w), arrays, strict=True))
    dy = d.variable([len(arrays[0]), len(arrays[1]), *g.positions(arrays[0].shape[2:])], y.dtype.name, strange=0.0)
    outputs = rewrite_step(dict(enumerate(grad(y, [x, w, *([] if b is None else [b])], [dy]))))
    kinds = [node.op_type for node in topological(list(outputs.values()))]
    assert ("Col2Im" in kinds) == is_one, (seed, kinds)
    dx, dw = convolve_back(*(d.of(v).astype(np.float64) for v in (x, w, dy)), g, group)
    expected = [dx, dw, *([] if b is None else [d.of(dy).astype(np.float64).sum((0, *range(2, x.rank)))])]
    for i, (actual, right) in enumerate(zip(run(d, list(outputs.values())), expected, strict=True)):
        assert_equal(actual, right, False, f"seed {seed}, gradient {i}: {y.node}, {x}, {w}")
    return is_one


def check_correlation(seed, limit):
    """A convolution of a kernel of more places than positions, as the gradient of a weight is, by one product."""
    d = Draw(np.random.default_rng([8, seed]))
    g, sizes, settings = draw_geometry(d, d.one(2, 2, 2, 2, 3), most=6)
    batch, channels, outputs = (d.size(empty=0, most=4) for _ in "nco")
    x, w = d.variable([batch, channels, *sizes], strange=0.0), d.variable([outputs, channels, *g.kernel], strange=0.0)
    b = d.variable([outputs], strange=0.0) if d.chance(0.1) else None
    m = g.positions(sizes)
    columns = batch * channels * prod(m) * prod(g.kernel)
    limit(small_kernel=d.one(1, 4, 16), cached_elements=d.one(columns - 1, columns, 2**21))
    applies = (x.rank == 4 and b is None and prod(g.kernel) > prod(m) and prod(m) <= limits().small_kernel
               and columns <= limits().cached_elements)
    y = op.Conv(x, w, b, **settings)
    model = build(list(d.arrays), {"y": y})
    written = write_convolutions(model)
    assert (written is not model) == applies, (seed, y.node, x, w)
    expected = convolve(*(d.of(v).astype(np.float64) for v in (x, w)), g)
    if b is not None:
        expected += d.of(b).reshape(-1, *[1] * (x.rank - 2))
    if applies:
        assert "Conv" not in {node.op_type for node in written.graph.node}
    loaded = load(written)
    d.arrays = {loaded.inputs[v.hint]: a for v, a in d.arrays.items()}
    assert_equal(run(d, list(loaded.outputs.values()))[0], expected, False, f"seed {seed}: {y.node}, {x}, {w}")
    return applies


def check_columns(seed):
    """im2col with one to three axes, at all positions or at the first ones."""
    d = Draw(np.random.default_rng([9, seed]))
    g, sizes, _ = draw_geometry(d, d.one(1, 2, 3))
    x = d.variable([d.size(empty=0), d.size(empty=0), *sizes], d.one("float32", "float64", "float16"))
    m = [int(d.rng.integers(1, n + 1)) if d.chance(0.2) else n for n in g.positions(sizes)]
    window = Window(list(g.kernel), list(g.strides), list(g.dilations), list(g.pads))
    expected = window_columns(d.of(x), m, g)
    assert_equal(run(d, [im2col(x, m, window)])[0], expected, True, f"seed {seed}: {x}, {g}, {m}")


def test_some_convolutions_of_few_windows(limit):
    check_rewrite(lambda d: as_product(d, limit), apply_peepholes, 0, FEW, least=3)


def test_some_gradients_of_few_windows(limit):
    assert {True, False} == {check_gradient(seed, limit) for seed in range(12)}


def test_some_correlations_of_few_places(limit):
    assert {True, False} == {check_correlation(seed, limit) for seed in range(FEW)}


def test_columns_of_some_windows():
    for seed in range(20):
        check_columns(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_convolutions_of_few_windows(seed, limit):
    check_rewrite(lambda d: as_product(d, limit), apply_peepholes, seed, MANY // 4)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(1, 5))
def test_many_gradients_and_correlations(group, limit):
    for seed in range(100 * group, 100 * group + 100):
        check_gradient(seed, limit)
        check_correlation(seed, limit)
        check_columns(seed)
