"""An ONNX layer behaves as a torch module: its state, its calls, its gradients of every order."""

import collections
import copy
import io
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
import torch
from models import data, linear, mlp, torch_mlp, two_in_two_out, weights_of
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from ortpartial.exceptions import DataError, ModelError, ModelWarning, SettingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.runtime import Session
from ortpartial.torch.onnx_layer import OnnxLayer
from ortpartial.torch.tensor_session import to_ortvalue, to_tensor
from ortpartial.training.gradient_cut import GradientCut

ENGINES = ["step", pytest.param("agent", marks=pytest.mark.agent)]


def real(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def weight(name, *shape, seed=0, dtype="float64"):
    return constant(real(*shape, seed=seed, dtype=dtype) / 2, hint=name)


def x_of(*shape, name="x", dtype="float64"):
    return variable(name, dtype, shape)


def attention():
    """Scores, softmax, a sum over rows, and a normalization."""
    x = x_of("N", 3, 4)
    q, k = x @ weight("Q", 4, 4), x @ weight("K", 4, 4, seed=1)
    p = op.Softmax(q @ op.Transpose(k, perm=[0, 2, 1]))
    y = op.LayerNormalization(p @ x + x, weight("scale", 4), weight("bias", 4))
    return build([x], {"y": y})


def embedding():
    i, x = variable("i", "int64", ["N", 2]), x_of("N", 3)
    e = op.Gather(weight("table", 5, 3), i)
    return build([i, x], {"y": op.ReduceSum(e, [1], keepdims=0) * x, "twice": i * 2})


def normalized():
    """BatchNormalization, whose training is another graph than its inference."""
    x = x_of("N", 2, 3)
    var = constant(np.array([0.5, 2.0]), hint="var")
    parameters = weight("scale", 2), weight("b", 2, seed=1), weight("mean", 2, seed=2), var
    (y,) = op.BatchNormalization(x, *parameters, n_outputs=1)
    return build([x], {"y": op.Tanh(y)})


def chosen():
    x, z = x_of("N", 3), x_of("N", 3, name="z")
    y = op.Where(x > 0, x * weight("w", 3), op.Exp(z)) / (1 + z * z)
    return build([x, z], {"y": y, "length": op.Sqrt(op.ReduceSum((x + z) ** 2, [1], keepdims=0))})


def own_output():
    """The same tensor as output and as what the gradient reads."""
    x = x_of("N", 2)
    y = op.Sigmoid(x @ weight("w", 2, 2))
    return build([x], {"y": y, "z": y * y})


def pieces():
    a, b = op.Split(x_of("N", 4) @ weight("w", 4, 4), axis=1, num_outputs=2)
    x = next(iter(a.node.inputs)).node.inputs[0]
    return build([x], {"y": op.Concat(op.Relu(a), op.Max(b, 0.1) * op.Gather(a, [0], axis=1), axis=1)})


def images():
    """Convolutions and a pool, which onnxruntime has in float32 alone."""
    x = x_of("N", 2, 5, 5)
    h = op.Conv(x, weight("w", 2, 1, 3, 3), weight("b", 2), strides=[2, 2], pads=[1] * 4, group=2)
    h = op.ConvTranspose(op.Erf(h), weight("v", 2, 1, 2, 2, seed=1))
    return build([x], {"y": op.AveragePool(h, kernel_shape=[2, 2])})


def sequence():
    """A recurrent operator, in both directions."""
    x = x_of("T", "N", 2)
    w, r = weight("w", 2, 9, 2), weight("r", 2, 9, 3, seed=1)
    return build([x], {"y": op.GRU(x, w, r, weight("b", 2, 18), hidden_size=3, direction="bidirectional")[0]})


def squared_error():
    """A loss, whose gradient is computed with it."""
    x, t = x_of("N", 3), x_of("N", 2, name="t")
    e = op.Tanh(x @ weight("w", 3, 2) + weight("b", 2, seed=1)) - t
    return build([x, t], {"loss": op.ReduceMean(e * e, keepdims=0), "rows": op.Shape(x, end=1)})


TABLE = {
    "linear": (lambda: linear(3, 2, "float64"), [(2, 3)]),
    "mlp": (lambda: mlp(3, 2, "float64", hidden=4), [(2, 3)]),
    "attention": (attention, [(2, 3, 4)]),
    "embedding": (embedding, ["int", (2, 3)]),
    "batch normalization": (normalized, [(3, 2, 3)]),
    "where": (chosen, [(2, 3), (2, 3)]),
    "an output that is read": (own_output, [(2, 2)]),
    "split": (pieces, [(2, 4)]),
    "images": (images, [(1, 2, 5, 5)]),
    "sequence": (sequence, [(3, 1, 2)]),
    "loss": (squared_error, [(2, 3), (2, 2)]),
}


def inputs_of(shapes, grad=True):
    inputs = [torch.tensor([[0, 3], [3, 4]]) if s == "int" else torch.tensor(real(*s, seed=9, dtype="float64")) + 0.05
             for s in shapes]
    return [t.requires_grad_(grad) if t.is_floating_point() else t for t in inputs]


def with_weights(layer):
    """The layer as a function of its parameters and inputs, and the parameters."""
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def f(*tensors):
        outputs = functional_call(layer, dict(zip(names, tensors, strict=False)), tensors[len(names) :])
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return tuple(y for y in outputs if y.is_floating_point())

    return f, [p.detach().clone().requires_grad_() for p in parameters]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", TABLE)
def test_gradcheck(name, training):
    make, shapes = TABLE[name]
    f, weights = with_weights(OnnxLayer(make(), engine="step").train(training))
    for inputs in (inputs_of(shapes), inputs_of(shapes, grad=False)):
        assert torch.autograd.gradcheck(f, (*weights, *inputs))
        assert torch.autograd.gradgradcheck(f, (*weights, *inputs))


def test_third_order():
    layer = OnnxLayer(mlp(3, 1, "float64"), engine="step")
    x = torch.tensor(real(2, 3, dtype="float64"), requires_grad=True)
    w = {n: p.detach() for n, p in layer.named_parameters()}

    def third(f):
        d = f(x)
        for _ in range(3):
            (d,) = torch.autograd.grad(d.pow(2).sum(), x, create_graph=True)
        return d

    torch.testing.assert_close(third(layer), third(lambda x: torch_mlp(w, x)))


class Encoder(nn.Module):
    def __init__(self, dropout=0.0, width=8):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout, "gelu", batch_first=True, norm_first=True)
        self.embed, self.layers = nn.Embedding(11, width), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, i):
        return self.head(self.layers(self.embed(i)).mean(1))


