"""A merged model computes the same as the model with the adapter, in the nodes of the base."""

import re
import warnings

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from quantized_products import attention, integers
from tiny_decoders import make_decoder, past_of

from ortpartial import build, constant, op, variable
from ortpartial.adapters import add_dora, add_ia3, add_lora, merge, remove_adapter, save_adapter
from ortpartial.adapters.requantize import BlockQuantization
from ortpartial.exceptions import ModelError, ModelWarning
from ortpartial.model import read_adapter
from ortpartial.runtime import has_adapter_files
from ortpartial.runtime.session import Session

METHODS = {"lora": lambda model, targets: add_lora(model, targets, rank=3, alpha=4),
           "dora": lambda model, targets: add_dora(model, targets, rank=2, alpha=3),
           "ia3": lambda model, targets: add_ia3(model, targets, feedforward=find_feedforward(targets))}


def find_feedforward(targets):
    """The targets whose inputs are scaled."""
    return [n for n in ("down_proj", "head") if n in targets] or (["head"] if targets in ("linear", "*") else [])


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


def make_network(dtype=np.float32, **factors):
    """A table, a convolution, a product of each kind, biases of each kind, and a factor."""
    ids = variable("ids", "int64", ["N", 6])

    def weight(name, *shape):
        return constant((draw(*shape, seed=len(name)) / np.sqrt(shape[-1])).astype(dtype), hint=name)

    x = op.Transpose(op.Gather(weight("embed.weight", 11, 4), ids), perm=[0, 2, 1])
    x = op.Conv(x, weight("conv.weight", 5, 4, 3), weight("conv.bias", 5), pads=[1, 1], strides=[2])  # (N, 5, 3)
    x = op.Transpose(x, perm=[0, 2, 1]) @ weight("mix.weight", 5, 5) + weight("mix.bias", 5)
    x = op.Gemm(op.Flatten(op.Tanh(x)), weight("fc.weight", 8, 15), weight("fc.bias", 8), transB=1, **factors)
    return build([ids], {"y": op.Gemm(x, weight("head.weight", 8, 3))})


def randomize(proto, size=1.0):
    """The model with an adapter whose weights are drawn."""
    names = read_adapter(proto).weights
    for i, t in enumerate(t for t in proto.graph.initializer if t.name in names):
        kind = helper.tensor_dtype_to_np_dtype(t.data_type)
        t.CopyFrom(numpy_helper.from_array((size * draw(*t.dims, seed=i)).astype(kind), t.name))
    return proto


def feed(proto):
    name = proto.graph.input[0].name
    if name == "x":
        return {"x": draw(3, 5, 4).reshape([d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim])}
    if name == "ids":
        return {"ids": np.arange(42).reshape(7, 6) % 11}
    ids = np.array([[3, 1, 4, 1, 5]])
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), **past_of(proto)}


def run(proto):
    return next(iter(Session(proto).run(feed(proto)).values())).astype("f4")


def assert_same_form(merged, base):
    """The nodes, the names, shapes and types of the initializers, and no record of an adapter."""
    assert merged.graph.node == base.graph.node
    assert [(t.name, t.dims, t.data_type) for t in merged.graph.initializer] == [
        (t.name, t.dims, t.data_type) for t in base.graph.initializer]
    assert merged.metadata_props == base.metadata_props


@pytest.mark.parametrize(("method", "target"), [
    *((m, t) for m in METHODS for t in ("mix", "fc", "head", "linear")),
    *((m, t) for m in ("lora", "ia3") for t in ("conv", "*")), ("lora", "embed")])
def test_floats_are_merged_exactly(method, target):
    base = make_network(**({} if method == "dora" else {"alpha": 0.5, "beta": 2.0}))
    adapted = randomize(METHODS[method](base, target))
    merged = merge(adapted)
    assert_same_form(merged, base)
    expected = run(adapted)
    np.testing.assert_allclose(run(merged), expected, rtol=0, atol=2e-6 * abs(expected).max())
    assert abs(run(base) - expected).max() > 0.1


@pytest.mark.parametrize("method", METHODS)
def test_the_parts_of_a_product_get_their_own_columns(method):
    base = make_decoder(is_packed=False)
    adapted = randomize(METHODS[method](base, ["q_proj", "v_proj", "o_proj", "down_proj", "lm_head"]), 0.3)
    merged = merge(adapted)
    assert_same_form(merged, base)
    expected = run(adapted)
    np.testing.assert_allclose(run(merged), expected, rtol=0, atol=1e-5 * abs(expected).max())
    assert abs(run(base) - expected).max() > 0.1


