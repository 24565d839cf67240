"""A layer of a language model takes token ids alone."""

import numpy as np
import pytest
import torch
from tiny_decoders import make_decoder, past_of

from ortpartial import OnnxLayer
from ortpartial.exceptions import DataError

IDS = torch.from_numpy(np.random.default_rng(0).integers(0, 24, (3, 8)))


@pytest.mark.parametrize("has_positions", [False, True])
def test_what_a_call_leaves_out_is_computed(has_positions):
    model = make_decoder(has_positions=has_positions)
    layer = OnnxLayer(model, return_dict=True)
    every = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS),
             **{n: torch.from_numpy(a) for n, a in past_of(model, 3).items()}}
    if has_positions:
        every["position_ids"] = torch.arange(8).repeat(3, 1)
    expected = layer(**every)["logits"]
    torch.testing.assert_close(layer(IDS)["logits"], expected)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="eager")(input_ids=IDS)["logits"], expected)
    gradients = []
    for logits in (expected, layer(IDS)["logits"]):
        layer.zero_grad()
        logits.square().sum().backward()
        gradients.append([p.grad.clone() for p in layer.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("has_positions", [False, True])
def test_a_mask_and_a_cache_are_used(has_positions):
    layer = OnnxLayer(make_decoder(has_positions=has_positions), return_dict=True).eval()
    mask = torch.ones_like(IDS)
    mask[1, 5:] = 0
    torch.testing.assert_close(layer(IDS, mask)["logits"][1:2, :5], layer(IDS[1:2, :5])["logits"])
    whole = layer(IDS[:1])
    first = layer(IDS[:1, :7])
    past = {n.replace("present", "past_key_values"): y for n, y in first.items() if n.startswith("present")}
    torch.testing.assert_close(layer(IDS[:1, 7:], **past)["logits"], whole["logits"][:, 7:])


def test_what_cannot_be_computed_is_missing():
    layer = OnnxLayer(make_decoder())
    with pytest.raises(DataError, match=r"Missing inputs: 'attention_mask', 'past_key_values.0.value'\."):
        layer(IDS, **{"past_key_values.0.key": torch.zeros(3, 1, 0, 16)})
    with pytest.raises(DataError, match="Missing inputs: 'input_ids'"):
        layer(attention_mask=IDS)
