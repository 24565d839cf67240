"""The functions of prelude.c against numpy in float64, and warnings of compilers about it."""

import ctypes
import math
import shutil
from importlib import resources

import numpy as np
import pytest
from once import ON_NEWEST

from ortpartial.native.compiler import FLAGS, compile_library

pytestmark = [ON_NEWEST, pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")]

PRELUDE = resources.files("ortpartial.native").joinpath("prelude.c").read_text(encoding="utf-8")
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
ONE = ("exp", "expm1", "log", "log1p", "sigmoid", "softplus", "tanh", "erf", "sin", "cos", "tan", "asin", "acos",
       "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "sqrt", "abs", "floor", "ceil", "round", "sign")
TWO = ("pow", "max", "min", "fmod")
C_TYPES = {"f": "float", "d": "double", "i32": "int32_t", "i64": "int64_t"}
DTYPES = {"f": np.float32, "d": np.float64, "i32": np.int32, "i64": np.int64}
#: Not every machine has fused products or vectors.
BUILDS = {"native": (), "plain": ("-ffp-contract=off", "-DOP_LANES=1")}


def write_loops() -> str:
    loops = [PRELUDE]
    functions = [(f, 1, s) for f in ONE for s in "fd"] + [(f, 2, s) for f in TWO for s in "fd"]
    functions += [(f, 2, s) for f in ("div", "mod", "fmod") for s in ("i32", "i64")]
    for function, arity, suffix in functions:
        t = C_TYPES[suffix]
        operands = ("x[i]", "x[i], y[i]")[arity - 1]
        head = f"void {function}_{suffix}(const {t} *x, const {t} *y, {t} *z, int64_t n)"
        loop = f"for (int64_t i = 0; i < n; ++i) z[i] = op_{function}_{suffix}({operands});"
        loops.append(f"{head};\n{head} {{\n    (void)y;\n    {loop}\n}}\n")
    return "".join(loops)


@pytest.fixture(scope="module", params=BUILDS)
def compute(request, tmp_path_factory):
    """Call a loop over a function: compute(name, suffix, x, y)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORTPARTIAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        library = compile_library(write_loops(), flags=(*FLAGS, *WARNINGS, *BUILDS[request.param]))

    def call(name, suffix, x, y=None):
        x = np.ascontiguousarray(x, DTYPES[suffix])
        y = x if y is None else np.ascontiguousarray(y, DTYPES[suffix])
        z = np.empty_like(x)
        arrays = (a.ctypes.data_as(ctypes.c_void_p) for a in (x, y, z))
        library[f"{name}_{suffix}"](*arrays, ctypes.c_int64(x.size))
        return z

    return call


REFERENCES = {
    "sigmoid": lambda x: np.where(x >= 0, 1, np.exp(-abs(x))) / (1 + np.exp(-abs(x))),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-abs(x))),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "round": np.rint, "pow": np.power, "max": np.maximum, "min": np.minimum,
    "sign": np.sign,
}
SPECIAL = np.array([0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 1.5, 2.5, 3, np.inf, -np.inf, np.nan, 88.7228, 88.73, -87.3, -103,
                    -104, 1e-45, -1e-45, 3.4e38, -3.4e38, 1.0000001, 0.99999994], np.float32)


def samples(function) -> np.ndarray:
    """All binades of float, the range that networks use, and what is special."""
    rng = np.random.default_rng(0)
    step = 65537 if function == "erf" else 4099
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    common = [rng.uniform(-r, r, 30000).astype(np.float32) for r in (1, 20, 110)]
    return np.concatenate([bits.view(np.float32), *common, SPECIAL])


def assert_near(computed, expected, units, x):
    """Finite numbers have a relative error of some FLT_EPSILON, or as many least denormals; all others are exact."""
    finite = np.isfinite(expected) & (abs(expected) <= np.finfo(np.float32).max)
    unit = np.finfo(np.float32).eps * np.maximum(abs(expected[finite]), np.finfo(np.float32).tiny)
    errors = abs(computed[finite].astype(np.float64) - expected[finite]) / unit
    assert errors.max() <= units, f"{errors.max():.3f} units at {x[finite][errors.argmax()]!r}"
    np.testing.assert_array_equal(computed[~finite], expected[~finite].astype(np.float32))


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("function", ONE)
def test_functions_of_floats_are_right_in_the_whole_range(compute, function):
    x = samples(function)
    expected = REFERENCES.get(function, getattr(np, function, None))(x.astype(np.float64))
    assert_near(compute(function, "f", x), expected, 2, x)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_powers_are_right_in_the_whole_range(compute):
    rng = np.random.default_rng(1)
    n = 100000
    any_x, any_y = rng.integers(0, 2**32, (2, n), dtype=np.uint32).view(np.float32)
    x = [any_x, np.exp(rng.uniform(-40, 40, n)), rng.uniform(0.9, 1.1, n), rng.uniform(-10, 10, n)]
    y = [any_y, rng.uniform(-3, 3, n), rng.uniform(-900, 900, n), np.rint(rng.uniform(-30, 30, n))]
    x, y = [*x, np.repeat(SPECIAL, SPECIAL.size)], [*y, np.tile(SPECIAL, SPECIAL.size)]
    x, y = np.concatenate(x).astype(np.float32), np.concatenate(y).astype(np.float32)
    assert_near(compute("pow", "f", x, y), np.power(x.astype(np.float64), y.astype(np.float64)), 4, x)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("function", [f for f in ONE if f != "erf"])
def test_functions_of_doubles(compute, function):
    x = np.concatenate([np.random.default_rng(2).uniform(-3, 3, 200), SPECIAL.astype(np.float64)])
    expected = REFERENCES.get(function, getattr(np, function, None))(x)
    np.testing.assert_allclose(compute(function, "d", x), expected, rtol=1e-14)


@pytest.mark.parametrize("suffix", ["f", "d"])
@pytest.mark.parametrize("function", ["max", "min"])
def test_nan_is_the_greatest_and_the_least(compute, function, suffix):
    x, y = np.repeat(SPECIAL, SPECIAL.size), np.tile(SPECIAL, SPECIAL.size)
    np.testing.assert_array_equal(compute(function, suffix, x, y), REFERENCES[function](x, y))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("suffix", ["f", "d"])
def test_remainders_of_floats_have_the_sign_of_the_dividend(compute, suffix):
    x, y = np.repeat(SPECIAL, SPECIAL.size), np.tile(SPECIAL, SPECIAL.size)
    np.testing.assert_array_equal(compute("fmod", suffix, x, y), np.fmod(x, y))


@pytest.mark.parametrize("suffix", ["i32", "i64"])
def test_whole_numbers_are_divided_without_undefined_behavior(compute, suffix):
    least = np.iinfo(DTYPES[suffix]).min
    x = np.array([7, -7, 7, -7, 6, 5, least, least, 0])
    y = np.array([3, 3, -3, -3, 3, 0, -1, 1, -4])
    assert compute("mod", suffix, x, y).tolist() == [1, 2, -2, -1, 0, 0, 0, 0, 0]
    assert compute("fmod", suffix, x, y).tolist() == [1, -1, 1, -1, 0, 0, 0, 0, 0]
    assert compute("div", suffix, x, y).tolist() == [2, -2, -2, 2, 2, 0, least, least, 0]
