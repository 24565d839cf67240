"""Counter-based random numbers: the mask of a Dropout follows from seed, step and position, without hidden state."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ortpartial.autodiff import count_elements
from ortpartial.graph import Value, cast, constant, op

__all__ = ["bits", "draw_mask"]

#: 2³² over the golden ratio, whose multiples lie as far apart as they can, and the factors of MurmurHash3; as int32.
_GOLDEN, _FIRST, _SECOND = -0x61C88647, -0x7A143595, -0x3D4D51CB


def bits(counter: Value, a: Value, b: Value) -> Value:
    """32 bits for each number of a counter, of which the higher follow from all bits of counter and key.

    h = counter · φ + a;  h = (h ⊕ h ≫ 16) · m₁ + b;  (h ⊕ h ≫ 13) · m₂, modulo 2³².

    Parameters
    ----------
    counter : Value
        int32, of any shape; in int32, overflow and all, since 1.19.2 multiplies no uint32.
    a, b : Value
        int32, the key: another key gives another sequence.

    Returns
    -------
    Value
        int32, of the shape of the counter.

    References
    ----------
    .. [1] A. Appleby, MurmurHash3, its finalizer; the key is added in each of the rounds.
    """
    h = _folded(counter * _GOLDEN + a, 16) * _FIRST + b
    return _folded(h, 13) * _SECOND


def _folded(h: Value, n: int) -> Value:
    """h ⊕ h ≫ n."""
    u = op.Cast(h, to=TensorProto.UINT32)
    return op.Cast(op.BitwiseXor(u, op.BitShift(u, n, direction="RIGHT")), to=TensorProto.INT32)


def draw_mask(x: Value, keep: float, seed: Value, k: Value, i: int) -> Value:
    """The mask by which Dropout number i of a model multiplies x in step k: 1 / keep with the probability keep, else 0.

    Parameters
    ----------
    x : Value
        Gives the mask its shape and dtype.
    keep : float
        From 0 to 1.
    seed : Value
        int32, two numbers.
    k : Value
        int64, the number of the step.
    i : int
        The number of the mask: others draw from parts of the sequence that are far apart.

    Returns
    -------
    Value

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import variable
    >>> from ortpartial.runtime import Session
    >>> x, seed, k = variable("x", "float32", [6]), variable("seed", "int32", [2]), variable("k", "int64", [])
    >>> drawn = Session(build([seed, k], {"mask": draw_mask(x, 0.5, seed, k, 0)}))
    >>> drawn.run({"seed": np.int32([1, 2]), "k": np.array(1)})["mask"]
    array([0., 2., 0., 0., 2., 0.], dtype=float32)
    """
    step = 2 * op.Cast(k, to=TensorProto.INT32) + constant([0, 1], np.int32)
    a, b = op.Split(bits(step, *op.Split(seed, num_outputs=2)), num_outputs=2)
    n = count_elements(x)
    size = op.Cast(op.Size(x), to=TensorProto.INT32) if n is None else constant(n, np.int32)
    drawn = bits(op.Range(0, size, 1), a + int(np.array(i * _GOLDEN).astype(np.int32)), b)
    below = drawn <= max(round(keep * 2**32) - 1, 0) - 2**31
    shape = op.Shape(x) if n is None else constant(x.shape, np.int64)
    return op.Reshape(cast(below, x) * (1 / (keep or 1)), shape).stated(x.shape)
