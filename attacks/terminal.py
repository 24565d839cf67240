"""Names that give orders: to the terminal that shows them, to the browser, and to the C compiler.

An attacker hopes that an error, a table, a picture or an exported file holds the name as it is: it then sets the title
of the window, hides lines, runs a script, or adds code.
"""

import contextlib
import io
import shutil
import subprocess
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
from onnx import numpy_helper
from victims import model, node

from ortpartial import OrtGradientForwardBackwardOptimizer, export_c, load
from ortpartial.cli import main

NAME = ('\x1b]0;mine\x07\x1b[2J\u202e\n*/ #include "harm.h"\n??/\\\n</pre><script>alert(1)</script>\x9b`touch harm`'
        '$(touch harm)')


def evil():
    w = numpy_helper.from_array(np.ones((4, 4), np.float32), f"w{NAME}")
    return model([node("MatMul", [f"x{NAME}", w.name], [f"h{NAME}"], name=NAME),
                  node("Relu", [f"h{NAME}"], [f"y{NAME}"], name=f"/{NAME}")], [w], name=NAME)


def naive():
    text = f"Node {evil().graph.node[0].name} is wrong. <pre>{evil().graph.name}</pre>"
    return "\x1b" in text and "<script>" in text


def check(text):
    wrong = [c for c in text if not c.isprintable() and c != "\n"]
    return f"HARMED: {wrong}" if wrong else "unharmed: escaped"


def attacks():
    Path("model.onnx").write_bytes(evil().SerializeToString())
    Path("data.csv").write_text("a,b,c,d,e\n1,2,3,4,5\n")

    def command(*arguments):
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            main([*arguments])
        return check(text.getvalue())

    def error():
        proto = evil()
        proto.graph.node[0].op_type = f"MatMul{NAME}"
        try:
            load(proto)
        except ValueError as e:
            return check(str(e))

    def html():
        text = load(evil())._repr_html_()
        return "HARMED" if "<script>" in text else check(text)

    def picture():
        import matplotlib

        matplotlib.use("svg")
        from ortpartial import plot_graph

        text = plot_graph(evil())._repr_svg_()
        xml.etree.ElementTree.fromstring(text)
        return "HARMED" if "<script>" in text else check(text)

    def export():
        optimizer = OrtGradientForwardBackwardOptimizer(evil(), max_iter=1)
        export_c(optimizer, "c", batch_size=4)
        text = "".join(p.read_text() for p in Path("c").iterdir() if p.suffix in (".c", ".h") or p.stem == "Makefile")
        if "harm.h" in text or "touch harm" in text:
            return "HARMED"
        if shutil.which("make") and shutil.which("cc"):
            subprocess.run(["make", "check"], cwd="c", check=True, capture_output=True)
        page = Path("c/README.md").read_text()
        return "HARMED" if Path("c/harm").exists() or "<script>" in page else check(page)

    yield "an error", error
    yield "repr", lambda: check(repr(load(evil())) + repr(load(evil()).values))
    yield "a card of a notebook", html
    yield "a picture", picture
    for arguments in (("info",), ("info", "--json"), ("gradient", "-o", "g.onnx"), ("export", "-o", "e.onnx"),
                      ("predict", "data.csv")):
        name, *options = arguments
        yield " ".join(arguments), lambda name=name, options=options: command(name, "model.onnx", *options)
    yield "a training in C", export
