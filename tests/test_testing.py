"""`check_gradient` detects wrong gradients of every family of rules."""

import sys

import numpy as np
import pytest
from table import apart, real, rows, within

from ortpartial.autodiff import registry
from ortpartial.exceptions import NoGradientError
from ortpartial.graph.control_flow import cond, loop, scan
from ortpartial.graph.ops import constant, op
from ortpartial.testing import check_gradient

# For each family of rules: the operator whose rule is made wrong, an expression of it, and arguments.
RULES = rows(
    ("Add", "Add", op.Add, [real(2, 3), real(3)]),
    ("Sub", "Sub", op.Sub, [real(2, 3), real(3)]),
    ("Mul", "Mul", op.Mul, [real(2, 3), real(3)]),
    ("Div", "Div", op.Div, [real(2, 3), real(3)]),
    ("Pow", "Pow", op.Pow, [within(0.5, 2, 2, 3), real(3)]),
    ("Tanh", "Tanh", op.Tanh, [real(2, 3)]),
    ("Relu", "Relu", op.Relu, [real(2, 3)]),
    ("Erf", "Erf", op.Erf, [real(2, 3)]),
    ("Max", "Max", op.Max, [apart(2, 3), apart(3) + 0.05]),
    ("Where", "Where", lambda a, b: op.Where(constant([True, False, True]), a, b), [real(2, 3), real(2, 3)]),
    ("Clip", "Clip", lambda x: op.Clip(x, -0.5, 0.5), [real(2, 3)]),
    ("MatMul", "MatMul", op.MatMul, [real(2, 3), real(3, 4)]),
    ("DequantizeLinear", "DequantizeLinear",
     lambda s: op.DequantizeLinear(constant(np.array([[3, -5], [9, 7]], np.int8)), s), [within(0.5, 2, 2)]),
    ("DFT", "DFT", op.DFT, [real(1, 3, 1)]),
    ("MatMul of batches", "MatMul", op.MatMul, [real(2, 2, 3), real(3, 4)]),
    ("Gemm", "Gemm", op.Gemm, [real(2, 3), real(3, 4), real(4)]),
    ("ReduceSum", "ReduceSum", lambda x: op.ReduceSum(x, [1]), [real(2, 3)]),
    ("ReduceMean", "ReduceMean", lambda x: op.ReduceMean(x, [1]), [real(2, 3)]),
    ("ReduceMax", "ReduceMax", lambda x: op.ReduceMax(x, [1]), [apart(2, 3)]),
    ("ReduceLogSumExp", "ReduceLogSumExp", lambda x: op.ReduceLogSumExp(x, [1]), [real(2, 3)]),
    ("CumSum", "CumSum", lambda x: op.CumSum(x, 1), [real(2, 3)]),
    ("Reshape", "Reshape", lambda x: op.Reshape(x, [3, 2]), [real(2, 3)]),
    ("Transpose", "Transpose", op.Transpose, [real(2, 3)]),
    ("Concat", "Concat", lambda a, b: op.Concat(a, b, axis=0), [real(2, 3), real(1, 3)]),
    ("Slice", "Slice", lambda x: op.Slice(x, [1], [3], [1]), [real(2, 4)]),
    ("Pad", "Pad", lambda x: op.Pad(x, [0, 1, 0, 1]), [real(2, 3)]),
    ("Gather", "Gather", lambda x: op.Gather(x, [1, 1, 0]), [real(2, 3)]),
    ("GatherElements", "GatherElements", lambda x: op.GatherElements(x, [[0, 1, 1]]), [real(2, 3)]),
    ("ScatterElements", "ScatterElements", lambda x, u: op.ScatterElements(x, [[0, 1, 1]], u),
     [real(2, 3), real(1, 3)]),
    ("Softmax", "Softmax", op.Softmax, [real(2, 3)]),
    ("LogSoftmax", "LogSoftmax", op.LogSoftmax, [real(2, 3)]),
    ("LayerNormalization", "LayerNormalization", op.LayerNormalization, [real(2, 3), real(3), real(3)]),
    ("Dropout", "Dropout", op.Dropout, [real(2, 3)]),
    ("InstanceNormalization", "InstanceNormalization", op.InstanceNormalization, [real(2, 2, 3), real(2), real(2)]),
    ("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLoss",
     lambda x: op.SoftmaxCrossEntropyLoss(x, constant([1, 0])), [real(2, 3)]),
    ("Resize", "Resize", lambda x: op.Resize(x, None, constant([1.0, 2.0]), mode="nearest"), [real(2, 3)]),
    ("AveragePool", "AveragePool", lambda x: op.AveragePool(x, kernel_shape=[2]), [real(1, 2, 4)]),
    ("InstanceNormalization", "InstanceNormalization", op.InstanceNormalization, [real(2, 3, 4), real(3), real(3)]),
    ("Resize", "Resize", lambda x: op.Resize(x, None, constant([1.0, 1.0, 2.0]), mode="linear"), [real(1, 2, 4)]),
    ("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLoss",
     lambda x: op.SoftmaxCrossEntropyLoss(x, constant([1, 0])), [real(2, 3)]),
    ("MaxPool", "MaxPool", lambda x: op.MaxPool(x, kernel_shape=[2]), [apart(1, 2, 4)]),
    ("If", "If", lambda x, y: cond(op.ReduceSum(x, keepdims=0) > -9, lambda: x * y, lambda: x), [real(3), real(3)]),
    ("Loop", "Loop", lambda x, y: loop(lambda i, going, v: (None, v * y), 2, x), [real(3), real(3)]),
    ("Scan", "Scan", lambda s, x: scan(lambda s, x: (s * x,), s, x), [real(3), real(2, 3)]),
    ("Einsum", "Einsum", lambda a, b: op.Einsum(a, b, equation="ij,jk->ik"), [real(2, 3), real(3, 4)]),
    ("ReduceProd", "ReduceProd", lambda x: op.ReduceProd(x, [1]), [real(2, 3)]),
    ("Det", "Det", op.Det, [real(3, 3)]),
    ("LpNormalization", "LpNormalization", op.LpNormalization, [real(2, 3)]),
    ("LRN", "LRN", lambda x: op.LRN(x, size=3, alpha=0.3), [real(2, 4, 2, 2)]),
    ("Col2Im", "Col2Im", lambda x: op.Col2Im(x, [4, 4], [2, 3]), [real(1, 12, 6)]),
    ("GridSample", "GridSample", op.GridSample, [real(1, 2, 3, 4), real(1, 2, 2, 2)]),
    ("AffineGrid", "AffineGrid", lambda x: op.AffineGrid(x, [1, 1, 3, 4]), [real(1, 2, 3)]),
    ("RoiAlign", "RoiAlign", lambda x, r: op.RoiAlign(x, r, constant([0]), output_height=2, output_width=2),
     [real(1, 2, 6, 5), np.array([[0.31, 0.23, 4.13, 3.37]])]),
    ("RNN", "RNN", lambda *x: op.RNN(*x, hidden_size=2)[0], [real(3, 1, 2), real(1, 2, 2), real(1, 2, 2)]),
)


