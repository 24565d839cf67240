"""Batches: how an iterable of them differs from arrays, and the inputs, targets and weights of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import DataError
from ortpartial.execution import Batch, is_batches, prefetch, refuse_foreign, wrap_sparse

from .validation import DataAdapter

__all__ = ["BatchReader", "is_batches"]

#: What the target of a model with a single trained output is called in a dict, beside the name of the output.
_TARGETS = ("labels", "label", "y", "target", "targets")


class BatchReader:
    """The inputs, targets and weights in a batch, or in data that are given whole.

    A batch is a tuple or list (X, y) or (X, y, sample_weight), or a dict that holds them by name: the inputs, the
    target as "labels", "label", "y", "target", "targets" or by the name of its output, and "sample_weight"; other
    entries are ignored, as other columns of a table are. X is an array, or, where a model has several inputs, a dict, a
    table, or a tuple or list in their order; without a tuple around them, they stand before the targets: (a, b, y).

    Parameters
    ----------
    data : DataAdapter
        Has the inputs that are read and the outputs that are trained.
    """

    #: What errors call the target.
    target = "y"

    def __init__(self, data: DataAdapter):
        self.inputs, self.outputs = data.ordered, list(data.spec.losses)
        self.declared = list(data.spec.model.inputs)

    def unpack(self, X: Data, y: Data, sample_weight: Data) -> Batch:
        """X, y and sample_weight, where X may be a dict of all, or several inputs in order; sparse rows are wrapped.

        Raises
        ------
        DataError
            X gives batches, and there are sample weights apart from them.
        """
        refuse_foreign(X)
        if y is None and isinstance(X, Mapping):
            X, y, w = self._split_dict(X)
            return X, y, sample_weight if w is None else w
        if y is None and sample_weight is not None:
            raise DataError("X gives batches; sample_weight belongs into them, as (X, y, sample_weight).")
        return self._name(X, self.inputs), y if y is None else self._name(y, self.outputs), sample_weight

    def read(self, X: Data, y: Data = None, sample_weight: Data = None, *, with_target: bool = True
             ) -> Iterator[Batch]:
        """X, y and sample_weight of every batch, fetched in advance, or of all the data.

        Raises
        ------
        DataError
            There is no batch, or a batch has other parts.
        """
        X, y, sample_weight = self.unpack(X, y, sample_weight)
        if y is not None or isinstance(X, Mapping) or not is_batches(X):
            if with_target and y is None:
                raise DataError(f"{self.target} is missing; without it, X is to give batches (X, y), one after the "
                                f"other, as PaddedBatches does of rows of token ids.")
            yield X, y, sample_weight
        else:
            yield from self.read_batches(X, with_target=with_target)

    def read_batches(self, batches: Iterable[Data], *, with_target: bool = True) -> Iterator[Batch]:
        """X, y and sample_weight of every batch, fetched in advance.

        Raises
        ------
        DataError
            There is no batch, or a batch has other parts.
        """
        if isinstance(batches, (list, tuple)) and len(batches) == 1:  # A thread would take longer than a short step.
            yield self.split(batches[0], with_target=with_target)
            return
        is_empty = True
        with closing(prefetch(batches)) as fetched:
            for batch in fetched:
                is_empty = False
                yield self.split(batch, with_target=with_target)
        if is_empty:
            raise DataError("There are no batches in X.")

    def split(self, batch: Data, *, with_target: bool = True) -> Batch:
        """X, y and sample_weight of a batch; y may be missing without `with_target`, and the last always.

        Raises
        ------
        DataError
            It is no batch, or its target is missing.
        """
        if isinstance(batch, Mapping):
            X, y, w = self._split_dict(batch)
        elif isinstance(batch, (tuple, list)):
            X, y, w = self._split_sequence(batch)
        else:
            X, y, w = batch, None, None
        if with_target and y is None:
            kind = type(batch).__name__ + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else "")
            if isinstance(batch, Mapping):
                kind = f"{kind} with {', '.join(map(repr, batch))}"
            several = "" if len(self.inputs) == 1 else f", where X holds {', '.join(map(repr, self.inputs))}"
            raise DataError(f"A batch is (X, y) or (X, y, sample_weight){several}, or a dict with the target as "
                            f"'labels', not a {kind}; give y where X is all the data, or "
                            f"PaddedBatches(X) where it is rows of token ids.")
        return X, y, w

    def _split_dict(self, batch: Mapping[str, Data]) -> Batch:
        """The parts of a dict; without an input by its name, X is the entry "X"."""
        X: Data = {n: batch[n] for n in self.declared if n in batch}
        if not X and "X" in batch:
            X = batch["X"]
        X = self._name(X, self.inputs)
        rest = {n: a for n, a in batch.items() if n not in self.declared}
        names = (*self.outputs, *_TARGETS) if len(self.outputs) == 1 else _TARGETS
        y = next((rest[n] for n in names if n in rest), None)
        if len(self.outputs) > 1 and y is None:
            y = {n: rest[n] for n in self.outputs if n in rest} or None
        w = rest.pop("sample_weight", None)
        X = X or {n: a for n, a in rest.items() if a is not y}  # An error names what is there instead.
        return X, y if y is None else self._name(y, self.outputs), w

    def _split_sequence(self, batch: Sequence[Data]) -> Batch:
        """The parts of a tuple or list; X is None where there are too few or too many."""
        n, m = len(self.inputs), len(self.outputs)
        first = batch[0] if batch else None
        if n > 1 and not isinstance(first, (Mapping, list, tuple)) and not hasattr(first, "columns"):
            if len(batch) in (n, n + m, n + m + 1):  # The inputs stand beside each other, and so do the targets.
                ys = list(batch[n : n + m])
                y = (ys[0] if m == 1 else dict(zip(self.outputs, ys, strict=True))) if ys else None
                return dict(zip(self.inputs, batch, strict=False)), y, batch[n + m] if len(batch) > n + m else None
            return None, None, None
        if not 1 <= len(batch) <= 3:
            return None, None, None
        X, y, w = (*batch, None, None)[:3]
        return self._name(X, self.inputs), y if y is None else self._name(y, self.outputs), w

    @staticmethod
    def _name(values: Data, names: Sequence[str]) -> Data:
        """Arrays in a tuple or list by the names of several inputs or outputs; others as they are."""
        if len(names) > 1 and isinstance(values, (tuple, list)) and len(values) == len(names):
            values = dict(zip(names, values, strict=True))
        return values if type(values) is np.ndarray else wrap_sparse(values)
