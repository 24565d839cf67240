"""Tables of test cases: rows, arguments away from kinks, and gradients to compare with those of torch."""

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ortpartial.autodiff.grad import grad
from ortpartial.graph.build import build
from ortpartial.graph.ops import variable
from ortpartial.runtime.device import runtime_version
from ortpartial.testing import evaluate

#: Whether the runtime is onnxruntime-training 1.19.2, which cannot run some cases, whatever their rules.
OLD = tuple(map(int, runtime_version().split(".")[:2])) < (1, 20)
NOTHING = pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 fails on tensors without elements, or dies of them")
REPEATED = pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 does not broadcast scale and bias of LayerNormalization")


def rows(*table):
    """Rows (name, value, ...) as parameters of a test; marks may stand behind the values."""
    return [
        pytest.param(*(v for v in row if not isinstance(v, pytest.MarkDecorator)), id=name,
                     marks=[v for v in row if isinstance(v, pytest.MarkDecorator)])
        for name, *row in table
    ]


def generator(*what) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(what).encode()))


def real(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers on both sides of zero, at least 0.2 away from it: most kinks are at zero."""
    rng = generator(shape, seed)
    return rng.uniform(0.2, 1.5, shape) * rng.choice([-1.0, 1.0], shape)


def within(low: float, high: float, *shape: int, seed: int = 0) -> np.ndarray:
    return generator(low, high, shape, seed).uniform(low, high, shape)


def apart(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers at least 0.1 apart: there are no ties, and a step of central differences makes none."""
    n = int(np.prod(shape))
    return generator(shape, seed).permutation(np.arange(n) - n / 2 + 0.3).reshape(shape) / 8


def gradients(f: Callable, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Gradients by every floating-point argument, for the cotangents that `torch_gradients` uses."""
    x = [variable(f"x{i}", a.dtype, a.shape) for i, a in enumerate(args)]
    feeds = {v.hint: a for v, a in zip(x, args, strict=True)}
    y = f(*x)
    y = {f"y{i}": v for i, v in enumerate(y if isinstance(y, (list, tuple)) else [y])}
    outputs = evaluate(build(x, y), feeds).values()
    dys = [variable(f"dy{i}", v.dtype, v.shape) for i, v in enumerate(outputs)]
    wrt = [v for v in x if v.is_float]
    dxs = grad(list(y.values()), wrt, dys)
    feeds |= {d.hint: cotangent(v.shape).astype(v.dtype) for d, v in zip(dys, outputs, strict=True)}
    return list(evaluate(build(x + dys, {f"d{i}": d for i, d in enumerate(dxs)}), feeds).values())


def torch_gradients(f: Callable, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The gradients that torch computes."""
    import torch  # which takes seconds, and few tables need it

    x = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in args]
    y = f(*x)
    y = y if isinstance(y, (list, tuple)) else [y]
    dys = [torch.tensor(cotangent(tuple(v.shape)), dtype=v.dtype) for v in y]
    wrt = [v for v in x if v.requires_grad]
    dxs = torch.autograd.grad(y, wrt, dys, allow_unused=True, materialize_grads=True)
    return [d.numpy() for d in dxs]


def cotangent(shape: tuple[int, ...]) -> np.ndarray:
    return generator("dy", shape).normal(size=shape)


def assert_as_torch(f: Callable, torch_f: Callable, args: Sequence[np.ndarray], rtol: float = 1e-6) -> None:
    for dx, expected in zip(gradients(f, args), torch_gradients(torch_f, args), strict=True):
        np.testing.assert_allclose(dx, expected, rtol=rtol, atol=1e-3 * rtol)
