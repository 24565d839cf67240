"""The module of each node: as the exporter has recorded it, else by the names of the weights that it reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ortpartial.graph import Node, Value, topological, walk_back
from ortpartial.model import Model, read_adapter, read_scope

__all__ = ["ModuleNode", "Path", "hide_numbers", "is_inserted", "list_nodes", "shared_module"]

#: Operators whose results say nothing about the numbers that they read.
_SHAPES = frozenset({"Shape", "Size", "ConstantOfShape"})

#: What the names of the nodes of an adapter have behind the name of their target.
_ADAPTER = "/adapter/"

#: A module, from the outermost one on.
Path = tuple[str, ...]


@dataclass(frozen=True)
class ModuleNode:
    """A node that depends on inputs, its module, and the weights that it reads, also transposed and the like."""

    node: Node
    path: Path
    weights: Mapping[str, Value]


def list_nodes(model: Model, weights: Mapping[str, Value], *, with_shapes: bool = False) -> list[ModuleNode]:
    """The nodes of a model that depend on the numbers of its inputs, in the order of the model.

    The nodes of an adapter belong to the module that it was added to. A node of which nothing is recorded belongs to
    the module that the nodes before and after it have in common.

    Parameters
    ----------
    model : Model
        The model.
    weights : dict of str to Value
        Its weights by name.
    with_shapes : bool
        Whether nodes are listed that depend on the shapes of inputs alone.

    Returns
    -------
    list of ModuleNode
    """
    find_path = _find_paths(model)
    names = {v: n for n, v in weights.items()}
    reached, nodes = set(model.inputs.values()), list[Node]()
    reads, paths = list[dict[str, Value]](), list[Path | None]()
    for node in _order(model):
        if reached.isdisjoint(node.reads) or (node.op_type in _SHAPES and not with_shapes):
            continue  # A weight that is transposed, or a constant.
        sources = (v for r in node.reads if r not in reached for v in walk_back([r], reached.__contains__))
        reads.append({names[v]: v for v in sources if v in names})
        paths.append(find_path(node, reads[-1]))
        nodes.append(node)
        reached.update(node.outputs)
    return [ModuleNode(*parts) for parts in zip(nodes, _fill(paths), reads, strict=True)]


def _find_paths(model: Model) -> Callable[[Node, Iterable[str]], Path | None]:
    """A function of a node and the weights that it reads, which returns its module; None where nothing tells it."""
    scopes = {node.name or node.output[0]: read_scope(node) for node in model.proto.graph.node}
    adapter = read_adapter(model.proto)
    homes = {} if adapter is None else {t.name: t for t in adapter.targets}

    def find_path(node: Node, weights: Iterable[str]) -> Path | None:
        home = homes.get(node.name.partition(_ADAPTER)[0])
        scope = scopes.get(node.name if home is None else home.node) or ""
        # torch 2.13's dynamo exporter writes this name at nodes that come from no module.
        if scope and not scope.startswith("_empty_nn_module_stack"):
            return _split(scope)
        modules = [_split(model.main_names.get(n, n))[:-1] for n in (weights if home is None else [home.weight])]
        return shared_module(modules) if modules else None

    return find_path


def _order(model: Model) -> list[Node]:
    """The nodes in the order of the model, in which the exporter has written one module after the other."""
    nodes = topological(list(model.outputs.values()))
    places = {id(v.node): i for i, v in reversed(list(enumerate(model.values.values())))}
    for node in nodes:  # A node without a name in the model stands where its last input does.
        if id(node) not in places:
            places[id(node)] = max((places.get(id(v.node), -1) for v in node.reads), default=-1)
    return sorted(nodes, key=lambda node: places[id(node)])


def _fill(paths: Sequence[Path | None]) -> list[Path]:
    """Paths, of which those that are not recorded are the module that the ones before and after have in common."""
    following: list[Path] = [()]
    for path in reversed(paths):
        following.append(following[-1] if path is None else path)
    filled, last = list[Path](), Path()
    for path, after in zip(paths, reversed(following[1:]), strict=True):
        filled.append(shared_module([last, after]) if path is None else path)
        last = last if path is None else path
    return filled


def _split(name: str) -> Path:
    """The levels of a name. A number belongs to the name before it: it tells the layers of a list apart."""
    return tuple(re.split(r"\.(?!\d)", name))


def is_inserted(node: Node) -> bool:
    """Whether a node is one of an adapter."""
    return _ADAPTER in node.name


def shared_module(paths: Iterable[Path]) -> Path:
    """The innermost module that modules have in common.

    Examples
    --------
    >>> shared_module([("encoder", "layer.0", "query"), ("encoder", "layer.0", "key")])
    ('encoder', 'layer.0')
    """
    shared: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return tuple(shared)


def hide_numbers(path: Path) -> Path:
    """A module without the numbers that tell the layers of a list apart.

    Examples
    --------
    >>> hide_numbers(("encoder", "layer.11"))
    ('encoder', 'layer.#')
    """
    return tuple(re.sub(r"\d+", "#", part) for part in path)
