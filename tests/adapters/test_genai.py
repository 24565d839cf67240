"""onnxruntime-genai generates the same with adapters beside a base as with the merged model."""

import shutil

import numpy as np
import onnx
import pytest
from decoders import build_decoder, onnxruntime_genai
from once import ON_BOTH
from onnx import numpy_helper

from ortpartial.adapters import add_dora, add_lora, merge, save_adapter
from ortpartial.model import read_adapter, write

pytestmark = ON_BOTH

ADDED = {"a": lambda model: add_lora(model, "linear", rank=4, alpha=32, random_state=1),
         "b": lambda model: add_lora(model, ["attention", "up_proj"], rank=2, alpha=8, random_state=2)}


@pytest.fixture(scope="module", params=["fp32", "int4"])
def folder(request, tmp_path_factory):
    """What the builder writes."""
    return build_decoder("Qwen2", request.param, tmp_path_factory.mktemp(request.param))


def randomize(proto):
    """The model with an adapter whose weights are far from those that change nothing."""
    rng, weights = np.random.default_rng(0), set(read_adapter(proto).weights)
    for t in proto.graph.initializer:
        if t.name in weights and "magnitude" not in t.name:
            t.CopyFrom(numpy_helper.from_array(rng.normal(scale=0.2, size=t.dims).astype(np.float32), t.name))
    return proto


def generate(model, adapters=None, name=None):
    """Tokens that are chosen greedily."""
    settings = onnxruntime_genai.GeneratorParams(model)
    settings.set_search_options(max_length=24, min_length=24, do_sample=False)
    generator = onnxruntime_genai.Generator(model, settings)
    if name is not None:
        generator.set_active_adapter(adapters, name)
    generator.append_tokens([5, 9, 17])
    while not generator.is_done():
        generator.generate_next_token()
    return [int(i) for i in generator.get_sequence(0)]


def open_with(folder, model, path):
    """A copy of the folder with another model."""
    shutil.copytree(folder, path)
    (path / "model.onnx.data").unlink()
    write(model, path / "model.onnx")
    return onnxruntime_genai.Model(str(path))


def test_two_adapters_swap(folder, tmp_path):
    """Their tokens are those of the merged models, and without one those of the builder's file."""
    trained = {name: randomize(add(folder / "model.onnx")) for name, add in ADDED.items()}
    expected = {name: generate(open_with(folder, proto, tmp_path / name)) for name, proto in trained.items()}
    expected[None] = generate(onnxruntime_genai.Model(str(folder)))
    assert len({tuple(ids) for ids in expected.values()}) == 3

    for name, proto in trained.items():
        save_adapter(proto, tmp_path / f"{name}.onnx_adapter", tmp_path / "base.onnx" if name == "a" else None)
    base = open_with(folder, onnx.load(tmp_path / "base.onnx"), tmp_path / "base")
    adapters = onnxruntime_genai.Adapters(base)
    for name in ADDED:
        adapters.load(str(tmp_path / f"{name}.onnx_adapter"), name)
    for name in ("a", None, "b", "a"):
        assert generate(base, adapters, name) == expected[name]
    if not any(node.op_type == "MatMulNBits" for node in trained["a"].graph.node):  # where merging rounds
        for name in ADDED:
            merged = merge(folder / "model.onnx", tmp_path / f"{name}.onnx_adapter")
            assert generate(open_with(folder, merged, tmp_path / f"merged {name}")) == expected[name]


def test_an_adapter_of_dora(folder, tmp_path):
    trained = randomize(add_dora(folder / "model.onnx", rank=3, random_state=3))
    save_adapter(trained, tmp_path / "my.onnx_adapter", base=tmp_path / "base.onnx")
    base = open_with(folder, onnx.load(tmp_path / "base.onnx"), tmp_path / "base")
    adapters = onnxruntime_genai.Adapters(base)
    adapters.load(str(tmp_path / "my.onnx_adapter"), "my")
    assert generate(base, adapters, "my") == generate(open_with(folder, trained, tmp_path / "trained"))
    assert generate(base) == generate(onnxruntime_genai.Model(str(folder))) != generate(base, adapters, "my")
