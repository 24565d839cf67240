"""Models that would crash or hang onnxruntime although they pass onnx's checker."""

import itertools
import re

import numpy as np
import onnx
from onnx import helper, numpy_helper

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
REAL = np.linspace(-1, 1, 64, dtype=np.float32)


def model(body, inputs="float[2,4] x", weights=None):
    """A graph of these nodes, which compute y; `h`, the product of x and a weight, is what they may start from."""
    start = "h = Mul(x, w) " if re.search(r"\bh\b", body) else ""
    proto = onnx.parser.parse_model(f"{HEAD} agraph ({inputs}) => (float[N, M] y) {{ {start}{body} }}")
    stored = {"w": np.ones(1, np.float32), **(weights or {})}
    used = {n for node in proto.graph.node for n in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in stored.items() if n in used)
    return proto


def real(*shape):
    return np.resize(REAL, shape)


def image(body, weights=None):
    return model(body, "float[2,4,6,6] x", weights), {"x": real(2, 4, 6, 6)}


def row(body, weights=None):
    return model(body, weights=weights), {"x": real(2, 4)}


def whole(body, *numbers, dtype="int64", weights=None):
    a = np.array(numbers, dtype)
    return model(body, f"float[2,4] x, {dtype}[{len(numbers)}] i", weights), {"x": real(2, 4), "i": a}


def ints(*numbers, dtype=np.int64):
    return np.array(numbers, dtype)


def division(op_type, a, b, dtype=np.int64, **attributes):
    """y = h + float(a op b) with constants a and b."""
    stored = {"a": np.array(a, dtype), "b": np.array(b, dtype)}
    proto = model("q = Div(a, b) f = Cast<to = 1>(q) y = Add(h, f)", weights=stored)
    node = next(n for n in proto.graph.node if n.op_type == "Div")
    node.op_type = op_type
    node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    return proto, {"x": real(2, 4)}


def least(op_type, where, is_old):
    """The least number divided by -1, by constants; in an old model, so that it is run as it is beside the upgraded."""
    division = f"q = {op_type}(c, b)"
    nodes = {
        "read": f"c = Identity(a) {division}",
        "folded": f"c = Add(e, e) {division}",
        "cast": f"c = Cast<to = 7>(g) {division}",
        "branch": f"q = If(t) <then_branch = u () => (int64[1] o) {{ o = {op_type}(a, b) }}, "
                  "else_branch = v () => (int64[1] p) { p = Identity(b) }>",
        "unread": f"r = {op_type}(a, b) q = Identity(b)",
    }[where]
    mean = "m = ReduceMean<axes = [0], keepdims = 1>(h)" if is_old else "m = Identity(h)"
    stored = {"a": ints(-(2**63)), "b": ints(-1), "e": ints(-(2**62)), "g": np.float32([-(2.0**63)]),
              "t": np.array(True)}
    proto = model(f"{nodes} f = Cast<to = 1>(q) {mean} y = Add(m, f)")
    read = {i for node in proto.graph.node for g in (node, *(n for a in node.attribute for n in a.g.node))
            for i in g.input}
    proto.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in stored.items() if n in read)
    if is_old:
        proto.opset_import[0].version, proto.ir_version = 17, 8
    return proto


def functions(*lines):
    """A model that calls f1, with local functions `name(callee twice)`."""
    imports = 'opset_import: ["" : 21, "l" : 1]'
    bodies = "".join(f'<domain: "l", {imports}> {name} (x) => (y) {{ {body} }}' for name, body in lines)
    proto = onnx.parser.parse_model(f"<ir_version: 10, {imports}> agraph (float[2,4] x) => (float[2,4] y) "
                                   f"{{ h = Mul(x, w) y = l.f1(h) }} {bodies}")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    return proto, {"x": real(2, 4)}


