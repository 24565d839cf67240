"""Initializers: their distributions beside torch's, their bits on every runtime, and refusals."""

import copy
import math
import pickle
import zlib

import numpy as np
import onnx
import pytest
from scipy import stats

from ortpartial import nn
from ortpartial.exceptions import SettingError
from ortpartial.graph import build, constant, variable
from ortpartial.nn.initializers import _orthonormalize, resolve_initializer
from ortpartial.runtime import Session
from ortpartial.training_info import TrainingSession, check_training_info

SHAPE = (96, 24, 3)

#: By the initializer, the function of torch.nn.init that draws from the same distribution.
LIKE_TORCH = [
    (nn.Uniform(-0.1, 0.3), lambda init, w: init.uniform_(w, -0.1, 0.3)),
    (nn.Normal(1, 0.2), lambda init, w: init.normal_(w, 1, 0.2)),
    (nn.TruncatedNormal(1, 0.2), lambda init, w: init.trunc_normal_(w, 1, 0.2, 0.6, 1.4)),
    (nn.Constant(0.3), lambda init, w: init.constant_(w, 0.3)),
    (nn.Zeros(), lambda init, w: init.zeros_(w)),
    (nn.Ones(), lambda init, w: init.ones_(w)),
    (nn.GlorotUniform(5 / 3), lambda init, w: init.xavier_uniform_(w, 5 / 3)),
    (nn.GlorotNormal(), lambda init, w: init.xavier_normal_(w)),
    (nn.HeUniform(math.sqrt(5)), lambda init, w: init.kaiming_uniform_(w, math.sqrt(5))),
    (nn.HeUniform(mode="fan_out"), lambda init, w: init.kaiming_uniform_(w, mode="fan_out")),
    (nn.HeNormal(), lambda init, w: init.kaiming_normal_(w)),
    (nn.HeNormal(0.1, "fan_out"), lambda init, w: init.kaiming_normal_(w, 0.1, "fan_out")),
    (nn.LecunUniform(), lambda init, w: init.kaiming_uniform_(w, nonlinearity="linear")),
    (nn.LecunNormal(), lambda init, w: init.kaiming_normal_(w, nonlinearity="linear")),
    (nn.Orthogonal(2), lambda init, w: init.orthogonal_(w, 2)),
]

#: Of the bits that seed 1 draws on every runtime.
CRC = 3197050140

RANDOM = [i for i, _ in LIKE_TORCH if not isinstance(i, nn.Constant | nn.Zeros | nn.Ones)]


def draw(initializer, shape, dtype="float32", seed=None):
    return Session(build([], {"w": initializer(shape, dtype, seed=seed)})).run({})["w"]


@pytest.mark.parametrize(("initializer", "fill"), LIKE_TORCH, ids=lambda case: repr(case) if case in RANDOM else "")
def test_distributions_are_those_of_torch(initializer, fill):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = fill(torch.nn.init, torch.empty(SHAPE)).numpy()
    ours = draw(initializer, SHAPE, seed=7)
    assert ours.dtype == np.float32
    assert ours.shape == SHAPE
    if initializer not in RANDOM:
        assert np.array_equal(ours, theirs)
        return
    spread = theirs.std()
    assert abs(ours.mean() - theirs.mean()) < 0.08 * spread
    assert ours.std() == pytest.approx(spread, rel=0.05)
    assert stats.ks_2samp(ours.ravel(), theirs.ravel()).pvalue > 1e-4


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("initializer", RANDOM, ids=repr)
def test_every_real_dtype_is_drawn(initializer, dtype):
    w = draw(initializer, SHAPE, dtype, seed=3)
    assert w.dtype == dtype
    assert w.shape == SHAPE
    assert w.astype(np.float64).std() == pytest.approx(draw(initializer, SHAPE, seed=3).std(), rel=0.05)
    assert np.array_equal(w, draw(initializer, SHAPE, dtype, seed=3))
    assert not np.array_equal(w, draw(initializer, SHAPE, dtype, seed=4))


@pytest.mark.parametrize(("initializer", "bound"), [
    (nn.Uniform(-2, 3), (-2, 3)), (nn.TruncatedNormal(0.5, 0.1), (0.3, 0.7)), (nn.LecunUniform(), (-0.5, 0.5)),
    (nn.GlorotUniform(), (-0.5, 0.5)), (nn.HeUniform(1), (-0.5, 0.5)),
], ids=repr)
def test_bounds_are_reached_and_never_passed(initializer, bound):
    w = draw(initializer, (12, 4, 3) if not isinstance(initializer, nn.GlorotUniform) else (16, 8, 1), seed=0)
    margin = 0.05 * (bound[1] - bound[0])
    assert bound[0] - 1e-6 <= w.min() < bound[0] + margin
    assert bound[1] - margin < w.max() <= bound[1] + 1e-6


