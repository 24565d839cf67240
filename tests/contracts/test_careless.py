"""Careless mistakes: each ends in one sentence that names the argument and says what to write."""

import numpy as np
import pytest

import ortpartial
from ortpartial import (
    Checkpoint,
    CosineSchedule,
    CSVLogger,
    EarlyStopping,
    ElasticLearningPenalty,
    GradientMonitor,
    HuberLearningLoss,
    LearningRateAdam,
    LearningRateFinder,
    Metric,
    OnnxRegressor,
    OrtGradientForwardBackwardOptimizer,
    ProgressBar,
    ReduceOnPlateau,
    TrainingKit,
    TrainingSession,
    add_loss_output,
    artifacts,
    build,
    constant,
    export_c,
    find_learning_rate,
    grad,
    load,
    load_adapter,
    merge,
    nn,
    plot_graph,
    plot_histograms,
    plot_learning_rate_finder,
    plot_losses,
    plot_metrics,
    read_c_state,
    run_kit,
    to_training_info,
    variable,
    write_kit,
)
from ortpartial.exceptions import ArgumentError, DataError, FileMissingError, GraphError, ModelError, SettingError
from ortpartial.training_info import read_rows

torch = pytest.importorskip("torch", reason="the training build for 1.19.2 has torch beside it, others may not")

X = np.linspace(-1, 1, 160, dtype=np.float32).reshape(40, 4)
Y = X.sum(1, keepdims=True)
LABELS = (Y[:, 0] > 0).astype(np.int64)
x = variable("x", "float32", ["N", 4])
MODEL = build([x], {"y": x @ constant(np.full((4, 1), 0.1, np.float32), hint="fc.weight")})