# The input of the operator that is the i-th argument, where some inputs are constants.
INPUTS = {"DequantizeLinear": (1,), "Where": (1, 2), "ScatterElements": (0, 2)}


def make_wrong(monkeypatch, op_type, how, which=None):
    """Make the rule of an operator return a wrong cotangent of its inputs, or of one of them."""
    rule = registry.RULES["", op_type]

    class WrongRule(type(rule)):
        def __call__(self, node, dys, *wanted):
            cotangents = super().__call__(node, dys, *wanted)
            return tuple(d if d is None or which not in (None, i) else how(d) for i, d in enumerate(cotangents))

    monkeypatch.setitem(registry.RULES, ("", op_type), WrongRule(rule.function, rule.keywords))


#: Dequantization exists in float32 and float16 alone, and is linear in the scale.
SETTINGS = {"DequantizeLinear": {"dtype": np.float32, "step": 1, "rtol": 1e-5}}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("op_type", "f", "args"), RULES)
def test_a_rule_wrong_by_a_ten_thousandth_is_caught(monkeypatch, op_type, f, args):
    settings = SETTINGS.get(op_type, {})
    check_gradient(f, args, order=1, symbolic=False, **settings)
    for i in range(len(args)):
        with monkeypatch.context() as patch:
            make_wrong(patch, op_type, lambda d: d * 1.0001, which=INPUTS.get(op_type, range(9))[i])
            with pytest.raises(AssertionError, match=f"By argument {i} .*central differences give"):
                check_gradient(f, args, order=1, symbolic=False, **settings)


