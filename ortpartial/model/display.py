"""Display of a model: one line of text, or a table for a notebook."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING

from ortpartial.graph import walk_nodes

if TYPE_CHECKING:
    from .load import Model

__all__ = ["list_facts", "to_html", "to_text"]


def list_facts(model: Model) -> dict[str, str]:
    """What a model reads, computes and holds, a line each.

    Parameters
    ----------
    model : Model
        The model.

    Returns
    -------
    dict of str to str

    Examples
    --------
    >>> from ortpartial.graph import build, constant, variable
    >>> from ortpartial.model import load
    >>> x, w = variable("x", "float32", ["N", 3]), constant([[1.0], [2.0], [3.0]], hint="w")
    >>> list_facts(load(build([x], {"y": x @ w})))["nodes"]
    '1 (MatMul)'
    """
    nodes = dict.fromkeys(v.node for v in model.values.values() if v.node is not None)
    counts = Counter(node.op_type for node in walk_nodes(reversed(nodes)))
    listed = ", ".join(f"{n} {name}" if n > 1 else name for name, n in counts.most_common(8))
    more = ", ..." if len(counts) > 8 else ""
    numbers = sum(a.size for a in model.arrays.values())
    return {
        "inputs": ", ".join(f"{n} {v.type_name}" for n, v in model.inputs.items()),
        "outputs": ", ".join(f"{n} {v.type_name}" for n, v in model.outputs.items()),
        "nodes": f"{counts.total()} ({listed}{more})",
        "initializers": f"{len(model.arrays)} ({numbers:,} numbers)",
    }


def to_text(model: Model) -> str:
    """A model in one line."""
    facts = list_facts(model)
    return (f"<Model {facts['inputs']} -> {facts['outputs']}; nodes: {facts['nodes'].split()[0]}, initializers: "
            f"{facts['initializers']}>")


def to_html(model: Model) -> str:
    """A model as a table."""
    rows = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in list_facts(model).items())
    return f'<table style="text-align: left"><caption>Model</caption>{rows}</table>'