class Rows:
    """A Dataset as those of torch are."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return X[i], Y[i]


class NeedsSettings(LearningRateAdam):
    """An optimizer without defaults."""

    def __init__(self, rate):
        super().__init__(rate)


def optimizer(model=MODEL, **settings):
    return OrtGradientForwardBackwardOptimizer(model, **{"max_iter": 1, **settings})


def regressor(**settings):
    return OnnxRegressor(MODEL, max_iter=1, **settings)


def module(features=4, outputs=1, sizes=()):
    net = nn.Linear(features, outputs).set_optimizer("sgd")
    return net.compile(nn.placeholder(["N", *sizes, features]))


def session():
    return TrainingSession(to_training_info(optimizer()))


#: The mistake, its error, and a part of the sentence.
ROWS = [
    # -- layers and compilation
    (lambda: nn.Sequential([nn.Linear(4, 2), nn.ReLU()]), SettingError, r"write Sequential\(\*modules\)"),
    (lambda: nn.Sequential(nn.Linear(4, 2), nn.ReLU), SettingError, r"write ReLU\(\)"),
    (lambda: nn.ModuleList([nn.Linear]), SettingError, r"write Linear\(\)"),
    (lambda: nn.Sequential(torch.nn.Linear(4, 2)), SettingError, r"exported first, as by ortpartial\.torch\.export"),
    (lambda: nn.Sequential(nn.Linear(4, 2), "relu"), SettingError, r"write a layer, such as nn\.ReLU\(\)"),
    (lambda: nn.Linear(4, 2).compile(["N", 4]), DataError, r"compile\(nn\.placeholder\(\['N', 4\]\)\), not \['N', 4\]"),
    (lambda: nn.Linear(4, 2).compile((8, 4)), DataError, r"compile\(nn\.placeholder\(\['N', 4\]\)\), not \(8, 4\)"),
    (lambda: nn.Linear(4, 2).compile("adam"), DataError, r"compile\(nn\.placeholder\(\['N', 4\]\)\), not 'adam'"),
    (lambda: nn.Linear(4, 2).compile({"x": x}), DataError, r"in the order of forward, .*, not \{'x': "),
    (lambda: nn.Linear(4, 2).compile(X, optimizer="adam"), TypeError, r"call set_optimizer\('adam'\) before"),
    (lambda: nn.Linear(4, 2).compile(X, loss="mse"), TypeError, r"compile takes no 'loss'; .* takes any nn\.Loss"),
    (lambda: nn.Linear(4, 2).compile(X, metrics=["accuracy"]), TypeError, r"fit\(X, y, metrics=\['accuracy'\]\)"),
    (lambda: nn.Linear(4, 2).compile(X, seed=3), TypeError, r"compile takes no 'seed'; did you mean 'random_state'\?"),
    (lambda: nn.Linear("4", 2), SettingError, r"Linear: in_features is a whole number, not '4'"),
    (lambda: nn.Conv2d("1", 2, 3), SettingError, r"Conv2d: in_channels is a whole number, not '1'"),
    (lambda: nn.Linear(4, 2, dtype=torch.float32), SettingError, r"dtype is a dtype of numbers, such as 'float32'"),
    (lambda: nn.placeholder(["N", 4], dtype=torch.float32), GraphError, r"dtype .*float32"),
    (lambda: nn.placeholder(4), GraphError, r"shape .* a sequence was expected, such as \[4\]"),
    # -- step sizes, passes and validation of a module
    (lambda: nn.Linear(4, 1).set_optimizer("adam", lr=0.1), TypeError, r"set_optimizer\(LearningRateAdam\(0\.01\)\)"),
    (lambda: nn.Linear(4, 1).set_optimizer("adam", learning_rate=0.1), TypeError, r"set_optimizer\(LearningRateAdam"),
    (lambda: nn.Optimizer("adam", lr=0.1), TypeError, r"no setting 'lr'; .* rate=LearningRateAdam\(0\.01\)"),
    (lambda: module().fit(X, Y, learning_rate=0.1), TypeError, r"set_optimizer\(LearningRateAdam\(0\.01\)\)"),
    (lambda: module().fit(X, Y, max_iter=2), TypeError, r"fit takes no 'max_iter'; did you mean 'epochs'\?"),
    (lambda: module().fit(X, Y, validation_data=(X, Y)), TypeError, r"write X_val=\.\.\. and y_val=\.\.\."),
    (lambda: module().fit(X, Y, validation_split=0.1), TypeError, r"write X_val=0\.1"),
    (lambda: module().evaluate(X, Y, bs=4), TypeError, r"evaluate takes no 'bs'; did you mean 'batch_size'\?"),
    # -- data of a module
    (lambda: module(outputs=2).fit(X, np.array(["a", "b"] * 20)), DataError, r"number the classes, as np\.unique\(y, "),
    (lambda: module().fit(X, LABELS), SettingError, r"learning_loss='log_loss' is for single scores"),
    (lambda: module(4, 5, ["L"]).fit(np.zeros((8, 3, 4), np.float32), np.ones((8, 3), np.int64)), GraphError,
     r"use SoftmaxCrossEntropyLearningLoss\(axis=-1\)"),
    (lambda: module().fit(Rows()), DataError, r"give a DataLoader of it, as DataLoader\(dataset, batch_size=32\)"),
    (lambda: module().fit(lambda: iter([(X, Y)])), DataError, r"X is a function; give the batches themselves"),
    (lambda: module().fit("data.csv"), DataError, r"X is 'data\.csv', .*; read the file first"),
    # -- data of an optimizer
    (lambda: optimizer().fit(Rows()), DataError, r"give a DataLoader of it, as DataLoader\(dataset, batch_size=32\)"),
    (lambda: optimizer().fit(Rows(), Y), DataError, r"give a DataLoader of it, as DataLoader\(dataset, batch_size=32"),
    (lambda: optimizer().fit(lambda: iter([(X, Y)])), DataError, r"X is a function; give the batches themselves"),
    (lambda: optimizer().fit(Rows), DataError, r"X is the class Rows; give an object of it"),
    (lambda: optimizer().fit("data.csv", Y), DataError, r"X is 'data\.csv', .*; read the file first"),
    (lambda: optimizer().fit(X, ["a"] * 40), DataError, r"number the classes, as np\.unique"),
    (lambda: optimizer().fit(X, Y, learning_rate=0.1), TypeError, r"set_params\(learning_rate=\.\.\.\)"),
    # -- classes in place of objects
    (lambda: optimizer(callbacks=[EarlyStopping]).fit(X, Y), SettingError, r"is a class; give EarlyStopping\(\)"),
    (lambda: module().fit(X, Y, callbacks=[EarlyStopping]), SettingError, r"is a class; give EarlyStopping\(\)"),
    (lambda: optimizer(metrics=[Metric]), SettingError, r"metrics holds <class .*, and Metric objects were expected"),
    (lambda: find_learning_rate(OrtGradientForwardBackwardOptimizer, X, Y), SettingError,
     r"optimizer is an OrtGradientF"),
    (lambda: find_learning_rate(nn.Linear(4, 1), X, Y), SettingError, r"optimizer is an OrtGradientForwardBackward"),
    (lambda: optimizer(learning_rate=LearningRateAdam), FutureWarning, r"is the class .* write LearningRateAdam\(\)"),
    (lambda: optimizer(learning_loss=HuberLearningLoss), FutureWarning, r"write HuberLearningLoss\(\)"),
    (lambda: optimizer(learning_loss={"y": HuberLearningLoss}), FutureWarning, r"write HuberLearningLoss\(\)"),
    (lambda: optimizer(learning_penalty=ElasticLearningPenalty), SettingError, r"write ElasticLearningPenalty\(l1="),
    (lambda: optimizer().set_params(learning_rate=LearningRateAdam), FutureWarning, r"write LearningRateAdam\(\)"),
    (lambda: optimizer(learning_rate=NeedsSettings), SettingError, r"needs settings; give an object, as NeedsS"),
    (lambda: LearningRateAdam(schedule=CosineSchedule), FutureWarning, r"schedule is .* write CosineSchedule\("),
    (lambda: regressor(learning_rate=LearningRateAdam).fit(X, Y[:, 0]), FutureWarning, r"write LearningRateAdam\(\)"),
    (lambda: regressor(loss=HuberLearningLoss).fit(X, Y[:, 0]), FutureWarning, r"write HuberLearningLoss\(\)"),
    (lambda: nn.Linear(4, 1).set_optimizer(LearningRateAdam), FutureWarning, r"write LearningRateAdam\(\)"),
    (lambda: nn.Optimizer(LearningRateAdam), FutureWarning, r"write LearningRateAdam\(\)"),
    (lambda: nn.Loss(HuberLearningLoss), FutureWarning, r"write HuberLearningLoss\(\)"),
    (lambda: add_loss_output(MODEL, HuberLearningLoss), FutureWarning, r"write HuberLearningLoss\(\)"),
    # -- data of an estimator
    (lambda: regressor().fit(Rows()), DataError, r"OnnxRegressor fits arrays X and y, not a Rows; .* fit batches"),
    (lambda: regressor().fit(torch.utils.data.DataLoader(Rows())), DataError, r"X and y, not a DataLoader; .* fit bat"),
    (lambda: regressor().fit(lambda: iter([(X, Y)])), DataError, r"fits arrays X and y, not a function; .* fit bat"),
    (lambda: regressor().fit([(X, Y)]), DataError, r"fits arrays X and y, not a list; .* fit batches"),
    (lambda: regressor().fit("data.csv"), DataError, r"X is 'data\.csv', .*; read the file first"),
    (lambda: regressor().fit({1.0, 2.0}, Y), DataError, r"X is a set, which has no order; give a list or an array"),
    (lambda: optimizer().fit(X, {1.0}), DataError, r"y is a set, which has no order; give a list or an array"),
    # -- words of torch and Keras for layers
    (lambda: nn.Linear(4, 2, device="cuda"), TypeError, r"Linear takes no .device.; .* compile\(inputs, device="),
    (lambda: nn.Conv2d(1, 2, 3, device="cpu"), TypeError, r"Conv2d takes no .device.; .* compile\(inputs, device="),
    (lambda: nn.LSTM(4, 8, device="cpu"), TypeError, r"LSTM takes no 'device'"),
    (lambda: nn.Linear(4, 2, use_bias=False), TypeError, r"Linear takes no 'use_bias'; did you mean 'bias'\?"),
    (lambda: nn.Linear(4, 2, bais=False), TypeError, r"Linear takes no 'bais'; did you mean 'bias'\?"),
    (lambda: nn.Linear(units=4), TypeError, r"Linear takes no 'units'; did you mean 'out_features'\?"),
    (lambda: nn.Linear(4, 2, activation="relu"), TypeError, r"a layer of its own, as in nn\.Sequential\(nn\.Linear"),
    (lambda: nn.Conv2d(1, 2, 3, strides=2), TypeError, r"Conv2d takes no 'strides'; did you mean 'stride'\?"),
    (lambda: nn.Dropout(rate=0.5), TypeError, r"Dropout takes no 'rate'; did you mean 'p'\?"),
    (lambda: nn.BatchNorm1d(4, foo=1), TypeError, r"BatchNorm1d takes no 'foo'; its arguments are num_features, "),
    (lambda: nn.Linear(4), TypeError, r"Linear: missing a required argument: 'out_features'; its arguments are in_"),
    (lambda: nn.Linear(4, 2, True, "float32", 3), TypeError, r"Linear: too many positional arguments; its arguments"),
    # -- callbacks
    (lambda: GradientMonitor("x"), SettingError, r"batches_between_calls is a whole number of at least 1, not 'x'"),
    (lambda: GradientMonitor(vanishing="x"), SettingError, r"vanishing is 'x', a finite number at least 0"),
    (lambda: CSVLogger("file/l.csv"), SettingError, r"'file/l\.csv' cannot be written, as '.*file' is no folder"),
    (lambda: Checkpoint("file/run"), SettingError, r"'file/run' cannot be written, as '.*file' is no folder"),
    (lambda: CSVLogger(3), SettingError, r"path is a path, a string or a Path, not 3"),
    (lambda: LearningRateFinder(30), SettingError, r"min_rate is the first step size, .*, as in steps=30"),
    (lambda: LearningRateFinder("a"), SettingError, r"min_rate and max_rate are numbers above 0"),
    (lambda: LearningRateFinder(steps=1), SettingError, r"steps is a whole number from 10 to 1000000, not 1"),
    (lambda: EarlyStopping(monitor=None), SettingError, r"monitor is a column of history_, such as 'validation_loss'"),
    (lambda: ReduceOnPlateau(monitor=3), SettingError, r"monitor is a column of history_, such as 'validation_loss'"),
    (lambda: ProgressBar("x"), SettingError, r"max_propagation_depth is a whole number of at least 0, not 'x'"),
    # -- files to read and to write
    (lambda: optimizer(model="nofile.onnx"), FileMissingError, r"no file 'nofile\.onnx'; give a path to an ONNX model"),
    (lambda: TrainingSession("nofile.onnx"), FileMissingError, r"no file 'nofile\.onnx'; give a path to an ONNX model"),
    (lambda: ortpartial.OnnxLayer("nofile.onnx"), FileMissingError, r"no file 'nofile\.onnx'; give a path to an ONNX"),
    (lambda: artifacts.load("nofolder"), FileMissingError, r"training_model\.onnx'; give the folder that generate_"),
    (lambda: artifacts.read_checkpoint("nofile"), FileMissingError, r"'nofile' does not exist; give the file that"),
    (lambda: optimizer().load_checkpoint("nofile.safetensors"), FileMissingError, r"no file 'nofile\.safetensors'"),
    (lambda: optimizer().fit(X, Y, resume="nofile.safetensors"), FileMissingError, r"no file 'nofile\.safetensors'"),
    (lambda: read_rows("nofile.csv", session()), FileMissingError, r"no file 'nofile\.csv'; give an \.npz or a \.csv"),
    (lambda: load(MODEL, custom_ops_library="x.so"), FileMissingError, r"no library of custom operators 'x\.so'"),
    (lambda: load_adapter(MODEL, "nofile"), FileMissingError, r"no adapter 'nofile'; give the file or the folder"),
    (lambda: merge(MODEL, "nofile"), FileMissingError, r"no adapter 'nofile'; give the file or the folder"),
    (lambda: run_kit("k9", {}), FileMissingError, r"no file 'k9/kit\.json'; give the folder that export_step"),
    (lambda: TrainingKit("nokit"), FileMissingError, r"no file 'nokit/kit\.json'; give the folder that export_step"),
    (lambda: TrainingKit("file"), FileMissingError, r"no file 'file/kit\.json'; give the folder that export_step"),
    (lambda: read_c_state("nofile", b""), FileMissingError, r"give the folder that export_c has written"),
    (lambda: module().load_states("nofile"), FileMissingError, r"There is no file 'nofile'"),
    (lambda: module().save("x.pt"), SettingError, r"'x\.pt' would hold an ONNX model; write 'x\.onnx'"),
    (lambda: module().save("x.h5"), SettingError, r"'x\.h5' would hold an ONNX model; write 'x\.onnx'"),
    (lambda: module().save_states("x.pth"), SettingError, r"would hold a state file; write 'x\.safetensors'"),
    (lambda: optimizer().save("x.pkl"), SettingError, r"'x\.pkl' would hold an ONNX model; write 'x\.onnx'"),
    (lambda: optimizer().save_checkpoint("x.ckpt"), SettingError, r"a checkpoint; write 'x\.safetensors'"),
    (lambda: session().save("x.pt"), SettingError, r"'x\.pt' would hold an ONNX model; write 'x\.onnx'"),
    # -- trainings that are none yet
    (lambda: write_kit(MODEL, "kit"), ModelError, r"call export_step\(folder\) of an optimizer or a module"),
    (lambda: export_c(MODEL, "c"), ModelError, r"give an optimizer, or what its get_training_onnx\(\) returns"),
    (lambda: module().export_step("kit"), ModelError, r"train a batch first, or compile with targets"),
    (lambda: session().get("w"), ModelError, r"The training has no state 'w'; it has fc\.weight"),
    (lambda: session().step({"x": X, "y_target": Y[:3]}), DataError,
     r"'x' has 40 rows and 'y_target' has 3; give as many of both"),
    # -- layers of torch
    (lambda: ortpartial.OnnxLayer(MODEL)(torch.zeros(3, 5)), DataError,  # The agent checks its inputs itself.
     r"^Input 'x' has 5 along axis 1, where 4 was expected|^'x' is float32\[3, 5\], the graph takes float32"),
    # -- pictures
    (lambda: plot_losses([2.0, 1.0], ax=1), SettingError, r"ax is None or axes of matplotlib, not 1"),
    (lambda: plot_histograms({"w": X}, ax="a"), SettingError, r"ax is None or axes of matplotlib"),
    (lambda: plot_metrics([{"loss": 1.0, "val_r2": 0.5}], ax=1), SettingError, r"ax is None or axes of matplotlib"),
    (lambda: plot_graph(MODEL, ax=1), SettingError, r"ax is None or axes of matplotlib"),
    (lambda: plot_learning_rate_finder(3), DataError, r"what find_learning_rate returns, .*, not int"),
    (lambda: plot_learning_rate_finder(LearningRateFinder()), DataError, r"a LearningRateFinder after fit, not one"),
    # -- expressions
    (lambda: build({"x": 1}, {"y": x}), GraphError, r"the input 'x' is 1, where a value was expected"),
    (lambda: build([x], [3]), GraphError, r"the output 'output_0' is 3, where a value was expected"),
    (lambda: build(x, x + 1), GraphError, r"a list of values, or a dict of them by name, .*; write \[value\]"),
    (lambda: grad(3, [1]), GraphError, r"outputs is a list of values, not 3; write grad\(y, \[x\]\)"),
    (lambda: grad(x, x), GraphError, r"write grad\(y, \[x\]\)"),
    (lambda: constant("a"), GraphError, r"numbers of one shape, and 'a' is none; an input is variable\(name, dtype"),
    (lambda: constant(None), GraphError, r"numbers of one shape, and None is none"),
    (lambda: constant([[1], [1, 2]]), GraphError, r"numbers of one shape, and \[\[1\], \[1, 2\]\] is none"),
]


@pytest.mark.parametrize(("call", "error", "sentence"), ROWS, ids=[f"{i}: {row[2][:40]}" for i, row in enumerate(ROWS)])
def test_careless_mistakes(call, error, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(error, match=sentence) as raised:
        call()
    assert len(str(raised.value)) < 330
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("word", ["session_options", "sess_options"])
@pytest.mark.parametrize("make", [
    OrtGradientForwardBackwardOptimizer, OnnxRegressor, ortpartial.OrtGradientForwardBackward, TrainingSession,
    TrainingKit, artifacts.Module, ortpartial.OnnxLayer])
def test_options_of_sessions(make, word):
    with pytest.raises(ArgumentError, match=rf"(has no setting|takes no) '{word}'; sessions choose theirs: .* "
                                            r"load\(model, custom_ops_library=\.\.\.\) registers operators"):
        make(MODEL, **{word: object()})
