"""The runners of training kits: programs that train where there is no Python."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ortpartial.checks import check_names
from ortpartial.exceptions import SettingError

__all__ = ["TARGETS", "read_runners"]

_MODULES = ("javascript/kit.mjs", "javascript/manifest.mjs", "javascript/rows.mjs", "javascript/safetensors.mjs",
            "javascript/session.mjs", "javascript/state.mjs")

#: The files of a runner by target.
TARGETS = {
    "web": _MODULES,
    "node": (*_MODULES, "javascript/files.mjs", "javascript/train.mjs", "javascript/predict.mjs",
             "javascript/package.json"),
    "c": ("c/kit.h", "c/model.h", "c/rows.h", "c/safetensors.h", "c/session.h", "c/train.c", "c/predict.c"),
    "cpp": ("cpp/files.hpp", "cpp/kit.hpp", "cpp/model.hpp", "cpp/rows.hpp", "cpp/safetensors.hpp", "cpp/step.hpp",
            "cpp/train.cpp", "cpp/predict.cpp"),
    "java": ("java/BadInput.java", "java/Binding.java", "java/Kit.java", "java/Model.java", "java/Rows.java",
             "java/Tensor.java", "java/TensorFile.java", "java/Train.java", "java/Predict.java"),
}

_HERE = Path(__file__).parent


def read_runners(targets: str | Iterable[str]) -> dict[str, bytes]:
    """Read the files of runners.

    Parameters
    ----------
    targets : str or iterable of str
        Where a kit shall run: ``"web"``, ``"node"``, ``"c"``, ``"cpp"``, ``"java"``; any number of them.

    Returns
    -------
    dict of str to bytes
        By the name of the file.

    Raises
    ------
    SettingError
        A target is not known.
    """
    names = check_names("targets", targets)
    for name in names:
        if name not in TARGETS:
            raise SettingError(f"targets has {name!r}; expected some of {', '.join(map(repr, TARGETS))}.")
    # They are examples, too: a wheel has a copy, beside the sources they stand where examples are.
    installed, examples = _HERE / "runners", _HERE.parents[1] / "examples" / "anywhere"
    folder = installed if installed.is_dir() else examples
    return {Path(file).name: (folder / file).read_bytes() for name in names for file in TARGETS[name]}
