"""The doors of the trainer and its capabilities: for each pair a function that uses it, or why there is none.

A cell is a method of a door with the name of a capability, called with an empty folder; a text in its place says why
the capability makes no sense there. `NOT_YET` lists the cells that fail today.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import scipy.sparse
from models import data, mlp
from onnx.parser import parse_model
from step_engines import list_step_engines

import ortpartial
from ortpartial import (
    Checkpoint,
    ElasticLearningPenalty,
    LearningRateSGD,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    SoftmaxCrossEntropyLearningLoss,
    TrainingKit,
    TrainingSession,
    add_lora,
    add_loss_output,
    artifacts,
    callbacks,
    nn,
    plot_losses,
)
from ortpartial.cli import main
from ortpartial.exceptions import ConvergenceError, ConvergenceWarning, DeadlineError, DeviceError
from ortpartial.native import find_compiler

__all__ = ["CAPABILITIES", "DOORS", "NOT_YET", "find_cell"]

X, Y, W = data(60)
X_VAL, Y_VAL, _ = data(20, seed=4)
LABELS = (Y[:, 0] > np.quantile(Y, 0.7)).astype(np.int64)

#: By the name of the method, what the table calls it.
CAPABILITIES = {
    "callbacks": "callbacks, all of the library",
    "metrics": "metrics",
    "validation_arrays": "`X_val` as arrays",
    "validation_share": "`X_val` as a share",
    "sample_weight": "`sample_weight`",
    "class_weight": "class weights",
    "resume": "resume after a crash, to the same bits",
    "engines": "engines",
    "accumulation": "accumulation",
    "averaging": "averaging of weights",
    "precision": "mixed precision",
    "checkpointing": "gradient checkpointing",
    "clipping": "gradient clipping",
    "penalty": "penalty",
    "schedule": "schedules",
    "early_stopping": "early stopping, and the best weights",
    "progress": "progress bar",
    "history": "`history_`, and its picture",
    "data_dict": "data: dict",
    "data_frame": "data: table of pandas",
    "data_sparse": "data: sparse matrix",
    "data_memmap": "data: memory map",
    "data_loader": "data: DataLoader",
    "data_generator": "data: generator",
    "parallel": "data parallel",
    "timeout": "timeout",
    "random_state": "`random_state`",
    "device": "device",
    "undo": "a step that diverges is undone",
    "divergence": "`raise_on_divergence`: a warning in place of an error",
    "warm_start": "`warm_start`: a second `fit` goes on, or starts anew",
}

Arrays = dict[str, np.ndarray]


def differ(a: Arrays, b: Arrays) -> bool:
    """Whether two trainings have other weights."""
    assert a.keys() == b.keys()
    return any((a[n] != b[n]).any() for n in a)


def are_close(a: Arrays, b: Arrays, tolerance: float = 1e-4) -> bool:
    assert a.keys() == b.keys()
    return all(np.abs(a[n] - b[n]).max() <= tolerance * np.abs(b[n]).max() for n in a)


def norm(weights: Arrays) -> float:
    return float(np.sqrt(sum((w.astype(np.float64) ** 2).sum() for w in weights.values())))


class Crash(Exception):
    """The end of a process, in a test."""


class Fit:
    """Doors with a method `fit` and the settings of the optimizer."""

    #: The number of its epochs.
    epochs = "max_iter"
    rate = 0.05

    def make(self, *, outputs: int = 1, **settings: Any) -> Any:
        """The door with its model, before a training."""
        raise NotImplementedError

    def settings(self, **settings: Any) -> dict[str, Any]:
        rate = LearningRateSGD(self.rate)
        return {"random_state": 0, "max_iter": 3, "batch_size": 10, "learning_rate": rate, **settings}

    def fit(self, X: Any = X, y: Any = Y, *, outputs: int = 1, beside: dict[str, Any] | None = None,
            **settings: Any) -> Any:
        """A training; `beside` is what `fit` takes beside the data."""
        return self.make(outputs=outputs, **settings).fit(X, y, **(beside or {}))

    def weights(self, o: Any) -> Arrays:
        return dict(o.trained_coef_)

    def columns(self, o: Any, name: str) -> list[float]:
        """A column of the history."""
        return [record[name] for record in o.history_ if name in record]

    def plain(self) -> Arrays:
        return self.weights(self.fit())

    def callbacks(self, folder: Path) -> None:
        csv, timer, monitor = callbacks.CSVLogger(folder / "log.csv"), callbacks.Timer(), callbacks.GradientMonitor()
        told: list[Any] = []
        instances = {
            "CSVLogger": csv, "Timer": timer, "GradientMonitor": monitor, "Checkpoint": Checkpoint(folder / "run"),
            "EarlyStopping": callbacks.EarlyStopping("loss", patience=100), "ProgressBar": callbacks.ProgressBar(),
            "ReduceOnPlateau": callbacks.ReduceOnPlateau("loss")}
        elsewhere = {"Callback", "LearningRateFinder", "LearningRateSweep", "MLflow", "TensorBoard",
                     "find_learning_rate"}  # a base, a search that trains for itself, and records for other packages
        assert {*callbacks.__all__} - elsewhere == instances.keys()
        with contextlib.redirect_stderr(io.StringIO()):
            self.fit(callbacks=[*instances.values(), lambda o: told.append(o)])
        assert len(told) == len(timer.epoch_seconds_) == 3
        assert len((folder / "log.csv").read_text().splitlines()) == 4
        assert list((folder / "run").iterdir())

    def metrics(self, folder: Path) -> None:
        o = self.fit(metrics=["r2", "train_mae"], validation_every=1, beside={"X_val": X_VAL, "y_val": Y_VAL})
        scores = self.columns(o, "val_r2")
        assert len(scores) == len(self.columns(o, "mae")) == 3
        assert scores[-1] > scores[0]
        assert not differ(self.weights(o), self.plain())

    def validation_arrays(self, folder: Path) -> None:
        o = self.fit(validation_every=1, beside={"X_val": X_VAL, "y_val": Y_VAL})
        losses = self.columns(o, "validation_loss")
        assert len(losses) == 3
        assert np.isfinite(losses).all()

    def validation_share(self, folder: Path) -> None:
        o = self.fit(validation_every=1, beside={"X_val": 0.25})
        assert len(self.columns(o, "validation_loss")) == 3
        assert differ(self.weights(o), self.plain())  # the rows of the share are not trained

    def sample_weight(self, folder: Path) -> None:
        ones = self.weights(self.fit(beside={"sample_weight": np.ones_like(W)}))
        assert are_close(ones, self.plain(), 1e-5)
        assert differ(self.weights(self.fit(beside={"sample_weight": W})), ones)

    def class_weight(self, folder: Path) -> None:
        plain, weighted = (
            self.weights(self.fit(y=LABELS, outputs=2, learning_loss=SoftmaxCrossEntropyLearningLoss(class_weight=w)))
            for w in (None, [1.0, 5.0]))
        assert differ(plain, weighted)

    def begin(self, run: Path, end: Any) -> None:
        """A training with checkpoints, of which nothing is left after its second epoch but the folder."""
        def look(o: Any) -> None:
            if len(o.history_) == 2:
                end()

        self.fit(callbacks=[Checkpoint(run, seconds=1e-6), look], beside={"resume": run})

    def go_on(self, run: Path) -> None:
        """The training that goes on from the folder, and ends as one that was never cut off."""
        assert list(run.iterdir())
        o = self.fit(callbacks=[Checkpoint(run, seconds=1e-6)], beside={"resume": run})
        assert not differ(self.weights(o), self.plain())

    def resume(self, folder: Path) -> None:
        def crash() -> None:
            raise Crash

        with contextlib.suppress(Crash):
            self.begin(folder / "run", crash)
        self.go_on(folder / "run")

    def engines(self, folder: Path) -> None:
        plain = self.plain()
        for name in ("epoch", "step", *["native"] * (find_compiler() is not None)):
            o = self.fit(engine=name)
            assert o.engine_ == name
            assert are_close(self.weights(o), plain)

    def accumulation(self, folder: Path) -> None:
        assert are_close(self.weights(self.fit(accumulate=2)), self.weights(self.fit(batch_size=20)))

    def averaging(self, folder: Path) -> None:
        assert differ(self.weights(self.fit(averaging="ema", use_average=True)), self.plain())

    def precision(self, folder: Path) -> None:
        for settings in ({"precision": "float16"}, {"precision": "bfloat16", "engine": "epoch"}):
            weights = self.weights(self.fit(**settings))
            assert differ(weights, self.plain())
            assert are_close(weights, self.plain(), 0.1)

    def checkpointing(self, folder: Path) -> None:
        assert are_close(self.weights(self.fit(checkpointing="auto")), self.plain(), 1e-5)

    def clipping(self, folder: Path) -> None:
        assert differ(self.weights(self.fit(gradient_clipping=1e-3)), self.plain())

    def penalty(self, folder: Path) -> None:
        assert norm(self.weights(self.fit(learning_penalty=ElasticLearningPenalty(0.0, 1.0)))) < norm(self.plain())

    def schedule(self, folder: Path) -> None:
        rate = LearningRateSGD(self.rate, schedule="invscaling")
        assert differ(self.weights(self.fit(learning_rate=rate)), self.plain())

    def early_stopping(self, folder: Path) -> None:
        """No value is better by so much: the second epoch is the last one, and the weights are those of the first."""
        stopping = callbacks.EarlyStopping("loss", patience=1, min_delta=1e9)
        o = self.fit(callbacks=[stopping])
        assert len(o.history_) == stopping.stopped_epoch_ == 2
        assert not differ(self.weights(o), self.weights(self.fit(**{self.epochs: 1})))

    def progress(self, folder: Path) -> None:
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            self.fit(verbose=1)
        assert "3" in shown.getvalue()

    def history(self, folder: Path) -> None:
        axes = plot_losses(self.fit())
        assert len(axes.lines[0].get_xdata()) == 3
        import matplotlib.pyplot as plt

        plt.close(axes.figure)

    def data_dict(self, folder: Path) -> None:
        assert not differ(self.weights(self.fit({"x": X})), self.plain())

    def data_frame(self, folder: Path) -> None:
        o = self.fit(pd.DataFrame(X, columns=list("abcd")), pd.DataFrame({"y": Y[:, 0]}))
        assert not differ(self.weights(o), self.plain())

    def data_sparse(self, folder: Path) -> None:
        assert not differ(self.weights(self.fit(scipy.sparse.csr_matrix(X))), self.plain())

    def data_memmap(self, folder: Path) -> None:
        for name, array in (("X", X), ("Y", Y)):
            np.save(folder / f"{name}.npy", array)
        mapped = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in "XY"]
        assert not differ(self.weights(self.fit(*mapped)), self.plain())

    def data_loader(self, folder: Path) -> None:
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=10)
        assert are_close(self.weights(self.fit(loader, None)), self.weights(self.fit(shuffle=False)), 1e-5)

    def data_generator(self, folder: Path) -> None:
        batches = ((X[i : i + 10], Y[i : i + 10]) for i in range(0, 60, 10))
        expected = self.fit(shuffle=False, **{self.epochs: 1})
        assert are_close(self.weights(self.fit(batches, None, **{self.epochs: 1})), self.weights(expected), 1e-5)

    def parallel(self, folder: Path) -> None:
        """One process, which is all of them; tests of their own start several."""
        with process_group():
            o = self.fit(distributed=True)
        assert are_close(self.weights(o), self.plain(), 1e-5)

    def timeout(self, folder: Path) -> None:
        with raises(DeadlineError):
            self.fit(timeout=1e-9)

    def random_state(self, folder: Path) -> None:
        assert not differ(self.plain(), self.plain())
        assert differ(self.weights(self.fit(random_state=1)), self.plain())

    def device(self, folder: Path) -> None:
        assert not differ(self.weights(self.fit(device="CPUExecutionProvider")), self.plain())
        with raises(DeviceError):
            self.fit(device="nowhere")

    def fit_again(self, o: Any) -> None:
        o.fit(X, Y)

    def fit_too_far(self, **settings: Any) -> Any:
        """A training that diverges, to be called, and its owner."""
        o = self.make(learning_rate=LearningRateSGD(1e30), **settings)
        return o, lambda: self.fit_again(o)

    def undo(self, folder: Path) -> None:
        o, fit = self.fit_too_far()
        with raises(ConvergenceError):
            fit()
        assert are_finite(self.weights(o))

    def divergence(self, folder: Path) -> None:
        o, fit = self.fit_too_far(raise_on_divergence=False)
        with warns(ConvergenceWarning):
            fit()
        assert are_finite(self.weights(o))

    def warm_start(self, folder: Path) -> None:
        anew, further = (self.fit(warm_start=warm_start) for warm_start in (False, True))
        for o in (anew, further):
            self.fit_again(o)
        assert not differ(self.weights(anew), self.plain())
        assert differ(self.weights(further), self.plain())


def are_finite(weights: Arrays) -> bool:
    return all(np.isfinite(w).all() for w in weights.values())


@contextlib.contextmanager
def warns(kind: type[Warning]) -> Any:
    """A context in which this warning has to come."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", kind)
        yield
    assert any(issubclass(w.category, kind) for w in caught), f"no {kind.__name__}"


