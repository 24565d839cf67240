"""Adapters in files of onnxruntime's optimizer and quantizers: inside of fused attention, and beside integers."""

import re

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser
from onnxruntime.quantization import QuantType, quantize_dynamic
from quantized_products import DRAW, attention, draw, integers

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, load, op, variable
from ortpartial.adapters import add_dora, add_ia3, add_lora, remove_adapter
from ortpartial.exceptions import ModelWarning, NoGradientError, SettingError
from ortpartial.model import read_adapter
from ortpartial.runtime.session import Session

X = DRAW.normal(size=(3, 5, 4)).astype(np.float32)


def arrays_of(model):
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def randomize(model):
    """The model with an adapter whose weights are all drawn, and these."""
    names = read_adapter(model).weights
    for t in model.graph.initializer:
        if t.name in names:
            t.CopyFrom(numpy_helper.from_array(draw(*t.dims), t.name))
    return model, [arrays_of(model)[n] for n in names]


def run(model):
    return Session(model).run({"x": X})["y"]


def replace(model, **arrays):
    for t in model.graph.initializer:
        if t.name in arrays:
            t.CopyFrom(numpy_helper.from_array(arrays[t.name], t.name))
    return model


def test_a_weight_without_elements_is_no_product():
    x = variable("x", "float32", [2, 4, 6, 6])
    model = build([x], {"y": op.Relu(x)})
    model.graph.node[0].CopyFrom(helper.make_node("Conv", ["x", "k"], ["y"], kernel_shape=[0, 0]))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((4, 4, 0, 0), np.float32), "k"))
    with pytest.raises(SettingError, match="The model has no product for an adapter to be added to"):
        add_lora(model, "*", rank=1)


def test_projections_inside_of_attention_have_adapters():
    model = attention()
    adapted = add_lora(model, ["*query*", "value"], rank=2, alpha=6, random_state=0)
    targets = read_adapter(adapted).targets
    assert [(t.name, t.kind, t.start, t.stop) for t in targets] == [
        ("encoder.layer.0.attention.self.query", "Attention", 0, 4),
        ("encoder.layer.0.attention.self.value", "Attention", 8, 12)]
    np.testing.assert_array_equal(run(adapted), run(model))
    adapted, (a, b, c, d) = randomize(adapted)
    assert remove_adapter(adapted) == model
    w = arrays_of(model)["Attention_0_qkv_weight"] + 3 * np.hstack([a @ b, np.zeros((4, 4)), c @ d]).astype(np.float32)
    np.testing.assert_allclose(run(adapted), run(replace(model, Attention_0_qkv_weight=w)), rtol=1e-5, atol=1e-5)


def test_factors_of_projections_inside_of_attention():
    model = attention()
    adapted, (k, v) = randomize(add_ia3(model, ["key", "value"], feedforward=()))
    assert remove_adapter(adapted) == model
    factors = np.concatenate([np.ones(4, np.float32), k, v])
    scaled = {n: a * factors for n, a in arrays_of(model).items()}
    np.testing.assert_allclose(run(adapted), run(replace(model, **scaled)), rtol=1e-5, atol=1e-5)


def test_projections_of_several_widths():
    model = attention(sizes=", qkv_hidden_sizes = [6, 6, 4]", output="y_0")
    targets = read_adapter(add_lora(model, "attention", rank=2)).targets
    assert [(t.name, t.start, t.stop) for t in targets] == [
        ("Attention_0_qkv_weight.q_proj", 0, 6), ("Attention_0_qkv_weight.k_proj", 6, 12),
        ("Attention_0_qkv_weight.v_proj", 12, 16)]


@pytest.mark.parametrize("style", ["MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul",
                                   "DequantizeLinear"])
