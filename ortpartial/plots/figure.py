"""Figures: matplotlib on first use, the style of the package, and files that hold a whole picture or the former."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortpartial.arguments import checked
from ortpartial.exceptions import RuntimeMissingError, SettingError
from ortpartial.installation import install_command
from ortpartial.model import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Any  # matplotlib is optional, and imported on first use.

__all__ = ["Axes", "drawing", "import_pyplot", "save_figure"]


def import_pyplot() -> Any:
    """Import matplotlib.pyplot, which is optional.

    Returns
    -------
    module

    Raises
    ------
    RuntimeMissingError
        matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as e:
        raise RuntimeMissingError(f"Pictures are drawn by matplotlib, and there is no module {e.name!r}: run "
                                  f"{install_command('plot')}.") from None
    return pyplot


@contextmanager
def drawing(ax: Axes | None, figsize: tuple[float, float] = (6.4, 4.0), **settings: object) -> Iterator[Axes]:
    """A context in which to draw: on the axes of the caller as they are, or on new axes in the style of the package.

    Parameters
    ----------
    ax : matplotlib.axes.Axes, optional
        Axes of the caller.
    figsize : tuple of float
        Width and height of a new figure, in inches.
    **settings : object
        Further settings of new axes, as for `Figure.add_subplot`.

    Yields
    ------
    matplotlib.axes.Axes

    Raises
    ------
    SettingError
        `ax` is something else.
    """
    pyplot = import_pyplot()
    if ax is not None:
        if not hasattr(ax, "get_figure") or not hasattr(ax, "plot"):
            raise SettingError(f"ax is axes of matplotlib, as plt.subplots() returns, not {ax!r}.")
        yield ax
        return
    if not pyplot.get_fignums():
        # The first use chooses the backend, and that of notebooks then sets parameters for good, such as "interactive":
        # within a context of parameters its end would undo them, and no later figure be shown (matplotlib 3.11).
        pyplot.draw_if_interactive()
    with pyplot.style.context("ortpartial.figure"):
        yield pyplot.figure(figsize=figsize).add_subplot(**settings)


@checked
def save_figure(picture: Axes | Figure, path: str | os.PathLike[str], **settings: object) -> Path:
    """Write a picture to a file, which holds the whole picture or its former content, whenever the process ends.

    Parameters
    ----------
    picture : matplotlib.axes.Axes or matplotlib.figure.Figure
        The result of a function of this room, or a figure.
    path : path
        The file; its suffix is the format: ``.png``, ``.svg`` or ``.pdf``. Without a suffix it is PNG.
    **settings : object
        As for matplotlib's `savefig`, such as ``dpi=200``.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ValueError
        matplotlib does not know the format.
    OSError
        The file cannot be written, and the former file remains.

    Examples
    --------
    >>> from ortpartial.plots import plot_losses
    >>> save_figure(plot_losses([3.0, 2.0, 1.5]), "losses.png").stat().st_size > 1000
    True
    """
    pyplot, path = import_pyplot(), Path(path)
    kind = {"format": path.suffix.lstrip(".").lower() or "png", "dpi": 120, **settings}
    figure: Any = picture.get_figure() if hasattr(picture, "get_figure") else picture
    if not hasattr(figure, "savefig"):
        raise SettingError(f"picture is axes or a figure of matplotlib, not {picture!r}.")
    with replace_file(path) as file, pyplot.style.context("ortpartial.figure"):
        figure.savefig(file, **kind)
    return path
