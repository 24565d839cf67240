"""The pages of the documentation: their code runs and prints what they say, their commands exist, and every public name
has a page.
"""

import doctest
import importlib
import inspect
import re
import shlex
from importlib.util import find_spec
from itertools import pairwise

import pytest
from once import ON_BOTH
from paths import ROOT, SUPPORT
from printed import FLAGS, NumberChecker
from scripts import EXPORTERS, run

from ortpartial.cli.program import _parser
from ortpartial.runtime.device import has_training

DOCS = ROOT / "docs"
WRITTEN = ("_build", "examples", "generated")  # by `make docs`
PAGES = [p for p in sorted(DOCS.rglob("*.md")) if not any(part in WRITTEN for part in p.relative_to(DOCS).parts)]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOREIGN = r"^ *(?:import|from) (?:torch|transformers|peft)\b|OnnxLayer"

# torch 2.13.0 warns about its own code while torch.onnx.export decomposes a graph.
TORCH_WARNINGS = ("-W", "ignore:`isinstance(treespec, LeafSpec)` is deprecated:FutureWarning")

# What stands on a page is public by these modules; elsewhere rooms share names.
PUBLIC = ("", ".nn", ".artifacts", ".torch", ".testing", ".plots", ".exceptions", ".callbacks", ".adapters",
          ".learning_loss", ".learning_penalty", ".learning_rate", ".schedule")
OPTIONAL = {"OnnxClassifier", "OnnxRegressor", "OnnxLayer"}  # Imported on first use, so not in __all__.


def read_blocks(text):
    """The blocks of a page: language, code, its first line, and the text that follows a block of Python, or None."""
    found = [*BLOCK.finditer(text), None]
    for block, after in pairwise(found):
        follows = after and after[1] == "text" and not text[block.end() : after.start()].strip()
        yield block[1], block[2], text[: block.start()].count("\n") + 1, after[2] if follows else None


def python_blocks(page):
    return [block for block in read_blocks(page.read_text(encoding="utf-8")) if block[0] == "python"]


def write_script(page):
    """The code of a page, in the lines where it stands there; each block is announced by the number of its line."""
    lines = [""] * page.read_text(encoding="utf-8").count("\n")
    for _, code, line, _ in python_blocks(page):
        lines[line - 1] = f"print('\\n\\x00{line}')"
        lines[line : line + code.count("\n")] = code.splitlines()
    return "\n".join(lines) + "\n"


def compare(page, printed):
    """What blocks of a page did not print, although the page says so."""
    outputs = dict(re.findall(r"\x00(\d+)\n(.*?)(?=\n\x00|\Z)", printed, re.DOTALL))
    blocks = [(str(line), text) for _, _, line, text in python_blocks(page) if text is not None]
    return [f"{page.name}, line {line}: {text}\nis not what it prints:\n{outputs.get(line)}" for line, text in blocks
            if not NumberChecker().check_output(text, outputs.get(line, "").rstrip("\n") + "\n", FLAGS)]


def needed(page):
    """The packages without which a page cannot run."""
    found = re.search(r"^% needs: (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [name.strip() for name in found[1].split(",")] if found else []


def is_foreign(page):
    return any(re.search(FOREIGN, code, re.MULTILINE) for _, code, _, _ in python_blocks(page))


@ON_BOTH
@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("torch", [False, True], ids=["without torch", "with torch"])
def test_code_of_pages(torch, half, tmp_path):
    """Each page in a process of its own, all from one that has imported the packages that they share.

    `make test` runs one half of them on onnxruntime-training and the other, with those that need further packages, on
    onnxruntime.
    """
    runnable = [page for page in PAGES if python_blocks(page) and is_foreign(page) == torch]
    chosen = [page for page in runnable if not needed(page)][half ^ has_training() :: 2]
    if half == has_training():
        chosen += [page for page in runnable if needed(page) and all(map(find_spec, needed(page)))]
    scripts = {page: tmp_path / page.relative_to(DOCS).with_suffix("") / f"{page.stem}.py" for page in chosen}
    for page, script in scripts.items():
        script.parent.mkdir(parents=True)
        script.write_text(write_script(page), encoding="utf-8")
    packages = ["ortpartial", "sklearn.datasets", "skl2onnx", "matplotlib.pyplot", *EXPORTERS * torch]
    packages += sorted({name for page in chosen for name in needed(page)} & {"transformers"})
    arguments = [argument for script in scripts.values() for argument in (script, script.parent)]
    report = ""
    try:
        if chosen:
            run(*TORCH_WARNINGS, SUPPORT / "forked.py", ",".join(packages), *arguments, cwd=tmp_path, torch=torch,
                timeout=500)
    except AssertionError as e:
        report = str(e)
    wrong = []
    for page, script in scripts.items():
        printed, errors = ((script.parent / name).read_text(encoding="utf-8") for name in ("printed", "errors"))
        wrong += [f"{page.relative_to(ROOT)}:\n{errors}"] if str(script) in report else compare(page, printed)
    assert not wrong, "\n".join(wrong)


PAGE = """# A page

```python
print(1 / 3)
```

```text
{}
```
"""


@pytest.mark.parametrize(("said", "wrong"), [("0.33", 0), ("0...3", 0), ("0.34", 1)])
def test_what_a_page_says_is_compared(said, wrong, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(said))
    script = tmp_path / "script.py"
    script.write_text(write_script(page))
    assert script.read_text().splitlines()[3] == "print(1 / 3)"
    assert len(compare(page, run(script, cwd=tmp_path))) == wrong


def read_pictures(text):
    """By picture of a page, in either form, its alternative text."""
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text)
    for path, options in re.findall(r"^`{3,}\{(?:image|figure)\} (\S+)\n(.*?)^`{3,}$", text, re.MULTILINE | re.DOTALL):
        alt = re.search(r"^:alt: (.*)$", options, re.MULTILINE)
        pictures.append((alt[1] if alt else "", path))
    return {path: alt for alt, path in pictures}


