"""Paths of the repository, and the environment of a subprocess that imports the package and these modules."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"


def environment(*folders: Path) -> dict[str, str]:
    """The environment of this process, with one thread and a PYTHONPATH of the checkout, the support and folders."""
    paths = [*map(str, (ROOT, SUPPORT, *folders)), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
