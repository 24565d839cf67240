"""Adapters in files of PEFT: their names, shapes and settings, read into a model of the builder and written again."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tiny_decoders import make_decoder, past_of

from ortpartial.adapters.insertion import insert
from ortpartial.adapters.peft_files import read_peft, write_peft
from ortpartial.adapters.products import find_products
from ortpartial.exceptions import ModelError
from ortpartial.model import read_adapter
from ortpartial.runtime.session import Session

LAYER = "base_model.model.model.layers.0."
#: Shapes as PEFT 0.21.2 writes them for LlamaForCausalLM of width 32, one head of keys, hidden 48 and 24 words, rank 2.
SHAPES = {
    f"{LAYER}self_attn.q_proj.lora_A.weight": (2, 32), f"{LAYER}self_attn.q_proj.lora_B.weight": (32, 2),
    f"{LAYER}self_attn.v_proj.lora_A.weight": (3, 32), f"{LAYER}self_attn.v_proj.lora_B.weight": (16, 3),
    f"{LAYER}self_attn.o_proj.lora_A.weight": (2, 32), f"{LAYER}self_attn.o_proj.lora_B.weight": (32, 2),
    f"{LAYER}mlp.down_proj.lora_A.weight": (2, 48), f"{LAYER}mlp.down_proj.lora_B.weight": (32, 2),
    "base_model.model.model.embed_tokens.lora_embedding_A": (2, 24),
    "base_model.model.model.embed_tokens.lora_embedding_B": (32, 2),
    "base_model.model.model.embed_tokens.base_layer.weight": (24, 32),
    "base_model.model.lm_head.lora_A.weight": (2, 32), "base_model.model.lm_head.lora_B.weight": (24, 2)}
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "lora_dropout": 0.1, "rank_pattern": {"v_proj": 3},
          "alpha_pattern": {"layers.0.mlp.down_proj": 5}, "target_modules": "all-linear", "fan_in_fan_out": False,
          "use_rslora": False, "loftq_config": {}, "modules_to_save": None, "kasa_config": None, "bias": "none",
          "qalora_group_size": 16}
IDS = np.array([[3, 1, 4, 1, 5]])


def draw(shapes):
    rng = np.random.default_rng(0)
    return {n: rng.standard_normal(shape).astype("f4") for n, shape in shapes.items()}


def save(folder, arrays, **settings):
    save_file(arrays, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | settings))
    return folder


def run(model):
    feeds = {"input_ids": IDS, "attention_mask": np.ones_like(IDS), **past_of(model)}
    return Session(model).run(feeds)["logits"]


def add(model, path):
    """The model with the adapter of a file."""
    insert(model, *read_peft(path, find_products(model.graph)))
    return model


def merge_into(model, changes):
    """Change weights of the builder by what PEFT's product is, columns of fused ones by their start."""
    for t in model.graph.initializer:
        for name, start, change in changes:
            if t.name == name:
                w = np.frombuffer(t.raw_data, "f4").reshape(t.dims).copy()
                w[:, start : start + change.shape[1]] += change
                t.raw_data = w.tobytes()
    return model


def test_a_model_of_the_builder_computes_what_the_file_says(tmp_path):
    arrays = draw(SHAPES)
    scales = {"self_attn.q_proj": 3, "self_attn.v_proj": 2, "self_attn.o_proj": 3, "mlp.down_proj": 2.5}
    change = {n: s * (arrays[f"{LAYER}{n}.lora_B.weight"] @ arrays[f"{LAYER}{n}.lora_A.weight"]).T
              for n, s in scales.items()}
    table, head = ("base_model.model.model.embed_tokens.lora_embedding_", "base_model.model.lm_head.lora_")
    expected = merge_into(make_decoder(is_packed=False), [
        ("model.layers.0.attn.qkv_proj.MatMul.weight", 0, change["self_attn.q_proj"]),
        ("model.layers.0.attn.qkv_proj.MatMul.weight", 48, change["self_attn.v_proj"]),
        ("model.layers.0.attn.o_proj.MatMul.weight", 0, change["self_attn.o_proj"]),
        ("model.layers.0.mlp.down_proj.MatMul.weight", 0, change["mlp.down_proj"]),
        ("model.embed_tokens.weight", 0, 3 * (arrays[f"{table}B"] @ arrays[f"{table}A"]).T),
        ("lm_head.MatMul.weight", 0, 3 * (arrays[f"{head}B.weight"] @ arrays[f"{head}A.weight"]).T)])
    model = add(make_decoder(is_packed=False), save(tmp_path, arrays))
    np.testing.assert_allclose(run(model), run(expected), rtol=2e-4, atol=2e-4)
    adapter = read_adapter(model)
    assert (adapter.method, adapter.rank, adapter.alpha, adapter.dropout) == ("lora", 2, 6, 0.1)
    assert {t.name: t.scale for t in adapter.targets} == {
        "lm_head": 3, "model.embed_tokens": 3, "model.layers.0.attn.o_proj": 3, "model.layers.0.attn.q_proj": 3,
        "model.layers.0.attn.v_proj": 2, "model.layers.0.mlp.down_proj": 2.5}


