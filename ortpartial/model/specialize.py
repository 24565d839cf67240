"""Specialization: a model that was read, for the sizes of a batch, or with constants that became variables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from onnx import GraphProto

from ortpartial.annotations import Formula, Inputs
from ortpartial.graph import Node, Value, constant, make_node, make_rewriter, topological, variable

from .load import Model, load
from .prepare import infer_types, set_sizes
from .reader import with_inferred_shape
from .validation import check_size

__all__ = ["replace_inputs", "specialize"]


def specialize(model: Model, *, batch: int | Mapping[str, Sequence[int]] | None = None,
               variables: Collection[str] = (), constants: Collection[str] = ()) -> Model:
    """The same model with known sizes, or with initializers that are variables or constants again.

    Parameters
    ----------
    model : Model
        A model that `load` has read.
    batch : int or dict of str to sequence of int, optional
        The number of rows of every input whose first size is not static, or all sizes of inputs by their names.
    variables : collection of str
        Initializers that become variables, beside the present variables.
    constants : collection of str
        Variables that become constants again, unless they are among `variables`.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        A tensor of these sizes is larger than the memory.

    Examples
    --------
    >>> from ortpartial.graph import build, constant, op, variable
    >>> x, w = variable("x", "float32", ["N", 3]), constant([[1.0], [2.0], [3.0]], hint="w")
    >>> model = specialize(load(build([x], {"y": op.MatMul(x, w)})), batch=5, variables=["w"])
    >>> model.outputs["y"], model.initializers["w"].array is None
    (<Value y float32[5x1]>, True)
    """
    new = _replace_initializers(model, variables, constants)
    if batch is None:
        return _rewritten(model, new)
    values = list(model.values.values())
    if model.graph is None or any(node.bodies for node in topological(values)) or not all(map(_is_tensor, values)):
        # Sizes decide which branches are taken, which values loops carry and how many tensors a sequence holds.
        changing = [n for n, v in model.initializers.items() if v.array is None or v in new]
        return load(model, batch=batch, variables=changing)
    return _specialize_sizes(model, batch, new)


def _replace_initializers(model: Model, variables: Collection[str], constants: Collection[str]) -> dict[Value, Value]:
    """The initializers that become variables or constants, and their replacements."""
    new = {v: variable(n, v.dtype, v.shape) for n in variables if (v := model.initializers[n]).array is not None}
    new |= {v: constant(model.arrays[n], hint=n) for n in constants
            if n not in variables and (v := model.initializers[n]).array is None}
    # Where content has moved into a file, constants let go of the memory that it was read into.
    return new | {v: constant(model.arrays[n], hint=n) for n, v in model.initializers.items()
                  if v not in new and v.array is not None and v.array is not model.arrays[n]}


def _specialize_sizes(model: Model, batch: int | Mapping[str, Sequence[int]], new: Mapping[Value, Value]) -> Model:
    """The model with known sizes, and with some values replaced."""
    graph = GraphProto()
    graph.CopyFrom(model.graph)
    set_sizes(graph, batch)
    inputs = {i.name: Value(i.type, hint=i.name) for i in graph.input if i.name in model.inputs}
    for n, v in inputs.items():
        check_size(v, f"Input {n!r}")
    types, names = infer_types(graph, model.opsets), {v: n for n, v in model.values.items()}

    def retype(node: Node, arguments: Inputs) -> list[Value] | None:
        if arguments == list(node.inputs):
            return None
        hints = [y.hint for y in node.outputs]
        outputs = make_node(node.schema, arguments, node.attributes, n_outputs=len(node.outputs), name=node.name,
                            hints=hints).outputs
        typed = []
        for old, y in zip(node.outputs, outputs, strict=True):
            y = with_inferred_shape(y, node.op_type, arguments, types.get(names.get(old, "")))
            check_size(y, repr(node))
            typed.append(y)
        return typed

    return _rewritten(model, {**new, **{model.inputs[n]: v for n, v in inputs.items()}}, retype)


def replace_inputs(model: Model, values: Mapping[str, Value]) -> Model:
    """The model with values in place of some inputs, which it no longer has.

    Parameters
    ----------
    model : Model
        The model.
    values : dict of str to Value
        By the names of inputs.

    Returns
    -------
    Model
    """
    rewritten = _rewritten(model, {model.inputs[n]: v for n, v in values.items()})
    return replace(rewritten, inputs={n: v for n, v in rewritten.inputs.items() if n not in values})


def _rewritten(model: Model, new: Mapping[Value, Value], formula: Formula | None = None) -> Model:
    """The model with some values replaced."""
    current = make_rewriter(list(model.values.values()), new, formula)

    def renewed(values: Mapping[str, Value]) -> dict[str, Value]:
        return {n: current(v) for n, v in values.items()}

    return replace(model, inputs=renewed(model.inputs), outputs=renewed(model.outputs), values=renewed(model.values),
                   initializers=renewed(model.initializers))


def _is_tensor(v: Value) -> bool:
    return v.type.HasField("tensor_type")
