"""Does README tell of every operator how its gradient comes about?"""

import os
import subprocess
import sys
from pathlib import Path

from operators import BEGIN, END, written

TESTS = Path(__file__).parent


def test_readme_is_up_to_date():
    # A process of its own: other tests register rules.
    code = "from operators import README, written; t = README.read_text(encoding='utf-8'); print(t == written(t))"
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == "True", "call make readme"


def test_a_table_is_replaced():
    text = f"above\n{BEGIN}| Exp |\n{END}below\n"
    assert written(text).startswith(f"above\n{BEGIN}| by a rule | operators |\n")
    assert written(text).endswith(f"{END}below\n")
    assert written(written(text)) == written(text)
    assert "| Exp |" not in written(text)
