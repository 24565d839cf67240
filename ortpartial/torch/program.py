"""What does a layer compute, and its derivatives? `Program`, a function of tensors; `Tape`, its gradient cut off."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import ModelProto

from ortpartial.autodiff import backpropagate
from ortpartial.exceptions import NoGradientError
from ortpartial.graph import RANDOM, Value, build, find_boundary, find_reached, topological, variable
from ortpartial.model import load
from ortpartial.rewrites import Mask, Statistic, TrainingModel, apply_peepholes, simplify, to_dtype, to_training_mode

__all__ = ["ModeProgram", "Program", "Tape", "make_program"]

#: Operators whose output a backward graph computes again from their input, where that is kept anyway.
_CHEAP = frozenset({"Add", "Cast", "Div", "Flatten", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual",
                    "Mul", "Neg", "Not", "Reshape", "Squeeze", "Sub", "Transpose", "Unsqueeze"})
#: Those of them that are as large as their input; a runtime fuses them with the products that read them.
_MOVING = _CHEAP & {"Div", "Flatten", "Identity", "Mul", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}


@dataclass(frozen=True, eq=False)
class Program:
    """A function from leaves to outputs, for which some values on the way may be given already.

    Parameters
    ----------
    leaves : dict of str to Value
        By what it can be differentiated, as far as they are real numbers.
    outputs : dict of str to Value
        What it computes.
    given : dict of str to Value
        What an earlier program computed from the same leaves. It saves work and does not change a derivative.
    fixed : frozenset of str
        Outputs that are not differentiated although they are real numbers.
    derived : bool
        Whether it is the derivative of another, whose random numbers it must not draw again.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N"])
    >>> square = Program({"x": x}, {"y": x * x})
    >>> [node.op_type for node in square.graph().graph.node]
    ['Mul']
    """

    leaves: Mapping[str, Value]
    outputs: Mapping[str, Value]
    given: Mapping[str, Value] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    derived: bool = False

    @property
    def sources(self) -> dict[str, Value]:
        """Leaves, and then what is given."""
        return {**self.leaves, **self.given}

    def graph(self, saved: Mapping[str, Value] | None = None) -> ModelProto:
        """The function as a model, of those sources that it reads.

        Parameters
        ----------
        saved : dict of str to Value, optional
            Further outputs.

        Returns
        -------
        onnx.ModelProto

        Raises
        ------
        NoGradientError
            A derivative depends on random numbers that were not kept.
        """
        outputs = {**self.outputs, **(saved or {})}
        read = find_reached(outputs.values(), self.sources.values())
        nodes = topological(list(outputs.values()), read) if self.derived else []
        if random := [node for node in nodes if node.op_type in RANDOM]:
            raise NoGradientError(f"{random[0]!r} would draw other random numbers than the forward did; make them an "
                                  f"input of the graph.")
        values = apply_peepholes(list(outputs.values()), list(read))
        return build({n: v for n, v in self.sources.items() if v in read}, dict(zip(outputs, values, strict=True)),
                     name="layer")


def _alone(v: Value) -> Value | None:
    """The only tensor that a value follows from, at the cost of a copy."""
    if v.node is None or v.node.op_type not in _CHEAP or v.node.domain:
        return None
    found = [x for x in v.node.inputs if x is not None and x.array is None]
    return found[0] if len(found) == 1 else None


def _root(v: Value, sources: Container[Value]) -> Value:
    """What a value is made of by moving and scaling elements alone: as large, and often that of other values, too."""
    while v not in sources and v.node is not None and v.node.op_type in _MOVING and (x := _alone(v)) is not None:
        v = x
    return v


class Tape:
    """A program and what its gradient needs of it.

    Parameters
    ----------
    program : Program
        What is differentiated.
    wanted : sequence of str
        The leaves that it is differentiated by.
    recompute : bool
        Whether nothing but the leaves is handed on.

    Attributes
    ----------
    seeds : list of str
        Outputs that have a cotangent.
    leaves, given, outputs : list of str
        Those of the program's that the gradient reads, the leaves that it is taken by included.
    saved : dict of str to Value
        What else it reads; further outputs of the program.

    Raises
    ------
    NoGradientError
        An operator on the way has no rule and no body.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x, w = variable("x", "float32", ["N", 3]), variable("w", "float32", [3, 2])
    >>> tape = Tape(Program({"x": x, "w": w}, {"y": op.Tanh(op.Relu(x @ w))}), ["w"])
    >>> tape.leaves, tape.outputs, tape.saved
    (['x', 'w'], ['y'], {'saved_0': <Value Relu float32[Nx2]>})
    """

    def __init__(self, program: Program, wanted: Sequence[str], *, recompute: bool = False):
        self.program, self.wanted = program, list(wanted)
        self.taken = {*program.sources, *program.outputs}
        self.seeds = [o for o, y in program.outputs.items() if y.is_float and o not in program.fixed]
        cotangents, gradients = self._gradients(self.seeds)
        leaves = program.leaves if recompute else program.sources
        read = {} if recompute else self._kept(self._read(gradients.values()))
        of_outputs = {v: n for n, v in reversed(list(program.outputs.items()))}
        self.leaves = [n for n, v in program.leaves.items() if recompute or v in read or n in wanted]
        self.given = [n for n, v in program.given.items() if recompute or v in read]
        known = set(leaves.values())
        self.outputs = [of_outputs[v] for v in read if v in of_outputs and v not in known]
        rest = [v for v in read if v not in of_outputs and v not in known]
        self.saved = {self._free(f"saved_{i}"): v for i, v in enumerate(rest)}
        self._full = self._program(cotangents, gradients)

    def _free(self, name: str) -> str:
        """The name, underscored until nobody else has it."""
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def _gradients(self, seeds: Sequence[str]) -> tuple[dict[str, Value], dict[str, Value]]:
        """Cotangents of outputs, and those of the wanted leaves that the outputs depend on, by these leaves' names."""
        ys = [self.program.outputs[o] for o in seeds]
        dys = {o: variable(f"{o}_grad", y.dtype, y.shape) for o, y in zip(seeds, ys, strict=True)}
        wrt = [self.program.leaves[w] for w in self.wanted]
        found = zip(self.wanted, backpropagate(ys, list(dys.values()), wrt), strict=True)
        return dys, {w: g for w, g in found if g is not None}

    def _read(self, gradients: Iterable[Value]) -> dict[Value, None]:
        """The values of the program that gradients read, in the order in which they do."""
        own = self.program
        return dict.fromkeys(find_boundary(gradients, list(own.outputs.values()), set(own.sources.values())))

    def _kept(self, read: Mapping[Value, None]) -> dict[Value, None]:
        """What is read without what follows from the rest at the cost of a copy: another shape, a factor, a mask."""
        sources, leaves = set(self.program.sources.values()), set(self.program.leaves.values())
        found: dict[Value, None] = {}
        read = dict.fromkeys(v if v in sources else _root(v, sources) for v in read)
        for v in read:
            x = None if v in sources else _alone(v)
            if x in leaves:
                found.setdefault(x)
            elif x not in read:
                found.setdefault(v)
        return found

    def _program(self, cotangents: Mapping[str, Value], gradients: Mapping[str, Value]) -> tuple[Program, list[str]]:
        """The gradient as a program, and the leaves that its outputs are the gradients of."""
        own = self.program
        dys = {self._free(f"{o}_grad"): d for o, d in cotangents.items()}
        leaves = {**{n: own.leaves[n] for n in self.leaves}, **dys}
        given = {**{n: own.given[n] for n in self.given}, **{n: own.outputs[n] for n in self.outputs}, **self.saved}
        outputs = {self._free(f"{w}_grad"): g for w, g in gradients.items()}
        return Program(leaves, outputs, given, derived=True), list(gradients)

    def backward(self, present: Sequence[str]) -> tuple[Program, list[str]] | None:
        """The gradient where these outputs alone have a cotangent.

        Its leaves are those of the tape and then the cotangents; what is given is that of the tape, then its outputs,
        and then what is saved.

        Parameters
        ----------
        present : sequence of str
            Some of `seeds`, in their order.

        Returns
        -------
        tuple of Program and list of str, or None
            The gradients, and the leaves that they belong to; None where it would read what the tape does not hold.
        """
        if list(present) == self.seeds:
            return self._full
        cotangents, gradients = self._gradients(present)
        found = self._program(cotangents, gradients)
        missing = set(self._kept(self._read(gradients.values()))) - set(found[0].sources.values())
        return None if missing else found


