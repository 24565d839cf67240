"""State: the numbers of a compiled module by name, as the runner of its steps holds them, or nobody does yet."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping

import numpy as np

from ortpartial.checks import to_generator
from ortpartial.exceptions import ModelWarning, SettingError
from ortpartial.execution import StepRunner
from ortpartial.runtime import DeviceName
from ortpartial.training_info import draw_initialization

from .changes import note_change
from .parameter import Parameter, find_holder, hold
from .parts import Part
from .trace import ITERATION, PASSING, SEED
from .training_model import initial_values

__all__ = ["HeldState"]


class HeldState:
    """The state of a compiled module: parameters, buffers, and further state of steps.

    Parameters
    ----------
    module : Part
        The module.
    device : str or tuple
        Where first numbers are drawn.
    random_state : int, optional
        The seed of random numbers.
    """

    def __init__(self, module: Part, device: DeviceName, random_state: int | None):
        self.module, self.device, self.random_state = module, device, random_state
        self.rng = to_generator("random_state", random_state)
        #: Holds the state that steps read, and takes them.
        self.runner: StepRunner | None = None
        #: State that no step reads, or reads yet, as one before the first batch.
        self._aside: dict[str, np.ndarray] = {ITERATION: np.zeros((), np.int64)}
        #: The shapes of parameters and buffers, by name.
        self._shapes: dict[str, tuple[int, ...]] = {}

    def _attach(self) -> None:
        """Draw the first numbers of parameters that have none yet, and hold them from now on."""
        parameters = dict(self.module.named_parameters(buffers=True))
        if taken := [n for n in (SEED, ITERATION) if n in parameters]:
            raise SettingError(f"The training has a state of its own called {taken[0]!r}; rename this attribute of "
                               f"{type(self.module).__name__}.")
        state = {n: p.numpy() for n, p in parameters.items() if find_holder(p) is not None}
        self._shapes = {n: p.shape for n, p in parameters.items()}
        new = self._draw({n: p for n, p in parameters.items() if n not in state})
        self._aside |= {SEED: self._draw_seed(), **new, **state}
        for n, p in parameters.items():
            hold(p, n, self)
        note_change()

    def draw_first(self) -> dict[str, np.ndarray]:
        """The state before the first batch, drawn from the seed once more."""
        self.rng = to_generator("random_state", self.random_state)
        first = self._draw(dict(self.module.named_parameters(buffers=True)))
        return {**first, SEED: self._draw_seed(), ITERATION: np.zeros((), np.int64)}

    def _draw_seed(self) -> np.ndarray:
        """A seed of the Dropout masks and the order of the rows."""
        return self.rng.integers(-2**31, 2**31, 2).astype(np.int32)

    def holds(self, name: str) -> bool:
        """Whether there is such a part of the state."""
        return self._runs(name) or name in self._aside

    def _runs(self, name: str) -> bool:
        """Whether the runner holds a part of the state."""
        return self.runner is not None and name in (*self.runner.source.names_of_state, SEED, ITERATION)

    def get(self, name: str) -> np.ndarray:
        """A copy of a part of the state."""
        if self.runner is not None and self._runs(name):
            return self.runner.get(name)
        return self._aside[name].copy()

    @property
    def seed(self) -> np.ndarray:
        """Where the Dropout masks and the order of the rows come from."""
        return self.get(SEED)

    @property
    def iteration(self) -> int:
        """The number of batches seen."""
        return int(self.get(ITERATION))

    def set(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrite a part of the state."""
        for n, a in arrays.items():
            if self.runner is not None and self._runs(n):
                self.runner.set(n, a)
            else:
                self._aside[n] = np.array(a)

    def _read_all(self) -> dict[str, np.ndarray]:
        """Copies of all of the state that is not passed within a step."""
        held = [] if self.runner is None else [*self.runner.source.names_of_state, SEED, ITERATION]
        return {n: self.get(n) for n in dict.fromkeys([*self._aside, *held]) if not n.startswith(PASSING)}

    def draw(self, parameters: Mapping[str, Parameter], random_state: int | None) -> None:
        """Draw the numbers of parameters anew."""
        rng = self.rng if random_state is None else to_generator("random_state", random_state)
        self.set(self._draw(parameters, rng))

    def _draw(self, parameters: Mapping[str, Parameter], rng: np.random.Generator | None = None
              ) -> dict[str, np.ndarray]:
        """First numbers of parameters."""
        if not parameters:
            return {}
        rng = rng or self.rng
        for p, seed in zip(parameters.values(), rng.integers(0, 2**24, len(parameters)).tolist(), strict=True):
            p.seed = seed
        return draw_initialization(initial_values(parameters), None, rng, self.device)

    def _drop_foreign_states(self, first: Mapping[str, np.ndarray], others: Collection[str]) -> None:
        """Drop arrays of a file that are no state of the step's optimizers, with a warning."""
        loaded, own = ({n: a.shape for n, a in arrays.items() if n not in others and not n.startswith(PASSING)}
                       for arrays in (self._aside, first))
        unlike = [n for n in {**loaded, **own} if loaded.get(n) != own.get(n)]
        if loaded and unlike:
            more = f" and {len(unlike) - 3} more" if len(unlike) > 3 else ""
            warnings.warn(f"The state that was loaded is that of another optimizer or of other weights: "
                          f"{', '.join(map(repr, unlike[:3]))}{more} are not in both, and begin anew.",
                          ModelWarning, stacklevel=2)
        self._aside = {n: a for n, a in self._aside.items() if n not in unlike}
