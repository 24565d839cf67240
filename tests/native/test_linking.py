"""Links of a step: kernels of large products against numpy, on any number of threads, and constants."""

import ctypes
import os
import shutil
import threading
import warnings

import ml_dtypes
import numpy as np
import pytest
from once import ON_NEWEST

from ortpartial.graph import constant, op, variable
from ortpartial.native import translate
from ortpartial.native.compiler import FLAGS, compile_library
from ortpartial.native.linking import KERNELS, Links, find_address, read_text

pytestmark = [ON_NEWEST, pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")]

PARAMETERS = ("m", "n", "k", "a_row", "a_k", "b_k", "b_column", "c_row", "d_row", "d_column")


class Sizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ssize_t) for name in PARAMETERS]


class Batch(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ssize_t) for name in ("count", "a", "b", "d", "c", "threads")]


def get_kernel(dtype, library=None, rounds=False):
    kind = ctypes.c_float if dtype == np.float32 else ctypes.c_double
    name = "op_bfloat16" if rounds else f"op_large_{'f' if dtype == np.float32 else 'd'}"
    signature = ctypes.CFUNCTYPE(None, Sizes, Batch, *[ctypes.c_void_p] * 5, kind, kind)
    return signature(find_address(name) if library is None else ctypes.cast(library[name], ctypes.c_void_p).value)


SCRATCH = np.zeros(2**21 + 64, np.uint8)


