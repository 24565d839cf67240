"""Branches inside of branches, 20,000 nodes in a row, and brackets inside of brackets.

An attacker hopes for a reader that calls itself for each level, until the stack ends; in C that kills the process.
"""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
from onnx import numpy_helper
from victims import model, node

from ortpartial import OrtGradientOptimizer, TrainingKit, load, merge, read_c_state
from ortpartial.cli.roles import load_roles

BRACKETS = "[" * 200_000
NODES = 5_000


def naive():
    return json.loads(BRACKETS)


def field(number, data):
    """A field of a protobuf message that holds bytes, such as another message."""
    def varint(n):
        return bytes([n | 128]) if n < 0 else bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])

    return varint(number << 3 | 2) + varint(len(data)) + data


def nested(levels):
    """The bytes of a model, as Python's protobuf writes no more than 100 levels: an If in a branch of an If ..."""
    name, graph = b"y", field(12, field(1, b"y"))
    for _ in range(levels):
        attribute = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        inner = field(1, b"c") + field(2, name) + field(4, b"If") + field(5, attribute)
        graph = field(1, inner) + field(12, field(1, name))
    return b"\x08\x0a" + field(7, graph) + field(8, b"\x10\x15")


def row(length=NODES):
    names = ["x", *(f"t{i}" for i in range(length))]
    nodes = [node("Relu", [a], [b]) for a, b in pairwise(names)]
    return model([*nodes, node("Mul", [names[-1], "w"], ["y"])])


def attacks():
    for levels in (10, 49, 100, 10_000):
        yield f"{levels} branches", lambda levels=levels: load(nested(levels))
    yield f"{NODES:,} nodes in a row", lambda: f"unharmed: {load(row())!r:.60}"
    Path("kit").mkdir()
    Path("kit/kit.json").write_text(BRACKETS)
    yield "a kit", lambda: TrainingKit("kit")
    Path("kit/training.json").write_text(BRACKETS)
    yield "a state in C", lambda: read_c_state("kit", b"")
    yield "metadata: adapter", lambda: merge(noted("ortpartial.adapter"))
    yield "metadata: roles", lambda: load_roles(noted("ortpartial.data"))
    yield "metadata: loss", lambda: OrtGradientOptimizer(noted("ortpartial.loss"), loss_output_name="y")
    yield "metadata: name_scopes", scopes
    yield "a name with 100,000 dots", lambda: f"unharmed: {len(load(dotted())._repr_html_())} characters"


def noted(key):
    """A model with brackets where a note of ours would be."""
    proto = model([node("Mul", ["x", "w"], ["y"])])
    proto.metadata_props.add(key=key, value=BRACKETS)
    return proto


def scopes():
    proto = row(3)
    proto.graph.node[-1].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=BRACKETS)
    return f"unharmed: {len(load(proto)._repr_html_())} characters"


def dotted():
    names = ["a." * 100_000 + "w", *(f"{'a.' * i}b" for i in range(1000))]
    proto = model([node("Add", ["x", names[0]], ["y"])])
    proto.graph.initializer.extend(numpy_helper.from_array(np.ones(4, np.float32), n) for n in names)
    return proto
