"""Training goes on from the files of onnxruntime 1.19.2, on any runtime, and reaches the same weights."""

import copy
import pickle

import numpy as np
import onnx
import pytest
from once import ON_NEWEST
from onnx import TensorProto, helper
from onnx.parser import parse_model
from training_artifacts import (
    STEPS,
    STORED,
    TRAININGS,
    export,
    generate,
    make_batches,
    make_net,
    match_names,
    open_reference,
    train_exact,
    train_reference,
)

from ortpartial import OrtGradientOptimizer, artifacts
from ortpartial.artifacts import CheckpointState, LinearLRScheduler, read_checkpoint
from ortpartial.exceptions import CheckpointError, CompilerError, ConvergenceError, DataError, ModelError, SettingError
from ortpartial.runtime import Session


def open_module(folder, rate, **settings):
    module = artifacts.load(folder, **settings)
    module.optimizer.set_learning_rate(rate)
    return module


def train(module, batches, steps=STEPS):
    return [module.step(*batches[k % len(batches)]) for k in range(steps)]


def distances(arrays, expected):
    """max|w - w'| / max|w'| of each tensor."""
    assert arrays.keys() == expected.keys()
    return {n: np.abs(arrays[n] - w).max() / np.abs(w).max() for n, w in expected.items()}


def arrays_of(state):
    return {n: p.data for n, p in state.parameters}


def assert_close(state, expected, tolerance=1e-6):
    far = {n: d for n, d in distances(arrays_of(state), expected).items() if d > tolerance}
    assert not far


def copy_model(path, change):
    model = onnx.load(path)
    change(model.graph)
    return model


# What 1.19.2 has computed, on this runtime.


@pytest.mark.parametrize("name", TRAININGS)
def test_stored_trainings_reach_the_weights_of_1_19_2(name):
    _, kind, rate = TRAININGS[name]
    module, expected = open_module(STORED / name, rate), read_checkpoint(STORED / name / "trained")
    train(module, make_batches(name))
    assert_close(module.state, expected.trainable | expected.frozen)
    exact = np.load(STORED / name / "exact.npz")
    assert_close(module.state, {n: exact[n] for n in exact}, 5e-6)
    state = module.state.to_checkpoint().optimizers["group0"]
    assert state.step == STEPS == expected.optimizers["group0"].step
    moments = expected.optimizers["group0"].momentums
    for n, stored in moments.items() if kind == "AdamW" else ():  # Of SGD, 1.19.2 keeps zeros that nothing reads.
        assert stored.keys() == {"momentum0", "momentum1"}
        for m, array in stored.items():
            assert np.abs(state.momentums[n][m] - array).max() <= 1e-5 * np.abs(array).max() + 1e-9


@pytest.mark.agent
@pytest.mark.parametrize("name", TRAININGS)
def test_stored_trainings_are_those_of_1_19_2(name):
    _, _, rate = TRAININGS[name]
    reference = open_reference(STORED / name, rate)
    losses = train_reference(reference, make_batches(name))
    expected = read_checkpoint(STORED / name / "trained")
    # 1.19.2 itself, on this processor beside another one: BERT ends 1.3e-6 apart on an AMD EPYC.
    assert max(distances(arrays_of(reference[0]), expected.trainable | expected.frozen).values()) <= 2e-6
    ours = train(open_module(STORED / name, rate), make_batches(name))
    np.testing.assert_allclose(ours, losses, rtol=2e-6)


@pytest.mark.agent
def test_a_parameter_without_gradient_is_as_far_from_float64_in_both(tmp_path):
    """AdamW divides rounding errors by their size, where a BatchNormalization follows that makes a bias ineffective."""
    batches, net = make_batches("mobilenet"), make_net("mobilenet")
    generate(export(net, batches[0][:-1]), tmp_path, "CrossEntropyLoss", "AdamW")
    reference, module = open_reference(tmp_path, 1e-3), open_module(tmp_path, 1e-3)
    arrays = {n: p.data.copy() for n, p in reference[0].parameters}
    names = match_names(net, arrays)
    train_reference(reference, batches)
    train(module, batches)
    exact = train_exact(net, batches, "AdamW", 1e-3)
    exact = {n: exact[m] for n, (m, _) in names.items()}
    ours, theirs = distances(arrays_of(module.state), exact), distances(arrays_of(reference[0]), exact)
    apart = distances(arrays_of(module.state), arrays_of(reference[0]))
    assert sum(d > 1e-6 for d in apart.values()) <= 8
    assert all(d <= 1e-6 or ours[n] <= 1.25 * theirs[n] + 1e-6 for n, d in apart.items())
    assert max(apart.values()) < 1e-3


