"""Logits in chunks of rows: the same training as with whole logits, in less memory."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from numbered_cases import check_case
from paths import environment

from ortpartial import ElasticLearningPenalty, NextTokenLearningLoss, TrainingKit, TrainingSession
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.graph.rewriter import rewrite
from ortpartial.model.load import load
from ortpartial.rewrites import row_chunks
from ortpartial.rewrites.row_chunks import find_row_head
from ortpartial.training.spec import TrainingSpec
from ortpartial.training.step import step_graph

VOCABULARY, WIDTH = 24, 8


def draw(*shape):
    return constant((np.random.default_rng(len(shape)).normal(size=shape) / 2).astype(np.float32))


def weight(name, *shape):
    return constant(draw(*shape).array, hint=name)


def packed_head(h):
    """A product with a matrix of 4 bits."""
    rng = np.random.default_rng(0)
    proto = onnx.helper.make_model(onnx.helper.make_graph(
        [onnx.helper.make_node("MatMulNBits", ["h", "b", "s"], ["y"], domain="com.microsoft", K=WIDTH, N=VOCABULARY,
                               bits=4, block_size=16)], "head",
        [onnx.helper.make_tensor_value_info("h", 1, ["N", "T", WIDTH])],
        [onnx.helper.make_tensor_value_info("y", 1, ["N", "T", VOCABULARY])],
        [onnx.numpy_helper.from_array(rng.integers(0, 255, (VOCABULARY, 1, 8), dtype=np.uint8), "b"),
         onnx.numpy_helper.from_array(rng.uniform(0.01, 0.1, VOCABULARY).astype(np.float32), "s")]),
        opset_imports=[onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    model = load(proto)
    return rewrite([model.outputs["y"]], {model.inputs["h"]: h})[0]


HEADS = {
    "MatMul": lambda h: h @ draw(WIDTH, VOCABULARY),
    "bias and cap": lambda h: 3 * op.Tanh((h @ draw(WIDTH, VOCABULARY) + draw(1, 1, VOCABULARY)) / 3),
    "Gemm": lambda h: op.Reshape(op.Gemm(op.Reshape(h, [-1, WIDTH]), draw(VOCABULARY, WIDTH), draw(VOCABULARY),
                                         transB=1), op.Concat(op.Shape(h, end=2), [VOCABULARY], axis=0)),
    "cast": lambda h: op.Cast(op.Cast(h, to=11) @ constant(draw(WIDTH, VOCABULARY).array.astype(np.float64)), to=1),
    "two products": lambda h: h @ draw(WIDTH, VOCABULARY) + 0.5 * (h @ draw(WIDTH, 2) @ draw(2, VOCABULARY)),
    "MatMulNBits": packed_head,
}


def make_model(head, tokens=6):
    ids = variable("ids", "int64", ["N", tokens])
    h = op.Tanh(op.Gather(weight("E", VOCABULARY, WIDTH), ids)) @ weight("W", WIDTH, WIDTH)
    return build([ids], {"logits": HEADS[head](h)})


def train(model, engine="step", rows=(4, 4, 2), weights=("E", "W"), **settings):
    rng = np.random.default_rng(5)
    ids = rng.integers(0, VOCABULARY, (sum(rows), 6))
    labels = np.where(rng.uniform(size=ids.shape) < 0.2, -100, ids)
    o = Optimizer(model, list(weights), learning_loss="next_token", learning_rate=0.5, batch_size=rows[0], max_iter=2,
                  shuffle=False, engine=engine, **settings)
    return o.fit(ids, labels)


@pytest.fixture
def chunks(monkeypatch, limit):
    """Chunks of so few rows that small logits have several; returns the heads that are found."""
    heads = []

    def run(head, *arguments):
        heads.append(head)
        return whole(head, *arguments)

    whole = row_chunks.RowHead.run
    monkeypatch.setattr(row_chunks.RowHead, "run", run)

    def cut(rows):
        limit(chunk_elements=1, chunk_rows=rows)
        return heads

    cut(10**9)
    return cut


def assert_same(a, b):
    np.testing.assert_allclose(a.train_losses_, b.train_losses_, rtol=2e-6)
    for n, w in b.trained_coef_.items():
        np.testing.assert_allclose(a.trained_coef_[n], w, atol=1e-6 * abs(w).max())


@pytest.mark.parametrize("rows", [5, 12])
@pytest.mark.parametrize("tokens", [6, "T"])
@pytest.mark.parametrize("head", HEADS)
def test_chunks_change_no_number(chunks, head, tokens, rows):
    model = make_model(head, tokens)
    whole = train(model)
    assert chunks(rows) == []
    assert_same(train(model), whole)
    assert {h.chunk <= rows for h in chunks(rows)} == {True}


@pytest.mark.parametrize("settings", [{"engine": "epoch"}, {"checkpointing": True}, {"accumulate": 2},
                                      {"learning_penalty": ElasticLearningPenalty(l2=0.01)},
                                      {"rows": (4, 3, 2, 1)}], ids=str)
def test_wherever_a_step_is_composed(chunks, settings):
    model = make_model("MatMul")
    whole = train(model, **settings)
    chunks(5)
    assert_same(train(model, **settings), whole)
    assert chunks(5)


def test_kits_and_stored_trainings(chunks, tmp_path):
    """They run anywhere, so their logits are whole; the numbers are those of a step in chunks."""
    model, ids = make_model("bias and cap", "T"), np.random.default_rng(5).integers(0, VOCABULARY, (4, 6))

    def make():
        return Optimizer(model, ["E", "W"], learning_loss="next_token", learning_rate=0.5)

    chunks(5)
    expected, feeds = make().partial_fit(ids, ids).trained_coef_, {"ids": ids, "logits_target": ids}
    count = len(chunks(5))
    assert count
    make().export_step(tmp_path, targets=())
    kit, session = TrainingKit(tmp_path), TrainingSession(make().get_training_onnx("lowered"))
    kit.step(feeds)
    session.step(feeds)
    assert len(chunks(5)) == count
    for n, w in expected.items():
        np.testing.assert_allclose(kit.state[n], w, atol=1e-6)
        np.testing.assert_allclose(session.get(n), w, atol=1e-6)


NUMBERED = {"find_row_head 1": lambda: find_row_head(variable("h", "float32", [2, 3, 4]) @ weight("H", 4, 9), [], {})}


@pytest.mark.parametrize("case", NUMBERED)
def test_numbered_case(case, chunks):
    chunks(2)
    assert check_case(case, NUMBERED[case]).chunk == 2


def test_one_chunk_where_the_logits_are_small_or_the_head_is_trained(chunks):
    h, w = variable("h", "float32", [2, 3, 4]), weight("H", 4, 9)
    assert find_row_head(h @ w, [], {}) is None
    chunks(2)
    assert find_row_head(h @ w, [], {}).chunk == 2
    assert find_row_head(h @ w, [w], {}) is None
    assert find_row_head(op.Softmax(h @ w), [], {}) is None  # It is not among the operators of a head.
    assert find_row_head(h @ draw(4, 7), [], {}) is None  # What it is computed from is as large.
    assert find_row_head(variable("y", "float32", [2, 3, 9]), [], {}) is None
    symbolic = variable("h", "float32", ["N", "T", 4]) @ w
    assert find_row_head(symbolic, [], {}).chunk == find_row_head(symbolic, [], {"N": 9, "T": 9}).chunk == 2
    assert find_row_head(symbolic, [], {"N": 1, "T": 2}) is None
    train(make_model("MatMul"), precision="float16")
    assert chunks(2) == []


@pytest.mark.usual_limits
def test_nothing_in_a_step_has_the_size_of_the_logits(chunks):
    chunks(5)
    spec = TrainingSpec(load(make_model("MatMul")), ("E", "W"), {"logits": NextTokenLearningLoss()}).for_batch(4)
    step = onnx.shape_inference.infer_shapes(step_graph(spec))
    values = [*step.graph.value_info, *step.graph.input, *step.graph.output]
    assert max(np.prod([d.dim_value for d in v.type.tensor_type.shape.dim]) for v in values) < 4 * 6 * VOCABULARY
    (scan,) = (node for node in step.graph.node if node.op_type == "Scan")
    body = next(a.g for a in scan.attribute if a.name == "body")
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in body.value_info}
    wide = [node.op_type for node in body.node if shapes.get(node.output[0]) == [5, VOCABULARY]]
    assert wide == ["MatMul", "Softmax", "ScatterElements", "Mul"]


CODE = """
import resource, sys
import numpy as np
from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable
ids = variable("ids", "int64", ["N", 256])
weights = {n: np.random.default_rng(0).normal(size=s).astype("f") / 8 for n, s in
           {"E": (50, 16), "W": (16, 16), "head": (16, 30000)}.items()}
e, w, head = (constant(a, hint=n) for n, a in weights.items())
model = build([ids], {"logits": op.Gather(e, ids) @ w @ head})
o = OrtGradientForwardBackwardOptimizer(model, ["W"], learning_loss="next_token", batch_size=16, max_iter=1)
X = np.random.default_rng(0).integers(0, 50, (16, 256))
o.losses(X[:1], X[:1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
o.fit(X, X)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / (4 * 16 * 256 * 30000))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux alone")
def test_a_step_takes_less_memory_than_the_logits():
    run = subprocess.run([sys.executable, "-c", CODE], env=environment(), capture_output=True, text=True, check=True)
    assert float(run.stdout) < 0.4
