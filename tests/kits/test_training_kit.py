"""Training kits in Python: the steps of the optimizer, to be continued, in batches of several sizes."""

import json
import shutil

import numpy as np
import onnx
import pytest
from kits import PAIRS, assert_predicts_as_in_python, assert_state_close, make_data, make_optimizer, write_kit_and_data
from models import linear

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingKit, build, constant, nn, op, run_kit, variable
from ortpartial.exceptions import ConvergenceError, DataError, ModelError, SettingError
from ortpartial.execution import Stepper
from ortpartial.kits.order import draw_order
from ortpartial.model import read_tensors, write_tensors
from ortpartial.runtime import Session


@pytest.fixture
def kit(tmp_path):
    """A small kit."""
    return write_kit_and_data(tmp_path / "kit", "linear", "sgd")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("model", "rate"), PAIRS)
def test_a_kit_trains_as_the_optimizer_does(model, rate, tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", model, rate)
    data, optimizer = make_data(model), make_optimizer(model, rate)
    losses = kit.train(data, 12)
    order = [draw_order(0, epoch, 300)[:288].reshape(9, 32) for epoch in (0, 1)]
    for k, batch in enumerate(np.concatenate(order)[:12]):
        optimizer.partial_fit(data["x"][batch], data["y_target"][batch])
        assert abs(optimizer.train_losses_[-1] - losses[k]) < 1e-5
    expected = {n: optimizer.trained_coef_[n] for n in optimizer.weights_to_train}
    assert_state_close(kit, expected, 2e-5)
    trained = Session(kit.model()).run({"x": data["x"][:5]})["y"]
    np.testing.assert_allclose(trained, optimizer.predict(data["x"][:5]), rtol=1e-4, atol=1e-5)


def test_predictions_and_the_model_are_written_after_the_training(kit, tmp_path):
    data = make_data("linear")
    run_kit(kit.folder, kit.folder / "data.safetensors", 7, predictions=tmp_path / "p", model=tmp_path / "m.onnx")
    assert_predicts_as_in_python(kit.folder, tmp_path / "p", tmp_path / "m.onnx")
    before = kit.predict(data)["y"]
    kit.train(data, 7)
    np.testing.assert_array_equal(read_tensors(tmp_path / "p")[0]["y"], kit.predict({"x": data["x"]})["y"])
    assert np.abs(kit.predict(data)["y"] - before).max() > 1e-3


def test_a_state_that_was_replaced_by_another_shape_makes_no_model(kit):
    kit.state["coef"] = np.zeros(3, np.float32)
    with pytest.raises(ModelError, match=r"The state 'coef' is float32 \[3\], where float32 \[64, 10\] is expected"):
        kit.model()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("model", "rate"), PAIRS)
def test_a_kit_goes_on_where_it_was_saved(model, rate, tmp_path):
    whole = write_kit_and_data(tmp_path / "whole", model, rate)
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    data = tmp_path / "whole" / "data.safetensors"
    losses = whole.train(data, 60, seed=7)
    parts = [run_kit(tmp_path / "parts", data, 30, seed=7) for _ in range(2)]
    np.testing.assert_array_equal(np.concatenate(parts), losses)
    other = TrainingKit(tmp_path / "parts")
    assert other.steps_taken == 60
    for name, a in whole.state.items():
        np.testing.assert_array_equal(other.state[name], a)


def test_a_graph_for_each_size_of_batches(tmp_path):
    kits = [write_kit_and_data(tmp_path / n, "cnn", "adam", **s)
            for n, s in {"any": {}, "some": {"batch_sizes": (16, 32)}}.items()]
    assert [k.manifest.steps for k in kits] == [{None: "step.onnx"}, {16: "step-16.onnx", 32: "step-32.onnx"}]
    for kit in kits:
        for size in (16, 32):
            kit.train(make_data("cnn"), 10, batch_size=size)
    assert_state_close(kits[1], kits[0].state, 1e-5)
    with pytest.raises(DataError, match=r"The kit has steps for batches of 16 or 32 rows, not of 20\.$"):
        kits[1].train(make_data("cnn"), 10, batch_size=20)


def test_a_loss_is_a_float32_whatever_the_model_computes(tmp_path):
    rng = np.random.default_rng(0)
    OrtGradientForwardBackwardOptimizer(linear(4, 1, "float64")).export_step(tmp_path / "kit", targets=())
    kit = TrainingKit(tmp_path / "kit")
    outputs = kit.step({"x": rng.normal(size=(5, 4)), "y_target": rng.normal(size=(5, 1))})
    assert (outputs["loss"].dtype, kit.manifest.outputs[0].dtype) == (np.float32, "float32")
    assert all(a.dtype == np.float64 for n, a in kit.state.items() if n != "iteration")


def test_a_kit_starts_from_a_model_that_was_trained(tmp_path):
    data, optimizer = make_data("mlp"), make_optimizer("mlp", "adam", batch_size=50)
    optimizer.fit(data["x"], data["y_target"])
    optimizer.export_step(tmp_path / "kit", targets=())
    kit, batch = TrainingKit(tmp_path / "kit"), draw_order(0, 0, 300)[:50]
    kit.train(data, 1)
    optimizer.partial_fit(data["x"][batch], data["y_target"][batch])
    assert_state_close(kit, optimizer.trained_coef_, 1e-6)


