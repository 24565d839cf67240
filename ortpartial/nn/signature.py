"""Signature: the arrays that the code of a module takes, as inputs, targets and weights of rows."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import DataError
from ortpartial.execution import SparseRows, is_batches, refuse_foreign
from ortpartial.graph import Value

from .parts import Part, has_own_step
from .placeholders import check_sizes, list_arguments, name_all, to_placeholder
from .rows import to_array, to_arrays
from .trace import ITERATION, SEED, WEIGHTS

__all__ = ["Signature"]


@dataclass(frozen=True)
class Signature:
    """The parameters of `forward` and `train_one_batch` of a module.

    Parameters
    ----------
    module : Part
        The module.
    inputs : dict of str to Value
        The placeholders of `forward`, by name.
    dtype : numpy.dtype or None
        The dtype of arrays of floating-point numbers, if it follows from the parameters.
    """

    module: Part
    inputs: Mapping[str, Value]
    dtype: np.dtype | None

    @classmethod
    def of(cls, module: Part, inputs: Sequence[Data]) -> Signature:
        """The signature of a module whose `forward` takes inputs like these."""
        reserved = {n for n, _ in module.named_parameters(buffers=True)}
        names = name_all(inputs, list_arguments(module.forward), "input", reserved)
        dtype = next((p.dtype for p in module.parameters() if p.is_float), None)
        return cls(module, {n: to_placeholder(x, n, dtype) for n, x in zip(names, inputs, strict=True)}, dtype)

    def _list_targets(self) -> list[str]:
        """The names of the arguments of `train_one_batch` after the inputs."""
        return list_arguments(self.module.train_one_batch)[len(self.inputs):]

    def check_count(self, inputs: Sequence[Data]) -> None:
        """Refuse another number of inputs."""
        if len(inputs) != len(self.inputs):
            raise DataError(f"{type(self.module).__name__} takes {len(self.inputs)} inputs, {', '.join(self.inputs)}, "
                            f"and got {len(inputs)} arrays; a batch with its targets is for train_one_batch.")

    def _check_batch(self, count: int) -> None:
        """Check that `train_one_batch` takes a batch of so many arrays."""
        try:
            is_default = not has_own_step(self.module)
            if is_default and count not in (len(self.inputs) + 1, len(self.inputs) + 2):
                raise TypeError(f"it takes {', '.join(self.inputs)} and a target")
            inspect.signature(self.module.train_one_batch).bind(*range(count))
        except TypeError as e:
            raise DataError(f"{type(self.module).__name__}.train_one_batch does not take {count} "
                            f"{'array' if count == 1 else 'arrays'}: {e}.") from None

    def takes_no_target(self) -> bool:
        """Whether a `train_one_batch` of the user takes nothing but the inputs."""
        arguments = list_arguments(type(self.module).train_one_batch)
        return has_own_step(self.module) and len(arguments) - 1 == len(self.inputs)

    def name_batch(self, targets: Sequence[Value | np.ndarray], inputs: Sequence[np.ndarray],
                   reserved: Collection[str]) -> dict[str, Value]:
        """The placeholders of inputs and targets, by name; the first axis of a target may be none of rows."""
        self._check_batch(len(self.inputs) + len(targets))
        arguments = self._list_targets()
        if not has_own_step(self.module) and len(targets) == 2:
            arguments = ["target", WEIGHTS]
        names = name_all(targets, arguments, "target", {*self.inputs, *reserved, SEED, ITERATION})
        rows = check_sizes(self.inputs, inputs).get("N") if inputs else None
        sizes = ["N" if rows in (None, *(t.shape or ())[:1]) else f"{n}_rows"
                 for n, t in zip(names, targets, strict=True)]
        return {**self.inputs, **{n: to_placeholder(t, n, self.dtype, size)
                                  for n, t, size in zip(names, targets, sizes, strict=True)}}

    def check_parts(self, batch: Sequence[Data]) -> None:
        """Check that a batch has enough arrays, and nothing else."""
        if len(batch) < len(self.inputs):
            raise DataError(f"A batch has {len(self.inputs)} inputs, {', '.join(self.inputs)}, and then what is "
                            f"learned, and {len(batch)} arrays were given.")
        if wrong := [x for x in batch if x is None or isinstance(x, (str, dict))]:
            raise DataError(f"A batch is made of arrays, and {wrong[0]!r} was given; a setting is an attribute of the "
                            f"module, written before compile.")

    def split_batch(self, batch: Sequence[Data]) -> list[np.ndarray]:
        """The arrays of a batch, which are enough."""
        self.check_parts(batch)
        rows: list[Data] = [to_array(a, f"Array {i} of the batch") for i, a in enumerate(batch, 1)]
        return [a[:] if isinstance(a, SparseRows) else a for a in rows]

    def to_batches(self, X: Data, y: Data, sample_weight: Data = None) -> Data:
        """The arrays that steps read, or the batches, as `Module.fit` takes them."""
        refuse_foreign(X)
        if y is None and is_batches(X):
            if sample_weight is not None:
                raise DataError("X gives batches; let each of them hold its weights.")
            return tuple(X) if isinstance(X, list) else X
        arrays = to_arrays(X, list(self.inputs), "X")
        arguments = self._list_targets()
        if y is None:
            self._check_batch(len(arrays))
            return arrays
        is_several = isinstance(y, tuple) or (len(arguments) > 1 and isinstance(y, list))
        if isinstance(y, dict):
            arrays += to_arrays(y, arguments, "y")
        elif is_several and len(y) > 1:
            arrays += to_arrays(y, [f"y {i}" for i in range(len(y))], "y")
        else:
            arrays += to_arrays(y[0] if is_several else y, ["y"], "y")
        if len({len(a) for a in arrays}) > 1:
            raise DataError(f"X has {len(arrays[0])} rows and y {len(arrays[-1])}; they are to be equally many.")
        return arrays if sample_weight is None else [*arrays, self._check_weights(sample_weight, len(arrays[0]))]

    def _check_weights(self, sample_weight: Data, rows: int) -> np.ndarray:
        """The weights of the rows, which the code of a step has to read."""
        if has_own_step(self.module) and list_arguments(type(self.module).train_one_batch)[-1:] != [WEIGHTS]:
            raise DataError(f"{type(self.module).__name__}.train_one_batch takes no {WEIGHTS}; make it the last "
                            f"argument, and give it to the loss, as in self.loss(output, y, {WEIGHTS}).")
        (weights,) = to_arrays(sample_weight, [WEIGHTS], WEIGHTS)
        if weights.shape != (rows,) or not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise DataError(f"{WEIGHTS} has the shape {weights.shape}; a finite number of at least 0 for each of the "
                            f"{rows} rows was expected.")
        return weights