LOSSES = {
    "mean square, SGD": ("MSELoss", "SGD", {}, ()),
    "binary, AdamW": ("BCEWithLogitsLoss", "AdamW", {}, ()),
    "absolute, AdamW": ("L1Loss", "AdamW", {}, ()),
    "frozen layer": ("CrossEntropyLoss", "AdamW", {}, ("0.",)),
    "scores, too": ("CrossEntropyLoss", "SGD", {"additional_output_names": ["scores"]}, ()),
}


@pytest.mark.agent
@pytest.mark.parametrize("case", LOSSES)
def test_losses_and_frozen_parameters(case, tmp_path):
    loss, optimizer, settings, frozen = LOSSES[case]
    batches = make_batches("mlp", loss)
    generate(export(make_net("mlp"), batches[0][:-1]), tmp_path, loss, optimizer, frozen, **settings)
    reference, module = open_reference(tmp_path, 1e-2), open_module(tmp_path, 1e-2)
    first = arrays_of(module.state)
    if "additional_output_names" in settings:
        loss, scores = module(*batches[0])
        expected = reference[1](*batches[0])
        np.testing.assert_allclose(scores, expected[1], rtol=1e-5, atol=1e-6)
        module.lazy_reset_grad()
        reference[1].lazy_reset_grad()
    for k in range(STEPS):
        reference[1](*batches[k % len(batches)])
        reference[2].step()
        reference[1].lazy_reset_grad()
    train(module, batches)
    assert_close(module.state, arrays_of(reference[0]))
    moved = {n for n, a in arrays_of(module.state).items() if not np.array_equal(a, first[n])}
    assert moved == {n for n in first if not any(f in n for f in frozen)}
    assert [p.requires_grad for _, p in module.state.parameters] == [n in moved for n, _ in module.state.parameters]


@pytest.mark.agent
def test_a_loss_of_blocks_and_an_optimizer_with_settings(tmp_path):
    from onnxruntime.training import onnxblock

    class Weighted(onnxblock.Block):
        """Two losses of one prediction, the second with a target of its own."""

        def __init__(self):
            super().__init__()
            self.first, self.second = onnxblock.loss.MSELoss(), onnxblock.loss.BCEWithLogitsLoss()
            self.add = onnxblock.blocks.Add()

        def build(self, scores):
            return self.add(self.first(scores, "wanted"), self.second(scores, "target"))

    optimizer = onnxblock.optim.AdamW(betas=(0.8, 0.99), eps=1e-4, weight_decay=0.05,
                                      clip_grad=onnxblock.optim.ClipGradNorm(0.05))
    batches = make_batches("mlp", "MSELoss")
    generate(export(make_net("mlp"), batches[0][:-1]), tmp_path, Weighted(), optimizer)
    batches = [[x, t, (t > 0.5).astype(np.float32)] for x, t in batches]
    reference, module = open_reference(tmp_path, 1e-2), open_module(tmp_path, 1e-2)
    assert module.input_names() == reference[1].input_names()
    np.testing.assert_allclose(train(module, batches), train_reference(reference, batches), rtol=1e-5)
    assert_close(module.state, arrays_of(reference[0]))


