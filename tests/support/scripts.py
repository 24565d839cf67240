"""Python run as users run it: in a process of its own, with ortpartial, where warnings are errors."""

import os
import subprocess
import sys
from pathlib import Path

from paths import ROOT

# Modules of torch's exporter, which it imports on its first use, for seconds.
EXPORTERS = ("torch", "torch._dynamo", "onnxscript")

# scikit-learn 1.4 gives the solver of a newer scipy options that this deprecates, and rounds in float32.
OLD_SKLEARN = ("-W", "ignore:scipy.optimize:DeprecationWarning", "-W", "ignore:The y_pred values do not sum to one")


def run(*arguments: object, cwd: Path, torch: bool = False, timeout: float = 60) -> str:
    """What Python prints, run in a folder of its own with ortpartial and without torch; warnings are errors."""
    hidden = cwd / "hidden"
    hidden.mkdir(exist_ok=True)
    # `make demo` does not install torch.
    (hidden / "torch.py").write_text("raise ImportError('what a user runs first does without torch')")
    folders = [str(ROOT)] if torch else [str(hidden), str(ROOT)]
    path = os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "error", *OLD_SKLEARN, *map(str, arguments)], cwd=cwd, capture_output=True, text=True,
        timeout=timeout, encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "MPLBACKEND": "Agg"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
