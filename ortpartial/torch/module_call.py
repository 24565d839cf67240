"""Calls of a torch module: example inputs by the names of its arguments, and the names of its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from ortpartial.exceptions import SettingError

__all__ = ["Axes", "ModuleCall", "list_tensors", "name_outputs", "read_axes", "read_call"]

#: By input, the axes of any size, with a name for each.
Axes = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True)
class ModuleCall:
    """The tensors that a module is called with.

    Parameters
    ----------
    tensors : tuple of torch.Tensor
        The inputs: those by position, then those by keyword in the order of the arguments of `forward`.
    names : tuple of str
        A name for each.
    keywords : tuple of str
        The keywords of the last ones.
    """

    tensors: tuple[torch.Tensor, ...]
    names: tuple[str, ...]
    keywords: tuple[str, ...]

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """The tensors by name."""
        return dict(zip(self.names, self.tensors, strict=True))

    def run(self, function: Callable[..., Any]) -> Any:
        """What a module, or its `forward`, returns."""
        n = len(self.tensors) - len(self.keywords)
        return function(*self.tensors[:n], **dict(zip(self.keywords, self.tensors[n:], strict=True)))

    def lengthen(self, axes: Axes) -> ModuleCall:
        """A call with inputs twice as long along each axis of any size."""
        inputs = self.inputs
        for name in axes:
            for axis in axes[name]:
                inputs[name] = torch.cat([inputs[name], inputs[name].flip(axis)], axis)
        return replace(self, tensors=tuple(inputs.values()))

    @contextmanager
    def taking_positions(self, module: torch.nn.Module) -> Iterator[None]:
        """A context in which a module takes all inputs by position, as exporters of torch 2.13.0 have it."""
        forward, fields = module.forward, dict(vars(module))
        module.forward = lambda *tensors: replace(self, tensors=tensors).run(forward)
        try:
            yield
        finally:
            del module.forward
            if "forward" in fields:
                module.forward = fields["forward"]


def read_call(module: torch.nn.Module, example: Sequence[Any]) -> ModuleCall:
    """The call of a module with an example.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    example : sequence of torch.Tensor
        Inputs by position, of which the last may be a dict of inputs by keyword.

    Returns
    -------
    ModuleCall

    Raises
    ------
    TypeError
        The module has other arguments, or an input is no tensor.
    """
    args, named = list(example), {}
    if args and isinstance(args[-1], Mapping):
        named = dict(args.pop())
    signature = inspect.signature(module.forward)
    signature.bind(*args, **named)
    names: list[str] = []
    for name, value in signature.bind_partial(*args).arguments.items():
        is_variadic = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        names += [f"{name}_{i}" for i in range(len(value))] if is_variadic else [name]
    kwargs = {n: named[n] for n in [*(n for n in signature.parameters if n in named), *named]}
    names += kwargs
    state = module.state_dict()
    names = [f"{n}_input" if n in state else n for n in names]
    for n, t in zip(names, [*args, *kwargs.values()], strict=True):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"The example {n!r} is {type(t).__name__}; give a tensor for each input.")
    return ModuleCall((*args, *kwargs.values()), tuple(names), tuple(kwargs))


def read_axes(call: ModuleCall, axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None
              ) -> dict[str, dict[int, str]]:
    """The axes of any size by input; by default the first one of each.

    Parameters
    ----------
    call : ModuleCall
        The call.
    axes : dict of str to dict of int to str, or to sequence of int, optional
        By input its axes, with names or without.

    Returns
    -------
    dict of str to dict of int to str

    Raises
    ------
    SettingError
        There is no such input or axis.
    """
    if axes is None:
        return {n: {0: "N"} for n, t in call.inputs.items() if t.dim()}
    read: dict[str, dict[int, str]] = {}
    for name, sizes in axes.items():
        if name not in call.names:
            raise SettingError(f"dynamic_axes names {name!r}, which is no input; the inputs are "
                               f"{', '.join(map(repr, call.names))}.")
        rank = call.inputs[name].dim()
        if wrong := [a for a in sizes if not (isinstance(a, int) and -rank <= a < rank)]:
            raise SettingError(f"dynamic_axes names the axis {wrong[0]!r} of {name!r}, which has {rank} axes.")
        named = sizes if isinstance(sizes, Mapping) else {a: f"{name}_{a % rank}" if a % rank else "N" for a in sizes}
        read[name] = {a % rank: text for a, text in named.items()}
    return read


def name_outputs(outputs: Any, taken: Collection[str]) -> list[str] | None:
    """Names of what a module returns: its keys or fields, or numbers; None if it is nested.

    Parameters
    ----------
    outputs : torch.Tensor, dict, tuple or list of them, or object
        What the module returns.
    taken : collection of str
        Names of inputs, parameters and buffers.

    Returns
    -------
    list of str or None
    """
    if isinstance(outputs, torch.Tensor):
        names, values = ["output"], [outputs]
    elif isinstance(outputs, Mapping):
        names, values = list(map(str, outputs)), list(outputs.values())
    elif isinstance(outputs, (tuple, list)):
        fields = getattr(outputs, "_fields", None)
        names, values = list(fields or [f"output_{i}" for i in range(len(outputs))]), list(outputs)
    else:
        return None
    if not all(isinstance(v, torch.Tensor) for v in values):
        return None
    return [n if n not in taken else f"{n}_output" for n in names]


def list_tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """The tensors of what a module returns, in order.

    Parameters
    ----------
    outputs : torch.Tensor, dict, tuple or list of them, or object
        What the module returns.

    Yields
    ------
    torch.Tensor
    """
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, (Mapping, tuple, list)):
        for part in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from list_tensors(part)
