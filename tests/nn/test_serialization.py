"""States of modules: a training that is saved and loaded goes on to the last bit, and misfits are named."""

import copy
import os
import pickle
import warnings
from collections import OrderedDict

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from ortpartial import LearningRateSGD, TrainingSession, nn, op
from ortpartial.exceptions import CheckpointError, ConvergenceError, ModelError, ModelWarning, SettingError
from ortpartial.model import external_data, write
from ortpartial.training_info import check_training_info

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(10, 3)).astype(np.float32), RNG.integers(0, 2, 10)


class Net(nn.Module):
    def __init__(self, hidden=4, rate="adam"):
        self.encoder, self.norm = nn.Linear(3, hidden), nn.BatchNorm1d(hidden)
        self.dropout, self.out = nn.Dropout(0.2), nn.Linear(hidden, 2)
        self.set_optimizer(rate)

    def forward(self, x):
        return self.out(self.dropout(op.Tanh(self.norm(self.encoder(x)))))


def compiled(seed=0, **settings):
    return Net(**settings).compile(nn.placeholder(["N", 3]), random_state=seed)


def train(model, epochs=5):
    return model.fit(X, Y, epochs=epochs, batch_size=5)


def assert_equal(actual, expected):
    assert actual.keys() == expected.keys()
    for n, a in expected.items():
        assert np.array_equal(actual[n], a), n
        assert actual[n].dtype == a.dtype


@pytest.fixture
def path(tmp_path):
    return tmp_path / "last.safetensors"


# -- state dicts


@pytest.mark.parametrize("is_early", [False, True])
def test_state_dicts_are_loaded_before_a_module_is_compiled_and_after_that(is_early):
    state = train(compiled()).state_dict()
    assert list(state) == ["encoder.weight", "encoder.bias", "norm.weight", "norm.bias", "norm.running_mean",
                           "norm.running_var", "norm.num_batches_tracked", "out.weight", "out.bias"]
    model = Net()
    if is_early:
        assert model.load_state_dict(state) == ([], [])
    model.compile(nn.placeholder(["N", 3]), random_state=1)
    if not is_early:
        model.train_one_batch(X, Y)
        assert model.load_state_dict(state) == ([], [])
    assert_equal(model.state_dict(), state)
    part = train(compiled(2)).out.state_dict()
    model.out.load_state_dict(part)
    assert_equal(model.state_dict(), {**state, **{f"out.{n}": a for n, a in part.items()}})


def test_loaded_numbers_are_copies():
    numbers = {"weight": np.ones((1, 2), np.float32), "bias": np.zeros(1)}
    model = nn.Linear(2, 1)
    model.load_state_dict(numbers)
    numbers["weight"][:] = 7
    model.compile(nn.placeholder(["N", 2]))
    model.state_dict()["weight"][:] = 8
    assert model.weight.numpy().tolist() == [[1, 1]]


def test_state_dicts_of_torch():
    torch = pytest.importorskip("torch")
    layers = torch.nn.Sequential(OrderedDict(
        encoder=torch.nn.Linear(3, 4), norm=torch.nn.BatchNorm1d(4), out=torch.nn.Linear(4, 2)))
    layers(torch.ones(2, 3))
    state = layers.state_dict(keep_vars=True)
    model = compiled()
    assert model.load_state_dict({n: t.to(torch.bfloat16) for n, t in state.items()}) == ([], [])
    expected = state["encoder.weight"].to(torch.bfloat16).float().detach().numpy()
    assert np.array_equal(model.encoder.weight.numpy(), expected)
    model.load_state_dict(state)
    assert_equal(model.state_dict(), {n: t.detach().numpy() for n, t in state.items()})
    assert model.norm.num_batches_tracked.numpy() == 1
    assert model.load_state_dict({n: t for n, t in state.items() if n != "norm.num_batches_tracked"}) == ([], [])
    layers.load_state_dict({n: torch.tensor(a) for n, a in model.state_dict().items()})