def test_every_family_is_tested():
    # Operators of other domains are compared with the kernels of onnxruntime: tests/autodiff/rules/test_microsoft.py.
    families = {rule.function.__module__ for (domain, _), rule in registry.RULES.items() if not domain}
    tested = {registry.RULES["", row.values[0]].function.__module__ for row in RULES}
    assert {f for f in families if f.startswith("ortpartial.autodiff.rules.")} <= tested


def test_one_wrong_element_is_caught(monkeypatch):
    make_wrong(monkeypatch, "Tanh", lambda d: d * [1, 1, 1, 1, 1, 1.001])
    with pytest.raises(AssertionError, match="central differences"):
        check_gradient(op.Tanh, [real(4, 6)])


def test_a_missing_gradient_is_caught(monkeypatch):
    make_wrong(monkeypatch, "Mul", lambda d: d * 0, which=1)
    with pytest.raises(AssertionError, match=r"By argument 1 .* and the gradient 0"):
        check_gradient(op.Mul, [real(3), real(3)])


def test_a_wrong_second_order_is_caught(monkeypatch):
    # The rule of Sin is right; the rule of Cos, which its gradient uses, is wrong.
    make_wrong(monkeypatch, "Cos", lambda d: d * 1.0001)
    check_gradient(op.Sin, [real(3)], order=1)
    with pytest.raises(AssertionError, match="order 2"):
        check_gradient(op.Sin, [real(3)])


def test_a_rule_that_float32_cannot_compute_is_caught(monkeypatch):
    make_wrong(monkeypatch, "Exp", lambda d: (d + 10000) - 10000)
    with pytest.raises(AssertionError, match="In float32 the gradient is off by"):
        check_gradient(op.Exp, [real(3)], rtol_float32=1e-5)


def test_a_rule_that_is_wrong_where_sizes_are_symbolic_is_caught(monkeypatch):
    make_wrong(monkeypatch, "Exp", lambda d: d if d.is_static else d * 1.0001)
    with pytest.raises(AssertionError, match="With symbolic sizes the gradient is off by"):
        check_gradient(op.Exp, [real(3)])
    check_gradient(op.Exp, [real(3)], symbolic=False)


def test_a_gradient_of_another_shape_is_caught(monkeypatch):
    monkeypatch.setattr(sys.modules["ortpartial.autodiff.grad"], "unbroadcast", lambda d, x: d)
    with pytest.raises(AssertionError, match=r"By argument 1 \(of shape \(3,\)\).*: the gradient has shape \(2, 3\)"):
        check_gradient(op.Add, [real(2, 3), real(3)])


def test_skip_kinks():
    x = np.array([-1.0, 0.0, 2.0])
    with pytest.raises(AssertionError, match="central differences"):
        check_gradient(op.Relu, [x], order=1)
    check_gradient(op.Relu, [x], order=1, skip_kinks=True)


def test_wrt_selects_arguments():
    check_gradient(lambda a, b: op.Floor(a * 0.1) + b, [real(3), real(3)], wrt=[1])
    with pytest.raises(ValueError, match="nothing to differentiate by"):
        check_gradient(lambda i: i, [np.arange(3)])


@pytest.mark.usefixtures("unruled")
def test_an_operator_without_a_rule_is_named():
    with pytest.raises(NoGradientError, match="Unique"):
        check_gradient(op.Unique, [real(2, 2)])
