"""Graph functions between torch tensors, which torch.autograd differentiates to any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, reduce
from math import isfinite
from operator import add, itemgetter
from typing import Any

import numpy as np
import torch
from torch._C import _are_functorch_transforms_active as _is_functorch_active
from torch.autograd.function import FunctionCtx

from ortpartial.exceptions import CompilerError, DeviceError, ModelError, SettingError, UntranslatableError
from ortpartial.execution import OFTEN, repays_compilation, select_for_fit
from ortpartial.graph import cast, find_reached, op, variable
from ortpartial.runtime import TrainingAgent, TypedOrtValue
from ortpartial.training import GradientCut, GraphFunction, ShapePolicy, select_for_backward

from .layer_function import LayerFunction
from .native_session import NativeSession
from .tensor_session import Placement, Tensors, TensorSession, to_ortvalue, to_tensor

__all__ = ["CompiledLayer", "TensorFunction"]


class TensorFunction:
    """A graph function between tensors, which torch differentiates to any order.

    Parameters
    ----------
    function : GraphFunction
        The function.
    placement : Placement
        Where.
    engine : str
        ``"auto"``, ``"agent"``, ``"step"`` or ``"native"``: how the first derivative is computed.

    Attributes
    ----------
    engine_, engine_reason_ : str
        The engine in use, and the reason.
    """

    def __init__(self, function: GraphFunction, placement: Placement, engine: str = "step"):
        self.function, self.placement, self.engine = function, placement, engine
        self.leaves, self.sources = list(function.leaves), list(function.sources)
        self.nondifferentiable = [i for i, (n, y) in enumerate(function.outputs.items())
                                  if not y.is_float or n in function.nondifferentiable]
        self.engine_, self.engine_reason_ = "step", "asked for"
        self._is_loss = function.is_loss and engine not in ("agent", "native")
        if self._is_loss and engine == "auto":
            self.engine_reason_ = "the graph computes a loss, whose gradient is computed with it in one run"
        elif engine not in ("step", "native"):
            graph = function.graph()
            wanted = [i.name for i in graph.graph.input if function.sources[i.name].is_float]
            self.engine_, self.engine_reason_ = select_for_backward(engine, graph, wanted, [])
        if engine == "native":
            kind, reason = select_for_fit(engine)
            self.engine_, self.engine_reason_ = ("native" if kind.name == "native" else "step"), reason
        #: The calls that were differentiated, while they may become machine code.
        self._calls = 0 if engine == "auto" and self._is_compilable else None
        self._gradients: dict[tuple[bool, ...], _Gradient] = {}
        self._traceable: dict[tuple[bool, ...], _StepGradient] = {}

    @cached_property
    def _session(self) -> TensorSession:
        return TensorSession(self.function.graph(), self.sources, self.placement)

    def __call__(self, sources: list[torch.Tensor]) -> Tensors:
        """Compute the outputs, recorded by torch.autograd if it records."""
        if torch.is_grad_enabled():
            leaves = sources[: len(self.leaves)] if self.function.precomputed else sources
            needs = tuple([t.requires_grad for t in leaves])
            if True in needs:
                gradient = self._gradients.get(needs) or self._add_gradient(needs)
                if self._calls is not None:
                    self._calls += 1
                    if self._calls % OFTEN == 0:
                        gradient = self._compile(needs)
                apply = _Call.apply if _is_functorch_active() else _apply
                return apply(gradient, sources, *leaves)
        return self._session(sources)

    def _add_gradient(self, needs: tuple[bool, ...]) -> _Gradient:
        """Make the gradient by the leaves that need it."""
        wanted = [n for n, need in zip(self.leaves, needs, strict=True) if need]
        gradient = self._gradients[needs] = self._make_gradient(wanted)
        return gradient

    @property
    def _is_compilable(self) -> bool:
        """Whether it may be machine code: on the CPU, where all sizes are known."""
        return self.placement.device.is_cpu and all(v.is_static for v in self.function.leaves.values())

    def _compile(self, needs: tuple[bool, ...]) -> _Gradient:
        """Go on in machine code, where so many calls of a small function were differentiated that it pays."""
        assert self._calls is not None
        function, gradient = self.function, self._gradients[needs]
        wanted = [n for n, need in zip(self.leaves, needs, strict=True) if need]
        values = [*function.outputs.values(), *GradientCut(function, wanted).gradient[0].outputs.values()]
        if not repays_compilation(values, self._calls, self.placement.threads, calls=2):
            return gradient
        with suppress(UntranslatableError, CompilerError):
            gradient = self._gradients[needs] = _NativeGradient(self, wanted)
            self.engine_ = "native"
            self.engine_reason_ = f"{self._calls:,} calls came, and the next take less time in machine code"
        self._calls = None
        return gradient

    def run(self, sources: Tensors) -> list[torch.Tensor]:
        """Compute the outputs, and record nothing."""
        return self._session(sources)

    def without_gradient(self, wanted: Sequence[str]) -> list[int]:
        """The outputs that have no gradient by these leaves, as none of them is read."""
        leaves = [self.function.leaves[n] for n in wanted]
        return [i for i, y in enumerate(self.function.outputs.values())
                if i in self.nondifferentiable or not find_reached([y], leaves)]

    def traceable_gradient(self, needs: tuple[bool, ...]) -> _StepGradient:
        """Our own gradient, whatever the engine; shapes of kept values follow from the leaves."""
        gradient = self._traceable.get(needs)
        if gradient is None:
            wanted = [n for n, need in zip(self.leaves, needs, strict=True) if need]
            gradient = _StepGradient(self, wanted)
            known = {d for v in self.function.leaves.values() for d in v.shape or () if isinstance(d, str)}
            saved = gradient.cut.saved.values()
            if not all(v.shape is not None and all(isinstance(d, int) or d in known for d in v.shape) for v in saved):
                gradient = _StepGradient(self, wanted, recompute=True)
            self._traceable[needs] = gradient
        return gradient

    def _make_gradient(self, wanted: Sequence[str]) -> _Gradient:
        if self._is_loss:
            return _LossGradient(self, wanted)
        if self.engine_ == "native" and self._is_compilable:
            return _NativeGradient(self, wanted)
        if self.engine_ == "agent":
            try:
                return _AgentGradient(self, wanted)
            except (ModelError, DeviceError) as e:
                if self.engine == "agent":
                    raise
                self.engine_, self.engine_reason_ = "step", str(e)
        return _StepGradient(self, wanted)


class _Call(torch.autograd.Function):
    """A call of a function, as torch.autograd records it."""

    @staticmethod
    def forward(ctx: FunctionCtx, gradient: Any, sources: Tensors, *leaves: torch.Tensor) -> Any:
        outputs, kept, ctx.state = gradient.forward(sources)
        ctx.gradient = gradient
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*kept)
        ctx.shapes = None if outputs[0].numel() else _shapes_without_gradient(gradient.function, outputs, leaves)
        if nondifferentiable := gradient.nondifferentiable:
            ctx.mark_non_differentiable(*[outputs[i] for i in nondifferentiable])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: FunctionCtx, *dys: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if ctx.shapes is not None:
            return None, None, *[None if m is None else torch.zeros_like(m, device=d) for m, d in ctx.shapes]
        return None, None, *ctx.gradient.backward(ctx.saved_tensors, dys, ctx.state)


def _shapes_without_gradient(function: TensorFunction, outputs: Tensors, leaves: Tensors) -> list[torch.Size] | None:
    """Shapes of the leaves whose gradient is 0, as the outputs have no elements; None if any has elements.

    No graph is run for it: graphs of a gradient sum over the rows, and 1.19.2 has no products of none.
    """
    if any(y.numel() for i, y in enumerate(outputs) if i not in function.nondifferentiable):
        return None
    return [(t.detach().to("meta") if t.requires_grad else None, t.device) for t in leaves]


#: `apply` in C++. That of `Function`, in Python, prepares for functorch in 4 us, and refuses a `_Call` there.
_apply = super(torch.autograd.Function, _Call).apply

# What torch's engine calls is a method that looks for ours, for another name of it and for mistakes, in 1 us.
_Call._backward_cls.apply = _Call.backward


def _pick(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function from a sequence to a tuple of its elements at these places."""
    # An `itemgetter` of one place returns no tuple.
    return itemgetter(*places) if len(places) > 1 else lambda items: tuple([items[i] for i in places])


