"""The state of a training: parameters, gradients, momentums and counts, in the memory that sessions are bound to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ortpartial.annotations import Reduced
from ortpartial.exceptions import CheckpointError, DataError, SettingError
from ortpartial.execution import StepRunner
from ortpartial.graph import read_array, to_dtype
from ortpartial.model import check_finite
from ortpartial.runtime import FairLock

from .checkpoint import Checkpoint, OptimizerState, read_checkpoint, write_checkpoint

__all__ = ["CheckpointState", "Parameter", "Parameters", "state_name", "to_array"]


def state_name(parameter: str, kind: str) -> str:
    """The name of a tensor of the state: the parameter's own name, followed by the kind of a gradient or momentum."""
    return f"{parameter}//{kind}" if kind else parameter


def to_array(data: object, what: str) -> np.ndarray:
    """Convert data of a user, a tensor of torch included, to an array."""
    if data is None:
        raise DataError(f"{what} is None; an array was expected.")
    if hasattr(data, "numpy") and not hasattr(data, "detach"):  # an OrtValue
        data = data.numpy()
    return read_array(data, what)


class Parameter:
    """A parameter of a `CheckpointState`.

    Attributes
    ----------
    name : str
        Its name.

    Examples
    --------
    >>> state = CheckpointState(Checkpoint({"w": np.zeros((2, 1), np.float32)}))
    >>> parameter = state.parameters["w"]
    >>> parameter
    Parameter(name=w, requires_grad=True)
    >>> parameter.data = np.array([[1.0], [2.0]], np.float32)
    >>> state.parameters["w"].data.ravel()
    array([1., 2.], dtype=float32)
    """

    def __init__(self, name: str, state: CheckpointState):
        self.name, self._state = name, state

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained."""
        return self.name in self._state._trainable

    @property
    def data(self) -> np.ndarray:
        """Its content, a copy; an array assigned to it has its shape."""
        self._state.check_loaded("Please load the parameter states first")
        with self._state.turn.lock:
            return self._state.read(self.name)

    @data.setter
    def data(self, value: np.ndarray) -> None:
        with self._state.turn.lock:
            former, array = self._state.read(self.name), to_array(value, f"The parameter {self.name!r}")
            if array.shape != former.shape:
                raise DataError(f"The parameter {self.name!r} has the shape {former.shape}, not {array.shape}.")
            self._state.write(self.name, to_dtype(array, former.dtype, f"The parameter {self.name!r}"))

    @property
    def grad(self) -> np.ndarray | None:
        """Its gradient, a copy; None if it is not trained, or no `Module` was made yet."""
        with self._state.turn.lock:
            return self._state.read_gradient(self.name)

    def __repr__(self) -> str:
        return f"Parameter(name={self.name}, requires_grad={self.requires_grad})"


class Parameters:
    """The parameters of a `CheckpointState` by name. An array that is assigned becomes the content of a parameter.

    As in onnxruntime, iteration is over pairs of names and parameters.

    Examples
    --------
    >>> weights = {"w": np.zeros((2, 1), np.float32), "b": np.zeros(1, np.float32)}
    >>> parameters = CheckpointState(Checkpoint(weights)).parameters
    >>> parameters["b"] = np.ones(1, np.float32)
    >>> [(name, parameter.data.shape) for name, parameter in parameters]
    [('w', (2, 1)), ('b', (1,))]
    >>> "bias" in parameters, parameters.get("bias")
    (False, None)
    """

    def __init__(self, state: CheckpointState):
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        if name not in self:
            raise KeyError(f"Parameter {name} not found.")
        self._state.check_loaded("Please load the parameter states first")
        return Parameter(name, self._state)

    def __setitem__(self, name: str, value: Any) -> None:
        self._state.check_loaded("Please load all the parameter states first")
        self[name].data = value

    def __delitem__(self, name: str) -> None:
        raise TypeError("A parameter cannot be removed.")

    def __contains__(self, name: object) -> bool:
        return name in self._state._names

    def keys(self) -> list[str]:
        """The names, trained parameters first."""
        return [*self._state._names]

    def values(self) -> list[Parameter]:
        """The parameters."""
        return [parameter for _, parameter in self]

    def items(self) -> list[tuple[str, Parameter]]:
        """Pairs of names and parameters."""
        return [*self]

    def get(self, name: str, default: object = None) -> Any:
        """A parameter, or the default where there is none of the name."""
        return Parameter(name, self._state) if name in self else default

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        return ((name, Parameter(name, self._state)) for name in self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __repr__(self) -> str:
        return f"Parameters({', '.join(self.keys())})"


class CheckpointState:
    """The state of a training, as `onnxruntime.training.api.CheckpointState`.

    Parameters
    ----------
    checkpoint : Checkpoint
        The content of a file, or the parameters to train; it is copied.

    Attributes
    ----------
    parameters : Parameters
        The parameters by name.
    properties : dict of str to int, float or str
        Properties that the user stores with them.

    Examples
    --------
    >>> state = CheckpointState(Checkpoint({"w": np.zeros((2, 1), np.float32)}))
    >>> state.parameters["w"] = np.ones((2, 1), np.float32)
    >>> state.properties["epoch"] = 3
    >>> CheckpointState.save_checkpoint(state, "checkpoint")
    >>> CheckpointState.load_checkpoint("checkpoint").parameters["w"].data.ravel()
    array([1., 1.], dtype=float32)
    """

    def __init__(self, checkpoint: Checkpoint):
        if not isinstance(checkpoint, Checkpoint):
            raise SettingError(f"A CheckpointState is made of a Checkpoint, not a {type(checkpoint).__name__}; "
                               f"load_checkpoint reads a file.")
        if len(checkpoint.optimizers) > 1:
            raise CheckpointError(f"The checkpoint has the groups {', '.join(sorted(checkpoint.optimizers))} of "
                                  f"parameters; one was expected.")
        #: Threads take turns at the state.
        self.turn = FairLock()
        trainable, frozen = ({n: to_array(a, f"The parameter {n!r}") for n, a in arrays.items()}
                             for arrays in (checkpoint.trainable, checkpoint.frozen))
        self._names, self._trainable = [*trainable, *frozen], frozenset(trainable)
        #: Parameters that were finite at first, and have to be so when they are saved.
        self._finite = {n for n, a in {**trainable, **frozen}.items() if a.dtype.kind != "f" or np.isfinite(a).all()}
        #: Tensors that no module trains, by `state_name`.
        self._arrays = {n: a.copy() for n, a in {**trainable, **frozen}.items()}
        #: The runner of the module that trains, which has the rest.
        self._runner: StepRunner | None = None
        #: The names of the momentums of each trained parameter.
        self._momentums: dict[str, tuple[str, ...]] = {}
        self._gradients: tuple[str, ...] = ()
        #: How many modules have been made of it; the last has it.
        self.n_modules = 0
        #: Whether the parameters are still without numbers.
        self.is_nominal = checkpoint.is_nominal
        self._group = next(iter(checkpoint.optimizers), "group0")
        self._optimizer = checkpoint.optimizers.get(self._group)
        self.parameters = Parameters(self)
        self.properties: dict[str, int | float | str] = dict(checkpoint.properties)

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str]) -> CheckpointState:
        """Read a checkpoint.

        Parameters
        ----------
        checkpoint_uri : path
            The file, as `read_checkpoint` takes it.

        Returns
        -------
        CheckpointState
        """
        return cls(read_checkpoint(checkpoint_uri))

    @classmethod
    def save_checkpoint(cls, state: CheckpointState, checkpoint_uri: str | os.PathLike[str],
                        include_optimizer_state: bool = False) -> None:
        """Write a checkpoint, which onnxruntime-training 1.19.2 reads, too.

        Parameters
        ----------
        state : CheckpointState
            The state.
        checkpoint_uri : path
            The file.
        include_optimizer_state : bool
            Whether the momentums and the number of steps are in it.

        Raises
        ------
        ConvergenceError
            The training has made a parameter NaN or infinite; the file remains as it is.
        """
        if not isinstance(state, CheckpointState):
            raise SettingError(f"save_checkpoint takes a CheckpointState and then a path, not a "
                               f"{type(state).__name__}; that of a Module is its attribute state.")
        state.check_finite("to_checkpoint")
        write_checkpoint(state.to_checkpoint(include_optimizer_state), checkpoint_uri)

    def to_checkpoint(self, include_optimizer_state: bool = True) -> Checkpoint:
        """Copies of all numbers.

        Parameters
        ----------
        include_optimizer_state : bool
            Whether the momentums and the number of steps are in it.

        Returns
        -------
        Checkpoint
        """
        with self.turn.lock:
            arrays = {n: self.read(n) for n in self._names}
            groups = {}
            if include_optimizer_state and self._optimizer is not None:
                momentums = self._optimizer.momentums
                if self._momentums:
                    momentums = {n: {m: self.read(state_name(n, m)) for m in names}
                                 for n, names in self._momentums.items()}
                groups[self._group] = OptimizerState(self._optimizer.step, self._optimizer.learning_rate, momentums)
        trainable = {n: a for n, a in arrays.items() if n in self._trainable}
        frozen = {n: a for n, a in arrays.items() if n not in self._trainable}
        return Checkpoint(trainable, frozen, groups, dict(self.properties), self.is_nominal)

    def check_loaded(self, message: str) -> None:
        """Refuse to use parameters that have no numbers yet, with onnxruntime's message."""
        if self.is_nominal:
            raise CheckpointError(f"{message}. A nominal checkpoint has their shapes alone, and "
                                  f"Module.copy_buffer_to_parameters(buffer, trainable_only=False) loads them.")

    def check_finite(self, instead: str) -> None:
        """Refuse to write parameters that a training has made NaN or infinite."""
        arrays = {n: self.read(n) for n in self._names if n in self._finite}
        check_finite(arrays, dict.fromkeys(arrays, np.zeros(1)), instead)

    def __reduce__(self) -> Reduced:
        return CheckpointState, (self.to_checkpoint(),)

    def read(self, name: str) -> np.ndarray:
        """A copy of a tensor, by its `state_name`."""
        if self._runner is not None and name in self._runner.source.names_of_state:
            return self._runner.get(name)
        return self._arrays[name].copy()

    def read_gradient(self, name: str) -> np.ndarray | None:
        """A copy of the gradient of a parameter, if a module computes it."""
        return self.read(state_name(name, "grad")) if name in self._gradients else None

    def write(self, name: str, array: np.ndarray) -> None:
        """Overwrite a tensor."""
        if self._runner is not None and name in self._runner.source.names_of_state:
            self._runner.set(name, array)
        else:
            self._arrays[name] = array.copy()

    def hold(self, runner: StepRunner) -> None:
        """Let a runner, which began with these tensors, hold them from now on."""
        names = runner.source.names_of_state
        self._arrays = {n: a for n, a in self._arrays.items() if n not in names}
        self._runner = runner

    def _release(self, **arrays: np.ndarray) -> None:
        """Take everything back from the runner, and add arrays."""
        if self._runner is not None:
            self._arrays |= {n: self._runner.get(n) for n in self._runner.source.names_of_state}
        self._arrays |= arrays
        self._runner = None

    def open(self, gradients: list[str]) -> None:
        """Make ready for a module, which trains some parameters."""
        if missing := [n for n in gradients if n not in self._trainable]:
            raise CheckpointError(f"The training model trains {missing[0]!r}, which is frozen in the checkpoint; give "
                                  f"the checkpoint that was made with the model.")
        self.n_modules += 1
        self._gradients = tuple(gradients)
        self._release(**{state_name(n, "grad"): np.zeros_like(self.read(n)) for n in gradients})

    def open_optimizer(self, names: tuple[str, ...]) -> OptimizerState:
        """The state of an optimizer with these momentums, which begin as 0 where the checkpoint has none."""
        if self._optimizer is None:
            self._optimizer = OptimizerState()
        if self._optimizer.step < 0 or not 0 <= self._optimizer.learning_rate < np.inf:
            raise CheckpointError(f"The checkpoint has {self._optimizer.step} steps of the optimizer and its learning "
                                  f"rate {self._optimizer.learning_rate}; finite numbers of at least 0 were expected.")
        stored = self.to_checkpoint().optimizers[self._group].momentums
        momentums: dict[str, np.ndarray] = {}
        for n in self._gradients:
            like = self.read(n)
            for m in names:
                array = stored.get(n, {}).get(m, np.zeros(like.shape, like.dtype))
                if array.shape != like.shape:
                    raise CheckpointError(f"The checkpoint has {m} of {n!r} with the shape {array.shape}, and the "
                                          f"parameter has {like.shape}.")
                momentums[state_name(n, m)] = array.astype(like.dtype, copy=False)
        self._momentums = dict.fromkeys(self._gradients, names) if names else {}
        self._release(**momentums)
        return self._optimizer
