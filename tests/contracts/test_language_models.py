"""Language models that onnxruntime-genai's builder writes have the gradients of the models of transformers."""

import numpy as np
import pytest
import torch
from decoders import KINDS, OTHER_KINDS, SIZES, build_decoder, make_transformer, read_repaired
from onnx import helper, numpy_helper

from ortpartial import build, grad, load, op, variable
from ortpartial.autodiff.trainable import find_default_weights
from ortpartial.graph import topological
from ortpartial.model import find_computed_inputs
from ortpartial.runtime.session import Session


def find_parameters(name, parameters):
    """The parameters that a weight of the file holds, one after the other."""
    name = name.replace(".weight_Q4", ".weight").replace(".MatMul", "").replace(".Add", "")
    name = name.replace(".attn.", ".self_attn.").replace("_norm.layernorm.", "_norm.")
    last = "model.norm." if "model.norm.weight" in parameters else "model.final_layernorm."
    name = name.replace("model.layers.2.final_norm_layernorm.", last)
    for other in (name, name.replace("o_proj", "dense"), name.replace("lm_head", "model.embed_tokens")):
        if other in parameters:
            return [parameters[other]]
    return [parameters[name.replace("qkv_proj", f"{c}_proj")] for c in "qkv"]


def dequantize_into(file, parameters):
    """Give the parameters the numbers that the file holds in 4 bits."""
    arrays = {t.name: numpy_helper.to_array(t) for t in file.graph.initializer}
    for node in (node for node in file.graph.node if node.op_type == "MatMulNBits"):
        sizes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        packed, scales = arrays[node.input[1]], arrays[node.input[2]].reshape(sizes["N"], -1, 1)
        numbers = np.stack([packed & 15, packed >> 4], -1).reshape(*scales.shape[:2], -1) - 8.0
        weight = torch.tensor((numbers * scales).reshape(sizes["N"], -1)[:, : sizes["K"]])
        parts = find_parameters(node.input[1], parameters)
        for p, part in zip(parts, weight.split([len(p) for p in parts]), strict=True):
            p.data.copy_(part)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int4"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_transformers(kind, precision, tmp_path):
    theirs, file = make_transformer(kind), read_repaired(build_decoder(kind, precision, tmp_path) / "model.onnx", kind)
    parameters = dict(theirs.named_parameters())
    dequantize_into(file, parameters)
    ids = np.random.default_rng(0).integers(3, SIZES["vocab_size"], (2, 12))
    mask = np.ones_like(ids)
    mask[1, 9:] = 0
    labels = np.where(mask, ids, -100)[:, 1:]

    out = theirs(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask), use_cache=False,
                 output_hidden_states=True)
    embedded = out.hidden_states[0]
    expected = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), torch.tensor(labels).flatten())
    embedded.retain_grad()
    expected.backward()

    ours = load(file)
    weights = sorted(find_default_weights(ours, ["logits"]), key=lambda v: v.hint)
    wanted = {w.hint: w for w in weights if len(find_parameters(w.hint, parameters)[0].shape) < 2
              or not theirs.config.tie_word_embeddings or "layers" in w.hint}  # Tied weights have a gradient of both.
    wanted["embedded"] = next(v for v in ours.values.values() if v.node is not None and v.node.name.startswith(
        "/model/embed_tokens/Gather"))
    logits = op.Transpose(ours.outputs["logits"][:, :-1], perm=[0, 2, 1])
    target = variable("labels", "int64", ["batch_size", None])
    loss = op.SoftmaxCrossEntropyLoss(logits, target, ignore_index=-100)
    gradients = dict(zip([f"{n} gradient" for n in wanted], grad(loss, list(wanted.values())), strict=True))
    feeds = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    feeds |= {n: np.zeros((2, v.shape[1], 0, theirs.config.hidden_size // 4), np.float32)
              for n, v in ours.inputs.items() if n.startswith("past")}
    found = Session(build([*ours.inputs.values(), target], {"loss": loss, **gradients})).run(feeds)

    np.testing.assert_allclose(found["loss"], expected.detach(), rtol=1e-5)
    assert len(wanted) > (6 if precision == "int4" else 14) - bool(theirs.config.tie_word_embeddings)
    for name in wanted:
        if name == "embedded":  # Gemma multiplies behind the embeddings, and Granite as well.
            scale = {"Gemma": 8.0, "Granite": getattr(theirs.config, "embedding_multiplier", 1)}.get(kind, 1.0)
            d = embedded.grad * scale
        else:
            d = torch.cat([p.grad for p in find_parameters(name, parameters)])
        d = d.T if ".MatMul." in name else d
        assert abs(found[f"{name} gradient"] - d.numpy()).max() <= 1e-4 * abs(d.numpy()).max(), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHER_KINDS)
@pytest.mark.filterwarnings("ignore")
def test_gradients_through_other_operators(kind, tmp_path):
    """A gradient leads to the embeddings through all of them; caches and states follow from the tokens."""
    theirs, file = make_transformer(kind), read_repaired(build_decoder(kind, "fp32", tmp_path) / "model.onnx", kind)
    ids = np.random.default_rng(0).integers(3, SIZES["vocab_size"], (2, 12))
    out = theirs(input_ids=torch.tensor(ids), use_cache=False, output_hidden_states=True)
    embedded = out.hidden_states[0]
    embedded.retain_grad()
    d = torch.randn(out.logits.shape, generator=torch.Generator().manual_seed(0))
    (out.logits * d).sum().backward()

    ours = load(file)
    ours = find_computed_inputs(ours).compute(ours, ["input_ids"])
    values = topological(list(ours.outputs.values()))
    (gathered,) = (node.outputs[0] for node in values if node.name.startswith("/model/embed_tokens/Gather"))
    dy = variable("dy", "float32", [None] * 3)
    outputs = {"logits": ours.outputs["logits"], "dx": grad(ours.outputs["logits"], [gathered], [dy])[0]}
    found = Session(build([*ours.inputs.values(), dy], outputs)).run({"input_ids": ids, "dy": d.numpy()})
    np.testing.assert_allclose(found["logits"], out.logits.detach(), atol=1e-5)
    expected = embedded.grad * (8.0 if kind == "Gemma2" else 1.0)  # Gemma multiplies behind the embeddings.
    np.testing.assert_allclose(found["dx"], expected, atol=1e-4 * float(expected.abs().max()))
