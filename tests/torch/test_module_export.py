"""Export of torch modules: names, ties, buffers, axes and inputs, the check of the graph, and reasons of refusals."""

import copy
import pickle
import re

import numpy as np
import onnx
import pytest
import torch
from once import ON_TRAINING
from onnx import numpy_helper
from torch import nn

from ortpartial import OnnxLayer, OrtGradientForwardBackward, OrtGradientForwardBackwardOptimizer, load
from ortpartial.autodiff import resolve_weights
from ortpartial.exceptions import ModelError, ModelWarning, SettingError
from ortpartial.model import read_torch
from ortpartial.rewrites import choose_train_mode
from ortpartial.torch import export


def initializers(model):
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def norms():
    """A network with norms in a first state that differs from a fresh one."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=0.3), nn.Dropout(0.25), nn.Linear(4, 2))
    net[1].running_mean.uniform_(), net[1].running_var.uniform_(0.5, 2)
    return net


class Shared(nn.Module):
    """A head that is the embedding, a layer used twice, equal fresh weights, buffers, and a part that nothing reads."""

    def __init__(self):
        super().__init__()
        self.embed, self.head, self.unused = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False), nn.Linear(2, 2)
        self.head.weight = self.embed.weight
        self.layer, self.first, self.second = nn.Linear(4, 4), nn.LayerNorm(4), nn.LayerNorm(4)
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("ones", torch.ones(4))
        self.register_buffer("more_ones", torch.ones(4))
        self.register_buffer("places", torch.arange(3))

    def forward(self, ids, *, mask=None):
        hidden = self.embed(ids) * self.ones + self.places[:, None] * self.more_ones
        hidden = self.second(self.layer(self.first(self.layer(hidden)))) * self.gain
        return {"logits": self.head(hidden) * mask[..., None], "hidden": hidden}


def shared_example():
    return torch.tensor([[1, 2, 6], [0, 0, 3]]), {"mask": torch.tensor([[1.0, 1, 0], [1, 1, 1]])}


def test_names_ties_and_buffers():
    module = Shared()
    module.first.requires_grad_(False)
    model = export(module, *shared_example())
    state, arrays = module.state_dict(), initializers(model)
    left = {"head.weight", "unused.weight", "unused.bias"}
    assert {n for n in state if n not in left} == arrays.keys()
    for n, a in arrays.items():
        np.testing.assert_array_equal(a, state[n].numpy())
    record = read_torch(model)
    assert record.parameters == ("gain", "embed.weight", "layer.weight", "layer.bias", "second.weight", "second.bias")
    assert record.frozen == ("first.weight", "first.bias")
    assert record.buffers == ("ones", "more_ones", "places")
    assert record.ties == {"head.weight": "embed.weight"}
    assert [i.name for i in model.graph.input] == ["ids", "mask"]
    assert [o.name for o in model.graph.output] == ["logits", "hidden"]
    loaded = load(model)
    assert loaded.find_initializer("head.weight") == "embed.weight" == loaded.main_names["embed.weight"]
    assert set(resolve_weights(loaded, None, ["logits"])) == set(record.parameters)
    assert resolve_weights(loaded, ["head.weight", "ones"], ["logits"]) == ["embed.weight", "ones"]
    assert set(resolve_weights(loaded, "*", ["logits"])) == {*record.parameters, *record.frozen}


def test_doors():
    """Each trains the parameters with requires_grad by default."""
    module = Shared()
    module.first.requires_grad_(False)
    module.embed.requires_grad_(False)
    model, trained = export(module, *shared_example()), {n for n, p in module.named_parameters() if p.requires_grad}
    trained -= {"unused.weight", "unused.bias"}
    assert set(OrtGradientForwardBackward(model).weights_to_train) == trained
    layer = OnnxLayer(model)
    assert {n for n, _ in layer.named_parameters()} == trained
    assert {n for n, _ in layer.named_buffers()} == {"embed.weight", "first.weight", "first.bias", "ones", "more_ones"}
    from ortpartial import nn as here

    assert {n for n, _ in here.Module.from_onnx(model).named_parameters()} == trained
    module.requires_grad_(False)
    with pytest.raises(ModelError, match=r"exported with requires_grad=False for all its parameters, 'gain', .* name"):
        OrtGradientForwardBackward(export(module, *shared_example()))


@pytest.mark.parametrize("training", [False, True])
def test_mode(training, tmp_path):
    """It is that of the module wherever nothing else is said, and outlives files, pickles and trained models."""
    model, x = export(norms().train(training), torch.zeros(2, 3)), np.ones((6, 3), np.float32)
    o = OrtGradientForwardBackwardOptimizer(model, max_iter=1, random_state=0)
    assert o.train_mode is training
    assert o.get_params()["train_mode"] is None
    o.fit(x, np.zeros((6, 2), np.float32)).save(tmp_path / "net.onnx")
    for again in (pickle.loads(pickle.dumps(o)), o.set_params(learning_rate=0.1), copy.deepcopy(o),
                  OrtGradientForwardBackwardOptimizer(tmp_path / "net.onnx"),
                  OrtGradientForwardBackwardOptimizer(load(o.get_trained_onnx()))):
        assert again.train_mode is training
    for mode in (False, True):
        assert OrtGradientForwardBackwardOptimizer(model, train_mode=mode).train_mode is mode
        assert o.set_params(train_mode=mode).train_mode is mode
    assert o.set_params(train_mode=None).train_mode is training
    assert OnnxLayer(model).training is training
    with pytest.raises(SettingError, match="train_mode is True or False, not 'no'"):
        OrtGradientForwardBackwardOptimizer(model, train_mode="no")


def test_mode_of_nothing():
    """A fresh module is in training mode; without Dropout and BatchNormalization this says nothing."""
    module = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.0))
    assert module.training
    model = load(export(module, torch.zeros(2, 3)))
    assert not choose_train_mode(model, ["output"])
    assert choose_train_mode(load(export(nn.Sequential(*module, nn.Dropout(0.1)), torch.zeros(2, 3))), ["output"])


def test_running_variance():
    """Of n numbers it takes n / (n - 1) of the variance, at any number of rows; ONNX's in a model of others."""
    module, x, y = norms(), np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32), np.zeros((8, 2), "f4")
    module[2].p = 0.0
    model = export(module, torch.zeros(4, 3))
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    del plain.metadata_props[:]
    before = module[1].running_var.numpy().copy()
    hidden = module[0](torch.tensor(x)).detach().numpy()
    for proto, settings, correction in ((model, {}, 1), (plain, {"train_mode": True}, 0)):
        o = OrtGradientForwardBackwardOptimizer(proto, batch_size=8, shuffle=False, **settings).partial_fit(x, y)
        expected = 0.7 * before + 0.3 * hidden.var(axis=0, ddof=correction)
        np.testing.assert_allclose(o.get_state("buffer")[1], expected, rtol=1e-5)