MODULES = {
    "conv": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
                                   nn.Flatten(), nn.Dropout(0.3), nn.Linear(36, 3)), (1, 8, 8)),
    "encoder": (Encoder, None),
    "tower": (lambda: nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 8), nn.Softplus(),
                                    nn.Dropout(0.5), nn.Linear(8, 2)), (5,)),
}


#: As wide as networks are: what is kept for a row of a normalization, of one element a row, hardly counts there.
WIDE = {
    "conv": MODULES["conv"],
    "encoder": (lambda: Encoder(width=64), None),
    "tower": (lambda: nn.Sequential(nn.Linear(5, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.Softplus(),
                                    nn.Linear(64, 2)), (5,)),
}


def wrapped(name, modules=MODULES, **settings):
    """A module, the same exported to ONNX and wrapped, and a batch for both."""
    make, shape = modules[name]
    torch.manual_seed(0)
    module = make().eval()
    x = torch.randint(0, 11, (4, 5)) if shape is None else torch.randn(4, *shape)
    return module, OnnxLayer.from_torch(module, x, **settings), x


def close(actual, expected, tol=1e-5):
    """max|actual - expected| <= tol max|expected|."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    assert (actual - expected).abs().max() <= tol * expected.abs().max().clamp(min=1e-3)


def derivatives(module, x):
    """The output, the gradients of its square, and those of the squares of these, by the names of parameters."""
    names, weights = zip(*sorted(module.named_parameters()), strict=True)
    torch.manual_seed(1)
    with sdpa_kernel(SDPBackend.MATH):  # torch's other kernels for attention have no second derivative
        y = module(x)
    first = torch.autograd.grad(y.square().sum(), weights, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), weights)
    return y, *(dict(zip(names, g, strict=True)) for g in (first, second))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("engine", ["step", "auto"])
@pytest.mark.parametrize("name", MODULES)
def test_as_torch(name, engine, training):
    """Outputs, from the same seed with the same masks, and derivatives of both orders."""
    module, layer, x = wrapped(name, engine=engine)
    module.train(training), layer.train(training)
    (y, *expected), (actual, *derived) = derivatives(module, x), derivatives(layer, x)
    close(actual, y)
    for ours, theirs in zip(derived, expected, strict=True):
        assert list(ours) == list(theirs)
        for n, g in ours.items():
            close(g, theirs[n])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODULES)
def test_first_order(name, engine):
    module, layer, x = wrapped(name, engine=engine)
    if engine == "agent" and name != "encoder":
        with pytest.raises(ModelError, match="Use engine='step' instead"):
            layer(x)
        return
    for m in (module, layer):
        m(x).square().sum().backward()
    theirs = dict(module.named_parameters())
    for n, p in layer.named_parameters():
        close(p.grad, theirs[n].grad)


def assert_same_numbers(layer, weights, x, f):
    """Outputs and gradients are those of a function of torch."""
    w = {n: p.detach().clone().requires_grad_() for n, p in weights.items()}
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer.zero_grad()
    y, z = layer(a), f(w, b)
    close(y.detach(), z.detach())
    y.square().sum().backward()
    z.square().sum().backward()
    close(a.grad, b.grad)
    for n, p in weights.items():
        close(p.grad, w[n].grad)


@pytest.mark.parametrize("engine", ENGINES)
def test_sizes(engine):
    """The first few batches of a size run in a graph for all sizes, the next ones in one of their own."""
    layer = OnnxLayer(mlp(), engine=engine)
    for n in (3, 1, 5, 3, 3, 3, 3, 5, 0):
        assert layer(torch.ones(n, 4)).shape == (n, 1)
        if n:
            assert_same_numbers(layer, dict(layer.named_parameters()), torch.tensor(real(n, 4)), torch_mlp)
    special = [key[0] for key in layer._compiled if key[0]]
    assert special == [((3, 4),), ((5, 4),)]


def test_graphs_are_few():
    """Of 99 sizes, the two that come back first have graphs of their own; the others go on sharing one."""
    layer = OnnxLayer(linear()).requires_grad_(False)
    for n in [*range(1, 100), *range(1, 15), *range(1, 15), *range(1, 15), *range(1, 15)]:
        layer(torch.ones(n, 4))
    assert len(layer._compiled) == 3


# -- state ---------------------------------------------------------------------------------------------------------

NAMES = {
    "fc.weight": "fc.weight",
    "fc.bias": "fc.bias",
    "layers.0.w": "layers.0.w",
    "onnx::MatMul_7": "onnx::MatMul_7",
    "model/dense/kernel:0": "model/dense/kernel:0",
    "forward": "forward_",
    "training": "training_",
    "type.w": "type_.w",
    "a..b": "a._.b",
    ".w": "_.w",
    "a": "a_",
    "layers.0": "layers.0_",
}


def named():
    x = x_of("N", 2, dtype="float32")
    y = x
    for i, name in enumerate(NAMES):
        y = y + weight(name, 2, seed=i, dtype="float32")
    return build([x], {"y": y})


def test_names():
    layer = OnnxLayer(named())
    assert layer.state_names == NAMES
    assert sorted(layer.state_dict()) == sorted(n for n, _ in layer.named_parameters()) == sorted(NAMES.values())
    assert layer.fc.weight.shape == (2,)
    content = weights_of(named())
    for name, key in NAMES.items():
        np.testing.assert_array_equal(layer.state_dict()[key].numpy(), content[name])
    assert [t.name for t in layer.to_onnx().graph.initializer] == [t.name for t in named().graph.initializer]


def test_parameters_and_buffers():
    """Scalars and what is off the path are constants of the graph, unless they are named."""
    x = x_of("N", 2, dtype="float32")
    s, w = constant(np.float32(3).reshape(()), hint="s"), weight("w", 2, dtype="float32")
    i = constant(np.array([1, 0]), hint="i")
    v = weight("v", 2, dtype="float32")
    model = build([x], {"y": op.Gather(x * w * s, i, axis=1) + v})

    def kinds(layer):
        return [n for n, _ in layer.named_parameters()], [n for n, _ in layer.named_buffers()]

    assert kinds(OnnxLayer(model)) == (["w", "v"], [])
    assert kinds(OnnxLayer(model, ["s", "v"])) == (["s", "v"], ["w"])
    assert kinds(OnnxLayer(model, [])) == ([], ["w", "v"])
    layer = OnnxLayer(model, ["s"])
    y = layer(torch.ones(1, 2))
    y.sum().backward()
    close(layer.s.grad, layer.w.sum())
    layer.w.zero_()
    close(layer(torch.ones(1, 2))[0].detach(), layer.v)


def test_state_dict():
    layer, other = OnnxLayer(mlp()), OnnxLayer(mlp(seed=5))
    x = torch.tensor(real(3, 4))
    assert not torch.allclose(layer(x), other(x))
    with torch.no_grad():  # compiled already, and must see the new weights
        other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), other(x))
    with pytest.raises(RuntimeError, match="size mismatch for W1"):
        other.load_state_dict({**layer.state_dict(), "W1": torch.ones(2, 2)})


def saved(layer):
    stream = io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v)), saved],
                         ids=["deepcopy", "pickle", "torch.save"])
def test_copies(copied):
    layer, x = OnnxLayer(mlp(), engine="step"), torch.tensor(real(3, 4))
    layer(x).sum().backward()
    other = copied(nn.Sequential(layer, nn.Tanh()))
    assert torch.equal(other(x), layer(x).tanh())
    with torch.no_grad():
        layer.W1.zero_()
    assert not torch.equal(other(x), layer(x).tanh())
    assert list(other.state_dict()) == ["0.W1", "0.b1", "0.W2", "0.b2"]


@pytest.mark.parametrize("engine", ENGINES)
def test_freezing(engine):
    """What needs no gradient costs none: the backward graph has no output for it."""
    layer = OnnxLayer(mlp(), engine=engine)
    layer.W1.requires_grad_(False)
    layer.b1.requires_grad_(False)
    layer(torch.ones(2, 4)).sum().backward()
    assert [n for n, p in layer.named_parameters() if p.grad is not None] == ["W2", "b2"]
    (compiled,) = layer._compiled.values()
    (gradient,) = compiled.function._gradients.values()
    if engine == "step":
        assert gradient.cut.wanted == ["W2", "b2"]
        graph = gradient.cut.gradient[0].graph().graph
        assert gradient._whole[0].session.outputs == [o.name for o in graph.output] == ["W2_grad", "b2_grad"]
        assert "MatMul" not in {n.op_type for n in graph.node}
    else:
        assert gradient.wanted == ["W2", "b2"]
    layer.requires_grad_(False)
    assert not layer(torch.ones(2, 4)).requires_grad


def test_double():
    """Every real number of the graph is moved with the layer, constants too."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 2))
    x = torch.randn(4, 5)
    layer = OnnxLayer.from_torch(module, x)
    module.double(), layer.double()
    y, expected = layer(x.double()), module(x.double())
    assert y.dtype == torch.float64
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    for m in (y, expected):
        m.square().sum().backward()
    for n, p in module.named_parameters():
        torch.testing.assert_close(layer.get_parameter(n).grad, p.grad, rtol=1e-10, atol=1e-12)
    back = layer.to_onnx()
    assert {t.data_type for t in back.graph.initializer if t.name in layer.state_names} == {onnx.TensorProto.FLOAT}
    layer.float()
    close(layer(x).detach(), expected.float().detach())


def test_double_without_weights():
    """The dtype follows the module even where it has no parameter."""
    x = x_of("N", 2, dtype="float32")
    model = nn.Sequential(nn.Linear(3, 2), OnnxLayer(build([x], {"y": op.Tanh(x) * 0.1}))).double()
    z = torch.ones(1, 3, dtype=torch.float64)
    torch.testing.assert_close(model(z), model[0](z).tanh() * 0.1, rtol=1e-7, atol=0)


def test_to_onnx():
    model = mlp()
    layer = OnnxLayer(model)
    assert layer.to_onnx().SerializeToString() == model.SerializeToString()
    with torch.no_grad():
        layer.W1.mul_(2)
    trained = layer.to_onnx()
    np.testing.assert_array_equal(weights_of(trained)["W1"], 2 * weights_of(model)["W1"])
    again = OnnxLayer(trained)
    assert torch.equal(again(torch.ones(2, 4)), layer(torch.ones(2, 4)))


def test_from_torch():
    module, layer, _ = wrapped("conv")
    state = module.state_dict()
    assert list(layer.state_dict()) == list(state)
    for n, t in layer.state_dict().items():
        assert torch.equal(t, state[n])
    assert not layer.training
    assert {n for n, _ in layer.named_buffers()} == {f"1.{n}" for n in ("running_mean", "running_var",
                                                                       "num_batches_tracked")}
    assert layer.to_onnx().graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    onnx.checker.check_model(layer.to_onnx(), full_check=True)


class Tagger(nn.Module):
    """Tied weights, constants, and a part that nothing reads."""

    def __init__(self):
        super().__init__()
        self.embed, self.head, self.unused = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False), nn.Linear(2, 2)
        self.head.weight = self.embed.weight
        self.register_buffer("position", torch.arange(3))
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, ids, mask=None):
        hidden = self.embed(ids) * self.scale + self.position[:, None]
        return {"logits": self.head(hidden) * mask[..., None], "hidden": hidden}


