"""Models exported by torch and scikit-learn train as in torch."""

from contextlib import nullcontext
from functools import cache
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from skl2onnx import to_onnx
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.onnx import TrainingMode
from torch_trainings import ROWS, check

from ortpartial.exceptions import ModelError, ModelWarning

ENGINES = ["step", "epoch", pytest.param("agent", marks=pytest.mark.agent)]


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ModuleList([nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.Conv2d(4, 4, 3, padding=1),
                                   nn.Conv2d(4, 8, 3, stride=2, padding=1)])
        self.norm = nn.ModuleList(map(nn.BatchNorm2d, (4, 4, 8)))
        self.skip, self.head = nn.Conv2d(4, 8, 1, stride=2), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.norm[0](self.conv[0](x)))
        x = torch.relu(x + self.norm[1](self.conv[1](x)))
        return self.head(torch.relu(self.skip(x) + self.norm[2](self.conv[2](x))).mean((2, 3)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.embed, self.position = nn.Embedding(11, 16), nn.Parameter(torch.zeros(7, 16))
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.norm(self.layers(self.embed(x) + self.position)).mean(1))


# Network, shape of a row (None: tokens), of a target (None: a label), rate, why the agent refuses.
NETS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2)),
            (5,), (2,), "adam", None),
    "lenet": (lambda: nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)), (1, 12, 12), None, "sgd", None),
    "resnet": (ResNet, (1, 8, 8), None, "momentum", "BatchNormalization .*as if training_mode were 1"),
    "resnet folded": (ResNet, (1, 8, 8), None, "momentum", None),
    # No Adam: the bias of the keys has a gradient of zero but for rounding, of which Adam would make whole steps.
    "encoder": (Encoder, None, None, "momentum", None),
    "autoencoder": (lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(4, 1, 4, stride=2, padding=1)),
        (1, 8, 8), (1, 8, 8), "adam", "ConvTransposeGrad"),
}


@cache
def exported(name, dynamo):
    """A network, the model that one of torch's exporters makes of it, and data."""
    (make, shape, target, *_), rng, _ = NETS[name], np.random.default_rng(1), torch.manual_seed(0)
    net = make().eval()
    with torch.no_grad():  # exporters merge tensors that are equal, as they are at the start
        for v in filter(torch.is_floating_point, net.state_dict().values()):
            v.add_(0.2 * torch.rand_like(v) - 0.1)
    X = rng.integers(0, 11, (ROWS, 7)) if shape is None else rng.normal(size=(ROWS, *shape)).astype(np.float32)
    y = rng.integers(0, 3, ROWS) if target is None else rng.normal(size=(ROWS, *target)).astype(np.float32)
    settings = {"dynamic_shapes": ({0: torch.export.Dim("N")},)} if dynamo else {"dynamic_axes": {"x": {0: "N"}}}
    if name == "resnet":  # Both exporters fold BatchNormalization into the Conv before it unless told to keep it.
        settings |= {"optimize": False} if dynamo else {"training": TrainingMode.PRESERVE, "do_constant_folding": False}
    with TemporaryDirectory() as folder:
        torch.onnx.export(net, (torch.tensor(X[:3]),), f"{folder}/net.onnx", dynamo=dynamo, input_names=["x"],
                          output_names=["y"], opset_version=18, verbose=False, **settings)
        model = onnx.load(f"{folder}/net.onnx")
    if name == "resnet folded":
        net.conv = nn.ModuleList(map(fuse_conv_bn_eval, net.conv, net.norm))
        net.norm = nn.ModuleList([nn.Identity()] * 3)
    return net.requires_grad_(), model, X, y


@pytest.mark.sampled(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize("name", NETS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_torch(name, dynamo, engine):
    (net, model, X, y), (*_, target, rate, refusal) = exported(name, dynamo), NETS[name]
    assert any(node.op_type == "BatchNormalization" for node in model.graph.node) == (name == "resnet")
    folded = pytest.warns(ModelWarning, match="An exporter has folded normalizations into 'conv.0.weight'")
    with folded if name == "resnet folded" else nullcontext(), (
            pytest.raises(ModelError, match=refusal) if engine == "agent" and refusal else nullcontext()):
        check(net, model, "y", X, y, engine, rate, "labels" if target is None else "square", X)


CLASSIFIER, REGRESSOR = MLPClassifier((8,)), MLPRegressor(hidden_layer_sizes=(8, 6), activation="tanh")
# Estimator, loss, the operator whose input is trained (None: an output of the model), the last layer in torch.
ESTIMATORS = {
    "regressor": (REGRESSOR, "square", None, nn.Identity()),
    "scaled regressor": (make_pipeline(StandardScaler(), REGRESSOR), "square", None, nn.Identity()),
    "binary scores": (CLASSIFIER, "binary", "Sigmoid", nn.Identity()),
    "probabilities": (CLASSIFIER, "square", None, nn.Softmax(1)),
    "scores": (CLASSIFIER, "labels", "Softmax", nn.Identity()),
    "scaled scores": (make_pipeline(StandardScaler(), CLASSIFIER), "labels", "Softmax", nn.Identity()),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sklearn(name, engine):
    estimator, loss, scored, last = ESTIMATORS[name]
    rng = np.random.default_rng(2)
    X, t = rng.normal(1, 2, (ROWS, 4)).astype(np.float32), rng.integers(0, 2 if loss == "binary" else 3, ROWS)
    scaler, mlp = estimator if isinstance(estimator, Pipeline) else (None, estimator)
    mlp.set_params(max_iter=2, random_state=0)
    estimator.fit(X, t)
    model = to_onnx(estimator, X[:1], target_opset=21, options={"zipmap": False} if mlp is CLASSIFIER else None)
    output = model.graph.output[-1].name
    if scored:
        output = next(node.input[0] for node in model.graph.node if node.op_type == scored)
        model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, [None, mlp.n_outputs_]))
    layers, seen = [], X if scaler is None else (X - scaler.mean_) / scaler.scale_
    for w, b in zip(mlp.coefs_, mlp.intercepts_, strict=True):
        layers += [nn.Linear(*w.shape), nn.Tanh() if mlp.activation == "tanh" else nn.ReLU()]
        layers[-2].weight.data, layers[-2].bias.data = torch.tensor(w.T), torch.tensor(b)
    net = nn.Sequential(*layers[:-1], last)
    y = t if loss == "labels" else (np.eye(3)[t] if name == "probabilities" else t[:, None]).astype(np.float32)
    check(net, model, output, X, y, engine, "adam", loss, seen)
