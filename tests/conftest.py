"""Skips of tests that the installed packages cannot run, with what they lack; fixtures `rng`, `limit`, `ctrl_c`."""

import gc
import re
import signal
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from groups import PLACED, find_group, is_here, is_left_out, is_sampled
from onnxruntime.capi import _pybind_state

from ortpartial.limits import Limits, limits, use_limits
from ortpartial.runtime.device import has_training

# These modules assert on behalf of tests: pytest shows the values in their assertions, too.
pytest.register_assert_rewrite("control_graphs", "exports", "models", "table", "torch_layers", "torch_trainings")


def missing(marker: str) -> str | None:
    """Why tests with this marker cannot run here, or None if they can."""
    version = onnxruntime.__version__
    # `onnxruntime.training` would need torch to be imported, so the symbol is looked for where it is defined.
    if marker == "agent" and not hasattr(_pybind_state, "TrainingAgent"):
        return f"needs onnxruntime-training-cpu 1.19.2 (ortpartial[training]), found onnxruntime {version}"
    if marker == "sklearn_callbacks" and not (find_spec("sklearn") and find_spec("sklearn.callback")):
        return "needs scikit-learn 1.9 or later"
    providers = onnxruntime.get_available_providers()
    if marker == "cuda" and "CUDAExecutionProvider" not in providers:
        return f"needs CUDAExecutionProvider, onnxruntime {version} has {', '.join(providers)}"
    return None


# Rooms whose tests also run with all limits of size at zero.
WITHOUT_LIMITS = ("tests/autodiff/", "tests/contracts/", "tests/execution/", "tests/rewrites/", "tests/training/")
HALVED = pytest.StashKey[bool]()

# Folders of tables that are sampled without a mark.
SAMPLED = "tests/autodiff/rules/"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--half", action="store_true",
                     help="leave out the groups that the other runtime runs in `make test`")
    parser.addoption("--limits", choices=["usual", "zero", "sampled"], default="sampled",
                     help="limits of size in tests of gradients and engines; by default a quarter has them at zero")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of the other runtime are not even read, which would take a quarter of the time of collecting."""
    is_file = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if config.option.half and is_file and is_left_out(collection_path, config.rootpath) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share(config.option.half, items)
    reasons = {marker: missing(marker) for marker in ("agent", "cuda", "sklearn_callbacks")}
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def share(is_half: bool, items: list[pytest.Item]) -> None:
    """With `--half`, leave tests that any runtime can run to the one of their group, and take samples of long tables.

    Without the option all run on both, and all that `make test` shares or samples is part of `make proof`.
    """
    rows: Counter[str] = Counter()
    for item in items:
        names = {mark.name for mark in item.iter_markers()}
        if (n := count_rows(item)) > 1 and "slow" not in names:
            is_row_here = not is_half or is_in_sample(item, n, rows)
            item.add_marker("proof" if is_row_here else "slow")
        elif find_group(item.nodeid) != "both" and names.isdisjoint(PLACED):
            item.stash[HALVED] = is_half
            item.add_marker("proof" if not is_half or is_here(item.nodeid) else "slow")


def count_rows(item: pytest.Item) -> int:
    """Of how many rows of its table a test is one that `make test` runs; of two, in the long tables of rules."""
    if mark := item.get_closest_marker("sampled"):
        return mark.args[0]
    return 2 if item.nodeid.startswith(SAMPLED) and "[" in item.nodeid else 1


def is_in_sample(item: pytest.Item, n: int, rows: Counter[str]) -> bool:
    """Whether a row is one of the n-th part of its table; rows of tests that run on both differ between the runtimes.

    Multiples of the golden ratio: every n-th row would have one value of a parameter that has n.
    """
    test = item.nodeid.partition("[")[0]
    is_on_both = bool(item.get_closest_marker("both")) or find_group(item.nodeid) == "both"
    if not (is_on_both or is_here(item.nodeid) or any(map(item.get_closest_marker, PLACED))):
        return False
    part = int(rows[test] * 0.618034 % 1 * n)
    rows[test] += 1
    return part == (is_on_both and not has_training())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that only the other runtime can run, and that is left out there, would run nowhere."""
    report = yield
    reason = report.longrepr[-1] if report.skipped and isinstance(report.longrepr, tuple) else ""
    if item.stash.get(HALVED, False) and re.search("onnxruntime|sklearn", reason):
        report.outcome = "failed"
        report.longrepr = f"{reason}\nThe other runtime leaves the test out: mark it ON_BOTH or by who can run it."
    return report


def pytest_collection() -> None:
    gc.disable()  # nothing that collection makes is garbage


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over tests and modules: going through them took a twelfth of the time."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def _limits_of_size(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Rewrites apply at any size in `--limits=zero`, which `make proof` runs, and in a quarter of the tests always."""
    item, choice = request.node, request.config.option.limits
    # Language models of the contracts take long in chunks of one row.
    is_chosen = choice == "sampled" and is_sampled(item.nodeid) and "/contracts/" not in item.nodeid
    is_lifted = item.nodeid.startswith(WITHOUT_LIMITS) and not item.get_closest_marker("usual_limits")
    with use_limits(Limits.zero() if is_lifted and (is_chosen or choice == "zero") else Limits()):
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator of random numbers, the same ones in every test."""
    return np.random.default_rng(0)


@pytest.fixture
def limit() -> Generator[Callable[..., None], None, None]:
    """Sets limits of size by name until the test ends."""
    with ExitStack() as stack:
        yield lambda **changes: stack.enter_context(use_limits(replace(limits(), **changes)))


@pytest.fixture
def unruled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unique without its rule: an operator of which no gradient is known."""
    from ortpartial.autodiff.registry import RULES  # late, as most tests are of other rooms

    monkeypatch.delitem(RULES, ("", "Unique"))


@pytest.fixture
def ctrl_c():
    """The handler of a program in the foreground: in the background, these tests run with SIGINT ignored."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)
