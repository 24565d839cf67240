"""Training kits of models and optimizers of many kinds train as the optimizer does, or are refused in a sentence."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from ortpartial import OrtGradientForwardBackwardOptimizer, OrtGradientOptimizer, TrainingKit, nn, op
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.kits.order import draw_order
from ortpartial.learning import CosineSchedule, ElasticLearningPenalty, LearningRateSGD, SoftmaxCrossEntropyLearningLoss
from ortpartial.runtime import Session

RNG = np.random.default_rng(0)


def normal(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


def read(text, **weights):
    """A model in the syntax of onnx.parser, with its initializers."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    return model


def perceptron():
    return read("g (float[N, 3] x) => (float[N, 2] y) {h = MatMul(x, w) t = Tanh(h) y = MatMul(t, v)}",
                w=normal(3, 4), v=normal(4, 2))


def product(dtype="float", name="w"):
    return read(f"g ({dtype}[N, 3] x) => ({dtype}[N, 2] y) {{y = MatMul(x, w)}}".replace(" w)", f" {name})"),
                **{name: normal(3, 2, dtype={"float": "float32", "double": "float64"}.get(dtype, dtype))})


X, Y, LABELS = normal(24, 3), normal(24, 2), RNG.integers(0, 4, 24)
IDS = RNG.integers(0, 11, (24, 6))
MODELS = {
    "two inputs": (read("g (float[N, 3] x, float[N, 2] z) => (float[N, 1] y) {h = MatMul(x, w) k = MatMul(z, v) "
                        "y = Add(h, k)}", w=normal(3, 1), v=normal(2, 1)), {"learning_rate": "Adam"},
                   {"x": X, "z": Y}, {"y": normal(24, 1)}),
    "two losses": (read("g (float[N, 3] x) => (float[N, 2] y, float[N, 4] z) {y = MatMul(x, w) z = MatMul(x, v)}",
                        w=normal(3, 2), v=normal(3, 4)),
                   {"learning_loss": {"y": "square_error", "z": "softmax_cross_entropy"}}, {"x": X},
                   {"y": Y, "z": LABELS}),
    "embedding": (read("g (int64[N, T] x) => (float[N, 4] y) {e = Gather(table, x) "
                       "axes = Constant<value = int64[1] {1}>() s = ReduceMean<keepdims = 0>(e, axes) "
                       "y = MatMul(s, w)}", table=normal(11, 5), w=normal(5, 4)),
                  {"learning_loss": "softmax_cross_entropy", "learning_rate": "Adam"}, {"x": IDS}, {"y": LABELS}),
    "sequences": (read("g (int32[N, T] x) => (float[N, T, 4] y) {e = Gather(table, x) y = MatMul(e, w)}",
                       table=normal(11, 5), w=normal(5, 4)), {}, {"x": IDS.astype(np.int32)}, {"y": normal(24, 6, 4)}),
    "bool": (read("g (bool[N, 3] x) => (float[N, 2] y) {h = Cast<to = 1>(x) y = MatMul(h, w)}", w=normal(3, 2)), {},
             {"x": X > 0}, {"y": Y}),
    "float64": (product("double"), {"learning_rate": "Adam"}, {"x": X.astype(np.float64)}, {"y": Y.astype(np.float64)}),
    "float16": (product("float16"), {}, {"x": X.astype(np.float16)}, {"y": Y.astype(np.float16)}),
    "fixed size": (read("g (float[8, 3] x) => (float[8, 2] y) {y = MatMul(x, w)}", w=normal(3, 2)), {"batch_size": 8},
                   {"x": X}, {"y": Y}),
    "averages": (perceptron(), {"averaging": "ema"}, {"x": X}, {"y": Y}),
    "accumulation": (perceptron(), {"accumulate": 3, "gradient_clipping": 0.1, "learning_rate": "Adam"}, {"x": X},
                     {"y": Y}),
    "rate factors": (perceptron(), {"rate_factors": {"w": 0.1}, "learning_penalty": ElasticLearningPenalty(l2=0.1)},
                     {"x": X}, {"y": Y}),
    "frozen": (perceptron(), {"freeze": "w"}, {"x": X}, {"y": Y}),
    "class weights": (read("g (float[N, 3] x) => (float[N, 4] y) {y = MatMul(x, w)}", w=normal(3, 4)),
                      {"learning_loss": SoftmaxCrossEntropyLearningLoss(class_weight={0: 1, 1: 2, 2: 0.5, 3: 1})},
                      {"x": X}, {"y": LABELS}),
    "shared weight": (read("g (float[N, 3] x) => (float[N, 3] y) {h = MatMul(x, w) t = Tanh(h) y = MatMul(t, w)}",
                           w=normal(3, 3)), {}, {"x": X}, {"y": X}),
    "numbers that are not raw": (
        read("g (float[N, 3] x) => (float[N, 1] y) <float[3, 1] w = {0.1, 0.2, 0.3}> {y = MatMul(x, w)}"), {}, {"x": X},
        {"y": normal(24, 1)}),
    **{f"a weight {name!r}": (product(name="w"), {"name": name, "learning_rate": "Adam"}, {"x": X}, {"y": Y})
       for name in ("a/b:0", "q\"uo'te", "ünï ☃", "back\\slash", '"crc32":"00000000"', "new\nline")},
}