def test_a_product_that_split_takes_apart_has_adapters_of_its_parts():
    x = variable("x", "float32", ["N", 4])
    gate, up = op.Split(x @ constant(draw(4, 6), hint="mlp.gate_up_proj.MatMul.weight"), axis=-1, num_outputs=2)
    base = build([x], {"y": op.Sigmoid(gate) * up})
    adapted = randomize(add_lora(base, "up_proj"))
    merged, feeds = merge(adapted), {"x": draw(5, 4)}
    former, weight = (numpy_helper.to_array(m.graph.initializer[0]) for m in (base, merged))
    np.testing.assert_array_equal(weight[:, :3], former[:, :3])
    np.testing.assert_allclose(Session(merged).run(feeds)["y"], Session(adapted).run(feeds)["y"], rtol=1e-5, atol=1e-5)
    assert [t.name for t in read_adapter(add_lora(base)).targets] == ["mlp.gate_proj", "mlp.up_proj"]


@pytest.mark.parametrize("method", ["lora", "ia3"])
def test_projections_inside_of_attention_are_merged(method):
    base = attention()
    adapted = randomize(METHODS[method](base, ["query", "value"]))
    merged = merge(adapted)
    assert_same_form(merged, base)
    np.testing.assert_allclose(run(merged), run(adapted), rtol=1e-5, atol=1e-5)


def test_an_adapter_of_a_file_is_merged_in_rows(tmp_path, monkeypatch):
    base = make_network()
    adapted = randomize(add_lora(base, "*"))
    save_adapter(adapted, tmp_path / "new.safetensors")
    merged = merge(adapted)
    monkeypatch.setattr("ortpartial.adapters.merging._AT_ONCE", 20)
    assert merge(base, tmp_path / "new.safetensors") == merged


@pytest.mark.skipif(not has_adapter_files(), reason="onnxruntime has an AdapterFormat from 1.20 on.")
@pytest.mark.parametrize("method", METHODS)
def test_a_deployed_adapter_is_merged(method, tmp_path):
    base = make_network()
    adapted = randomize(METHODS[method](base, ["mix", "fc", "head"]))
    save_adapter(adapted, tmp_path / "new.onnx_adapter", base=tmp_path / "base.onnx")
    merged, expected = merge(tmp_path / "base.onnx", tmp_path / "new.onnx_adapter"), run(adapted)
    assert_same_form(merged, base)
    np.testing.assert_allclose(run(merged), expected, rtol=0, atol=2e-6 * abs(expected).max())


def test_half_precision_is_rounded_once():
    base = make_network(np.float16)
    adapted = randomize(add_lora(base, "mix", rank=2, alpha=4))
    arrays = {t.name: numpy_helper.to_array(t).astype("f8") for t in adapted.graph.initializer}
    expected = arrays["mix.weight"] + 2 * arrays["mix.lora_A.weight"] @ arrays["mix.lora_B.weight"]
    weight = next(t for t in merge(adapted).graph.initializer if t.name == "mix.weight")
    np.testing.assert_array_equal(numpy_helper.to_array(weight), expected.astype(np.float16))


def test_a_weight_that_other_nodes_read_is_copied_for_its_product():
    ids = variable("ids", "int64", ["N", 6])
    table = constant(draw(11, 4), hint="embed.weight")
    base = build([ids], {"y": op.Gather(table, ids) @ op.Transpose(table)})
    adapted = randomize(add_lora(base, "*"))
    assert len(read_adapter(adapted).targets) == 2
    merged = merge(adapted)
    assert [t.name for t in merged.graph.initializer] == ["embed.weight", "embed.weight.merged"]
    np.testing.assert_allclose(run(merged), run(adapted), rtol=1e-4, atol=1e-4)

    x = variable("x", "float32", ["N", 4])
    alone = build([x], {"y": x @ op.Transpose(table)})
    assert_same_form(merge(randomize(add_lora(alone, "*"))), alone)


def dequantize(proto, name):
    node = next(n for n in proto.graph.node if n.op_type == "MatMulNBits" and name in n.name)
    arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    sizes = {a.name: a.i for a in node.attribute}
    return BlockQuantization(arrays[node.input[1]], arrays[node.input[2]], None, (sizes["N"], sizes["K"]), 4,
                             sizes["block_size"]).dequantize()


