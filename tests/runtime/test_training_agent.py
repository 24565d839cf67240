"""The TrainingAgent: gradients of the trusted operators compared with torch, borrowed memory, errors."""

import gc
import itertools
import resource

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch.nn import functional as F

from ortpartial.exceptions import DataError, ModelError, RuntimeMissingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.runtime import training_agent as agent_module
from ortpartial.runtime.agent_support import TRUSTED, find_untrusted
from ortpartial.runtime.buffer import Buffer, as_numpy
from ortpartial.runtime.session import Session
from ortpartial.runtime.training_agent import TrainingAgent

needs_agent = pytest.mark.agent


def real(*shape, low=0.2, high=1.5, seed=0):
    """Numbers of both signs, away from the kinks at zero."""
    rng = np.random.default_rng([seed, *shape])
    return (rng.uniform(low, high, shape) * rng.choice([-1, 1], shape)).astype(np.float32)


def positive(*shape, seed=0):
    return np.abs(real(*shape, seed=seed))


def apart(*shape, seed=0):
    """Numbers without ties."""
    n = int(np.prod(shape))
    return (np.random.default_rng(seed).permutation(n).reshape(shape) / n - 0.4).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


def flat(x, axis):
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


MASK = np.array([[True, False, True], [False, False, True]])
AXES = (0, 1, 2), (0, 2), (1,), (-1,)


def elementwise():
    functions = {
        "Abs": torch.abs, "Cos": torch.cos, "Erf": torch.erf, "Exp": torch.exp, "Gelu": F.gelu, "Identity": torch.clone,
        "LeakyRelu": F.leaky_relu, "Neg": torch.neg, "Reciprocal": torch.reciprocal, "Relu": torch.relu,
        "Sigmoid": torch.sigmoid, "Sin": torch.sin, "Tanh": torch.tanh,
    }
    for name, f in functions.items():
        yield name, name, getattr(op, name), f, real(2, 3)
    yield (
        "LeakyRelu alpha", "LeakyRelu",
        lambda x: op.LeakyRelu(x, alpha=0.3), lambda x: F.leaky_relu(x, 0.3), real(2, 3),
    )
    yield "Log", "Log", op.Log, torch.log, positive(2, 3)
    yield "Sqrt", "Sqrt", op.Sqrt, torch.sqrt, positive(2, 3)
    yield "Cast", "Cast", lambda x: op.Cast(x, to=1) * x, lambda x: x * x, real(3)
    for bounds in ((-0.5, 0.5), (-0.5, None), (None, 0.5)):
        yield (f"Clip {bounds}", "Clip", lambda x, b=bounds: op.Clip(x, *b), lambda x, b=bounds: x.clamp(*b),
               real(3, 4))
    for exponent in (2.0, 3.0, -1.0, 1.0, 0.0):
        yield f"Pow {exponent}", "Pow", lambda x, e=exponent: op.Pow(x, e), lambda x, e=exponent: x**e, real(2, 3)
    yield "Pow 0.5", "Pow", lambda x: op.Pow(x, 0.5), lambda x: x**0.5, positive(2, 3)
    yield ("Pow vector", "Pow", lambda x: op.Pow(x, np.array([1, 2, 3], np.float32)),
           lambda x: x ** torch.tensor([1.0, 2, 3]), real(2, 3))
    shapes = ((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 3), (1, 3)), ((2, 3), (2, 1)), ((2, 3), ()), ((3,), (2, 3)), \
        ((1, 3), (2, 1)), ((4, 2, 3), (2, 3)), ((), (2, 3)), ((1,), (2, 3)), ((2, 1, 3), (1, 4, 1))
    for name, f in {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Max": torch.maximum,
                    "Min": torch.minimum}.items():
        for a, b in shapes:
            yield f"{name} {a} {b}", name, getattr(op, name), f, real(*a), real(*b, seed=1)
    yield "Max ties", "Max", op.Max, torch.maximum, real(3), real(3)
    for name in ("Add", "Mul", "MatMul"):
        f = getattr(op, name)
        torch_f = getattr(torch, name.lower())
        yield f"{name} of itself", name, lambda x, f=f: f(x, x), lambda x, f=torch_f: f(x, x), real(3, 3)
    yield (
        "Max of three", "Max",
        op.Max, lambda a, b, c: torch.maximum(torch.maximum(a, b), c), real(3), real(3, seed=1), real(3, seed=2),
    )
    for a, b in (((2, 3), (2, 3)), ((1, 2, 3), (1, 2, 3))):
        yield (
            "Where", "Where",
            lambda a, b: op.Where(MASK, a, b), lambda a, b: torch.where(torch.tensor(MASK), a, b), real(*a),
            real(*b, seed=1),
        )
    yield (
        "Where constant", "Where",
        lambda a: op.Where(MASK, a, 0.0), lambda a: torch.where(torch.tensor(MASK), a, 0.0), real(2, 3),
    )


