"""Exported modules compute as in torch: outputs and gradients of hundreds of modules, exported in three ways."""

import copy
import inspect
import io

import onnx
import pytest
import torch
from exported_modules import MODULES, flat_tensors
from torch.utils._pytree import tree_leaves, tree_map

from ortpartial.exceptions import ModelError, OrtPartialError
from ortpartial.torch import OnnxLayer

#: What `OnnxLayer.from_torch` refuses, with the reason: neither exporter of torch 2.13.0 writes it, or not rightly.
REFUSED = {
    "AlphaDropout": "alpha_dropout, training mode.* by dynamo: the output 'output' differs from the module's",
    "LSTM_projected": "LSTMs with projections.* by dynamo: its graph has no initializer 'module.weight_hr_l0'",
    "cross_entropy_shares": "SoftmaxCrossEntropyLoss .* does not accept .* by dynamo: .* does not accept",
    "cross_entropy_smoothed": "not support label_smoothing.* by dynamo: the output 'output' differs from the module's",
    "cumprod": "'aten::cumprod'.* by dynamo: No ONNX function",
    "hypot": "'aten::hypot'.* by dynamo: No ONNX function",
    "isin": "'aten::isin'.* by dynamo: No ONNX function",
    "kthvalue": "'aten::kthvalue'.* by dynamo: No ONNX function",
    "median": "'aten::median'.* by dynamo: No ONNX function",
    "orthogonal": "'aten::mT'.* by dynamo: No ONNX function",
    "returns_dataclass": "unsupported type: Fields; by dynamo: Found <class 'exported_modules.Fields'> in output",
    "spectral_norm": "'rounding_mode'.* by dynamo: the output 'output' differs from the module's",
    "take_along_dim": "'aten::take_along_dim'.* by dynamo: Found the following conflicts between user-specified ranges",
}
#: What `torch.onnx.export(dynamo=False)` of torch 2.13.0 refuses: it has no form for an operator, takes defaults for
#: tensors (Transformer), or passes arguments by position that have only a name.
NO_FORM = {
    "Bilinear", "ChannelShuffle", "LSTM_projected", "RMSNorm", "Transformer", "TransformerDecoderLayer",
    "TransformerEncoderLayer", "TransformerEncoderLayer_first", "addcdiv", "bce", "cosh", "cross_entropy_smoothed",
    "cumprod", "diff", "erfc", "exp2", "expm1", "frac", "hinge_embedding", "huber_loss", "hypot", "isin", "kron",
    "kthvalue", "l1_loss", "logaddexp", "logcumsumexp", "median", "multi_margin", "named", "orthogonal", "poisson_nll",
    "quantile", "returns_dataclass", "shifts", "sinh", "smooth_l1_loss", "soft_margin", "spectral_norm",
    "take_along_dim", "threshold", "trace", "triplet_margin", "trunc", "xlogy",
}
#: What it writes wrongly, so that the file computes something else in onnxruntime, too, or has other gradients.
LOST = {
    "cross_entropy_shares": "targets of shares become labels, which the operator does not take",
    "defaults": "a default that is a number becomes an input",
    "detached": "the end of the gradient is not written",
    "index_add": "additions to one row are lost",
    "index_put_accumulate": "additions to one row are lost",
    "many_named": "inputs by name become constants",
    "mul_": "the end of the gradient is not written",
    "python_numbers": "numbers become inputs",
    "without_gradient": "the block without gradients is not written",
}
#: The same of `torch.onnx.export(dynamo=True)`.
NO_FORM_BY_DYNAMO = {"cdist", "cumprod", "gaussian_nll", "hypot", "kthvalue", "median", "orthogonal",
                     "returns_dataclass", "without_gradient"}
LOST_BY_DYNAMO = {
    "BatchNorm_twice": "of the two names of a weight, the file has the second one; torch fails at it in training mode",
    "LSTM_projected": "the projection is not written",
    "cross_entropy_shares": "targets of shares become labels, which the operator does not take",
    "cross_entropy_smoothed": "label_smoothing is not written",
    "detached": "the end of the gradient is not written",
    "hstack": "it becomes a SequenceMap, whose body is not read here",
    "mul_": "the end of the gradient is not written",
    "soft_margin": "the end of the gradient is not written",
    "tied": "of the two names of a weight, the file has the second one",
}
#: By way, what torch does not export, and what it exports wrongly.
WAYS = {"from_torch": (REFUSED, ()), "torchscript": (NO_FORM, LOST), "dynamo": (NO_FORM_BY_DYNAMO, LOST_BY_DYNAMO)}
#: Modules that `make test` tries; `make proof` tries all.
SAMPLE = ["dict_input", "python_numbers", "optional_between", "detached", "without_gradient", "tensor_split",
          "complete", "BatchNorm1d", "returns_twice", "write_mask"]
SAMPLE_BY_DYNAMO = ["optional_between", "BatchNorm1d", "index_add"]


def make(case, training):
    """The module, with random numbers in place of ones and zeros, which exporters merge."""
    module = case.make().train(training)
    with torch.no_grad():
        for t in [*module.parameters(), *module.buffers()]:
            if t.is_floating_point() and t.numel() and bool((t == t.flatten()[0]).all()):
                t.uniform_(0.5, 1.5)
    return module


