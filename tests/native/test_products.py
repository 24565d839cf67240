"""Matrix products in C against numpy in float64."""

import ctypes
import itertools
import shutil
import subprocess
from importlib import resources

import numpy as np
import pytest
from once import ON_NEWEST

from ortpartial.native.compiler import FLAGS, compile_library
from ortpartial.native.products import ProductShape, is_large, scratch_elements, write_product

pytestmark = [ON_NEWEST, pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")]

PRELUDE = resources.files("ortpartial.native").joinpath("prelude.c").read_text(encoding="utf-8")
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
#: Flags, and how many of the products are left out between two.
BUILDS = {"native": ((), 1), "8 lanes": (("-DOP_LANES=8",), 2), "4 lanes": (("-DOP_LANES=4",), 3),
          "1 lane": (("-DOP_LANES=1", "-ffp-contract=off"), 4), "clang": ((), 2)}


def make_shapes() -> list[ProductShape]:
    """Products of all forms, of sizes around the widths of vectors, with every kind of addend."""
    sizes = [(1, 100, 20), (1, 1, 100), (10, 20, 100), (100, 1, 10), (5, 7, 1), (33, 17, 9), (13, 100, 3), (2, 3, 31),
             (70, 10, 70), (20, 50, 300), (1, 5, 2), (37, 300, 270), (34, 3, 65)]
    shapes = []
    for i, ((m, n, k), (ta, tb)) in enumerate(itertools.product(sizes, itertools.product((False, True), repeat=2))):
        kind = i // 4 + i
        shapes.append(ProductShape(
            m, n, k, (1, m) if ta else (k, 1), (1, k) if tb else (n, 1), n, "float" if kind % 3 else "double",
            alpha=(1.0, -0.5)[kind % 2], addend=(None, (0, 1), (n, 1), (1, 0), (1, m))[kind % 5],
            beta=(1.0, 0.25)[kind // 2 % 2]))
    wide = ProductShape(9, 40, 12, (20, 1), (50, 1), 45, alpha=2.0, addend=(60, 1))
    still = ProductShape(9, 21, 12, (0, 1), (0, 1), 21)
    scattered = ProductShape(6, 18, 5, (3, 20), (40, 2), 18, addend=(2, 15))
    column = ProductShape(30, 1, 7, (7, 1), (2, 5), 3)
    return [*shapes, wide, still, scattered, column]


SHAPES = make_shapes()


def write_library(numbers) -> str:
    """Some of the products, and a way in to each."""
    texts = [PRELUDE]
    for i in numbers:
        shape = SHAPES[i]
        t = shape.dtype
        head = f"void product{i}(const {t} *a, const {t} *b, const {t} *d, {t} *c, {t} *scratch)"
        texts.append(f"{write_product(shape, f'p{i}')}{head};\n{head} {{ p{i}(a, b, d, c, scratch); }}\n")
    return "".join(texts)


def span(sizes, strides) -> int:
    """Elements from the first to the last of a matrix."""
    return sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1


class Operands:
    """Random operands of a product, in arrays that end where they end."""

    def __init__(self, shape: ProductShape, seed: int):
        rng = np.random.default_rng(seed)
        self.shape, self.dtype = shape, np.dtype({"float": np.float32, "double": np.float64}[shape.dtype])
        m, n, k = shape.m, shape.n, shape.k
        self.a, self.b, self.d = (rng.standard_normal(span(sizes, strides)).astype(self.dtype) for sizes, strides in (
            ((m, k), shape.a), ((k, n), shape.b), ((m, n), shape.addend or (0, 0))))
        self.c = np.full(span((m, n), (shape.c, 1)), np.nan, self.dtype)
        self.scratch = np.full(scratch_elements(shape), np.nan, self.dtype)

    def view(self, array, sizes, strides):
        return np.lib.stride_tricks.as_strided(array, sizes, [s * self.dtype.itemsize for s in strides])

    def call(self, function, d=None):
        arrays = (self.a, self.b, self.d if d is None else d, self.c, self.scratch)
        function(*(array.ctypes.data_as(ctypes.c_void_p) for array in arrays))
        return self.view(self.c, (self.shape.m, self.shape.n), (self.shape.c, 1))

    def expected(self):
        s = self.shape
        a, b = self.view(self.a, (s.m, s.k), s.a).astype(float), self.view(self.b, (s.k, s.n), s.b).astype(float)
        product = s.alpha * (a @ b)
        return product if s.addend is None else product + s.beta * self.view(self.d, (s.m, s.n), s.addend)


def assert_near(result, expected):
    tolerance = {np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-14}[result.dtype]
    assert abs(result - expected).max() <= tolerance * max(abs(expected).max(), 1)


@pytest.fixture(scope="module", params=BUILDS)
def library(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORTPARTIAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        if request.param == "clang":
            if shutil.which("clang") is None:
                pytest.skip("needs clang")
            patch.setenv("CC", "clang")
        flags, step = BUILDS[request.param]
        numbers = range(step - 1, len(SHAPES), step)
        compiled = compile_library(write_library(numbers), flags=(*FLAGS, *WARNINGS, *flags))
    return {i: compiled[f"product{i}"] for i in numbers}


@pytest.mark.sampled(2)
def test_products_of_all_forms(library):
    for i, function in library.items():
        operands = Operands(SHAPES[i], i)
        before = [array.copy() for array in (operands.a, operands.b, operands.d)]
        assert_near(operands.call(function), operands.expected())
        for array, copy in zip((operands.a, operands.b, operands.d), before, strict=True):
            np.testing.assert_array_equal(array, copy)


def test_nothing_is_written_between_rows(library):
    for i, function in library.items():
        shape = SHAPES[i]
        operands = Operands(shape, i)
        operands.call(function)
        rows = np.append(operands.c, np.full(shape.c - shape.n, np.nan, operands.dtype)).reshape(shape.m, shape.c)
        assert np.isnan(rows[:, shape.n:]).all()
        assert not np.isnan(rows[:, :shape.n]).any()


def test_weights_are_updated_in_place(library):
    for i, function in library.items():
        if SHAPES[i].addend == (SHAPES[i].c, 1):
            operands = Operands(SHAPES[i], i)
            expected = operands.expected()
            operands.c = operands.d
            assert_near(operands.call(function, d=operands.c), expected)


def test_scratch_does_not_matter(library):
    for i, function in library.items():
        operands = Operands(SHAPES[i], i)
        first = operands.call(function).copy()
        operands.scratch[:] = 7
        np.testing.assert_array_equal(operands.call(function), first)


def test_infinity_stays_where_it_is(library):
    for i, function in library.items():
        if SHAPES[i].m > 1 and SHAPES[i].a != (0, 1):
            operands = Operands(SHAPES[i], i)
            operands.a[0] = np.inf
            operands.d[:] = 0
            result = operands.call(function)
            assert not np.isfinite(result[0]).any()
            assert np.isfinite(result[1:]).all()


MAIN = """
#include <stdio.h>
#include <stdlib.h>

static float *fill(long size, unsigned seed) {
    float *x = malloc((size_t)size * sizeof *x);
    for (long i = 0; i < size; ++i) x[i] = (float)((seed = seed * 1664525u + 1013904223u) >> 16) / 65536.0f;
    return x;
}

typedef void (*product_t)(const float *, const float *, const float *, float *, float *);

static int wrong(product_t product, const long *z, float alpha, float beta, const long *spans) {
    float *a = fill(spans[0], 1), *b = fill(spans[1], 2), *d = fill(spans[2], 3), *c = fill(spans[3], 4);
    float *s = fill(spans[4], 5);
    int errors = 0;
    product(a, b, d, c, s);
    for (long i = 0; i < z[0]; ++i)
        for (long j = 0; j < z[1]; ++j) {
            double sum = 0;
            for (long p = 0; p < z[2]; ++p) sum += (double)a[i * z[3] + p * z[4]] * b[p * z[5] + j * z[6]];
            sum = alpha * sum + (beta != 0 ? beta * d[i * z[8] + j * z[9]] : 0);
            errors += !(fabs(c[i * z[7] + j] - sum) <= 1e-5 * (1 + fabs(sum)));
        }
    free(a); free(b); free(d); free(c); free(s);
    return errors;
}
"""


def test_operands_are_not_read_or_written_beyond_their_ends(tmp_path):
    shapes = [shape for shape in SHAPES if shape.dtype == "float"][::3]
    texts = [PRELUDE, MAIN, *(write_product(shape, f"p{i}") for i, shape in enumerate(shapes)), "int main(void) {\n"]
    for i, s in enumerate(shapes):
        addend, beta = s.addend or (0, 0), s.beta if s.addend else 0
        sizes = ", ".join(map(str, (s.m, s.n, s.k, *s.a, *s.b, s.c, *addend)))
        spans = ", ".join(map(str, (
            span((s.m, s.k), s.a), span((s.k, s.n), s.b), span((s.m, s.n), addend), span((s.m, s.n), (s.c, 1)),
            scratch_elements(s))))
        arguments = f"(const long[]){{{sizes}}}, {s.alpha}, {beta}, (const long[]){{{spans}}}"
        texts.append(f'    if (wrong(p{i}, {arguments})) puts("{i}");\n')
    (tmp_path / "main.c").write_text("".join([*texts, "    return 0;\n}\n"]))
    flags = ("-std=c99", "-O1", "-march=native", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    subprocess.run(["cc", *flags, "main.c", "-o", "main", "-lm"], cwd=tmp_path, check=True)
    run = subprocess.run([tmp_path / "main"], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_products_without_rows_or_columns():
    texts = [write_product(ProductShape(m, n, 3, (3, 1), (n, 1), n), f"p{m}") for m, n in ((0, 4), (4, 0))]
    assert all("(void)" in text for text in texts)


def test_large_products_are_left_to_a_kernel():
    """Those of a library from smaller sizes on than within a file that is complete in itself."""
    def ask(m, n, k):
        shape = ProductShape(m, n, k, (k, 1), (n, 1), n)
        return is_large(shape, True), is_large(shape, False)

    assert [ask(64, 64, k) for k in (63, 64, 1023, 1024)] == [
        (False, False), (True, False), (True, False), (True, True)]
    assert [ask(*sizes) for sizes in ((3, 1024, 1024), (1024, 7, 1024), (1024, 256, 1))] == [(False, False)] * 3