@pytest.mark.parametrize("target", ["new", "new.safetensors"])
def test_what_is_written_is_what_was_read(tmp_path, target):
    arrays = draw(SHAPES)
    products = find_products(make_decoder().graph)
    write_peft(*read_peft(save(tmp_path, arrays, use_rslora=True), products), tmp_path / target, products)
    file = tmp_path / target if "." in target else tmp_path / "new" / "adapter_model.safetensors"
    written = load_file(file)
    assert {*written} == {n for n in arrays if "base_layer" not in n}
    for name, a in written.items():
        np.testing.assert_array_equal(a, arrays[name])
    if target == "new":
        config = json.loads((tmp_path / "new" / "adapter_config.json").read_text())
    else:
        with safe_open(file, "numpy") as f:
            config = json.loads(f.metadata()["adapter_config.json"])
    assert config == {
        "base_model_name_or_path": None, "inference_mode": True, "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2,
        "lora_alpha": pytest.approx(6 * 2**0.5), "lora_dropout": 0.1, "use_dora": False,
        "target_modules": ["lm_head", "model.embed_tokens", "model.layers.0.mlp.down_proj",
                           *(f"model.layers.0.self_attn.{c}_proj" for c in "oqv")],
        "rank_pattern": {"model.layers.0.self_attn.v_proj": 3},
        "alpha_pattern": {"model.layers.0.mlp.down_proj": pytest.approx(5 * 2**0.5),
                          "model.layers.0.self_attn.v_proj": pytest.approx(6 * 3**0.5)}}
    again = read_peft(tmp_path / target, products)
    assert [t.scale for t in again[0].targets] == pytest.approx(
        [6 / 2**0.5, 6 / 2**0.5, 5 / 2**0.5, 6 / 2**0.5, 6 / 2**0.5, 6 / 3**0.5])


FUSED = {f"{LAYER}self_attn.qkv_proj.lora_A.weight": (2, 32), f"{LAYER}self_attn.qkv_proj.lora_B.weight": (64, 2),
         f"{LAYER}mlp.gate_up_proj.lora_A.weight": (2, 32), f"{LAYER}mlp.gate_up_proj.lora_B.weight": (96, 2)}


def test_fused_modules_are_taken_apart_and_put_together(tmp_path):
    arrays = draw(FUSED)
    qkv, gate_up = (3 * (arrays[f"{LAYER}{n}.lora_B.weight"] @ arrays[f"{LAYER}{n}.lora_A.weight"]).T
                    for n in ("self_attn.qkv_proj", "mlp.gate_up_proj"))
    expected = run(merge_into(make_decoder(is_packed=False), [
        ("model.layers.0.attn.qkv_proj.MatMul.weight", 0, qkv),
        ("model.layers.0.mlp.gate_proj.MatMul.weight", 0, gate_up[:, :48]),
        ("model.layers.0.mlp.up_proj.MatMul.weight", 0, gate_up[:, 48:])]))
    model = make_decoder(is_packed=False)
    products = find_products(model.graph)
    adapter, weights = read_peft(save(tmp_path, arrays), products)
    assert [t.name[-6:] for t in adapter.targets] == ["e_proj", "p_proj", "q_proj", "k_proj", "v_proj"]
    write_peft(adapter, weights, tmp_path / "same", products)
    same = load_file(tmp_path / "same" / "adapter_model.safetensors")
    assert {n: a.tolist() for n, a in same.items()} == {n: a.tolist() for n, a in arrays.items()}
    insert(model, adapter, weights)
    np.testing.assert_allclose(run(model), expected, rtol=2e-4, atol=2e-4)


def test_a_fused_module_of_several_products_has_the_rank_of_all(tmp_path):
    model = make_decoder(is_packed=False)
    products = find_products(model.graph)
    adapter, weights = read_peft(save(tmp_path, draw(FUSED)), products)
    weights = draw({n: a.shape for n, a in weights.items()})  # As after a training: the parts have no A in common.
    write_peft(adapter, weights, tmp_path / "new", products)
    insert(model, adapter, weights)
    again = add(make_decoder(is_packed=False), tmp_path / "new")
    assert {t.dims[1] for t in again.graph.initializer if "lora_A" in t.name} == {4, 6}
    np.testing.assert_allclose(run(again), run(model), rtol=2e-4, atol=2e-4)


