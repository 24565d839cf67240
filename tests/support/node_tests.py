"""The operator tests of onnx, made once for all processes: its reference implementation takes 10 s for them."""

import fcntl
import os
import pickle
import warnings
from functools import cache

import numpy as np
import onnx
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from paths import ROOT

__all__ = ["load_node_tests"]

FOLDER = ROOT / ".pytest_cache"


@cache
def load_node_tests() -> list[TestCase]:
    """From a file of this checkout; the first process that asks writes it, and the others wait."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"node_tests_{onnx.__version__}_{np.__version__}.pickle"
    with open(path.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            part = path.with_suffix(".part")
            part.write_bytes(pickle.dumps(_make_tests()))
            os.replace(part, path)
    return pickle.loads(path.read_bytes())


def _make_tests() -> list[TestCase]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # Some divide by zero or overflow while they are made, by intention.
        return load_model_tests(kind="node")
