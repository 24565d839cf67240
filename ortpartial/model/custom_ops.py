"""Operators that ONNX does not know, and libraries that have them, by the domains of the models that they serve."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from onnx import ModelProto, NodeProto, defs

from ortpartial.checks import check_path, to_tuple
from ortpartial.exceptions import FileMissingError

from .walk import walk_protos

__all__ = ["ONNX_DOMAINS", "find_libraries", "is_opaque", "register_libraries", "resolve_libraries"]

#: Domains of which ONNX knows every operator.
ONNX_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"})

#: The paths of libraries by domain. They serve the whole process, like schemas that are registered in onnx.
_LIBRARIES: dict[str, tuple[str, ...]] = {}


def is_opaque(node: NodeProto) -> bool:
    """Whether no schema describes a node: its operator is not declared, or not with all that the node has.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.

    Returns
    -------
    bool
        False for operators of ONNX's own domains, which it would have to know.

    Examples
    --------
    >>> is_opaque(NodeProto(op_type="SampleOp", domain="com.microsoft"))
    True
    """
    if node.domain in ONNX_DOMAINS:
        return False
    if not defs.has(node.op_type, node.domain):
        return True
    schema = defs.get_schema(node.op_type, node.domain)
    return (len(node.input) > schema.max_input or len(node.output) > schema.max_output
            or not {a.name for a in node.attribute} <= set(schema.attributes))


def resolve_libraries(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """The absolute paths of libraries.

    Parameters
    ----------
    paths : path or sequence of path
        The libraries.

    Returns
    -------
    tuple of str

    Raises
    ------
    FileMissingError
        There is no such file.

    Examples
    --------
    >>> resolve_libraries("missing.so")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.FileMissingError: There is no library of custom operators 'missing.so'.
    """
    listed = (paths,) if isinstance(paths, (str, os.PathLike)) else to_tuple(paths)
    every = [check_path("custom_ops_library", p) for p in ((paths,) if listed is None else listed)]
    if missing := [p for p in every if not Path(p).is_file()]:
        raise FileMissingError(f"There is no library of custom operators {os.fspath(missing[0])!r}.")
    return tuple(str(Path(p).resolve()) for p in every)


def register_libraries(model: ModelProto, libraries: Sequence[str]) -> None:
    """Let libraries serve the domains of a model that are neither ONNX's nor onnxruntime's own, in all sessions.

    Parameters
    ----------
    model : onnx.ModelProto
        A model with operators of the libraries.
    libraries : sequence of str
        Absolute paths; the libraries of a domain replace others that were given for it before, unless there are none.
    """
    if not libraries:
        return
    foreign = _find_domains(model)
    _LIBRARIES.update(dict.fromkeys(foreign - {"com.microsoft"} or foreign, tuple(libraries)))


def find_libraries(model: ModelProto | bytes) -> tuple[str, ...]:
    """The libraries that were given for the domains of a model.

    Parameters
    ----------
    model : onnx.ModelProto or bytes
        The model.

    Returns
    -------
    tuple of str
        Their absolute paths.

    Examples
    --------
    >>> find_libraries(ModelProto())
    ()
    """
    if not _LIBRARIES:
        return ()
    domains = sorted(_find_domains(model if isinstance(model, ModelProto) else ModelProto.FromString(model)))
    return tuple(dict.fromkeys(path for d in domains for path in _LIBRARIES.get(d, ())))


def _find_domains(model: ModelProto) -> set[str]:
    """The domains of a model's operators that belong neither to ONNX nor to functions of the model."""
    functions = {(f.domain, f.name) for f in model.functions}
    steps = [g for info in model.training_info for g in (info.initialization, info.algorithm)]
    nodes = (node for g in (model.graph, *model.functions, *steps) for node in walk_protos(g))
    return {node.domain for node in nodes if (node.domain, node.op_type) not in functions} - ONNX_DOMAINS
