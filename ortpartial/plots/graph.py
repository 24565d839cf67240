"""The graph of a model: its trained and frozen parts, and the graphs of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from ortpartial.arguments import checked
from ortpartial.texts import printable

from .figure import Axes, drawing, import_pyplot
from .layout import Layout, Point, lay_out
from .picture import Box, Picture, compose

__all__ = ["plot_graph"]

#: Width of a box, and its height for one line of text and for each further one, in inches.
_WIDTH, _LINE, _FURTHER = 2.7, 0.28, 0.16

#: The space of the brackets of an engine, and of one of them; of the label of a frame; of title and margins.
_BRACKETS, _BRACKET, _LABEL, _MARGINS = 1.9, 0.25, 0.24, 0.7

#: The room of a picture without `depth`: its height and width in inches, the width up to which modules are opened, and
#: the boxes that are seen at a glance.
_HEIGHT, _WIDEST, _OPENED, _BOXES = 10.0, 12.5, 7.5, 18

#: Fill, edge and dashes of a box: blue and gray, solid and dashed, so that they differ for everybody.
_STYLES = {
    "trained": ("#cfe3f1", "#1d6fa5", "-"),
    "partly": ("#eaf3f9", "#1d6fa5", "--"),
    "frozen": ("#e9e9e9", "#777777", "--"),
    "plain": ("#ffffff", "#aaaaaa", "-"),
    "training": ("#fdf0d5", "#b7791f", "-"),
    "adapter": ("#d3ecd5", "#2e7d32", "-"),
}


@checked
def plot_graph(source: object, *, depth: int | str | None = None, ax: Axes | None = None) -> Axes:
    r"""Draw a model as blocks: its modules, the trained weights of each, and the graphs of the engine.

    Modules are as the exporter has recorded them, or as in the names of weights; without them a block begins at every
    product. Equal blocks in a row, such as the layers of an encoder, are drawn once. An adapter stands in the block of
    the module that it was added to. For an optimizer, loss, gradient and update follow, with the names of the graphs
    that compute each, as `save_onnx_graph` writes them. In a notebook the picture is shown as SVG.

    Parameters
    ----------
    source : object
        An optimizer, an estimator, an `nn.Module` that is compiled, an `OnnxLayer`; or a `Model`, a ModelProto, bytes
        or a path, of which the weights that are trained by default count as trained, or its adapter if it has one.
    depth : int or "nodes", optional
        Levels of modules to tell apart, or every node; by default as much as a page has room for, of 1,200 pixels with
        `save_figure`.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default on axes of a new figure, of a size that follows from the blocks.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModelError
        The model cannot be loaded, or the module is not compiled.
    SettingError
        `depth` or `ax` is something else.
    RuntimeMissingError
        matplotlib is not installed.

    Examples
    --------
    >>> from ortpartial.graph import build, constant, op, variable
    >>> x, w = variable("x", "float32", ["N", 3]), constant([[1.0], [2.0], [3.0]], hint="w")
    >>> [text.get_text() for text in plot_graph(build([x], {"y": op.Tanh(x @ w)})).texts if text.get_text()]
    ['x', 'float32   batch × 3', 'MatMul · Tanh', 'w\ntrained: 3', 'y', 'float32   batch × 1']
    """
    import_pyplot()
    from .svg_axes import SvgAxes

    picture, is_new = compose(source, depth, _fits), ax is None
    layout = _lay_out(picture)
    left = layout.left - 0.3
    right = max(layout.right + (_BRACKETS if picture.runs else 0.3), left + 0.09 * len(picture.title))
    caption = wrap(picture.caption, int(13 * (right - left)))
    bottom = layout.bottom + 0.15 + 0.17 * len(caption)
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
        ax.text(left + 0.1, layout.bottom + 0.15, "\n".join(map(printable, caption)), va="top", fontsize=8,
                color="0.35", parse_math=False)
    if not is_new:
        _scale_texts(ax, (right - left, bottom + 0.15))
    return ax


def _lay_out(picture: Picture) -> Layout:
    return lay_out([_measure(box) for box in picture.boxes], list(picture.edges),
                   {boxes[0]: _LABEL for boxes, _ in picture.frames})


def _fits(picture: Picture, is_opened: bool) -> bool:
    """Whether a picture fits a page, and is seen at a glance; one of opened modules is narrow."""
    if len(picture.boxes) > _BOXES:
        return False
    layout = _lay_out(picture)
    height = layout.bottom + _MARGINS + 0.17 * (len(picture.caption) // 40 + 1)
    return layout.right - layout.left <= (_OPENED if is_opened else _WIDEST) and height <= _HEIGHT


def _scale_texts(ax: Axes, size: Point) -> None:
    """Let texts fit their boxes on axes of the caller that are smaller than the picture."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    width, height = ax.get_position().size * figure.get_size_inches()
    for text in ax.texts:
        text.set_fontsize(min(1, width / size[0], height / size[1]) * float(text.get_fontsize()))


