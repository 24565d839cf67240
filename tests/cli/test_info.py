"""The report on a model: its weights, operators and gradients, and why some are not trained."""

import json
import re

import numpy as np
import onnx
from models import net
from onnx import helper, numpy_helper

from ortpartial import build, constant, op, variable
from ortpartial.cli import main


def test_info(at, capsys):
    assert main(["info", "mlp.onnx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:11] == ["inputs", "  x  float32[Nx4]", "", "outputs", "  y  float32[Nx1]", "",
                          "initializer  type          numbers",
                          "W1           float32[4x8]       32  trained",
                          "b1           float32[8]          8  trained",
                          "W2           float32[8x1]        8  trained",
                          "b2           float32[1]          1  trained"]
    assert lines[12].split() == ["operator", "nodes", "gradient", "engines"]
    assert [line.split() for line in lines[13:16]] == [
        ["Add", "2", "rule", "agent", "step", "epoch"],
        ["MatMul", "2", "rule", "agent", "step", "epoch"],
        ["Tanh", "1", "rule", "agent", "step", "epoch"],
    ]
    assert lines[16:18] == ["", "trained: 4 of 4 float initializers, 49 of 49 numbers"]
    assert re.fullmatch("engines: epoch, step(, agent|; not agent, because onnxruntime-training is not installed)",
                        lines[18])
    # In a step: x W1, + b1, tanh, h W2, + b2 of 32 rows, and their gradients.
    assert lines[19:] == ["compute: 3.1 kFLOPs for a forward pass of 32 rows",
                          "memory: 196 B of weights, 392 B of states by adam, about 6.5 KB of values in a step of 32 "
                          "rows"]


def test_costs(at, capsys):
    words = "info mlp.onnx --batch-size 64 --rate sgd:0.1 --freeze W? --measure --json"
    assert main(words.split()) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["initializers"]["W1"] == {"dtype": "float32", "shape": [4, 8], "numbers": 32, "trained": False,
                                            "reason": "frozen by 'W?'"}
    cost = report["cost"]
    assert (cost["state_bytes"], cost["value_bytes"], cost["batch_size"]) == (0, 2 * 4 * 64 * (3 * 8 + 2), 64)
    assert 0 < cost["seconds"] < 0.1
    assert report["trained_numbers"] == 9
    x, w = variable("x", "float32", ["N", "T", 2]), constant(np.ones((2, 3), np.float32), hint="w")
    onnx.save(build([x], {"y": x @ w}), "texts.onnx")
    assert main(["info", "texts.onnx"]) == 0
    assert "with 1 for the sizes T; give them, as --size T=128\n" in capsys.readouterr().out
    assert main(["info", "texts.onnx", "--size", "T=10", "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert (cost["value_bytes"], cost["flops"]) == (2 * 4 * 32 * 10 * 3, 2 * 32 * 10 * 2 * 3)


def test_info_names_one_refused_node_per_operator(at, capsys):
    x, w = variable("x", "float32", ["N"]), constant([2.0], hint="w")
    onnx.save(build([x], {"y": op.Elu(op.Selu(op.Elu(op.Elu(x * w))))}), "elu.onnx")
    assert main(["info", "elu.onnx"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not by the agent: ")]
    assert sorted(line.split(": ", 1)[1] for line in lines if "lu" in line) == [
        "Elu (node 'Elu_node_0'): no test covers its gradient. (and 2 more)",
        "Selu (node 'Selu_node_0'): no test covers its gradient.",
    ]


def test_info_lists_blocking_nodes(at, capsys):
    assert main(["info", "blocked.onnx"]) == 1
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    assert rows["Unique"] == ["1", "none", "-"]
    assert rows["Mish"] == ["1", "body", "step", "epoch"]
    assert rows["Floor"][:2] == ["1", "zero"]
    assert rows["Mul"][:2] == ["2", "rule"]
    assert "trained: 2 of 3 float initializers, 2 of 3 numbers\n" in text
    assert "not by the agent: Unique (node 'distinct'): no test covers its gradient." in text
    assert text.endswith("blocked: Unique (node 'distinct') has no gradient.\n")
    # A node before the first weight blocks nothing.
    assert main(["info", "blocked.onnx", "--weights", "v"]) == 0
    assert "blocked" not in capsys.readouterr().out


def test_info_says_why_a_weight_is_not_trained(at, capsys, monkeypatch):
    onnx.save(net(0.5), "net.onnx")
    assert main(["info", "net.onnx", "--weights", "K", "scale?"]) == 0
    notes = {line.split()[0]: line.split("  ")[-1].strip() for line in capsys.readouterr().out.splitlines() if line}
    assert (notes["K"], notes["W"], notes["mean1"]) == ("trained", "not among those to train", "running statistic")
    assert main(["info", "blocked.onnx", "--weights", "v"]) == 0
    notes = {line.split()[0]: line.split("  ")[-1].strip() for line in capsys.readouterr().out.splitlines() if line}
    assert (notes["v"], notes["e"]) == ("trained", "no gradient reaches it")
    assert main(["info", "net.onnx", "--depth", "0"]) == 2
    assert capsys.readouterr().err == "ortpartial: --depth is a whole number of at least 1, not 0.\n"


def test_info_of_a_model_without_weights(at, capsys):
    assert main(["info", "bare.onnx"]) == 1
    text = capsys.readouterr().out
    assert "trained: 0 of 0 float initializers" in text
    assert "blocked: No float initializer of rank one or more leads to the outputs 'y'" in text


def test_info_lists_ties(at, capsys):
    """Weights that an exporter has merged, one that it has written twice, and how to read the file as it is."""
    w, ones = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32), np.ones(4, np.float32)
    nodes = [helper.make_node("LayerNormalization", ["x", "a.weight"], ["h"], "/a/LayerNormalization"),
             helper.make_node("LayerNormalization", ["h", "a.weight"], ["k"], "/b/LayerNormalization"),
             helper.make_node("Gemm", ["k", "c.weight"], ["l"], "/c/Gemm"),
             helper.make_node("MatMul", ["l", "onnx::MatMul_9"], ["y"], "/d/MatMul")]
    arrays = {"a.weight": ones, "c.weight": w, "onnx::MatMul_9": w.T}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["N", 4])],
                              [helper.make_tensor_value_info("y", 1, ["N", 4])],
                              [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    onnx.save(helper.make_model(graph, producer_name="pytorch", ir_version=10,
                                opset_imports=[helper.make_opsetid("", 21)]), "ties.onnx")
    ties = ["a.weight was one with b.weight", "onnx::MatMul_9 is the transpose of c.weight, and trained with it"]
    assert main(["info", "ties.onnx"]) == 0
    out = capsys.readouterr().out
    assert "\n".join(f"ties: {t}" for t in ties) + "\n      as they are in the file: --ties file\n" in out
    assert "trained: 3 of 3 float initializers" in out
    assert main(["info", "ties.onnx", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ties"] == ties
    assert main(["info", "ties.onnx", "--ties", "file"]) == 0
    out = capsys.readouterr().out
    assert "ties: " not in out
    assert "trained: 3 of 3 float initializers" in out