@pytest.mark.agent
def test_what_kills_1_19_2_runs_here(tmp_path):
    """An AveragePool of batches of any size ends the process of 1.19.2; batches of one size do not."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.AvgPool2d(3, 2, padding=1), torch.nn.Flatten(),
                              torch.nn.Linear(27, 4))
    batches = make_batches("cnn")
    model = export(net, batches[0][:-1])
    generate(model, tmp_path / "any", "CrossEntropyLoss", "SGD")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 8
    del model.graph.value_info[:]
    generate(model, tmp_path / "fixed", "CrossEntropyLoss", "SGD")
    reference, module = open_reference(tmp_path / "fixed", 0.05), open_module(tmp_path / "any", 0.05)
    np.testing.assert_allclose(train(module, batches), train_reference(reference, batches), rtol=1e-5)
    assert_close(module.state, arrays_of(reference[0]))


# The interface.


@pytest.mark.agent
def test_gradients_accumulate_as_in_1_19_2():
    batches = make_batches("mlp")
    (state, reference, optimizer), module = open_reference(STORED / "mlp", 0.01), open_module(STORED / "mlp", 0.01)
    assert not module.state.parameters["0.weight"].grad.any()
    for k in range(6):
        for part in (module, reference):
            part(*batches[2 * k])
            part(*batches[2 * k + 1])
        assert_close_to_gradients(module.state, state)
        optimizer.step()
        module.optimizer.step()
        reference.lazy_reset_grad()
        module.lazy_reset_grad()
    assert_close(module.state, arrays_of(state))


def assert_close_to_gradients(state, expected):
    for n, p in expected.parameters:
        g = state.parameters[n].grad
        assert np.abs(g - p.grad).max() <= 2e-6 * np.abs(p.grad).max(), n


def test_a_step_in_one_graph_is_the_three_calls():
    batches = make_batches("mlp")
    apart, joined = open_module(STORED / "mlp", 0.01), open_module(STORED / "mlp", 0.01)
    for k in range(5):
        for module in (apart, joined):  # gradients that a step adds to
            module(*batches[k + 5])
        loss = apart(*batches[k])
        apart.optimizer.step()
        apart.lazy_reset_grad()
        assert joined.step(*batches[k]) == loss
    assert arrays_equal(apart, joined)
    np.testing.assert_array_equal(apart.state.parameters["0.bias"].grad, joined.state.parameters["0.bias"].grad)


def slow_down(module):
    """Take each step of the optimizer as a run of its own."""
    module._habit.expects_step = lambda accumulates: False
    return module


def change_nothing(module):
    pass


#: By name: what happens between a call and the step of the optimizer, from time to time.
BETWEEN = {
    "nothing": change_nothing,
    "a rate": lambda module: module.optimizer.set_learning_rate(0.02),
    "parameters": lambda module: module.copy_buffer_to_parameters(np.linspace(-1, 1, 1108)),
    "an evaluation": lambda module: module.eval()(*make_batches("mlp")[3]) is module.train(),
    "a call more": lambda module: module(*make_batches("mlp")[4]),
    "a step in one": lambda module: module.step(*make_batches("mlp")[5]),
    "another optimizer": lambda module: artifacts.Optimizer(STORED / "mlp" / "optimizer_model.onnx", module),
}


@pytest.mark.parametrize(("between", "engine"), [*((b, "step") for b in BETWEEN), ("a rate", "native")])
def test_an_update_ahead_of_the_optimizer_is_that_of_its_step(between, engine):
    """Where steps follow calls, a call computes the update, which `Optimizer.step` takes over if all is as it was."""
    batches = make_batches("mlp")
    apart = slow_down(open_module(STORED / "mlp", 0.01, engine="step"))
    ahead, runs = open_module(STORED / "mlp", 0.01, engine=engine), []
    ahead._steps.engine.advance = lambda advance=ahead._steps.engine.advance: runs.append(advance())
    for k in range(8):
        for module in (apart, ahead):
            module(*batches[k])
            if k == 5:
                BETWEEN[between](module)
                gradient = module.state.parameters["0.bias"].grad
            module.optimizer.step()
            module.lazy_reset_grad()
        if k == 5:
            np.testing.assert_allclose(gradient, apart.state.parameters["0.bias"].grad, rtol=1e-5, atol=1e-7)
        assert_close(ahead.state, arrays_of(apart.state), 0 if engine == "step" else 5e-6)
    counts = {module.state.to_checkpoint().optimizers["group0"].step for module in (apart, ahead)}
    assert len(counts) == 1
    assert len(runs) == {"nothing": 6, "an evaluation": 6}.get(between, len(runs)) >= 3


def test_accumulated_gradients_are_updated_ahead():
    batches, modules = make_batches("mlp"), [open_module(STORED / "mlp", 0.01) for _ in range(2)]
    slow_down(modules[0])
    for k in range(0, 16, 2):
        for module in modules:
            module(*batches[k])
            module(*batches[k + 1])
            module.optimizer.step()
            module.lazy_reset_grad()
    assert modules[1]._habit.expects_step(True)
    assert not modules[1]._habit.expects_step(False)
    assert_close(modules[1].state, arrays_of(modules[0].state), 0)


def test_many_short_steps_go_on_in_machine_code(monkeypatch):
    monkeypatch.setattr("ortpartial.artifacts.module.OFTEN", 10)
    monkeypatch.setattr("ortpartial.artifacts.module.repays_compilation", lambda values, steps, threads: steps >= 20)
    batches, step, auto = make_batches("mlp"), *(open_module(STORED / "mlp", 0.01, engine=e) for e in ("step", "auto"))
    for k in range(24):
        losses = []
        for module in (step, auto):
            losses.append(module(*batches[k % 20]))
            module.optimizer.step()
            module.lazy_reset_grad()
        np.testing.assert_allclose(*losses, rtol=1e-6)
        assert auto.engine_ == ("step" if k < 19 else "native")
    assert auto.engine_reason_ == "20 short steps were taken, and the next take less time in machine code"
    assert_close(auto.state, arrays_of(step.state))
    np.testing.assert_allclose(auto.eval()(*batches[0]), step.eval()(*batches[0]), rtol=1e-6)


def test_a_compiler_that_fails_changes_nothing(monkeypatch):
    def fail(*_):
        raise CompilerError("it takes too long")

    monkeypatch.setattr("ortpartial.artifacts.module.OFTEN", 3)
    monkeypatch.setattr("ortpartial.artifacts.module.repays_compilation", lambda *_: True)
    monkeypatch.setattr("ortpartial.native.function.compile_library", fail)
    step, auto = (open_module(STORED / "mlp", 0.01, engine=e) for e in ("step", "auto"))
    for module in (step, auto):
        train(module, make_batches("mlp"), 8)
    assert auto.engine_ == "step"
    assert_close(auto.state, arrays_of(step.state), 0)


def arrays_equal(first, second):
    one, other = arrays_of(first.state), arrays_of(second.state)
    return one.keys() == other.keys() and all(np.array_equal(a, other[n]) for n, a in one.items())


def test_any_number_of_shapes(rng):
    module, reference = open_module(STORED / "mlp", 0.01), open_module(STORED / "mlp", 0.01)
    for rows in (*range(1, 12), 3):
        x, y = rng.random((rows, 64), np.float32), rng.integers(0, 4, rows)
        loss = module.step(x, y)
        assert np.isclose(loss, reference(x, y), rtol=1e-5)
        reference.optimizer.step()
        reference.lazy_reset_grad()
    assert max(distances(arrays_of(module.state), arrays_of(reference.state)).values()) < 1e-5


def test_values_of_onnxruntime():
    """OrtValues are taken and returned, and the vector of the parameters has `numpy`, as in onnxruntime's bindings."""
    from onnxruntime import OrtValue

    module, batch = open_module(STORED / "mlp", 0.01), make_batches("mlp")[0]
    expected = module(*batch)
    loss = module(*map(OrtValue.ortvalue_from_numpy, batch))
    assert isinstance(loss, OrtValue)
    np.testing.assert_array_equal(loss.numpy(), expected)
    flat = module.get_contiguous_parameters()
    assert type(flat.numpy()) is np.ndarray
    module.copy_buffer_to_parameters(OrtValue.ortvalue_from_numpy(flat.numpy()), trainable_only=False)
    np.testing.assert_array_equal(module.get_contiguous_parameters(), flat)


