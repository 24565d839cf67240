import numpy as np
import onnx
import pytest
from kits import make_optimizer
from onnx import parser

from ortpartial.kits.opset import lower_opset
from ortpartial.runtime import Session

IR = {18: 8, 19: 9, 20: 9, 21: 10}


@pytest.mark.parametrize(("body", "opset"), [
    ("y = Relu(x)", 18),
    ("y = Cast<to = 1>(x)", 18),
    ("a = Cast<to = 17, saturate = 0>(x) y = Cast<to = 1>(a)", 19),  # an attribute of opset 19
    ("y = Gelu(x)", 20),  # an operator of opset 20
    ("s = Constant<value = float[2] {1, 1}>() y = GroupNormalization<num_groups = 1>(x, s, s)", 21),  # other shapes
    ('p = Constant<value = int64[4] {0, 0, 0, 0}>() y = Pad<mode = "reflect">(x, p)', 18),
    ('p = Constant<value = int64[4] {0, 0, 0, 0}>() y = Pad<mode = "wrap">(x, p)', 21),  # a mode of opset 19
    ("c = Constant<value = bool {1}>() y = If(c) <then_branch = a () => (float[N, 2] u) {u = Gelu(x)}, "
     "else_branch = b () => (float[N, 2] v) {v = Relu(x)}>", 20),
])
def test_the_oldest_opset_is_declared(body, opset):
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[N, 2] x) => (float[N, 2] y) {{{body}}}')
    lowered = lower_opset(model)
    assert (lowered.opset_import[0].version, lowered.ir_version) == (opset, IR[opset])
    x = np.array([[-1, 0.5], [2, 1]], np.float32)
    before, after = (Session(m.SerializeToString()).run({"x": x})["y"] for m in (model, lowered))
    assert before.tobytes() == after.tobytes()


def test_types_are_of_the_opset():
    model = parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g (int4[2] x) => (int4[2, 1] y) '
                               '{axes = Constant<value = int64[1] {1}>() y = Unsqueeze(x, axes)}')
    assert lower_opset(model) is model


def test_a_later_opset_stays():
    model = parser.parse_model('<ir_version: 11, opset_import: ["": 23]> g (float[N] x) => (float[N] y) {y = Relu(x)}')
    assert lower_opset(model) is model


def test_a_step_declares_opset_18(tmp_path):
    make_optimizer("transformer", "adam").export_step(tmp_path, targets=())
    step = onnx.load(tmp_path / "step.onnx")
    assert (step.opset_import[0].version, step.ir_version) == (18, 8)