def _measure(box: Box) -> Point:
    return _WIDTH, _LINE + _FURTHER * (len(box.lines) + (1.4 if box.adapter else 0))


def _draw_box(ax: Axes, box: Box, center: Point) -> None:
    """A rectangle, the title, the lines, and within it a rectangle of the adapter."""
    (width, height), (x, y) = _measure(box), center
    _draw_rectangle(ax, (x - width / 2, y - height / 2), (width, height), *_STYLES[box.style])
    top = y - height / 2 + _LINE / 2
    ax.text(x, top, printable(box.title), ha="center", va="center", fontsize=8.5, fontweight="bold", zorder=4,
            parse_math=False)
    ax.text(x, top + _LINE / 2 - 0.04, "\n".join(map(printable, box.lines)), ha="center", va="top", fontsize=8,
            linespacing=1.25, color="0.25", zorder=4, parse_math=False)
    if box.adapter:
        bottom = y + height / 2 - 0.5 * _FURTHER
        _draw_rectangle(ax, (x - width / 4, bottom - 0.85 * _FURTHER), (width / 2, 1.1 * _FURTHER),
                        *_STYLES["adapter"], zorder=4)
        ax.text(x, bottom - 0.3 * _FURTHER, box.adapter, ha="center", va="center", fontsize=8, zorder=5,
                parse_math=False)


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
        ax.text(x + 0.07, y0 + min(0.17, (y1 - y0) / 2), label, va="center", fontsize=7, color="0.35", zorder=4,
                parse_math=False, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5} if label else None)


def _draw_frame(ax: Axes, picture: Picture, layout: Layout, boxes: Sequence[int], label: tuple[str, str]
                ) -> None:
    """A dashed frame around boxes and the connections between them, with its labels on both sides of an arrow."""
    inner = set(boxes)
    corners = [point for (i, j), path in layout.paths.items() if i in inner and j in inner for point in path]
    for i in boxes:
        (x, y), (width, height) = layout.centers[i], _measure(picture.boxes[i])
        corners += [(x - width / 2, y - height / 2), (x + width / 2, y + height / 2)]
    (left, right), (top, bottom) = ((min(c), max(c)) for c in zip(*corners, strict=True))
    corner, size = (left - 0.12, top - 0.26), (right - left + 0.22, bottom - top + 0.35)
    _draw_rectangle(ax, corner, size, "#fafafa", "#999999", ":", zorder=1)
    for x, text in zip((corner[0] + 0.08, layout.centers[boxes[0]][0] + 0.08), label, strict=True):
        if text:
            ax.text(x, corner[1] + 0.13, printable(text), va="center", fontsize=8, fontweight="bold", color="0.3",
                    parse_math=False)


def _draw_brackets(ax: Axes, picture: Picture, layout: Layout) -> None:
    """A bracket on the right for each graph that the engine runs, over the parts that it computes."""
    x = layout.right + _BRACKET
    for name, parts in picture.runs:
        edges = [(layout.centers[i][1], _measure(box)[1] / 2) for i, box in enumerate(picture.boxes)
                 if box.part in parts]
        top, bottom = min(y - h for y, h in edges), max(y + h for y, h in edges)
        ax.plot([x - 0.08, x, x, x - 0.08], [top, top, bottom, bottom], color="0.35", linewidth=1.2)
        ax.text(x + 0.1, (top + bottom) / 2, name, va="center", fontsize=8, color="0.2")
