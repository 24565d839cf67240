"""The programs that kits are given."""

import pytest
from paths import ROOT

from ortpartial.kits.runners import TARGETS, read_runners

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or later")


def test_a_wheel_has_the_runner_of_every_target():
    """Sources that stand among the examples are copied into it, each by its name."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    files = sorted({file for target in TARGETS.values() for file in target})
    assert wheel["force-include"] == {f"examples/anywhere/{f}": f"ortpartial/kits/runners/{f}" for f in files}
    assert sorted(read_runners(TARGETS)) == sorted(file.rpartition("/")[2] for file in files)


def test_runners_are_short():
    for target in TARGETS:
        for name, data in read_runners(target).items():
            lines = data.decode().splitlines()
            assert len(lines) <= 100, name
            assert max(map(len, lines)) <= 120, name
