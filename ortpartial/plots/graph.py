"""The graph of a model: its trained and frozen parts, and the graphs of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from ortpartial.arguments import checked
from ortpartial.texts import printable

from .figure import drawing, import_pyplot
from .layout import Layout, Point, lay_out
from .picture import Box, Picture, compose

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_graph"]

#: Width of a box, and its height for one line of text and for each further one, in inches.
_WIDTH, _LINE, _FURTHER = 2.7, 0.3, 0.165

#: The space of the brackets of an engine, and of one of them.
_BRACKETS, _BRACKET = 1.9, 0.25

#: Fill, edge and dashes of a box: blue and gray, solid and dashed, so that they differ for everybody.
_STYLES = {
    "trained": ("#cfe3f1", "#1d6fa5", "-"),
    "partly": ("#eaf3f9", "#1d6fa5", "--"),
    "frozen": ("#e9e9e9", "#777777", "--"),
    "plain": ("#ffffff", "#aaaaaa", "-"),
    "training": ("#fdf0d5", "#b7791f", "-"),
}


@checked
def plot_graph(source: object, *, depth: int | None = None, ax: Axes | None = None) -> Axes:
    r"""Draw a model as blocks: the modules of its nodes, their trained weights, and the graphs of the engine.

    Modules are as the exporter has recorded them; without them a block begins at every product. Equal blocks in a
    row, such as the layers of an encoder, are drawn once. For an optimizer, loss, gradient and update follow, with the
    names of the graphs that compute each, as `save_onnx_graph` writes them. In a notebook the picture is shown as SVG.

    Parameters
    ----------
    source : object
        An optimizer or an estimator; or a `Model`, a ModelProto, bytes or a path, of which the weights that are trained
        by default count as trained.
    depth : int, optional
        Levels of modules to tell apart; by default as many as give about 16 blocks.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default on axes of a new figure, of a size that follows from the blocks.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModelError
        The model cannot be loaded.
    RuntimeMissingError
        matplotlib is not installed.

    Examples
    --------
    >>> from ortpartial.graph import build, constant, op, variable
    >>> x, w = variable("x", "float32", ["N", 3]), constant([[1.0], [2.0], [3.0]], hint="w")
    >>> [text.get_text() for text in plot_graph(build([x], {"y": op.Tanh(x @ w)})).texts if text.get_text()]
    ['x', 'float32[Nx3]', 'MatMul · Tanh', 'w\ntrained: 3', 'y', 'float32[Nx1]']
    """
    import_pyplot()
    from .svg_axes import SvgAxes

    picture, is_new = compose(source, depth), ax is None
    layout = lay_out([_measure(box) for box in picture.boxes], list(picture.edges))
    left, right = layout.left - 0.3, layout.right + (_BRACKETS if picture.runs else 0.3)
    caption = wrap(picture.caption, int(13 * (right - left)))
    bottom = layout.bottom + 0.2 + 0.17 * len(caption)
    with drawing(ax, (right - left, bottom + 0.5), axes_class=SvgAxes) as ax:
        ax.set(xlim=(left, right), ylim=(bottom, -0.15), aspect="equal")
        ax.set_axis_off()
        ax.set_title(printable(picture.title), loc="left", parse_math=False)
        for boxes, label in picture.frames:
            _draw_frame(ax, picture, layout, boxes, label)
        for edge, corners in layout.paths.items():
            _draw_edge(ax, corners, picture.edges[edge])
        for box, center in zip(picture.boxes, layout.centers, strict=True):
            _draw_box(ax, box, center)
        _draw_brackets(ax, picture, layout)
        ax.text(left + 0.1, layout.bottom + 0.2, "\n".join(map(printable, caption)), va="top", fontsize=8, color="0.35",
                parse_math=False)
    if not is_new:
        _scale_texts(ax, (right - left, bottom + 0.15))
    return ax


def _scale_texts(ax: Axes, size: Point) -> None:
    """Let texts fit their boxes on axes of the caller that are smaller than the picture."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    width, height = ax.get_position().size * figure.get_size_inches()
    for text in ax.texts:
        text.set_fontsize(min(1, width / size[0], height / size[1]) * float(text.get_fontsize()))


def _measure(box: Box) -> Point:
    return _WIDTH, _LINE + _FURTHER * len(box.lines)


def _draw_box(ax: Axes, box: Box, center: Point) -> None:
    """A rectangle, the title and the lines."""
    (width, height), (x, y) = _measure(box), center
    _draw_rectangle(ax, (x - width / 2, y - height / 2), (width, height), *_STYLES[box.style])
    top = y - height / 2 + _LINE / 2
    ax.text(x, top, printable(box.title), ha="center", va="center", fontsize=8.5, fontweight="bold", zorder=4,
            parse_math=False)
    ax.text(x, top + _LINE / 2 - 0.04, "\n".join(map(printable, box.lines)), ha="center", va="top", fontsize=8,
            linespacing=1.25, color="0.25", zorder=4, parse_math=False)


def _draw_rectangle(ax: Axes, corner: Point, size: Point, fill: str, edge: str, line: str, zorder: int = 3) -> None:
    from matplotlib.patches import FancyBboxPatch

    ax.add_patch(FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.07", facecolor=fill,
                                edgecolor=edge, linestyle=line, linewidth=1, zorder=zorder))


def _draw_edge(ax: Axes, corners: Sequence[Point], label: str) -> None:
    """An arrow through its corners, with the shape of its tensor beside it."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    ax.add_patch(FancyArrowPatch(path=Path(corners), arrowstyle="-|>,head_length=3.5,head_width=1.8", color="0.35",
                                 linewidth=0.9, shrinkA=0, shrinkB=0, zorder=2, joinstyle="round"))
    if len(corners) == 2:
        (x, y0), (_, y1) = corners
        ax.text(x + 0.07, (y0 + y1) / 2, label, va="center", fontsize=7, color="0.35", zorder=4, parse_math=False,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5} if label else None)


def _draw_frame(ax: Axes, picture: Picture, layout: Layout, boxes: Sequence[int], label: str) -> None:
    """A dashed frame around boxes and the connections between them, with a label in its upper corner."""
    inner = set(boxes)
    corners = [point for (i, j), path in layout.paths.items() if i in inner and j in inner for point in path]
    for i in boxes:
        (x, y), (width, height) = layout.centers[i], _measure(picture.boxes[i])
        corners += [(x - width / 2, y - height / 2), (x + width / 2, y + height / 2)]
    (left, right), (top, bottom) = ((min(c), max(c)) for c in zip(*corners, strict=True))
    corner, size = (left - 0.12, top - 0.29), (right - left + 0.22, bottom - top + 0.38)
    _draw_rectangle(ax, corner, size, "#fafafa", "#999999", ":", zorder=1)
    ax.text(corner[0] + 0.08, corner[1] + 0.14, printable(label), va="center", fontsize=7.5, fontweight="bold",
            color="0.3", parse_math=False)


def _draw_brackets(ax: Axes, picture: Picture, layout: Layout) -> None:
    """A bracket on the right for each graph that the engine runs, over the parts that it computes."""
    x = layout.right + _BRACKET
    for name, parts in picture.runs:
        edges = [(layout.centers[i][1], _measure(box)[1] / 2) for i, box in enumerate(picture.boxes)
                 if box.part in parts]
        top, bottom = min(y - h for y, h in edges), max(y + h for y, h in edges)
        ax.plot([x - 0.08, x, x, x - 0.08], [top, top, bottom, bottom], color="0.35", linewidth=1.2)
        ax.text(x + 0.1, (top + bottom) / 2, name, va="center", fontsize=8, color="0.2")
