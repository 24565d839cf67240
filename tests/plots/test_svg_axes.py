"""Axes that a notebook shows as SVG, once."""

from xml.etree import ElementTree

from matplotlib import pyplot

from ortpartial.plots.svg_axes import SvgAxes


def test_the_figure_as_svg_is_closed():
    figure = pyplot.figure()
    axes = figure.add_subplot(axes_class=SvgAxes)
    axes.plot([1, 2, 3])
    axes.set_title("losses")
    assert pyplot.fignum_exists(figure.number)
    root = ElementTree.fromstring(axes._repr_svg_())
    assert root.tag.endswith("svg")
    assert not pyplot.fignum_exists(figure.number)
