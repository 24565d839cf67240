"""Export writes a training as the standard defines it; trainings that it cannot hold are refused."""

import numpy as np
import onnx
import pytest
from models import data, linear, mlp, two_in_two_out
from onnx import TensorProto, helper, version_converter
from onnx.parser import parse_model
from training_models import ALGORITHM, INFERENCE, INITIALIZATION, WHOLE, by_hand, changed

from ortpartial import (
    LossScale,
    OrtGradientForwardBackwardOptimizer,
    TrainingKit,
    TrainingSession,
    build,
    check_training_info,
    constant,
    lowered_step,
    op,
    strip_training_info,
    to_training_info,
    variable,
)
from ortpartial.exceptions import ModelError, ModelWarning, SettingError
from ortpartial.graph.control_flow import scan
from ortpartial.learning.optimizers import (
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateAdamW,
    LearningRateRMSProp,
    LearningRateSGD,
    LearningRateSGDNesterov,
)
from ortpartial.learning.penalties import ElasticLearningPenalty
from ortpartial.runtime.session import Session
from ortpartial.training_info.export import TrainingSnapshot
from ortpartial.training_info.graphs import combine_graphs
from ortpartial.training_info.operators import DOMAIN

STYLES = ("standard", "lowered")


def optimizer(model, *weights, **settings):
    return OrtGradientForwardBackwardOptimizer(model, list(weights) or None, **settings)


def trained(model, x, rows=6, **settings):
    """An optimizer that has trained on a target of zeros."""
    made = optimizer(model, batch_size=3, max_iter=2, random_state=0, **settings)
    y = made.predict(x)
    return made.fit(x, np.zeros_like(y))


def convolution():
    """Conv, MaxPool and a product: MaxPool has an output that the graph leaves out."""
    rng = np.random.default_rng(0)
    x = variable("x", "float32", ["N", 1, 6, 6])
    w = constant(rng.normal(size=(2, 1, 3, 3)).astype(np.float32), hint="w")
    v = constant(rng.normal(size=(8, 1)).astype(np.float32), hint="v")
    h = op.MaxPool(op.Conv(x, w), kernel_shape=[2, 2], strides=[2, 2])
    return build([x], {"y": op.Flatten(h) @ v})


def recurrence():
    """A Scan, of which a step needs what is inside."""
    rng = np.random.default_rng(0)
    x = variable("x", "float32", ["N", 5, 2])
    w = constant(rng.normal(size=(2, 2)).astype(np.float32), hint="w")
    start = op.ReduceSum(x, [1], keepdims=0) * 0.0
    last, _ = scan(lambda s, t: [op.Tanh((s + t) @ w), s], [start], [op.Transpose(x, perm=[1, 0, 2])])
    return build([x], {"y": last})


def with_names_of_ours():
    """A model that uses the names which a training would give."""
    x, loss = variable("x", "float32", ["N", 2]), constant([[1.0], [2.0]], hint="loss")
    return build([x], {"objective": op.Mul(x @ loss, constant([1.0], hint="iteration"))})


def loop():
    """A Loop and a function, one with the weight inside of it."""
    return parse_model("""<ir_version: 8, opset_import: ["": 21, "own": 1]>
    g (float[N,4] x) => (float[N,1] y) <float[4] w = {0.5, -0.5, 0.25, 1.0}, float[4,1] v = {1.0, 2.0, -1.0, 0.5}> {
        n = Constant <value_int = 3> ()
        yes = Constant <value = bool {1}> ()
        h = Loop (n, yes, x) <body = b (int64 i, bool go, float[N,4] s) => (bool go_on, float[N,4] s_new) {
            sw = Mul(s, w)
            s_new = Tanh(sw)
            go_on = Identity(go)
        }>
        y = own.squashed(h, v)
    }
    <domain: "own", opset_import: ["": 21]>
    squashed (a, b) => (c) {
        ab = MatMul(a, b)
        c = Sigmoid(ab)
    }""")


MODELS = {
    "linear": linear, "mlp": mlp, "float64": lambda: mlp(dtype="float64"), "convolution": convolution,
    "recurrence": recurrence, "names": with_names_of_ours, "loop": loop,
}


def inputs_of(name, rows=6):
    shapes = {"convolution": (rows, 1, 6, 6), "recurrence": (rows, 5, 2), "names": (rows, 2)}
    dtype = np.float64 if name == "float64" else np.float32
    return np.random.default_rng(1).normal(size=shapes.get(name, (rows, 4))).astype(dtype)


