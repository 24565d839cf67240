"""Elementwise operators: C expressions of the elements of their inputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce

import numpy as np

from ortpartial.exceptions import UntranslatableError
from ortpartial.graph import Node
from ortpartial.native.expressions import Call, Expression, Literal
from ortpartial.native.translation import Translator, describe, round_bfloat16, translates
from ortpartial.native.types import BFLOAT16, C_TYPES, literal, suffix

__all__ = ["apply", "convert", "wrap"]

_FLOAT = np.dtype(np.float32)

#: By operator, the C expression of an element, in which S is the suffix of functions of the type; and its cost.
_FORMULAS = {
    "Add": ("{0} + {1}", 1), "Sub": ("{0} - {1}", 1), "Mul": ("{0} * {1}", 1),
    "Neg": ("-{0}", 1), "Abs": ("op_abs_S({0})", 1), "Sign": ("op_sign_S({0})", 1),
    "Exp": ("op_exp_S({0})", 20), "Log": ("op_log_S({0})", 20), "Sqrt": ("op_sqrt_S({0})", 5),
    "Reciprocal": ("1 / {0}", 5), "Tanh": ("op_tanh_S({0})", 20), "Sigmoid": ("op_sigmoid_S({0})", 20),
    "Softplus": ("op_softplus_S({0})", 30), "Erf": ("op_erf_S({0})", 20), "Sin": ("op_sin_S({0})", 20),
    "Cos": ("op_cos_S({0})", 20), "Atan": ("op_atan_S({0})", 20), "Relu": ("op_at_least_S({0}, 0)", 1),
    **{name: (f"op_{name.lower()}_S({{0}})", 30)
       for name in ("Acos", "Acosh", "Asin", "Asinh", "Atanh", "Cosh", "Sinh", "Tan")},
    "Floor": ("op_floor_S({0})", 1), "Ceil": ("op_ceil_S({0})", 1),
    "Round": ("op_round_S({0})", 1), "Softsign": ("{0} / (1 + op_abs_S({0}))", 6),
    "Greater": ("{0} > {1}", 1), "Less": ("{0} < {1}", 1), "Equal": ("{0} == {1}", 1),
    "GreaterOrEqual": ("{0} >= {1}", 1), "LessOrEqual": ("{0} <= {1}", 1), "Not": ("!{0}", 1),
    "And": ("{0} & {1}", 1), "Or": ("{0} | {1}", 1), "Xor": ("{0} ^ {1}", 1), "BitwiseAnd": ("{0} & {1}", 1),
    "BitwiseOr": ("{0} | {1}", 1), "BitwiseXor": ("{0} ^ {1}", 1), "BitwiseNot": ("~{0}", 1),
    "Where": ("{0} ? {1} : {2}", 1), "IsNaN": ("{0} != {0}", 1), "Identity": ("{0}", 0),
}


def apply(t: Translator, template: str, *args: Expression, dtype: np.dtype | None = None, weight: int = 1
          ) -> Expression:
    """An operation on expressions, which are repeated to their common shape."""
    shape = np.broadcast_shapes(*(a.shape for a in args))
    kind = args[0].dtype if dtype is None else np.dtype(dtype)
    return Call(kind, shape, template, tuple(t.broadcast(a, shape) for a in args), weight)


def wrap(template: str, dtype: np.dtype) -> str:
    """A sum or product of whole numbers that wraps around, as ONNX has it: in C, signed overflow is undefined."""
    if dtype.kind != "i":
        return template
    unsigned = "uint64_t" if dtype.itemsize == 8 else "uint32_t"
    return f"({C_TYPES[dtype]})({re.sub('(?={)', f'({unsigned})', template)})"


def convert(t: Translator, e: Expression, dtype: np.dtype) -> Expression:
    """An expression in another type."""
    if e.dtype == dtype:
        return e
    if isinstance(e, Literal):
        return Literal(dtype, e.shape, np.asarray(e.value).astype(dtype)[()])
    template = "{0} != 0" if dtype == np.bool_ else f"({C_TYPES[dtype]}){{0}}"
    return apply(t, template, e, dtype=dtype)


def _write(name: str) -> None:
    formula, weight = _FORMULAS[name]

    def translate(t: Translator, node: Node) -> Expression:
        args = [t.read(v) for v in node.inputs]
        kind = suffix(args[-1].dtype)
        template = wrap(formula, args[0].dtype) if name in ("Add", "Sub", "Mul", "Neg") else formula
        return apply(t, template.replace("_S(", f"_{kind}("), *args, dtype=node.outputs[0].dtype, weight=weight)

    translates(name)(translate)


for _name in _FORMULAS:
    _write(_name)


@translates("StopGradient", "StraightThrough", domain="ortpartial")
def pass_on(t: Translator, node: Node) -> Expression:
    return apply(t, "{0}", t.read(node.inputs[0]), weight=0)


@translates("IsInf")
def is_infinite(t: Translator, node: Node) -> Expression:
    bounds = [f"{{0}} {sign}" for sign, name in (("> FLT_MAX", "positive"), ("< -FLT_MAX", "negative"))
              if node.attribute(f"detect_{name}")]
    x = t.read(node.inputs[0])
    formula = " || ".join(bounds) or "0"
    return apply(t, formula if x.dtype.itemsize == 4 else formula.replace("FLT", "DBL"), x, dtype=np.dtype(bool))


@translates("Div")
def divide(t: Translator, node: Node) -> Expression:
    a, b = (t.read(v) for v in node.inputs)
    if isinstance(b, Literal) and a.dtype.kind == "f" and _is_power_of_two(b.value):
        return apply(t, "{0} * {1}", a, Literal(b.dtype, b.shape, b.dtype.type(1) / b.value))
    if a.dtype.name in ("int32", "int64"):
        return apply(t, f"op_div_{suffix(a.dtype)}({{0}}, {{1}})", a, b, weight=5)
    return apply(t, "{0} / {1}" if a.dtype.kind == "f" else "({1} == 0 ? 0 : {0} / {1})", a, b, weight=5)


def _is_power_of_two(value: float) -> bool:
    """Whether a number has an exact reciprocal."""
    return value != 0 and np.isfinite(value) and abs(np.frexp(value)[0]) == 0.5 and np.isfinite(1 / value)


@translates("Max", "Min", "Sum", "Mean")
def combine(t: Translator, node: Node) -> Expression:
    args = [t.read(v) for v in node.inputs]
    kind = suffix(args[0].dtype)
    extremes = {"Max": f"op_max_{kind}({{0}}, {{1}})", "Min": f"op_min_{kind}({{0}}, {{1}})"}
    template = extremes.get(node.op_type, "{0} + {1}")
    total = reduce(lambda a, b: apply(t, template, a, b), args)
    if node.op_type == "Mean":
        return apply(t, "{0} / {1}", total, Literal(total.dtype, (), len(args)), weight=5)
    return total


@translates("Clip")
def clip(t: Translator, node: Node) -> Expression:
    e, kind = t.read(node.inputs[0]), suffix(node.outputs[0].dtype)
    for bound, name in zip(node.inputs[1:], ("at_least", "at_most"), strict=False):
        if bound is not None:
            e = apply(t, f"op_{name}_{kind}({{0}}, {{1}})", e, t.read(bound))
    return e


@translates("Cast")
def cast(t: Translator, node: Node) -> Expression:
    e, dtype = t.read(node.inputs[0]), node.outputs[0].dtype
    return round_bfloat16(t, convert(t, e, _FLOAT)) if dtype == BFLOAT16 else convert(t, e, dtype)


@translates("Pow")
def power(t: Translator, node: Node) -> Expression:
    base, exponent = (t.read(v) for v in node.inputs)
    if isinstance(exponent, Literal):
        formulas: dict[float, Callable[[], Expression]] = {
            1.0: lambda: base, 2.0: lambda: apply(t, wrap("{0} * {0}", base.dtype), base),
            0.5: lambda: apply(t, f"op_sqrt_{suffix(base.dtype)}({{0}})", base, weight=5),
            3.0: lambda: apply(t, wrap("{0} * {0} * {0}", base.dtype), base, weight=2),
            -1.0: lambda: apply(t, "1 / {0}", base, weight=5)}
        formula = formulas.get(float(exponent.value))
        if formula is not None and (base.dtype.kind == "f" or float(exponent.value) > 0.5):
            return formula()
    if base.dtype.kind != "f":
        raise UntranslatableError(f"{describe(node)} of whole numbers is not written in C.")
    return apply(t, f"op_pow_{suffix(base.dtype)}({{0}}, {{1}})", base, convert(t, exponent, base.dtype), weight=40)


@translates("Mod")
def remainder(t: Translator, node: Node) -> Expression:
    a, b = (t.read(v) for v in node.inputs)
    name = "op_fmod" if node.attribute("fmod") else "op_mod"
    return apply(t, f"{name}_{suffix(a.dtype)}({{0}}, {{1}})", a, b, weight=10)


@translates("BitShift")
def shift(t: Translator, node: Node) -> Expression:
    a, b = (t.read(v) for v in node.inputs)
    kind, bits = C_TYPES[a.dtype], 8 * a.dtype.itemsize
    sign = "<<" if node.attribute("direction") == "LEFT" else ">>"
    return apply(t, f"({{1}} < {bits} ? ({kind})({{0}} {sign} {{1}}) : 0)", a, b)


@translates("LeakyRelu")
def leaky_relu(t: Translator, node: Node) -> Expression:
    x = t.read(node.inputs[0])
    return apply(t, f"({{0}} < 0 ? {literal(node.attribute('alpha'), x.dtype)} * {{0}} : {{0}})", x, weight=2)


@translates("HardSigmoid")
def hard_sigmoid(t: Translator, node: Node) -> Expression:
    x = t.read(node.inputs[0])
    s, alpha, beta = suffix(x.dtype), *(literal(node.attribute(n), x.dtype) for n in ("alpha", "beta"))
    return apply(t, f"op_at_least_{s}(op_at_most_{s}({alpha} * {{0}} + {beta}, 1), 0)", x, weight=4)
