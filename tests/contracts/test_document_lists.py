"""The lists of the documents (rooms, engines, commands, targets, public names) are those of the code."""

import argparse
import importlib
import inspect
import re
from pathlib import Path

import pytest
from groups import GROUPS
from once import ON_TRAINING
from paths import ROOT

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.cli.program import _parser
from ortpartial.exceptions import SettingError
from ortpartial.execution import select_for_fit
from ortpartial.training import select_engine
from tests.contracts.test_rooms import LEVEL, ORDER, PACKAGE, PUBLIC_NAMES

pytestmark = ON_TRAINING

FOLDERS = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def read_table(text, head):
    """The first cells of the table below a line that begins so."""
    lines = text[text.index(f"\n{head}") + 1 :].split("\n\n")[0].splitlines()
    return [line.split("|")[1].strip() for line in lines[2:]]


# Rooms.


def test_architecture_draws_the_rooms_in_their_order():
    block = re.search(r"```\n(cli .*?)```", read("ARCHITECTURE.md"), re.DOTALL)[1]
    drawn = [line.split("   ")[0].split() for line in block.splitlines() if not line.startswith(" ")]
    assert [{*line} for line in drawn] == [{*line.split()} for line in reversed(ORDER)]


def test_architecture_describes_every_room():
    """Those that are folders, with the file to read first."""
    assert {cell.strip("`") for cell in read_table(read("ARCHITECTURE.md"), "| room |")} == FOLDERS
    assert LEVEL.keys() >= FOLDERS


def test_contributing_describes_every_room():
    assert {cell.strip("`") for cell in read_table(read("CONTRIBUTING.md"), "| room |")} == FOLDERS


def test_files_that_architecture_names_without_a_folder_exist():
    """They stand in the folder that was named last before them, or in the room of their row."""
    lost = []
    for line in read("ARCHITECTURE.md").splitlines():
        folder = PACKAGE / line.split("`")[1] if re.match(r"\| `\w+` \|", line) else None
        for name in re.findall(r"(?:`|\]\()((?:[\w.]+/)*[\w.]+\.py)(?:`|\))", line):
            if "/" in name and (ROOT / name).exists():
                folder = (ROOT / name).parent
            elif folder is not None and not (folder / name).exists():
                lost.append((name, line))
    assert lost == []


@pytest.mark.parametrize("room", sorted(FOLDERS))
def test_modules_that_a_readme_lists_exist(room):
    """The first cells of its tables of modules."""
    text = (PACKAGE / room / "README.md").read_text(encoding="utf-8")
    names = [n for table in re.findall(r"^\| modules? \|.*\n\|[-| ]+\n((?:\|.*\n?)+)", text, re.MULTILINE)
             for cell in re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE) for n in re.findall(r"[\w./]+", cell)]
    modules = {str(p.relative_to(PACKAGE / room)).removesuffix(".py") for p in (PACKAGE / room).rglob("*.py")}
    folders = {p.name for p in (PACKAGE / room).iterdir() if p.is_dir()}
    assert [n for n in names if n.removesuffix(".py").rstrip("/") not in modules | folders
            and not (PACKAGE / room / n).exists()] == []


@pytest.mark.parametrize("room", sorted(FOLDERS))
def test_files_that_a_readme_names_exist(room):
    """In the room, or by a path in the package or the repository."""
    text = (PACKAGE / room / "README.md").read_text(encoding="utf-8")
    files = {p.name for p in (PACKAGE / room).rglob("*.py")}
    paths = [(name, Path(name)) for name in re.findall(r"(?<![\w/.])((?:\w+/)*\w+\.py)\b", text)]
    assert [n for n, p in paths if n not in files and not any((f / p).exists() for f in (ROOT, PACKAGE, PACKAGE / room))
            ] == []


# Engines.


def engine_names():
    """The names that the setting takes, as its error lists them."""
    with pytest.raises(SettingError) as e:
        select_for_fit("none of them")
    names = re.findall(r"'(\w+)'", str(e.value))
    for name in names:
        select_for_fit(name)
    return {*names}


@pytest.mark.parametrize("page", ["docs/explanations/engines.md", "docs/reference/settings.md"])
def test_pages_describe_every_engine(page):
    named = {n for cell in read_table(read(page), "| engine |") for n in re.findall(r'"(\w+)"', cell)}
    assert named | {"auto"} == engine_names()


@pytest.mark.parametrize("value", [select_engine, OrtGradientForwardBackwardOptimizer])
def test_docstrings_name_every_engine(value):
    assert {n for n in engine_names() if f'``"{n}"``' not in inspect.getdoc(value)} == set()


