"""PEFT itself: its adapters are read, and it reads ours, in models of onnxruntime-genai's builder."""

import copy

import numpy as np
import onnx
import pytest
import torch
from decoders import FUSED_KINDS, KINDS, SIZES, build_decoder, make_transformer, read_repaired

from ortpartial.adapters import add_dora, add_ia3, add_lora, load_adapter, merge, save_adapter
from ortpartial.model import read_adapter
from ortpartial.runtime.session import Session

peft = pytest.importorskip("peft", reason="PEFT 0.21, whose adapters are compared, is not installed.")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # PEFT warns of embeddings among its targets.

ATTENTION = ["q_proj", "k_proj", "v_proj"]
CONFIGS = {
    "lora": lambda: peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"),
    "patterns": lambda: peft.LoraConfig(
        r=4, lora_alpha=6, use_rslora=True, target_modules=[*ATTENTION, "embed_tokens", "lm_head"],
        rank_pattern={"q_proj": 2, "layers.1.self_attn.v_proj": 3}, alpha_pattern={"k_proj": 5}),
    "regex": lambda: peft.LoraConfig(r=2, target_modules=r".*\.layers\.1\..*(q|v)_proj"),
    "dora": lambda: peft.LoraConfig(r=3, lora_alpha=4, use_dora=True, target_modules="all-linear"),
    "ia3": lambda: peft.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
}
IDS = np.random.default_rng(0).integers(3, SIZES["vocab_size"], (2, 9))


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """The file of a kind of model, built once."""
    files = {}

    def build_once(kind):
        if kind not in files:
            path = build_decoder(kind, "fp32", tmp_path_factory.mktemp(kind)) / "base.onnx"
            onnx.save(read_repaired(path.with_name("model.onnx"), kind), path)
            files[kind] = path
        return files[kind]

    return build_once


def randomize(model):
    """Adapters as if they were trained."""
    for name, p in model.named_parameters():
        if p.requires_grad:
            p.data = (p + 0.2 * torch.randn_like(p)) if "lora_A" not in name else 0.2 * torch.randn_like(p)
    return model.eval()


def run_theirs(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor(IDS), attention_mask=torch.ones(IDS.shape, dtype=int)).logits.numpy()


def run_ours(proto, kind):
    config = SIZES | KINDS.get(kind, {})
    cache = np.zeros((len(IDS), config["num_key_value_heads"], 0, config["head_dim"]), "f4")
    feeds = {i.name: cache for i in proto.graph.input if i.name.startswith("past")}
    return Session(proto).run({"input_ids": IDS, "attention_mask": np.ones_like(IDS), **feeds})["logits"]


def assert_near(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * abs(theirs).max())


@pytest.mark.parametrize(("kind", "method"), [("Llama", m) for m in CONFIGS] + [("Qwen2", "dora"), ("Qwen2", "ia3")] + [
    (kind, "lora") for kind in KINDS | FUSED_KINDS if kind != "Llama"])
def test_what_peft_has_trained_is_read_merged_and_written_again(kind, method, build, tmp_path):
    theirs = randomize(peft.get_peft_model(make_transformer(kind), CONFIGS[method]()))
    theirs.save_pretrained(tmp_path / "theirs")
    expected = run_theirs(theirs)
    assert abs(run_theirs(make_transformer(kind)) - expected).max() > 0.01 * abs(expected).max()

    adapted = load_adapter(build(kind), tmp_path / "theirs")
    assert_near(run_ours(adapted, kind), expected)
    merged = merge(adapted)
    assert_near(run_ours(merged, kind), expected)
    assert_near(run_ours(merged, kind), run_theirs(theirs.merge_and_unload()))

    save_adapter(adapted, tmp_path / "ours")
    assert_near(run_theirs(peft.PeftModel.from_pretrained(make_transformer(kind), tmp_path / "ours")), expected)


@pytest.mark.parametrize(("kind", "add"), [("Llama", add_lora), ("Llama", add_dora), ("Llama", add_ia3),
                                           ("Qwen2", add_ia3), ("Phi", add_lora), *(
                                               ("Phi3", add) for add in (add_lora, add_dora, add_ia3))])
def test_what_is_added_here_is_read_by_peft(kind, add, build, tmp_path):
    adapted = add(build(kind), "linear")
    names = read_adapter(adapted).weights
    rng = np.random.default_rng(0)
    for t in adapted.graph.initializer:
        if t.name in names:
            a = onnx.numpy_helper.to_array(t)
            t.raw_data = (a + 0.2 * rng.standard_normal(a.shape)).astype("f4").tobytes()
    save_adapter(adapted, tmp_path)
    theirs = peft.PeftModel.from_pretrained(make_transformer(kind), tmp_path)
    assert_near(run_ours(adapted, kind), run_theirs(theirs))


class Network(torch.nn.Module):
    """An embedding, convolutions of one and two axes, and linear layers, some of which an export turns."""

    def __init__(self):
        super().__init__()
        self.embed, self.conv = torch.nn.Embedding(11, 6), torch.nn.Conv1d(6, 8, 3, padding=1)
        self.image = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(9, 9), torch.nn.Linear(9, 9)])
        self.head = torch.nn.Linear(9, 5)

    def forward(self, ids):
        x = self.image(self.conv(self.embed(ids).transpose(1, 2))[:, None]).mean(1)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


def test_exports_of_torch_have_the_names_of_the_module(tmp_path):
    torch.manual_seed(0)
    module, ids = Network().eval(), torch.arange(27).reshape(3, 9) % 11
    torch.onnx.export(module, (ids,), tmp_path / "base.onnx", input_names=["ids"], output_names=["y"], dynamo=False)
    names = ["embed", "conv", "image", "layers.0", "layers.1", "head"]
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=names)
    theirs = randomize(peft.get_peft_model(copy.deepcopy(module), config))
    theirs.save_pretrained(tmp_path / "theirs")
    adapted = load_adapter(tmp_path / "base.onnx", tmp_path / "theirs")
    save_adapter(adapted, tmp_path / "ours")
    again = peft.PeftModel.from_pretrained(module, tmp_path / "ours").eval()
    with torch.no_grad():
        expected = theirs(ids).numpy()
        assert_near(again(ids).numpy(), expected)
    for proto in (adapted, merge(adapted)):
        assert_near(Session(proto).run({"ids": ids.numpy()})["y"], expected)
