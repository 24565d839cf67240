"""Inputs of a language model that a call of a layer leaves out, computed from its tokens by torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ortpartial.graph import Value
from ortpartial.model import ComputedInputs

__all__ = ["compute_missing"]


def compute_missing(computed: ComputedInputs, declared: Mapping[str, Value], given: Mapping[str, torch.Tensor],
                    like: torch.Tensor) -> dict[str, torch.Tensor]:
    """The inputs that are left out, as `ComputedInputs.compute` writes them into a graph.

    Parameters
    ----------
    computed : ComputedInputs
        The inputs that can be computed.
    declared : dict of str to Value
        The inputs of the model.
    given : dict of str to torch.Tensor
        The inputs of the call.
    like : torch.Tensor
        Its dtype is that of real inputs.

    Returns
    -------
    dict of str to torch.Tensor
        None of them where the tokens, or a part of a cache, are not given.
    """
    if computed.tokens not in given or any(n not in given for n in computed.choose(given)):
        return {}  # An error names what is missing, such as a part of the cache.
    tokens, mask = given[computed.tokens], given.get("attention_mask")
    shapes = computed.measure({n: tuple(t.shape) for n, t in given.items()})
    past = next((given[n].shape[axis] for n, axis in computed.past_axes.items() if n in given), 0)
    rows, new, *_ = tokens.shape
    if mask is None:
        mask = torch.ones(rows, past + new, dtype=torch.int64, device=tokens.device)
    missing = {}
    for n in (n for n in computed.shapes if n not in given):
        dtype = like.dtype if declared[n].is_float else getattr(torch, declared[n].dtype.name)
        if n == "attention_mask":
            missing[n] = mask.to(dtype)
        elif n == "position_ids":
            missing[n] = (mask.long().cumsum(1) - 1).clamp(min=0)[:, -new:].to(dtype)
        elif n == "cache_position":
            missing[n] = torch.arange(past, past + new, dtype=dtype, device=tokens.device)
        else:
            missing[n] = torch.zeros(shapes[n], dtype=dtype, device=tokens.device)
    return missing