def test_a_module_of_python_becomes_a_kit(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            self.layers = nn.Sequential(nn.Linear(64, 10), nn.Dropout(0.1))

        def forward(self, x):
            return self.layers(x)

        def train_one_batch(self, x, t):
            loss = nn.Loss("softmax_cross_entropy")(self.forward(x), t)
            self.optimizer(loss)
            return loss

    net, data = Net(), make_data("linear")
    net.set_optimizer("adam").compile([nn.placeholder(["N", 64])], targets=[nn.placeholder(["N"], "int64")],
                                      random_state=0)
    net.export_step(tmp_path / "kit", targets=(), batch_size=64)
    kit, batch = TrainingKit(tmp_path / "kit"), draw_order(0, 0, 300)[:64]
    names = [t.name for t in kit.manifest.inputs]
    loss = kit.train(dict(zip(names, data.values(), strict=True)), 1)
    assert abs(float(net.train_one_batch(data["x"][batch], data["y_target"][batch])) - loss[0]) < 1e-5
    assert_state_close(kit, {n: a for n, a in net.state_dict().items() if n in kit.state}, 1e-6)


def test_the_order_of_rows_is_that_of_the_format():
    def order(seed, epoch, n):
        rows, s = list(range(n)), (seed ^ epoch * 0x85EBCA6B) % 2**32
        for i in range(n - 1, 0, -1):
            s = (s + 0x9E3779B9) % 2**32
            z = (s ^ s >> 16) * 0x21F0AAAD % 2**32
            z = (z ^ z >> 15) * 0x735A2D97 % 2**32
            j = (z ^ z >> 15) % (i + 1)
            rows[i], rows[j] = rows[j], rows[i]
        return rows

    for case in ((0, 0, 50), (1, 0, 50), (0, 1, 50), (2**32 - 1, 123456, 50), (3, 4, 1)):
        assert draw_order(*case).tolist() == order(*case)
    assert order(0, 0, 50) != order(1, 0, 50) != order(0, 1, 50)
    counts = np.zeros((6, 6))
    for epoch in range(3000):
        counts[np.arange(6), draw_order(5, epoch, 6)] += 1
    assert abs(counts - 500).max() < 100  # 4.9 standard deviations


@pytest.mark.parametrize(("change", "message"), [
    (lambda d: d.pop("y_target"), r"The data lack the input 'y_target'\."),
    (lambda d: d.update(x=d["x"][:, :63]), r"Input 'x' has the shape \[300, 63\], where \[N, 64\] is expected\."),
    (lambda d: d.update(x=d["x"].astype(str)), r"Input 'x' is <U32, where float32 was expected\."),
    (lambda d: d.update(y_target=d["y_target"] + 0.5), r"Input 'y_target' holds \d\.5, a fraction, where int64 was"),
    (lambda d: d.update(y_target=d["y_target"] + 3),
     r"Input 'y_target' has values from 3 to 12, where 0 to 9 are expected, or -100 for what does not count\."),
    (lambda d: d.update(x=d["x"][:20]), "The inputs have different numbers of rows"),
    (lambda d: d.update({n: a[:10] for n, a in d.items()}), r"The data have 10 rows, fewer than a batch of 32\."),
    (lambda d: d.update(z=d["x"]), "Unknown input: 'z'"),
])
def test_data_that_do_not_fit(kit, change, message):
    data = make_data("linear")
    change(data)
    with pytest.raises(DataError, match=message):
        run_kit(kit.folder, data)
    assert TrainingKit(kit.folder).steps_taken == 0


def test_data_of_other_dtypes_are_converted(kit):
    data = make_data("linear")
    expected = TrainingKit(kit.folder).train(data, 3)
    for x, y in ((np.float64, np.int32), (object, np.float32), (np.float64, np.uint8)):
        converted = {"x": data["x"].astype(x), "y_target": data["y_target"].astype(y)}
        np.testing.assert_array_equal(TrainingKit(kit.folder).train(converted, 3), expected)


def test_labels_of_classes_need_a_loss_of_labels(tmp_path):
    optimizer = OrtGradientForwardBackwardOptimizer(linear(64, 10))
    optimizer.export_step(tmp_path / "kit", targets=())
    with pytest.raises(DataError, match=r"where these are labels of classes, export the kit with the loss 'softmax_c"):
        run_kit(tmp_path / "kit", make_data("linear"))


def test_settings_that_are_out_of_range(kit):
    for setting in ({"steps": -1}, {"batch_size": 0}, {"seed": 2**32}, {"steps": 1.5}):
        with pytest.raises(SettingError, match=f"{next(iter(setting))} is a whole number"):
            kit.train(make_data("linear"), **setting)


def test_a_loss_that_is_not_finite_ends_the_training(kit):
    data = make_data("linear")
    data["x"][250] = np.nan
    with pytest.raises(ConvergenceError, match=r"The loss of step \d+ is not finite"):
        run_kit(kit.folder, data)
    assert TrainingKit(kit.folder).steps_taken == 0
    assert all(np.isfinite(a).all() for a in kit.state.values())


def test_ctrl_c_saves_the_steps_taken(kit, monkeypatch):
    data, take = make_data("linear"), Stepper.step

    def interrupt(self, *args, **settings):
        if self.engine.iteration == 7:
            raise KeyboardInterrupt
        return take(self, *args, **settings)

    monkeypatch.setattr(Stepper, "step", interrupt)
    for save, steps in ((False, 0), (True, 7)):
        with pytest.raises(KeyboardInterrupt):
            run_kit(kit.folder, data, 20, save=save)
        assert TrainingKit(kit.folder).steps_taken == steps
    monkeypatch.undo()
    kit.train(data, 20)
    run_kit(kit.folder, data, 13)
    for name, a in TrainingKit(kit.folder).state.items():
        np.testing.assert_array_equal(a, kit.state[name])


def test_kits_that_are_damaged(kit):
    def rewrite(file, change):
        data = (kit.folder / file).read_bytes()
        (kit.folder / file).write_bytes(change(data))
        with pytest.raises(ModelError) as error:
            run_kit(kit.folder, kit.folder / "data.safetensors", 1)
        (kit.folder / file).write_bytes(data)
        return str(error.value)

    def flip(data):
        return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]

    damaged = "state.safetensors is damaged: restore a copy of it, or export the kit again."
    assert rewrite("state.safetensors", flip) == damaged
    assert rewrite("state.safetensors", lambda data: data[:100]) == damaged
    assert rewrite("state.safetensors", lambda data: data.replace(b'"steps":"0', b'"steps":"7')) == damaged
    assert rewrite("kit.json", lambda data: data.replace(b'"version": 1', b'"version": 2')) == (
        "kit.json is of version 2, and this runner reads version 1: take the runner that was exported with the kit.")
    assert rewrite("kit.json", lambda data: data[:200]) == "kit.json is no manifest of a training kit."
    assert rewrite("kit.json", lambda data: data.replace(b"step.onnx", b"../s.onnx")) == (
        "kit.json is no manifest of a training kit.")
    assert "cannot run step.onnx: " in rewrite("step.onnx", lambda data: data[:100])
    unknown = onnx.load(kit.folder / "step.onnx")
    unknown.graph.node[0].op_type = "Nonsense"
    sentence = rewrite("step.onnx", lambda data: unknown.SerializeToString())
    assert "Nonsense" in sentence
    assert sentence.count("onnxruntime") == 1


