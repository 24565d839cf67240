"""Iterables of batches, of tuples, lists, dicts or tensors, do the same as arrays, for every method."""

import re
from collections import UserDict

import numpy as np
import pandas
import pytest
import torch
from models import data, linear, mlp, two_in_two_out
from torch.utils.data import DataLoader, TensorDataset

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import SoftmaxCrossEntropyLearningLoss, build, constant, op, variable
from ortpartial.estimator.batches import is_batches
from ortpartial.exceptions import DataError

X, Y, W = data(53)
X_VAL, Y_VAL, W_VAL = data(25, seed=4)


def optimizer(model=None, **settings):
    usual = {"learning_rate": "Adam", "batch_size": 10, "shuffle": False, "max_iter": 3, "random_state": 0}
    return Optimizer(mlp() if model is None else model, **{**usual, **settings})


def cut(*arrays, size=10, of=tuple):
    return [of(a[i : i + size] for a in arrays) for i in range(0, len(arrays[0]), size)]


def loader(*arrays, size=10):
    return DataLoader(TensorDataset(*map(torch.tensor, arrays)), batch_size=size)


def same(a, b):
    pairs = [p for kind in ("weight", "optimizer") for p in zip(a.get_state(kind), b.get_state(kind), strict=True)]
    return all((u == v).all() for u, v in pairs) and np.allclose(a.train_losses_, b.train_losses_, rtol=1e-6)


def tokens():
    """Two integer inputs, as of a language model, and scores of three classes for each row."""
    ids, mask = variable("input_ids", "int64", ["N", "L"]), variable("attention_mask", "int64", ["N", "L"])
    rng = np.random.default_rng(0)
    table = constant(rng.normal(size=(11, 3)).astype(np.float32), hint="table")
    each = op.Gather(table, ids) * op.Unsqueeze(op.Cast(mask, to=1), [2])
    return build([ids, mask], {"logits": op.ReduceSum(each, [1], keepdims=0)})


def token_data(rows, length, dtype="int64"):
    rng = np.random.default_rng(length)
    ids, mask = rng.integers(0, 11, (rows, length)), rng.integers(0, 2, (rows, length))
    return ids.astype(dtype), mask.astype(dtype), rng.integers(0, 3, rows)


