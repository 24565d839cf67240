"""The exported program: parameters, buffers and calls that torch's newer exporter records in the metadata of a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import GraphProto, ModelProto, NodeProto

from .aliases import is_generated_name
from .scopes import parse_list

__all__ = ["ExportedProgram", "list_program_constants", "note_origin", "read_program"]

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_CALL, _ORIGINS = "pkg.torch.onnx.fx_node", "pkg.onnxscript.optimizer.folded_from"
_STATE = re.compile(r"(\w+): (PARAMETER|BUFFER|CONSTANT_TENSOR) target='([^'\n]*)'")


@dataclass(frozen=True)
class ExportedProgram:
    """The tensors of a module, and which of them each node was written for.

    Parameters
    ----------
    kinds : dict of str to str
        ``"PARAMETER"``, ``"BUFFER"`` or ``"CONSTANT_TENSOR"`` by the name in the ``state_dict``.
    placeholders : dict of str to str
        These names by the placeholders that calls have as arguments. A tied parameter has a single placeholder.
    origins : dict of str to tuple of str
        By initializer that the exporter has computed, the tensors of the module that it was computed from.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    placeholders: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def read_call(self, node: NodeProto) -> tuple[str, list[str]] | None:
        """The function of torch that a node computes, or a part of it, and the tensors of the module it is called with.

        Parameters
        ----------
        node : onnx.NodeProto
            The node.

        Returns
        -------
        tuple of str and list of str, or None
            None where nothing is recorded.
        """
        text = next((p.value for p in node.metadata_props if p.key == _CALL), None)
        if text is None:
            return None
        head, _, arguments = text.partition("(args = ")
        names = [self.placeholders[n] for n in re.findall(r"%(\w+)", arguments) if n in self.placeholders]
        return head.rpartition("target=")[2].rstrip("]"), list(dict.fromkeys(names))


def read_program(graph: GraphProto) -> ExportedProgram | None:
    """The record in a graph of the program that it was exported from.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph.

    Returns
    -------
    ExportedProgram or None
        None for a graph that torch's newer exporter has not written, or in a version that recorded less.
    """
    signature = next((p.value for p in graph.metadata_props if p.key == _SIGNATURE), None)
    if signature is None:
        return None
    states = _STATE.findall(signature)
    kinds = {name: kind for _, kind, name in states}
    # A list that cannot be read, such as a very long one, says nothing.
    lists = {v.name: parse_list(p.value) for v in graph.value_info for p in v.metadata_props if p.key == _ORIGINS}
    origins = {n: tuple(o for o in folded if o in kinds) for n, folded in lists.items() if folded}
    return ExportedProgram(kinds, {placeholder: name for placeholder, _, name in states}, origins)


def note_origin(graph: GraphProto, name: str, origin: str) -> None:
    """Record that an initializer was computed from a tensor of the module."""
    v = graph.value_info.add(name=name)
    v.metadata_props.add(key=_ORIGINS, value=str([origin]))


def list_program_constants(model: ModelProto) -> set[str]:
    """Initializers that a file says are no parameters of the exported module: its buffers, and numbers of the program.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.

    Returns
    -------
    set of str
        Names; empty where the file does not say it.

    Examples
    --------
    >>> list_program_constants(ModelProto())
    set()
    """
    program = read_program(model.graph)
    if program is None:
        return set()

    def is_constant(name: str) -> bool:
        if not is_generated_name(name):
            return program.kinds.get(name, "PARAMETER") != "PARAMETER"
        return name in program.origins and all(program.kinds[n] != "PARAMETER" for n in program.origins[name])

    return {t.name for t in model.graph.initializer if is_constant(t.name)}