def _are_finite(dys: Sequence[torch.Tensor | None]) -> bool:
    """Whether cotangents are finite numbers, else the masks of a gradient select, as in torch.

    Tensors on another device are not waited for, and there selecting costs nothing.
    """
    # A sum of 16 bits would overflow, as gradients are scaled.
    return _is_functorch_active() or all(
        d is None or (d.is_cpu and isfinite(d.detach().sum(dtype=torch.float32 if d.itemsize == 2 else None)))
        for d in dys)


class _StepGradient:
    """Our own gradient as two graphs: forward keeps only the tensors that backward reads.

    Parameters
    ----------
    function : TensorFunction
        The function that is differentiated.
    wanted : sequence of str
        The leaves to differentiate by.
    recompute : bool
        Whether only the leaves are kept and all else is computed again.
    """

    def __init__(self, function: TensorFunction, wanted: Sequence[str], *, recompute: bool = False):
        self.function, self.nondifferentiable = function, function.without_gradient(wanted)
        outputs = list(function.function.outputs)
        constant = frozenset(outputs[i] for i in self.nondifferentiable)
        self.cut = cut = GradientCut(replace(function.function, nondifferentiable=constant), wanted,
                                     recompute=recompute)
        self.seeds = [(outputs.index(o), o) for o in cut.seeds]
        self.count, self.n_leaves = len(outputs), len(cut.leaves)
        self.kept_sources = [function.sources.index(n) for n in cut.leaves + cut.precomputed]
        names = [*outputs, *cut.saved]
        self.kept_outputs = [names.index(n) for n in [*cut.outputs, *cut.saved]]
        self._keep = _pick([*self.kept_sources, *[len(function.sources) + i for i in self.kept_outputs]])
        self._all = tuple([i for i, _ in self.seeds]) if cut.gradient[0].outputs else None
        self._gradients: dict[tuple[tuple[int, ...], bool], tuple[TensorFunction, list[int]] | None] = {}

    @cached_property
    def _session(self) -> TensorSession:
        function = self.function
        return TensorSession(function.function.graph(self.cut.saved), function.sources, function.placement)

    def run(self, sources: Tensors) -> list[torch.Tensor]:
        """The outputs, then the saved tensors."""
        return self._session(sources)

    def forward(self, sources: Tensors) -> tuple[list[torch.Tensor], Tensors, Any]:
        """The outputs, the tensors kept, and the shapes of the outputs."""
        tensors = self.run(sources)
        kept = self._keep([*sources, *tensors])
        del tensors[self.count :]
        return tensors, kept, [y.shape for y in tensors] if self.count > 1 else None

    def backward(self, kept: Tensors, dys: Sequence[torch.Tensor | None], shapes: Any
                 ) -> Sequence[torch.Tensor | None]:
        """The gradient by each leaf, None where there is none."""
        present = tuple([i for i, _ in self.seeds if dys[i] is not None])
        finite = _are_finite(dys)
        if finite and present == self._all and not torch.is_grad_enabled():
            session, pick = self._whole
            return pick([*session([*kept, *dys]), None])
        if not present:
            return [None] * len(self.function.leaves)
        gradient = self._gradients.get((present, finite)) or self._gradient_of(present, finite)
        if gradient is None and not finite:
            gradient = self._gradient_of(present, True)
        if gradient is None:  # It would read values that were not kept: the missing cotangents are zeros.
            dys = self._fill_zeros(dys, shapes)
            gradient = self._gradient_of(tuple(i for i, _ in self.seeds), True)
            assert gradient is not None
        function, positions = gradient
        if not function.function.outputs:  # These outputs depend on no wanted leaf.
            return [None] * len(positions)
        n = self.n_leaves
        gradients = function([*kept[:n], *[d for d in dys if d is not None], *kept[n:]])
        return [None if i < 0 else gradients[i] for i in positions]

    @cached_property
    def _whole(self) -> tuple[TensorSession, Callable[[Tensors], Sequence[torch.Tensor | None]]]:
        """The gradient where all seeds have a cotangent: its session, and the order of its outputs by leaf.

        It is a session of its own, in the order of a backward pass that torch does not record.
        """
        gradient, names = self.cut.gradient
        session = TensorSession(gradient.graph(), self._sources, self.function.placement)
        return session, _pick([names.index(n) if n in names else -1 for n in self.function.leaves])

    @property
    def _sources(self) -> list[str]:
        """The names of the tensors that `backward` has: those kept, and a cotangent for each output."""
        gradient = self.cut.gradient[0]
        leaves = list(gradient.leaves)
        cotangents = dict(zip([i for i, _ in self.seeds], leaves[self.n_leaves :], strict=True))
        return [*leaves[: self.n_leaves], *gradient.precomputed, *(cotangents.get(i, "") for i in range(self.count))]

    def _fill_zeros(self, dys: Sequence[torch.Tensor | None], shapes: Sequence[torch.Size]) -> list[torch.Tensor]:
        """The cotangents of all seeds, zeros where they are None."""
        device = next(d.device for d in dys if d is not None)
        outputs = self.function.function.outputs
        return [torch.zeros(shapes[i], dtype=getattr(torch, outputs[o].dtype.name), device=device)
                if (d := dys[i]) is None else d for i, o in self.seeds]

    def _gradient_of(self, present: tuple[int, ...], finite: bool) -> tuple[TensorFunction, list[int]] | None:
        """The gradient where these outputs have a cotangent, and which of its outputs belongs to each leaf, or -1."""
        if (present, finite) not in self._gradients:
            gradient = self.cut.backward([o for i, o in self.seeds if i in present], finite)
            if gradient is not None:
                function, names = gradient
                positions = [names.index(n) if n in names else -1 for n in self.function.leaves]
                self._gradients[present, finite] = TensorFunction(function, self.function.placement), positions
            else:
                self._gradients[present, finite] = None
        return self._gradients[present, finite]


