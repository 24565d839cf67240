"""Calls of a torch module: example inputs by the names of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ortpartial.checks import to_tuple
from ortpartial.exceptions import SettingError

from .call_form import CONSTANTS, CallForm, list_tensors, name_leaves, read_form
from .detach_export import DetachMode

__all__ = ["Axes", "ModuleCall", "read_axes", "read_call"]

#: By input, the axes of any size, with a name for each.
Axes = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True)
class ModuleCall:
    """The tensors that a module is called with.

    Parameters
    ----------
    tensors : tuple of torch.Tensor
        The inputs, in the order of the arguments of `forward`.
    names : tuple of str
        A name for each.
    leaves : tuple of object
        All that the arguments hold, the tensors included.
    structure : torch.utils._pytree.TreeSpec
        How arguments by position and by keyword hold it.
    arguments : dict of str to str
        By name of a tensor in the arguments, its input.
    """

    tensors: tuple[torch.Tensor, ...]
    names: tuple[str, ...]
    leaves: tuple[Any, ...]
    structure: Any
    arguments: Mapping[str, str]

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """The tensors by name."""
        return dict(zip(self.names, self.tensors, strict=True))

    def run(self, function: Callable[..., object]) -> Any:
        """Call a module, or its `forward`."""
        tensors = iter(self.tensors)
        leaves = [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.structure)
        return function(*args, **kwargs)

    def describe(self, module: torch.nn.Module, outputs: object) -> CallForm:
        """The form of the call, with what the module returned."""
        args, kwargs = tree_unflatten(self.leaves, self.structure)
        return read_form(inspect.signature(module.forward), args, kwargs, self.arguments, outputs)

    def lengthen(self, axes: Axes) -> ModuleCall:
        """A call with inputs twice as long along each axis of any size."""
        inputs = self.inputs
        for name in axes:
            for axis in axes[name]:
                inputs[name] = torch.cat([inputs[name], inputs[name].flip(axis)], axis)
        return replace(self, tensors=tuple(inputs.values()))

    @contextmanager
    def taking_positions(self, module: torch.nn.Module) -> Iterator[None]:
        """A context in which a module has tensors by position and a tuple of them, as exporters of torch 2.13.0 do."""
        forward, fields = module.forward, dict(vars(module))

        def run(*tensors: torch.Tensor) -> Any:
            with DetachMode(module):
                return tuple(list_tensors(replace(self, tensors=tensors).run(forward)))

        module.forward = run
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
    example : sequence of object
        Arguments by position, of which the last may be a dict of arguments by keyword.

    Returns
    -------
    ModuleCall
        The tensors of a nested argument are inputs in their order; other members are constants.

    Raises
    ------
    TypeError
        The module has other arguments, or an argument holds an object that is neither a tensor nor a number.
    """
    args, named = list(example), {}
    if args and isinstance(args[-1], Mapping):
        named = dict(args.pop())
    signature = inspect.signature(module.forward)
    bound = signature.bind(*args, **named)
    state, inputs = module.state_dict(), {}
    for name, leaf in name_leaves(signature, args, named, with_defaults=False).items():
        if isinstance(leaf, torch.Tensor):
            inputs[name] = f"{name}_input" if name in state else name
        elif not isinstance(leaf, CONSTANTS):
            raise TypeError(f"The example {name!r} is {type(leaf).__name__}; give a tensor for each input.")
    leaves, structure = tree_flatten((bound.args, bound.kwargs))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    return ModuleCall(tensors, tuple(inputs.values()), tuple(leaves), structure, inputs)


def read_axes(call: ModuleCall, axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None
              ) -> dict[str, dict[int, str]]:
    """The axes of any size by input; by default the first of each.

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
    if not isinstance(axes, Mapping):
        raise SettingError(f"dynamic_axes is a dict of inputs and their axes, not {axes!r}.")
    for name, sizes in axes.items():
        if to_tuple(sizes) is None:
            raise SettingError(f"dynamic_axes has {sizes!r} for {name!r}, where a list of axes was expected.")
        if name not in call.names:
            raise SettingError(f"dynamic_axes names {name!r}, which is no input; the inputs are "
                               f"{', '.join(map(repr, call.names))}.")
        rank = call.inputs[name].dim()
        if wrong := [a for a in sizes if not (isinstance(a, int) and -rank <= a < rank)]:
            raise SettingError(f"dynamic_axes names the axis {wrong[0]!r} of {name!r}, which has {rank} axes.")
        named = sizes if isinstance(sizes, Mapping) else {a: f"{name}_{a % rank}" if a % rank else "N" for a in sizes}
        read[name] = {a % rank: text for a, text in named.items()}
    return read