def test_the_manifest_is_read_by_people_and_programs(kit):
    text = (kit.folder / "kit.json").read_text()
    assert [line for line in text.splitlines() if '"y_target"' in line] == [
        '    {"name": "y_target", "dtype": "int64", "shape": ["N"], "low": 0, "high": 9, "ignored": -100}],']
    stored = json.loads(text)
    assert (stored["format"], stored["version"], stored["batch_size"]) == ("ortpartial.kit", 1, 32)
    step = onnx.load(kit.folder / "step.onnx").graph
    read = [t["name"] for t in (*stored["inputs"], *stored["state"]["tensors"])]
    assert [i.name for i in step.input] == read
    assert len(step.output) == len(stored["outputs"]) + len(stored["state"]["tensors"])


def test_a_kit_of_a_step_that_has_none(tmp_path):
    x, w = variable("x", "float32", [4, 3]), constant(np.ones((3, 1), np.float32), hint="w")
    optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": op.Tanh(x @ w)}))
    with pytest.raises(SettingError, match="batch_sizes has 8, and the model takes batches of 4 rows alone"):
        optimizer.export_step(tmp_path / "kit", targets=(), batch_sizes=(8,))
    with pytest.raises(SettingError, match="targets has 'php'; expected some of 'web', "):
        optimizer.export_step(tmp_path / "kit", targets="php")
    assert not (tmp_path / "kit").exists()
    optimizer.export_step(tmp_path / "kit", targets=())
    assert TrainingKit(tmp_path / "kit").manifest.steps == {4: "step-4.onnx"}
    write_tensors({"x": np.ones((9, 3), np.float32), "y_target": np.ones((9, 1), np.float32)}, tmp_path / "data")
    assert len(run_kit(tmp_path / "kit", tmp_path / "data", 5)) == 5


def test_a_kit_takes_the_place_of_a_former_one(tmp_path):
    optimizer = make_optimizer("linear", "sgd")
    optimizer.export_step(tmp_path, targets=("c",), batch_sizes=(16, 32))
    run_kit(tmp_path, make_data("linear"), 7)
    (tmp_path / "step-64.onnx").write_bytes(b"of a person")
    optimizer.export_step(tmp_path, targets=())
    assert sorted(path.name for path in tmp_path.glob("step*")) == ["step-64.onnx", "step.onnx"]
    assert (tmp_path / "train.c").is_file()
    kit = TrainingKit(tmp_path)
    assert kit.steps_taken == 0
    assert kit.model().graph == optimizer.get_trained_onnx().graph
    assert kit.model().opset_import[0].version == 18  # the oldest, for older runtimes to run it
