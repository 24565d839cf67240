"""The tables of operators are up to date, and agree with the library."""

import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import onnxruntime
import pytest
from once import ON_BOTH
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import _pybind_state
from paths import ROOT, environment

from ortpartial import gradient_model, load
from ortpartial.autodiff import gradient_support
from ortpartial.exceptions import NoGradientError

sys.path.insert(0, str(ROOT / "tools"))
import contrib_table
import language_operators
from operator_table import BEGIN, END, update


def test_they_are_up_to_date():
    # A process of its own: other tests register rules.
    code = ("from operator_table import TABLES, update; texts = {p: p.read_text(encoding='utf-8') for p in TABLES}; "
            "print(all(texts[p] == update(texts[p], make) for p, make in TABLES.items()))")
    run = subprocess.run([sys.executable, "-c", code], env=environment(ROOT / "tools"), capture_output=True,
                         text=True, check=True)
    assert run.stdout.strip() == "True", "call make tables"


@ON_BOTH
@pytest.mark.parametrize("tool", language_operators.FOLDERS)
def test_what_the_tools_write_is_listed(tool):
    """Their source names no other operator of com.microsoft, as far as it is installed."""
    package = language_operators.FOLDERS[tool][0]
    if not hasattr(_pybind_state, "get_all_operator_schema") or find_spec(package) is None:
        pytest.skip(f"{package} is not installed, or onnxruntime does not hand out its schemas.")
    names = {s.name for s in _pybind_state.get_all_operator_schema() if s.domain == "com.microsoft"}
    assert language_operators.list_written(tool, names) == language_operators.WRITTEN[tool].split()


@ON_BOTH
def test_the_record_of_contrib_operators_is_true():
    """The newest onnxruntime hands out its operators; 1.19.2 says of a node that it does not know the operator."""
    record = contrib_table.read_record()
    assert list(record) == sorted(record)
    if hasattr(_pybind_state, "get_all_operator_schema"):
        assert contrib_table.list_installed() == {n: new for n, (_, new) in record.items() if new != "-"}
    else:
        assert {n for n in record if is_registered(n)} == {n for n, (old, _) in record.items() if old != "-"}


def is_registered(name):
    """Whether onnxruntime knows an operator of com.microsoft."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node(name, ["x"], ["y"], domain="com.microsoft")], "g", [value],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
    try:
        onnxruntime.InferenceSession(model.SerializeToString())
    except Exception as e:  # The errors of onnxruntime have no common base class below Exception.
        return not re.search("is not a registered function/op|No Op registered", str(e))
    return True


@pytest.mark.parametrize("name", sorted(
    name for name in " ".join(language_operators.WRITTEN.values()).split()
    if language_operators.describe(name).startswith("none")))
def test_what_has_no_gradient_says_why(name):
    """In the words of the table, whatever the inputs are."""
    node = helper.make_node(name, ["h"], ["z"], "n", domain="com.microsoft")
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 2]) for n in "xzy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["h"]), node, helper.make_node(
        "Neg", ["z"], ["y"])], "g", types[:1], types[2:], [numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")],
        value_info=types[1:2])
    model = load(helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]))
    assert gradient_support(model.values["z"].node) == "none"
    reason = language_operators.describe(name).removeprefix("none: ")
    with pytest.raises(NoGradientError, match=re.escape(f"com.microsoft.{name}> has no gradient: {reason}, or leave ")):
        gradient_model(model, ["w"])


def test_a_table_is_replaced():
    text = f"above\n{BEGIN}| Exp |\n{END}below\n"
    assert update(text).startswith(f"above\n{BEGIN}| by a rule | operators |\n")
    assert update(text).endswith(f"{END}below\n")
    assert update(update(text)) == update(text)
    assert "| Exp |" not in update(text)
