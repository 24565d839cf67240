"""Training artifacts of onnxruntime 1.19.2, small ones: generated there, and stored for other runtimes.

Run as a program in the environment of onnxruntime-training 1.19.2, it writes `tests/data/artifacts` anew: for each
model the four files, `trained`, the checkpoint that `onnxruntime.training.api` has after `STEPS` steps, and
`exact.npz`, the weights that torch has then in float64.
"""

import io
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx

STEPS, ROWS, BATCHES = 100, 8, 20
STORED = Path(__file__).parents[1] / "data" / "artifacts"

#: Of each stored training: the loss, the optimizer, its learning rate.
TRAININGS = {
    "mlp": ("CrossEntropyLoss", "AdamW", 1e-2),
    "cnn": ("CrossEntropyLoss", "SGD", 5e-2),
    "mobilenet": ("CrossEntropyLoss", "SGD", 1e-2),
    "bert": ("CrossEntropyLoss", "AdamW", 1e-3),
}

CLASSES = 4


def make_batches(name, loss="CrossEntropyLoss"):
    """Inputs and targets of some steps."""
    rng = np.random.default_rng(0)
    shapes = {"mlp": (64,), "cnn": (1, 8, 8), "mobilenet": (3, 16, 16)}
    batches = []
    for _ in range(BATCHES):
        if name == "bert":
            # Not 0, which torch takes for padding, whose embedding it leaves as it is.
            mask = np.arange(8) < rng.integers(3, 9, (ROWS, 1))
            inputs = [rng.integers(1, 40, (ROWS, 8)), mask.astype(np.int64)]
        else:
            inputs = [rng.random((ROWS, *shapes[name]), np.float32)]
        labels = loss == "CrossEntropyLoss"
        target = rng.integers(0, CLASSES, ROWS) if labels else rng.random((ROWS, CLASSES), np.float32)
        batches.append([*inputs, target])
    return batches


