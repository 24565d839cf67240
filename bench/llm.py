"""
A step of a LoRA adapter on a language model of 4 bits, beside torch with PEFT on the same weights in float32.

    taskset -c 0 python bench/llm.py [--layers 24] [--vocabulary 151936] [--tokens 128] [--rounds 5] [--folder FOLDER]

The model is a Qwen2 of 0.5 billion random weights (width 896), which the builder of onnxruntime-genai writes in int4;
`--folder` keeps it for the next time. Both train the same adapter (rank 8 beside all linear layers but the head) with
AdamW on rows of tokens. Each has a process of its own, and they take turns: a round is some steps of each. Printed are
the seconds of a step, and those of the processor where other programs run as well, medians of the rounds; the seconds
from the file to the first step, and of the gradient; and the peak of the resident memory beyond that after the imports.
Activations are what torch's memory grows by in a step. With the sizes of the default, the figures are written to
bench/results/, too.

It takes onnxruntime-genai, transformers and peft: pip install "ortpartial[bench]" onnxruntime-genai==0.18.0.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np
from machine import write_results

RANK, ALPHA, RATE = 8, 16, 1e-4
#: The names of the targets in PEFT; those of `add_lora` are "linear".
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def write_model(folder: Path, layers: int, vocabulary: int) -> None:
    """A Qwen2 of random weights as transformers writes it, and in int4 as the builder does."""
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        hidden_size=896, num_hidden_layers=layers, num_attention_heads=14, num_key_value_heads=2,
        intermediate_size=4864, vocab_size=vocabulary, max_position_embeddings=32768, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=0)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder / "hf")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(128)}, "w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="w1", eos_token="w2", pad_token="w0",
                                         unk_token="w0").save_pretrained(folder / "hf")
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", "hf", "-o", "int4", "-p", "int4", "-e",
               "cpu", "-c", "cache"]
    subprocess.run(builder, cwd=folder, check=True, capture_output=True)


def draw_tokens(folder: Path, tokens: int) -> np.ndarray:
    vocabulary = json.loads((folder / "hf/config.json").read_text())["vocab_size"]
    return np.random.default_rng(0).integers(3, vocabulary, (1, tokens))


def train_here(folder: Path, tokens: int) -> Callable[[], float]:
    """A function that takes a step in ortpartial and returns its loss."""
    import onnx

    from ortpartial import OrtGradientForwardBackwardOptimizer, add_lora
    from ortpartial.learning_loss import NextTokenLearningLoss
    from ortpartial.learning_rate import LearningRateAdamW

    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:  # A model that is given by its path is not held twice.
        onnx.save(add_lora(folder / "int4/model.onnx", "linear", rank=RANK, alpha=ALPHA, random_state=0), file.name)
        optimizer = OrtGradientForwardBackwardOptimizer(
            file.name, "adapter", learning_loss=NextTokenLearningLoss(), learning_rate=LearningRateAdamW(RATE),
            batch_size=1)
    ids = draw_tokens(folder, tokens)
    return lambda: float(optimizer.partial_fit(ids, ids).train_losses_[-1])


def train_torch(folder: Path, tokens: int) -> Callable[[], float]:
    """A function that takes a step in torch and returns its loss."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.set_num_threads(1)
    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config.from_pretrained(folder / "hf"))
    model = model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    model.tie_weights()
    dequantize_into(folder / "int4/model.onnx", dict(model.named_parameters()))
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, lora_dropout=0.0))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], RATE, weight_decay=0.01)
    ids = torch.from_numpy(draw_tokens(folder, tokens))

    def step() -> float:
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def dequantize_into(path: Path, parameters: dict[str, Any]) -> None:
    """Give the parameters the weights of the file, in float32."""
    import onnx
    import torch
    from onnx import numpy_helper

    file = onnx.load(path, load_external_data=False)
    tensors = {t.name: t for t in file.graph.initializer}

    def read(name: str) -> np.ndarray:
        return numpy_helper.to_array(tensors[name], base_dir=str(path.parent))

    for p in parameters.values():
        p.data.fill_(1.0 if p.dim() == 1 else 0.0)  # The builder leaves out biases of zeros.
    for n, p in parameters.items():
        if n.endswith("bias"):
            p.data.zero_()
    for node in file.graph.node:
        if node.op_type != "MatMulNBits":
            continue
        packed, scales = read(node.input[1]), read(node.input[2]).reshape(-1, 1)
        numbers = torch.from_numpy(np.stack([packed & 15, packed >> 4], -1).reshape(len(scales), -1))
        weight = ((numbers.float() - 8) * torch.from_numpy(scales)).reshape(len(packed), -1)
        name = node.input[1].replace(".MatMul.weight_Q4", ".weight").replace(".attn.", ".self_attn.")
        names = [name.replace("qkv_proj", f"{c}_proj") for c in "qkv"] if "qkv_proj" in name else [name]
        parts = [parameters[n.replace("lm_head", "model.embed_tokens")] for n in names]
        for p, part in zip(parts, weight.split([len(p) for p in parts]), strict=True):
            p.data.copy_(part)


