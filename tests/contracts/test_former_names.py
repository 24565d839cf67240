"""Names of the library onnxcustom: each is on its page, the page names no other, and aliases work."""

import inspect
import logging
import pickle
import re
from functools import cache

import pytest
from models import data, linear
from paths import ROOT
from sklearn.base import clone

import ortpartial
from ortpartial import (
    LearningRateSGDNesterov,
    OrtGradientForwardBackward,
    OrtGradientOptimizer,
    SquareLearningLoss,
    add_loss_output,
)
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import DeviceError, SettingError
from ortpartial.learning import resolve_loss
from ortpartial.learning.former_names import FORMER_ARGUMENTS, FORMER_ATTRIBUTES, FORMER_SETTINGS
from ortpartial.logs import logger

PAGE = ROOT / "docs" / "migration" / "onnxcustom.md"
CLASSES = (Optimizer, OrtGradientForwardBackward, OrtGradientOptimizer)
X, Y, W = data(20)

#: The public names of onnxcustom 0.4.293 for training, with those of versions before it.
NAMES = re.findall(r"\w+", """
BaseEstimator BaseLearningOnnx BaseOnnxClass ConvergenceError ConvergenceWarning EvaluationError ProviderError
OrtGradientOptimizer

OrtGradientForwardBackwardOptimizer model_onnx weights_to_train loss_output_name max_iter training_optimizer_name
batch_size learning_rate device warm_start verbose validation_every learning_loss enable_logging weight_name
learning_penalty exc saved_gradient sample_weight_name get_params set_params get_state get_full_state set_state
check_trained zero get_trained_onnx model save_onnx_graph prefix suffix build_onnx_function needs_grad fit use_numpy
score losses trained_coef_ train_losses_ validation_losses_ train_session_ train_function_ train_state_
train_grad_state_ state_ input_names_ output_names_ loss_index_

OrtGradientForwardBackward onnx_model input_names output_names class_name sess_options providers provider_options
run_options graph_builder_config device_index debug new_instance get_initializer cls_type_
OrtGradientForwardBackwardFunction states_ saved_tensors_ saved_tensors save_for_backward device_name input_to_ort
forward forward_outputs_cache backward backward_outputs_cache TorchOrtFactory

BaseLearningRate LearningRateSGD LearningRateSGDRegressor LearningRateSGDNesterov alpha power_t init_learning_rate
update_learning_rate value update_weights loop select BaseLearningLoss SquareLearningLoss AbsoluteLearningLoss
ElasticLearningLoss NegLogLearningLoss eps probability_function build_onnx_score_function loss_gradient loss_scores
clear_binding_inputs BaseLearningPenalty NoLearningPenalty ElasticLearningPenalty penalty_loss

add_loss_output onnx score_name loss_name label_name penalty output_index l1_weight l2_weight

OrtDataLoader iter_numpy iter_ortvalue iter_bind data_np data_ort get_train_initializer penalty_loss_onnx
onnx_derivative DerivativeOptions onnx_rename_weights get_onnx_opset proto_type_to_dtype dtype_to_var_type
add_initializer replace_initializers_into_onnx function_onnx_graph get_supported_functions onnx_rewrite_operator
unreduced_onnx_loss provider_to_device get_ort_device get_ort_device_type ort_device_to_string numpy_to_ort_value
device_to_providers str_ortvalue plot_onnxs
""")

PARTIAL, FULL = linear(), add_loss_output(linear())


def find_model(make):
    return FULL if make is OrtGradientOptimizer else PARTIAL


@cache
def read_rows():
    """The rows of the tables of names: cells of former names, of names of today, and of what else is said."""
    lines = PAGE.read_text(encoding="utf-8").split("## Settings", 1)[1].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("| `")]


def exists(path):
    """Whether the package, an optimizer or a class has a name of today, as an attribute or a setting."""
    *owners, name = path.removeprefix("ortpartial.").split(".")
    place = ortpartial
    for owner in owners:
        place = getattr(place, owner)
    places = (place,) if owners else (ortpartial, *CLASSES)
    return any(hasattr(p, name) or (inspect.isclass(p) and name in inspect.signature(p).parameters) for p in places)


def list_names(column):
    return {n for row in read_rows() for n in re.findall(r"`([\w.]+)`", row[column])}


def test_every_former_name_is_on_the_page():
    former = list_names(0) | {n for row in read_rows() for n in re.findall(r"`(\w+)`", row[2])}
    in_code = {*FORMER_SETTINGS, *FORMER_ATTRIBUTES, *(name for _, name in FORMER_ARGUMENTS)}
    assert {*NAMES, *in_code} - former - {"OrtGradientForwardBackwardOptimizer"} == set()


