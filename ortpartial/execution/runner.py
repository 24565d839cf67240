"""Step runner: the weights and states of a training, and the loop over the batches of an epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import Entries, Same, State
from ortpartial.exceptions import DataError, GraphError
from ortpartial.logs import compiling
from ortpartial.runtime import Buffer, FairLock, NodePlacement

from .call import Call, CallProgram
from .mean import WeightedMean
from .program import RunLocal
from .shape_policy import ShapePolicy
from .step import Arrays, Shapes, Step, StepSource

__all__ = ["ProgramKey", "StepRunner", "is_symbolic"]

#: Programs that are kept when a training starts anew, whose batches may have other shapes.
_PROGRAMS = 16


class ProgramKey(NamedTuple):
    """Key of a program: its kind, the shapes of its batches, its thread."""

    kind: Hashable
    shapes: Shapes
    #: The thread that it belongs to, if any.
    thread: int | None = None
    #: Where sizes are symbolic, the number of threads that it uses.
    threads: int | None = None


def is_symbolic(shapes: Shapes) -> bool:
    """Whether all sizes of a batch are symbolic, the number of rows first."""
    for _, shape in shapes:  # noqa: SIM110 - `any` takes calls, and a small step microseconds
        if shape[:1] == (-1,):
            return True
    return False


def _pair(first: dict[str, Buffer], second: dict[str, Buffer]) -> dict[str, tuple[Buffer, Buffer]]:
    """Both buffers of each state."""
    return {n: (buffer, second[n]) for n, buffer in first.items()}


class StepRunner(ABC):
    """The weights and states of a training, and the loop over the batches of an epoch; the base of each engine.

    Weights and states live in two sets of buffers: a step reads a set and writes the other, then they change places.
    Where some kinds of steps leave groups of state as they are, there is a set for each choice of a buffer a group.

    Parameters
    ----------
    source : StepSource
        Composes the steps.
    """

    name: str
    #: The graphs that a batch passes through, each with the parts of a step that it computes: as pictures show them.
    runs: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = (
        ("step", ("model", "loss", "gradient", "update")),)
    #: Why it was chosen, and its findings since.
    reason = "asked for"
    #: Whether predictions use the averages of the weights.
    use_average = False
    #: The identity of trainings of equal graphs, by which they share compiled sessions; None for no sharing.
    identity: Hashable = None
    #: Sets of buffers: two, or one where a step overwrites its inputs.
    copies: ClassVar[int] = 2
    #: Whether `undo` goes back to before the last step.
    can_undo = True
    #: Whether several processes train together, each of which is given all the rows.
    is_distributed: ClassVar[bool] = False

    def __init__(self, source: StepSource):
        self.source = source
        self.iteration = 0
        #: The threads that share the weights take turns: an epoch of rows, a batch of others, a prediction.
        self.turn = FairLock()
        self.local = RunLocal()
        first, device = source.first, source.device
        # The first step writes to the whole second set, which starts without content.
        sides = [{**{n: Buffer(allocate(a, order="C"), device) for n, a in first.items()},
                  **{n: Buffer(np.zeros(*z), device) for n, z in source.zeros.items()}}
                 for allocate in (np.array, np.empty_like)[: self.copies]]
        self.buffers: Sequence[dict[str, Buffer]] = (sides[0], sides[-1])
        self._join_buffers()
        #: By state of a group that some steps leave as it is, its bit of `side`; the bit of all other state is 1.
        self._bits = {n: 2 << i for i, group in enumerate(source.state_groups) for n in group}
        if self._bits:
            self.buffers = [{n: b[bool(i & self._bits.get(n, 1))] for n, b in _pair(*self.buffers).items()}
                            for i in range(2 << len(source.state_groups))]
        self.side = 0
        self._checked = source.checked
        names = source.names
        # Read from the host by every device, as the loss is written to it.
        self.k, self.seed = Buffer(np.zeros((), np.int64)), Buffer(np.zeros(2, np.int32))
        self.controls = {n: Buffer(a) for n, a in source.controls.items()}
        self.kept = {n: Buffer(np.array(a, order="C"), device) for n, a in source.kept.items()}
        #: By side, all that `get` gives.
        self._bound = [{**side, **self.controls, **self.kept} for side in self.buffers]
        #: Inputs that no step changes: the engine itself counts, and random numbers follow from seed and count.
        self.fixed_inputs = {names.iteration: self.k, names.seed: self.seed, **self.controls, **self.kept}
        #: How often `set` has overwritten something.
        self.changes = 0
        #: The mean loss of the epoch that runs, or has run last.
        self.mean = WeightedMean()
        #: The engine of the last length of a training, and its reason, by rows of a batch and steps.
        self.lengths: dict[tuple[int, int], tuple[type[StepRunner], str]] = {}
        self._policy = ShapePolicy()
        #: Sources of further kinds of steps.
        self._policies: defaultdict[Hashable, ShapePolicy] = defaultdict(ShapePolicy)
        self._programs: dict[ProgramKey, Any] = {}
        self._data: dict[str, np.ndarray] = {}
        self._row_shapes: list[tuple[str, tuple[int, ...]]] = []
        #: By the number of rows, the shapes of a batch of these data.
        self._shapes: dict[int, Shapes] = {}
        self._starts, self._is_whole = 0, True
        self._static: dict[Shapes, StepSource] = {}
        self._symbolic: dict[Hashable, tuple[StepSource, int | None]] = {}
        self._counts: np.ndarray | None = None

    @property
    def placement(self) -> NodePlacement | None:
        """The placement of the nodes of a step on a named execution provider, once compiled; None on other devices."""
        bindings = (b for program in self._programs.values() for b in getattr(program, "bindings", ()))
        return next((b.session.placement for b in bindings), None)

    @property
    def is_first(self) -> bool:
        """Whether this is the first of the processes that train together."""
        return True

    def _join_buffers(self) -> None:  # noqa: B027 - each has memory of its own
        """Lay buffers side by side which a step takes as a vector."""

    def connect(self) -> None:  # noqa: B027 - a single process has nothing to connect to
        """Connect the processes that train together."""

    def broadcast(self, value: Same) -> Same:
        """The value that the first process has."""
        return value

    def check_same(self, facts: Mapping[str, str]) -> None:  # noqa: B027 - a single process has nothing to compare
        """Check that all processes train the same, and have the same facts."""

    def synchronize(self) -> None:  # noqa: B027 - a single process has nothing to take over
        """Take over weights, states and iteration of the first process."""

    def get(self, name: str) -> np.ndarray:
        """A copy of a weight, state or statistic, the seed or the number of batches seen, by its name in the graphs."""
        names = self.source.names
        if name == names.iteration:
            return np.array(self.iteration, np.int64)
        if name == names.seed:
            return self.seed.numpy().copy()
        return self._bound[self.side][name].numpy().copy()

    def set(self, name: str, array: np.ndarray) -> None:
        """Overwrite the array of `get`."""
        self.changes += 1
        if name == self.source.names.iteration:
            self.iteration = int(array)
            return
        buffer = self.seed if name == self.source.names.seed else self._bound[self.side][name]
        new = np.asarray(array, buffer.dtype)
        buffer.fill(new if new.shape == buffer.shape else np.broadcast_to(new, buffer.shape))

    def write_control(self, name: str, number: float) -> None:
        """Set a number of `controls`."""
        buffer = self.controls[name]
        if buffer.array is None:
            buffer.fill(np.array(number, buffer.dtype))
        else:
            buffer.array[...] = number  # Without a check, which takes a microsecond.

    def reset(self, first: Arrays, seed: Sequence[int] = (0, 0)) -> None:
        """Back to the first iteration, with these weights and statistics, the rest as at first, and another seed."""
        self.iteration, source = 0, self.source
        self._policy = ShapePolicy()
        self.seed.fill(np.asarray(seed, np.int32))
        for name, array in source.first.items():
            self.set(name, first.get(name, array))
        for name in source.zeros:
            self.set(name, np.zeros((), np.float32))
        for name in self.controls:
            self.set(name, source.controls[name])
        source.release()

    def snapshot(self, *, copy: bool = True) -> State:
        """Weights, states, statistics, iteration, seed and choice of programs: all that later steps depend on.

        Without a copy, arrays may be the memory that the next step writes to.
        """
        buffers = {**self.buffers[self.side], **self.controls}
        arrays = {n: b.numpy().copy() if b.array is None else b.array.copy() if copy else b.array
                  for n, b in buffers.items()}
        return {"iteration": self.iteration, "seed": self.seed.numpy().copy(), "arrays": arrays,
                "shapes": self._policy.state}

    def restore(self, snapshot: Entries) -> None:
        """Back to a snapshot, also of another engine, whose further arrays are left out."""
        self.iteration = snapshot["iteration"]
        self.seed.fill(snapshot["seed"])
        self._policy = ShapePolicy(*snapshot.get("shapes", ()))  # Pickles of version 0.1.0 have none.
        for name, array in snapshot["arrays"].items():
            if name in self._bound[self.side] and self._bound[self.side][name].shape == array.shape:
                self.set(name, array)
        for weight, name in self.source.averages.items():
            if name not in snapshot["arrays"]:
                self.set(name, self.get(weight))

    def continue_with(self, source: StepSource, kind: type[StepRunner] | None = None,
                      learned: Arrays | None = None) -> StepRunner:
        """A runner that goes on from here, on the same rows, with another source: its optimizer, penalty or weights.

        New state begins with zeros; `learned` is the content of weights that this runner does not train.
        """
        runner, snapshot = (kind or type(self))(source), self.snapshot()
        for name in source.find_stale(self.source):
            del snapshot["arrays"][name]
        snapshot["arrays"].update(learned or {})
        runner.restore(snapshot)
        runner.reason, runner.turn, runner.local, runner.mean = self.reason, self.turn, self.local, self.mean
        runner.changes += self.changes
        runner.use_average = self.use_average
        StepRunner.start(runner, self._data)  # Processes stay connected.
        return runner

    @property
    def counted(self) -> int:
        """Number of batches that were trained: the batches seen, without skipped steps."""
        return self.iteration - (int(self.get(self.source.skipped)) if self.source.skipped else 0)

    @property
    def updates(self) -> int:
        """Number of updates of the weights, by which schedules count."""
        return self.counted // self.source.accumulate

    def get_used(self, name: str) -> np.ndarray:
        """A copy of a weight or statistic as predictions use it: see `find_used`."""
        return self.find_used(name).numpy().copy()

    def find_used(self, name: str) -> Buffer:
        """The memory of a weight or statistic as predictions use it: of the average of a weight with `use_average`.

        The average of no update is the weight itself.
        """
        if self._is_averaged and name in self.source.averages:
            name = self.source.averages[name]
        return self._bound[self.side][name]

    @property
    def _is_averaged(self) -> bool:
        return self.use_average and self.updates > self.source.average_start

    @property
    def place(self) -> tuple[StepRunner, int, bool]:
        """The same as long as `find_used` returns the same memory."""
        return self, self.side, self._is_averaged

    def undo(self) -> None:
        """Back to before the last step, which is in the other set of buffers; with a single set, it was not taken."""
        if self.copies > 1:
            self.side ^= 1
            self.iteration -= 1

    def is_finite(self) -> bool:
        """Whether all weights, statistics and sums of gradients are finite numbers."""
        side = self.buffers[self.side]
        for w in self._checked:
            if (array := side[w].array) is None:  # Without a call, which takes longer than most arrays.
                array = side[w].numpy()
            if not np.logical_and.reduce(np.isfinite(array), axis=None):
                return False
        return True

    @property
    def data(self) -> Mapping[str, np.ndarray]:
        """The rows that are trained, or the last batch: inputs, targets and, where rows have them, weights, by name."""
        return self._data

    @property
    def weighting(self) -> bool | str:
        """Whether the rows have weights, or the elements of the targets."""
        return self.source.find_weighting(self._data)

    def start(self, data: Mapping[str, np.ndarray]) -> None:
        """Say where the rows come from: inputs, targets and, where rows have them, weights, by name."""
        data = self.source.encode(data)
        self._data, self._starts = dict(data), self._starts + 1
        # Rows of another kind, such as sparse rows, are only gathered batch by batch.
        self._is_whole = all(isinstance(a, np.ndarray) for a in data.values())
        #: By how much each row counts; None where all count the same.
        self._counts = self.source.count_rows(data)
        self._row_shapes = [(n, a.shape[1:]) for n, a in data.items()]
        self._shapes.clear()

    def epoch(self, order: np.ndarray, batch_size: int, start: int = 0, stop: int | None = None) -> float:
        """Train once on the rows in this order; returns their weighted mean loss, each batch's before its step.

        An epoch may be cut into pieces, from batch `start` to batch `stop`, each of which continues `mean`: weights and
        mean are the same, to the last bit.
        """
        mean = self.mean = self.mean if start else WeightedMean()
        steps, rest = order.size // batch_size, order.size % batch_size
        if start < steps:
            batches = order[: order.size - rest].reshape(-1, batch_size)[start:stop]
            # The first piece chooses for the whole epoch.
            self._train(batches, self._choose_shapes(0 if start else steps, batch_size), mean, steps)
        if mean.waiting and (stop is None or stop >= steps):
            mean.settle()
        if rest and (stop is None or stop > steps) and np.isfinite(mean.total):
            self._train(order[order.size - rest :][None], self._choose_shapes(1, rest), mean, 1)
        return mean.total / mean.weight if mean.weight and not mean.waiting else mean.value

    def step(self, feeds: Arrays, kind: Hashable = None, check: Callable[[Arrays], object] | None = None, *,
             ahead: bool = False) -> dict[str, np.ndarray]:
        """Take a step on a batch.

        Parameters
        ----------
        feeds : dict of str to numpy.ndarray
            The data, by the names that a step reads, in the order of the inputs of the source.
        kind : hashable, optional
            The kind of step, where the source has several.
        check : callable, optional
            Called with the results of the step; if it raises, the step was not taken.
        ahead : bool
            Whether only the groups of state change, and all other state once `advance` is called.

        Returns
        -------
        dict of str to numpy.ndarray
            All that the step returns.
        """
        program, outputs = self._call(feeds, kind)
        if check is not None:
            check(outputs)
        self.side ^= program.turn & -2 if ahead else program.turn  # With no call between them, for Ctrl-C to come in.
        self.iteration += 1
        return outputs

    def advance(self) -> None:
        """Take over all state that the last step has computed ahead."""
        self.side ^= 1
        self.iteration += 1

    def evaluate(self, feeds: Arrays, kind: Hashable = None) -> dict[str, np.ndarray]:
        """The results of `step`, which is not taken; `undo` has nothing to go back to then."""
        return self._call(feeds, kind)[1]

    def _call(self, feeds: Arrays, kind: Hashable) -> tuple[Call, dict[str, np.ndarray]]:
        """Run a step on a batch into the other set of buffers; return its program and results."""
        self.k.numpy()[...] = self.iteration + 1
        program = self._call_program(feeds, kind)
        return program, program(self.side, feeds)

    def _call_program(self, feeds: Arrays, kind: Hashable) -> Call:
        """The program of a batch of these shapes, which returns all that a step does."""
        shapes = tuple([(n, a.shape) for n, a in feeds.items()])
        policy = self._policy if kind is None else self._policies[kind]
        if not policy.choose(shapes, 1, lambda: self._source_for(shapes).count_bytes()):
            shapes = tuple([(n, (-1,) * len(shape)) for n, shape in shapes])
        key = ("call", kind), shapes, None, self._symbolic_source(shapes)[1] if is_symbolic(shapes) else None
        if key not in self._programs:  # as in `_program`
            self._make_room()
            self._programs[ProgramKey(*key)] = self._open_call(self._source_for(shapes).for_kind(kind), shapes)
        program: Call = self._programs[key]  # type: ignore[index]
        return program

    def _open_call(self, source: StepSource, shapes: Shapes) -> Call:
        """A new program for batches of these shapes, which returns all that a step does."""
        parts = source.compose_parts()
        return CallProgram(parts, self.buffers, self.fixed_inputs, device=source.device, threads=source.threads(),
                           local=self.local, exchanges=source.exchanges, exchange=source.exchange,
                           turn=self._find_turn(parts))

    def _find_turn(self, parts: Sequence[Step]) -> int:
        """The bits of the groups that a step changes."""
        return sum({self._bits.get(n, 1) for part in parts for n in part.state}) if self._bits else 1

    def _train(self, batches: np.ndarray, shapes: Shapes, mean: WeightedMean, steps: int) -> None:
        """Take a step for each row of `batches`, of so many `steps` in the epoch; with single weights, until a NaN."""
        program, k = self._program("step", shapes, batches.shape[1]), self.k.numpy()
        counts, size = self._counts, float(batches.shape[1])
        for rows in batches:  # Every call counts in here: a small step takes microseconds.
            program.batch.gather(rows)
            k[...] = self.iteration + 1
            weight = size if counts is None else float(counts[rows].sum(dtype=np.float64))
            loss = program(self.side)
            mean.total += weight * loss
            mean.weight += weight
            if self.copies == 1 and not np.isfinite(loss):
                return  # The step was not taken.
            self.side ^= 1
            self.iteration += 1

    def _weights_of(self, batches: np.ndarray) -> np.ndarray:
        """For every batch, a row of `batches`, by how much its rows count; their number where all count the same."""
        if self._counts is None:
            return np.full(len(batches), float(batches.shape[1]))
        return np.asarray(self._counts[batches].sum(1, np.float64))

    def _choose_shapes(self, steps: int, rows: int) -> Shapes:
        """The shapes of the program for some steps on batches of so many rows: theirs, or symbolic."""
        if rows not in self._shapes:
            self._shapes[rows] = tuple([(n, (rows, *shape)) for n, shape in self._row_shapes])
        shapes = self._shapes[rows]
        if self._policy.choose(shapes, steps, lambda: self._source_for(shapes).count_bytes()):
            return shapes
        return tuple([(n, (-1,) * len(shape)) for n, shape in shapes])

    def _source_for(self, shapes: Shapes) -> StepSource:
        """The training with the sizes of a batch, or with symbolic sizes."""
        if is_symbolic(shapes):
            return self._symbolic_source(shapes)[0]
        try:
            if shapes not in self._static:  # The policy asks for it just before it is compiled.
                self._static = {shapes: self.source.for_shapes(dict(shapes))}
            return self._static[shapes]
        except GraphError as e:
            raise DataError(f"The model does not take inputs of these shapes: {e}") from None

    def _symbolic_source(self, shapes: Shapes) -> tuple[StepSource, int | None]:
        """The training on the inputs of a batch, with symbolic sizes, and its threads.

        Their number follows from the first shapes, which are part of the state of the policy, so that a training that
        goes on uses the same.
        """
        first = self._policy.first
        names = tuple([n for n, _ in shapes])
        if (first, names) not in self._symbolic:
            source = self.source.for_any_shape(names, first)
            self._symbolic = {(first, names): (source, source.threads())}
        return self._symbolic[first, names]

    def _program(self, kind: str, shapes: Shapes, rows: int, thread: int | None = None) -> Any:
        """The program of a kind for these shapes, which is kept; it reads batches of so many rows from now on."""
        key = kind, shapes, thread, self._symbolic_source(shapes)[1] if is_symbolic(shapes) else None
        if key not in self._programs:  # Found by a tuple, as a `ProgramKey` takes two calls more.
            self._make_room()
            with compiling(f"the {kind} for {'batches of any shape' if is_symbolic(shapes) else f'{rows} rows'}"):
                self._programs[ProgramKey(*key)] = self._open(ProgramKey(*key))
        program = self._programs[key]  # type: ignore[index]  # a ProgramKey is a tuple
        if program.source != (source := (self._starts, rows)):
            program.read_from(self._data, rows)
            program.source = source
        return program

    def _make_room(self) -> None:
        """Drop programs for single shapes of former trainings, where there are many."""
        current = {s for p in (self._policy, *self._policies.values()) for s in (*p.chosen, *p.counts)}
        for key in [k for k in self._programs if not is_symbolic(k.shapes) and k.shapes not in current]:
            if len(self._programs) >= _PROGRAMS:
                del self._programs[key]

    @abstractmethod
    def _open(self, key: ProgramKey) -> object:
        """A new program: a `Program` for a step, or a program with a `read_from` of its own."""

    def check(self) -> None:
        """Raise NoGradientError now, and not in the first step, if an operator has no gradient."""
        self.source.check()

    @abstractmethod
    def graphs(self) -> dict[str, ModelProto]:
        """The graphs that a step runs, by their purpose."""