class _NativeGradient(_StepGradient):
    """Our own gradient in machine code, where all cotangents are there and finite; else it is that of the graphs.

    Sums are added up in an order of their own: numbers agree with the graphs within rounding.

    Parameters
    ----------
    function : TensorFunction
        The function that is differentiated.
    wanted : sequence of str
        The leaves to differentiate by.
    """

    def __init__(self, function: TensorFunction, wanted: Sequence[str]):
        super().__init__(function, wanted)
        (gradient, names), whole = self.cut.gradient, function.function
        try:
            self._run_forward = NativeSession(whole.sources, {**whole.outputs, **self.cut.saved}, function.sources)
            # The cotangents are finite where their sum is.
            dys = [dy for n, dy in gradient.leaves.items() if n not in self.cut.leaves]
            total = reduce(add, [op.ReduceSum(cast(dy, variable("", np.float32, [])), keepdims=0) for dy in dys])
            self._run_backward = NativeSession(gradient.sources, {**gradient.outputs, "": total}, self._sources)
        except UntranslatableError as e:
            raise UntranslatableError(f"{e} Leave engine at 'auto'.") from None
        self._pick = _pick([names.index(n) if n in names else -1 for n in function.leaves])

    def run(self, sources: Tensors) -> list[torch.Tensor]:
        """The outputs, then the saved tensors."""
        return self._run_forward(sources)

    def backward(self, kept: Tensors, dys: Sequence[torch.Tensor | None], shapes: Any
                 ) -> Sequence[torch.Tensor | None]:
        """The gradient by each leaf, None where there is none."""
        if self._all is not None and not torch.is_grad_enabled() and all(dys[i] is not None for i in self._all):
            *gradients, total = self._run_backward([*kept, *dys])
            if isfinite(total.item()):
                return self._pick([*gradients, None])
        return super().backward(kept, dys, shapes)