def test_cumulative_statistics():
    """ONNX has no mean of all batches: evaluation mode trains, training mode says why it cannot."""
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 1))
    model = export(module, torch.zeros(2, 3))
    with pytest.raises(ModelError, match=re.escape("'1.running_mean' is the mean of all batches, as the momentum of")):
        OrtGradientForwardBackwardOptimizer(model).partial_fit(np.ones((4, 3), "f4"), np.ones((4, 1), "f4"))
    o = OrtGradientForwardBackwardOptimizer(model, train_mode=False, max_iter=1)
    o.fit(np.ones((4, 3), "f4"), np.ones((4, 1), "f4"))
    assert module[1].momentum is None


@pytest.mark.parametrize("rows", [1, 4])
def test_rows(rows):
    """The first axis is of any size, also where the example has one row, which BatchNorm refuses in training mode."""
    module = norms()
    x = torch.randn(7, 3)
    layer = OnnxLayer(export(module, torch.zeros(rows, 3))).eval()
    torch.testing.assert_close(layer(x).detach(), module.eval()(x).detach())


@pytest.mark.parametrize(("layer", "shape"), [
    (nn.Dropout1d(0.4), (5, 3, 4)), (nn.Dropout2d(0.4), (5, 3, 4, 2)), (nn.Dropout3d(0.4), (5, 3, 2, 2, 2)),
    (nn.InstanceNorm1d(3, track_running_stats=True), (5, 3, 4)),
    (nn.InstanceNorm3d(3, affine=True, momentum=0.3, track_running_stats=True), (5, 3, 2, 2, 2)),
    (nn.BatchNorm2d(3, track_running_stats=False), (5, 3, 4, 2))], ids=str)