@contextlib.contextmanager
def raises(error: type[Exception]) -> Any:
    """A context that has to end with this error."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


@contextlib.contextmanager
def process_group() -> Any:
    """A group of torch.distributed with this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class ByLoss(Fit):
    """OrtGradientForwardBackwardOptimizer."""

    title = "`OrtGradientForwardBackwardOptimizer`"

    def make(self, *, outputs: int = 1, **settings: Any) -> Any:
        return OrtGradientForwardBackwardOptimizer(mlp(outputs=outputs), **self.settings(**settings))


class OwnLoss(Fit):
    """OrtGradientOptimizer: the graph holds its loss."""

    title = "`OrtGradientOptimizer`"

    def make(self, *, outputs: int = 1, learning_loss: Any = "square_error", **settings: Any) -> Any:
        model = add_loss_output(mlp(outputs=outputs), learning_loss)
        return OrtGradientOptimizer(model, **self.settings(**settings))

    def sample_weight(self, folder: Path) -> None:
        model = add_loss_output(mlp(), weighted=True)
        ones, others = (OrtGradientOptimizer(model, **self.settings()).fit(X, Y, sample_weight=w)
                        for w in (np.ones_like(W), W))
        assert are_close(self.weights(ones), self.plain(), 1e-5)
        assert differ(self.weights(others), self.weights(ones))