def test_state_dicts_of_bfloat16():
    model = nn.Linear(3, 1, bias=False, dtype="bfloat16")
    model.load_state_dict({"weight": np.arange(3).astype(ml_dtypes.bfloat16)[None]})
    assert model.state_dict()["weight"].tolist() == [[0, 1, 2]]
    assert model.state_dict()["weight"].dtype == ml_dtypes.bfloat16


def test_a_shared_weight_has_both_names(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    model, other = (Tied().compile(nn.placeholder(["N", 3]), random_state=seed) for seed in (0, 1))
    assert list(model.state_dict()) == ["first.weight", "first.bias", "second.weight", "second.bias"]
    assert model.load_state_dict(other.state_dict()) == ([], [])
    assert_equal(model.state_dict(), other.state_dict())
    with pytest.raises(ModelError, match=r"does not fit Tied: 'first\.weight' is missing; 'first\.bias' is missing; "
                                         r"'second\.bias' is missing\.$"):
        model.load_state_dict({})
    proto = other.to_onnx()
    for t in proto.graph.initializer:
        t.name = t.name.replace("first.weight", "second.weight")
    for node in proto.graph.node:
        node.input[:] = [n.replace("first.weight", "second.weight") for n in node.input]
    write(proto, tmp_path / "tied.onnx")
    model.first.weight.zeros()
    assert warnings_of(model.load, tmp_path / "tied.onnx") == []
    assert_equal(model.state_dict(), other.state_dict())


STATE = compiled().state_dict()
SMALL = {**STATE, "out.bias": np.zeros(3)}
FEW = {n: a for n, a in STATE.items() if n != "out.bias"}


@pytest.mark.parametrize(("state", "message"), [
    (FEW, r"The state does not fit Net: 'out\.bias' is missing\."),
    ({**STATE, "b": np.ones(2)}, r"The state does not fit Net: 'b' is unexpected\."),
    (SMALL, r"The state does not fit Net: 'out\.bias' has the shape \(3,\), where \(2,\) was expected\."),
    ({}, r"The state does not fit Net: 'encoder\.weight' is missing; 'encoder\.bias' is missing; 'norm\.weight' is "
         r"missing; and 5 more\."),
    ({**STATE, "out.bias": ["a", "b"]}, r"'out\.bias' is <U1, where an array of numbers was expected\."),
    ({**STATE, "out.bias": [1j, 2]}, r"'out\.bias' is complex128, where an array of numbers was expected\."),
    ({**STATE, "out.bias": [[1], 2]}, r"'out\.bias' is no array of numbers: .*"),
    ("last.pt", r"A state dict holds arrays by name, and this is a str\."),
])
def test_state_dicts_that_do_not_fit(state, message):
    model = compiled(1)
    before = model.state_dict()
    with pytest.raises(ModelError, match=f"^{message}$"):
        model.load_state_dict(state)
    assert_equal(model.state_dict(), before)


def test_a_state_dict_need_not_fit():
    model = compiled(1)
    answer = model.load_state_dict({**FEW, "b": 1}, strict=False)
    assert (answer.missing_keys, answer.unexpected_keys) == (["out.bias"], ["b"])
    assert np.array_equal(model.encoder.weight.numpy(), STATE["encoder.weight"])
    with pytest.raises(ModelError, match=r"'out\.bias' has the shape"):
        model.load_state_dict(SMALL, strict=False)


def test_layers_without_sizes_are_compiled_first():
    with pytest.raises(ModelError, match=r"^The state does not fit Linear: 'weight' is unexpected; 'bias' is "
                                         r"unexpected; compile the module first, if layers take their sizes from"):
        nn.Linear(None, 3).load_state_dict({"weight": np.ones((3, 2)), "bias": np.ones(3)})
    model = nn.Linear(None, 3).compile(nn.placeholder(["N", 2]))
    assert model.load_state_dict({"weight": np.ones((3, 2)), "bias": np.ones(3)}) == ([], [])


# -- files of states


@pytest.mark.parametrize("is_trained", [False, True], ids=["before a step", "after a step"])
def test_a_training_goes_on_to_the_last_bit(path, is_trained):
    expected, model = train(compiled(), 10), train(compiled())
    aux = {"epoch": 5, "best": {"loss": np.float32(0.5), "weights": [np.arange(3), None]}, "name": "é", "nan": np.inf}
    model.save_states(path, aux)
    again = compiled(1)
    if is_trained:
        train(again, 1)
    loaded = again.load_states(path)
    assert loaded.pop("best")["weights"][0].tolist() == [0, 1, 2]
    assert loaded == {"epoch": 5, "name": "é", "nan": np.inf}
    again.save_states(path)  # What no step has read yet is not lost.
    assert again.load_states(path) == {}
    train(again)
    assert_equal(again._program.states(), expected._program.states())
    assert again.history_[-1]["loss"] == expected.history_[-1]["loss"]
    assert_equal(train(model).state_dict(), expected.state_dict())


def test_a_schedule_goes_on(path, tmp_path):
    """One that lasts as long as the training is that of the whole fit which was cut off."""
    rate = LearningRateSGD(0.1, schedule="cosine")
    whole, cut = compiled(rate=rate), compiled(rate=rate)
    train(whole, 10)
    cut.fit(X, Y, epochs=10, batch_size=5, callbacks=lambda m: len(m.history_) == 4)
    cut.save_states(path)
    cut.save(tmp_path / "net.onnx")
    for method, file in (("load_states", (path,)), ("load", (tmp_path / "net.onnx", True))):
        again = compiled(1, rate=rate)
        getattr(again, method)(*file)
        again.save_states(path)
        assert_equal(train(again, 6).state_dict(), whole.state_dict())
        again = compiled(1, rate=rate)
        again.load_states(path)
        assert np.array_equal(again.train_one_batch(X, Y)[1], cut.train_one_batch(X, Y)[1])
        assert_equal(again.state_dict(), cut.state_dict())
        cut.load_states(path)


def test_a_state_before_the_first_step(path):
    """One that is loaded into a module that has trained lets its optimizer begin again."""
    compiled().save_states(path)
    expected, model = train(compiled()), train(compiled(1))
    model.load_states(path)
    assert_equal(train(model).state_dict(), expected.state_dict())


def test_another_optimizer_begins_anew(path):
    train(compiled()).save_states(path)
    model = compiled(1, rate=0.1)
    model.load_states(path)
    with pytest.warns(ModelWarning, match=r"^The state that was loaded is that of another optimizer .*'optimizer\."):
        model.train_one_batch(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.train_one_batch(X, Y)
        model.set_optimizer("adam")
        model.train_one_batch(X, Y)
    assert model._program.get("optimizer.iteration") == 1


def test_files_of_another_architecture(path):
    train(compiled(hidden=5)).save_states(path)
    model = train(compiled())
    before = model._program.states()
    with pytest.raises(CheckpointError, match=r"^'.*last\.safetensors' is the state of another Net, and does not fit "
                                              r"this Net: 'encoder\.weight' has the shape \(5, 3\), where \(4, 3\) was "
                                              r"expected; .*; and 4 more\.$"):
        model.load_states(path)
    assert_equal(model._program.states(), before)


def test_files_of_another_dtype(path):
    """A state that was converted would not go on to the last bit; `load` converts."""
    models = [nn.Linear(2, 1, dtype=dtype).compile(nn.placeholder(["N", 2], dtype)) for dtype in ("float64", "float32")]
    models[0].save_states(path)
    with pytest.raises(CheckpointError, match=r"'weight' is float64, where float32 was expected; 'bias' is float64"):
        models[1].load_states(path)
    models[0].save(path.with_suffix(".onnx"))
    models[1].load(path.with_suffix(".onnx"))
    assert np.array_equal(models[1].weight.numpy(), models[0].weight.numpy().astype(np.float32))


def test_files_that_are_none(path):
    model = compiled()
    with pytest.raises(FileNotFoundError, match=r"last\.safetensors"):
        model.load_states(path)
    with pytest.raises(FileNotFoundError, match="create its folder first"):
        model.save_states(path.parent / "none" / "last.safetensors")
    model.save_states(path)
    content = path.read_bytes()
    for damaged in (content[:-5], content[:-5] + b"12345", b"no tensors"):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"last\.safetensors' is .*damaged"):
            model.load_states(path)
    with pytest.raises(ModelError, match=r"is no ONNX model; load_states reads what save_states writes\.$"):
        model.load(path)


def test_what_files_hold(path, tmp_path):
    """Arrays of any layout, and what JSON does not have."""
    state = {"transposed": X.T[::2], "big": X.astype(">f4"), "bfloat16": X.astype(ml_dtypes.bfloat16), "tuple": (1, 2),
             "empty": np.zeros((0, 3)), "scalar": np.array(3), 7: 2**70, "a/b": X, "a": {"b": X + 1}, "b": [True, None]}
    model = compiled()
    model.save_states(path, state)
    model.save(tmp_path / "net.onnx", state)
    for loaded in (model.load_states(path), model.load(tmp_path / "net.onnx", include_state=True)):
        assert np.array_equal(loaded.pop("a")["b"], X + 1)
        assert loaded.keys() == state.keys() - {"a"}
        for n, value in loaded.items():
            assert np.array_equal(value, state[n])
            assert getattr(value, "dtype", type(value)) == getattr(state[n], "dtype", type(state[n])) or n == "big"


def test_what_files_cannot_hold(path):
    model = compiled()
    for function, name in ((model.save_states, "aux_states"), (model.save, "state")):
        with pytest.raises(SettingError, match=rf"'{name}/f' is a function\.$"):
            function(path, {"f": compiled})
        with pytest.raises(SettingError, match=rf"^{name} is a dict by name, such as {{'epoch': 3}}, not a int\.$"):
            function(path, 3)
        with pytest.raises(SettingError, match=rf"'{name}/a' is an array of <U1\.$"):
            function(path, {"a": np.array(["x"])})
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("method", ["save", "save_states"])
def test_a_failed_training_is_not_saved(path, method):
    path = path.with_suffix(".onnx" if method == "save" else ".safetensors")
    model = train(compiled())
    model.load_state_dict({"out.bias": [np.nan, 0]}, strict=False)
    with pytest.raises(ConvergenceError, match=r"'out\.bias' is no longer finite, .* to_onnx\(\) returns the model"):
        getattr(model, method)(path)
    assert not path.exists()
    masked = Net()
    masked.mask = nn.Buffer([2], [0, -np.inf])
    getattr(masked.compile(nn.placeholder(["N", 3])), method)(path)


@pytest.mark.parametrize("method", ["save", "save_states", "load", "load_states"])
def test_files_of_modules_that_are_not_compiled(path, method):
    with pytest.raises(ModelError, match=r"^Net is not compiled; call compile"):
        getattr(Net(), method)(path)
    if method != "load":
        with pytest.raises(ModelError, match=r"^This Linear is a part of a Net, which has the training of both; save"):
            getattr(compiled().out, method)(path)


def test_names_of_the_training_are_taken():
    class Seeded(nn.Module):
        def __init__(self):
            self.seed = nn.Parameter([3])

        def forward(self, x):
            return x * self.seed

    with pytest.raises(SettingError, match=r"^The training has a state of its own called 'seed'; rename"):
        Seeded().compile(nn.placeholder(["N", 3]))


# -- ONNX files


def test_an_onnx_file_holds_the_training(tmp_path):
    path, model = tmp_path / "net.onnx", train(compiled())
    model.save(path, state={"epoch": 3, "best": np.arange(4)})
    onnx.checker.check_model(onnx.load(path))
    check_training_info(path)
    inference = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert np.array_equal(inference.run(None, {"x": X})[0], model.predict(X))
    session, again = TrainingSession(path), compiled(1)
    assert again.load(path) is None
    assert_equal(again.state_dict(), model.state_dict())
    state = again.load(path, include_state=True)
    assert state.pop("best").tolist() == [0, 1, 2, 3]
    assert state == {"epoch": 3}
    for rows in (slice(0, 5), slice(5, 12)):
        names = session.inputs
        expected = session.step(dict(zip(names, (X[rows], Y[rows]), strict=True)))
        for m in (model, again):
            assert m.train_one_batch(X[rows], Y[rows])[1] == expected["loss"]
    for m in (model, again):
        assert_equal(m._program.states(), session.state)


def test_an_onnx_file_before_a_step_is_written(tmp_path, path):
    """The states of optimizers that were loaded and not read yet are in the file."""
    train(compiled()).save_states(path)
    model, again = compiled(1), compiled(2)
    model.load_states(path)
    model.save(tmp_path / "net.onnx")
    check_training_info(tmp_path / "net.onnx")
    assert again.load(tmp_path / "net.onnx", include_state=True) == {}
    assert_equal(train(again).state_dict(), train(compiled(), 10).state_dict())


def test_a_former_optimizer_is_not_in_the_file(tmp_path):
    model = train(compiled()).set_optimizer(0.1)
    model.save(tmp_path / "net.onnx")
    again = compiled(1, rate=0.1)
    again.load(tmp_path / "net.onnx", include_state=True)
    assert_equal(train(again).state_dict(), train(model).state_dict())


def warnings_of(function, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args)
    assert {w.filename for w in caught} <= {__file__}
    return [str(w.message) for w in caught if w.category is ModelWarning]


def test_each_parameter_that_does_not_fit_is_warned_of(tmp_path):
    path, model = tmp_path / "net.onnx", compiled(1)
    other = Net()
    other.out, other.further = nn.Linear(4, 3), nn.Linear(2, 1, bias=False)
    del other.encoder.bias
    other.encoder.bias = None
    train(other.compile(nn.placeholder(["N", 3]))).save(path)
    before = model.state_dict()
    messages = warnings_of(model.load, path)
    prefix = f"{str(path)!r} does not fit Net: "
    assert messages == [prefix + text for text in (
        "'encoder.bias' is missing.", "'further.weight' is unexpected.",
        "'out.weight' has the shape (3, 4), where (2, 4) was expected.",
        "'out.bias' has the shape (3,), where (2,) was expected.")]
    for n in ("encoder.weight", "norm.weight", "norm.running_mean", "norm.num_batches_tracked"):
        assert np.array_equal(model.state_dict()[n], other.state_dict()[n])
    for n in ("encoder.bias", "out.weight", "out.bias"):
        assert np.array_equal(model.state_dict()[n], before[n])


def test_a_part_of_a_module_is_loaded(tmp_path):
    layer, model = nn.Linear(3, 4).compile(nn.placeholder(["N", 3])), compiled()
    layer.save(tmp_path / "layer.onnx")
    assert warnings_of(model.encoder.load, tmp_path / "layer.onnx") == []
    assert_equal(model.encoder.state_dict(), layer.state_dict())


def test_weights_that_only_training_reads(tmp_path):
    class Adversary(Net):
        def __init__(self):
            super().__init__()
            self.critic, self.loss = nn.Linear(2, 1), nn.Loss("square_error")

        def train_one_batch(self, x, y):
            loss = self.loss(self.critic(self.forward(x)), y)
            self.optimizer(loss)
            return loss

    model, again = (Adversary().compile(nn.placeholder(["N", 3]), random_state=seed) for seed in (0, 1))
    model.train_one_batch(X, X[:, :1])
    model.save(tmp_path / "a.onnx")
    assert "critic.weight" not in {t.name for t in onnx.load(tmp_path / "a.onnx").graph.initializer}
    assert warnings_of(again.load, tmp_path / "a.onnx") == []
    assert_equal(again.state_dict(), model.state_dict())


def test_plain_onnx_files(tmp_path):
    """The initializers of floating-point numbers are parameters."""
    path, model, again = tmp_path / "plain.onnx", train(compiled()), compiled(1)
    proto = model.to_onnx()
    proto.ClearField("metadata_props")
    shape = numpy_helper.from_array(np.array([1, 2]), "shape")
    proto.graph.initializer.extend([shape, numpy_helper.from_array(np.ones(2, np.float32), "further")])
    write(proto, path)
    assert warnings_of(again.load, path) == [f"{str(path)!r} does not fit Net: 'further' is unexpected."]
    count = {"norm.num_batches_tracked": np.array(0)}  # No initializer of a graph in evaluation mode.
    assert_equal(again.state_dict(), {**model.state_dict(), **count})
    with pytest.warns(ModelWarning, match="'further' is unexpected"):
        assert again.load(path, include_state=True) == {}


def test_exports_of_torch(tmp_path):
    """The weight of a Linear that is a MatMul stands there transposed, under a number."""
    torch = pytest.importorskip("torch")
    layers = torch.nn.Sequential(OrderedDict(hidden=torch.nn.Linear(3, 3), out=torch.nn.Linear(3, 2)))

    class Layers(nn.Module):
        def __init__(self):
            self.hidden, self.out = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.out(self.hidden(x))

    for x in (torch.ones(2, 3), torch.ones(2, 5, 3)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(layers, (x,), tmp_path / "torch.onnx", dynamo=False)
        model = Layers().compile(nn.placeholder(list(x.shape)))
        assert warnings_of(model.load, tmp_path / "torch.onnx") == []
        assert_equal(model.state_dict(), {n: t.numpy() for n, t in layers.state_dict().items()})


def test_files_that_are_no_models(tmp_path):
    model = compiled()
    with pytest.raises(ModelError, match=r"^There is no file '.*none\.onnx'"):
        model.load(tmp_path / "none.onnx")
    (tmp_path / "a.onnx").write_text("nothing")
    with pytest.raises(ModelError, match=r"a\.onnx' is no ONNX model"):
        model.load(tmp_path / "a.onnx")
    with pytest.raises(ModelError, match=r"^load takes the path of an ONNX file, not ModelProto\.$"):
        model.load(model.to_onnx())
    with pytest.raises(FileNotFoundError, match="create its folder first"):
        model.save(tmp_path / "none" / "a.onnx")


def test_external_data(tmp_path, monkeypatch):
    model, again = train(compiled()), compiled(1)
    with monkeypatch.context() as patched:
        patched.setattr(external_data, "MESSAGE", 0)
        patched.setattr(external_data, "BIG", 16)
        model.save(tmp_path / "net.onnx", state={"best": np.arange(100)})
    assert (tmp_path / "net.onnx.data").is_file()
    assert again.load(tmp_path / "net.onnx", include_state=True)["best"].tolist() == list(range(100))
    assert_equal(again._program.states(), model._program.states())


# -- copies


def test_copies_and_pickles():
    model = Net()
    copied, unpickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    states = [m.compile(nn.placeholder(["N", 3]), random_state=0).state_dict() for m in (model, copied, unpickled)]
    assert_equal(states[0], states[1])
    assert_equal(states[0], states[2])
    for function in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ModelError, match=r"^A compiled Net is neither pickled nor copied; save writes it to a"):
            function(model)


# -- without a graph


def test_files_of_modules_that_run_without_a_graph(path, tmp_path):
    """Graphs and eager runs have the same states."""
    expected = train(compiled(), 2).train_one_batch(X, Y)[1]
    model = Net().compile(nn.placeholder(["N", 3]), use_graph=False, random_state=0)
    train(model, 2).save_states(path)
    model.save(tmp_path / "net.onnx")
    eager = Net().compile(nn.placeholder(["N", 3]), use_graph=False, random_state=1)
    for again in (eager, compiled(2)):
        again.load_states(path)
        assert np.allclose(again.train_one_batch(X, Y)[1], expected, rtol=1e-6)
        assert_equal(again.load(tmp_path / "net.onnx", include_state=True), {})
        assert np.allclose(again.train_one_batch(X, Y)[1], expected, rtol=1e-6)
