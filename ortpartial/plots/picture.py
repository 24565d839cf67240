"""The picture of a graph: boxes of text, their connections, and frames around repeated boxes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import prod
from typing import Any

from ortpartial.autodiff import find_default_weights
from ortpartial.graph import Value
from ortpartial.model import Model, load
from ortpartial.texts import printable
from ortpartial.training import TrainingSpec

from .blocks import Block, collapse, find_blocks

#: What the graphs of the engines are, by their names.
_RUNS = {"step": "one run a batch", "epoch": "one run, many batches", "gradient": "one run a batch",
         "update": "one run a batch", "forward_backward": "TrainingAgent", "learning_loss": "one run a batch",
         "learning_rate": "one run a weight"}

__all__ = ["Box", "Picture", "compose"]

#: Characters of a line in a box, and of its title, which is bold.
_CHARACTERS, _TITLE = 38, 33


@dataclass(frozen=True)
class Box:
    """A box: its title, lines of text, a style, and the part of a training step that it belongs to."""

    title: str
    lines: Sequence[str] = ()
    style: str = "plain"
    part: str = "model"


@dataclass
class Picture:
    """Boxes, the texts of the connections between them, and frames, each around some boxes and with a label.

    `runs` says which graphs an engine runs, and which parts of a step each of them computes.
    """

    title: str
    boxes: list[Box] = field(default_factory=list)
    edges: dict[tuple[int, int], str] = field(default_factory=dict)
    frames: list[tuple[list[int], str]] = field(default_factory=list)
    runs: Sequence[tuple[str, Sequence[str]]] = ()
    caption: str = ""


def compose(source: Any, depth: int | None) -> Picture:
    """The picture of a model, or of an optimizer or an estimator with its training.

    Parameters
    ----------
    source : object
        As for `plot_graph`.
    depth : int, optional
        The levels of modules that are told apart.

    Returns
    -------
    Picture
    """
    optimizer = getattr(source, "optimizer_", source)
    training = getattr(optimizer, "training", None)
    spec, engine = getattr(training, "spec", None), getattr(training, "engine", None)
    if spec is None or engine is None:
        model = source if isinstance(source, Model) else load(source)
        return _draw_model(model, _find_weights(model), depth)
    picture = _draw_model(spec.model, _find_weights(spec.model, spec.weights), depth)
    _add_training(picture, spec)
    picture.runs = [(f"{graph}:\n{_RUNS[graph]}", parts) for graph, parts in engine.runs]
    picture.caption = f"Engine {engine.name!r}: {engine.reason}"
    return picture


def _find_weights(model: Model, trained: Collection[str] | None = None) -> dict[str, bool]:
    """The weights of a model, and whether they are trained; all that are by default, unless it is said which."""
    weights = find_default_weights(model, [n for n, v in model.outputs.items() if v.is_float])
    return {n: trained is None or n in trained for n, v in model.initializers.items()
            if v in weights or n in (trained or ())}


def _draw_model(model: Model, weights: Mapping[str, bool], depth: int | None) -> Picture:
    """The blocks of a model, whose weights are trained or not."""
    trained = {n for n, is_trained in weights.items() if is_trained}
    values = {n: model.initializers[n] for n in weights}
    picture = Picture(f"trained: {_share(values, trained)} numbers")
    blocks = find_blocks(model, values, depth, trained)
    places, shown = _number(blocks, collapse(blocks, trained), picture)
    for i in shown:
        picture.boxes.append(_describe_block(blocks[i], model, trained))
    for i, block in enumerate(blocks):
        for j, v in block.reads.items():
            # What a later copy reads of the one before it would lead upward.
            if places[j] < places[i]:
                picture.edges.setdefault((places[j], places[i]), _describe_shape(v) if v.node is not None else "")
    computed = {v: i for i, block in enumerate(blocks) for node in block.nodes for v in node.outputs}
    for name, v in model.outputs.items():
        if v in computed:
            picture.edges[places[computed[v]], len(picture.boxes)] = ""
        picture.boxes.append(Box(name, [_describe_type(v)]))
    return picture


def _number(blocks: Sequence[Block], repeats: Sequence[Any], picture: Picture) -> tuple[dict[int, int], list[int]]:
    """The box of each block, and the blocks that have one; repeated blocks get a frame around the first copy."""
    originals = {r.start + k: r.start + k % r.length for r in repeats for k in range(r.copies * r.length)}
    shown = [i for i in range(len(blocks)) if originals.get(i, i) == i]
    boxes = {i: n for n, i in enumerate(shown)}
    for r in repeats:
        first, last = (blocks[r.start + k * r.length : r.start + (k + 1) * r.length] for k in (0, r.copies - 1))
        label = f"× {r.copies}"
        if path := _find_module(first):
            label += f"   {path[-1]} … {_find_module(last)[-1].rpartition('.')[2]}"
        picture.frames.append(([boxes[r.start + k] for k in range(r.length)], label))
    return {i: boxes[originals.get(i, i)] for i in range(len(blocks))}, shown


def _describe_block(block: Block, model: Model, trained: Collection[str]) -> Box:
    """The box of a block."""
    if not block.nodes:
        return Box(block.path[0], [_describe_type(model.inputs[block.path[0]])])
    operators = " · ".join(block.summarize())
    has_module = bool(block.path) and (len(block.nodes) > 1 or bool(block.weights))
    title = _cut(_name_module(block.path), _TITLE) if has_module else _cut(operators, _TITLE, at_end=True)
    lines = [operators] if has_module else []
    count, total = (sum(_size(block.weights[n]) for n in block.weights if n in chosen)
                    for chosen in (trained, block.weights))
    if not total:
        return Box(title, [_cut(line, at_end=True) for line in lines])
    if not has_module:
        lines.append(", ".join(model.main_names[n] for n in block.weights))
    style = "trained" if count == total else "partly" if count else "frozen"
    lines.append(f"{style}: {count:,} of {total:,}" if style == "partly" else f"{style}: {total:,}")
    return Box(title, [_cut(line, at_end=True) for line in lines], style)


def _find_module(blocks: Sequence[Block]) -> list[str]:
    """The innermost module that blocks have in common."""
    levels = zip(*(block.path for block in blocks), strict=False)
    return [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, levels)]


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
                        ("gradient", [f"{count}{sum(map(_size, spec.trained.values())):,} numbers"]),
                        ("update", [type(spec.rate).__name__, states, *settings])):
        picture.boxes.append(Box(part, [_cut(line, at_end=True) for line in lines], "training", part))
    picture.edges.update({(last, last + 1): "", (last + 1, last + 2): ""})


def _share(weights: Mapping[str, Value], trained: Collection[str]) -> str:
    """How many of all numbers are trained."""
    return f"{sum(_size(weights[n]) for n in trained):,} of {sum(map(_size, weights.values())):,}"


def _size(weight: Value) -> int:
    return prod(n for n in weight.shape or () if isinstance(n, int))


def _describe_type(v: Value) -> str:
    """The type of a value; shape inference of onnx has names of its own for sizes that it does not know."""
    return _cut(re.sub(r"unk__\d+", "?", v.type_name.replace("object[", "string[")))


def _describe_shape(v: Value) -> str:
    """The shape of a value, such as ``N×64``; long shapes are left out."""
    text = _describe_type(v).partition("[")[2].rstrip("]").replace("x", "×")
    return text if len(text) <= 20 else ""


def _cut(text: str, length: int = _CHARACTERS, at_end: bool = False) -> str:
    """A text that fits a box; the end of a name says most, and the beginning of a list."""
    text = printable(text)
    if len(text) <= length:
        return text
    return f"{text[: length - 1]}…" if at_end else f"…{text[1 - length :]}"
