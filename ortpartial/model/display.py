"""Display of a model: a line of text, or a card for a notebook; its sizes in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ortpartial.graph import Value, walk_nodes
from ortpartial.texts import printable

__all__ = ["draw_card", "format_bytes", "format_flops", "list_facts"]


def list_facts(inputs: Mapping[str, Value], outputs: Mapping[str, Value], values: Iterable[Value],
               arrays: Collection[np.ndarray]) -> dict[str, str]:
    """Inputs, outputs and contents of a model, a line each.

    Parameters
    ----------
    inputs, outputs : dict of str to Value
        Its inputs and outputs by name.
    values : iterable of Value
        All of its values.
    arrays : collection of numpy.ndarray
        The content of its initializers.

    Returns
    -------
    dict of str to str

    Examples
    --------
    >>> from ortpartial.graph import constant, variable
    >>> x, w = variable("x", "float32", ["N", 3]), constant([[1.0], [2.0], [3.0]], hint="w")
    >>> y = x @ w
    >>> list_facts({"x": x}, {"y": y}, [x, w, y], [w.array])["nodes"]
    '1 (MatMul)'
    """
    nodes = dict.fromkeys(v.node for v in values if v.node is not None)
    counts = Counter(node.op_type for node in walk_nodes(reversed(nodes)))
    listed = ", ".join(f"{n} {name}" if n > 1 else name for name, n in counts.most_common(8))
    more = ", ..." if len(counts) > 8 else ""
    numbers = sum(a.size for a in arrays)
    facts = {
        "inputs": ", ".join(f"{n} {v.type_name}" for n, v in inputs.items()),
        "outputs": ", ".join(f"{n} {v.type_name}" for n, v in outputs.items()),
        "nodes": f"{counts.total()} ({listed}{more})",
        "initializers": f"{len(arrays)} ({numbers:,} numbers)",
    }
    return {n: printable(fact) for n, fact in facts.items()}


def draw_card(title: str, rows: Mapping[str, str], picture: str = "",
              texts: Mapping[str, Sequence[str]] = MappingProxyType({})) -> str:
    """A card for a notebook: a table, a picture, and texts that can be unfolded.

    Parameters
    ----------
    title : str
        The title.
    rows : dict of str to str
        The rows of the table, by their names.
    picture : str
        HTML that is shown as it is, such as SVG.
    texts : dict of str to sequence of str
        Lines of texts of equal width, by their titles.

    Returns
    -------
    str
        HTML; its texts are escaped, and the colors are the page's.

    Examples
    --------
    >>> draw_card("A", {"b": "<c>"}).partition("left")[2]
    '"><tr><th>b</th><td>&lt;c&gt;</td></tr></table></details>'
    """
    from html import escape  # Its table of entities takes milliseconds.

    shown = {name: printable(text, keep="\n") for name, text in rows.items()}
    cells = "".join(f'<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in shown.items())
    folded = "".join(f'<details><summary>{escape(name)}</summary><pre style="line-height: 1.25; overflow-x: auto">'
                     f'{escape(chr(10).join(map(printable, lines)))}</pre></details>' for name, lines in texts.items())
    return (f'<details open><summary><b>{escape(title)}</b></summary><table style="text-align: left">{cells}</table>'
            f'{picture}{folded}</details>')


def format_bytes(size: float) -> str:
    """A number of bytes in words.

    Parameters
    ----------
    size : float
        The number.

    Returns
    -------
    str

    Examples
    --------
    >>> format_bytes(300), format_bytes(3.2e6)
    ('300 B', '3.1 MB')
    """
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"


def format_flops(flops: float, unit: str = "") -> str:
    """A number of floating-point operations with three digits and a prefix.

    Parameters
    ----------
    flops : float
        The number.
    unit : str
        Their unit, such as "FLOPs".

    Returns
    -------
    str

    Examples
    --------
    >>> format_flops(999), format_flops(1234), format_flops(45.6e6, "FLOPs")
    ('999', '1.23 k', '45.6 MFLOPs')
    """
    prefixes = ["", "k", "M", "G", "T", "P", "E"]
    while flops >= 999.5 and len(prefixes) > 1:
        flops /= 1000
        del prefixes[0]
    return f"{flops:.3g} {prefixes[0]}{unit}".rstrip()