class Estimator(Fit):
    """OnnxRegressor and OnnxClassifier: what they call otherwise, and what passes through `settings`."""

    title = "`OnnxRegressor`, `OnnxClassifier`"
    names: ClassVar = {"learning_loss": "loss", "learning_penalty": "penalty"}
    data_dict = "X is one table, as for every estimator of scikit-learn"
    data_loader = data_generator = (
        "`fit` is given all rows, as for every estimator of scikit-learn; `partial_fit` takes a batch")

    def make(self, *, outputs: int = 1, **settings: Any) -> Any:
        kind = ortpartial.OnnxClassifier if outputs > 1 else ortpartial.OnnxRegressor
        settings = {self.names.get(n, n): v for n, v in self.settings(**settings).items()}
        direct = {n: v for n, v in settings.items() if n in kind().get_params(deep=False)}
        return kind(mlp(outputs=outputs), **direct, settings={n: v for n, v in settings.items() if n not in direct})

    def fit(self, X: Any = X, y: Any = Y, **settings: Any) -> Any:
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # three epochs are few
            return super().fit(X, np.ravel(y), **settings)

    def fit_again(self, o: Any) -> None:
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            o.fit(X, np.ravel(Y))

    def weights(self, o: Any) -> Arrays:
        return dict(o.optimizer_.trained_coef_)

    def columns(self, o: Any, name: str) -> list[float]:
        return [record[name] for record in o.optimizer_.history_ if name in record]

    def metrics(self, folder: Path) -> None:
        o = self.fit(metrics=["r2"])
        assert len(self.columns(o, "r2")) == 3
        assert o.evaluate(X, Y[:, 0])["r2"] == o.history_[-1]["r2"]
        assert not differ(self.weights(o), self.plain())

    def validation_share(self, folder: Path) -> None:
        o = self.fit(early_stopping=True, validation_fraction=0.25)
        assert len(o.validation_scores_) == len(self.columns(o, "validation_loss")) == 3
        assert differ(self.weights(o), self.plain())

    def validation_arrays(self, folder: Path) -> None:
        o = self.fit(beside={"X_val": X_VAL, "y_val": Y_VAL[:, 0]})
        assert len(self.columns(o, "validation_loss")) == 3
        assert not differ(self.weights(o), self.plain())

    def class_weight(self, folder: Path) -> None:
        plain, balanced = (self.weights(self.fit(y=LABELS, outputs=2, class_weight=w)) for w in (None, "balanced"))
        assert differ(plain, balanced)

    def engines(self, folder: Path) -> None:
        plain = self.plain()
        for name in ("epoch", "step", *["native"] * (find_compiler() is not None)):
            o = self.fit(engine=name)
            assert o.optimizer_.engine_ == name
            assert are_close(self.weights(o), plain)

    def early_stopping(self, folder: Path) -> None:
        """No value is better by so much: the weights are those of the first epoch."""
        stopping = callbacks.EarlyStopping("loss", patience=1, min_delta=1e9)
        o = self.fit(callbacks=[stopping])
        assert o.n_iter_ == stopping.stopped_epoch_ == 2
        assert not differ(self.weights(o), self.weights(self.fit(max_iter=1)))

    def data_frame(self, folder: Path) -> None:
        assert not differ(self.weights(self.fit(pd.DataFrame(X, columns=list("abcd")))), self.plain())


class Written(Fit):
    """nn.Module: settings of its optimizer, of `compile` and of `fit`."""

    title = "`nn.Module`"
    epochs = "epochs"
    by_optimizer: ClassVar = {"learning_penalty": "penalty", "gradient_clipping": "gradient_clipping",
                              "accumulate": "accumulate", "averaging": "averaging", "use_average": "use_average",
                              "distributed": "distributed"}
    by_compile = ("random_state", "device", "precision", "checkpointing", "engine")

    def make(self, *, outputs: int = 1, learning_loss: Any = None, **settings: Any) -> Any:
        class Network(nn.Module):
            def __init__(self) -> None:
                self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, outputs)

            def forward(self, x: Any) -> Any:
                return self.out(ortpartial.op.Tanh(self.hidden(x)))

        class WithLoss(Network):
            def train_one_batch(self, x: Any, t: Any) -> Any:
                y = self(x)
                cost = nn.Loss(learning_loss)(y, t)
                self.optimizer(cost)
                return y, cost

        settings = {**self.settings(), **settings}
        settings = {("epochs" if n == "max_iter" else n): v for n, v in settings.items()}
        module = (Network if learning_loss is None else WithLoss)().set_optimizer(
            settings.pop("learning_rate"),
            **{new: settings.pop(n) for n, new in self.by_optimizer.items() if n in settings})
        module.compile(nn.placeholder(["N", 4]), **{n: settings.pop(n) for n in self.by_compile if n in settings})
        return module, settings

    def fit(self, X: Any = X, y: Any = Y, *, outputs: int = 1, beside: dict[str, Any] | None = None,
            **settings: Any) -> Any:
        module, settings = self.make(outputs=outputs, **settings)
        settings.pop("validation_every", None)
        return module.fit(X, y, **settings, **(beside or {}))

    def settings(self, **settings: Any) -> dict[str, Any]:
        rate = LearningRateSGD(self.rate)
        return {"random_state": 0, "epochs": 3, "batch_size": 10, "learning_rate": rate, **settings}

    def weights(self, o: Any) -> Arrays:
        return o.state_dict()

    def accumulation(self, folder: Path) -> None:
        """The order of the rows follows from the number of batches."""
        one, other = (self.weights(self.fit(shuffle=False, **n)) for n in ({"accumulate": 2}, {"batch_size": 20}))
        assert are_close(one, other)

    def averaging(self, folder: Path) -> None:
        """Evaluation takes the averages; the weights go on."""
        o = self.fit(averaging="ema", use_average=True)
        assert not differ(self.weights(o), self.plain())
        assert (o.predict(X) != self.fit().predict(X)).any()

    def fit_too_far(self, **settings: Any) -> Any:
        module, settings = self.make(learning_rate=LearningRateSGD(1e30), **settings)
        return module, lambda: module.fit(X, Y, **settings)

    def warm_start(self, folder: Path) -> None:
        """The default goes on."""
        module, settings = self.make()
        module.fit(X, Y, **settings).fit(X, Y, **settings)
        assert differ(self.weights(module), self.plain())
        assert not differ(self.weights(module.fit(X, Y, warm_start=False, **settings)), self.plain())