def test_from_torch_names():
    """Those of arguments and results."""
    module, ids, mask = Tagger(), torch.tensor([[1, 2, 6], [0, 0, 3]]), torch.tensor([[1.0, 1, 0], [1, 1, 1]])
    layer = OnnxLayer.from_torch(module, {"mask": mask, "ids": ids}, return_dict=True)
    assert (layer.input_names, layer.output_names) == (["ids", "mask"], ["logits", "hidden"])
    outputs = layer(mask=mask, ids=ids)
    for name, y in module(ids, mask=mask).items():
        close(outputs[name].detach(), y.detach())
    assert [v.name for v in layer.to_onnx().graph.output] == ["logits", "hidden"]
    layer = OnnxLayer.from_torch(nn.Linear(2, 2), torch.ones(1, 2))
    assert (layer.input_names, layer.output_names) == (["input"], ["output"])
    with pytest.raises(TypeError, match="The example 'mask' is set; give a tensor for each input"):
        OnnxLayer.from_torch(module, (ids, {1}))


class Structured(nn.Module):
    def forward(self, x, pair, *others, scale=2, **named):
        return x * pair["a"] + pair["b"][0] * scale + sum(others) + sum(v.detach() * x for v in named.values())


def test_from_torch_of_nested_arguments():
    """Tensors are inputs one by one, numbers are constants, and `detach` ends the gradient."""
    a, b, c, d, e = (torch.tensor(real(3, seed=i), requires_grad=True) for i in range(5))
    module, example = Structured(), {"x": a, "pair": {"a": b, "b": [c]}, "scale": 3, "named": d}
    layer = OnnxLayer.from_torch(module, example)
    assert layer.input_names == ["x", "pair_a", "pair_b_0", "named"]
    y, expected = layer(a, b, c, d), module(a, {"a": b, "b": [c]}, scale=3, named=d)
    close(y.detach(), expected.detach())
    for ours, theirs in zip(*(torch.autograd.grad(t.sum(), [a, b, c, d], allow_unused=True)
                              for t in (y, expected)), strict=True):
        close(torch.zeros(3) if ours is None else ours, torch.zeros(3) if theirs is None else theirs)
    layer = OnnxLayer.from_torch(module, (a, {"a": b, "b": [c]}, d, e))
    assert layer.input_names == ["x", "pair_a", "pair_b_0", "others_0", "others_1"]


