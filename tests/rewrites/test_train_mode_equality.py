"""BatchNormalization, InstanceNormalization and Dropout in training mode beside their definition, on random graphs."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from once import ON_NEWEST
from onnx.reference import ReferenceEvaluator
from random_graphs import Draw, assert_equal

from ortpartial.graph import build, constant, op, variable
from ortpartial.model import TorchRecord, load, note_torch
from ortpartial.rewrites.train_mode import to_inference_mode, to_training_mode
from ortpartial.runtime import Session
from ortpartial.torch import export
from ortpartial.training import draw_mask


@dataclass
class Norm:
    """A BatchNormalization of random settings; its numbers by the definition, and its running statistics after it."""

    names: list[str]
    epsilon: float
    momentum: float
    kind: str

    def __call__(self, x: np.ndarray, state: dict[str, np.ndarray]) -> np.ndarray:
        scale, b = (spread(state[n], x) for n in self.names[:2])
        rows = [x] if self.kind != "rows" else [x[i : i + 1] for i in range(len(x))]
        axes = (0, *range(2, x.ndim))
        parts = [(a.mean(axes), a.var(axes), a.size // a.shape[1]) for a in rows]
        y = [(a - spread(m, a)) / np.sqrt(spread(v, a) + self.epsilon) * scale + b
             for a, (m, v, _) in zip(rows, parts, strict=True)]
        unbiased = [v * (1 if self.kind == "onnx" else n / max(n - 1, 1)) for _, v, n in parts]
        batch = np.mean([m for m, _, _ in parts], 0), np.mean(unbiased, 0)
        for n, a in zip(self.names[2:], batch, strict=True):
            state[n] = state[n] * self.momentum + a * (1 - self.momentum)
        return np.concatenate(y)


def spread(s: np.ndarray, x: np.ndarray) -> np.ndarray:
    return s.reshape(-1, *[1] * (x.ndim - 2))


def check_norms(seed):
    """One to three normalizations one after the other or side by side, some of which update one statistic."""
    d = Draw(np.random.default_rng([1, seed]))
    dtype = d.one("float32", "float32", "float64", "float16")
    # onnxruntime's own types of float16 are not mixed: statistics have the dtype of x, or all but it are float32.
    own = d.one("float32", dtype) if dtype == "float16" else dtype
    shape = [d.one(1, 2, 3, 7), d.one(1, 2, 4), *(d.one(1, 2, 3, 5) for _ in range(d.one(0, 1, 2, 3)))]
    x = d.variable(shape, dtype, strange=0.0, open_axes=d.one(0.0, 0.3) if len(shape) > 2 else 0.0)
    if dtype == "float16" and own == "float32" and d.chance():
        d.arrays[x] *= 300  # Its square is beyond float16.
    if not isinstance(x.shape[1], int):
        x = variable(x.hint, dtype, [x.shape[0], shape[1], *x.shape[2:]])
        d.arrays = {x: next(iter(d.arrays.values()))}
    # Rows of one number have no statistics: InstanceNorm has spatial axes.
    kind, shared, nested = d.one("onnx", "torch", *["rows"] * (len(shape) > 2)), d.chance(), d.chance()
    state, norms, values, results = {}, [], [], []
    constants = {}
    for i in range(d.one(1, 2, 3)):
        names = [f"{n}{0 if shared and i else i}" for n in ("scale", "b", "mean", "var")]
        for n in names:
            if n not in state:
                a = d.rng.normal(size=shape[1])
                state[n] = (np.exp(a) if n[:3] in ("sca", "var") else a).astype(own)
                constants[n] = constant(state[n], hint=n)
        norms.append(Norm(names, float(np.float32(d.one(1e-5, 1e-3, 0.5))), d.one(0.9, 0.5, 0.0, 0.99, 1.0), kind))
        reads = values[-1] if nested and values else x * float(i + 1)
        values.append(op.BatchNormalization(reads, *(constants[n] for n in names), n_outputs=1,
                                            epsilon=norms[-1].epsilon, momentum=norms[-1].momentum)[0])
    # Outputs in another order than the nodes, or one that is made of all.
    combined = values[-1] - values[0]
    outputs = {f"y{i}": v for i, v in enumerate([*values[::-1], combined])}
    proto = build([x], outputs)
    if kind != "onnx":
        note_torch(proto, TorchRecord(per_instance=tuple(n for n in state if n[0] in "mv") if kind == "rows" else ()))
    model = load(proto, variables=list(state))
    trained = to_training_mode(model)
    initial = {n: a.copy() for n, a in state.items()}
    (a,) = d.arrays.values()
    wide = {n: s.astype(np.float64) for n, s in state.items()}
    for i, norm in enumerate(norms):
        results.append(norm(results[-1] if nested and results else a.astype(np.float64) * (i + 1), wide))
    news = {}
    for s in trained.statistics:
        news[s.name] = s.update(news.get(s.name, model.initializers[s.name]))
        assert news[s.name].dtype == own
    graph = build([*trained.model.inputs.values(), *(model.initializers[n] for n in state)],
                  {**trained.model.outputs, **{f"new_{n}": v for n, v in news.items()}})
    feeds = {i.name: {x.hint: a, **initial}[i.name] for i in graph.graph.input}
    if dtype == "float16":  # onnxruntime keeps float32 between operators, where other processors do not.
        arrays = ReferenceEvaluator(graph).run(None, feeds)
        actual = {o.name: np.asarray(v) for o, v in zip(graph.graph.output, arrays, strict=True)}
    else:
        session = Session(graph)
        actual = session.run({n: v for n, v in feeds.items() if n in session.inputs})
    where = f"seed {seed}: {kind}, {x}, {norms}"
    expected = [*results[::-1], results[-1] - results[0]]
    loose = 1 if dtype != "float16" else 1 + max(float(abs(r).max()) for r in results)
    for i, right in enumerate(expected):
        assert_equal(actual[f"y{i}"] / loose, right / loose, False, where)
    assert {n[4:] for n in actual if n.startswith("new_")} == {n for norm in norms for n in norm.names[2:]}
    for n in news:
        size = max(1.0, float(abs(wide[n]).max()))
        assert_equal((actual[f"new_{n}"] / size).astype(dtype), wide[n] / size, False, f"{where}, {n}")
    return kind, shared, nested


def draw_drops(d):
    """One to three Dropouts of a random graph, whose masks are read or not."""
    dtype = d.one("float16", "float32", "float64")
    x = d.variable(d.shape(least=1, most=3, empty=0.0), dtype, strange=0.0, open_axes=0.2)
    y, ratios, outputs = x, [], {}
    for i in range(d.one(1, 2, 3)):
        ratio = d.one(None, 0.0, 0.5, 0.1, 0.25, 0.9)
        others = () if ratio is None else (constant(np.array(ratio, d.one("float16", "float32", "float64"))),)
        ratios.append(0.5 if ratio is None else float(np.float32(others[0].array)))
        y, mask = op.Dropout(-y, *others, n_outputs=2)
        if d.chance():
            outputs[f"mask{i}"] = mask
    return x, ratios, {"y": y, **outputs}


def check_drops(seed):
    """Each Dropout multiplies by an input, or by what is drawn, and its mask says where that is not 0."""
    d = Draw(np.random.default_rng([2, seed]))
    x, ratios, outputs = draw_drops(d)
    model = load(build([x], outputs))
    trained = to_training_mode(model)
    assert len(trained.masks) == len(ratios)
    feeds = {x.hint: d.of(x)}
    y, expected = d.of(x), {}
    for i, ((name, mask), ratio) in enumerate(zip(trained.masks.items(), ratios, strict=True)):
        assert abs(mask.keep - (1 - ratio)) < 1e-7, (seed, mask, ratio)
        kept = d.rng.random(y.shape) < mask.keep
        feeds[name] = (kept / mask.keep).astype(y.dtype)
        y = -y * feeds[name]
        expected[f"mask{i}"] = kept
    session = Session(build(trained.model.inputs, trained.model.outputs))
    actual = session.run({n: a for n, a in feeds.items() if n in session.inputs})
    for n, a in actual.items():  # onnxruntime keeps products of products of float16 in float32.
        assert_equal(a, {**expected, "y": y}[n], y.dtype != np.float16, f"seed {seed}, {n}")
    still = load(to_inference_mode(build([x], {"y": outputs["y"]})))
    plain = Session(build(still.inputs, still.outputs)).run({x.hint: d.of(x)})["y"]
    np.testing.assert_array_equal(plain, d.of(x) * (-1) ** len(ratios), f"seed {seed}")


def check_drawn(seed):
    """The masks that a step draws: 0 and 1 / keep alone, as often as they should, others in each step and Dropout."""
    d = Draw(np.random.default_rng([3, seed]))
    ratios = [d.one(0.0, 0.1, 0.5, 0.8) for _ in range(3)]
    dtype, shape = d.one("float16", "float32", "float64"), d.one([40, 50], [2000], [10, 2, 100])
    number, words, ones = variable("k", "int64", []), variable("seed", "int32", [2]), variable("x", dtype, shape)
    y = [op.Dropout(ones, constant(np.float32(r))) for r in ratios]
    model = load(build([ones], {f"y{i}": v for i, v in enumerate(y)}))
    trained = to_training_mode(model, lambda x, keep, i: draw_mask(x, keep, words, number, i))
    assert not trained.masks
    session = Session(build([*model.inputs.values(), words, number], trained.model.outputs))
    feeds = {"x": np.ones(shape, dtype), "seed": d.rng.integers(-(2**31), 2**31, 2).astype(np.int32)}
    feeds = {n: a for n, a in feeds.items() if n in session.inputs}
    first, again, second = (
        session.run({**feeds, **({"k": np.array(k)} if "k" in session.inputs else {})}) for k in (1, 1, 2))
    for i, ratio in enumerate(ratios):
        a, keep = first[f"y{i}"], 1 - ratio
        np.testing.assert_array_equal(a, again[f"y{i}"])
        assert set(np.unique(a)) <= {np.dtype(dtype).type(0), np.dtype(dtype).type(1 / keep)}
        # Six standard deviations of a share of 2000.
        assert abs(np.mean(a != 0) - keep) <= 6 * np.sqrt(ratio * keep / a.size), (seed, ratio)
        if ratio:
            others = [second[f"y{i}"], *(first[f"y{j}"] for j in range(i) if ratios[j])]
            assert all(((a != 0) != (b != 0)).any() for b in others), (seed, i)


def check_inference(seed):
    """A normalization that was exported in training mode normalizes by its running statistics in inference mode."""
    d = Draw(np.random.default_rng([4, seed]))
    shape = [d.one(1, 3), d.one(1, 4), *(d.one(1, 3) for _ in range(d.one(0, 1, 2, 3)))]
    x = d.variable(shape, strange=0.0)
    parameters = [d.rng.normal(size=shape[1]), d.rng.normal(size=shape[1]), d.rng.normal(size=shape[1]),
                  d.rng.uniform(0.1, 2, shape[1])]
    epsilon = d.one(1e-5, 0.25)
    y, *new = op.BatchNormalization(x, *(constant(p.astype(np.float32)) for p in parameters), training_mode=1,
                                    epsilon=epsilon, n_outputs=3)
    reads = d.chance(0.3)  # Nothing is changed where new statistics are read.
    proto = build([x], {"y": y, **({"new": new[0]} if reads else {})})
    changed = to_inference_mode(proto)
    assert (changed is proto) == reads, seed
    if not reads:
        scale, b, mean, var = (spread(p.astype(np.float32).astype(np.float64), d.of(x)) for p in parameters)
        right = (d.of(x) - mean) / np.sqrt(var + epsilon) * scale + b
        assert_equal(Session(changed).run({x.hint: d.of(x)})["y"], right, False, f"seed {seed}")


def check_instances(seed):
    """InstanceNorm and BatchNorm of torch as `export` writes them: outputs and running statistics as torch's."""
    d = Draw(np.random.default_rng([5, seed]))
    r, channels = d.one(1, 2, 3), d.one(1, 3)
    kind = d.one("InstanceNorm", "InstanceNorm", "BatchNorm")
    layer = getattr(torch.nn, f"{kind}{r}d")(channels, eps=d.one(1e-5, 0.1), momentum=d.one(0.1, 0.5),
                                             affine=d.chance(), track_running_stats=True)
    module = torch.nn.Sequential(layer, torch.nn.Tanh(), *([layer] if d.chance() else []))
    for p in module.state_dict().values():
        if p.is_floating_point():
            p.copy_(torch.from_numpy(np.abs(d.rng.normal(size=p.shape)) + 0.1))
    x = torch.from_numpy(d.rng.normal(size=[d.one(1, 2, 4), channels, *(d.one(2, 3, 4) for _ in range(r))])).float()
    module.train()
    before = {n: p.numpy().copy() for n, p in module.state_dict().items()}
    proto = export(module, x)
    for n, a in before.items():
        np.testing.assert_array_equal(module.state_dict()[n].numpy(), a)
    model = load(proto, variables=[n for n in load(proto).initializers if n in before])
    trained = to_training_mode(model)
    news = {}
    for s in trained.statistics:
        news[s.name] = s.update(news.get(s.name, model.initializers[s.name]))
    assert len(news) == 2, (seed, module, list(news))
    graph = build([*model.inputs.values(), *(model.initializers[n] for n in before if n in model.initializers)],
                  {**{f"y{i}": v for i, v in enumerate(trained.model.outputs.values())},
                   **{f"new {n}": v for n, v in news.items()}})
    session = Session(graph)
    feeds = {**{n: x.numpy() for n in model.inputs}, **before}
    actual = session.run({n: a for n, a in feeds.items() if n in session.inputs})
    module.double()
    right = module(x.double())
    assert_equal(actual["y0"], right.detach().numpy(), False, f"seed {seed}: {module}")
    for n in news:
        assert_equal(actual[f"new {n}"], module.state_dict()[n].numpy(), False, f"seed {seed}: {module}, {n}")


def test_some_normalizations():
    kinds = [check_norms(seed) for seed in range(24)]
    assert {(kind, shared) for kind, shared, _ in kinds} == {(k, s) for k in ("onnx", "torch", "rows") for s in (0, 1)}


def test_some_dropouts():
    for seed in range(12):
        check_drops(seed)
    for seed in range(4):
        check_drawn(seed)
        check_inference(seed)


@ON_NEWEST
def test_some_layers_of_torch():
    for seed in range(2):
        check_instances(seed)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(1, 7))
def test_many_normalizations(group):
    for seed in range(100 * group, 100 * group + 100):
        check_norms(seed)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(1, 4))
def test_many_dropouts(group):
    for seed in range(100 * group, 100 * group + 100):
        check_drops(seed)
        check_drawn(seed)
        check_inference(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 40))
def test_layers_of_torch(seed):
    check_instances(seed)
