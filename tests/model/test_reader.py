"""The reader: errors name the node."""

import pytest
from onnx import parser

from ortpartial.exceptions import ModelError
from ortpartial.graph import build, op, topological
from ortpartial.model.load import load
from ortpartial.model.reader import EXPANSIONS, register_expansion


def text(body):
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "here" : 1, "com.microsoft" : 1]> {body}')


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("g (float[N] x) => (float[N] y) { y = Exp(z) }",
         r"Node \(unnamed\) \(Exp, output 'y'\) reads 'z', which nothing computes before it"),
        ("g (float[N] x) => (float[N] y) { z = Exp(x) }", "No node computes the output 'y'"),
        ("g (float[N] x) => (float[N] y) { y = Nothing(x) }", "Nothing.* cannot be read: ONNX has no operator Nothing"),
        ("g (float[N] x) => (float[N] y) { z = here.Nothing(x)  y = Exp(z) }",
         "Nothing.* cannot be read: Neither ONNX nor the installed onnxruntime has an operator here.Nothing"),
        ("g (float[N] x) => (float[N] y) { y = Exp <k = 1> (x) }", "Exp has no attribute 'k'"),
        ("g (float[N] x) => (float[N] y) { y = com.microsoft.NGramRepeatBlock (x) }",
         r"NGramRepeatBlock, output 'y'\) cannot be read: The inputs or attributes of NGramRepeatBlock are missing"),
        ("g (float[N] x) => (float[N] y) { y = Loop () }", r"Loop, output 'y'\) cannot be read: Loop takes 2 to"),
        ("g (float[N] x) => (float[N] y) { y = Range () }", r"Range, output 'y'\) cannot be read: Range takes 3"),
        ("g (float[N] x) => (float[N] y) { y = com.microsoft.SimplifiedLayerNormalization (x) }",
         r"SimplifiedLayerNormalization, output 'y'\) cannot be read: The inputs or attributes of SimplifiedLayerNor"),
        ("g (float[2, 3] x) => (float[N] y) { y = MatMul(x, x) }", "MatMul does not accept"),
        ("g (float[N] x, bool b) => (float[N] y) { y = If (b) <then_branch = t () => (float[N] u) { u = Exp(x) }, "
         "else_branch = e () => (float[N] v) { v = Neg(z) }> }", r"Neg, output 'v'\) reads 'z', which nothing"),
        ("g (float[N] x, bool b) => (float[N] y) { y = If (b) <then_branch = t () => (float[N] u) { v = Exp(x) }, "
         "else_branch = e () => (float[N] v) { v = Neg(x) }> }", "No node computes the output 'u'"),
        ("g (float[N] x, bool b) => (float[N] y) { y = If (b) <then_branch = t () => (float[N] u) { u = Exp(x) }> }",
         "If.* cannot be read: If: else_branch is a Subgraph of values, not NoneType"),
        ("g (seq(float[N]) s, int64 n) => (seq(float[N]) y) { y = Loop (n, , s) <body = b (int64 i, bool c, "
         "seq(float[N]) t) => (bool d, seq(float[N]) u) { d = Identity(c) u = Identity(t) }> }", "'s' is no tensor"),
        ("g (float[N] x) => (float[N] y) { s = SequenceConstruct(x)  y = SequenceMap (s) <body = b (float[N] t) => "
         "(float[N] u) { u = Exp(t) }> }", "SequenceMap.* has a subgraph; of the operators that have one, If, Loop"),
        ("g (float[N] x, float[T, N] xs) => (float[N] y) { y = Scan <num_scan_inputs = 1, body = b (float[N] s) => "
         "(float[N] u) { u = Exp(s) }> (x, xs) }", "Scan: the inputs of the body, 1 of them, should be 2"),
        ("g (float[N] x, float[T, N] xs) => (float[N] y) { y = Scan <body = b (float[N] s, float[N] t) => "
         "(float[N] u) { u = Exp(s) }> (x, xs) }", "Scan needs num_scan_inputs, how many of its 2 inputs are read"),
        ("g (float[N] x, float t) => (float[N] y) { y = Scan <num_scan_inputs = 1, body = b (float[N] s, float r) => "
         "(float[N] u) { u = Mul(s, r) }> (x, t) }", r"Scan reads <Value t float32\[\]> along its axis 0, which"),
        ("g (seq(float[N]) x) => (int64 y) { y = SequenceLength(x) }", "Input 'x' is no tensor"),
        ("g (float[N] x) => (string[N] y) { y = Constant <value_string: string = \"a\"> () }",
         "A Constant of .*'value_string'.* is no tensor of numbers"),
    ],
)
def test_errors(body, message):
    with pytest.raises(ModelError, match=message):
        load(text(body))


