"""A tensor agrees with its shape and its element type, or an error names it."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortpartial.exceptions import ModelError
from ortpartial.model import load

FLOAT = TensorProto.FLOAT
DTYPES = [np.float32, np.float64, np.float16, np.int8, np.uint64, np.bool_, np.complex64, ml_dtypes.bfloat16,
          ml_dtypes.int4, ml_dtypes.float8_e4m3fn]


def model(t):
    """y = x + 1, beside a tensor that nothing reads."""
    graph = helper.make_graph([helper.make_node("Add", ["x", "one"], ["y"])], "g",
                              [helper.make_tensor_value_info("x", FLOAT, [3])],
                              [helper.make_tensor_value_info("y", FLOAT, [3])],
                              [numpy_helper.from_array(np.ones(1, np.float32), "one"), t])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data_type": FLOAT, "dims": [4], "raw_data": bytes(12)}, r"takes 16 bytes, and has 12\."),
        ({"data_type": FLOAT, "dims": [4], "float_data": [1.0]}, r"takes 4 numbers, and has 1\."),
        ({"data_type": FLOAT, "dims": [0], "raw_data": bytes(4)}, r"takes 0 bytes, and has 4\."),
        ({"data_type": FLOAT, "dims": [2**40], "raw_data": bytes(4)}, f"takes {2**42} bytes, and has 4"),
        ({"data_type": FLOAT, "dims": [2**62, 2**62], "raw_data": bytes(4)}, "which no tensor can have"),
        ({"data_type": FLOAT, "dims": [0, 2**62], "raw_data": b""}, "which no tensor can have"),
        ({"data_type": FLOAT, "dims": [-1], "raw_data": bytes(4)}, r"has the shape \(-1,\), which no tensor can have"),
        ({"data_type": FLOAT, "dims": [1] * 40, "raw_data": bytes(4)}, "which no tensor can have"),
        ({"data_type": 99, "dims": [1], "raw_data": bytes(4)}, "has the element type 99, which is none of ONNX"),
        ({"data_type": 0, "dims": [1], "raw_data": bytes(4)}, "has the element type 0, which is none of ONNX"),
        ({"data_type": TensorProto.INT64, "dims": [2], "int32_data": [1, 2]}, r"takes 2 numbers, and has 0\."),
        ({"data_type": TensorProto.INT4, "dims": [3], "int32_data": [1, 2, 3]}, r"takes 2 numbers, and has 3\."),
        ({"data_type": TensorProto.STRING, "dims": [2], "raw_data": bytes(2)}, r"takes 2 numbers, and has 0\."),
    ],
    ids=lambda value: None if isinstance(value, str) else str(value)[:60],
)
def test_broken(fields, message):
    with pytest.raises(ModelError, match=rf"The tensor 'w\\x1b' .*{message}"):
        load(model(TensorProto(name="w\x1b", **fields)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0, 3)])
def test_every_way_to_store(dtype, shape):
    """As onnx writes it, in bytes and in numbers."""
    array = np.ones(shape, dtype)
    raw = numpy_helper.from_array(array, "w")
    numbers = helper.make_tensor("w", raw.data_type, shape, array.astype(complex if array.dtype.kind == "c" else float))
    for t in (raw, numbers):
        assert load(model(t)).arrays["w"].astype(complex).tolist() == array.astype(complex).tolist()


@pytest.mark.parametrize("name", ["one", "Add", "nodename"])
def test_names_that_are_no_text(name):
    """protobuf reads any bytes, and Python gets bytes for a text then."""
    proto = model(TensorProto(name="w", data_type=FLOAT, dims=[1], raw_data=bytes(4)))
    proto.graph.node[0].name = "nodename"
    data = proto.SerializeToString()
    with pytest.raises(ModelError, match=r"The model has the name b'\\xff.*', which is no text in UTF-8"):
        load(data.replace(name.encode(), b"\xff" * len(name)))


@pytest.mark.parametrize("kind", [0, 99, -(2**31)])
def test_inputs_of_no_type(kind):
    proto = model(TensorProto(name="w", data_type=FLOAT, dims=[1], raw_data=bytes(4)))
    proto.graph.input[0].type.tensor_type.elem_type = kind
    with pytest.raises(ModelError, match=f"Input 'x' has the element type {kind}, which is none of ONNX"):
        load(proto)