#: Reasons of doors whose loop is not ours.
TORCH = "the loop is torch's, which has it: "
STEPS = "it takes single steps; the loop around them is yours"


class Layer:
    """OnnxLayer in a loop of torch."""

    title = "`OnnxLayer`, with torch's loop"
    callbacks = f"{TORCH}what you write into it, or Lightning's"
    metrics = f"{TORCH}torchmetrics"
    validation_arrays = validation_share = f"{TORCH}a second DataLoader"
    history = f"{TORCH}what you record"
    early_stopping = f"{TORCH}`copy.deepcopy(layer.state_dict())` of the best epoch"
    progress = f"{TORCH}tqdm around the DataLoader"
    data_dict = data_frame = data_sparse = data_memmap = data_generator = "it reads tensors, which torch makes of data"
    timeout = f"{TORCH}a clock"

    def train(self, layer: Any = None, *, batches: Any = None, weights: Any = None, rate: Any = lambda k: 0.05,
              cost: Any = lambda layer: 0.0, each: Any = lambda layer: None, **settings: Any) -> Arrays:
        """The parameters after three epochs; `cost` is added to the loss, `each` called before the weights change.

        The update is written out: the first use of `torch.optim` imports a compiler, which takes four seconds.
        """
        import torch

        from ortpartial import OnnxLayer

        layer = OnnxLayer(mlp(), **settings) if layer is None else layer
        rows = [torch.from_numpy(a) for a in (X, Y, np.ones_like(W) if weights is None else weights)]
        for k in range(18):
            x, y, w = (batches or list(zip(*(a.split(10) for a in rows), strict=True)))[k % 6]
            loss = ((layer(x) - y).square().mean(1) * w).sum() / w.sum() + cost(layer)
            layer.zero_grad()
            loss.backward()
            each(layer)
            with torch.no_grad():
                for p in layer.parameters():
                    p -= rate(k) * p.grad
        return {n: p.detach().numpy().copy() for n, p in layer.named_parameters()}

    def sample_weight(self, folder: Path) -> None:
        assert differ(self.train(weights=W), self.train())

    def class_weight(self, folder: Path) -> None:
        import torch

        from ortpartial import OnnxLayer

        gradients = []
        for weight in (None, torch.tensor([1.0, 5.0])):
            layer = OnnxLayer(mlp(outputs=2))
            torch.nn.functional.cross_entropy(layer(torch.from_numpy(X)), torch.from_numpy(LABELS), weight).backward()
            gradients.append({n: p.grad.numpy() for n, p in layer.named_parameters()})
        assert differ(*gradients)

    def resume(self, folder: Path) -> None:
        import torch

        from ortpartial import OnnxLayer

        layer = OnnxLayer(mlp())
        self.train(layer)
        torch.save(layer.state_dict(), folder / "layer.pt")
        other = OnnxLayer(mlp())
        other.load_state_dict(torch.load(folder / "layer.pt"))
        assert not differ(self.train(other), self.train(layer))

    def engines(self, folder: Path) -> None:
        from ortpartial.runtime import has_training

        for name in ("step", *["agent"] * has_training()):
            assert are_close(self.train(engine=name), self.train())

    def accumulation(self, folder: Path) -> None:
        """Gradients are added until they are set to zero."""
        import torch

        from ortpartial import OnnxLayer

        layer = OnnxLayer(mlp())
        gradients = []
        for _ in range(2):
            layer(torch.from_numpy(X)).square().mean().backward()
            gradients.append({n: p.grad.numpy().copy() for n, p in layer.named_parameters()})
        assert are_close(gradients[1], {n: 2 * g for n, g in gradients[0].items()}, 1e-6)

    def averaging(self, folder: Path) -> None:
        import torch

        from ortpartial import OnnxLayer

        layer = OnnxLayer(mlp())
        average = torch.optim.swa_utils.AveragedModel(layer)
        self.train(layer, each=average.update_parameters)
        assert differ({n: p.detach().numpy() for n, p in average.module.named_parameters()}, self.train())

    def precision(self, folder: Path) -> None:
        """Under autocast, the layer computes in its own precision."""
        import torch

        with torch.autocast("cpu", torch.bfloat16):
            weights = self.train()
        assert are_close(weights, self.train(), 0.1)

    def checkpointing(self, folder: Path) -> None:
        import torch
        from torch.utils.checkpoint import checkpoint

        from ortpartial import OnnxLayer

        class Recomputed(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = OnnxLayer(mlp())

            def forward(self, x: Any) -> Any:
                return checkpoint(self.layer, x, use_reentrant=False)

        weights = {n.removeprefix("layer."): w for n, w in self.train(Recomputed()).items()}
        assert not differ(weights, self.train())

    def clipping(self, folder: Path) -> None:
        import torch

        clip = torch.nn.utils.clip_grad_norm_
        assert differ(self.train(each=lambda layer: clip(layer.parameters(), 1e-3)), self.train())

    def penalty(self, folder: Path) -> None:
        weights = self.train(cost=lambda layer: sum(p.square().sum() for p in layer.parameters()))
        assert norm(weights) < norm(self.train())

    def schedule(self, folder: Path) -> None:
        assert differ(self.train(rate=lambda k: 0.05 / (1 + k)), self.train())

    def data_loader(self, folder: Path) -> None:
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        rows = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y), torch.ones(len(X)))
        assert not differ(self.train(batches=list(DataLoader(rows, batch_size=10))), self.train())

    def parallel(self, folder: Path) -> None:
        import torch

        from ortpartial import OnnxLayer

        with process_group():
            weights = self.train(torch.nn.parallel.DistributedDataParallel(OnnxLayer(mlp())))
        assert are_close({n.removeprefix("module."): w for n, w in weights.items()}, self.train(), 1e-5)

    def random_state(self, folder: Path) -> None:
        """Masks of Dropout are drawn from torch's generator."""
        import torch
        from models import net

        from ortpartial import OnnxLayer

        layer, x = OnnxLayer(net(0.5)), torch.randn(4, 2, 5, 5)
        outputs = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            outputs.append(layer(x).detach().numpy())
        assert (outputs[0] == outputs[1]).all()
        assert (outputs[0] != outputs[2]).any()

    def device(self, folder: Path) -> None:
        assert not differ(self.train(device="cpu"), self.train())
        with raises(DeviceError):
            self.train(device="nowhereExecutionProvider")

    def undo(self, folder: Path) -> None:
        """A gradient that is not finite is seen before the loop takes the step."""
        import torch

        def skip(layer: Any) -> None:
            if not all(torch.isfinite(p.grad).all() for p in layer.parameters()):
                for p in layer.parameters():
                    p.grad.zero_()

        assert are_finite(self.train(rate=lambda k: 1e15, each=skip))

    divergence = f"{TORCH}the loss is an ordinary tensor, of which the loop decides"
    warm_start = f"{TORCH}a second loop goes on, and a new layer starts anew"


