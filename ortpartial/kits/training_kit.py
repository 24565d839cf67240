"""Training kits in Python: the reference for the runners of all other languages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeAlias

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import CallbackLike, Entries, Record, State
from ortpartial.arguments import checked
from ortpartial.checks import check_count, check_flag
from ortpartial.exceptions import ConvergenceError, DataError, DeadlineError, ModelError
from ortpartial.execution import Arrays, Batch, EngineNames, FitSettings, FitTasks, IdleRunner, Loop, Overrides, Stepper
from ortpartial.learning import KIT_HABITS, AnsweredAttributes, NamedSettings, accept_words
from ortpartial.model import read_tensors, replace_file, use_libraries, write, write_tensors
from ortpartial.runtime import Device, DeviceName
from ortpartial.texts import printable

from .checks import check_inputs, check_mapping
from .door import KitBatches, KitDoor
from .inference import fill_model, predict
from .manifest import Manifest, read_manifest
from .state_file import pack_state, read_state
from .step_source import KitSource

__all__ = ["TrainingKit", "run_kit"]

#: Shared libraries of custom operators.
Libraries: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None"

#: The stand-in for y: the rows of a kit have the targets among them.
_NO_TARGET = ()

#: The engines that take single steps.
_ENGINES = ("step", "native")


class TrainingKit(AnsweredAttributes, EngineNames, NamedSettings):
    """A training kit, as `write_kit` and `export_step` write it, trained by the onnxruntime of this process.

    Parameters
    ----------
    folder : path
        The kit.
    device : str or tuple of str and dict
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or an execution provider, as in `OrtGradientForwardBackwardOptimizer`.
    engine : str
        ``"auto"`` or ``"step"``: the graphs of the kit. ``"native"``: machine code, which a C compiler makes of them
        for the sizes of batches that come often; an operator that cannot be written in C is an error.
    raise_on_divergence : bool
        Whether a loss that is NaN or infinite raises ConvergenceError; otherwise it warns, and `train` stops. The state
        is that before its step in both cases.
    custom_ops_library : path or sequence of path, optional
        The shared library of custom operators of the model, as for `ortpartial.load`.

    Attributes
    ----------
    manifest : Manifest
        The manifest of the kit.
    state : dict of str to numpy.ndarray
        Weights, running statistics, optimizer states and counters, as they are now. The next step goes on from the
        numbers written to them.
    steps_taken : int
        The number of steps since the kit was exported.
    engine_, engine_reason_ : str
        The engine, and why it was chosen.
    history_ : list of dict
        A record of each epoch that `train` has ended, or begun: "loss" is the mean over its rows, and
        "validation_loss" that over `X_val`.

    Raises
    ------
    ModelError
        The folder holds no kit, a damaged kit or a kit of a newer version, or onnxruntime lacks an operator.
    DeviceError
        The device is unknown or missing.
    SettingError
        The engine takes no single steps.
    OSError
        A file cannot be read.

    Examples
    --------
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate=0.25)
    >>> _ = optimizer.export_step("linear_kit", targets=(), batch_size=4)
    >>> kit = TrainingKit("linear_kit")
    >>> X = np.ones((4, 1), np.float32)
    >>> kit.step({"x": X, "y_target": 2 * X})["loss"].item()
    4.0
    >>> kit.state["w"].tolist(), kit.steps_taken
    ([[1.0]], 1)
    >>> kit.predict({"x": [[3.0]]})["y"].tolist()
    [[3.0]]
    """

    _habits = KIT_HABITS

    @checked
    def __init__(self, folder: str | os.PathLike[str], *, device: DeviceName = "cpu", engine: str = "auto",
                 raise_on_divergence: bool = True, custom_ops_library: Libraries = None):
        folder = Path(folder)
        manifest = read_manifest(folder)
        state, steps_taken = read_state(folder / Manifest.STATE, manifest.state)
        is_loaded = engine not in ("auto", "step")
        source = KitSource(folder, manifest, state, Device.parse(device), is_loaded)
        self._open(source, engine, steps_taken, raise_on_divergence, custom_ops_library)

    def _open(self, source: KitSource, engine: str, steps_taken: int, raise_on_divergence: bool = True,
              libraries: Libraries = None, history: Sequence[Record] = ()) -> None:
        """Start with the state of a source."""
        for file in () if libraries is None else (Manifest.MODEL, *source.manifest.steps.values()):
            use_libraries(source.folder / file, libraries)
        self._libraries = libraries
        self._source, self._engine = source, engine
        self.folder, self.manifest = source.folder, source.manifest
        self._steps = Stepper(source, engine, _ENGINES, None, raise_on_divergence)
        runner = self._steps.engine
        runner.iteration = self._steps_before = steps_taken
        idle = IdleRunner(runner.name, runner.reason, lambda: self.steps_taken, runner.turn, runner.local)
        self._loop = Loop(idle, self._make_door(1), FitSettings())  # type: ignore[arg-type]
        self._loop.records, self._loop.n_iter = list(history), len(history)
        #: The state as it was asked for since the last step, which the caller may have changed.
        self._shown: dict[str, np.ndarray] | None = None

    def __getstate__(self) -> State:
        source = replace(self._source, stored=self.state, sessions={}, watches=[])  # Files are opened again.
        return {"source": source, "engine": self._engine, "steps_taken": self.steps_taken, "history": self.history_,
                "raise_on_divergence": self._steps.raise_on_divergence, "libraries": self._libraries}

    def __setstate__(self, state: Entries) -> None:
        self._open(**state)

    @property
    def steps_taken(self) -> int:
        """The number of steps since the kit was exported."""
        return self._steps.engine.iteration

    @property
    def history_(self) -> list[Record]:
        """A record of each epoch of `train`."""
        return self._loop.records

    @property
    def state(self) -> dict[str, np.ndarray]:
        """The state by name, in arrays that no step changes; the next step reads changes made to them."""
        if self._shown is None:
            self._shown = {t.name: self._steps.engine.get(t.name) for t in self.manifest.state}
        return self._shown

    @state.setter
    def state(self, arrays: dict[str, np.ndarray]) -> None:
        self._shown = arrays

    def _take_over(self) -> None:
        """Let the steps go on from the state as the caller has changed it."""
        if (shown := self._shown) is None:
            return
        self._check_state(shown)
        for t in self.manifest.state:
            self._steps.engine.set(t.name, shown[t.name])
        self._shown = None

    def _check_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Refuse a state of other dtypes or shapes."""
        for t in self.manifest.state:
            a = np.asarray(arrays.get(t.name))
            if (a.dtype.name, a.shape) != (t.dtype, t.shape):
                raise ModelError(f"The state {t.name!r} is {a.dtype.name} {list(a.shape)}, where {t.dtype} "
                                 f"{list(t.shape)} is expected.")

    def step(self, feeds: Mapping[str, object]) -> dict[str, np.ndarray]:
        """Train on a batch.

        Parameters
        ----------
        feeds : dict of str to array_like
            By the names of the inputs, in the shapes of the manifest. Other dtypes than its own are converted, where
            these hold the values.

        Returns
        -------
        dict of str to numpy.ndarray
            The results of the step, first the loss of the batch before it.

        Raises
        ------
        DataError
            An input is missing or does not fit, or the kit has no step for so many rows.
        ConvergenceError
            The loss is NaN or infinite; the state remains as it was.
        """
        return self._step(*self._check_batch(feeds))

    def evaluate(self, feeds: Mapping[str, object]) -> dict[str, np.ndarray]:
        """Compute the results of a step, without an update of the state.

        Parameters
        ----------
        feeds : dict of str to array_like
            As for `step`.

        Returns
        -------
        dict of str to numpy.ndarray
            As of `step`.

        Raises
        ------
        DataError
            As for `step`.
        """
        arrays, file = self._check_batch(feeds)
        self._take_over()
        return self._name_results(self._steps.engine.evaluate(arrays, file), file)

    def _check_batch(self, feeds: Mapping[str, object]) -> tuple[Arrays, str]:
        """The arrays of a batch, and the file of its step."""
        arrays = check_inputs(self.manifest.inputs, feeds)
        rows = next(len(a) for a in arrays.values())
        if not rows:
            raise DataError("The batch has no rows.")
        self._look(feeds, file := self.manifest.find_step(rows))
        return arrays, file

    @accept_words(random_state="seed")
    def train(self, data: Mapping[str, object] | str | os.PathLike[str], steps: int = 100, *,
              batch_size: int | None = None, seed: int = 0,
              on_step: Callable[[int, float], object] | None = None,
              X_val: Mapping[str, object] | str | os.PathLike[str] | None = None,
              callbacks: Sequence[CallbackLike] = (), timeout: float | None = None, verbose: int = 0,
              warm_start: bool = True) -> np.ndarray:
        """Train on batches of rows that are shuffled in every epoch, from where the kit stands.

        Every runner takes the same rows: the rows of step k, counted from 0 since the kit was exported, are batch k mod
        m of epoch k div m, with m whole batches an epoch. Rows that make no whole batch are left out of it.

        Parameters
        ----------
        data : dict of str to array_like, or path
            All rows by the names of the inputs, or a safetensors file with them; as for `step`.
        steps : int
            How many.
        batch_size : int, optional
            The number of rows of a batch; by default that of the kit.
        seed : int
            Of the order of the rows, from 0 to 2³² - 1.
        on_step : callable, optional
            Called with the number of steps taken and the loss, after each.
        X_val : dict of str to array_like, or path, optional
            Rows as `data`, whose mean results `history_` has for every epoch.
        callbacks : sequence of callable
            Functions of the kit, called after every epoch, and objects with hooks; True ends the training.
        timeout : float, optional
            Seconds, after which `DeadlineError` ends the training between two steps.
        verbose : int
            1 for a bar, 2 for a line an epoch.
        warm_start : bool
            Whether the training goes on from where the kit stands. False starts anew, with the state and the number of
            steps with which the kit was opened.

        Returns
        -------
        numpy.ndarray of shape (steps,)
            The loss of each batch, before its step; fewer where a loss that is not finite has ended the training.

        Raises
        ------
        SettingError
            A setting is out of range.
        DeadlineError
            The time is over; the state is that of the steps until then.
        DataError, ConvergenceError
            As for `step`.
        """
        size = self.manifest.batch_size if batch_size is None else check_count("batch_size", batch_size)
        steps, seed = check_count("steps", steps, 0), check_count("seed", seed, 0, 2**32 - 1)
        file = self.manifest.find_step(size)
        self._source.open(file)
        data = _read(data)
        arrays = check_inputs(self.manifest.inputs, data)
        self._look(data, file)
        rows = next(len(a) for a in arrays.values())
        if rows < size:
            raise DataError(f"The data have {rows} rows, fewer than a batch of {size}.")
        start = self.steps_taken if check_flag("warm_start", warm_start) else self._steps_before
        batches = KitBatches(arrays, size, seed, lambda: self.steps_taken, start, start + steps)
        losses: list[float] = []

        def take(batch: Batch) -> float:
            if timeout is not None and monotonic() > end:  # Steps may be shorter than a clock in another thread sees.
                raise DeadlineError(f"The training was not over after {timeout:g} s, the timeout.")
            losses.append(next(iter(self._step(batch[0], file, is_told=True).values())).item())
            if on_step is not None:
                on_step(self.steps_taken, losses[-1])
            return losses[-1]

        loop = self._loop
        loop.door, loop.settings = self._make_door(size, self._restart), FitSettings(
            max(1, batches.epochs), size, warm_start=warm_start,
            callbacks=callbacks,  # type: ignore[arg-type]  # of which it makes a tuple
            timeout=timeout, verbose=verbose, raise_on_divergence=self._steps.raise_on_divergence)
        end = monotonic() + (timeout or 0)
        if steps:
            rows_val, y_val = (None, None) if X_val is None else (check_mapping(_read(X_val), "X_val"), _NO_TARGET)
            loop.fit(batches, None, None, rows_val, y_val, FitTasks(self, loop, data, None),
                     overrides=Overrides(train_step=take))
        elif not warm_start:
            self._restart()
        return np.array(losses)

    def _make_door(self, size: int, restart: Callable[[], None] | None = None) -> KitDoor:
        """The door to batches of so many rows."""
        check = partial(check_inputs, self.manifest.inputs)
        return KitDoor(size, None not in self.manifest.steps, check, self.evaluate, restart)

    def _restart(self) -> None:
        """Return to the state that the kit was opened with."""
        self._steps.engine.reset({})
        self._steps.engine.iteration, self._shown = self._steps_before, None

    def model(self) -> ModelProto:
        """The inference model with the weights as they are now.

        Returns
        -------
        onnx.ModelProto

        Raises
        ------
        ModelError
            The file of the model is not the model of the manifest, or a tensor of `state` was replaced by an array of
            another dtype or shape.
        """
        self._check_state(self.state)
        return fill_model(self.folder, self.manifest, self.state)

    def predict(self, data: Mapping[str, object] | str | os.PathLike[str]) -> dict[str, np.ndarray]:
        """Compute the outputs of the model for rows, with the weights as they are now.

        Parameters
        ----------
        data : dict of str to array_like, or path
            The rows, as for `train`; targets, which the model does not read, may be left out.

        Returns
        -------
        dict of str to numpy.ndarray
            By the names of the outputs.

        Raises
        ------
        DataError
            An input is missing or unknown, or does not fit.
        ModelError
            As for `model`, or onnxruntime refuses the model.
        """
        return predict(self.model(), self.manifest, _read(data), self._source.device)

    def save_model(self, path: str | os.PathLike[str]) -> None:
        """Write `model`, which any onnxruntime runs, to a file, which is replaced as a whole.

        Parameters
        ----------
        path : path
            The file.

        Raises
        ------
        ModelError
            As for `model`.
        OSError
            It cannot be written.
        """
        write(self.model(), path)

    def save(self) -> None:
        """Write the state into the kit, for any runner to go on from; its file is replaced as a whole.

        Raises
        ------
        ModelError
            A tensor of `state` was replaced by an array of another dtype or shape; the former file remains.
        OSError
            The file cannot be written; the former file remains.
        """
        self._check_state(self.state)
        with replace_file(self.folder / Manifest.STATE) as file:
            file.write(pack_state(self.state, self.steps_taken))

    def _look(self, data: Mapping[str, object], file: str) -> None:
        """Tell, once, of targets that look like classes."""
        self._source.open(file)
        if (watch := self._source.watches[0]).watched:
            watch.look(data)

    def _step(self, arrays: Mapping[str, np.ndarray], file: str, *, is_told: bool = False) -> dict[str, np.ndarray]:
        """Run a step on a batch that was checked; a loop tells of its divergence."""
        def check_loss(outputs: Arrays) -> None:
            loss = next(iter(self._name_results(outputs, file).values()))
            if loss.size != 1:
                raise ModelError(f"The step of the kit returns a loss of {loss.size} numbers, where one is expected: "
                                 f"export the kit again.")
            if not np.isfinite(loss).all():
                raise ConvergenceError(self._loop.door.describe_divergence(loss.item(), self.steps_taken + 1, 0))

        self._take_over()
        return self._name_results(self._steps.step(arrays, file, check_loss, is_told=is_told), file)

    def _name_results(self, outputs: Arrays, file: str) -> dict[str, np.ndarray]:
        """The results of a step by their names in the manifest."""
        names = self._source.open(file).outputs[: len(self.manifest.outputs)]
        return {t.name: outputs[n] for t, n in zip(self.manifest.outputs, names, strict=True)}

    def __repr__(self) -> str:
        inputs = ", ".join(f"{t.name} {t.dtype}[{', '.join(map(str, t.shape))}]" for t in self.manifest.inputs)
        size = sum(a.size for a in self.state.values())
        return (f"<TrainingKit {printable(inputs)}; state: {len(self.state)} ({size:,} numbers); {self.steps_taken} "
                f"steps taken>")


