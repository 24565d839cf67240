"""Commands that messages tell."""

import re
from pathlib import Path

import ortpartial
from ortpartial.installation import install_command

ROOT = Path(ortpartial.__file__).parent
PROJECT = (ROOT.parent / "pyproject.toml").read_text()


def test_commands_stand_in_one_place():
    """A module tells the name of an extra, which the project has."""
    texts = {path: path.read_text() for path in ROOT.rglob("*.py")}
    assert [path.name for path, text in texts.items() if re.search(r"ortpartial\[", text)] == []
    extras = {e for text in texts.values() for e in re.findall(r"install_command\('(\w+)'\)", text)}
    assert extras >= {"training", "cpu", "plot", "sklearn", "cli", "torch", "cuda"}
    assert [e for e in extras if not re.search(rf"^{e} = \[", PROJECT, re.M)] == []


def test_text():
    assert install_command("cli") == "`pip install '.[cli]'` in a clone of https://github.com/ortpartial/ortpartial"