class Stepping:
    """Doors that take single steps, of a training whose settings are stored with it."""

    callbacks = metrics = validation_share = early_stopping = progress = history = STEPS
    data_frame = data_sparse = data_loader = data_generator = f"{STEPS}, and a step reads arrays"

    def make(self, folder: Path, **settings: Any) -> Any:
        """The door with a training of these settings."""
        raise NotImplementedError

    def step(self, o: Any, start: int, weights: np.ndarray | None = None) -> None:
        """A step on ten rows."""
        rows = slice(start, start + 10)
        extra = {} if weights is None else {"sample_weight": weights[rows]}
        o.step({"x": X[rows], "y_target": Y[rows], **extra})

    def train(self, folder: Path, **settings: Any) -> Arrays:
        o = self.make(folder, **settings)
        for start in range(0, 60, 10):
            self.step(o, start)
        return self.weights(o)

    def weights(self, o: Any) -> Arrays:
        return {n: o.state[n] for n in ("W1", "b1", "W2", "b2")}

    def optimizer(self, outputs: int = 1, **settings: Any) -> Any:
        settings = {"learning_rate": LearningRateSGD(0.05), "random_state": 0, **settings}
        return OrtGradientForwardBackwardOptimizer(mlp(outputs=outputs), **settings)

    def differs(self, folder: Path, **settings: Any) -> None:
        """Whether a setting that is stored with the training has an effect."""
        assert differ(self.train(folder / "with", **settings), self.train(folder / "without"))

    def sample_weight(self, folder: Path) -> None:
        ones, others = (self.make(folder / name, weighted=True) for name in ("ones", "others"))
        for start in range(0, 60, 10):
            self.step(ones, start, np.ones_like(W))
            self.step(others, start, W)
        assert are_close(self.weights(ones), self.train(folder / "plain"), 1e-5)
        assert differ(self.weights(others), self.weights(ones))

    def class_weight(self, folder: Path) -> None:
        weights = []
        for i, w in enumerate((None, [1.0, 5.0])):
            loss = SoftmaxCrossEntropyLearningLoss(class_weight=w)
            o = self.make(folder / str(i), outputs=2, learning_loss=loss)
            o.step({"x": X[:10], "y_target": LABELS[:10]})
            weights.append(self.weights(o))
        assert differ(*weights)

    def engines(self, folder: Path) -> None:
        plain = self.train(folder / "plain")
        for name in list_step_engines():
            o = self.open(folder / name, engine=name)
            for start in range(0, 60, 10):
                self.step(o, start)
            assert o.engine_ == name
            assert are_close(self.weights(o), plain)
            assert differ(self.weights(o), plain) == (name == "native")

    def accumulation(self, folder: Path) -> None:
        self.differs(folder, accumulate=2)

    def averaging(self, folder: Path) -> None:
        o = self.make(folder, averaging="ema")
        for start in range(0, 60, 10):
            self.step(o, start)
        assert any("average" in n for n in o.state)

    def precision(self, folder: Path) -> None:
        self.differs(folder, precision="float16")
        self.differs(folder, precision="bfloat16")

    def checkpointing(self, folder: Path) -> None:
        """The step computes some nodes a second time."""
        o, plain = self.make(folder / "with", checkpointing="auto"), self.make(folder / "without")
        assert self.count_nodes(o) > self.count_nodes(plain)

    def clipping(self, folder: Path) -> None:
        self.differs(folder, gradient_clipping=1e-3)

    def penalty(self, folder: Path) -> None:
        self.differs(folder, learning_penalty=ElasticLearningPenalty(0.0, 1.0))

    def schedule(self, folder: Path) -> None:
        self.differs(folder, learning_rate=LearningRateSGD(0.05, schedule="invscaling"))

    def data_dict(self, folder: Path) -> None:
        self.step(self.make(folder), 0)

    def data_memmap(self, folder: Path) -> None:
        np.save(folder / "X.npy", X)
        mapped = np.load(folder / "X.npy", mmap_mode="r")
        self.make(folder / "door").step({"x": mapped[:10], "y_target": Y[:10]})

    def timeout(self, folder: Path) -> None:
        with raises(DeadlineError):
            self.step(self.open(folder, timeout=1e-9), 0)

    def device(self, folder: Path) -> None:
        assert not differ(self.train(folder / "cpu"), self.train_on(folder / "named", "CPUExecutionProvider"))
        with raises(DeviceError):
            self.open(folder / "nowhere", device="nowhere")

    def train_on(self, folder: Path, device: str) -> Arrays:
        o = self.open(folder, device=device)
        for start in range(0, 60, 10):
            self.step(o, start)
        return self.weights(o)

    def open(self, folder: Path, **words: Any) -> Any:
        """The door with other words of its own."""
        raise NotImplementedError

    def count_nodes(self, o: Any) -> int:
        raise NotImplementedError


