"""Groups of tests: the runtime that runs a test without a mark in `make test`, and the sample with limits at zero.

A test belongs to the group of its file, or of the nearest folder that is listed, with about the same time in both. Rows
of long tables belong to a group by the first letter of their word, so that each runtime has rows of every table.
"""

import re
from pathlib import Path

from ortpartial.runtime.device import has_training

__all__ = ["PLACED", "find_group", "is_here", "is_left_out", "is_sampled"]

#: Folders and files by the runtime that they run on; the longest path that a test's begins with counts.
GROUPS: dict[str, tuple[str, ...]] = {
    "training": ("tests/cli", "tests/estimator", "tests/graph", "tests/learning", "tests/peers",
                 "tests/rewrites", "tests/training_info"),
    "newest": ("tests", "tests/adapters", "tests/artifacts", "tests/autodiff", "tests/compat",
               "tests/derivatives", "tests/kits", "tests/model", "tests/mutation", "tests/native", "tests/nn",
               "tests/plots", "tests/torch"),
    # Whole on both, as they are about what runtimes do.
    "both": ("tests/robustness", "tests/runtime"),
    # Tables of operators, pieces and names; engines with settings; scikit-learn, of which the two environments have two
    # versions.
    "rows": ("tests/autodiff/rules", "tests/contracts", "tests/estimator/sklearn", "tests/execution", "tests/training"),
}
#: The letters of rows that run on onnxruntime-training.
TRAINING_LETTERS = "abcdefghijkl"
#: The letters of tests and rows that run with all limits of size at zero, a quarter of them.
SAMPLED_LETTERS = "cone"

#: Marks of tests that run wherever they can.
PLACED = ("agent", "both", "cuda", "proof", "skip", "skipif", "sklearn_callbacks", "slow")
#: A mark in a file of tests, or a module of this folder that marks tests.
_MARKS = re.compile(rf"\bmark\.({'|'.join(PLACED)})\b"
                    r"|^from (kits|once|providers|table|torch_steps|trainings) ", re.MULTILINE)

_GROUP_OF = {path: group for group, paths in GROUPS.items() for path in paths}


def find_group(nodeid: str) -> str:
    """``"training"``, ``"newest"`` or ``"both"``."""
    path = nodeid.partition("::")[0]
    while path not in _GROUP_OF:
        path = path.rpartition("/")[0]
    group = _GROUP_OF[path]
    return group if group != "rows" else "training" if find_letter(nodeid) in TRAINING_LETTERS else "newest"


def find_letter(nodeid: str) -> str:
    """The first letter of a row: of the first word with a capital, such as an operator, or else of any; of a test
    without rows, of its name."""
    name = nodeid.partition("::")[2]
    words = re.findall(r"[A-Za-z]+", name.partition("[")[2]) or [name.rpartition("test_")[2]]
    return next((word for word in words if word[0].isupper()), words[0])[0].lower()


def is_here(nodeid: str) -> bool:
    """Whether this is the runtime of a test's group."""
    return find_group(nodeid) == ("training" if has_training() else "newest")


def is_left_out(path: Path, root: Path) -> bool:
    """Whether `make test` runs all tests of a file on the other runtime."""
    groups = {find_group(f"{path.relative_to(root).as_posix()}::test_{letter}") for letter in "az"}
    is_elsewhere = groups == {"newest" if has_training() else "training"}
    return is_elsewhere and not _MARKS.search(path.read_text(encoding="utf-8"))


def is_sampled(nodeid: str) -> bool:
    """Whether a test is of the sample with limits at zero."""
    return find_letter(nodeid) in SAMPLED_LETTERS
