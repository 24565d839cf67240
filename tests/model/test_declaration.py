"""Declared operators of com.microsoft: their schema, and shapes by their formulas."""

import pytest
from onnx import TensorProto, defs
from onnx.parser import parse_model
from onnx.shape_inference import infer_shapes

from ortpartial.graph import op
from ortpartial.model import declaration
from ortpartial.model.declaration import declare


@pytest.fixture(scope="module")
def doubled():
    """x, twice along an axis."""

    @declare("TestDoubled", "X Scale?", like="X", axis=0, ratio=float)
    def formula(x, scale=None, *, axis):
        return op.Concat(x, x, axis=axis)

    yield defs.get_schema("TestDoubled", "com.microsoft")
    defs.deregister_schema("TestDoubled", 1, "com.microsoft")


def test_the_schema(doubled):
    assert [i.name for i in doubled.inputs] == ["X", "Scale"]
    assert [i.option.name for i in doubled.inputs] == ["Single", "Optional"]
    assert doubled.attributes["axis"].default_value.i == 0
    assert not doubled.attributes["ratio"].required


@pytest.mark.parametrize(("axis", "shape"), [(0, (4, 3)), (1, (2, 6))])
def test_shapes_are_those_of_the_formula(doubled, axis, shape):
    model = parse_model(f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (uint8[2, 3] x) => (y) {{ y = com.microsoft.TestDoubled <axis = {axis}> (x) }}""")
    (y,) = infer_shapes(model).graph.output
    assert y.type.tensor_type.elem_type == TensorProto.UINT8
    assert tuple(d.dim_value for d in y.type.tensor_type.shape.dim) == shape


def test_declaring_twice_changes_nothing(doubled):
    declaration.declare_schema("TestDoubled", "A B C", "Y", None)
    assert len(defs.get_schema("TestDoubled", "com.microsoft").inputs) == 2
