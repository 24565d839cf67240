"""Gradients of Einsum."""

import string
from collections.abc import Sequence

from ortpartial.graph import Value, op, shape_of

from ..registry import vjp
from .linear import identity_matrix


@vjp("Einsum")
def _(*x, dy, equation):
    terms, result = parse_equation(equation, [v.rank for v in x])
    return [operand_vjp(i, x, terms, dy, result) for i in range(len(x))]


def operand_vjp(i: int, x: Sequence[Value], terms: Sequence[str], dy: Value, result: str) -> Value:
    """The cotangent of the i-th operand: the same sum with dy in its place."""
    others = [j for j in range(len(x)) if j != i]
    remaining = [result, *(terms[j] for j in others)]
    letters = list(dict.fromkeys(terms[i]))
    reached = "".join(a for a in letters if any(a in term for term in remaining))
    d = contract([dy, *(x[j] for j in others)], remaining, reached)
    alone = [k for k, a in enumerate(letters) if a not in reached]
    if alone:
        d = op.Unsqueeze(d, alone)
    for k, a in enumerate(terms[i]):
        if a in terms[i][:k]:
            d = put_on_diagonal(d, x[i], terms[i].index(a), k)
    # Along a letter of its own, the operand was summed.
    return op.Expand(d, shape_of(x[i])).stated([None] * x[i].rank) if alone else d


def contract(x: Sequence[Value], terms: Sequence[str], result: str) -> Value:
    """An Einsum; its operand where it would change nothing."""
    return x[0] if list(terms) == [result] else op.Einsum(*x, equation=f"{','.join(terms)}->{result}")


def put_on_diagonal(d: Value, x: Value, first: int, second: int) -> Value:
    """d on the diagonal of two axes, for a letter that an operand has twice: 0 where the two indices differ."""
    d = op.Unsqueeze(d, [second])
    return d * op.Unsqueeze(identity_matrix(x, first), [k for k in range(d.rank) if k not in (first, second)])


def parse_equation(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of the operands and of the result, with the ellipsis and an implicit result written out."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    hidden = [r - len(t.replace("...", "")) if "..." in t else 0 for t, r in zip(terms, ranks, strict=True)]
    free = [a for a in string.ascii_letters if a not in equation][: max(hidden)]
    if not arrow:
        right = "..." * bool(free) + "".join(sorted(a for a in set(left) - set(".,") if left.count(a) == 1))
    written = [t.replace("...", "".join(free[len(free) - n :])) for t, n in zip(terms, hidden, strict=True)]
    return written, right.replace("...", "".join(free))