@dataclass(frozen=True)
class ModeProgram:
    """A model as a program, in training or not, in some dtype and for some sizes.

    Parameters
    ----------
    program : Program
        From the inputs of the model, the initializers that are fed, as far as they are read, and masks.
    fed : list of str
        Those initializers.
    masks : dict of str to Mask
        Those masks.
    statistics : list of Statistic
        What the caller keeps of each run, in the order of the last outputs of the program.
    """

    program: Program
    fed: list[str]
    masks: dict[str, Mask]
    statistics: list[Statistic]


def make_program(proto: ModelProto, fed: Sequence[str], *, training: bool = False, dtype: Any = None,
         sizes: Mapping[str, Sequence[int]] | None = None) -> ModeProgram:
    """The program of a model.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    fed : sequence of str
        Initializers that are given at each run.
    training : bool
        Whether Dropout and BatchNormalization train.
    dtype : numpy dtype, optional
        In which all real numbers are instead of their own.
    sizes : dict of str to sequence of int, optional
        The sizes of inputs, where the program is for them alone.

    Returns
    -------
    Mode
    """
    model = load(proto, variables=fed, batch=sizes)
    model = model if dtype is None else to_dtype(model, dtype)
    model = simplify(model, dropout=training)
    trained = to_training_mode(model) if training else TrainingModel(model)
    model = trained.model
    outputs, fixed = dict(model.outputs), {}
    for i, s in enumerate(trained.statistics):
        name = f"statistic_{i}"
        while name in model.values:
            name += "_"
        fixed[name] = s.batch
    read = find_reached([*outputs.values(), *fixed.values()], model.initializers.values())
    used = [n for n in fed if model.initializers[n] in read]
    leaves = {**model.inputs, **{n: model.initializers[n] for n in used}}
    leaves.update({n: leaves.pop(n) for n in trained.masks})  # last, whatever the model's inputs are
    program = Program(leaves, {**outputs, **fixed}, fixed=frozenset(fixed))
    return ModeProgram(program, used, trained.masks, trained.statistics)
