"""Translation of onnxruntime's errors into a `ModelError` or a `DataError` with advice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from onnx import ModelProto, helper

from ortpartial.exceptions import DataError, ModelError, OrtPartialError
from ortpartial.graph import GUARD, REFUSING, Bound, describe_bound, name_node, state_refusal, walk_nodes
from ortpartial.model import load, walk_graphs

from .device import C, runtime_version

#: Messages of onnxruntime 1.19 to 1.32 about a number out of range: the number, where it has it, and the range.
_OUT_OF_RANGE = (
    r"indices element out of data bounds, idx=(-?\d+) must be within the inclusive range \[(-?\d+),(-?\d+)\]",
    r"invalid ind(?:ex|ice) found, ind(?:ex|ice) = (-?\d+)",  # GatherND and ScatterND
    r"Out of range value in index tensor",  # GatherElements
    r"Invalid value/s in sequence_lens",  # GRU, LSTM and RNN
    r"Invalid sequence length: (-?\d+)",  # ReverseSequence
    r"position_ids value (-?\d+) at index",  # RotaryEmbedding
    r"nonpad_kv_seqlen_data\[i\] >= 0",  # Attention
)

__all__ = ["clean_message", "find_refusals", "load_error", "newest_opset", "run_error"]


def clean_message(e: Exception) -> str:
    """The message of an error of onnxruntime, without error codes and source locations."""
    text = " ".join(str(e).split())
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = text.removeprefix("Error in execution: ")
    text = re.sub(r"Non-zero status code returned while running (\w+) node\. Name:'(.*?)' "
                  r"Status Message: ", r"\1 node '\2': ", text)
    # A source location: the path, and the signature of the function up to its closing parenthesis.
    text = re.sub(r"/?\S*onnxruntime_src/\S+:\d+ [^()]*\((?:[^()]|\([^()]*\))*\)( const)?( \[with [^\]]*\])? ?", "",
                  text)
    if newer := re.search(r"Opset (\d+) is under development .* till opset (\d+)", text):
        text = f"the model has opset {newer[1]}, and the newest that it knows is {newer[2]}"
    return text.strip().rstrip(".") + "."


def find_refusals(model: ModelProto | bytes) -> dict[str, str]:
    """The errors for numbers that are out of range, by the names of nodes, as `build` has noted them.

    Parameters
    ----------
    model : onnx.ModelProto or bytes
        A graph.

    Returns
    -------
    dict of str to str
    """
    if not isinstance(model, ModelProto):
        if b"that is not in " not in model and b"that is out of range:" not in model and GUARD.encode() not in model:
            return {}
        return find_refusals(ModelProto.FromString(model))
    return {n.name: n.doc_string for graph in walk_graphs(model.graph) for n in graph.node
            if n.op_type in REFUSING and n.doc_string}


def run_error(e: Exception, refusals: Mapping[str, str] = MappingProxyType({})) -> Exception:
    """The error for a run that failed: a `DataError` if an input does not fit the graph, else a `ModelError`.

    Parameters
    ----------
    e : Exception
        That of onnxruntime.
    refusals : dict of str to str
        The result of `find_refusals`.

    Returns
    -------
    Exception
    """
    if isinstance(e, OrtPartialError):
        return e
    if (refusal := _find_refusal(str(e), refusals)) is not None:
        return DataError(refusal)
    if misfits := re.findall(r"index: (\d+) Got: (\d+) Expected: (\d+)", str(e)):
        name = re.search(r"invalid dimensions for input: (.*?) for the following", str(e), re.S)
        listed = " and ".join(f"{size} along axis {axis}, where {expected} was expected"
                              for axis, size, expected in misfits)
        return DataError(f"Input {name[1] if name else ''!r} has {listed}.")
    if (rank := re.search(r"Invalid rank for input: (.*?) Got: (\d+) Expected: (\d+)", str(e), re.S)) is not None:
        return DataError(f"Input {rank[1]!r} has {rank[2]} axes, where {rank[3]} were expected.")
    if isinstance(e, C.InvalidArgument) or re.search("hape|Invalid rank|invalid dimensions|data type|out of", str(e)):
        return DataError(f"onnxruntime {runtime_version()} refuses an input: {clean_message(e)}")
    return ModelError(f"onnxruntime {runtime_version()} failed to run the graph: {clean_message(e)}")


def _find_refusal(message: str, refusals: Mapping[str, str]) -> str | None:
    """The error for a number out of the range of a node, if the message tells of it."""
    *_, last = re.split(r"running (?=\w+ node\. Name:')", message)
    node = re.match(r"(\w+) node\. Name:'(.*?)' Status Message: ", last, re.S)
    problem = next((m for p in _OUT_OF_RANGE if (m := re.search(p, last))), None)
    if node is None or problem is None:
        return None
    numbers = [int(n) for n in problem.groups()]
    refusal = refusals.get(node[2], node[2].rstrip() if node[2].startswith(GUARD) else "")
    if not refusal or (len(numbers) == 3 and refusal.endswith("out of range:")):
        bound = Bound(1, "an index", (tuple(numbers[1:]),) if len(numbers) == 3 else None)  # type: ignore[arg-type]
        refusal = describe_bound(name_node(node[2], node[1], ""), bound)
    return state_refusal(refusal, numbers[0] if numbers else None)


def load_error(e: Exception, data: bytes) -> ModelError:
    """The error for a graph that does not load; for a missing kernel, with operator, node and dtypes."""
    if unknown := re.search(r"(\S+):(\w+)\(-?\d+\) is not a registered function/op", str(e)):
        advice = ("a newer onnxruntime may have it" if unknown[1] == "com.microsoft" else "if a library of custom "
                  "operators has it, give its path by load(model, custom_ops_library=path)")
        return ModelError(f"onnxruntime {runtime_version()} has no operator {unknown[1]}.{unknown[2]}; {advice}.")
    if newer := re.search(r"Unrecognized attribute: (\w+) for operator (\w+)", str(e)):
        return ModelError(f"onnxruntime {runtime_version()} does not know the attribute {newer[1]!r} of {newer[2]}; a "
                          f"newer onnxruntime may.")
    if newer := re.search(r'"([^"]*)", (\w+), "com.microsoft".* has (in|out)put size \d+ not in range', str(e), re.S):
        return ModelError(f"onnxruntime {runtime_version()} knows {newer[2]} (node {newer[1]!r}) with other "
                          f"{newer[3]}puts; a newer onnxruntime may know these.")
    missing = re.search(r"Could not find an implementation for (\w+)\((\d+)\) node with name '(.*?)'", str(e))
    if missing is None:
        return ModelError(f"onnxruntime {runtime_version()} does not load the graph: {clean_message(e)}")
    operator, version, name = missing.groups()
    try:
        nodes = {n.name: n for n in walk_nodes(v.node for v in load(data).values.values() if v.node is not None)}
        dtypes = sorted({str(x.dtype) for x in nodes[name].inputs if x is not None})
    except (KeyError, OrtPartialError):
        dtypes = []
    inputs = f" with inputs of {' and '.join(dtypes)}" if dtypes else ""
    return ModelError(f"onnxruntime {runtime_version()} has no kernel for {operator} (since opset {version}, node "
                      f"{name!r}){inputs}; use another dtype, such as float32, or a runtime that has it.")


def newest_opset(e: Exception) -> int | None:
    """The newest opset that the runtime supports, if the error says that the opset of the graph is newer."""
    if match := re.search(r"till opset (\d+)", str(e)):
        return int(match[1])
    if match := re.search(r"max supported IR version: (\d+)", str(e)):
        return max(row[2] for row in helper.VERSION_TABLE if row[1] <= int(match[1]))
    return None