def rename(model, name):
    """The model with another name for `w`."""
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    renamed.graph.initializer[0].name = renamed.graph.node[0].input[1] = name
    return renamed


@pytest.mark.parametrize("kind", MODELS)
def test_a_kit_trains_as_the_optimizer_does(kind, tmp_path):
    model, settings, inputs, targets = MODELS[kind]
    model = rename(model, settings["name"]) if "name" in settings else model
    optimizer = OrtGradientForwardBackwardOptimizer(model, **{n: v for n, v in settings.items() if n != "name"})
    optimizer.export_step(tmp_path / "kit", targets=())
    kit = TrainingKit(tmp_path / "kit")
    kit.train({**inputs, **{f"{n}_target": a for n, a in targets.items()}}, 5, batch_size=8, seed=3)
    kit.save()
    kit = TrainingKit(tmp_path / "kit")

    def one_or_all(arrays, rows):
        parts = {n: a[rows] for n, a in arrays.items()}
        return parts if len(parts) > 1 else next(iter(parts.values()))

    for k in range(5):
        rows = draw_order(3, k // 3, 24)[k % 3 * 8 : k % 3 * 8 + 8]
        optimizer.partial_fit(one_or_all(inputs, rows), one_or_all(targets, rows))
    tolerance = 2e-3 if kind == "float16" else 1e-5
    for name in optimizer.weights_to_train:
        np.testing.assert_allclose(kit.state[name], optimizer.trained_coef_[name], rtol=tolerance, atol=tolerance)
    assert kit.manifest.weights.keys() >= set(optimizer.weights_to_train)
    predicted = optimizer.predict(one_or_all(inputs, np.arange(8)))
    for name, y in Session(kit.model()).run({n: a[:8] for n, a in inputs.items()}).items():
        expected = predicted[name] if isinstance(predicted, dict) else predicted
        np.testing.assert_allclose(y, expected, rtol=100 * tolerance, atol=tolerance)


def test_weights_in_a_file_of_their_own(tmp_path):
    onnx.save(product(), tmp_path / "model.onnx", save_as_external_data=True, size_threshold=0)
    OrtGradientForwardBackwardOptimizer(tmp_path / "model.onnx").export_step(tmp_path / "kit", targets=())
    (tmp_path / "model.onnx.data").unlink(missing_ok=True)
    kit = TrainingKit(tmp_path / "kit")
    kit.train({"x": X, "y_target": Y}, 3, batch_size=8)
    np.testing.assert_allclose(Session(kit.model()).run({"x": X})["y"], X @ kit.state["w"], rtol=1e-5, atol=1e-6)


def test_weights_of_rows_are_an_input(tmp_path):
    optimizer, weights = OrtGradientForwardBackwardOptimizer(product()), RNG.random(24).astype(np.float32)
    optimizer.export_step(tmp_path / "kit", targets=(), weighted=True)
    kit, rows = TrainingKit(tmp_path / "kit"), draw_order(0, 0, 24)[:8]
    kit.train({"x": X, "y_target": Y, "sample_weight": weights}, 1, batch_size=8)
    optimizer.partial_fit(X[rows], Y[rows], sample_weight=weights[rows])
    np.testing.assert_allclose(kit.state["w"], optimizer.trained_coef_["w"], rtol=1e-5)


def test_a_graph_with_a_loss_of_its_own(tmp_path):
    model = read("g (float[N, 3] x, float[N, 2] t) => (float loss, float[N, 2] y) {y = MatMul(x, w) d = Sub(y, t) "
                 "q = Mul(d, d) loss = ReduceMean<keepdims = 0>(q)}", w=normal(3, 2))
    optimizer = OrtGradientOptimizer(model, learning_rate=0.1)
    optimizer.export_step(tmp_path / "kit", targets=())
    kit, rows = TrainingKit(tmp_path / "kit"), draw_order(0, 0, 24)[:8]
    loss = kit.train({"x": X, "t": Y}, 1, batch_size=8)
    optimizer.partial_fit(X[rows], Y[rows])
    assert abs(loss[0] - optimizer.train_losses_[-1]) < 1e-6
    np.testing.assert_allclose(kit.state["w"], optimizer.trained_coef_["w"], rtol=1e-5)


@pytest.mark.parametrize(("settings", "error", "message"), [
    ({"averaging": "ema", "use_average": True}, SettingError, "use_average=True is not written into a kit"),
    ({"averaging": "swa"}, SettingError, "starts after a share of the training that fit is asked for"),
    ({"name": "__metadata__"}, ModelError, "a tensor '__metadata__', a name that safetensors files cannot hold"),
])
def test_what_no_kit_can_say(tmp_path, settings, error, message):
    model = rename(product(), settings.pop("name", "w"))
    with pytest.raises(error, match=message):
        OrtGradientForwardBackwardOptimizer(model, **settings).export_step(tmp_path / "kit", targets=())
    assert not (tmp_path / "kit").exists()


def test_a_schedule_that_is_over_is_no_kit(tmp_path):
    rate = LearningRateSGD(0.1, schedule="cosine")
    optimizer = OrtGradientForwardBackwardOptimizer(product(), learning_rate=rate, max_iter=2).fit(X, Y)
    with pytest.raises(SettingError, match="has come to its end with the training that fit was asked for; give"):
        optimizer.export_step(tmp_path / "kit", targets=())
    optimizer.set_params(learning_rate__schedule=CosineSchedule(n=100)).export_step(tmp_path / "kit", targets=())
    kit = TrainingKit(tmp_path / "kit")
    before = kit.state["w"]
    kit.train({"x": X, "y_target": Y}, 1, batch_size=10)
    assert not np.array_equal(kit.state["w"], before)


def test_the_loss_of_a_module_is_the_one_of_that_name(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(x)

        def train_one_batch(self, x, y):
            error = self(x) - y
            loss = op.ReduceMean(error * error, keepdims=0)
            self.optimizer(loss)
            return op.ReduceMax(op.Abs(error), keepdims=0), loss

    net = Net()
    net.set_optimizer("sgd")
    net.compile([X], is_train=True, use_graph=True)
    _, expected = net.train_one_batch(X, Y)
    net.export_step(tmp_path / "kit", targets=())
    kit = TrainingKit(tmp_path / "kit")
    assert [t.name for t in kit.manifest.outputs] == ["loss", "step_output"]
    assert kit.step({"x": X, "y": Y})["loss"] < expected
