"""Checkpointing, mixed precision and float64 on random chains: the same function in the dtypes that are asked for."""

import numpy as np
import pytest
import torch
from chains import draw_chain, measure
from once import ON_NEWEST
from table import OLD

from ortpartial.autodiff import grad
from ortpartial.graph import PRODUCTS, accepted_types, build, op, topological, variable
from ortpartial.model import load
from ortpartial.rewrites.checkpointing import checkpoint_gradient, recompute_cheap, resolve_checkpointing
from ortpartial.rewrites.mixed_precision import WIDE, to_dtype, to_mixed_precision
from ortpartial.rewrites.train_mode import TrainingModel
from ortpartial.runtime import Session
from ortpartial.runtime.session_options import session_options


def loaded(chain):
    return load(chain.model, variables=list(chain.weights))


def draw(seed):
    return draw_chain(5000 + seed, 2**11, steps=9)


def check_checkpointing(seed):
    """Every choice of checkpoints gives the bits of the plain gradient, and runs no random operator twice."""
    chain, rng = draw(seed), np.random.default_rng(seed)
    model = loaded(chain)
    (y,), (x,) = model.outputs.values(), model.inputs.values()
    weights = [w for n, w in model.initializers.items() if n in chain.weights]
    t = variable("t", "float32", y.shape)
    loss = op.ReduceSum(y * t, keepdims=0)
    feeds = {x.hint: chain.x, "t": chain.t, **chain.weights}
    results = {}
    choices = {"plain": grad, "auto": resolve_checkpointing("auto"), "cheap": checkpoint_gradient(recompute_cheap),
               "none kept": checkpoint_gradient(lambda nodes, read: []),
               "random": checkpoint_gradient(lambda nodes, read: [
                   v for node in nodes if rng.random() < 0.3 for v in node.outputs])}
    for name, gradient in choices.items():
        outputs = {f"d{i}": g for i, g in enumerate(gradient(loss, [x, *weights]))}
        session = Session(build([x, t, *weights], outputs), options=session_options(1, low_memory=True))
        results[name] = session.run({n: a for n, a in feeds.items() if n in session.inputs})
    for name, actual in results.items():
        for n, d in results["plain"].items():
            np.testing.assert_array_equal(actual[n], d, err_msg=f"seed {seed}, {name}, {n}: {chain.names}")
    dropped = op.ReduceSum(op.Tanh(op.Dropout(op.Tanh(y), 0.5, True)) * t, keepdims=0)
    graph = build([x, t, *weights], {"d": choices["none kept"](dropped, weights[:1])[0]})
    assert [node.op_type for node in graph.graph.node].count("Dropout") == 1


@pytest.mark.parametrize("seed", range(4))
def test_some_checkpoints_leave_every_bit(seed):
    check_checkpointing(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_checkpoints_leave_every_bit(seed):
    check_checkpointing(seed)


def check_precision(seed):
    """Products are in float16, and sums and what overflows are not; the output is within half precision of float64."""
    chain = draw(seed)
    model = loaded(chain)
    low = to_mixed_precision(TrainingModel(model), np.dtype(np.float16)).model
    assert {n: v.dtype for n, v in low.outputs.items()} == {n: v.dtype for n, v in model.outputs.items()}
    assert list(low.inputs.values()) == list(model.inputs.values())
    products = 0
    for node in topological(list(low.outputs.values())):
        dtypes = {v.dtype for v in node.reads if v.is_float}
        takes = "tensor(float16)" in accepted_types(node.schema, 0)
        if node.op_type in PRODUCTS and takes:
            assert dtypes == {np.dtype(np.float16)}, (seed, node)
            products += 1
        elif node.op_type in WIDE:
            assert np.dtype(np.float16) not in dtypes, (seed, node)
    (x,) = low.inputs.values()
    graph = build([x, *(low.initializers[n] for n in chain.weights)], low.outputs)
    actual = Session(graph).run({x.hint: chain.x, **chain.weights})["y"]
    weights = {n: torch.from_numpy(a).double() for n, a in chain.weights.items()}
    right = chain(torch.from_numpy(chain.x).double(), weights).numpy()
    # A chain passes on its rounding: half precision has 1e-3, of which masks make jumps.
    error = abs(actual - right) / abs(right).max()
    assert np.median(error) < 5e-3, (seed, float(np.median(error)), chain.names)
    return products


@pytest.mark.parametrize("group", range(2))
def test_some_chains_in_mixed_precision(group):
    counts = [check_precision(seed) for seed in range(8 * group, 8 * group + 8)]
    assert 0 < sum(map(bool, counts)) < len(counts) or group  # with products and without


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_chains_in_mixed_precision(seed):
    check_precision(seed)


def check_dtype(seed):
    """A model in float64, lowered where the runtime has no kernel, is the function of torch to the last digits."""
    chain = draw(seed)
    model = to_dtype(loaded(chain), np.float64)
    (x,), (y,) = model.inputs.values(), model.outputs.values()
    weights = [model.initializers[n] for n in chain.weights]
    t = variable("t", "float64", y.shape)
    outputs = {"y": y, **{f"d{n}": g for n, g in zip(["x", *chain.weights], grad(y, [x, *weights], [t]), strict=True)}}
    session = Session(build([x, t, *weights], outputs))
    feeds = {x.hint: chain.x, "t": chain.t, **chain.weights}
    actual = session.run({n: a.astype(np.float64) for n, a in feeds.items() if n in session.inputs})
    tensors = {n: torch.from_numpy(a).double().requires_grad_() for n, a in {"x": chain.x, **chain.weights}.items()}
    right = chain(tensors["x"], tensors)
    expected = torch.autograd.grad(right, list(tensors.values()), torch.from_numpy(chain.t).double())
    assert measure(actual["y"], right.detach().numpy()) < 1e-6, (seed, chain.names)
    scale = max(float(abs(d).max()) for d in expected)
    for n, d in zip(tensors, expected, strict=True):
        # Constants of the graph are float32 numbers; a gradient that is 0 in truth is rounding of the others.
        error = measure(actual[f"d{n}"], d.numpy()) * float(abs(d).max())
        assert error < 1e-6 * float(abs(d).max()) + 1e-9 * scale, (seed, n, error, chain.names)


@pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 has no kernel of float64 for Cos and others")
@ON_NEWEST
@pytest.mark.parametrize("group", range(2))
def test_some_chains_in_float64(group):
    for seed in range(6 * group, 6 * group + 6):
        check_dtype(seed)


@pytest.mark.slow
@pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 has no kernel of float64 for Cos and others")
@pytest.mark.parametrize("seed", range(100, 250))
def test_chains_in_float64(seed):
    check_dtype(seed)
