"""Transformers that onnxruntime's tools have optimized and quantized have the gradients of torch."""

import numpy as np
import onnx
import pytest
import torch
from exports import assert_gradients
from models import weights_of
from once import ON_BOTH
from onnx import helper
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from quantized_graph import run_straight_through
from transformer_files import (
    differentiate,
    export_transformer,
    gather_gradients,
    make_transformer,
    optimize_transformer,
)

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import gradient_model, load
from ortpartial.adapters import add_lora, remove_adapter
from ortpartial.learning import LearningRateAdam
from ortpartial.model import read_adapter
from ortpartial.runtime.session import Session, runtime_version

pytestmark = [ON_BOTH, pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning",
                                        "ignore::FutureWarning", "ignore::UserWarning")]


def write(family, folder, opt_level=0, *, attention="divided", dynamo=False, dynamic=False, **options):
    """A module, its inputs, the file that onnxruntime's optimizer makes of it, and the inputs of that file."""
    net, feeds = make_transformer(family, attention)
    export_transformer(net, feeds, folder / f"{family}.onnx", dynamo, dynamic)
    path = optimize_transformer(folder / f"{family}.onnx", family, opt_level, **options)
    model = onnx.load(path)
    return net, feeds, model, cast_feeds(model, feeds)


def cast_feeds(model, feeds):
    """Arrays of the types of a file's inputs, which the optimizer changes."""
    kinds = {i.name: helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input}
    return {n: x.numpy().astype(kinds[n]) for n, x in feeds.items()}


APPROXIMATE = {"enable_gelu_approximation": True}
HEADS = {"use_multi_head_attention": True}
#: Family, level of the optimization, options, and operators that the file has by them.
CASES = [
    pytest.param("bert", 0, {}, {"Attention", "BiasGelu", "SkipLayerNormalization"}, id="bert"),
    pytest.param("gpt2", 1, {}, {"FastGelu", "SkipLayerNormalization"}, id="gpt2"),
    pytest.param("t5", 0, {}, {"SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization"}, id="t5"),
    pytest.param("vit", 0, HEADS, {"MultiHeadAttention"}, id="vit"),
    pytest.param("bert", 0, {"attention_mask_format": 2}, {"Attention"}, marks=pytest.mark.slow, id="bert, mask"),
    pytest.param("bert", 0, APPROXIMATE, {"FastGelu"}, marks=pytest.mark.slow, id="bert, approximate"),
    pytest.param("vit", 0, APPROXIMATE, {"FastGelu"}, marks=pytest.mark.slow, id="vit, approximate"),
    *(pytest.param(family, level, options, set(), marks=pytest.mark.slow, id=f"{family}, level {level}, {name}")
      for family in ("bert", "gpt2", "t5", "vit") for level in (0, 1, 2) for name, options in {
          "heads": HEADS, "dynamic": {"dynamic": True}, "transformers 5": {"attention": "eager", "dynamic": True},
          "dynamo": {"attention": "eager", "dynamo": True, "dynamic": True}}.items()
      if name != "dynamo" or level == 1),  # its exports take seconds
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("family", "opt_level", "options", "operators"), CASES)
def test_optimized_files_have_the_gradients_of_torch(family, opt_level, options, operators, tmp_path):
    net, feeds, model, arrays = write(family, tmp_path, opt_level, **options)
    if options == APPROXIMATE:
        net, _ = make_transformer(family, hidden_act="gelu_new")
    with torch.no_grad():
        y = net(*feeds.values()).numpy()
    assert operators <= {n.op_type for n in model.graph.node}
    np.testing.assert_allclose(Session(model).run(arrays)["y"], y, atol=1e-4)
    dy = torch.randn(y.shape, dtype=torch.float64)
    parameters, expected = differentiate(net, feeds, dy)
    weights = {n: weights_of(model)[n] for n in parameters.find(weights_of(model))}
    # A tied weight that is stored twice has a gradient by each, which add up.
    gradient = gradient_model(load(model, ties="file"), [*weights, *expected], ["y"])
    raw = Session(gradient).run(arrays | weights | {"y_grad": dy.numpy().astype(np.float32)})
    found = gather_gradients(parameters, model, raw) | {n: raw[f"{n}_grad"] for n in expected}
    expected |= {n: parameters.gradient[p] for n, p in parameters.places.items()}
    # The class token of images is repeated in a file for batches of one size.
    expected = {n: g for n, g in expected.items() if "cls_token" not in n or options.get("dynamic")}
    assert_gradients(found, expected, 1e-4)


class Calibration(CalibrationDataReader):
    """One batch to find ranges by."""

    def __init__(self, feeds):
        self.batches = iter([feeds])

    def get_next(self):
        return next(self.batches, None)


def quantize(source, target, how, feeds, **settings):
    """Quantize a file: dynamically, statically in one of both styles, or as a session stores the former."""
    extra = {"DefaultTensorType": 1}
    if how in ("dynamic", "session"):
        quantize_dynamic(source, target, extra_options=extra, **{"weight_type": QuantType.QUInt8} | settings)
    else:
        quantize_static(source, target, Calibration(feeds), QuantFormat[how], extra_options=extra, **settings)
    if how == "session":
        options = SessionOptions()
        options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(target)
        InferenceSession(str(target), options, providers=["CPUExecutionProvider"])
    return onnx.load(target)