def test_adapters_stand_beside_products_of_integers(style):
    """They read the floats that the product rounds."""
    model = integers(style)
    adapted = add_lora(model, "linear", rank=2, alpha=2, random_state=0)
    assert [(t.name, t.kind) for t in read_adapter(adapted).targets] == [
        ("fc", "MatMul" if style == "DequantizeLinear" else style)]
    np.testing.assert_allclose(run(adapted), run(model), rtol=1e-5, atol=1e-5)
    adapted, (a, b) = randomize(adapted)
    assert remove_adapter(adapted) == model
    np.testing.assert_allclose(run(adapted), run(model) + X @ a @ b, rtol=1e-4, atol=1e-4)
    optimizer = OrtGradientForwardBackwardOptimizer(adapted, "adapter", batch_size=3, max_iter=5, learning_rate="Adam",
                                                    random_state=0)
    optimizer.fit(X, run(adapted) + draw(3, 5, 3))  # without rounding on its way, the gradient needs no setting
    assert optimizer.train_losses_[-1] < optimizer.train_losses_[0]


def test_gradients_between_adapters_pass_rounding_where_that_is_asked_for(tmp_path):
    x = variable("x", "float32", ["N", 5, 4])
    h = op.Tanh(x @ constant(draw(4, 4), hint="first.weight"))
    path = tmp_path / "model.onnx"
    path.write_bytes(build([x], {"y": h @ constant(draw(4, 3), hint="second.weight")}).SerializeToString())
    quantize_dynamic(path, path, weight_type=QuantType.QInt8)
    adapted = add_lora(path, rank=2, random_state=0)
    with pytest.raises(NoGradientError, match=r"rounds, and no gradient .* straight_through=True"):
        OrtGradientForwardBackwardOptimizer(adapted, "adapter").fit(X, draw(3, 5, 3))
    optimizer = OrtGradientForwardBackwardOptimizer(load(adapted, straight_through=True), "adapter", max_iter=5,
                                                    batch_size=3, learning_rate="Adam", random_state=0)
    optimizer.fit(X, draw(3, 5, 3))
    assert optimizer.train_losses_[-1] < optimizer.train_losses_[0]
    before = arrays_of(adapted)
    changed = {n for n, a in arrays_of(optimizer.get_trained_onnx()).items() if not np.array_equal(a, before[n])}
    assert changed == set(read_adapter(adapted).weights)


CLOSED = """<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
g (float[3, 5, 4] x) => (float[3, 5, 4] y) <float s = {0.01}, int8 z = {0}, int8[4, 12] w, float[12] b> {
  q, t, u = DynamicQuantizeLinear (x)
  ["Attention_0_quant"] "/layer.0/attention/self/Reshape_output_0" = com.microsoft.QAttention <num_heads = 2> (
      q, w, b, t, s, , u, z)
  y = Identity ("/layer.0/attention/self/Reshape_output_0")
}"""


def test_products_that_are_left_out_are_warned_about():
    model = parser.parse_model(CLOSED)
    model.graph.node[-1].op_type = "MatMul"
    model.graph.node[-1].input.append("v")
    model.graph.initializer.append(numpy_helper.from_array(draw(4, 4), "v"))
    with pytest.warns(ModelWarning, match="The target 'linear' stands for QAttention 'Attention_0_quant', which has no"
                      ) as caught:
        assert len(read_adapter(add_lora(model, "linear", rank=2)).targets) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("add", "model", "settings", "message"), [
    (add_lora, "attention", {"dropout": 0.1}, "'encoder.layer.0.attention.self.query' is computed inside of attention"),
    (add_dora, "attention", {}, "DoRA is for MatMul, Gemm and MatMulNBits, and 'encoder.layer.0.attention.self' is"),
    (add_dora, "integers", {}, "DoRA is for MatMul, Gemm and MatMulNBits, and 'fc' is another product"),
    (add_ia3, "integers", {"feedforward": "fc"}, "feedforward names 'fc', which reads integers; leave it out."),
    *((add_lora, "closed", {"targets": target}, f"The target {target!r} stands for QAttention 'Attention_0_quant', "
       "which has no place for an adapter; quantize the model in the QDQ format")
      for target in ("linear", "attention", "*query*", "*_0*")),
])
def test_what_has_no_place_for_an_adapter_is_named(add, model, settings, message):
    models = {"attention": attention, "integers": lambda: integers("MatMulInteger"),
              "closed": lambda: parser.parse_model(CLOSED)}
    with pytest.raises(SettingError, match=re.escape(message)):
        add(models[model](), **{"targets": "linear"} | settings)
