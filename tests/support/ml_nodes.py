"""Models of a single operator of ai.onnx.ml, compared with their files."""

import numpy as np
from onnx import ModelProto, TensorProto, helper

from ortpartial import grad, load
from ortpartial.graph import build, op
from ortpartial.model import restore_weights
from ortpartial.runtime import Session

RNG = np.random.default_rng(0)
X = RNG.normal(size=(7, 3)).astype(np.float32)


def ml_model(op_type: str, outputs: dict[str, int], version: int = 3, opset: int = 17, kind: int = TensorProto.FLOAT,
             columns: int = 3, **attributes) -> ModelProto:
    """A model of one node, with outputs of these element types."""
    node = helper.make_node(op_type, ["x"], list(outputs), domain="ai.onnx.ml", **attributes)
    types = [helper.make_tensor_value_info(n, elem_type, None) for n, elem_type in outputs.items()]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", kind, ["N", columns])], types)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def assert_equal(actual, expected, tol=1e-5):
    for a, e in zip(actual, expected, strict=True):
        assert a.shape == e.shape
        if e.dtype.kind == "f":
            np.testing.assert_allclose(a, e, rtol=tol, atol=tol * max(1e-30, np.abs(e).max()))
        else:
            assert a.tolist() == e.tolist()


def check_node(model: ModelProto, x: np.ndarray = X, weights=None, tol: float = 1e-5):
    """Check that a model is read as standard operators, and computes what its file computes; so with other weights."""
    loaded = load(model)
    expanded = build(loaded.inputs, loaded.outputs)
    assert_equal(Session(expanded).run({"x": x}).values(), Session(model).run({"x": x}).values(), tol)
    if weights is not None:
        changed = {n: w(loaded.arrays[n]).astype(loaded.arrays[n].dtype) for n, w in weights.items()}
        moved = load(model, variables=list(changed))
        variables = {**moved.inputs, **{n: moved.initializers[n] for n in changed}}
        written = restore_weights(loaded, changed)
        assert [n.op_type for n in written.graph.node] == [n.op_type for n in model.graph.node]
        again = load(written)
        feeds = {"x": x}
        ours = Session(build(variables, moved.outputs)).run({**feeds, **changed}).values()
        assert_equal(ours, Session(written).run(feeds).values(), tol)
        assert_equal(ours, Session(build(again.inputs, again.outputs)).run(feeds).values(), tol)
    return loaded


def check_weights(model, weights, step=1e-2):
    """Check the gradient of Σ y² by the input and all weights along one direction."""
    values = [model.inputs["x"], *(model.initializers[w] for w in weights)]
    objective = op.ReduceSum(model.outputs["y"] * model.outputs["y"], keepdims=0)
    graph = build(values, {"f": objective, **{f"d{i}": d for i, d in enumerate(grad(objective, values))}})
    arrays = [X, *(model.arrays[w] for w in weights)]
    directions = [RNG.normal(size=a.shape).astype(np.float32) for a in arrays]
    names = ["x", *weights]

    def run(t):
        moved = [(a + np.float32(t) * d).astype(np.float32) for a, d in zip(arrays, directions, strict=True)]
        return Session(graph).run(dict(zip(names, moved, strict=True)))

    ran = run(0)
    slope = sum(float((ran[f"d{i}"] * d).sum()) for i, d in enumerate(directions))
    difference = (float(run(step)["f"]) - float(run(-step)["f"])) / (2 * step)
    scale = sum(float(np.abs(ran[f"d{i}"] * d).sum()) for i, d in enumerate(directions))
    assert abs(slope - difference) < 2e-3 * scale
