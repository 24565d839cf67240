"""Sessions between torch tensors, whose memory onnxruntime borrows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from onnx import ModelProto, TensorProto
from torch._C import _from_dlpack  # in C++, what torch.utils.dlpack.from_dlpack calls
from torch.nn import Parameter
from torch.utils.dlpack import to_dlpack

from ortpartial.runtime import Buffer, C, Device, OrtValue, Session

__all__ = ["Placement", "TensorSession", "Tensors", "to_ortvalue", "to_tensor"]

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Placement:
    """Where graphs run.

    Parameters
    ----------
    device : Device
        The device, with torch's stream on CUDA.
    threads : int or None
        Threads of an operator; None for as many as the process has cores.
    """

    device: Device
    threads: int | None = 1


#: An OrtValue of what DLPack describes.
_from_capsule = C.OrtValue.from_dlpack


@cache
def _takes_bools_for_bytes() -> bool:
    """Whether onnxruntime has to be told which bytes of DLPack are bools; 1.32 sees it."""
    return "is_bool_tensor" in _from_capsule.__doc__


def _borrow(t: torch.Tensor) -> OrtValue:
    """An OrtValue of the memory of a contiguous tensor, which it keeps alive."""
    if t.dtype is torch.bool and _takes_bools_for_bytes():
        return _from_capsule(to_dlpack(t.view(torch.uint8)), True)
    return _from_capsule(to_dlpack(t))


def to_ortvalue(t: torch.Tensor) -> OrtValue:
    """An OrtValue of the memory of a tensor, which it keeps alive; of a copy if the tensor is strided.

    Parameters
    ----------
    t : torch.Tensor
        The tensor.

    Returns
    -------
    OrtValue
    """
    t = t if t.is_contiguous() else t.contiguous()
    try:
        return _borrow(t)
    except RuntimeError:
        if t.numel():
            raise
        return _empty_ortvalue(t)


def _empty_ortvalue(t: torch.Tensor) -> OrtValue:
    """An OrtValue like a tensor without elements, which 1.19.2 takes for strided, as DLPack has it."""
    return Buffer(t.detach().cpu().numpy(), Device.parse(t.device.type)).ortvalue


def to_tensor(ortvalue: OrtValue, is_bool: bool = False) -> torch.Tensor:
    """A tensor of the memory of an OrtValue, which it keeps alive.

    Parameters
    ----------
    ortvalue : OrtValue
        The memory.
    is_bool : bool
        Whether its bytes are bools.

    Returns
    -------
    torch.Tensor
    """
    t = _from_dlpack(ortvalue.to_dlpack())
    return t.view(torch.bool) if is_bool else t


class TensorSession:
    """A session between tensors; its inputs are found by position among more tensors.

    Parameters
    ----------
    model : onnx.ModelProto
        The graph.
    names : sequence of str
        The names of all tensors that a call passes, among them the inputs of the graph.
    placement : Placement
        Where it runs.
    """

    def __init__(self, model: ModelProto, names: Sequence[str], placement: Placement):
        memory_pattern = not placement.device.is_cpu  # Off on the CPU alone, where it was measured.
        self.session = Session(model, device=placement.device, threads=placement.threads, memory_pattern=memory_pattern)
        self.inputs = [(n, names.index(n)) for n in self.session.inputs]
        self.bools = [i for i, o in enumerate(model.graph.output) if o.type.tensor_type.elem_type == TensorProto.BOOL]
        # Outputs that are inputs, which onnxruntime returns in the memory that it borrowed.
        self.borrowed = [i for i, n in enumerate(self.session.outputs) if n in self.session.inputs]
        # By the name of a parameter, the place, shape and dtype of its memory, and the OrtValue of it.
        self._cache: dict[str, tuple[int, torch.Size, torch.dtype, OrtValue]] = {}

    def __call__(self, tensors: Tensors) -> list[torch.Tensor]:
        """Run the graph.

        Parameters
        ----------
        tensors : sequence of torch.Tensor
            A tensor for each of the names.

        Returns
        -------
        list of torch.Tensor
        """
        feeds, cache = {}, self._cache
        for name, i in self.inputs:
            t = tensors[i]
            if name in cache:
                place, shape, dtype, ortvalue = cache[name]
                # A cached OrtValue keeps its memory, so that nothing else can be there.
                if t.data_ptr() == place and t.shape == shape and t.dtype is dtype and t.is_contiguous():
                    feeds[name] = ortvalue
                    continue
            if not t.is_contiguous():
                t = t.contiguous()
            try:
                ortvalue = _from_capsule(to_dlpack(t))
            except RuntimeError:  # It is empty, or of bools.
                ortvalue = to_ortvalue(t)
            feeds[name] = ortvalue
            if type(t) is Parameter:  # Parameters rarely move.
                cache[name] = t.data_ptr(), t.shape, t.dtype, ortvalue
        outputs = self.session.run_ortvalues(feeds).to_dlpacks(_from_dlpack)
        for i in self.bools:
            outputs[i] = outputs[i].view(torch.bool)
        for i in self.borrowed:
            outputs[i] = outputs[i].clone()
        return outputs
