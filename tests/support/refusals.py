"""Refusals: models that compute an index, a label, a length or a divisor from their data, and doors that train them.

`MODELS` has the body of each, the number that is refused and the error; `DOORS` opens a model and returns what takes a
step on a batch, and what gives a copy of the weights.
"""

import ctypes
import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from ortpartial import (
    OnnxLayer,
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    TrainingKit,
    TrainingSession,
    add_loss_output,
    artifacts,
    build,
    grad,
    load,
    nn,
    op,
    variable,
)
from ortpartial.cli import main
from ortpartial.exceptions import DataError
from ortpartial.kits.c_export import _translate
from ortpartial.native import compile_library, lay_out
from ortpartial.native.compiler import FLAGS
from ortpartial.runtime.device import has_training

__all__ = ["DOORS", "MODELS", "Exported", "Refused", "batch", "make_model"]

ROWS, REAL = 6, np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


@dataclass(frozen=True)
class Refused:
    """A body that computes y from `h`, a float[N,4] that depends on a weight, and from `i`, an int64[N].

    Parameters
    ----------
    body : str
        The nodes; the operator that refuses is called n1.
    bad : int
        What is refused in the second row.
    says : str
        The error, without the number.
    is_told : bool
        Whether onnxruntime tells the number.
    good : tuple of int
        What is in order.
    """

    body: str
    bad: int
    says: str
    is_told: bool = True
    good: tuple[int, ...] = (0, 3, 2, -1, 1, -4)

    def message(self, *, is_told=True):
        return f"Node 'n1' ({self.says}" + (f": {self.bad}." if self.is_told or is_told else ".")


INDEX, LENGTH = "has an index that is not in -4 to 3", "has a length of a sequence that is not in 0 to 4"
DIVISOR = "divides whole numbers by zero, or the least one by -1"
LABELS, LENGTHS = (0, 3, 2, 2, 1, 0), (4, 3, 0, 1, 2, 4)
HOT = "e = Unsqueeze(i, one)"
RECURRENT = ("a = Reshape(h, three) b = Transpose<perm = [1, 0, 2]>(a) j = Cast<to = 6>(i) [n1] c = {}<hidden_size = 2>"
             "(b, W, R, , j) y = ReduceSum<keepdims = 0>(c, mixed)")

MODELS = {
    "Gather": Refused("[n1] g = Gather(t, i) y = Mul(h, g)", 4, f"Gather) {INDEX}"),
    "GatherElements": Refused(f"{HOT} [n1] g = GatherElements<axis = 1>(h, e) y = Mul(h, g)", -5,
                              f"GatherElements) {INDEX}", is_told=False),
    "GatherND": Refused(f"{HOT} [n1] g = GatherND<batch_dims = 1>(h, e) f = Unsqueeze(g, one) y = Mul(h, f)", -5,
                        f"GatherND) {INDEX}"),
    "ScatterElements": Refused(f"{HOT} q = Slice(h, zero, one, one) [n1] y = ScatterElements<axis = 1>(h, e, q)", 2**40,
                               f"ScatterElements) {INDEX}"),
    "ScatterND": Refused(f'{HOT} [n1] g = ScatterND<reduction = "add">(t, e, h) m = ReduceMean<keepdims = 1>(g, zero) '
                         "y = Mul(h, m)", 4, f"ScatterND) {INDEX}"),
    "Div": Refused("[n1] d = Div(ten, i) f = Cast<to = 1>(d) e = Unsqueeze(f, one) y = Mul(h, e)", 0,
                   f"Div) {DIVISOR}", good=(1, -1, 2, 5, -3, 7)),
    "Mod": Refused("[n1] d = Mod(ten, i) f = Cast<to = 1>(d) e = Unsqueeze(f, one) y = Mul(h, e)", 0,
                   f"Mod) {DIVISOR}", good=(3, -4, 7, 6, -3, 7)),
    "NegativeLogLikelihoodLoss": Refused(
        'l = LogSoftmax<axis = 1>(h) [n1] c = NegativeLogLikelihoodLoss<reduction = "none">(l, i) '
        "y = Unsqueeze(c, one)",
        -1, "NegativeLogLikelihoodLoss) has a label that is not in 0 to 3", good=LABELS),
    "SoftmaxCrossEntropyLoss": Refused(
        '[n1] c = SoftmaxCrossEntropyLoss<reduction = "none", ignore_index = -1>(h, i) y = Unsqueeze(c, one)',
        4, "SoftmaxCrossEntropyLoss) has a label that is not in 0 to 3 or -1", good=(*LABELS[1:], -1)),
    "ReverseSequence": Refused("a = Reshape(h, three) [n1] r = ReverseSequence<time_axis = 1, batch_axis = 0>(a, i) "
                               "s = Mul(r, a) y = Squeeze(s, two)", 5, f"ReverseSequence) {LENGTH}", good=LENGTHS),
    "RNN": Refused(RECURRENT.format("RNN"), -1, f"RNN) {LENGTH}", is_told=False, good=LENGTHS),
    "GRU": Refused(RECURRENT.format("GRU"), 5, f"GRU) {LENGTH}", is_told=False, good=LENGTHS),
    "LSTM": Refused(RECURRENT.format("LSTM"), 5, f"LSTM) {LENGTH}", is_told=False, good=LENGTHS),
}

