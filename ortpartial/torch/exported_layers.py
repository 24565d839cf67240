"""Norms and Dropout of channels in a form that exporters keep, and the layers of a module that have a mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

__all__ = ["SpecialStatistics", "find_other_mode", "prepare_layers"]

_BATCH = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)
_INSTANCE = {torch.nn.InstanceNorm1d: 3, torch.nn.InstanceNorm2d: 4, torch.nn.InstanceNorm3d: 5}
#: The least number of axes of several rows.
_CHANNELS = {torch.nn.Dropout1d: 3, torch.nn.Dropout2d: 3, torch.nn.Dropout3d: 5}


@dataclass(frozen=True)
class SpecialStatistics:
    """The running statistics of a module that a BatchNormalization of ONNX updates in another way.

    Parameters
    ----------
    per_instance : tuple of str
        Statistics of InstanceNorm, the mean of the statistics of each row.
    cumulative : tuple of str
        Statistics of a momentum of None, the mean of all batches.
    """

    per_instance: tuple[str, ...]
    cumulative: tuple[str, ...]


def find_other_mode(module: torch.nn.Module) -> str | None:
    """The first layer of a module that has a mode, and not the module's.

    Parameters
    ----------
    module : torch.nn.Module
        The module.

    Returns
    -------
    str or None
        The name of the layer.
    """
    kinds = (*_BATCH, *_INSTANCE, *_CHANNELS, torch.nn.Dropout)
    return next((path for path, layer in module.named_modules()
                 if isinstance(layer, kinds) and layer.training is not module.training), None)


def prepare_layers(module: torch.nn.Module) -> SpecialStatistics:
    """Let layers that an exporter refuses, or writes without their running statistics, compute the same otherwise.

    Parameters
    ----------
    module : torch.nn.Module
        A copy of the module that is exported, which is written to.

    Returns
    -------
    SpecialStatistics
    """
    per_instance: list[str] = []
    cumulative: list[str] = []
    for path, layer in module.named_modules():
        names = [f"{path}.{n}" if path else n for n in ("running_mean", "running_var")]
        inherited: Any = type(layer).forward
        if isinstance(layer, _BATCH) and any(inherited is kind.forward for kind in _BATCH):
            if layer.running_mean is None:
                # torch 2.13.0 asks for the number of rows here, which TorchScript does not know.
                layer.forward = partial(_normalize_batch, layer)
            elif layer.momentum is None:
                layer.momentum = 0.1
                cumulative += names
        if (rank := _find_rank(layer, _CHANNELS)) is not None:
            layer.forward = partial(_drop_channels, layer, rank)
        rank = _find_rank(layer, _INSTANCE)
        if rank is not None and layer.running_mean is not None:
            # torch 2.13.0 refuses it (TorchScript) or leaves the running statistics out (dynamo).
            layer.forward = partial(_normalize_rows, layer, rank)
            per_instance += names
    return SpecialStatistics(tuple(per_instance), tuple(cumulative))


def _find_rank(layer: torch.nn.Module, ranks: Mapping[type[torch.nn.Module], int]) -> int | None:
    """The rank of several rows for a layer of these kinds, unless it has formulas of its own."""
    inherited: Any = type(layer).forward
    return next((r for kind, r in ranks.items() if isinstance(layer, kind) and inherited is kind.forward), None)


def _drop_channels(layer: torch.nn.Module, rank: int, x: torch.Tensor) -> torch.Tensor:
    """A Dropout of whole channels, whose training mode TorchScript of torch 2.13.0 refuses: a mask of all channels."""
    rows = x if x.dim() >= rank else x.unsqueeze(0)
    ones = rows.new_ones([*rows.shape[:2], *(1 for _ in range(2, rows.dim()))])
    y = rows * torch.nn.functional.dropout(ones, layer.p, layer.training)
    return y if x.dim() >= rank else y.squeeze(0)


def _normalize_batch(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A BatchNorm without running statistics, which has a single mode."""
    axes, shape = [0, *range(2, x.dim())], [1, -1, *(1 for _ in range(2, x.dim()))]
    xc = x - x.mean(axes, keepdim=True)
    y = xc / torch.sqrt((xc * xc).mean(axes, keepdim=True) + layer.eps)
    return y if layer.weight is None else y * layer.weight.view(shape) + layer.bias.view(shape)


def _normalize_rows(layer: torch.nn.Module, rank: int, x: torch.Tensor) -> torch.Tensor:
    """An InstanceNorm with running statistics as a BatchNorm, which computes the same in evaluation mode."""
    rows = x if x.dim() == rank else x.unsqueeze(0)
    momentum = 0.0 if layer.momentum is None else layer.momentum
    y = torch.nn.functional.batch_norm(rows, layer.running_mean, layer.running_var, layer.weight, layer.bias,
                                       layer.training, momentum, layer.eps)
    return y if x.dim() == rank else y.squeeze(0)
