"""How does torch run and differentiate a graph? `Function`, a program between tensors; its derivatives are others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from onnx import TensorProto
from torch.utils.dlpack import from_dlpack, to_dlpack

from ortpartial.exceptions import ModelError, SettingError
from ortpartial.graph import Value
from ortpartial.runtime import C, Device, Session, TrainingAgent, TypedOrtValue
from ortpartial.training import GradientCut, GraphFunction, select_for_backward

from .program import ModeProgram

__all__ = ["Compiled", "Function", "Place"]

Tensors = Sequence[torch.Tensor]

#: Shapes of the inputs are compiled for alone when they have come oftener than this; of so many it is counted.
_PATIENCE, _REMEMBERED = 3, 64


@dataclass(frozen=True)
class Place:
    """Where graphs run.

    Parameters
    ----------
    device : Device
        The device, with torch's stream on CUDA.
    threads : int or None
        Threads that one operator may use; None for as many as the process has cores.
    """

    device: Device
    threads: int | None = 1


def _ortvalue(t: torch.Tensor) -> Any:
    """The memory of a tensor, which is kept alive; a copy of it where it is strided."""
    t = t if t.is_contiguous() else t.contiguous()
    if t.dtype is torch.bool:  # onnxruntime 1.19 to 1.31 knows a bool of DLPack as a byte.
        return C.OrtValue.from_dlpack(to_dlpack(t.view(torch.uint8)), True)
    return C.OrtValue.from_dlpack(to_dlpack(t), False)


def _tensor(ortvalue: Any, is_bool: bool = False) -> torch.Tensor:
    """The memory of an OrtValue, which is kept alive."""
    found = from_dlpack(ortvalue.to_dlpack())
    return found.view(torch.bool) if is_bool else found


class _Graph:
    """A graph that reads some tensors of a pool."""

    def __init__(self, model: Any, pool: Sequence[str], place: Place):
        memory_pattern = place.device.kind != "cpu"  # Elsewhere it was not measured.
        self.session = Session(model, device=place.device, threads=place.threads, memory_pattern=memory_pattern)
        self.feeds = [(n, pool.index(n)) for n in self.session.inputs]
        self.outputs = self.session.outputs
        self.bools = [i for i, o in enumerate(model.graph.output) if o.type.tensor_type.elem_type == TensorProto.BOOL]
        self._held: dict[str, tuple[Any, Any]] = {}

    def __call__(self, pool: Tensors) -> list[torch.Tensor]:
        found = self.session.run_ortvalues({n: self._fed(n, pool[i]) for n, i in self.feeds})
        tensors = [from_dlpack(v.to_dlpack()) for v in found]
        for i in self.bools:
            tensors[i] = tensors[i].view(torch.bool)
        return tensors

    def _fed(self, name: str, t: torch.Tensor) -> Any:
        """The memory of a tensor; a parameter stays where it is as a rule, so that its OrtValue serves again."""
        if type(t) is not torch.nn.Parameter or not t.is_contiguous():
            return _ortvalue(t)
        where = t.data_ptr(), t.shape, t.dtype
        held = self._held.get(name)
        if held is None or held[0] != where:  # What is held keeps its memory, so nothing else can be at its place.
            held = self._held[name] = where, _ortvalue(t)
        return held[1]


class Function:
    """A program between tensors that torch differentiates as often as it likes.

    Parameters
    ----------
    program : GraphFunction
        What is computed.
    place : Place
        Where.
    engine : str
        ``"auto"``, ``"agent"`` or ``"step"``: how the first derivative is computed.

    Attributes
    ----------
    engine_, engine_reason_ : str
        The engine in use, and why.
    """

    def __init__(self, program: GraphFunction, place: Place, engine: str = "step"):
        self.program, self.place, self.asked = program, place, engine
        self.leaves, self.sources = list(program.leaves), list(program.sources)
        self.fixed = [i for i, (n, y) in enumerate(program.outputs.items())
                      if not y.is_float or n in program.nondifferentiable]
        self.engine_, self.engine_reason_ = "step", "asked for"
        if engine != "step":
            graph = program.graph()
            wanted = [i.name for i in graph.graph.input if program.sources[i.name].is_float]
            self.engine_, self.engine_reason_ = select_for_backward(engine, graph, wanted, [])
        self._plain: _Graph | None = None
        self._tapes: dict[tuple[bool, ...], _StepTape | _AgentTape] = {}

    def __call__(self, leaves: Tensors, given: Tensors = ()) -> Tensors:
        """The outputs, on the tape of torch where it records one."""
        if torch.is_grad_enabled() and any(t.requires_grad for t in leaves):
            return _Call.apply(self, given, *leaves)
        return self.plain([*leaves, *given])

    def plain(self, sources: Tensors) -> list[torch.Tensor]:
        """The outputs, and nothing kept for a gradient."""
        if self._plain is None:
            self._plain = _Graph(self.program.graph(), self.sources, self.place)
        return self._plain(sources)

    def tape(self, needs: tuple[bool, ...]) -> _StepTape | _AgentTape:
        """How the program is differentiated by some of its leaves; made when it is first asked for."""
        found = self._tapes.get(needs)
        if found is None:
            wanted = [n for n, need in zip(self.leaves, needs, strict=True) if need]
            found = self._tapes[needs] = self._new(wanted)
        return found

    def _new(self, wanted: Sequence[str]) -> _StepTape | _AgentTape:
        if self.engine_ == "agent":
            try:
                return _AgentTape(self, wanted)
            except ModelError as e:
                if self.asked == "agent":
                    raise
                self.engine_, self.engine_reason_ = "step", str(e)
        return _StepTape(self, wanted)


class _Call(torch.autograd.Function):
    """One run of a function, on the tape of torch."""

    @staticmethod
    def forward(ctx: Any, function: Function, given: Tensors, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.tape = tape = function.tape(ctx.needs_input_grad[2:])
        outputs, kept, ctx.state = tape.forward([*leaves, *given])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*kept)
        if function.fixed:
            ctx.mark_non_differentiable(*(outputs[i] for i in function.fixed))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *dys: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return None, None, *ctx.tape.backward(ctx.saved_tensors, dys, ctx.state)


class _StepTape:
    """By our own gradient, cut in two: forward hands on just the tensors that backward needs."""

    def __init__(self, function: Function, wanted: Sequence[str], *, recompute: bool = False):
        self.function, program = function, function.program
        self.tape = tape = GradientCut(program, wanted, recompute=recompute)
        self.seeds = [(i, o) for i, o in enumerate(program.outputs) if o in tape.seeds]
        self.count = len(program.outputs)
        self.sources = [function.sources.index(n) for n in tape.leaves + tape.precomputed]
        names = [*program.outputs, *tape.saved]
        self.outputs = [names.index(n) for n in [*tape.outputs, *tape.saved]]
        self._forward: _Graph | None = None
        self._derived: dict[tuple[int, ...], tuple[Function, list[int]] | None] = {}

    def forward(self, sources: Tensors) -> tuple[list[torch.Tensor], list[torch.Tensor], Any]:
        """The outputs, what is kept, and the shapes of the outputs."""
        if self._forward is None:
            function = self.function
            place = function.place
            graph = function.program.graph(self.tape.saved)
            self._forward = _Graph(graph, function.sources, place)
        found = self._forward(sources)
        kept = [sources[i] for i in self.sources] + [found[i] for i in self.outputs]
        outputs = found[: self.count]
        return outputs, kept, [y.shape for y in outputs] if self.count > 1 else None

    def backward(self, kept: Tensors, dys: Sequence[torch.Tensor | None], shapes: Any) -> list[torch.Tensor | None]:
        """A gradient for each leaf, None where there is none."""
        present = tuple(i for i, _ in self.seeds if dys[i] is not None)
        if not present:
            return [None] * len(self.function.leaves)
        found = self.derived(present)
        if found is None:  # What these alone would read was not kept: the others are zeros.
            like = next(d for d in dys if d is not None)
            dys = [torch.zeros(shapes[i], dtype=getattr(torch, self.function.program.outputs[o].dtype.name),
                               device=like.device) if dys[i] is None else dys[i] for i, o in self.seeds]
            found = self.derived(tuple(i for i, _ in self.seeds))
            assert found is not None
        function, places = found
        if not function.program.outputs:  # These outputs depend on nothing that is wanted.
            return [None] * len(places)
        n = len(self.tape.leaves)
        gradients = function([*kept[:n], *(d for d in dys if d is not None)], kept[n:])
        return [None if i < 0 else gradients[i] for i in places]

    def derived(self, present: tuple[int, ...]) -> tuple[Function, list[int]] | None:
        """The gradient where these outputs have a cotangent, and where it gives that of each leaf; -1 for nowhere."""
        if present not in self._derived:
            found = self.tape.backward([o for i, o in self.seeds if i in present])
            if found is not None:
                names = found[1]
                places = [names.index(n) if n in names else -1 for n in self.function.leaves]
                self._derived[present] = Function(found[0], self.function.place), places
            else:
                self._derived[present] = None
        return self._derived[present]


class _AgentTape:
    """By the TrainingAgent, which keeps what it needs itself; a second derivative computes all of it again."""

    def __init__(self, function: Function, wanted: Sequence[str]):
        self.function, graph = function, function.program.graph()
        read = [i.name for i in graph.graph.input]
        self.wanted = [n for n in wanted if n in read]
        place = function.place
        self.agent = TrainingAgent(graph, self.wanted, device=place.device, threads=place.threads)
        self.dtypes = {n: v.dtype for n, v in function.program.sources.items() if n in read}
        self.bools = [y.dtype == bool for y in function.program.outputs.values()]
        self.places = [self.wanted.index(n) if n in self.wanted else -1 for n in function.leaves]

    @cached_property
    def again(self) -> _StepTape:
        """The same by our own gradient, which starts from the leaves."""
        return _StepTape(self.function, self.wanted, recompute=True)

    def forward(self, sources: Tensors) -> tuple[list[torch.Tensor], list[torch.Tensor], Any]:
        """The outputs, what is kept, and the state of the agent."""
        feeds = {}
        for n, t in zip(self.function.sources, sources, strict=True):
            if n in self.dtypes:
                feeds[n] = TypedOrtValue(_ortvalue(t), t.shape, self.dtypes[n])
        outputs, state = self.agent.forward(feeds, {})
        tensors = [_tensor(y, b) for y, b in zip(outputs, self.bools, strict=True)]
        return tensors, list(sources), [state, [y.shape for y in tensors]]

    def backward(self, kept: Tensors, dys: Sequence[torch.Tensor | None], state: Any) -> list[torch.Tensor | None]:
        """A gradient for each leaf, None where there is none."""
        if torch.is_grad_enabled():
            if self.function.asked == "agent":
                raise SettingError("engine='agent' has no second derivative, which create_graph=True asks for; use "
                                   "engine='step' or 'auto'.")
            return self.again.backward(kept, dys, state[1])
        run, _ = state
        if run.used:  # The state of the agent serves one backward; retain_graph=True asks for another.
            run = self.forward(kept)[2][0]
        found = self.agent.backward([None if d is None else _ortvalue(d) for d in dys], run)
        gradients = [_tensor(found[n]) for n in self.wanted]
        return [None if i < 0 else gradients[i] for i in self.places]


class Compiled:
    """A graph in one mode, ready to run.

    Parameters
    ----------
    mode : Mode
        The graph.
    place : Place
        Where it runs.
    engine : str
        How it is differentiated.

    Attributes
    ----------
    dtypes : list of torch.dtype
        Of the inputs.
    static : bool
        Whether the sizes of all inputs are known.
    needs_sizes : bool
        Whether the size of a mask follows from those of the inputs in a way that only shape inference tells.
    """

    def __init__(self, mode: ModeProgram, place: Place, engine: str):
        self.function, self.device = Function(mode.program, place, engine), place.device
        self.masks, self.statistics, self.fed = mode.masks, mode.statistics, mode.fed
        inputs = [v for n, v in mode.program.leaves.items() if n not in mode.masks and n not in mode.fed]
        self.dtypes = [getattr(torch, v.dtype.name) for v in inputs]
        self.static = all(v.is_static for v in inputs)
        self._seen: dict[Any, int] = {}
        axes = {d: (i, a) for i, v in enumerate(inputs) for a, d in enumerate(v.shape or ()) if isinstance(d, str)}
        # For every mask its sizes, each a number or where among the inputs it is found.
        self._sizes = [[d if isinstance(d, int) else axes.get(d or "") for d in _shape(m.value)]
                       for m in self.masks.values()]
        self.needs_sizes = any(None in sizes for sizes in self._sizes)

    def often(self, shapes: Any) -> bool:
        """Whether inputs of these shapes have come more than a few times."""
        times = self._seen[shapes] = self._seen.pop(shapes, 0) + 1
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return times > _PATIENCE

    def drawn(self, inputs: Tensors) -> list[torch.Tensor]:
        """The masks, drawn as torch's own Dropout draws its."""
        device = "cpu" if self.device.kind == "cpu" else str(self.device)
        found = []
        for mask, sizes in zip(self.masks.values(), self._sizes, strict=True):
            shape = [d if isinstance(d, int) else inputs[d[0]].shape[d[1]] for d in sizes if d is not None]
            if len(shape) < len(sizes):
                raise ModelError(f"The size of the mask {mask.value!r} of a Dropout does not follow from those of the "
                                 f"inputs; call eval().")
            drawn = torch.empty(shape, dtype=getattr(torch, mask.value.dtype.name), device=device)
            found.append(drawn.bernoulli_(mask.keep).div_(mask.keep or 1))
        return found


def _shape(v: Value) -> Sequence[int | str | None]:
    """The sizes of a value, one that is not known for an unknown rank."""
    return (None,) if v.shape is None else v.shape
