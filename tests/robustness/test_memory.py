"""Memory use: no growth over many steps, and models of more than 2 GB."""

import gc
import os

import numpy as np
import onnx
import pytest
from models import data, mlp
from onnx import TensorProto, helper

from ortpartial import OrtGradientForwardBackwardOptimizer

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident():
    """Resident memory of this process in bytes."""
    gc.collect()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * PAGE


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["step", "epoch", pytest.param("agent", marks=pytest.mark.agent)])
def test_a_hundred_thousand_steps_do_not_grow(engine):
    X, y, w = data(1000)
    o = OrtGradientForwardBackwardOptimizer(mlp(), engine=engine, learning_rate=1e-4, max_iter=100, warm_start=True)
    o.fit(X, y, w)
    before = resident()
    for _ in range(10):
        o.fit(X, y, w)
    assert o._engine.iteration == 110_000
    growth = resident() - before
    print(f"{engine}: {growth / 1024:.0f} KiB more after 100,000 steps")
    assert growth < 2 * 1024**2


def big_model(folder):
    """y = tanh(tanh(tanh(x w0) w1) w2) h, 2.3 GB in two files."""
    rng, n, hidden = np.random.default_rng(0), 24_000, 8_000
    tensors, offset = [], 0
    with open(folder / "weights", "wb") as f:
        for name, shape in (("w0", (n, hidden)), ("w1", (hidden, n)), ("w2", (n, hidden)), ("h", (hidden, 1))):
            w = rng.standard_normal(shape, np.float32) / np.float32(shape[0] ** 0.5)
            t = TensorProto(name=name, data_type=1, dims=shape, data_location=TensorProto.EXTERNAL)
            for key, value in {"location": "weights", "offset": offset, "length": w.nbytes}.items():
                t.external_data.add(key=key, value=str(value))
            f.write(w.tobytes())
            offset += w.nbytes
            tensors.append(t)
    nodes, last = [], "x"
    for i in range(3):
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"a{i}"]))
        nodes.append(helper.make_node("Tanh", [f"a{i}"], [f"h{i}"]))
        last = f"h{i}"
    nodes.append(helper.make_node("MatMul", [last, "h"], ["y"]))
    x, y = (helper.make_tensor_value_info(name, 1, ["N", size]) for name, size in (("x", n), ("y", 1)))
    model = helper.make_model(helper.make_graph(nodes, "big", [x], [y], tensors),
                              opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    assert offset > 2**31
    return folder / "model.onnx"


@pytest.mark.slow
@pytest.mark.skipif(PAGE * os.sysconf("SC_PHYS_PAGES") < 20e9, reason="a model of 2.3 GB takes 20 GB to train")
def test_a_model_of_more_than_two_gigabytes(tmp_path):
    path = big_model(tmp_path)
    o = OrtGradientForwardBackwardOptimizer(path, ["h"], max_iter=1, batch_size=4, shuffle=False, learning_rate=0.01)
    X = np.random.default_rng(1).standard_normal((4, 24_000), np.float32)
    y, before = X[:, :1], o.get_state()[0]
    o.fit(X, y)
    hidden = X
    for name in ("w0", "w1", "w2"):
        hidden = np.tanh(hidden @ o._spec.model.arrays[name])
    expected = before - 0.01 * 2 / 4 * hidden.T @ (hidden @ before - y)
    np.testing.assert_allclose(o.get_state()[0], expected, rtol=1e-3, atol=1e-6)
