"""Declarations of operators of com.microsoft: schemas, and for quantized operators the types of the real numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

import onnx.reference  # noqa: F401 - onnx 1.23.2 fails to import it once two domains have an operator of the same name
from onnx import AttributeProto, TensorProto, TypeProto, defs, helper
from onnx.shape_inference import InferenceContext

from ortpartial.annotations import Attributes, Settings
from ortpartial.exceptions import OrtPartialError
from ortpartial.graph import Value, accepted_types, attribute_value, register_schema

from .straight_through import Formula, stands_for

__all__ = ["declare", "declare_schema"]

DOMAIN = "com.microsoft"
_OPTION = defs.OpSchema.FormalParameterOption
_OPTIONS = {"?": _OPTION.Optional, "*": _OPTION.Variadic}
_KINDS: dict[type, int] = {float: AttributeProto.FLOAT, int: AttributeProto.INT, list: AttributeProto.INTS,
                          str: AttributeProto.STRING, tuple: AttributeProto.STRINGS}
_TYPES = sorted(accepted_types(defs.get_schema("Identity"), 0))


def declare(name: str, inputs: str, outputs: str = "Y", like: str = "",
            **attributes: object) -> Callable[[Formula], Formula]:
    """Declare an operator: its schema, its type inference, and its formula.

    Parameters
    ----------
    name : str
        Its name.
    inputs, outputs : str
        The names of its inputs and outputs, optional names with a question mark, variadic with an asterisk.
    like : str
        The input that has the element type of the outputs, which is float32 without it.
    **attributes : object
        The defaults of its attributes, or their types.

    Returns
    -------
    callable
        A decorator that returns the formula unchanged.
    """

    def register(formula: Formula) -> Formula:
        place = [n.rstrip("?*") for n in inputs.split()].index(like) if like else None
        default = TensorProto.UINT8 if name == "QuantizeLinear" else TensorProto.FLOAT
        declare_schema(name, inputs, outputs, partial(_infer, formula, place, default, attributes), **attributes)
        return stands_for(name, domain=DOMAIN)(formula)

    return register


def declare_schema(name: str, inputs: str, outputs: str, infer: Callable[[InferenceContext], None],
                   **attributes: object) -> None:
    """Declare the schema of an operator, whose inputs and outputs have a type of their own each.

    Parameters
    ----------
    name : str
        Its name.
    inputs, outputs : str
        The names of its inputs and outputs, optional names with a question mark, variadic with an asterisk.
    infer : callable
        Its type inference, a function of the context of onnx's.
    **attributes : object
        The defaults of its attributes, or their types.
    """
    if defs.has(name, DOMAIN):
        return  # Another package may have declared it.
    schema = defs.OpSchema(
        name, DOMAIN, 1, inputs=[_formal(n) for n in inputs.split()], outputs=[_formal(n) for n in outputs.split()],
        attributes=[_declared(n, default) for n, default in attributes.items()],
        type_constraints=[(f"T_{n.rstrip('?*')}", _TYPES, "") for n in f"{inputs} {outputs}".split()])
    register_schema(schema, infer)


def _formal(name: str) -> defs.OpSchema.FormalParameter:
    """An input or output of a type of its own, but for variadic inputs."""
    bare = name.rstrip("?*")
    return defs.OpSchema.FormalParameter(bare, f"T_{bare}", param_option=_OPTIONS.get(name[-1], _OPTION.Single),
                                         is_homogeneous=not name.endswith("*"))


def _declared(name: str, default: object) -> defs.OpSchema.Attribute:
    if default not in _KINDS:
        return defs.OpSchema.Attribute(name, helper.make_attribute(name, default))
    kind = AttributeProto.AttributeType.Name(_KINDS[default])
    return defs.OpSchema.Attribute(name, getattr(defs.OpSchema.AttrType, kind), required=False)


def _infer(formula: Formula, place: int | None, default: int, attributes: Attributes, context: InferenceContext
           ) -> None:
    """Infer types: the shapes are those of the formula."""
    kinds = [context.get_input_type(i) if context.has_input(i) else None for i in range(context.get_num_inputs())]
    reference = kinds[place] if place is not None and place < len(kinds) else None
    element = default if reference is None else reference.tensor_type.elem_type
    bare = TypeProto(tensor_type=TypeProto.Tensor(elem_type=element))
    settings: Settings = {"y": Value(bare)}
    for n, value in attributes.items():
        a = context.get_attribute(n)
        settings[n] = attribute_value(a) if a is not None else None if value in _KINDS else value
    keywords = [n for n, p in inspect.signature(formula).parameters.items() if p.kind is p.KEYWORD_ONLY]
    try:
        ys = formula(*map(_as_float, kinds), **{n: settings[n] for n in keywords})
    except OrtPartialError:
        ys = None  # The rank of an input is not known.
    shapes = [y.type for y in ([ys] if isinstance(ys, Value) else ys or []) if y is not None] or [bare]
    for i, kind in enumerate(shapes[: context.get_num_outputs()]):
        if context.has_output(i):
            inferred = TypeProto()
            inferred.CopyFrom(kind)
            inferred.tensor_type.elem_type = element
            context.set_output_type(i, inferred)


def _as_float(kind: TypeProto | None) -> Value | None:
    """The stand-in of an input for shape inference; a condition keeps its dtype."""
    if kind is None:
        return None
    real = TypeProto()
    real.CopyFrom(kind)
    if kind.tensor_type.elem_type != TensorProto.BOOL:
        real.tensor_type.elem_type = TensorProto.FLOAT
    return Value(real)
