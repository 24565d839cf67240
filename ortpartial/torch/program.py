"""A model as the function that a layer computes, in training mode or not, in some dtype and for some sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortpartial.graph import find_reached
from ortpartial.model import Model, specialize
from ortpartial.rewrites import DropoutMask, RunningStatistic, prepare_training, rewrite_model
from ortpartial.training import GraphFunction

__all__ = ["ModeProgram", "make_program"]


@dataclass(frozen=True)
class ModeProgram:
    """A model as a program, in training or not, in some dtype and for some sizes.

    Parameters
    ----------
    program : GraphFunction
        From the inputs of the model, the initializers that are fed, as far as they are read, and masks.
    fed : list of str
        Those initializers.
    masks : dict of str to DropoutMask
        Those masks.
    statistics : list of RunningStatistic
        What the caller keeps of each run, in the order of the last outputs of the program.
    """

    program: GraphFunction
    fed: list[str]
    masks: dict[str, DropoutMask]
    statistics: list[RunningStatistic]


def make_program(model: Model, fed: Sequence[str], *, training: bool = False, dtype: Any = None,
                 sizes: Mapping[str, Sequence[int]] | None = None) -> ModeProgram:
    """The program of a model.

    Parameters
    ----------
    model : Model
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
    ModeProgram
    """
    model = rewrite_model(specialize(model, variables=fed, batch=sizes), train_mode=training, dtype=dtype)
    trained = prepare_training(model, train_mode=training)
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
    program = GraphFunction(leaves, {**outputs, **fixed}, nondifferentiable=frozenset(fixed))
    return ModeProgram(program, used, trained.masks, trained.statistics)
