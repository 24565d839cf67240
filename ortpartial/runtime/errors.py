"""Translation of onnxruntime's errors into a `ModelError` or a `DataError` that says what to do."""

from __future__ import annotations

import re

from onnx import helper

from ortpartial.exceptions import DataError, ModelError, OrtPartialError
from ortpartial.graph import walk_nodes
from ortpartial.model import load

from .device import C, runtime_version

__all__ = ["clean_message", "load_error", "newest_opset", "run_error"]


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
    # A guard inside of the graph is a Gather whose name says what is wrong (ortpartial/model/run_time_guards.py).
    text = re.sub(r"Gather node '(\S+ .+)': indices element out of data bounds, idx=1 must be within the inclusive "
                  r"range \[-1,0\]", r"\1", text)
    if newer := re.search(r"Opset (\d+) is under development .* till opset (\d+)", text):
        text = f"the model has opset {newer[1]}, and the newest that it knows is {newer[2]}"
    return text.strip().rstrip(".") + "."


def run_error(e: Exception) -> Exception:
    """The error for a run that failed: a `DataError` if an input does not fit the graph, else a `ModelError`."""
    if isinstance(e, OrtPartialError):
        return e
    if isinstance(e, C.InvalidArgument) or re.search("hape|Invalid rank|invalid dimensions|data type|out of", str(e)):
        return DataError(f"onnxruntime {runtime_version()} refuses an input: {clean_message(e)}")
    return ModelError(f"onnxruntime {runtime_version()} failed to run the graph: {clean_message(e)}")


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
    """The newest opset that the runtime supports, if the error says that the graph has a newer one."""
    if match := re.search(r"till opset (\d+)", str(e)):
        return int(match[1])
    if match := re.search(r"max supported IR version: (\d+)", str(e)):
        return max(row[2] for row in helper.VERSION_TABLE if row[1] <= int(match[1]))
    return None
