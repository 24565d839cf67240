"""Functions that call others ten times, twelve levels deep, or themselves: 10^12 nodes in a file of one page.

An attacker hopes for a reader that inlines functions.
"""

from onnx import helper
from victims import model, node

from ortpartial import load

IMPORTS = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
NAIVE_LIMITS = {"seconds": 2, "memory": 1 << 30}


def function(name, *calls):
    """y = calls[-1](... calls[0](x))."""
    names = ["x", *(f"t{i}" for i in range(len(calls) - 1)), "y"]
    nodes = [node(c, [a], [b], domain="own" if c.startswith("f") else "") for c, a, b in
             zip(calls, names[:-1], names[1:], strict=True)]
    return helper.make_function("own", name, ["x"], ["y"], nodes, IMPORTS)


def calling(*functions):
    return model([node("f0", ["x"], ["z"], domain="own"), node("Mul", ["z", "w"], ["y"])], functions=list(functions))


LAUGHS = [*(function(f"f{i}", *[f"f{i + 1}"] * 10) for i in range(12)), function("f12", "Relu")]


def naive():
    bodies = {f.name: [n.op_type for n in f.node] for f in LAUGHS}

    def inline(name):
        return [inner for call in bodies[name] for inner in inline(call)] if name in bodies else [name]

    return len(inline("f0"))


def attacks():
    yield "10^12 nodes", lambda: load(calling(*LAUGHS))
    yield "a function that calls itself", lambda: load(calling(function("f0", "f0")))
    yield "functions in a circle", lambda: load(calling(function("f0", "f1"), function("f1", "f2"),
                                                        function("f2", "Relu", "f0")))
    yield "1000 levels", lambda: load(calling(*(function(f"f{i}", f"f{i + 1}") for i in range(1000)),
                                              function("f1000", "Relu")))
    yield "10^12 nodes that nobody calls", lambda: load(model(
        [node("Mul", ["x", "w"], ["y"])], functions=LAUGHS)) and "unharmed: read, and not inlined"
