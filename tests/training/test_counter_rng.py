"""Counter-based random numbers are as good as chance, the same everywhere, and never the same twice."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from ortpartial.graph.build import build
from ortpartial.graph.ops import variable
from ortpartial.runtime.session import Session
from ortpartial.training.counter_rng import bits, draw_mask

SEED, K = variable("seed", "int32", [2]), variable("k", "int64", [])


def session(shape=(64, 64), keep=0.5, numbers=(0,), dtype="float32"):
    """Masks by their numbers, in order; from x where its sizes are not known before."""
    x = variable("x", dtype, shape)
    outputs = {f"mask_{i}": draw_mask(x, keep, SEED, K, i) for i in numbers}
    inputs = [SEED, K] if x.is_static else [x, SEED, K]
    return Session(build(inputs, outputs))


def drawn(s, seed=(1, 2), k=1, **more):
    return list(s.run({"seed": np.array(seed, np.int32), "k": np.array(k), **more}).values())


def by_hand(counter, a, b):
    """The formula in numpy, modulo 2³²."""
    u = np.uint32
    h = (counter.astype(u) * u(0x9E3779B9) + a.astype(u)).astype(u)
    h = ((h ^ h >> u(16)) * u(0x85EBCA6B) + b.astype(u)).astype(u)
    return ((h ^ h >> u(13)) * u(0xC2B2AE35)).astype(np.int32)


def test_bits():
    n, a, b = (variable(name, "int32", ["N"]) for name in "nab")
    graph = build([n, a, b], {"y": bits(n, a, b)})
    rng = np.random.default_rng(0)
    feeds = {name: rng.integers(-(2**31), 2**31, 1000).astype(np.int32) for name in "nab"}
    expected = by_hand(*feeds.values())
    np.testing.assert_array_equal(Session(graph).run(feeds)["y"], expected)
    np.testing.assert_array_equal(ReferenceEvaluator(graph).run(None, feeds)[0], expected)
    onnx.checker.check_model(graph, full_check=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.7, 0.9])
def test_as_good_as_chance(keep):
    """Every sum over elements, steps, places and distances is as far from its mean as it would be by chance."""
    s = session((4096,), keep)
    values = np.array([drawn(s, (5, 6), k)[0] for k in range(300)])
    np.testing.assert_allclose(values[values > 0], 1 / keep, rtol=1e-6)
    m = ((values > 0) - keep) / np.sqrt(keep * (1 - keep))
    for sums, n in ((m.sum(1), 4096), (m.sum(0), 300)):
        assert 0.8 < (sums**2).mean() / n < 1.2
    lags = [(m[:, :-d] * m[:, d:]).sum() / np.sqrt(m[:, d:].size) for d in range(1, 200)]
    steps = [(m[:-d] * m[d:]).sum() / np.sqrt(m[d:].size) for d in range(1, 100)]
    assert max(map(abs, lags + steps + [m.sum() / np.sqrt(m.size)])) < 5
    pairs = (m @ m.T / 64)[np.triu_indices(300, 1)]
    assert 0.95 < pairs.std() < 1.05
    assert abs(pairs).max() < 6


def test_another_seed_step_or_number_is_another_mask():
    s = session(numbers=(0, 1, 2))
    seeds, steps = ((1, 2), (2, 1), (1, 3)), (1, 2, 2**30, 2**31 - 1)
    masks = [m.tobytes() for seed in seeds for k in steps for m in drawn(s, seed, k)]
    assert len(set(masks)) == len(masks)
    assert drawn(s, k=1)[0].tobytes() == drawn(s, k=1 + 2**31)[0].tobytes()  # so long it takes


def test_sizes_that_are_not_known_before():
    known, unknown = session((3, 5)), session(("N", "M"))
    x = np.zeros((3, 5), np.float32)
    np.testing.assert_array_equal(drawn(known)[0], drawn(unknown, x=x)[0])
    assert drawn(unknown, x=x[:0])[0].shape == (0, 5)


@pytest.mark.parametrize(("keep", "value"), [(0.0, 0), (1.0, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_and_everything(keep, value, dtype):
    (found,) = drawn(session((1000,), keep, dtype=dtype))
    assert found.dtype == dtype
    assert (found == value).all()
