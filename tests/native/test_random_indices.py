"""Random programs that read and write at computed places, in C beside onnxruntime: the same numbers, or refused."""

import shutil

import numpy as np
import pytest
from native_cases import QUICK, compute_by_runtime, run_cases, write_cases
from once import ON_NEWEST

from ortpartial.exceptions import DataError
from ortpartial.graph import cast, op, scan, variable
from ortpartial.native import compile_library

pytestmark = [ON_NEWEST, pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")]


WHOLE = variable("i", "int64", ())


class Program:
    """Values by name, and variables: of real numbers, and of places, each with the size of the axis that it is for."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.numbers, self.sizes, self.values = {}, {}, {}
        self.data = [self.make(*(int(n) for n in self.rng.integers(1, 6, self.rng.integers(1, 4)))) for _ in range(3)]

    def make(self, *shape):
        v = variable("x", "float32", shape)
        self.numbers[v] = self.rng.normal(size=shape).astype(np.float32)
        return v

    def places(self, size, *shape):
        """Places on an axis, as they are given, computed from real numbers, or read at other places."""
        kind = self.rng.choice(["int64", "int32", "float32", "sum", "gathered"])
        v = variable("i", kind if kind in ("int64", "int32", "float32") else "int64", shape)
        self.sizes[v] = size
        self.numbers[v] = self.draw(v)
        if kind == "float32":
            return cast(v, WHOLE)
        if kind == "sum":
            return v * 3 - v - v
        return op.Gather(v, self.places(shape[0], shape[0])) if kind == "gathered" and shape else v

    def draw(self, v, bad=0.0):
        size = self.sizes[v]
        a = self.rng.integers(-size, size, v.shape)
        if bad and a.size and self.rng.random() < bad:
            a.flat[self.rng.integers(a.size)] = self.rng.choice([size, -size - 1, 99, -(2**20), 2**23])
        return np.asarray(a).astype(v.dtype)

    def add(self):
        """One more value, of an operator drawn."""
        x = self.data[int(self.rng.integers(len(self.data)))]
        axis, n = int(self.rng.integers(x.rank)), int(self.rng.integers(1, 5))
        size, reduction = x.shape[axis], str(self.rng.choice(["none", "add", "mul", "max"]))
        other = [int(self.rng.integers(1, m + 1)) for m in x.shape]
        kind = self.rng.choice(["Gather", "GatherElements", "ScatterElements", "GatherND", "ScatterND", "Scan"])
        if kind == "Gather":
            y = op.Gather(x, self.places(size, *[n] * int(self.rng.integers(3))), axis=axis)
        elif kind == "GatherElements":
            y = op.GatherElements(x, self.places(size, *other), axis=axis)
        elif kind == "ScatterElements":
            # Which of equal places wins is open, where they replace: one place each.
            other = [1 if i == axis and reduction == "none" else m for i, m in enumerate(other)]
            y = op.ScatterElements(x, self.places(size, *other), self.make(*other), axis=axis, reduction=reduction)
        elif kind == "GatherND":
            y = op.GatherND(x, cast(self.places(x.shape[0], n, 1), WHOLE))
        elif kind == "ScatterND":
            n = 1 if reduction == "none" else n
            places = cast(self.places(x.shape[0], n, 1), WHOLE)
            y = op.ScatterND(x, places, self.make(n, *x.shape[1:]), reduction=reduction)
        else:
            i = self.places(x.shape[0], n)
            _, y = scan(lambda s, j: (s + 1.0, op.Gather(x, j) * s), [self.make()], [i])
        if all(y.shape) and y.rank and np.prod(y.shape) < 500:
            self.data.append(op.Tanh(y))
        self.values[f"{kind}{len(self.values)}"] = y


def check(seed):
    p = Program(seed)
    while len(p.values) < 5:
        p.add()
    step = write_cases(p.values, p.numbers)
    library = compile_library(step.source, {"step.h": step.header}, flags=QUICK)
    refused = 0
    for bad in (0.0, 0.1, 0.5, 1.0):
        numbers = {v: p.draw(v, bad) if v in p.sizes else a for v, a in p.numbers.items()}
        expected = outcome(lambda numbers=numbers: compute_by_runtime(p.values, numbers))
        actual = outcome(lambda numbers=numbers: run_cases(step, library, list(p.values), list(numbers.values())))
        assert type(actual) is type(expected), (seed, bad, actual, expected)
        if isinstance(actual, DataError):
            refused += 1
            continue
        for n, y in actual.items():
            np.testing.assert_allclose(y, expected[n], rtol=1e-5, atol=1e-5, err_msg=f"seed {seed}, {bad}, {n}")
    return refused


def outcome(compute):
    try:
        return compute()
    except DataError as e:
        return e


def test_a_sample():
    assert sum(map(check, range(3))) > 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many(part):
    assert sum(check(1000 * part + i) for i in range(40)) > 50
