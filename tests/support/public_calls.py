"""Public constructors and functions, and for each one call that works, of which a test replaces single settings.

And wrong values, with which it replaces them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from training_artifacts import STORED

from ortpartial import (
    OrtGradientForwardBackwardOptimizer,
    add_lora,
    add_loss_output,
    artifacts,
    build,
    constant,
    export_c,
    find_learning_rate,
    nn,
    op,
    save_adapter,
    to_training_info,
    variable,
)

__all__ = ["LOOP", "ROWS", "VALUES", "Row", "Shared", "show"]

ROOMS = ("", ".learning_loss", ".learning_penalty", ".learning_rate", ".callbacks", ".nn", ".schedule", ".precision",
         ".plots", ".torch", ".artifacts", ".adapters")
#: What no setting is fuzzed of, and why.
LEFT_OUT = {
    "body_inputs": "of a rule", "composed": "it registers", "current_trace": "it has no setting",
    "stop_gradient": "an operator, whose inputs of other types are a TypeError",
    "elementwise": "it registers", "lower_products": "of a rewrite", "no_gradient": "it registers",
    "to_mixed_precision": "of a rewrite", "vjp": "it registers", "Value": "values are made by operators",
    "LearningRateSweep": "a result", "Summary": "a result", "Checkpoint": "", "Callback": "it has no setting",
}
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
Y = np.ascontiguousarray(X[:, :2])


def make_model():
    x = variable("x", "float32", ["N", 4])
    return build([x], {"y": op.Tanh(x @ constant(np.ones((4, 2), np.float32), hint="w"))})


def make():
    return OrtGradientForwardBackwardOptimizer(make_model(), learning_rate="adam", max_iter=1, batch_size=4,
                                               random_state=0)


class Shared:
    """What settings stand for by a name behind "@": objects and files, each made when it is first asked for."""

    def __init__(self, root: Path):
        self.root = root
        self.objects: dict[str, Any] = {}

    def fill(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {n: [*map(self._resolve, v)] if isinstance(v, list) else self._resolve(v) for n, v in settings.items()}

    def _resolve(self, value: Any) -> Any:
        return self.get(value[1:]) if isinstance(value, str) and value.startswith("@") else value

    def get(self, name: str) -> Any:
        if name not in self.objects:
            self.objects[name] = getattr(self, name)()
        return self.objects[name]

    def model(self):
        return make_model().SerializeToString()

    def loss_model(self):
        return add_loss_output(make_model(), weighted=False).SerializeToString()

    def adapted(self):
        return add_lora(make_model(), "*", rank=1, random_state=0)

    def optimizer(self):
        return make().fit(X, Y)

    def training(self):
        return to_training_info(make())

    def kit(self):
        make().export_step(self.root / "kit", batch_size=4)
        return self.root / "kit"

    def c_kit(self):
        export_c(make(), self.root / "c", batch_size=4)
        return self.root / "c"

    def adapter(self):
        save_adapter(self.get("adapted"), self.root / "adapter.safetensors")
        return self.root / "adapter.safetensors"

    def sweep(self):
        return find_learning_rate(make(), X, Y, steps=10)

    def value(self):
        return variable("x", "float32", [3])

    def square(self):
        return self.get("value") * self.get("value")

    def layer(self):
        return nn.TransformerEncoderLayer(4, 2, 8)

    def decoder_layer(self):
        return nn.TransformerDecoderLayer(4, 2, 8)

    def axes(self):
        return importlib.import_module("matplotlib.pyplot").subplots()[1]

    def checkpoint(self):
        return artifacts.read_checkpoint(STORED / "mlp" / "checkpoint")

    def artifacts_state(self):
        return artifacts.CheckpointState(self.get("checkpoint"))

    def artifacts_module(self):
        return artifacts.load(STORED / "mlp")

    def artifacts_optimizer(self):
        return self.get("artifacts_module").optimizer

    def measured(self):
        optimizer = OrtGradientForwardBackwardOptimizer(make_model(), max_iter=1, metrics=["r2"], random_state=0)
        return optimizer.fit(X, Y, X_val=0.25)

    def torch_module(self):
        return importlib.import_module("torch").nn.Linear(2, 3)


def repeat(names: str, **settings: object) -> dict[str, dict[str, object]]:
    """The same settings for several names."""
    return dict.fromkeys(names.split(), settings)


#: By name, or by room and name: the settings of a call that works.
CALLS: dict[str, dict[str, object]] = {
    **repeat("Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d", in_channels=1, out_channels=1,
             kernel_size=1),
    **repeat("AvgPool1d AvgPool2d AvgPool3d MaxPool1d MaxPool2d MaxPool3d", kernel_size=2),
    **repeat("AdaptiveAvgPool1d AdaptiveAvgPool2d", output_size=2),
    **repeat("BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm1d InstanceNorm2d InstanceNorm3d", num_features=2),
    **repeat("GRU LSTM RNN GRUCell LSTMCell RNNCell", input_size=2, hidden_size=2),
    **repeat("LayerNorm RMSNorm", normalized_shape=2),
    **repeat("TransformerEncoderLayer TransformerDecoderLayer", d_model=4, nhead=2, dim_feedforward=8),
    **repeat("Buffer Parameter placeholder", shape=[2]),
    **repeat("Softmax LogSoftmax Softmin", dim=-1),
    "TransformerEncoder": {"encoder_layer": "@layer", "num_layers": 1},
    "TransformerDecoder": {"decoder_layer": "@decoder_layer", "num_layers": 1},
    "MultiheadAttention": {"embed_dim": 4, "num_heads": 2}, "GroupNorm": {"num_groups": 1, "num_channels": 2},
    "Linear": {"in_features": 2, "out_features": 3}, "Embedding": {"num_embeddings": 3, "embedding_dim": 2},
    "Threshold": {"threshold": 0.0, "value": 0.0}, "Unflatten": {"dim": 1, "unflattened_size": (1, 2)},
    **repeat("OrtGradientForwardBackwardOptimizer OrtGradientForwardBackward OnnxRegressor OnnxClassifier OnnxLayer "
             "OnnxModule gradient_model jvp_model hvp_model jacobian_model hessian_model vmap_model as_torch_function "
             "add_loss_output trainable_parameters", model="@model"),
    **repeat("add_lora add_dora", model="@model", targets="*"),
    "add_ia3": {"model": "@model", "targets": "*", "feedforward": ()}, "load": {"source": "@model"},
    "OrtGradientOptimizer": {"model": "@loss_model", "label_names": "y_target"},
    **repeat("check_training_info lower_training_operators lowered_step strip_training_info TrainingSession",
             model="@training"),
    "artifacts.lower_training_model": {"source": STORED / "mlp" / "training_model.onnx"},
    "artifacts.load": {"folder": STORED / "mlp"}, "artifacts.read_checkpoint": {"path": STORED / "mlp" / "checkpoint"},
    "artifacts.write_checkpoint": {"checkpoint": "@checkpoint", "path": "checkpoint"},
    "artifacts.CheckpointState": {"checkpoint": "@checkpoint"}, "artifacts.Checkpoint": {"trainable": {}},
    "artifacts.Parameter": {"name": "0.weight", "state": "@artifacts_state"},
    "artifacts.Parameters": {"state": "@artifacts_state"},
    "artifacts.Optimizer": {"optimizer_uri": STORED / "mlp" / "optimizer_model.onnx", "module": "@artifacts_module"},
    "artifacts.Module": {"train_model_uri": STORED / "mlp" / "training_model.onnx", "state": "@artifacts_state"},
    "artifacts.LinearLRScheduler": {"optimizer": "@artifacts_optimizer", "warmup_step_count": 1,
                                    "total_step_count": 2, "initial_lr": 0.1},
    "Accumulation": {"batches": 2}, "CSVLogger": {"path": "log.csv"},
    "Checkpoint": {"folder": "run"}, "Metric": {"function": lambda t, y: 0.0},
    "FunctionLearningLoss": {"function": lambda y, t: y - t}, "GradientClipping": {"norm": 1.0},
    **repeat("PaddedBatches pad_rows", rows=([1, 2], [3])),
    "TrainingKit": {"folder": "@kit"},
    "run_kit": {"folder": "@kit", "data": {"x": X, "y_target": Y}, "steps": 2, "save": False},
    "write_kit": {"model": "@training", "folder": "written", "batch_size": 4},
    "export_c": {"training": "@optimizer", "folder": "written_c", "batch_size": 4},
    "read_c_state": {"folder": "@c_kit", "data": b""},
    "build": {"inputs": ["@value"], "outputs": ["@square"]}, "constant": {"array": [1.0]},
    "variable": {"name": "x", "dtype": "float32", "shape": [2]}, "grad": {"outputs": "@square", "wrt": ["@value"]},
    "jvp": {"outputs": "@square", "wrt": ["@value"], "tangents": [1.0]},
    **repeat("merge remove_adapter", model="@adapted"),
    "load_adapter": {"model": "@model", "path": "@adapter"},
    "save_adapter": {"trained": "@adapted", "path": "a.safetensors"}, "to_training_info": {"training": "@optimizer"},
    "find_learning_rate": {"optimizer": "@optimizer", "X": X, "y": Y, "steps": 10},
    "plot_graph": {"source": "@model"}, "plot_learning_rate_finder": {"result": "@sweep"},
    **repeat("plot_histograms plot_losses", source="@optimizer"), "plot_metrics": {"source": "@measured"},
    "save_figure": {"picture": "@axes", "path": "picture.png"},
    "resolve_loss": {"loss": "square_error"}, "resolve_penalty": {"penalty": None},
    "resolve_rate": {"rate": 0.1}, "resolve_schedule": {"schedule": "constant"},
    "resolve_precision": {"precision": None, "loss_scale": None},
    "export": {"module": "@torch_module"}, "get_optional": {"name": "numpy", "purpose": "a test"},
}


def export_torch(module, **settings):
    """`torch.export` with the example that it needs."""
    torch = importlib.import_module("torch")
    return importlib.import_module("ortpartial.torch").export(module, torch.zeros(1, 2), **settings)


class Row(NamedTuple):
    """A setting of a public constructor or function, with the other settings of a call."""

    name: str
    call: Callable[..., object]
    settings: dict[str, Any]
    setting: str


def find_public() -> Iterator[tuple[str, Callable[..., object]]]:
    """Each public class and function once, by room and name."""
    seen: set[int] = set()
    for room in ROOMS:
        try:
            module = importlib.import_module(f"ortpartial{room}")
        except ImportError:  # an extra that is not installed
            continue
        for name in module.__all__:
            value = getattr(module, name, None)
            if not callable(value) or id(value) in seen:
                continue
            seen.add(id(value))
            if not (inspect.isclass(value) and (issubclass(value, BaseException) or inspect.isabstract(value))):
                yield f"{room[1:]}.{name}".removeprefix("."), value


def find_rows() -> Iterator[Row]:
    for name, call in find_public():
        plain = name.rpartition(".")[2]
        settings = CALLS.get(name, CALLS.get(plain, {}))
        try:
            parameters = inspect.signature(call).parameters.values()
        except ValueError:
            continue
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        missing = [p.name for p in named if p.default is p.empty and p.name not in settings]
        assert not missing or plain in LEFT_OUT, (name, missing)
        if plain not in LEFT_OUT or settings:
            call = export_torch if name == "torch.export" else call
            yield from (Row(name, call, settings, p.name) for p in named)


ROWS = list(find_rows())


def divide(*_):
    return 1 / 0


LOOP: list[object] = []
LOOP.append(LOOP)
#: What every setting is given.
VALUES: list[object] = [
    LOOP, None, True, -1, 0, 10**400, -(10**400), 2.5, float("nan"), float("inf"), 1e308, "", "x",
    "x" * 10**5, "\x1b[2J\0", b"", b"x", [], {}, (), [[]], [None], {"a": 1}, {1: 2}, {()}, object(), object, int,
    np.float32(1), np.int8(1), np.array(0), np.zeros(0), np.zeros((2, 2)), np.array(["a"]),
    np.datetime64(0, "s"), 1j, print, divide, range(3), slice(1), type, Ellipsis]


def show(value):
    return f"{type(value).__name__} {str(value)[:20]}"
