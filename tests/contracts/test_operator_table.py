"""Does README tell of every operator how its gradient comes about?"""

import subprocess
import sys

from paths import ROOT, environment

sys.path.insert(0, str(ROOT / "tools"))
from operator_table import BEGIN, END, written


def test_readme_is_up_to_date():
    # A process of its own: other tests register rules.
    code = "from operator_table import README, written; t = README.read_text(encoding='utf-8'); print(t == written(t))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(ROOT / "tools"), capture_output=True,
                          text=True, check=True)
    assert done.stdout.strip() == "True", "call make readme"


def test_a_table_is_replaced():
    text = f"above\n{BEGIN}| Exp |\n{END}below\n"
    assert written(text).startswith(f"above\n{BEGIN}| by a rule | operators |\n")
    assert written(text).endswith(f"{END}below\n")
    assert written(written(text)) == written(text)
    assert "| Exp |" not in written(text)
