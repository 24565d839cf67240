"""All attacks harm a naive reader, and none harms the library."""

import subprocess
import sys

from once import ON_NEWEST
from paths import ROOT, environment

ATTACKS = ROOT / "attacks"
SCRIPTS = sorted(p.stem for p in ATTACKS.glob("*.py") if p.stem not in ("run", "victims"))


@ON_NEWEST
def test_attacks(record_property):
    done = subprocess.run([sys.executable, str(ATTACKS / "run.py")], env=environment(), capture_output=True, text=True,
                          timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert f"{len(SCRIPTS)} of {len(SCRIPTS)} survived" in done.stdout
    tried = sum(line.startswith("    ") for line in done.stdout.splitlines()) - len(SCRIPTS)
    record_property("count", f"{tried} attacks in {len(SCRIPTS)} scripts")
    assert tried > 150


def test_an_attack_that_succeeds_is_seen(tmp_path):
    """A reader that is harmed, one that hangs and one that dies; and a naive one that comes to no harm."""
    (tmp_path / "broken.py").write_text('''"""Not survived."""
import os, time

def naive():
    return True

def attacks():
    yield "harm", lambda: "HARMED"
    yield "unclear", lambda: {}["lost"]
    yield "death", os.abort
''')
    (tmp_path / "harmless.py").write_text("def naive():\n    return False\n\ndef attacks():\n"
                                          "    yield 'nothing', lambda: 'unharmed'\n")
    done = subprocess.run([sys.executable, str(ATTACKS / "run.py"), "broken", "harmless"], env=environment(tmp_path),
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.count("NOT SURVIVED") == 3
    assert "KeyError: 'lost'" in done.stdout
    assert "killed by SIGABRT" in done.stdout
    assert "NOT HARMED: False" in done.stdout
    assert "0 of 2 survived: not broken, harmless" in done.stdout


def test_the_page_lists_them():
    page = (ATTACKS / "README.md").read_text(encoding="utf-8")
    assert [n for n in SCRIPTS if f"| [{n}]({n}.py) |" not in page] == []
