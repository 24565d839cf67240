"""Weights with their adapters: the formula of each kind, computed some rows at a time.

    LoRA    W + s A B
    DoRA    m / ‖W + s A B‖ ∘ (W + s A B)
    IA3     l ∘ W

A row is an output here, or a row of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ortpartial.model import Target

from .products import Product, read_attributes

__all__ = ["Change", "make_bias_change", "make_change"]

#: From rows of a weight, and the slice that they are of all rows, to the changed rows.
Change = Callable[[np.ndarray, slice], np.ndarray]

#: The least square of a norm: a column of zeros stays so.
_TINY = 1e-30


def make_change(product: Product, targets: Sequence[Target], arrays: Mapping[str, np.ndarray]) -> Change:
    """The weight of a product with its adapter.

    Parameters
    ----------
    product : Product
        The product.
    targets : sequence of Target
        The parts of it with an adapter.
    arrays : dict of str to numpy.ndarray
        The weights of the adapter.

    Returns
    -------
    callable
        From rows of shape (n, inputs * size of the kernel), and their slice, to rows of float64: outputs, or rows of a
        table, which have all of its columns.
    """
    weights = [{role: arrays[n].astype(np.float64) for role, n in target.weights.items()} for target in targets]
    if product.is_table:
        return partial(_change_table, targets[0], weights[0])
    size = int(np.prod(product.kernel))
    for target, of_target in zip(targets, weights, strict=True):
        if product.kernel and "lora_A" in of_target:
            of_target["lora_A"] = of_target["lora_A"].reshape(len(of_target["lora_A"]), -1).T
            of_target["lora_B"] = of_target["lora_B"].reshape(len(of_target["lora_B"]), -1).T
        if "ia3_l" in of_target and target.feedforward:
            of_target["ia3_l"] = np.repeat(of_target["ia3_l"].ravel(), size)
        if "lora_B" in of_target:  # Gemm and FusedMatMul have a factor of their own.
            gain = read_attributes(product.node).get("alpha", 1.0) if not product.kernel else 1.0
            of_target["lora_B"] = of_target["lora_B"] * (target.scale / gain)
    return partial(_change_outputs, targets, weights)


def _change_table(target: Target, weights: Mapping[str, np.ndarray], rows: np.ndarray, chosen: slice) -> np.ndarray:
    """Rows of a table."""
    return rows + target.scale * weights["lora_A"][chosen] @ weights["lora_B"]


def _change_outputs(targets: Sequence[Target], weights: Sequence[Mapping[str, np.ndarray]], rows: np.ndarray,
                    chosen: slice) -> np.ndarray:
    """Rows of a weight, of which some belong to each target."""
    changed = rows.astype(np.float64)
    for target, of_target in zip(targets, weights, strict=True):
        start, stop = max(chosen.start, target.start), min(chosen.stop, target.stop)
        if start < stop:
            here = slice(start - chosen.start, stop - chosen.start)
            part = slice(start - target.start, stop - target.start)
            changed[here] = _change_part(target, of_target, changed[here], part)
    return changed


def _change_part(target: Target, weights: Mapping[str, np.ndarray], w: np.ndarray, part: slice) -> np.ndarray:
    """Rows that belong to a single target, of which they are a part."""
    if "ia3_l" in weights:
        factors = weights["ia3_l"].ravel()
        return w * (factors if target.feedforward else factors[part, None])
    change = (weights["lora_A"] @ weights["lora_B"][:, part]).T
    if "factor" in weights:  # The adapter was read from a deployed adapter, where B holds the factor.
        return w * weights["factor"].ravel()[part, None] + change
    if "magnitude" not in weights:
        return w + change
    norms = np.sqrt(np.maximum(np.square(w + change).sum(axis=1), _TINY))
    return (w + change) * (weights["magnitude"].ravel()[part] / norms)[:, None]


def make_bias_change(targets: Sequence[Target], arrays: Mapping[str, np.ndarray], outputs: int) -> np.ndarray | None:
    """The factors of the bias of a product, which IA3 multiplies as well; None where it stays.

    Parameters
    ----------
    targets : sequence of Target
        The parts of the product with an adapter.
    arrays : dict of str to numpy.ndarray
        The weights of the adapter.
    outputs : int
        How many numbers the bias has.

    Returns
    -------
    numpy.ndarray of float64, shape (outputs,), or None
    """
    factors = np.ones(outputs)
    for target in targets:
        if "ia3_l" in target.weights and not target.feedforward:
            factors[target.start : target.stop] = arrays[target.weights["ia3_l"]].ravel()
    return None if (factors == 1).all() else factors
