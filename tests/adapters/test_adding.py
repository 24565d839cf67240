"""Adapters are added to the products that targets name, change nothing before training, and are trained alone."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, gradient_model, load, op, variable
from ortpartial.adapters import add_dora, add_ia3, add_lora, remove_adapter, trainable_parameters
from ortpartial.exceptions import ModelError, ModelWarning, SettingError
from ortpartial.model import read_adapter
from ortpartial.runtime.session import Session
from ortpartial.torch import OnnxLayer

DRAW = np.random.default_rng(0)


def draw(*shape):
    return DRAW.normal(size=shape).astype(np.float32)


def make_network():
    """A table, a convolution, two Gemm, one of which is transposed, and a MatMul with an Add."""
    ids = variable("ids", "int64", ["N", 6])
    x = op.Gather(constant(draw(11, 4), hint="embed.weight"), ids)  # (N, 6, 4)
    x = op.Transpose(x, perm=[0, 2, 1])
    x = op.Relu(op.Conv(x, constant(draw(5, 4, 3), hint="conv.weight"), constant(draw(5), hint="conv.bias"),
                        pads=[1, 1], strides=[2]))  # (N, 5, 3)
    x = op.Transpose(x, perm=[0, 2, 1]) @ constant(draw(5, 5), hint="mix.weight") + constant(draw(5), hint="mix.bias")
    x = op.Gemm(op.Flatten(op.Tanh(x)), constant(draw(8, 15), hint="fc.weight"), constant(draw(8), hint="fc.bias"),
                transB=1)
    return build([ids], {"y": op.Gemm(x, constant(draw(8, 3), hint="lm_head.weight"))})


IDS = DRAW.integers(0, 11, (7, 6))


def run(proto, ids=IDS):
    return Session(proto).run({"ids": ids})["y"]


def randomize(proto):
    """The model with an adapter whose weights are all drawn."""
    weights = set(read_adapter(proto).weights)
    for t in proto.graph.initializer:
        if t.name in weights:
            t.CopyFrom(numpy_helper.from_array(draw(*t.dims), t.name))
    return proto


@pytest.mark.parametrize("target", ["embed", "conv", "mix", "fc", "*"])
def test_a_new_adapter_changes_nothing(target):
    model = make_network()
    adapted = add_lora(model, target, rank=2, dropout=0.5, random_state=0)
    onnx.checker.check_model(adapted, full_check=True)
    np.testing.assert_array_equal(run(adapted), run(model))
    assert remove_adapter(adapted) == model
    assert run(randomize(adapted)).std() > 0
    assert abs(run(adapted) - run(model)).max() > 0.1


def test_the_product_is_that_of_the_paper():
    adapted = randomize(add_lora(make_network(), ["fc", "mix", "embed", "conv"], rank=2, alpha=3))
    arrays = {t.name: numpy_helper.to_array(t) for t in adapted.graph.initializer}
    merged = make_network()
    del merged.graph.initializer[:]
    for name in ("embed", "mix", "fc", "conv"):
        a, b = arrays[f"{name}.lora_A.weight"], arrays[f"{name}.lora_B.weight"]
        change = np.einsum("rik,or->oik", a, b[..., 0]) if name == "conv" else a @ b
        arrays[f"{name}.weight"] = arrays[f"{name}.weight"] + 1.5 * (change.T if name == "fc" else change)
    merged.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items() if "lora_" not in n)
    np.testing.assert_allclose(run(adapted), run(merged), rtol=2e-4, atol=2e-4)


def test_targets_are_patterns_and_words():
    names = {target: [t.name for t in read_adapter(add_lora(make_network(), target)).targets] for target in (
        "linear", "fc", "*.weight", "m*", "lm_head")}
    assert names == {"linear": ["mix", "fc"], "fc": ["fc"], "*.weight": ["embed", "conv", "mix", "fc", "lm_head"],
                     "m*": ["mix"], "lm_head": ["lm_head"]}


def make_attention(reader):
    """A product for queries, keys and values at once, which Split or GroupQueryAttention takes apart."""
    x = variable("x", "float32", ["N", 4, 8])
    qkv = x @ constant(draw(8, 32), hint="layers.0.attn.qkv_proj.MatMul.weight") + constant(draw(32), hint="b.bias")
    model = build([x], {"qkv": qkv})
    node = helper.make_node("Split", ["qkv", "sizes"], ["q", "k", "v"], axis=-1)
    if reader == "GroupQueryAttention":
        node = helper.make_node(reader, ["qkv", "", "", "", "", "last", "total"], ["q", "past_k", "past_v"],
                                domain="com.microsoft", num_heads=2, kv_num_heads=1)
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.node.append(node)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in {
        "sizes": np.array([16, 8, 8]), "last": np.full(3, 3, np.int32), "total": np.array([4], np.int32)}.items())
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("q", TensorProto.FLOAT, None))
    return model


@pytest.mark.parametrize("reader", ["Split", "GroupQueryAttention"])
def test_one_product_for_queries_keys_and_values_has_three_adapters(reader):
    model = make_attention(reader)
    targets = {t.name: (t.start, t.stop) for t in read_adapter(add_lora(model, "attention", rank=2)).targets}
    assert targets == {f"layers.0.attn.{c}_proj": s for c, s in (("q", (0, 16)), ("k", (16, 24)), ("v", (24, 32)))}
    two = add_lora(model, ["q_proj", "*v_proj*"], rank=2, random_state=0)
    assert [t.name[-6:] for t in read_adapter(two).targets] == ["q_proj", "v_proj"]
    assert remove_adapter(two) == model
    x = draw(3, 4, 8)
    before = Session(model).run({"x": x})["q"]
    np.testing.assert_array_equal(Session(two).run({"x": x})["q"], before)
    arrays = {t.name: numpy_helper.to_array(t) for t in randomize(two).graph.initializer}
    change = Session(two).run({"x": x})["q"] - before
    if reader == "Split":
        a, b = (arrays[f"layers.0.attn.q_proj.lora_{c}.weight"] for c in "AB")
        np.testing.assert_allclose(change, 8 * x @ a @ b, rtol=1e-3, atol=1e-3)
    assert abs(change).max() > 0.1


def test_training_changes_the_adapter_alone():
    adapted = add_lora(make_network(), rank=2, dropout=0.1, random_state=0)
    optimizer = OrtGradientForwardBackwardOptimizer(adapted, "adapter", learning_rate="Adam", max_iter=5, batch_size=7,
                                                    random_state=0, train_mode=True)
    optimizer.fit(IDS, draw(7, 3))
    trained = {t.name: numpy_helper.to_array(t) for t in optimizer.get_trained_onnx().graph.initializer}
    changed = [t.name for t in adapted.graph.initializer if (numpy_helper.to_array(t) != trained[t.name]).any()]
    assert changed == read_adapter(adapted).weights == read_adapter(optimizer.get_trained_onnx()).weights
    assert gradient_model(adapted, "adapter").graph.output[0].name == "mix.lora_A.weight_grad"
    layer = OnnxLayer(adapted, trainable="adapter")
    assert [n for n, _ in layer.named_parameters()] == read_adapter(layer.to_onnx()).weights


def test_a_training_of_more_than_the_adapter_is_said(recwarn):
    adapted = add_lora(make_network(), "fc", random_state=0)
    OrtGradientForwardBackwardOptimizer(adapted, "adapter")
    assert not recwarn
    with pytest.warns(ModelWarning, match="The model holds an adapter, and all its weights are trained, while save_ad"):
        OrtGradientForwardBackwardOptimizer(adapted)


def test_an_adapter_is_needed_to_train_one():
    with pytest.raises(ModelError, match="The model holds no adapter, whose weights 'adapter' stands for; add one"):
        OrtGradientForwardBackwardOptimizer(make_network(), "adapter")


@pytest.mark.parametrize(("settings", "message"), [
    ({"targets": "*q_prj*"}, "The target '\\*q_prj\\*' matches none of 'embed', 'conv', 'mix', 'fc', 'lm_head'\\."),
    ({"targets": "cnv"}, "The target 'cnv' matches nothing; did you mean '\\*conv\\*'\\?"),
    ({"targets": "all-linear"}, "The target 'all-linear' matches nothing; did you mean 'linear'\\?"),
    ({"targets": []}, "targets is empty; name at least one pattern"),
    ({"targets": [3]}, "targets has 3, where a name, a string, was expected."),
    ({"targets": None}, "targets is a name or a list of names, not None."),
    ({"alpha": "16"}, "alpha is '16', a finite number more than 0 and at most"),
    ({"dropout": None}, "dropout is None, a finite number at least 0 and less than 1 was expected."),
    ({"rank": 0}, "rank is a whole number of at least 1, not 0."),
    ({"rank": 2.5}, "rank is a whole number of at least 1, not 2.5."),
    ({"alpha": -1}, "alpha is -1, a finite number more than 0 and at most"),
    ({"alpha": float("nan")}, "alpha is nan, a finite number more than 0 and at most"),
    ({"dropout": 1.0}, "dropout is 1.0, a finite number at least 0 and less than 1 was expected."),
    ({"random_state": "x"}, "random_state is None, a seed from 0 on or a Generator, not 'x'."),
])
def test_bad_settings_are_one_sentence(settings, message):
    with pytest.raises(SettingError, match=message):
        add_lora(make_network(), **settings)


def test_a_second_adapter_is_refused():
    with pytest.raises(ModelError, match="The model holds an adapter already"):
        add_lora(add_lora(make_network()))


def test_an_older_opset_has_the_operators_of_its_time():
    model = helper.make_model(helper.make_graph(
        [helper.make_node("MatMul", ["x", "fc.weight"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(draw(3, 4), "fc.weight")]), opset_imports=[helper.make_opsetid("", 9)], ir_version=4)
    adapted = add_lora(model, dropout=0.1)
    onnx.checker.check_model(adapted, full_check=True)
    assert list(load(adapted).outputs) == ["y"]


def test_what_is_trained_is_printed(capsys):
    model = make_network()
    trainable_parameters(add_lora(model, ["fc", "mix"], rank=2))
    total = sum(np.prod(t.dims) for t in model.graph.initializer)
    assert capsys.readouterr().out.splitlines() == [
        "mix.lora_A.weight  (5, 2)   10", "mix.lora_B.weight  (2, 5)   10",
        "fc.lora_A.weight   (15, 2)  30", "fc.lora_B.weight   (2, 8)   16",
        f"trainable params: 66 || all params: {total + 66} || trainable%: {6600 / (total + 66):.4f}"]
    trainable_parameters(model, "fc.weight")
    assert capsys.readouterr().out.startswith("fc.weight  (8, 15)  120\ntrainable params: 120 || all params: ")


def test_factors_are_those_of_the_paper():
    model = make_network()
    adapted = add_ia3(model, ["conv", "mix", "fc"], feedforward="fc")
    assert [t.feedforward for t in read_adapter(adapted).targets] == [False, False, True]
    onnx.checker.check_model(adapted, full_check=True)
    np.testing.assert_array_equal(run(adapted), run(model))
    assert remove_adapter(adapted) == model
    arrays = {t.name: numpy_helper.to_array(t) for t in randomize(adapted).graph.initializer}
    conv, mix, fc = (arrays[f"{n}.ia3_l"] for n in ("conv", "mix", "fc"))
    changed = {"conv.weight": arrays["conv.weight"] * conv[:, None], "conv.bias": arrays["conv.bias"] * conv[:, 0],
               "mix.weight": arrays["mix.weight"] * mix, "mix.bias": arrays["mix.bias"] * mix,
               "fc.weight": arrays["fc.weight"] * fc}
    for t in model.graph.initializer:
        if t.name in changed:
            t.CopyFrom(numpy_helper.from_array(changed[t.name], t.name))
    np.testing.assert_allclose(run(adapted), run(model), rtol=2e-5, atol=2e-5)


def test_feedforward_names_targets():
    with pytest.raises(SettingError, match="feedforward names 'mix', which is none of the targets; name it in both"):
        add_ia3(make_network(), "fc", feedforward=["fc", "mix"])


def test_factors_of_what_is_read_are_no_part_s():
    with pytest.raises(SettingError, match=r"feedforward names 'layers.0.attn.v_proj', a part of 'layers.0.attn.qkv"):
        add_ia3(make_attention("Split"), "v_proj", feedforward="v_proj")


def make_packed(n, k, bits=4, block=16):
    """A product of packed weights, and the matrix that they stand for."""
    blocks = k // block
    packed = DRAW.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    scales = DRAW.uniform(0.1, 0.3, (n, blocks)).astype(np.float32)
    numbers = np.stack([(packed >> s) & (2**bits - 1) for s in range(0, 8, bits)], -1).reshape(n, blocks, block)
    node = helper.make_node("MatMulNBits", ["x", "fc.weight_Q4", "fc.scales"], ["y"], domain="com.microsoft", N=n, K=k,
                            bits=bits, block_size=block)
    model = helper.make_model(helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", n])],
        [numpy_helper.from_array(packed, "fc.weight_Q4"), numpy_helper.from_array(scales, "fc.scales")]),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    return model, ((numbers - 2.0 ** (bits - 1)) * scales[..., None]).reshape(n, k).astype(np.float32)


@pytest.mark.parametrize("kind", ["MatMul", "Gemm", "MatMulNBits"])
def test_lengths_of_columns_are_those_of_the_paper(kind):
    x, x_in = draw(5, 32), variable("x", "float32", ["N", 32])
    w, bias = draw(8, 32), draw(8) * (kind == "Gemm")
    if kind == "MatMulNBits":
        model, w = make_packed(8, 32)
    elif kind == "Gemm":
        model = build([x_in], {"y": op.Gemm(x_in, constant(w, hint="fc.weight"), constant(bias, hint="b"), transB=1)})
    else:
        model = build([x_in], {"y": x_in @ constant(w.T, hint="fc.weight")})
    adapted = add_dora(model, "fc", rank=2, random_state=0)
    onnx.checker.check_model(adapted)
    np.testing.assert_allclose(Session(adapted).run({"x": x})["y"], x @ w.T + bias, rtol=1e-5, atol=1e-5)
    assert remove_adapter(adapted) == model

    a, b, m = (torch.tensor(numpy_helper.to_array(t), requires_grad=True)
               for t in randomize(adapted).graph.initializer[-3:])
    columns = torch.tensor(w.T) + 8 * a @ b
    y = m / columns.norm(dim=0).detach() * (torch.tensor(x) @ columns) + torch.tensor(bias)
    np.testing.assert_allclose(Session(adapted).run({"x": x})["y"], y.detach(), rtol=2e-4, atol=2e-4)
    y.backward(g := torch.tensor(draw(5, 8)))
    gradients = Session(gradient_model(adapted, "adapter")).run({
        "x": x, **{t.name: numpy_helper.to_array(t) for t in adapted.graph.initializer[-3:]}, "y_grad": g.numpy()})
    for got, expected in zip(gradients.values(), (a.grad, b.grad, m.grad), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3 * abs(expected).max())


def test_the_length_of_a_part_is_that_of_its_columns():
    model = make_attention("Split")
    adapted = add_dora(model, "k_proj", rank=2)
    x = draw(3, 4, 8)
    np.testing.assert_allclose(Session(adapted).run({"x": x})["q"], Session(model).run({"x": x})["q"], rtol=1e-5)
    assert adapted.graph.initializer[-1].dims == [8]


def test_lengths_are_of_products_alone():
    with pytest.raises(SettingError, match="DoRA is for MatMul, Gemm and MatMulNBits, and 'conv' is another product"):
        add_dora(make_network(), "conv")
