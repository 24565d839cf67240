"""Are the gradients of models that nobody here wrote those of torch's autograd, by every parameter and input?"""

import copy
import subprocess
import sys
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
import torch
from models import weights_of
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from skl2onnx import to_onnx
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.onnx import TrainingMode

from ortpartial import gradient_model
from ortpartial.runtime.session import Session

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


class Only(nn.Module):
    """The last hidden state of a model, and nothing else."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        y = self.net(x)
        return y[0] if isinstance(y, tuple) else y if isinstance(y, torch.Tensor) else y.last_hidden_state


class First(nn.Module):
    """The first thing that a layer gives."""

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


def made(name):
    """A module of float32 that gives one tensor, and the shape of its input."""
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


def exported(name, dynamo, dtype=torch.float32):
    """A module with parameters that differ from one another, its input, and the model that torch exports."""
    torch.manual_seed(0)
    net, shape = made(name)
    net.eval()
    with torch.no_grad():  # exporters merge tensors that are equal, as they are at the start
        for p in net.parameters():
            # What is small at the start, as it is to be trained, would let the gradients vanish on their way.
            p.add_(torch.randn_like(p) / p[0].numel() ** 0.5 if p.ndim > 1 else 0.1 * torch.rand_like(p))
        norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
        for m in norms:  # statistics of numbers of the size that they have
            m.train().momentum = 1.0
        if norms:
            net(torch.randn(shape))
        net.eval().to(dtype)
    x = torch.randint(3, 31, shape) if shape == TOKENS else torch.randn(shape, dtype=dtype)
    keep = {"optimize": False} if dynamo else {"training": TrainingMode.PRESERVE, "do_constant_folding": False}
    with TemporaryDirectory() as folder:
        torch.onnx.export(net, (x,), f"{folder}/net.onnx", dynamo=dynamo, input_names=["x"], output_names=["y"],
                          opset_version=18, verbose=False, **keep)
        return net, x, onnx.load(f"{folder}/net.onnx")


def by_value(model, net):
    """For each parameter of the network the initializer that holds it, and how its axes stand there."""
    found = {}
    stored = [(n, a) for n, a in weights_of(model).items() if a.dtype.kind == "f" and a.size]
    for n, p in net.named_parameters():
        w = p.detach().numpy()
        for name, a in stored:
            if a.size != w.size:
                continue
            for perm in {tuple(range(w.ndim)), tuple(range(w.ndim))[::-1], (*range(w.ndim - 2), w.ndim - 1, w.ndim - 2)
                         if w.ndim > 1 else (0,) * w.ndim}:
                if np.array_equal(w.transpose(perm).reshape(-1), a.reshape(-1)):
                    found[n] = name, perm
    return found


def reference(net, x, dy):
    """Gradients of <dy, net(x)> in float64 by the parameters and the input."""
    net = copy.deepcopy(net).double()
    x = x.detach().clone().double().requires_grad_() if x.is_floating_point() else x
    (net(x) * dy).sum().backward()
    found = {n: p.grad.numpy() for n, p in net.named_parameters() if p.grad is not None}
    return found | ({"x": x.grad.numpy()} if x.is_floating_point() else {})


def assert_gradients(found, expected, tol):
    """max|g - g'| <= tol max|g'|, tensor by tensor; one that is zero but for rounding is small beside the others.

    The largest of these errors is given back.
    """
    largest = max(np.abs(e).max() for e in expected.values())
    errors = {}
    for n, e in expected.items():
        size = np.abs(e).max()
        errors[n] = float(np.abs(found[n] - e).max() / (size if size > 1e-6 * largest else 1e-2 * largest))
    assert {n: f"{error:.1e}" for n, error in errors.items() if not error <= tol} == {}
    assert sum(np.abs(e).max() > 1e-6 * largest for e in expected.values()) > len(expected) / 2
    return max(errors.values())


def unoptimized(model, feeds):
    """What a graph computes as it stands: onnxruntime 1.31.1 fuses a factor into MatMul and rounds it to float32."""
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    session = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip((o.name for o in model.graph.output), session.run(None, feeds), strict=True))


def check(name, dynamo, record, dtype=torch.float32):
    net, x, model = exported(name, dynamo, dtype)
    with torch.no_grad():
        y = net(x)
    dy = torch.randn(y.shape, dtype=torch.float64)
    expected, names = reference(net, x, dy), by_value(model, net)
    missing = sorted(set(expected) - {"x"} - set(names))
    wrt = [*dict.fromkeys(names[n][0] for n in expected if n in names), *(["x"] if "x" in expected else [])]
    found = gradient_model(model, wrt, ["y"])
    weights = {t: a for t, a in weights_of(model).items() if t in wrt}
    feeds = {"x": x.numpy(), "y_grad": dy.numpy().astype(y.numpy().dtype), **weights}
    feeds = {i.name: feeds[i.name] for i in found.graph.input}
    raw = Session(found).run(feeds) if dtype == torch.float32 else unoptimized(found, feeds)
    grads = {"x": raw["x_grad"]} if "x" in expected else {}
    for n, (t, perm) in names.items():
        if n in expected:
            shape = np.asarray(expected[n].shape)[list(perm)]
            grads[n] = raw[f"{t}_grad"].reshape(shape).transpose(np.argsort(perm))
    assert missing == []
    record("error", assert_gradients(grads, expected, 1e-9 if dtype == torch.float64 else 1e-4))
    return net, model, found


# torch 2.13.0 does not export torch.diff, by which transformers finds packed sequences, with its TorchScript exporter.
NO_TORCHSCRIPT = {"gpt2", "llama", "mistral", "gpt neox", "qwen2", "gemma", "encoder layer, norm first"}
EXPORTS = [(name, dynamo) for name in [*LAYERS, *TRANSFORMERS] for dynamo in (True, False)
           if dynamo or name not in NO_TORCHSCRIPT]
FAST = {("lstm", False), ("transformer", False), ("t5 encoder", False), ("regnet", False), ("whisper encoder", False),
        ("gpt2", True)}
# Softmax is computed in float32 by many of the others, and Conv and Erf have no kernel of float64.
DOUBLE = {("transformer", False), ("transformer", True), ("mobilebert", False), ("albert", False)}


def cases(wanted):
    """Each export, long ones marked as slow."""
    return [pytest.param(name, dynamo, id=f"{name}-{'dynamo' if dynamo else 'torchscript'}",
                         marks=[] if (name, dynamo) in FAST else [pytest.mark.slow])
            for name, dynamo in EXPORTS if (name, dynamo) in wanted]


@pytest.mark.parametrize(("name", "dynamo"), cases(EXPORTS))
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::FutureWarning",
                            "ignore::UserWarning")
def test_gradients(name, dynamo, record_property):
    check(name, dynamo, record_property)


@pytest.mark.parametrize(("name", "dynamo"), cases(DOUBLE))
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::FutureWarning",
                            "ignore::UserWarning")
def test_gradients_in_float64(name, dynamo, record_property):
    check(name, dynamo, record_property, torch.float64)


ESTIMATORS = {
    "regressor": (MLPRegressor(hidden_layer_sizes=(8, 6), activation="tanh"), nn.Identity()),
    "scaled regressor": (make_pipeline(StandardScaler(), MLPRegressor(
        hidden_layer_sizes=(8,), activation="logistic")), nn.Identity()),
    "classifier": (MLPClassifier((8, 5)), nn.Softmax(1)),
    "scaled classifier": (make_pipeline(StandardScaler(), MLPClassifier((8,), activation="tanh")), nn.Softmax(1)),
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sklearn(name, record_property):
    estimator, last = ESTIMATORS[name]
    rng = np.random.default_rng(0)
    X, t = rng.normal(1, 2, (20, 4)).astype(np.float32), rng.integers(0, 3, 20)
    scaler, mlp = (estimator[0], estimator[-1]) if len(getattr(estimator, "steps", ())) else (None, estimator)
    mlp.set_params(max_iter=2, random_state=0)
    estimator.fit(X, t)
    is_classifier = isinstance(mlp, MLPClassifier)
    model = to_onnx(estimator, X[:1], target_opset=18, options={"zipmap": False} if is_classifier else None)
    activation = {"tanh": nn.Tanh, "logistic": nn.Sigmoid, "relu": nn.ReLU}[mlp.activation]
    layers = []
    for w, b in zip(mlp.coefs_, mlp.intercepts_, strict=True):
        layers += [nn.Linear(*w.shape), activation()]
        layers[-2].weight.data, layers[-2].bias.data = torch.tensor(w.T), torch.tensor(b)
    net = nn.Sequential(*layers[:-1], last)
    output = model.graph.output[-1].name
    seen = torch.tensor(X if scaler is None else scaler.transform(X))
    dy = torch.randn(net(seen.float() if net[0].weight.dtype == torch.float32 else seen.double()).shape)
    expected = reference(net, seen, dy.double())
    names = {n: (t, w.ndim == 2) for n, w in net.named_parameters() for t, a in weights_of(model).items()
             if a.size == w.numel() and np.allclose(a.reshape(-1), w.detach().numpy().T.reshape(-1))}
    wrt = [t for t, _ in names.values()] + ([] if scaler else ["X"])
    found = gradient_model(model, wrt, [output])
    weights = {t: a for t, a in weights_of(model).items() if t in wrt}
    raw = Session(found).run({"X": X, f"{output}_grad": dy.numpy(), **weights})
    grads = {n: raw[f"{t}_grad"].T if turned else raw[f"{t}_grad"].reshape(-1) for n, (t, turned) in names.items()}
    if scaler:  # an operator of ai.onnx.ml, which has no gradient, stands before the weights
        del expected["x"]
    else:
        grads["x"] = raw["X_grad"]
    assert sorted(grads) == sorted(expected)
    record_property("error", assert_gradients(grads, expected, 1e-4))


MEASURED = """
import os, sys, time, onnx
from ortpartial import gradient_model

