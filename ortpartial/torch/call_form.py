"""The form of a module's calls: arguments as the inputs of its graph, outputs as the module returns them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_flatten_with_path, tree_leaves, tree_unflatten

from ortpartial.annotations import Settings
from ortpartial.exceptions import DataError

__all__ = ["CONSTANTS", "CallForm", "list_strangers", "list_tensors", "name_leaves", "name_outputs", "read_form"]

#: Arguments and outputs that are constants of a graph.
CONSTANTS = (bool, int, float, str, torch.dtype, torch.device, np.generic, type(None))


@dataclass(frozen=True)
class CallForm:
    """The form in which a module was called, and in which it returned.

    Parameters
    ----------
    signature : inspect.Signature
        The signature of ``forward``, without annotations.
    arguments : dict of str to object
        All that the arguments held, by name: `torch.Tensor`, the class, for tensors; constants for the rest.
    inputs : dict of str to str
        By name of a tensor among them, the input of the graph.
    outputs : tuple of object
        All that the module returned, tensors and constants as in `arguments`, and None for other objects.
    structure : torch.utils._pytree.TreeSpec
        How the module returned it.
    """

    signature: inspect.Signature
    arguments: Mapping[str, object]
    inputs: Mapping[str, str]
    outputs: tuple[object, ...]
    structure: TreeSpec

    def is_plain(self, names: Sequence[str]) -> bool:
        """Whether the call has these inputs by position alone, and returns a tensor or a tuple of tensors."""
        kinds: list[object] = [torch.Tensor] * len(names)
        try:
            arguments = name_leaves(self.signature, kinds, {})
        except TypeError:
            return False
        is_same = all(_is_same(arguments, self.arguments, n) for n in [*arguments, *self.arguments])
        n = len(self.outputs)
        shapes = tree_flatten(0)[1], tree_flatten((0,) * n)[1]
        return (is_same and list(self.inputs.values()) == list(names) and set(self.outputs) == {torch.Tensor}
                and self.structure == shapes[n > 1])

    def bind(self, args: Sequence[object], named: Mapping[str, object]) -> dict[str, torch.Tensor] | None:
        """The inputs of the graph in a call.

        Parameters
        ----------
        args : sequence of object
            Arguments by position.
        named : dict of str to object
            Arguments by keyword.

        Returns
        -------
        dict of str to torch.Tensor or None
            None where all arguments are tensors, but not in the form of the example: they may be the inputs one by one.

        Raises
        ------
        DataError
            An argument differs from the example, where the graph has it as a constant.
        """
        is_flat = all(isinstance(v, torch.Tensor) for v in (*args, *named.values()))
        try:
            values = name_leaves(self.signature, args, named)
        except TypeError as e:
            if is_flat:
                return None
            raise DataError(f"The module takes no such call: {e}.") from None
        kinds = _replace_tensors(values)
        if is_flat and _list_names(kinds) != _list_names(self.arguments):
            return None
        for name in [*self.arguments, *kinds]:
            if not _is_same(kinds, self.arguments, name):
                raise DataError(f"The argument {name!r} is {_describe(kinds, name)}, and was "
                                f"{_describe(self.arguments, name)} in the example of the export; export the module "
                                f"again with it. A number that varies is a tensor in the example.")
        return {text: values[n] for n, text in self.inputs.items()}

    def pack(self, tensors: Sequence[torch.Tensor]) -> object:
        """The result of the module with these tensors.

        Parameters
        ----------
        tensors : sequence of torch.Tensor
            The outputs of the graph.

        Returns
        -------
        object
        """
        rest = iter(tensors)
        return tree_unflatten([next(rest) if v is torch.Tensor else v for v in self.outputs], self.structure)


def read_form(signature: inspect.Signature, args: Sequence[object], named: Mapping[str, object],
              inputs: Mapping[str, str], outputs: object) -> CallForm:
    """The form of a call.

    Parameters
    ----------
    signature : inspect.Signature
        The signature of ``forward``.
    args, named : sequence of object, dict of str to object
        The arguments.
    inputs : dict of str to str
        By name of a tensor among them, the input of the graph.
    outputs : object
        What the module returned.

    Returns
    -------
    CallForm
    """
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    signature = inspect.Signature(plain)
    leaves, structure = tree_flatten(outputs)
    kinds = tuple(torch.Tensor if isinstance(v, torch.Tensor) else v if isinstance(v, CONSTANTS) else None
                  for v in leaves)
    return CallForm(signature, _replace_tensors(name_leaves(signature, args, named)), inputs, kinds, structure)


def name_leaves(signature: inspect.Signature, args: Sequence[object], named: Mapping[str, object],
                with_defaults: bool = True) -> Settings:
    """All that the arguments of a call hold, by name.

    Parameters
    ----------
    signature : inspect.Signature
        The signature of the function.
    args, named : sequence of object, dict of str to object
        The arguments.
    with_defaults : bool
        Whether arguments that are left out have their defaults.

    Returns
    -------
    dict of str to object
        A name is that of the argument and the way to the object in it, as in ``"pair_0"``.

    Raises
    ------
    TypeError
        The function takes no such call.
    """
    bound = signature.bind(*args, **named)
    if with_defaults:
        bound.apply_defaults()
    leaves: Settings = {}
    for argument, value in bound.arguments.items():
        is_keyword = signature.parameters[argument].kind is inspect.Parameter.VAR_KEYWORD
        for path, leaf in tree_flatten_with_path(value)[0]:
            leaves[_join([] if is_keyword else [argument], path, leaves)] = leaf
    return leaves


def name_outputs(outputs: object, taken: Collection[str]) -> list[str]:
    """Names of the tensors that a module returns: keys, fields and numbers on the way to each, or ``"output"``.

    Parameters
    ----------
    outputs : object
        What the module returns.
    taken : collection of str
        Names of inputs, parameters and buffers.

    Returns
    -------
    list of str
    """
    names: dict[str, None] = {}
    is_sequence = isinstance(outputs, (tuple, list)) and not hasattr(outputs, "_fields")
    for path, leaf in tree_flatten_with_path(outputs)[0]:
        if isinstance(leaf, torch.Tensor):
            name = _join(["output"] if is_sequence or not path else [], path, names)
            names[name if name not in taken else f"{name}_output"] = None
    return list(names)


def list_strangers(outputs: object) -> dict[str, str]:
    """The objects that are neither tensors nor constants in what a module returns.

    Parameters
    ----------
    outputs : object
        What the module returns.

    Returns
    -------
    dict of str to str
        The class of each, by name.
    """
    return {_join([], path, ()) or "output": type(leaf).__name__ for path, leaf in tree_flatten_with_path(outputs)[0]
            if not isinstance(leaf, (torch.Tensor, *CONSTANTS))}


def list_tensors(outputs: object) -> Iterator[torch.Tensor]:
    """The tensors of what a module returns, in order.

    Parameters
    ----------
    outputs : object
        What the module returns.

    Yields
    ------
    torch.Tensor
    """
    yield from (leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor))


def _join(start: list[str], path: Sequence[object], taken: Collection[str]) -> str:
    """A name for a path of keys, indices and fields, underscored until it is free."""
    entries = (str(next(getattr(e, kind) for kind in ("key", "idx", "name") if hasattr(e, kind))) for e in path)
    name = "_".join([*start, *entries])
    while name in taken:
        name += "_"
    return name


def _replace_tensors(values: Mapping[str, object]) -> dict[str, object]:
    """The values with the class in place of tensors."""
    return {n: torch.Tensor if isinstance(v, torch.Tensor) else v for n, v in values.items()}


def _list_names(kinds: Mapping[str, object]) -> set[str]:
    """The names of tensors."""
    return {n for n, v in kinds.items() if v is torch.Tensor}


def _is_same(a: Mapping[str, object], b: Mapping[str, object], name: str) -> bool:
    """Whether both have the name, and the same there."""
    return name in a and name in b and _is_equal(a[name], b[name])


def _is_equal(a: object, b: object) -> bool:
    return a is b or (type(a) is type(b) and a == b)


def _describe(kinds: Mapping[str, object], name: str) -> str:
    if name not in kinds:
        return "missing"
    return "a tensor" if kinds[name] is torch.Tensor else repr(kinds[name])