def linear():
    for a, b in (((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)), ((2, 3), (5, 3, 4)),
                 ((6, 5, 2, 3), (5, 3, 4)), ((6, 1, 2, 3), (1, 5, 3, 4)), ((1, 2, 3), (5, 3, 4))):
        yield f"MatMul {a} {b}", "MatMul", op.MatMul, torch.matmul, real(*a), real(*b, seed=1)
    for ta, tb, c, (alpha, beta) in itertools.product(
        (0, 1), (0, 1), (None, (2, 4), (4,), (1, 4), (2, 1), (1,)), ((1.0, 1.0), (0.5, 2.0))
    ):
        def gemm(a, b, *c, ta=ta, tb=tb, alpha=alpha, beta=beta):
            return op.Gemm(a, b, *c, transA=ta, transB=tb, alpha=alpha, beta=beta)

        def torch_gemm(a, b, *c, ta=ta, tb=tb, alpha=alpha, beta=beta):
            y = alpha * ((a.T if ta else a) @ (b.T if tb else b))
            return y + beta * c[0] if c else y

        arrays = [real(*((3, 2) if ta else (2, 3))), real(*((4, 3) if tb else (3, 4)), seed=1)]
        arrays += [real(*c, seed=2)] if c else []
        yield f"Gemm {ta} {tb} C{c} {alpha} {beta}", "Gemm", gemm, torch_gemm, *arrays


def reduction():
    names = {"ReduceSum": torch.sum, "ReduceMean": torch.mean, "ReduceLogSumExp": torch.logsumexp,
             "ReduceL2": lambda x, a, keepdim: torch.linalg.vector_norm(x, dim=a, keepdim=keepdim)}
    for (name, f), axes, keep in itertools.product(names.items(), AXES, (0, 1)):
        if name == "ReduceL2" and not keep and len(axes) > 1:
            continue

        def reduced(x, name=name, axes=axes, keep=keep):
            return getattr(op, name)(x, list(axes), keepdims=keep)

        def torch_reduced(x, f=f, axes=axes, keep=keep):
            return f(x, axes, keepdim=bool(keep))

        yield f"{name} {axes} {keep}", name, reduced, torch_reduced, real(2, 3, 4)
    yield "ReduceSum of all", "ReduceSum", lambda x: op.ReduceSum(x, keepdims=0), torch.sum, real(2, 3)
    yield "ReduceMean of all", "ReduceMean", lambda x: op.ReduceMean(x, keepdims=0), torch.mean, real(2, 3)
    for axis, (name, f) in itertools.product((0, 1, -1), {"Softmax": F.softmax, "LogSoftmax": F.log_softmax}.items()):
        yield (
            f"{name} {axis}", name,
            lambda x, n=name, a=axis: getattr(op, n)(x, axis=a), lambda x, f=f, a=axis: f(x, dim=a), real(2, 3, 4),
        )
    for axis, bias, eps in itertools.product((-1, 1, 0), (True, False), (1e-5, 0.1)):
        shape = (2, 3, 4)[axis:]

        def normalized(x, s, *b, axis=axis, eps=eps):
            return op.LayerNormalization(x, s, *b, axis=axis, epsilon=eps)

        def torch_normalized(x, s, *b, shape=shape, eps=eps):
            return F.layer_norm(x, shape, s, b[0] if b else None, eps)

        arrays = [real(2, 3, 4), real(*shape, seed=1)] + ([real(*shape, seed=2)] if bias else [])
        yield f"LayerNormalization {axis} {bias} {eps}", "LayerNormalization", normalized, torch_normalized, *arrays


def movement():
    for perm in ((0, 2, 1), (2, 0, 1), (2, 1, 0)):
        yield (
            f"Transpose {perm}", "Transpose",
            lambda x, p=perm: op.Transpose(x, perm=p), lambda x, p=perm: x.permute(p), real(2, 3, 4),
        )
    yield "Transpose", "Transpose", op.Transpose, lambda x: x.permute(2, 1, 0), real(2, 3, 4)
    for shape in ((4, 6), (0, -1), (-1,)):
        yield (
            f"Reshape {shape}", "Reshape",
            lambda x, s=shape: op.Reshape(x, list(s)), lambda x, s=shape: x.reshape([2 if d == 0 else d for d in s]),
            real(2, 3, 4),
        )
    for axis in (0, 1, 2):
        yield (
            f"Flatten {axis}", "Flatten",
            lambda x, a=axis: op.Flatten(x, axis=a), lambda x, a=axis: flat(x, a), real(2, 3, 4),
        )
    yield "Squeeze", "Squeeze", lambda x: op.Squeeze(x, [1]), lambda x: x.squeeze(1), real(2, 1, 4)
    yield "Squeeze all", "Squeeze", op.Squeeze, torch.squeeze, real(2, 1, 4)
    yield "Unsqueeze", "Unsqueeze", lambda x: op.Unsqueeze(x, [-1, 0]), lambda x: x[None, ..., None], real(2, 4)
    yield "Expand", "Expand", lambda x: op.Expand(x, [2, 3, 4]), lambda x: x.expand(2, 3, 4), real(3, 1)
    yield "Tile", "Tile", lambda x: op.Tile(x, [2, 1]), lambda x: x.tile(2, 1), real(2, 3)
    for k in (-1, 0, 1):
        for upper, f in ((1, torch.triu), (0, torch.tril)):
            yield (
                f"Trilu {k} {upper}", "Trilu",
                lambda x, k=k, u=upper: op.Trilu(x, np.array(k), upper=u), lambda x, k=k, f=f: f(x, k), real(3, 4),
            )
    for axis in (0, 1, -1):
        yield (
            f"Concat {axis}", "Concat",
            lambda *x, a=axis: op.Concat(*x, axis=a), lambda *x, a=axis: torch.cat(x, a), real(2, 3),
            real(2, 3, seed=1), real(2, 3, seed=2),
        )
        yield (
            f"Split {axis}", "Split",
            lambda x, a=axis: op.Split(x, [1, 3], axis=a, num_outputs=None, n_outputs=2),
            lambda x, a=axis: x.split([1, 3], a), real(4, 4),
        )
    yield "Concat of itself", "Concat", lambda x: op.Concat(x, x, axis=0), lambda x: torch.cat([x, x]), real(2, 3)
    yield "Slice", "Slice", lambda x: op.Slice(x, [1], [3], [1]), lambda x: x[:, 1:3], real(4, 5)
    yield (
        "Slice steps", "Slice",
        lambda x: op.Slice(x, [1, -3], [6, 100], [1, 0], [2, 1]), lambda x: x[-3:, 1:6:2], real(4, 7),
    )
    for pads, value in (([1, 0, 2, 1], 0.0), ([1, 0, 2, 1], 3.0), ([-1, 0, -1, 1], 0.0)):
        torch_pads = [pads[1], pads[3], pads[0], pads[2]]
        yield (
            f"Pad {pads} {value}", "Pad",
            lambda x, p=pads, v=value: op.Pad(x, p, v), lambda x, p=torch_pads, v=value: F.pad(x, p, value=v),
            real(4, 3),
        )