def chain(n, op_type, weights=1):
    names = [f"t{i}" for i in range(n)] + ["y"]
    nodes = [helper.make_node("Mul", ["x", "w"], ["t0"])]
    for i, (a, b) in enumerate(itertools.pairwise(names)):
        nodes.append(helper.make_node(op_type, [a] + (["w"] if op_type in ("Add", "Mul") else []), [b], name=f"n{i}"))
    graph = helper.make_graph(nodes, "chain", [helper.make_tensor_value_info("x", 1, ["N", 4])],
                              [helper.make_tensor_value_info("y", 1, ["N", 4])],
                              [numpy_helper.from_array(np.ones(1, np.float32), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), {"x": real(2, 4)}


def infinite(trip, condition):
    """A Loop whose body hands its condition on."""
    proto = onnx.parser.parse_model(f"""{HEAD}
        agraph (float[2,4] x) => (float[2,4] y) <bool yes = {{1}}, int64 most = {{9223372036854775807}}> {{
            h = Mul(x, w)
            y = Loop({trip}, {condition}, h) <body = body (int64 k, bool c, float[2,4] a) => (bool d, float[2,4] b) {{
                d = Identity(c) b = Identity(a) }}> }}""")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    return proto, {"x": real(2, 4)}


BIG = 2**62
LAUGHS = [*((f"f{i}", f"a = l.f{i + 1}(x) b = l.f{i + 1}(x) y = Add(a, b)") for i in range(1, 40)), ("f40", "y = Relu(x)")]  # noqa: E501

K = {"k": real(4, 4, 3, 3)}
CASES = {
    "div 0": division("Div", [1, 2], [1, 0]),
    "div 0 int32": division("Div", [[1], [2]], [0], np.int32),
    "div 0 uint8": division("Div", [[1], [2]], [0], np.uint8),
    "div min": division("Div", [-(2**63)], [-1]),
    **{f"{name} min, {where}{', opset 17' * is_old}": (least(op_type, where, is_old), {"x": real(2, 4)})
       for name, op_type in (("div", "Div"), ("mod", "Mod")) for where in ("read", "folded", "cast", "branch", "unread")
       for is_old in (False, True)},
    "div min int32": division("Div", [-(2**31)], [-1], np.int32),
    "mod 0": division("Mod", [1], [0]),
    "mod min": division("Mod", [-(2**31)], [-1], np.int32),
    "mod min 64": division("Mod", [-(2**63)], [-1]),
    "fmod 0": division("Mod", [1], [0], fmod=1),
    "div big": division("Div", np.ones((2, 4)) * np.ones((600, 1, 1)), np.zeros((2, 4))),
    "div by input": whole("q = Div(c, i) f = Cast<to = 1>(q) y = Add(h, f)", 1, 0, 2, 3,
        weights={"c": ints(4, 4, 4, 4)}),
    "div by input int32": whole("q = Div(c, i) f = Cast<to = 1>(q) y = Add(h, f)", 1, 0, 2, 3, dtype="int32",
                                weights={"c": ints(4, 4, 4, 4, dtype=np.int32)}),
    "mod by input": whole("q = Mod(c, i) f = Cast<to = 1>(q) y = Add(h, f)", 1, 0, 2, 3,
        weights={"c": ints(4, 4, 4, 4)}),
    "div min by input": whole("q = Div(c, i) f = Cast<to = 1>(q) y = Add(h, f)", 1, -1, 2, 3,
                              weights={"c": ints(4, -(2**63), 4, 4)}),
    "mod min by input": whole("q = Mod(c, i) f = Cast<to = 1>(q) y = Add(h, f)", 1, -1, 2, 3,
                              weights={"c": ints(4, -(2**63), 4, 4)}),
    "div min of input": whole("q = Div(i, c) f = Cast<to = 1>(q) y = Add(h, f)", 1, -(2**63), 2, 3,
                              weights={"c": ints(4, -1, 4, 4)}),
    "div by input is fine": whole("q = Div(c, i) f = Cast<to = 1>(q) y = Add(h, f)", 1, 1, 2, 3,
        weights={"c": ints(4, 4, 4, 4)}),
    "groups 0": image("y = GroupNormalization<num_groups = 0>(h, s, s)", {"s": real(4)}),
    "groups -1": image("y = GroupNormalization<num_groups = -1>(h, s, s)", {"s": real(4)}),
    "groups 3": image("y = GroupNormalization<num_groups = 3>(h, s, s)", {"s": real(4)}),
    "conv group 0": image("y = Conv<group = 0>(h, k)", K),
    "conv group -1": image("y = Conv<group = -1>(h, k)", K),
    "conv group 3": image("y = Conv<group = 3>(h, k)", K),
    "conv transpose group 0": image("y = ConvTranspose<group = 0>(h, k)", K),
    "conv transpose group -1": image("y = ConvTranspose<group = -1>(h, k)", K),
    "conv transpose group huge": image(f"y = ConvTranspose<group = {BIG}>(h, k)", K),
    "instance norm empty": image("y = InstanceNormalization(h, s, s)", {"s": real(0)}),
    "batch norm wrong": image("y = BatchNormalization(h, s, s, s, s)", {"s": real(3)}),
    "lrn 0": image("y = LRN<size = 0>(h)"),
    "lrn -1": image("y = LRN<size = -1>(h)"),
    "lrn huge": image(f"y = LRN<size = {BIG}>(h)"),
    "depth to space 0": image("y = DepthToSpace<blocksize = 0>(h)"),
    "space to depth 0": image("y = SpaceToDepth<blocksize = 0>(h)"),
    "depth to space -1": image("y = DepthToSpace<blocksize = -1>(h)"),
    "space to depth huge": image(f"y = SpaceToDepth<blocksize = {BIG}>(h)"),
    "max unpool": image("y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(h, i)",
        {"i": np.full((2, 4, 6, 6), 10**9)}),
    "max unpool -1": image("y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(h, i)",
        {"i": np.full((2, 4, 6, 6), -(10**12))}),
    "max unpool huge": image(f"y = MaxUnpool<kernel_shape = [2, 2], strides = [{BIG}, 2]>(h, i)",
        {"i": np.zeros((2, 4, 6, 6), np.int64)}),
    "max unpool small": image("y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(h, i)",
        {"i": np.zeros((1, 1, 1, 1), np.int64)}),
    "max unpool shape": image("y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(h, i, s)",
        {"i": np.zeros((2, 4, 6, 6), np.int64), "s": ints(1, 1, 1, 1)}),
    "roi batch": image("y = RoiAlign(h, r, b)", {"r": real(1, 4), "b": ints(10**9)}),
    "roi batch -1": image("y = RoiAlign(h, r, b)", {"r": real(1, 4), "b": ints(-(10**9))}),
    "roi size": image(f"y = RoiAlign<output_height = {2**40}>(h, r, b)", {"r": real(1, 4), "b": ints(0)}),
    "roi size 0": image("y = RoiAlign<output_height = 0>(h, r, b)", {"r": real(1, 4), "b": ints(0)}),
    "roi size -1": image("y = RoiAlign<output_height = -1, output_width = -1>(h, r, b)", {"r": real(1, 4),
        "b": ints(0)}),
    "roi nan": image("y = RoiAlign(h, r, b)", {"r": np.full((1, 4), np.nan, np.float32), "b": ints(0)}),
    "roi far": image("y = RoiAlign<output_height = 3>(h, r, b)",
        {"r": ints(-1e30, 0, 1e30, 1e30, dtype=np.float32).reshape(1, 4), "b": ints(0)}),
    "roi few": image("y = RoiAlign(h, r, b)", {"r": real(3, 4), "b": ints(0)}),
    "roi ratio": image(f"y = RoiAlign<sampling_ratio = {2**31 - 1}>(h, r, b)", {"r": real(1, 4), "b": ints(0)}),
    "max roi": image("y = MaxRoiPool<pooled_shape = [2, 2]>(h, r)",
        {"r": ints(9e8, 0, 0, 3, 3, dtype=np.float32).reshape(1, 5)}),
    "label": row("y = SoftmaxCrossEntropyLoss(h, t)", {"t": ints(0, 4)}),
    "label far": row("y = SoftmaxCrossEntropyLoss(h, t)", {"t": ints(0, 2**40)}),
    "label -1": row("y = SoftmaxCrossEntropyLoss(h, t)", {"t": ints(0, -1)}),
    "label nll": row("l = LogSoftmax(h) y = NegativeLogLikelihoodLoss(l, t)", {"t": ints(0, 2**40)}),
    "label ignored": row("y = SoftmaxCrossEntropyLoss<ignore_index = -100>(h, t)", {"t": ints(0, -100)}),
    "label input": whole("y = SoftmaxCrossEntropyLoss(h, i)", 0, 2**30),
    "label input -1": whole("y = SoftmaxCrossEntropyLoss(h, i)", 0, -(2**30)),
    "label input nll": whole("l = LogSoftmax(h) y = NegativeLogLikelihoodLoss(l, i)", 0, 2**30),
    "label computed": whole("t = Add(i, c) y = SoftmaxCrossEntropyLoss(h, t)", 0, 1, weights={"c": ints(2**30)}),
    "label computed ignored": whole("t = Add(i, c) y = SoftmaxCrossEntropyLoss<ignore_index = -100>(h, t)", 0, 1,
        weights={"c": ints(-100)}),
    "label computed nll": whole("t = Add(i, c) l = LogSoftmax(h) y = NegativeLogLikelihoodLoss(l, t)", 0, 1,
        weights={"c": ints(2**30)}),
    "label computed is fine": whole("t = Add(i, c) y = SoftmaxCrossEntropyLoss(h, t)", 0, 1,
        weights={"c": ints(2)}),
    "label rows": whole("y = SoftmaxCrossEntropyLoss(h, i)", 0, 1, 2, 3, 0, 1, 2),
    "label weights": row("y = SoftmaxCrossEntropyLoss(h, t, v)", {"t": ints(0, 3), "v": real(2)}),
    "gather": row("y = Gather(h, i)", {"i": ints(2**40)}),
    "gather -": row("y = Gather(h, i)", {"i": ints(-(2**40))}),
    "gather input": whole("y = Gather<axis = 1>(h, i)", 0, 2**40),
    "gather input fine": whole("y = Gather<axis = 1>(h, i)", 0, -4),
    "gather computed": whole("j = Add(i, c) y = Gather(h, j)", 0, 2**40, weights={"c": ints(2**40)}),
    "gather elements": row("y = GatherElements(h, i)", {"i": np.full((2, 4), 2**40)}),
    "gather elements computed": whole("j = Add(i, c) y = GatherElements(h, j)", 2**40,
        weights={"c": np.full((2, 4), 2**40)}),
    "gather elements wide": row("y = GatherElements(h, i)", {"i": np.zeros((2, 40), np.int64)}),
    "gather nd": row("y = GatherND(h, i)", {"i": np.full((1, 2), 2**40)}),
    "gather nd computed": whole("j = Add(i, c) y = GatherND(h, j)", 2**40,
        weights={"c": np.full((1, 2), -(2**41))}),
    "gather nd batch": row("y = GatherND<batch_dims = 7>(h, i)", {"i": np.full((1, 2), 0)}),
    "gather nd batch -": row("y = GatherND<batch_dims = -1>(h, i)", {"i": np.full((1, 2), 0)}),
    "scatter": row("y = ScatterElements(h, i, h)", {"i": np.full((2, 4), 2**40)}),
    "scatter nd": row("y = ScatterND(h, i, u)", {"i": np.full((1, 2), 2**40), "u": real(1)}),
    "scatter nd computed": whole("j = Add(i, c) y = ScatterND(h, j, u)", 2**40,
        weights={"c": np.full((1, 2), -(2**41)), "u": real(1)}),
    "conv strides 0": image("y = Conv<strides = [0, 0]>(h, k)", K),
    "conv strides -1": image("y = Conv<strides = [-1, 1]>(h, k)", K),
    "conv strides huge": image(f"y = Conv<strides = [{BIG}, {BIG}]>(h, k)", K),
    "conv strides few": image("y = Conv<strides = [1]>(h, k)", K),
    "conv pads huge": image(f"y = Conv<pads = [{BIG}, 0, {BIG}, 0]>(h, k)", K),
    "conv pads max": image(f"y = Conv<pads = [{2**63 - 1}, 0, {2**63 - 1}, 0]>(h, k)", K),
    "conv pads large": image(f"y = Conv<pads = [{2**31}, 0, 0, 0]>(h, k)", K),
    "conv pads million": image(f"y = Conv<pads = [{10**7}, 0, 0, 0]>(h, k)", K),
    "conv pads -": image("y = Conv<pads = [-100, 0, 0, 0]>(h, k)", K),
    "conv pads -3": image("y = Conv<pads = [-3, 0, -3, 0]>(h, k)", K),
    "conv pads few": image("y = Conv<pads = [1]>(h, k)", K),
    "conv pads none": image("y = Conv<pads = [0, 0]>(h, k)", K),
    "conv dilations 0": image("y = Conv<dilations = [0, 0]>(h, k)", K),
    "conv dilations huge": image(f"y = Conv<dilations = [{BIG}, 1]>(h, k)", K),
    "conv dilations -": image("y = Conv<dilations = [-1, 1]>(h, k)", K),
    "conv kernel 0": image("y = Conv(h, k)", {"k": np.zeros((4, 4, 0, 0), np.float32)}),
    "conv kernel shape": image("y = Conv<kernel_shape = [9, 9]>(h, k)", K),
    "conv no channels": image("y = Conv(h, k)", {"k": np.zeros((0, 4, 3, 3), np.float32)}),
    "conv transpose strides 0": image("y = ConvTranspose<strides = [0, 0]>(h, k)", K),
    "conv transpose huge": image(f"y = ConvTranspose<strides = [{2**40}, 1]>(h, k)", K),
    "conv transpose padding": image(f"y = ConvTranspose<output_padding = [{2**40}, 1]>(h, k)", K),
    "conv transpose padding -": image("y = ConvTranspose<output_padding = [-50, -50]>(h, k)", K),
    "conv transpose shape": image(f"y = ConvTranspose<output_shape = [{2**40}, 1]>(h, k)", K),
    "conv transpose shape -": image("y = ConvTranspose<output_shape = [-5, 1]>(h, k)", K),
    "conv transpose pads": image("y = ConvTranspose<pads = [100, 100, 100, 100]>(h, k)", K),
    "conv transpose dilations 0": image("y = ConvTranspose<dilations = [0, 0]>(h, k)", K),
    "max pool strides 0": image("y = MaxPool<kernel_shape = [2, 2], strides = [0, 0]>(h)"),
    "max pool strides huge": image(f"y = MaxPool<kernel_shape = [2, 2], strides = [{BIG}, 1]>(h)"),
    "max pool kernel 0": image("y = MaxPool<kernel_shape = [0, 0]>(h)"),
    "max pool kernel -1": image("y = MaxPool<kernel_shape = [-1, -1]>(h)"),
    "max pool kernel huge": image(f"y = MaxPool<kernel_shape = [{BIG}, 1]>(h)"),
    "max pool pads": image("y = MaxPool<kernel_shape = [2, 2], pads = [9, 9, 9, 9]>(h)"),
    "max pool pads huge": image(f"y = MaxPool<kernel_shape = [2, 2], pads = [{BIG}, 0, 0, 0]>(h)"),
    "max pool dilations 0": image("y = MaxPool<kernel_shape = [2, 2], dilations = [0, 0]>(h)"),
    "max pool dilations huge": image(f"y = MaxPool<kernel_shape = [2, 2], dilations = [{BIG}, 1]>(h)"),
    "max pool same": image("y = MaxPool<kernel_shape = [2, 2], strides = [0, 0], auto_pad = \"SAME_UPPER\">(h)"),
    "average pool strides 0": image("y = AveragePool<kernel_shape = [2, 2], strides = [0, 0]>(h)"),
    "average pool kernel 0": image("y = AveragePool<kernel_shape = [0, 0]>(h)"),
    "average pool kernel huge":
        image(f"y = AveragePool<kernel_shape = [{2**40}, 1], pads = [{2**40}, 0, {2**40}, 0]>(h)"),
    "average pool pads": image("y = AveragePool<kernel_shape = [2, 2], pads = [-9, 9, 9, 9]>(h)"),
    "lp pool p 0": image("y = LpPool<kernel_shape = [2, 2], p = 0>(h)"),
    "lp pool strides 0": image("y = LpPool<kernel_shape = [2, 2], strides = [0, 0]>(h)"),
    "col2im": row("y = Col2Im(h, s, b)", {"s": ints(5, 5), "b": ints(0, 0)}),
    "col2im huge": row("y = Col2Im(h, s, b)", {"s": ints(2**40, 5), "b": ints(1, 1)}),
    "deform conv": image("y = DeformConv<group = 0>(h, k, o)", {**K, "o": real(2, 18, 4, 4)}),
    "deform conv offsets": image("y = DeformConv<offset_group = 0>(h, k, o)", {**K, "o": real(2, 18, 4, 4)}),
    "grid sample": image("y = GridSample(h, g)", {"g": np.full((2, 2, 2, 2), np.nan, np.float32)}),
    "grid sample far": image("y = GridSample(h, g)", {"g": np.full((2, 2, 2, 2), 1e38, np.float32)}),
    "grid sample far reflect": image('y = GridSample<padding_mode = "reflection">(h, g)',
        {"g": np.full((2, 2, 2, 2), 1e38, np.float32)}),
    "affine grid": row("r = Reshape(h, s) z = ReduceSum(r) y = AffineGrid(t, u)", {"s": ints(2, 4),
        "t": real(1, 2, 3), "u": ints(1, 1, 2**40, 2**20)}),
    "resize 0": image("y = Resize(h, , s)", {"s": np.zeros(4, np.float32)}),
    "resize -": image("y = Resize(h, , s)", {"s": -np.ones(4, np.float32)}),
    "resize huge": image("y = Resize(h, , s)", {"s": ints(1, 1, 1e12, 1, dtype=np.float32)}),
    "resize sizes": image("y = Resize(h, , , s)", {"s": ints(2, 4, 2**40, 6)}),
    "resize sizes -": image("y = Resize(h, , , s)", {"s": ints(2, 4, -5, 6)}),
    "resize sizes 0": image("y = Resize(h, , , s)", {"s": ints(2, 4, 0, 6)}),
    "resize linear 0": image('y = Resize<mode = "linear">(h, , , s)', {"s": ints(2, 4, 0, 6)}),
    "resize axes": image("y = Resize<axes = [9, 9]>(h, , s)", {"s": np.ones(2, np.float32)}),
    "pad huge": row("y = Pad(h, p)", {"p": ints(0, 2**40, 0, 0)}),
    "pad max": row("y = Pad(h, p)", {"p": ints(0, BIG, 0, BIG)}),
    "pad -": row("y = Pad(h, p)", {"p": ints(0, -9, 0, 0)}),
    "pad reflect": row('y = Pad<mode = "reflect">(h, p)', {"p": ints(0, 90, 0, 90)}),
    "pad wrap": row('y = Pad<mode = "wrap">(h, p)', {"p": ints(0, 90, 0, -4)}),
    "pad edge": row('y = Pad<mode = "edge">(h, p)', {"p": ints(0, 3, 0, -4)}),
    "pad few": row("y = Pad(h, p)", {"p": ints(0)}),
    "tile huge": row("y = Tile(h, r)", {"r": ints(1, 2**40)}),
    "tile max": row("y = Tile(h, r)", {"r": ints(BIG, BIG)}),
    "tile input": whole("y = Tile(h, i)", 1, 2**40),
    "tile input -": whole("y = Tile(h, i)", 1, -1),
    "expand huge": row("y = Expand(h, s)", {"s": ints(2**40, 2, 4)}),
    "expand input": whole("y = Expand(h, i)", 2**40, 2, 4),
    "expand -": row("y = Expand(h, s)", {"s": ints(-3, 2, 4)}),
    "constant of shape": row("z = ConstantOfShape(s) y = Add(h, z)", {"s": ints(2**40, 1, 4)}),
    "constant of shape max": row("z = ConstantOfShape(s) y = Add(h, z)", {"s": ints(BIG, BIG, 4)}),
    "constant of shape input": whole("z = ConstantOfShape(i) y = Add(h, z)", 2**40, 1, 4),
    "constant of shape -": row("z = ConstantOfShape(s) y = Add(h, z)", {"s": ints(-5, 1, 4)}),
    "range": row("r = Range(a, b, c) f = Cast<to = 1>(r) s = ReduceSum(f) y = Add(h, s)", {"a": np.int64(0),
        "b": np.int64(10**12), "c": np.int64(1)}),
    "range 0": row("r = Range(a, b, c) f = Cast<to = 1>(r) s = ReduceSum(f) y = Add(h, s)", {"a": np.int64(0),
        "b": np.int64(10), "c": np.int64(0)}),
    "range whole": row("r = Range(a, b, c) s = ReduceSum(r) f = Cast<to = 1>(s) y = Add(h, f)", {"a": np.int64(0),
        "b": np.int64(10**12), "c": np.int64(1)}),
    "expand whole": row("r = Expand(a, b) s = ReduceSum(r) f = Cast<to = 1>(s) y = Add(h, f)", {"a": np.int64(1),
        "b": ints(10**12)}),
    "tile whole": row("r = Tile(a, b) s = ReduceSum(r) f = Cast<to = 1>(s) y = Add(h, f)", {"a": ints(1),
        "b": ints(10**12)}),
    "pad whole": row("r = Pad(a, b) s = ReduceSum(r) f = Cast<to = 1>(s) y = Add(h, f)", {"a": ints(1),
        "b": ints(0, 10**11)}),
    "one hot whole": row("r = OneHot(a, d, b) s = ReduceSum(r) f = Cast<to = 1>(s) y = Add(h, f)", {"a": ints(1),
        "d": np.int64(10**11), "b": ints(0, 1)}),
    "eye": row("r = EyeLike<dtype = 1>(a) f = ReduceSum(r) y = Add(h, f)", {"a": np.zeros((0, 4), np.int64)}),
    "window": row("r = HannWindow(a) f = ReduceSum(r) y = Add(h, f)", {"a": np.int64(10**12)}),
    "window -": row("r = HannWindow(a) f = ReduceSum(r) y = Add(h, f)", {"a": np.int64(-5)}),
    "random huge": row(f"r = RandomNormal<shape = [{2**40}]>() f = ReduceSum(r) y = Add(h, f)"),
    "random -": row("r = RandomNormal<shape = [-4]>() f = ReduceSum(r) y = Add(h, f)"),
    "one hot huge": whole("z = OneHot(i, d, v) s = ReduceSum(z) y = Add(h, s)", 1, 2,
        weights={"d": np.int64(2**40), "v": real(2)}),
    "one hot -": whole("z = OneHot(i, d, v) s = ReduceSum(z) y = Add(h, s)", 1, 2, weights={"d": np.int64(-5),
        "v": real(2)}),
    "top k": row("y, i = TopK(h, k)", {"k": ints(2**40)}),
    "top k -": row("y, i = TopK(h, k)", {"k": ints(-5)}),
    "top k 0": row("y, i = TopK(h, k)", {"k": ints(0)}),
    "trilu": row("y = Trilu(h, k)", {"k": np.int64(-(2**63))}),
    "trilu max": row("y = Trilu(h, k)", {"k": np.int64(2**63 - 1)}),
    "slice steps 0": row("y = Slice(h, a, b, c, d)", {"a": ints(0), "b": ints(4), "c": ints(1), "d": ints(0)}),
    "slice steps min": row("y = Slice(h, a, b, c, d)", {"a": ints(0), "b": ints(-(2**63)), "c": ints(1),
        "d": ints(-(2**63))}),
    "slice twice": row("y = Slice(h, a, b, c)", {"a": ints(0, 0), "b": ints(4, 4), "c": ints(1, 1)}),
    "slice input steps": whole("y = Slice(h, a, b, c, i)", 0, weights={"a": ints(0), "b": ints(4), "c": ints(1)}),
    "split 0": row("y = Split<axis = 1, num_outputs = 0>(h)"),
    "split -": row("y, z = Split<axis = 1>(h, s)", {"s": ints(-4, 8)}),
    "split more": row("y, z = Split<axis = 1, num_outputs = 9>(h)"),
    "concat axis": row("y = Concat<axis = 99>(h, h)"),
    "flatten axis": row("y = Flatten<axis = 99>(h)"),
    "transpose": row("y = Transpose<perm = [0, 0]>(h)"),
    "transpose far": row("y = Transpose<perm = [0, 99]>(h)"),
    "reverse": row("y = ReverseSequence(h, l)", {"l": ints(99, 99, 99, 99)}),
    "reverse -": row("y = ReverseSequence(h, l)", {"l": ints(-9, 1, 1, 1)}),
    "compress": row("y = Compress<axis = 1>(h, c)", {"c": np.ones(99, bool)}),
    "cumsum axis": row("y = CumSum(h, a)", {"a": np.int64(99)}),
    "cumsum input": whole("s = Squeeze(i) y = CumSum(h, s)", 99),
    "squeeze": row("y = Squeeze(h, a)", {"a": ints(0)}),
    "unsqueeze far": row("y = Unsqueeze(h, a)", {"a": ints(2**40)}),
    "unsqueeze twice": row("y = Unsqueeze(h, a)", {"a": ints(0, 0)}),
    "reshape 0": row("y = Reshape(h, s)", {"s": ints(0, 0, 0)}),
    "reshape -1 0": row("y = Reshape<allowzero = 1>(h, s)", {"s": ints(0, -1)}),
    "reshape -1 -1": row("y = Reshape(h, s)", {"s": ints(-1, -1)}),
    "reshape overflow": row("y = Reshape(h, s)", {"s": ints(2**32, 2**32, 8)}),
    "reduce axes": row("y = ReduceSum(h, a)", {"a": ints(99)}),
    "reduce axes twice": row("y = ReduceSum(h, a)", {"a": ints(1, 1)}),
    "reduce max empty": model("g = Mul(h, h) y = ReduceMax(g)", "float[0,4] x"),
    "empty l2": model("y = ReduceL2(h)", "float[0,4] x"),
    "softmax axis": row("y = Softmax<axis = 99>(h)"),
    "softmax empty": model("y = Softmax(h)", "float[2,0] x"),
    "layer norm": row("y = LayerNormalization<axis = -99>(h, s)", {"s": real(4)}),
    "layer norm scale": row("y = LayerNormalization(h, s)", {"s": real(1)}),
    "layer norm empty": model("y = LayerNormalization(h, s)", "float[2,0] x", {"s": real(0)}),
    "layer norm no bias": row("y = LayerNormalization(h, s, )", {"s": real(4)}),
    "dropout 1": row("y = Dropout(h, r, t)", {"r": np.float32(1), "t": np.bool_(True)}),
    "dropout 2": row("y = Dropout(h, r, t)", {"r": np.float32(2), "t": np.bool_(True)}),
    "einsum": row('y = Einsum<equation = "ij,jk->ik">(h, h)'),
    "einsum far": row('y = Einsum<equation = "">(h)'),
    "einsum names": row('y = Einsum<equation = "...............">(h)'),
    "matmul": row("y = MatMul(h, m)", {"m": np.zeros((4, 0), np.float32)}),
    "gemm": row("y = Gemm(h, m, h)", {"m": real(4, 4)}),
    "gemm c": row("y = Gemm(h, m, c)", {"m": real(4, 4), "c": real(3)}),
    "lstm 0": model("y, a, b = LSTM<hidden_size = 0>(h, v, r)", "float[2,1,4] x", {"v": real(1, 16, 4),
        "r": real(1, 16, 4)}),
    "lstm huge": model(f"y, a, b = LSTM<hidden_size = {2**40}>(h, v, r)", "float[2,1,4] x", {"v": real(1, 16, 4),
        "r": real(1, 16, 4)}),
    "gru layout": model("y, a = GRU<hidden_size = 4, layout = 7>(h, v, r)", "float[2,1,4] x", {"v": real(1, 12, 4),
        "r": real(1, 12, 4)}),
    "rnn lens": model("y, a = RNN<hidden_size = 4>(h, v, r, , l)", "float[2,1,4] x", {"v": real(1, 4, 4),
        "r": real(1, 4, 4), "l": ints(99, dtype=np.int32)}),
    "stft": model("y = STFT(h, f, , l)", "float[1,16,1] x", {"f": np.int64(0), "l": np.int64(4)}),
    "stft -": model("y = STFT(h, f, , l)", "float[1,16,1] x", {"f": np.int64(-1), "l": np.int64(4)}),
    "stft long": model("y = STFT(h, f, , l)", "float[1,16,1] x", {"f": np.int64(1), "l": np.int64(2**40)}),
    "dft": model("y = DFT(h, l)", "float[1,16,1] x", {"l": np.int64(2**40)}),
    "dft 0": model("y = DFT(h, l)", "float[1,16,1] x", {"l": np.int64(0)}),
    "mel": row("m = MelWeightMatrix(a, b, c, d, e) s = ReduceSum(m) y = Add(h, s)", {"a": np.int64(2**40),
        "b": np.int64(8), "c": np.int64(8), "d": np.float32(0), "e": np.float32(1)}),
    "mel 0": row("m = MelWeightMatrix(a, b, c, d, e) s = ReduceSum(m) y = Add(h, s)", {"a": np.int64(8),
        "b": np.int64(8), "c": np.int64(0), "d": np.float32(0), "e": np.float32(1)}),
    "center crop": row("y = CenterCropPad(h, s)", {"s": ints(2**40, 4)}),
    "non max": row("n = NonMaxSuppression(b, s, m) f = Cast<to = 1>(n) r = ReduceSum(f) y = Add(h, r)",
        {"b": real(1, 3, 4), "s": real(1, 1, 3), "m": ints(2**62)}),
    "shift": row("q = BitShift<direction = \"LEFT\">(a, b) f = Cast<to = 1>(q) y = Add(h, f)",
        {"a": np.array([1], np.uint64), "b": np.array([200], np.uint64)}),
    "quantize": row("q = QuantizeLinear<axis = 99>(h, s) y = DequantizeLinear<axis = 99>(q, s)", {"s": real(4)}),
    "dequantize block": row("y = DequantizeLinear<axis = 0, block_size = 0>(q, s) z = Add(h, h)",
        {"q": np.ones((4, 4), np.int8), "s": real(4, 4)}),
    "dequantize block -": row("y = DequantizeLinear<axis = 0, block_size = -1>(q, s) z = Add(h, h)",
        {"q": np.ones((4, 4), np.int8), "s": real(4, 4)}),
    "quantize block": row("q = QuantizeLinear<axis = 0, block_size = 3>(h, s) y = Cast<to = 1>(q)",
        {"s": real(1, 4)}),
    "unique": row("y = Unique<axis = 99>(h)"),
    "arg max": row("i = ArgMax<axis = 99>(h) f = Cast<to = 1>(i) y = Add(h, f)"),
    "arg max empty": model("i = ArgMax<axis = 1>(x) f = Cast<to = 1>(i) y = Add(h, f)", "float[2,0] x"),
    "pow": row("q = Pow(a, b) f = Cast<to = 1>(q) y = Add(h, f)", {"a": ints(0), "b": ints(-1)}),
    "cast nan": row("q = Cast<to = 7>(n) f = Cast<to = 1>(q) y = Add(h, f)", {"n": np.array([np.nan], np.float32)}),
    "multinomial":
        row("m = Multinomial<sample_size = 1099511627776>(h) f = Cast<to = 1>(m) s = ReduceSum(f) y = Add(h, s)"),
    "range float": row("r = Range(a, b, c) s = ReduceSum(r) y = Add(h, s)", {"a": np.float32(0),
        "b": np.float32(1e12), "c": np.float32(1)}),
    "range constant":
        row("a = Constant<value_float = 0.0>() b = Constant<value_float = 1e30>() c = Constant<value_float = 1.0>() "
            "r = Range(a, b, c) s = ReduceSum(r) y = Add(h, s)"),
    "range input":
        whole("b = ReduceMax<keepdims = 0>(i) r = Range(a, b, c) f = Cast<to = 1>(r) s = ReduceSum(f) y = Add(h, s)",
        10**12, weights={"a": np.int64(0), "c": np.int64(1)}),
    "uniform": row("r = RandomUniformLike<low = 1.0, high = 0.0>(x) y = Add(h, r)"),
    "uniform nan":
        row("r = RandomUniform<shape = [4], low = -1e38, high = 1e38>() y = Add(h, r)"),
    "normal": row("r = RandomNormalLike<scale = -1.0>(x) y = Add(h, r)"),
    "normal 0": row("r = RandomNormalLike<scale = 0.0>(x) y = Add(h, r)"),
    "bernoulli": row("r = Bernoulli(x) y = Add(h, r)"),
    "bernoulli fine": row("a = Abs(x) r = Bernoulli(a) y = Add(h, r)"),
    "recursive": functions(("f1", "y = l.f1(x)")),
    "mutually recursive": functions(("f1", "y = l.f2(x)"), ("f2", "y = l.f1(x)")),
    "a billion laughs": functions(*LAUGHS),
    "nested functions": functions(*[(f"f{i}", f"y = l.f{i + 1}(x)") for i in range(1, 3000)], ("f3000",
        "y = Relu(x)")),
    "loop without end": infinite("", "yes"),
    "loop max": infinite("most", "yes"),
    "gigabyte input": (model("y = Relu(h)", "float[1099511627776,4] x"), {"x": real(2, 4)}),
    "gigabyte outer": (model("a = Reshape(h, s) b = Transpose(a) y = MatMul(a, b)", "float[1000000,1] x",
        {"s": ints(-1, 1)}), {"x": real(10**6, 1)}),
}
for _name, _v in CASES.items():
    if not isinstance(_v, tuple):
        _s = [d.dim_value for d in _v.graph.input[0].type.tensor_type.shape.dim]
        CASES[_name] = (_v, {"x": real(*_s) if 0 not in _s else np.zeros(_s, np.float32)})


def behind(proto, feeds):
    """The same with the weight behind: what is meant to kill is run, and not differentiated."""
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    for node in proto.graph.node:
        if node.output[0] == "h":
            node.CopyFrom(helper.make_node("Identity", ["x"], ["h"]))
        node.output[:] = ["y_" if o == "y" else o for o in node.output]
    proto.graph.node.append(helper.make_node("Mul", ["y_", "w"], ["y"]))
    return proto, feeds


CASES |= {f"{name}, behind": behind(*case) for name, case in CASES.items()
          if any(n.output[0] == "h" for n in case[0].graph.node)}