def test_a_nominal_checkpoint_gets_its_numbers_later():
    """Until then whatever needs them is refused in onnxruntime's words; then it trains as the complete one."""
    whole, batch = open_module(STORED / "mlp", 0.01), make_batches("mlp")[0]
    complete = read_checkpoint(STORED / "mlp/checkpoint")
    empty = {n: np.zeros_like(a) for n, a in complete.trainable.items()}
    state = CheckpointState(artifacts.Checkpoint(empty, complete.frozen, is_nominal=True))
    module = artifacts.Module(STORED / "mlp/training_model.onnx", state)
    optimizer = artifacts.Optimizer(STORED / "mlp/optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.01)
    assert (state.parameters.keys(), module.get_parameters_size()) == (whole.state.parameters.keys(),
                                                                       whole.get_parameters_size())
    name = next(iter(empty))
    for use, message in ((lambda: module(*batch), "Please load the model parameters first"),
                         (lambda: module.step(*batch), "Please load the model parameters first"),
                         (optimizer.step, "Please load the model parameters first"),
                         (module.get_contiguous_parameters, "Please load the model parameters first"),
                         (lambda: state.parameters[name], "Please load the parameter states first"),
                         (lambda: dict(state.parameters)[name].data, "Please load the parameter states first"),
                         (lambda: state.parameters.__setitem__(name, 0), "Please load all the parameter states first"),
                         (lambda: CheckpointState.save_checkpoint(state, "c"), "nominal checkpoint has no numbers")):
        with pytest.raises(CheckpointError, match=message):
            use()
    module.copy_buffer_to_parameters(whole.get_contiguous_parameters(), trainable_only=False)
    assert module.step(*batch) == whole.step(*batch)
    assert arrays_equal(module, whole)


@ON_NEWEST
@pytest.mark.parametrize("name", ["mlp", "mobilenet"])
def test_a_saved_training_goes_on(name, tmp_path):
    _, _, rate = TRAININGS[name]
    batches = make_batches(name)
    whole = open_module(STORED / name, rate)
    train(whole, batches, 4)
    CheckpointState.save_checkpoint(whole.state, tmp_path / "middle", include_optimizer_state=True)
    train(whole, batches[4:], 4)
    second = open_module(STORED / name, rate, checkpoint=tmp_path / "middle")
    train(second, batches[4:], 4)
    assert arrays_equal(whole, second)


@pytest.mark.agent
@pytest.mark.parametrize("name", ["mlp", "mobilenet"])
def test_checkpoints_pass_to_1_19_2_and_back(name, tmp_path):
    from onnxruntime.training.api import CheckpointState as Theirs

    _, _, rate = TRAININGS[name]
    batches = make_batches(name)
    module = open_module(STORED / name, rate)
    train(module, batches, 10)
    module.state.properties.update(epoch=3, best=0.5, name="ö")
    CheckpointState.save_checkpoint(module.state, tmp_path / "ours", include_optimizer_state=True)
    for file in (STORED / name).glob("*.onnx"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    reference = open_reference(tmp_path, rate, checkpoint="ours")
    assert dict(reference[0].properties) == {"epoch": 3, "best": 0.5, "name": "ö"}
    train_reference(reference, batches[10:], 10)
    Theirs.save_checkpoint(reference[0], str(tmp_path / "theirs"), include_optimizer_state=True)
    last = open_module(STORED / name, rate, checkpoint=tmp_path / "theirs")
    assert last.state.properties == {"epoch": 3, "best": 0.5, "name": "ö"}
    train(last, batches, 10)
    train(module, batches[10:], 10)
    train(module, batches, 10)
    assert_close(last.state, arrays_of(module.state))


@pytest.mark.agent
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_evaluation_and_export(name, tmp_path):
    batches = make_batches(name)
    _, reference, _ = open_reference(STORED / name, evaluation=True)
    module = artifacts.load(STORED / name)
    assert module.output_names() == reference.output_names()
    module.eval()
    reference.eval()
    assert module.input_names() == reference.input_names()
    np.testing.assert_allclose(module(*batches[0]), reference(*batches[0]), rtol=1e-6)
    module.export_model_for_inferencing(tmp_path / "ours.onnx", ["scores"])
    reference.export_model_for_inferencing(str(tmp_path / "theirs.onnx"), ["scores"])
    ours, theirs = (Session(onnx.load(tmp_path / f"{n}.onnx")) for n in ("ours", "theirs"))
    assert ours.inputs == theirs.inputs
    feeds = dict(zip(ours.inputs, batches[0], strict=False))
    np.testing.assert_allclose(ours.run(feeds)["scores"], theirs.run(feeds)["scores"], rtol=1e-5, atol=1e-6)


def test_evaluation_of_a_model_that_1_19_2_refuses(tmp_path):
    """Its eval model has the running statistics as outputs, which an operator in evaluation mode has not."""
    batches, module = make_batches("mobilenet"), artifacts.load(STORED / "mobilenet").eval()
    first = module(*batches[0])
    state = arrays_of(module.state)
    assert first == module(*batches[0])
    assert arrays_of(module.state).keys() == state.keys()
    module.train().step(*batches[0])
    assert module.eval()(*batches[0]) != first
    module.export_model_for_inferencing(tmp_path / "model.onnx", ["scores"])
    assert Session(onnx.load(tmp_path / "model.onnx")).run({"input_0": batches[0][0]})["scores"].shape == (8, 4)


def test_forward_model_trains_in_the_rest_of_the_library():
    batches, rate = make_batches("cnn"), 0.05
    module = open_module(STORED / "cnn", rate)
    weights = [n for n, p in module.state.parameters if p.requires_grad]
    model = module.forward_model()
    optimizer = OrtGradientOptimizer(model, weights, loss_output_name=model.graph.output[0].name, learning_rate=rate,
                                     max_iter=1, batch_size=8, shuffle=False)
    x, y = (np.concatenate([b[i] for b in batches]) for i in (0, 1))
    optimizer.fit({"input_0": x, "labels": y})
    train(module, batches, len(batches))
    assert_close(module.state, optimizer.trained_coef_)


@pytest.mark.agent
def test_learning_rates_of_the_scheduler():
    from onnxruntime.training.api import LinearLRScheduler as Theirs

    _, reference, other = open_reference(STORED / "mlp")
    module = artifacts.load(STORED / "mlp")
    # The Python class of 1.19.2 hands its two counts on in the wrong order.
    ours, theirs = LinearLRScheduler(module.optimizer, 3, 10, 0.1), Theirs(other, 10, 3, 0.1)
    assert module.optimizer.get_learning_rate() == pytest.approx(other.get_learning_rate())
    x, y = make_batches("mlp")[0]
    for _ in range(12):
        reference(x, y)
        other.step()
        module.step(x, y)
        ours.step()
        theirs.step()
        assert module.optimizer.get_learning_rate() == pytest.approx(other.get_learning_rate(), rel=1e-6, abs=1e-9)


@pytest.mark.agent
def test_flat_parameters():
    _, reference, _ = open_reference(STORED / "mobilenet")
    module = artifacts.load(STORED / "mobilenet")
    for trainable in (True, False):
        assert module.get_parameters_size(trainable) == reference.get_parameters_size(trainable)
        flat = module.get_contiguous_parameters(trainable)
        np.testing.assert_array_equal(flat, reference.get_contiguous_parameters(trainable).numpy())
    module.copy_buffer_to_parameters(2 * flat, trainable_only=False)
    np.testing.assert_array_equal(module.get_contiguous_parameters(), 2 * flat)
    with pytest.raises(DataError, match="and the buffer 3"):
        module.copy_buffer_to_parameters(np.zeros(3, np.float32))


def test_parameters_are_read_and_set():
    module = artifacts.load(STORED / "mlp")
    x, y = make_batches("mlp")[0]
    parameters = module.state.parameters
    assert len(parameters) == 4
    assert "0.weight" in parameters
    assert "0.weights" not in parameters
    before = module(x, y)
    parameters["2.weight"] = np.zeros((4, 16))
    parameters["2.bias"].data = np.zeros(4)
    assert module(x, y) == pytest.approx(np.log(4)) != before
    assert repr(parameters["2.bias"]) == "Parameter(name=2.bias, requires_grad=True)"
    with pytest.raises(DataError, match=r"'2.bias' has the shape \(4,\), not \(3,\)"):
        parameters["2.bias"] = np.zeros(3)
    with pytest.raises(KeyError, match="not found"):
        parameters["bias"]
    with pytest.raises(TypeError, match="cannot be removed"):
        del parameters["2.bias"]


DROPOUT = """
    <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    training (float[N, 500] x, float[500] w, float[500] buffer, bool[1] reset) => (float loss, bool[1] done)
    <float half = {0.25}, bool yes = {1}, int64[1] first = {0}>
    {
        y = Mul (x, w)
        z, mask = Dropout (y, half, yes)
        loss = ReduceSum <keepdims = 0> (z)
        ones = Div (z, z)
        z_grad = Where (mask, ones, z)
        y_grad = com.microsoft.DropoutGrad (z_grad, mask, half, yes)
        xy = Mul (y_grad, x)
        w_grad = ReduceSum <keepdims = 0> (xy, first)
        done = com.microsoft.InPlaceAccumulatorV2 (buffer, w_grad, reset)
    }"""


def test_masks_of_dropout_follow_from_the_seed(tmp_path):
    def open_dropout(seed):
        state = CheckpointState(artifacts.Checkpoint({"w": np.ones(500, np.float32)}))
        return artifacts.Module(parse_model(DROPOUT), state, seed=seed)

    x, modules = np.ones((4, 500), np.float32), [open_dropout(0), open_dropout(0), open_dropout(1)]
    losses = [[module(x).item() for _ in range(3)] for module in modules]
    assert losses[0] == losses[1] != losses[2]
    assert len(set(losses[0])) == 3
    assert np.mean(losses) == pytest.approx(2000, rel=0.02)
    # The gradient passes where the mask of the same call does: three calls were added up.
    grad = modules[0].state.parameters["w"].grad
    assert grad.sum() == pytest.approx(sum(losses[0]), rel=1e-4)
    assert set(np.round(grad * 0.75).astype(int)) <= set(range(13))


# Errors.


def test_inputs_are_checked():
    module = artifacts.load(STORED / "mlp")
    x, y = make_batches("mlp")[0]
    with pytest.raises(DataError, match="takes 2 inputs, input_0, labels; 1 were given"):
        module(x)
    with pytest.raises(DataError, match=r"'input_0' has shape \(8, 63\)"):
        module(x[:, 1:], y)
    with pytest.raises(DataError, match="labels"):
        module(x, y + 1)  # 1.19.2 crashes
    with pytest.raises(DataError, match="do not fit"):
        module(x, y[1:])
    with pytest.raises(DataError, match="input_0"):
        module(x.astype("U"), y)
    assert module(x.astype(np.float64), y.astype(np.int32)) == module(x, y)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"no file '.*training_model.onnx'; give the folder"):
        artifacts.load(tmp_path)
    (tmp_path / "a_training_model.ort").touch()
    with pytest.raises(ModelError, match="without ort_format"):
        artifacts.load(tmp_path, prefix="a_")
    (tmp_path / "training_model.onnx").write_bytes((STORED / "mlp" / "training_model.onnx").read_bytes())
    with pytest.raises(CheckpointError, match="does not exist"):
        artifacts.load(tmp_path)
    module = artifacts.load(tmp_path, checkpoint=STORED / "mlp" / "checkpoint")
    x, y = make_batches("mlp")[0]
    with pytest.raises(SettingError, match="needs an Optimizer"):
        module.step(x, y)
    module.eval()
    with pytest.raises(SettingError, match="give eval_model_uri"):
        module(x, y)
    with pytest.raises(SettingError, match="not str"):
        artifacts.Module(tmp_path / "training_model.onnx", "checkpoint")
    with pytest.raises(SettingError, match="not -1 and 3"):
        LinearLRScheduler(open_module(STORED / "mlp", 0.1).optimizer, -1, 3, 0.1)


def test_another_checkpoint_is_refused():
    with pytest.raises(ModelError, match=r"'0.weight', and the checkpoint does not"):
        artifacts.load(STORED / "cnn", checkpoint=STORED / "bert" / "checkpoint")
    content = read_checkpoint(STORED / "mlp" / "checkpoint")
    content.frozen["0.bias"] = content.trainable.pop("0.bias")
    with pytest.raises(CheckpointError, match=r"'0.bias', which is frozen"):
        artifacts.Module(STORED / "mlp" / "training_model.onnx", CheckpointState(content))


def test_outputs_for_inference_are_checked(tmp_path):
    module = artifacts.load(STORED / "mlp")
    with pytest.raises(DataError, match="skores"):
        module.export_model_for_inferencing(tmp_path / "model.onnx", ["skores"])


def test_descriptions():
    module = artifacts.load(STORED / "mlp")
    assert repr(module).startswith("<Module input_0, labels -> ")
    assert "4 trained parameters (1,108 numbers)" in repr(module)
    assert "AdamW(" in repr(module.optimizer)
    assert "0 steps taken" in repr(module.optimizer)


def test_kernels_that_are_not_known_are_refused_by_name():
    def add(graph):
        graph.node.append(helper.make_node("NcclAllReduce", ["0.bias_grad"], ["sum"], domain="com.microsoft"))
        graph.output.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, [16]))

    model = copy_model(STORED / "mlp" / "training_model.onnx", add)
    state = CheckpointState.load_checkpoint(STORED / "mlp" / "checkpoint")
    with pytest.raises(ModelError, match=r"com.microsoft.NcclAllReduce is a kernel .* not\s+known"):
        artifacts.Module(model, state)