def test_packed_weights_are_quantized_again_and_the_error_is_said():
    base = make_decoder()
    adapted = randomize(add_lora(base, ["q_proj", "v_proj", "down_proj"], rank=2, alpha=2), 0.2)
    with pytest.warns(ModelWarning, match="merge rounded 2 quantized weights again, with an error of") as warned:
        merged = merge(adapted)
    assert_same_form(merged, base)
    said = r"of ([\d.]+)% on average and ([\d.]+)% at worst \('(.+)'\), ([\d.]+) times"
    mean, worst, name, share = re.search(said, str(warned[0].message)).groups()
    arrays = {t.name: numpy_helper.to_array(t) for t in adapted.graph.initializer}
    errors, lacking, changed = {}, 0.0, 0.0
    for product, start, target in (("attn.qkv_proj", 0, "attn.q_proj"), ("attn.qkv_proj", 48, "attn.v_proj"),
                                   ("mlp.down_proj", 0, "mlp.down_proj")):
        former = dequantize(base, product.replace(".", "/"))
        wanted = errors.get(product, former)
        a, b = (arrays[f"model.layers.0.{target}.lora_{c}.weight"] for c in "AB")
        wanted = wanted.copy()
        wanted[start : start + b.shape[1]] += (a @ b).T
        errors[product] = wanted
    for product, wanted in errors.items():
        lack = dequantize(merged, product.replace(".", "/")) - wanted
        lacking += np.square(lack).sum()
        changed += np.square(wanted - dequantize(base, product.replace(".", "/"))).sum()
        errors[product] = np.linalg.norm(lack) / np.linalg.norm(wanted)
    assert float(mean) == pytest.approx(100 * np.mean([*errors.values()]), abs=0.01)
    assert float(worst) == pytest.approx(100 * max(errors.values()), abs=0.01)
    assert name == f"model.layers.0.{max(errors, key=errors.get)}"
    assert float(share) == pytest.approx((lacking / changed) ** 0.5, abs=0.01)
    assert max(errors.values()) < 0.12
    expected = run(adapted)
    assert np.linalg.norm(run(merged) - expected) < 0.6 * np.linalg.norm(run(base) - expected)


def test_factors_change_the_scales_of_packed_weights_alone():
    base = make_decoder()
    adapted = randomize(add_ia3(base, ["k_proj", "up_proj"]))
    with pytest.warns(ModelWarning, match=r"0\.00% on average and 0\.00% at worst"):
        merged = merge(adapted)
    changed = [a.name for a, b in zip(merged.graph.initializer, base.graph.initializer, strict=True) if a != b]
    assert changed == [f"model.layers.0.{n}.MatMul.weight_scales" for n in ("attn.qkv_proj", "mlp.up_proj")]
    expected = run(adapted)
    np.testing.assert_allclose(run(merged), expected, rtol=0, atol=1e-5 * abs(expected).max())


@pytest.mark.skipif(onnxruntime.__version__.startswith("1.19."), reason="onnxruntime 1.19 has no such operator.")
@pytest.mark.parametrize("form", ["bytes of 4", "bytes of 4, zeros", "bytes of 8", "int4", "uint4, zeros"])
def test_packed_tables_are_quantized_again_in_their_own_form(form):
    if "bytes" in form and int(onnxruntime.__version__.split(".")[1]) < 23:
        pytest.skip("onnxruntime before 1.23 gathers no bytes of 4 and 8 bits")
    bits = 8 if "8" in form else 4
    rng = np.random.default_rng(0)
    kind = {"int4": TensorProto.INT4, "uint4, zeros": TensorProto.UINT4}.get(form, TensorProto.UINT8)
    columns = {TensorProto.UINT8: 32 * bits // 8}.get(kind, 32)
    lowest, highest = {TensorProto.UINT8: (0, 256), TensorProto.UINT4: (0, 16)}.get(kind, (-8, 8))
    numbers = rng.integers(lowest, highest, (12, columns))
    zeros = rng.integers(0, 256, (12, 1)) if "bytes" in form else rng.integers(5, 12, (12, 2))
    arrays = {"model.embed.weight": (numbers, kind), "scales": (rng.uniform(0.5, 1.5, (12, 2)), TensorProto.FLOAT)}
    if "zeros" in form:
        arrays["zeros"] = (zeros, kind)
    types = {n: helper.tensor_dtype_to_np_dtype(t) for n, (_, t) in arrays.items()}
    tensors = [numpy_helper.from_array(a.astype(types[n]), n) for n, (a, _) in arrays.items()]
    settings = {"bits": bits} if kind == TensorProto.UINT8 else {}
    inputs = ["model.embed.weight", "ids", "scales", *(["zeros"] if "zeros" in arrays else [])]
    node = helper.make_node("GatherBlockQuantized", inputs, ["y"], domain="com.microsoft", gather_axis=0,
                            quantize_axis=1, block_size=16, **settings)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["N", 6])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 6, 32])], tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    base = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    adapted = randomize(add_lora(base, "*", rank=4), 0.5)
    with pytest.warns(ModelWarning, match="rounded 1 quantized weight again"):
        merged = merge(adapted)
    assert_same_form(merged, base)
    expected = run(adapted)
    assert np.linalg.norm(run(merged) - expected) < (0.01 if bits == 8 else 0.12) * np.linalg.norm(expected)


