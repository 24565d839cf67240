"""The table of operators in README.md is up to date."""

import subprocess
import sys

from paths import ROOT, environment

sys.path.insert(0, str(ROOT / "tools"))
from operator_table import BEGIN, END, update


def test_readme_is_up_to_date():
    # A process of its own: other tests register rules.
    code = "from operator_table import README, update; t = README.read_text(encoding='utf-8'); print(t == update(t))"
    run = subprocess.run([sys.executable, "-c", code], env=environment(ROOT / "tools"), capture_output=True,
                         text=True, check=True)
    assert run.stdout.strip() == "True", "call make readme"


def test_a_table_is_replaced():
    text = f"above\n{BEGIN}| Exp |\n{END}below\n"
    assert update(text).startswith(f"above\n{BEGIN}| by a rule | operators |\n")
    assert update(text).endswith(f"{END}below\n")
    assert update(update(text)) == update(text)
    assert "| Exp |" not in update(text)