class _AgentGradient:
    """The gradient of the TrainingAgent, which keeps its own values; a second derivative recomputes everything.

    Parameters
    ----------
    function : TensorFunction
        The function that is differentiated.
    wanted : sequence of str
        The leaves to differentiate by.
    """

    def __init__(self, function: TensorFunction, wanted: Sequence[str]):
        self.function, graph = function, function.function.graph()
        inputs = {i.name for i in graph.graph.input}
        self.wanted, self.nondifferentiable = [n for n in wanted if n in inputs], function.without_gradient(wanted)
        placement = function.placement
        self.agent = TrainingAgent(graph, self.wanted, device=placement.device, threads=placement.threads)
        self.dtypes = {n: v.dtype for n, v in function.function.sources.items() if n in inputs}
        self.bools = [y.dtype == bool for y in function.function.outputs.values()]
        self.positions = [self.wanted.index(n) if n in self.wanted else -1 for n in function.leaves]

    @cached_property
    def differentiable(self) -> _StepGradient:
        """The same gradient by our own rules, which start from the leaves and can be differentiated again."""
        return _StepGradient(self.function, self.wanted, recompute=True)

    def forward(self, sources: Tensors) -> tuple[list[torch.Tensor], list[torch.Tensor], Any]:
        """The outputs, the tensors kept, and the state of the agent with the shapes of the outputs."""
        # A detached tensor keeps its memory even if `data` of the parameter is replaced before the backward pass.
        feeds = {n: TypedOrtValue(to_ortvalue(t.detach()), t.shape, self.dtypes[n])
                 for n, t in zip(self.function.sources, sources, strict=True) if n in self.dtypes}
        ortvalues, state = self.agent.forward(feeds, {})
        outputs = [to_tensor(y, b) for y, b in zip(ortvalues, self.bools, strict=True)]
        kept = [*sources, *(outputs[i] for i in self.agent.reread)]
        return outputs, kept, (state, [y.shape for y in outputs])

    def backward(self, kept: Tensors, dys: Sequence[torch.Tensor | None], state: Any
                 ) -> Sequence[torch.Tensor | None]:
        """The gradient by each leaf, None where there is none."""
        agent_state, shapes = state
        kept = kept[: len(self.function.sources)]  # What follows was only to be checked for changes.
        # Of Clip, Max, Min and Mul, the kernels of 1.19.2 make NaN of an infinite cotangent at a mask that is shut.
        if torch.is_grad_enabled() or (self.function.engine != "agent" and not _are_finite(dys)):
            if self.function.engine == "agent":
                raise SettingError("engine='agent' has no second derivative, which create_graph=True asks for; use "
                                   "engine='step' or 'auto'.")
            return self.differentiable.backward(kept, dys, shapes)
        if agent_state.used:  # A state of the agent serves one backward pass; retain_graph=True asks for another.
            agent_state = self.forward(kept)[2][0]
        ortvalues = self.agent.backward([None if d is None else to_ortvalue(d) for d in dys], agent_state)
        gradients = [to_tensor(ortvalues[n]) for n in self.wanted]
        return [None if i < 0 else gradients[i] for i in self.positions]


