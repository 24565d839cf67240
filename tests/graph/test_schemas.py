"""Operator schemas: versions, defaults and required inputs."""

import subprocess
import sys
import traceback
from importlib.metadata import version

import numpy as np
import pytest
from onnx import defs

from ortpartial.exceptions import GraphError
from ortpartial.graph import constant, op, variable
from ortpartial.graph.schemas import accepted_types, np_dtype, onnx_type, schema_of

X = variable("x", "float32", ["N", 3])


def test_an_operator_younger_than_the_opset_is_taken_as_it_first_appeared():
    assert op.RMSNormalization(X, constant(np.ones(3, np.float32))).node.schema.since_version == 23


def test_attributes_have_the_defaults_of_the_specification():
    node = op.LayerNormalization(X, constant(np.ones(3, np.float32)), axis=1).node
    assert (node.attribute("axis"), node.attribute("stash_type")) == (1, 1)
    assert node.attribute("epsilon") == pytest.approx(1e-5)
    assert op.Transpose(X).node.attribute("perm") is None


def test_schemas():
    assert schema_of("ReduceSum", "", 12).since_version == 11
    assert schema_of("Swish", "", 21).since_version == defs.get_schema("Swish").since_version > 21
    with pytest.raises(GraphError, match=r"ONNX has no operator here\.Nothing at opset 21"):
        schema_of("Nothing", "here", 21)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "bool", "uint8"])
def test_types_there_and_back(dtype):
    assert np_dtype(onnx_type(dtype)) == dtype
    assert onnx_type(dtype) in accepted_types(defs.get_schema("Identity"), 0)


@pytest.mark.skipif(version("onnx").startswith("1.20."), reason="FormalParameter.types raises in onnx 1.20.")
def test_accepted_types_are_those_of_the_formal_parameters():
    for schema in defs.get_all_schemas_with_history():
        for i, p in enumerate(schema.inputs):
            assert p.type_str in ("T1", "seq(T)") or accepted_types(schema, i) == set(p.types)


def test_one_guess_for_a_misspelt_operator():
    assert op.Relu
    with pytest.raises(AttributeError) as caught:
        _ = op.Rellu
    assert "".join(traceback.format_exception(caught.value)).count("Did you mean") == 1


def test_an_input_of_one_type():
    assert accepted_types(schema_of("Reshape", "", 21), 1) == {"tensor(int64)"}


def test_a_program_that_imports_the_package_ends_well():
    # onnx 1.20 to 1.22 crash on leaving Python where a schema with a type inference of Python is still registered.
    ended = subprocess.run([sys.executable, "-c", "import ortpartial"], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
