"""Traces of exporters: the weights that one initializer holds, equal initializers, and biases that were left out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ortpartial.exceptions import ModelError
from ortpartial.graph import FLOATS, PRODUCTS

from .adapter_record import read_adapter
from .aliases import Alias, is_generated_name, name_parameter_input
from .exported_program import read_program
from .scopes import read_scope
from .walk import walk_graphs

__all__ = ["ExportTraces", "Key", "Use", "is_identity"]

#: Different numbers from which on tensors that are equal are so by a tie and not by chance.
_LEAST_DISTINCT = 8

_STATISTICS = ("running_mean", "running_var")
_STATE_ORDER = ("weight", "bias", *_STATISTICS)

#: The key that tells a weight from others, beginning with the kind of evidence; None for a number of the program.
Key = tuple[str, ...] | None

#: Operators that read a weight and a number of the program alike.
_ARITHMETIC = frozenset({"Add", "Clip", "Div", "Max", "Min", "Mul", "Pow", "Sub", "Where"})


@dataclass(frozen=True)
class Use:
    """A node that reads an initializer.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.
    index : int
        The number of the input.
    via : str
        The name that it reads: that of the initializer, or of an Identity of it.
    """

    node: NodeProto
    index: int
    via: str


class ExportTraces:
    """A model, with the traces that its program has left in names, nodes and metadata.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.
    arrays : dict of str to numpy.ndarray
        The content of its initializers, where it has been read.
    """

    def __init__(self, model: ModelProto, arrays: Mapping[str, np.ndarray]):
        self.model, self.graph, self.arrays = model, model.graph, arrays
        self.program, self.adapter = read_program(self.graph), _list_adapter(model)
        self.tensors = {t.name: t for t in self.graph.initializer if t.data_type in FLOATS}
        graphs = list(walk_graphs(self.graph))
        self.nodes = [node for g in graphs for node in g.node]
        self.outside = {id(node) for node in self.graph.node}
        self.computed = {o: node for node in self.nodes for o in node.output}
        self.roots = {n: n for n in self.tensors}
        self.uses = self._find_uses()
        self.returned = {self.roots[o.name] for g in graphs for o in g.output if o.name in self.roots}
        # The older exporter merges by Identity nodes; without them, a tool may have merged further.
        self.has_identities = any(u.via != n for n, uses in self.uses.items() for u in uses)
        read = {u.via for uses in self.uses.values() for u in uses}
        self.modules = {n.rpartition(".")[0] for n in {*self.tensors, *read}}

    def _find_uses(self) -> dict[str, list[Use]]:
        """The nodes that read each initializer, directly or by Identity nodes of the main graph."""
        roots = self.roots
        uses: dict[str, list[Use]] = defaultdict(list)
        identities = {id(node) for node in self.graph.node if is_identity(node)}
        for node in self.nodes:
            if id(node) in identities and node.input[0] in roots:
                roots[node.output[0]] = roots[node.input[0]]
                continue
            for i, name in enumerate(node.input):
                if name in roots:
                    uses[roots[name]].append(Use(node, i, name))
        return uses

    def read(self, name: str) -> np.ndarray:
        """The content of an initializer."""
        return self.arrays[name] if name in self.arrays else numpy_helper.to_array(self.tensors[name])

    # -- merged

    def find_merged(self) -> Iterator[tuple[str, dict[Key, list[Use]]]]:
        """Initializers that are several weights, and the nodes that read each of these."""
        for name, uses in self.uses.items():
            if len(uses) < 2 or name in self.returned or name in self.adapter or self._is_number(name):
                continue
            groups: dict[Key, list[Use]] = defaultdict(list)
            for key, use in zip(self._list_keys(name, uses), uses, strict=True):
                groups[key].append(use)
            if len(groups) > 1:
                yield name, groups

    def _is_number(self, name: str) -> bool:
        """Whether an initializer is a number of the program, and no weight."""
        if not is_generated_name(name):
            return False
        if self.program is not None:
            return not any(self.program.kinds[n] == "PARAMETER" for n in self.program.origins.get(name, ()))
        arithmetic = all(u.node.op_type in _ARITHMETIC for u in self.uses[name])
        return arithmetic and int(np.prod(self.tensors[name].dims)) == 1

    def _list_keys(self, name: str, uses: Sequence[Use]) -> list[Key]:
        """A key for each use of an initializer, equal for uses of the same weight."""
        filled = _is_filled(self.read(name))
        keys = [self._find_key(name, use, filled) for use in uses]
        if not filled and None in keys:  # No program has a number of its own that equals random weights.
            weight = next((k for k in keys if k is not None), ("name", name))
            keys = [weight if k is None else k for k in keys]
        if filled or not any(k is not None and k[0] == "scope" for k in keys):
            return keys
        # Equal random numbers are a tie, but for the copies of a layer.
        if not _is_informative(self.read(name)):
            return [("name", name)] * len(keys)
        first = next(k for k in keys if k is not None and k[0] == "scope")
        return [k if k is not None and k[0] == "scope" and _are_copies(first[1], k[1]) else first for k in keys]

    def _find_key(self, name: str, use: Use, filled: bool) -> Key:
        """The key of the weight that a node reads."""
        if self.program is not None:
            call = self.program.read_call(use.node)
            # The nodes of a body read the inputs of their node by names of their own.
            is_told = call is not None and (call[1] or id(use.node) in self.outside)
            return self._find_state(name, use, call[1]) if call is not None and is_told else (
                "state", *(self._find_origins(name) or [name]))
        role = name_parameter_input(use.node, use.index, self.computed)
        scope = self._find_scope(use.node)
        if is_generated_name(use.via):
            what = role or f"{use.node.op_type}.{use.index}"
            return ("name", use.via) if scope is None else ("scope", scope, what)
        if use.via != name and (filled or self.model.producer_name == "pytorch"):
            return ("name", use.via)
        key = self._find_layer_key(name, use, role, scope) if filled and not self.has_identities else None
        return key or (("statistic", name, role) if role in _STATISTICS else ("name", name))

    def _find_layer_key(self, name: str, use: Use, role: str | None, scope: str | None) -> Key | None:
        """The key of a weight by the layer that reads it, where it has a role there."""
        if role is None:
            return None
        if scope is not None:
            return ("scope", scope, role)
        if int(np.prod(self.tensors[name].dims)) <= 1:  # A single number may be of the program.
            return None
        # Without modules, a layer is known by its random weight, then by the name of its node.
        layer = self._find_layer(use) or use.node.name
        return ("node", layer, role) if layer and (role == "bias" or use.node.op_type not in PRODUCTS) else None

    def _find_layer(self, use: Use) -> str | None:
        """The weight of random numbers that a node reads, or the product to which it adds a bias."""
        added = use.node.input if use.node.op_type == "Add" else ()
        nodes = [use.node, *(self.computed[i] for i in added if i in self.computed)]
        weights = [i for node in nodes for i in node.input if i in self.tensors and not _is_filled(self.read(i))]
        return weights[0] if weights else None

    def _find_state(self, name: str, use: Use, states: Sequence[str]) -> Key:
        """The tensor of the module that a node reads, among the tensors of its call; None where it reads none."""
        if not states:
            return None
        role = name_parameter_input(use.node, use.index, self.computed)
        origins = self.program.origins.get(name, ()) if self.program else ()
        for leaves in ({role}, {_leaf(n) for n in (name, *origins)}):
            if len(matching := [n for n in states if _leaf(n) in leaves]) == 1:
                return ("state", matching[0])
        if name in states:
            return ("state", name)
        if role in _STATE_ORDER and _STATE_ORDER.index(role) < len(states):
            return ("state", states[_STATE_ORDER.index(role)])
        return ("state", states[0]) if len(states) == 1 else ("call", *states)

    def _find_scope(self, node: NodeProto) -> str | None:
        """The module that a node comes from; the older exporter numbers repeated calls of a module."""
        scope = read_scope(node)
        if scope is None or not node.name.startswith("/"):
            return scope
        path: list[str] = []
        for part in scope.split("."):
            first = re.sub(r"_\d+$", "", part)
            is_module = any(m == (p := ".".join([*path, part])) or m.startswith(f"{p}.") for m in self.modules)
            path.append(part if is_module else first)
        return ".".join(path)

    # -- tied

    def find_tied(self) -> Iterator[tuple[str, Alias]]:
        """Initializers that are the same weight as another."""
        gone: set[str] = set()
        for names in self._group_equal():
            names.sort(key=is_generated_name)  # The name of a parameter stays.
            for kept, name in combinations(names, 2):
                if kept in gone or name in gone or not self._may_be_tied(kept, name):
                    continue
                for transposed in (False, True):
                    if name not in gone and self._are_equal(kept, name, transposed):
                        gone.add(name)
                        yield name, Alias(kept, transposed)

    def _group_equal(self) -> list[list[str]]:
        """Groups of matrices that may have the same content, as it is or transposed."""
        groups: dict[Hashable, list[str]] = defaultdict(list)
        for name, t in self.tensors.items():
            if len(t.dims) == 2 and name in self.uses:
                groups[t.data_type, tuple(sorted(t.dims)), self._find_origins(name)].append(name)
        equal: dict[Hashable, list[str]] = defaultdict(list)
        for key, names in groups.items():
            if len(names) > 1 and (self.model.producer_name != "pytorch" or any(map(is_generated_name, names))):
                for name in names:
                    equal[key, _read_start(self.read(name))].append(name)
        return [names for names in equal.values() if len(names) > 1]

    def _find_origins(self, name: str) -> tuple[str, ...]:
        """The tensors of the module that an initializer is computed from, where the file says it."""
        if self.program is None:
            return ()
        return self.program.origins.get(name, () if is_generated_name(name) else (name,))

    def _may_be_tied(self, kept: str, name: str) -> bool:
        """Whether equal initializers are the same weight, as far as names and nodes tell."""
        if self.program is not None:
            origins = self._find_origins(name)
            return is_generated_name(name) and len(origins) == 1 and origins == self._find_origins(kept)
        if not is_generated_name(name):  # Two names of a module are two parameters; elsewhere, a tied embedding counts.
            tables = [{(u.node.op_type, u.index) == ("Gather", 0) for u in self.uses[n]} for n in (kept, name)]
            return self.model.producer_name != "pytorch" and tables in ([{True}, {False}], [{False}, {True}])
        scopes = [self._find_scope(self.uses[n][0].node) for n in (kept, name)]
        if not is_generated_name(kept):
            scopes[0] = kept.rpartition(".")[0]
        return None in scopes or not _are_copies(str(scopes[0]), str(scopes[1]))

    def _are_equal(self, kept: str, name: str, transposed: bool) -> bool:
        """Whether two tensors have the same content, which is no coincidence."""
        a, b = self.read(kept).T if transposed else self.read(kept), self.read(name)
        return a.shape == b.shape and np.array_equal(a, b) and _is_informative(b)

    # -- dropped

    def find_dropped(self) -> Iterator[tuple[NodeProto, str, int]]:
        """Nodes whose bias of zeros an exporter has left out, its name, and its size."""
        if self.program is None:
            return
        seen = {n for node in self.nodes for n in node.input}
        for node in self.graph.node:
            if node.op_type not in PRODUCTS or len(list(filter(None, node.input))) != 2:
                continue
            call = self.program.read_call(node)
            if call is None or not re.search(r"linear|addmm|conv", call[0]) or len(call[1]) != 2:
                continue
            bias, weight = call[1][1], self.tensors.get(node.input[1])
            size = None if weight is None else _count_outputs(node, weight)
            if size is not None and bias not in self.tensors and bias not in seen and _leaf(bias).endswith("bias"):
                yield node, bias, size


def _list_adapter(model: ModelProto) -> set[str]:
    """The weights of the adapter that a model holds, which begin with zeros; a damaged record is no matter of ties."""
    try:
        adapter = read_adapter(model)
    except ModelError:
        return set()
    return set() if adapter is None else set(adapter.weights)


def is_identity(node: NodeProto) -> bool:
    """Whether a node hands its input on.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.

    Returns
    -------
    bool
    """
    return node.op_type == "Identity" and not node.domain


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _is_filled(a: np.ndarray) -> bool:
    """Whether an array is filled with a single number."""
    a = a.ravel()
    return bool(a.size and a[0] == a[-1] and (a == a[0]).all())


def _is_informative(a: np.ndarray) -> bool:
    """Whether an array holds so many different numbers that an equal array is no coincidence."""
    return np.unique(a.ravel()[:4096]).size >= _LEAST_DISTINCT


def _read_start(a: np.ndarray) -> bytes:
    """The beginning of a matrix or of its transpose, the same for both and different for most others."""
    return min(a[:1, :64].tobytes(), a[:64, :1].tobytes())


def _are_copies(a: str, b: str) -> bool:
    """Whether two paths differ by the numbers of layers alone, as for a layer and its copies."""
    p, q = a.split("."), b.split(".")
    differing = [(x, y) for x, y in zip(p, q, strict=False) if x != y]
    return len(p) == len(q) and bool(differing) and all(x.isdigit() and y.isdigit() for x, y in differing)


def _count_outputs(node: NodeProto, weight: TensorProto) -> int | None:
    """The length of the bias of a product."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Gemm":
        return int(weight.dims[0 if attributes.get("transB") else 1])
    if node.op_type == "Conv":
        return int(weight.dims[0])
    return int(weight.dims[1]) * attributes.get("group", 1) if node.op_type == "ConvTranspose" else None
