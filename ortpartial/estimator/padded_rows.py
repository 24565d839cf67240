"""Padded rows: token ids of different lengths as arrays of few shapes, whole or in batches of similar lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ortpartial.annotations import Data
from ortpartial.arguments import checked
from ortpartial.checks import check_flag, to_generator
from ortpartial.exceptions import DataError, SettingError

__all__ = ["PaddedBatches", "pad_rows"]


@checked
def pad_rows(rows: Sequence[Data], labels: Sequence[Data] | None = None, *, multiple_of: int = 8,
             ignore_index: int = -100, pad_id: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Pad token ids at the right to a common length, a multiple of a number, so that batches have few shapes.

    It is the collator of language models, as transformers' `DataCollatorForLanguageModeling` with
    `pad_to_multiple_of`: its results are X and y of `fit`, and as ``collate_fn=pad_rows`` it makes the batches of a
    DataLoader of torch. Padding counts neither in attention nor in the loss.

    Parameters
    ----------
    rows : sequence of array_like of int
        The token ids of each row, such as ``tokenizer(texts)["input_ids"]``. None is empty.
    labels : sequence of array_like of int, optional
        The label of each token, where it is not the token itself: `ignore_index` for tokens that are not to be learned,
        such as the tokens of a prompt.
    multiple_of : int
        The length of the arrays is a multiple of it.
    ignore_index : int
        The label of padding.
    pad_id : int
        The token id of padding. It is looked up like any other, and changes nothing.

    Returns
    -------
    X : dict of str to numpy.ndarray
        ``"input_ids"``, and ``"attention_mask"``, 1 for tokens and 0 for padding: int64 of shape (rows, length).
    labels : numpy.ndarray
        int64 of shape (rows, length).

    Raises
    ------
    DataError
        A row is empty or holds no whole numbers, or has another number of labels.
    SettingError
        `multiple_of` is less than 1.

    See Also
    --------
    PaddedBatches : Batches of rows of similar lengths, with less padding.

    Examples
    --------
    >>> X, labels = pad_rows([[5, 6, 7], [8]], multiple_of=4)
    >>> X["input_ids"].tolist(), X["attention_mask"].tolist()
    ([[5, 6, 7, 0], [8, 0, 0, 0]], [[1, 1, 1, 0], [1, 0, 0, 0]])
    >>> labels.tolist()
    [[5, 6, 7, -100], [8, -100, -100, -100]]
    """
    rows, every = _check_rows(rows, labels)
    length = max(_round_up([len(row) for row in rows], multiple_of), default=0)
    ids = np.full((len(rows), length), pad_id, np.int64)
    padded = np.full((len(rows), length), ignore_index, np.int64)
    mask = np.zeros((len(rows), length), np.int64)
    for i, (row, label) in enumerate(zip(rows, every, strict=True)):
        ids[i, : len(row)], padded[i, : len(row)], mask[i, : len(row)] = row, label, 1
    return {"input_ids": ids, "attention_mask": mask}, padded