def is_state(module, arrays):
    return all(np.array_equal(p.data, arrays[n]) for n, p in module.state.parameters)


def test_a_loss_of_nan_changes_nothing(tmp_path):
    module = open_module(STORED / "mlp", 0.1)
    x, y = make_batches("mlp")[0]
    module.step(x, y)
    before, broken = arrays_of(module.state), x.copy()
    broken[0, 0] = np.nan
    for call in (module, module.step):
        with pytest.raises(ConvergenceError, match="is nan; parameters and gradients are those before"):
            call(broken, y)
        assert is_state(module, before)
        assert np.isfinite(module.state.parameters["0.weight"].grad).all()
    CheckpointState.save_checkpoint(module.state, tmp_path / "checkpoint")
    module.state.parameters["0.bias"] = np.full(16, np.inf)
    with pytest.raises(ConvergenceError, match=r"'0.bias' is no longer finite, and nothing is written"):
        CheckpointState.save_checkpoint(module.state, tmp_path / "checkpoint")
    assert_close(CheckpointState.load_checkpoint(tmp_path / "checkpoint"), before, 0)
    with pytest.raises(ConvergenceError, match="nothing is written"):
        module.export_model_for_inferencing(tmp_path / "model.onnx", ["scores"])
    assert not (tmp_path / "model.onnx").exists()


