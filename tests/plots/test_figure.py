"""Files of figures, and the sentence where matplotlib is missing."""

import subprocess
import sys

import pytest
from matplotlib import pyplot

from ortpartial.exceptions import RuntimeMissingError
from ortpartial.plots import plot_losses, save_figure

HISTORY = [2.0, 1.0, 0.5]


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF"),
                                             ("a", b"\x89PNG")])
def test_formats(tmp_path, name, start):
    assert save_figure(plot_losses(HISTORY), tmp_path / name).read_bytes().startswith(start)


def test_former_picture_remains(tmp_path, monkeypatch):
    """An error while the picture is drawn leaves the file as it was, and nothing beside it."""
    ax, path = plot_losses(HISTORY), tmp_path / "a.png"
    path.write_bytes(b"former")

    def fail(file, **settings):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ax.figure, "savefig", fail)
    with pytest.raises(OSError, match="free some space"):
        save_figure(ax, path)
    assert path.read_bytes() == b"former"
    with pytest.raises(ValueError, match="'tiff2' is not supported"):
        save_figure(plot_losses(HISTORY), tmp_path / "a.tiff2")
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


def test_axes_of_the_caller():
    """They keep their style, and no figure is opened beside theirs."""
    _, axes = pyplot.subplots(1, 2)
    assert plot_losses(HISTORY, ax=axes[1]) is axes[1]
    assert axes[1].spines["top"].get_visible()
    assert pyplot.get_fignums() == [1]
    assert not plot_losses(HISTORY).spines["top"].get_visible()


def test_matplotlib_is_imported_on_first_use():
    code = "import sys, ortpartial.plots; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_matplotlib_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot")
    with pytest.raises(RuntimeMissingError, match=r"drawn by matplotlib, .*`pip install ortpartial\[plot\]`"):
        plot_losses(HISTORY)