def test_what_cannot_be_merged_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"The model holds no adapter; name the file of one, as in merge\(model, "):
        merge(make_network())
    save_adapter(add_lora(make_network(), "fc"), tmp_path / "new.safetensors")
    with pytest.raises(ModelError, match="is for the module 'fc', which the model does not have; it is for another"):
        merge(make_decoder(), tmp_path / "new.safetensors")


def make_dequantized(scales, zeros, kind, turned=False, **attributes):
    """A product of 4 and 6 features with a dequantized weight, in blocks or not."""
    types = {n: helper.tensor_dtype_to_np_dtype(t) for n, t in (("w", kind), ("zeros", kind), ("scales", 1))}
    lowest, highest = {TensorProto.INT8: (-128, 128), TensorProto.UINT8: (0, 256), TensorProto.INT4: (-8, 8)}[kind]
    rng = np.random.default_rng(0)
    arrays = {"w": rng.integers(lowest, highest, (6, 4) if turned else (4, 6)),
              "scales": rng.uniform(0.01, 0.02, scales)}
    if zeros is not None:
        arrays["zeros"] = rng.integers(lowest // 4 + highest // 3, lowest // 4 + highest // 2, scales) * zeros
    nodes = [helper.make_node("DequantizeLinear", [*arrays], ["v"], **attributes),
             helper.make_node("Gemm", ["x", "v"], ["y"], "fc", transB=int(turned))]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [15, 4])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [15, 6])],
                              [numpy_helper.from_array(np.asarray(a).astype(types[n]), n) for n, a in arrays.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(("make", "most"), [
    *((lambda style=style: integers(style), 0.02) for style in (
        "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DequantizeLinear")),
    (lambda: make_dequantized((), None, TensorProto.INT8), 0.02),
    (lambda: make_dequantized((), 1, TensorProto.UINT8, turned=True), 0.02),
    (lambda: make_dequantized((6,), 1, TensorProto.UINT8), 0.02),
    (lambda: make_dequantized((6,), 0, TensorProto.INT8, turned=True, axis=0), 0.02),
    (lambda: make_dequantized((2, 6), None, TensorProto.INT4, axis=0, block_size=2), 0.15),
    (lambda: make_dequantized((6, 2), 1, TensorProto.INT4, turned=True, axis=1, block_size=2), 0.2),
])
def test_weights_of_integers_are_rounded_again(make, most):
    base = make()
    adapted = randomize(add_lora(base, rank=2, alpha=2), 0.5)
    with pytest.warns(ModelWarning, match="merge rounded 1 quantized weight again"):
        merged = merge(adapted)
    assert_same_form(merged, base)
    expected = run(adapted)
    assert np.linalg.norm(run(merged) - expected) < most * np.linalg.norm(expected)
    assert np.linalg.norm(run(base) - expected) > 2 * most * np.linalg.norm(expected)


@pytest.mark.parametrize(("base", "message"), [
    (make_dequantized((4,), None, TensorProto.INT8, axis=0), "'w' has scales along what it reads, which merge does"),
    (make_dequantized((6,), None, TensorProto.UINT8), "'w' has numbers from 0 on without zero points, which"),
])
def test_weights_that_are_not_written_are_named(base, message):
    with pytest.raises(ModelError, match=message):
        merge(randomize(add_lora(base)))


def test_the_model_is_not_written_to():
    adapted = randomize(add_lora(make_network(), "*"))
    before = adapted.SerializeToString(deterministic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge(adapted)
    assert adapted.SerializeToString(deterministic=True) == before
    assert remove_adapter(merge(adapted)) == merge(adapted)