def indexing():
    for axis, i in itertools.product((0, 1, -1), (ints(0, 2, 2, -1), ints([0, 2], [2, 1]), np.array(1), np.array(-1))):
        def gathered(x, axis=axis, i=i):
            return torch.stack([x.select(axis, j) for j in i.ravel()], axis).reshape(
                x.shape[:axis % 2] + i.shape + x.shape[axis % 2 + 1:]
            ) if i.ndim else x.select(axis, int(i))

        yield (
            f"Gather {axis} {i.tolist()}", "Gather",
            lambda x, a=axis, i=i: op.Gather(x, i, axis=a), gathered, real(4, 5),
        )
    for axis in (0, 1):
        i = ints([0, 2, 1], [1, 2, 2], [0, 0, 0])
        yield (
            f"GatherElements {axis}", "GatherElements",
            lambda x, a=axis, i=i: op.GatherElements(x, i, axis=a),
            lambda x, a=axis, i=i: x.gather(a, torch.tensor(i)), real(3, 3),
        )
        yield (
            f"GatherElements negative {axis}", "GatherElements",
            lambda x, a=axis, i=i: op.GatherElements(x, i - 3, axis=a),
            lambda x, a=axis, i=i: x.gather(a, torch.tensor(i)), real(3, 3),
        )
        j = ints([0, 2, 1])
        yield (
            f"ScatterElements {axis}", "ScatterElements",
            lambda x, u, a=axis, j=j: op.ScatterElements(x, j, u, axis=a),
            lambda x, u, a=axis, j=j: x.scatter(a, torch.tensor(j), u), real(3, 3), real(1, 3, seed=1),
        )
    yield (
        "GatherND", "GatherND",
        lambda x: op.GatherND(x, ints([0, 1], [2, -2], [0, 1])), lambda x: x[[0, 2, 0], [1, 2, 1]], real(3, 4),
    )
    yield "GatherND rows", "GatherND", lambda x: op.GatherND(x, ints([0], [2])), lambda x: x[[0, 2]], real(3, 4)
    yield (
        "GatherND batch", "GatherND",
        lambda x: op.GatherND(x, ints([0], [1]), batch_dims=1), lambda x: x[[0, 1], [0, 1]], real(2, 3, 4),
    )
    yield (
        "ScatterND", "ScatterND",
        lambda x, u: op.ScatterND(x, ints([0], [2]), u), lambda x, u: torch.stack([u[0], x[1], u[1]]), real(3, 3),
        real(2, 3, seed=1),
    )
    yield "TopK", "TopK", lambda x: op.TopK(x, [2])[0], lambda x: x.topk(2).values, apart(3, 4)


