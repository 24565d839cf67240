"""Adapters that lie about their shapes, and records in a model's metadata that name missing tensors.

An attacker hopes that a matrix is read beyond its end, and that nodes in a circle are followed for ever.
"""

import json
from pathlib import Path

import numpy as np
from onnx import ModelProto, numpy_helper
from victims import model, node

from ortpartial import add_lora, load_adapter, merge, save_adapter
from ortpartial.model import read_tensors, write_tensors
from ortpartial.runtime import has_adapter_files

BASE = model([node("MatMul", ["x", "fc.weight"], ["y"], name="fc")],
             [numpy_helper.from_array(np.ones((4, 4), np.float32), "fc.weight")])
KEY = "ortpartial.adapter"


def naive():
    first = {"a": "b", "b": "a"}
    name = "a"
    for _ in range(10**9):  # while name in first
        name = first[name]
    return True


NAIVE_LIMITS = {"seconds": 1}


def adapted():
    return add_lora(BASE, "fc", rank=2, random_state=0)


def record(**entries):
    """The model with another record of its adapter."""
    proto = ModelProto()
    proto.CopyFrom(adapted())
    (entry,) = [p for p in proto.metadata_props if p.key == KEY]
    stored = json.loads(entry.value)
    stored["targets"][0].update({n: v for n, v in entries.items() if n in stored["targets"][0]})
    stored.update({n: v for n, v in entries.items() if n in stored})
    entry.value = json.dumps(stored)
    return proto


def attacks():
    for entries in ({"node": "lost"}, {"inputs": 2**40}, {"stop": 2**40}, {"start": -1}, {"weights": [1]},
                    {"weights": {"lora_A": "fc.weight", "lora_B": "fc.weight"}}, {"scale": "x"}, {"ir_version": 2**80},
                    {"targets": {}}, {"format": -1}, {"rank": "2"}):
        yield f"record: {entries}"[:34], lambda entries=entries: unharmed(merge(record(**entries)))
    yield "nodes in a circle", circle
    save_adapter(adapted(), "true.safetensors")
    arrays, texts = read_tensors("true.safetensors")
    for name, shape in (("lora_A", (2**10, 4)), ("lora_B", (4, 2**10)), ("lora_A", (0, 4)), ("lora_A", (4,))):
        def forge(name=name, shape=shape):
            write_tensors({n: np.ones(shape, np.float32) if name in n else a for n, a in arrays.items()},
                          "forged.safetensors", texts)
            return load_adapter(BASE, "forged.safetensors")

        yield f"{name} of shape {shape}", forge
    if has_adapter_files():
        save_adapter(adapted(), "true.onnx_adapter")
        data = Path("true.onnx_adapter").read_bytes()
        shape = np.array([4, 2]).tobytes()
        for sizes in ((2**20, 2**20), (-4, 2), (2**62, 4), (400, 300)):
            def forge_file(sizes=sizes):
                assert shape in data
                Path("forged.onnx_adapter").write_bytes(data.replace(shape, np.array(sizes).tobytes()))
                return load_adapter(BASE, "forged.onnx_adapter")

            yield f".onnx_adapter of shape {sizes}", forge_file
        for cut in (0, 8, len(data) // 2, len(data) - 1):
            def cut_file(cut=cut):
                Path("forged.onnx_adapter").write_bytes(data[:cut])
                return unharmed(load_adapter(BASE, "forged.onnx_adapter"))  # Its last bytes are filling.

            yield f"{cut} bytes of it", cut_file


def circle():
    proto = adapted()
    inserted = [n for n in proto.graph.node if n.name != "fc"]
    inserted[0].input[0] = inserted[-1].output[0]
    inserted[-1].input[0] = inserted[0].output[0]
    return unharmed(merge(proto))


def unharmed(proto):
    return f"unharmed: {len(proto.graph.node)} nodes, {sum(len(t.raw_data) for t in proto.graph.initializer)} bytes"
