"""The tasks of a fit, and the callbacks that are told of them: the fit itself, its epochs, and pieces of an epoch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from ortpartial.annotations import CallbackLike, Context, Data, Entries, Estimator, State
from ortpartial.exceptions import CheckpointError, OrtPartialError
from ortpartial.logs import logger

from .hooks import call_hook, has_hooks
from .task_context import TaskContext

if TYPE_CHECKING:
    import numpy as np

    from .fit_position import FitPosition
    from .fit_settings import FitSettings
    from .runner import StepRunner

__all__ = ["FitTasks", "Shared", "get_states", "set_states"]


class Running(Protocol):
    """Protocol of a loop that tasks read: see `Loop`."""

    settings: FitSettings
    engine: StepRunner
    place: FitPosition
    rng: np.random.Generator


class Shared(Protocol):
    """Settings that a callback may change, which the processes of a distributed training share beside the weights."""

    def read(self) -> object:
        """The settings of this process."""

    def follow(self, values: Any) -> None:
        """Take over the settings of the first process."""


class FitTasks:
    """Tells callbacks of the tasks of a fit: the callbacks of a setting, and of a context of scikit-learn.

    As a context it tears callbacks down, also after an error. Where several processes train together, the first alone
    calls, and all go on with its settings, weights and answers.

    Parameters
    ----------
    owner : object
        The owner of the loop, which functions are given.
    loop : Loop
        The loop that trains.
    X, y, sample_weight : object
        The data, as `fit` was given them.
    estimator : object, optional
        The estimator that hooks are given, where another estimator composes the owner.
    context : sklearn.callback.CallbackContext, optional
        The context of the fit of this estimator, which gets the epochs as subtasks; it begins and ends elsewhere.
    reconstruct : callable, optional
        Returns the attributes that make a copy of the estimator a fitted estimator, as callbacks may ask for it; by
        default they get the result of `freeze`.
    freeze : callable, optional
        Returns a copy of the owner that is trained no further; by default `copy.copy` makes it.
    shared : Shared, optional
        The shared numbers of processes that train together.

    Attributes
    ----------
    states : sequence of dict
        The states that callbacks had where a fit was cut off that goes on, as `get_states` gives them.
    is_followed : bool
        Whether anybody has been told of a task, or is to be told of all.
    stopped_by : str
        Who has asked to stop: ``"a callback"``, or its class.
    """

    def __init__(self, owner: Any, loop: Running, X: Data, y: Data, sample_weight: Data = None, *,
                 estimator: Estimator = None, context: Context = None, reconstruct: Callable[[], State] | None = None,
                 freeze: Callable[[], Estimator] | None = None, shared: Shared | None = None):
        self.owner, self.loop, self.context, self.reconstruct = owner, loop, context, reconstruct
        self.freeze, self.shared = freeze or partial(copy.copy, owner), shared
        self.states: Sequence[Entries] = ()
        self.estimator = owner if estimator is None else estimator
        self.data = {"X": X, "y": y, "metadata": None if sample_weight is None else {"sample_weight": sample_weight}}
        self.is_followed = context is not None
        self.stopped_by = "a callback"
        self._callbacks: Sequence[CallbackLike] = ()
        self._set_up: list[CallbackLike] = []
        self._root: TaskContext | None = None
        # The contexts of the epoch and of the piece that run: our own, and scikit-learn's, if any.
        self._epoch: tuple[Context, Context] = (None, None)
        self._piece: tuple[Context, Context] = (None, None)

    def __enter__(self) -> FitTasks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:
        """Tear down, the last first; an error in it does not hide an error that ended the training."""
        errors = []
        for callback in self._set_up[::-1]:
            try:
                callback.teardown(self.estimator, self._root)
            except Exception as e:
                errors.append(e)
        for hidden in errors if error else errors[1:]:
            logger.error("the teardown of a callback failed", exc_info=hidden)
        if errors and not error:
            raise errors[0]

    # -- reports of the loop

    def begin_epoch(self, steps: int | None) -> None:
        """Tell that an epoch of so many steps begins, if their number is known."""

        def begin() -> bool:
            self._look_at_settings()
            pieces = self._count_pieces(steps)
            context = None if self.context is None else self.context.subcontext("epoch", max_subtasks=pieces)
            assert self._root is not None
            self._epoch = self._root.subcontext("epoch", pieces), context
            return self._call("on_fit_task_begin", self._epoch, self._callbacks)

        self.is_followed = True
        self._ask(begin)

    def end_epoch(self) -> bool:
        """Tell that it has ended; return whether to stop."""
        return self._ask(lambda: self._call("on_fit_task_end", self._epoch, self._callbacks))

    def begin_fit(self) -> None:
        """Tell that a fit goes on that was cut off, of which no epoch may be left."""

        def begin() -> bool:
            self._look_at_settings()
            return False

        self.is_followed = True
        self._ask(begin)

    def end_fit(self) -> None:
        """Tell that the fit has ended."""
        if self.is_followed:
            self._ask(lambda: self._call("on_fit_task_end", (self._root, None), self._callbacks))

    def cut(self, steps: int, first: int = 0) -> Iterator[tuple[int, int | None]]:
        """The pieces of an epoch from batch `first` on, between which callbacks are told, until a callback stops it."""
        start = first
        while start < steps:
            if not (periods := self._agree_on_periods()):
                yield start, None
                return
            stop = min(steps, *((start // p + 1) * p for p in periods))
            self._begin_piece(start)
            yield start, stop
            if self._end_piece(stop, is_last=stop == steps):
                return
            start = stop

    def follow(self, batches: Iterable[Data], first: int = 0) -> Iterator[Data]:
        """Batches, of any number, until a callback between them asks to stop; the batches before `first` are over."""
        step = first - 1
        for step, batch in enumerate(batches, first):
            if step == first and self._periods:
                self._begin_piece(step)
            elif any(step % p == 0 for p in self._periods):
                if self._end_piece(step, is_last=False):
                    return
                self._begin_piece(step)
            yield batch
        if step >= first and self._periods:
            self._end_piece(step + 1, is_last=True)

    def _count_pieces(self, steps: int | None) -> int | None:
        """How many pieces an epoch of so many steps has, if it is known."""
        if not (periods := self._periods):
            return 0
        if steps is None or any(_is_adaptive(c) for c in self._callbacks):
            return None
        return len({s for p in periods for s in range(p, steps, p)}) + 1

    def _begin_piece(self, start: int) -> None:
        """Tell that a piece of the epoch begins, after so many steps of it."""

        def begin() -> bool:
            own, context = self._epoch
            self._piece = own.subcontext("batches"), context and context.subcontext("batches")
            return self._call("on_fit_task_begin", self._piece, self._list_due(start))

        self._ask(begin)

    def _end_piece(self, stop: int, is_last: bool) -> bool:
        """Tell that a piece has ended, after so many steps of the epoch; return whether to stop."""
        return self._ask(lambda: self._call("on_fit_task_end", self._piece, self._list_due(0 if is_last else stop)))

    # -- how callbacks are told

    @property
    def _periods(self) -> set[int]:
        """After how many batches callbacks want to be told."""
        others = getattr(self.estimator, "_skl_callbacks", ()) if self.context is not None else ()
        return {p for c in (*self.loop.settings.callbacks, *others) if (p := _period(c))}

    def _agree_on_periods(self) -> set[int]:
        """The periods of all callbacks, the same in all processes, where adaptive callbacks change them."""
        engine, periods = self.loop.engine, self._periods
        if engine.is_distributed and any(_is_adaptive(c) for c in self.loop.settings.callbacks):
            periods = engine.broadcast(periods)
        return periods

    def _list_due(self, step: int) -> list[CallbackLike]:
        """The callbacks that want to be told after so many steps of an epoch."""
        return [c for c in self._callbacks if (p := _period(c)) and step % p == 0]

    def _look_at_settings(self) -> None:
        """Set up the callbacks of the setting, which another callback may have changed."""
        is_first = self._root is None
        if self._root is None:
            done = self.loop.place.epoch
            self._root = TaskContext(type(self.estimator).__name__, max_subtasks=self.loop.settings.max_iter,
                                     _subtasks=done)
        if (callbacks := self.loop.settings.callbacks) is self._callbacks:
            return
        for callback in callbacks:
            if has_hooks(callback) and not any(c is callback for c in self._set_up):
                self._set_up.append(callback)
                callback.setup(self.estimator, self._root)
        self._callbacks = callbacks
        if is_first:
            self._call("on_fit_task_begin", (self._root, None), callbacks)
            set_states(callbacks, self.states)

    @cached_property
    def _arguments(self) -> dict[bool, dict[str, Callable[[], object]]]:
        """Arguments that hooks may ask for; callbacks that read the view of a training get no copy of the estimator."""
        data = {n: partial(self.data.get, n) for n in self.data}
        return {True: {**data, "fitted_estimator": _none}, False: {**data, "fitted_estimator": self._copy_estimator}}

    def _call(self, hook: str, contexts: tuple[Context, Context], callbacks: Iterable[Data]) -> bool:
        """Call a hook of callbacks, and plain functions after an epoch; return whether any asks to stop."""
        own, context = contexts
        is_end, askers = hook == "on_fit_task_end", []
        for callback in [c for c in callbacks if not _is_last(c)]:
            if has_hooks(callback):
                arguments = self._arguments[getattr(callback, "reads_view", False)]
                is_asking = call_hook(getattr(callback, hook), self.estimator, own, arguments)
            else:
                is_asking = is_end and own.task_name == "epoch" and callback(self.owner) is True
            if is_asking:
                askers.append(type(callback).__name__ if has_hooks(callback) else "a callback")
        if context is not None:
            tell = getattr(context, f"call_{hook}")
            answer = tell(estimator=self.estimator, reconstruction_attributes=self.reconstruct, **self.data)
            if answer is True:  # At the beginning of a task it is the context itself.
                askers.append("a callback")
        if askers and is_end:
            self.stopped_by = askers[0]
            self.loop.place.is_stopped = True
        for callback in [c for c in callbacks if _is_last(c)]:
            call_hook(getattr(callback, hook), self.estimator, own, self._arguments[False])
        return bool(askers) and is_end

    def _ask(self, call: Callable[[], bool]) -> bool:
        """Call; return whether somebody asks to stop."""
        is_over = self._call_in_first(call) if self.loop.engine.is_distributed else call()
        self.loop.place.is_stopped |= is_over
        return is_over

    def _call_in_first(self, call: Callable[[], bool]) -> bool:
        """Call in the first process alone; all go on with the answer, the settings and the weights that it has."""
        loop, shared, engine = self.loop, self.shared, self.loop.engine
        answer, error, changes = False, None, engine.changes
        if engine.is_first:
            try:
                answer = call()
            except Exception as e:
                error = e
        engine = loop.engine  # A callback may have changed the rate.
        values = None if shared is None else shared.read()
        message = error and f"{type(error).__name__}: {error}"
        values, loop.rng, answer, has_changed, message = engine.broadcast(
            (values, loop.rng, answer, engine.changes != changes, message))
        if message:
            raise error or OrtPartialError(f"A callback has failed in the first process: {message}")
        if shared is not None:
            shared.follow(values)
        if has_changed:
            loop.engine.synchronize()
        return bool(answer)

    def _copy_estimator(self) -> Estimator:
        """The estimator as if it had been fitted so far, for good."""
        if self.reconstruct is None:
            return self.freeze()
        fitted = copy.copy(self.estimator)
        vars(fitted).update(self.reconstruct())
        return fitted


def get_states(callbacks: Iterable[Data]) -> list[State]:
    """The states of the callbacks that have states, with their classes.

    Parameters
    ----------
    callbacks : iterable of object
        The callbacks of the setting.

    Returns
    -------
    list of dict
    """
    return [{"class": type(c).__name__, "state": c.get_state()} for c in callbacks if hasattr(c, "get_state")]


def set_states(callbacks: Iterable[Data], states: Iterable[Entries]) -> None:
    """Let callbacks go on from states: each from the next state of its class.

    Parameters
    ----------
    callbacks : iterable of object
        The callbacks of the setting.
    states : iterable of dict
        The result of `get_states`.
    """
    waiting = [c for c in callbacks if hasattr(c, "set_state")]
    for state in states:
        for i, callback in enumerate(waiting):
            if type(callback).__name__ == state["class"]:
                try:
                    waiting.pop(i).set_state(state["state"])
                except (AttributeError, LookupError, TypeError, ValueError) as e:
                    raise CheckpointError(f"The checkpoint has a state of {state['class']} that it cannot go on from: "
                                          f"{type(e).__name__}: {e}.") from e
                break


def _is_last(callback: CallbackLike) -> bool:
    """Whether a callback is called after all others, as it writes their changes."""
    return getattr(callback, "is_called_last", False) is True


def _is_adaptive(callback: CallbackLike) -> bool:
    """Whether the number of batches between two calls may change with every call."""
    return isinstance(getattr(type(callback), "batches_between_calls", None), property)


def _none() -> None:
    """The estimator for callbacks that read the view of a training, which is None: they get no copy."""


def _period(callback: CallbackLike) -> int | None:
    """After how many batches a callback wants to be told within an epoch, if at all."""
    return getattr(callback, "batches_between_calls", None)
