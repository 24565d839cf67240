"""The step of a training kit: its inputs and results, the state included, for batches of some size or any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import TensorProto

from ortpartial.exceptions import ModelError
from ortpartial.graph import Value, build, op, variable
from ortpartial.rewrites import write_convolutions
from ortpartial.training_info import TrainingSession, compose_step

from .opset import lower_opset

__all__ = ["KitStep", "compose", "name_sizes", "share_rows"]


def share_rows(declared: Mapping[str, Sequence[Any] | None]) -> dict[str, tuple[int | str, ...]]:
    """Name the sizes of inputs that are not known, where the first axis of each counts the same rows.

    Parameters
    ----------
    declared : dict of str to tuple
        The shapes of the inputs of a step.

    Returns
    -------
    dict of str to tuple of int and str

    Raises
    ------
    ModelError
        The inputs have no rows in common.
    """
    for name, shape in declared.items():
        if not shape:
            raise ModelError(f"The input {name!r} of the step has no rows; a kit needs inputs whose first axis counts "
                             f"the rows of a batch.")
    firsts = [shape[0] for shape in declared.values() if shape]
    sizes = {size for size in firsts if isinstance(size, int)}
    if len(sizes) > 1:
        raise ModelError(f"The inputs of the step have {' and '.join(map(str, sizes))} rows; a kit needs inputs whose "
                         f"first axis counts the rows of a batch.")
    rows = next((size for size in [*sizes, *firsts] if size is not None), "N")
    return {name: (rows, *name_sizes(name, shape)[1:]) for name, shape in declared.items() if shape}


def name_sizes(tensor: str, shape: Sequence[int | str | None]) -> tuple[int | str, ...]:
    """Name the sizes of a shape that are not known.

    Parameters
    ----------
    tensor : str
        The tensor that has the shape.
    shape : tuple
        Sizes, their names, and None.

    Returns
    -------
    tuple of int and str
    """
    return tuple([f"{tensor}_{axis}" if size is None else size for axis, size in enumerate(shape)])


@dataclass(frozen=True)
class KitStep:
    """A step.

    Parameters
    ----------
    inputs : dict of str to Value
        Its inputs from a batch.
    outputs : dict of str to Value
        Its results, the loss first.
    state : dict of str to tuple
        By tensor of the state the name of its next value, the tensor before the step and after it.
    """

    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    state: Mapping[str, tuple[str, Value, Value]]

    def to_bytes(self) -> bytes:
        """The graph, in the order of bindings."""
        inputs = {**self.inputs, **{n: before for n, (_, before, _) in self.state.items()}}
        outputs = {**self.outputs, **{new: after for new, _, after in self.state.values()}}
        return lower_opset(write_convolutions(build(inputs, outputs, name="step"))).SerializeToString()


def compose(session: TrainingSession, shapes: Mapping[str, Sequence[Any]], rows: int | None) -> KitStep:
    """Compose the step of a training that a model stores.

    Parameters
    ----------
    session : TrainingSession
        The training.
    shapes : dict of str to tuple
        The shapes of its inputs.
    rows : int or None
        The number of rows of a batch, None for any number.

    Returns
    -------
    KitStep

    Raises
    ------
    ModelError
        The step returns no loss.
    """
    proto, state = session.model, session.state
    sizes = None if rows is None else {n: (rows, *shape[1:]) for n, shape in shapes.items()}
    inputs, outputs, new = compose_step(proto, 0, sizes, [o.name for o in proto.training_info[0].algorithm.output])
    returned = {n: v for n, v in outputs.items() if n not in new}
    scalars = [n for n, v in returned.items() if v.is_float and v.shape == ()]
    loss = "loss" if "loss" in scalars else next(iter(scalars), None)
    if loss is None:
        hint = "" if returned else "; of a module, train a batch first, or compile with targets"
        raise ModelError(f"A kit needs a step that returns its loss, a number; this one returns "
                         f"{', '.join(f'{n!r} {v.type_name}' for n, v in returned.items()) or 'nothing'}{hint}.")
    after = {key: (n, outputs[n]) for n, key in new.items()}
    held = {}
    for n, a in state.items():
        before = inputs.get(n, variable(n, a.dtype, a.shape))
        # State that a step only reads, such as a seed, is handed on: the state goes in and comes out whole.
        held[n] = (after[n][0], before, after[n][1]) if n in after else (f"{n}_next", before, op.Identity(before))
    number = op.Cast(returned.pop(loss), to=TensorProto.FLOAT)  # which runners need not tell from other dtypes
    return KitStep({n: inputs[n] for n in shapes if n in inputs}, {loss: number, **returned}, held)
