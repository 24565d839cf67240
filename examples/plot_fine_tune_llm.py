"""
Fine-tuning a language model of onnxruntime-genai
=================================================

onnxruntime-genai's builder writes a tiny Llama of random weights in 4 bits. It generates noise, and sentences with an
adapter that was trained on 200 of a made-up language, whose articles end like their nouns: "la fusila kez lo grono". ::

    python examples/plot_fine_tune_llm.py [folder for the figure]
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np

from ortpartial import OrtGradientForwardBackwardOptimizer, PaddedBatches, add_lora, plot_losses, save_adapter

if not find_spec("onnxruntime_genai"):
    sys.exit("The builder that writes the model is missing: pip install onnxruntime-genai transformers torch")
import onnxruntime_genai as genai
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

nouns, verbs = ["tolem", "kard", "fusil", "gron"], ["kez", "nal", "pesh", "rov"]
language = [f"l{a} {n}{a} {v} l{b} {m}{b}" for a, n, v, b, m in product("aou", nouns, verbs, "aou", nouns)]
words = ["<pad>", "<s>", "</s>", *sorted(set(" ".join(language).split()))]
rows = [[1, *map(words.index, text.split()), 2] for text in np.random.default_rng(0).permutation(language)]


def generate(seed, adapter=None):
    """What the model says, with an adapter or without one."""
    settings = genai.GeneratorParams(model)
    settings.set_search_options(do_sample=True, top_k=len(words), max_length=9, random_seed=seed)
    generator = genai.Generator(model, settings)
    if adapter is not None:
        generator.set_active_adapter(adapters, adapter)
    generator.append_tokens([1])
    while not generator.is_done():
        generator.generate_next_token()
    return " ".join(words[i] for i in generator.get_sequence(0)[1:])


torch.manual_seed(0)
tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "<pad>"))
PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained("llama")
LlamaForCausalLM(LlamaConfig(vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                             num_attention_heads=4, max_position_embeddings=64)).save_pretrained("llama")
subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", "llama", "-o", "built", "-p", "int4",
                "-e", "cpu", "-c", "cache"], check=True, capture_output=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})

adapted = add_lora("built/model.onnx", ["linear", "lm_head"], alpha=64, random_state=0)
optimizer = OrtGradientForwardBackwardOptimizer(
    adapted, "adapter", learning_loss="next_token", learning_rate="AdamW", max_iter=15, validation_every=1)
optimizer.fit(PaddedBatches(rows[:200], batch_size=16, random_state=0), X_val=PaddedBatches(rows[200:]))
save_adapter(optimizer, "language.onnx_adapter", base="built/model.onnx")

model = genai.Model("built")
adapters, said = genai.Adapters(model), []
adapters.load("language.onnx_adapter", "language")
for title, name in {"without": None, "with": "language"}.items():
    share = np.mean([generate(seed, name) in language for seed in range(50)])
    said.append(f"{title} the adapter, {share:.2f} of 50 texts are sentences: {generate(0, name)}")
print(*said, sep="\n")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib.pyplot as plt
    plt.switch_backend("Agg")
    plt.style.use("ortpartial.figure")
    ax = plot_losses(optimizer)
    ax.axhline(np.log(len(language)) / 6, color="C2", label="entropy of the language")
    ax.set_title("\n".join(said), fontsize=9)
    ax.legend()
    Path(sys.argv[1]).mkdir(exist_ok=True)
    ax.figure.savefig(Path(sys.argv[1]) / "fine_tune_llm.png")
