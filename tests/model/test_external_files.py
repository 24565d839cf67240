"""External data are read from the folder of a model, and errors name the tensor."""

import os
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortpartial import OrtGradientForwardBackward, OrtGradientForwardBackwardOptimizer, TrainingSession, gradient_model
from ortpartial.exceptions import ModelError
from ortpartial.graph import build
from ortpartial.model import load, read
from ortpartial.runtime import Session

DATA = np.arange(6, dtype=np.float32)


def refer(t, **entries):
    """Let a tensor refer to a part of the file `data`, which need not be there."""
    t.ClearField("raw_data")
    t.ClearField("float_data")
    t.ClearField("int64_data")
    t.data_location = TensorProto.EXTERNAL
    del t.external_data[:]
    for key, value in {"location": "data", "offset": 0, **entries}.items():
        if value is not None:
            t.external_data.add(key=key, value=str(value))


def dense():
    """y = x + w."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[6] x) => (float[6] y) { y = Add (x, w) }')
    model.graph.initializer.append(numpy_helper.from_array(DATA, "w"))
    return model, model.graph.initializer[0]


def sparse(part):
    model, t = dense()
    places = numpy_helper.from_array(np.arange(6), "places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(t, places, [6]))
    del model.graph.initializer[:]
    return model, getattr(model.graph.sparse_initializer[0], part)


def attribute(body=False, function=False, sparse=False):
    """y = x + w with w from a Constant node, in a branch of an If or in a function."""
    model, t = dense()
    del model.graph.initializer[:]
    node = helper.make_node("Constant", [], ["w"], name="node")
    value = helper.make_sparse_tensor(t, numpy_helper.from_array(np.arange(6)), [6]) if sparse else t
    node.attribute.append(helper.make_attribute("sparse_value" if sparse else "value", value))
    if function:
        model.functions.append(helper.make_function("own", "F", [], ["w"], [node], [helper.make_opsetid("", 18)]))
        model.opset_import.append(helper.make_opsetid("own", 1))
        node = helper.make_node("F", [], ["w"], domain="own")
    if body:
        graphs = [helper.make_graph([node], n, [], [helper.make_tensor_value_info("w", 1, [6])]) for n in "ab"]
        node = helper.make_node("If", ["c"], ["w_if"], then_branch=graphs[0], else_branch=graphs[1])
        model.graph.node[0].input[1] = "w_if"
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    model.graph.node.insert(0, node)
    holder = model.functions[0].node[0] if function else model.graph.node[0]
    holder = holder.attribute[0].g.node[0] if body else holder
    a = holder.attribute[0]
    return model, a.sparse_tensor.values if sparse else a.t


MODELS = {
    "dense": dense,
    "values": lambda: sparse("values"),
    "indices": lambda: sparse("indices"),
    "attribute": attribute,
    "sparse attribute": lambda: attribute(sparse=True),
    "body": lambda: attribute(body=True),
    "function": lambda: attribute(function=True),
}


@pytest.fixture(params=MODELS)
def model(request, tmp_path, monkeypatch):
    """A model, one of whose tensors is in the file `data` of the folder `there`, and that tensor."""
    model, t = MODELS[request.param]()
    content = numpy_helper.to_array(t).tobytes()
    for folder in ("there", "here"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data").write_bytes(content)
    monkeypatch.chdir(tmp_path / "here")
    refer(t, length=len(content))
    return model, t


def test_a_folder_is_given(model, tmp_path):
    """What is not given by its path reads nothing from the working directory, where there is a file of this name."""
    model, _ = model
    for source in (model, model.SerializeToString()):
        for door in (load, read, OrtGradientForwardBackwardOptimizer, OrtGradientForwardBackward, gradient_model,
                     TrainingSession):
            with pytest.raises(ModelError, match=r"The data of .* are in another file \(external data\); give the "
                                                 r"path of the model, or its folder, as in load\(model, folder=...\)."):
                door(source)
        loaded = load(source, folder=tmp_path / "there")
        outputs = Session(build(loaded.inputs, loaded.outputs)).run({"x": DATA})
        np.testing.assert_array_equal(outputs["y"], 2 * DATA)
    (tmp_path / "there" / "model.onnx").write_bytes(model.SerializeToString())
    assert read(tmp_path / "there" / "model.onnx") == read(model, "../there")
    assert load(os.path.join("..", "there", "model.onnx")).proto == loaded.proto


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": -4}, "'offset' is '-4', where a whole number of at least 0 was expected"),
        ({"offset": "0x4"}, "'offset' is '0x4', where a whole number"),
        ({"offset": "1e3"}, "'offset' is '1e3', where a whole number"),
        ({"offset": "9" * 5000}, "'offset' is '99999999999999999999', where a whole number"),
        ({"offset": 2**63 - 1}, "exceeds"),
        ({"offset": 4}, "exceeds available data"),
        ({"length": -1}, "'length' is '-1', where a whole number"),
        ({"length": "٣"}, "'length' is '٣', where a whole number"),
        ({"length": 4}, "'length' is 4, and a tensor of"),
        ({"length": 2**62}, f"'length' is {2**62}, and a tensor of"),
        ({"location": ".."}, ""),
        ({"location": "../there/data"}, ""),
        ({"location": "/dev/zero"}, ""),
        ({"location": "link"}, ""),
        ({"location": "pipe"}, ""),
        ({"location": "nowhere"}, "nowhere"),
        ({"location": ""}, ""),
        ({"location": None}, ""),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["dense", "values", "indices", "attribute"])
def test_bad_entries(tmp_path, kind, entries, message):
    """Escapes from the folder, special files, and parts that are not there; nothing hangs."""
    model, t = MODELS[kind]()
    content = numpy_helper.to_array(t).tobytes()
    refer(t, length=len(content))
    for folder in ("there", "here"):
        (tmp_path / folder).mkdir()
    (tmp_path / "there" / "data").write_bytes(content)
    (tmp_path / "here" / "data").write_bytes(content)
    (tmp_path / "here" / "link").symlink_to(tmp_path / "there" / "data")
    os.mkfifo(tmp_path / "here" / "pipe")
    refer(t, **{"length": len(content), **entries})
    name = "the attribute 'value' of 'node'" if kind == "attribute" else "'w'"
    with pytest.raises(ModelError, match=f"The external data of {name}.* cannot be read: .*{re.escape(message)}") as e:
        load(model, folder=tmp_path / "here")
    assert "\n" not in str(e.value)


def test_sizes(tmp_path):
    """The length may be left out; a shape that is negative or does not fit the file is an error, before it is read."""
    model, t = dense()
    (tmp_path / "data").write_bytes(b"some" + DATA.tobytes() + b"more")
    refer(t, offset=4)
    assert (load(model, folder=str(tmp_path)).arrays["w"] == DATA).all()
    for dims, message in (([2**40], "exceeds available data"), ([-6], r"has the shape \(-6,\), which no")):
        t.dims[:] = dims
        with pytest.raises(ModelError, match=rf"The external data of 'w' cannot be read: .*{message}"):
            load(model, folder=tmp_path)
    t.dims[:] = [6]
    t.data_type = TensorProto.STRING
    with pytest.raises(ModelError, match=r"The external data of 'w' cannot be read: texts cannot be in another file"):
        load(model, folder=tmp_path)


def test_packed_elements(tmp_path):
    model, _ = dense()
    packed = numpy_helper.from_array(np.array([1, -2, 3], numpy_helper.to_array(
        helper.make_tensor("", TensorProto.INT4, [1], [0])).dtype), "q")
    model.graph.initializer.append(packed)
    (tmp_path / "data").write_bytes(packed.raw_data)
    refer(model.graph.initializer[1], length=2)
    assert load(model, folder=tmp_path).arrays["q"].astype(int).tolist() == [1, -2, 3]


@pytest.mark.parametrize("location", ["folder/data", "hard", "data\0", "here/../data", "./folder/../../there/data"])
def test_links_and_detours(tmp_path, location):
    """A folder that is a link, another name of a file elsewhere, and names that C and Python read differently."""
    model, t = dense()
    for folder in ("there", "here"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data").write_bytes(DATA.tobytes())
    (tmp_path / "here" / "folder").symlink_to(tmp_path / "there")
    os.link(tmp_path / "there" / "data", tmp_path / "here" / "hard")
    refer(t, location=location)
    with pytest.raises(ModelError, match=r"The external data of 'w' cannot be read: .*(link|no path of a file)"):
        load(model, folder=tmp_path / "here")


def test_folders_below(tmp_path):
    model, t = dense()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "data").write_bytes(DATA.tobytes())
    refer(t, location="./a//b/data")
    assert (load(model, folder=tmp_path).arrays["w"] == DATA).all()
