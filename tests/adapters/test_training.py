"""Whatever trains models trains their adapters, and computes the same."""

import numpy as np
import pytest
import torch
from onnx import numpy_helper
from tiny_decoders import make_decoder

from ortpartial import (
    NextTokenLearningLoss,
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardOptimizer,
    TrainingSession,
    add_dora,
    add_ia3,
    add_lora,
)
from ortpartial.exceptions import ModelWarning
from ortpartial.kits import TrainingKit
from ortpartial.model import read_adapter
from ortpartial.torch import OnnxLayer

IDS = np.random.default_rng(0).integers(0, 24, (8, 6))
METHODS = {"LoRA": lambda model: add_lora(model, ["linear", "embed_tokens"], rank=2, random_state=0),
           "DoRA": lambda model: add_dora(model, rank=2, random_state=0), "IA3": add_ia3}


def make_optimizer(model, **settings):
    return OrtGradientForwardBackwardOptimizer(model, "adapter", learning_loss=NextTokenLearningLoss(), max_iter=3,
                                               learning_rate="Adam", batch_size=4, random_state=0, **settings)


def feeds(rows):
    return {"input_ids": rows, "attention_mask": np.ones_like(rows),
            **{f"past_key_values.0.{n}": np.zeros((len(rows), 1, 0, 16), np.float32) for n in ("key", "value")}}


@pytest.mark.parametrize("method", METHODS)
def test_an_optimizer_trains_the_adapter_alone(method):
    adapted = METHODS[method](make_decoder())
    optimizer = make_optimizer(adapted).fit({"input_ids": IDS}, IDS)
    assert optimizer.train_losses_[-1] < optimizer.train_losses_[0]
    trained = {t.name: numpy_helper.to_array(t) for t in optimizer.get_trained_onnx().graph.initializer}
    changed = [t.name for t in adapted.graph.initializer if (numpy_helper.to_array(t) != trained[t.name]).any()]
    assert changed == read_adapter(adapted).weights
    again = make_optimizer(METHODS[method](make_decoder())).fit(IDS, IDS)
    assert again.train_losses_ == optimizer.train_losses_


def test_a_session_and_a_kit_take_the_steps_of_the_optimizer(tmp_path):
    optimizer = make_optimizer(METHODS["LoRA"](make_decoder()), shuffle=False)
    optimizer.partial_fit({**feeds(IDS[:4])}, IDS[:4])
    session = TrainingSession(optimizer.get_training_onnx())
    optimizer.export_step(tmp_path)
    kit = TrainingKit(tmp_path)
    optimizer.partial_fit({**feeds(IDS[4:])}, IDS[4:])
    data = {**feeds(IDS[4:]), "logits_target": IDS[4:]}
    session.step({n: data[n] for n in session.inputs})
    kit.step({t.name: data[t.name] for t in kit.manifest.inputs})
    for name, w in zip(read_adapter(session.inference_model()).weights, optimizer.get_state(), strict=True):
        np.testing.assert_allclose(session.get(name), w, rtol=1e-5, atol=1e-7)


def test_a_layer_and_the_gradient_alone_have_the_same_gradients():
    adapted = METHODS["LoRA"](make_decoder())
    layer = OnnxLayer(adapted, trainable="adapter", return_dict=True)
    logits = layer(**{n: torch.tensor(a) for n, a in feeds(IDS).items()})["logits"]
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), torch.tensor(IDS[:, 1:]).flatten())
    logits.retain_grad()
    loss.backward()
    alone = OrtGradientForwardBackward(adapted, "adapter")
    outputs, state = alone.forward(feeds(IDS))
    gradients, _ = alone.backward([logits.grad.numpy(), *map(np.zeros_like, outputs[1:])], state)
    for d, p in zip(gradients.values(), layer.parameters(), strict=True):
        np.testing.assert_allclose(d, p.grad, rtol=1e-5, atol=1e-8)


def test_dropout_of_an_adapter_asks_for_training_mode():
    adapted = add_lora(make_decoder(), rank=2, dropout=0.5, random_state=0)
    with pytest.warns(ModelWarning, match="The adapter's dropout of 0.5 drops nothing, .* say train_mode=True"):
        without = make_optimizer(adapted)
    dropped = make_optimizer(adapted, train_mode=True)
    assert dropped.fit(IDS, IDS).train_losses_ != without.fit(IDS, IDS).train_losses_
