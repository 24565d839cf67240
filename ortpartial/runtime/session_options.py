"""Session options of onnxruntime: threads, execution order and memory."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from weakref import WeakKeyDictionary

from onnx import GraphProto, ModelProto

from ortpartial.exceptions import ModelError
from ortpartial.model import find_libraries, walk_graphs
from ortpartial.rewrites import is_selected

from .device import C, cores
from .ort_types import SessionOptions

__all__ = ["OPTIMIZERS", "register_custom_ops", "session_options"]

#: The optimizations of onnxruntime, as a rewrite that may be left out.
OPTIMIZERS = "optimizers of onnxruntime"

#: The libraries of custom operators that session options have: registering a library twice is an error.
_REGISTERED: WeakKeyDictionary[SessionOptions, set[str]] = WeakKeyDictionary()

#: The number of nodes above which onnxruntime's optimization takes longer than a training gains by it: its passes are
#: quadratic in it (onnxruntime 1.19 to 1.32).
_MAX_OPTIMIZED_NODES = 10_000


#: The microseconds for which an idle thread waits for work with its core in use; by default 20,000. Most nodes of a
#: step follow sooner. `bench/results/session-options.md` has the cost and the gain of this and of other options,
#: measured.
_SPIN = "40"


def session_options(threads: int | None, graph: GraphProto | None = None, *, memory_pattern: bool = True,
                    low_memory: bool = False, arena: bool = True, reserve_arena: bool = False) -> SessionOptions:
    """Session options that log no errors, as they are raised, and start no thread pool for one thread.

    Nodes run in the order of the graph, in which a gradient is used right after it is computed. By default onnxruntime
    1.19 to 1.31 runs every node as early as possible, such as the masks of a backward pass before the loss, and the
    gradients of weights at the end, which takes 2 to 5 % longer. But it runs fused nodes after all others that are
    ready, so that graphs with convolutions take 1 to 2 % less in its own order.

    Parameters
    ----------
    threads : int or None
        Threads of an operator; None for as many as the process has `cores`.
    graph : onnx.GraphProto, optional
        The graph to run, which decides the order of execution and whether onnxruntime optimizes it.
    memory_pattern : bool
        Whether onnxruntime plans all allocations of a run in advance.
    low_memory : bool
        Whether to fuse no nodes and to allocate no more than is asked for, where an arena otherwise doubles; always for
        the gradient of packed weights.
    arena : bool
        Whether sessions of low memory share an arena. Without an arena they return memory to the system as soon as it
        is free, which takes time.
    reserve_arena : bool
        Whether the shared arena is one range of address space, in which adjacent free blocks merge; better where
        activations take more memory than weights. The first such session of a process decides for all.

    Returns
    -------
    onnxruntime.SessionOptions
    """
    low_memory = low_memory or (graph is not None and _has_blocks(graph))
    options = C.SessionOptions()
    options.log_severity_level = 4
    options.inter_op_num_threads = 1
    # By default onnxruntime 1.19 to 1.31 uses cores that the process may not use, and pins threads to them.
    options.intra_op_num_threads = threads or cores()
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN)
    options.enable_mem_pattern = memory_pattern and not low_memory
    if low_memory or (graph is not None and not _has_convolutions(graph)):
        options.execution_order = C.ExecutionOrder.PRIORITY_BASED
    if low_memory:
        options.graph_optimization_level = C.GraphOptimizationLevel.ORT_DISABLE_ALL
        if arena:
            _register_shared_arena(reserve_arena)
            options.add_session_config_entry("session.use_env_allocators", "1")
        else:
            _return_freed_memory()
            options.enable_cpu_mem_arena = False
    if not is_selected(OPTIMIZERS):
        options.graph_optimization_level = C.GraphOptimizationLevel.ORT_DISABLE_ALL
    if graph is not None and len(graph.node) > _MAX_OPTIMIZED_NODES:
        options.graph_optimization_level = C.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_mem_pattern = False
    return options


def register_custom_ops(options: SessionOptions, model: ModelProto | bytes) -> None:
    """Add the libraries that have the custom operators of a model to session options.

    Parameters
    ----------
    options : onnxruntime.SessionOptions
        The options; they are written to.
    model : onnx.ModelProto or bytes
        The model.

    Raises
    ------
    ModelError
        A library cannot be loaded.
    """
    registered = _REGISTERED.setdefault(options, set())
    for path in find_libraries(model):
        if path not in registered:
            try:
                options.register_custom_ops_library(path)
            except Exception as e:
                raise ModelError(f"The library of custom operators {path!r} cannot be loaded: {e}") from None
            registered.add(path)


def _has_blocks(graph: GraphProto) -> bool:
    """Whether a graph dequantizes blocks, as the gradient of a product with a packed weight does.

    Optimized, onnxruntime 1.32.0 stores such weights again in the form that the gradient reads, and a step of a
    language model of 0.5 billion takes 5.4 GB in place of 2.3; a plan of its memory adds the size of activations.
    """
    return any(a.name == "block_size" and a.i for g in walk_graphs(graph) for node in g.node
               if node.op_type == "DequantizeLinear" for a in node.attribute)


def _has_convolutions(graph: GraphProto) -> bool:
    return any(node.op_type in ("Conv", "ConvTranspose") for g in walk_graphs(graph) for node in g.node)


_ARENAS: list[dict[str, int]] = []


def _register_shared_arena(reserve: bool) -> None:
    """Make the arena of the process: half of the physical memory, paged in on use, or the size asked for each time."""
    if _ARENAS:
        return
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if reserve and hasattr(os, "sysconf") else 0
    _ARENAS.append({"arena_extend_strategy": 0, "initial_chunk_size_bytes": half} if half else
                   {"arena_extend_strategy": 1})
    info = C.OrtMemoryInfo("Cpu", C.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, C.OrtMemType.DEFAULT)
    with suppress(RuntimeError):  # Another library of the process has registered an arena, which serves as well.
        C.create_and_register_allocator(info, C.OrtArenaCfg(_ARENAS[0]))


@cache
def _return_freed_memory() -> None:
    """Let glibc return blocks of 1 MB or more to the system when they are freed; by default it keeps up to 32 MB."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has no mallopt.
        if mallopt is not None:
            mallopt(-3, 2**20)  # M_MMAP_THRESHOLD