def test_layers(layer, shape):
    """Layers that an exporter refuses, or writes without their statistics, compute as torch does in both modes."""
    module, x = nn.Sequential(nn.Conv1d(3, 3, 1) if len(shape) == 3 else nn.Identity(), layer), torch.randn(*shape)
    exported = OnnxLayer(export(module, x[:2]))
    assert exported.training
    for m in (module, exported):
        torch.manual_seed(0)
        m(x), m(x)
    for mode in (True, False):
        torch.manual_seed(1)
        expected = module.train(mode)(x).detach()
        torch.manual_seed(1)
        torch.testing.assert_close(exported.train(mode)(x).detach(), expected)
    for n, t in exported.state_dict().items():
        torch.testing.assert_close(t, module.state_dict()[n])


class Lengths(nn.Module):
    """Sums over two axes of one size, with a parameter of the name of its input."""

    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.ones(2))

    def forward(self, x, *others, **more):
        return x.sum(1) * self.x + others[0].sum(1) * others[1] + more["bias"]


def test_axes():
    module, inputs = Lengths(), (torch.ones(3, 5, 2), torch.ones(3, 4, 2), torch.ones(2))
    axes = {"x_input": {0: "N", 1: "T"}, "others_0": [0, -2]}
    model = export(module, *inputs, {"bias": torch.zeros(2)}, dynamic_axes=axes)
    shapes = {i.name: [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    assert shapes == {"x_input": ["N", "T", 2], "others_0": ["N", "others_0_1", 2], "others_1": [2], "bias": [2]}
    with pytest.raises(SettingError, match="dynamic_axes names 'y', which is no input; the inputs are 'x_input', "):
        export(module, *inputs, {"bias": torch.zeros(2)}, dynamic_axes={"y": [0]})
    with pytest.raises(SettingError, match="dynamic_axes names the axis 3 of 'x_input', which has 3 axes"):
        export(module, *inputs, {"bias": torch.zeros(2)}, dynamic_axes={"x_input": [3]})


def test_nested_arguments():
    """Their tensors are inputs, also of one row; numbers and None are constants."""
    module, x = nn.LSTM(3, 2, batch_first=True), torch.randn(4, 5, 3)
    state = torch.randn(1, 4, 2), torch.randn(1, 4, 2)
    model = export(module, x, state, dynamic_axes={"input": [0], "hx_0": [1], "hx_1": [1]})
    assert [i.name for i in model.graph.input] == ["input", "hx_0", "hx_1"]
    for y, expected in zip(OnnxLayer(model)(x, *state), (lambda y, s: (y, *s))(*module(x, state)), strict=True):
        torch.testing.assert_close(y.detach(), expected.detach())


def test_module_is_not_changed():
    """Neither its state, nor its mode, nor the random numbers; also where it cannot be copied."""
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = norms(), 0
            self.computed = self.inner[0].weight * 2  # A tensor that is no leaf cannot be copied.

        def forward(self, x):
            self.calls += 1
            return self.inner(x)

    module = Counting()
    module.inner[1].eval()
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(module)
    state, modes = copy.deepcopy(module.state_dict()), [m.training for m in module.modules()]
    drawn = torch.random.get_rng_state()
    with pytest.warns(ModelWarning, match="'inner.1' is in evaluation mode, and its module in training mode, which"):
        model = export(module, torch.zeros(4, 3))
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert [m.training for m in module.modules()] == modes
    assert module.calls == 0
    assert all(torch.equal(t, state[n]) for n, t in module.state_dict().items())
    np.testing.assert_array_equal(initializers(model)["inner.1.running_var"], state["inner.1.running_var"].numpy())


class Stopping(nn.Module):
    """Gradients end by `detach` and by `no_grad`; in a function with a gradient of its own they do not."""

    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.no_grad():
                y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, dy):
            return dy * ctx.saved_tensors[0]

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("rows", torch.ones(4, 2))

    def forward(self, x):
        y = self.layer(x)
        with torch.no_grad():
            scale, place = y.abs().max(1, keepdim=True)
            self.rows[:2].mul_(1)
            with torch.enable_grad():
                z = y.sin()
        return y / scale * y.detach() + self.Exp.apply(y) * z + place + self.rows[:2].sum()


class Inverse(Stopping):
    """An operator that the exporter by TorchScript lacks."""

    def forward(self, x):
        return torch.asinh(super().forward(x))


def assert_gradients(layer, module, x):
    """Those by the input and the parameters."""
    wanted, (y, expected) = [x.clone().requires_grad_() for _ in range(2)], (None, None)
    y, expected = layer(wanted[0]), module(wanted[1])
    torch.testing.assert_close(y.detach(), expected.detach())
    ours = torch.autograd.grad(y.square().sum(), [wanted[0], *layer.parameters()])
    for g, e in zip(ours, torch.autograd.grad(expected.square().sum(), [wanted[1], *module.parameters()]), strict=True):
        torch.testing.assert_close(g, e, rtol=1e-5, atol=1e-5)


def test_ends_of_gradients():
    module, x = Stopping(), torch.randn(6, 3)
    assert_gradients(OnnxLayer(export(module, x[:2], dynamo=False)), module, x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch 2.13.0's own code
@ON_TRAINING
def test_newer_exporter(capfd):
    module, x = Inverse(), torch.randn(6, 3)
    layer = OnnxLayer.from_torch(module, x[:2])
    assert capfd.readouterr().out == ""
    assert_gradients(layer, module, x)
    assert list(layer.state_dict()) == list(module.state_dict())
    with pytest.raises(ModelError, match=r"no graph of Inverse that has all of it, by TorchScript: .*aten::asinh"):
        export(module, x, dynamo=False)


class Branching(nn.Module):
    """A branch that depends on the numbers."""

    def forward(self, x):
        return x * 2 if x.sum() > 0 else x * 3


class Sized(nn.Module):
    """A number of rows that the trace takes for a constant."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x.reshape(int(x.shape[0]), 3) * self.weight


class Moody(nn.Module):
    """Other formulas in training mode and in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.weight if self.training else x * self.weight * 2


@pytest.mark.parametrize(("module", "message"), [
    (Sized(), "the graph fails at another size: .*Reshape"),
    (Moody(), "the output 'output' differs from the module's by 1, where its numbers go up to 2"),
], ids=["size", "mode"])
def test_graphs_that_differ(module, message):
    """They are refused, with the reason of each exporter that was tried."""
    with pytest.raises(ModelError, match=f"by TorchScript: {message}"):
        export(module, torch.ones(2, 3), dynamo=False)


class Following(nn.Module):
    """A buffer that training mode writes to, before it is read or afterwards."""

    def __init__(self, first):
        super().__init__()
        self.layer, self.first = nn.Linear(3, 2), first
        self.register_buffer("mean", torch.zeros(3))

    def follow(self, x):
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)

    def forward(self, x):
        if self.first:
            self.follow(x)
        y = self.layer(x - self.mean)
        if not self.first:
            self.follow(x)
        return y


@pytest.mark.parametrize("first", [True, False])
def test_buffers_that_training_writes_to(first):
    """A graph writes to statistics of norms alone; in evaluation mode it must read what the module reads."""
    module, x = Following(first), torch.randn(6, 3)
    with pytest.raises(ModelError, match="the module writes to its buffer 'mean' in training mode, which a graph does "
                                         r"not; call module.eval\(\) before the export"):
        export(module, x, dynamo=False)
    assert not module.mean.any()
    if first:
        with pytest.raises(ModelError, match="by TorchScript: the output 'output' differs from the module's"):
            export(module.eval(), x, dynamo=False)
    else:
        layer = OnnxLayer(export(module.eval(), x, dynamo=False))
        torch.testing.assert_close(layer(x).detach(), module(x).detach())


class Normal(nn.Module):
    """A vector that training mode writes to, and that then holds what it held, as in spectral norm."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("u", torch.linalg.eigh(self.weight.detach() @ self.weight.detach().T)[1][:, -1])

    def forward(self, x):
        u = self.u
        if self.training:
            with torch.no_grad():
                v = self.weight @ (self.weight.T @ u)
                u = self.u = v / v.norm()
        return x @ self.weight / (u @ self.weight).norm()


def test_vectors_that_training_normalizes():
    with pytest.raises(ModelError, match="differs from the module's"):
        export(Normal().eval(), torch.randn(6, 3), dynamo=False)


def test_refusals():
    with pytest.raises(SettingError, match="'weight' of the module has no shape before its first call; call the"):
        export(nn.LazyLinear(3), torch.ones(2, 3))
    with pytest.raises(TypeError, match="The example 'input' is ndarray; give a tensor for each input"):
        export(nn.Linear(2, 2), np.ones((1, 2)))
    with pytest.raises(TypeError, match="too many positional arguments"):
        export(nn.Linear(2, 2), torch.ones(1, 2), torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # what the module itself raises
        export(nn.Linear(2, 2), torch.ones(1, 3))