def test_ia3_scales_outputs_and_what_feedforward_modules_read(tmp_path):
    arrays = draw({f"{LAYER}self_attn.k_proj.ia3_l": (16, 1), f"{LAYER}mlp.down_proj.ia3_l": (1, 48)})
    path = save(tmp_path, arrays, peft_type="IA3", feedforward_modules=["down_proj"])
    model = make_decoder(is_packed=False)
    products = find_products(model.graph)
    k, down = (arrays[f"{LAYER}{n}.ia3_l"].ravel() for n in ("self_attn.k_proj", "mlp.down_proj"))
    for t in model.graph.initializer:
        w = np.frombuffer(t.raw_data, "f4").reshape(t.dims).copy() if t.raw_data and t.data_type == 1 else None
        if "qkv_proj" in t.name:
            w[:, 32:48] *= k
        if "down_proj" in t.name:
            w *= down[:, None]
        if w is not None:
            t.raw_data = w.tobytes()
    again = add(make_decoder(is_packed=False), path)
    np.testing.assert_allclose(run(again), run(model), rtol=2e-4, atol=2e-4)
    write_peft(*read_peft(path, products), tmp_path / "new", products)
    written = load_file(tmp_path / "new" / "adapter_model.safetensors")
    assert {n: a.tolist() for n, a in written.items()} == {n: a.tolist() for n, a in arrays.items()}
    config = json.loads((tmp_path / "new" / "adapter_config.json").read_text())
    assert config["feedforward_modules"] == ["model.layers.0.mlp.down_proj"]


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"peft_type": "LOHA"}, "is an adapter of PEFT's type LOHA; LORA and IA3 are supported."),
    ({"modules_to_save": ["lm_head"]}, r"sets modules_to_save=\['lm_head'\], which is not supported; train"),
    ({"bias": "all"}, "sets bias='all', which is not supported"),
    ({"trainable_token_indices": [1, 2]}, r"sets trainable_token_indices=\[1, 2\], which is not supported"),
    ({"setting_of_2030": 1}, "sets setting_of_2030=1, which is not supported"),
    ({"init_lora_weights": "pissa"}, "has changed the weights of the base, by init_lora_weights='pissa'; let"),
    ({"r": 0}, "has r=0; the rank of an adapter is a whole number, at least 1."),
    ({"lora_alpha": "16"}, "has lora_alpha='16', where a number was expected."),
    ({"alpha_pattern": {"q_proj": None}}, "has alpha_pattern={'q_proj': None}, where a number was expected."),
    ({"use_dora": True}, "is damaged: 'lm_head' has no magnitude."),
])
def test_settings_that_are_not_supported_are_named(tmp_path, settings, sentence):
    products = find_products(make_decoder().graph)
    with pytest.raises(ModelError, match=sentence):
        read_peft(save(tmp_path, draw(SHAPES), **settings), products)


@pytest.mark.parametrize(("shapes", "sentence"), [
    ({f"{LAYER}self_attn.q_proj.lora_A.weight": (2, 64), f"{LAYER}self_attn.q_proj.lora_B.weight": (32, 2)},
     r"The adapter's lora_A of 'model.layers.0.self_attn.q_proj' has shape \(2, 64\), and the model's "
     r"'model.layers.0.attn.qkv_proj' takes shape \(2, 32\); the adapter is for another base."),
    ({f"{LAYER}self_attn.q_proj.lora_A.weight": (2, 32), f"{LAYER}self_attn.q_proj.lora_B.weight": (64, 2)},
     r"lora_B of 'model.layers.0.self_attn.q_proj' has shape \(64, 2\)"),
    ({f"{LAYER}self_attn.q_proj.lora_A.weight": (0, 32), f"{LAYER}self_attn.q_proj.lora_B.weight": (32, 0)},
     "no rank of at least 1 in common"),
    ({f"{LAYER}self_attn.q_proj.lora_A.weight": (2, 32)}, "has no lora_B"),
    ({"base_model.model.model.layers.9.mlp.up_proj.lora_A.weight": (2, 32),
      "base_model.model.model.layers.9.mlp.up_proj.lora_B.weight": (48, 2)},
     "The adapter is for the module 'model.layers.9.mlp.up_proj', which the model does not have; it is for another"),
    ({"base_model.model.lm_head.weight": (24, 32)}, "'base_model.model.lm_head.weight', which is no weight of LoRA"),
    ({}, "holds no weight of an adapter"),
])
def test_weights_that_do_not_fit_are_named(tmp_path, shapes, sentence):
    with pytest.raises(ModelError, match=sentence):
        read_peft(save(tmp_path, draw(shapes)), find_products(make_decoder().graph))


def test_files_that_are_missing_or_damaged_are_named(tmp_path):
    with pytest.raises(ModelError, match=r"holds no adapter of PEFT: it has no adapter_model\.safetensors\.$"):
        read_peft(tmp_path, [])
    (tmp_path / "adapter_model.bin").touch()
    with pytest.raises(ModelError, match=r"let PEFT write safetensors, not adapter_model\.bin"):
        read_peft(tmp_path, [])
    save(tmp_path, draw(FUSED))
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"adapter_config\.json' is damaged: it is no JSON of settings"):
        read_peft(tmp_path, [])
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(ModelError, match=r"has no settings: put PEFT's adapter_config\.json beside it"):
        read_peft(tmp_path, [])