@pytest.mark.parametrize("name", sorted(list_names(1)))
def test_every_name_of_today_exists(name):
    if "torch" in name:
        pytest.importorskip("torch")
    assert exists(name)


def test_a_name_that_does_not_exist_is_found():
    assert not exists("get_everything")
    assert not exists("OrtGradientForwardBackward.fit")


@pytest.mark.parametrize("name", FORMER_SETTINGS)
def test_the_page_says_which_settings_are_aliases(name):
    (row,) = (row for row in read_rows() if f"`{name}`" in row[0])
    assert row[2].startswith("alias" if FORMER_SETTINGS[name].convert else "refused")


def test_the_example_of_the_page():
    names = {}
    try:
        for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[:2]:
            exec(code, names)
    finally:
        logger.setLevel(logging.NOTSET)
    assert isinstance(names["train_session"].learning_loss, SquareLearningLoss)
    assert names["coef"].shape == (4, 1)


@pytest.mark.parametrize("name", ["log", "neglog", "logloss", "elastic_error", "elastic", "square", "square_error",
                                  "absolute", "absolute_error"])
def test_names_of_losses(name):
    kind = {"l": "NegLog", "n": "NegLog", "e": "Elastic", "s": "Square", "a": "Absolute"}[name[0]]
    assert type(resolve_loss(name)).__name__ == f"{kind}LearningLoss"


def test_full_state():
    optimizer = Optimizer(linear(), learning_rate=LearningRateSGDNesterov(0.01), max_iter=2, random_state=0)
    optimizer.fit(X, Y)
    weights, momenta = optimizer.get_full_state(["weight", "grad"])
    for kind, arrays in (("weight", weights), ("optimizer", momenta)):
        for found in (optimizer.get_full_state(kind), optimizer.get_full_state(kind=kind), optimizer.get_state(kind)):
            assert all((a == b).all() for a, b in zip(found, arrays, strict=True))
    assert len(momenta) == len(weights) + 1
    assert any(m.any() for m in momenta[:-1])
    again = Optimizer(linear(), learning_rate=LearningRateSGDNesterov(0.01), random_state=0)
    again.set_state(weights)
    again.set_state(momenta, kind="grad")
    assert all((a == b).all() for a, b in zip(again.get_full_state("optimizer"), momenta, strict=True))
    with pytest.raises(SettingError, match="kind is 'weight', 'optimizer' or 'buffer', not 'gradient'"):
        optimizer.get_full_state(["gradient"])


