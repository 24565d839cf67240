"""Labels that do not count, weights of tokens and pixels, class weights: the trainings of torch, by every engine."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

from ortpartial import OrtGradientForwardBackward
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import DataError, GraphError, SettingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.losses import SoftmaxCrossEntropyLearningLoss as Loss
from ortpartial.runtime.session import Session
from ortpartial.torch import OnnxLayer

ENGINES = ["step", "epoch", pytest.param("agent", marks=pytest.mark.agent)]
ROWS, BATCH, EPOCHS = 19, 5, 3


def weight(name, *shape):
    return constant((np.random.default_rng(len(name)).normal(size=shape) / 2).astype(np.float32), hint=name)


def tagger():
    """Scores (rows, tokens, classes) of token ids."""
    x = variable("ids", "int64", ["N", 6])
    return build([x], {"scores": op.Tanh(op.Gather(weight("E", 11, 4), x)) @ weight("W", 4, 5)})


def segmenter():
    """Scores (rows, classes, height, width) of images."""
    x = variable("x", "float32", ["N", 2, 4, 4])
    h = op.Relu(op.Conv(x, weight("K1", 3, 2, 3, 3), pads=[1, 1, 1, 1]))
    return build([x], {"scores": op.Conv(h, weight("K2_", 5, 3, 1, 1))})


def run_tagger(w, x):
    return torch.tanh(w["E"][x]) @ w["W"]


def run_segmenter(w, x):
    return functional.conv2d(functional.conv2d(x, w["K1"], padding=1).relu(), w["K2_"])


def rng():
    return np.random.default_rng(7)


def tokens(share, rows=ROWS):
    """Ids, and labels of which a share does not count; in one row none counts."""
    ids, labels = rng().integers(0, 11, (rows, 6)), rng().integers(0, 5, (rows, 6))
    labels[rng().uniform(size=labels.shape) < share] = -100
    labels[1] = -100
    return ids, labels


def next_tokens():
    """A causal language model: the labels are the ids that follow, and padding does not count."""
    ids, lengths = rng().integers(0, 5, (ROWS, 6)), rng().integers(1, 7, ROWS)
    labels = np.where(np.arange(1, 7) < lengths[:, None], np.roll(ids, -1, axis=1), -100)
    return ids, labels


def pixels():
    labels = rng().integers(0, 5, (ROWS, 4, 4))
    labels[rng().uniform(size=labels.shape) < 0.3] = 255
    return rng().normal(size=(ROWS, 2, 4, 4)).astype(np.float32), labels


TASKS = {
    "token classification": (tagger, run_tagger, Loss(axis=-1), tokens(0.4)),
    "causal language model": (tagger, run_tagger, Loss(axis=-1, label_smoothing=0.1), next_tokens()),
    "masked language model": (tagger, run_tagger, Loss(axis=-1, class_weight={0: 0.1, 3: 2}), tokens(0.85)),
    "segmentation": (segmenter, run_segmenter, Loss(ignore_index=255, class_weight=[1, 0.5, 2, 1, 0]), pixels()),
}
tasks = pytest.mark.parametrize("task", TASKS)
engines = pytest.mark.parametrize("engine", ENGINES)
weights = pytest.mark.parametrize("weighted", [None, "rows", "elements"])


def weigh(weighted, labels):
    return rng().uniform(0.1, 2, labels.shape if weighted == "elements" else ROWS) if weighted else None


def torch_training(task, w):
    """Weights and losses of torch: Σwℓ / Σwc of each batch, and of each epoch."""
    _, forward, loss, (X, labels) = TASKS[task]
    start = {n: torch.tensor(a, dtype=torch.float64) for n, a in optimizer(task).trained_coef_.items()}
    params = {n: v.requires_grad_() for n, v in start.items()}
    n = 5
    c = loss.class_weight
    c = [1.0] * n if c is None else [c.get(k, 1.0) for k in range(n)] if isinstance(c, dict) else c
    c = torch.tensor(c, dtype=torch.float64)
    w = torch.ones(ROWS, dtype=torch.float64) if w is None else torch.tensor(w)
    w = w.reshape(w.shape + (1,) * (labels.ndim - w.ndim))
    X = torch.tensor(X) if X.dtype == np.int64 else torch.tensor(X).double()
    losses = []
    for _ in range(EPOCHS):
        total = count = 0.0
        for rows in torch.arange(ROWS).split(BATCH):
            t = torch.tensor(labels)[rows]
            costs = functional.cross_entropy(forward(params, X[rows]).movedim(loss.axis, 1), t, c, reduction="none",
                                             ignore_index=loss.ignore_index, label_smoothing=loss.label_smoothing)
            counts = (w[rows] * c[t.clamp(0, n - 1)] * (t != loss.ignore_index)).sum()
            cost = (w[rows] * costs).sum()
            gradients = torch.autograd.grad(cost / counts, list(params.values()))
            total, count = total + cost.item(), count + counts.item()
            with torch.no_grad():
                for p, g in zip(params.values(), gradients, strict=True):
                    p -= 0.3 * g
        losses.append(total / count)
    return {n: v.detach().numpy() for n, v in params.items()}, losses


def optimizer(task, **settings):
    make, _, loss, _ = TASKS[task]
    return Optimizer(make(), **{"learning_loss": loss, "learning_rate": 0.3, "batch_size": BATCH, "max_iter": EPOCHS,
                                "shuffle": False, **settings})


def assert_trained(o, expected, losses):
    for n, a in o.trained_coef_.items():
        assert abs(a - expected[n]).max() <= 1e-6 * abs(expected[n]).max(), n
    np.testing.assert_allclose(o.train_losses_, losses, rtol=1e-6)


@tasks
@weights
@engines
def test_follows_torch(task, weighted, engine):
    X, labels = TASKS[task][3]
    w = weigh(weighted, labels)
    expected, losses = torch_training(task, w)
    o = optimizer(task, engine=engine).fit(X, labels, w)
    assert_trained(o, expected, losses)
    rows = [slice(i, i + BATCH) for i in range(0, ROWS, BATCH)]
    if engine == "step":
        batches = [(X[r], labels[r]) if w is None else (X[r], labels[r], w[r]) for r in rows]
        assert_trained(optimizer(task, engine=engine).fit(batches), expected, losses)
        o = optimizer(task)
        for r in rows * EPOCHS:
            o.partial_fit(X[r], labels[r], None if w is None else w[r])
        assert_trained(o, expected, o.train_losses_)


@engines
def test_batches_of_many_lengths(engine):
    """Each counts by its labels that count, not by its rows: the mean of an epoch is over all of them."""
    x, loss = variable("ids", "int64", ["N", "L"]), Loss(axis=-1, class_weight={1: 3})
    model = build([x], {"scores": op.Tanh(op.Gather(weight("E", 11, 4), x)) @ weight("W", 4, 5)})
    random, batches = rng(), []
    for i, length in enumerate((3, 7, 5, 2, 4, 3, 6)):
        ids, labels = random.integers(0, 11, (4, length)), random.integers(0, 5, (4, length))
        labels[random.uniform(size=labels.shape) < 0.4 * (i % 3)] = -100
        batches.append((ids, labels))
    o = Optimizer(model, learning_loss=loss, learning_rate=1e-30, max_iter=2, engine=engine)
    o.fit(batches, X_val=batches)
    c = torch.tensor([1.0, 3, 1, 1, 1])
    costs = [functional.cross_entropy(torch.tensor(o.predict(ids)).movedim(-1, 1), torch.tensor(labels), c,
                                      reduction="sum").item() for ids, labels in batches]
    mean = sum(costs) / sum(loss.count_array(labels).sum() for _, labels in batches)
    np.testing.assert_allclose([*o.train_losses_, o.validation_losses_[-1]], mean, rtol=1e-6)


@engines
def test_batches_in_which_nothing_counts(engine):
    """They move no weight, and the loss of an epoch is that of the others."""
    X, labels = tokens(0.4)
    labels[5:10] = -100
    o = optimizer("token classification", engine=engine).fit(X, labels)
    kept = np.r_[:5, 10:ROWS]
    other = optimizer("token classification", engine=engine).fit(X[kept], labels[kept])
    for a, b in zip(o.get_state(), other.get_state(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(o.train_losses_, other.train_losses_, rtol=1e-6)
    before = o.get_state()
    o.partial_fit(X[:3], np.full((3, 6), -100))
    assert o.train_losses_[-1] == 0
    assert all((a == b).all() for a, b in zip(o.get_state(), before, strict=True))


def test_a_batch_without_such_labels_takes_the_same_step():
    X, labels = tokens(0.4)
    full = np.maximum(labels, 0)
    a, b = optimizer("token classification"), optimizer("token classification")
    for o, w in ((a, None), (b, np.ones(full.shape))):
        o.partial_fit(X, labels).partial_fit(X, full, w)
    for u, v in zip(a.get_state(), b.get_state(), strict=True):
        np.testing.assert_allclose(u, v, rtol=1e-5, atol=1e-7)


@tasks
@weights
def test_losses_score_and_validation(task, weighted):
    _, _, loss, (X, labels) = TASKS[task]
    w = weigh(weighted, labels)
    o = optimizer(task)
    scores = torch.tensor(o.predict(X)).movedim(loss.axis, 1)
    full = np.ones(labels.shape) if w is None else np.broadcast_to(w.reshape(w.shape + (1,) * (labels.ndim - w.ndim)),
                                                                  labels.shape)
    counted = full * (labels != loss.ignore_index)
    hits = scores.argmax(1).numpy() == labels
    np.testing.assert_allclose(o.score(X, labels, w), (counted * hits).sum() / counted.sum(), rtol=1e-6)
    c = loss.class_weight
    c = [1.0] * 5 if c is None else [c.get(k, 1.0) for k in range(5)] if isinstance(c, dict) else c
    c = torch.tensor(c, dtype=torch.float32)
    costs = functional.cross_entropy(scores, torch.tensor(labels), c, reduction="none", ignore_index=loss.ignore_index,
                                     label_smoothing=loss.label_smoothing).numpy()
    counts = counted * c.numpy()[np.clip(labels, 0, 4)]
    total, sums = (full * costs).reshape(ROWS, -1).sum(1), counts.reshape(ROWS, -1).sum(1)
    expected = np.divide(total, sums, out=np.zeros(ROWS), where=sums > 0)
    np.testing.assert_allclose(o.losses(X, labels, w), expected, rtol=1e-5)
    if w is None:
        o.fit(X, labels, X_val=X[:9], y_val=labels[:9])
        np.testing.assert_allclose(o.validation_losses_[-1], (o.losses(X[:9], labels[:9]) * sums[:9]).sum()
                                   / sums[:9].sum(), rtol=1e-6)


def test_several_outputs():
    """Each has its own mean over what counts in it."""
    x = variable("ids", "int64", ["N", 6])
    h = op.Tanh(op.Gather(weight("E", 11, 4), x))
    model = build([x], {"tags": h @ weight("W", 4, 5), "topic": op.ReduceMean(h, [1], keepdims=0) @ weight("V", 4, 3)})
    (X, tags), topics = tokens(0.5), rng().integers(0, 3, ROWS)
    topics[::3] = -100
    losses = {"tags": Loss(axis=-1), "topic": Loss(class_weight=[1, 2, 3])}
    w = {"tags": rng().uniform(size=(ROWS, 6)), "topic": rng().uniform(size=ROWS)}
    for given in (None, w, w["topic"]):
        o = Optimizer(model, learning_loss=losses, learning_rate=0.3, batch_size=ROWS, max_iter=2, shuffle=False)
        outputs = o.predict(X)
        expected = 0.0
        for n, t in (("tags", tags), ("topic", topics)):
            u = torch.ones(t.shape) if given is None else torch.tensor(given[n] if given is w else given)
            u = u.reshape(u.shape + (1,) * (t.ndim - u.ndim))
            c = torch.tensor([1.0, 2, 3] if n == "topic" else [1.0] * 5)
            y = torch.tensor(outputs[n]).movedim(-1, 1)
            costs = functional.cross_entropy(y, torch.tensor(t), c, reduction="none")
            expected += ((u * costs).sum() / (u * torch.tensor(t != -100) * c[torch.tensor(t).clamp(0)]).sum()).item()
        y = {"tags": tags, "topic": topics}
        np.testing.assert_allclose(o.fit(X, y, given).train_losses_[0], expected, rtol=1e-6)
        o.fit(X, y, X_val=X, y_val=y)
        last = o.validation_losses_[-1]
        assert abs(o.partial_fit(X, y).train_losses_[-1] - last) <= 1e-6 * last


@pytest.mark.parametrize("settings", [{"checkpointing": "auto"}, {"precision": "float16"}], ids=str)
@weights
def test_other_steps(settings, weighted):
    """One copy of the weights, and mixed precision."""
    X, labels = tokens(0.4)
    w = weigh(weighted, labels)
    o = optimizer("token classification", **settings).fit(X, labels, w)
    expected = optimizer("token classification").fit(X, labels, w)
    tol = 1e-2 if "precision" in settings else 1e-6
    for a, b in zip(o.get_state(), expected.get_state(), strict=True):
        assert abs(a - b).max() <= tol * abs(b).max()
    np.testing.assert_allclose(o.train_losses_, expected.train_losses_, rtol=tol)


@tasks
@pytest.mark.parametrize("weighted", [False, True, "elements"])
def test_a_loop_of_your_own(task, weighted):
    """The loss as a model of its own, between forward and backward, in torch as well."""
    make, _, loss, (X, labels) = TASKS[task]
    w = weigh({False: None, True: "rows"}.get(weighted, weighted), labels)
    layer, module = OrtGradientForwardBackward(make()), OnnxLayer(make())
    (y,), state = layer.forward(X)
    feeds = {"y": y, "t": labels, **({} if w is None else {"w": w.astype(np.float32)})}
    result = Session(loss.build_onnx_function(shape=["N", *y.shape[1:]], weighted=weighted)).run(feeds)
    gradients, _ = layer.backward([result["y_grad"]], state)
    expected = optimizer(task, batch_size=ROWS, max_iter=1).fit(X, labels, w)
    np.testing.assert_allclose(result["loss"], expected.train_losses_[0], rtol=1e-6)
    for (n, g), before in zip(gradients.items(), layer.get_state(), strict=True):
        np.testing.assert_allclose(before - 0.3 * g, expected.trained_coef_[n], rtol=1e-5, atol=1e-6)
    if not weighted and loss.class_weight is None:
        scores = module(torch.tensor(X)).movedim(loss.axis, 1)
        cost = functional.cross_entropy(scores, torch.tensor(labels), ignore_index=loss.ignore_index,
                                        label_smoothing=loss.label_smoothing)
        np.testing.assert_allclose(cost.item(), result["loss"], rtol=1e-6)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:Exporting aten..index:UserWarning")
def test_a_transformer_for_tokens(tmp_path):
    """The labels of transformers, -100 where a token is padding or the second of a word, and its loss."""
    transformers = pytest.importorskip("transformers", reason="needs transformers 5.23.0, which needs Python 3.11")
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(dim=8, hidden_dim=12, n_layers=1, n_heads=2, vocab_size=31, num_labels=5,
                                           max_position_embeddings=8, attn_implementation="eager")
    net = transformers.DistilBertForTokenClassification(config).eval()
    with torch.no_grad():  # exporters merge tensors that are equal, as they are at the start
        for p in net.parameters():
            p.add_(0.2 * torch.rand_like(p))
    ids, mask = torch.tensor(rng().integers(1, 31, (8, 6))), torch.ones(8, 6, dtype=torch.int64)
    labels = torch.tensor(rng().integers(0, 5, (8, 6)))
    for i in range(8):
        labels[i, i % 6 + 1 :], mask[i, i % 6 + 1 :] = -100, 0
    names = ["input_ids", "attention_mask"]
    torch.onnx.export(net, (ids, mask), tmp_path / "net.onnx", dynamo=False, input_names=names, opset_version=18,
                      output_names=["logits"], dynamic_axes={n: {0: "N", 1: "L"} for n in [*names, "logits"]})
    o = Optimizer(tmp_path / "net.onnx", learning_loss=Loss(axis=-1), learning_rate=0.5, batch_size=3, max_iter=4,
                  shuffle=False)
    batches = [{"input_ids": ids[i : i + 3], "attention_mask": mask[i : i + 3]} for i in range(0, 8, 3)]
    o.fit({"input_ids": ids, "attention_mask": mask}, labels)
    descent, losses = torch.optim.SGD(net.parameters(), 0.5), []
    for _ in range(4):
        total, count = 0.0, 0
        for i, batch in enumerate(batches):
            t = labels[3 * i : 3 * i + 3]
            descent.zero_grad()
            loss = net(**batch, labels=t).loss
            loss.backward()
            descent.step()
            total, count = total + loss.item() * (t >= 0).sum().item(), count + (t >= 0).sum().item()
        losses.append(total / count)
    np.testing.assert_allclose(o.train_losses_, losses, rtol=1e-5)
    with torch.no_grad():
        expected = net(ids, mask).logits.numpy()
    np.testing.assert_allclose(o.predict({"input_ids": ids, "attention_mask": mask}), expected, atol=1e-5)
    hits = (expected.argmax(-1) == labels.numpy())[labels.numpy() >= 0]
    assert o.score({"input_ids": ids, "attention_mask": mask}, labels) == pytest.approx(hits.mean())


@pytest.mark.parametrize(
    ("task", "settings", "labels", "message"),
    [
        ("token classification", {}, np.zeros((4, 6, 5)),
         r"y has shape \(4, 6, 5\), where \(4, 6\) was expected; for one-hot rows or probabilities of classes give "
         r"their labels, y\.argmax\(2\)\.$"),
        ("segmentation", {}, np.zeros((4, 5, 4, 4)), r"where \(4, 4, 4\) was expected; .* y\.argmax\(1\)\.$"),
        ("token classification", {"axis": 1}, np.zeros((4, 6)),
         r"y has shape \(4, 6\), where \(4, 5\) was expected; where axis -1 of the scores, of shape \('N', 6, 5\), is "
         r"that of the classes, use SoftmaxCrossEntropyLearningLoss\(axis=-1\)\.$"),
        ("segmentation", {"axis": -1}, np.zeros((4, 4, 4)), r"use SoftmaxCrossEntropyLearningLoss\(axis=1\)\.$"),
        ("token classification", {}, np.zeros((4, 7)), r"y has shape \(4, 7\), where \(4, 6\) was expected, as the "),
    ],
)
def test_targets_of_another_shape(task, settings, labels, message):
    X = TASKS[task][3][0][:4]
    with pytest.raises(DataError, match=message):
        optimizer(task, learning_loss=Loss(**{"axis": TASKS[task][2].axis, **settings})).fit(X, labels)


@pytest.mark.parametrize("columns", [1, "C"])
def test_one_score_has_a_loss_of_its_own(columns):
    message = "softmax is always 1, so that nothing is learned; learning_loss='log_loss' is for single scores, with"
    x = variable("x", "float32", ["N", columns])
    model = build([x], {"y": x * weight("W", 1)})
    with pytest.raises(SettingError, match=message):
        Optimizer(model, learning_loss="cross_entropy").fit(np.zeros((3, 1)), [0, 1, 0])


def test_class_weights_of_other_classes():
    x = variable("x", "float32", ["N", "C"])
    o = Optimizer(build([x], {"y": x * weight("W", 1)}), learning_loss=Loss(class_weight=[1, 2]))
    with pytest.raises(GraphError, match=r"class_weight is for 2 classes, and the scores of shape \(.*, 3\) have 3\."):
        o.fit(np.zeros((4, 3)), [0, 1, 2, 0])
    assert np.isfinite(o.fit(np.zeros((4, 2)), [0, 1, 0, -100]).train_losses_[0])


@pytest.mark.parametrize("named", [False, True])
def test_balanced_classes(named):
    """The weights are those of the labels of fit, and stay: in partial_fit, in a pickle."""
    x = variable("x", "float32", ["N", 3])
    model = build([x], {"y": x @ weight("W", 3, 3)})
    X, y = rng().normal(size=(30, 3)), rng().choice(3, 30, p=[0.7, 0.2, 0.1])
    y[:4] = -100

    def made(class_weight):
        loss = Loss(class_weight=class_weight)
        return Optimizer(model, learning_loss={"y": loss} if named else loss, max_iter=2, random_state=0)

    with pytest.raises(DataError, match="class_weight='balanced' takes the weights of classes from all labels, as fit"):
        made("balanced").partial_fit(X, y)
    with pytest.raises(DataError, match="'balanced' takes the weights"):
        made("balanced").fit([(X, y)])
    classes = np.arange(3)
    c = compute_class_weight("balanced", classes=classes, y=y[y >= 0])
    o, expected = made("balanced").fit(X, y), made(dict(zip(classes, c, strict=True))).fit(X, y)
    for _ in range(2):
        assert o.train_losses_ == expected.train_losses_
        assert all((a == b).all() for a, b in zip(o.get_state(), expected.get_state(), strict=True))
        assert not named or o.learning_loss["y"].class_weight == "balanced"
        o, expected = pickle.loads(pickle.dumps(o)).partial_fit(X[9:], y[9:]), expected.partial_fit(X[9:], y[9:])
    o.set_params(warm_start=True).fit(X[10:], y[10:])
    assert o.n_iter_ == 6
    o.set_params(engine="step", learning_rate=0.1).partial_fit(X, y)
    assert o.n_iter_ == 7


@pytest.mark.parametrize(
    ("labels", "w", "message"),
    [
        (np.full((2, 6), -100), None, "Nothing counts: every label is the ignore_index, or its sample weight is zero."),
        (np.full((2, 6), 1), np.zeros((2, 6)), "Nothing counts: every label"),
        (np.full((2, 6), -1), None, "y has labels from -1 to -1, where 0 to 4 were expected, or -100 for what does "),
        (np.full((2, 6), 1), np.ones((2, 5)), r"sample_weight has shape \(2, 5\) and X has 2 rows, where one weight a "
                                              r"row or \(2, 6\), the shape of the target, was expected"),
        (np.full((2, 6), 1), np.ones((6, 2)), r"sample_weight has shape \(6, 2\) and X has 2 rows, where one weight"),
        (np.full((2, 6), 1), {"tags": np.ones(2)}, "Missing sample_weight: 'scores'. Unknown sample_weight: 'tags'."),
    ],
)
def test_errors(labels, w, message):
    with pytest.raises(DataError, match=message):
        optimizer("token classification").fit(np.zeros((2, 6), int), labels, w)
