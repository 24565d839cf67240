"""Warnings of gradients that a graph does not have: of autograd functions, hooks and embeddings."""

import pytest
import torch
from torch import nn

from ortpartial.torch.unkept_gradients import list_unkept_gradients, recording_functions


class Doubled(torch.autograd.Function):
    """A gradient that is the one of the forward pass."""

    factor = 2

    @staticmethod
    def forward(ctx, x, note):
        ctx.save_for_backward(x)
        with torch.no_grad():
            return x * 2, note

    @classmethod
    def backward(cls, ctx, dy, _):
        return dy * 2, None


class Straight(Doubled):
    """A gradient that passes straight through a rounding."""

    @staticmethod
    def forward(ctx, x, note):
        ctx.mark_non_differentiable(x)
        return x.round(), note

    @staticmethod
    def backward(ctx, dy, _):
        return dy, None


class SetUp(torch.autograd.Function):
    """The newer form, with a context of its own."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.saved_tensors[0].cos()


@pytest.mark.parametrize(("function", "args", "is_other"),
                         [(Doubled, ("text",), False), (Straight, (None,), True), (SetUp, (), False)])
def test_functions(function, args, is_other):
    before = vars(torch.autograd.Function)["apply"]
    with recording_functions() as calls, torch.no_grad():
        function.apply(torch.linspace(-1, 1, 5), *args)
    assert vars(torch.autograd.Function)["apply"] is before
    assert [c.function for c in calls] == [function]
    texts = list_unkept_gradients(nn.Linear(2, 2), calls)
    assert len(calls) == 1
    assert len(texts) == is_other
    assert not texts or texts[0].startswith("Straight, a torch.autograd.Function, has another gradient than its")


def test_layers():
    module = nn.Sequential(nn.Embedding(3, 2, scale_grad_by_freq=True), nn.EmbeddingBag(3, 2, max_norm=1.0),
                           nn.Linear(2, 2))
    module.register_full_backward_hook(lambda *args: None)
    module[2].weight.register_hook(lambda g: g)
    texts = "\n".join(list_unkept_gradients(module, []))
    for text in ("'0' divides gradients by the frequency of tokens (scale_grad_by_freq)",
                 "'1' shortens its rows at each call (max_norm)", "'The module' has hooks of its backward pass",
                 "'2.weight' has hooks of its gradient"):
        assert text in texts