def test_a_readme_describes_every_engine_of_a_folder():
    """By the class or by the file, also engines without a name."""
    files = [*PACKAGE.glob("*/*_engine.py")]
    assert files
    for file in files:
        text = (file.parent / "README.md").read_text(encoding="utf-8")
        classes = re.findall(r"^class ([A-Z]\w+Engine)\(", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert file.name in text or all(f"`{n}`" in text for n in classes), file


# Commands and targets.


def command_names():
    (action,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    return list(action.choices)


def test_the_reference_describes_every_command():
    page, commands = read("docs/reference/command_line.md"), command_names()
    sections = re.findall(r"^## ortpartial (\w+)$", page, re.MULTILINE)
    assert sections == re.findall(r"command-help} ortpartial (\w+)", page)
    assert {*sections} == {*commands}
    assert {n for cell in read_table(page, "| command |") for n in re.findall(r"`(\w+)`", cell)} == {*commands}
    assert {n for n in commands if f"`{n}`" not in read("ortpartial/cli/README.md")} == set()


def test_contributing_lists_the_targets_of_the_makefile():
    makefile = read("Makefile")
    targets = set(re.search(r"^\.PHONY: ((?:.*\\\n)*.*)", makefile, re.MULTILINE)[1].replace("\\\n", " ").split())
    helped = set(re.findall(r'@echo "make (\w+)', makefile)) | {"lint"}
    block = re.search(r"```\n(make test .*?)```", read("CONTRIBUTING.md"), re.DOTALL)[1]
    assert set(re.findall(r"^make (\w+)", block, re.MULTILINE)) == helped
    for document in ("CONTRIBUTING.md", "README.md", "RELEASING.md", "ARCHITECTURE.md"):
        assert set(re.findall(r"`make ([a-z]+)", read(document))) <= targets


def test_benchmarks_that_contributing_names_exist():
    paragraph = read("CONTRIBUTING.md").partition("`make bench`")[2].partition("\n\n")[0]
    names = re.findall(r"`(?:bench/)?(\w+\.py)`", paragraph)
    assert {"bench.py", "memory.py", "parallel.py", "runtimes.py"} <= {*names}
    assert [n for n in names if not (ROOT / "bench" / n).exists()] == []


def test_contributing_names_the_rooms_whose_tests_run_on_both_runtimes():
    sentence = re.search(r"and those of (`tests/.*?),\s+which are about what a runtime does", read("CONTRIBUTING.md"),
                         re.DOTALL)[1]
    assert {f"tests/{n.removeprefix('tests/')}" for n in re.findall(r"`([\w/]+)`", sentence)} == {*GROUPS["both"]}


# Public names.


def stability_line(start):
    """The names in the list of public names whose line begins so."""
    text = read("STABILITY.md")
    item = text[text.index(f"\n* {start}") :].split("\n* ")[1].partition("; functions")[0]
    return {n.removeprefix("ortpartial.") for n in re.findall(r"`([\w.]+)`", item)}


def reference_modules():
    return {m.removeprefix("ortpartial.") for page in (ROOT / "docs" / "reference").glob("*.md")
            for m in re.findall(r"currentmodule:: (ortpartial\.[\w.]+)", page.read_text(encoding="utf-8"))}


def test_stability_lists_the_public_modules():
    files = {path.stem for path in PACKAGE.glob("*.py")}
    assert stability_line("the modules") == PUBLIC_NAMES | (reference_modules() & files)


def test_stability_lists_the_public_rooms():
    """Those of the reference, and those of which the documentation imports something."""
    rooms = stability_line("the rooms")
    assert reference_modules() & FOLDERS <= rooms <= FOLDERS
    pages = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)
    imported = set(re.findall(r"^(?:from|import) ortpartial\.(\w+)", pages, re.MULTILINE)) & FOLDERS
    assert imported <= rooms
    for room in rooms:
        importlib.import_module(f"ortpartial.{room}")


def test_environment_variables_are_documented():
    sources = "".join(p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py"))
    pages = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs").rglob("*.md"))
    assert set(re.findall(r"ORTPARTIAL_[A-Z_]+", sources)) == set(re.findall(r"ORTPARTIAL_[A-Z_]+", pages))


def test_stability_names_what_writes_each_file():
    sources = "".join(p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py"))
    names = {n for cell in read_table(read("STABILITY.md"), "| file |") for n in re.findall(r"`([a-zA-Z_]\w+)`", cell)}
    assert names
    assert [n for n in names if not re.search(rf"(?:def|class) {n}\b", sources) and n not in FOLDERS] == []


def test_a_list_that_lacks_a_room_is_seen():
    text = read("CONTRIBUTING.md").replace("| `native` |", "| `narrative` |")
    assert {cell.strip("`") for cell in read_table(text, "| room |")} ^ FOLDERS == {"native", "narrative"}
