"""Charts for light and dark pages: the style of the package, and its changes for a dark page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib import style
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

THEMES = ("light", "dark")
INK = "#d8dce2"
DARK = {"text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": "#8b929c", "xtick.color": INK, "ytick.color": INK,
        "grid.color": "#3a3f47", "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none"}
#: Colors that a dark page would swallow, and those that stand for them there.
LIGHTER = {"#7a0c14": "#ff9aa2", "#c1121f": "#f2545b", "#1d3557": "#a8c7e8", "#6a93b8": "#4f7aa3",
           "#7b2cbf": "#c18cf0", "#6c757d": "#aeb5bd"}


@contextmanager
def themed(theme: str) -> Iterator[None]:
    """A context in which figures are made and saved."""
    with style.context(["ortpartial.figure", DARK if theme == "dark" else {}]):
        yield


def save(figure: Figure, path: Path, theme: str) -> None:
    """Write a figure; on a dark page, dark lines, bars and words are lighter."""
    if theme == "dark":
        lighter = {to_rgba(a): b for a, b in LIGHTER.items()}
        for artist in figure.findobj(lambda a: isinstance(a, Line2D | Text)):
            artist.set_color(lighter.get(to_rgba(artist.get_color()), artist.get_color()))
        for line in figure.findobj(Line2D):
            line.set_markerfacecolor(lighter.get(to_rgba(line.get_markerfacecolor()), line.get_markerfacecolor()))
            line.set_markeredgecolor(lighter.get(to_rgba(line.get_markeredgecolor()), line.get_markeredgecolor()))
        for patch in figure.findobj(Patch):
            patch.set_facecolor(lighter.get(tuple(patch.get_facecolor()), patch.get_facecolor()))
    figure.savefig(path)