class Forms(nn.Module):
    """Arguments and outputs of many forms, an argument and a layer that nothing reads, and padding."""

    def __init__(self):
        super().__init__()
        self.embed, self.unused, self.fc = nn.Embedding(5, 3, padding_idx=-1), nn.Linear(2, 2), nn.Linear(3, 2)

    def forward(self, pair, note, flag, *, scale=1.0, mask=None):
        y = self.fc(self.embed(pair["ids"]) * scale) if flag else note
        Result = collections.namedtuple("Result", "y rest")
        return Result(y, {"twice": [y * 2, None], "n": 3})


def forms():
    torch.manual_seed(0)
    module, ids = Forms(), torch.tensor([[4, 1, 0], [2, 4, 4]])
    args = ({"ids": ids, "other": [None, torch.ones(2)]}, torch.ones(2, 1), True)
    return module, args, OnnxLayer.from_torch(module, (*args, {"scale": 0.5}))


def test_calls_of_the_module():
    """As the module is called, so is the layer, and it returns the same form; gradients are those of torch."""
    module, args, layer = forms()
    assert layer.input_names == ["pair_ids"]
    for net in (module, layer):
        y, rest = result = net(*args, scale=0.5)
        assert (result._fields, rest["n"], rest["twice"][1]) == (("y", "rest"), 3, None)
        (y * rest["twice"][0]).sum().backward()
    close(layer(pair=args[0], note=args[1], flag=True, scale=0.5).y.detach(), y.detach())
    close(layer(args[0]["ids"]).y.detach(), y.detach())  # the inputs of the graph
    expected = dict(module.named_parameters())
    assert expected.keys() == dict(layer.named_parameters()).keys()
    for name, p in layer.named_parameters():
        assert (p.grad is None) is (expected[name].grad is None) is name.startswith("unused")
        assert p.grad is None or torch.allclose(p.grad, expected[name].grad, rtol=1e-5, atol=1e-6)
    assert not layer.embed.weight.grad[4].any()
    with pytest.raises(DataError, match=r"The argument 'scale' is 1\.0, and was 0\.5 in the example of the export"):
        layer(*args)


def test_forms_of_outputs():
    """`return_dict` tells a layer to return the outputs of the graph, and none of the module's forms."""
    _, args, layer = forms()
    flat = OnnxLayer(layer.to_onnx())(args[0]["ids"])
    layer._return_dict = False
    assert isinstance(flat, tuple)
    assert all(torch.equal(a, b) for a, b in zip(layer(*args, scale=0.5), flat, strict=True))
    layer._return_dict = True
    assert list(layer(*args, scale=0.5)) == ["y", "rest_twice_0"]


