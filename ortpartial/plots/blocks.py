"""The blocks of a model: its nodes by the modules that they come from, equal blocks in a row drawn once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ortpartial.graph import PRODUCTS, VIEWS, Node, Value, topological, walk_back
from ortpartial.model import Model, read_scope

__all__ = ["Block", "Repeat", "collapse", "find_blocks"]

#: Operators that move numbers, which say little about a block that computes any.
_MOVES = VIEWS | {"Cast", "Concat", "Constant", "Expand", "Gather", "Shape", "Slice", "Split", "Transpose"}

#: Operators that say less than others where a block has many.
_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Neg", "Pow", "Sqrt", "Sub", "Where"})

#: Operators that are listed.
_OPERATORS = 4

#: Blocks that a picture has room for.
_ROOM = 16


@dataclass
class Block:
    """Consecutive nodes of a module, or an input of the model.

    Parameters
    ----------
    path : tuple of str
        The module, from the outermost on.
    nodes : list of Node
        Its nodes; none for an input.
    weights : dict of str to Value
        The weights that they read, by name.
    reads : dict of int to Value
        Their inputs from other blocks, by the numbers of these.
    """

    path: tuple[str, ...]
    nodes: list[Node] = field(default_factory=list)
    weights: dict[str, Value] = field(default_factory=dict)
    reads: dict[int, Value] = field(default_factory=dict)

    def summarize(self) -> list[str]:
        """Its operators in their order, with the number of each; where they are many, the most telling."""
        counts = Counter(node.op_type for node in self.nodes)
        shown = {name: n for name, n in counts.items() if name not in _MOVES} or counts
        if len(shown) > _OPERATORS:
            shown = {name: n for name, n in shown.items() if name not in _ARITHMETIC} or shown
        texts = [f"{name} ×{n}" if n > 1 else name for name, n in shown.items()]
        return [*texts[:_OPERATORS], *(["…"] if shown.keys() < counts.keys() - _MOVES or texts[_OPERATORS:] else [])]

    def count(self, trained: Collection[str]) -> tuple[int, int]:
        """How many of its numbers are trained, and how many there are."""
        sizes = {n: v.array.size if v.array is not None else 0 for n, v in self.weights.items()}
        return sum(size for n, size in sizes.items() if n in trained), sum(sizes.values())

    def describe_form(self, trained: Collection[str]) -> Hashable:
        """The form of a block, equal for blocks that repeat it."""
        return (_hide_numbers(self.path), frozenset(Counter(node.op_type for node in self.nodes).items()),
                tuple((v.type_key, n in trained) for n, v in self.weights.items()))


@dataclass(frozen=True)
class Repeat:
    """Blocks in a row, of which a picture shows the first copy.

    Parameters
    ----------
    start : int
        The number of the first block.
    length : int
        The number of blocks of a copy.
    copies : int
        How often they come.
    """

    start: int
    length: int
    copies: int


def find_blocks(model: Model, weights: Mapping[str, Value], depth: int | None = None,
                trained: Collection[str] = ()) -> list[Block]:
    """The blocks of a model: first its inputs, then its nodes in the order of the model.

    Parameters
    ----------
    model : Model
        The model.
    weights : dict of str to Value
        Its weights by name.
    depth : int, optional
        The levels of modules that blocks are told apart by; by default as many as a picture has room for.
    trained : collection of str
        The weights that are trained, by which equal blocks are told apart.

    Returns
    -------
    list of Block
    """
    nodes = _order(model)
    scopes = {node.name: read_scope(node) for node in model.proto.graph.node}
    # A number belongs to the name before it: it tells the layers of a list apart.
    paths = {id(n): tuple(re.split(r"\.(?!\d)", s)) if (s := scopes.get(n.name)) else () for n in nodes}
    if depth is not None:
        return _group(model, weights, nodes, paths, depth)
    deepest = max(1, *map(len, paths.values())) if paths else 1
    for level in range(deepest, 0, -1):
        blocks = _group(model, weights, nodes, paths, level)
        if len(blocks) - sum((r.copies - 1) * r.length for r in collapse(blocks, trained)) <= _ROOM:
            break
    return blocks


def _order(model: Model) -> list[Node]:
    """The nodes in the order of the model, in which the exporter has written module after module."""
    nodes = topological(list(model.outputs.values()))
    places = {id(v.node): i for i, v in reversed(list(enumerate(model.values.values())))}
    for node in nodes:  # A node without a name in the model stands where its last input does.
        if id(node) not in places:
            places[id(node)] = max((places.get(id(v.node), -1) for v in node.reads), default=-1)
    return sorted(nodes, key=lambda node: places[id(node)])


def _find_weights(node: Node, places: Collection[Value], names: Mapping[Value, str]) -> dict[str, Value]:
    """The weights that a node reads, as they are or transposed and the like, by name."""
    reads = (v for r in node.reads if r not in places for v in walk_back([r], places.__contains__))
    return {names[v]: v for v in reads if v in names}


def _has_shapes_alone(block: Block) -> bool:
    """Whether a block computes so far no real number."""
    return bool(block.nodes) and not any(y.is_float for node in block.nodes for y in node.outputs)


def _group(model: Model, weights: Mapping[str, Value], nodes: Sequence[Node], paths: Mapping[int, tuple[str, ...]],
           depth: int) -> list[Block]:
    """The blocks of a number of levels. Each is a run of nodes, so that no two blocks read each other."""
    blocks = [Block((n,)) for n in model.inputs]
    places: dict[Value, int] = {v: i for i, v in enumerate(model.inputs.values())}
    names = {v: n for n, v in weights.items()}
    outer = {()} | {path[:i] for path in paths.values() for i in range(len(path[:depth]))}
    for node in nodes:
        reads = [v for v in node.reads if v.node is not None or v in places]
        sources = {places[v] for v in reads if v in places}
        if not sources:
            continue  # It depends on no input: a weight that is transposed, or a constant.
        path = paths[id(node)][:depth]
        own = _find_weights(node, places, names)
        if _has_shapes_alone(blocks[-1]):
            blocks[-1].path = path  # This node may read them.
        elif not blocks[-1].nodes or not _continues(node, path, own, blocks[-1], sources == {len(blocks) - 1}, outer):
            blocks.append(Block(path))
        block, number = blocks[-1], len(blocks) - 1
        block.nodes.append(node)
        block.weights |= own
        block.reads |= {places[v]: v for v in reads if v in places and places[v] != number and _is_shown(v)}
        places |= dict.fromkeys(node.outputs, number)
    return blocks


def _is_shown(v: Value) -> bool:
    """Whether an input of a block from another is drawn: inputs and real numbers, but no shapes that are computed."""
    return v.node is None or v.is_float


def _continues(node: Node, path: tuple[str, ...], weights: Mapping[str, Value], last: Block, reads_last: bool,
               outer: Collection[tuple[str, ...]]) -> bool:
    """Whether a node belongs to the last block."""
    if path == last.path and path not in outer:
        return True
    if not any(y.is_float for y in node.outputs):
        return path in outer  # Shapes, and labels.
    starts = node.op_type in PRODUCTS or any(sum(n != 1 for n in v.shape or ()) > 1 for v in weights.values())
    if not reads_last or starts:
        return False
    # An activation belongs to the layer before it, be it a module beside it or a function; a sum of two branches does
    # not.
    is_beside = not weights and len(node.reads) == 1 and len(path) > 0 and path[:-1] == last.path[:-1]
    return is_beside or (path in outer and path in (last.path, last.path[:-1]))


def collapse(blocks: Sequence[Block], trained: Collection[str]) -> list[Repeat]:
    """Blocks in a row that come several times, such as the layers of an encoder.

    Parameters
    ----------
    blocks : sequence of Block
        The blocks.
    trained : collection of str
        The weights that are trained, by which blocks are told apart.

    Returns
    -------
    list of Repeat
        From the first on; none is inside of another.
    """
    numbers: dict[Hashable, int] = {}
    forms = [numbers.setdefault(block.describe_form(trained), len(numbers)) for block in blocks]
    repeats, i = [], 0
    while i < len(forms):
        best = max(_find_repeats(forms, i), key=lambda r: (r.copies - 1) * r.length, default=None)
        if best is not None and blocks[i].nodes and (best.copies - 1) * best.length > 1:
            repeats.append(best)
            i += best.copies * best.length
        else:
            i += 1
    return repeats


def _find_repeats(forms: Sequence[int], i: int) -> Iterator[Repeat]:
    """The repeats that begin with a block."""
    for length in range(1, (len(forms) - i) // 2 + 1):
        if forms[i + length] != forms[i]:
            continue
        first, copies = forms[i : i + length], 1
        while forms[i + copies * length : i + (copies + 1) * length] == first:
            copies += 1
        if copies > 1:
            yield Repeat(i, length, copies)


def _hide_numbers(path: Sequence[str]) -> str:
    return re.sub(r"\d+", "#", ".".join(path))
