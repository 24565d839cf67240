"""Modules of Hugging Face are found among the products of a graph, and products have the names of modules."""

import json

import pytest
from onnx import NodeProto, save_model
from tiny_decoders import make_decoder

from ortpartial.adapters import add_lora
from ortpartial.adapters.peft_names import find_places, name_modules
from ortpartial.adapters.products import Part, Product, find_products
from ortpartial.exceptions import ModelError
from ortpartial.model import read_adapter


def make_products(*names, suffix=".MatMul.weight"):
    return [Product(NodeProto(name=n), n, n + suffix, 4, 4, 1, (Part(n, 0, 4),)) for n in names]


@pytest.mark.parametrize(("module", "name"), [
    ("model.layers.0.self_attn.q_proj", "model.layers.0.attn.q_proj"),
    ("model.layers.0.self_attn.dense", "model.layers.0.attn.o_proj"),
    ("model.language_model.layers.0.self_attn.o_proj", "model.layers.0.attn.o_proj"),
    ("layers.0.mlp.fc1", "model.layers.0.mlp.fc1"),
    ("model.transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_attn"),
    ("encoder.layer.0.attention.output.dense", "bert.encoder.layer.0.attention.output.dense"),
    ("lm_head", "lm_head"),
])
def test_a_module_is_found(module, name):
    products = make_products("model.layers.0.attn.q_proj", "model.layers.0.attn.o_proj", "model.layers.10.attn.o_proj",
                             "model.layers.0.mlp.fc1", "transformer.h.0.attn.c_attn", "lm_head",
                             "bert.encoder.layer.0.attention.output.dense", "bert.encoder.layer.0.output.dense")
    (_, part), = find_places([module], products)[module]
    assert part.name == name


def test_a_fused_module_is_its_parts_in_order():
    products = find_products(make_decoder().graph)
    places = find_places(["model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp.gate_up_proj"], products)
    assert [[part.name.rpartition(".")[2] for _, part in parts] for parts in places.values()] == [
        ["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]]


def test_a_module_that_is_missing_or_not_the_only_one_is_named():
    with pytest.raises(ModelError, match=r"for the module 'b' and 1 more, which the model does not have; it is for "
                                         r"another base\. The model has 'a\.fc'\."):
        find_places(["b", "fc", "c"], make_products("a.fc"))
    with pytest.raises(ModelError, match=r"module 'fc' is 'a\.fc', 'b\.fc' in the model, and only one can be meant"):
        find_places(["fc"], make_products("a.fc", "b.fc"))
    with pytest.raises(ModelError, match=r"has the modules 'x\.fc' and 'y\.fc', and in the model both are 'fc'"):
        find_places(["x.fc", "y.fc"], make_products("fc"))


def test_products_are_called_what_hugging_face_calls_them():
    names = name_modules(find_products(make_decoder().graph))
    assert {v.removeprefix("model.layers.0.") for v in names.values()} == {
        "model.embed_tokens", "lm_head", *(f"mlp.{n}_proj" for n in ("gate", "up", "down")),
        *(f"self_attn.{c}_proj" for c in "qkvo")}
    phi = name_modules(make_products("model.layers.0.attn.o_proj", "model.layers.0.mlp.fc1"))
    assert phi["model.layers.0.attn.o_proj"] == "model.layers.0.self_attn.dense"
    fused = name_modules(find_products(make_decoder().graph), "phi3")
    assert {v.removeprefix("model.layers.0.") for v in fused.values()} == {
        "model.embed_tokens", "lm_head", "mlp.gate_up_proj", "mlp.down_proj", "self_attn.qkv_proj", "self_attn.o_proj"}
    assert name_modules(make_products("h.0.attn.q_proj", suffix=".weight")) == {"h.0.attn.q_proj": "h.0.attn.q_proj"}


@pytest.mark.parametrize(("settings", "module"), [
    (json.dumps({"model": {"type": "phi3"}}), "model.layers.0.self_attn.qkv_proj"),
    (json.dumps({"model": {"type": "llama"}}), "model.layers.0.self_attn.q_proj"),
    (json.dumps({"model": 3}), "model.layers.0.self_attn.q_proj"), ("{", "model.layers.0.self_attn.q_proj")])
def test_the_kind_of_a_model_stands_beside_its_file(tmp_path, settings, module):
    save_model(make_decoder(), tmp_path / "model.onnx")
    (tmp_path / "genai_config.json").write_text(settings)
    target, = read_adapter(add_lora(tmp_path / "model.onnx", "q_proj")).targets
    assert target.module == module