#: Family, whether it is optimized, how it is quantized, by which settings, and operators that the file then has.
SIGNED = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
QUANTIZED = [
    pytest.param("bert", True, "dynamic", {}, {"DynamicQuantizeLinear", "MatMulInteger", "QAttention"},
                 id="bert dynamic"),
    pytest.param("vit", False, "QDQ", {}, {"QuantizeLinear", "DequantizeLinear"}, id="vit static"),
    pytest.param("vit", False, "QOperator", {}, {"QLinearMatMul", "QLinearConv", "QLinearSoftmax", "QLinearAdd",
                                                 "QLinearMul", "QLinearConcat", "QGemm"}, id="vit static integers"),
    *(pytest.param(family, optimized, how, settings, operators, marks=pytest.mark.slow,
                   id=" ".join([family, how, *settings])) for family, optimized, how, settings, operators in (
        ("bert", True, "session", {}, {"DynamicQuantizeMatMul", "QAttention"}),
        ("bert", True, "QDQ", {}, {"QuantizeLinear", "Attention"}),
        ("bert", True, "QOperator", {}, {"QLinearMatMul", "Attention"}),
        ("bert", False, "dynamic", {"per_channel": True}, {"MatMulInteger"}),
        ("vit", True, "dynamic", {}, {"ConvInteger", "QAttention"}), ("vit", False, "QDQ", SIGNED, set()),
        ("vit", False, "QDQ", {"per_channel": True}, {"DequantizeLinear"}),
        ("vit", False, "QOperator", {"per_channel": True} | SIGNED, {"QLinearConv"}),
        ("gpt2", True, "dynamic", {}, {"MatMulInteger"}), ("gpt2", True, "session", {}, {"DynamicQuantizeMatMul"}),
        ("t5", True, "dynamic", {}, {"MatMulInteger"}), ("t5", True, "session", {}, {"MatMulIntegerToFloat"}))),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("family", "optimized", "how", "settings", "operators"), QUANTIZED)
def test_quantized_files_have_the_gradients_that_pass_straight_through(family, optimized, how, settings, operators,
                                                                       tmp_path):
    net, feeds = make_transformer(family)
    source = tmp_path / f"{family}.onnx"
    export_transformer(net, feeds, source)
    source = optimize_transformer(source, family) if optimized else source
    arrays = cast_feeds(onnx.load(source), feeds)
    model = quantize(source, tmp_path / "quantized.onnx", how, arrays, **settings)
    assert operators <= {n.op_type for n in model.graph.node}
    numbers = weights_of(model) | arrays
    y, leaves = run_straight_through(model, arrays, [n for n, a in numbers.items() if a.dtype == np.float32
                                                     and a.size > 1 and "scale" not in n])
    dy = torch.randn(y.shape)
    y.backward(dy)
    reached = [n for n, x in leaves.items() if x.grad is not None and x.grad.abs().max() > 0]
    gradient = gradient_model(load(model, straight_through=True), reached, ["y"])
    numbers["y_grad"] = dy.numpy()
    raw = Session(gradient).run({i.name: numbers[i.name] for i in gradient.graph.input})
    found, expected = {n: raw[f"{n}_grad"] for n in reached}, {n: leaves[n].grad.numpy() for n in reached}
    assert_gradients(found, expected, 1e-4)


def run_plainly(model, X, optimize=True):
    """What onnxruntime computes of the bytes of a file, with or without its optimizations."""
    options = SessionOptions()
    if not optimize:
        options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    return InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, X)[0]


def test_an_optimized_bert_is_trained(tmp_path):
    _, _, model, X = write("bert", tmp_path)
    target = np.random.default_rng(0).normal(size=(2, 7, 16)).astype(np.float32)
    optimizer = Optimizer(model, batch_size=2, max_iter=30, learning_rate=LearningRateAdam(1e-2), random_state=0)
    optimizer.fit(X, target)
    assert {"Attention_0_qkv_weight", "Attention_0_qkv_bias"} <= set(optimizer.trained_coef_)
    assert optimizer.train_losses_[-1] < 0.2 * optimizer.train_losses_[0]
    trained = optimizer.get_trained_onnx()
    assert [n.op_type for n in trained.graph.node] == [n.op_type for n in model.graph.node]
    np.testing.assert_allclose(run_plainly(trained, X), optimizer.predict(X), atol=1e-5)