# -- what is written


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("init", ["random", "model"])
@pytest.mark.parametrize("name", MODELS)
def test_written_models_are_valid_and_leave_the_inference_graph_as_it_was(name, style, init):
    x = inputs_of(name)
    made = trained(MODELS[name](), x, learning_rate=LearningRateSGDNesterov(0.01),
                   learning_penalty=ElasticLearningPenalty(0.01, 0.01))
    model = made.get_training_onnx(style, init=init)
    onnx.checker.check_model(combine_graphs(model), full_check=True)
    onnx.checker.check_model(model, full_check=True)
    check_training_info(model)
    inference = made.get_trained_onnx()
    assert strip_training_info(model).graph.SerializeToString() == inference.graph.SerializeToString()
    assert strip_training_info(model) == inference
    found = Session(strip_training_info(model)).run({"x": x})
    np.testing.assert_allclose(next(iter(found.values())), made.predict(x), rtol=1e-5, atol=1e-5)
    written = {node.domain for node in model.training_info[0].algorithm.node}
    assert written == ({"", DOMAIN} if style == "standard" else {""})


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_equals_that_of_fit(name, style):
    x = inputs_of(name)
    made = trained(MODELS[name](), x, learning_rate=LearningRateSGDNesterov(0.01), shuffle=False)
    session = TrainingSession(made.get_training_onnx(style))
    target = next(n for n in session.inputs if n != "x")
    y = made.predict(x)
    made.partial_fit(x[:3], y[:3] * 0 + 1)
    session.step({"x": x[:3], target: y[:3] * 0 + 1})
    for n, w in made.trained_coef_.items():
        assert abs(session.state[n] - w).max() <= 1e-6 * abs(w).max()


@pytest.mark.parametrize("name", MODELS)
def test_any_runtime_executes_the_combined_graph_of_plain_operators(name):
    x = inputs_of(name)
    made = trained(MODELS[name](), x, learning_rate="Adam")
    whole, session = combine_graphs(made.get_training_onnx("lowered")), TrainingSession(made.get_training_onnx())
    target = next(n for n in session.inputs if n != "x")
    feeds = {"x": x, target: made.predict(x) + 1}
    found = Session(whole).run(feeds)
    loss = next(o for o in session.outputs if o.startswith("loss"))
    np.testing.assert_allclose(found[loss], session.step(feeds)[loss], rtol=1e-5)
    for n, w in session.state.items():
        if n in made.weights_to_train:
            assert abs(found[f"{n}_new"] - w).max() <= 1e-5 * abs(w).max()


@pytest.mark.parametrize("style", STYLES)
def test_a_step_sees_the_numbers_that_the_inference_graph_has_drawn(style):
    model = parse_model("""<ir_version: 8, opset_import: ["": 21]>
    g (float[N,4] x) => (float[N,1] y, float[N,4] h)
    <float[4,1] w = {1.0, 2.0, 3.0, 4.0}, float r = {0.5}, float zero = {0.0}> {
        drawn = RandomUniformLike(x)
        mask = Less(drawn, r)
        h = Where(mask, x, zero)
        y = MatMul(h, w)
    }""")
    made = optimizer(model, learning_loss={"y": "square_error"}, learning_rate=0.125)
    session = TrainingSession(made.get_training_onnx(style))
    x, t = inputs_of("linear", 64), np.ones((64, 1), np.float32)
    out = session.step({"x": x, "y_target": t})
    assert 60 < (out["h"] == 0).sum() < 196
    expected = np.arange(1, 5)[:, None] - 0.125 * 2 * out["h"].T @ (out["y"] - t) / 64
    np.testing.assert_allclose(session.state["w"], expected, rtol=1e-5)


def test_training_information_that_was_there_is_replaced():
    first = optimizer(mlp(), learning_rate="Adam").get_training_onnx()
    with pytest.warns(ModelWarning, match="The model stores a training, which is not read"):
        again = optimizer(first, learning_rate="Adagrad").get_training_onnx()
    assert len(again.training_info) == 1
    assert "W1_m" not in TrainingSession(again).state
    assert again.graph == mlp().graph