def test_the_truncated_normal_distribution_is_exact_to_its_tails():
    w = draw(nn.TruncatedNormal(), (20000,), "float64", seed=1)
    assert stats.kstest(w, stats.truncnorm(-2, 2).cdf).pvalue > 1e-4
    # The quantiles of the numbers are the uniform numbers that they were made of.
    u = draw(nn.Uniform(-math.erf(2**0.5), math.erf(2**0.5)), (20000,), "float64", seed=1)
    np.testing.assert_allclose(stats.norm.cdf(w), (u + 1) / 2, atol=3e-7)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 1), (1, 4), (3, 7), (64, 64), (10, 4, 3), (3, 2, 2, 2),
                                   (512, 512)], ids=str)
def test_orthogonal_rows_or_columns(shape):
    w = draw(nn.Orthogonal(gain=2), shape, seed=5).reshape(shape[0], -1) / 2
    product = w.T @ w if len(w) >= w.shape[1] else w @ w.T
    assert abs(product - np.eye(len(product))).max() < 2e-6


def test_orthogonal_matrices_are_products_of_reflections():
    rng = np.random.default_rng(0)
    g = rng.normal(size=(7, 4))
    expected = np.eye(7)
    for k in range(4):
        x = np.where(np.arange(7) < k, 0, g[:, k])
        v = x + np.sign(x[k]) * np.linalg.norm(x) * np.eye(7)[k]
        # The sign makes the column the normal vector itself, divided by its norm.
        expected = expected @ (np.eye(7) - 2 * np.outer(v, v) / (v @ v)) @ np.diag(
            np.where(np.arange(7) == k, -np.sign(x[k]), 1))
    g_ = variable("g", "float64", [7, 4])
    q = Session(build([g_], {"q": _orthonormalize(g_)})).run({"g": g})["q"]
    assert abs(q[:, 0] - g[:, 0] / np.linalg.norm(g[:, 0])).max() < 1e-14
    np.testing.assert_allclose(abs(q), abs(expected[:, :4]), atol=1e-13)


def test_orthogonal_matrices_are_uniform():
    # Of a uniform orthogonal matrix, tr Q has mean 0 and variance 1, and tr Q² mean 1 and variance 2.
    traces = []
    for seed in range(60):
        q = draw(nn.Orthogonal(), (6, 6), "float64", seed=seed)
        traces.append((np.trace(q), np.trace(q @ q)))
    assert np.mean(traces, 0) == pytest.approx([0, 1], abs=0.45)
    assert np.var(traces, 0) == pytest.approx([1, 2], rel=0.5)


def model_with(initializers, shape=(6, 4)):
    """A model y = x·Σw whose initialization draws each w."""
    x, names = variable("x", "float32", ["N", 4]), [f"w{i}" for i in range(len(initializers))]
    ws = [constant(np.zeros(shape, np.float32), hint=n) for n in names]
    model = build([x], {"y": sum(x @ w.T for w in ws)})
    info = model.training_info.add()
    info.initialization.CopyFrom(build([], {
        f"{n}_first": i(shape) for n, i in zip(names, initializers, strict=True)
    }).graph)
    for n in names:
        info.initialization_binding.add(key=n, value=f"{n}_first")
    return model


def test_an_initialization_in_a_model_draws_the_same_everywhere(tmp_path):
    model = model_with([i for i, _ in LIKE_TORCH])
    check_training_info(model)
    onnx.save(model, tmp_path / "model.onnx")
    session = TrainingSession(tmp_path / "model.onnx")
    session.initialize(seed=1)
    state = session.state
    assert zlib.crc32(b"".join(state[n].tobytes() for n in sorted(state))) == CRC
    session.save(tmp_path / "again.onnx")
    again = TrainingSession(tmp_path / "again.onnx")
    assert all(np.array_equal(again.state[n], a) for n, a in state.items())
    again.initialize(seed=1)
    assert all(np.array_equal(again.state[n], a) for n, a in state.items())
    again.initialize(seed=2)
    assert not np.array_equal(again.state["w0"], state["w0"])


def test_no_parameter_is_drawn_inside_a_loop():
    for initializer in RANDOM:
        nodes = build([], {"w": initializer(SHAPE)}).graph.node
        assert not any(a.type == onnx.AttributeProto.GRAPH for node in nodes for a in node.attribute)


def test_seeds_of_nodes_hold_where_a_session_has_none():
    def first(seed):
        model = model_with([lambda shape: nn.Orthogonal()(shape, seed=seed)])
        session = TrainingSession(model)
        session.initialize()
        return session.state["w0"]

    assert np.array_equal(first(3), first(3))
    assert not np.array_equal(first(3), first(4))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (4, 0), (1,)], ids=str)
@pytest.mark.parametrize("initializer", [nn.Uniform(), nn.Normal(), nn.TruncatedNormal(), nn.Ones()], ids=repr)
def test_scalars_and_empty_shapes(initializer, shape):
    assert draw(initializer, shape).shape == shape


def test_empty_weights():
    for initializer in (nn.Orthogonal(), nn.HeNormal(), nn.GlorotUniform()):
        assert draw(initializer, (0, 3)).shape == (0, 3)
        assert draw(initializer, (3, 0)).shape == (3, 0)