class _LossGradient:
    """The gradient of a loss, which forward computes with the loss in a run, and backward scales.

    A second backward pass through the same graph computes it again, and a second derivative starts from the leaves.

    Parameters
    ----------
    function : TensorFunction
        The function that is differentiated, a loss.
    wanted : sequence of str
        The leaves to differentiate by.
    """

    def __init__(self, function: TensorFunction, wanted: Sequence[str]):
        self.function, self.wanted = function, wanted
        self.nondifferentiable = function.without_gradient(wanted)
        joined, names = function.function.with_gradient(wanted)
        self._session = TensorSession(joined.graph(), function.sources, function.placement)
        self.count = len(function.function.outputs)
        self.seed = list(function.function.outputs).index(function.function.seeds[0])
        self._pick = _pick([names.index(n) if n in names else -1 for n in function.leaves])
        self._has_elements = all(v.is_static and 0 not in (v.shape or ()) for v in function.function.leaves.values())

    @cached_property
    def differentiable(self) -> _StepGradient:
        """The same gradient from the leaves, which can be differentiated again."""
        return _StepGradient(self.function, self.wanted, recompute=True)

    def forward(self, sources: Tensors) -> tuple[list[torch.Tensor], Tensors, list[Tensors] | None]:
        """The outputs, the tensors kept, and the gradients, which the first backward pass takes."""
        if not (self._has_elements or all(map(torch.Tensor.numel, sources))):
            # A gradient sums over the rows, and 1.19.2 has no products of none.
            return self.function.run(sources), sources, None
        tensors = self._session(sources)
        return tensors[: self.count], sources, [tensors[self.count :]]

    def backward(self, kept: Tensors, dys: Sequence[torch.Tensor | None], state: list[Tensors] | None
                 ) -> Sequence[torch.Tensor | None]:
        """The gradient by each leaf, None where there is none."""
        dy = dys[self.seed]
        if dy is None or state is None or torch.is_grad_enabled():
            return self.differentiable.backward(kept, dys, None)
        gradients = state.pop() if state else self._session(kept)[self.count :]
        # What is on another device is not waited for.
        scale = dy.item() if dy.is_cpu else dy.reshape(())
        if dy.is_cpu and not isfinite(scale):
            return self.differentiable.backward(kept, dys, None)
        if not dy.is_cpu or scale != 1:
            for g in gradients:
                g.mul_(scale)
        return self._pick([*gradients, None])


