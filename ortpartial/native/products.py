"""C functions of matrix products, whose sizes and strides are constants."""

from dataclasses import dataclass
from math import isinf, isnan

import numpy as np

__all__ = ["LARGE", "ProductShape", "is_large", "scratch_elements", "write_large_call", "write_product"]

#: Multiplications from which on a product is left to a kernel with sizes at run time; within a file that is complete in
#: itself, whose compilation the text of the kernel prolongs by a second, they have to be more.
LARGE, _LARGE_INSIDE = 2**18, 2**22

#: Rows and columns that such a product has at least, and the products of a sum that is not short.
_LEAST_ROWS, _LEAST_COLUMNS, _LONG = 4, 8, 16


@dataclass(frozen=True)
class ProductShape:
    """A product alpha A B + beta D of matrices A (m, k), B (k, n) and D (m, n): its sizes and its strides in elements.

    Parameters
    ----------
    m, n, k : int
        Rows of the result, its columns, and the length of the sums.
    a : tuple of int
        Strides of A by row and by k. A transposed matrix has its strides swapped.
    b : tuple of int
        Strides of B by k and by column.
    c : int
        Stride of the result by row. Its columns are contiguous.
    dtype : str
        ``"float"``, ``"double"``, or ``"bfloat16"``: floats that are rounded to it, with a result and sums of float.
    alpha : float
        Factor of the product.
    addend : tuple of int, optional
        Strides of D by row and by column, (0, 1) for a bias. D may be the result itself, with the strides of that.
    beta : float
        Factor of the addend.
    """

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: tuple[int, int]
    c: int
    dtype: str = "float"
    alpha: float = 1.0
    addend: tuple[int, int] | None = None
    beta: float = 1.0


def is_large(shape: ProductShape, is_linked: bool) -> bool:
    """Return whether a kernel with sizes at run time computes a product.

    Parameters
    ----------
    shape : ProductShape
        The product.
    is_linked : bool
        Whether the kernel is in a library of its own.
    """
    if shape.dtype == "bfloat16":  # Nothing else computes it.
        return True
    work = shape.m * shape.n * shape.k
    if shape.k < _LONG:  # The sums take as long as writing them does, for which a specialized product is better.
        work //= 4
    return (shape.m >= _LEAST_ROWS and shape.n >= _LEAST_COLUMNS
            and work >= (LARGE if is_linked else _LARGE_INSIDE))


def scratch_elements(shape: ProductShape, is_large: bool = False) -> int:
    """Return how many elements of memory a product needs: for panels of its operands and a transposed result."""
    if shape.dtype == "bfloat16":  # OP_PAIRS_SCRATCH
        return min(shape.m, 2058) * (256 + 16) + -(-min(shape.n, 512) // 32) * 32 * 256
    if is_large:  # OP_LARGE_SCRATCH, with the most rows and lanes
        return 512 * (12 + 2048 // (4 if shape.dtype == "float" else 8)) + 3 * 16
    m, n = shape.m, shape.n
    panel, transposed = min(shape.k, 128) * min(max(m, n) + 15, 256), m * n if n < 16 else 0
    return panel + transposed


def write_product(shape: ProductShape, name: str) -> str:
    """Return a C function of a product, which stands after the text of prelude.c.

    It is ``static void name(const T *restrict a, const T *restrict b, const T *d, T *c, T *restrict scratch)``, T being
    the dtype. The result c may be d, not a or b; d is not read where there is no addend, and scratch, of
    `scratch_elements`, may hold anything.
    """
    t = shape.dtype
    parameters = f"const {t} *restrict a, const {t} *restrict b, const {t} *d, {t} *c, {t} *restrict scratch"
    if shape.m == 0 or shape.n == 0:
        body = "    (void)a, (void)b, (void)d, (void)c, (void)scratch;\n"
    else:
        sizes, operands = _normalized(shape)
        alpha, beta = (_literal(x, t) for x in (shape.alpha, 0.0 if shape.addend is None else shape.beta))
        body = (f"    const op_sizes z = {{{', '.join(map(str, sizes))}}};\n"
                f"    {_choose_function(t, *sizes[:7])}(z, {operands}, d, c, scratch, {alpha}, {beta});\n")
    return f"OP_PRODUCT void {name}({parameters}) {{\n{body}}}\n"


def write_large_call(shape: ProductShape, batch: tuple[int, ...], operands: str) -> tuple[str, list[str]]:
    """Return the name of the kernel of large products, and the lines that call it.

    Parameters
    ----------
    shape : ProductShape
        The product.
    batch : tuple of int
        How many products there are, and the distances of the matrices A, B, D and C of two of them.
    operands : str
        The addresses of the first A, B, D and C, and of scratch memory.
    """
    t, name = shape.dtype, f"op_large_{shape.dtype[0]}"
    if t == "bfloat16":
        t, name = "float", "op_bfloat16"
    alpha, beta = (_literal(x, t) for x in (shape.alpha, 0.0 if shape.addend is None else shape.beta))
    sizes = (shape.m, shape.n, shape.k, *shape.a, *shape.b, shape.c, *(shape.addend or (0, 0)))
    return name, [f"const op_sizes z = {{{', '.join(map(str, sizes))}}};",
                  f"const op_batch y = {{{', '.join(map(str, batch))}, OP_THREADS}};",
                  f"{name}(z, y, {operands}, {alpha}, {beta});"]


def _normalized(shape: ProductShape) -> tuple[tuple[int, ...], str]:
    """Return the fields of op_sizes and the order of the operands: a contiguous column is computed as a row."""
    m, n, k, a, b = shape.m, shape.n, shape.k, shape.a, shape.b
    addend = shape.addend or (0, 0)
    if n == 1 and shape.c == 1 and m > 1:
        return (1, m, k, b[1], b[0], a[1], a[0], m, addend[1], addend[0]), "b, a"
    return (m, n, k, *a, *b, shape.c, *addend), "a, b"


def _choose_function(dtype: str, m: int, n: int, k: int, a_row: int, a_k: int, b_k: int, b_column: int) -> str:
    """Return the function of prelude.c that computes a product, for vectors that are not wider than they have to be."""
    widest, letter = (16, "F") if dtype == "float" else (8, "D")
    if a_k == b_k == 1 != b_column and k >= 8 and (m < 4 or (m < 16 and 3 * m < k)):
        return f"OP_{letter}{_round_down(min(k, widest))}(dots)"
    if n < widest and a_row == 1 and m >= 32 and k >= 64:
        return f"OP_{letter}{widest}(flipped)"
    lanes = _round_down(min(n, widest))
    wider = "" if n == lanes or n > widest else f"_{2 * lanes}"
    return f"OP_{letter}{lanes}{wider}(broadcast)"


def _round_down(n: int) -> int:
    """Return the greatest power of 2 that is not greater than n."""
    return 2 ** (n.bit_length() - 1)


def _literal(number: float, dtype: str) -> str:
    """Return a number as a C constant, exactly."""
    if isnan(number) or isinf(number):
        return "NAN" if isnan(number) else "INFINITY" if number > 0 else "-INFINITY"
    text = repr(np.float32(number).item()) if dtype == "float" else repr(float(number))
    return f"{text}f" if dtype == "float" else text
