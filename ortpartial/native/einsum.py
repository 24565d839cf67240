"""Einsum as matrix products."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ortpartial.graph import Node, Value, constant, op

__all__ = ["expand_einsum"]


def expand_einsum(node: Node) -> Value | None:
    """Sums of products as matrix products, factor after factor.

    Parameters
    ----------
    node : Node
        An Einsum.

    Returns
    -------
    Value or None
        None where sizes or the letters of a factor are repeated.
    """
    left, arrow, result = node.attribute("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        result = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    sizes = {(letter, size) for v, term in zip(node.reads, terms, strict=False)
             for letter, size in zip(term, v.shape or (), strict=False)}
    if "." in left or len(sizes) > len(dict(sizes)) or any(len({*term}) < len(term) for term in terms):
        return None
    (total, *factors), (letters, *others) = node.inputs, terms
    for i, (factor, term) in enumerate(zip(factors, others, strict=True), 2):
        total, letters = _contract((total, letters), (factor, term), {*result}.union(*terms[i:]))
    total, letters = _sum_letters(total, letters, {*result})
    return op.Transpose(total, perm=[letters.index(letter) for letter in result])


def _contract(a: tuple[object, str], b: tuple[object, str], kept: set[str]) -> tuple[Value, str]:
    """The product of two factors, summed over the letters that nothing else has."""
    (x, first), (y, second) = _sum_letters(*a, kept | {*b[1]}), _sum_letters(*b, kept | {*a[1]})
    sizes = {**dict(zip(first, x.shape or (), strict=True)), **dict(zip(second, y.shape or (), strict=True))}
    batch = "".join(letter for letter in first if letter in second and letter in kept)
    summed = "".join(letter for letter in first if letter in second and letter not in kept)
    rows, columns = ("".join(letter for letter in one if letter not in other)
                     for one, other in ((first, second), (second, first)))

    def arrange(v: Value, letters: str, *groups: str) -> Value:
        wide = op.Transpose(v, perm=[letters.index(letter) for letter in batch + "".join(groups)])
        shape = [sizes[letter] for letter in batch] + [prod(sizes[letter] for letter in group) for group in groups]  # type: ignore[misc]
        return op.Reshape(wide, constant(np.array(shape, np.int64)), allowzero=1)

    product = arrange(x, first, rows, summed) @ arrange(y, second, summed, columns)
    letters = batch + rows + columns
    shape = np.array([sizes[letter] for letter in letters], np.int64)
    return op.Reshape(product, constant(shape), allowzero=1), letters


def _sum_letters(v: Any, letters: str, kept: set[str]) -> tuple[Value, str]:
    """A factor, summed over the letters that are not kept, and the letters that are left."""
    axes = [i for i, letter in enumerate(letters) if letter not in kept]
    left = "".join(letter for letter in letters if letter in kept)
    return (op.ReduceSum(v, axes, keepdims=0) if axes else v), left
