"""Recorded trainings: each kind of file that a training is kept in, how it is written and how it goes on.

`tests/recorded/<runtime>.tar.xz` has them, a file or a folder each: solid, since they are alike. `numbers.npz` in it
has the arrays that each reached when it went on, `machine.json` the machine and the runtime, and `data.pickle` the
rows, since the last bits of a sine differ between machines.
"""

import hashlib
import json
import pickle
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from models import weights_of
from paths import TESTS
from training_artifacts import make_batches
from trajectories import (
    ENGINES,
    LABELS,
    TRAININGS,
    W,
    X,
    Y,
    list_state,
    make_module,
    make_own_loss,
    make_two_entries,
    open_artifacts,
    take_steps,
)

from ortpartial import (
    Checkpoint,
    OnnxClassifier,
    OnnxRegressor,
    OrtGradientForwardBackwardOptimizer,
    TrainingKit,
    TrainingSession,
    artifacts,
)
from ortpartial.native import find_compiler
from ortpartial.runtime import has_training

FOLDER = TESTS / "recorded"
#: What this runtime has recorded, and the other one.
HERE, THERE = (FOLDER / f"{name}.tar.xz" for name in (
    ("training", "newest") if has_training() else ("newest", "training")))
#: Trainings of the optimizer that are recorded, with the engine of each; those of the agent where it is.
OPTIMIZERS = [
    *[(engine, "mlp, Adam") for engine in ENGINES],
    ("auto", "mlp, SGDNesterov"), ("step", "mlp, momentum"), ("epoch", "mlp, stochastic average"),
    ("step", "mlp, accumulate"), ("epoch", "mlp, accumulate"), ("native", "mlp, clipping"), ("epoch", "mlp, clipping"),
    ("epoch", "mlp, plateau"), ("step", "mlp, loss scale"), ("epoch", "mlp, rate factors"), ("epoch", "mlp, freeze"),
    ("epoch", "statistics and masks"), ("native", "statistics and masks"), ("step", "balanced classes"),
    ("epoch", "two outputs"), ("epoch", "float64"), ("epoch", "own loss"), ("step", "own loss"),
]
#: Of these, the ones whose checkpoint is recorded, too.
CHECKPOINTS = [o for o in OPTIMIZERS if o[1] in ("mlp, Adam", "mlp, plateau", "mlp, loss scale", "own loss",
                                                 "mlp, stochastic average", "statistics and masks", "balanced classes")]
SESSIONS = ("mlp, Adam", "mlp, accumulate", "statistics and masks")
STYLES = ("standard", "lowered")

Arrays = Mapping[str, np.ndarray]
#: The rows of trainings by their names.
Data = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Recording:
    """A kind of file: how a training that has begun is written to a path, is read again, and goes on.

    What `write` and `read` return is the same training, the one that wrote and the one that was read.
    """

    write: Callable[[Path, Data], Any]
    read: Callable[[Path], Any]
    go_on: Callable[[Any, Data], Arrays]
    #: Whether a file of one runtime goes on with another one.
    is_portable: bool = False
    is_native: bool = False
    #: Between machines: where products are rounded to float16, a last bit of theirs is 5e-4.
    tolerance: float = 2e-6


def make_training(engine: str, name: str) -> Any:
    """A new training by its name."""
    settings = ENGINES.get(engine, {})
    return make_own_loss(**settings) if name == "own loss" else TRAININGS[name][0](**settings)


def list_data() -> Data:
    """The rows of all trainings that are recorded."""
    names = {name for _, name in OPTIMIZERS} | set(SESSIONS)
    return {"own loss": (X, Y, W), "labels": (X, LABELS), "mlp": (X, Y),
            **{n: TRAININGS[n][1] for n in sorted(names) if n != "own loss"}}


def begin(engine: str, name: str, data: Data) -> Any:
    """A training after three epochs."""
    return make_training(engine, name).fit(*data[name]).partial_fit(*data[name])