def test_objects_that_a_layer_cannot_return():
    class Strange(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return (y, self) if self.bias is None else self

    with pytest.warns(ModelWarning, match="returns Strange as '1', which a graph has no output for; its layer returns"):
        layer = OnnxLayer.from_torch(Strange(2, 2, bias=False), torch.ones(1, 2))
    assert layer(torch.ones(3, 2))[1] is None
    with pytest.raises(ModelError, match="The module returns Strange, which holds no tensor for torch"):
        OnnxLayer.from_torch(Strange(2, 2), torch.ones(1, 2))


def test_state_of_the_module():
    """Each takes the state of the other, what the graph does not read included."""
    module, inputs = Tagger(), (torch.tensor([[1, 2, 6]]), torch.ones(1, 3))
    layer = OnnxLayer.from_torch(module, inputs)
    assert [n for n, _ in layer.named_parameters()] == ["embed.weight", "unused.weight", "unused.bias"]
    assert layer.get_parameter("head.weight") is layer.get_parameter("embed.weight")
    with torch.no_grad():
        module.embed.weight.mul_(3), module.unused.bias.fill_(7)
    wrapped = nn.Sequential(layer)
    assert str(wrapped.load_state_dict({f"0.{n}": t for n, t in module.state_dict().items()})).startswith("<All keys")
    close(layer(*inputs)["logits"].detach(), module(*inputs)["logits"].detach())
    other = Tagger()
    other.load_state_dict(layer.state_dict())
    assert all(torch.equal(t, module.state_dict()[n]) for n, t in other.state_dict().items())
    module.scale.fill_(2), layer.load_state_dict(module.state_dict())
    close(layer(*inputs)["logits"].detach(), module(*inputs)["logits"].detach())
    module.position.fill_(2)
    with pytest.raises(RuntimeError, match="'position' is a constant of the graph, which holds another content; expo"):
        layer.load_state_dict(module.state_dict())


def test_state_with_counters():
    """Those of BatchNorm, of the module or in a state that was saved without them."""
    module, layer, x = wrapped("conv")
    module.train()(x)
    state = module.state_dict()
    from_file = OnnxLayer(layer.to_onnx())
    for m in (layer, from_file):
        assert str(m.load_state_dict(state)) == "<All keys matched successfully>"
        close(m.eval()(x).detach(), module.eval()(x).detach())
        module.load_state_dict(m.state_dict())
    assert layer.state_dict()["1.num_batches_tracked"] == 1
    layer.load_state_dict(from_file.state_dict())
    with pytest.raises(RuntimeError, match=re.escape('Unexpected key(s) in state_dict: "2.num_batches_tracked"')):
        layer.load_state_dict({**state, "2.num_batches_tracked": torch.tensor(1)})


# -- calls ---------------------------------------------------------------------------------------------------------


def test_a_training_export_is_evaluated_in_inference_mode():
    x, on = variable("x", "float32", ["N", 2]), constant(np.array(True))
    weights = [constant(np.array([1.0, 2.0], np.float32), hint=n) for n in ("scale", "b", "mean", "var")]
    y, *_ = op.BatchNormalization(x, *weights, training_mode=1, n_outputs=3)
    layer = OnnxLayer(build([x], {"y": op.Dropout(y, constant(np.float32(0.5).reshape(())), on)})).eval()
    rows = torch.randn(6, 2)
    expected = nn.functional.batch_norm(rows, *(torch.tensor([1.0, 2.0]) for _ in range(4)))
    torch.testing.assert_close(layer(rows), expected)
    torch.testing.assert_close(layer(rows[:2]), expected[:2])


def test_calls():
    model = two_in_two_out()
    a, b, c = (torch.tensor(real(2, 3, seed=i)) for i in range(3))
    layer = OnnxLayer(model)
    price, kind, unused = layer(a, b, c)
    for outputs in (layer(a, c=c, b=b), layer(c=c, b=b, a=a), layer(a, b, c=c)):
        assert isinstance(outputs, tuple)
        assert all(map(torch.equal, outputs, (price, kind, unused)))
    by_name = OnnxLayer(model, return_dict=True)(a, b, c)
    assert list(by_name) == ["price", "kind", "unused"]
    assert torch.equal(by_name["kind"], kind)
    assert isinstance(OnnxLayer(mlp())(torch.ones(2, 4)), torch.Tensor)


ONE = torch.ones(2, 3)
CALLS = {
    "missing": ((ONE,), {"c": ONE}, "Missing input: 'b'. Expected 'a', 'b', 'c'; got 'a', 'c'."),
    "unknown": ((ONE,), {"d": ONE}, "Missing inputs: 'b', 'c'. Unknown input: 'd'. Expected 'a', 'b', 'c'"),
    "twice": ((ONE,), {"a": ONE}, "The input 'a' is given twice; the inputs are 'a', 'b', 'c'."),
    "too many": ((ONE,) * 4, {}, "The graph has 3 inputs, 'a', 'b', 'c'; 4 given."),
    "dtype": ((ONE, ONE.double(), ONE), {}, "The input 'b' is torch.float64, the layer takes torch.float32; convert"),
    "integer": ((ONE.int(), ONE, ONE), {}, "The input 'a' is torch.int32, the layer takes torch.float32; convert"),
    "device": ((ONE, ONE, ONE.to("meta")), {}, "The input 'c' is on meta, the layer on cpu; move one of them."),
    "shape": ((ONE[:, :2], ONE, ONE), {}, "a"),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_calls(name):
    inputs, named, message = CALLS[name]
    with pytest.raises(DataError, match=re.escape(message)):
        OnnxLayer(two_in_two_out(), engine="step")(*inputs, **named)


NO_TENSORS = {
    "array": (np.ones((2, 3), np.float32), "The input 'b' is numpy.ndarray, and a layer takes tensors; use torch.from"),
    "list": ([1.0], "The input 'b' is list, and a layer takes tensors; use torch.as_tensor."),
    "none": (None, "The input 'b' is NoneType, and a layer takes tensors; use torch.as_tensor."),
}


@pytest.mark.parametrize("name", NO_TENSORS)
def test_inputs_that_are_no_tensors(name):
    value, message = NO_TENSORS[name]
    with pytest.raises(TypeError, match=re.escape(message)):
        OnnxLayer(two_in_two_out())(ONE, b=value, c=ONE)


def test_repr():
    layer = OnnxLayer(mlp(), engine="step")
    assert repr(layer) == ("OnnxLayer(x[N, 4] -> y[N, 1], parameters=4 of 49 numbers, dtype=torch.float32, "
                           "engine='step')")
    layer = OnnxLayer(linear()).double()
    assert repr(layer).endswith("dtype=torch.float64, engine='auto')")
    layer(torch.ones(2, 4).double())
    assert repr(layer).endswith(f"engine='{layer.engine_}')")
    assert repr(nn.Sequential(layer)).count("\n") == 2


def test_wrong_settings():
    with pytest.raises(SettingError, match="engine='best' is not known; leave it at 'auto'"):
        OnnxLayer(mlp(), engine="best")
    with pytest.raises(ModelError, match="The weight 'W3' is no initializer of the model; its float initializers are"):
        OnnxLayer(mlp(), ["W3"])


# -- gradients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_several_pending(engine):
    """Backward in any order, some twice, with weights that an optimizer has not touched meanwhile."""
    layer = OnnxLayer(mlp(), engine=engine)
    w = dict(layer.named_parameters())
    xs = [torch.tensor(real(3, 4, seed=i), requires_grad=True) for i in range(4)]
    ys = [layer(x) for x in xs]
    expected = [torch.autograd.grad(torch_mlp(w, x).square().sum(), [x, *w.values()]) for x in xs]
    for k in (2, 0, 3, 1):
        gradients = torch.autograd.grad(ys[k].square().sum(), [xs[k], *w.values()], retain_graph=k == 3)
        for a, b in zip(gradients, expected[k], strict=True):
            close(a, b)
    gradients = torch.autograd.grad(ys[3].square().sum(), [xs[3], *w.values()])
    for a, b in zip(gradients, expected[3], strict=True):
        close(a, b)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(ys[3].square().sum(), [xs[3]])


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_add_up(engine):
    layer, x = OnnxLayer(mlp(), engine=engine), torch.tensor(real(3, 4), requires_grad=True)
    layer(x).sum().backward()
    once = {n: p.grad.clone() for n, p in layer.named_parameters()}
    (layer(x) + layer(x)).sum().backward()
    for n, p in layer.named_parameters():
        close(p.grad, 3 * once[n])


@pytest.mark.parametrize("engine", ENGINES)
def test_outputs_that_nobody_uses(engine):
    layer = OnnxLayer(two_in_two_out(), engine=engine)
    a, b, c = (torch.tensor(real(2, 3, seed=i), requires_grad=True) for i in range(3))
    price, kind, _ = layer(a, b, c)
    kind.sum().backward()
    close(a.grad, layer.v.sum(1).detach().expand(2, 3))
    if engine == "step":
        assert (b.grad, c.grad, layer.w.grad) == (None, None, None)
    else:  # the agent gives zeros
        assert not any(t.grad.any() for t in (b, c, layer.w))
    layer.zero_grad()
    price, kind, unused = layer(a, b, c)
    (price.sum() + unused.sum()).backward()
    close(layer.w.grad, (a + b + c).sum(0)[:, None].detach())


@pytest.mark.parametrize("engine", ENGINES)
def test_integers(engine):
    """Integer and bool tensors pass, in both directions."""
    i, x = variable("i", "int64", ["N"]), variable("x", "float32", ["N", 2])
    on = variable("on", "bool", ["N", 2])
    y = x * op.Cast(on, to=onnx.TensorProto.FLOAT) * op.Gather(weight("t", 4, 2, dtype="float32"), i)
    model = build([i, x, on], {"y": y, "next": i + 1, "positive": x > 0})
    layer = OnnxLayer(model, engine=engine)
    i, x, on = torch.tensor([3, 0]), torch.tensor(real(2, 2), requires_grad=True), torch.tensor([[True, False]] * 2)
    y, following, positive = layer(i, x, on)
    assert (y.requires_grad, following.requires_grad, positive.requires_grad) == (True, False, False)
    assert following.tolist() == [4, 1]
    assert torch.equal(positive, x > 0)
    y.sum().backward()
    close(x.grad, (layer.t[i] * on).detach())
    assert layer.t.grad[1:3].eq(0).all()


def test_double_backward_with_the_agent():
    layer, x = OnnxLayer(mlp(), engine="auto"), torch.tensor(real(3, 4), requires_grad=True)
    w = dict(layer.named_parameters())
    (d,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    (e,) = torch.autograd.grad(torch_mlp(w, x).sum(), x, create_graph=True)
    close(d.detach(), e.detach())
    close(*(torch.autograd.grad(g.square().sum(), layer.W1)[0] for g in (d, e)))


@pytest.mark.agent
def test_no_double_backward_with_the_agent_alone():
    layer, x = OnnxLayer(mlp(), engine="agent"), torch.tensor(real(3, 4), requires_grad=True)
    with pytest.raises(SettingError, match="engine='agent' has no second derivative, which create_graph=True asks for"):
        torch.autograd.grad(layer(x).sum(), x, create_graph=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_writing_to_what_is_kept(engine):
    """As in torch: a tensor that backward reads must not have changed."""
    layer, x = OnnxLayer(mlp(), engine=engine), torch.tensor(real(3, 4))
    y = layer(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def kept_bytes(f, *inputs):
    """Bytes of the tensors, each once, that are kept for a backward."""
    sizes = {}

    def pack(t):
        sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        f(*inputs)
    return sum(sizes.values())


@pytest.mark.parametrize("name", ["tower", "encoder", "conv"])
def test_no_more_is_kept_than_by_torch(name):
    module, layer, x = wrapped(name, WIDE, engine="step")
    for _ in range(5):  # until the graph is the one for this size
        layer(x)
    ours, theirs = kept_bytes(layer, x), kept_bytes(module, x)
    # The exporter writes GELU in five operators, of which one output more is kept, and MaxPool's indices are int64.
    assert 0 < ours <= {"tower": 1.3, "encoder": 1.2, "conv": 1.01}[name] * theirs


def test_nothing_is_kept_without_a_gradient():
    layer, x = OnnxLayer(mlp(), engine="step"), torch.ones(3, 4)
    with torch.no_grad():
        assert kept_bytes(layer, x) == 0
        assert not layer(x).requires_grad
    with torch.inference_mode():
        assert not layer(x).requires_grad


def test_no_copies():
    t = torch.tensor(real(3, 4))
    v = to_ortvalue(t)
    assert v.data_ptr() == t.data_ptr() == to_tensor(v).data_ptr()
    b = torch.tensor([True, False])
    v = to_ortvalue(b)
    assert v.data_type() == "tensor(bool)"
    assert torch.equal(to_tensor(v, True), b)
    strided = to_ortvalue(t.T)
    assert strided.shape() == [4, 3]
    np.testing.assert_array_equal(strided.numpy(), t.T.numpy())
    kept = to_tensor(to_ortvalue(torch.full((1000,), 7.0)))
    torch.zeros(1000), torch.zeros(1000)
    assert kept.eq(7).all()


def test_parameters_that_change_their_place():
    """Their memory is looked for anew: written to, replaced, or read across, which leaves it where it was."""
    x = x_of("N", 3, dtype="float32")
    layer = OnnxLayer(build([x], {"y": x @ weight("w", 3, 3, dtype="float32")}))
    a, w = torch.from_numpy(real(2, 3)), layer.w

    def assert_right():
        torch.testing.assert_close(layer(a), a @ w)

    assert_right()
    with torch.no_grad():
        w.mul_(2)
    assert_right()
    w.data = w.data.clone() + 1
    assert_right()
    w.data = w.data.t()
    assert_right()
    w.data = w.data.contiguous().requires_grad_()
    assert_right()


def test_outputs_belong_to_the_caller():
    layer = OnnxLayer(mlp(), engine="step").requires_grad_(False)
    xs = [torch.tensor(real(3, 4, seed=i)) for i in range(5)]
    ys = [layer(x) for x in xs]
    for x, y in zip(xs, ys, strict=True):
        assert torch.equal(layer(x), y)


# -- losses --------------------------------------------------------------------------------------------------------


def loss_of(layer, x, t):
    return layer(x, t)[0]


def rows_of(n, seed=0):
    return [torch.tensor(real(n, k, seed=seed + k, dtype="float64")) for k in (3, 2)]


@pytest.mark.parametrize("factor", [1, 2.5])
def test_a_loss_is_computed_with_its_gradient(factor, monkeypatch):
    """In one run, and backward scales it."""
    layer, (x, t), runs = OnnxLayer(squared_error()), rows_of(4), []
    w, b = (p.detach().clone().requires_grad_() for p in (layer.w, layer.b))
    run = Session.run_ortvalues
    monkeypatch.setattr(Session, "run_ortvalues", lambda session, feeds: runs.append(session) or run(session, feeds))
    (factor * loss_of(layer, x, t)).backward()
    assert len(runs) == 1
    (factor * ((x @ w + b).tanh() - t).square().mean()).backward()
    torch.testing.assert_close(layer.w.grad, w.grad, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(layer.b.grad, b.grad, rtol=1e-12, atol=1e-14)
    assert (layer.engine_, layer.engine_reason_.split(",")[0]) == ("step", "the graph computes a loss")


def test_a_loss_is_backpropagated_twice():
    """The gradient that was passed on is not added to, and losses may wait for each other."""
    layer, batches = OnnxLayer(squared_error()), [rows_of(3, seed) for seed in (0, 5)]
    losses = [loss_of(layer, *batch) for batch in batches]
    once = [torch.autograd.grad(loss_of(layer, *batch), [layer.w])[0] for batch in batches]
    losses[1].backward(retain_graph=True)
    (2 * losses[1]).backward()
    torch.testing.assert_close(layer.w.grad, 3 * once[1], rtol=1e-12, atol=1e-14)
    losses[0].backward()
    torch.testing.assert_close(layer.w.grad, once[0] + 3 * once[1], rtol=1e-12, atol=1e-14)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        losses[0].backward()


def test_a_loss_has_the_gradients_that_are_wanted():
    layer, (x, t) = OnnxLayer(squared_error()), rows_of(4)
    with torch.no_grad():
        loss = loss_of(layer, x, t)
    (compiled,) = layer._compiled.values()
    assert not compiled.function._gradients
    layer.b.requires_grad_(False)
    torch.testing.assert_close(loss_of(layer, x, t).detach(), loss)
    (gradient,) = compiled.function._gradients.values()
    assert gradient._session.session.outputs == ["loss", "rows", "w_grad"]


def test_a_loss_in_half_precision_is_scaled_before():
    """In float16 a gradient of 1e-9 is 0, unless the loss is scaled first, as torch.amp.GradScaler does."""
    x, w = variable("x", "float16", [2]), constant(np.ones(2, np.float16), hint="w")
    layer = OnnxLayer(build([x], {"loss": op.ReduceSum(x * w * np.float16(1e-4), keepdims=0)}), engine="step")
    (2.0**14 * layer(torch.full([2], 1e-5, dtype=torch.float16)).float()).backward()
    assert layer.w.grad.all()


def test_a_loss_of_no_rows():
    x, w = variable("x", "float32", ["N", 2]), constant(np.ones((2, 3), np.float32), hint="w")
    layer = OnnxLayer(build([x], {"loss": op.ReduceSum(x @ w, keepdims=0)}))
    assert layer(torch.zeros(0, 2)).item() == 0
    layer(torch.ones(1, 2)).backward()
    assert layer.w.grad.eq(1).all()


# -- as a part of models -------------------------------------------------------------------------------------------


def test_anywhere():
    """torch, ONNX, torch, and the same ONNX again."""
    torch.manual_seed(0)
    layer, w = OnnxLayer(mlp(4, 4), engine="step"), None
    model = nn.Sequential(nn.Linear(3, 4), layer, nn.Tanh(), layer, nn.Linear(4, 1))
    w = {n: p.detach().clone().requires_grad_() for n, p in layer.named_parameters()}
    x = torch.tensor(real(5, 3))
    model(x).square().mean().backward()
    first, last = copy.deepcopy(model[0]), copy.deepcopy(model[4])
    first.zero_grad(), last.zero_grad()
    last(torch_mlp(w, torch_mlp(w, first(x)).tanh())).square().mean().backward()
    for n, p in layer.named_parameters():
        close(p.grad, w[n].grad)
    close(model[0].weight.grad, first.weight.grad)
    assert len(list(model.parameters())) == 8


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    """The second forward draws the same masks as the first."""
    _, layer, x = wrapped("tower", engine="step")
    layer.train()
    x = x.requires_grad_()
    torch.manual_seed(3)
    expected = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    torch.manual_seed(3)
    checkpoint(layer, x, use_reentrant=reentrant).square().sum().backward()
    for a, e in zip([x, *layer.parameters()], expected, strict=True):
        close(a.grad, e)


def test_masks_follow_the_generator():
    _, layer, x = wrapped("tower", engine="step")
    layer.train()
    torch.manual_seed(3)
    a, b = layer(x), layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), a)
    assert not torch.equal(a, b)
    assert torch.equal(layer.eval()(x), layer(x))


def test_dropout_whose_size_is_computed():
    """A size that only the inputs' own sizes tell makes a graph for them alone; one that data decide is an error."""
    x = x_of("N", "M", dtype="float32")
    ratio = constant(np.float32(0.5).reshape(()))
    twice = op.Concat(x, x, axis=1)
    layer = OnnxLayer(build([x], {"y": op.Dropout(twice, ratio)}), engine="step")
    y = layer(torch.ones(30, 20))
    assert set(y.unique().tolist()) == {0, 2}
    assert 0.4 < y.eq(0).float().mean() < 0.6
    some = op.Compress(x, op.Greater(op.ReduceSum(x, [1], keepdims=0), 0.0), axis=0)
    layer = OnnxLayer(build([x], {"y": op.Dropout(some, ratio)}))
    with pytest.raises(ModelError, match="of a Dropout does not follow from those of the inputs; call eval"):
        layer(torch.ones(3, 2))
    assert layer.eval()(torch.ones(3, 2)).shape == (3, 2)
    layer = OnnxLayer(build([x], {"y": op.Dropout(x, op.ReduceMin(x, keepdims=0))}))
    with pytest.raises(ModelError, match="computes its ratio, and only a constant one can be trained with; call eval"):
        layer(torch.ones(3, 2))


def test_running_statistics():
    """As ONNX has it: moved by 1 - momentum towards the batch's, the variance being the population's; in place."""
    module, layer, x = wrapped("conv", engine="step")
    plain = layer.to_onnx()
    del plain.metadata_props[:]  # A model of ortpartial.torch.export has torch's variance.
    layer = OnnxLayer(plain, engine="step")
    module.train(), layer.train()
    buffers = dict(layer.named_buffers())
    mean, var = (buffers[f"1.running_{n}"] for n in ("mean", "var"))
    was = mean.clone(), var.clone()
    seen = module[0](x)
    layer(x)
    close(mean, 0.9 * was[0] + 0.1 * seen.mean((0, 2, 3)))
    close(var, 0.9 * was[1] + 0.1 * seen.var((0, 2, 3), correction=0))
    module(x)
    close(mean, module[1].running_mean)
    n = seen.numel() / 4
    close(var - 0.9 * was[1], (module[1].running_var - 0.9 * was[1]) * (n - 1) / n, 1e-4)
    with torch.no_grad():
        layer(x)  # moves them as well, as in torch
    close(mean, 0.9 * (0.9 * was[0] + 0.1 * seen.mean((0, 2, 3))) + 0.1 * seen.mean((0, 2, 3)))
    moved = mean.clone()
    layer.eval()(x)
    assert torch.equal(mean, moved)
    assert np.array_equal(weights_of(layer.to_onnx())["1.running_mean"], moved.numpy())


def test_functional_call_and_parametrization():
    layer, x = OnnxLayer(mlp(), engine="step"), torch.tensor(real(3, 4))
    w = {n: torch.tensor(real(*p.shape, seed=7), requires_grad=True) for n, p in layer.named_parameters()}
    y = functional_call(layer, w, (x,))
    close(y.detach(), torch_mlp(w, x).detach())
    y.sum().backward()
    assert all(t.grad is not None for t in w.values())
    assert all(p.grad is None for p in layer.parameters())

    class Doubled(nn.Module):
        def forward(self, v):
            return 2 * v

    before = layer.W1.detach().clone()
    nn.utils.parametrize.register_parametrization(layer, "W1", Doubled())
    w = {**{n: p.detach() for n, p in layer.named_parameters()}, "W1": 2 * before}
    close(layer(x).detach(), torch_mlp(w, x))
    layer(x).sum().backward()
    assert layer.parametrizations.W1.original.grad is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch 2.13.0 loads forward mode by torch.jit.script.
def test_transforms_of_functions():
    """torch.func and forward mode say that they cannot, and never return a wrong number."""
    layer, x = OnnxLayer(mlp(), engine="step"), torch.tensor(real(3, 4))
    with pytest.raises(RuntimeError, match="with functorch transforms"):
        torch.func.grad(lambda v: layer(v).sum())(x)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp function"):
        layer(torch.autograd.forward_ad.make_dual(x, x))


def test_hooks():
    layer, x = OnnxLayer(mlp(), engine="step"), torch.tensor(real(3, 4), requires_grad=True)
    seen = []
    layer.register_forward_hook(lambda m, i, y: y * 2)
    layer.register_forward_pre_hook(lambda m, i: seen.append("forward"))
    layer.register_full_backward_hook(lambda m, gi, go: seen.append(gi[0].shape))
    layer.W1.register_hook(lambda g: g * 0)
    layer(x).sum().backward()
    assert seen == ["forward", (3, 4)]
    assert layer.W1.grad.eq(0).all()
    assert layer.W2.grad.ne(0).any()


@pytest.mark.parametrize("engine", ENGINES)
def test_autocast(engine):
    """Under autocast the layer computes in its own dtype, and gradients come back in that of its input."""
    layer = OnnxLayer(mlp(), engine=engine)
    x = torch.tensor(real(3, 4)).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.float32
    assert torch.equal(y, layer(x.float()))
    y.sum().backward()
    assert x.grad.dtype == torch.bfloat16
    with pytest.raises(DataError, match=r"The input 'x' is torch\.bfloat16, the layer takes torch\.float32"):
        layer(x)
    model = nn.Sequential(nn.Linear(2, 4), layer, nn.Linear(1, 1))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.ones(3, 2)).sum().backward()
    assert model[0].weight.grad.abs().sum() > 0


def test_import():
    """`import ortpartial` neither imports this module nor, by itself, torch."""
    program = "import sys, ortpartial; print('ortpartial.torch' in sys.modules, 'torch' in sys.modules); print(%s)"
    printed = subprocess.run([sys.executable, "-c", program % "ortpartial.torch.OnnxLayer.__name__"], check=True,
                             capture_output=True, text=True).stdout.split()
    assert printed == ["False", "False", "OnnxLayer"]
    with pytest.raises(AttributeError, match="module 'ortpartial' has no attribute 'layers'"):
        _ = __import__("ortpartial").layers


def test_what_some_outputs_alone_would_read_and_is_not_kept(monkeypatch):
    """Then the cotangents of the others are zeros: a rule may read more where one of them is missing."""
    gradients, backward = [], GradientCut.backward
    for is_missing in (False, True):
        if is_missing:
            monkeypatch.setattr(GradientCut, "backward",
                                lambda t, p, finite: backward(t, p, finite) if list(p) == t.seeds else None)
        layer = OnnxLayer(two_in_two_out(), engine="step")
        a, b, c = (torch.tensor(real(2, 3, seed=i), requires_grad=True) for i in range(3))
        layer(a, b, c)[1].sum().backward()
        gradients.append([a.grad, layer.v.grad])
    assert layer.w.grad.eq(0).all()
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("engine", ENGINES)
def test_no_rows(engine):
    """1.19.2 neither borrows a tensor without elements by DLPack nor has products that sum over none."""
    x, mask = variable("x", "float32", ["N", 2]), variable("mask", "bool", ["N", 3])
    w = constant(np.ones((2, 3), np.float32), hint="w")
    layer = OnnxLayer(build([x, mask], {"y": op.Where(mask, op.Tanh(x @ w), 0.0)}), engine=engine)
    t = torch.zeros((0, 2), requires_grad=True)
    y = layer(t, torch.zeros((0, 3), dtype=torch.bool))
    assert y.shape == (0, 3)
    y.sum().backward()
    assert t.grad.shape == (0, 2)
    assert not layer.get_parameter("w").grad.any()
    layer(torch.ones(1, 2), torch.ones((1, 3), dtype=torch.bool)).sum().backward()
    assert layer.get_parameter("w").grad.all()


def test_no_rows_where_an_operator_would_crash():
    x, w = variable("x", "float32", ["T", "N", 2]), constant(np.ones((1, 8, 2), np.float32), hint="w")
    layer = OnnxLayer(build([x], {"y": op.LSTM(x, w, constant(np.ones((1, 8, 2), np.float32)), hidden_size=2)[0]}))
    with pytest.raises(DataError, match=r"^Input 'x' has no elements, which crashes <Node LSTM_node_0: LSTM>; leave"):
        layer(torch.zeros(3, 0, 2))


@pytest.mark.parametrize("engine", ["step", pytest.param("agent", marks=pytest.mark.agent)])
def test_a_layer_of_several_threads(engine):
    """Each gets the gradients of its own rows; the first call of each compiles."""
    layer, X = OnnxLayer(mlp(), engine=engine), data(30)[0]

    def work(layer, rows):
        x = torch.tensor(X[:rows], requires_grad=True)
        return torch.autograd.grad(layer(x).sum(), [x, *layer.parameters()])

    expected = {rows: work(OnnxLayer(mlp(), engine=engine), rows) for rows in (3, 7, 20, 30)}
    with ThreadPoolExecutor(8) as pool:
        for rows, gradients in pool.map(lambda rows: (rows, work(layer, rows)), [*expected] * 50):
            assert all(torch.equal(a, b) for a, b in zip(gradients, expected[rows], strict=True))


def test_labels_out_of_range_are_an_error():
    """onnxruntime 1.19.2 reads foreign memory for them."""
    x, t = variable("x", "float32", ["N", 3]), variable("t", "int64", ["N"])
    w = constant(np.ones((1, 3), np.float32), hint="w")
    layer = OnnxLayer(build([x, t], {"y": op.SoftmaxCrossEntropyLoss(x * w, t)}))
    rows = torch.ones(2, 3)
    assert layer(rows, torch.tensor([0, 2])).isfinite()
    with pytest.raises(DataError, match=r"Input 't' of .* has a label that is not in 0 to 2: 1099511627776"):
        layer(rows, torch.tensor([0, 2**40]))
