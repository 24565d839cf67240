"""The README of a kit: its own names, shapes and sizes, and commands that run."""

import re
import runpy
import subprocess

import pytest
from kits import make_optimizer, write_kit_of_two_inputs

from ortpartial import TrainingKit
from ortpartial.kits.page import quote_name
from ortpartial.kits.runners import TARGETS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kits") / "kit"
    make_optimizer("linear", "sgd").export_step(folder, targets=list(TARGETS))
    return folder


def test_files_are_listed_with_their_sizes(folder):
    page = (folder / "README.md").read_text()
    for path in folder.iterdir():
        assert path.name == "README.md" or f"| `{path.name}` | {path.stat().st_size:,} |" in page, path.name


def test_names_and_shapes_are_those_of_the_model(folder):
    page = (folder / "README.md").read_text()
    assert "| `x` | float32 | `N` × 64 | any | training and predictions |" in page
    assert "| `y_target` | int64 | `N` | 0 to 9, -100 does not count | training |" in page
    assert "| `coef` | float32 | 64 × 10 |" in page
    assert "The model returns `y`." in page
    assert "  \"y_target\": { dtype: \"int64\", shape: [100], data: new BigInt64Array(100) }, // yours" in page
    assert not re.search(r"\$(js|outputs)", page)


def test_code_for_python_runs(folder, monkeypatch):
    monkeypatch.chdir(folder)
    code = "\n".join(re.findall("```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL))
    (folder / "of_the_page.py").write_text(code)
    assert len(runpy.run_path("of_the_page.py")["losses"]) == TrainingKit(folder).steps_taken == 100
    assert (folder / "predictions.safetensors").is_file()
    assert (folder / "trained.onnx").is_file()


def test_commands_are_those_of_a_shell(folder):
    for commands in re.findall("```bash\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL):
        assert subprocess.run(["bash", "-n", "-c", commands], capture_output=True).returncode == 0


def test_a_name_is_nothing_but_text(tmp_path, rng):
    assert quote_name("a|b\n`c`") == "a&#124;b&#92;n&#96;c&#96;"
    page = (write_kit_of_two_inputs(tmp_path / "kit", rng) / "README.md").read_text()
    assert "The model returns `y`, `both`." in page