def multiply(kernel, a, b, c, d=None, alpha=1.0, beta=0.0, threads=1):
    """C = alpha A B + beta D of matrices of any strides, or of three axes each."""
    def strides(x):
        steps = [0] * c.ndim if x is None else [s // c.itemsize for s in x.strides]
        return [*steps, *[0] * 3][: c.ndim] if c.ndim == 3 else [0, *steps]

    (na, a_row, a_k), (nb, b_k, b_column), (nc, c_row, _), (nd, d_row, d_column) = map(strides, (a, b, c, d))
    SCRATCH[:] = 255  # NaN, which no number may depend on.
    kernel(Sizes(*c.shape[-2:], a.shape[-1], a_row, a_k, b_k, b_column, c_row, d_row, d_column),
           Batch(len(c) if c.ndim == 3 else 1, na, nb, nd, nc, threads), a.ctypes.data, b.ctypes.data,
           None if d is None else d.ctypes.data, c.ctypes.data, SCRATCH.ctypes.data + -SCRATCH.ctypes.data % 64,
           alpha, beta)
    return c


def draw_matrix(rng, batch, rows, columns, dtype):
    """A matrix: contiguous, transposed, of longer rows, or of columns that are apart."""
    kind, more = rng.integers(4), int(rng.integers(9))
    if kind == 0:
        return rng.standard_normal((*batch, rows, columns)).astype(dtype)
    if kind == 1:
        return rng.standard_normal((*batch, columns, rows)).astype(dtype).swapaxes(-1, -2)
    if kind == 2:
        return rng.standard_normal((*batch, rows, columns + more)).astype(dtype)[..., more:]
    return rng.standard_normal((*batch, 2 * rows, 3 * columns)).astype(dtype)[..., ::2, ::3]


def draw_size(rng, largest):
    """A size around a limit of blocks, tiles or vectors, or any."""
    limits = [n + int(rng.integers(-1, 2)) for n in (6, 12, 16, 32, 64, 256, 512) if n < largest]
    return max(1, int(rng.choice([rng.integers(1, 70), rng.integers(1, largest), *limits])))


def check_random_products(seed, count, largest=560, library=None, rounds=False):
    """Products of float32 and float64, or in bfloat16; each by one thread, two and three."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        dtype = np.float32 if rounds else [np.float32, np.float64][rng.integers(2)]
        kernel = get_kernel(dtype, library, rounds)
        m, n, k = (draw_size(rng, largest) for _ in range(3))
        batch = ((), (), (3,), (5,))[rng.integers(4)]
        a, b = draw_matrix(rng, batch, m, k, dtype), draw_matrix(rng, batch, k, n, dtype)
        whole = np.full((*batch, m, n + 5), np.nan, dtype)
        c, kind = whole[..., :n], rng.integers(5)
        c[...] = rng.standard_normal(c.shape)
        bias, column = rng.standard_normal(n).astype(dtype), rng.standard_normal((m, 1)).astype(dtype)
        d = (None, np.broadcast_to(bias, c.shape), np.broadcast_to(column, c.shape),
             draw_matrix(rng, batch, m, n, dtype), c)[kind]
        alpha, beta = rng.choice([1.0, -0.5, 2.0]), 0.0 if d is None else rng.choice([1.0, 0.25, 0.0])
        exact_a, exact_b = (x.astype(ml_dtypes.bfloat16).astype(float) if rounds else x.astype(float) for x in (a, b))
        expected = alpha * (exact_a @ exact_b) + (beta * d.astype(float) if beta else 0)
        first = c.copy()
        result = multiply(kernel, a, b, c, d, alpha, beta).copy()
        tolerance = 2e-6 if dtype == np.float32 else 1e-14
        assert abs(result - expected).max() <= tolerance * max(abs(expected).max(), 1), (m, n, k, kind)
        assert np.isnan(whole[..., n:]).all()
        for threads in (2, 3):
            c[...] = first
            np.testing.assert_array_equal(multiply(kernel, a, b, c, d, alpha, beta, threads), result)


def test_large_products_are_right_and_of_the_same_bits_on_any_number_of_threads():
    check_random_products(0, 60)


def test_products_in_bfloat16():
    """Operands are rounded to it, sums are those of float32."""
    check_random_products(1, 25, rounds=True)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-U__AVX512BF16__",), ("-U__AVX512BF16__", "-DOP_LANES=1")],
                         ids=["native", "floats", "1"])
def test_products_in_bfloat16_by_any_instructions(flags):
    texts = map(read_text, ("prelude", "support", "threads", "bfloat16"))
    warned = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unused-function")
    head = "#define _POSIX_C_SOURCE 200809L\n#define OP_POOL\n#define OP_KERNEL\n"
    library = compile_library(head + "\n".join(texts), flags=(*FLAGS, *warned, *flags))
    check_random_products(len(flags), 300, library=library, rounds=True)


@pytest.mark.parametrize("special", [np.nan, np.inf, 3.4e38, 1e-40, 1.00390625, 1.01171875])
def test_bfloat16_rounds_as_numpy(special):
    """NaN and infinity, overflow, denormal numbers, which count as 0, and ties between even and odd."""
    a, b = np.full((3, 5), special, np.float32), np.eye(5, 20, dtype=np.float32)
    result = multiply(get_kernel(np.float32, rounds=True), a, b, np.empty((3, 20), np.float32))
    with np.errstate(all="ignore"):
        expected = a.astype(ml_dtypes.bfloat16).astype(np.float32) @ b
    np.testing.assert_allclose(result, expected, atol=1e-38)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-DOP_LANES=8",), ("-DOP_LANES=4",), ("-DOP_LANES=1", "-ffp-contract=off")],
                         ids=["native", "8", "4", "1"])
def test_large_products_with_vectors_of_any_width(flags):
    """Where a library has fewer lanes, no vector is a part of one."""
    texts = map(read_text, ("prelude", "support", "threads", "large_products"))
    warned = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unused-function")
    head = "#define _POSIX_C_SOURCE 200809L\n#define OP_POOL\n#define OP_KERNEL\n"
    library = compile_library(head + "\n".join(texts), flags=(*FLAGS, *warned, *flags))
    check_random_products(len(flags), 400, library=library)


def make_product():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((300, 300)).astype(np.float32) for _ in range(2))
    return get_kernel(np.float32), a, b, multiply(get_kernel(np.float32), a, b, np.empty_like(a))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_process_has_threads_of_its_own():
    kernel, a, b, expected = make_product()
    multiply(kernel, a, b, np.empty_like(a), threads=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on warns of forks beside threads.
        child = os.fork()
    if not child:
        results = [multiply(kernel, a, b, np.empty_like(a), threads=2) for _ in range(3)]
        os._exit(0 if all((result == expected).all() for result in results) else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(multiply(kernel, a, b, np.empty_like(a), threads=2), expected)


def test_products_of_several_threads_of_python():
    """The pool serves one of them; the others compute alone."""
    kernel, a, b, expected = make_product()
    scratch = [np.zeros(2**21, np.uint8) for _ in range(3)]
    results = [np.empty_like(a) for _ in scratch]

    def run(memory, result):
        for _ in range(20):
            kernel(Sizes(300, 300, 300, 300, 1, 300, 1, 300, 0, 0), Batch(1, 0, 0, 0, 0, 2), a.ctypes.data,
                   b.ctypes.data, None, result.ctypes.data, memory.ctypes.data + -memory.ctypes.data % 64, 1.0, 0.0)

    runs = [threading.Thread(target=run, args=pair) for pair in zip(scratch, results, strict=True)]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()
    for result in results:
        np.testing.assert_array_equal(result, expected)


def write_step(*, is_linked):
    x = variable("x", "float32", [40, 300])
    w = constant(np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32))
    y = op.MatMul(x, w)
    return translate({"x": x}, {"y": y, "loss": constant(0.0, np.float32)}, rows=[], state={"x": "y"}, loss="loss",
                     is_linked=is_linked)


def test_constants_and_kernels_are_linked():
    linked, whole = write_step(is_linked=True), write_step(is_linked=False)
    assert linked.links.fields == ("threads_", "op_large_f_", "c0_")
    threads, kernel, table = linked.links.find(3)
    assert (threads, kernel) == (3, find_address("op_large_f"))
    assert table == linked.links.tables[0].content.ctypes.data
    assert len(linked.source) < len(whole.source) / 10
    assert whole.links == Links()


def test_kernels_have_types_of_their_own():
    files = {"threads", "large_products", "convolutions", "bfloat16"}
    assert all(set(kernel.files) <= files for kernel in KERNELS.values())
    assert Links(("op_large_d",)).define_kernels().count("OP_KERNEL void op_large_") == 1
