"""Calls of a torch module: example inputs by the names of its arguments, and the names of its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_unflatten

from ortpartial.checks import to_tuple
from ortpartial.exceptions import SettingError

from .detach_export import NoGradientMode

__all__ = ["Axes", "ModuleCall", "list_tensors", "name_outputs", "read_axes", "read_call"]

#: By input, the axes of any size, with a name for each.
Axes = Mapping[str, Mapping[int, str]]

#: Arguments that are no inputs of a graph, but constants.
_CONSTANTS = (bool, int, float, str, torch.dtype, type(None))


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
    """

    tensors: tuple[torch.Tensor, ...]
    names: tuple[str, ...]
    leaves: tuple[Any, ...]
    structure: Any

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

        def run(*tensors: torch.Tensor) -> Any:
            with NoGradientMode(module):
                return replace(self, tensors=tensors).run(forward)

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
    for argument, value in bound.arguments.items():
        is_keyword = signature.parameters[argument].kind is inspect.Parameter.VAR_KEYWORD
        for path, leaf in tree_flatten_with_path(value)[0]:
            name = "_".join([*([] if is_keyword else [argument]), *map(_name_entry, path)])
            if isinstance(leaf, torch.Tensor):
                inputs[f"{name}_input" if name in state else name] = leaf
            elif not isinstance(leaf, _CONSTANTS):
                raise TypeError(f"The example {name!r} is {type(leaf).__name__}; give a tensor for each input.")
    leaves, structure = tree_flatten((bound.args, bound.kwargs))
    return ModuleCall(tuple(inputs.values()), tuple(inputs), tuple(leaves), structure)


def _name_entry(entry: object) -> str:
    """A key, an index or the name of a field in a path of a nested argument."""
    return str(next(getattr(entry, kind) for kind in ("key", "idx", "name") if hasattr(entry, kind)))


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


def name_outputs(outputs: object, taken: Collection[str]) -> list[str] | None:
    """Names of the results of a module: its keys or fields, or numbers; None if it is nested.

    Parameters
    ----------
    outputs : torch.Tensor, dict, tuple or list of them, or object
        The result of the module.
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


def list_tensors(outputs: object) -> Iterator[torch.Tensor]:
    """The tensors of the result of a module, in order.

    Parameters
    ----------
    outputs : torch.Tensor, dict, tuple or list of them, or object
        The result of the module.

    Yields
    ------
    torch.Tensor
    """
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, (Mapping, tuple, list)):
        for part in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from list_tensors(part)
