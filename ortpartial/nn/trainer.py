"""The trainer of a module: its training as callbacks see it, and the state from which a fit goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from ortpartial.annotations import Data, Entries, Settings
from ortpartial.autodiff import grad
from ortpartial.exceptions import CheckpointError, SettingError
from ortpartial.execution import HISTORY, FitPosition, FitSettings, Loop, check_form, draw_rows, rebuild_generator
from ortpartial.graph import build, find_inputs
from ortpartial.learning import replace_settings
from ortpartial.logs import logger
from ortpartial.runtime import FairLock, Session

from .compilation import Program
from .door import ModuleDoor
from .trace import ITERATION, SEED
from .traced_source import find_loss
from .tracing import write_step

__all__ = ["ModuleTrainer"]


class ModuleTrainer:
    """The `Trainer` of a compiled module.

    Parameters
    ----------
    program : Program
        The module.
    """

    can_sweep = False

    def __init__(self, program: Program):
        self.program = program
        #: The turn to train, for a whole call of `fit`; the program has one for each step, epoch or prediction.
        self.turn = FairLock()
        self.rate_scale = 1.0
        self.door = ModuleDoor(program)
        #: The loop of `fit`, which goes on with the history of the module.
        self.loop = self.door.loop = Loop(program.idle, self.door, FitSettings(warm_start=True))  # type: ignore[arg-type]
        self.loop.records, self.loop.n_iter = program.module.history_, len(program.module.history_)
        self._base: dict[str, float] = {}

    @property
    def rate(self) -> float:
        """The step size of the last batch; NaN where there are several optimizers."""
        rate = self.program.find_rate()
        return float("nan") if rate is None else rate

    @property
    def base_rate(self) -> float:
        """η₀ of the first optimizer, before `rate_scale`."""
        rates = self._list_base_rates()
        return next(iter(rates.values()), float("nan"))

    def _list_base_rates(self) -> dict[str, float]:
        """η₀ of each optimizer, before `rate_scale`."""
        for n, optimizer in self.program.optimizers.items():
            if self._base.get(n, np.nan) * self.rate_scale != optimizer.rate.eta0:
                self._base[n] = float(optimizer.rate.eta0) / self.rate_scale
        return self._base

    def scale_rate(self, scale: float) -> None:
        """Multiply all step sizes by a number from the next epoch on, for which the step is compiled anew."""
        rates = self._list_base_rates()
        if scale != self.rate_scale:
            for n, optimizer in self.program.optimizers.items():
                optimizer.rate = replace_settings(optimizer.rate, eta0=rates[n] * scale)
            self.rate_scale = scale

    def read_weights(self) -> dict[str, np.ndarray]:
        """Copies of the parameters, by name."""
        return {n: p.numpy() for n, p in self.program.module.named_parameters()}

    def compute_gradients(self, X: Data, y: Data, sample_weight: Data, rng: np.random.Generator | None
                          ) -> dict[str, np.ndarray]:
        """The gradient of the loss by each parameter that is trained, on rows, or on some of the trained rows."""
        program = self.program
        if X is not None:
            arrays: Sequence[np.ndarray] = program.signature.to_batches(X, y, sample_weight)
        else:
            arrays = list(draw_rows(self.door.rows, self.loop.settings.batch_size, rng).values())
        feeds = program.prepare(arrays)
        session = program.find_session("gradients", self._compile_gradients)
        numbers = {n: program.get(n) for n in session.inputs if n not in feeds}
        return session.run({**numbers, **{n: a for n, a in feeds.items() if n in session.inputs}})

    def _compile_gradients(self) -> Session:
        """The gradient of the loss of a step, as a session."""
        program = self.program
        writing = write_step(program.module, program.step_inputs, training=True, updates=False)
        if (loss := find_loss(writing)) is None:
            raise SettingError(f"The step of {type(program.module).__name__} returns several losses, of which there is "
                               f"no gradient; compute that of one in train_one_batch.")
        trained = {n: writing.trace.before[n] for n, p in writing.trace.parameters.items()
                   if p.is_trained and p.is_float and n in writing.trace.before}
        gradients = dict(zip(trained, grad(writing.outputs[loss], list(trained.values())), strict=True))
        inputs = find_inputs(list(gradients.values()), {**writing.inputs, **writing.trace.before})
        outputs = {f"{n}_grad": g for n, g in gradients.items()}
        return Session(build(inputs, outputs, name="gradients"), device=program.device)

    def copy_used(self) -> dict[str, np.ndarray]:
        """Copies of parameters, buffers and averages."""
        parameters = {n: p.numpy() for n, p in self.program.module.named_parameters(buffers=True)}
        return parameters | {n: self.program.get(n) for n in self.program.averages}

    def restore_used(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrite the weights in use with former weights."""
        self.program.set(arrays)

    @contextmanager
    def capture(self) -> Iterator[Settings]:
        """A context in which the training stands still, with all that its next steps depend on, and its history."""
        loop, program = self.loop, self.program
        with program.turn.lock:
            states = program.states()
            engine = {"iteration": int(states.pop(ITERATION)), "seed": states.pop(SEED), "arrays": states,
                      "shapes": program.read_policy()}
            yield loop.capture(module=type(program.module).__name__, engine=engine, rate_scale=self.rate_scale,
                               batches={n: o.planned_batches for n, o in program.optimizers.items()})

    def resume(self, path: str | os.PathLike[str]) -> tuple[FitPosition, Sequence[Settings]] | None:
        """Go on with a fit that was cut off, from a file or the newest whole file in a folder.

        Parameters
        ----------
        path : path
            A file, or a folder, which need not be there.

        Returns
        -------
        tuple of FitPosition and list, or None
            The place of the fit, and the states of callbacks; None where the folder holds no checkpoint.

        Raises
        ------
        SettingError
            The path is none.
        CheckpointError
            There is none that is whole, or it is that of another training.
        """
        loop, program = self.loop, self.program
        if (stored := loop.find(path)) is None:
            return None
        (origin, former), name = stored, type(program.module).__name__
        state = _renew(former, loop)
        check_form(state, origin, name)
        engine, shapes = state["engine"], {n: p.shape for n, p in program.module.named_parameters(buffers=True)}
        states = {**engine["arrays"], SEED: engine["seed"], ITERATION: np.array(engine["iteration"])}
        if unlike := [n for n, shape in shapes.items() if n not in states or states[n].shape != shape]:
            raise CheckpointError(f"{origin} is of another {name}: {unlike[0]!r} is missing or has another shape.")
        rng = rebuild_generator(loop.rng, state["random"]["bit_generator"], origin)
        self.scale_rate(state["rate_scale"])
        program.restore(states)
        program.plan({n: k for n, k in state["batches"].items() if k is not None})
        program.former_policy = engine["shapes"]
        loop.restore(state, rng)
        if "form" not in state:  # A former fit validates batch by batch.
            self.door.is_row_wise = False
        logger.info("%s: the training goes on", origin)
        return FitPosition.from_state(state["place"]), state["callbacks"]


def _renew(state: Entries, loop: Loop) -> Entries:
    """The content of a module's checkpoint, under the names of today."""
    if "states" not in state:
        return state
    arrays = dict(state["states"])
    engine = {"iteration": int(arrays.pop(ITERATION)), "seed": arrays.pop(SEED), "arrays": arrays,
              "shapes": state["shapes"]}
    return {**state, "engine": engine, "batches": state["lengths"], "random": loop.rng.bit_generator.state,
            "progress": {n: state["progress"][kept] for n, kept in HISTORY.items()}}
