"""Session options: threads, the order of nodes, memory, and disabled optimizations."""

import pytest
from models import mlp, net
from onnx import helper
from onnxruntime.capi import _pybind_state as C

from ortpartial.exceptions import ModelError
from ortpartial.model import custom_ops
from ortpartial.rewrites import select_rewrites
from ortpartial.runtime.session_options import OPTIMIZERS, register_custom_ops, session_options

ALL, NONE = C.GraphOptimizationLevel.ORT_ENABLE_ALL, C.GraphOptimizationLevel.ORT_DISABLE_ALL


def test_threads():
    assert session_options(3).intra_op_num_threads == 3
    assert session_options(None).intra_op_num_threads >= 1
    assert session_options(1).inter_op_num_threads == 1


def test_nodes_run_by_priority_unless_there_are_convolutions():
    plain = C.SessionOptions().execution_order
    assert session_options(1, mlp().graph).execution_order == C.ExecutionOrder.PRIORITY_BASED
    assert session_options(1, net().graph).execution_order == plain


@pytest.mark.parametrize(("count", "level"), [(10, ALL), (10_001, NONE)])
def test_a_graph_of_many_nodes_is_not_optimized(count, level):
    nodes = [helper.make_node("Identity", [f"x{i}"], [f"x{i + 1}"]) for i in range(count)]
    options = session_options(1, helper.make_graph(nodes, "g", [], []))
    assert options.graph_optimization_level == level
    assert options.enable_mem_pattern == (level == ALL)
    assert options.enable_mem_reuse


@pytest.mark.parametrize(("size", "level"), [({}, ALL), ({"block_size": 32}, NONE)])
def test_a_gradient_of_packed_weights_takes_memory_once(size, level):
    """Optimizers would store the weights again, and a plan of memory hold the activations a second time."""
    node = helper.make_node("DequantizeLinear", ["x", "scale"], ["y"], axis=0, **size)
    options = session_options(1, helper.make_graph([node], "g", [], []))
    assert (options.graph_optimization_level, options.enable_mem_pattern) == (level, level == ALL)


def test_optimizers_may_be_left_out():
    with select_rewrites([OPTIMIZERS]):
        assert session_options(1).graph_optimization_level == NONE
    assert session_options(1).graph_optimization_level == ALL


def test_little_memory():
    options = session_options(1, low_memory=True, arena=False)
    assert (options.graph_optimization_level, options.enable_cpu_mem_arena, options.enable_mem_pattern) == (
        NONE, False, False)


def test_a_library_that_cannot_be_loaded(tmp_path, monkeypatch):
    path = tmp_path / "a.so"
    path.write_bytes(b"none")
    monkeypatch.setattr(custom_ops, "_LIBRARIES", {"my.domain": (str(path),)})
    roll = helper.make_node("Roll", ["x"], ["y"], domain="my.domain")
    model = helper.make_model(helper.make_graph([roll], "g", [], []))
    with pytest.raises(ModelError, match=r"The library of custom operators '.*a\.so' cannot be loaded: "):
        register_custom_ops(C.SessionOptions(), model)