class PaddedBatches:
    """Batches of token ids of similar lengths for `fit`, each padded to the longest of its rows.

    Rows are sorted by their padded lengths and cut into batches, as with `group_by_length` of transformers, so that
    little is computed for padding. Every shape that comes often compiles a graph: the greater `multiple_of` is, the
    fewer there are. Each epoch draws anew, from `random_state` and its number, which rows of a length make a batch, and
    the order of the batches: `fit` sets it by `set_epoch`, so that a training goes on from a checkpoint on the same
    batches. It is ``X`` or ``X_val`` of `fit`, without `y`.

    Parameters
    ----------
    rows, labels : sequence of array_like of int
        As for `pad_rows`.
    batch_size : int
        Rows of a batch; a single batch may have fewer.
    multiple_of, ignore_index, pad_id : int
        As for `pad_rows`.
    shuffle : bool
        Whether epochs differ; otherwise each takes the batches by length, the shortest rows first.
    random_state : int, optional
        The seed of the draws.
    with_mask : bool
        Whether batches have the ``"attention_mask"``, which a model of ``"input_ids"`` alone does not take.

    Attributes
    ----------
    epoch : int
        The number of the next epoch, from 0 on.

    Raises
    ------
    DataError, SettingError
        As for `pad_rows`.

    Examples
    --------
    >>> batches = PaddedBatches([[5, 6, 7], [8], [9, 5, 4], [6, 6]], batch_size=2, multiple_of=2, shuffle=False)
    >>> [X["input_ids"].tolist() for X, labels in batches]
    [[[8, 0], [6, 6]], [[5, 6, 7, 0], [9, 5, 4, 0]]]
    >>> len(batches), len(list(batches))
    (2, 2)

    A step of a model that reads tokens of any number:

    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, SoftmaxCrossEntropyLearningLoss
    >>> from ortpartial.graph import build, constant, op, variable
    >>> ids, mask = (variable(n, "int64", ["rows", "tokens"]) for n in ("input_ids", "attention_mask"))
    >>> table = constant(np.zeros((10, 10), np.float32), hint="table")
    >>> logits = op.Gather(table, ids) * op.Unsqueeze(op.Cast(mask, to=1), [2])
    >>> loss = SoftmaxCrossEntropyLearningLoss(axis=-1)
    >>> optimizer = OrtGradientForwardBackwardOptimizer(build([ids, mask], {"logits": logits}), learning_loss=loss,
    ...                                                 learning_rate=10.0, max_iter=5)
    >>> losses = optimizer.fit(batches).train_losses_
    >>> losses[-1] < 0.1 * losses[0]
    True
    """

    @checked
    def __init__(self, rows: Sequence[Data], labels: Sequence[Data] | None = None, batch_size: int = 8, *,
                 multiple_of: int = 8, ignore_index: int = -100, pad_id: int = 0, shuffle: bool = True,
                 random_state: int | None = None, with_mask: bool = True):
        if batch_size < 1:
            raise SettingError(f"batch_size is {batch_size}, and should be at least 1.")
        self.rows, self.labels = _check_rows(rows, labels)
        self.lengths = _round_up([len(row) for row in self.rows], multiple_of)
        self.batch_size, self.multiple_of, self.shuffle = batch_size, multiple_of, shuffle
        self.ignore_index, self.pad_id = ignore_index, pad_id
        self.with_mask = check_flag("with_mask", with_mask)
        self.seed = int(to_generator("random_state", random_state).integers(2**63))
        self.epoch = 0

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        rng = np.random.default_rng([self.seed, self.epoch])
        self.epoch += 1
        order = rng.permutation(len(self.rows)) if self.shuffle else np.arange(len(self.rows))
        order = order[np.argsort(self.lengths[order], kind="stable")]
        batches = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        for i in rng.permutation(len(batches)) if self.shuffle else range(len(batches)):
            X, y = pad_rows([self.rows[n] for n in batches[i]], [self.labels[n] for n in batches[i]],
                            multiple_of=self.multiple_of, ignore_index=self.ignore_index, pad_id=self.pad_id)
            yield {n: a for n, a in X.items() if self.with_mask or n != "attention_mask"}, y

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is, as samplers of torch are told.

        Parameters
        ----------
        epoch : int
            Its number, from 0 on.
        """
        self.epoch = epoch


def _check_rows(rows: Sequence[Data], labels: Sequence[Data] | None) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The rows and their labels as arrays of whole numbers."""
    arrays = [_to_row(row, f"Row {i}") for i, row in enumerate(rows)]
    if labels is None:
        return arrays, arrays
    every = [_to_row(row, f"labels[{i}]") for i, row in enumerate(labels)]
    if len(every) != len(arrays):
        raise DataError(f"There are {len(arrays)} rows and labels of {len(every)}.")
    for i, (row, label) in enumerate(zip(arrays, every, strict=True)):
        if len(row) != len(label):
            raise DataError(f"Row {i} has {len(row)} tokens and {len(label)} labels.")
    return arrays, every


def _to_row(row: Data, what: str) -> np.ndarray:
    """One-dimensional whole numbers, not empty."""
    try:
        array = np.asarray(row)
    except ValueError:  # rows in rows, of several lengths
        array = np.array(None)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
        kind = f"of shape {array.shape} and dtype {array.dtype}"
        raise DataError(f"{what} is {kind}, where the ids of one token or more were expected, whole numbers.")
    return array


def _round_up(lengths: Sequence[int], multiple: int) -> np.ndarray:
    """Lengths as multiples of a number."""
    if multiple < 1:
        raise SettingError(f"multiple_of is {multiple}, and should be at least 1.")
    return -(-np.asarray(lengths, np.int64) // multiple) * multiple
