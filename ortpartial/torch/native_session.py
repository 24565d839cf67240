"""Functions between torch tensors in machine code, for small layers that are called often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ortpartial.exceptions import DataError
from ortpartial.graph import Value, find_reached
from ortpartial.native import NativeFunction

from .tensor_session import Tensors

__all__ = ["NativeSession"]


class NativeSession:
    """A function between tensors in machine code; its inputs are found by position among more tensors.

    Parameters
    ----------
    sources, outputs : dict of str to Value
        The arguments that it may read, and the results, of static sizes.
    names : sequence of str
        The names of all tensors that a call passes, among them the arguments.

    Raises
    ------
    UntranslatableError, CompilerError, CompilerMissingError
        As of `NativeFunction`.
    """

    def __init__(self, sources: Mapping[str, Value], outputs: Mapping[str, Value], names: Sequence[str]):
        read = find_reached(outputs.values(), sources.values())
        inputs = {n: v for n, v in sources.items() if v in read}
        self._function = NativeFunction(inputs, outputs)
        self._run = self._function.run
        self._inputs = [(names.index(n), n, *_describe(v)) for n, v in inputs.items()]
        self._outputs = [_describe(v) for v in outputs.values()]

    def __call__(self, tensors: Tensors) -> list[torch.Tensor]:
        """Compute the results.

        Parameters
        ----------
        tensors : sequence of torch.Tensor
            A tensor of the CPU for each of the names.

        Returns
        -------
        list of torch.Tensor

        Raises
        ------
        DataError
            A tensor has another shape or type than the graph takes, or a number is refused.
        """
        kept, places = [], []
        for i, name, shape, dtype in self._inputs:
            t = tensors[i]
            if t.shape != shape or t.dtype is not dtype:
                raise DataError(f"{name!r} is {t.dtype} of shape {list(t.shape)}, the graph takes {dtype} of shape "
                                f"{list(shape)}.")
            if not t.is_contiguous():
                kept.append(t := t.contiguous())
            places.append(t.data_ptr())
        results = [torch.empty(shape, dtype=dtype) for shape, dtype in self._outputs]
        if code := self._run(*places, *[t.data_ptr() for t in results]):
            raise self._function.explain(code)
        return results


def _describe(v: Value) -> tuple[torch.Size, torch.dtype]:
    """The shape and the type of the tensors of a value."""
    return torch.Size([d for d in v.shape or () if isinstance(d, int)]), getattr(torch, v.dtype.name)
