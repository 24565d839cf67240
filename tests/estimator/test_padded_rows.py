"""Token ids of different lengths become arrays of few shapes, and batches of similar lengths."""

import pickle

import numpy as np
import pytest

from ortpartial import OrtGradientForwardBackwardOptimizer, PaddedBatches, build, constant, op, pad_rows, variable
from ortpartial.exceptions import DataError, SettingError
from ortpartial.learning_loss import SoftmaxCrossEntropyLearningLoss

RNG = np.random.default_rng(0)
ROWS = [RNG.integers(1, 20, n).tolist() for n in RNG.integers(1, 40, 50)]


def list_rows(batches):
    """The rows that batches hold, without their padding."""
    return [tuple(row[:n]) for X, _ in batches
            for row, n in zip(X["input_ids"].tolist(), X["attention_mask"].sum(1), strict=True)]


@pytest.mark.parametrize("multiple", [1, 8, 64])
def test_rows_are_padded_at_the_right_to_a_multiple(multiple):
    X, labels = pad_rows(ROWS, multiple_of=multiple, pad_id=99, ignore_index=-1)
    longest = max(map(len, ROWS))
    assert X["input_ids"].shape == labels.shape == (50, -(-longest // multiple) * multiple)
    assert [X[n].dtype for n in X] == [labels.dtype] * 2 == [np.int64] * 2
    for i, row in enumerate(ROWS):
        rest = labels.shape[1] - len(row)
        assert X["input_ids"][i].tolist() == row + [99] * rest
        assert X["attention_mask"][i].tolist() == [1] * len(row) + [0] * rest
        assert labels[i].tolist() == row + [-1] * rest


def test_labels_of_ones_own():
    X, labels = pad_rows([np.array([1, 2, 3], np.int32), [4]], [[-100, 2, 3], [7]], multiple_of=2)
    assert labels.tolist() == [[-100, 2, 3, -100], [7, -100, -100, -100]]
    assert X["input_ids"].tolist() == [[1, 2, 3, 0], [4, 0, 0, 0]]


@pytest.mark.parametrize(("rows", "labels", "message"), [
    ([[1], []], None, r"Row 1 is of shape \(0,\)"),
    ([[1.5]], None, "dtype float64, where the ids of one token or more were expected"),
    ([[[1]]], None, r"Row 0 is of shape \(1, 1\)"),
    ([[1], [2]], [[1]], "There are 2 rows and labels of 1"),
    ([[1], [2]], [[1], [2, 3]], "Row 1 has 1 tokens and 2 labels"),
])
def test_rows_that_are_none(rows, labels, message):
    for make in (pad_rows, PaddedBatches):
        with pytest.raises(DataError, match=message):
            make(rows, labels)


def test_settings_that_are_none():
    with pytest.raises(SettingError, match="multiple_of is 0"):
        pad_rows([[1]], multiple_of=0)
    with pytest.raises(SettingError, match="batch_size is 0"):
        PaddedBatches([[1]], batch_size=0)


def test_batches_hold_every_row_once_with_little_padding():
    batches = PaddedBatches(ROWS, batch_size=4, multiple_of=4, random_state=0)
    epoch = list(batches)
    assert sorted(list_rows(epoch)) == sorted(map(tuple, ROWS))
    assert len(epoch) == len(batches) == 13
    padding = [(X["attention_mask"] == 0).sum() for X, _ in epoch]
    whole, _ = pad_rows(ROWS)
    assert sum(padding) < 0.4 * (whole["attention_mask"] == 0).sum()
    assert {X["input_ids"].shape[1] % 4 for X, _ in epoch} == {0}
    assert len({X["input_ids"].shape for X, _ in epoch}) <= 11


def test_epochs_differ_and_repeat_themselves():
    batches, other = (PaddedBatches(ROWS, batch_size=4, random_state=3) for _ in range(2))
    first, second = list_rows(batches), list_rows(batches)
    assert first != second
    assert [list_rows(other), list_rows(pickle.loads(pickle.dumps(other)))] == [first, second]
    batches.set_epoch(0)
    assert list_rows(batches) == first
    fixed = PaddedBatches(ROWS, batch_size=4, shuffle=False)
    lengths = [X["input_ids"].shape[1] for X, _ in fixed]
    assert lengths == sorted(lengths)
    assert list_rows(fixed) == list_rows(fixed)
    assert list_rows(PaddedBatches(ROWS)) != list_rows(PaddedBatches(ROWS))


def test_a_training_that_goes_on_takes_the_same_batches(tmp_path):
    ids, mask = (variable(n, "int64", ["rows", "tokens"]) for n in ("input_ids", "attention_mask"))
    table = constant(RNG.normal(size=(20, 20)).astype(np.float32), hint="table")
    model = build([ids, mask], {"logits": op.Gather(table, ids) * op.Unsqueeze(op.Cast(mask, to=1), [2])})

    def make(**settings):
        loss = SoftmaxCrossEntropyLearningLoss(axis=-1)
        return OrtGradientForwardBackwardOptimizer(model, learning_loss=loss, learning_rate="Adam", max_iter=3,
                                                   **settings)

    def give():
        return PaddedBatches(ROWS, batch_size=4, random_state=1)

    def stop(optimizer):
        optimizer.save_checkpoint(tmp_path / f"{optimizer.n_iter_}.safetensors")
        return False

    whole = make(callbacks=[stop]).fit(batches := give())
    assert batches.epoch == 3
    again = make().fit(give(), resume=tmp_path / "2.safetensors")
    np.testing.assert_array_equal(again.trained_coef_["table"], whole.trained_coef_["table"])
    by_hand = make()
    for epoch in range(3):
        by_hand.partial_fit(give())
        assert by_hand.n_iter_ == epoch + 1
    np.testing.assert_array_equal(by_hand.trained_coef_["table"], whole.trained_coef_["table"])
