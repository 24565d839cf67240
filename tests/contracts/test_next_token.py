"""Causal language models by `NextTokenLearningLoss`: the trainings of torch, wherever a loss can be trained."""

import json
import pickle

import numpy as np
import onnx
import pytest
import torch
from torch.nn import functional

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import TrainingKit, TrainingSession, nn
from ortpartial.cli import main
from ortpartial.exceptions import DataError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.losses import NextTokenLearningLoss
from ortpartial.model.load import load

ENGINES = ["step", "epoch", pytest.param("agent", marks=pytest.mark.agent)]
ROWS, BATCH, EPOCHS, VOCABULARY = 11, 4, 3, 13


def draw(*shape):
    return (np.random.default_rng(len(shape)).normal(size=shape) / 2).astype(np.float32)


def language_model(tokens=6):
    """Logits (rows, tokens, vocabulary) of token ids."""
    ids = variable("ids", "int64", ["N", tokens])
    h = op.Tanh(op.Gather(constant(draw(VOCABULARY, 4), hint="E"), ids))
    return build([ids], {"logits": h @ constant(draw(4, VOCABULARY), hint="W") + constant(draw(VOCABULARY), hint="b")})


def texts():
    """Ids, and as labels the ids themselves, or -100 behind the end of a row; a row has one token, and one has none."""
    ids, lengths = np.random.default_rng(3).integers(0, VOCABULARY, (ROWS, 6)), np.arange(ROWS) % 7
    return ids, np.where(np.arange(6) < lengths[:, None], ids, -100)


def torch_training(w):
    """Weights and losses of torch, with transformers' loss of each batch."""
    start = Optimizer(language_model()).trained_coef_
    params = {n: torch.tensor(a, dtype=torch.float64, requires_grad=True) for n, a in start.items()}
    ids, labels = map(torch.tensor, texts())
    w = torch.ones(ROWS, dtype=torch.float64) if w is None else torch.tensor(w)
    losses = []
    for _ in range(EPOCHS):
        total = count = 0.0
        for rows in torch.arange(ROWS).split(BATCH):
            y, t = torch.tanh(params["E"][ids[rows]]) @ params["W"] + params["b"], labels[rows, 1:]
            costs = functional.cross_entropy(y[:, :-1].movedim(-1, 1), t, reduction="none")
            cost, counts = (w[rows, None] * costs).sum(), (w[rows, None] * (t != -100)).sum()
            gradients = torch.autograd.grad(cost / counts, list(params.values()))
            total, count = total + cost.item(), count + counts.item()
            with torch.no_grad():
                for p, g in zip(params.values(), gradients, strict=True):
                    p -= 0.3 * g
        losses.append(total / count)
    return {n: v.detach().numpy() for n, v in params.items()}, losses


def optimizer(model=None, **settings):
    return Optimizer(language_model() if model is None else model, **{
        "learning_loss": NextTokenLearningLoss(), "learning_rate": 0.3, "batch_size": BATCH, "max_iter": EPOCHS,
        "shuffle": False, **settings})


def assert_trained(coef, expected, tol=1e-6):
    for n, a in coef.items():
        assert abs(a - expected[n]).max() <= tol * abs(expected[n]).max(), n


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tokens", [6, "T"])
def test_follows_torch(tokens, engine, weighted):
    w = np.random.default_rng(0).uniform(0.1, 2, ROWS) if weighted else None
    expected, losses = torch_training(w)
    o = optimizer(language_model(tokens), engine=engine).fit(*texts(), w)
    assert_trained(o.trained_coef_, expected)
    np.testing.assert_allclose(o.train_losses_, losses, rtol=1e-6)
    assert_trained(pickle.loads(pickle.dumps(o)).trained_coef_, expected)


def test_losses_and_score_are_those_of_the_next_tokens():
    ids, labels = texts()
    o = optimizer(learning_loss="next_token").fit(ids, labels)
    y = torch.tensor(o.predict(ids))
    costs = functional.cross_entropy(y[:, :-1].movedim(-1, 1), torch.tensor(labels[:, 1:]), reduction="none").numpy()
    counts = (labels[:, 1:] != -100).sum(axis=1)
    np.testing.assert_allclose(o.losses(ids, labels), costs.sum(axis=1) / np.maximum(counts, 1), rtol=1e-5)
    hits = (y.numpy().argmax(-1)[:, :-1] == labels[:, 1:])[labels[:, 1:] != -100]
    assert o.score(ids, labels) == pytest.approx(hits.mean())


def test_ids_are_their_own_labels_and_single_tokens_cost_nothing():
    ids, model = texts()[0], language_model("T")
    assert optimizer(model).fit(ids, ids).train_losses_[-1] < np.log(VOCABULARY)
    o = optimizer(model).fit(ids, ids)
    np.testing.assert_array_equal(o.losses(ids[:, :1], ids[:, :1]), 0)
    with pytest.raises(DataError, match=r"^Nothing counts: every label is the ignore_index"):
        optimizer(model).fit(ids[:, :1], ids[:, :1])