class Session(Stepping):
    """TrainingSession: a training that is stored in its model."""

    title = "`TrainingSession`"

    def make(self, folder: Path, weighted: bool = False, **settings: Any) -> Any:
        style = "lowered" if {"precision", "checkpointing"} & {*settings} else "standard"
        return TrainingSession(self.optimizer(**settings).get_training_onnx(style, weighted=weighted))

    def open(self, folder: Path, **words: Any) -> Any:
        return TrainingSession(self.optimizer().get_training_onnx(), **words)

    def count_nodes(self, o: Any) -> int:
        return len(ortpartial.lowered_step(o.model).graph.node)

    def validation_arrays(self, folder: Path) -> None:
        o = self.make(folder)
        before = self.weights(o)
        assert np.isfinite(o.evaluate({"x": X_VAL, "y_target": Y_VAL})["loss"])
        assert not differ(before, self.weights(o))

    def resume(self, folder: Path) -> None:
        first = self.make(folder)
        for start in (0, 10, 20):
            self.step(first, start)
        first.save(folder / "half.onnx")
        second = TrainingSession(folder / "half.onnx")
        for start in (30, 40, 50):
            self.step(second, start)
        assert not differ(self.weights(second), self.train(folder))

    def parallel(self, folder: Path) -> None:
        """Entries between which processes exchange, by the argument that calls them."""
        told: list[Any] = []
        model = self.optimizer().get_training_onnx()
        session = TrainingSession(model, exchanges={"W1": told.append})
        self.step(session, 0)
        assert told

    def random_state(self, folder: Path) -> None:
        o, others = self.make(folder), []
        for seed in (0, 0, 1):
            o.initialize(seed)
            others.append(self.weights(o))
        assert not differ(others[0], others[1])
        assert differ(others[0], others[2])

    def undo(self, folder: Path) -> None:
        o = self.make(folder)
        before = self.weights(o)
        self.step(o, 0)
        o.undo()
        assert not differ(before, self.weights(o))

    def divergence(self, folder: Path) -> None:
        model = self.optimizer(learning_rate=LearningRateSGD(1e30)).get_training_onnx()
        for is_error in (False, True):
            session = TrainingSession(model, raise_on_divergence=is_error)
            with raises(ConvergenceError) if is_error else warns(ConvergenceWarning):
                for start in (0, 10, 20):
                    self.step(session, start)
            assert are_finite(session.state)

    warm_start = "it has no `fit`: steps go on, and `initialize` starts anew"


class Kit(Stepping):
    """TrainingKit: a step in a folder."""

    title = "`TrainingKit`"

    def make(self, folder: Path, weighted: bool = False, **settings: Any) -> Any:
        self.optimizer(**settings).export_step(folder, targets=(), weighted=weighted)
        return TrainingKit(folder)

    def open(self, folder: Path, **words: Any) -> Any:
        self.optimizer().export_step(folder, targets=())
        return TrainingKit(folder, **words)

    def count_nodes(self, o: Any) -> int:
        import onnx

        return len(onnx.load(o.folder / "step.onnx").graph.node)

    callbacks = early_stopping = "`train` calls functions and hooks; the library's read an optimizer and its step size"
    metrics = validation_share = "runners of all languages train on all rows, and compute the results of a step alone"
    parallel = "a kit trains on one device"

    def train_rows(self, kit: Any, steps: int = 18, **words: Any) -> Any:
        """Three epochs of six batches."""
        kit.train({"x": X, "y_target": Y}, steps, batch_size=10, **words)
        return kit

    def validation_arrays(self, folder: Path) -> None:
        kit, plain = (self.train_rows(self.make(folder / name), **words) for name, words in (
            ("with", {"X_val": {"x": X_VAL, "y_target": Y_VAL}}), ("without", {})))
        losses = [record["validation_loss"] for record in kit.history_]
        assert len(losses) == 3
        assert losses[-1] < losses[0]
        assert np.isclose(losses[-1], kit.evaluate({"x": X_VAL, "y_target": Y_VAL})["loss"], rtol=1e-5)
        assert not differ(self.weights(kit), self.weights(plain))

    def timeout(self, folder: Path) -> None:
        with raises(DeadlineError):
            self.train_rows(self.make(folder), timeout=1e-9)

    progress, history = Fit.progress, Fit.history

    def fit(self, **words: Any) -> Any:
        with TemporaryDirectory() as folder:
            return self.train_rows(self.make(Path(folder)), **words)

    def data_memmap(self, folder: Path) -> None:
        np.save(folder / "X.npy", X)
        losses = self.make(folder / "kit").train({"x": np.load(folder / "X.npy", mmap_mode="r"), "y_target": Y}, 6)
        assert np.isfinite(losses).all()

    def data_dict(self, folder: Path) -> None:
        assert len(self.make(folder / "kit").train({"x": X, "y_target": Y}, 6, batch_size=10)) == 6

    def resume(self, folder: Path) -> None:
        whole, first = self.make(folder / "whole"), self.make(folder / "first")
        rows = {"x": X, "y_target": Y}
        whole.train(rows, 6)
        first.train(rows, 3)
        first.save()
        second = TrainingKit(folder / "first")
        second.train(rows, 3)
        assert not differ(self.weights(second), self.weights(whole))

    def random_state(self, folder: Path) -> None:
        rows, weights = {"x": X, "y_target": Y}, []
        for i, seed in enumerate((0, 0, 1)):
            kit = self.make(folder / str(i))
            kit.train(rows, 6, seed=seed)
            weights.append(self.weights(kit))
        assert not differ(weights[0], weights[1])
        assert differ(weights[0], weights[2])

    def undo(self, folder: Path) -> None:
        kit = self.make(folder / "kit", learning_rate=LearningRateSGD(1e30))
        with raises(ConvergenceError):
            kit.train({"x": X, "y_target": Y}, 6)
        assert are_finite(self.weights(kit))

    def divergence(self, folder: Path) -> None:
        self.make(folder / "kit", learning_rate=LearningRateSGD(1e30))
        kit = TrainingKit(folder / "kit", raise_on_divergence=False)
        with warns(ConvergenceWarning):
            losses = kit.train({"x": X, "y_target": Y}, 6)
        assert 0 < len(losses) == kit.steps_taken < 6
        assert np.isfinite(losses).all()
        assert are_finite(self.weights(kit))

    def warm_start(self, folder: Path) -> None:
        kit, data = self.make(folder / "kit"), {"x": X, "y_target": Y}
        first = kit.train(data, 6)
        assert (kit.train(data, 6) != first).any()
        assert (kit.train(data, 6, warm_start=False) == first).all()


