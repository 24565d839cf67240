"""Aliases: names for initializers that an exporter has named by a number, from scopes or from a torch module."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto

from ortpartial.exceptions import ModelError
from ortpartial.graph import PRODUCTS
from ortpartial.logs import logger

from .scopes import find_readers, read_scope
from .walk import walk_graphs

__all__ = ["Alias", "AliasDict", "find_aliases", "find_module_names", "find_names_by_scope",
           "is_generated_name", "name_parameter_input"]

_GENERATED = re.compile(r"onnx::.+|_?val_\d+|\d+")

#: torch's names for the parameters of a module, by the operator that reads them and the number of the input.
_PARAMETERS: dict[str, dict[int, str]] = {
    **{layer: {1: "weight", 2: "bias"} for layer in (
        "Conv", "ConvTranspose", "Gemm", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "PRelu",
        "RMSNormalization")},
    "BatchNormalization": {1: "weight", 2: "bias", 3: "running_mean", 4: "running_var"},
    "Gather": {0: "weight"},
    "MatMul": {0: "weight", 1: "weight"},
    **{layer: {1: "W", 2: "R", 3: "B"} for layer in ("GRU", "LSTM", "RNN")},
}


@dataclass(frozen=True)
class Alias:
    """Another name of an initializer.

    Parameters
    ----------
    initializer : str
        The initializer.
    transposed : bool
        Whether it is the transpose of the parameter of a torch module that the name stands for.
    """

    initializer: str
    transposed: bool = False


class AliasDict(dict[str, Any]):
    """A dict by the names of initializers, which finds them by their aliases, too.

    Parameters
    ----------
    items : dict of str to object
        The items by name.
    aliases : dict of str to Alias
        The aliases.

    Examples
    --------
    >>> weights = AliasDict({"val_9": 1.0}, {"fc.weight": Alias("val_9")})
    >>> weights["fc.weight"], "fc.weight" in weights, list(weights)
    (1.0, True, ['val_9'])
    """

    def __init__(self, items: Mapping[str, object], aliases: Mapping[str, Alias]):
        super().__init__(items)
        self.aliases = {alias: a.initializer for alias, a in aliases.items() if a.initializer in items}

    def __missing__(self, key: str) -> Any:
        if key not in self.aliases:
            raise KeyError(key)
        return self[self.aliases[key]]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self.aliases

    def get(self, key: str, default: object = None) -> Any:
        """The item of a name or an alias, or the default."""
        try:
            return self[key]
        except KeyError:
            return default


def is_generated_name(name: str) -> bool:
    """Whether an exporter made a name up.

    Parameters
    ----------
    name : str
        The name of an initializer.

    Returns
    -------
    bool

    Examples
    --------
    >>> [is_generated_name(n) for n in ("onnx::MatMul_516", "val_206", "encoder.weight")]
    [True, True, False]
    """
    return _GENERATED.fullmatch(name) is not None


def find_aliases(graph: GraphProto) -> dict[str, Alias]:
    """Aliases of initializers with generated names, from the scopes of the nodes that read them.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph, as it was exported.

    Returns
    -------
    dict of str to Alias
        By alias, which is a name that nothing else has: ``"fc.weight"`` for the weight of the MatMul ``"/fc/MatMul"``.
    """
    graphs = list(walk_graphs(graph))
    computed = {o: node for g in graphs for node in g.node for o in node.output}
    candidates: dict[str, set[str]] = {}
    for name, readers in find_readers(graph).items():
        if is_generated_name(name):
            aliases = {_name_parameter(node, i, computed) for node, i in readers}
            if len(aliases) == 1 and (alias := aliases.pop()) is not None:
                candidates.setdefault(alias, set()).add(name)
    taken = {*computed, *(t.name for g in graphs for t in g.initializer), *(i.name for g in graphs for i in g.input)}
    return {a: Alias(names.pop()) for a, names in candidates.items() if len(names) == 1 and a not in taken}


def name_parameter_input(node: NodeProto, i: int, computed: Mapping[str, NodeProto]) -> str | None:
    """The name by which a module of torch calls an input of a node.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.
    i : int
        The number of the input.
    computed : dict of str to onnx.NodeProto
        By value, the node that computes it.

    Returns
    -------
    str or None
        Such as ``"weight"``; None where it is no parameter as far as the operator tells.
    """
    if node.op_type == "Add" and (product := computed.get(node.input[1 - i])) is not None:
        return "bias" if product.op_type in PRODUCTS and read_scope(product) == read_scope(node) else None
    return _PARAMETERS.get(node.op_type, {}).get(i)


def _name_parameter(node: NodeProto, i: int, computed: Mapping[str, NodeProto]) -> str | None:
    """The name of the parameter that a node reads as its input i, if it belongs to a module."""
    scope, parameter = read_scope(node), name_parameter_input(node, i, computed)
    if scope is None or parameter is None:
        return None
    return f"{scope}.{parameter}" if scope else parameter


def find_module_names(arrays: Mapping[str, np.ndarray], module: object) -> dict[str, Alias]:
    """Aliases of initializers from the parameters of a module that have the same content, as they are or transposed.

    Where several parameters or initializers have the same content, as biases of zeros have, there is none.

    Parameters
    ----------
    arrays : dict of str to numpy.ndarray
        The initializers.
    module : torch.nn.Module or dict of str to array_like
        The module that was exported, or its ``state_dict()``.

    Returns
    -------
    dict of str to Alias
        By the names of parameters that are no names of initializers.

    Raises
    ------
    ModelError
        The module has neither ``state_dict`` nor ``named_parameters``, and is no dict.

    Examples
    --------
    >>> w = np.arange(6.0).reshape(2, 3)
    >>> find_module_names({"onnx::MatMul_9": w.T}, {"fc.weight": w, "fc.bias": np.zeros(2)})
    {'fc.weight': Alias(initializer='onnx::MatMul_9', transposed=True)}
    """
    state, parameters = _read_module(module)
    by_content = _group((_digest(a), n) for n, a in state.items())
    transposed = _group((_digest(a.T), n) for n, a in state.items() if a.ndim == 2)
    matches: dict[str, list[Alias]] = defaultdict(list)
    for name, a in arrays.items():
        if name in state or a.dtype.kind in "biu":
            continue
        digest = _digest(a)
        direct = by_content.get(digest, [])
        names = {*direct, *transposed.get(digest, [])}
        if not names.isdisjoint(arrays):
            continue  # Another initializer has this content, and the name.
        if len(names) > 1:  # A parameter that is tied to others has several names, the first of which counts.
            names &= parameters
        if len(names) == 1:
            matches[n := names.pop()].append(Alias(name, n not in direct))
    aliases = {n: matched[0] for n, matched in matches.items() if len(matched) == 1}
    logger.info("%d of %d initializers have names of the module, %d of them transposed", len(aliases), len(arrays),
                sum(a.transposed for a in aliases.values()))
    return aliases


def find_names_by_scope(graph: GraphProto, arrays: Mapping[str, np.ndarray], module: object) -> dict[str, Alias]:
    """Aliases of initializers with generated names that nodes of a single module read, from the tensors of this module.

    A single tensor of the module has the content of the initializer, maybe in another shape. Fresh weights of a number,
    which content alone does not tell apart, have names in this way.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph, as it was exported.
    arrays : dict of str to numpy.ndarray
        The initializers.
    module : torch.nn.Module or dict of str to array_like
        The module that was exported, or its ``state_dict()``.

    Returns
    -------
    dict of str to Alias
        By the names of parameters that are no names of initializers.
    """
    state = _read_module(module)[0]
    matches: dict[str, set[str]] = defaultdict(set)
    for name, readers in find_readers(graph).items():
        scopes = {read_scope(node) for node, _ in readers}
        if len(scopes) != 1 or not is_generated_name(name) or name not in arrays:
            continue
        scope, a = scopes.pop(), arrays[name].ravel()
        names = [n for n, t in state.items() if t.size == a.size and n not in arrays and scope is not None
                 and _is_inside(n.rpartition(".")[0], scope) and np.array_equal(t.ravel(), a)]
        if len(names) == 1:
            matches[names[0]].add(name)
    return {n: Alias(names.pop()) for n, names in matches.items() if len(names) == 1}


def _is_inside(path: str, scope: str) -> bool:
    """Whether a path of a module is that of a scope, in which it may be inside of others."""
    return scope == path or scope.endswith(f".{path}")


def _read_module(module: object) -> tuple[dict[str, np.ndarray], set[str]]:
    """The state of a module by name, and the names of its parameters, each once."""
    parameters = dict(module.named_parameters()) if hasattr(module, "named_parameters") else {}
    if hasattr(module, "state_dict"):
        state = module.state_dict()
    elif isinstance(module, Mapping) or parameters:
        state = parameters or module
    else:
        raise ModelError(f"names_from is a torch module or its state_dict, not {type(module).__name__}.")
    return {n: _as_array(t) for n, t in state.items()}, {*parameters}


def _as_array(tensor: Any) -> np.ndarray:
    """A tensor of numpy, or of torch, which this room does not import."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":  # numpy 2.4 has no such type.
            tensor = tensor.float()
    return np.asarray(tensor)


def _digest(a: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    """Equal for arrays of equal shape and content, whether they are of float16, bfloat16 or float32."""
    content = np.ascontiguousarray(a, np.float32 if a.dtype.itemsize <= 4 else None)
    return a.shape, hashlib.blake2b(content.data.cast("B") if content.size else b"", digest_size=16).digest()


def _group(pairs: Iterable[tuple[Hashable, str]]) -> dict[Hashable, list[str]]:
    """Names by their common key."""
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for key, name in pairs:
        groups[key].append(name)
    return groups