def window():
    convolutions = F.conv1d, F.conv2d, F.conv3d
    for n, group, bias in itertools.product((1, 2, 3), (1, 2), (True, False)):
        for kw, torch_kw in (({}, {}), ({"pads": [1] * 2 * n}, {"padding": 1}), ({"strides": [2] * n}, {"stride": 2}),
                             ({"dilations": [2] * n}, {"dilation": 2})):
            def convolved(*a, n=n, group=group, kw=kw):
                return op.Conv(*a, kernel_shape=[2] * n, group=group, **kw)

            def torch_convolved(*a, f=convolutions[n - 1], group=group, kw=torch_kw):
                return f(*a, groups=group, **kw)

            arrays = [real(2, 4, *(6, 5, 4)[:n]), real(6, 4 // group, *[2] * n, seed=1), real(6, seed=2)]
            yield f"Conv {n} {group} {bias} {kw}", "Conv", convolved, torch_convolved, *arrays[: 2 + bias]
    pools = F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d
    for n in (1, 2, 3):
        x = apart(2, 2, *(7, 6, 5)[:n])
        for kw, torch_kw in (
            ({}, {"stride": 1}),
            ({"strides": [2] * n}, {"stride": 2}),
            ({"pads": [1] * 2 * n}, {"stride": 1, "padding": 1}),
            ({"strides": [2] * n, "ceil_mode": 1}, {"stride": 2, "ceil_mode": True}),
        ):
            yield (
                f"MaxPool {n} {kw}", "MaxPool",
                lambda x, n=n, kw=kw: op.MaxPool(x, kernel_shape=[2] * n, **kw),
                lambda x, f=pools[n - 1], kw=torch_kw: f(x, 2, **kw), x,
            )
            if n < 3:
                for include in (0, 1)[: 2 - kw.get("ceil_mode", 0)]:
                    yield (
                        f"AveragePool {n} {include} {kw}", "AveragePool",
                        lambda x, k=[2] * n, kw=kw, i=include: op.AveragePool(
                            x, kernel_shape=k, count_include_pad=i, **kw),
                        lambda x, f=pools[n + 2], kw=torch_kw, i=include: f(x, 2, **kw, count_include_pad=bool(i)),
                        x,
                    )
        yield (
            f"GlobalAveragePool {n}", "GlobalAveragePool",
            op.GlobalAveragePool, lambda x, n=n: x.mean(tuple(range(2, 2 + n)), keepdim=True), x,
        )
    yield (
        "MaxPool dilated", "MaxPool",
        lambda x: op.MaxPool(x, kernel_shape=[2, 2], dilations=[2, 2]), lambda x: F.max_pool2d(x, 2, 1, dilation=2),
        apart(1, 2, 6, 5),
    )


CASES = [case for family in (elementwise, linear, reduction, movement, indexing, window) for case in family()]


def cotangents(outputs):
    return [np.random.default_rng(7).normal(size=y.shape).astype(np.float32) for y in outputs]


def model_of(f, arrays, dims=None):
    """The graph of a case; `dims` gives the declared shape of an argument, by default its static one."""
    x = [variable(f"x{i}", a.dtype, a.shape if dims is None else dims(i, a.shape)) for i, a in enumerate(arrays)]
    y = f(*x)
    return build(x, {f"y{i}": v for i, v in enumerate(y if isinstance(y, (tuple, list)) else [y])})


def to_initializers(model, arrays):
    """The same graph with inputs as initializers."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for i in [i for i in model.graph.input if i.name in arrays]:
        model.graph.initializer.append(numpy_helper.from_array(arrays[i.name], i.name))
        model.graph.input.remove(i)
    return model


def differentiate(model, feeds, weights=(), input_grads=()):
    agent = TrainingAgent(model, weights, input_grads=input_grads)
    outputs, state = agent.forward({n: feeds[n] for n in agent.inputs}, {n: feeds[n] for n in weights})
    outputs = [as_numpy(y) for y in outputs]
    gradients = agent.backward(cotangents(outputs), state)
    return outputs, {n: as_numpy(g) for n, g in gradients.items()}


def torch_differentiate(f, arrays):
    x = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = f(*x)
    y = y if isinstance(y, (tuple, list)) else [y]
    dys = [torch.tensor(d) for d in cotangents([v.detach().numpy() for v in y])]
    gradients = torch.autograd.grad(y, x, dys)
    return [v.detach().numpy() for v in y], {f"x{i}": g.numpy() for i, g in enumerate(gradients)}


def assert_close(actual, expected, tol=2e-5):
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max(initial=0) <= tol * max(np.abs(expected).max(initial=0), 1e-3)


@pytest.mark.sampled(2)
@needs_agent
@pytest.mark.parametrize(("f", "torch_f", "arrays"), [pytest.param(c[2], c[3], c[4:], id=c[0]) for c in CASES])
def test_trusted_operator_has_the_gradient_of_torch(f, torch_f, arrays):
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    names = list(feeds)
    y, expected = torch_differentiate(torch_f, arrays)
    model = model_of(f, arrays)
    assert find_untrusted(model, (), input_grads=names) == []
    # With respect to all inputs; to each one alone as an initializer, which the builder treats differently; and at an
    # older opset.
    results = {tuple(names): differentiate(model, feeds, input_grads=names)}
    for n in names:
        results[n,] = differentiate(to_initializers(model, {n: feeds[n]}), feeds, [n])
    if all(node.op_type != "Gelu" for node in model.graph.node):
        older = onnx.ModelProto.FromString(model.SerializeToString())
        older.opset_import[0].version, older.ir_version = 18, 8
        if "AveragePool" not in str(older.graph.node):
            results["older",] = differentiate(older, feeds, names)
    # Graphs that are trusted without declared sizes are correct as well.
    dynamic = model_of(f, arrays, lambda i, shape: [f"d{i}_{j}" for j in range(len(shape))])
    if find_untrusted(dynamic, (), input_grads=names) == []:
        results["dynamic",] = differentiate(dynamic, feeds, input_grads=names)
    for outputs, gradients in results.values():
        for a, b in zip(outputs, y, strict=True):
            assert_close(a, b)
        for n, g in gradients.items():
            assert_close(g, expected[n])


def test_every_trusted_operator_is_tested():
    assert {c[1] for c in CASES} == TRUSTED


# Networks

SIZES = (5, 7, 4, 3)
NET = {f"{kind}{i}": real(*shape, seed=i) for i, (n, m) in enumerate(itertools.pairwise(SIZES))
       for kind, shape in (("w", (n, m)), ("b", (m,)))}
ROWS = real(6, 5, seed=9)


def network():
    """A network of three layers with its weights as initializers."""
    y = x = variable("x", "float32", ["N", 5])
    weights = {n: variable(n, "float32", a.shape) for n, a in NET.items()}
    for i, f in enumerate((op.Relu, op.Tanh, op.Sigmoid)):
        y = f(y @ weights[f"w{i}"] + weights[f"b{i}"])
    return to_initializers(build([x, *weights.values()], {"y": y}), NET)


def torch_network(x, **weights):
    for i, f in enumerate((torch.relu, torch.tanh, torch.sigmoid)):
        x = f(x @ weights[f"w{i}"] + weights[f"b{i}"])
    return x


def torch_gradients(rows=ROWS, dy=None, net=NET):
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in {"x": rows, **net}.items()}
    y = torch_network(**tensors)
    dy = torch.ones_like(y) if dy is None else torch.tensor(dy)
    gradients = torch.autograd.grad(y, list(tensors.values()), dy)
    return y.detach().numpy(), {n: g.numpy() for n, g in zip(tensors, gradients, strict=True)}


def part(weights):
    return {n: NET[n] for n in weights}


@needs_agent
@pytest.mark.parametrize(
    "weights",
    [["w0", "b0", "w1", "b1", "w2", "b2"], ["w2", "b1", "w0"], ["b2"], ["w1"], ["b0", "w2"], ["b2", "b1", "b0"]],
    ids=" ".join,
)
@pytest.mark.parametrize("input_grads", [(), ("x",)], ids=["", "x"])
def test_any_weights_in_any_order(weights, input_grads):
    agent = TrainingAgent(network(), weights, input_grads=input_grads)
    assert (agent.inputs, agent.outputs) == (["x"], ["y"])
    (y,), state = agent.forward({"x": ROWS}, part(weights))
    dy = real(6, 3, seed=3)
    gradients = agent.backward([dy], state)
    expected_y, expected = torch_gradients(dy=dy)
    assert list(gradients) == [*weights, *input_grads]
    assert_close(as_numpy(y), expected_y)
    for n, g in gradients.items():
        assert_close(as_numpy(g), expected[n])


@needs_agent
def test_weights_are_those_of_the_call():
    other = {n: 2 * a for n, a in NET.items()}
    agent = TrainingAgent(network(), list(NET))
    (y,), state = agent.forward({"x": ROWS}, {n: Buffer(a) for n, a in other.items()})
    expected_y, expected = torch_gradients(net=other, dy=np.ones((6, 3), np.float32))
    assert_close(as_numpy(y), expected_y)
    for n, g in agent.backward([Buffer(np.ones((6, 3), np.float32))], state).items():
        assert_close(as_numpy(g), expected[n])


@needs_agent
def test_weights_may_be_inputs_of_the_graph():
    x, w = variable("x", "float32", ["N", 5]), variable("w", "float32", [5, 2])
    agent = TrainingAgent(build([w, x], {"y": x @ w}), ["w"])
    assert agent.inputs == ["x"]
    weights = real(5, 2)
    (y,), state = agent.forward({"x": ROWS}, {"w": weights})
    assert_close(as_numpy(y), ROWS @ weights)
    assert_close(as_numpy(agent.backward([np.ones((6, 2), np.float32)], state)["w"]), ROWS.T @ np.ones((6, 2)))
    (y,), state = agent.forward({"x": ROWS}, {"w": weights}, training=False)
    assert state is None
    assert_close(as_numpy(y), ROWS @ weights)


@needs_agent
def test_forward_without_training():
    agent = TrainingAgent(network(), ["w1", "b0"])
    for rows in (ROWS, ROWS[:2], real(9, 5)):
        for feed in (rows.copy(), Buffer(rows), Buffer(rows).ortvalue):
            (y,), state = agent.forward({"x": feed}, part(["w1", "b0"]), training=False)
            assert state is None
            assert_close(as_numpy(y), torch_gradients(rows)[0])


@needs_agent
def test_gradients_of_tensors_without_influence_are_zeros():
    x, w, u, v = (variable(n, "float32", [3]) for n in "xwuv")
    used = op.Cast(op.Cast(u, to=7), to=1)  # It changes the output but has no gradient.
    model = to_initializers(build([x, w, u, v], {"y": x * w + used}), {"w": NET["b2"], "u": NET["b2"]})
    agent = TrainingAgent(model, ["u", "w"], input_grads=["v", "x"])
    feeds = {"x": real(3), "v": real(3)}
    for scale in (1, 10):
        weights = {"w": real(3, seed=1), "u": scale * np.ones(3, np.float32)}
        (y,), state = agent.forward(feeds, weights)
        np.testing.assert_allclose(as_numpy(y), feeds["x"] * weights["w"] + scale, rtol=1e-6)
        gradients = {n: as_numpy(g).tolist() for n, g in agent.backward([np.ones(3, np.float32)], state).items()}
        assert gradients == {"u": [0, 0, 0], "w": feeds["x"].tolist(), "v": [0, 0, 0], "x": weights["w"].tolist()}


@needs_agent
def test_several_outputs():
    x, w = variable("x", "float32", ["N", 3]), variable("w", "float32", [3])
    y = x * w
    model = build([x, w], {"y": y, "label": op.ArgMax(y, axis=1), "z": op.Exp(y), "of_x": op.Exp(x)})
    agent = TrainingAgent(model, ["w"], input_grads=["x"])
    rows, weights = real(4, 3), real(3, seed=1)
    outputs, state = agent.forward({"x": rows}, {"w": weights})
    np.testing.assert_array_equal(as_numpy(outputs[1]), (rows * weights).argmax(1, keepdims=True))
    dz = real(4, 3, seed=2)
    gradients = agent.backward([None, None, dz, None], state)
    assert_close(as_numpy(gradients["w"]), (dz * np.exp(rows * weights) * rows).sum(0))
    assert_close(as_numpy(gradients["x"]), dz * np.exp(rows * weights) * weights)


@needs_agent
def test_float64():
    x, w = variable("x", "float64", ["N", 3]), variable("w", "float64", [3, 2])
    agent = TrainingAgent(build([x, w], {"y": op.Sigmoid(x @ w)}), ["w"])
    rows, weights = real(4, 3).astype(np.float64), real(3, 2, seed=1).astype(np.float64)
    (y,), state = agent.forward({"x": rows}, {"w": weights})
    s = as_numpy(y)
    assert s.dtype == np.float64
    gradient = as_numpy(agent.backward([np.ones((4, 2))], state)["w"])
    np.testing.assert_allclose(gradient, rows.T @ (s * (1 - s)), rtol=1e-12)


def convolutional():
    """Convolution, pooling, normalization and attention in one graph."""
    x = variable("x", "float32", ["N", 2, 8, 8])
    c, d, s, b, w = (variable(n, "float32", shape) for n, shape in
                     {"c": (4, 2, 3, 3), "d": (4,), "s": (9,), "b": (9,), "w": (9, 9)}.items())
    y = op.MaxPool(op.Relu(op.Conv(x, c, d)), kernel_shape=[2, 2], strides=[2, 2])
    y = op.LayerNormalization(op.Reshape(y, [0, 4, 9]), s, b)
    q = y @ w
    scores = op.Softmax(op.Transpose(q, perm=[0, 2, 1]) @ y * 0.5)
    return build([x, c, d, s, b, w], {"y": op.ReduceMean(q @ scores + q, [1], keepdims=0)})


def torch_convolutional(x, c, d, s, b, w):
    y = F.max_pool2d(torch.relu(F.conv2d(x, c, d)), 2)
    y = F.layer_norm(y.reshape(-1, 4, 9), (9,), s, b)
    q = y @ w
    scores = torch.softmax(q.transpose(1, 2) @ y * 0.5, -1)
    return (q @ scores + q).mean(1)


@needs_agent
def test_a_deeper_graph():
    shapes = {"x": (3, 2, 8, 8), "c": (4, 2, 3, 3), "d": (4,), "s": (9,), "b": (9,), "w": (9, 9)}
    arrays = {n: real(*shape, seed=i) for i, (n, shape) in enumerate(shapes.items())}
    model = convolutional()
    assert find_untrusted(model) == []
    (y,), expected = torch_differentiate(torch_convolutional, list(arrays.values()))
    weights = ["w", "c", "b", "d", "s"]
    model = to_initializers(model, {n: arrays[n] for n in weights})
    (agent_y,), gradients = differentiate(model, arrays, weights, ["x"])
    assert_close(agent_y, y, 1e-4)
    for i, n in enumerate(arrays):
        assert_close(gradients[n], expected[f"x{i}"], 1e-4)


# Memory and order


@needs_agent
def test_several_forwards_pending_and_backward_in_any_order():
    agent = TrainingAgent(network(), list(NET))
    pending = []
    for k in range(8):
        # Only the states keep the arrays alive.
        (y,), state = agent.forward({"x": real(k + 1, 5, seed=k)}, {n: a * (1 + k / 8) for n, a in NET.items()})
        pending.append((k, as_numpy(y), state))
    del y, state
    gc.collect()
    noise = [np.full((k % 8 + 1, 5), np.nan, np.float32) for k in range(200)]
    for i in (3, 0, 7, 1, 6, 2, 5, 4):
        k, y, state = pending[i]
        dy = real(k + 1, 3, seed=k + 1)
        expected_y, expected = torch_gradients(real(k + 1, 5, seed=k), dy, {n: a * (1 + k / 8) for n, a in NET.items()})
        assert_close(y, expected_y)
        for n, g in agent.backward([dy], state).items():
            assert_close(as_numpy(g), expected[n])
    assert len(noise) == 200


@needs_agent
def test_results_outlive_the_agent_and_its_inputs():
    agent = TrainingAgent(network(), list(NET), input_grads=["x"])
    outputs, state = agent.forward({"x": ROWS.copy()}, {n: a.copy() for n, a in NET.items()})
    gradients = agent.backward([np.ones((6, 3), np.float32)], state)
    for _ in range(3):  # Later runs must not overwrite the results.
        _, other = agent.forward({"x": ROWS + 1}, NET)
        agent.backward([np.zeros((6, 3), np.float32)], other)
    del agent, state, other
    gc.collect()
    y, expected = torch_gradients()
    assert_close(as_numpy(outputs[0]), y)
    for n, g in gradients.items():
        assert_close(as_numpy(g), expected[n])


@needs_agent
def test_cotangents_and_inputs_do_not_change():
    agent = TrainingAgent(network(), list(NET), input_grads=["x"])
    dy, rows, weights = np.ones((6, 3), np.float32), ROWS.copy(), {n: a.copy() for n, a in NET.items()}
    (y,), state = agent.forward({"x": rows}, weights)
    before = as_numpy(y).copy()
    gradients = agent.backward([dy], state)
    assert (dy == 1).all()
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(as_numpy(y), before)
    copies = {n: as_numpy(g).copy() for n, g in gradients.items()}
    for array in (dy, rows, *weights.values()):
        array[...] = np.nan
    np.testing.assert_array_equal(as_numpy(y), before)
    for n, g in gradients.items():
        np.testing.assert_array_equal(as_numpy(g), copies[n])


@needs_agent
def test_an_input_that_is_also_an_output_is_copied():
    x, w = variable("x", "float32", ["N"]), variable("w", "float32", [3])
    agent = TrainingAgent(build([x, w], {"same": op.Identity(x), "y": op.ReduceSum(w)}), ["w"], input_grads=["x"])
    for rows in (ROWS[0].copy(), ROWS[1].copy()):
        (same, _), state = agent.forward({"x": rows}, {"w": real(3)})
        expected = rows.copy()
        rows[:] = np.nan
        np.testing.assert_array_equal(as_numpy(same), expected)
        assert as_numpy(agent.backward([expected, None], state)["x"]).tolist() == expected.tolist()


@needs_agent
def test_states_free_their_memory():
    agent, rows = TrainingAgent(network(), list(NET)), np.ones((2000, 5), np.float32)

    def growth(n):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(n):
            agent.forward({"x": rows}, NET)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    growth(100)
    # A state holds 2000 rows of at least 14 numbers: 1000 states would take 100 MB.
    assert growth(1000) < 20_000


@needs_agent
def test_outputs_are_inputs_of_another_session():
    agent = TrainingAgent(network(), list(NET))
    y, dy = variable("y", "float32", ["N", 3]), variable("t", "float32", ["N", 3])
    loss = Session(build([y, dy], {"loss": op.ReduceSum((y - dy) * (y - dy)), "y_grad": 2 * (y - dy)})).binding()
    target = real(6, 3)
    for rows in (ROWS, ROWS + 1):
        (y,), state = agent.forward({"x": rows}, NET)
        loss.bind_input("y", y)
        loss.bind_input("t", target)
        loss.run()
        gradients = agent.backward([loss.ortvalues()["y_grad"]], state)
        expected_y = torch_gradients(rows)[0]
        expected = torch_gradients(rows, 2 * (expected_y - target))[1]
        for n, g in gradients.items():
            assert_close(as_numpy(g), expected[n])


# Errors


def test_agent_without_onnxruntime_training(monkeypatch):
    monkeypatch.setattr(agent_module, "has_training", lambda: False)
    with pytest.raises(RuntimeMissingError, match=r"found onnxruntime \S+: uninstall it and run `pip install "
                                                  r"'.\[training\]'` .* or use engine='step'"):
        TrainingAgent(network(), ["w0"])


@needs_agent
@pytest.mark.parametrize(
    ("inputs", "weights", "message"),
    [
        ({}, NET, "The input 'x' is missing; the graph has: 'x', 'w0', 'b0'"),
        ({"x": ROWS}, part(["w0"]), "The input 'b0' is missing; the graph has"),
        ({"x": ROWS[:, :4]}, NET, r"'x' is float32\[6, 4\], the graph takes float32\['\?', 5\]\."),
        ({"x": ROWS[0]}, NET, r"'x' is float32\[5\], the graph takes"),
        ({"x": ROWS.astype(np.float64)}, NET, r"'x' is float64\[6, 5\], the graph takes float32"),
        ({"x": ROWS}, {**NET, "b0": NET["b0"][:1]}, r"'b0' is float32\[1\], the graph takes float32\[7\]"),
        ({"x": ROWS}, {**NET, "b0": Buffer(NET["b0"][:1]).ortvalue}, r"'b0' is float32\[1\], the graph takes"),
    ],
)
def test_forward_names_the_input_that_does_not_fit(inputs, weights, message):
    agent = TrainingAgent(network(), list(NET))
    agent.forward({"x": ROWS}, NET)
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            agent.forward(inputs, weights)
    agent.forward({"x": ROWS}, NET)


@needs_agent
def test_backward_names_the_cotangent_that_does_not_fit():
    agent = TrainingAgent(network(), ["w0"])
    _, state = agent.forward({"x": ROWS}, NET)
    dy = np.ones((6, 3), np.float32)
    for wrong in (dy[:5], dy[0], dy.astype(np.float64), Buffer(dy[:5]).ortvalue, np.float32(1).reshape(())):
        with pytest.raises(DataError, match=r"cotangent of 'y' is (float|double)\[.*\], the output is float\[6, 3\]"):
            agent.backward([wrong], state)
    with pytest.raises(DataError, match="Got 2 cotangents for 1 outputs"):
        agent.backward([dy, dy], state)
    agent.backward([dy], state)
    with pytest.raises(DataError, match="This state was used for a backward already; run forward again"):
        agent.backward([dy], state)


@needs_agent
def test_gradients_of_a_wrong_shape_are_refused():
    x, w = variable("x", "float32", ["N", 3]), variable("w", "float32", ["M", 3])
    agent = TrainingAgent(build([x, w], {"y": x * w}), ["w"])
    assert find_untrusted(build([x, w], {"y": x * w}), ["w"], input_grads=()) != []
    one = np.ones((6, 3), np.float32)
    agent.forward({"x": one}, {"w": real(1, 3)})
    for weights, right in ((real(1, 3), False), (real(1, 3), False), (real(6, 3), True), (real(1, 3), False)):
        _, state = agent.forward({"x": one}, {"w": weights})
        if right:
            agent.backward([one], state)
            continue
        with pytest.raises(ModelError, match=r"gradient of 'w' is float\[6, 3\], the tensor is \[1, 3\]: a dimension"):
            agent.backward([one], state)


@needs_agent
def test_operators_without_a_gradient():
    x = variable("x", "float32", ["N"])
    model = build([x], {"y": op.Elu(x)})
    with pytest.raises(ModelError, match=r"it has no gradient for the operator Elu\. Use engine='step' instead\."):
        TrainingAgent(model, [], input_grads=["x"])


@needs_agent
def test_unknown_and_integer_tensors():
    with pytest.raises(ModelError, match="The model has no initializer or input named 'w9'"):
        TrainingAgent(network(), ["w9"])
    x, i = variable("x", "float32", [3]), variable("i", "int64", [2])
    with pytest.raises(ModelError, match="'i' is not of a floating-point type"):
        TrainingAgent(build([x, i], {"y": op.Gather(x, i)}), [], input_grads=["i"])
    with pytest.raises(ModelError, match="No output of the graph depends on a weight"):
        TrainingAgent(build([x], {"y": op.ArgMax(x)}), [], input_grads=["x"])


@needs_agent
def test_gradient_onnx_holds_forward_and_backward():
    agent = TrainingAgent(network(), ["w2", "w0"])
    graph = onnx.load_from_string(agent.gradient_onnx).graph
    assert "YieldOp" in {n.op_type for n in graph.node}
    assert sorted(o.name for o in graph.output) == ["w0_grad", "w2_grad"]
    assert repr(agent) == "<TrainingAgent x -> y, trains w2, w0>"


@needs_agent
@pytest.mark.parametrize("comparison", ["LessOrEqual", "GreaterOrEqual"])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_a_comparison_in_front_of_a_pool(comparison, pool):
    """onnxruntime-training 1.19.2 expanded the comparison after the gradient was built, and ended the process."""
    x = variable("x", "float32", [2, 3, 4, 6])
    y = getattr(op, pool)(op.Where(getattr(op, comparison)(x, 0.25), op.Tanh(x), x), kernel_shape=[2, 2])
    agent = TrainingAgent(build([x], {"y": y}), [], input_grads=["x"])
    assert find_untrusted(build([x], {"y": y})) == []
    array = apart(2, 3, 4, 6)
    t = torch.tensor(array, requires_grad=True)
    compare = torch.le if comparison == "LessOrEqual" else torch.ge
    expected = (F.max_pool2d if pool == "MaxPool" else F.avg_pool2d)(
        torch.where(compare(t, 0.25), torch.tanh(t), t), 2, 1)
    expected.sum().backward()
    (actual,), state = agent.forward({"x": array}, {})
    np.testing.assert_allclose(as_numpy(actual), expected.detach(), rtol=1e-5, atol=1e-6)
    dx = agent.backward([np.ones(tuple(expected.shape), np.float32)], state)["x"]
    np.testing.assert_allclose(as_numpy(dx), t.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.agent
def test_masks_of_relu_are_multiplied_in_and_select_where_cotangents_are_infinite():
    x, w = variable("x", "float32", [2, 3]), constant(np.array([[1, -1, 1]], np.float32), hint="w")
    v = constant(np.ones(3, np.float32), hint="v")
    agent = TrainingAgent(build([x], {"y": op.Relu(op.Relu(x * w) * v)}), ["w", "v"])
    assert "ReluGrad" not in [n.op_type for n in onnx.load_from_string(agent.gradient_onnx).graph.node]
    feeds = {"x": np.ones((2, 3), np.float32)}
    weights = {"w": np.array([[1, -1, 1]], np.float32), "v": np.ones(3, np.float32)}
    for number in (2.0, np.inf, np.nan):
        _, state = agent.forward(feeds, weights)
        dy = np.array([[1, number, 1], [1, 1, 1]], np.float32)
        gradients = agent.backward([dy], state)
        assert gradients["w"].numpy().tolist() == [[2, 0, 2]]
        assert gradients["v"].numpy().tolist() == [2, 0, 2]
