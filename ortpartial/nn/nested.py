"""Nested outputs: tuples, lists and dicts of values, as values by name and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from ortpartial.exceptions import GraphError

__all__ = ["Nested", "flatten", "rebuild"]

#: What code takes and returns: values or arrays, or tuples, lists and dicts of them.
Nested: TypeAlias = Any


def flatten(tree: Nested, prefix: str) -> dict[str, Nested]:
    """The leaves of a structure by name.

    Parameters
    ----------
    tree : object
        Tuples, lists and dicts of leaves; None is no leaf.
    prefix : str
        The name of a single leaf; others add ``_`` and their place or key.

    Returns
    -------
    dict of str to object

    Raises
    ------
    GraphError
        Two leaves have the same name.

    Examples
    --------
    >>> flatten((1, {"a": 2}), "loss")
    {'loss_0': 1, 'loss_1_a': 2}
    """
    if tree is None:
        return {}
    if not isinstance(tree, (dict, tuple, list)):
        return {prefix: tree}
    leaves: dict[str, Nested] = {}
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        for name, leaf in flatten(part, f"{prefix}_{key}").items():
            if name in leaves:
                raise GraphError(f"Two of the values that are returned would be called {name!r}; rename the key "
                                 f"{key!r}.")
            leaves[name] = leaf
    return leaves


def rebuild(tree: Nested, prefix: str, leaves: Mapping[str, Nested]) -> Nested:
    """The structure with other leaves.

    Parameters
    ----------
    tree : object
        As for `flatten`.
    prefix : str
        As for `flatten`.
    leaves : dict of str to object
        The other leaves, by the names of `flatten`.

    Returns
    -------
    object

    Examples
    --------
    >>> rebuild((1, {"a": 2}), "loss", {"loss_0": "x", "loss_1_a": "y"})
    ('x', {'a': 'y'})
    """
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: rebuild(part, f"{prefix}_{key}", leaves) for key, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        parts = [rebuild(part, f"{prefix}_{i}", leaves) for i, part in enumerate(tree)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return leaves[prefix]
