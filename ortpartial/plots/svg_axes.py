"""Axes that a notebook shows as SVG; importing this module imports matplotlib."""

from __future__ import annotations

from io import StringIO

from matplotlib import pyplot
from matplotlib.axes import Axes

__all__ = ["SvgAxes"]


class SvgAxes(Axes):
    """Axes whose figure a notebook shows as SVG."""

    def _repr_svg_(self) -> str:
        """The figure, which is closed, so that a notebook does not show it a second time."""
        figure, text = self.get_figure(root=True), StringIO()
        assert figure is not None
        pyplot.close(figure)
        figure.savefig(text, format="svg")
        return text.getvalue()