def write_gradient(folder: Path) -> dict[str, float]:
    """The seconds that the gradient of the loss by the adapter takes to write, of symbolic sizes, and its nodes."""
    from ortpartial import add_lora, build, grad, load, op, variable
    from ortpartial.learning_loss import NextTokenLearningLoss
    from ortpartial.model import read_adapter

    model = load(add_lora(folder / "int4/model.onnx", "linear", rank=RANK, random_state=0))
    adapter = read_adapter(model.proto)
    assert adapter is not None
    labels = variable("labels", "int64", list(model.inputs["input_ids"].shape or ()))
    weights = {n: model.initializers[n] for n in adapter.weights}
    start = time.perf_counter()
    loss = op.ReduceMean(NextTokenLearningLoss()(model.outputs["logits"], labels), keepdims=0)
    gradients = dict(zip([f"{n}_grad" for n in weights], grad(loss, list(weights.values())), strict=True))
    written = time.perf_counter() - start
    graph = build({**model.inputs, "labels": labels, **weights}, {"loss": loss, **gradients}, apart={}).graph
    return {"grad": written, "build": time.perf_counter() - start - written, "nodes": len(graph.node)}


TRAIN = {"ortpartial": train_here, "torch": train_torch}


def status(name: str) -> float:
    """A memory figure of this process in MB."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) * 1024 / 1e6


def contestant(name: str, folder: Path, tokens: int) -> None:
    """Take as many steps as each line of the standard input says, and print the figures."""
    import onnx  # noqa: F401 - memory of imports does not count

    if name == "gradient":
        print(json.dumps(write_gradient(folder)))
        return
    if name == "torch":
        import peft  # noqa: F401
        import transformers
        from transformers import Qwen2ForCausalLM  # noqa: F401

        transformers.logging.set_verbosity_error()
    else:
        import ortpartial.adapters  # noqa: F401
    imported = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # The peak is counted from here on.
    start = time.perf_counter()
    step = TRAIN[name](folder, tokens)
    loaded, seconds, losses = status("VmRSS"), time.perf_counter() - start, list[float]()
    for line in sys.stdin:
        times, work = [], []
        for _ in range(int(line)):
            begin, worked = time.perf_counter(), time.process_time()
            losses.append(step())
            times.append(time.perf_counter() - begin)
            work.append(time.process_time() - worked)
        print(json.dumps({"seconds": times, "work": work, "ready": seconds, "losses": losses,
                          "loaded": loaded - imported, "peak": status("VmHWM") - imported}), flush=True)


class Contestant:
    """A process that trains when it is asked to."""

    def __init__(self, name: str, folder: Path, tokens: int):
        command = [sys.executable, "-W", "ignore", __file__, "--contestant", name, "--folder", folder,
                   "--tokens", tokens]
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def take(self, steps: int) -> dict[str, Any]:
        """Take some steps; returns the figures so far."""
        assert self.process.stdin is not None
        print(steps, file=self.process.stdin, flush=True)
        return self.read()

    def read(self) -> dict[str, Any]:
        """The figures that the process prints next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit("A contestant failed.")
        return json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 24), ("vocabulary", 151936), ("tokens", 128), ("rounds", 5), ("steps", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, help="where the model is, or is kept")
    parser.add_argument("--contestant", choices=[*TRAIN, "gradient"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        contestant(options.contestant, options.folder, options.tokens)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "int4/model.onnx").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_model(folder, options.layers, options.vocabulary)
        race(folder, options)


def race(folder: Path, options: argparse.Namespace) -> None:
    """Let the contestants take turns, and print the figures."""
    import onnxruntime

    written = Contestant("gradient", folder, options.tokens).read()
    size = sum(f.stat().st_size for f in (folder / "int4").glob("model.onnx*")) / 1e6
    runs = {name: Contestant(name, folder, options.tokens) for name in TRAIN}
    first = {name: run.take(1) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    work: dict[str, list[float]] = {name: [] for name in runs}
    figures = first
    for _ in range(options.rounds):
        figures = {name: run.take(options.steps) for name, run in runs.items()}
        for name, f in figures.items():
            times[name].append(statistics.median(f["seconds"]))
            work[name].append(statistics.median(f["work"]))
    losses = [np.array(f["losses"]) for f in figures.values()]
    if np.abs(losses[0] / losses[1] - 1).max() > 0.02:
        sys.exit(f"The contestants do not compute the same: losses of {losses}.")
    ratios, of_work = ([a / b for a, b in zip(*t.values(), strict=True)] for t in (times, work))
    activations = figures["torch"]["peak"] - figures["torch"]["loaded"]
    print(f"onnxruntime {onnxruntime.__version__}, {options.tokens} tokens, a file of {size:.0f} MB")
    for name, f in figures.items():
        print(f"{name:12} {statistics.median(times[name]):6.3f} s a step ({statistics.median(work[name]):.3f} s of the "
              f"processor), ready after {f['ready']:5.1f} s, first step "
              f"{first[name]['seconds'][0]:5.1f} s, {f['peak']:5.0f} MB at most")
    print(f"time: {statistics.median(ratios):.2f}x of torch (rounds: {', '.join(f'{r:.2f}' for r in ratios)}), "
          f"{statistics.median(of_work):.2f}x of the processor's")
    least = figures["ortpartial"]["peak"] - activations
    print(f"memory: {least / size:.2f}x the file, beside activations of {activations:.0f} MB")
    print(f"gradient: written in {written['grad']:.1f} s, built in {written['build']:.1f} s ({written['nodes']} nodes)")
    if (options.layers, options.vocabulary) == (24, 151936):
        peers = {name: {"seconds": statistics.median(times[name]), "cpu_seconds": statistics.median(work[name]),
                        "ready": f["ready"], "first": first[name]["seconds"][0], "megabytes": f["peak"]}
                 for name, f in figures.items()}
        write_results("llm", {"llm": {
            "tokens": options.tokens, "file_megabytes": size, "peers": peers, "ratios": ratios, "cpu_ratios": of_work,
            "activations": activations, "gradient": {k: written[k] for k in ("grad", "build", "nodes")}}})


if __name__ == "__main__":
    main()
