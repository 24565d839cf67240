"""Gradients of a module that its graph does not have: of autograd functions, hooks, and settings of embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from ortpartial.annotations import Estimator, Formula, Inputs, Reduced, Settings

from .call_form import list_tensors

__all__ = ["FunctionCall", "list_unkept_gradients", "recording_functions"]

_EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class FunctionCall(NamedTuple):
    """A call of a `torch.autograd.Function`.

    Parameters
    ----------
    function : type
        The class.
    args : tuple of object
        The arguments.
    """

    function: type[torch.autograd.Function]
    args: Reduced


class _Context:
    """The ``ctx`` of a forward pass whose gradient torch derives."""

    def __init__(self, args: Sequence[object]):
        self.needs_input_grad = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args)

    def _ignore(self, *args: object) -> None:
        """Do nothing, as there is no backward pass."""

    save_for_backward = save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = _ignore


class _GradientMode(TorchFunctionMode):
    """A context without `torch.no_grad`, which has no effect in the graph of a function's forward pass."""

    def __torch_function__(self, function: Formula, types: object, args: Inputs = (), kwargs: Settings | None = None
                           ) -> object:
        """Call a function of torch."""
        return None if function is torch._C._set_grad_enabled else function(*args, **kwargs or {})


@contextmanager
def recording_functions() -> Iterator[list[FunctionCall]]:
    """A context in which calls of autograd functions are recorded.

    Yields
    ------
    list of FunctionCall
        The calls, torch's own functions left out.
    """
    calls: list[FunctionCall] = []
    former = vars(torch.autograd.Function)["apply"]

    def apply(cls: type[torch.autograd.Function], *args: object, **kwargs: object) -> object:
        if not cls.__module__.startswith("torch."):  # Such as checkpoints
            calls.append(FunctionCall(cls, tuple(a.detach().clone() if isinstance(a, torch.Tensor) else a
                                                 for a in args)))
        return former.__func__(cls, *args, **kwargs)

    holder: Estimator = torch.autograd.Function
    holder.apply = classmethod(apply)
    try:
        yield calls
    finally:
        holder.apply = former


def list_unkept_gradients(module: torch.nn.Module, calls: Sequence[FunctionCall]) -> list[str]:
    """Sentences on the gradients of a module that its graph does not have.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    calls : sequence of FunctionCall
        The autograd functions that it has called.

    Returns
    -------
    list of str
    """
    texts = []
    functions = dict.fromkeys(c.function for c in calls)
    for function in functions:
        if any(_is_other(c) for c in calls if c.function is function):
            texts.append(f"{function.__name__}, a torch.autograd.Function, has another gradient than its forward pass, "
                         f"and a graph has no place for it: a training takes the gradient of the forward pass. Write "
                         f"it with detach, as in y + (z - y).detach() for the value z with the gradient of y.")
    for name, layer in module.named_modules():
        if isinstance(layer, _EMBEDDINGS) and layer.scale_grad_by_freq:
            texts.append(f"{name!r} divides gradients by the frequency of tokens (scale_grad_by_freq), and the graph "
                         f"does not.")
        if isinstance(layer, _EMBEDDINGS) and layer.max_norm is not None:
            texts.append(f"{name!r} shortens its rows at each call (max_norm), and the graph has them as they are "
                         f"now.")
        if layer._backward_hooks or layer._backward_pre_hooks:
            texts.append(f"{name or 'The module'!r} has hooks of its backward pass, which a graph does not have; "
                         f"register them at the layer.")
    hooked = [n for n, p in module.named_parameters() if p._backward_hooks or p._post_accumulate_grad_hooks]
    if hooked:
        texts.append(f"{hooked[0]!r} has hooks of its gradient, which a graph does not have; register them at the "
                     f"parameter of the layer.")
    return texts


def _is_other(call: FunctionCall) -> bool:
    """Whether the gradient of a call is another one than torch derives from its forward pass."""
    function: Estimator = call.function

    def run_forward(*args: object) -> object:
        has_setup = function.setup_context is not torch.autograd.Function.setup_context
        with _GradientMode():
            return function.forward(*args) if has_setup else function.forward(_Context(args), *args)

    try:
        return not all(map(_is_near, *(_differentiate(f, call.args) for f in (function.apply, run_forward))))
    except Exception:  # A function that cannot be run again is not known to agree.
        return True


def _differentiate(function: Formula, args: Inputs) -> list[torch.Tensor]:
    """The gradients of fixed sums of the outputs by all real arguments."""
    with torch.enable_grad():
        leaves = [a.clone().requires_grad_() for a in args if _is_real(a)]
        rest = iter(leaves)
        outputs = function(*[next(rest).clone() if _is_real(a) else a for a in args])
        ys = [y for y in list_tensors(outputs) if y.requires_grad]
        gradients = torch.autograd.grad([(y * torch.linspace(0.5, 1.5, y.numel()).to(y).reshape(y.shape)).sum()
                                         for y in ys], leaves, allow_unused=True) if ys else [None] * len(leaves)
    return [torch.zeros_like(a) if g is None else g for a, g in zip(leaves, gradients, strict=True)]


def _is_real(a: object) -> bool:
    return isinstance(a, torch.Tensor) and a.is_floating_point()


def _is_near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()) if b.numel() else 0)
