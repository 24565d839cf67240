"""Naming the part that is trained, in exports of torch: aliases, patterns, names of a module, and what is no weight."""

import io
import pickle
import re
import warnings
from functools import cache

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from ortpartial import OrtGradientForwardBackward, gradient_model
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.cli import main
from ortpartial.model.load import load
from ortpartial.torch import OnnxLayer

EXPORTERS = pytest.mark.parametrize("dynamo", [False, True], ids=["TorchScript", "dynamo"])


class Classifier(nn.Module):
    """A transformer with attention that torch scales, a slope, a temperature, and a bias of one number."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.encoder, self.slope = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.PReLU()
        self.scale, self.temperature = nn.Parameter(torch.ones(1) * 2), nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.slope(self.encoder(x)).mean(1) * self.scale) / self.temperature


@cache
def exported(dynamo):
    """A module whose parameters all differ, as those of a trained one, and the model that users export."""
    torch.manual_seed(0)
    module, x = Classifier(), torch.randn(3, 5, 4)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn_like(p))
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.13.0 warns about its own code, and that one exporter is deprecated.
        # In training mode attention is not fused into an operator that is not exported.
        if dynamo:
            model = torch.onnx.export(module, (x,), dynamo=True, verbose=False).model_proto
        else:
            torch.onnx.export(module.eval(), (x,), stream, dynamo=False, opset_version=17)
            model = onnx.load_from_string(stream.getvalue())
    return module, x, model


def torch_gradients(module, x):
    module.zero_grad()
    module(x).sum().backward()
    return {n: p.grad.numpy() for n, p in module.named_parameters()}


@EXPORTERS
def test_aliases_name_the_parameters_of_torch(dynamo):
    """The gradient by every alias is that by torch's parameter, transposed where the exporter has transposed it."""
    module, x, model = exported(dynamo)
    loaded = load(model)
    assert len(loaded.aliases) >= 5
    layer = OrtGradientForwardBackward(loaded)
    (y,), state = layer.forward(x.numpy())
    gradients, _ = layer.backward([np.ones_like(y)], state)
    expected = torch_gradients(module, x)
    expected |= {f"encoder.layers.{i}.self_attn.weight": expected[f"encoder.layers.{i}.self_attn.in_proj_weight"]
                 for i in range(2)}
    for name in loaded.aliases:
        gradient = gradients[name].reshape(expected[name].T.shape if "slope" not in name else 1)
        np.testing.assert_allclose(gradient, expected[name].T, rtol=1e-3, atol=1e-5)


@EXPORTERS
def test_names_from_the_module(dynamo):
    module, _, model = exported(dynamo)
    before = load(model)
    loaded = load(model, names_from=module)
    state = module.state_dict()
    numbered = {a.initializer for a in before.aliases.values()}
    for name, alias in loaded.aliases.items():
        if name in state and state[name].ndim == 2:
            expected = state[name].T if alias.transposed else state[name]
            np.testing.assert_array_equal(loaded.arrays[alias.initializer], expected)
            assert alias.transposed
    # All matrices have torch's names now; PRelu's slope, reshaped, has that of its scope.
    assert {loaded.main_names[n] for n in numbered} <= {*state}
    assert {n for n in loaded.main_names.values() if n in state} == {*state}
    assert loaded.aliases.keys() >= {f"encoder.layers.{i}.self_attn.in_proj_weight" for i in range(2)}


@EXPORTERS
def test_patterns(dynamo, tmp_path, capsys):
    module, _, model = exported(dynamo)
    named = load(model, names_from=module)
    expected = [named.find_initializer(n) for n in module.state_dict() if n.startswith("encoder.layers.1.")]
    assert len(expected) == 12
    o = Optimizer(named, "encoder.layers.1.*")
    assert sorted(o.weights_to_train) == sorted(expected)
    assert sorted(Optimizer(named, lambda name, shape, node: ".1." in name).weights_to_train) == sorted(expected)
    assert sorted(OrtGradientForwardBackward(named, ["encoder.layers.1.*"]).weights_to_train) == sorted(expected)
    assert len(OnnxLayer(model, "encoder.layers.1.*").state_names) >= 12
    assert [n for n, _ in OnnxLayer(model, lambda name, shape, node: name == "head.bias").named_parameters()] == [
        "head.bias"]
    assert [o.name for o in gradient_model(named, ["encoder.layers.1.linear1.weight"]).graph.output] == [
        f"{named.find_initializer('encoder.layers.1.linear1.weight')}_grad"]
    onnx.save(model, tmp_path / "model.onnx")
    assert main(["export", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "out.onnx"), "--weights",
                 "encoder.layers.1.*", "head.bias"]) == 0
    assert "head.bias" in capsys.readouterr().out


@EXPORTERS
def test_weights_are_read_by_their_aliases(dynamo):
    module, x, model = exported(dynamo)
    o = Optimizer(load(model, names_from=module), lambda name, shape, node: "linear1" in name, max_iter=2,
                  batch_size=3)
    for trained in (o, pickle.loads(pickle.dumps(o))):
        trained.fit(x.numpy(), np.zeros((3, 1)))
        w = trained.trained_coef_["encoder.layers.1.linear1.weight"]
        assert w.shape == (4, 6)
        assert (w != module.encoder.layers[1].linear1.weight.detach().numpy().T).any()
        assert trained.set_params(weights_to_train=["encoder.layers.0.linear1.weight"]).trained_coef_.keys() == {
            trained._spec.model.find_initializer("encoder.layers.0.linear1.weight")}


@EXPORTERS
def test_numbers_that_exporters_write_are_no_weights(dynamo):
    module, _, model = exported(dynamo)
    named = load(model, names_from=module)
    trained = {named.main_names[n] for n in Optimizer(named).weights_to_train}
    # A scalar, of shape [], is trained by its name alone.
    assert trained == {n for n, _ in module.named_parameters()} - {"temperature"}
    assert Optimizer(named, "temp*").weights_to_train == ["temperature"]
    if dynamo:
        scales = [n for n, v in named.initializers.items() if v.is_float and v.shape == (1,) and "val_" in n]
        assert scales  # those of attention: the test would be void without them
        assert Optimizer(model, scales).weights_to_train == scales


@EXPORTERS
def test_info_is_a_tree_of_modules(dynamo, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")  # as narrow as it gets is 80
    onnx.save(exported(dynamo)[2], path := tmp_path / "model.onnx")
    assert main(["info", str(path)]) == 0
    lines = capsys.readouterr().out.split("\noperator ")[0].splitlines()
    assert max(map(len, lines)) <= 80
    tree = [line for line in lines if line[:2].isspace() or line.startswith(("encoder", "head", "scale", "temp"))]
    assert any(re.fullmatch(r"encoder\.layers +\d+ initializers +[\d,]+ +trained.*", line) for line in tree)
    assert any(re.fullmatch(r" +linear1 +2 initializers +30 +trained", line) for line in tree)
    assert any(re.fullmatch(r" +weight +float32\[4x6\] +24 +trained, named (val_|onnx::MatMul_)\d+", line)
               for line in tree)
    assert any(re.fullmatch(r"temperature +float32\[\] +1 +scalar, trained by name only", line) for line in tree)
    assert any("a number that Mul reads" in line for line in tree) is dynamo
    assert main(["info", str(path), "--depth", "1"]) == 0
    assert "(modules of 1 out of" in capsys.readouterr().out
