"""Rows that do not mix: on which axis every value of a model has the rows of its inputs, each computed for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ortpartial.annotations import Inputs
from ortpartial.autodiff import parse_equation
from ortpartial.exceptions import ModelError
from ortpartial.graph import Node, Value, gradient_reads, topological

from .batching import ALONG_AXIS, BY_ROW, ELEMENTWISE, NORMALIZATIONS, REDUCTIONS

__all__ = ["check_rows", "find_rows"]

#: The axis of the rows of each input of a node, None of an input without rows.
Axes = Sequence["int | None"]
#: From a node and the axes of its inputs to the axis of the rows of its outputs; None where they mix.
Rule = Callable[[Node, Inputs, Axes], "int | None"]
_RULES: dict[str, Rule] = {}


def _rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of operators."""

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(op_types, rule))
        return rule

    return register


def check_rows(outputs: Mapping[str, Value], rows: Sequence[Value]) -> None:
    """Refuse outputs whose rows depend on other rows of the inputs.

    Parameters
    ----------
    outputs : dict of str to Value
        Outputs by name.
    rows : sequence of Value
        The inputs, whose first axis is the row.

    Raises
    ------
    ModelError
        Rows mix; the message names the node.
    """
    axes = find_rows(list(outputs.values()), rows)
    for n, y in outputs.items():
        if axes.get(y) != 0:
            raise ModelError(f"The first axis of output {n!r} is not that of the rows of the inputs, so that it has no "
                             f"derivatives by row; leave per_row out.")


def find_rows(outputs: Sequence[Value], rows: Sequence[Value]) -> dict[Value, int]:
    """The axis of the rows, of every value that depends on them.

    Parameters
    ----------
    outputs : sequence of Value
        Expressions.
    rows : sequence of Value
        The inputs, whose first axis is the row.

    Returns
    -------
    dict of Value to int

    Raises
    ------
    ModelError
        An operator mixes rows, or is not known to keep them apart.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N", 3])
    >>> y = op.Transpose(op.Softmax(x), perm=[1, 0])
    >>> find_rows([y], [x])[y]
    1
    """
    axes = dict.fromkeys(rows, 0)
    for node in topological(outputs, set(rows)):
        if not any(x in axes for x in gradient_reads(node)) or node.op_type in ("Shape", "Size"):
            continue
        rule = None if node.domain or node.bodies else _RULES.get(node.op_type)
        axis = rule(node, node.inputs, [None if x is None else axes.get(x) for x in node.inputs]) if rule else None
        if axis is None:
            why = "mixes the rows of a batch" if rule else "may mix the rows of a batch"
            raise ModelError(f"{node!r} {why}, so that there are no derivatives by row; leave per_row out.")
        axes.update(dict.fromkeys(node.outputs, axis))
    return axes


def _same(axes: Axes) -> int | None:
    """The axis that all that have one agree on."""
    named = {a for a in axes if a is not None}
    return named.pop() if len(named) == 1 else None


def _numbers(inputs: Inputs, i: int) -> list[int] | None:
    """The numbers of a constant input; None where it is missing or computed."""
    x = inputs[i] if len(inputs) > i else None
    return None if x is None or x.array is None else [int(n) for n in x.array.ravel()]