def test_the_algorithm_goes_on_from_what_the_inference_graph_computes():
    algorithm = optimizer(mlp()).get_training_onnx("lowered").training_info[0].algorithm
    own = {o for node in algorithm.node for o in node.output}
    inference = mlp().graph
    assert {i for node in algorithm.node for i in node.input} & {o for node in inference.node for o in node.output}
    assert not own & {o for node in inference.node for o in node.output}
    assert "Tanh" not in {node.op_type for node in algorithm.node}
    assert [i.name for i in algorithm.input] == ["y_target"]


FORMS = [
    (LearningRateSGD(), []),
    (LearningRateSGDNesterov(), ["Momentum"]),
    (LearningRateSGDNesterov(nesterov=False), ["Momentum"]),
    (LearningRateAdagrad(), ["Adagrad"]),
    (LearningRateAdam(), []),
    (LearningRateAdam(epsilon_hat=True), ["Adam"]),
    (LearningRateAdamW(epsilon_hat=True), []),
    (LearningRateRMSProp(), []),
]


@pytest.mark.parametrize(("rate", "expected"), FORMS, ids=lambda v: type(v).__name__ if v else "plain")
def test_operators_of_the_standard_where_they_can_express_the_settings(rate, expected):
    def of(model):
        nodes = optimizer(model, learning_rate=rate).get_training_onnx().training_info[0].algorithm.node
        return sorted({node.op_type for node in nodes if node.domain})

    assert of(linear()) == sorted(["Gradient", *expected])
    # Attributes are float32: 0.9 is not what it is in float64.
    assert of(linear(dtype="float64")) == ["Gradient"]


def test_float64_has_the_operators_where_the_settings_are_exact_in_float32():
    rate = LearningRateSGDNesterov(0.1, momentum=0.5)
    model = optimizer(linear(dtype="float64"), learning_rate=rate).get_training_onnx()
    assert "Momentum" in {node.op_type for node in model.training_info[0].algorithm.node}


def test_bindings():
    model = optimizer(linear(), learning_rate="Adam").get_training_onnx()
    (info,) = model.training_info
    expected = ["coef", "intercept", "coef_m", "coef_v", "intercept_m", "intercept_v", "iteration"]
    assert {p.key: p.value for p in info.update_binding} == {n: f"{n}_new" for n in expected}
    assert {p.key: p.value for p in info.initialization_binding} == {n: f"{n}_init" for n in expected}
    assert not info.initialization.input
    assert [node.op_type for node in info.initialization.node if node.op_type == "RandomUniform"] == ["RandomUniform"]


