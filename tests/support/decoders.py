"""Small language models of random weights, as onnxruntime-genai's builder writes them.

Whoever imports this module is skipped where the builder is missing; `tiny_decoders` has models that run everywhere.
"""

import contextlib
import io
import os
import runpy
import sys
import warnings
from pathlib import Path
from unittest import mock

import onnx
import pytest
import torch

onnxruntime_genai = pytest.importorskip(
    "onnxruntime_genai", reason="onnxruntime-genai 0.18.0, whose builder writes the models, needs onnxruntime 1.31 or "
                                "later (ortpartial[genai]).")
transformers = pytest.importorskip("transformers", reason="The builder reads models of transformers 5.")
tokenizers = pytest.importorskip("tokenizers", reason="transformers has it.")

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 64, "bos_token_id": 1,
         "eos_token_id": 2, "pad_token_id": 0}
KINDS = {
    "Llama": {}, "Qwen2": {}, "Qwen3": {}, "Mistral": {"sliding_window": 8}, "Gemma": {}, "Granite": {}, "SmolLM3": {},
    # A half of each head turns, and onnxruntime 1.32.0 takes tables of multiples of 8 only.
    "Phi": {"hidden_size": 128, "head_dim": 32, "layer_norm_eps": 1e-6},
}
#: Kinds with other operators: a cache of a window, convolutions, mixtures of experts, sinks.
OTHER_KINDS = {
    "Gemma2": {"sliding_window": 5},
    "Lfm2Moe": {"layer_types": ["conv", "full_attention"], "num_experts": 4, "num_experts_per_tok": 2,
                "moe_intermediate_size": 32, "num_dense_layers": 0},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "intermediate_size": 64},
}
#: Kinds whose projections are one module in transformers, which the builder takes apart.
FUSED_KINDS = {"Phi3": {"rope_parameters": None, "original_max_position_embeddings": 64, "sliding_window": None}}


def make_transformer(kind, **sizes):
    """A model of transformers with random weights."""
    torch.manual_seed(0)
    settings = SIZES | (KINDS | FUSED_KINDS | OTHER_KINDS)[kind] | sizes
    config = getattr(transformers, f"{kind}Config")(**settings, attn_implementation="eager")
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for name, p in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(p, float("norm.w" in name), 0.1)
    return model


def make_tokenizer(words):
    """A tokenizer of words, the first of which stand for padding, the beginning and the end."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, words[0]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=words[0], unk_token=words[0],
                                                bos_token=words[1], eos_token=words[2])


def build_decoder(kind="Llama", precision="int4", folder=".", **sizes):
    """The files that the builder writes of a small model of random weights, ``model.onnx`` and those beside it.

    Parameters
    ----------
    kind : str
        One of `KINDS`, `FUSED_KINDS` or `OTHER_KINDS`.
    precision : str
        "fp32" or "int4".
    folder : pathlib.Path
        Where to put the folders ``hf``, which the builder reads, and ``out``.
    sizes : dict
        Settings of the configuration of transformers.

    Returns
    -------
    pathlib.Path
        The folder ``out``, which onnxruntime-genai loads.
    """
    source, out = Path(folder, "hf"), Path(folder, "out")
    model = make_transformer(kind, **sizes)
    model.save_pretrained(source)
    make_tokenizer([f"w{i}" for i in range(model.config.vocab_size)]).save_pretrained(source)
    arguments = ["-i", str(source), "-o", str(out), "-p", precision, "-e", "cpu", "-c", str(Path(folder, "cache"))]
    # In this process the builder takes a moment, in one of its own the ten seconds in which it imports torch.
    with mock.patch.object(sys, "argv", ["builder", *arguments]), mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"), \
            mock.patch.object(sys, "path", list(sys.path)), warnings.catch_warnings(), \
            contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
    return out


def read_repaired(path, kind):
    """The file that the builder has written, in which its mistakes are corrected, and products are exact.

    onnxruntime-genai 0.18.0 leaves out the window of Mistral, and the head of Phi reads the first normalization.
    """
    file = onnx.load(path)
    for node in file.graph.node:
        for a in node.attribute:
            if a.name == "accuracy_level":
                a.i = 1
            if a.name == "local_window_size" and kind == "Mistral":
                a.i = KINDS[kind]["sliding_window"]
    if kind in ("Phi", "Phi3"):
        heads = [node for node in file.graph.node if node.name.startswith("/lm_head")]
        heads[0].input[0] = next(node.output[0] for node in file.graph.node if "final_norm" in node.name)
        for node in heads:
            file.graph.node.remove(node)
            file.graph.node.append(node)
    return file
