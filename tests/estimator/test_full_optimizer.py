"""Full training of a graph that holds its own loss: the weights of partial training, those of torch, and bad input."""

import pickle
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from models import assert_close, data, images, linear, mlp, net, two_in_two_out, weights_of
from sklearn.base import clone
from torch import nn

from ortpartial import (
    Checkpoint,
    OrtGradientForwardBackwardOptimizer,
    SoftmaxCrossEntropyLearningLoss,
    TrainingSession,
    add_loss_output,
    build,
    constant,
    find_learning_rate,
    op,
    variable,
)
from ortpartial import OrtGradientOptimizer as Optimizer
from ortpartial.exceptions import DataError, ModelError, ModelWarning, SettingError
from ortpartial.model import prune_outputs
from ortpartial.runtime.device import has_training

X, y, w = data(53)
kinds = (y[:, 0] > 0).astype(int)
SETTINGS = {"max_iter": 3, "batch_size": 9, "random_state": 0, "learning_rate": "Adam"}


def own(prediction, target):
    """A loss that is not recognized, so that the graph is trained as it is."""
    return abs(prediction - target) * 0.3


LOSSES = {
    "square": ("square_error", mlp(), y),
    "labels": ("softmax_cross_entropy", mlp(outputs=2), kinds),
    "binary": ("log_loss", mlp(), kinds[:, None]),
    "weighted classes": (SoftmaxCrossEntropyLearningLoss(class_weight=(1, 0.3), label_smoothing=0.1), mlp(outputs=2),
                         np.where(np.arange(53) % 5 == 0, -100, kinds)),
    "own": (own, mlp(), y),
}


def train(loss=own, weighted=True, model=None, **settings):
    return Optimizer(add_loss_output(model or mlp(), loss, weighted=weighted), **{**SETTINGS, **settings})


def assert_equal(one, other):
    for kind in ("weight", "optimizer", "buffer"):
        for a, b in zip(one.get_state(kind), other.get_state(kind), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("case", "engine"), [
    *((case, "step") for case in LOSSES), ("labels", "epoch"), ("own", "epoch"),
    *(pytest.param(case, "agent", marks=pytest.mark.skipif(not has_training(), reason="there is no agent"))
      for case in ("square", "own"))])
@pytest.mark.parametrize("sample_weight", [None, w], ids=["unweighted", "weighted"])
def test_the_weights_of_partial_training_to_the_last_bit(case, engine, sample_weight):
    loss, model, t = LOSSES[case]
    partial = OrtGradientForwardBackwardOptimizer(model, learning_loss=loss, engine=engine, **SETTINGS)
    partial.fit(X, t, sample_weight, X_val=X[:20], y_val=t[:20])
    # A graph of a loss of one's own that takes weights of rows computes with ones where there are none.
    full = train(loss, sample_weight is not None or case != "own", model, engine=engine)
    full.fit(X, t, sample_weight, X_val=X[:20], y_val=t[:20])
    assert_equal(full, partial)
    np.testing.assert_allclose(full.train_losses_, partial.train_losses_, rtol=1e-6)
    np.testing.assert_allclose(full.validation_losses_, partial.validation_losses_, rtol=1e-6)
    np.testing.assert_allclose(full.losses(X, t, sample_weight), partial.losses(X, t, sample_weight), atol=1e-6)
    np.testing.assert_array_equal(full.predict(X), partial.predict(X))
    assert full.get_trained_onnx() == partial.get_trained_onnx()
    assert full.score(X, t, sample_weight) == pytest.approx(partial.score(X, t, sample_weight))
    assert full.engine_ == partial.engine_ == engine


@pytest.mark.parametrize(
    "settings",
    [{"train_mode": True}, {"accumulate": 2, "averaging": "ema", "use_average": True, "gradient_clipping": 0.5},
     {"freeze": "K", "rate_factors": {"W": 0.5}}, {"precision": "float16"}, {"checkpointing": "auto"}],
    ids=lambda s: next(iter(s)))
def test_settings_are_those_of_partial_training(settings):
    (X, y), settings = images(20), {**SETTINGS, "engine": "step", **settings}
    partial = OrtGradientForwardBackwardOptimizer(net(0.3), learning_loss=own, **settings).fit(X, y)
    full = train(own, False, net(0.3), **settings).fit(X, y)
    assert_equal(full, partial)
    np.testing.assert_array_equal(full.predict(X), partial.predict(X))