KINDS = {
    "tuples": lambda *a: cut(*a),
    "lists": lambda *a: cut(*a, of=list),
    "a generator": lambda *a: (batch for batch in cut(*a)),
    "a loader": lambda *a: loader(*a),
    "dicts": lambda *a: [dict(zip(("x", "labels", "sample_weight"), b, strict=False)) for b in cut(*a)],
    "dicts of tensors": lambda *a: [UserDict(x=torch.tensor(b[0]), y=torch.tensor(b[1]), id=[1], **(
        {"sample_weight": b[2]} if len(b) > 2 else {})) for b in cut(*a)],
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_method_takes_them(kind):
    a, b = optimizer().fit(X, Y), optimizer().fit(X, Y)
    assert same(a.partial_fit(kind(X, Y)), b.partial_fit(X, Y))
    assert same(a.partial_fit(kind(X, Y, W)), b.partial_fit(X, Y, W))
    np.testing.assert_allclose(a.predict(kind(X, Y)), b.predict(X), rtol=1e-6)
    np.testing.assert_allclose(a.losses(kind(X, Y)), b.losses(X, Y), rtol=1e-5)
    np.testing.assert_allclose(a.score(kind(X, Y)), b.score(X, Y), rtol=1e-6)
    np.testing.assert_allclose(a.score(kind(X, Y, W)), b.score(X, Y, W), rtol=1e-6)


@pytest.mark.parametrize("kind", [k for n, k in KINDS.items() if n != "a generator"])
def test_validation_takes_them(kind):
    a, b = optimizer(), optimizer()
    assert same(a.fit(kind(X, Y), X_val=kind(X_VAL, Y_VAL)), b.fit(X, Y, X_val=X_VAL, y_val=Y_VAL))
    np.testing.assert_allclose(a.validation_losses_, b.validation_losses_, rtol=1e-5)
    a.fit(X, Y, X_val=kind(X_VAL, Y_VAL, W_VAL))
    np.testing.assert_allclose(a.validation_losses_[-1], np.average(a.losses(X_VAL, Y_VAL), weights=W_VAL), rtol=1e-5)


def test_prediction_needs_no_target():
    o = optimizer().fit(X, Y)
    expected = o.predict(X)
    for batches in (iter(cut(X)), loader(X), [{"x": x} for (x,) in cut(X)], (x for (x,) in cut(X)), loader(X, Y, W)):
        np.testing.assert_allclose(o.predict(batches), expected, rtol=1e-5, atol=1e-6)
    assert (o.predict(X.tolist()) == expected).all(), "lists of numbers are arrays"
    assert (o.predict(list(X)) == expected).all(), "and so are lists of rows"
    assert (o.predict(torch.tensor(X, requires_grad=True)) == expected).all()


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_batches_as_of_a_language_model(dtype):
    """Dicts with other entries beside those of the model, whose batches differ in length."""
    parts = [token_data(4, n, dtype) for n in (5, 3, 5)]
    batches = [{"labels": t, "input_ids": i, "attention_mask": m, "token_type_ids": 0 * i} for i, m, t in parts]
    tuples = [(i, m, t) for i, m, t in parts]
    named = [({"input_ids": i.astype("int64"), "attention_mask": m.astype("int64")}, t) for i, m, t in parts]
    lists = [[[i, m], t] for i, m, t in parts]
    fitted = [optimizer(tokens(), learning_loss="softmax_cross_entropy").fit(b, X_val=b)
              for b in (named, batches, tuples, lists)]
    a = fitted[0]
    for o, b in zip(fitted, (named, batches, tuples, lists), strict=True):
        assert same(o, a)
        assert o.validation_losses_ == a.validation_losses_
        hits = [(o.predict(x).argmax(1) == t).sum() for x, t in named]
        assert o.score(b) == sum(hits) / 12
        assert o.losses(b).shape == (12,)
        assert o.predict(b).shape == (12, 3)
    one = batches[0]
    assert same(a.partial_fit(one), fitted[1].partial_fit([one]))
    assert (a.predict(one) == a.predict(tuples[:1])).all()
    assert a.score(one) == a.score([one])


def test_several_inputs_and_outputs():
    losses = {"price": "square_error", "kind": "softmax_cross_entropy"}
    kinds = (Y[:, 0] > 0).astype(int)
    x, y = {"a": X[:, :3], "b": X[:, 1:]}, {"price": Y, "kind": kinds}
    made = [optimizer(two_in_two_out(), learning_loss=losses).fit(*given) for given in (
        (x, y), ([X[:, :3], X[:, 1:]], [Y, kinds]), (loader(X[:, :3], X[:, 1:], Y, kinds),),
        ([{"a": a, "b": b, "price": p, "kind": k} for a, b, p, k in cut(X[:, :3], X[:, 1:], Y, kinds)],),
        ([((a, b), (p, k)) for a, b, p, k in cut(X[:, :3], X[:, 1:], Y, kinds)],),
        ([({"a": a, "b": b}, {"price": p, "kind": k}) for a, b, p, k in cut(X[:, :3], X[:, 1:], Y, kinds)],),
        ({**x, **y},),
    )]
    assert [same(o, made[0]) for o in made[1:]] == [True] * 6
    weighted = [optimizer(two_in_two_out(), learning_loss=losses).fit(*given) for given in (
        (x, y, W), (loader(X[:, :3], X[:, 1:], Y, kinds, W),),
        ([((a, b), (p, k), w) for a, b, p, k, w in cut(X[:, :3], X[:, 1:], Y, kinds, W)],))]
    assert [same(o, weighted[0]) for o in weighted[1:]] == [True] * 2
    scores = made[0].score(loader(X[:, :3], X[:, 1:], Y, kinds))
    assert scores.keys() == {"price", "kind"}
    np.testing.assert_allclose(list(scores.values()), list(made[0].score(x, y).values()), rtol=1e-6)


def test_batches_of_a_model_for_a_fixed_number_of_rows():
    """A batch of twice as many rows is two steps."""
    a, b = optimizer(linear(rows=5), batch_size=7), optimizer(linear(rows=5), batch_size=5)
    assert same(a.fit(cut(X[:40], Y[:40])), b.fit(X[:40], Y[:40]))


@pytest.mark.parametrize("as_dict", [False, True])
def test_a_share_of_the_rows(as_dict):
    """The rest is trained on in its order, as if it were all; a number as random_state draws the same rows again."""
    x = {"x": X} if as_dict else X
    a = optimizer(shuffle=True, warm_start=True).fit(x, Y, W, X_val=0.2)
    held_out = np.sort(np.random.default_rng(0).permutation(53)[:11])
    kept = np.setdiff1d(np.arange(53), held_out)
    b = optimizer(shuffle=True).fit(X[kept], Y[kept], W[kept])
    assert same(a, b)
    expected = np.average(a.losses(X[held_out], Y[held_out]), weights=W[held_out])
    np.testing.assert_allclose(a.validation_losses_[-1], expected, rtol=1e-6)
    a.fit(x, Y, W, X_val=np.float32(0.2))
    assert len(a.validation_losses_) == 6
    planned = optimizer().set_params(learning_rate__schedule="cosine").fit(X, Y, X_val=0.5)
    assert planned.learning_rate_ == 0, "the schedule ends with the rows that are trained on"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: o.fit(X, Y, X_val=1.5), "X_val is 1.5; give data and y_val, or alone a share of the rows between 0"),
        (lambda o: o.fit(X, Y, X_val=0.1, y_val=Y), "X_val is 0.1; give data and y_val, or alone a share of the rows"),
        (lambda o: o.fit(X[:2], Y[:2], X_val=0.9), "X_val=0.9 of 2 rows leaves none to train on."),
        (lambda o: o.fit(cut(X, Y), X_val=0.1), "X gives batches; X_val cannot be a share of them, give other ones."),
        (lambda o: o.fit(X, Y, X_val=X), "X_val and y_val belong together; y_val is missing."),
        (lambda o: o.fit(X, Y, y_val=Y), "X_val and y_val belong together; X_val is missing."),
        (lambda o: o.fit(X, Y, X_val=iter(cut(X, Y))), "X_val gives its batches once; give what can be iterated over"),
        (lambda o: o.fit(cut(X, Y), sample_weight=W), "X gives batches; sample_weight belongs into them, as (X, y, s"),
        (lambda o: o.score(X), "y is missing; without it, X is to give batches (X, y), one after the other, as Padded"),
        (lambda o: o.losses({"x": X}), "y is missing; without it, X is to give batches (X, y)"),
        (lambda o: o.score([]), "y is missing"),
        (lambda o: o.score(iter([])), "There are no batches in X."),
        (lambda o: o.partial_fit([{"x": X}]), "or a dict with the target as 'labels', not a dict with 'x'; give y"),
        (lambda o: o.fit([{"z": X, "y": Y}]), "Missing input: 'x'. Unknown input: 'z'."),
        (lambda o: o.fit([(X, Y, W, W)]), "A batch is (X, y) or (X, y, sample_weight), or a dict with the target as"),
    ],
    ids=range(15),
)
def test_errors(call, message):
    with pytest.raises(DataError, match=re.escape(message)):
        call(optimizer())


