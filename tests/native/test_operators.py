"""Every operator that is written in C, over types, shapes and views, against onnxruntime."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from native_cases import CHECKED, compute_by_runtime, compute_in_c, find_sanitizers, run_cases, write_cases
from once import ON_NEWEST

from ortpartial.exceptions import DataError
from ortpartial.graph import (
    Value,
    cast,
    constant,
    op,
    replace_gradient,
    stop_gradient,
    topological,
    variable,
)
from ortpartial.native import compile_library
from ortpartial.native.expansions import _FORMULAS
from ortpartial.native.translation import TRANSLATORS

pytestmark = [ON_NEWEST, pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")]

F32, F64, I64, I32, BOOL = (np.dtype(t) for t in ("float32", "float64", "int64", "int32", "bool"))
NUMBERS, FLOATS = (F32, F64, I64, I32), (F32, F64)

#: By operator of one input: the range of its inputs where it is not that of normal numbers.
UNARY: dict[str, tuple[tuple[np.dtype, ...], Callable[[Any], Any]]] = {
    **{n: (FLOATS, lambda x: x) for n in ("Exp", "Sigmoid", "Tanh", "Sin", "Floor", "Ceil", "Round", "IsNaN")},
    **{n: ((F32,), lambda x: x) for n in ("Erf", "Cos", "Atan", "Softplus", "Softsign", "LeakyRelu", "HardSigmoid",
                                          "Elu", "Gelu", "Selu", "Celu", "HardSwish", "Mish", "ThresholdedRelu", "Tan",
                                          "Sinh", "Cosh", "Asinh", "IsInf")},
    "Acosh": ((F32,), lambda x: np.abs(x) + 1), "Atanh": ((F32,), lambda x: np.tanh(x)),
    "Asin": ((F32,), lambda x: np.tanh(x)), "Acos": ((F32,), lambda x: np.tanh(x)),
    **dict.fromkeys(("Sqrt", "Log"), (FLOATS, np.abs)), "Reciprocal": (FLOATS, lambda x: x + np.sign(x)),
    "Relu": ((F32, F64, I32), lambda x: x), "Identity": ((*NUMBERS, BOOL), lambda x: x),
    **{n: (NUMBERS, lambda x: x) for n in ("Neg", "Abs", "Sign")}, "Not": ((BOOL,), lambda x: x),
    "BitwiseNot": ((I64, I32), lambda x: x)}
BINARY = {**dict.fromkeys(("Add", "Sub", "Mul", "Max", "Min"), NUMBERS),
          **dict.fromkeys(("Less", "Greater", "LessOrEqual", "GreaterOrEqual"), NUMBERS),
          "Div": FLOATS, "Equal": (*NUMBERS, BOOL), "Pow": FLOATS, "PRelu": (F32,), "Sum": FLOATS, "Mean": (F32,),
          **dict.fromkeys(("And", "Or", "Xor"), (BOOL,)),
          **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mod"), (I64, I32))}


class Cases:
    """Values by name, and the numbers of the variables that they are computed from."""

    def __init__(self, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.numbers: dict[Value, np.ndarray] = {}
        self.values: dict[str, Value] = {}

    def make(self, *shape: int, dtype: Any = F32) -> Value:
        """A variable of random numbers."""
        return self.hold(self.rng.normal(size=shape) * 3, dtype)

    def hold(self, numbers: Any, dtype: Any = F32) -> Value:
        """A variable of these numbers."""
        array = np.asarray(numbers)
        array = np.asarray(array > 0 if np.dtype(dtype) == BOOL and array.dtype != bool else array).astype(dtype)
        v = variable("x", array.dtype, array.shape)
        self.numbers[v] = array
        return v

    def add(self, name: str, value: Any) -> None:
        """A case, or several."""
        for i, v in enumerate([value] if isinstance(value, Value) else value):
            self.values[f"{name} {i}" if i or not isinstance(value, Value) else name] = v


def elementwise() -> Cases:
    """Elementwise operators, with axes that are repeated, of size 1 and empty."""
    c = Cases()
    x = c.hold(c.rng.normal(size=(3, 7)), "float32")
    c.add("a gradient that stops", stop_gradient(x))
    c.add("a gradient that is replaced", replace_gradient(op.Round(x), x))
    for name, (dtypes, change) in UNARY.items():
        for dtype in dtypes:
            numbers = np.asarray(change(c.rng.normal(size=(3, 7)) * 3))
            c.add(f"{name} {dtype}", getattr(op, name)(c.hold(numbers, dtype)))
    for name, dtypes in BINARY.items():
        for dtype in dtypes:
            f = getattr(op, name)
            shapes = ((2, 3, 5), (5,)), ((2, 1, 5), (3, 1)), ((), (4,)), ((0, 3), (1, 3)), ((1, 1), (1,))
            for i, (a, b) in enumerate(shapes[: 1 if name == "PRelu" else 5]):
                x, y = (c.rng.normal(size=s) * 3 for s in (a, b))
                if name == "Pow":
                    x = np.abs(x)
                elif name in ("Div", "Mod"):
                    y += np.where(y < 0, -1, 1)
                c.add(f"{name} {dtype} {i}", f(c.hold(x, dtype), c.hold(y, dtype)))
    x, n = c.make(4, 3), c.make(4, 3, dtype=I64)
    for e in (0.5, 1.0, 2.0, 3.0, -1.0, 0.0, -0.5, 1.7):
        c.add(f"Pow {e}", op.Pow(op.Abs(x), e))
    c.add("Pow -2", op.Pow(x, constant(np.int64(-2))))
    c.add("Div by 4", x / 4.0)
    c.add("Div of whole numbers", op.Div(n, constant(np.array([2, -3, 5]))))
    c.add("Div of small whole numbers", op.Div(cast(n, c.make(1, dtype=I32)), constant(np.array([2, -3, 5], np.int32))))
    c.add("Mod of floats", op.Mod(x, constant(np.float32(1.5)), fmod=1))
    c.add("Mod fmod", op.Mod(n, constant(np.array([2, -3, 5])), fmod=1))
    for dtype in NUMBERS:
        v = c.make(2, 3, dtype=dtype)
        c.add(f"Clip {dtype}", op.Clip(v, constant(np.array(-1, dtype)), constant(np.array(2, dtype))))
    c.add("Clip below", op.Clip(x, constant(np.float32(0))))
    c.add("Clip above", op.Clip(x, None, c.hold(0.5)))
    c.add("Where", op.Where(c.make(2, 1, dtype=BOOL), c.make(2, 3), c.make(1)))
    c.add("Where of whole numbers", op.Where(c.make(3, dtype=BOOL), c.make(2, 3, dtype=I64), c.make(1, dtype=I64)))
    for a in (F32, F64, I64, I32, BOOL):
        for b in (F32, F64, I64, I32, BOOL):
            c.add(f"Cast {a} {b}", op.Cast(c.make(5, dtype=a), to={F32: 1, F64: 11, I64: 7, I32: 6, BOOL: 9}[b]))
    u, by = c.hold([1, 200, 7, 255], "uint8"), c.hold([1, 2, 0, 7], "uint8")
    for direction in ("LEFT", "RIGHT"):
        c.add(f"BitShift {direction}", op.BitShift(u, by, direction=direction))
        wide = c.hold([1, 2**31 + 5, 7], "uint32"), c.hold([1, 31, 0], "uint32")
        c.add(f"BitShift of 32 bits {direction}", op.BitShift(*wide, direction=direction))
    c.add("sums of several", op.Sum(x, c.make(3), c.make(4, 1)))
    c.add("means of several", op.Mean(x, c.make(3), c.make(4, 1)))
    c.add("Max of several", op.Max(x, c.make(3), c.make(4, 1)))
    c.add("a deep expression", op.Tanh(op.Exp(op.Sin(op.Sigmoid(op.Cos(op.Exp(op.Tanh(x) * x) * 0.01) + x) * x))))
    c.add("read often", (y := op.Exp(x * 0.1)) * y + op.ReduceSum(y, [1]) - op.Transpose(op.Transpose(y)[::-1]))
    c.add("arithmetic that repeats", [op.Cast(c.make(2, 3, dtype=BOOL), to=1) * x[:2], op.Sub(0.0, x)])
    return c


def special_numbers() -> Cases:
    """NaN, infinity, signed zeros and the ends of the ranges of whole numbers."""
    c = Cases(1)
    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 88.0, -104.0, 3e38, 1e-30]
    for dtype in FLOATS:
        x, y = c.hold(odd, dtype), c.hold(odd[::-1], dtype)
        for name in ("Exp", "Tanh", "Sigmoid", "Log", "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Relu",
                     "Reciprocal", "IsNaN"):
            c.add(f"{name} {dtype}", getattr(op, name)(x))
        a, b = op.Unsqueeze(x, [1]), op.Unsqueeze(y, [0])
        for name in ("Add", "Sub", "Mul", "Div", "Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"):
            c.add(f"{name} {dtype}", getattr(op, name)(a, b))
        for name in ("ReduceMax", "ReduceMin", "ReduceSum"):
            c.add(f"{name} {dtype}", getattr(op, name)(op.Reshape(x, [3, 5]), [1], keepdims=0))
        c.add(f"Where {dtype}", op.Where(op.IsNaN(x), constant(np.zeros((), dtype)), x))
        c.add(f"constants {dtype}", constant(np.array(odd, dtype)) + x)
        c.add(f"Clip {dtype}", op.Clip(x, constant(np.array(-2, dtype)), constant(np.array(2, dtype))))
    x = c.hold(odd)
    c.add("IsInf", [op.IsInf(x), op.IsInf(x, detect_negative=0), op.IsInf(x, detect_positive=0)])
    c.add("Softplus", op.Softplus(x))
    c.add("Max", op.Max(op.Unsqueeze(x, [1]), op.Unsqueeze(x, [0])))
    c.add("Min", op.Min(op.Unsqueeze(x, [1]), op.Unsqueeze(x, [0])))
    for dtype in (I64, I32):
        info = np.iinfo(dtype)
        n = c.hold([info.min, info.min + 1, -1, 0, 1, info.max], dtype)
        c.add(f"ends {dtype}", [op.ReduceMax(n), op.ReduceMin(n), op.Less(n, constant(np.array(info.max, dtype))),
                                op.Equal(n, constant(np.array(info.min, dtype))), op.Cast(n, to=1)])
    return c


def shapes() -> Cases:
    """Views, views of views, and copies where there is no view."""
    c = Cases(2)
    x, v = c.make(2, 3, 4), c.make(6)
    t = op.Transpose(x, perm=[2, 0, 1])
    c.add("Transpose", [t, op.Transpose(x), op.Transpose(x, perm=[0, 2, 1]) + 1])
    c.add("Reshape of Transpose", [op.Reshape(t, shape) for shape in ([4, 6], [8, 3], [2, 2, 6], [24])])
    c.add("Reshape", [op.Reshape(x, shape) for shape in ([-1], [0, -1], [1, 2, 3, 1, 4], [4, 3, 2])])
    c.add("Reshape of an empty one", op.Reshape(c.make(0, 3), [3, 0], allowzero=1))
    c.add("Reshape of a repeated one", op.Reshape(op.Expand(c.make(3, 1), [2, 3, 4]), [6, 4]))
    c.add("Reshape of an axis that is repeated inside", op.Reshape(op.Expand(c.make(3, 1), [3, 4]), [12]) * 2)
    c.add("Flatten", [op.Flatten(x, axis=i) for i in (0, 1, 2, -1)])
    c.add("Squeeze", [op.Squeeze(c.make(1, 3, 1), [0]), op.Squeeze(c.make(1, 3, 1)), op.Unsqueeze(v, [0, -1])])
    c.add("Expand", [op.Expand(v, [2, 6]), op.Expand(c.make(3, 1), [2, 1, 4]), op.Expand(c.hold(2.0), [3])])
    c.add("Expand of a dear one", op.Expand(op.Exp(c.make(3, 1)), [2, 3, 4]))
    c.add("Tile", [op.Tile(x, [2, 1, 3]), op.Tile(v, [0]), op.Tile(t, [1, 2, 1])])
    c.add("Slice", [x[:, 1:], x[..., ::-1], x[::-1, ::2, 3:0:-2], x[:, 5:], x[-1:, -2:, -3:-1], x[:, :, -100:100:3]])
    c.add("Slice of Slice", [x[..., ::-1][..., 1:3], t[::-1][1:, ::-1], op.Reshape(x[:, ::-1], [6, 4])[::-2]])
    c.add("Slice by whole numbers", [op.Slice(x, constant(np.array([1], np.int32)), constant(np.array([9], np.int32)),
                                              constant(np.array([-2], np.int32)))])
    c.add("Slice of an expression", op.Exp(x * 2)[:, ::-1] + op.Transpose(x, perm=[0, 1, 2])[:, 0:1])
    c.add("Split", [*op.Split(x, constant(np.array([1, 0, 3])), axis=2, n_outputs=3), *op.Split(v, num_outputs=3),
                    *op.Split(x, axis=-2, num_outputs=3)])
    c.add("Concat", [op.Concat(x, x[:, :, ::-1], axis=-1), op.Concat(x, c.make(2, 0, 4), axis=1),
                     op.Concat(v, op.Exp(v), v[1:2], axis=0)])
    c.add("Concat of flags", op.Concat(c.make(3, dtype=BOOL), v > 0, axis=0))
    c.add("Pad", [op.Pad(x, constant(np.array([1, 0, 2, 0, 3, 1]))), op.Pad(v, constant(np.array([2, 1])), c.hold(7.0)),
                  op.Pad(x, constant(np.array([1, 2])), None, constant(np.array([-1]))),
                  op.Pad(op.Exp(x), constant(np.array([0] * 6)))])
    for mode in ("edge", "reflect", "wrap"):
        c.add(f"Pad {mode}", op.Pad(x, constant(np.array([1, 2, 1, 0, 0, 3])), mode=mode))
    c.add("Pad that cuts", op.Pad(x, constant(np.array([0, -1, 1, 0, 0, -2]))))
    c.add("Range", [op.Range(*(constant(np.int64(n)) for n in ends)) for ends in ((0, 5, 1), (7, -2, -3), (2, 2, 1))])
    c.add("ConstantOfShape", [op.ConstantOfShape(constant(np.array([2, 3]))) + x[0, :2, :3],
                              op.ConstantOfShape(constant(np.array([2])), value=np.array([True]))])
    c.add("Trilu", [op.Trilu(c.make(2, 3, 4), constant(np.int64(k)), upper=u) for k in (-1, 0, 2, 9) for u in (0, 1)])
    c.add("Trilu of whole numbers", op.Trilu(c.make(3, 3, dtype=I64)))
    c.add("Shape", [op.Shape(x), op.Size(x), op.Shape(x, start=1), op.Shape(x, start=-1, end=3)])
    c.add("EyeLike", [op.EyeLike(c.make(3, 4)), op.EyeLike(c.make(3, 3), k=-1, dtype=7)])
    c.add("DepthToSpace", [op.DepthToSpace(c.make(1, 8, 2, 3), blocksize=2, mode=m) for m in ("DCR", "CRD")])
    c.add("SpaceToDepth", op.SpaceToDepth(c.make(1, 2, 4, 6), blocksize=2))
    c.add("CastLike", op.CastLike(v, c.make(1, dtype=I64)))
    c.add("of no axes", [op.Reshape(c.make(1, 1), constant(np.zeros(0, np.int64))) + 1, op.Transpose(c.hold(3.0)) * 2])
    c.add("ReverseSequence", [op.ReverseSequence(c.make(4, 3, 2), c.hold([1, 4, 2], I64)),
                              op.ReverseSequence(c.make(3, 4), c.hold([1, 4, 2], I64), batch_axis=0, time_axis=1)])
    return c


def reductions() -> Cases:
    """Reductions over some axes, all and none, short ones and long ones."""
    c = Cases(3)
    x, wide, tall = c.make(2, 3, 4), c.make(3, 70), c.make(70, 5)
    for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
                 "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"):
        f, y = getattr(op, name), op.Abs(x) if name == "ReduceLogSum" else x
        c.add(name, [f(y, [1]), f(y, [0, -1], keepdims=0), f(y), f(y, keepdims=0), f(y, [2], keepdims=0),
                     f(op.Transpose(y), [0], keepdims=0)])
        if name != "ReduceLogSum":
            c.add(f"{name} of many", [f(wide, [1], keepdims=0), f(tall, [0]), f(op.Transpose(wide), [1])])
    for name in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"):
        for dtype in (I64, I32) if name == "ReduceProd" else (F64, I64, I32):
            c.add(f"{name} {dtype}", getattr(op, name)(c.make(3, 5, dtype=dtype), [1]))
    c.add("ReduceMean of whole numbers", op.ReduceMean(c.make(3, 5, dtype=I32), [1]))
    flags = c.make(3, 5, dtype=BOOL)
    c.add("extremes of flags", [op.ReduceMax(flags, [1]), op.ReduceMin(flags, [1])])
    c.add("of an empty axis", [op.ReduceSum(c.make(3, 0), [1]), op.ReduceProd(c.make(0, 3), [0], keepdims=0)])
    c.add("of an axis of size 1", [op.ReduceSum(c.make(3, 1), [1]), op.ReduceMax(c.make(1, 3), [0])])
    ties = c.hold([[1, 3, 3, 0], [2, 2, -1, 2]])
    for name in ("ArgMax", "ArgMin"):
        f = getattr(op, name)
        c.add(name, [f(x), f(x, axis=1, keepdims=0), f(ties, axis=-1), f(ties, axis=1, select_last_index=1),
                     f(wide, axis=1), f(c.make(3, 4, dtype=I32), axis=0)])
    c.add("CumSum", [op.CumSum(x, constant(np.int64(a)), exclusive=e, reverse=r) for a, e, r in
                     ((0, 0, 0), (-1, 0, 0), (1, 1, 0), (2, 0, 1), (2, 1, 1))])
    c.add("CumSum of whole numbers", op.CumSum(c.make(6, dtype=I64), constant(np.int32(0))))
    c.add("Softmax", [op.Softmax(x), op.Softmax(x, axis=1), op.LogSoftmax(x), op.LogSoftmax(wide, axis=0)])
    c.add("Hardmax", op.Hardmax(x))
    c.add("LayerNormalization", op.LayerNormalization(x, c.make(4), c.make(4), n_outputs=3))
    c.add("LayerNormalization of two axes", op.LayerNormalization(x, c.make(3, 4), axis=1, n_outputs=1))
    c.add("GroupNormalization", op.GroupNormalization(c.make(2, 4, 5), c.make(4), c.make(4), num_groups=2))
    c.add("InstanceNormalization", op.InstanceNormalization(c.make(2, 4, 5), c.make(4), c.make(4)))
    c.add("BatchNormalization", op.BatchNormalization(c.make(2, 3, 4), *(c.make(3) for _ in "sbm"), op.Abs(c.make(3)),
                                                      n_outputs=1))
    c.add("Dropout", op.Dropout(x))
    c.add("LpNormalization", [op.LpNormalization(x, axis=1), op.LpNormalization(x, p=1)])
    c.add("MeanVarianceNormalization", op.MeanVarianceNormalization(c.make(2, 3, 2, 2)))
    c.add("sums that are read often", (s := op.ReduceSum(x, [1])) * s + op.ReduceMax(s, [0]))
    return c


def indexing() -> Cases:
    """Places that are data."""
    c = Cases(4)
    x, rows = c.make(4, 3, 5), c.hold([[0, -1, 2], [3, 1, 1]], I64)
    c.add("Gather", [op.Gather(x, rows), op.Gather(x, c.hold([2, 0], I32), axis=1),
                     op.Gather(x, c.hold(1, I64), axis=-1),
                     op.Gather(x, constant(np.array([1, -1])), axis=2), op.Gather(x, constant(np.int64(-2)), axis=1),
                     op.Gather(op.Transpose(x, perm=[2, 0, 1]), rows, axis=1), op.Gather(x[::-1, ::2], rows)])
    c.add("Gather of an expression", op.Exp(op.Gather(op.Tanh(x), rows)) * 2)
    c.add("Gather of Gather", op.Gather(op.Gather(x, rows), c.hold([1, 0, 0], I64), axis=2)[:, ::-1])
    c.add("Gather of flags", op.Gather(c.make(4, dtype=BOOL), rows))
    places = c.hold([[0, 1, 2], [2, -1, 0]], I64)
    c.add("GatherElements", [op.GatherElements(c.make(2, 4), places, axis=1), op.GatherElements(c.make(3, 3), places),
                             op.GatherElements(op.Transpose(c.make(3, 3)), places, axis=0)])
    for how in ("none", "add", "mul", "max", "min"):
        c.add(f"ScatterElements {how}", [op.ScatterElements(c.make(3, 4), places, c.make(2, 3), reduction=how),
                                         op.ScatterElements(c.make(2, 4), places, c.make(2, 3), axis=1, reduction=how)])
    repeated = c.hold([[0, 0], [0, 0]], I64)
    c.add("ScatterElements on one place", op.ScatterElements(c.make(2, 2), repeated, c.make(2, 2), reduction="add"))
    pairs = c.hold([[0, 1], [2, -1], [3, 0]], I64)
    c.add("GatherND", [op.GatherND(x, pairs), op.GatherND(x, c.hold([[1], [0], [-1]], I64)),
                       op.GatherND(x, c.hold([[1, 2, 4], [0, 0, 0]], I64)), op.GatherND(op.Transpose(x), pairs),
                       op.GatherND(c.make(2, 3, 4), c.hold([[1], [2]], I64), batch_dims=1),
                       op.GatherND(c.make(2, 3, 4), c.hold([[[1, 0]], [[2, 3]]], I64), batch_dims=1)])
    two_rows = c.hold([[[1], [3]]], I64)
    for how in ("none", "add", "mul", "max", "min"):
        c.add(f"ScatterND {how}", [op.ScatterND(c.make(4, 3, 5), pairs, c.make(3, 5), reduction=how),
                                   op.ScatterND(c.make(4, 3), two_rows, c.make(1, 2, 3), reduction=how),
                                   op.ScatterND(c.make(4, 3), pairs, c.make(3), reduction=how)])
    same = c.hold([[1], [1], [-2]], I64)
    c.add("ScatterND adds on one place", op.ScatterND(c.make(3), same, c.make(3), reduction="add"))
    labels, off_and_on = c.hold([0, 2, -1, 5], I64), constant(np.array([-1.0, 2.0], np.float32))
    c.add("OneHot", [op.OneHot(labels, constant(np.int64(3)), off_and_on, axis=a) for a in (-1, 0)])
    c.add("OneHot of numbers", op.OneHot(c.hold([[0, 2]], I64), constant(np.array([4])), c.make(2), axis=1))
    c.add("TopK", [v for largest in (1, 0) for v in op.TopK(x, constant(np.array([2])), axis=1, largest=largest)])
    c.add("TopK of ties", op.TopK(c.hold([[1, 3, 3, 0], [2, 2, -1, 2]]), constant(np.array([3]))))
    return c


def products() -> Cases:
    """Matrix products of all forms."""
    c = Cases(5)
    for dtype in FLOATS:
        a, b, s = (c.make(*shape, dtype=dtype) for shape in ((4, 3), (3, 5), (2, 4, 3)))
        sizes = (((2, 4, 3), (2, 3, 5)), ((2, 4, 3), (2, 1, 3, 2)), ((4, 3), (3,)), ((4,), (4, 3)), ((3,), (3,)),
                 ((2, 4, 3), (3,)), ((4, 1), (1, 5)), ((1, 2), (2, 1)), ((0, 3), (3, 5)), ((2, 0), (0, 3)),
                 ((33, 40), (40, 37)))
        for one, other in sizes:
            c.add(f"{one} {other} {dtype}", c.make(*one, dtype=dtype) @ c.make(*other, dtype=dtype))
        c.add(f"MatMul {dtype}", [
            a @ b, s @ b, a @ op.Transpose(a), op.Transpose(a) @ a, op.Transpose(b)[::-1] @ op.Transpose(a[:, ::-1]),
            op.Tanh(a) @ op.Exp(b * 0.1), op.Expand(c.make(1, 3, dtype=dtype), [4, 3]) @ b])
        wide = op.Exp(c.make(4, 5, dtype=dtype))
        c.add(f"Gemm {dtype}", [
            op.Gemm(a, b), op.Gemm(a, b, c.make(5, dtype=dtype), alpha=0.5, beta=2.0),
            op.Gemm(a, b, c.make(4, 1, dtype=dtype)), op.Gemm(a, a, c.make(4, 4, dtype=dtype), transB=1),
            op.Gemm(b, b, c.hold(2.0, dtype), transA=1, alpha=-1.0), op.Gemm(b, a, transA=1, transB=1),
            op.Gemm(a, b, c.make(1, dtype=dtype), beta=0.0), op.Gemm(a, b, wide)])
    for equation, *sizes in (("ij,jk->ki", (2, 3), (3, 4)), ("ij->j", (2, 3)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
                             ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)), ("i,j->ij", (2,), (3,)),
                             ("ij,ij", (2, 3), (2, 3)), ("ab,bc,cd,b->da", (2, 3), (3, 4), (4, 2), (3,)),
                             ("ab,c->a", (2, 3), (4,))):
        c.add(f"Einsum {equation}", op.Einsum(*(c.make(*size) for size in sizes), equation=equation))
    c.add("whole numbers", op.MatMul(c.make(2, 3, dtype=I64), c.make(3, 2, dtype=I64)))
    return c


GROUPS = (elementwise, special_numbers, shapes, reductions, indexing, products)


@pytest.mark.parametrize("group", GROUPS)
def test_operators_are_those_of_onnxruntime(group):
    c = group()
    expected = compute_by_runtime(c.values, c.numbers)
    for n, y in compute_in_c(c.values, c.numbers).items():
        e = expected[n]
        assert (y.dtype, y.shape) == (e.dtype, e.shape), n
        near = {F32: 1e-5, F64: 1e-12}.get(e.dtype, 0)
        np.testing.assert_allclose(y, e, rtol=2 * near, atol=near, err_msg=n)


def test_every_operator_has_a_case():
    values = [v for group in GROUPS for v in group().values.values()]
    covered = {node.op_type for node in topological(values)}
    written = {name for (_, name), f in TRANSLATORS.items() if not f.__module__.endswith((".windows", ".sequences"))}
    assert not {*written, *_FORMULAS} - covered - {"RNN", "GRU", "LSTM"}


def test_no_place_is_outside_of_its_array():
    """Cases of places, with the sanitizers of the compiler, in a process of their own."""
    if not (libraries := find_sanitizers()):
        pytest.skip("the compiler has no sanitizers")
    environment = {**os.environ, "LD_PRELOAD": libraries, "ASAN_OPTIONS": "detect_leaks=0",
                   "PYTHONPATH": os.pathsep.join(sys.path)}
    code = "from tests.native.test_operators import run_checked; run_checked()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def overflows() -> Cases:
    """Whole numbers that wrap around; onnxruntime has some of these sums in float64."""
    c = Cases(6)
    for dtype in (I64, I32):
        info = np.iinfo(dtype)
        x = c.hold([[info.max, info.max, info.min], [info.max, 5, 7]], dtype)
        first = np.zeros((2, 1), np.int64)
        c.add(f"reductions {dtype}", [getattr(op, f"Reduce{n}")(x, [1]) for n in ("Sum", "Prod", "SumSquare", "L1")])
        c.add(f"products {dtype}", [x @ op.Transpose(x), x @ op.Slice(op.Transpose(x), [0], [1], [1])])
        c.add(f"others {dtype}", [op.Abs(x), op.CumSum(x, np.int64(1)), op.ScatterND(x, first, x, reduction="add"),
                                  op.ScatterND(x, first, x, reduction="mul")])
    return c


def run_checked() -> None:
    """Run cases, compiled with sanitizers, and those of places with numbers far out of range, too."""
    for group in (shapes, indexing, overflows):
        c = group()
        step = write_cases(c.values, c.numbers)
        library = compile_library(step.source, {"step.h": step.header}, flags=CHECKED)
        run_cases(step, library, list(c.values), list(c.numbers.values()))
        refused = 0
        for v in c.numbers if group is indexing else ():
            arrays = [np.full_like(a, 2**30) if v is other else a for other, a in c.numbers.items()]
            try:
                run_cases(step, library, list(c.values), arrays)
            except DataError:
                refused += 1
        assert refused > 5 or group is not indexing
