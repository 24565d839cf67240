"""`.onnx_adapter` files beside one base: several swap on a session, and without any it computes the same as before."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from tiny_decoders import make_decoder, past_of

from ortpartial import build, constant, op, variable
from ortpartial.adapters import add_dora, add_ia3, add_lora, load_adapter, remove_adapter, save_adapter
from ortpartial.adapters.onnx_adapter import make_base
from ortpartial.exceptions import ModelError, ModelWarning
from ortpartial.model import read_adapter
from ortpartial.runtime import has_adapter_files, read_adapter_file, write_adapter_file

needs_rank_0 = pytest.mark.skipif(
    not has_adapter_files(), reason="onnxruntime 1.19.2 leaves the memory of a product of rank 0 as it is.")
needs_files = pytest.mark.skipif(not has_adapter_files(), reason="onnxruntime has an AdapterFormat from 1.20 on.")
DRAW = np.random.default_rng(0)
IDS = DRAW.integers(0, 11, (7, 6))


def draw(*shape):
    return DRAW.normal(size=shape).astype(np.float32)


def make_network(width=5, inputs="ids"):
    """A table, a convolution, MatMul with Add of three and two axes, and Gemm, one transposed and one with a bias."""
    ids = variable(inputs, "int64", ["N", 6])
    x = op.Gather(constant(draw(11, 4), hint="embed.weight"), ids)
    x = op.Conv(op.Transpose(x, perm=[0, 2, 1]), constant(draw(width, 4, 3), hint="conv.weight"), strides=[2])
    x = op.Transpose(x, perm=[0, 2, 1]) @ constant(draw(width, 3), hint="mix.weight") + constant(draw(3))
    x = op.Gemm(op.Flatten(op.Tanh(x)), constant(draw(8, 6), hint="fc.weight"), transB=1)
    x = op.Relu(x) @ constant(draw(8, 8), hint="last.weight") + constant(draw(8))
    return build([ids], {"y": op.Gemm(op.Tanh(x), constant(draw(8, 4), hint="bias.weight"), constant(draw(4)))})


def randomize(proto):
    """The model with an adapter whose weights are all drawn."""
    weights = set(read_adapter(proto).weights)
    for t in proto.graph.initializer:
        if t.name in weights:
            t.CopyFrom(numpy_helper.from_array(draw(*t.dims), t.name))
    return proto


def open_session(model):
    data = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def run(session, adapter=None, feeds=None):
    """What a session computes while an adapter is active."""
    options = onnxruntime.RunOptions()
    if adapter is not None:
        active = onnxruntime.LoraAdapter()
        active.Load(str(adapter))
        options.add_active_adapter(active)
    return session.run(None, feeds or {session.get_inputs()[0].name: IDS}, options)[0]


ADDED = {
    **{target: lambda model, target=target: add_lora(model, target, rank=2, dropout=0.5)
       for target in ("embed", "conv", "mix", "fc", "last", "*")},
    "DoRA": lambda model: add_dora(model, ["mix", "last", "bias"], rank=2, alpha=3, dropout=0.5),
    "IA3": lambda model: add_ia3(model, ["conv", "mix", "fc", "last"], feedforward=()),
    "IA3 of what goes in": lambda model: add_ia3(model, ["conv", "mix", "fc", "last"], feedforward=["*"]),
}


@needs_rank_0
@pytest.mark.parametrize("name", ADDED)
def test_without_an_adapter_the_base_computes_what_it_did(name):
    model = make_network()
    adapted = randomize(ADDED[name](model))
    base = remove_adapter(adapted)
    make_base(base, read_adapter(adapted))
    onnx.checker.check_model(base, full_check=True)
    assert all(node.op_type != "Dropout" for node in base.graph.node)
    np.testing.assert_array_equal(run(open_session(base)), run(open_session(model)))
    assert remove_adapter(base) == model


@needs_rank_0
def test_a_base_of_an_old_ir_version():
    """Up to version 3 all initializers are inputs, too, which stay what they are."""
    model = make_network()
    model.ir_version = 3
    model.opset_import[0].version = 13
    model.graph.input.extend(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
                             for t in model.graph.initializer)
    adapted = add_lora(model, "fc", rank=2)
    base = remove_adapter(adapted)
    make_base(base, read_adapter(adapted))
    assert base.ir_version == 4
    np.testing.assert_array_equal(run(open_session(base)), run(open_session(model)))


@needs_files
@pytest.mark.parametrize("name", ADDED)
def test_every_adapter_is_active_and_is_loaded(tmp_path, name):
    model = make_network()
    adapted = randomize(ADDED[name](model))
    expected = run(open_session(adapted))
    path = tmp_path / "my.onnx_adapter"
    save_adapter(adapted, path, base=tmp_path / "base.onnx")
    np.testing.assert_allclose(run(open_session(tmp_path / "base.onnx"), path), expected, rtol=1e-3, atol=1e-3)
    for base in (model, tmp_path / "base.onnx", adapted):
        loaded = load_adapter(base, path)
        np.testing.assert_allclose(run(open_session(loaded)), expected, rtol=1e-3, atol=1e-3)
        assert remove_adapter(loaded) == model
        assert read_adapter(loaded).weights == read_adapter(adapted).weights
    save_adapter(loaded, tmp_path / "again.onnx_adapter")
    before, after = (read_adapter_file(p)[0] for p in (path, tmp_path / "again.onnx_adapter"))
    assert before.keys() == after.keys()
    for n in before:
        np.testing.assert_allclose(before[n], after[n], rtol=1e-5 if name == "DoRA" else 0, strict=True)


@needs_files
def test_adapters_of_several_ranks_and_alphas_swap_on_one_session(tmp_path):
    model = make_network()
    adapted = {"a": add_lora(model, "*", rank=2, dropout=0.5), "b": add_lora(model, "*", rank=5, alpha=3),
               "c": add_lora(model, ["mix", "fc"], rank=1)}
    expected = {None: run(open_session(model))}
    for name, proto in adapted.items():
        base = tmp_path / "base.onnx" if name == "a" else None
        save_adapter(randomize(proto), tmp_path / f"{name}.onnx_adapter", base)
        expected[name] = run(open_session(proto))
    session = open_session(tmp_path / "base.onnx")
    for name in ("a", "b", None, "c", "a", None):
        actual = run(session, name and tmp_path / f"{name}.onnx_adapter")
        if name is None:
            np.testing.assert_array_equal(actual, expected[name])
        else:
            np.testing.assert_allclose(actual, expected[name], rtol=1e-3, atol=1e-3)
            assert abs(actual - expected[None]).max() > 0.1


@needs_files
@pytest.mark.parametrize("add", [add_lora, add_dora])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_decoder(tmp_path, is_packed, add):
    """Queries, keys and values are one product there; the runtime fuses operators of the base as it did."""
    model = make_decoder(is_packed=is_packed)
    feeds = {"input_ids": np.array([[3, 5, 7]]), "attention_mask": np.ones((1, 3), np.int64), **past_of(model)}
    adapted = randomize(add(model, ["linear", "lm_head", *["embed_tokens"] * (add is add_lora)], rank=2, alpha=1))
    save_adapter(adapted, tmp_path / "my.onnx_adapter", base=tmp_path / "base.onnx")
    session = open_session(tmp_path / "base.onnx")
    np.testing.assert_array_equal(run(session, feeds=feeds), run(open_session(model), feeds=feeds))
    actual = run(session, tmp_path / "my.onnx_adapter", feeds)
    np.testing.assert_allclose(actual, run(open_session(adapted), feeds=feeds), rtol=1e-3, atol=1e-3)


@needs_files
def test_an_adapter_for_another_base(tmp_path):
    path = tmp_path / "my.onnx_adapter"
    save_adapter(randomize(add_lora(make_network(), "*", rank=2)), path)
    message = r"my\.onnx_adapter' is an adapter for another base: its weight 'conv\.lora_B\.weight' has shape "
    with pytest.raises(ModelError, match=message + r"\[5, 2, 1\], and the model's 'conv' takes \[4, 2, 1\]\.$"):
        load_adapter(make_network(width=4), path)
    message = r"is an adapter for another base: it has a weight 'bias\.lora_A\.weight', and the products of the model "
    with pytest.raises(ModelError, match=message + r"are 'model\.embed_tokens', 'model.*q_proj', 'm.* \.\.\.\.$"):
        load_adapter(make_decoder(), path)
    with pytest.warns(ModelWarning, match=r"my\.onnx_adapter' was saved for a model with other inputs\.$"):
        load_adapter(make_network(inputs="tokens"), path)


@needs_files
@pytest.mark.parametrize("names", [["fc.lora_A.weight"], []])
def test_an_adapter_without_all_of_its_weights(tmp_path, names):
    write_adapter_file({n: np.ones((6, 2), np.float32) for n in names}, tmp_path / "my.onnx_adapter")
    with pytest.raises(ModelError, match=r"my\.onnx_adapter' holds no whole adapter of one method\.$"):
        load_adapter(make_network(), tmp_path / "my.onnx_adapter")


@needs_files
def test_an_adapter_of_rank_0(tmp_path):
    arrays = {"fc.lora_A.weight": np.ones((6, 0), np.float32), "fc.lora_B.weight": np.ones((0, 8), np.float32)}
    write_adapter_file(arrays, tmp_path / "my.onnx_adapter")
    with pytest.raises(ModelError, match=r"'fc\.lora_A\.weight' has shape \[6, 0\], and .* 'fc' takes \[6, rank\]"):
        load_adapter(make_network(), tmp_path / "my.onnx_adapter")