def continue_fit(name: str, trained: Any, data: Data) -> Arrays:
    """Two epochs more."""
    trained.partial_fit(*data[name]).partial_fit(*data[name])
    return {n: a for n, a in list_state(getattr(trained, "optimizer_", trained)).items() if "optimizer" not in n}


def write_pickle(begin: Callable[[Data], Any], path: Path, data: Data) -> Any:
    trained = begin(data)
    path.write_bytes(pickle.dumps(trained))
    return trained


def read_pickle(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def write_checkpoint(engine: str, name: str, path: Path, data: Data) -> Any:
    trained = begin(engine, name, data)
    trained.save_checkpoint(path)
    return trained


def read_checkpoint(engine: str, name: str, path: Path) -> Any:
    trained = make_training(engine, name)
    trained.load_checkpoint(path)
    return trained


class Cut(Checkpoint):
    """Writes a checkpoint after some batches of the second epoch, and ends the training."""

    def __init__(self, folder):
        super().__init__(folder, keep=1, every=None, seconds=0)

    batches_between_calls = 2

    def on_fit_task_end(self, estimator, context):
        super().on_fit_task_end(estimator, context)
        if estimator.n_iter_ == 1 and context.task_name == "batches":
            raise InterruptedError


def make_long(engine: str) -> Any:
    return make_training(engine, "mlp, Adam").set_params(max_iter=3)


def write_cut(engine: str, path: Path, data: Data) -> Any:
    """A fit that was cut off, and beside it one that was not."""
    try:
        make_long(engine).set_params(callbacks=[Cut(path)]).fit(*data["mlp"], X_val=0.2)
    except InterruptedError:
        return make_long(engine), None
    raise AssertionError("The training was not cut off.")


def read_cut(engine: str, path: Path) -> Any:
    return make_long(engine), path


def resume(training: Any, data: Data) -> Arrays:
    """The whole fit."""
    optimizer, folder = training
    optimizer.fit(*data["mlp"], X_val=0.2, resume=folder)
    assert optimizer.n_iter_ == 3
    return list_state(optimizer)


def begin_estimator(kind: type, data: Data) -> Any:
    estimator = kind(hidden_layer_sizes=(8,), max_iter=2, random_state=0, batch_size=8, dropout=0.2)
    X, y = data["labels"]
    return estimator.fit(X, y)


def name_rows(name: str, data: Data) -> Arrays:
    """What the session of a training reads."""
    X, y = data[name]
    return {"x": X, "y_target": y}


def write_stored(name: str, style: str, path: Path, data: Data) -> TrainingSession:
    """A training in its model, which has begun."""
    model = begin("epoch", name, data).get_training_onnx(style, init="model")
    onnx.save(model, path)
    return TrainingSession(model)


def write_session(name: str, path: Path, data: Data) -> TrainingSession:
    """The file of `TrainingSession.save`, after some steps."""
    session = TrainingSession(begin("epoch", name, data).get_training_onnx(init="model"))
    take_steps(session, name_rows(name, data), 3)
    session.save(path)
    return session


def begin_session(data: Data) -> TrainingSession:
    session = TrainingSession(begin("epoch", "mlp, Adam", data).get_training_onnx(init="model"))
    take_steps(session, name_rows("mlp, Adam", data), 3)
    return session


def continue_session(name: str, session: TrainingSession, data: Data) -> Arrays:
    """Seven steps more."""
    take_steps(session, name_rows(name, data))
    return weights_of(session.inference_model())


def begin_two_entries(data: Data) -> TrainingSession:
    session, _ = make_two_entries()
    take_steps(session, name_scalars(data), 3)
    return session


def write_two_entries(path: Path, data: Data) -> TrainingSession:
    session = begin_two_entries(data)
    session.save(path)
    return session


def name_scalars(data: Data) -> Arrays:
    """What the session of two entries reads."""
    X, y = data["mlp"]
    return {"x": X[:, 0].copy(), "t": y[:, 0].copy()}


def continue_two_entries(session: TrainingSession, data: Data) -> Arrays:
    take_steps(session, name_scalars(data))
    return dict(session.state)


def write_recognized(path: Path, data: Data) -> Any:
    """A training in its model, whose rows are taken in their order from there."""
    trained = begin("epoch", "mlp, Adam", data)
    onnx.save(trained.get_training_onnx(init="model"), path)
    trained.shuffle = False
    return trained


def recognize(path: Path) -> Any:
    return OrtGradientForwardBackwardOptimizer.from_training_info(path, batch_size=8, shuffle=False, engine="epoch")


def write_module(name: str, is_model: bool, path: Path, data: Data) -> Any:
    """The file of `Module.save`, or that of `save_states`."""
    module = make_module(name).fit(*data["mlp"], epochs=2, batch_size=8)
    if is_model:
        module.save(path, state={"epoch": 2})
    else:
        module.save_states(path, {"epoch": 2})
    return module


def read_module(name: str, is_model: bool, path: Path) -> Any:
    module = make_module(name)
    state = module.load(path, include_state=True) if is_model else module.load_states(path)
    assert state == {"epoch": 2}
    return module


def continue_module(module: Any, data: Data) -> Arrays:
    """Two epochs in the order of the rows."""
    module.fit(*data["mlp"], epochs=2, batch_size=8, shuffle=False)
    return module.state_dict()


def write_artifacts(name: str, path: Path, data: Data) -> Any:
    """The checkpoint of a training of onnxruntime 1.19.2, after three steps."""
    module = open_artifacts(name)
    for batch in make_batches(name)[:3]:
        module.step(*batch)
    artifacts.CheckpointState.save_checkpoint(module.state, path, include_optimizer_state=True)
    return module


def read_artifacts(name: str, path: Path) -> Any:
    return open_artifacts(name, checkpoint=path)


def continue_artifacts(name: str, module: Any, data: Data) -> Arrays:
    module.optimizer.set_learning_rate(0.02)
    for batch in make_batches(name)[3:9]:
        module.step(*batch)
    checkpoint = module.state.to_checkpoint()
    return {**checkpoint.trainable, **checkpoint.frozen}


def write_kit(name: str, path: Path, data: Data) -> TrainingKit:
    """A kit, with the state after three steps."""
    begin("epoch", name, data).export_step(path, targets=(), batch_size=8)
    kit = TrainingKit(path)
    kit.train(name_rows(name, data), 3)
    kit.save()
    return kit


def continue_kit(name: str, kit: TrainingKit, data: Data) -> Arrays:
    kit.train(name_rows(name, data), 7)
    return {n: a for n, a in kit.state.items() if n in kit.manifest.weights}


def list_recordings() -> dict[str, Recording]:
    """All kinds of files by the name of each, on this runtime."""
    recordings = {}
    for engine, name in OPTIMIZERS:
        shared = {"is_native": engine == "native", "tolerance": 5e-4 if name == "mlp, loss scale" else 2e-6}
        stem, go_on = f"{engine}, {name}".replace(", ", "-").replace(" ", "_"), partial(continue_fit, name)
        recordings[f"{stem}.pickle"] = Recording(
            partial(write_pickle, partial(begin, engine, name)), read_pickle, go_on,
            is_portable=engine in ("step", "epoch") and name != "mlp, loss scale", **shared)
        if (engine, name) in CHECKPOINTS:
            recordings[f"{stem}.safetensors"] = Recording(
                partial(write_checkpoint, engine, name), partial(read_checkpoint, engine, name), go_on, **shared)
    for engine in ENGINES:
        recordings[f"cut-{engine}"] = Recording(partial(write_cut, engine), partial(read_cut, engine), resume,
                                                is_native=engine == "native")
    for kind in (OnnxRegressor, OnnxClassifier):
        recordings[f"{kind.__name__}.pickle"] = Recording(
            partial(write_pickle, partial(begin_estimator, kind)), read_pickle, partial(continue_fit, "labels"),
            is_portable=True)
    for name in SESSIONS:
        stem, go_on = name.replace(", ", "-").replace(" ", "_"), partial(continue_session, name)
        for style in STYLES:
            recordings[f"stored-{style}-{stem}.onnx"] = Recording(partial(write_stored, name, style), TrainingSession,
                                                                  go_on)
        recordings[f"session-{stem}.onnx"] = Recording(partial(write_session, name), TrainingSession, go_on)
    recordings["session.pickle"] = Recording(partial(write_pickle, begin_session), read_pickle,
                                             partial(continue_session, "mlp, Adam"), is_portable=True)
    recordings["session-two_entries.pickle"] = Recording(partial(write_pickle, begin_two_entries), read_pickle,
                                                         continue_two_entries, is_portable=True)
    recordings["session-two_entries.onnx"] = Recording(write_two_entries, TrainingSession, continue_two_entries)
    recordings["recognized.onnx"] = Recording(write_recognized, recognize, partial(continue_fit, "mlp, Adam"))
    for name in ("adam", "masks", "normalization", "two optimizers"):
        for is_model in (True, False):
            file = f"module-{name.replace(' ', '_')}.{'onnx' if is_model else 'safetensors'}"
            recordings[file] = Recording(partial(write_module, name, is_model), partial(read_module, name, is_model),
                                         continue_module)
    for name in ("mlp", "cnn"):
        recordings[f"artifacts-{name}"] = Recording(partial(write_artifacts, name), partial(read_artifacts, name),
                                                    partial(continue_artifacts, name))
    for name in ("mlp, Adam", "statistics and masks"):
        stem = name.replace(", ", "-").replace(" ", "_")
        recordings[f"kit-{stem}"] = Recording(partial(write_kit, name), TrainingKit, partial(continue_kit, name))
    return recordings


def describe_machine() -> dict[str, str]:
    """What bits depend on: the processor, the runtime and, of machine code, the C compiler."""
    fields = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines())
    fields = {n.strip(): v.strip() for n, v in fields.items()}
    flags = hashlib.sha256(fields.get("flags", "").encode()).hexdigest()[:8]
    compiler = find_compiler()
    version = compiler and subprocess.run([*compiler.command, "--version"], capture_output=True, text=True).stdout
    return {"cpu": " ".join(fields.get(n, "") for n in ("model name", "cpu family", "model", "stepping")) + f" {flags}",
            "runtime": onnxruntime.__version__, "compiler": (version or "").partition("\n")[0]}


def copy(path: Path, folder: Path) -> Path:
    """A copy that a training may write to."""
    target = folder / path.name
    if path.is_dir():
        shutil.copytree(path, target)
    else:
        shutil.copy(path, target)
    return target


def pack(folder: Path, path: Path) -> None:
    """Write an archive of what is in a folder, the same for the same files."""

    def forget(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(path, "w:xz", preset=9) as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, file.name, filter=forget)


def unpack(path: Path, folder: Path) -> Path:
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return folder


def write_numbers(path: Path, numbers: Mapping[str, Arrays]) -> None:
    """The arrays that each recording reached, in one file."""
    np.savez(path, **{f"{file}:{n}": np.asarray(a) for file, arrays in numbers.items() for n, a in arrays.items()})


def read_numbers(path: Path) -> dict[str, dict[str, np.ndarray]]:
    numbers: dict[str, dict[str, np.ndarray]] = {}
    with np.load(path) as flat:
        for key in flat:
            file, _, name = key.partition(":")
            numbers.setdefault(file, {})[name] = flat[key]
    return numbers


def read_machine(folder: Path) -> dict[str, str]:
    return json.loads((folder / "machine.json").read_text())
