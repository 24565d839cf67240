"""The page that writes a gradient from nothing keeps to the number of lines that its title has."""

import re

from paths import ROOT

PAGE = ROOT / "docs" / "explanations" / "gradient_in_150_lines.md"


def test_lines_of_code():
    title, *_ = text = PAGE.read_text(encoding="utf-8").splitlines()
    (limit,) = map(int, re.findall(r"\d+", title))
    blocks = re.findall(r"^```python\n(.*?)^```$", "\n".join(text), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    assert limit - 10 < len(lines) <= limit
    assert max(map(len, lines)) <= 120
