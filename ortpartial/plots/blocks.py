"""The blocks of a model: its nodes by the modules that they come from, equal blocks in a row drawn once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ortpartial.graph import PRODUCTS, VIEWS, Node, Value

from .modules import ModuleNode, Path, hide_numbers, is_inserted, shared_module

__all__ = ["Block", "Repeat", "collapse", "fit_blocks", "group_nodes"]

#: Operators that move numbers, which say little about a block that computes any.
_MOVES = VIEWS | {"Cast", "CastLike", "Concat", "Expand", "Identity", "Slice", "Split", "Transpose"}

#: Operators that say less than others where a block has many.
_ARITHMETIC = frozenset({"Add", "Cos", "Div", "Dropout", "Max", "Min", "Mul", "Neg", "Pow", "Reciprocal", "ReduceMean",
                         "Sin", "Sqrt", "Sub", "Where"})

#: Operators that are listed.
_OPERATORS = 4


@dataclass
class Block:
    """Consecutive nodes of a module, or an input of the model.

    Parameters
    ----------
    path : tuple of str
        The module, from the outermost one on; of an input, its name.
    nodes : list of Node
        Its nodes; none for an input.
    weights : dict of str to Value
        The weights that they read, by name.
    reads : dict of int to Value
        Their inputs from other blocks, by the numbers of these.
    """

    path: Path
    nodes: list[Node] = field(default_factory=list)
    weights: dict[str, Value] = field(default_factory=dict)
    reads: dict[int, Value] = field(default_factory=dict)

    def summarize(self) -> list[str]:
        """Its operators in their order, with the number of each; where they are many, those that say most."""
        counts = self._count_operators()
        shown = counts
        if len(shown) > _OPERATORS:
            shown = {name: n for name, n in shown.items() if name not in _ARITHMETIC} or shown
        texts = [f"{name} ×{n}" if n > 1 else name for name, n in shown.items()]
        return [*texts[:_OPERATORS], *(["…"] if len(shown) < len(counts) or texts[_OPERATORS:] else [])]

    def _count_operators(self) -> dict[str, int]:
        """Its operators that compute real numbers, but for those that move numbers if there are others."""
        nodes = [node for node in self.nodes if not is_inserted(node)]
        counts = Counter(node.op_type for node in nodes if any(y.is_float for y in node.outputs))
        return ({name: n for name, n in counts.items() if name not in _MOVES} or counts
                or Counter(node.op_type for node in nodes))

    def describe_form(self, trained: Collection[str]) -> Hashable:
        """The form of a block, equal for blocks that repeat it, of which the first may compute a mask for all."""
        counts = self._count_operators()
        return (hide_numbers(self.path), frozenset(counts), tuple(counts.get(name, 0) for name in sorted(PRODUCTS)),
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


def group_nodes(inputs: Mapping[str, Value], nodes: Sequence[ModuleNode], opened: Collection[Path] | None
                ) -> list[Block]:
    """Inputs, then runs of nodes of one module, so that no two blocks read each other.

    Parameters
    ----------
    inputs : dict of str to Value
        The inputs of the model.
    nodes : sequence of ModuleNode
        Its nodes, in their order.
    opened : collection of tuple of str, optional
        The modules, without the numbers of layers, whose own modules are told apart; without it each node is a block.

    Returns
    -------
    list of Block
    """
    if opened is None:
        return _list_nodes(inputs, nodes)
    weighty = {item.path[:i] for item in nodes if item.weights for i in range(len(item.path) + 1)}
    blocks = [Block((n,)) for n in inputs]
    places: dict[Value, int] = {v: i for i, v in enumerate(inputs.values())}
    for item in nodes:
        node, path = item.node, _cut(item.path, opened)
        reads = [v for v in node.reads if v in places]
        is_open = hide_numbers(path) in opened
        follows = {places[v] for v in reads} == {len(blocks) - 1} and not _is_layer(node, item.weights)
        if _has_shapes_alone(blocks[-1]):
            blocks[-1].path = path  # This node may read them.
        elif not blocks[-1].nodes or not _continues(node, path, blocks[-1], follows, is_open, path not in weighty):
            blocks.append(Block(path))
        block, number = blocks[-1], len(blocks) - 1
        block.nodes.append(node)
        block.weights |= item.weights
        block.reads |= {places[v]: v for v in reads if places[v] != number and _is_shown(v)}
        places |= dict.fromkeys(node.outputs, number)
    return _join_masks(blocks)


def _list_nodes(inputs: Mapping[str, Value], nodes: Sequence[ModuleNode]) -> list[Block]:
    """A block for each node, which reads shapes and labels, too."""
    places = {v: i for i, v in enumerate(inputs.values())}
    places |= {v: len(inputs) + i for i, item in enumerate(nodes) for v in item.node.outputs}
    return [*(Block((n,)) for n in inputs),
            *(Block(item.path, [item.node], dict(item.weights), {places[v]: v for v in item.node.reads if v in places})
              for item in nodes)]


def _join_masks(blocks: Sequence[Block]) -> list[Block]:
    """Blocks of which those that no real number leaves, such as masks, are parts of the ones before them."""
    i, blocks = len(blocks) - 2, list(blocks)
    while i > 0:
        if blocks[i].nodes and not blocks[i].weights and not any(i in block.reads for block in blocks):
            blocks[i] = replace(blocks[i], reads={})
            blocks = _join(blocks, i - 1, blocks[i - 1].path) if blocks[i - 1].nodes else _join(
                blocks, i, blocks[i + 1].path)
        i -= 1
    return blocks


def _cut(path: Path, opened: Collection[Path]) -> Path:
    """The outermost module around a node that is not opened, else its own."""
    return next((path[:i] for i in range(len(path)) if hide_numbers(path[:i]) not in opened), path)


def _has_shapes_alone(block: Block) -> bool:
    """Whether a block computes so far no real number."""
    return bool(block.nodes) and not any(y.is_float for node in block.nodes for y in node.outputs)


def _is_shown(v: Value) -> bool:
    """Whether an input of a block from another is drawn: inputs and real numbers, but no shapes that are computed."""
    return v.node is None or v.is_float


def _continues(node: Node, path: Path, last: Block, follows: bool, is_open: bool, is_activation: bool) -> bool:
    """Whether a node belongs to the last block, which alone it follows if it begins no layer."""
    if path == last.path and not is_open:
        return True
    if not any(y.is_float for y in node.outputs):
        return is_open  # Shapes, and labels.
    # An activation belongs to the layer before it, be it a module beside it or a function; a sum of two branches does
    # not.
    is_beside = is_activation and len(path) > 0 and path[:-1] == last.path[:-1]
    return follows and (is_beside or (is_open and path in (last.path, last.path[:-1])))


def _is_layer(node: Node, weights: Mapping[str, Value]) -> bool:
    """Whether a node begins a layer: a product, or one that reads a matrix."""
    return node.op_type in PRODUCTS or any(map(_is_matrix, weights.values()))


def fit_blocks(group: Callable[[Collection[Path]], Sequence[Block]], nodes: Sequence[ModuleNode],
               fits: Callable[[Sequence[Block], bool], bool]) -> list[Block]:
    """The blocks that tell most and have room: the largest modules are opened first.

    Parameters
    ----------
    group : callable
        The blocks of opened modules, as of `group_nodes`.
    nodes : sequence of ModuleNode
        The nodes of the model.
    fits : callable
        Whether there is room for blocks, and for those of opened modules.

    Returns
    -------
    list of Block
    """
    sizes: Counter[Path] = Counter()
    for item in nodes:
        for i in range(len(item.path)):
            sizes[hide_numbers(item.path[:i])] += 1 + sum(_size(v) for v in item.weights.values())
    opened: set[Path] = {()}
    waiting = set(sizes) - opened
    while inner := [path for path in waiting if path[:-1] in opened]:
        largest = max(inner, key=lambda path: (sizes[path], path))
        waiting.remove(largest)
        if fits(_simplify(group(opened | {largest})), True):
            opened.add(largest)
    if fits(plain := list(group(opened)), len(opened) > 1):
        return plain
    blocks = _simplify(group(opened))
    while not fits(blocks, False) and (shorter := _join_smallest(blocks)) is not None:
        blocks = shorter
    return blocks


def _size(weight: Value) -> int:
    return weight.array.size if weight.array is not None else 0


def _simplify(blocks: Sequence[Block]) -> list[Block]:
    """Blocks without those that say little: sums and masks of two branches, and normalizations beside a product."""
    i, blocks = 0, list(blocks)
    while i + 1 < len(blocks):
        first, second = blocks[i], blocks[i + 1]
        if not first.nodes:
            i += 1
        elif (path := _choose_path(first, second, i, blocks)) is not None:
            blocks, i = _join(blocks, i, path), max(i - 1, 0)
        else:
            i += 1
    return blocks


def _choose_path(first: Block, second: Block, i: int, blocks: Sequence[Block]) -> Path | None:
    """The module of two neighbors as one; None where they are better told apart."""
    is_new = bool(second.reads.keys() - first.reads.keys() - {i})  # a branch that would be hidden
    outer = first.path[:-1]
    is_in_list = hide_numbers(first.path[-1:]) != first.path[-1:]  # one of a list, whose last would differ
    if not is_new and (first.path == second.path or (not second.weights and second.path[: len(outer)] == outer
                                                     and not (is_in_list and len(second.path) <= len(outer)))):
        return first.path
    if [block for block in blocks if i in block.reads] != [second] or second.path[:-1] not in (outer, first.path):
        return None
    if second.reads.keys() == {i} and not _has_layer(second):
        return first.path if first.weights else second.path  # A convolution, or a sum, and its normalization.
    return None if _has_layer(first) else second.path


def _has_layer(block: Block) -> bool:
    return any(node.op_type in PRODUCTS for node in block.nodes) or any(map(_is_matrix, block.weights.values()))


def _is_matrix(weight: Value) -> bool:
    return sum(n != 1 for n in weight.shape or ()) > 1


def _join_smallest(blocks: Sequence[Block]) -> list[Block] | None:
    """Blocks of which two neighbors with the fewest nodes are one; None where there are no two."""
    pairs = [i for i in range(len(blocks) - 1) if blocks[i].nodes]
    if not pairs:
        return None
    i = min(pairs, key=lambda i: len(blocks[i].nodes) + len(blocks[i + 1].nodes))
    return _join(blocks, i, shared_module([blocks[i].path, blocks[i + 1].path]))


def _join(blocks: Sequence[Block], i: int, path: Path) -> list[Block]:
    """Blocks of which one and the next are one."""
    def renumber(reads: Mapping[int, Value]) -> dict[int, Value]:
        return {j - (j > i): v for j, v in reads.items()}

    first, second = blocks[i], blocks[i + 1]
    reads = first.reads | {j: v for j, v in second.reads.items() if j != i}
    joined = Block(path, first.nodes + second.nodes, first.weights | second.weights, reads)
    return [*blocks[:i], joined, *(replace(block, reads=renumber(block.reads)) for block in blocks[i + 2 :])]


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