def test_without_weights_rows_count_1():
    unweighted, weighted = (train(weighted=weighted).fit(X, y) for weighted in (False, True))
    assert_close(weighted.trained_coef_, unweighted.trained_coef_, 1e-6)
    assert_equal(weighted, train().fit(X, y, np.ones(53)))


def batches(as_dict):
    parts = [{"x": X[i : i + 9], "y_target": y[i : i + 9], "sample_weight": w[i : i + 9]} for i in range(0, 53, 9)]
    return parts if as_dict else [tuple(part.values()) for part in parts]


@pytest.mark.parametrize("loss", ["square_error", own])
@pytest.mark.parametrize(
    "arguments",
    [({"x": X, "y_target": y, "sample_weight": w},), ({"x": X, "unknown": w}, {"y_target": y}, w), (X, y[:, 0], w),
     (batches(as_dict=True),), (batches(as_dict=False),), (X.tolist(), torch.tensor(y), w[:, None])],
    ids=["dict", "dicts", "flat", "batches of dicts", "batches", "lists"])
def test_ways_to_give_data(loss, arguments):
    if "unknown" in arguments[0]:
        arguments[0].pop("unknown")
    assert_equal(train(loss, shuffle=False).fit(*arguments), train(loss, shuffle=False).fit(X, y, w))


@pytest.mark.parametrize("loss", ["square_error", own])
def test_a_training_goes_on(loss, tmp_path):
    whole = train(loss, max_iter=2).fit(X, y, w).partial_fit(X, y, w)
    half = train(loss, max_iter=2).fit(X, y, w)
    unpickled = pickle.loads(pickle.dumps(half))
    half.save_checkpoint(tmp_path / "half.safetensors")
    loaded = train(loss, max_iter=2)
    loaded.load_checkpoint(tmp_path / "half.safetensors")
    written = Optimizer(half.get_trained_onnx(with_loss=True), **SETTINGS)
    for kind in ("weight", "optimizer"):
        written.set_state(half.get_state(kind), kind)
    for again in (half, unpickled, loaded):
        assert_equal(again.partial_fit(X, y, w), whole)
    np.testing.assert_array_equal(written.predict(X), train(loss, max_iter=2).fit(X, y, w).predict(X))
    assert_equal(clone(unpickled).fit(X, y, w), clone(half).fit(X, y, w))
    assert unpickled.set_params(batch_size=7, loss_output_name="loss", verbose=0).batch_size == 7


@pytest.mark.parametrize("loss", ["square_error", own])
def test_the_learning_rate_finder(loss):
    partial = OrtGradientForwardBackwardOptimizer(mlp(), learning_loss=loss, **SETTINGS)
    sweeps = [find_learning_rate(optimizer, X, y, w) for optimizer in (partial, train(loss))]
    np.testing.assert_allclose(sweeps[0].losses, sweeps[1].losses, rtol=1e-5)


def test_a_fit_that_was_cut_off_resumes(tmp_path):
    whole = train().fit(X, y, w)
    cut = train(max_iter=2, callbacks=[Checkpoint(tmp_path)]).fit(X, y, w)
    assert cut.n_iter_ == 2
    assert_equal(train().fit(X, y, w, resume=tmp_path), whole)


def test_a_share_of_the_rows_is_validated():
    losses = ("square_error", lambda prediction, t: (prediction - t) ** 2)
    one, other = (train(loss).fit(X, y, w, X_val=0.3).validation_losses_ for loss in losses)
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_stored_trainings():
    for full in (train("square_error").fit(X, y), train().fit(X, y)):
        stored = full.get_training_onnx()
        again = Optimizer.from_training_info(stored, **{**SETTINGS, "warm_start": True})
        assert_equal(again.partial_fit(X, y), full.set_params(random_state=0).partial_fit(X, y))
    del stored.metadata_props[:]
    with pytest.raises(ModelError, match="its loss is none of the library that is recognized"):
        Optimizer.from_training_info(stored)


@pytest.mark.parametrize("weighted", [True, "elements"])
def test_a_stored_training_has_the_weights_of_rows_that_the_loss_reads(weighted):
    message = f"weighted is {weighted!r}, and the model computes its loss itself, from all weights that it reads"
    with pytest.raises(SettingError, match=message):
        train().get_training_onnx(weighted=weighted)