def test_a_custom_operator(monkeypatch):
    """The error says how to read it; then it needs no schema."""
    monkeypatch.setattr("ortpartial.model.reader.EXPANSIONS", dict(EXPANSIONS))
    model = text("g (float[N] x) => (float[N] y) { z = here.Swish <beta = 2.0> (x)  y = Identity(z) }")
    with pytest.raises(ModelError, match=r"Node .* cannot be read: .*here.Swish .* by load\(model, custom_ops_library="
                                         r".* by ortpartial.model.register_expansion\('Swish', 'here', formula\)\."):
        load(model)
    register_expansion("Swish", "here", lambda inputs, attributes, _: [
        inputs[0] * op.Sigmoid(attributes["beta"] * inputs[0])])
    y = load(model).values["z"]
    assert [v.op_type for v in (y.node, y.node.inputs[1].node)] == ["Mul", "Sigmoid"]
    assert y.shape == ("N",)


def test_a_branch_for_another_number_of_axes_is_not_read():
    """The function body of AffineGrid splits the sizes of 2-D images also where those of 3-D images are given."""
    model = text("""g (float[N,3,4] x, int64[5] size) => (float[a,b,c] y) {
        n = Size(size)
        five = Constant <value = int64 {5}> ()
        is_volume = Equal(n, five)
        y = If (is_volume) <then_branch = t () => (float[a,b,c] u) { u = Exp(x) },
                            else_branch = e () => (float[a,b,c] v) {
            k = Constant <value = int64[4] {1, 1, 1, 1}> ()
            a, b, c, d = Split(size, k)
            v = Reshape(x, d)
        }>
    }""")
    assert [node.op_type for node in topological([load(model).outputs["y"]])] == ["Exp"]


OPTIONAL = {
    "Attention": ("y = Attention(x, x, x)", "float[1, 1, 2, 2] x", 23),
    "Attention of lengths": ("y = Attention(x, x, x, , , , n)", "float[1, 1, 2, 2] x, int64[1] n", 25),
    "BatchNormalization": ("y = BatchNormalization(x, s, s, s, s)", "float[2, 3] x, float[3] s", 9),
    "Dropout": ("y = Dropout(x)", "float[2, 3] x", 7),
    "GRU": (", y = GRU<hidden_size = 2>(x, w, r)", "float[3, 1, 2] x, float[1, 6, 2] w, float[1, 6, 2] r", 14),
    "LSTM": (", , y = LSTM<hidden_size = 2>(x, w, r)", "float[3, 1, 2] x, float[1, 8, 2] w, float[1, 8, 2] r", 14),
    "LayerNormalization": ("y = LayerNormalization(x, s)", "float[2, 3] x, float[3] s", 17),
    "MaxPool": ("y = MaxPool<kernel_shape = [2, 2]>(x)", "float[1, 1, 4, 4] x", 12),
    "SoftmaxCrossEntropyLoss": ("y = SoftmaxCrossEntropyLoss(x, t)", "float[3, 2] x, int64[3] t", 13),
    "Unique": ("y = Unique(x)", "float[4] x", 11),
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_node_gives_the_outputs_of_the_file(name):
    """Attention 24 and 25 refuse those of a cache beside the lengths of sequences, even unread ones."""
    node, inputs, opset = OPTIONAL[name]
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => (float y) {{ {node} }}')
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = load(proto)
    (built,) = build(model.inputs, model.outputs).graph.node
    assert list(built.output) == list(proto.graph.node[0].output)


@pytest.mark.parametrize(("axes", "taken"), [("2,3", "Exp"), ("2", "Relu")])
def test_a_branch_by_arithmetic_of_the_number_of_axes(axes, taken):
    """As torch's TorchScript exporter writes Tensor.repeat_interleave; the other branch would hide the rank."""
    model = text(f"""g (float[{axes}] x) => (float[a,b] y) {{
        s = Shape(x)
        n = Size(s)
        two = Constant <value = int64 {{2}}> ()
        rest = Sub(n, two)
        zero = Constant <value = int64 {{0}}> ()
        is_less = Less(rest, zero)
        y = If (is_less) <then_branch = t () => (u) {{ u = Relu(x) }}, else_branch = e () => (v) {{ v = Exp(x) }}>
    }}""")
    assert [node.op_type for node in topological([load(model).outputs["y"]])] == [taken]
