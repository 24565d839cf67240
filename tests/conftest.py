"""Skips of tests that the installed packages cannot run, with what they lack, and the fixtures `rng` and `ctrl_c`."""

import gc
import signal
from importlib.util import find_spec

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi import _pybind_state

# These modules assert on behalf of tests: pytest shows the values in their assertions, too.
pytest.register_assert_rewrite("control_graphs", "exports", "models", "table", "torch_layers", "torch_trainings")


def missing(marker: str) -> str | None:
    """Why tests with this marker cannot run here, or None if they can."""
    version = onnxruntime.__version__
    # `onnxruntime.training` would need torch to be imported, so the symbol is looked for where it is defined.
    if marker == "agent" and not hasattr(_pybind_state, "TrainingAgent"):
        return f"needs onnxruntime-training-cpu 1.19.2 (ortpartial[training]), found onnxruntime {version}"
    if marker == "sklearn_callbacks" and find_spec("sklearn.callback") is None:
        return "needs scikit-learn 1.9 or later"
    providers = onnxruntime.get_available_providers()
    if marker == "cuda" and "CUDAExecutionProvider" not in providers:
        return f"needs CUDAExecutionProvider, onnxruntime {version} has {', '.join(providers)}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {marker: missing(marker) for marker in ("agent", "cuda", "sklearn_callbacks")}
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection() -> None:
    gc.disable()  # nothing that collection makes is garbage


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over tests and modules: going through them took a twelfth of the time."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator of random numbers, the same ones in every test."""
    return np.random.default_rng(0)


@pytest.fixture
def ctrl_c():
    """The handler of a program in the foreground: in the background, these tests run with SIGINT ignored."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)