#: Ways to compute the gradient of a function.
_Gradient = _StepGradient | _AgentGradient | _LossGradient


class CompiledLayer:
    """The function of a layer in a mode, ready to run.

    Parameters
    ----------
    layer : LayerFunction
        The function, its masks and its statistics.
    placement : Placement
        Where it runs.
    engine : str
        How it is differentiated.
    state : sequence of str
        The names of the initializers that are parameters and buffers.

    Attributes
    ----------
    read : list of int
        The places in `state` of the tensors that it takes.
    dtypes : list of torch.dtype
        Of the inputs.
    is_static : bool
        Whether the shapes of all inputs are known.
    needs_sizes : bool
        Whether the shape of a mask is known only for given shapes of the inputs.
    policy : ShapePolicy
        Which shapes of inputs have a compiled layer of their own.
    check : callable, optional
        Called with the tensors of the first call.
    """

    check: Callable[[Tensors], None] | None = None

    def __init__(self, layer: LayerFunction, placement: Placement, engine: str, state: Sequence[str]):
        self.read = [state.index(n) for n in layer.initializers]
        self.function, self.device = TensorFunction(layer.function, placement, engine), placement.device
        self.masks, self.statistics, self.initializers = layer.masks, layer.statistics, layer.initializers
        inputs = [v for n, v in layer.function.leaves.items() if n not in layer.masks and n not in layer.initializers]
        self.dtypes = [getattr(torch, v.dtype.name) for v in inputs]
        self.is_static = all(v.is_static for v in inputs)
        self.policy = ShapePolicy(patience=4)  # Layers are often tried on a few rows first.
        axes = {d: (i, a) for i, v in enumerate(inputs) for a, d in enumerate(v.shape or ()) if isinstance(d, str)}
        # Each size of a mask is a number, or the input and axis that have it, or None if it is not known.
        shapes = [m.value.shape for m in self.masks.values()]
        self.mask_sizes = [[None] if shape is None else [d if isinstance(d, int) else axes.get(d or "") for d in shape]
                            for shape in shapes]
        self.needs_sizes = any(None in sizes for sizes in self.mask_sizes)

    def draw_masks(self, inputs: Tensors) -> list[torch.Tensor]:
        """Draw the masks as torch's own Dropout does."""
        device = "cpu" if self.device.shares_memory else str(self.device)
        masks = []
        for mask, sizes in zip(self.masks.values(), self.mask_sizes, strict=True):
            shape = [d if isinstance(d, int) else inputs[d[0]].shape[d[1]] for d in sizes if d is not None]
            if len(shape) < len(sizes):
                raise ModelError(f"The size of the mask {mask.value!r} of a Dropout does not follow from those of the "
                                 f"inputs; call eval().")
            noise = torch.empty(shape, dtype=getattr(torch, mask.value.dtype.name), device=device)
            masks.append(noise.bernoulli_(mask.keep).div_(mask.keep or 1))
        return masks