def test_pictures_have_alternative_texts():
    """They say what a picture shows, in more than two words, and each file is there."""
    count = 0
    for page in [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("examples/**/README.md")]:
        for path, alt in read_pictures(page.read_text(encoding="utf-8")).items():
            assert len(alt.split()) > 2, f"{page.relative_to(ROOT)}: {path}"
            assert path.startswith("http") or (page.parent / path).exists(), f"{page.relative_to(ROOT)}: {path}"
            count += 1
    assert count >= 20
    assert read_pictures("![](a.png)\n```{image} b.png\n:width: 9\n```\n") == {"a.png": "", "b.png": ""}


def test_commands_of_pages():
    """Lines of a shell that call the program name commands and options that it has."""
    parse, count = _parser().parse_args, 0
    for page in [*PAGES, ROOT / "README.md"]:
        for language, code, line, _ in read_blocks(page.read_text(encoding="utf-8")):
            if language != "bash":
                continue
            for command in code.replace("\\\n", " ").splitlines():
                words = shlex.split(command, comments=True)
                words = words[2:] if words[:2] == ["python", "-m"] else words
                if words[:1] != ["ortpartial"] or {"--help", "--version"} & set(words):
                    continue
                try:
                    parse(words[1 : next((i for i, w in enumerate(words) if w in "|>&&;"), None)])
                except SystemExit:
                    pytest.fail(f"{page.relative_to(ROOT)}, line {line}: {command}")
                count += 1
    assert count


def test_every_public_name_has_one_page():
    listed = [name for page in sorted((DOCS / "reference").glob("*.md")) for name in read_names(page)]
    objects = [find(name) for name in listed]
    assert len(set(map(id, objects))) == len(listed), "a name stands twice"
    public = [f"ortpartial.{name}" for name in sorted(OPTIONAL)]
    for suffix in PUBLIC:
        module = importlib.import_module(f"ortpartial{suffix}")
        names = getattr(module, "_ROOMS", module.__all__)
        public += [f"ortpartial{suffix}.{name}" for name in names if not name.startswith("resolve_")]
    assert [name for name in public if id(find(name)) not in set(map(id, objects))] == []


def test_every_name_on_a_page_has_an_example():
    """In its own docstring, not in that of a base class; test_public_api.py runs it."""
    names = [name for page in sorted((DOCS / "reference").glob("*.md")) for name in read_names(page)]
    assert [name for name in names if not has_example(find(name))] == []


def has_example(value):
    """Whether a docstring has lines that are run, of which none is skipped."""
    examples = doctest.DocTestParser().get_examples(inspect.cleandoc(vars(value).get("__doc__") or "")
                                                    if inspect.isclass(value) else inspect.getdoc(value) or "")
    return bool(examples) and not any(doctest.SKIP in example.options for example in examples)


class Exemplary:
    """It has an example.

    >>> 1 + 1
    2
    """


class Inherited(Exemplary):
    pass


class Skipped:
    """It has an example that is not run.

    >>> 1 + 1
    2
    >>> 1 + 1  # doctest: +SKIP
    3
    """


@pytest.mark.parametrize(
    ("value", "has"), [(Exemplary, True), (Inherited, False), (Skipped, False), (find_spec, False)])
def test_what_is_an_example(value, has):
    assert has_example(value) is has


def read_names(page):
    """The names that a page of the reference lists."""
    text = page.read_text(encoding="utf-8")
    for module, names in re.findall(r"currentmodule:: (\S+)\n\n\.\. autosummary::\n(.*?)^```", text, re.M | re.S):
        yield from (f"{module}.{name}" for name in re.findall(r"^   (\w+)$", names, re.M))


def find(name):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)
