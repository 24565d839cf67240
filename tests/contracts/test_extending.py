"""The recipes of docs/explanations/extending.md, carried out in a copy of the package, and the tests that they name."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
from once import ON_TRAINING
from paths import ROOT

PAGE = ROOT / "docs" / "explanations" / "extending.md"
BLOCK = re.compile(r"^(`{3,})\{code-block\} (\w+)\n(?::caption: ([^\n]*)\n)?(.*?)^\1$", re.MULTILINE | re.DOTALL)

#: The files that a recipe may touch at most, which can only become fewer.
MOST = {"A gradient rule": 2, "A loss": 3, "An optimizer": 3, "A schedule": 3, "An engine": 3,
        "An execution provider": 2, "A callback": 4, "A layer": 5, "A rewrite": 2, "A native operator": 2,
        "A command": 4}


@dataclass(frozen=True)
class Block:
    """A block of a recipe: a file that is written, an addition, a change, or the command that tests it."""

    language: str
    caption: str
    text: str

    @property
    def path(self) -> str:
        return self.caption.partition(",")[0]

    def apply(self, source: str) -> str:
        """The text of the file after it."""
        _, _, place = self.caption.partition(", ")
        if self.language == "diff":
            return apply_diff(source, self.text)
        if not place:
            assert not source, f"{self.path} is there already"
            return self.text
        if place == "at the end":
            return f"{source.rstrip()}\n\n\n{self.text}"
        start = re.fullmatch("before `(.*)`", place)[1]
        at = re.search(rf"^{re.escape(start)}", source, re.MULTILINE)
        assert at, f"{self.path} has no line that begins with {start}"
        return f"{source[: at.start()]}{self.text}\n\n{source[at.start() :]}"


def apply_diff(source: str, text: str) -> str:
    """A text after the changes of a diff, whose hunks are lines that stand in it once."""
    for hunk in text.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old, new = ("".join(line[1:] or "\n" for line in lines if line[0] != sign) for sign in "+-")
        assert source.count(f"\n{old}") == 1, f"These lines stand {source.count(old)} times where once is right:\n{old}"
        source = source.replace(f"\n{old}", f"\n{new}")
    return source


def read_recipes() -> dict[str, list[Block]]:
    """The blocks of each recipe by its title."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {s.partition("\n")[0]: [Block(b[2], b[3] or "", b[4]) for b in BLOCK.finditer(s)] for s in sections}


RECIPES = read_recipes()


def files_of(title: str) -> list[str]:
    """The files that a recipe touches."""
    return list(dict.fromkeys(b.path for b in RECIPES[title] if b.language != "bash"))


def read_command(title: str) -> tuple[list[str], str]:
    """The files of tests that a recipe names in its last block, and which of their tests."""
    *changes, command = RECIPES[title]
    assert command.language == "bash"
    assert all(b.language != "bash" for b in changes)
    *words, option, expression = shlex.split(command.text)
    assert (words[:3], option) == (["python", "-m", "pytest"], "-k")
    return words[3:], expression


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Iterator[Path]:
    """A copy of package, tests and documentation with what all recipes add."""
    root = tmp_path_factory.mktemp("extended")
    for folder in ("ortpartial", "tests", "docs"):
        shutil.copytree(ROOT / folder, root / folder,
                        ignore=shutil.ignore_patterns("_build", "data", "generated", "node_modules", "pictures"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for block in (b for blocks in RECIPES.values() for b in blocks if b.language != "bash"):
        file = root / block.path
        file.write_text(block.apply(file.read_text(encoding="utf-8") if file.exists() else ""), encoding="utf-8")
    yield root
    shutil.rmtree(root)


def test_recipes_pass_their_tests(copy):
    """In one process, as the import of the package and of torch takes most of the time."""
    files, expressions = zip(*map(read_command, RECIPES), strict=True)
    folders = os.pathsep.join([str(copy), str(copy / "tests" / "support")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", "--junit-xml=report.xml",
         *dict.fromkeys(f for names in files for f in names), "-k", " or ".join(f"({e})" for e in expressions)],
        cwd=copy, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": folders}, capture_output=True, text=True,
        check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    cases = [c for c in ElementTree.parse(copy / "report.xml").iter("testcase") if c.find("skipped") is None]
    names = [(c.get("classname"), f"{c.get('classname')}.{c.get('name')}".lower()) for c in cases]
    for title, paths, expression in zip(RECIPES, files, expressions, strict=True):
        words = {w.lower() for w in re.findall(r"\w+", expression)} - {"and", "not", "or"}
        modules = {path.removesuffix(".py").replace("/", ".") for path in paths}
        ran = {module for module, name in names if any(w in name for w in words)}
        assert modules <= ran, f"{title}: no test of {modules - ran} ran"


@ON_TRAINING  # which has ruff in its environment
def test_additions_are_clean(copy):
    paths = [path for title in RECIPES for path in files_of(title) if path.endswith(".py")]
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", *paths], cwd=copy, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("title", MOST)
def test_files_of_a_recipe(title):
    """As many as the table of the page says, of which those of the package and of its tests come in this order."""
    files = files_of(title)
    assert len(files) <= MOST[title], files
    anchor = title.lower().replace(" ", "-")
    assert f"](#{anchor}) | {len(files)} |" in PAGE.read_text(encoding="utf-8")
    rooms = [path.partition("/")[0] for path in files]
    assert rooms == sorted(rooms, key=["ortpartial", "tests", "docs"].index)


def test_all_recipes_are_held():
    assert list(RECIPES) == list(MOST)


@pytest.mark.parametrize(("source", "text", "message"), [
    ("a\nb\n", " c\n", "These lines stand 0 times"), ("a\nb\nc\nb\n", "-b\n+d\n", "These lines stand 2 times")])
def test_a_change_that_does_not_fit(source, text, message):
    with pytest.raises(AssertionError, match=message):
        apply_diff(source, text)


def test_a_change():
    assert apply_diff("a\nb\nc\n", " b\n+d\n@@\n-c\n+e\n") == "a\nb\nd\ne\n"