def test_several_inputs_in_a_wrong_number():
    message = "A batch is (X, y) or (X, y, sample_weight), where X holds 'input_ids', 'attention_mask', or a dict"
    with pytest.raises(DataError, match=re.escape(message)):
        optimizer(tokens(), learning_loss="softmax_cross_entropy").fit([tuple(range(7))])


def test_outputs_of_several_shapes_are_no_array():
    x = variable("x", "float32", ["N", "L"])
    o = optimizer(build([x], {"y": x * constant(np.ones(1, np.float32), hint="w")}))
    with pytest.raises(DataError, match=re.escape("The rows of 'y' have the shapes (2,) and (3,) in different")):
        o.predict([{"x": np.ones((4, n))} for n in (3, 2)])


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        (np.array([[2**31]]), "int32", "Input 'i' holds 2147483648, where int32 holds"),
        (np.array([[2**63]], np.uint64), "int64", "Input 'i' holds 9223372036854775808"),
        (np.array([[2.0**63]]), "int64", "Input 'i' holds 9.223372036854776e+18, where int64 holds"),
        (np.array([[2**64]], object), "int64", "Input 'i' does not fit int64: Python int too large"),
        (np.array([[2.5]], object), "int64", "Input 'i' holds 2.5, where int64 was expected."),
        (np.array([[1e30]]), "int64", "Input 'i' holds 1e+30, where int64 holds"),
        (np.array([[-1]]), "uint8", "Input 'i' holds -1, where uint8 holds 0 to 255."),
        (np.array([[0.5]]), "int64", "Input 'i' holds 0.5, a fraction, where int64 was expected."),
        (np.array([[2]]), "bool", "Input 'i' holds 2, where bool holds 0 to 1."),
        (np.array([[10**6]]), "float16", "Input 'i' holds numbers too large for float16."),
    ],
    ids=lambda v: str(v) if isinstance(v, str) and len(v) < 9 else "",
)
def test_what_would_be_lost_is_an_error(values, dtype, message):
    i = variable("i", dtype, ["N", 1])
    o = Optimizer(build([i], {"y": op.Cast(i, to=1) * constant(np.ones((1, 1), np.float32), hint="w")}))
    with pytest.raises(DataError, match=re.escape(message)):
        o.predict(values)
    for fine in (np.array([[1]], np.int8), np.array([[1]], np.uint64), np.array([[True]]), np.array([[1.0]])):
        assert o.predict(fine) == 1


