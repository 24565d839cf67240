"""The picture of a graph: boxes of text, their connections, and frames around repeated boxes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from ortpartial.autodiff import find_default_weights
from ortpartial.exceptions import SettingError
from ortpartial.graph import Value
from ortpartial.model import Model, load, read_adapter
from ortpartial.texts import printable
from ortpartial.training import TrainingSpec

from .blocks import Block, Repeat, collapse, fit_blocks, group_nodes
from .modules import Path, hide_numbers, list_nodes, shared_module
from .shapes import describe_shape, name_sizes

__all__ = ["Box", "Picture", "compose"]

#: What the graphs of the engines are, by their names.
_RUNS = {"step": "one run a batch", "epoch": "one run, many batches", "gradient": "one run a batch",
         "update": "one run a batch", "forward_backward": "TrainingAgent", "learning_loss": "one run a batch",
         "learning_rate": "one run a weight"}

#: Characters of a line in a box, of its title, which is bold, and of the label of a frame, left of an arrow.
_CHARACTERS, _TITLE, _LABEL = 38, 33, 20


@dataclass(frozen=True)
class Box:
    """A box: its title, lines of text, a style, the weights of an adapter, and the part of a training step."""

    title: str
    lines: Sequence[str] = ()
    style: str = "plain"
    adapter: str = ""
    part: str = "model"


@dataclass
class Picture:
    """Boxes, the texts of the connections between them, and frames, each around some boxes and with two labels.

    `runs` says which graphs an engine runs, and which parts of a step each of them computes.
    """

    title: str
    boxes: list[Box] = field(default_factory=list)
    edges: dict[tuple[int, int], str] = field(default_factory=dict)
    frames: list[tuple[list[int], tuple[str, str]]] = field(default_factory=list)
    runs: Sequence[tuple[str, Sequence[str]]] = ()
    caption: str = ""


@dataclass(frozen=True)
class Subject:
    """A model, its weights by name, the names of the trained weights and of an adapter, and a training if any."""

    model: Model
    weights: Mapping[str, Value]
    trained: Collection[str]
    adapter: Collection[str]
    sizes: Mapping[Value, tuple[str, ...]]
    spec: TrainingSpec | None = None
    runs: Sequence[tuple[str, Sequence[str]]] = ()
    caption: str = ""


def compose(source: object, depth: int | str | None = None, fits: Callable[[Picture, bool], bool] = lambda *_: True
            ) -> Picture:
    """The picture of a model, or of an optimizer or an estimator with its training.

    Parameters
    ----------
    source : object
        As for `plot_graph`.
    depth : int or "nodes", optional
        The levels of modules that are told apart.
    fits : callable
        Whether there is room for a picture, and for one of opened modules; without `depth` the one that tells most and
        has room is chosen.

    Returns
    -------
    Picture

    Raises
    ------
    ModelError, SettingError
        The model cannot be loaded, or `depth` is something else.
    """
    is_number = isinstance(depth, int) and not isinstance(depth, bool) and depth > 0
    if not (depth is None or is_number or (isinstance(depth, str) and depth == "nodes")):
        raise SettingError(f"depth is a number of levels from 1 on, or 'nodes' for every node, not {depth!r}.")
    subject = _read_subject(source)
    nodes = list_nodes(subject.model, subject.weights, with_shapes=depth == "nodes")

    def group(opened: Collection[Path] | None) -> list[Block]:
        return group_nodes(subject.model.inputs, nodes, opened)

    if depth is None:
        blocks = fit_blocks(group, nodes, lambda blocks, is_opened: fits(_draw(subject, blocks), is_opened))
    elif isinstance(depth, int):
        blocks = group({hide_numbers(n.path[:i]) for n in nodes for i in range(min(depth, len(n.path) + 1))})
    else:
        blocks = group(None)
    return _draw(subject, blocks, depth != "nodes")


def _read_subject(source: Any) -> Subject:
    """The model of a source, and which of its weights are trained."""
    optimizer = getattr(source, "optimizer_", source)
    training = getattr(optimizer, "training", None)
    spec = getattr(training, "spec", None)
    spec = spec if isinstance(spec, TrainingSpec) else None
    trained: Collection[str] | None
    if spec is not None:
        model, trained = spec.model, spec.weights
    elif hasattr(source, "to_onnx"):
        model, trained = load(source.to_onnx()), _find_trained(source)
    else:
        model, trained = source if isinstance(source, Model) else load(source), None
    record = read_adapter(model.proto)
    adapter = {n for t in record.targets for n in t.weights.values()} if record is not None else set()
    defaults = set(find_default_weights(model, [n for n, v in model.outputs.items() if v.is_float]))
    if trained is None:
        trained = adapter or {n for n, v in model.initializers.items() if v in defaults}
    weights = {n: v for n, v in model.initializers.items() if v in defaults or n in trained}
    subject = Subject(model, weights, trained, adapter, name_sizes(model))
    if spec is None or training is None:
        return subject
    runs = [(f"{graph}:\n{_RUNS[graph]}", parts) for graph, parts in training.engine.runs]
    return replace(subject, spec=spec, runs=runs, caption=f"Engine {training.engine.name!r}: {training.engine.reason}")


def _find_trained(module: Any) -> set[str]:
    """The weights that a module of `nn`, or a layer of torch, trains."""
    names = {key: n for n, key in getattr(module, "state_names", {}).items()}
    return {names.get(n, n) for n, parameter in module.named_parameters() if parameter.requires_grad}


def _draw(subject: Subject, blocks: Sequence[Block], collapsed: bool = True) -> Picture:
    """The picture of blocks."""
    model = subject.model
    sizes = {n: _size(v) for n, v in subject.weights.items()}
    total, count = sum(sizes.values()), sum(sizes[n] for n in subject.trained if n in sizes)
    picture = Picture(f"{count:,} of {total:,} parameters trained", runs=subject.runs, caption=subject.caption)
    places, shown, modules = _number(blocks, collapse(blocks, subject.trained) if collapsed else [], picture)
    for i in shown:
        picture.boxes.append(_describe_block(blocks[i], subject, modules.get(i, ())))
    for i, block in enumerate(blocks):
        for j, v in block.reads.items():
            # What a later copy reads of the one before it would lead upward.
            if places[j] < places[i]:
                label = describe_shape(v, subject.sizes) if v.node is not None else ""
                picture.edges.setdefault((places[j], places[i]), label)
    computed = {v: i for i, block in enumerate(blocks) for node in block.nodes for v in node.outputs}
    for name, v in model.outputs.items():
        if v in computed:
            picture.edges[places[computed[v]], len(picture.boxes)] = ""
        picture.boxes.append(Box(_cut(name, _TITLE), [_describe_type(v, subject)]))
    if subject.spec is not None:
        _add_training(picture, subject.spec)
    return picture


def _number(blocks: Sequence[Block], repeats: Sequence[Repeat], picture: Picture
            ) -> tuple[dict[int, int], list[int], dict[int, Path]]:
    """The box of each block, the blocks that have one, and the module of each repeated one, which has a frame."""
    originals = {r.start + k: r.start + k % r.length for r in repeats for k in range(r.copies * r.length)}
    shown = [i for i in range(len(blocks)) if originals.get(i, i) == i]
    boxes, modules = {i: n for n, i in enumerate(shown)}, dict[int, Path]()
    for r in repeats:
        first, last = (shared_module(block.path for block in blocks[r.start + k * r.length :][: r.length])
                       for k in (0, r.copies - 1))
        level = next((k + 1 for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
        outer, end = first[:level], last[level - 1].rpartition(".")[2] if first != last else ""
        names = (_name_module(outer[k:]) + f" … {end}" * bool(end) for k in range(level))
        label = next((name for name in names if len(name) <= _LABEL), "")
        picture.frames.append(([boxes[r.start + k] for k in range(r.length)], (label, f"× {r.copies}")))
        modules |= {r.start + k: outer for k in range(r.length)}
    return {i: boxes[originals.get(i, i)] for i in range(len(blocks))}, shown, modules


def _describe_block(block: Block, subject: Subject, outer: Path) -> Box:
    """The box of a block, whose name is told from the module that its frame names."""
    if not block.nodes:
        return Box(_cut(block.path[0], _TITLE), [_describe_type(subject.model.inputs[block.path[0]], subject)])
    operators = " · ".join(block.summarize())
    has_module = bool(block.path) and (len(block.nodes) > 1 or bool(block.weights))
    path = block.path[len(outer) :] or block.path[-1:]
    title = _cut(_name_module(path), _TITLE) if has_module else _cut(operators, _TITLE, at_end=True)
    lines = [operators] if has_module else []
    frozen, trained, adapter = _count(block, subject)
    if (frozen or trained or adapter) and not has_module:
        lines.append(", ".join(subject.model.main_names[n] for n in block.weights))
    style = "plain" if not frozen + trained else "trained" if not frozen else "partly" if trained else "frozen"
    if style == "partly":
        lines.append(f"partly trained: {trained:,} of {frozen + trained:,}")
    elif style != "plain":
        lines.append(f"{style}: {frozen + trained:,}")
    return Box(title, [_cut(line, at_end=True) for line in lines], style, f"adapter: {adapter:,}" if adapter else "")


def _count(block: Block, subject: Subject) -> tuple[int, int, int]:
    """How many parameters of a block are frozen, are trained, and belong to an adapter."""
    sizes = {n: _size(v) for n, v in block.weights.items()}
    adapter = sum(size for n, size in sizes.items() if n in subject.adapter)
    trained = sum(size for n, size in sizes.items() if n in subject.trained and n not in subject.adapter)
    return sum(sizes.values()) - trained - adapter, trained, adapter


def _name_module(path: Sequence[str]) -> str:
    """The name of a module; torch repeats names in a Sequential in full."""
    parts = [part for i, part in enumerate(path) if i + 1 == len(path) or not path[i + 1].startswith(f"{part}.")]
    return ".".join(parts)


def _add_training(picture: Picture, spec: TrainingSpec) -> None:
    """The boxes of a training step below the boxes of the model."""
    outputs = dict(zip(spec.model.outputs, range(len(picture.boxes) - len(spec.model.outputs), len(picture.boxes)),
                       strict=True))
    names = [type(loss).__name__ if len(spec.losses) == 1 else f"{o}: {type(loss).__name__}"
             for o, loss in spec.losses.items()]
    penalty = [f"+ {type(spec.penalty).__name__}"] if spec.penalized else []
    last = len(picture.boxes)
    picture.edges.update({(outputs[o], last): "" for o in spec.losses})
    states = f"states: {', '.join(spec.rate.state)}" if spec.rate.state else "no states"
    settings = [f"every {spec.accumulate} batches"] * (spec.accumulate > 1)
    settings += [type(piece).__name__ for piece in (spec.gradient_clipping, spec.averaging) if piece is not None]
    count = f"by {len(spec.weights)} weight{'s' * (len(spec.weights) > 1)}, "
    for part, lines in (("loss", [*names, *penalty]),
                        ("gradient", [f"{count}{sum(map(_size, spec.trained.values())):,} parameters"]),
                        ("update", [f"{type(spec.rate).__name__}, {states}", *settings])):
        picture.boxes.append(Box(part, [_cut(line, at_end=True) for line in lines], "training", part=part))
    picture.edges.update({(last, last + 1): "", (last + 1, last + 2): ""})


def _size(weight: Value) -> int:
    return prod(n for n in weight.shape or () if isinstance(n, int))


def _describe_type(v: Value, subject: Subject) -> str:
    """The type of a value, and its shape."""
    kind = v.type_name.replace("object[", "string[")
    return _cut(f"{kind.partition('[')[0]}   {' × '.join(subject.sizes[v])}") if v in subject.sizes else _cut(kind)


def _cut(text: str, length: int = _CHARACTERS, at_end: bool = False) -> str:
    """A text that fits a box; the end of a name says most, and the beginning of a list."""
    text = printable(text)
    if len(text) <= length:
        return text
    return f"{text[: length - 1]}…" if at_end else f"…{text[1 - length :]}"
