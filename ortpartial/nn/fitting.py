"""The loop of `fit`: epochs over rows in a new order, or over batches, and the mean losses of each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from ortpartial.exceptions import ConvergenceError, DataError, SettingError

from .structure import flatten, rebuild

if TYPE_CHECKING:
    from .compilation import Program

__all__ = ["check_positive", "concatenate", "cut", "fit", "to_arrays"]

#: What a step reads: inputs, then targets.
Rows = list[np.ndarray]


def fit(program: Program, data: Rows | Iterable[Any], validation: Rows | None, *, epochs: int, batch_size: int,
        shuffle: bool, callbacks: Sequence[Callable[[Any], Any]], verbose: int) -> None:
    """Train for some epochs, and add a record of each to the history of the module.

    Parameters
    ----------
    program : Program
        Takes the steps.
    data : list of numpy.ndarray, or iterable of batches
        Arrays with a row for each example, or batches of them.
    validation : list of numpy.ndarray, optional
        Rows whose loss in evaluation mode is computed after each epoch.
    epochs, batch_size, shuffle, callbacks, verbose
        As for `Module.fit`.

    Raises
    ------
    ConvergenceError
        A loss is NaN or infinite.
    """
    module, history = program.module, program.module.history_
    steps = -(-len(data[0]) // batch_size) if isinstance(data, list) else length_hint(data)
    is_first = program.synchronize()
    program.plan_further(epochs * steps)
    bar = tqdm(range(len(history) + 1, len(history) + epochs + 1), disable=not (verbose and is_first), unit="epoch")
    for epoch in bar:
        start = time.perf_counter()
        record: dict[str, Any] = {"epoch": epoch, "iteration": 0, "seconds": 0.0}
        record.update(_mean_losses(program.step, _split(program, data, batch_size, shuffle), epoch, program.undo))
        if validation is not None:
            means = _mean_losses(program.evaluate, _split(program, validation, batch_size, shuffle=False), epoch)
            record.update({f"validation_{n}": mean for n, mean in means.items()})
        record.update(iteration=program.iteration, seconds=time.perf_counter() - start)
        history.append(record)
        bar.set_postfix({n: f"{v:.4g}" for n, v in record.items() if "loss" in n})
        answers = [callback(module) for callback in callbacks]
        if program.agree(True in answers):
            break
    bar.close()


def _split(program: Program, data: Any, size: int, shuffle: bool) -> Iterator[Sequence[Any]]:
    """The batches of an epoch; the order of the rows follows from the seed and the number of batches seen."""
    if not isinstance(data, list):
        for batch in data:
            yield batch if isinstance(batch, (tuple, list)) else (batch,)
        return
    rows = len(data[0])
    rng = np.random.default_rng([*program.seed.view(np.uint32).tolist(), program.iteration])
    yield from cut(data, rng.permutation(rows) if shuffle else np.arange(rows), size)


def cut(arrays: Rows, order: np.ndarray, size: int) -> Iterator[Rows]:
    """The rows of each batch."""
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield [a[rows] for a in arrays]


def concatenate(parts: Sequence[tuple[int, Any]]) -> Any:
    """The outputs for all rows, from the number of rows and the outputs of each batch.

    Raises
    ------
    DataError
        An output has no row for each row.
    """
    leaves = [flatten(outputs, "output") for _, outputs in parts]
    for (rows, _), part in zip(parts, leaves, strict=True):
        if unlike := [n for n, a in part.items() if a.shape[:1] != (rows,)]:
            raise DataError(f"{unlike[0]!r} has the shape {part[unlike[0]].shape} for a batch of {rows} rows, so that "
                            f"those of several batches are not one; predict without batch_size.")
    return rebuild(parts[0][1], "output", {n: np.concatenate([part[n] for part in leaves]) for n in leaves[0]})


def _mean_losses(step: Callable[[Sequence[Any]], Any], batches: Iterable[Sequence[Any]], epoch: int,
                 undo: Callable[[], None] = lambda: None) -> Mapping[str, float]:
    """The means of the losses over the rows, by name."""
    sums: defaultdict[str, float] = defaultdict(float)
    total = 0
    for batch in batches:
        rows, result = len(batch[0]), step(batch)
        losses = flatten(result[1] if isinstance(result, tuple) and len(result) == 2 else result, "loss")
        for name, loss in losses.items():
            if loss.size == 1:
                sums[name] += rows * float(loss)
        total += rows
        if not np.isfinite(list(sums.values())).all():
            undo()
            name = next(n for n, v in sums.items() if not np.isfinite(v))
            raise ConvergenceError(f"The {name} is {losses[name]} in epoch {epoch}; the weights are those before that "
                                   f"batch. Lower the learning rate, or scale the data.")
    if not total:
        raise DataError(f"Epoch {epoch} has no rows: the data are empty, or an iterator that an epoch has used up; "
                        f"give an iterable that begins anew, such as a DataLoader.")
    return {n: v / total for n, v in sums.items()}


def to_arrays(data: Any, names: Sequence[str], what: str) -> Rows:
    """One array for each name, of equally many rows.

    Parameters
    ----------
    data : array_like, or sequence or dict of them
        The array, or one for each name.
    names : sequence of str
        The names.
    what : str
        What the data are called in errors.

    Returns
    -------
    list of numpy.ndarray

    Raises
    ------
    DataError
        There is another number of arrays, or of rows.
    """
    try:
        arrays = _list_arrays(data, names, what)
    except ValueError as e:
        raise DataError(f"{what} is no array, nor a tuple or dict of {len(names)}: {e}") from None
    for name, a in zip(names, arrays, strict=True):
        if not a.ndim or a.dtype == object:
            raise DataError(f"{what}: {name!r} is no array with a row for each example.")
    if len({len(a) for a in arrays}) > 1:
        sizes = ", ".join(f"{n} {len(a)}" for n, a in zip(names, arrays, strict=True))
        raise DataError(f"{what}: the arrays differ in their number of rows: {sizes}.")
    return arrays


def _list_arrays(data: Any, names: Sequence[str], what: str) -> Rows:
    """The array for each name."""
    if isinstance(data, Mapping):
        if missing := [n for n in names if n not in data]:
            raise DataError(f"{what} has no {missing[0]!r}; it has {', '.join(map(repr, data))}.")
        return [np.asarray(data[n]) for n in names]
    if len(names) == 1:
        return [np.asarray(data)]
    if len(data) != len(names) or not isinstance(data, (tuple, list)):
        raise DataError(f"{what} takes {len(names)} arrays, {', '.join(names)}, as a tuple or by name.")
    return [np.asarray(a) for a in data]


def check_positive(**settings: int) -> None:
    """Check settings that are whole numbers of at least 1."""
    for name, value in settings.items():
        if not isinstance(value, (int, np.integer)) or value < 1:
            raise SettingError(f"{name} is a whole number of at least 1, not {value!r}.")