@pytest.mark.parametrize("table", [np.array, pandas.DataFrame], ids=["array", "table"])
def test_real_numbers_are_no_indices(table):
    i = variable("i", "int64", ["N", 1])
    o = Optimizer(build([i], {"y": op.Gather(constant(np.ones((3, 1), np.float32), hint="w"), i)[:, 0]}))
    for values in ([[-1.0]], [[1.0]]):
        with pytest.raises(DataError, match=r"nput 'i' holds indices, as float64; convert it, such as by ast"):
            o.predict(table(values))
    assert o.predict(table([[1], [-1]])).tolist() == [[1], [1]]


def test_batches_or_an_array():
    assert all(map(is_batches, (loader(X), iter([]), [{"x": X}], ([X, Y],))))
    assert not any(map(is_batches, (X, X.tolist(), list(X), {"x": X}, "x", 3, None, range(3), bytearray(3), [], [()],
                                    [tuple(row) for row in X], torch.tensor(X), [X, X], [[X[0, 0]]])))


def test_a_linear_model_validates_on_what_it_is_given():
    """The mean over all rows, and not over batches of different sizes."""
    o = optimizer(linear(), max_iter=1).fit(X, Y, X_val=cut(X_VAL, Y_VAL, size=24))
    np.testing.assert_allclose(o.validation_losses_, [o.losses(X_VAL, Y_VAL).mean()], rtol=1e-5)


def test_labels_and_weights_that_do_not_count():
    """Over batches of several lengths the loss is the mean over all labels that count, and so it is of a share."""
    ids = variable("ids", "int64", ["N", "L"])
    table = constant(np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32), hint="table")
    loss = SoftmaxCrossEntropyLearningLoss(axis=-1, ignore_index=-100)
    o = optimizer(build([ids], {"logits": op.Gather(table, ids)}), learning_loss=loss)
    parts = []
    for n in (3, 6, 3):
        x, _, _ = token_data(8, n)
        t = x % 3
        t[::2, -1] = -100
        parts.append((x, t))
    o.fit([{"ids": x, "labels": t} for x, t in parts], X_val=parts)
    counts = [(t != -100).sum(axis=1) for _, t in parts]
    total = sum((o.losses(*part) * c).sum() for part, c in zip(parts, counts, strict=True))
    np.testing.assert_allclose(o.validation_losses_[-1], total / sum(c.sum() for c in counts), rtol=1e-6)
    hits = sum(((o.predict(x).argmax(-1) == t) & (t != -100)).sum() for x, t in parts)
    np.testing.assert_allclose(o.score(parts), hits / sum(c.sum() for c in counts), rtol=1e-6)
    x, t = token_data(40, 5)[0], token_data(40, 5)[0] % 3
    w = np.random.default_rng(1).uniform(size=t.shape)
    t[:, 0] = -100
    o.fit(x, t, w, X_val=0.25)
    held_out = np.sort(np.random.default_rng(0).permutation(40)[:10])
    x, t, w = x[held_out], t[held_out], w[held_out] * (t[held_out] != -100)
    expected = np.average(o.losses(x, t, w), weights=w.sum(axis=1))
    np.testing.assert_allclose(o.validation_losses_[-1], expected, rtol=1e-5)
