"""Attributes of other libraries' objects are answered with what to write, and that exists."""

import copy
import pickle
import re

import numpy as np
import pytest

import ortpartial
from ortpartial import (
    OnnxRegressor,
    OrtGradientForwardBackwardOptimizer,
    TrainingKit,
    TrainingSession,
    build,
    constant,
    nn,
    training_info,
    variable,
)
from ortpartial.learning.habits import (
    ESTIMATOR_HABITS,
    KIT_HABITS,
    MODULE_HABITS,
    OPTIMIZER_HABITS,
    PARAMETER_HABITS,
    SESSION_HABITS,
    UPDATE_HABITS,
    AnsweredAttributes,
)

x = variable("x", "float32", ["N", 2])
MODEL = build([x], {"y": x @ constant(np.ones((2, 1), np.float32), hint="w")})


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    optimizer = OrtGradientForwardBackwardOptimizer(MODEL, max_iter=1, batch_size=4)
    optimizer.export_step(folder := tmp_path_factory.mktemp("kit"), targets=())
    module = nn.Linear(2, 1).set_optimizer("adam")
    regressor = OnnxRegressor(learning_rate="SGD", tol=1, n_iter_no_change=1).fit(np.eye(4), np.arange(4.0))
    return {"module": (module, MODULE_HABITS), "OnnxModule": (nn.Module.from_onnx(MODEL), MODULE_HABITS),
            "optimizer": (optimizer, OPTIMIZER_HABITS), "estimator": (regressor, ESTIMATOR_HABITS),
            "session": (TrainingSession(optimizer.get_training_onnx()), SESSION_HABITS),
            "kit": (TrainingKit(folder), KIT_HABITS), "nn.Optimizer": (module.optimizer, UPDATE_HABITS),
            "parameter": (module.weight, PARAMETER_HABITS)}


KINDS = ["module", "OnnxModule", "optimizer", "estimator", "session", "kit", "nn.Optimizer", "parameter"]


@pytest.mark.parametrize("kind", KINDS)
def test_habits_are_answered(kind, objects):
    owner, habits = objects[kind]
    assert len(habits) > 8
    for name, advice in habits.items():
        if kind == "OnnxModule" and name == "weights":
            continue  # It has some.
        with pytest.raises(AttributeError) as e:
            getattr(owner, name)
        assert str(e.value) == f"{type(owner).__name__} has no attribute {name!r}; {advice}."
        assert len(str(e.value)) < 220
        assert not hasattr(owner, name)
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = owner.nothing


@pytest.mark.parametrize("kind", KINDS)
def test_advice_names_what_there_is(kind, objects):
    """A name with brackets or a last underscore in an advice is one of the object, or of the package."""
    owner, habits = objects[kind]
    spaces = (owner, owner.module if hasattr(owner, "module") else nn.Module, ortpartial, nn, training_info)
    for advice in {*habits.values()}:
        for name in re.findall(r"(?<![.\w])([A-Za-z_]\w*(?=\()|[a-z]\w*_(?=\W|$))", advice):
            assert any(hasattr(space, name) for space in spaces), (name, advice)


@pytest.mark.parametrize("kind", ["module", "optimizer", "estimator", "session", "parameter"])
def test_copies_and_pickles_ask_for_nothing(kind, objects):
    owner, _ = objects[kind]
    assert isinstance(owner, AnsweredAttributes)
    assert type(copy.copy(owner)) is type(owner)
    if kind != "parameter":
        assert type(pickle.loads(pickle.dumps(owner))) is type(owner)


@pytest.mark.parametrize(("name", "advice"), [
    ("MSELoss", r"nn.Loss\('square_error'\)"), ("CrossEntropyLoss", r"nn.Loss\('softmax_cross_entropy'\)"),
    ("BCEWithLogitsLoss", r"nn.Loss\('log_loss'\)"), ("L1Loss", "'absolute_error'"), ("SmoothL1Loss", "'huber'"),
    ("functional", r"op.Relu\(x\)"), ("Adam", r"set_optimizer\('adam'\)"), ("optim", "set_optimizer"),
    ("Dense", "nn.Linear"), ("Input", "nn.placeholder"), ("init", "nn.GlorotUniform"), ("nothing", "")])
def test_layers_of_other_libraries(name, advice):
    with pytest.raises(AttributeError, match=rf"module 'ortpartial.nn' has no attribute '{name}'(; .*{advice}.*)?$"):
        getattr(nn, name)


@pytest.mark.parametrize("kind", ["Sequential", "ModuleList", "ModuleDict"])
def test_modules_by_name(kind):
    message = f"{kind} takes no 'fc'; modules with names are a dict"
    with pytest.raises(ortpartial.exceptions.ArgumentError, match=message):
        getattr(nn, kind)(fc=nn.ReLU())


@pytest.mark.parametrize(("call", "advice"), [
    (lambda: nn.Loss("mse", reduction="sum"), "Loss has no setting 'reduction'; its settings are loss"),
    (lambda: nn.Parameter([3], init=1), "Parameter has no setting 'init'; its settings are shape, initializer, dtype"),
    (lambda: nn.Parameter(shape=[3], requires_grad=True), "Parameter has no setting 'requires_grad'"),
    (lambda: nn.Buffer([3], 0.0, "float32"), "Buffer takes shape and initializer without a name"),
    (lambda: nn.placeholder([2], type="float64"), "placeholder takes no 'type'; its name is dtype")])
def test_arguments(call, advice):
    with pytest.raises(ortpartial.exceptions.ArgumentError, match=advice):
        call()
