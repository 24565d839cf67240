"""The graphs that a module and its optimizer run, each bound once to the memory of the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ortpartial.annotations import Inputs
from ortpartial.exceptions import ConvergenceError, ModelError
from ortpartial.graph import Node, Value, build, cast, find_inputs, rewrite, variable
from ortpartial.model import Model, check_indices, index_ranges
from ortpartial.rewrites import rewrite_model, rewrite_step
from ortpartial.runtime import Binding, Buffer, Device, Session, as_numpy, choose_threads
from ortpartial.training import draw_mask

from .graphs import TrainingGraph, load_lowered
from .optimizers import OptimizerModel
from .state import Key, Tensors

__all__ = ["CALLS", "RATE", "SEED", "STEP", "Composition", "Program", "Sizes", "compose_training", "compose_update",
           "finish", "state_name"]

#: The shapes of inputs by name.
Sizes: TypeAlias = Mapping[str, Sequence[int]]

#: Names that no tensor of a file has.
RATE, STEP, SEED, CALLS = "learning_rate//", "step//", "seed//", "calls//"


def state_name(parameter: str, kind: str) -> str:
    """What an input that is state is called: a parameter has its own name."""
    return f"{parameter}//{kind}" if kind else parameter


@dataclass(frozen=True)
class Composition:
    """What a program computes, as values.

    Parameters
    ----------
    inputs : dict of str to Value
        What it may read.
    outputs : dict of str to Value
        What it computes.
    written : dict of str to tuple of str
        By output that is new state, what it is.
    """

    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    written: Mapping[str, Key]


class Program:
    """A graph in a session, bound to the state.

    Parameters
    ----------
    composition : Composition
        What it computes.
    state : dict of tuple of str to Tensors
        Where each tensor of the state is.
    numbers : dict of str to Buffer
        Its inputs that are numbers, such as the learning rate, in memory that the caller writes to.
    device : Device
        Where it runs.
    """

    def __init__(self, composition: Composition, state: Mapping[Key, Tensors], numbers: Mapping[str, Buffer],
                 device: Device):
        outputs, written = composition.outputs, composition.written
        used = find_inputs(outputs.values(), composition.inputs)
        threads = choose_threads(list(outputs.values()))
        self._session = Session(build(used, outputs, name="program"), device=device, threads=threads)
        places = {state_name(*key): (tensors, key[0]) for key, tensors in state.items()}
        self._read = {n: places[n] for n in used if n in places}
        self._written = {n: (state[key], key[0]) for n, key in written.items()}
        self._numbers = {n: b for n, b in numbers.items() if n in used}
        self._fed = {n: v for n, v in used.items() if n not in self._read and n not in self._numbers}
        self._ranges = index_ranges(self._fed, outputs.values())
        self._returned = [n for n in outputs if n not in written]
        self._groups = list({id(t): t for t, _ in (*self._read.values(), *self._written.values())}.values())
        self._changed = list({id(t): t for t, _ in self._written.values()}.values())
        self._bindings: dict[tuple[int, ...], Binding] = {}

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run once, take over the new state unless the loss is NaN, and return copies of the other outputs."""
        check_indices(self._ranges, feeds)
        binding = self._bind()
        for name in self._fed:
            binding.bind_input(name, feeds[name])
        binding.run()
        results = binding.ortvalues() if self._returned else {}
        arrays = [as_numpy(results[n]) for n in self._returned]
        if self._changed and arrays and arrays[0].dtype.kind == "f" and not np.isfinite(arrays[0]).all():
            raise ConvergenceError(f"The loss {self._returned[0]!r} is {arrays[0]}; parameters and gradients are those "
                                   f"before that batch. Look for NaN in the data, or lower the learning rate.")
        for tensors in self._changed:
            tensors.flip()
        return arrays

    def _bind(self) -> Binding:
        """The binding for the buffers that are current."""
        turns = tuple([t.turn for t in self._groups])
        if turns not in self._bindings:
            binding = self._bindings[turns] = self._session.binding()
            for n, (tensors, name) in self._read.items():
                binding.bind_input(n, tensors.current(name))
            for n, buffer in self._numbers.items():
                binding.bind_input(n, buffer)
            for n, (tensors, name) in self._written.items():
                binding.bind_output(n, tensors.next(name))
        return self._bindings[turns]


