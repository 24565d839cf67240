"""Layers of torch and models of transformers, exported to ONNX to compare their gradients with torch's."""

from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.onnx import TrainingMode

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
         "vocab_size": 31, "max_position_embeddings": 16}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 31, "n_positions": 16}
IMAGE = {"image_size": 16, "patch_size": 4}
STAGES = {"hidden_sizes": [8, 16], "depths": [2, 1]}
HEADS = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24,
         "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "vocab_size": 31,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
VIT = {k: v for k, v in SMALL.items() if k not in ("vocab_size", "max_position_embeddings")} | IMAGE
TOKENS, PIXELS, MEL = (2, 7), (2, 3, 16, 16), (2, 8, 16)


# Kind, its settings in transformers, the shape of the input.
TRANSFORMERS = {
    "bert": ("Bert", SMALL, TOKENS),
    "gpt2": ("GPT2", GPT, TOKENS),
    "t5 encoder": ("T5Encoder", {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
                                 "vocab_size": 31}, TOKENS),
    "llama": ("Llama", SMALL | {"num_key_value_heads": 1}, TOKENS),
    "mobilebert": ("MobileBert", SMALL | {"embedding_size": 12, "intra_bottleneck_size": 8,
                                          "true_hidden_size": 8, "num_feedforward_networks": 2}, TOKENS),
    "distilbert": ("DistilBert", {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "vocab_size": 31,
                                  "max_position_embeddings": 16}, TOKENS),
    "roberta": ("Roberta", SMALL | {"max_position_embeddings": 20}, TOKENS),
    "albert": ("Albert", SMALL | {"embedding_size": 12}, TOKENS),
    "electra": ("Electra", SMALL | {"embedding_size": 12}, TOKENS),
    "mistral": ("Mistral", SMALL | {"num_key_value_heads": 1, "sliding_window": 4}, TOKENS),
    "gpt neox": ("GPTNeoX", SMALL, TOKENS),
    "opt": ("OPT", {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24,
                    "vocab_size": 31, "max_position_embeddings": 16, "word_embed_proj_dim": 16}, TOKENS),
    "qwen2": ("Qwen2", SMALL | {"num_key_value_heads": 1}, TOKENS),
    "gemma": ("Gemma", SMALL | {"num_key_value_heads": 1, "head_dim": 8}, TOKENS),
    "vit": ("ViT", VIT, PIXELS),
    "swin": ("Swin", {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2],
                      "window_size": 4}, PIXELS),
    "resnet": ("ResNet", STAGES | {"embedding_size": 8, "layer_type": "bottleneck"}, PIXELS),
    "mobilenetv2": ("MobileNetV2", {"image_size": 16, "depth_multiplier": 0.25}, (4, 3, 64, 64)),
    "regnet": ("RegNet", STAGES | {"embedding_size": 8, "groups_width": 4}, PIXELS),
    "convnext": ("ConvNext", {"hidden_sizes": [8, 12, 16, 16], "depths": [1, 1, 1, 1], "patch_size": 2}, PIXELS),
    "segformer": ("Segformer", {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
                                "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16}, (2, 3, 32, 32)),
    "mobilevit": ("MobileViT", {"image_size": 32, "hidden_sizes": [8, 12, 16], "neck_hidden_sizes":
                                [4, 8, 8, 8, 12, 16, 16], "num_attention_heads": 2}, (2, 3, 64, 64)),
    "deit": ("DeiT", VIT, PIXELS),
    "beit": ("Beit", VIT, PIXELS),
    "poolformer": ("PoolFormer", {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}, (2, 3, 32, 32)),
    "whisper encoder": ("Whisper", HEADS | {"num_mel_bins": 8, "max_source_positions": 8}, MEL),
    "wav2vec2": ("Wav2Vec2", {k: v for k, v in SMALL.items() if k != "max_position_embeddings"} | {
        "conv_dim": [8, 8], "conv_stride": [2, 2], "conv_kernel": [3, 3], "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2}, (2, 40)),
    "bart encoder": ("Bart", HEADS | {"max_position_embeddings": 16}, TOKENS),
}


DECODERS = ("gemma", "gpt2", "gpt_neox", "llama", "mistral", "qwen2")


class Only(nn.Module):
    """The last hidden state of a model."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        # Without a mask, positions of a decoder tell sequences apart, by an operator that torch's older exporter lacks.
        mask = {"attention_mask": torch.ones_like(x)} if self.net.config.model_type in DECODERS else {}
        y = self.net(x, **mask)
        return y[0] if isinstance(y, tuple) else y if isinstance(y, torch.Tensor) else y.last_hidden_state


class First(nn.Module):
    """The first output of a layer."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        y, _ = self.net(x)
        return y


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Transformer(8, 2, 1, 1, 12, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.net(x, x * x)


LAYERS = {
    "lstm": (lambda: First(nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True)), (2, 6, 4)),
    "gru": (lambda: First(nn.GRU(4, 5, batch_first=True)), (2, 6, 4)),
    "rnn": (lambda: First(nn.RNN(4, 5, batch_first=True)), (2, 6, 4)),
    "transformer": (Seq2Seq, (2, 6, 8)),
    "encoder layer, norm first": (lambda: nn.TransformerEncoderLayer(
        8, 2, 12, dropout=0.0, activation="gelu", norm_first=True, batch_first=True), (2, 6, 8)),
}


def make_module(name):
    """A float32 module with one output, and the shape of its input."""
    if name in LAYERS:
        make, shape = LAYERS[name]
        return make(), shape
    transformers = pytest.importorskip("transformers", reason="needs transformers 5.23.0, which needs Python 3.11")
    kind, settings, shape = TRANSFORMERS[name]
    config = getattr(transformers, f"{kind.removesuffix('Encoder')}Config")(**settings)
    config._attn_implementation = "eager"
    config.use_cache = False
    net = getattr(transformers, f"{kind}Model")(config)
    return Only(net.get_encoder() if kind in ("Whisper", "Bart") else net), shape


def exported(name, dynamo, dtype=torch.float32, opset=18, sizes=()):
    """A module with parameters that differ from one another, its input, and the model that torch exports.

    `sizes` names the first axes of the input, which are of any size then.
    """
    torch.manual_seed(0)
    net, shape = make_module(name)
    net.eval()
    with torch.no_grad():  # exporters merge tensors that are equal, as they are at the start
        for p in net.parameters():
            # With the small initial weights of training, gradients would vanish on the way.
            p.add_(torch.randn_like(p) / p[0].numel() ** 0.5 if p.ndim > 1 else 0.1 * torch.rand_like(p))
        norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
        for m in norms:  # running statistics that fit the data
            m.train().momentum = 1.0
        if norms:
            net(torch.randn(shape))
        net.eval().to(dtype)
    x = torch.randint(3, 31, shape) if shape == TOKENS else torch.randn(shape, dtype=dtype)
    keep = {"optimize": False} if dynamo else {"training": TrainingMode.PRESERVE, "do_constant_folding": False}
    if sizes and dynamo:
        keep["dynamic_shapes"] = ({i: torch.export.Dim(n) for i, n in enumerate(sizes)},)
    elif sizes:
        keep["dynamic_axes"] = {"x": dict(enumerate(sizes))}
    with TemporaryDirectory() as folder:
        torch.onnx.export(net, (x,), f"{folder}/net.onnx", dynamo=dynamo, input_names=["x"], output_names=["y"],
                          opset_version=opset, verbose=False, **keep)
        return net, x, onnx.load(f"{folder}/net.onnx")


def assert_gradients(gradients, expected, tol):
    """Assert max|g - g'| <= tol max|g'| for each tensor; one that is zero but for rounding counts by the largest.

    Returns the largest of these errors.
    """
    largest = max(np.abs(e).max() for e in expected.values())
    errors = {}
    for n, e in expected.items():
        size = np.abs(e).max()
        errors[n] = float(np.abs(gradients[n] - e).max() / (size if size > 1e-6 * largest else 1e-2 * largest))
    assert {n: f"{error:.1e}" for n, error in errors.items() if not error <= tol} == {}
    assert sum(np.abs(e).max() > 1e-6 * largest for e in expected.values()) > len(expected) / 2
    return max(errors.values())