@pytest.mark.parametrize(("labels", "message"), [
    ([[0, 1, VOCABULARY]], r"y has labels from 0 to 13, where 0 to 12 were expected, or -100 for what .*\."),
    ([[0, -1, 2]], r"y has labels from -1 to 2, where 0 to 12 were expected, or -100 for what does not count\."),
    ([[1, 2]], r"y has shape \(1, 2\), where \(1, 3\) was expected, the ids of the tokens themselves: the loss shifts "
               r"them by one\."),
])
def test_wrong_labels(labels, message):
    with pytest.raises(DataError, match=f"^{message}$"):
        optimizer(language_model(3)).fit(np.zeros((1, 3), np.int64), np.array(labels))


def test_accumulated_updates_take_the_mean_of_the_means_of_batches():
    ids, labels = texts()
    ids, labels = ids[:8], labels[:8]
    o = optimizer(accumulate=2, max_iter=1).fit(ids, labels)
    params = {n: torch.tensor(a, requires_grad=True) for n, a in optimizer().trained_coef_.items()}
    for rows in (slice(0, 4), slice(4, 8)):
        y = torch.tanh(params["E"][ids[rows]]) @ params["W"] + params["b"]
        (functional.cross_entropy(y[:, :-1].movedim(-1, 1), torch.tensor(labels[rows, 1:])) / 2).backward()
    assert_trained(o.trained_coef_, {n: (p - 0.3 * p.grad).detach().numpy() for n, p in params.items()})


@pytest.mark.parametrize("settings", [{"precision": "float16"}, {"checkpointing": True}, {"averaging": "ema"},
                                      {"gradient_clipping": 100.0}], ids=str)
def test_settings(settings):
    expected = optimizer().fit(*texts()).trained_coef_
    o = optimizer(**settings).fit(*texts())
    assert_trained(o.trained_coef_, expected, 0.05 if "precision" in settings else 1e-6)


def test_exported_trainings_are_recognized_and_kits_train(tmp_path):
    ids, labels = texts()
    o = optimizer(max_iter=1).fit(ids, labels)
    stored = o.get_training_onnx()
    again = Optimizer.from_training_info(stored, shuffle=False, batch_size=BATCH, max_iter=1)
    assert again.learning_loss == NextTokenLearningLoss()
    o.export_step(tmp_path / "kit", targets=(), batch_size=BATCH)
    session, kit = TrainingSession(stored), TrainingKit(tmp_path / "kit")
    loss = o.partial_fit(ids[:4], labels[:4]).train_losses_[-1]
    feeds = {"ids": ids[:4], "logits_target": labels[:4]}
    np.testing.assert_allclose(next(iter(session.step(feeds).values())), loss, rtol=1e-6)
    np.testing.assert_allclose(next(iter(kit.step(feeds).values())), loss, rtol=1e-6)
    with pytest.raises(DataError, match="0 to 12"):
        session.step({**feeds, "logits_target": labels[:4] + VOCABULARY})


def test_rows_without_a_token_are_refused():
    ids, _ = texts()
    with pytest.raises(DataError, match=r"Nothing counts: y has shape \(11, 0\), which has no element"):
        Optimizer(language_model("T"), learning_loss="next_token").fit(ids[:, :0], ids[:, :0])


def test_modules_train_it():
    class LanguageModel(nn.Module):
        def __init__(self):
            self.embedding, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(4, VOCABULARY)
            self.loss, self.optimizer = nn.Loss("next_token"), nn.Optimizer(0.3)

        def forward(self, ids):
            return self.head(self.embedding(ids))

        def train_one_batch(self, ids, labels):
            loss = self.loss(self.forward(ids), labels)
            self.optimizer(loss)
            return loss

    ids, labels = texts()
    model = LanguageModel().compile(nn.placeholder(["N", "T"], "int64"))
    y = torch.tensor(model(ids))
    expected = functional.cross_entropy(y[:, :-1].movedim(-1, 1), torch.tensor(labels[:, 1:]))
    np.testing.assert_allclose(model.train_one_batch(ids, labels), expected, rtol=1e-5)
    with pytest.raises(DataError, match="0 to 12"):
        model.train_one_batch(ids, labels + VOCABULARY)


def test_the_command_line_trains_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ids, labels = texts()
    onnx.save(language_model(), "model.onnx")
    np.savez("data.npz", ids=ids, labels=labels)
    words = "--loss next_token --target labels --rate sgd:0.3 --epochs 3 --batch-size 4 --seed 5 --out trained.onnx"
    assert main(["train", "model.onnx", "data.npz", *words.split()]) == 0
    expected = Optimizer(language_model(), learning_loss="next_token", learning_rate=0.3, max_iter=3, batch_size=4,
                         random_state=5).fit(ids, labels)
    np.testing.assert_array_equal(load("trained.onnx").initializers["W"].array, expected.trained_coef_["W"])
    assert main(["evaluate", "trained.onnx", "data.npz", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["outputs"]["logits"]["accuracy"] == pytest.approx(expected.score(ids, labels))