@pytest.mark.parametrize("loss", ["square_error", own])
def test_a_stored_training_takes_the_same_step(loss):
    full = train(loss, False, shuffle=False, batch_size=53)
    session = TrainingSession(full.get_training_onnx("lowered"))
    session.step({n: X if n == "x" else y for n in session.inputs})
    full.partial_fit(X, y)
    for n, a in full.trained_coef_.items():
        np.testing.assert_array_equal(session.get(n), a)


def test_a_loss_of_probabilities_reads_the_logits():
    x = variable("x", "float32", ["N", 4])
    model = build([x], {"y": op.Softmax(x @ constant(np.eye(4, 2, dtype=np.float32), hint="w"), axis=1)})
    loss = SoftmaxCrossEntropyLearningLoss(from_logits=False)
    partial = OrtGradientForwardBackwardOptimizer(model, learning_loss=loss, **SETTINGS).fit(X, kinds, w)
    assert_equal(train(loss, model=model).fit(X, kinds, w), partial)
    graph = add_loss_output(model, loss)
    graph.ClearField("metadata_props")  # It is not recognized then.
    assert_close(Optimizer(graph, **SETTINGS).fit(X, kinds, w).trained_coef_, partial.trained_coef_, 1e-5)


def test_constants_of_a_written_loss_are_not_trained():
    def scaled(prediction, target):
        return abs(prediction - target) * constant(np.full((1, 1), 0.3, np.float32), hint="scale")

    partial = OrtGradientForwardBackwardOptimizer(mlp(), learning_loss=scaled, **SETTINGS).fit(X, y)
    full = train(scaled, False).fit(X, y)
    assert full.weights_to_train == partial.weights_to_train
    assert_equal(full, partial)


def test_weights_that_the_loss_alone_reads_are_trained_by_name(recwarn):
    x, t = variable("x", "float32", ["N", 4]), variable("t", "float32", ["N", 1])
    h = x @ constant(np.ones((4, 1), np.float32), hint="W")
    loss = op.ReduceMean((h - t) ** 2 * constant(np.full(1, 2, np.float32), hint="pos_weight"), keepdims=0)
    model = build([x, t], {"y": h, "loss": loss})
    message = "The loss 'loss' alone reads 'pos_weight', taken for constants such as class weights and not trained; add"
    with pytest.warns(ModelWarning, match=message) as warned:
        full = Optimizer(model, **SETTINGS)
    assert full.weights_to_train == ["W"]
    assert warned[0].filename == __file__
    assert full.unfreeze("pos_weight").weights_to_train == ["W", "pos_weight"]
    recwarn.clear()
    assert Optimizer(model, freeze="pos_weight").weights_to_train == ["W"]
    assert Optimizer(model, ["pos_weight", "W"]).weights_to_train == ["pos_weight", "W"]
    assert Optimizer(prune_outputs(model, ["loss"])).weights_to_train == ["W", "pos_weight"]
    assert not recwarn


def test_several_outputs():
    losses = {"price": own, "kind": "softmax_cross_entropy"}
    inputs, targets = {"a": X[:, :3], "b": X[:, 1:]}, {"price": y, "kind": kinds}
    partial = OrtGradientForwardBackwardOptimizer(two_in_two_out(), learning_loss=losses, **SETTINGS)
    partial.fit(inputs, targets, w)
    full = train(losses, model=two_in_two_out())
    full.fit(inputs, {f"{n}_target": t for n, t in targets.items()}, w)
    assert_close(full.trained_coef_, partial.trained_coef_, 1e-6)
    assert list(full.predict(inputs)) == ["price", "kind"], "an output that needs further data is not predicted"
    assert [o.name for o in full.get_trained_onnx().graph.output] == ["price", "kind", "unused"]
    with pytest.raises(DataError, match="Missing label: 'kind_target'"):
        full.fit(inputs, {"price_target": y}, w)
    with pytest.raises(DataError, match="The loss 'loss' has the labels 'price_target', 'kind_target'; give y as a"):
        full.fit(inputs, y, w)
    with pytest.raises(DataError, match="A score compares one prediction with one label, and the model has the pred"):
        full.score(inputs, {f"{n}_target": t for n, t in targets.items()})