def run(call, args, named, parameters):
    """The outputs, and the gradients of a weighted sum of the real ones by real inputs and parameters."""
    args, named = tree_map(lambda t: t.detach().requires_grad_(t.is_floating_point()) if torch.is_tensor(t) else t,
                           (args, named))
    leaves = [t for t in tree_leaves((args, named)) if torch.is_tensor(t) and t.requires_grad]
    leaves += [p for p in parameters if p.requires_grad]
    # A module may write to its inputs, which a leaf does not allow.
    passed, passed_named = tree_map(lambda t: t * 1 if torch.is_tensor(t) and t.requires_grad and t.is_contiguous()
                                    else t, (args, named))
    outputs = flat_tensors(call(*passed, **passed_named))
    generator = torch.Generator().manual_seed(5)
    terms = [(torch.randn(y.shape, generator=generator).to(y.dtype) * y).sum() for y in outputs
             if y.is_floating_point()]
    terms = [t for t in terms if t.requires_grad]
    gradients = torch.autograd.grad(sum(terms), leaves, allow_unused=True) if terms and leaves else [None] * len(leaves)
    return ([y.detach().clone() for y in outputs],
            [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True)])


def export(module, args, named, way, training):
    """A layer of the exported module."""
    if way == "from_torch":
        example = {**dict(zip(inspect.signature(module.forward).parameters, args, strict=False)), **named}
        return OnnxLayer.from_torch(module, example if named else args)
    module = copy.deepcopy(module)
    if way == "dynamo":
        # By default it folds weights, which then have neither names nor the numbers of the module.
        model = torch.onnx.export(module, args, kwargs=named or None, dynamo=True, optimize=False,
                                  verbose=False).model_proto
    else:
        stream, mode = io.BytesIO(), torch.onnx.TrainingMode
        torch.onnx.export(module, args, stream, kwargs=named or None, dynamo=False, do_constant_folding=False,
                          training=mode.TRAINING if training else mode.PRESERVE, opset_version=18)
        model = onnx.ModelProto.FromString(stream.getvalue())
    held = {t.name for t in model.graph.initializer}
    return OnnxLayer(model, trainable=[n for n, p in module.named_parameters() if p.requires_grad and n in held])


def assert_close(ours, theirs, tolerance, what):
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), what
    difference = (ours.double() - theirs.double()).abs()
    largest = theirs.double().abs().max().item() if theirs.numel() else 0
    assert not difference.numel() or difference.max().item() <= tolerance * max(largest, 1), what


def assert_as_torch(case, way, training=False):
    """Compare a layer with the module that it was exported from."""
    torch.manual_seed(0)
    module, args, named = make(case, training), case.inputs(), case.named()
    state, parameters = copy.deepcopy(module.state_dict()), dict(module.named_parameters())
    outputs, gradients = run(module, args, named, parameters.values())
    module.load_state_dict(state)
    layer = export(module, args, named, way, training).train(training)
    wanted = [n for n, p in parameters.items() if p.requires_grad]
    kept = [n for n in wanted if n in dict(layer.named_parameters())]

    def call(*passed, **passed_named):
        if way == "from_torch":
            return layer(*passed, **passed_named)
        return layer(*[t for t in tree_leaves((passed, passed_named)) if torch.is_tensor(t)])

    ours, our_gradients = run(call, args, named, [layer.get_parameter(n) for n in kept])
    assert len(ours) == len(outputs)
    for i, (y, expected) in enumerate(zip(ours, outputs, strict=True)):
        assert_close(y, expected, case.tolerance, f"output {i}")
    n = len(gradients) - len(wanted)
    by_name = dict(zip([*range(n), *wanted], gradients, strict=True))
    for name, g in zip([*range(n), *kept], our_gradients, strict=True):
        assert_close(g, by_name[name], case.tolerance, f"gradient by {name}")
    assert not any(by_name[n].any() for n in wanted if n not in kept)


def mark(way, name):
    return [] if name in (SAMPLE_BY_DYNAMO if way == "dynamo" else SAMPLE) else pytest.mark.slow


@pytest.mark.parametrize(("way", "name"), [
    pytest.param(way, n, marks=mark(way, n)) for way, (refused, lost) in WAYS.items() for n in MODULES
    if n not in refused and n not in lost])
@pytest.mark.filterwarnings("ignore")
def test_as_torch(way, name):
    case = MODULES[name]
    for training in [False, True] if case.training else [False]:
        assert_as_torch(case, way, training)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_refused_modules(name):
    """What torch has neither a form for nor writes rightly is refused, with both reasons."""
    with pytest.raises(ModelError, match=f"(?s)has all of it, by TorchScript: .*{REFUSED[name]}"):
        assert_as_torch(MODULES[name], "from_torch")


@pytest.mark.slow
@pytest.mark.parametrize(("way", "name"), [
    (way, n) for way in ("torchscript", "dynamo") for n in sorted({*WAYS[way][0], *WAYS[way][1]})])
@pytest.mark.filterwarnings("ignore")
def test_what_torch_does_not_export(way, name):
    """What a newer torch exports moves from these lists to the table."""
    with pytest.raises(Exception, match=r"(?s).") as e:
        assert_as_torch(MODULES[name], way)
    assert isinstance(e.value, (AssertionError, OrtPartialError)) is (name in WAYS[way][1])