def test_a_state_has_one_module_and_one_optimizer():
    """What would train numbers that nobody reads is refused, and a state goes on with its momentums."""
    whole, first = open_module(STORED / "mlp", 0.01), open_module(STORED / "mlp", 0.01)
    batches = make_batches("mlp")
    train(whole, batches, 4)
    train(first, batches, 2)
    files = STORED / "mlp"
    old = first.optimizer
    artifacts.Optimizer(files / "optimizer_model.onnx", first)
    with pytest.raises(SettingError, match="Another Optimizer has been made"):
        old.step()
    first.optimizer.set_learning_rate(0.01)
    first.step(*batches[2])
    second = artifacts.Module(files / "training_model.onnx", first.state)
    artifacts.Optimizer(files / "optimizer_model.onnx", second).set_learning_rate(0.01)
    for use in (first, first.step, lambda *_: first.optimizer.step()):
        with pytest.raises(SettingError, match="Another Module has been made of the state"):
            use(*batches[3])
    second.step(*batches[3])
    assert_close(second.state, arrays_of(whole.state), 0)


def test_files_of_another_model_are_refused():
    files, content = STORED / "mlp", read_checkpoint(STORED / "mlp" / "checkpoint")
    with pytest.raises(ModelError, match=r"evaluation model has the input '3.weight', which neither"):
        artifacts.Module(files / "training_model.onnx", CheckpointState(content), STORED / "cnn" / "eval_model.onnx")
    with pytest.raises(ModelError, match=r"The optimizer model has .*; AdamWOptimizer"):
        artifacts.Optimizer(files / "training_model.onnx", artifacts.load(files))
    content.trainable["0.bias"] = np.zeros(17, np.float32)
    with pytest.raises(CheckpointError, match=r"'0.bias' is float32 of shape \(17,\) in the checkpoint, and float"):
        artifacts.Module(files / "training_model.onnx", CheckpointState(content))
    content.trainable["0.bias"] = np.zeros(16)
    with pytest.raises(CheckpointError, match=r"'0.bias' is float64 of"):
        artifacts.Module(files / "training_model.onnx", CheckpointState(content))
    for state in (artifacts.OptimizerState(-1), artifacts.OptimizerState(1, np.nan)):
        content = read_checkpoint(files / "checkpoint")
        content.optimizers["group0"] = state
        module = artifacts.Module(files / "training_model.onnx", CheckpointState(content))
        with pytest.raises(CheckpointError, match="at least 0 were expected"):
            artifacts.Optimizer(files / "optimizer_model.onnx", module)