def reconstruction(shape=(), labels=False):
    """A graph without labels: the loss compares what it computes with what it reads."""
    x, t = variable("x", "float32", ["N", 3]), variable("t", "float32", ["N", 3])
    h = x * constant(np.ones(3, np.float32), hint="w")
    loss = op.ReduceMean((h - (t if labels else 2 * x)) ** 2, keepdims=0)
    inputs = [x, t] if labels else [x]
    return build(inputs, {"loss": op.Reshape(loss, list(shape)) if shape else loss, **({} if labels else {"y": h})})


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_loss_without_labels(shape):
    A = np.ones((8, 3), np.float32)
    for rows in (A, {"x": A}, [(A[:3],), (A[3:],)]):
        full = Optimizer(reconstruction(shape), learning_rate=0.5, max_iter=20).fit(rows)
        assert full.train_losses_[-1] < 1e-3
    assert full.losses(A).shape == (8,)
    with pytest.raises(DataError, match="Nothing tells which inputs of the model are labels: name them by label_names"):
        full.fit(A, A)


def test_scalars_beside_the_loss():
    model = reconstruction()
    model.graph.output.append(onnx.helper.make_tensor_value_info("error", 1, []))
    model.graph.node.append(onnx.helper.make_node("Identity", ["loss"], ["error"]))
    full = Optimizer(model)
    A = np.ones((8, 3), np.float32)
    assert full.predict(A)["error"] == 1
    with pytest.raises(DataError, match="The output 'error' is a scalar for each batch, and the rows have none; pass"):
        full.predict([(A,), (A,)])
    with pytest.raises(DataError, match="the model has the predictions 'y', 'error' and no labels; compute it"):
        full.score(A)


def test_a_graph_of_nothing_but_its_loss():
    A = np.ones((8, 3), np.float32)
    full = Optimizer(reconstruction(labels=True), label_names="t", learning_rate=0.5, max_iter=20).fit(A, 2 * A)
    assert_equal(full, Optimizer(reconstruction(labels=True), learning_rate=0.5, max_iter=20).fit({"x": A, "t": 2 * A}))
    with pytest.raises(DataError, match="The model has no output but its loss, 'loss', so that there is nothing to p"):
        full.predict(A)
    assert [o.name for o in full.get_trained_onnx().graph.output] == ["loss"]


def weigh(shape, name="sample_weight"):
    """The mean of square errors with weights of this shape, as one writes it oneself."""
    x, t, w = (variable(n, "float32", s) for n, s in (("x", ["N", 4]), ("t", ["N", 1]), (name, shape)))
    h = x @ constant(np.ones((4, 1), np.float32), hint="W")
    column = op.Reshape(w, [-1, 1])
    loss = op.ReduceSum(column * (h - t) ** 2, keepdims=0) / op.ReduceSum(w, keepdims=0)
    return build([x, t, w], {"y": h, "loss": loss})


def test_weights_of_an_own_shape():
    full = Optimizer(weigh(["N", 1]), **SETTINGS).fit(X, y, w)
    recognized = train("square_error", model=prune_outputs(weigh(["N"]), ["y"])).fit(X, y, w)
    assert_close(full.trained_coef_, recognized.trained_coef_, 1e-5)
    np.testing.assert_allclose(full.train_losses_, recognized.train_losses_, rtol=1e-5)
    assert_equal(Optimizer(weigh(["N"], "rows"), sample_weight_name="rows", **SETTINGS).fit(X, y, w[:, None]), full)
    unknown = Optimizer(weigh(["N", "M"]), **SETTINGS)
    assert_equal(unknown.fit(X, y, w[:, None]), full)
    with pytest.raises(DataError, match="The sizes of the weights 'sample_weight' are not known; give sample_weight"):
        unknown.fit(X, y)
    with pytest.raises(DataError, match=r"sample_weight has shape \(53,\), where \(53, 2\) was expected by the input"):
        Optimizer(weigh(["N", 2]), **SETTINGS).fit(X, y, w)


def test_labels_with_a_fixed_batch_dimension():
    x, t = variable("x", "float32", ["N", 4]), variable("t", "float32", [9, 1])
    h = x @ constant(np.ones((4, 1), np.float32), hint="W")
    full = Optimizer(build([x, t], {"y": h, "loss": op.ReduceMean(op.Abs(h - t), keepdims=0)}), **SETTINGS)
    assert full.fit(X[:45], y[:45]).n_iter_ == 3
    with pytest.raises(DataError, match="The label 't' has a fixed batch dimension of 9 and there are 53 rows; export"):
        full.fit(X, y)


