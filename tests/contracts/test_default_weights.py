"""The weights that are trained by default are the parameters of the torch module that was exported, and no buffer."""

import numpy as np
import pytest
import torch
from exports import LAYERS, TRANSFORMERS, exported
from onnx import numpy_helper

from ortpartial import OrtGradientForwardBackwardOptimizer, load
from ortpartial.autodiff import explain_untrained, find_default_weights

pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning",
                                        "ignore::FutureWarning", "ignore::UserWarning")

#: Decoders whose positions are angles.
ROTARY = ("gemma", "gpt neox", "llama", "mistral", "qwen2")
#: torch 2.13.0 does not export it with its TorchScript exporter.
NO_TORCHSCRIPT = {"encoder layer, norm first"}
EXPORTS = [(name, dynamo) for name in [*LAYERS, *TRANSFORMERS] for dynamo in (True, False)
           if dynamo or name not in NO_TORCHSCRIPT]
FAST = {("gpt neox", False), ("lstm", False)}
ANGLES = ["angles of a rotary embedding, which feed cos and sin alone: trained by name only"]


def cases(names):
    return [pytest.param(name, dynamo, id=f"{name}-{'dynamo' if dynamo else 'torchscript'}",
                         marks=[] if (name, dynamo) in FAST else [pytest.mark.slow])
            for name, dynamo in EXPORTS if name in names]


def count_elements(arrays):
    """How many numbers there are, and their sum: exporters transpose, join and split what they write."""
    return sum(a.size for a in arrays), sum(float(np.abs(a).sum(dtype=float)) for a in arrays)


@pytest.mark.parametrize(("name", "dynamo"), cases([*LAYERS, *TRANSFORMERS]))
def test_they_are_the_parameters(name, dynamo):
    net, x, model = exported(name, dynamo)
    net.requires_grad_()(x).sum().backward()  # of what is not on the way to the output, there is no gradient
    parameters = [p.detach().numpy() for p in net.parameters() if p.grad is not None]
    loaded = load(model)
    weights = find_default_weights(loaded, list(loaded.outputs))
    trained = [v.array for v in loaded.initializers.values() if v in weights]
    (n, total), (m, other) = count_elements(trained), count_elements(parameters)
    assert n == m
    np.testing.assert_allclose(total, other, rtol=1e-5)


@pytest.mark.parametrize(("name", "dynamo"), cases(ROTARY))
def test_angles_remain_as_they_were(name, dynamo):
    """20 steps of a full fine-tune, of rows of any length; torch's older exporter writes a Constant of the angles."""
    net, x, model = exported(name, dynamo, sizes=("N", "S"))
    angles = net.net.rotary_emb.inv_freq.numpy()
    loaded = load(model)
    trainable = find_default_weights(loaded, ["y"])
    weights = [n for n, v in loaded.initializers.items() if v in trainable]
    reasons = explain_untrained(loaded, weights, ["y"])
    frequencies = [n for n, v in loaded.initializers.items() if v.is_float and v not in trainable and v.rank
                   and np.array_equal(v.array.reshape(-1), angles)]
    assert [reasons[n] for n in frequencies] == ANGLES * dynamo
    X = torch.cat([x] * 20).numpy()
    y = np.random.default_rng(0).normal(size=(*X.shape, 16)).astype(np.float32)
    settings = {"max_iter": 1, "batch_size": len(x), "learning_rate": "adam"}
    trained = OrtGradientForwardBackwardOptimizer(loaded, **settings).fit(X, y).get_trained_onnx()
    after = {t.name: numpy_helper.to_array(t) for t in trained.graph.initializer}
    assert not any(np.array_equal(after[n], loaded.arrays[n]) for n in weights)
    for n in frequencies:
        np.testing.assert_array_equal(after[n], loaded.arrays[n])
        named = OrtGradientForwardBackwardOptimizer(loaded, [n], **settings).fit(X, y)
        assert not np.array_equal(named.trained_coef_[n], loaded.arrays[n])
