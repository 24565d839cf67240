"""Pictures are drawn without a screen, and closed after each test."""

import sys

import matplotlib
import pytest

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    if "matplotlib.pyplot" in sys.modules:
        matplotlib.pyplot.close("all")