def test_the_head_of_a_quantized_vit_is_trained(tmp_path):
    """It was left in floats, behind integers that stay as they are."""
    net, feeds = make_transformer("vit")
    source = tmp_path / "vit.onnx"
    export_transformer(net, feeds, source, dynamic=True)
    rng = np.random.default_rng(0)
    labels, images = rng.integers(0, 3, 48), rng.normal(size=(48, 3, 16, 16)).astype(np.float32)
    images[np.arange(48), labels] += 0.5
    (head,) = [n.name for n in onnx.load(source).graph.node if n.op_type == "Gemm"]
    quantize_static(source, tmp_path / "q.onnx", Calibration({"pixel_values": images}), nodes_to_exclude=[head])
    model = onnx.load(tmp_path / "q.onnx")
    optimizer = Optimizer(model, learning_loss="cross_entropy", learning_rate=LearningRateAdam(1e-2), batch_size=16,
                          max_iter=20, random_state=0)
    assert optimizer.weights_to_train == ["net.classifier.weight", "net.classifier.bias"]
    optimizer.fit(images, labels)
    assert optimizer.train_losses_[-1] < 0.5 * optimizer.train_losses_[0]
    trained, before = optimizer.get_trained_onnx(), weights_of(model)
    assert {n for n, a in weights_of(trained).items() if not np.array_equal(a, before[n])} == {
        "net.classifier.weight", "net.classifier.bias"}
    # Models are read as of opset 21, for which 1.19.2 has no products of integers, which round in another way.
    plain = run_plainly(trained, {"pixel_values": images}, optimize=not runtime_version().startswith("1.19"))
    np.testing.assert_allclose(plain, optimizer.predict(images), atol=1e-5)


@pytest.mark.parametrize("how", [None, pytest.param("dynamic", marks=pytest.mark.slow)])
def test_an_adapter_of_bert_is_trained(how, tmp_path):
    """Inside of fused attention and beside all other products, or beside those that are quantized."""
    net, feeds = make_transformer("bert")
    source = tmp_path / "bert.onnx"
    export_transformer(net, feeds, source)
    X = cast_feeds(onnx.load(source), feeds)
    if how is None:
        model = onnx.load(optimize_transformer(source, "bert"))
        X = cast_feeds(model, feeds)
    else:
        model = quantize(source, tmp_path / "quantized.onnx", how, X)
    adapted = add_lora(model, rank=2, random_state=0)
    assert len(read_adapter(adapted).targets) == 12
    optimizer = Optimizer(load(adapted, straight_through=True), "adapter", batch_size=2, max_iter=30,
                          learning_rate=LearningRateAdam(3e-2), random_state=0)
    optimizer.fit(X, np.random.default_rng(0).normal(size=(2, 7, 16)).astype(np.float32))
    assert optimizer.train_losses_[-1] < 0.5 * optimizer.train_losses_[0]
    trained = optimizer.get_trained_onnx()
    np.testing.assert_allclose(run_plainly(trained, X), optimizer.predict(X), atol=1e-5)
    assert remove_adapter(trained) == model


@pytest.mark.slow
def test_what_follows_quantized_embeddings_is_trained(tmp_path):
    """QEmbedLayerNormalization has no gradient, and is run before what has one."""
    _, _, model, X = write("bert", tmp_path, attention="eager", dynamic=True)
    if not any(n.op_type == "EmbedLayerNormalization" for n in model.graph.node):
        pytest.skip("onnxruntime 1.19.2 does not fuse the embeddings of transformers 5.")
    model = quantize(tmp_path / "bert.optimized.onnx", tmp_path / "quantized.onnx", "dynamic", X)
    assert any(n.op_type == "QEmbedLayerNormalization" for n in model.graph.node)
    optimizer = Optimizer(load(model, straight_through=True), batch_size=2, max_iter=20,
                          learning_rate=LearningRateAdam(3e-2), random_state=0)
    optimizer.fit(X, np.random.default_rng(0).normal(size=(2, 7, 16)).astype(np.float32))
    assert optimizer.train_losses_[-1] < 0.5 * optimizer.train_losses_[0]
    np.testing.assert_allclose(run_plainly(optimizer.get_trained_onnx(), X), optimizer.predict(X), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["QOperator", "QDQ"])
def test_adapters_stand_beside_weights_of_four_bits(style, tmp_path):
    """As onnxruntime's quantizer packs them: in MatMulNBits, or dequantized by blocks in front of MatMul."""
    quantizer = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer", reason="new in 1.21")
    _, _, model, X = write("bert", tmp_path)
    model.opset_import[0].version = 21
    packed = quantizer.MatMulNBitsQuantizer(model, block_size=16, accuracy_level=1, quant_format=QuantFormat[style])
    packed.process()
    model = packed.model.model
    packs = "MatMulNBits" if style == "QOperator" else "DequantizeLinear"
    assert sum(n.op_type == packs for n in model.graph.node) == 6
    adapted = add_lora(model, rank=2, random_state=0)
    assert len(read_adapter(adapted).targets) == 12
    optimizer = Optimizer(adapted, "adapter", batch_size=2, max_iter=30, learning_rate=LearningRateAdam(3e-2),
                          random_state=0)
    optimizer.fit(X, np.random.default_rng(0).normal(size=(2, 7, 16)).astype(np.float32))
    assert optimizer.train_losses_[-1] < 0.5 * optimizer.train_losses_[0]
    trained = optimizer.get_trained_onnx()
    np.testing.assert_allclose(run_plainly(trained, X), optimizer.predict(X), atol=1e-5)
    assert remove_adapter(trained) == model
