"""Losses and their gradients, beside numpy and torch."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

from ortpartial.exceptions import DataError, GraphError, SettingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import variable
from ortpartial.learning.losses import (
    AbsoluteLearningLoss,
    BaseLearningLoss,
    ElasticLearningLoss,
    HingeLearningLoss,
    HuberLearningLoss,
    NegLogLearningLoss,
    PoissonLearningLoss,
    SoftmaxCrossEntropyLearningLoss,
    SquareLearningLoss,
    resolve_loss,
)
from ortpartial.testing import evaluate

BINARY, LABELS = NegLogLearningLoss(), SoftmaxCrossEntropyLearningLoss()
HINGE, POISSON = HingeLearningLoss(), PoissonLearningLoss()


def log_softmax(y):
    y = y - y.max(axis=1, keepdims=True)
    return y - np.log(np.exp(y).sum(axis=1, keepdims=True))


def huber(e, delta):
    e = abs(e)
    return np.where(e <= delta, e**2 / 2, delta * (e - delta / 2))


# The loss, its elements in numpy, and its elements in torch.
TABLE = [
    (SquareLearningLoss(), lambda y, t: (y - t) ** 2, lambda y, t: functional.mse_loss(y, t, reduction="none")),
    (AbsoluteLearningLoss(), lambda y, t: abs(y - t), lambda y, t: functional.l1_loss(y, t, reduction="none")),
    (ElasticLearningLoss(), lambda y, t: abs(y - t) / 2 + (y - t) ** 2 / 2, None),
    (ElasticLearningLoss(0.1, 0.9), lambda y, t: 0.1 * abs(y - t) + 0.9 * (y - t) ** 2,
     lambda y, t: 0.1 * functional.l1_loss(y, t, reduction="none") + 0.9 * functional.mse_loss(y, t, reduction="none")),
    (ElasticLearningLoss(l1_weight=0), lambda y, t: (y - t) ** 2 / 2, None),
    (ElasticLearningLoss(l2_weight=0), lambda y, t: abs(y - t) / 2, None),
    (HuberLearningLoss(), lambda y, t: huber(y - t, 1.0), lambda y, t: functional.huber_loss(y, t, reduction="none")),
    (HuberLearningLoss(delta=2.5), lambda y, t: huber(y - t, 2.5),
     lambda y, t: functional.huber_loss(y, t, reduction="none", delta=2.5)),
    (POISSON, lambda y, t: np.exp(y) - t * y, lambda y, t: functional.poisson_nll_loss(y, t, reduction="none")),
    (HINGE, lambda y, t: np.maximum(0, 1 - np.where(t == 1, y, -y)),
     lambda y, t: functional.margin_ranking_loss(y, torch.zeros_like(y), 2 * t - 1, margin=1.0, reduction="none")),
    (BINARY, lambda y, t: np.logaddexp(0, y) - t * y,
     lambda y, t: functional.binary_cross_entropy_with_logits(y, t, reduction="none")),
    (LABELS, lambda y, t: -np.take_along_axis(log_softmax(y), t[:, None], axis=1)[:, 0],
     lambda y, t: functional.cross_entropy(y, t, reduction="none")),
]


def example(rng, loss, shape, dtype):
    y = rng.normal(size=shape).astype(dtype) * 3
    t = rng.normal(size=shape).astype(dtype)
    if loss in (BINARY, HINGE):
        t = (t > 0).astype(dtype)
    elif loss == POISSON:
        t = rng.poisson(2.0, shape).astype(dtype)
    return y, rng.integers(0, shape[1], loss.target_shape(shape)) if loss == LABELS else t


def run(loss, y, t, w=None):
    model = loss.build_onnx_function(dtype=y.dtype, shape=["N", *y.shape[1:]], weighted=w is not None)
    return evaluate(model, {"y": y, "t": t} if w is None else {"y": y, "t": t, "w": w})


@pytest.mark.parametrize(("loss", "formula", "in_torch"), TABLE,
                         ids=lambda v: repr(v) if isinstance(v, BaseLearningLoss) else "")
@pytest.mark.parametrize("shape", [(6, 1), (6, 4), (6, 4, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_formula(rng, loss, formula, in_torch, shape, dtype, weighted):
    y, t = example(rng, loss, shape, dtype)
    w = rng.integers(0, 3, 6).astype(dtype) if weighted else None
    actual = run(loss, y, t, w)
    rtol = 1e-5 if dtype == "float32" else 1e-12
    rows = formula(y, t).reshape(6, -1).mean(axis=1)
    np.testing.assert_allclose(actual["loss"], np.average(rows, weights=w), rtol=rtol)
    if in_torch is None:
        return
    v = torch.tensor(y, requires_grad=True)
    rows = in_torch(v, torch.tensor(t)).reshape(6, -1).mean(dim=1)
    (rows.mean() if w is None else (rows * torch.tensor(w)).sum() / w.sum()).backward()
    np.testing.assert_allclose(actual["y_grad"], v.grad.numpy(), rtol=rtol, atol=rtol * abs(v.grad.numpy()).max())


def test_one_axis(rng):
    y, t = rng.normal(size=(2, 5))
    actual = run(SquareLearningLoss(), y, t, np.arange(5.0))
    np.testing.assert_allclose(actual["loss"], np.average((y - t) ** 2, weights=range(5)))


@pytest.mark.parametrize("loss", [AbsoluteLearningLoss(), ElasticLearningLoss(), SquareLearningLoss(),
                                  HuberLearningLoss()], ids=repr)
def test_no_gradient_where_there_is_no_error(loss):
    y = np.array([[1.0], [-2.0], [0.0]], np.float32)
    np.testing.assert_array_equal(run(loss, y, y)["y_grad"], 0)


def test_huber_at_its_bends():
    e = np.array([[-1e30], [-3.0], [-2.0], [0.0], [2.0], [3.0], [1e30]], np.float32)
    actual = run(HuberLearningLoss(delta=2), e, np.zeros_like(e))
    np.testing.assert_allclose(actual["y_grad"] * 7, [[-2], [-2], [-2], [0], [2], [2], [2]], rtol=1e-6)
    assert np.isfinite(actual["loss"])


def test_hinge_at_its_bend():
    y, t = np.array([[1.0], [-1.0], [0.0], [0.5], [0.5]], np.float32), np.array([[1], [0], [1], [1], [0]], np.float32)
    actual = run(HINGE, y, t)
    np.testing.assert_allclose(actual["loss"] * 5, 3.0, rtol=1e-6)
    np.testing.assert_allclose(actual["y_grad"] * 5, [[0], [0], [-1], [-1], [1]], rtol=1e-6)


@pytest.mark.parametrize(("dtype", "largest"), [("float32", 88.7), ("float64", 709.7)])
def test_poisson_is_finite_as_long_as_the_exponential_is(dtype, largest):
    y, t = np.array([[largest]], dtype), np.ones((1, 1), dtype)
    assert np.isfinite(run(POISSON, y, t)["loss"])
    assert run(POISSON, y + y.dtype.type(0.2), t)["loss"] == np.inf
    np.testing.assert_allclose(run(POISSON, -y, t)["loss"], largest, rtol=1e-6)


@pytest.mark.parametrize(
    ("loss", "good", "bad", "message"),
    [
        (POISSON, [0, 2.5, 7], [3, -1, 2], "target has numbers from -1.0 on, where counts, at least 0, were expected."),
        (POISSON, [0], [np.nan], "target has numbers from nan on, where counts, at least 0, were expected."),
        (HINGE, [0, 1, 1], [-1, 1, -1], "target has the number -1.0, where labels of 0 and 1 were expected; labels of "
                                        "-1 and 1 become these by y > 0."),
        (BINARY, [0, 1], [-1, 1], "target has numbers from -1.0 to 1.0, where labels of 0 and 1 were expected; labels "
                                  "of -1 and 1 become these by y > 0."),
        (HINGE, [0], [1, 0.5], "target has the number 0.5, where labels of 0 and 1 were expected."),
        (HINGE, [1], [np.nan], "target has the number nan, where labels of 0 and 1 were expected."),
        (BINARY, [0, 0.5, 1], [0, 2], "target has numbers from 0.0 to 2.0, where labels of 0 and 1 were expected."),
    ],
)
def test_targets_out_of_domain(loss, good, bad, message):
    for t in (good, []):
        loss.check_target(np.array(t, np.float32).reshape(-1, 1), "target")
    with pytest.raises(DataError) as e:
        loss.check_target(np.array(bad, np.float32).reshape(-1, 1), "target")
    assert str(e.value) == message


@pytest.mark.parametrize("loss", [BINARY, HINGE], ids=repr)
def test_labels_of_scores(loss):
    actual = loss.labels(np.array([[-3.0], [0.0], [1e-9]], np.float32))
    np.testing.assert_array_equal(actual, [[0], [0], [1]])
    assert actual.dtype == np.int64


@pytest.mark.parametrize("loss", [SquareLearningLoss(), HuberLearningLoss(), POISSON], ids=repr)
def test_a_quantity_has_no_labels(loss):
    assert loss.labels(np.zeros((3, 1), np.float32)) is None


def test_scores_of_any_size():
    y = np.array([[1e4], [-1e4], [0.0], [88.0], [-88.0], [1e4], [-1e4], [3e38]], np.float32)
    t = np.array([[1], [0], [1], [1], [0], [0], [1], [1]], np.float32)
    actual = run(BINARY, y, t)
    assert np.isfinite(actual["loss"])
    np.testing.assert_allclose(actual["y_grad"] * 8, [[0], [0], [-0.5], [0], [0], [1], [-1], [0]], atol=1e-7)
    exact = [0, 0, np.log(2), 0, 0, 1e4, 1e4]
    for i, expected in enumerate(exact):
        np.testing.assert_allclose(run(BINARY, y[i : i + 1], t[i : i + 1])["loss"], expected, rtol=1e-6, atol=1e-7)


def test_a_score_of_zero_has_a_gradient():
    # |y| has none there, which a formula by |y| must not inherit: weights often start as zeros.
    np.testing.assert_array_equal(run(BINARY, np.zeros((2, 1), np.float32), np.array([[0], [1]], np.float32))["y_grad"],
                                  [[0.25], [-0.25]])


def test_target_may_be_a_probability(rng):
    y, t = rng.normal(size=(4, 1)), rng.uniform(size=(4, 1))
    p = 1 / (1 + np.exp(-y))
    np.testing.assert_allclose(run(BINARY, y, t)["loss"], -(t * np.log(p) + (1 - t) * np.log(1 - p)).mean())
    np.testing.assert_allclose(run(BINARY, y, t)["y_grad"], (p - t) / 4)


@pytest.mark.parametrize("loss", [LABELS, SoftmaxCrossEntropyLearningLoss(class_weight=[1, 2])], ids=repr)
def test_labels_out_of_range_have_no_gradient(loss):
    """Nor do they read foreign memory, in a graph whose labels nobody has checked."""
    y = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
    actual = run(loss, y, np.array([-1, 2, -(2**62), 1]))
    np.testing.assert_array_equal(actual["y_grad"][:3], 0)
    assert (actual["y_grad"][3] != 0).all()
    assert np.isfinite(actual["loss"])


#: The shape of the scores, and the axis of their classes: rows, tokens, pixels.
SCORES = [((6, 5), 1), ((4, 3, 5), -1), ((4, 5, 3), 1), ((2, 5, 3, 4), 1), ((2, 3, 4, 5), -1)]


def in_torch(loss, y, t, w):
    """Loss and gradient of torch, whose mean is over what counts."""
    n = y.shape[loss.axis]
    c = None
    if loss.class_weight is not None:
        c = torch.tensor([loss.class_weight.get(k, 1.0) for k in range(n)] if isinstance(loss.class_weight, dict)
                         else loss.class_weight, dtype=torch.float64)
    v, t = torch.tensor(y, dtype=torch.float64, requires_grad=True), torch.tensor(t)
    ignored = -(2**40) if loss.ignore_index is None else loss.ignore_index
    settings = {"weight": c, "ignore_index": ignored, "label_smoothing": loss.label_smoothing}
    if w is None:
        mean = functional.cross_entropy(v.movedim(loss.axis, 1), t, **settings)
    else:
        costs = functional.cross_entropy(v.movedim(loss.axis, 1), t, reduction="none", **settings)
        w = torch.tensor(w, dtype=torch.float64).reshape(w.shape + (1,) * (t.ndim - w.ndim))
        counts = torch.ones(n, dtype=torch.float64) if c is None else c
        mean = (w * costs).sum() / (w * counts[t.clamp(0, n - 1)] * (t != ignored)).sum()
    mean.backward()
    return mean.item(), v.grad.numpy()


@pytest.mark.parametrize(("shape", "axis"), SCORES, ids=str)
@pytest.mark.parametrize(
    ("ignore_index", "smoothing", "class_weight"),
    [(-100, 0, None), (2, 0, None), (-100, 0.1, None), (None, 0.1, None), (-100, 0, [0.5, 2, 1, 0, 3]),
     (2, 0.1, [0.5, 2, 1, 0, 3]), (None, 0, {1: 0.25}), (-100, 1, {1: 0.25})], ids=str)
@pytest.mark.parametrize("weighted", [False, True, "elements"])
def test_what_counts(rng, shape, axis, ignore_index, smoothing, class_weight, weighted):
    loss = SoftmaxCrossEntropyLearningLoss(axis, ignore_index, smoothing, class_weight)
    target = loss.target_shape(shape)
    y, t = rng.normal(size=shape), rng.integers(0, 5, target)
    if ignore_index is not None:
        t[rng.uniform(size=target) < 0.4] = ignore_index
    w = rng.uniform(size=target if weighted == "elements" else target[:1]) if weighted else None
    sizes = ["N", *(size if i == axis % len(shape) else f"d{i}" for i, size in enumerate(shape[1:], 1))]
    expected, gradient = in_torch(loss, y, t, w)
    for dtype, tol in (("float64", 1e-12), ("float32", 1e-6)):
        model = loss.build_onnx_function(dtype=dtype, shape=sizes, weighted=weighted)
        feeds = {"y": y.astype(dtype), "t": t, **({} if w is None else {"w": w.astype(dtype)})}
        actual = evaluate(model, feeds)
        np.testing.assert_allclose(actual["loss"], expected, rtol=tol)
        np.testing.assert_allclose(actual["y_grad"], gradient, atol=tol * abs(gradient).max())
    counts, ones = loss.count_array(t), np.ones(target)
    v = variable("y", "float64", shape), variable("t", "int64", target)
    graph = loss.counts(*v)
    assert (counts is None) == (graph is None)
    if counts is not None:
        feeds = {"y": y, "t": t}
        np.testing.assert_array_equal(evaluate(build(v, {"c": graph}), feeds)["c"] * ones, counts * ones)


@pytest.mark.parametrize("weighted", [False, True, "elements"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("class_weight", [None, [1, 0, 2]])
def test_a_batch_in_which_nothing_counts(weighted, smoothing, class_weight):
    """Torch gives NaN there, and in an epoch of many batches the next step would lose all weights."""
    y = np.array([[1, 2, 3], [3, 4, 9]], np.float32)
    loss = SoftmaxCrossEntropyLearningLoss(label_smoothing=smoothing, class_weight=class_weight)
    w = np.ones(2, np.float32) if weighted else None
    actual = run(loss, y, np.array([-100, -100]), w)
    assert actual["loss"] == 0
    np.testing.assert_array_equal(actual["y_grad"], 0)
    if weighted:
        np.testing.assert_array_equal(run(loss, y, np.array([0, 2]), 0 * w)["y_grad"], 0)


def test_classes_of_unknown_number(rng):
    y, t = rng.normal(size=(4, 3)), np.array([0, -100, 1, 2])
    for settings in ({"class_weight": [1, 2, 0.5]}, {"label_smoothing": 0.2}, {"ignore_index": 1}):
        loss = SoftmaxCrossEntropyLearningLoss(**settings)
        t = np.where(t < 0, loss.ignore_index, t)
        model = loss.build_onnx_function(dtype="float64", shape=["N", None], weighted=False)
        np.testing.assert_allclose(evaluate(model, {"y": y, "t": t})["loss"], in_torch(loss, y, t, None)[0])


def test_balanced_classes():
    t = np.array([0, 0, 0, 3, -100, 3])
    loss = SoftmaxCrossEntropyLearningLoss(class_weight="balanced").balanced(t)
    np.testing.assert_allclose(
        [loss.class_weight[k] for k in (0, 3)], compute_class_weight("balanced", classes=np.array([0, 3]), y=t[t >= 0]))
    assert loss.count_array(np.array([0, 1, 3, -100])).tolist() == [5 / 6, 1, 5 / 4, 0]


def test_excluded_classes():
    y = np.array([[1, -np.inf, 2], [-np.inf, 3, -np.inf]], np.float32)
    actual = run(LABELS, y, np.array([0, 1]))
    np.testing.assert_allclose(actual["loss"], np.log(1 + np.e) / 2, rtol=1e-6)
    np.testing.assert_allclose(actual["y_grad"] * 2, [[1 / (1 + np.e) - 1, 0, np.e / (1 + np.e)], [0, 0, 0]], rtol=1e-6)


def test_scores_far_apart():
    y = np.array([[1e4, -1e4, 0], [-3e4, 3e4, 0]], np.float32)
    actual = run(LABELS, y, np.array([1, 1]))
    np.testing.assert_allclose(actual["loss"], 1e4, rtol=1e-6)
    np.testing.assert_allclose(actual["y_grad"], [[0.5, -0.5, 0], [0, 0, 0]], atol=1e-7)


@pytest.mark.parametrize("shape", [["N", None], [None, "C"], [4, "C"]], ids=str)
def test_unknown_number_of_classes(rng, shape):
    y, t = rng.normal(size=(4, 3)), np.array([0, 2, 1, 1])
    model = LABELS.build_onnx_function(dtype="float64", shape=shape, weighted=False)
    np.testing.assert_allclose(evaluate(model, {"y": y, "t": t})["loss"], -log_softmax(y)[range(4), t].mean())


@pytest.mark.parametrize(
    ("loss", "shape", "expected"),
    [(SquareLearningLoss(), ["N", 1], ("N", 1)), (BINARY, (4,), (4,)), (LABELS, ["N", 3], ("N",)),
     (LABELS, (4, 3, None, "d"), (4, None, "d"))],
)
def test_target(loss, shape, expected):
    assert loss.target_shape(shape) == expected
    assert loss.target_dtype == (np.int64 if loss == LABELS else None)


@pytest.mark.parametrize("shape", [(), (4,)], ids=str)
def test_scores_need_an_axis_of_classes(shape):
    message = r"the output has the shape .*, scores of shape \(N, C\) or \(N, C, d, \.\.\.\) were expected\."
    with pytest.raises(GraphError, match=message):
        LABELS.target_shape(shape)
    with pytest.raises(GraphError, match=message):
        LABELS(variable("y", "float32", shape), variable("t", "int64", shape))


def test_target_of_another_shape_is_an_error_not_broadcast():
    model = SquareLearningLoss().build_onnx_function(shape=[4, 1], weighted=False)
    with pytest.raises(DataError, match="t"):
        evaluate(model, {"y": np.zeros((4, 1), np.float32), "t": np.zeros(4, np.float32)})


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("square_error", "squared_error", "SquareLearningLoss"), SquareLearningLoss()),
        (("absolute_error", "AbsoluteLearningLoss"), AbsoluteLearningLoss()),
        (("elastic", "ElasticLearningLoss"), ElasticLearningLoss(0.5, 0.5)),
        (("huber", "HuberLearningLoss"), HuberLearningLoss(1.0)),
        (("poisson", "PoissonLearningLoss"), POISSON),
        (("hinge", "HingeLearningLoss"), HINGE),
        (("log_loss", "NegLogLearningLoss"), BINARY),
        (("softmax_cross_entropy", "cross_entropy", "SoftmaxCrossEntropyLearningLoss"), LABELS),
    ],
)
def test_names(names, expected):
    assert {resolve_loss(name) for name in names} == {expected}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ElasticLearningLoss(l1_weight=-0.1),
         "ElasticLearningLoss: l1_weight is -0.1, a finite number at least 0 was expected."),
        (lambda: ElasticLearningLoss(l2_weight="0.1"),
         "ElasticLearningLoss: l2_weight is '0.1', a finite number at least 0 was expected."),
        (lambda: ElasticLearningLoss(0, 0),
         "ElasticLearningLoss: l1_weight and l2_weight are both 0, one at least must be more."),
        (lambda: SoftmaxCrossEntropyLearningLoss(axis=0),
         "SoftmaxCrossEntropyLearningLoss: axis is 0, the axis of the rows; that of the classes was expected, such as"),
        (lambda: SoftmaxCrossEntropyLearningLoss(axis=1.5),
         "SoftmaxCrossEntropyLearningLoss: axis is 1.5, a whole number was expected."),
        (lambda: SoftmaxCrossEntropyLearningLoss(ignore_index="pad"),
         "SoftmaxCrossEntropyLearningLoss: ignore_index is 'pad', a whole number was expected."),
        (lambda: SoftmaxCrossEntropyLearningLoss(label_smoothing=1.5),
         "SoftmaxCrossEntropyLearningLoss: label_smoothing is 1.5, a finite number at least 0 and at most 1 was "),
        (lambda: HuberLearningLoss(0), "HuberLearningLoss: delta is 0, a finite number more than 0 was expected."),
        (lambda: resolve_loss("log_los"), "learning_loss: 'log_los' is not known. Did you mean 'log_loss'? Known are "),
        (lambda: resolve_loss(None), "learning_loss: None is a NoneType; a name (square_error, "),
    ],
)
def test_errors(make, message):
    with pytest.raises(SettingError) as e:
        make()
    assert str(e.value).startswith(message)


@pytest.mark.parametrize(
    ("loss", "weighted", "expected"),
    [
        # Sizes are known, so that what does not depend on the data is folded when the graph is loaded.
        (SquareLearningLoss(), False, {"Sub": 1, "Pow": 1, "ReduceMean": 1, "Mul": 1}),
        (BINARY, False, {"Softplus": 1, "Sigmoid": 1, "Mul": 3, "Sub": 1, "ReduceMean": 1, "Add": 1}),
        (HINGE, False, {"Mul": 4, "Sub": 2, "Relu": 1, "ReduceMean": 1, "Greater": 1, "Cast": 1, "Neg": 1}),
    ],
    ids=repr,
)
def test_number_of_operators_that_depend_on_the_data(loss, weighted, expected):
    graph = loss.build_onnx_function(shape=[32, 1], weighted=weighted).graph
    alive, count = {i.name for i in graph.input}, {}
    for node in graph.node:
        if alive & set(node.input):
            alive.update(node.output)
            count[node.op_type] = count.get(node.op_type, 0) + 1
    assert count == expected