#: Reasons of the door for files that onnxruntime has generated.
GENERATED = "the files fix it: `generate_artifacts` has written loss and optimizer"


#: A training whose gradient has a Dropout, as `generate_artifacts` writes it.
DROPPING = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    training (float[32] x, float[32] w, float[32] buffer, bool[1] reset) => (float loss, bool[1] done)
    <float half = {0.5}, bool on = {1}>
    {
        kept, mask = Dropout (x, half, on)
        y = Mul (kept, w)
        loss = ReduceSum <keepdims = 0> (y)
        w_grad = Identity (kept)
        done = com.microsoft.InPlaceAccumulatorV2 (buffer, w_grad, reset)
    }"""


class Artifacts:
    """artifacts.Module: what onnxruntime.training.artifacts has generated."""

    title = "`artifacts.Module`"
    stored = Path(__file__).parents[1] / "data" / "artifacts" / "mlp"
    callbacks = metrics = validation_share = early_stopping = progress = history = STEPS
    sample_weight = class_weight = averaging = precision = checkpointing = clipping = penalty = GENERATED
    data_dict = data_frame = data_sparse = data_loader = data_generator = (
        "a step takes arrays in the order of the files, as `onnxruntime.training.api.Module` does")
    parallel = "`onnxruntime.training.api` trains on one device, and so does what goes on with it"

    def batches(self) -> list[Any]:
        rng = np.random.default_rng(0)
        return [(rng.random((8, 64), np.float32), rng.integers(0, 4, 8)) for _ in range(4)]

    def weights(self, module: Any) -> Arrays:
        return {n: p.data.copy() for n, p in module.state.parameters}

    def train(self, module: Any, batches: Any = None) -> Arrays:
        for batch in batches or self.batches():
            module.step(*batch)
        return self.weights(module)

    def validation_arrays(self, folder: Path) -> None:
        module = artifacts.load(self.stored).eval()
        before = self.weights(module)
        assert np.isfinite(module(*self.batches()[0])).all()
        assert not differ(before, self.weights(module))

    def resume(self, folder: Path) -> None:
        first, batches = artifacts.load(self.stored), self.batches()
        self.train(first, batches[:2])
        artifacts.CheckpointState.save_checkpoint(first.state, folder / "half", include_optimizer_state=True)
        second = artifacts.load(self.stored, checkpoint=folder / "half")
        assert not differ(self.train(second, batches[2:]), self.train(artifacts.load(self.stored)))

    def engines(self, folder: Path) -> None:
        plain = self.train(artifacts.load(self.stored))
        for name in list_step_engines():
            module = artifacts.load(self.stored, engine=name)
            assert are_close(self.train(module), plain)
            assert module.engine_ == name
            assert differ(self.weights(module), plain) == (name == "native")

    def accumulation(self, folder: Path) -> None:
        """Gradients are added until they are reset."""
        module, (one, two, *_) = artifacts.load(self.stored), self.batches()
        module(*one)
        module(*two)
        module.optimizer.step()
        other = artifacts.load(self.stored)
        other(*one)
        other.optimizer.step()
        assert differ(self.weights(module), self.weights(other))

    def data_memmap(self, folder: Path) -> None:
        batches = self.batches()
        np.save(folder / "X.npy", np.concatenate([x for x, _ in batches]))
        mapped = np.load(folder / "X.npy", mmap_mode="r")
        rows = [(mapped[8 * i : 8 * i + 8], t) for i, (_, t) in enumerate(batches)]
        assert not differ(self.train(artifacts.load(self.stored), rows), self.train(artifacts.load(self.stored)))

    def schedule(self, folder: Path) -> None:
        module = artifacts.load(self.stored)
        schedule = artifacts.LinearLRScheduler(module.optimizer, 0, 4, 0.01)
        for batch in self.batches():
            module.step(*batch)
            schedule.step()
        assert differ(self.weights(module), self.train(artifacts.load(self.stored)))

    def timeout(self, folder: Path) -> None:
        with raises(DeadlineError):
            self.train(artifacts.load(self.stored, timeout=1e-9))

    def random_state(self, folder: Path) -> None:
        """The seed is that of the masks of Dropout."""
        state = artifacts.Checkpoint({"w": np.ones(32, np.float32)})
        x = np.arange(32, dtype=np.float32)
        losses = [artifacts.Module(parse_model(DROPPING), artifacts.CheckpointState(state), seed=s)(x).item()
                  for s in (0, 0, 1)]
        assert losses[0] == losses[1] != losses[2]

    def device(self, folder: Path) -> None:
        named = self.train(artifacts.load(self.stored, device="CPUExecutionProvider"))
        assert not differ(named, self.train(artifacts.load(self.stored)))
        with raises(DeviceError):
            artifacts.load(self.stored, device="nowhere")

    def undo(self, folder: Path) -> None:
        module = artifacts.load(self.stored)
        module.optimizer.set_learning_rate(1e38)
        with raises(ConvergenceError):
            for _ in range(4):
                self.train(module)
        assert are_finite(self.weights(module))

    def divergence(self, folder: Path) -> None:
        module = artifacts.load(self.stored, raise_on_divergence=False)
        module.optimizer.set_learning_rate(1e38)
        with warns(ConvergenceWarning):
            for _ in range(4):
                self.train(module)
        assert are_finite(self.weights(module))

    warm_start = f"{STEPS}: it goes on, and `load` starts anew"


#: Data that a file has to hold.
FILES = "data are files: .csv, .parquet, .arrow or .npz"


def run_main(words: list[str]) -> int:
    """The exit code of a command, also where an option is not known."""
    try:
        return main(words)
    except SystemExit as e:
        return int(e.code or 0)


class Commands:
    """The command line: `ortpartial train`."""

    title = "command line"
    callbacks = "early stopping, checkpoints, the bar and records have options of their own; code needs Python"
    data_dict = data_frame = data_sparse = data_loader = data_generator = FILES

    def write(self, folder: Path, outputs: int = 1) -> None:
        import onnx

        if (folder / "model.onnx").exists():
            return
        onnx.save(mlp(outputs=outputs), folder / "model.onnx")
        target = LABELS if outputs > 1 else Y[:, 0]
        pd.DataFrame({**{n: X[:, i] for i, n in enumerate("abcd")}, "y": target, "w": W}).to_csv(
            folder / "data.csv", index=False)

    def run(self, folder: Path, *words: str, status: int = 0, outputs: int = 1) -> tuple[str, str]:
        """Train, and return what was printed."""
        self.write(folder, outputs)
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            ended = run_main(["train", str(folder / "model.onnx"), str(folder / "data.csv"), "--target", "y",
                              "--features", *"abcd", "--rate", "sgd:0.05", "--epochs", "3", "--batch-size", "10",
                              "--force", "-o", str(folder / "out.onnx"), *words])
        assert ended == status, err.getvalue()
        return out.getvalue(), err.getvalue()

    def train(self, folder: Path, *words: str, **settings: Any) -> Arrays:
        import onnx
        from onnx import numpy_helper

        self.run(folder, "-q", *words, **settings)
        return {t.name: numpy_helper.to_array(t) for t in onnx.load(folder / "out.onnx").graph.initializer}

    def differs(self, folder: Path, *words: str) -> None:
        assert differ(self.train(folder, *words), self.train(folder))

    def metrics(self, folder: Path) -> None:
        out, _ = self.run(folder, "--json", "--metrics", "r2", "train_mae", "--validation", "0.25")
        assert out.count('"val_r2":') == out.count('"mae":') == 4  # three epochs, and the end

    def validation_arrays(self, folder: Path) -> None:
        self.write(folder)
        out, _ = self.run(folder, "--json", "--validation", str(folder / "data.csv"))
        assert "validation_loss" in out

    def validation_share(self, folder: Path) -> None:
        out, _ = self.run(folder, "--json", "--validation", "0.25")
        assert "validation_loss" in out

    def sample_weight(self, folder: Path) -> None:
        self.differs(folder, "--sample-weight", "w")

    def class_weight(self, folder: Path) -> None:
        plain, weighted = (self.train(folder, "--loss", loss, outputs=2)
                           for loss in ("cross_entropy", "cross_entropy:class_weight=balanced"))
        assert differ(plain, weighted)

    def resume(self, folder: Path) -> None:
        """With more epochs, a training that has ended goes on from its last checkpoint."""
        words = "--checkpoint", str(folder / "run")
        self.train(folder, *words, "--epochs", "2")
        assert not differ(self.train(folder, *words, "--resume"), self.train(folder))

    def engines(self, folder: Path) -> None:
        plain = self.train(folder)
        for name in ("epoch", *list_step_engines()):
            assert are_close(self.train(folder, "--engine", name), plain)

    def accumulation(self, folder: Path) -> None:
        self.differs(folder, "--accumulate", "2")

    def averaging(self, folder: Path) -> None:
        self.differs(folder, "--average", "ema")

    def precision(self, folder: Path) -> None:
        self.differs(folder, "--precision", "float16")
        self.differs(folder, "--precision", "bfloat16", "--engine", "epoch")

    def checkpointing(self, folder: Path) -> None:
        assert are_close(self.train(folder, "--checkpointing"), self.train(folder), 1e-5)

    def clipping(self, folder: Path) -> None:
        self.differs(folder, "--clip", "0.001")

    def penalty(self, folder: Path) -> None:
        self.differs(folder, "--penalty", "l2:1.0")

    def schedule(self, folder: Path) -> None:
        self.differs(folder, "--rate", "sgd:0.05:invscaling")

    def early_stopping(self, folder: Path) -> None:
        out, _ = self.run(folder, "--json", "--validation", "0.25", "--early-stopping", "1", "--rate", "sgd:1.0",
                          "--epochs", "50")
        assert out.count('"epoch":') < 50

    def progress(self, folder: Path) -> None:
        out, err = self.run(folder)
        assert "3" in out + err

    def history(self, folder: Path) -> None:
        self.run(folder, "-q", "--plot", str(folder / "losses.svg"))
        assert (folder / "losses.svg").stat().st_size

    def data_memmap(self, folder: Path) -> None:
        """Arrays of an .npz file."""
        self.write(folder)
        np.savez(folder / "data.npz", x=X, y=Y)
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["train", str(folder / "model.onnx"), str(folder / "data.npz"), "-o",
                         str(folder / "out.onnx"), "-q", "--epochs", "1"]) == 0

    def parallel(self, folder: Path) -> None:
        with process_group():
            assert are_close(self.train(folder, "--distributed"), self.train(folder), 1e-5)

    def timeout(self, folder: Path) -> None:
        _, err = self.run(folder, "-q", "--epochs", "1000000", "--timeout", "0.1", status=2)
        assert "was not over after 0.1 s" in err

    def random_state(self, folder: Path) -> None:
        assert not differ(self.train(folder), self.train(folder))
        self.differs(folder, "--seed", "1")

    def device(self, folder: Path) -> None:
        assert not differ(self.train(folder, "--device", "CPUExecutionProvider"), self.train(folder))
        self.run(folder, "--device", "nowhere", status=2)

    def undo(self, folder: Path) -> None:
        _, err = self.run(folder, "--rate", "sgd:1e30", status=2)
        assert "the weights are those of" in err

    def divergence(self, folder: Path) -> None:
        """Where no epoch was finished, nothing is written; else the weights before the divergence are."""
        words = ("--no-raise-on-divergence", "--rate", "sgd:1e30")
        with warnings.catch_warnings():
            warnings.simplefilter("always", ConvergenceWarning)
            _, err = self.run(folder, *words, status=2)
            assert "diverged in its first epoch; nothing is written" in err
            _, err = self.run(folder, *words, "--batch-size", "60")
            assert "the weights are those of" in err
            assert are_finite(self.train(folder, *words, "--batch-size", "60"))

    warm_start = "a command is a training of its own, from the weights of its file, or with `--resume` a checkpoint"


class Adapters(Fit):
    """LoRA: small weights beside frozen ones, trained by the optimizer."""

    title = "adapters"
    rate = 0.002

    def make(self, *, outputs: int = 1, **settings: Any) -> Any:
        adapted = add_lora(mlp(outputs=outputs), targets="*", rank=2, random_state=0)
        return OrtGradientForwardBackwardOptimizer(adapted, "adapter", **self.settings(**settings))


DOORS = (ByLoss, OwnLoss, Estimator, Written, Layer, Session, Artifacts, Kit, Commands, Adapters)

#: By door, the cells that fail today; it can only shrink.
NOT_YET = {
    ByLoss: (),
    OwnLoss: (),
    Estimator: (),
    Written: (),
    Layer: (),
    Session: (),
    Artifacts: (),
    Kit: (),
    Commands: (),
    Adapters: (),
}


def find_cell(door: type, capability: str) -> Any:
    """A function of a folder, or the reason why there is none."""
    cell = getattr(door, capability)
    return cell if isinstance(cell, str) else getattr(door(), capability)
