"""Missing values: the inputs in which a model takes NaN, as it imputes them or has a branch for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortpartial.graph import VIEWS, Node, Value, topological, walk_back

__all__ = ["find_nullable"]

#: Operators that move or scale elements: what is missing before them is missing behind them, and nothing else.
_KEEPS = VIEWS | {"Add", "ArrayFeatureExtractor", "Cast", "Concat", "Div", "Gather", "Mul", "Slice", "Split", "Sub",
                  "Transpose"}


def find_nullable(outputs: Sequence[Value], inputs: Mapping[str, Value]) -> set[str]:
    """Find the inputs in which a model asks for NaN.

    Parameters
    ----------
    outputs : sequence of Value
        The outputs of the model.
    inputs : dict of str to Value
        Its inputs.

    Returns
    -------
    set of str
        The names of inputs that an IsNaN reads, as of an Imputer of scikit-learn, or trees that send NaN to one side.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x, z = variable("x", "float32", ["N"]), variable("z", "float32", ["N"])
    >>> find_nullable([op.Where(op.IsNaN(x), 0.0, x) + z], {"x": x, "z": z})
    {'x'}
    """
    names = {v: n for n, v in inputs.items()}
    asked = [node.inputs[0] for node in topological(outputs) if _asks(node)]
    origins = walk_back([x for x in asked if x is not None],
                        lambda v: v.node is not None and v.node.op_type not in _KEEPS)
    return {names[v] for v in origins if v in names}


def _asks(node: Node) -> bool:
    """Whether NaN has a meaning for a node."""
    return node.op_type == "IsNaN" or any(node.attributes.get("nodes_missing_value_tracks_true") or ())
