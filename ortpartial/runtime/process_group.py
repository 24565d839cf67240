"""Which processes train together? A `ProcessGroup` adds up what they computed and says what the first one says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ortpartial.exceptions import ProcessError, RuntimeMissingError, SettingError

from .buffer import Buffer

__all__ = ["ProcessGroup"]

#: Seconds after which a process that waits for another one gives up.
_PATIENCE = 300


class ProcessGroup:
    """The processes that ``torch.distributed`` connects.

    Attributes
    ----------
    rank, size : int
        Which of them this is, and how many there are.

    Raises
    ------
    RuntimeMissingError
        torch is not installed.
    SettingError
        ``torch.distributed.init_process_group`` was not called.
    """

    def __init__(self) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError:
            raise RuntimeMissingError("distributed=True needs torch: run `pip install ortpartial[torch]`.") from None
        if not dist.is_available() or not dist.is_initialized():
            raise SettingError("distributed=True needs torch.distributed.init_process_group('gloo') before fit, in a "
                               "script that `torchrun --nproc_per_node=2 script.py` starts.")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._torch, self._dist = torch, dist
        self._group = dist.new_group(timeout=timedelta(seconds=_PATIENCE))
        self._added: Buffer | None = None
        self._tensor: Any = None

    def add(self, buffer: Buffer) -> None:
        """Replace the content of a buffer by the sum of the contents that the processes have."""
        if self._added is not buffer:
            # Kept: a thread of gloo may be the last to let go of a tensor, which must not happen while Python leaves.
            self._added, self._tensor = buffer, self._shared(buffer)
        try:
            self._dist.all_reduce(self._tensor, group=self._group)
        except RuntimeError as e:
            raise self._lost(e) from None

    def _shared(self, buffer: Buffer) -> Any:
        """The memory of a buffer as a tensor."""
        if buffer.array is not None:
            return self._torch.from_numpy(buffer.array)
        return self._torch.utils.dlpack.from_dlpack(buffer.ortvalue.to_dlpack())

    def told(self, what: Any) -> Any:
        """What the first process says here."""
        said = [what]
        try:
            self._dist.broadcast_object_list(said, src=0, group=self._group)
        except RuntimeError as e:
            raise self._lost(e) from None
        return said[0]

    def _lost(self, e: Exception) -> ProcessError:
        first = str(e).strip().splitlines()[0]
        return ProcessError(f"Process {self.rank} of {self.size} has lost the others: {first} One of them has ended or "
                            f"hangs, and its own error says why. What was trained until then is kept.")