def test_a_fixed_batch_dimension():
    rows = slice(0, 45)
    losses = [train(loss, model=linear(rows=9)).fit(X[rows], y[rows], w[rows], X_val=X[:18], y_val=y[:18])
              for loss in (lambda prediction, t: (prediction - t) ** 2, "square_error")]
    np.testing.assert_allclose(*[o.validation_losses_ for o in losses], rtol=1e-6)
    with pytest.raises(DataError, match="The loss of a row is that of a batch of one, and the model has a fixed batch"):
        losses[0].losses(X[rows], y[rows])


N = torch.export.Dim("N")


class Classifier(nn.Module):
    """Scores, and their cross-entropy with labels: both are outputs of its graph."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x, t):
        scores = self.layers(x)
        return scores, nn.functional.cross_entropy(scores, t)


def train_torch(module, batches, rate=0.1):
    """A module after a step of SGD on each batch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    for batch in batches:
        optimizer.zero_grad()
        module(*batch)[-1].backward()
        optimizer.step()
    return {n: p.detach().numpy() for n, p in module.named_parameters()}


@pytest.mark.filterwarnings("ignore:# The axis name")  # of torch 2.13, where two inputs share an axis
@pytest.mark.parametrize("dynamo", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_module_of_torch_that_returns_its_loss(dynamo, tmp_path):
    torch.manual_seed(0)
    module, x, t = Classifier(), torch.randn(24, 4), torch.randint(3, (24,))
    file, names = tmp_path / "model.onnx", {"input_names": ["x", "t"], "output_names": ["scores", "loss"]}
    shapes = {"dynamic_shapes": ({0: N}, {0: N})} if dynamo else {
        "dynamic_axes": {n: {0: "N"} for n in ("x", "t", "scores")}}
    torch.onnx.export(module.eval(), (x[:4], t[:4]), file, dynamo=dynamo, verbose=False, **names, **shapes)
    full = Optimizer(file, learning_rate=0.1, batch_size=8, max_iter=5, shuffle=False, engine="step")
    full.fit(x.numpy(), t.numpy())
    weights = train_torch(module, [*zip(x.split(8), t.split(8), strict=True)] * 5)
    assert_close(full.trained_coef_, weights, 1e-5)
    np.testing.assert_allclose(full.predict(x.numpy()), module(x, t)[0].detach(), atol=1e-5)
    with pytest.raises(DataError, match=r"Input 't' of .* has a label that is not in 0 to 2.*: 3"):
        full.fit(x.numpy(), t.numpy() + 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:# The axis name")
def test_a_transformer_with_its_labels(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
                                     vocab_size=31, max_position_embeddings=16, num_labels=3)
    bert = transformers.BertForSequenceClassification(config).eval()
    for p in bert.parameters():  # The exporter of torch 2.13 merges weights that are equal.
        nn.init.normal_(p, std=0.3)

    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert

        def forward(self, input_ids, labels):
            output = self.bert(input_ids=input_ids, labels=labels)
            return output.logits, output.loss

    module, ids, labels = WithLoss().eval(), torch.randint(31, (8, 7)), torch.randint(3, (8,))
    file = tmp_path / "model.onnx"
    torch.onnx.export(module, (ids[:4], labels[:4]), file, dynamo=True, verbose=False, input_names=["ids", "labels"],
                      output_names=["logits", "loss"], dynamic_shapes=({0: N}, {0: N}))
    full = Optimizer(file, learning_rate=0.1, batch_size=4, max_iter=2, shuffle=False, engine="step")
    full.fit({"ids": ids.numpy(), "labels": labels.numpy()})
    train_torch(module, [*zip(ids.split(4), labels.split(4), strict=True)] * 2)
    np.testing.assert_allclose(full.predict(ids.numpy()), module(ids, labels)[0].detach(), atol=1e-4)


def graph(loss, y=None):
    """A graph of x and t with a loss, and a weight w that y reads."""
    x, t = variable("x", "float32", ["N", 3]), variable("t", "float32", ["N", 3])
    h = x * constant(np.ones(3, np.float32), hint="w")
    return build([x, t], {"loss": loss(SimpleNamespace(x=x, t=t, h=h)), "y": h})


@pytest.mark.parametrize(
    ("model", "settings", "error", "message"),
    [
        (mlp(), {}, SettingError, "The model has no output 'loss' that would be its loss; its outputs are 'y'"),
        (mlp(), {"loss_output_name": "y"}, SettingError, r"The output 'y' has the shape \('N', 1\), and a loss is"),
        (build([a := variable("a", "float32", None)], {"loss": op.ReduceSum(a, keepdims=0)}), {}, SettingError,
         "The shape of the output 'loss' is not known, and a loss is a scalar: declare the ranks of the inputs in the"),
        (graph(lambda g: op.Cast(op.ReduceSum(g.h, keepdims=0), to=7)), {}, SettingError,
         "The output 'loss' is of int64, and a loss is a real number"),
        (graph(lambda g: op.ReduceMean(g.x - g.t, keepdims=0)), {}, ModelError,
         "No float initializer of rank one or more leads to the outputs 'loss'"),
        (graph(lambda g: op.ReduceMean(g.x - g.t, keepdims=0)), {"weights_to_train": "w"}, ModelError,
         "No gradient leads from 'loss' to the weight 'w'"),
        (reconstruction(), {"label_names": "z"}, SettingError, "The loss 'loss' reads no input 'z'; it reads 'x'"),
        (reconstruction(), {"sample_weight_name": "z"}, SettingError, "The loss 'loss' reads no input 'z'"),
        (reconstruction(), {"label_names": 3}, SettingError, "label_names is a name or a list of names, not 3"),
        (reconstruction(), {"label_names": ["x"], "sample_weight_name": "x"}, SettingError,
         "The input 'x' is among label_names and is sample_weight_name"),
    ],
)
def test_what_is_no_loss(model, settings, error, message):
    with pytest.raises(error, match=message):
        Optimizer(model, **settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X,), "The label 'y_target' of the loss, y, is missing; without it, X is to give batches"),
        (({"x": X},), "The label 'y_target' of the loss, y, is missing"),
        ((X, {"z": y}), "Missing label: 'y_target'. Unknown label: 'z'"),
        ((X, y[:5]), "The label 'y_target' has 5 rows and X has 53"),
        ((X, np.hstack([y, y])), r"The label 'y_target' has shape \(53, 2\), where \(53, 1\) was expected, as in"),
        ((X, y * np.nan), "The label 'y_target' contains NaN"),
        ((X, y, w[:3]), r"sample_weight has shape \(3,\) and X has 53 rows"),
        ((X, y, 0 * w), "All sample weights are zero"),
        (({"y_target": y},), "Missing input: 'x'"),
    ],
)
def test_data_that_do_not_fit(arguments, message):
    with pytest.raises(DataError, match=message):
        train().fit(*arguments)


