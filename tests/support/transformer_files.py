"""Small models of transformers, exported by torch and then optimized by `onnxruntime.transformers.optimizer`."""

import copy
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from models import weights_of
from torch import nn

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
CONFIGS = {
    "bert": ("BertModel", SMALL | {"vocab_size": 31, "max_position_embeddings": 16}),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 31, "n_positions": 16,
                                 "use_cache": False}),
    "t5": ("T5ForConditionalGeneration", {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
                                          "vocab_size": 31, "decoder_start_token_id": 0, "use_cache": False}),
    "vit": ("ViTForImageClassification", SMALL | {"image_size": 16, "patch_size": 4, "num_labels": 3}),
}
#: The parts of transformers' attention that onnxruntime fuses into one weight.
PARTS = [(".query.", ".key.", ".value."), (".q_proj.", ".k_proj.", ".v_proj.")]


def divide_scores(module, q, k, v, mask, scaling=None, **_):
    """Attention as transformers 4 wrote it, which every version of onnxruntime's optimizer fuses."""
    scores = q @ k.transpose(-1, -2) / (1 / scaling)
    y = torch.softmax(scores if mask is None else scores + mask, dim=-1) @ v
    return y.permute(0, 2, 1, 3).contiguous(), None


class Transformer(nn.Module):
    """A model by its inputs in order, and the masks of padding as transformers 4 made them."""

    def __init__(self, net, names):
        super().__init__()
        self.net, self.names = net, names

    def forward(self, *inputs):
        named = dict(zip(self.names, inputs, strict=True))
        if "attention_mask" in named and self.net.config._attn_implementation == "divided":
            named["attention_mask"] = (1.0 - named["attention_mask"][:, None, None, :].to(torch.float32)) * -10000.0
        return self.net(**named)[0]


def make_transformer(family, attention="divided", **changes):
    """A module with random parameters, and its inputs, the second row of which is padded."""
    transformers = pytest.importorskip("transformers", reason="needs transformers 5.23.0, which needs Python 3.11")
    transformers.AttentionInterface.register("divided", divide_scores)
    torch.manual_seed(0)
    kind, settings = CONFIGS[family]
    cls = getattr(transformers, kind)
    config = cls.config_class(**settings | changes)
    config._attn_implementation = attention
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, slice(5, 7) if family != "gpt2" else slice(2)] = 0
    tokens = {"input_ids": torch.randint(3, 31, (2, 7)), "attention_mask": mask}
    feeds = {"bert": tokens | {"token_type_ids": torch.randint(0, 2, (2, 7))}, "gpt2": tokens,
             "t5": tokens | {"decoder_input_ids": torch.randint(3, 31, (2, 5))},
             "vit": {"pixel_values": torch.randn(2, 3, 16, 16)}}[family]
    net = Transformer(cls(config, **({"add_pooling_layer": False} if family == "bert" else {})), list(feeds)).eval()
    with torch.no_grad():  # no two parameters are equal, and gradients do not vanish
        for p in net.parameters():
            p.add_(torch.randn_like(p) / p[0].numel() ** 0.5 if p.ndim > 1 else 0.1 * torch.rand_like(p))
    return net, feeds


def export_transformer(net, feeds, path, dynamo=False, dynamic=False):
    """Write the model by one of torch's exporters, with batches and sequences of any length if `dynamic`."""
    axes = {n: {i: f"{n}_{i}" for i in range(x.ndim if x.ndim == 2 else 1)} for n, x in feeds.items()}
    if dynamo:
        sizes = {n: dict.fromkeys(a, torch.export.Dim.AUTO) for n, a in axes.items()}
        how = {"dynamic_shapes": (tuple(sizes.values()),) if dynamic else None, "opset_version": 18}
    else:
        how = {"dynamic_axes": axes if dynamic else None, "opset_version": 14}
    torch.onnx.export(net, tuple(feeds.values()), str(path), dynamo=dynamo, input_names=list(feeds),
                      output_names=["y"], verbose=False, **how)


def optimize_transformer(path, family, opt_level=0, **options):
    """Optimize the file for its family, and return the path of the file that is written beside it."""
    pytest.importorskip("coloredlogs", reason="onnxruntime 1.19's optimizer needs it.")
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    settings = optimizer.FusionOptions(family)
    for name, value in options.items():
        setattr(settings, name, value)
    logging.disable(logging.ERROR)
    try:
        optimized = optimizer.optimize_model(str(path), family, 2, 16, optimization_options=settings,
                                             opt_level=opt_level)
    finally:
        logging.disable(logging.NOTSET)
    target = Path(path).with_suffix(".optimized.onnx")
    optimized.save_model_to_file(str(target))
    return target


@dataclass
class Parameters:
    """The numbers of all parameters of a module in one array, and where each is in it."""

    numbers: np.ndarray
    gradient: np.ndarray
    places: dict[str, np.ndarray]
    length: int

    @classmethod
    def of(cls, net, length):
        named = dict(net.named_parameters())
        sizes = np.cumsum([0, *(p.numel() for p in named.values())])
        places = {n: np.arange(at, at + p.numel()).reshape(p.shape)
                  for (n, p), at in zip(named.items(), sizes, strict=False)}
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in named.values()]
        return cls(*(np.concatenate([t.detach().numpy().ravel() for t in ts]) for ts in (named.values(), grads)),
                   places, length)

    def layouts(self):
        """The parameters as files hold them: transposed, or those of attention side by side."""
        for name, place in self.places.items():
            yield place
            yield place.T
            yield place[: self.length]  # the rows of positions of a file for one length
            for q, k, v in PARTS:
                if q in name:
                    parts = [self.places[name.replace(q, part)] for part in (q, k, v)]
                    yield np.concatenate([part.T for part in parts], axis=-1)

    def find(self, weights):
        """Where the numbers of each weight of a file are, for those weights that are parameters."""
        layouts = list(self.layouts())
        numbers = self.numbers.astype(np.float32)
        found = {}
        for name, w in weights.items():
            if w.dtype == np.float32 and w.size > 1:
                same = (p.ravel() for p in layouts if p.size == w.size
                        and np.array_equal(numbers[p.ravel()], w.ravel()))
                place = next(same, None)
                if place is not None:
                    found[name] = place
        return found


def differentiate(net, feeds, dy):
    """The parameters of a module and the gradient of <dy, net(feeds)> in float64, and that by its float inputs."""
    net = copy.deepcopy(net).double()
    xs = [x.double().requires_grad_() if x.is_floating_point() else x for x in feeds.values()]
    (net(*xs) * dy).sum().backward()
    by_input = {n: x.grad.numpy() for n, x in zip(feeds, xs, strict=True) if x.is_floating_point()}
    return Parameters.of(net, xs[0].shape[1]), by_input


def gather_gradients(parameters, model, gradients):
    """The gradients of a file's weights, by the parameter of the module that each is, or is a part of."""
    total = np.zeros_like(parameters.numbers)
    for name, place in parameters.find(weights_of(model)).items():
        total[place] += gradients[f"{name}_grad"].ravel()
    return {n: total[p] for n, p in parameters.places.items()}
