"""Names of strangers give no orders to a terminal, wherever they are shown."""

import json
import warnings
import xml.etree.ElementTree

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortpartial import OrtGradientForwardBackwardOptimizer, load
from ortpartial.cli import main
from ortpartial.exceptions import ModelError, ModelWarning
from ortpartial.texts import free_name, is_number, parse_json, printable, reserve_name, shorten

#: The title of a window, an erased screen, the same in 8 bits, text from right to left, and a second line.
ORDERS = "\x1b]0;mine\x07\x1b[2J\x9b31m\u202e\nok"


def test_a_name_that_is_free():
    taken = {"mask", "mask_"}
    assert (free_name("x", taken), free_name("mask", taken)) == ("x", "mask__")
    assert [reserve_name("mask", taken) for _ in range(2)] == ["mask__", "mask___"]
    assert taken == {"mask", "mask_", "mask__", "mask___"}


def test_numbers():
    assert [text for text in ("1", "-2.5e3", "nan", "", "1,5", "one") if is_number(text)] == ["1", "-2.5e3", "nan"]


def model(op_type="Relu"):
    """y = relu(x @ w) with these names for everything."""
    x, y, w, n = (f"{name}{ORDERS}" for name in "xywn")
    nodes = [helper.make_node("MatMul", [x, w], [f"h{ORDERS}"], name=n),
             helper.make_node(op_type, [f"h{ORDERS}"], [y], name=f"r{ORDERS}")]
    graph = helper.make_graph(nodes, f"g{ORDERS}", [helper.make_tensor_value_info(x, TensorProto.FLOAT, [n, 2])],
                              [helper.make_tensor_value_info(y, TensorProto.FLOAT, [n, 1])],
                              [numpy_helper.from_array(np.ones((2, 1), np.float32), w)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def is_harmless(text):
    return all(line.isprintable() for line in text.split("\n"))


def test_printable():
    assert printable("w.weight × ½") == "w.weight × ½"
    assert printable(ORDERS) == r"\x1b]0;mine\x07\x1b[2J\x9b31m\u202e\nok"
    assert printable("a\nb\t", keep="\n") == "a\nb\\t"
    assert printable("\udc80") == r"\udc80"


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**5, "{", "", "9" * 10_000])
def test_parse_json(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_errors_and_warnings():
    with pytest.raises(ModelError) as e:
        load(model("Lost"))
    assert is_harmless(str(e.value))
    assert "x1b" in str(e.value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(ORDERS, ModelWarning, stacklevel=1)
    assert is_harmless(str(caught[0].message))


def test_displays():
    loaded = load(model())
    for text in (repr(loaded), loaded._repr_html_(), repr(loaded.outputs), *map(repr, loaded.values.values()),
                 repr(OrtGradientForwardBackwardOptimizer(model()))):
        assert is_harmless(text)


@pytest.mark.parametrize("arguments", [["info"], ["info", "--json"], ["gradient", "-o", "gradient.onnx"],
                                       ["export", "-o", "training.onnx"], ["predict", "data.csv"]], ids=" ".join)
def test_commands(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(model().SerializeToString())
    (tmp_path / "data.csv").write_text("a,b,c\n1,2,3\n")
    command, *options = arguments
    main([command, "model.onnx", *options])
    printed = capsys.readouterr()
    assert is_harmless(printed.out + printed.err)
    assert "ok" in printed.out + printed.err
    if "--json" in options:
        assert f"w{ORDERS}" in json.loads(printed.out)["initializers"]


@pytest.mark.parametrize("name", [ORDERS, r"$\frac$", "$a$", "<script>"])
def test_pictures(name):
    """They are files of XML, which has no control characters, and a dollar is a dollar."""
    pytest.importorskip("matplotlib")
    from ortpartial import plot_graph, plot_histograms

    graph = model().SerializeToString().replace(ORDERS.encode(), name.encode().ljust(len(ORDERS.encode()), b"_"))
    svg = plot_graph(graph)._repr_svg_()
    xml.etree.ElementTree.fromstring(svg)
    assert "<script" not in svg
    ax = plot_histograms({name: np.arange(3.0)})
    ax.get_figure(root=True).canvas.draw()
    assert [label.get_text() for label in ax.get_yticklabels()] == [printable(name)]


def test_shorten():
    """A name of 10 MB gives a short message, at once."""
    text = str(ModelError(f"The weight '{ORDERS * 10**6}' is missing."))
    assert len(text) < 1000
    assert is_harmless(text)
    assert text.startswith("The weight '")
    assert text.endswith("' is missing.")
    assert shorten("a" * 50, 50) == "a" * 50


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}'])
def test_parse_json_of_a_key_twice(text):
    with pytest.raises(ValueError, match="twice"):
        parse_json(text)
