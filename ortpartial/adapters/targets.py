"""Targets: which products of a model patterns stand for."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from onnx import NodeProto

from ortpartial.checks import check_names
from ortpartial.exceptions import ModelWarning, SettingError
from ortpartial.model import read_scope

from .products import PROJECTIONS, Part, Product

__all__ = ["choose_parts", "list_patterns", "match_parts"]

#: Parts of names that say that a module belongs to attention.
_ATTENTION = re.compile(r"attn|attention|attend|^[qkvo]_proj$|^qkv(_proj)?$|^out_proj$", re.IGNORECASE)


def choose_parts(products: Sequence[Product], targets: str | Sequence[str],
                 closed: Sequence[NodeProto] = ()) -> list[tuple[Product, list[Part]]]:
    """The products that targets stand for, and the parts of each.

    Parameters
    ----------
    products : sequence of Product
        All products of a model.
    targets : str or sequence of str
        ``"linear"``, ``"attention"``, or patterns of `fnmatch` over the names of modules, nodes and weights; a name may
        stand for the end of a module's, as ``"q_proj"`` does.
    closed : sequence of onnx.NodeProto
        The products that have no place for an adapter, for messages about them.

    Returns
    -------
    list of tuple of Product and list of Part

    Raises
    ------
    SettingError
        A target matches nothing.

    Warns
    -----
    ModelWarning
        A target stands for products that have no place for an adapter, beside others.
    """
    chosen: dict[tuple[str, str], None] = {}
    for pattern in list_patterns(targets):
        matching = [(product.name, part.name) for product in products for part in match_parts(product, pattern)]
        problem = _explain_closed(closed, pattern)
        if not matching:
            raise SettingError(problem or _explain_nothing(products, pattern))
        if problem:
            warnings.warn(problem, ModelWarning, stacklevel=6)
        chosen.update(dict.fromkeys(matching))
    if not chosen:
        raise SettingError("targets is empty; name at least one pattern, such as 'linear' or '*q_proj*'.")
    return [(product, parts) for product in products
            if (parts := [part for part in product.parts if (product.name, part.name) in chosen])]


def list_patterns(targets: str | Sequence[str]) -> list[str]:
    """The patterns, given as a list or singly."""
    return list(check_names("targets", targets))


def match_parts(product: Product, pattern: str) -> Sequence[Part]:
    """The parts of a product that a pattern stands for: its named parts, or all where the product itself is named."""
    if pattern == "linear":
        return product.parts if product.is_linear and not product.is_head else ()
    if pattern == "attention":
        is_attention = any(_ATTENTION.search(s) for s in product.name.split("."))
        return product.parts if product.is_linear and is_attention else ()
    if named := [part for part in product.parts if _names(pattern, part.name)]:
        return named
    if _names(pattern, product.name) or fnmatchcase(product.weight, pattern) or fnmatchcase(product.node_name, pattern):
        return product.parts
    return ()


def _names(pattern: str, module: str) -> bool:
    """Whether a pattern stands for a module: by its name, or by the end of it."""
    return fnmatchcase(module, pattern) or f".{module}".endswith(f".{pattern}")


def _explain_closed(closed: Sequence[NodeProto], pattern: str) -> str | None:
    """Why no adapter stands beside the products that a pattern means, where these have no place for it."""
    for node in closed:
        scope = read_scope(node) or read_scope(NodeProto(name=node.output[0])) or ""
        names = [scope, *(f"{scope}.{name}" for name in PROJECTIONS if node.op_type == "QAttention")]
        is_meant = {"linear": "Conv" not in node.op_type, "attention": any(map(_ATTENTION.search, scope.split(".")))}
        if is_meant.get(pattern, fnmatchcase(node.name, pattern) or any(_names(pattern, name) for name in names)):
            return (f"The target {pattern!r} stands for {node.op_type} {node.name!r}, which has no place for an "
                    f"adapter; quantize the model in the QDQ format, or without having fused its attention.")
    return None


def _explain_nothing(products: Sequence[Product], pattern: str) -> str:
    """Why a pattern matches nothing, with names that are near to it or some of all."""
    names = list(dict.fromkeys(part.name for product in products for part in product.parts))
    if not names:
        return ("The model has no product for an adapter to be added to: no MatMul, Gemm, Conv, Gather or MatMulNBits "
                "with a constant weight.")
    lasts = [n.rpartition(".")[2] for n in names]
    sets = [n for n in ("linear", "attention") if n != pattern]
    if near := get_close_matches(pattern.strip("*"), dict.fromkeys([*sets, *lasts, *names]), n=2, cutoff=0.6):
        meant = (repr(n if n in sets else f"*{n}*") for n in near)
        return f"The target {pattern!r} matches nothing; did you mean {' or '.join(meant)}?"
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"The target {pattern!r} matches none of {', '.join(map(repr, names[:6]))}{more}."
