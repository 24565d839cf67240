"""Suites of other libraries with the classes of this one in their place: what passes is what the page tells."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import warnings

import pytest
import sklearn
from paths import ROOT

PAGE = ROOT / "docs/explanations/peers_suites.md"
PEERS = ROOT / "tests/peers"
#: By suite, its module, the module of names in place of its own, and tests that are left out, as the page says.
SUITES = {
    "test_mlp.py": ("sklearn.neural_network.tests.test_mlp", "sklearn_names", ""),
    "test_sgd.py": ("sklearn.linear_model.tests.test_sgd", "sklearn_names",
                    "not backends and not multi_core and not (test_balanced_weight and Sparse)"),
}
#: The version whose suites the page tells of.
IS_TOLD = pytest.mark.skipif(not sklearn.__version__.startswith("1.9."),
                             reason=f"the page is of scikit-learn 1.9, and {sklearn.__version__} is installed")
#: Tests that pass, with their arguments, of every version from 1.4 on.
SAMPLE = [("test_mlp.py", "test_partial_fit_unseen_classes", ()), ("test_mlp.py", "test_partial_fit_classes_error", ()),
          ("test_sgd.py", "test_large_regularization", ("l1",)), ("test_sgd.py", "test_large_regularization", ("l2",))]


def read_section(suite):
    """The tests that pass and all that are run, by the heading; by test, how many of its rows fail."""
    text = PAGE.read_text(encoding="utf-8")
    heading = re.search(rf"^### `{re.escape(suite)}`: (\d+) of (\d+) tests pass$", text, re.MULTILINE)
    section = text[heading.end():].partition("\n#")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\d+) of (\d+) \| .+ \|$", section, re.MULTILINE)
    return (int(heading[1]), int(heading[2])), {name: (int(failed), int(of)) for name, failed, of in rows}


def run(suite, folder):
    """Whether each test of a suite has passed, in a process of its own."""
    module, plugin, chosen = SUITES[suite]
    path = os.pathsep.join([str(ROOT), str(PEERS), os.environ.get("PYTHONPATH", "")])
    results = folder / "results.json"
    command = ["pytest", "-p", plugin, "-c", os.devnull, f"--rootdir={folder}", "-q", "-p", "no:cacheprovider",
               "-W", "ignore", "--pyargs", module, "-k", chosen]
    subprocess.run([sys.executable, "-m", *command], cwd=folder, check=False, capture_output=True,
                   env={**os.environ, "PYTHONPATH": path, "PEERS_RESULTS": str(results)})
    return json.loads(results.read_text(encoding="utf-8"))


@pytest.mark.slow
@IS_TOLD
@pytest.mark.parametrize("suite", SUITES)
def test_suite(suite, tmp_path):
    results = run(suite, tmp_path)
    counts, expected = read_section(suite)
    by_name = {}
    for name, has_passed in results.items():
        by_name.setdefault(name.partition("[")[0], []).append(has_passed)
    failed = {n: (each.count(False), len(each)) for n, each in by_name.items() if not all(each)}
    assert failed == expected
    assert (sum(results.values()), len(results)) == counts


@IS_TOLD
@pytest.mark.parametrize("suite", SUITES)
def test_counts_of_the_page_add_up(suite):
    (passed, total), rows = read_section(suite)
    assert total - passed == sum(failed for failed, _ in rows.values())


def import_suite(suite, monkeypatch):
    """A suite as a module, in which the names are those of this library."""
    monkeypatch.syspath_prepend(str(PEERS))
    module, plugin, _ = SUITES[suite]
    for owner, value, name in importlib.import_module(plugin).NAMES:
        monkeypatch.setattr(owner, name, value)
    monkeypatch.setattr(pytest.mark, "_config", None)  # A suite has marks that this project does not declare.
    spec = importlib.util.find_spec(module)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("suite", SUITES)
def test_sample(suite, monkeypatch):
    loaded = import_suite(suite, monkeypatch)
    for owner, name, arguments in SAMPLE:
        if owner == suite:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                getattr(loaded, name)(*arguments)


def test_a_test_that_fails_is_seen(monkeypatch):
    loaded = import_suite("test_mlp.py", monkeypatch)
    with pytest.raises(AttributeError, match="has no setter"):
        loaded.test_fit()