@pytest.mark.parametrize("rate", [-1, np.nan, np.inf, 1e300, "a", None, [0.1]])
def test_learning_rates_are_checked(rate):
    module = open_module(STORED / "mlp", 0)
    x, y = make_batches("mlp")[0]
    before = arrays_of(module.state)
    with pytest.raises(SettingError, match="a finite number of at least 0 was expected"):
        module.optimizer.set_learning_rate(rate)
    with pytest.raises(SettingError, match="initial_lr is"):
        LinearLRScheduler(module.optimizer, 1, 5, rate)
    module.step(x, y)
    assert is_state(module, before)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda m, x, y: m(x[:0], y[:0]), DataError, r"'input_0' has no elements, by its shape \(0, 64\)"),
        (lambda m, x, y: m.eval()(x[:0], y[:0]), DataError, "'input_0' has no elements"),
        (lambda m, x, y: m.eval().step(x, y), SettingError, r"call train\(\) first"),
        (lambda m, x, y: artifacts.write_checkpoint(m.state, "file"), SettingError, "not a CheckpointState"),
        (lambda m, x, y: m([[1.0], [1.0, 2.0]], y), DataError, "'input_0' has rows of 1 to 2 elements"),
        (lambda m, x, y: m(None, y), DataError, "'input_0' is None"),
        (lambda m, x, y: m.copy_buffer_to_parameters(["a"] * 1108), DataError, "The buffer is <U1"),
        (lambda m, x, y: m.state.parameters.__setitem__("0.bias", ["1"] * 16), DataError, "'0.bias' is <U1"),
        (lambda m, x, y: LinearLRScheduler(m.optimizer, 9, 5, 0.1), SettingError, "not 9 and 5"),
        (lambda m, x, y: LinearLRScheduler(m.optimizer, 1.5, 5, 0.1), SettingError, "not 1.5 and 5"),
        (lambda m, x, y: LinearLRScheduler(m, 1, 5, 0.1), SettingError, "not Module"),
        (lambda m, x, y: artifacts.Optimizer("optimizer_model.onnx", m.state), SettingError, "not CheckpointSt"),
        (lambda m, x, y: artifacts.load(STORED / "mlp", seed="a"), SettingError, "seed is a whole number, not 'a'"),
        (lambda m, x, y: artifacts.load(STORED / "mlp", seed=2**70), SettingError, "seed is beyond 64 bits"),
        (lambda m, x, y: CheckpointState.save_checkpoint(m, "file"), SettingError, "its attribute state"),
        (lambda m, x, y: CheckpointState({"w": x}), SettingError, "not a dict; load_checkpoint"),
        (lambda m, x, y: m.export_model_for_inferencing("file", []), DataError, "none was given; it has"),
        (lambda m, x, y: pickle.dumps(m), TypeError, "pickle its state"),
        (lambda m, x, y: copy.copy(m.optimizer), TypeError, "pickle the state"),
    ],
)
def test_slips_have_one_answer(use, error, message):
    module = open_module(STORED / "mlp", 0.1)
    x, y = make_batches("mlp")[0]
    before = arrays_of(module.state)
    with pytest.raises(error, match=message):
        use(module, x, y)
    assert is_state(module, before)


def test_a_state_is_pickled_with_its_momentums():
    module, batches = open_module(STORED / "mlp", 0.01), make_batches("mlp")
    train(module, batches, 2)
    other = artifacts.Module(STORED / "mlp" / "training_model.onnx", pickle.loads(pickle.dumps(module.state)))
    artifacts.Optimizer(STORED / "mlp" / "optimizer_model.onnx", other).set_learning_rate(0.01)
    assert other.step(*batches[2]) == module.step(*batches[2])
    assert arrays_equal(other, module)


def test_parameters_are_pairs():
    parameters = artifacts.load(STORED / "mlp").state.parameters
    assert [n for n, _ in parameters.items()] == parameters.keys() == [p.name for p in parameters.values()]
    assert dict(parameters).keys() == set(parameters.keys())
    assert parameters.get("bias") is None
    assert parameters.get("0.bias").name == "0.bias"
    with pytest.raises(AttributeError, match="requires_grad"):
        parameters["0.bias"].requires_grad = False
