"""The doors by which a model, or code that writes one, comes in: the first use by each."""

import io
import os
import tempfile
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import onnx
import torch
from models import data, linear
from training_artifacts import STORED
from written import WRITTEN, is_writable

from ortpartial import (
    OnnxLayer,
    OnnxRegressor,
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    TrainingKit,
    TrainingSession,
    add_lora,
    add_loss_output,
    artifacts,
    gradient_model,
    load,
    nn,
    plot_graph,
    write_kit,
)
from ortpartial.cli import main
from ortpartial.exceptions import OrtPartialError
from ortpartial.testing import check_upgrade


def run(layer, feeds):
    ys, state = layer.forward(feeds)
    layer.backward([np.ones_like(y) for y in ys], state)


def in_folder(call):
    """A door of files: what is called in a folder of its own, with the model as model.onnx."""

    def enter(model, feeds):
        with tempfile.TemporaryDirectory() as folder:
            former = os.getcwd()
            os.chdir(folder)
            try:
                onnx.save(model, "model.onnx")
                np.savez("data.npz", **feeds)
                return call(model)
            finally:
                os.chdir(former)

    return enter


def command(*words):
    """A door of the command line, whose errors are one line and status 2."""

    def call(model):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = main(list(words))
        if status == 2:
            raise OrtPartialError(err.getvalue())
        assert status in (0, 1), (status, out.getvalue(), err.getvalue())

    return in_folder(call)


def step(model, feeds):
    """A step of a training in the model."""
    session = TrainingSession(OrtGradientForwardBackwardOptimizer(model).get_training_onnx(init="model"))
    rows = {n: feeds.get(n, np.zeros([m if isinstance(m, int) else 2 for m in s or ()], np.float32))
            for n, s in session.shapes.items()}
    session.step(rows)


def layer(model, feeds):
    OnnxLayer(model)(**{n: torch.from_numpy(a) for n, a in feeds.items()})


def train_kit(model):
    """A kit whose step is another graph."""
    x, y, _ = data(4)
    OrtGradientForwardBackwardOptimizer(linear()).export_step("kit", targets=())
    onnx.save(model, "kit/step.onnx")
    TrainingKit("kit").step({"x": x, "y_target": y})


def evaluate_artifacts(model, feeds):
    """Artifacts whose evaluation model is another graph, which reads their input."""
    renamed = onnx.compose.add_prefix_graph(model.graph, "input_", rename_edges=False, rename_nodes=False,
                                            rename_outputs=False, rename_initializers=False,
                                            rename_value_infos=False, rename_inputs=True)
    model = onnx.helper.make_model(renamed, opset_imports=model.opset_import, ir_version=model.ir_version,
                                   functions=model.functions)
    model.graph.input[0].name = "input_0"
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name == "input_x":
                node.input[i] = "input_0"
    state = artifacts.load(STORED / "mlp").state
    artifacts.Module(STORED / "mlp" / "training_model.onnx", state, model).eval()(*feeds.values())


DOORS = {
    "load": lambda model, feeds: load(model),
    "OrtGradientForwardBackward": lambda model, feeds: run(OrtGradientForwardBackward(model, engine="step"), feeds),
    "OrtGradientForwardBackwardOptimizer": lambda model, feeds: OrtGradientForwardBackwardOptimizer(model).predict(
        feeds),
    "OrtGradientOptimizer": lambda model, feeds: OrtGradientOptimizer(add_loss_output(model)),
    "OnnxRegressor": lambda model, feeds: OnnxRegressor(model).fit(*[a.reshape(2, -1) for a in [feeds["x"]] * 2]),
    "OnnxLayer": layer,
    "nn": lambda model, feeds: nn.Module.from_onnx(model)(nn.placeholder(feeds["x"].shape)),
    "TrainingSession": step,
    "gradient_model": lambda model, feeds: gradient_model(model),
    "add_lora": lambda model, feeds: add_lora(model, "*", rank=1),
    "write_kit": in_folder(lambda model: write_kit(
        OrtGradientForwardBackwardOptimizer(model).get_training_onnx("lowered", init="model"), "kit", targets=())),
    "TrainingKit": in_folder(train_kit),
    "artifacts": evaluate_artifacts,
    "plot_graph": lambda model, feeds: plot_graph(model),
    "check_upgrade": lambda model, feeds: check_upgrade(model),
    "info": command("info", "model.onnx"),
    "predict": command("predict", "model.onnx", "data.npz"),
    "gradient": command("gradient", "model.onnx", "-o", "gradient.onnx"),
    "bench": command("bench", "model.onnx", "--engine", "step", "--seconds", "0.01"),
    "export": command("export", "model.onnx", "-o", "training.onnx"),
    **WRITTEN,
}


def list_doors(model):
    """The doors that a model has: code has the operators of one opset."""
    return [door for door in DOORS if door not in WRITTEN or is_writable(model)]


def enter(name, model, feeds):
    """Go through a door, whose asserts are those of `check_upgrade`."""
    try:
        DOORS[name](model, feeds)
    except AssertionError as e:
        raise OrtPartialError(str(e)) from None
