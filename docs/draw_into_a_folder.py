"""How the gallery calls the examples."""

from tempfile import mkdtemp


def draw_into_a_folder(gallery, script):
    """The arguments of an example: a folder for its figure, which the gallery itself takes from matplotlib."""
    return [mkdtemp()]