def make_net(name):
    """A network of torch with random weights and biases, as a trained one has them."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name == "mlp":
        net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    elif name == "cnn":
        net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(),
                            nn.Flatten(), nn.Linear(24, CLASSES))
    elif name == "mobilenet":
        def inverted(i, o, stride):
            return nn.Sequential(nn.Conv2d(i, 2 * i, 1, bias=False), nn.BatchNorm2d(2 * i), nn.ReLU6(),
                                 nn.Conv2d(2 * i, 2 * i, 3, stride, 1, groups=2 * i, bias=False),
                                 nn.BatchNorm2d(2 * i), HardSwish(),
                                 nn.Conv2d(2 * i, o, 1, bias=False), nn.BatchNorm2d(o))

        class HardSwish(nn.Module):
            """By the operators that 1.19.2 has gradients of: of HardSwish and HardSigmoid it has none."""

            def forward(self, x):
                return x * torch.clamp(x + 3.0, 0.0, 6.0) / 6.0

        class Residual(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, x):
                return x + self.inner(x)

        net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
                            Residual(inverted(8, 8, 1)), inverted(8, 12, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                            nn.Linear(12, CLASSES))
    else:
        net = make_bert()
    for n, p in net.named_parameters():
        if n.endswith("bias"):
            nn.init.normal_(p, std=0.1)
    return net


def make_bert():
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    class Bert(torch.nn.Module):
        def __init__(self):
            super().__init__()
            settings = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                        "intermediate_size": 24, "max_position_embeddings": 12, "num_labels": CLASSES,
                        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
            self.net = BertForSequenceClassification(BertConfig(**settings, attn_implementation="eager"))

        def forward(self, ids, mask):
            return self.net(input_ids=ids, attention_mask=mask).logits

    return Bert()


def export(net, inputs, opset=17):
    """A network in training mode as an ONNX model whose first sizes are symbolic."""
    import torch

    names = [f"input_{i}" for i in range(len(inputs))]
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, tuple(torch.tensor(x) for x in inputs), file, input_names=names, output_names=["scores"],
            opset_version=opset, dynamo=False, do_constant_folding=False, training=torch.onnx.TrainingMode.TRAINING,
            dynamic_axes={n: {0: "batch"} for n in [*names, "scores"]}, keep_initializers_as_inputs=False)
    return onnx.load_from_string(file.getvalue())


def generate(model, folder, loss, optimizer, frozen=(), **settings):
    """The four files of `generate_artifacts`; parameters are the float initializers of rank one or more."""
    from onnxruntime.training import artifacts

    tensors = [t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and t.dims]
    still = [n for n in tensors if "running" in n or any(f in n for f in frozen)]
    Path(folder).mkdir(parents=True, exist_ok=True)
    loss = getattr(artifacts.LossType, loss) if isinstance(loss, str) else loss
    optimizer = getattr(artifacts.OptimType, optimizer) if isinstance(optimizer, str) else optimizer
    artifacts.generate_artifacts(model, [n for n in tensors if n not in still], still, loss, optimizer, str(folder),
                                 **settings)
    path = Path(folder) / "optimizer_model.onnx"
    stored = onnx.load(path)
    stored.ir_version = 8  # onnx 1.23 writes 14, which 1.19.2 does not read
    onnx.save(stored, path)


def open_reference(folder, rate=None, evaluation=False, checkpoint="checkpoint"):
    """State, module and optimizer of `onnxruntime.training.api`."""
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    folder = Path(folder)
    state = CheckpointState.load_checkpoint(str(folder / checkpoint))
    evaluation = str(folder / "eval_model.onnx") if evaluation else None
    module = Module(str(folder / "training_model.onnx"), state, evaluation)
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    if rate is not None:
        optimizer.set_learning_rate(rate)
    return state, module, optimizer


def train_reference(reference, batches, steps=STEPS):
    """Steps of `onnxruntime.training.api`, and the losses."""
    _, module, optimizer = reference
    losses = []
    for k in range(steps):
        loss = module(*batches[k % len(batches)])
        losses.append(loss if isinstance(loss, np.ndarray) else np.asarray(loss))
        optimizer.step()
        module.lazy_reset_grad()
    return losses


def train_exact(net, batches, optimizer, rate, steps=STEPS):
    """What torch computes in float64: parameters and running statistics, by the names of the exported model.

    AdamW is that of transformers, which 1.19.2 has; a running variance is of the batch alone, as in ONNX.
    """
    import torch

    net = net.double()
    state = {n: v for n, v in net.state_dict().items() if v.is_floating_point()}
    norms = [m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.register_forward_pre_hook(_note_variance)
    weights = dict(net.named_parameters())
    first, second = ({n: torch.zeros_like(w) for n, w in weights.items()} for _ in range(2))
    for k in range(steps):
        *inputs, labels = (torch.tensor(x) for x in batches[k % len(batches)])
        net.zero_grad()
        scores = net(*(x.double() if x.is_floating_point() else x for x in inputs))
        torch.nn.functional.cross_entropy(scores, labels).backward()
        with torch.no_grad():
            for norm in norms:
                norm.running_var.copy_(norm.next_variance)
            for n, w in weights.items():
                if w.grad is None:
                    continue
                m, v = first[n].mul_(0.9).add_(0.1 * w.grad), second[n].mul_(0.999).add_(0.001 * w.grad**2)
                correction = (1 - 0.999 ** (k + 1)) ** 0.5 / (1 - 0.9 ** (k + 1))
                w -= rate * (w.grad if optimizer == "SGD" else correction * m / (v.sqrt() + 1e-6))
    return {n: v.numpy() for n, v in state.items()}


def _note_variance(norm, inputs):
    (x,) = inputs
    norm.next_variance = 0.9 * norm.running_var + 0.1 * x.detach().var((0, 2, 3), unbiased=False)


def match_names(net, tensors):
    """The name in a network of each parameter of an exported model, which may be transposed, with whether it is.

    The network gets the running statistics of the model, which the exporter has moved.
    """
    import torch

    net.load_state_dict({n: torch.tensor(a) for n, a in tensors.items() if "running" in n}, strict=False)
    own = {n: v.numpy() for n, v in net.state_dict().items()}
    names = {}
    for n, a in tensors.items():
        if n in own:
            names[n] = n, False
        else:
            (names[n],) = [(m, True) for m, v in own.items() if v.ndim == 2 and np.array_equal(v.T, a)]
    return names


def main():
    from onnxruntime.training.api import CheckpointState

    for name, (loss, optimizer, rate) in TRAININGS.items():
        folder = STORED / name
        shutil.rmtree(folder, ignore_errors=True)
        batches = make_batches(name)
        # Of a LayerNormalization of opset 17 with a bias of another rank, 1.19.2 builds no gradient.
        net = make_net(name)
        generate(export(net, batches[0][:-1], 14 if name == "bert" else 17), folder, loss, optimizer)
        reference = open_reference(folder, rate)
        arrays = {n: p.data.copy() for n, p in reference[0].parameters}
        names = match_names(net, arrays)
        train_reference(reference, batches)
        exact = train_exact(net, batches, optimizer, rate)
        exact = {n: exact[m].T if turned else exact[m] for n, (m, turned) in names.items()}
        np.savez_compressed(folder / "exact.npz", **exact)
        CheckpointState.save_checkpoint(reference[0], str(folder / "trained"), include_optimizer_state=True)


if __name__ == "__main__":
    sys.exit(main())