def test_the_state_is_that_of_now():
    X, y, _ = data()
    made = optimizer(mlp(), learning_rate="Adam", max_iter=2).fit(X, y)
    session = TrainingSession(made.get_training_onnx())
    assert session.state["iteration"] == 12
    states = [session.state[n] for n in session.state if n not in made.weights_to_train]
    for found, expected in zip(states, made.get_state("optimizer"), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_an_older_opset_is_upgraded():
    x = variable("x", "float32", ["N", 2])
    new = build([x], {"y": op.Softmax(x @ constant([[1.0, 2.0], [0.5, -1.0]], hint="w"), axis=1)})
    old = version_converter.convert_version(new, 17)
    made = optimizer(old)
    model = made.get_training_onnx("lowered")
    assert [o.version for o in model.opset_import] == [21]
    onnx.checker.check_model(combine_graphs(model), full_check=True)
    assert [o.version for o in made.get_trained_onnx().opset_import] == [17]


@pytest.mark.parametrize("style", STYLES)
def test_an_optimizer_a_description_and_a_snapshot(style):
    """Anything with `get_training_onnx` is asked for it; a description alone is before its first step."""
    made = optimizer(mlp(), learning_rate="Adam", random_state=0)
    expected = made.get_training_onnx(style, init="model")
    assert to_training_info(made, style, init="model") == expected
    assert to_training_info(made._spec, style, init="model") == expected
    arrays = made._spec.model.arrays
    weights = {w: arrays[w] + 1 for w in made.weights_to_train}
    state = TrainingSnapshot(weights, [np.ones_like(weights[w]) for w in weights for _ in "mv"], iteration=7)
    moved = TrainingSession(to_training_info(made._spec, style, state=state)).state
    assert moved["iteration"] == 7
    assert all((moved[w] == a).all() for w, a in weights.items())
    assert sum((a == 1).all() for n, a in moved.items() if n not in weights) == 2 * len(weights)


LOWERED = {"loss scale": {"precision": "float16", "loss_scale": LossScale(growth_interval=3)},
           "constant scale": {"precision": "float16", "loss_scale": 128.0}, "checkpointing": {"checkpointing": "auto"}}


@pytest.mark.parametrize("name", LOWERED)
def test_precision_and_checkpointing_are_those_of_the_training(name, tmp_path):
    """A stored training and a kit go on to the same bits, with the scale of the loss as it was."""
    X, y, _ = data(60)
    made = optimizer(mlp(), learning_rate="Adam", random_state=0, batch_size=10, shuffle=False, **LOWERED[name])
    made.partial_fit(X[:20], y[:20])
    session = TrainingSession(made.get_training_onnx("lowered"))
    made.export_step(tmp_path / "kit", targets=())
    kit = TrainingKit(tmp_path / "kit")
    for start in range(20, 60, 10):
        for door in (session, kit):
            door.step({"x": X[start : start + 10], "y_target": y[start : start + 10]})
    made.partial_fit(X[20:], y[20:])
    for n, a in made.trained_coef_.items():
        np.testing.assert_array_equal(session.state[n], a)
        np.testing.assert_allclose(kit.state[n], a, rtol=1e-5, atol=1e-8)
    if name == "loss scale":
        assert session.state["loss_scale"] == kit.state["loss_scale"] == 2.0**18
        session.initialize(0)
        assert (session.state["loss_scale"], session.state["iteration"]) == (2.0**16, 0)


def test_the_gradient_node_has_no_checkpoints():
    made = optimizer(mlp(), checkpointing="auto")
    with pytest.warns(ModelWarning, match="checkpointing is not written in style 'standard', whose gradient is one"):
        model = made.get_training_onnx()
    assert [n.op_type for n in model.training_info[0].algorithm.node].count("Gradient") == 1


def test_several_outputs_and_an_input_that_no_step_reads():
    made = optimizer(two_in_two_out(), learning_loss={"price": "square_error", "kind": "softmax_cross_entropy"})
    for style in STYLES:
        model = made.get_training_onnx(style)
        onnx.checker.check_model(combine_graphs(model), full_check=True)
        session = TrainingSession(model)
        assert session.inputs == ["a", "b", "price_target", "kind_target"]
        assert session.outputs == ["loss", "price", "kind"]  # `unused` would need c


def test_a_random_mask_that_the_graph_leaves_out_is_refused():
    x, is_training = variable("x", "float32", ["N", 2]), variable("is_training", "bool", [])
    y = op.Dropout(x @ constant([[1.0], [2.0]], hint="w"), 0.5, is_training)
    with pytest.raises(ModelError, match="Dropout> draws random numbers, and the step needs an output of it that the "
                                         "graph leaves out: name all outputs of the node"):
        optimizer(build([x, is_training], {"y": y})).get_training_onnx("lowered")


BODY = """<ir_version: 8, opset_import: ["": 21]>
    g (float[N] x, bool c) => (float[N] y) {
        y = If (c) <then_branch = t () => (float[N] a) <float[1] w = {2.0}> { a = %s },
                    else_branch = e () => (float[N] b) { b = Identity(x) }>
    }"""


@pytest.mark.parametrize("style", STYLES)
def test_a_weight_inside_of_a_body_becomes_one_of_the_graph(style):
    made = optimizer(parse_model(BODY % "Mul(x, w)"), "w", shuffle=False)
    model = made.get_training_onnx(style)
    check_training_info(model)
    onnx.checker.check_model(combine_graphs(model), full_check=True)
    assert [t.name for t in model.graph.initializer] == ["w"]
    session = TrainingSession(model)
    x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
    for c in (True, False, True):
        session.step({"x": x, "c": np.array(c), "y_target": y})
    assert session.state["w"].item() == pytest.approx(2 * 0.98**2)
    inference = Session(session.inference_model()).run({"x": x, "c": np.array(True)})
    np.testing.assert_allclose(inference["y"], session.state["w"] * x)


def test_a_weight_that_a_body_hands_out_is_refused():
    made = optimizer(parse_model(BODY.replace("float[N] a", "float[1] w") % "Neg(x)"), "w")
    with pytest.raises(ModelError, match="'w' is an initializer of a body and its output, and a binding changes only"):
        made.get_training_onnx()


@pytest.mark.parametrize(("settings", "message"), [
    ({"style": "onnx"}, "style is 'standard' or 'lowered', not 'onnx'"),
    ({"init": "zeros"}, "init is 'random' or 'model', not 'zeros'"),
], ids=["style", "init"])
def test_settings_are_checked(settings, message):
    with pytest.raises(SettingError, match=message):
        optimizer(linear()).get_training_onnx(**settings)


# -- storing


@pytest.mark.parametrize("form", ["protobuf", "textproto", "json"])
def test_round_trip(form, tmp_path):
    model = optimizer(mlp(), learning_rate="Adagrad").get_training_onnx()
    onnx.save(model, tmp_path / "model", format=form)
    again = onnx.load(tmp_path / "model", format=form)
    check_training_info(again)
    assert again == model


def test_external_data_of_the_algorithm(tmp_path):
    X, y, _ = data()
    made = optimizer(mlp(), learning_rate="Adam", max_iter=1).fit(X, y)
    model = made.get_training_onnx()
    apart = onnx.ModelProto()
    apart.CopyFrom(model)
    with open(tmp_path / "data.bin", "wb") as file:
        for t in (*apart.graph.initializer, *apart.training_info[0].algorithm.initializer):
            content = t.raw_data
            onnx.external_data_helper.set_external_data(t, "data.bin", offset=file.tell(), length=len(content))
            file.write(content)
            t.ClearField("raw_data")
    (tmp_path / "model.onnx").write_bytes(apart.SerializeToString())
    found = TrainingSession(str(tmp_path / "model.onnx")).state
    for n, a in TrainingSession(model).state.items():
        np.testing.assert_array_equal(found[n], a)
    inline = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    inline.graph.CopyFrom(model.graph)
    with pytest.raises(ModelError, match=r"The data of 'constant_0' of training_info\[0\].algorithm are in another"):
        TrainingSession(inline)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "model.onnx").write_bytes(inline.SerializeToString())
    with pytest.raises(ModelError, match=r"'constant_0' of training_info\[0\].algorithm cannot be read: .*data.bin"):
        TrainingSession(tmp_path / "own" / "model.onnx")
    assert TrainingSession(inline, folder=tmp_path).state.keys() == TrainingSession(model).state.keys()


