"""Validation of data: from X, y and sample_weight to arrays of the shapes and dtypes that a graph declares."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from math import prod
from numbers import Number
from typing import Any

import numpy as np

from ortpartial.annotations import Data, Entries
from ortpartial.exceptions import DataError, ModelError, ModelWarning
from ortpartial.execution import Batch, SparseRows, wrap_sparse
from ortpartial.graph import Value, describe_misfit, find_inputs, read_array, to_dtype
from ortpartial.learning import BaseLearningLoss, SquareLearningLoss, explain_classes
from ortpartial.model import check_indices, find_indices, index_ranges, match_names
from ortpartial.training import TrainingSpec

from .hints import hint_encoding, hint_labels, hint_shape
from .missing_values import find_nullable

__all__ = ["DataAdapter", "check_inputs", "check_sample_weight", "check_target", "list_columns"]

#: The forward pass: arrays of the inputs by name -> arrays of the outputs by name.
Forward = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]

#: Shapes of outputs that are remembered.
_REMEMBERED = 1024

#: Elements, or rows of a strided array, that are checked at a time.
_CHUNK = 2**20


class DataAdapter:
    """Conversion of X, y and sample_weight to the arrays that a training step reads, by their names in the graphs.

    Parameters
    ----------
    spec : TrainingSpec
        The training.

    Attributes
    ----------
    inputs : dict of str to Value
        The inputs that the trained outputs depend on; the model may have others.
    fixed_batch : int or None
        The static first size of an input, which every batch must have.

    Raises
    ------
    ModelError
        The trained outputs depend on no input.
    """

    def __init__(self, spec: TrainingSpec):
        self.spec = spec
        self.has_told_of_weights = False
        self.is_told = True  # whether targets that look like classes have been looked for
        outputs = list(spec.outputs.values())
        self.inputs = find_inputs(outputs, spec.model.inputs)
        self._computed = spec.computed
        if not self.inputs:
            raise ModelError(f"The outputs {self._outputs} depend on no input of the model.")
        for v, loss in zip(outputs, spec.losses.values(), strict=True):
            if v.shape is not None:
                loss.check_output(v.shape)
        self._ranges = index_ranges(self.inputs, outputs)
        self._indices = find_indices(self.inputs, outputs)
        self._nullable = find_nullable(outputs, self.inputs)
        self._shapes: dict[Hashable, Sequence[int | str | None]] = {}  # of outputs, by those of the inputs
        sizes = [v.shape[0] for n, v in self.inputs.items() if v.shape and n not in self._computed.shapes]
        self.fixed_batch = next((size for size in sizes if isinstance(size, int)), None)

    @property
    def _outputs(self) -> str:
        """The names of the trained outputs, for errors."""
        return ", ".join(map(repr, self.spec.losses))

    @property
    def ordered(self) -> list[str]:
        """The inputs in the order of arrays beside each other, without inputs that a decoder with a cache computes."""
        computed = self._computed.shapes if self._computed.caches else ()
        return [n for n in self.inputs if n not in computed]

    def to_inputs(self, X: Data) -> tuple[dict[str, np.ndarray], int]:
        """Arrays of the inputs that are read, and their number of rows."""
        if isinstance(X, Mapping):
            X = {n: a for n, a in X.items() if n in self.inputs or n not in self.spec.model.inputs}
        inputs = self._choose_inputs(X) if self._computed.shapes else self.inputs
        arrays, rows = check_inputs(inputs, X, self._indices, self._nullable)
        check_indices({n: r for n, r in self._ranges.items() if n in arrays}, arrays)
        if self._computed.caches:
            self._computed.check(arrays)
        for name, v in inputs.items():
            size = v.shape[0] if v.shape else None
            if isinstance(size, int) and rows % size:
                raise DataError(f"Input {name!r} has a fixed batch dimension of {size} and there are {rows} rows; "
                                f"export it with a dynamic one, or give a multiple of {size} rows.")
        return arrays, rows

    def _choose_inputs(self, X: Data) -> Mapping[str, Value]:
        """The inputs that X has to hold: not inputs that can be computed, unless it names them."""
        named = self._computed.choose(X) if isinstance(X, Mapping) else ()
        return {n: v for n, v in self.inputs.items() if n in named or n not in self._computed.shapes}

    def to_targets(self, y: Data, inputs: Mapping[str, np.ndarray], rows: int, forward: Forward
                   ) -> dict[str, np.ndarray]:
        """Arrays of the targets; `forward` is run where the model does not declare the sizes of an output."""
        by_output = self._name_targets(y)
        targets = {}
        for output, loss in self.spec.losses.items():
            shape = self._find_shape(output, inputs, forward)
            value = self.spec.outputs[output]
            dtype = np.dtype(value.dtype if loss.target_dtype is None else loss.target_dtype)
            what = "y" if len(self.spec.losses) == 1 else f"y[{output!r}]"
            loss.check_output(shape)
            if not self.is_told:
                self._tell_of_classes(by_output[output], loss, what)
            t = check_target(by_output[output], dtype, loss.target_shape(shape), rows, what, loss.count_classes(shape),
                             loss.ignore_index, partial(loss.explain_shape, output_shape=shape))
            loss.check_target(t, what)
            targets[self.spec.names.target(output)] = t
        return targets

    def _tell_of_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Warn, once, where rows are weighed one by one, and each counts the same."""
        counted = [w[w != 0] for w in weights.values() if w.ndim == 1]
        if self.spec.own_loss is None and not self.has_told_of_weights and any(
                w.size and (w != w[0]).any() for w in counted):
            self.has_told_of_weights = True
            warnings.warn("The loss of a batch is divided by the weights of its rows, so that they cancel in batches "
                          "of one row; give batch_size=2 or more.", ModelWarning, stacklevel=2)

    def _tell_of_classes(self, y: Data, loss: BaseLearningLoss, what: str) -> None:
        """Warn, once, where the square loss of labels is taken by default."""
        self.is_told = True
        if type(loss) is SquareLearningLoss and not isinstance(rows := wrap_sparse(y), SparseRows) and (
                text := explain_classes(read_array(rows, what), what, "learning_loss='square_error'",
                                        "give learning_loss=SquareLearningLoss()")):
            warnings.warn(text, ModelWarning, stacklevel=2)

    def to_arrays(self, X: Data, y: Data, sample_weight: Data, batch_size: int, forward: Forward
                  ) -> tuple[dict[str, np.ndarray], int]:
        """All arrays that a training step reads, and their number of rows."""
        inputs, rows = self.to_inputs(X)
        if self.fixed_batch not in (None, batch_size):
            raise DataError(f"The model has a fixed batch dimension of {self.fixed_batch} and batch_size is "
                            f"{batch_size}; export it with a dynamic one, or use batch_size={self.fixed_batch}.")
        targets = self.to_targets(y, inputs, rows, forward)
        weights = self.to_weights(sample_weight, targets, rows)
        if batch_size == 1 and sample_weight is not None:
            self._tell_of_weights(weights)
        return {**inputs, **targets, **weights}, rows

    def to_weights(self, sample_weight: Data, targets: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        """Arrays of the weights: of the rows, or of the elements of every target, where weights within a target differ.

        A label that does not count has a weight of 0, so that no graph has to look for it.
        """
        names, dtype, losses = self.spec.names, self.spec.dtype, self.spec.losses
        if any(loss.is_unbalanced for loss in losses.values()):
            raise DataError("class_weight='balanced' takes the weights of classes from all labels, as fit(X, y) is "
                            "given them; batches, partial_fit and losses do not know them: give an array or a dict.")
        by_output = {o: targets[names.target(o)] for o in losses}
        ignored = {o: mask for o, t in by_output.items()
                   if (mask := losses[o].find_ignored(t)) is not None and mask.any()}
        weights: dict[str, np.ndarray] = {}
        if sample_weight is None and not ignored:
            return {}
        if isinstance(sample_weight, Mapping):
            match_names(losses, sample_weight, "sample_weight")
            weights = {o: check_sample_weight(w, dtype, rows, by_output[o].shape)
                       for o, w in sample_weight.items() if w is not None}
        elif sample_weight is not None:
            shape = next(iter(by_output.values())).shape if len(losses) == 1 else (rows,)
            w = check_sample_weight(sample_weight, dtype, rows, shape)
            if w.ndim == 1 and not ignored:
                return {names.sample_weight: w}
            weights = dict.fromkeys(losses, w)
        return {self.spec.weight_names[o]: _weigh_elements(weights.get(o), t, ignored.get(o), dtype)
                for o, t in by_output.items()}

    def to_batch(self, arrays: Mapping[str, np.ndarray]) -> Batch:
        """The arrays of a step as X, y and sample_weight."""
        names = self.spec.names
        X = {n: a for n, a in arrays.items() if n in self.spec.model.inputs}
        weights = {o: arrays[n] for o, n in self.spec.weight_names.items() if n in arrays}
        return X, {o: arrays[names.target(o)] for o in self.spec.losses}, weights or arrays.get(names.sample_weight)

    def check_counts(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Refuse data of which nothing counts."""
        targets = [arrays[n] for o in self.spec.losses if (n := self.spec.names.target(o)) in arrays]
        if empty := [t for t in targets if not t.size]:
            raise DataError(f"Nothing counts: y has shape {empty[0].shape}, which has no element.")
        shared = self.spec.names.sample_weight
        weights = [arrays[n] for n in (shared, *self.spec.weight_names.values()) if n in arrays]
        if weights and not any(w.any() for w in weights):
            raise DataError("All sample weights are zero." if shared in arrays else
                            "Nothing counts: every label is the ignore_index, or its sample weight is zero.")

    def _name_targets(self, y: Data) -> Entries:
        """The targets by the names of their outputs."""
        losses = self.spec.losses
        if not isinstance(y, Mapping) and len(losses) == 1:
            return {next(iter(losses)): y}
        by_output = y if isinstance(y, Mapping) else list_columns(y)
        if by_output is None:
            raise DataError(f"The trained outputs are {self._outputs}; give y as a dict by name.")
        match_names(losses, by_output, "target")
        return by_output

    def _find_shape(self, output: str, inputs: Mapping[str, np.ndarray], forward: Forward
                    ) -> Sequence[int | str | None]:
        """The shape of an output: as declared, else by a run on the first rows.

        Where its sizes have the names of sizes of the inputs, inputs of the same sizes are run once.
        """
        shape = self.spec.outputs[output].shape
        if shape is not None and (declared := self._fill_sizes(shape, inputs)) is not None:
            return declared
        key = output, tuple([a.shape[1:] for a in inputs.values()])
        if (known := self._shapes.get(key)) is not None:
            return known
        rows = {n: a[: self.fixed_batch or 1] for n, a in inputs.items()}
        ran = self._infer_shape(output, rows) or forward(rows)[output].shape
        names = {d for v in self.inputs.values() for d in v.shape or () if isinstance(d, str)}
        if shape is not None and len(self._shapes) < _REMEMBERED and all(
                isinstance(d, int) or d in names for d in shape[1:]):
            self._shapes[key] = ran
        return ran

    def _fill_sizes(self, shape: Sequence[int | str | None], inputs: Mapping[str, np.ndarray]
                    ) -> Sequence[int | str | None] | None:
        """A declared shape with the sizes of tokens, for a language model, without running it; None if any is open."""
        if all(isinstance(d, int) for d in shape[1:]):
            return shape
        if not (tokens := self._computed.tokens):
            return None
        sizes = dict(zip(self.inputs[tokens].shape or (), inputs[tokens].shape, strict=True))
        is_known = all(isinstance(d, int) or (d in sizes and d is not None) for d in shape[1:])
        return [sizes.get(d, d) for d in shape] if is_known else None

    def _infer_shape(self, output: str, inputs: Mapping[str, np.ndarray]) -> Sequence[int] | None:
        """The shape of an output of a big model, which is run at a greater cost, as far as inference finds it."""
        if self.spec.model.file is None:
            return None
        v = self.spec.for_batch({n: a.shape for n, a in inputs.items()}).outputs[output]
        return v.shape if v.is_static else None  # type: ignore[return-value]


def _to_array(data: Data, dtype: np.dtype, what: str, counts: bool = False, nullable: bool = False) -> np.ndarray:
    """An array of this dtype, contiguous, without infinity, and without NaN where it is not nullable.

    `counts` refuses real numbers, as for indices.
    """
    if data is None:
        raise DataError(f"{what} is None, where an array of {dtype} was expected.")
    if type(data) is np.ndarray:  # The usual case: a small training takes microseconds.
        array = data
    elif isinstance(rows := wrap_sparse(data), SparseRows):
        return _check_sparse(rows, dtype, what, counts, nullable)
    elif table := list_columns(data):
        return _stack_columns(table, dtype, what, counts, nullable)
    else:
        array = read_array(data, what)
    if dtype.kind == "O" and array.dtype.kind in "OU":
        return _check_text(array, what)
    if array.dtype == object:
        array = _convert_objects(array, dtype, what)
    if array.dtype.kind not in "biuf" and array.dtype != dtype:
        raise DataError(f"{what} has dtype {array.dtype}, where {dtype} was expected{hint_encoding(data, what)}.")
    _check_numbers(array, dtype, what, counts, nullable)
    with np.errstate(over="ignore"):
        cast = np.asarray(array, dtype=dtype, order="C")
    if cast is not array and dtype.kind == "f" and array.dtype.kind in "fiu" and not _is_finite(cast, nullable):
        raise DataError(f"{what} holds numbers too large for {dtype}.")
    return cast


def _check_sparse(data: SparseRows, dtype: np.dtype, what: str, counts: bool, nullable: bool) -> np.ndarray:
    """Sparse rows of this dtype, whose numbers are checked like an array's."""
    if counts or not what.startswith("Input"):
        raise DataError(f"{what} is a sparse matrix, where an array was expected; give its toarray().")
    return data.convert(lambda numbers: _to_array(numbers, dtype, what, False, nullable))  # type: ignore[return-value]


def _convert_objects(array: np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
    """An array of Python's numbers in a dtype."""
    try:
        return to_dtype(array, dtype, what)
    except DataError:
        wrong = next((v for v in array.flat if not isinstance(v, Number)), None)
        if wrong is None:
            raise
        raise DataError(f"{what} holds {type(wrong).__name__}, where {dtype} was expected"
                        f"{hint_encoding(wrong, what)}.") from None


def _check_numbers(array: np.ndarray, dtype: np.dtype, what: str, counts: bool, nullable: bool) -> None:
    """Refuse an array whose numbers a dtype cannot hold, or are not to be there."""
    if array.dtype.kind == "f" and not _is_finite(array, nullable):
        unwanted = "infinity" if nullable else "NaN or infinity"
        raise DataError(f"{what} contains {unwanted}; impute or drop those rows.")
    if counts and array.dtype.kind == "f" and dtype.kind != "f":
        raise DataError(f"{what} holds indices, as {array.dtype}; convert it, such as by astype({str(dtype)!r}).")
    if array.dtype != dtype and (misfit := describe_misfit(array, dtype)):
        quantity = " a fraction," in misfit and what.startswith("y")
        hint = "; quantities are for another loss, such as 'square_error'" if quantity else ""
        raise DataError(f"{what} {misfit}{hint}.")


def _check_text(array: np.ndarray, what: str) -> np.ndarray:
    """An array of strings as onnxruntime takes them."""
    text = array.astype(object)
    if (wrong := next((v for v in text.flat if not isinstance(v, str)), None)) is not None:
        raise DataError(f"{what} holds {wrong!r}, where strings were expected.")
    return text


def list_columns(data: Data) -> dict[Any, Data] | None:
    """List the columns of a table by name; None for anything but a table.

    Parameters
    ----------
    data : object
        A table of pandas, polars or pyarrow, or any object with ``__array__``, column names, and a column for each.
        None of these libraries is imported.

    Returns
    -------
    dict or None

    Raises
    ------
    DataError
        Two columns have the same name.
    """
    if not hasattr(data, "__array__"):
        return None
    names = getattr(data, "column_names", None)  # pyarrow's `columns` are the columns
    names = getattr(data, "columns", None) if names is None else names
    if names is None:
        return None
    if twice := [n for n, times in Counter(names).items() if times > 1]:
        raise DataError(f"The table has two columns of the name {twice[0]!r}; rename one.")
    return {n: data[n] for n in names}


def _stack_columns(table: Mapping[Hashable, Data], dtype: np.dtype, what: str, *settings: bool) -> np.ndarray:
    """The columns of a table, stacked; each is checked by itself, so that an error names it."""
    whose = what[0].lower() + what[1:]
    return np.stack([_to_array(c, dtype, f"Column {n!r} of {whose}", *settings) for n, c in table.items()], axis=1)


def _align_rank(column: Data, declared: Sequence[int | str | None] | None) -> np.ndarray:
    """A column of a table, as a matrix of a single column if the input is declared so."""
    array = np.asarray(column)
    return array[:, None] if declared is not None and len(declared) == 2 and array.ndim == 1 else array


def _is_finite(array: np.ndarray, nullable: bool) -> bool:
    """Whether there is neither infinity nor NaN, if it is not nullable, checked in chunks.

    A memory map may be larger than the memory.
    """
    flat = array.reshape(-1) if array.flags.c_contiguous else np.atleast_1d(array)
    if len(flat) <= _CHUNK and not nullable:
        return bool(np.logical_and.reduce(np.isfinite(flat), axis=None))
    chunks = (flat[i : i + _CHUNK] for i in range(0, len(flat), _CHUNK))
    return not any(np.isinf(c).any() if nullable else not np.isfinite(c).all() for c in chunks)


def check_inputs(inputs: Mapping[str, Value], X: Data, indices: Collection[str] = (), nullable: Collection[str] = ()
                 ) -> tuple[dict[str, np.ndarray], int]:
    """Convert X to arrays of the inputs of a graph, by name.

    Parameters
    ----------
    inputs : dict of str to Value
        The inputs of the graph.
    X : array_like, table, or dict of str to array_like
        For several inputs a dict, or a table with a column for each; other columns are ignored. Every array has the
        shape (rows, ...) that its input declares.
    indices : collection of str
        The inputs that hold indices, for which real numbers are refused, even 1.0.
    nullable : collection of str
        The inputs that may hold NaN.

    Returns
    -------
    arrays : dict of str to numpy.ndarray
    rows : int

    Raises
    ------
    DataError
        An input is missing or unknown, its shape or length does not fit, or it holds NaN, infinity, or numbers that
        its dtype cannot hold.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> check_inputs({"x": variable("x", "float32", ["N", 2])}, [[1, 2, 3]])
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.DataError: Input 'x' has shape (1, 3), where (N, 2) was expected.
    """
    if not inputs:
        raise DataError("The model reads no input, so that there are no rows to run it on.")
    if not isinstance(X, Mapping) and len(inputs) == 1:
        X = {next(iter(inputs)): X}
    elif not isinstance(X, Mapping):
        if (table := list_columns(X)) is None:
            raise DataError(f"The model has the inputs {', '.join(map(repr, inputs))}; give a dict of arrays by name.")
        X = {n: _align_rank(c, inputs[n].shape) for n, c in table.items() if n in inputs}
    match_names(inputs, X)
    arrays = {n: _to_array(X[n], v.dtype, f"Input {n!r}", n in indices, n in nullable) for n, v in inputs.items()}
    for n, v in inputs.items():
        _check_shape(arrays[n].shape, v.shape, f"Input {n!r}")
    lengths = {n: len(a) for n, a in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"The inputs have different numbers of rows: {lengths}.")
    rows = next(iter(lengths.values()))
    if rows == 0:
        raise DataError("There are no rows in X.")
    return arrays, rows


def _check_shape(shape: tuple[int, ...], declared: Sequence[int | str | None] | None, what: str) -> None:
    """Check the rank, and every static size except the number of rows."""
    if declared is None:
        return
    if not declared:
        raise DataError(f"{what} is a scalar in the model; rows need an axis of their own.")
    wanted = "(" + ", ".join("?" if d is None else str(d) for d in declared) + ("," if len(declared) == 1 else "") + ")"
    fits = len(shape) == len(declared) and all(
        not isinstance(d, int) or s == d for s, d in zip(shape[1:], declared[1:], strict=False)
    )
    if not fits:
        raise DataError(f"{what} has shape {shape}, where {wanted} was expected{hint_shape(shape, declared)}.")


def _weigh_elements(w: np.ndarray | None, t: np.ndarray, ignored: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    """Weights of the elements of a target: by rows or by elements, and 0 where elements are ignored."""
    elements = np.ones(t.shape, dtype)
    if w is not None:
        elements *= w.reshape(w.shape + (1,) * (t.ndim - w.ndim))
    if ignored is not None:
        elements[ignored] = 0
    return elements


def check_target(y: Data, dtype: np.dtype, shape: Sequence[int | str | None] | None, rows: int, what: str = "y",
                 classes: int | None = None, ignore_index: int | None = None,
                 explain: Callable[[tuple[int, ...]], str] = lambda _: "") -> np.ndarray:
    """Convert y to the target of an output, in the shape that its loss expects.

    Parameters
    ----------
    y : array_like
        Numbers or labels.
    dtype : numpy.dtype
        Dtype that the loss expects.
    shape : sequence of int, str or None
        Shape that the loss expects; the first size stands for the number of rows.
    rows : int
        Number of rows of X.
    what : str
        Name of the target in errors.
    classes : int, optional
        Number of classes: labels have to be in ``0 ... classes - 1``, as onnxruntime does not check them and would read
        foreign memory.
    ignore_index : int, optional
        The label out of this range that is allowed.
    explain : callable
        From the shape of y to the end of the error about a size that does not fit.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    DataError
        The length differs from that of X, a size does not fit, a label is out of range, or y is not finite.
    """
    array = _to_array(y, dtype, what)
    if array.ndim == 0 or len(array) != rows:
        raise DataError(f"{what} has {array.shape[0] if array.ndim else 'no'} rows and X has {rows}.")
    if shape is not None:
        rest = shape[1:]
        if all(isinstance(d, int) for d in rest):
            wanted = (rows, *(d for d in rest if isinstance(d, int)))
            if array.size != np.prod(wanted):
                raise DataError(f"{what} has shape {array.shape}, where {wanted} was expected"
                                f"{explain(array.shape) or ', as the output has'}.")
            array = array.reshape(wanted)
        elif array.ndim != len(shape):
            raise DataError(f"{what} has {array.ndim} axes, where {len(shape)} were expected{explain(array.shape)}.")
    if classes is not None:
        _check_labels(array, classes, ignore_index, what)
    return array


def _check_labels(array: np.ndarray, classes: int, ignore_index: int | None, what: str) -> None:
    """Refuse labels out of range, unless they do not count."""
    if not array.size or 0 <= array.min() <= array.max() < classes:
        return
    labels = array if ignore_index is None else array[array != ignore_index]
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        ignored = "" if ignore_index is None else f", or {ignore_index} for what does not count"
        raise DataError(f"{what} has labels from {labels.min()} to {labels.max()}, where 0 to {classes - 1} were "
                        f"expected{ignored}{hint_labels(labels.min(), labels.max(), classes)}.")


def check_sample_weight(w: Data, dtype: np.dtype, rows: int, shape: Sequence[int] = ()) -> np.ndarray:
    """Convert sample_weight to an array of a weight per row, or per element of the target, not negative.

    Parameters
    ----------
    w : array_like
        Weights, of shape (rows,) or (rows, 1), or of the shape of the target.
    dtype : numpy.dtype
        Dtype that the graph expects.
    rows : int
        Number of rows of X.
    shape : sequence of int
        The shape of the target, if its elements may have weights.

    Returns
    -------
    numpy.ndarray
        Of shape (rows,), or of the shape of the target.

    Raises
    ------
    DataError
        The shape fits neither the rows nor the target, or a weight is negative or not finite.
    """
    array, shape = _to_array(w, dtype, "sample_weight"), tuple(shape)
    if array.size != rows and (array.size != prod(shape) or array.shape[:1] != shape[:1]):
        hint = f" or {shape}, the shape of the target," if len(shape) > 1 else ""
        named = "; give validation data by name, as X_val=..., y_val=..." if array.ndim > 1 else ""
        raise DataError(f"sample_weight has shape {array.shape} and X has {rows} rows, where one weight a row{hint} "
                        f"was expected{named}.")
    if (array < 0).any():
        raise DataError(f"sample_weight has negative weights, the least is {array.min()}.")
    return array.reshape(rows if array.size == rows else shape)