def memory(what):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))

model = onnx.load(sys.argv[1])
with open("/proc/self/clear_refs", "w") as file:  # the peak so far is that of reading the file
    file.write("5")
size, before, start = os.path.getsize(sys.argv[1]), memory("VmRSS"), time.perf_counter()
found = gradient_model(model)
seconds = time.perf_counter() - start
print(seconds, max(memory("VmHWM") - before, 0) / size, len(found.graph.node) / len(model.graph.node), size / 4)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc, which Linux has")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_gradient_of_bert_base_is_built_quickly(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers 5.23.0, which needs Python 3.11")
    config = transformers.BertConfig()
    config._attn_implementation = "eager"
    net = Only(transformers.BertModel(config, add_pooling_layer=False).eval())
    torch.onnx.export(net, (torch.randint(0, 1000, (2, 64)),), f"{tmp_path}/bert.onnx", dynamo=False,
                      input_names=["x"], output_names=["y"], opset_version=18,
                      dynamic_axes={"x": {0: "N", 1: "S"}})
    command = [sys.executable, "-c", MEASURED, f"{tmp_path}/bert.onnx"]  # its peak is that of a process of its own
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, memory, nodes, parameters = map(float, done.stdout.split())
    assert parameters > 1e8
    assert seconds < 10
    assert memory < 1.5
    assert nodes < 2.5