def _read(data: Mapping[str, object] | str | os.PathLike[str]) -> Mapping[str, object]:
    """Data by name, from a file where they are its path."""
    return read_tensors(data)[0] if isinstance(data, str | os.PathLike) else data


@accept_words(random_state="seed")
@checked
def run_kit(folder: str | os.PathLike[str], data: Mapping[str, object] | str | os.PathLike[str], steps: int = 100, *,
            batch_size: int | None = None, seed: int = 0, save: bool = True, device: DeviceName = "cpu",
            engine: str = "auto", raise_on_divergence: bool = True, predictions: str | os.PathLike[str] | None = None,
            model: str | os.PathLike[str] | None = None) -> np.ndarray:
    """Train a kit and save its state, as the runners of other languages do; Ctrl-C saves the steps taken until then.

    Parameters
    ----------
    folder : path
        The kit.
    data, steps, batch_size, seed : object
        As for `TrainingKit.train`.
    save : bool
        Whether to write the state into the kit.
    device : str or tuple of str and dict
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or an execution provider, as in `OrtGradientForwardBackwardOptimizer`.
    engine : str
        As for `TrainingKit`.
    raise_on_divergence : bool
        As for `TrainingKit`.
    predictions : path, optional
        A safetensors file to write the outputs of the trained model for all rows to, as the programs ``predict`` do.
    model : path, optional
        A file to write the trained model to.

    Returns
    -------
    numpy.ndarray of shape (steps,)
        The loss of each batch, before its step.

    Raises
    ------
    ModelError, SettingError, DataError, ConvergenceError, OSError
        As for `TrainingKit`; the state in the kit remains.

    Examples
    --------
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate=0.25)
    >>> _ = optimizer.export_step("twice_kit", targets=(), batch_size=4)
    >>> X = np.ones((8, 1), np.float32)
    >>> run_kit("twice_kit", {"x": X, "y_target": 2 * X}, steps=3)
    array([4.  , 1.  , 0.25])
    >>> TrainingKit("twice_kit").steps_taken
    3
    """
    kit = TrainingKit(folder, device=device, engine=engine, raise_on_divergence=raise_on_divergence)
    try:
        losses = kit.train(data, steps, batch_size=batch_size, seed=seed)
    except KeyboardInterrupt:
        if save:
            kit.save()
        raise
    if save:
        kit.save()
    if predictions is not None:
        write_tensors(kit.predict(data), predictions)
    if model is not None:
        kit.save_model(model)
    return losses