def read_values(graph: TrainingGraph, sizes: Sizes | None) -> tuple[Model, dict[str, Value]]:
    """The values of a gradient graph with Dropout drawn by counters, and the inputs of that."""
    model = load_lowered(graph, sizes)
    counters = {SEED: variable(SEED, np.int32, [2]), CALLS: variable(CALLS, np.int64, [])}
    count = 0

    def change(node: Node, inputs: Inputs) -> list[Value] | None:
        nonlocal count
        mode = node.inputs[2] if node.op_type == "Dropout" and len(node.inputs) > 2 else None
        if node.domain or mode is None or mode.array is None or not mode.array.item():
            return None
        ratio = node.inputs[1]
        if ratio is not None and ratio.array is None:
            raise ModelError(f"{node!r} computes its ratio; a constant was expected.")
        rate = 0.5 if ratio is None or ratio.array is None else float(ratio.array.item())
        mask = draw_mask(inputs[0], 1 - rate, counters[SEED], counters[CALLS], count)
        count += 1
        return [inputs[0] * mask, cast(mask, variable("bool", np.bool_, []))]

    outputs = dict(zip(model.outputs, rewrite(list(model.outputs.values()), {}, change), strict=True))
    simplified = rewrite_model(replace(model, outputs=outputs))
    return simplified, {**simplified.inputs, **(counters if count else {})}


def compose_training(
    graph: TrainingGraph, optimizer: OptimizerModel | None, sizes: Sizes | None, *, accumulates: bool
) -> Composition:
    """Forward and backward, and with an optimizer its step, as values.

    Parameters
    ----------
    graph : TrainingGraph
        What computes outputs, gradients and statistics.
    optimizer : OptimizerModel or None
        What changes the parameters; without it, the gradients are written.
    sizes : dict of str to tuple of int, or None
        The shapes of the inputs of the user; None for any.
    accumulates : bool
        Whether earlier gradients are added.

    Returns
    -------
    Composition
    """
    model, inputs = read_values(graph, sizes)
    gradients = {n: model.outputs[name].stated(inputs[n].shape) for n, name in graph.gradients.items()}
    if accumulates:
        earlier = {n: variable(state_name(n, "grad"), g.dtype, g.shape) for n, g in gradients.items()}
        inputs |= {state_name(n, "grad"): v for n, v in earlier.items()}
        gradients = {n: earlier[n] + g for n, g in gradients.items()}
    outputs = {n: model.outputs[n] for n in graph.outputs}
    written = {(n, ""): model.outputs[name].stated(inputs[n].shape) for n, name in graph.statistics.items()}
    written |= {(n, "grad"): g for n, g in gradients.items()}
    if optimizer is not None:
        more, updates = compose_update(optimizer, {n: inputs[n] for n in gradients}, gradients)
        inputs |= more
        written |= updates
    return finish(inputs, outputs, written)


def compose_update(
    optimizer: OptimizerModel, parameters: Mapping[str, Value], gradients: Mapping[str, Value]
) -> tuple[dict[str, Value], dict[Key, Value]]:
    """A step of an optimizer as values.

    Parameters
    ----------
    optimizer : OptimizerModel
        What it computes.
    parameters, gradients : dict of str to Value
        By parameter, its content and its gradient.

    Returns
    -------
    inputs : dict of str to Value
        What it reads beside them.
    written : dict of tuple of str to Value
        The new parameters and momentums.
    """
    inputs = {RATE: variable(RATE, np.float32, []), STEP: variable(STEP, np.int64, [])}
    written: dict[Key, Value] = {}
    for (n, w), g in zip(parameters.items(), optimizer.clip(list(gradients.values())), strict=True):
        momentums = {state_name(n, m): variable(state_name(n, m), w.dtype, w.shape) for m in optimizer.momentums}
        inputs |= momentums
        new = optimizer.update(w, g, list(momentums.values()), inputs[RATE], inputs[STEP])
        written |= {(n, m): v.stated(w.shape) for m, v in zip(["", *optimizer.momentums], new, strict=True)}
    return inputs, written


def finish(inputs: Mapping[str, Value], outputs: Mapping[str, Value], written: Mapping[Key, Value]) -> Composition:
    """All outputs in faster operators."""
    names = {key: f"{state_name(*key)}//new" for key in written}
    fast = rewrite_step({**outputs, **{names[key]: v for key, v in written.items()}})
    return Composition(inputs, fast, {name: key for key, name in names.items()})