@_rule(*ELEMENTWISE)
def _elementwise(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    rank = node.outputs[0].rank
    return _same([None if a is None or x is None else a + rank - x.rank
                  for x, a in zip(inputs, axes, strict=True)])


@_rule("CastLike")
def _cast(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    return axes[0]


@_rule(*ALONG_AXIS, "CumSum", "CumProd")
def _along_axis(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    axis = _numbers(inputs, 1) if node.op_type.startswith("Cum") else [node.attribute("axis")]
    if axis is None or axes[0] is None or axis[0] % inputs[0].rank == axes[0]:
        return None
    is_dropped = node.op_type in ("ArgMax", "ArgMin") and not node.attribute("keepdims")
    return axes[0] - (is_dropped and axis[0] % inputs[0].rank < axes[0])


@_rule(*REDUCTIONS)
def _reduce(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    rank, reduced = inputs[0].rank, _numbers(inputs, 1)
    if axes[0] is None or (len(inputs) > 1 and inputs[1] is not None and reduced is None):
        return None
    if not reduced:
        return axes[0] if node.attribute("noop_with_empty_axes") else None
    chosen = {a % rank for a in reduced}
    if axes[0] in chosen:
        return None
    return axes[0] if node.attribute("keepdims") else axes[0] - sum(a < axes[0] for a in chosen)


@_rule("Slice", "Pad")
def _part(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    """Other axes are cut or widened."""
    changed, rank = _numbers(inputs, 3), inputs[0].rank
    if changed is None:
        pads = _numbers(inputs, 1)
        is_kept = node.op_type == "Pad" and pads and len(inputs) < 4 and not pads[0] and not pads[rank]
        return axes[0] if is_kept and axes[0] == 0 and _same(axes) == 0 else None
    return None if axes[0] in {a % rank for a in changed} or any(a is not None for a in axes[1:]) else axes[0]


@_rule("Squeeze", "Unsqueeze")
def _squeeze(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    changed = _numbers(inputs, 1)
    if changed is None or axes[0] is None:
        return None
    if node.op_type == "Squeeze":
        dropped = {a % inputs[0].rank for a in changed}
        return None if axes[0] in dropped else axes[0] - sum(a < axes[0] for a in dropped)
    added = {a % node.outputs[0].rank for a in changed}
    return [i for i in range(node.outputs[0].rank) if i not in added][axes[0]]


@_rule("Transpose")
def _transpose(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    perm = node.attribute("perm") or list(range(inputs[0].rank))[::-1]
    return None if axes[0] is None else list(perm).index(axes[0])


@_rule("Reshape", "Flatten")
def _reshape(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    """Rows on the first axis stay there if it keeps its size."""
    x, y = inputs[0], node.outputs[0]
    if _same(axes) != 0 or axes[0] != 0:
        return None
    if node.op_type == "Flatten":
        return 0 if node.attribute("axis") % (x.rank + 1) == 1 else None
    shape = _numbers(inputs, 1) or [1]
    is_copied = shape[0] == 0 and not node.attribute("allowzero")
    is_left = shape[0] == -1 and all(isinstance(n, int) for n in x.shape[1:]) and (
        _product(shape[1:]) == _product(x.shape[1:]) and 0 not in shape[1:])
    is_named = x.shape[0] is not None and y.shape is not None and len(y.shape) > 0 and x.shape[0] == y.shape[0]
    return 0 if is_copied or is_left or is_named else None


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for n in sizes:
        total *= n
    return total


@_rule("Expand")
def _expand(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    return None if axes[0] is None else axes[0] + node.outputs[0].rank - inputs[0].rank


@_rule("Concat")
def _concat(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    axis = _same(axes)
    return None if axis == node.attribute("axis") % node.outputs[0].rank else axis


@_rule("Gather")
def _gather(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    (_, at), axis = inputs, node.attribute("axis") % inputs[0].rank
    if axes[0] is None:
        return axis + axes[1]
    if axes[1] is not None or axis == axes[0]:
        return None
    return axes[0] if axis > axes[0] else axes[0] + at.rank - 1


@_rule("MatMul")
def _multiply(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    rank, placed = node.outputs[0].rank, []
    for i, (x, a) in enumerate(zip(inputs, axes, strict=True)):
        if a is None:
            continue
        if x.rank == 1 or a - x.rank == (-1, -2)[i]:
            return None
        other = inputs[1 - i].rank
        placed.append(a + rank + (other == 1) - x.rank)
    return placed[0] if len(set(placed)) == 1 else None


@_rule("Gemm")
def _multiply_and_add(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    a, b, c = (*axes, None)[:3]
    is_apart = a in (None, int(bool(node.attribute("transA")))) and b is None
    return 0 if is_apart and (c is None or c == inputs[2].rank - 2) else None


@_rule(*BY_ROW, *NORMALIZATIONS)
def _by_row(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    if node.op_type in NORMALIZATIONS and node.attribute("axis") % inputs[0].rank == 0:
        return None
    return 0 if axes[0] == 0 and all(a is None for a in axes[1:]) else None


@_rule("BatchNormalization")
def _normalize(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    """Running statistics keep rows apart, those of a batch mix them."""
    is_apart = axes[0] == 0 and all(a is None for a in axes[1:]) and not node.attribute("training_mode")
    return 0 if is_apart else None


@_rule("Einsum")
def _einsum(node: Node, inputs: Inputs, axes: Axes) -> int | None:
    terms, result = parse_equation(node.attribute("equation"), [x.rank for x in inputs])
    letters = {t[a] for t, a in zip(terms, axes, strict=True) if a is not None}
    return result.find(letters.pop()) if len(letters) == 1 and all(a in result for a in letters) else None
