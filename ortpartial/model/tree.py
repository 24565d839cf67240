"""The tree of a model's initializers, by the modules that they belong to, as a table of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from onnx import GraphProto

from ortpartial.texts import printable

from .scopes import find_readers, read_scope

__all__ = ["Leaf", "count_modules", "draw_tree", "place_initializers"]

#: Lines up to which a tree is drawn with all its leaves.
_LINES = 60

#: Levels at most: a name may have any number of dots.
_LEVELS = 50

#: Columns between two columns of text.
_GAP = 2


@dataclass(frozen=True)
class Leaf:
    """An initializer in the tree.

    Parameters
    ----------
    path : tuple of str
        The modules from the outermost on, each with the dot behind it, and the initializer's own part of the name.
    type_name : str
        Its dtype and shape.
    size : int
        The number of its elements.
    is_trained : bool
        Whether it is trained.
    note : str
        A further remark.
    """

    path: tuple[str, ...]
    type_name: str
    size: int
    is_trained: bool
    note: str = ""


@dataclass
class _Group:
    """A module: its members by the next part of the name."""

    members: dict[str, _Group | Leaf] = field(default_factory=dict)

    def list_leaves(self) -> Iterator[Leaf]:
        """The leaves at any depth."""
        for member in self.members.values():
            yield from [member] if isinstance(member, Leaf) else member.list_leaves()


@dataclass(frozen=True)
class _Row:
    """A line of the table."""

    label: str
    type_name: str
    numbers: str
    note: str


def place_initializers(graph: GraphProto, names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The place of each initializer in the tree.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph that reads them.
    names : dict of str to str
        The name to show for each initializer, as `Model.main_names`.

    Returns
    -------
    dict of str to tuple of str
        The parts of its name, or of its alias, which have a dot or a slash behind them but for the last; before a name
        without any stands the module of a node that reads it.
    """
    readers = find_readers(graph)
    places = {}
    for n, name in names.items():
        separator = "." if "." in name else "/"
        *modules, last = name.rsplit(separator, _LEVELS)
        scopes = [scope for node, _ in readers.get(n, []) if (scope := read_scope(node))]
        if not modules and scopes:
            separator, modules = ".", scopes[0].split(".")
        places[n] = (*(f"{module}{separator}" for module in modules), last)
    return places


def count_modules(graph: GraphProto, names: Iterable[str]) -> dict[str, int]:
    """How many modules read each initializer; exporters merge initializers of equal content.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph that reads them.
    names : iterable of str
        The initializers.

    Returns
    -------
    dict of str to int
    """
    readers = find_readers(graph)
    return {n: len({read_scope(node) for node, _ in readers.get(n, [])}) for n in names}


def draw_tree(leaves: Iterable[Leaf], *, depth: int | None = None, width: int = 100, has_notes: bool = True
              ) -> list[str]:
    r"""The lines of a table of initializers, in which modules are indented.

    Parameters
    ----------
    leaves : iterable of Leaf
        The initializers.
    depth : int, optional
        The number of levels; deeper levels become a line. By default as many as fit 60 lines, and at least 1.
    width : int
        The number of columns.
    has_notes : bool
        Whether the last column says whether a weight is trained, with further remarks.

    Returns
    -------
    list of str

    Examples
    --------
    >>> leaves = [Leaf(("a.", "fc.", "weight"), "float32[2x3]", 6, True), Leaf(("b",), "float32[]", 1, False, "scalar")]
    >>> print(*draw_tree(leaves), sep="\n")
    initializer  type          numbers
    a.fc.weight  float32[2x3]        6  trained
    b            float32[]           1  scalar
    """
    root = _Group()
    for leaf in leaves:
        group = root
        for part in leaf.path[:-1]:
            inner = group.members.setdefault(part, _Group())
            assert isinstance(inner, _Group)  # Only groups have a dot or a slash behind their names.
            group = inner
        label = leaf.path[-1]
        while label in group.members:  # An initializer has the name that another has in the tree.
            label += "'"
        group.members[label] = leaf
    deepest = _measure(root)
    if depth is None:
        fitting = takewhile(lambda d: len(list(_list_rows(root, d))) <= _LINES, range(2, deepest + 1))
        depth = max(fitting, default=1)
    rows = [_Row("initializer", "type", "numbers", ""), *_list_rows(root, depth)]
    lines = _align(rows if has_notes else [replace(row, note="") for row in rows], width)
    hint = [f"(modules of {depth} out of {deepest} levels)"] if depth < deepest else []
    return [*lines, *hint]


def _walk(group: _Group) -> Iterator[tuple[str, _Group | Leaf]]:
    """The members of a group; a group with a single member is joined with it."""
    for label, member in group.members.items():
        while isinstance(member, _Group) and len(member.members) == 1:
            ((part, member),) = member.members.items()
            label += part
        yield label, member


def _measure(group: _Group) -> int:
    """The number of levels of a group."""
    return 1 + max((_measure(member) for _, member in _walk(group) if isinstance(member, _Group)), default=0)


def _list_rows(group: _Group, depth: int, level: int = 0) -> Iterator[_Row]:
    """The rows of a group, down to a depth."""
    for label, member in _walk(group):
        indented = f"{'  ' * level}{label.rstrip('./') if isinstance(member, _Group) else label}"
        if isinstance(member, Leaf):
            note = ", ".join(filter(None, ["trained" if member.is_trained else "", member.note]))
            yield _Row(indented, member.type_name, f"{member.size:,}", note)
            continue
        leaves = list(member.list_leaves())
        trained = [leaf.size for leaf in leaves if leaf.is_trained]
        note = "trained" if len(trained) == len(leaves) else f"trained: {sum(trained):,}" if trained else "not trained"
        yield _Row(indented, f"{len(leaves)} initializers", f"{sum(leaf.size for leaf in leaves):,}", note)
        if level + 1 < depth:
            yield from _list_rows(member, depth, level + 1)


def _align(rows: Sequence[_Row], width: int) -> list[str]:
    """The rows as lines of equal columns, of which the first and the last are cut to fit."""
    rows = [replace(r, label=printable(r.label), type_name=printable(r.type_name)) for r in rows]
    kind, numbers = (max(map(len, column)) for column in zip(*((r.type_name, r.numbers) for r in rows), strict=True))
    note = max(len(r.note) for r in rows)
    rest = width - kind - numbers - 3 * _GAP
    name = min(max(len(r.label) for r in rows), max(rest - min(note, rest // 3), 12))
    lines = []
    for r in rows:
        line = f"{_cut(r.label, name):{name}}  {r.type_name:{kind}}  {r.numbers:>{numbers}}"
        lines.append(f"{line}  {_cut(r.note, max(rest - name, 12))}".rstrip())
    return lines


def _cut(text: str, width: int) -> str:
    """A text with its middle left out where it is too long, as both ends of a name say most."""
    if len(text) <= width:
        return text
    end = (width - 3) // 2
    return f"{text[: width - 3 - end]}...{text[-end:] if end else ''}"
