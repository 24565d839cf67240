"""How does onnxruntime run a graph? `session_options`: threads, order and memory."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from typing import Any

from onnx import GraphProto

from ortpartial.model import walk_graphs

from .device import C, cores

__all__ = ["session_options"]

#: With more nodes than this, onnxruntime's own optimization takes longer than any training would gain by it: its
#: passes, and its search for memory to use again, grow with the square of the number (3,000 nodes in a row: 0.8 s
#: without, 19 s with).
_LARGE = 10_000


def session_options(threads: int | None, graph: GraphProto | None = None, *, planned: bool = True, lean: bool = False,
                    spare: bool = False, roomy: bool = False) -> Any:
    """Session options: no errors in the log, as they are raised, and no thread pool that spins for one thread.

    Nodes are computed in the order of the graph, in which a gradient is used where it was just written. Left to itself,
    onnxruntime 1.19 to 1.31 computes what it can as early as it can, the masks of a backward pass before the loss for
    example, and gradients of weights at the end, which takes 2 to 5 % longer; but nodes that it has fused come after
    all others that are ready, so that graphs with convolutions take 1 to 2 % less in its own order.

    A lean session fuses nothing, and takes no more memory than it asks for, where others double what they take. One
    that spares memory gives all of it back at once, which takes time. Where values on the way take more than weights, a
    roomy one has them side by side in one piece of address space, where freed ones make room together; the first lean
    session of a process decides for all.
    """
    options = C.SessionOptions()
    options.log_severity_level = 4
    options.inter_op_num_threads = 1
    # Left to itself, onnxruntime 1.19 to 1.31 takes cores that the process may not use, and pins threads to them.
    options.intra_op_num_threads = threads or cores()
    options.enable_mem_pattern = planned
    if lean or (graph is not None and not _slides(graph)):
        options.execution_order = C.ExecutionOrder.PRIORITY_BASED
    if lean:
        options.graph_optimization_level = C.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_mem_pattern = False
        if spare:
            _give_back()
            options.enable_cpu_mem_arena = False
        else:
            _share_arena(roomy)
            options.add_session_config_entry("session.use_env_allocators", "1")
    if graph is not None and len(graph.node) > _LARGE:
        options.graph_optimization_level = C.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_mem_pattern = options.enable_mem_reuse = False
    return options


def _slides(graph: GraphProto) -> bool:
    """Whether a graph has convolutions."""
    return any(node.op_type in ("Conv", "ConvTranspose") for g in walk_graphs(graph) for node in g.node)


_ARENAS: list[dict[str, int]] = []


def _share_arena(roomy: bool) -> None:
    """Make memory that lean sessions share: one piece, of which pages that are used count, or what they ask for."""
    if _ARENAS:
        return
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if roomy and hasattr(os, "sysconf") else 0
    _ARENAS.append({"arena_extend_strategy": 0, "initial_chunk_size_bytes": half} if half else
                   {"arena_extend_strategy": 1})
    info = C.OrtMemoryInfo("Cpu", C.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, C.OrtMemType.DEFAULT)
    with suppress(RuntimeError):  # Somebody else has made one, which serves as well.
        C.create_and_register_allocator(info, C.OrtArenaCfg(_ARENAS[0]))


@cache
def _give_back() -> None:
    """Let memory from 1 MB on go back to the system when it is freed; glibc keeps blocks of up to 32 MB otherwise."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in musl
        if mallopt is not None:
            mallopt(-3, 2**20)  # M_MMAP_THRESHOLD