# -- models by hand


def test_the_model_by_hand_is_valid():
    check_training_info(changed())


BROKEN = {
    "none": (parse_model(INFERENCE), "The model has no training_info; to_training_info writes one"),
    "inputs": (changed(INITIALIZATION.replace("()", "(float z)", 1)),
               r"training_info\[0\].initialization: it has the input 'z', where none is allowed"),
    "initialization key": (changed(first=[("v", "w0")]),
                           r"\[0\].initialization_binding: 'v' is no initializer of the model or an algorithm"),
    "initialization value": (changed(first=[("w", "w1")]),
                             r"\[0\].initialization_binding: 'w1', which is bound to 'w', is no output of the initial"),
    "initialization twice": (changed(first=[("w", "w0"), ("w", "w0")]),
                             r"\[0\].initialization_binding: 'w' is bound 2 times"),
    "initialization type": (changed(first=[("n", "w0")]),
                            r"\[0\].initialization_binding: 'w0' is float32\[\], and 'n', .* bound to, int64\[\]"),
    "initialization defined twice": (changed(INITIALIZATION.replace("() }", "()\n w0 = Neg(w0) }")),
                                     r"\[0\].initialization: .*'w0' is an output of node .* and an output of node"),
    "initialization reads": (changed("start () => (float w0) { w0 = Neg(y) }"),
                             r"\[0\].initialization: Node .* reads 'y', which nothing computes before it"),
    "initialization operator": (changed("start () => (float w0) { w0 = Guess() }"),
                                r"\[0\].initialization: node .* is a Guess, which is no operator of ONNX at version"),
    "update key": (changed(update=[("y", "w_new")]), r"\[0\].update_binding: 'y' is no initializer of the model or an"),
    "update value": (changed(update=[("w", "s")]),
                     r"\[0\].update_binding: 's', which is bound to 'w', is no output of the algorithm or of the inf"),
    "update twice": (changed(update=[("w", "w_new"), ("w", "loss")]), r"\[0\].update_binding: 'w' is bound 2 times"),
    "update type": (changed(update=[("n", "w_new")]),
                    r"\[0\].update_binding: 'w_new' is float32\[\], and 'n', which it is bound to, int64\[\]"),
    "update shape": (changed(algorithm="step (float[2] t) => (float[2] a) { a = Add(w, t) }", update=[("w", "a")]),
                     r"\[0\].update_binding: 'a' is float32\[2\], and 'w', which it is bound to, float32\[\]"),
    "clash of outputs": (changed(algorithm=ALGORITHM.replace("e = Sub(y, t)", "y = Sub(w, t)\n e = Sub(y, t)")),
                         r"\[0\].algorithm: in the combined graph 'y' is an output of node .* and an output of node"),
    "clash of inputs": (changed(algorithm=ALGORITHM.replace("(float[N] t)", "(float[N] x, float[N] t)")),
                        r"\[0\].algorithm: in the combined graph 'x' is an input and an input"),
    "clash of initializers": (changed(algorithm=ALGORITHM.replace("<float rate", "<float w = {1.0}, float rate")),
                              r"\[0\].algorithm: in the combined graph 'w' is an initializer and an initializer"),
    "operator": (changed(algorithm=ALGORITHM.replace("Sub(y, t)", "Guess(y, t)")),
                 r"\[0\].algorithm: node .* is a Guess, which is no operator of ONNX at version 21 of its domain"),
    "domain": (changed(algorithm=ALGORITHM.replace("Sub(y, t)", "their.own.Sub(y, t)")),
               r"\[0\].algorithm: node .* is a their.own.Sub, and the model does not import the domain 'their.own'"),
    "training domain": (changed(inference=INFERENCE.replace(', "ai.onnx.preview.training": 1', "")),
                        r"\[0\].algorithm: .* and the model does not import the domain 'ai.onnx.preview.training'"),
    "operator inside": (changed(algorithm="""step (bool c) => (float w_new) {
        w_new = If (c) <then_branch = a () => (float p) { p = Guess(w) },
                        else_branch = b () => (float q) { q = Neg(w) }>
    }"""), r"\[0\].algorithm: node .* is a Guess"),
    "reads": (changed(algorithm=ALGORITHM.replace("Sub(y, t)", "Sub(y, u)")),
              r"\[0\].algorithm: Node .* reads 'u', which nothing computes before it"),
    "gradient": (changed(algorithm=ALGORITHM.replace('y = "loss"', 'y = "cost"')),
                 r"\[0\].algorithm: Node .* \(Gradient, output 'g'\) reads 'cost', which nothing computes before it"),
    "no gradient": (changed(algorithm=ALGORITHM.replace('["w"]', '["n"]').replace("(w, x, t)", "(n, x, t)")),
                    r"\[0\].algorithm: Node .* 'n' holds int64, and only real numbers have a gradient"),
    "input left out": (changed(algorithm=ALGORITHM.replace("Sub(y, t)", "Div(y, )")),
                       r"\[0\].algorithm: Node .*Div.* cannot be read: Div takes 2 to 2 inputs, 1 given"),
    "types": (changed(algorithm=ALGORITHM.replace("Mul(rate, g)", "Mul(n, g)")),
              r"\[0\].algorithm: Node .*Mul.* cannot be read: Mul: input 'B' is float32 where int64 was expected"),
    "inference reads": (changed(inference=INFERENCE.replace("Mul(w, x)", "Mul(rate, x)")),
                        r"\[0\].algorithm: the inference graph reads 'rate' \(node Mul\), which the algorithm has"),
    "two of one name": (by_hand((None, "a (float z) => (float k_new) <float k = {1.0}> { k_new = Add(k, z) }", [],
                                 [("k", "k_new")]),
                                (None, "b (float u) => (float v) <float k = {2.0}> { v = Add(k, u) }", [], [])),
                        r"\[1\].algorithm: the initializer 'k' is one of training_info\[0\].algorithm, too, and"),
    "second entry": (by_hand(WHOLE, (None, None, [], [("u", "w_new")])),
                     r"training_info\[1\].update_binding: 'u' is no initializer"),
}


