"""Random expressions beside numpy: shapes, dtypes, numbers and permutations for tests of rewrites."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortpartial.graph import Value, constant, variable
from ortpartial.graph.build import build
from ortpartial.runtime.session import Session

#: Relative to the largest number of a result, and to one: what rounding may change.
TOLERANCE = {"float16": 8e-3, "float32": 1e-5, "float64": 1e-12}


@dataclass(frozen=True)
class Case:
    """An expression, its inputs, its numbers by numpy, and whether the rewrite that is tested applies.

    Without `expected`, the expression as it was written is run beside the one that was rewritten. `applies` is None
    where the condition is the very algorithm.
    """

    outputs: Sequence[Value]
    applies: bool | None
    expected: Sequence[np.ndarray] | None = None
    exact: bool = False


@dataclass
class Draw:
    """What a case is drawn from; remembers the arrays of the variables that it made."""

    rng: np.random.Generator
    arrays: dict[Value, np.ndarray] = field(default_factory=dict)

    def one(self, *choices: Any) -> Any:
        """One of some choices."""
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, p: float = 0.5) -> bool:
        """True with a probability."""
        return bool(self.rng.uniform() < p)

    def size(self, *, empty: float = 0.05, most: int = 6) -> int:
        """A size: sometimes 0, often 1."""
        return 0 if self.chance(empty) else int(self.rng.integers(1, most + 1))

    def shape(self, least: int = 0, most: int = 5, **sizes: Any) -> list[int]:
        """A shape of a random rank."""
        return [self.size(**sizes) for _ in range(self.rng.integers(least, most + 1))]

    def dtype(self, *names: str) -> str:
        """float32 in half of the cases, else another one of these."""
        return "float32" if self.chance() else self.one(*names)

    def array(self, shape: Sequence[int], dtype: str, strange: float = 0.15) -> np.ndarray:
        """Numbers around 0, with NaN, infinity, zeros of both signs among them in some cases."""
        if np.dtype(dtype).kind in "iub":
            return self.rng.integers(0 if np.dtype(dtype).kind in "ub" else -9, 10, shape).astype(dtype)
        a = self.rng.normal(size=shape).astype(dtype)
        if a.size and self.chance(strange):
            for number in (np.nan, np.inf, -np.inf, 0.0, -0.0):
                a[self.rng.uniform(size=shape) < 0.05] = number
        return a

    def variable(self, shape: Sequence[int], dtype: str = "float32", *, open_axes: float = 0.0,
                 strange: float = 0.15, array: np.ndarray | None = None, unknown: float = 0.0,
                 first: str = "") -> Value:
        """An input with numbers; each axis has a symbolic size with a probability, or none at all, the first a name."""
        name = f"x{len(self.arrays)}"
        array = self.array(shape, dtype, strange) if array is None else array
        sizes = [(None if self.chance(unknown) else f"{name}_{i}") if self.chance(open_axes) else n
                 for i, n in enumerate(array.shape)]
        v = variable(name, dtype, [first, *sizes[1:]] if first else sizes)
        self.arrays[v] = array
        return v

    def filled(self, number: float, shape: Sequence[int], dtype: str) -> Value:
        """A constant of one number."""
        return constant(np.full(shape, number, dtype))

    def of(self, v: Value) -> np.ndarray:
        """The numbers of a variable or a constant."""
        return self.arrays[v] if v.array is None else v.array


def run(draw: Draw, outputs: Sequence[Value]) -> list[np.ndarray]:
    """The numbers of expressions of the variables of a draw."""
    model = build(list(draw.arrays), {f"y{i}": y for i, y in enumerate(outputs)})
    return list(Session(model).run({v.hint: a for v, a in draw.arrays.items()}).values())


def assert_equal(actual: np.ndarray, expected: np.ndarray, exact: bool, where: str) -> None:
    """Equal numbers, NaN and infinity in the same places, or equal up to rounding relative to the largest number."""
    assert actual.shape == expected.shape, where
    if exact or actual.dtype.kind not in "f":
        np.testing.assert_array_equal(actual, expected.astype(actual.dtype), where)
        return
    finite = expected[np.isfinite(expected)]
    scale = max(1.0, float(abs(finite).max()) if finite.size else 0.0)
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=0,
                               atol=TOLERANCE[str(actual.dtype)] * scale, err_msg=where)


def check_rewrite(make: Callable[[Draw], Case], rewrite: Callable[[Sequence[Value]], Sequence[Value]], seed: int,
                  count: int, least: int = 2) -> Counter[bool]:
    """Draw cases, and compare each after the rewrite with numpy; it has to apply exactly where the case says so.

    Some of them lie on either side, or the test would prove nothing.
    """
    sides: Counter[bool] = Counter()
    for i in range(count):
        draw, where = Draw(np.random.default_rng([seed, i])), f"seed {seed}, case {i}"
        case = make(draw)
        rewritten = list(rewrite(case.outputs))
        applied = any(a is not b for a, b in zip(rewritten, case.outputs, strict=True))
        assert case.applies in (None, applied), f"{where}: {case.outputs}, {list(draw.arrays)}"
        sides[applied] += 1
        if not applied and case.expected is None:
            continue
        for a, b in zip(rewritten, case.outputs, strict=True):
            assert a.dtype == b.dtype, where
            assert a.shape == b.shape or b.shape is None or None in b.shape, where
        if not applied and sides[False] > least + 2:  # Nothing was rewritten: a few show that numpy computes the same.
            continue
        actual = run(draw, rewritten)
        for v, a in zip(rewritten, actual, strict=True):  # The shape that a rewrite states is that of the numbers.
            stated = a.shape if v.shape is None else tuple(
                n if isinstance(n, int) else m for n, m in zip(v.shape, a.shape, strict=True))
            assert stated == a.shape, f"{where}: {v}, {a.shape}"
        for a, b in zip(actual, run(draw, case.outputs) if case.expected is None else case.expected, strict=True):
            assert_equal(a, np.asarray(b), case.exact, f"{where}: {case.outputs}, {list(draw.arrays)}")
    assert min(sides[True], sides[False]) >= least, sides
    return sides
