"""Files of figures, and the sentence where matplotlib is missing."""

import asyncio
import subprocess
import sys

import nbformat
import pytest
from matplotlib import pyplot
from nbclient import NotebookClient
from once import ON_NEWEST

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
    with pytest.raises(RuntimeMissingError, match=r"drawn by matplotlib, .*`pip install '.\[plot\]'`"):
        plot_losses(HISTORY)


@ON_NEWEST
def test_notebooks(monkeypatch):
    """Each figure of a notebook is shown, those of the user after those of the library, too."""
    monkeypatch.delenv("MPLBACKEND", raising=False)  # The kernel sets it, unless it is set.
    cells = ["from ortpartial.plots import plot_losses\nax = plot_losses([3.0, 2.0, 1.5])",
             "ax = plot_losses([3.0, 2.0])", "from matplotlib import pyplot\nlines = pyplot.plot([1, 2, 3])",
             "pyplot.hist([1, 2]); pyplot.show()"]
    notebooks = [nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (*magic, *cells)])
                 for magic in ([], ["%matplotlib inline"])]

    async def execute():
        await asyncio.gather(*(NotebookClient(n, kernel_name="python3").async_execute() for n in notebooks))

    asyncio.run(execute())
    for notebook in notebooks:
        images = [sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in notebook.cells]
        assert images[-len(cells):] == [1, 1, 1, 1]