def test_an_initializer_of_another_size_than_its_shape():
    model = changed()
    model.training_info[0].algorithm.initializer[0].dims.append(2)
    with pytest.raises(ModelError, match=r"The tensor 'rate' of training_info\[0\].algorithm is FLOAT of shape"):
        check_training_info(model)


@pytest.mark.parametrize(("model", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_model(model, message):
    with pytest.raises(ModelError, match=message):
        check_training_info(model)
    with pytest.raises(ModelError, match=message):
        TrainingSession(model)


def test_no_such_entry():
    with pytest.raises(ModelError, match=r"The model has 1 entries of training_info, and there is no .*\[1\]"):
        lowered_step(changed(), 1)


# -- GraphCall, which there was in ONNX 1.7 alone


CALLED = """<ir_version: 7, opset_import: ["": 12, "ai.onnx.preview.training": 1]>
inference (float[N] x, float w, float[N] z) => (float[N] y, float[N] direct) <float w = {2.0}, float b = {1.0}> {
    wx = Mul(w, x)
    wxb = Add(wx, b)
    y = Mul(wxb, z)
    direct = Identity(y)
}"""
CALLING = """step (float[N] x_1, float[N] z_1, float[N] t) => (float w_new, float loss) {
    y_1 = ai.onnx.preview.training.GraphCall <graph_name = "inference"> (x_1, w, z_1)
    e = Sub(y_1, t)
    ee = Mul(e, e)
    loss = ReduceSum <keepdims = 0> (ee)
    g = ai.onnx.preview.training.Gradient <xs = ["w"], zs = ["x_1", "z_1", "t"], y = "loss"> (w, x_1, z_1, t)
    w_new = Sub(w, g)
}"""


def calling(text=CALLING, **more):
    return by_hand((None, text, [], [("w", "w_new")]), inference=CALLED, **more)


def test_graph_call():
    session = TrainingSession(calling())
    assert session.inputs == ["x_1", "z_1", "t"]
    x, z, t = (np.array(v, np.float32) for v in ([1, 2], [0.5, -1], [1, 1]))
    out = session.step({"x_1": x, "z_1": z, "t": t})
    e = (2 * x + 1) * z - t
    assert out["loss"] == (e * e).sum()
    assert session.state["w"] == 2 - (2 * e * z * x).sum()
    inference = Session(session.inference_model()).run({"x": x, "z": z})
    np.testing.assert_array_equal(inference["y"], (session.state["w"] * x + 1) * z)


def test_graph_call_twice_and_with_an_input_left_out():
    model = calling(CALLING.replace("e = Sub(y_1, t)", """
        unused, y_2 = ai.onnx.preview.training.GraphCall <graph_name = "inference"> (x_1, w, z_1)
        d = Add(y_1, y_2)
        e = Sub(d, t)"""))
    model.training_info[0].algorithm.node[0].input[1] = ""
    x, z, t = (np.array(v, np.float32) for v in ([1, 2], [0.5, -1], [1, 1]))
    session = TrainingSession(model)
    e = 2 * (2 * x + 1) * z - t
    assert session.step({"x_1": x, "z_1": z, "t": t})["loss"] == (e * e).sum()
    assert session.state["w"] == 2 - (4 * e * z * x).sum()


@pytest.mark.parametrize(("old", "new", "message"), [
    ('"inference"', '"other"', "a GraphCall names the graph 'other', and the only one that it may call, the inference "
                               "graph, is 'inference'"),
    ("(x_1, w, z_1)\n    e", "(x_1, w)\n    e", "a GraphCall leaves out the input 'z', which has no initializer"),
    ("(x_1, w, z_1)\n    e", "(x_1, w, z_1, t)\n    e", "a GraphCall has 4 inputs and 1 outputs, the graph 'inference' "
                                                        "has 3 and 2"),
], ids=["name", "input", "count"])
def test_graph_call_message(old, new, message):
    assert old in CALLING
    with pytest.raises(ModelError, match=rf"training_info\[0\].algorithm: {message}"):
        check_training_info(calling(CALLING.replace(old, new)))


def test_a_model_from_elsewhere_keeps_its_functions_and_metadata():
    model = changed()
    function = helper.make_function("own", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
                                    [helper.make_opsetid("", 21)])
    model.functions.append(function)
    model.opset_import.add(domain="own", version=1)
    algorithm = model.training_info[0].algorithm
    algorithm.node[0].CopyFrom(helper.make_node("Double", ["y"], ["yy"], domain="own"))
    algorithm.node.insert(1, helper.make_node("Sub", ["yy", "t"], ["e"]))
    session = TrainingSession(model)
    one = np.ones(1, np.float32)
    assert session.step({"x": one, "t": one})["loss"] == 9
    assert session.training_model().functions[0] == function
    assert session.training_model().graph.initializer[0].data_type == TensorProto.FLOAT