def test_weights_of_rows_that_no_input_takes():
    with pytest.raises(DataError, match="The loss 'loss' reads no weights of rows, and there is a sample_weight"):
        train(weighted=False).fit(X, y, w)


class Same(SoftmaxCrossEntropyLearningLoss):
    """A loss of labels that is not recognized."""


def test_labels_out_of_range():
    full = train(Same(), model=mlp(outputs=2))
    with pytest.raises(DataError, match=r"Input 'y_target' of .* has a label that is not in 0 to 1.*: -1"):
        full.fit(X, kinds - 1)
    labels = np.where(np.arange(53) % 3 == 0, -100, kinds)
    counted = labels != -100
    assert full.fit(X, labels).score(X, labels) == full.score(X[counted], kinds[counted])


@pytest.mark.parametrize("name", ["learning_loss", "loss"])
def test_the_loss_is_no_setting(name):
    message = rf"no setting '{name}'; did you mean add_loss_output\(model, loss=...\), which writes it into the model\?"
    with pytest.raises(TypeError, match=message):
        Optimizer(add_loss_output(mlp()), **{name: "log"})


def test_warnings_name_the_caller():
    with pytest.warns(ModelWarning, match="nothing with a training mode|no Dropout") as warned:
        train(train_mode=True)
    assert warned[0].filename == __file__
    with pytest.warns(ModelWarning) as warned:
        Optimizer(add_loss_output(mlp()), train_mode=True)
    assert warned[0].filename == __file__


def test_the_file_is_the_graph_without_its_loss(tmp_path):
    train().fit(X, y, w).save(tmp_path / "trained.onnx")
    model = onnx.load(tmp_path / "trained.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [i.name for i in model.graph.input] == ["x"]
    assert weights_of(model).keys() == weights_of(mlp()).keys()
