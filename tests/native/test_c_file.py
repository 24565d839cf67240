"""The text of a C file: identifiers, structs in the layout of C, and tables."""

import re

import numpy as np
import pytest

from ortpartial.native.c_file import Field, lay_out, name_fields, write_table
from ortpartial.native.expressions import Array

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


@pytest.mark.parametrize(("name", "expected"), [
    ("layer.0/weight", "layer_0_weight"), ("0", "x_0"), ("double", "x_double"), ("NULL", "x_NULL"), ("é", "x"),
    ("OP_ADD", "x_OP_ADD"), ("_x_", "x")])
def test_identifiers(name, expected):
    assert name_fields([name]) == {name: expected}
    assert re.fullmatch(r"[A-Za-z]\w*", expected, re.ASCII)


def test_identifiers_are_unique():
    assert list(name_fields(["a.b", "a/b", "a_b_2", "a b"]).values()) == ["a_b", "a_b_2", "a_b_2_2", "a_b_3"]


def test_structs():
    """Each field where a C compiler puts it; what has no elements still has one."""
    fields = [Field("a", "a", F32, (3,)), Field("b", "b", F64, ()), Field("c", "c", F32, (0, 4))]
    layout = lay_out(fields)
    assert [layout.fields[n][1] for n in "abc"] == [0, 16, 24]
    assert layout.itemsize == 32
    assert [f.declare() for f in fields] == ["  float a[3];", "  double b[1];", "  float c[1];"]
    assert lay_out([]).itemsize == 1


def test_tables():
    text = write_table(Array(F32, 11, "table", "t", np.arange(11, dtype=F32)))
    assert text.startswith("static const float t[11] = {")
    assert [float(x) for x in re.findall(r"([\d.]+)f", text)] == list(range(11))