@pytest.mark.parametrize("make", CLASSES)
@pytest.mark.parametrize(
    ("former", "device"),
    [
        ({"device": "cuda", "device_index": 1}, "cuda:1"),
        ({"device_index": 0}, "cpu"),
        ({"device": "cuda:1", "device_index": 1}, "cuda:1"),
        ({"providers": None}, "cpu"),
        ({"providers": "cpu"}, "cpu"),
        ({"providers": "gpu"}, "cuda"),
        ({"providers": ["CPUExecutionProvider"]}, "cpu"),
        ({"providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}, "cuda"),
        ({"providers": [("CUDAExecutionProvider", {})], "device_index": 2}, "cuda:2"),
        ({"providers": ["CUDAExecutionProvider"], "device": "cuda:1"}, "cuda:1"),
    ],
)
def test_devices(make, former, device):
    """Where there is no such device, the error names it."""
    if device == "cpu":
        assert make(find_model(make), **former).device == "cpu"
        return
    with pytest.raises(DeviceError, match=f"The device '{device}' needs CUDAExecutionProvider"):
        make(find_model(make), **former)


@pytest.mark.parametrize("make", CLASSES)
@pytest.mark.parametrize(
    ("former", "error", "message"),
    [
        ({"device_index": 1}, SettingError, "device_index=1 is not the number of device='cpu'; write device='cuda:1'."),
        ({"device": "cuda:2", "device_index": 1}, SettingError, "is not the number of device='cuda:2'; write"),
        ({"device": "cpu", "providers": ["CUDAExecutionProvider"]}, SettingError, "are two devices; leave providers"),
        ({"providers": ["TensorrtExecutionProvider"]}, DeviceError, "'TensorrtExecutionProvider' is an execution"),
        ({"model_onnx": b"", "model": b""}, SettingError, "model is given twice, under another name as well."),
        ({"weights": 1}, TypeError, "has no setting 'weights'; did you mean 'weights_to_train'?"),
    ],
)
def test_aliases_that_make_no_sense(make, former, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make(*([] if "model" in former else [find_model(make)]), **former)


@pytest.mark.parametrize("name", [n for n, s in FORMER_SETTINGS.items() if not s.convert])
def test_refused_settings(name):
    """The sentence names what to write; the former default is taken, and `set_params` says the same."""
    setting = FORMER_SETTINGS[name]
    make = Optimizer if setting.needs != "inputs" else OrtGradientForwardBackward
    message = re.escape(f"{make.__name__} has no setting {name!r}; {setting.advice}.")
    with pytest.raises(TypeError, match=message):
        make(find_model(make), **{name: "other"})
    assert make(find_model(make), **{name: setting.default})
    if make is Optimizer:
        with pytest.raises(SettingError, match=message):
            make(find_model(make)).set_params(**{name: "other"})


@pytest.mark.parametrize("make", CLASSES)
@pytest.mark.parametrize("name", FORMER_ATTRIBUTES)
def test_former_attributes(make, name):
    message = f"{make.__name__} has no attribute '{name}'; {FORMER_ATTRIBUTES[name]}."
    with pytest.raises(AttributeError, match=re.escape(message)):
        getattr(make(find_model(make)), name)


def test_missing_attributes():
    with pytest.raises(AttributeError, match="object has no attribute 'nothing'"):
        _ = Optimizer(linear()).nothing
    with pytest.raises(AttributeError, match="object has no attribute 'training'"):
        _ = Optimizer.__new__(Optimizer)._spec


@pytest.mark.parametrize(("owner", "name"), FORMER_ARGUMENTS)
def test_refused_arguments(owner, name):
    advice = re.escape(FORMER_ARGUMENTS[owner, name])
    optimizer = Optimizer(linear())
    call = getattr(ortpartial, owner, None) or getattr(optimizer, owner)
    arguments = {"add_loss_output": (PARTIAL,), "fit": (X, Y),
                 "set_state": (optimizer.get_state(),), "save_onnx_graph": (bytes,)}.get(owner, ())
    with pytest.raises(TypeError, match=rf"{owner} (takes no|has no setting) '{name}'; {advice}\."):
        call(*arguments, **{name: 0.25})


def test_other_aliases():
    former = Optimizer(model_onnx=linear(), weights_to_train=["coef"], weight_name="weight", debug=True, max_iter=1,
                       loss_output_name="loss", training_optimizer_name="SGDOptimizer", sess_options=None)
    today = Optimizer(linear(), ["coef"], max_iter=1)
    for optimizer in (former, today):
        optimizer.set_params(random_state=0).fit(X, Y, W)
    assert former.train_losses_ == today.train_losses_
    layer = OrtGradientForwardBackward(onnx_model=linear(), input_names=["x"])
    assert layer.inputs == ["x"]


def test_aliases_of_full_training():
    former = OrtGradientOptimizer(model_onnx=FULL, providers="cpu", debug=True, training_optimizer_name="SGDOptimizer",
                                  loss_output_name="loss", max_iter=1, random_state=0)
    today = OrtGradientOptimizer(FULL, max_iter=1, random_state=0)
    assert former.fit(X, Y).train_losses_ == today.fit(X, Y).train_losses_
    assert all((a == b).all() for a, b in zip(former.get_full_state(), today.get_state(), strict=True))
    assert clone(former).get_params(deep=False).keys().isdisjoint(FORMER_SETTINGS.keys() - {
        "loss_output_name", "sample_weight_name"})
    with pytest.raises(TypeError, match="get_trained_onnx takes no 'model'; it returns the graph of predictions;"):
        former.get_trained_onnx(model=PARTIAL)
    with pytest.raises(TypeError, match="OrtGradientOptimizer has no setting 'sess_options'; sessions choose theirs"):
        OrtGradientOptimizer(FULL, sess_options=1)


def test_logging(caplog):
    try:
        Optimizer(linear(), enable_logging=False)
        assert logger.level == logging.NOTSET
        Optimizer(linear(), enable_logging=True, max_iter=2).fit(X, Y)
        assert logger.level == logging.DEBUG
        assert any("epoch" in r.message for r in caplog.records)
    finally:
        logger.setLevel(logging.NOTSET)


def test_aliases_are_no_parameters():
    former = Optimizer(model_onnx=linear(), weight_name="w", providers="cpu")
    settings = former.get_params(deep=False)
    assert list(settings) == list(inspect.signature(Optimizer).parameters)
    assert settings.keys().isdisjoint(FORMER_SETTINGS)
    assert clone(former).get_params(deep=False).keys() == settings.keys()
    assert (pickle.loads(pickle.dumps(former)).get_state()[0] == former.get_state()[0]).all()


def test_a_subclass_with_a_constructor_of_its_own():
    class Own(Optimizer):
        def __init__(self, model, **settings):
            super().__init__(model, max_iter=1, **settings)

    assert Own(linear(), providers="cpu", weight_name="w").device == "cpu"
    with pytest.raises(TypeError, match="Own has no setting 'sess_options'; sessions choose theirs"):
        Own(linear(), sess_options=1)
