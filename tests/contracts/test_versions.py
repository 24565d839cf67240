"""Supported versions are the same wherever they stand: metadata, Makefile, workflows, the recipe for conda."""

import re
import warnings

import pytest
from paths import ROOT

import ortpartial

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or later")
yaml = pytest.importorskip("yaml", reason="reads files of YAML")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
RECIPE = yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text(encoding="utf-8"))
PYTHONS = [c.split(" :: ")[-1] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
#: Packages that conda-forge calls by another name.
CONDA = {"matplotlib": "matplotlib-base", "torch": "pytorch"}


def bounds(requirements):
    """Names and versions of requirements, such as {"numpy": ">=1.26"}."""
    split = (re.fullmatch(r"([\w-]+) ?(>=[\d.]+)", r) for r in requirements)
    return {CONDA.get(m[1], m[1]): m[2] for m in split if m}


def test_the_version_stands_in_one_place():
    assert "version" in PROJECT["dynamic"]
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "ortpartial/__init__.py"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {citation["version"], RECIPE["context"]["version"]} == {ortpartial.__version__}
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    number = re.escape(ortpartial.__version__)
    assert re.search(rf"^## (\[{number}\]|.* {number}$)", changes, re.MULTILINE)


def test_versions_of_python():
    first, last = (int(v.split(".")[1]) for v in (PYTHONS[0], PYTHONS[-1]))
    assert [f"3.{minor}" for minor in range(first, last + 1)] == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py3{first}"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == PYTHONS[0]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"here >= (3, {first})" in makefile
    assert f"$(PYTHONS)/{PYTHONS[-1]}/.installed" in makefile
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["matrix"]["strategy"]["matrix"]["python"] == PYTHONS
    assert RECIPE["context"]["python_min"] == PYTHONS[0]


def test_the_recipe_has_the_dependencies_of_the_package():
    needs = RECIPE["requirements"]
    assert bounds(needs["run"]) == bounds([*PROJECT["dependencies"], *EXTRAS["cpu"]])
    assert bounds(needs["run_constraints"]) == bounds(r for e in ("torch", "sklearn", "plot", "cli") for r in EXTRAS[e])
    assert bounds(needs["host"]) == bounds(PYPROJECT["build-system"]["requires"])
    (script,) = RECIPE["build"]["python"]["entry_points"]
    assert dict([script.split(" = ")]) == PROJECT["scripts"]
    assert RECIPE["build"]["noarch"] == "python"
    assert (RECIPE["about"]["license"], RECIPE["about"]["summary"]) == (PROJECT["license"], PROJECT["description"])


def test_every_dependency_has_a_lower_bound():
    extras = ("torch", "sklearn", "plot", "cli", "cpu", "fast")
    required = [*PROJECT["dependencies"], *(r for e in extras for r in EXTRAS[e])]
    assert [r for r in required if not re.search("[>=]=", r) and not r.startswith("ortpartial[")] == []


@pytest.mark.parametrize("part", ["fast", "fast_torch"])
def test_the_fast_part_exists(part):
    files = (ROOT / f"tests/{part}.txt").read_text(encoding="utf-8").split()
    assert files == sorted(set(files), key=files.index)
    assert [f for f in files if not (ROOT / f).exists()] == []
    rooms = {p.parent.name for p in (ROOT / "ortpartial").glob("*/__init__.py")} - {"torch"}
    assert part == "fast_torch" or {f.split("/")[1] for f in files} >= rooms


@pytest.mark.parametrize("category", [DeprecationWarning, FutureWarning, PendingDeprecationWarning, UserWarning])
@pytest.mark.parametrize("module", ["numpy", "onnx.helper", "onnxruntime.capi", "sklearn.base", "ortpartial.graph.ops"])
def test_warnings_are_errors_whoever_gives_them(category, module, pytestconfig):
    if pytestconfig.known_args_namespace.pythonwarnings:
        pytest.skip("beside the oldest packages, -W ignores deprecations")
    with pytest.raises(category, match="is gone in the next version"):
        warnings.warn_explicit("This is gone in the next version.", category, f"{module}.py", 1, module=module)