STORED = {"w": REAL[:4], "t": REAL[1:5], "one": np.array([1]), "zero": np.array([0]), "two": np.array([2]),
          "ten": np.array(10), "three": np.array([-1, 4, 1]), "mixed": np.array([0, 1]), "split": np.array([4, 1])}


def count_columns(name):
    return 2 if name in ("RNN", "GRU", "LSTM") else 1 if "Loss" in name else 4


def make_model(name):
    """The model of a row, whose input has the numbers as its last column."""
    body = MODELS[name].body
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}.get(name, 0)
    stored = {**STORED, **{n: np.resize(REAL, (1, 2 * gates, k)) for n, k in (("W", 1), ("R", 2))}}
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[N,5] x) => (float[N,{count_columns(name)}] y) {{ '
        f"a0, k0 = Split<axis = 1>(x, split) h = MatMul(a0, w) k = Squeeze(k0, one) i = Cast<to = 7>(k) {body} }}")
    used = {n for node in proto.graph.node for n in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in stored.items() if n in used)
    return proto


def batch(name, *, bad=False):
    """A batch for a model, good or with the number that is refused."""
    row = MODELS[name]
    numbers = np.array(row.good, np.float32)
    if bad:
        numbers[1] = row.bad
    X = np.concatenate([REAL, numbers[:, None]], 1).astype(np.float32)
    return X, REAL[::-1, : count_columns(name)].copy()


def copied(arrays):
    return {n: np.array(a) for n, a in arrays.items()}


def fitting(kind=OrtGradientForwardBackwardOptimizer, prepare=lambda model: model, **settings):
    """A door with `fit`: one batch in one epoch."""

    def open_door(model, folder):
        o = kind(prepare(model), ["w"], max_iter=1, batch_size=ROWS, random_state=0, warm_start=True, **settings)
        return lambda X, y: o.fit(X, y), lambda: copied(o.trained_coef_)

    return open_door


def through_kit(model, folder):
    OrtGradientForwardBackwardOptimizer(model, ["w"], random_state=0).export_step(folder / "kit", targets=())
    kit = TrainingKit(folder / "kit")
    return lambda X, y: kit.step({"x": X, "y_target": y}), lambda: copied(kit.state)


def through_session(model, folder):
    training = OrtGradientForwardBackwardOptimizer(model, ["w"]).get_training_onnx(init="model")
    session = TrainingSession(training)
    return lambda X, y: session.step({"x": X, "y_target": y}), lambda: copied(session.state)


def through_layer(model, folder):
    layer = OnnxLayer(model, ["w"])
    parameters = dict(layer.named_parameters())

    def step(X, y):
        (layer(torch.from_numpy(X)) - torch.from_numpy(y)).square().mean().backward()
        with torch.no_grad():
            for p in parameters.values():
                p -= 0.01 * p.grad
                p.grad = None

    return step, lambda: copied({n: p.detach().numpy() for n, p in parameters.items()})


def through_module(model, folder):
    module = nn.Module.from_onnx(model).set_optimizer("sgd")
    module.compile(nn.placeholder(["N", 5]), random_state=0)
    return module.train_one_batch, lambda: copied({n: p.numpy() for n, p in module.named_parameters()})


def through_artifacts(model, folder):
    """What `generate_artifacts` writes of a model: a gradient that is added to a buffer, and an optimizer."""
    loaded = load(model)
    w, y = loaded.initializers["w"], loaded.outputs["y"]
    t = variable("t", "float32", y.shape)
    loss = op.ReduceSumSquare(y - t, keepdims=0)
    proto = build({"x": loaded.inputs["x"], "t": t, "w": w}, {"loss": loss, "w_grad": grad(loss, [w])[0]})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    proto.graph.node.append(helper.make_node("InPlaceAccumulatorV2", ["buffer", "w_grad", "reset"], ["done"],
                                             domain="com.microsoft"))
    proto.graph.input.extend([helper.make_tensor_value_info("buffer", 1, w.shape),
                              helper.make_tensor_value_info("reset", 9, [1])])
    proto.graph.output[1].CopyFrom(helper.make_tensor_value_info("done", 9, [1]))
    state = artifacts.CheckpointState(artifacts.Checkpoint({"w": STORED["w"]}))
    module = artifacts.Module(proto, state)
    optimizer = artifacts.Optimizer(onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> o (float[1] learning_rate, int64[1] step, '
        "seq(float[]) params, seq(float[]) gradients, seq(float[]) first_order_moments) => (bool[1] done) "
        "{ done = com.microsoft.SGDOptimizerV2 (learning_rate, params, gradients) }"), module)
    optimizer.set_learning_rate(0.01)
    return module.step, lambda: copied({n: p.data for n, p in state.parameters.items()})


def through_command(model, folder):
    """`ortpartial train`, whose error is a line."""
    path = folder / "model.onnx"
    onnx.save(model, path)

    def step(X, y):
        np.savez(folder / "data.npz", x=X, y=y)
        err = io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(err):
            status = main(["train", str(path), str(folder / "data.npz"), "-o", str(path), "--force", "--loss", "square",
                           "--epochs", "1", "--batch-size", str(ROWS), "--engine", "step"])
        if status:
            raise DataError(err.getvalue().strip().removeprefix("ortpartial: "))

    return step, lambda: {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer if t.name == "w"}


def forward_and_backward(model, folder):
    layer = OrtGradientForwardBackward(model, ["w"])

    def step(X, y):
        (output,), state = layer.forward({"x": X})
        gradient = layer.backward([output - y], state)[0]["w"]
        layer.set_state([layer.get_state()[0] - np.float32(0.01) * gradient])

    return step, lambda: copied(dict(enumerate(layer.get_state())))


class Exported:
    """What `export_c` writes, as a library."""

    def __init__(self, model, flags=FLAGS):
        optimizer = OrtGradientForwardBackwardOptimizer(model, ["w"], batch_size=ROWS, random_state=0)
        session = TrainingSession(optimizer.get_training_onnx(init="model"))
        self.step, _ = _translate(session, ROWS, "training")
        self.library = compile_library(self.step.source, {"training.h": self.step.header}, flags=flags)
        self.library.training_refusal.restype = ctypes.c_char_p
        self.state, self.memory = (np.zeros(1, lay_out(f)) for f in (self.step.state, self.step.memory))
        for f in self.step.state:
            self.state[f.c_name][0][: f.size] = session.state[f.name].ravel()
        self.given = np.zeros(8, np.int64)

    def __call__(self, X, y):
        arrays = {"x": X, "y_target": y}
        rows = (ctypes.c_void_p * 2)(*[arrays[f.name].ctypes.data for f in self.step.rows])
        state, memory, given = (ctypes.c_void_p(a.ctypes.data) for a in (self.state, self.memory, self.given))
        taken = self.given[0]
        code = self.library.training_step(state, memory, rows, given, ctypes.byref(ctypes.c_double()))
        assert self.given[0] == taken + (code == 0)
        if code:
            text = self.library.training_refusal(code).decode()
            raise DataError(f"{text.rstrip('.')}: {self.memory['refused'].item()}.")

    def weights(self):
        return {n: self.state[n].copy() for n in self.state.dtype.names}


def through_c(model, folder):
    exported = Exported(model)
    return exported, exported.weights


DOORS = {
    "step": fitting(engine="step"), "in place": fitting(engine="step", checkpointing="auto"),
    "epoch": fitting(engine="epoch"), "native": fitting(engine="native"),
    **({"agent": fitting(engine="agent")} if has_training() else {}),
    "OrtGradientOptimizer": fitting(OrtGradientOptimizer, add_loss_output),
    "OrtGradientForwardBackward": forward_and_backward, "OnnxLayer": through_layer, "nn.Module": through_module,
    "TrainingSession": through_session, "TrainingKit": through_kit, "export_c": through_c,
    "artifacts": through_artifacts, "ortpartial train": through_command,
}
