"""Texts of an export in C: literals that lose no bit, and the page."""

import math

import numpy as np
import pytest
from models import mlp

from ortpartial import OrtGradientForwardBackwardOptimizer, export_c
from ortpartial.kits.c_texts import _braced, _literal
from ortpartial.kits.page import quote_name


@pytest.mark.parametrize("number", [0.1, -1 / 3, 1e-45, 3.4e38, 0.0, 2.0**-149])
def test_numbers_keep_their_bits(number):
    a = np.float32(number)
    text = _literal(a.item(), np.dtype(np.float32))
    assert text.endswith("f")
    assert float.fromhex(text[:-1]) == a
    assert float.fromhex(_literal(number, np.dtype(np.float64))) == number


def test_numbers_that_have_no_literal():
    names = [_literal(x, np.dtype(np.float32)) for x in (math.inf, -math.inf, math.nan)]
    assert names == ["INFINITY", "-INFINITY", "NAN"]
    assert _literal(np.iinfo(np.int64).min, np.dtype(np.int64)) == f"(-{2**63 - 1} - 1)"


def test_arrays():
    assert _braced(np.array(3)) == "{3}"
    assert _braced(np.zeros(0, np.int64)) == "{0}"
    assert len(_braced(np.arange(17)).splitlines()) == 2 + 3


def test_a_name_of_a_stranger_is_text_in_the_page():
    assert quote_name("layer.0/w") == "`layer.0/w`"
    assert "|" not in quote_name("a|b`<script>")
    assert "<" not in quote_name("a|b`<script>")


def test_the_page_names_what_is_fed(tmp_path):
    files = export_c(OrtGradientForwardBackwardOptimizer(mlp(), random_state=0), tmp_path / "c", batch_size=4)
    page = next(p for n, p in files.items() if n.endswith(".md")).read_text(encoding="utf-8")
    assert "`x`" in page
    assert "`W1`" in page
    assert "$" not in page
