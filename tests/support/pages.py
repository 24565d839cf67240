"""Pages of the documentation: their blocks, and the scripts that these make."""

import re
from itertools import pairwise

from paths import ROOT

DOCS = ROOT / "docs"
WRITTEN = ("_build", "examples", "generated")  # by `make docs`
PAGES = [p for p in sorted(DOCS.rglob("*.md")) if not any(part in WRITTEN for part in p.relative_to(DOCS).parts)]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOREIGN = r"^ *(?:import|from) (?:torch|transformers|peft)\b|OnnxLayer"


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


def needed(page):
    """The packages without which a page cannot run."""
    found = re.search(r"^% needs: (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [name.strip() for name in found[1].split(",")] if found else []


def is_foreign(page):
    return any(re.search(FOREIGN, code, re.MULTILINE) for _, code, _, _ in python_blocks(page))
