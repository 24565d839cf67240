"""Shapes of the values of a model as texts, such as ``batch × 512``, also where shape inference of onnx loses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortpartial.exceptions import OrtPartialError
from ortpartial.graph import Value
from ortpartial.model import Model, specialize

__all__ = ["describe_shape", "name_sizes"]

#: Numbers that stand for the sizes that inputs leave open, and that no other size has as a factor, as good as always.
_PRIMES = (101, 103, 107, 109, 113, 127, 131, 137)


def name_sizes(model: Model) -> dict[Value, tuple[str, ...]]:
    """The sizes of the values of a model, by the names of the open sizes of its inputs.

    The first size of an input is called ``batch`` where it has no name of its own but ``N``. What each other size is of
    them follows from the sizes of the same model for numbers that have no factor in common.

    Parameters
    ----------
    model : Model
        The model.

    Returns
    -------
    dict of Value to tuple of str
        An open size that is not known is ``"?"``.
    """
    names = {d: _name(d, i) for v in model.inputs.values() for i, d in enumerate(v.shape or ())
             if not isinstance(d, int)}
    primes = dict(zip(dict.fromkeys(names.values()), _PRIMES, strict=False))
    exact = _infer(model, {d: primes.get(name, 2) for d, name in names.items()})
    known = {name: prime for name, prime in primes.items() if name != "?"}
    described = {}
    for n, v in model.values.items():
        shape = v.shape or ()
        numbers = exact.get(n, shape)
        numbers = numbers if len(numbers) == len(shape) else shape
        described[v] = tuple(str(d) if isinstance(d, int) else names.get(d) or _factor(e, known)
                             for d, e in zip(shape, numbers, strict=True))
    return described


def _infer(model: Model, primes: Mapping[str | None, int]) -> dict[str, Sequence[int | str | None]]:
    """The shapes of the values of a model, by name, for numbers in place of the open sizes of its inputs."""
    sizes = {n: [d if isinstance(d, int) else primes[d] for d in v.shape or ()] for n, v in model.inputs.items()}
    try:
        values: Mapping[str, Value] = specialize(model, batch=sizes).values if primes else {}
    except OrtPartialError:  # It takes no batch of these sizes.
        return {}
    return {n: v.shape for n, v in values.items() if v.shape is not None}


def _name(size: str | None, axis: int) -> str:
    """The name of an open size of an input; shape inference of onnx has names of its own for those without any."""
    if size and size != "N" and not size.startswith("unk__"):
        return size
    return "batch" if axis == 0 else "?"


def _factor(size: object, primes: Mapping[str, int]) -> str:
    """A size as a product of the open sizes and a number."""
    if not isinstance(size, int) or size < 1:
        return "?"
    factors = list[str]()
    for name, prime in primes.items():
        while size % prime == 0:
            factors.append(name)
            size //= prime
    return "·".join([str(size)] * (size > 1 or not factors) + factors)


def describe_shape(v: Value, sizes: Mapping[Value, tuple[str, ...]]) -> str:
    """The shape of a value, such as ``batch × 512``; empty where it has no size or the first is not known."""
    shape = sizes.get(v, ())
    return "" if shape[:1] == ("?",) else " × ".join(shape)