def test_constants_of_any_dtype():
    assert draw(nn.Constant(3), (2,), "int64").tolist() == [3, 3]
    assert draw(nn.Constant(True), (2,), "bool").tolist() == [True, True]
    assert draw(nn.Constant([[1, 2]]), (1, 2), "float64").tolist() == [[1, 2]]
    assert draw(nn.Constant(-np.inf), (1,)).tolist() == [-np.inf]
    with pytest.raises(SettingError, match=r"^Constant is 0.5, a fraction, where int64 was expected\.$"):
        nn.Constant(0.5)((2,), "int64")
    with pytest.raises(SettingError, match=r"^Constant: the array has the shape \(2,\), and the parameter \(3,\)\.$"):
        nn.Constant([1, 2])((3,))
    with pytest.raises(SettingError, match=r"^Constant: value is 'a', a number or an array of numbers was expected\.$"):
        nn.Constant("a")
    a = np.ones(2)
    first = nn.Constant(a)
    a[0] = 5
    assert first == nn.Constant(np.ones(2)) != nn.Constant(np.zeros(2))
    assert hash(first) == hash(nn.Constant(np.ones(2)))
    assert first != nn.Zeros()
    assert nn.Constant(1) != nn.Constant(1.0)


def test_settings_are_validated():
    for wrong, message in [
        (lambda: nn.Uniform(1, 0), "Uniform: low is 1, a number at most high, 0, was expected."),
        (lambda: nn.Normal(std=-1), "Normal: std is -1, a finite number at least 0 was expected."),
        (lambda: nn.Orthogonal(0), "Orthogonal: gain is 0, a finite number more than 0 was expected."),
        (lambda: nn.HeNormal(mode="in"), "HeNormal: mode is 'fan_in', 'fan_out' or 'fan_avg', not 'in'."),
        (lambda: nn.HeNormal()((3,)), "HeNormal initializes weights of the shape [out, in, ...], and the parameter has "
                                      "[3]; give it another initializer, such as Zeros()."),
        (lambda: nn.Orthogonal()(()), "Orthogonal initializes weights of the shape [out, in, ...], and the parameter "
                                      "has []; give it another initializer, such as Zeros()."),
        (lambda: nn.Normal()((3, "N")), "The shape of a parameter is made of whole numbers of at least 0, not 'N'."),
        (lambda: nn.Normal()((3,), "int64"), "Random numbers are real, and the parameter has the dtype int64; give it "
                                             "a number or an array as its initializer."),
        (lambda: resolve_initializer("kaiming_normal_"), "Did you mean 'he_normal'?"),
        (lambda: resolve_initializer("xavier_uniform_"), "Did you mean 'glorot_uniform'?"),
        (lambda: resolve_initializer(None), "initializer: None is a NoneType; a name (uniform, normal, "),
    ]:
        with pytest.raises(SettingError) as error:
            wrong()
        assert message in str(error.value)
    with pytest.raises(TypeError, match=r"^Normal has no setting 'stddev'; did you mean 'std'\?$"):
        nn.Normal(stddev=1)


def test_initializers_by_name_class_number_and_array():
    assert resolve_initializer("he_uniform") == nn.HeUniform()
    with pytest.warns(FutureWarning, match=r"write HeUniform\(\)"):
        assert resolve_initializer(nn.HeUniform) == nn.HeUniform()
    assert resolve_initializer("Orthogonal") == nn.Orthogonal()
    assert resolve_initializer(np.float32(2)) == nn.Constant(2.0)
    assert resolve_initializer([1, 2]) == nn.Constant(np.array([1, 2]))
    assert resolve_initializer(nn.Normal(2)) == nn.Normal(2)


@pytest.mark.parametrize("initializer", [*(i for i, _ in LIKE_TORCH), nn.Constant(np.ones(3))], ids=repr)
def test_initializers_are_copied_pickled_and_compared_by_value(initializer):
    for other in (copy.deepcopy(initializer), pickle.loads(pickle.dumps(initializer))):
        assert other == initializer
        assert hash(other) == hash(initializer)
    with pytest.raises(AttributeError):
        initializer.gain = 3


def test_the_initialization_of_a_compiled_module_gives_its_first_weights():
    class Net(nn.Module):
        def __init__(self):
            self.hidden, self.out = nn.Linear(4, 6), nn.Linear(6, 2)
            self.out.weight.orthogonal()

        def forward(self, x):
            return self.out(self.hidden(x))

    model = Net().set_optimizer("adam")
    model.compile(nn.placeholder(["N", 4]), random_state=3)
    model.hidden.bias.normal(0, 0.1)
    first = model.state_dict()
    model.train_one_batch(np.ones((3, 4), np.float32), np.zeros((3, 2), np.float32))
    check_training_info(model.graph)
    session = TrainingSession(model.graph)
    assert not np.array_equal(session.state["out.weight"], first["out.weight"])
    session.initialize()
    assert all(np.array_equal(session.state[n], a) for n, a in first.items())
    assert zlib.crc32(b"".join(a.tobytes() for a in first.values())) == 2900905976
