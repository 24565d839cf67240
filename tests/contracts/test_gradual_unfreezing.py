"""Fine-tuning of an exported transformer encoder as in torch: gradual unfreezing, with rates that decay by depth."""

import copy
import io
import warnings

import numpy as np
import pytest
import torch
from models import assert_close
from torch import nn
from torch_steps import ENGINES, IN_EVERY_ENGINE

from ortpartial import LayerwiseDecay, LearningRateAdam, load
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer

ROWS, BATCH, EPOCHS, STEPS = 40, 4, 5, 10
#: What is unfrozen after which step; some of them are in the middle of an epoch.
UNFROZEN = {10: "encoder.layers.1.*", 25: "encoder.layers.0.*", 37: "embeddings.*"}
DEPTHS = {"classifier": 0, "encoder.layers.1": 1, "encoder.layers.0": 2, "embeddings": 3}


class Classifier(nn.Module):
    """A text classifier: embeddings, two layers, a head."""

    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(31, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(8, 3)

    def forward(self, x):
        return self.classifier(self.encoder(self.embeddings(x)).mean(1))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # Its operator cannot be exported, by torch 2.9.
    net = Classifier().eval()
    with torch.no_grad():  # Parameters of equal content would be one initializer.
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return net


@pytest.fixture(scope="module")
def model(net):
    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):  # Sizes are traced.
        torch.onnx.export(net, (torch.zeros(BATCH, 6, dtype=torch.int64),), file, input_names=["x"], opset_version=17,
                          output_names=["y"], dynamo=False)
    return load(file.getvalue(), names_from=net)


def texts():
    rng = np.random.default_rng(0)
    return rng.integers(0, 31, (ROWS, 6)), rng.integers(0, 3, ROWS)


class Unfreeze:
    """Unfreezes before the step after each of those of `UNFROZEN`, in the middle of an epoch, too."""

    batches_between_calls = 1

    def setup(self, estimator, context):
        pass

    on_fit_task_begin = teardown = setup

    def on_fit_task_end(self, estimator, context):
        if context.task_name == "batches" and (pattern := UNFROZEN.get(estimator.training_view().iteration)):
            estimator.unfreeze(pattern)


@pytest.fixture(scope="module")
def expected(net):
    """The parameters of a copy of the network after the same steps in torch."""
    net = copy.deepcopy(net)
    depths = {n: depth for n, _ in net.named_parameters() for module, depth in DEPTHS.items() if n.startswith(module)}
    optimizer = torch.optim.Adam([{"params": [p], "lr": 0.01 * 0.8 ** depths[n]} for n, p in net.named_parameters()])
    for n, p in net.named_parameters():
        p.requires_grad_(n.startswith("classifier"))
    X, y = map(torch.tensor, texts())
    for k in range(EPOCHS * STEPS):
        rows = slice(k % STEPS * BATCH, (k % STEPS + 1) * BATCH)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X[rows]), y[rows]).backward()
        optimizer.step()
        if pattern := UNFROZEN.get(k + 1):
            for n, p in net.named_parameters():
                p.requires_grad_(p.requires_grad or n.startswith(pattern.removesuffix("*")))
    return {n: p.detach().numpy() for n, p in net.named_parameters()}


@IN_EVERY_ENGINE
def test_gradual_unfreezing(model, expected, engine):
    o = Optimizer(model, learning_loss="softmax_cross_entropy", learning_rate=LearningRateAdam(0.01), max_iter=EPOCHS,
                  batch_size=BATCH, shuffle=False, freeze=("embeddings.*", "encoder.*"),
                  rate_factors=LayerwiseDecay(0.8), callbacks=[Unfreeze()], **ENGINES[engine])
    assert sorted(model.main_names[w] for w in o.weights_to_train) == ["classifier.bias", "classifier.weight"]
    X, y = texts()
    o.fit(X, y)
    trained, aliases = o.trained_coef_, model.aliases
    assert len(trained) == len(expected)
    assert {*o._spec.rate_starts.values()} == {*UNFROZEN}
    found = {n: trained[n].T if n in aliases and aliases[n].transposed else trained[n] for n in expected}
    # The bias of the keys has no effect, and Adam makes steps of the rounding of its gradient.
    weights, others = ({n: np.delete(a, slice(8, 16)) if n.endswith("in_proj_bias") else a for n, a in each.items()}
                       for each in (found, expected))
    assert_close(weights, others, 2e-4)
