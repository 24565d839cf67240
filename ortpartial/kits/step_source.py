"""Steps of a training kit as a runner takes them: a graph of the folder as it is, or its values for another engine."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ortpartial.exceptions import ModelError
from ortpartial.execution import Arrays, GraphPart, Shapes, Step, StepNames, StepSource
from ortpartial.graph import Value, build, variable
from ortpartial.learning import ClassWatch
from ortpartial.model import load, read_regular
from ortpartial.runtime import Device, Session, runtime_version

from .manifest import Manifest, Tensor

__all__ = ["FileStep", "KitSource"]


@dataclass(frozen=True)
class FileStep(Step):
    """A step whose graph is a file, which is run as it is.

    Parameters
    ----------
    inputs, outputs, names, kept : object
        As for `Step`.
    session : Session
        The file.
    updates : dict of str to str
        By state, the output that is its next value.
    """

    session: Session = field(kw_only=True)
    updates: Mapping[str, str] = field(kw_only=True)

    @cached_property
    def state(self) -> dict[str, str]:
        """By input that the step gives anew, the output that is its next value."""
        return dict(self.updates)

    def open(self, device: str | Device, threads: int | None) -> Session:
        """The file, which is open."""
        return self.session


@dataclass(frozen=True)
class KitSource(StepSource):
    """The steps of a training kit, each kind a file of it.

    Parameters
    ----------
    folder : pathlib.Path
        The kit.
    manifest : Manifest
        The tensors that its graphs read and write.
    stored : dict of str to numpy.ndarray
        The state.
    device : Device
        Where steps run.
    is_loaded : bool
        Whether files are read as values, for an engine that writes programs of its own.
    sizes : dict of str to tuple of int, or None
        The shapes of the inputs; None for any.
    file : str
        The file of the step.
    sessions : dict of str to Session
        The files that are open.
    watches : list of ClassWatch
        The watch on the data, as soon as a file is open.
    """

    folder: Path
    manifest: Manifest
    stored: Arrays
    device: Device
    is_loaded: bool = False
    sizes: Mapping[str, tuple[int, ...]] | None = None
    file: str = ""
    sessions: dict[str, Session] = field(default_factory=dict)
    watches: list[ClassWatch] = field(default_factory=list)

    @cached_property
    def names(self) -> StepNames:  # type: ignore[override]  # computed once
        """The names of new states, beside the names of the kit."""
        return StepNames.beside(t.name for t in (*self.manifest.inputs, *self.manifest.outputs, *self.manifest.state))

    @property
    def is_cut(self) -> bool:  # type: ignore[override]
        """Whether steps are values."""
        return self.is_loaded

    @property
    def first(self) -> Arrays:
        """The state."""
        return self.stored

    @property
    def dtype(self) -> np.dtype:
        """Element type of the loss."""
        return np.dtype(self.manifest.outputs[0].dtype)

    @property
    def inputs(self) -> Mapping[str, Value]:
        """Placeholders of the inputs."""
        return {t.name: _place(t.name, t) for t in self.manifest.inputs}

    def for_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> KitSource:
        """The same training for batches of these shapes."""
        return replace(self, sizes=shapes)

    def for_any_shape(self, names: Sequence[str], shapes: Shapes) -> KitSource:  # type: ignore[override]
        """The same training for batches of any shape."""
        return replace(self, sizes=None)

    def for_kind(self, kind: Hashable) -> KitSource:
        """The step of a file."""
        return replace(self, file=str(kind))

    def threads(self) -> int | None:
        """All threads: sizes are not known before a step."""
        return None

    def open(self, file: str) -> Session:
        """The session of a file, whose inputs and outputs agree with the manifest.

        Parameters
        ----------
        file : str
            Its name.

        Returns
        -------
        Session

        Raises
        ------
        ModelError
            The file is damaged, or onnxruntime lacks an operator.
        """
        if file not in self.sessions:
            content = read_regular(self.folder / file)
            try:
                step = load(content)  # With its guards: it may be of a stranger.
                session = Session(build(step.inputs, step.outputs), device=self.device)
            except ModelError as e:
                runtime = f"onnxruntime {runtime_version()}"
                reason = str(e).removeprefix(f"{runtime} does not load the graph: ")
                raise ModelError(f"{runtime} cannot run {file}: {reason}") from None
            names = [t.name for t in (*self.manifest.inputs, *self.manifest.state)]
            if session.inputs != names or len(session.outputs) != len(self.manifest.outputs) + len(self.manifest.state):
                raise ModelError(f"{file} is damaged: its inputs and outputs are not those of kit.json.")
            self.sessions[file] = session
            if not self.watches:
                inputs = {t.name: step.inputs[t.name] for t in self.manifest.inputs}
                self.watches.append(ClassWatch(list(step.outputs.values()), inputs, "the kit"))
        return self.sessions[file]

    def compose(self, weighting: bool | str = False, *, flat: bool = False, branches: bool = True) -> Step:
        """The step of the file."""
        session = self.open(self.file)
        returned = len(self.manifest.outputs)
        updates = {t.name: new for t, new in zip(self.manifest.state, session.outputs[returned:], strict=True)}
        if self.is_loaded:
            model = load(self.folder / self.file, batch=self.sizes, ties="file")
            return GraphPart(model, updates).compose(self.names)
        state = {t.name: variable(t.name, np.dtype(t.dtype), t.shape) for t in self.manifest.state}
        outputs = {n: _place(n, t) for n, t in zip(session.outputs[:returned], self.manifest.outputs, strict=True)}
        outputs |= {updates[n]: v for n, v in state.items()}
        return FileStep({**self.inputs, **state}, outputs, self.names, session=session, updates=updates)


def _place(name: str, tensor: Tensor) -> Value:
    """A value of a tensor, of any sizes: a manifest may declare others than the graph has."""
    return variable(name, np.dtype(tensor.dtype), [None] * len(tensor.shape))
