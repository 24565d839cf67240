"""Tied weights: initializers that an exporter has merged are separated, and copies of a weight are joined.

Exporters write equal tensors once, whatever they are: all fresh norm weights of a size become a single initializer, and
so do the copies of a layer. In training, these are weights of their own. A weight that a module does share, such as an
embedding and a head, is written twice where either is transposed. And a bias of zeros is left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ortpartial.checks import check_choice
from ortpartial.graph import PRODUCTS
from ortpartial.logs import logger

from .aliases import Alias, is_generated_name
from .export_traces import ExportTraces, Key, Use, is_identity
from .exported_program import note_origin, read_program
from .torch_record import read_torch
from .walk import walk_graphs

__all__ = ["Ties", "check_ties", "infer_ties", "list_folded_norms"]


@dataclass(frozen=True)
class Ties:
    """The ties that reading a file has undone, made and filled in.

    Parameters
    ----------
    separated : dict of str to str
        By new initializer, the initializer of the file that an exporter had merged it with.
    joined : dict of str to Alias
        By dropped initializer of the file, the initializer with its content.
    restored : tuple of str
        Biases of zeros that an exporter had left out.
    """

    separated: Mapping[str, str] = field(default_factory=dict)
    joined: Mapping[str, Alias] = field(default_factory=dict)
    restored: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.separated or self.joined or self.restored)

    def describe(self, names: Mapping[str, str] | None = None) -> list[str]:
        """A line for each.

        Parameters
        ----------
        names : dict of str to str, optional
            Names of initializers in the lines; by default their own.

        Returns
        -------
        list of str
        """
        names, groups = names or {}, defaultdict(list)
        for name, origin in self.separated.items():
            groups[names.get(origin, origin)].append(names.get(name, name))
        lines = [f"{origin} was one with {', '.join(merged[:3])}"
                 f"{f' and {len(merged) - 3} more' if len(merged) > 3 else ''}" for origin, merged in groups.items()]
        for name, a in self.joined.items():
            kept = names.get(a.initializer, a.initializer)
            lines.append(f"{name} is {'the transpose of ' if a.transposed else ''}{kept}, and trained with it")
        return lines + [f"{name} of zeros was left out" for name in self.restored]


def check_ties(ties: str) -> None:
    """Raise an error unless a setting of ties is "infer" or "file"."""
    check_choice("ties", ties, ("infer", "file"))


def infer_ties(proto: ModelProto, arrays: Mapping[str, np.ndarray] | None = None, *, copy: bool = True
               ) -> tuple[ModelProto, Ties]:
    """Separate the weights that an exporter has merged, join copies of a weight, and restore biases that were left out.

    A model with a training, or written or exported by ortpartial, is left as it is.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    arrays : dict of str to numpy.ndarray, optional
        The content of its initializers, where it has been read.
    copy : bool
        Whether to write to a copy.

    Returns
    -------
    tuple of onnx.ModelProto and Ties
        The model that was given where there is nothing to change.

    Examples
    --------
    >>> from ortpartial.graph import build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 3]), constant([[1.0], [2.0], [3.0]], hint="w")
    >>> infer_ties(build([x], {"y": x @ w}))[1]
    Ties(separated={}, joined={}, restored=())
    """
    if proto.training_info or proto.producer_name == "ortpartial" or read_torch(proto) is not None:
        return proto, Ties()
    arrays = {} if arrays is None else arrays
    plan = ExportTraces(proto, arrays)
    if not (any(plan.find_merged()) or any(plan.find_tied()) or any(plan.find_dropped())):
        return proto, Ties()
    if copy:
        changed = ModelProto()
        changed.CopyFrom(proto)
        plan = ExportTraces(changed, arrays)
    separated = _separate(plan)
    plan = ExportTraces(plan.model, {**arrays, **{n: arrays[o] for n, o in separated.items() if o in arrays}})
    ties = Ties(separated, _join(plan), _restore(plan))
    logger.info("%d weights that an exporter had merged were separated, %d tied ones joined, %d biases restored; "
                "load(model, ties='file') reads the file as it is", len(ties.separated), len(ties.joined),
                len(ties.restored))
    return plan.model, ties


def _separate(plan: ExportTraces) -> dict[str, str]:
    """Give each of the weights that were merged an initializer of its own."""
    graph, separated = plan.graph, {}
    stored = (t.name for g in walk_graphs(graph) for t in g.initializer)
    taken = {*plan.computed, *stored, *(i.name for i in graph.input)}
    declared, constants, changed = {i.name: i for i in graph.input}, [], set()
    for name, groups in list(plan.find_merged()):
        changed.add(name)
        taken -= {u.via for uses in groups.values() for u in uses} - {name}
        kept = _find_kept(plan, name, groups)
        for key, uses in groups.items():
            new = name if key == kept else _name(plan, name, key, uses, taken)
            taken.add(new)
            for use in uses:
                use.node.input[use.index] = new
            if new == name:
                continue
            tensor = TensorProto()
            tensor.CopyFrom(plan.tensors[name])
            tensor.name = new
            if key is None:
                constants.append(helper.make_node("Constant", [], [new], value=tensor))
                continue
            graph.initializer.append(tensor)
            separated[new] = name
            if key[0] == "state" and is_generated_name(name):
                note_origin(graph, new, key[1])
            if name in declared:
                graph.input.add().CopyFrom(declared[name])
                graph.input[-1].name = new
    # Nodes read the initializer directly now, and no Identity of it.
    nodes = [node for node in graph.node if not (is_identity(node) and plan.roots.get(node.output[0]) in changed)]
    del graph.node[:]
    graph.node.extend([*constants, *nodes])
    return separated


def _find_kept(plan: ExportTraces, name: str, groups: Iterable[Key]) -> Key:
    """The key of the weight that keeps the initializer."""
    origins = plan.program.origins.get(name, ()) if plan.program else ()
    keys = [k for k in groups if k is not None]
    own = [("name", name), *(("state", n) for n in (name, *origins))]
    return next((k for k in keys if k in own or f"{k[1]}.{k[-1]}" == name), keys[0])


def _name(plan: ExportTraces, name: str, key: Key, uses: Sequence[Use], taken: set[str]) -> str:
    """A name for a weight that had been merged with another."""
    kind, parts = ("constant", ()) if key is None else (key[0], key[1:])
    via = next((u.via for u in uses if u.via != name), None)
    if kind == "name" or (kind == "state" and not is_generated_name(name)):
        new = parts[0]
    elif is_generated_name(name):
        new = via or f"val_{1 + max((int(n[4:]) for n in taken if re.fullmatch(r'val_[0-9]+', n)), default=0)}"
    elif kind in ("scope", "node"):
        new = ".".join(filter(None, parts))
    else:
        new = f"{name}.{parts[1]}" if kind == "statistic" else f"{name}_{kind}"
    while new in taken:
        new += "_"
    return new


def _join(plan: ExportTraces) -> dict[str, Alias]:
    """Let each weight that is written twice be a single initializer; the other names remain as names of values."""
    joined = dict(plan.find_tied())
    if not joined:
        return joined
    graph = plan.graph
    for container in (graph.initializer, graph.input):
        for k in reversed([k for k, item in enumerate(container) if item.name in joined]):
            del container[k]
    nodes = [helper.make_node("Transpose", [a.initializer], [n], perm=[1, 0]) if a.transposed else
             helper.make_node("Identity", [a.initializer], [n]) for n, a in joined.items()]
    nodes += graph.node
    del graph.node[:]
    graph.node.extend(nodes)
    return joined


def _restore(plan: ExportTraces) -> tuple[str, ...]:
    """Give nodes the biases of zeros that an exporter has left out."""
    restored = []
    for node, bias, size in list(plan.find_dropped()):
        if bias not in restored:
            dtype = helper.tensor_dtype_to_np_dtype(plan.tensors[node.input[1]].data_type)
            plan.graph.initializer.append(numpy_helper.from_array(np.zeros(size, dtype), bias))
            restored.append(bias)
        del node.input[2:]
        node.input.append(bias)
    return tuple(restored)


def list_folded_norms(model: ModelProto) -> list[str]:
    """The weights of convolutions and other products into which an exporter has folded a normalization.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.

    Returns
    -------
    list of str

    Examples
    --------
    >>> list_folded_norms(ModelProto())
    []
    """
    program = read_program(model.graph)
    names = {t.name for t in model.graph.initializer}
    folded: list[str] = []
    for node in model.graph.node:
        if len(node.input) < 2 or node.input[1] not in names:
            continue
        call = program.read_call(node) if program else None
        if call is not None:  # The newer exporter folds into products, and repeats the weights of an instance norm.
            is_folded = (("batch_norm" in call[0] and node.op_type in PRODUCTS)
                         or ("instance_norm" in call[0] and node.op_type == "BatchNormalization"))
        else:  # The older exporter gives the weight and the bias that it computes names of its own.
            is_torch = model.producer_name == "pytorch" and node.op_type in ("Conv", "ConvTranspose")
            is_folded = is_torch and len(node.input) > 2 and all(map(is_generated_name, node.input[1:3]))
        if is_folded:
            folded.append(node.input[1])
    return folded
