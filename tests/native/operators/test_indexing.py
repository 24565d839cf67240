"""Gather and scatter in C beside numpy: places from the end, equal places, and none outside."""

import shutil

import numpy as np
import pytest
from native_cases import QUICK, compute_by_runtime, compute_in_c, run_cases, write_cases

from ortpartial.exceptions import DataError
from ortpartial.graph import constant, op, variable
from ortpartial.native import compile_library

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

RNG = np.random.default_rng(0)
A, U = RNG.normal(size=(4, 3)).astype(np.float32), RNG.normal(size=(2, 3)).astype(np.float32)
I, J = np.array([[0, -1, 2]]), np.array([[3, 0, 0], [3, -4, 1]])
X, V = variable("x", "float32", A.shape), variable("u", "float32", U.shape)
P, Q = variable("i", "int64", I.shape), variable("j", "int64", J.shape)


def test_they_are_those_of_numpy():
    added, replaced = A.copy(), A.copy()
    np.add.at(added, (J % 4, np.arange(3)), U)
    np.put_along_axis(replaced, J[:1] % 4, U[:1], 0)
    lengths = np.array([2, 4, 1])
    cases = {
        "Gather": (op.Gather(X, P), A[I]), "Gather, axis": (op.Gather(X, P, axis=1), A[:, I]),
        "Gather, constant": (op.Gather(X, constant(np.array(-2))), A[-2]),
        "GatherElements": (op.GatherElements(X, Q), np.take_along_axis(A, J % 4, 0)),
        "ScatterElements, add": (op.ScatterElements(X, Q, V, reduction="add"), added),
        "ScatterElements": (op.ScatterElements(X, Q[:1], V[:1]), replaced),
        "ReverseSequence": (op.ReverseSequence(X, constant(lengths)), np.stack(
            [np.concatenate([c[:n][::-1], c[n:]]) for c, n in zip(A.T, lengths, strict=True)], 1)),
    }
    found = compute_in_c({n: v for n, (v, _) in cases.items()}, {X: A, V: U, P: I, Q: J})
    for name, (_, expected) in cases.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, err_msg=name)


#: By operator: a value, and the indices or lengths that it reads, in range, some from the end.
CHECKED_NUMBERS = {
    "Gather": (lambda i: op.Gather(X, i), [[-4, 3], [0, -1]]),
    "Gather of one": (lambda i: op.Gather(X, i, axis=1), -3),
    "Gather of many": (lambda i: op.Gather(X, i), np.arange(-4, 4).repeat(3)),
    "GatherElements": (lambda i: op.GatherElements(X, i, axis=1), [[-3, 2], [0, 1], [0, 0], [1, -1]]),
    "GatherND": (lambda i: op.GatherND(X, i), [[-4, 2], [3, -3]]),
    "ScatterElements": (lambda i: op.ScatterElements(X, i, V[:1], axis=0), [[-4, 0, 3]]),
    "ScatterND": (lambda i: op.ScatterND(X, i, V[:2], reduction="add"), [[-1], [3]]),
    "ReverseSequence": (lambda i: op.ReverseSequence(X, i, batch_axis=1, time_axis=0), [1, 4, 2]),
}


@pytest.fixture(scope="module")
def checked():
    """A step of all of them, compiled once: what runs it with other numbers for some, by name."""
    variables = {n: variable("i", "int64", np.shape(i)) for n, (_, i) in CHECKED_NUMBERS.items()}
    values = {n: f(variables[n]) for n, (f, _) in CHECKED_NUMBERS.items()}
    numbers = {X: A, V: U, **{v: np.array(CHECKED_NUMBERS[n][1]) for n, v in variables.items()}}
    step = write_cases(values, numbers)
    library = compile_library(step.source, {"step.h": step.header}, flags=QUICK)

    def run(**other):
        arrays = {**numbers, **{variables[n]: i for n, i in other.items()}}
        return run_cases(step, library, list(values), list(arrays.values()))

    return run, compute_by_runtime(values, numbers)


def test_numbers_in_range_count_from_the_end_as_in_onnxruntime(checked):
    run, expected = checked
    for name, y in run().items():
        np.testing.assert_array_equal(y, expected[name], err_msg=name)


@pytest.mark.parametrize("name", CHECKED_NUMBERS)
def test_a_number_out_of_range_is_refused(name, checked):
    run, _ = checked
    i = np.array(CHECKED_NUMBERS[name][1])
    is_length, is_along_rows = name == "ReverseSequence", name in ("GatherElements", "Gather of one")
    what = "a length of a sequence" if is_length else "an index"
    low, high = (0, 4) if is_length else (-3, 2) if is_along_rows else (-4, 3)
    for at in {0, i.size // 2}:
        for bad in (low - 1, high + 1 + (name == "GatherND" and at == 1), 2**63 - 1, -(2**63), 2**32):
            wrong = i.copy()
            wrong.flat[at] = bad
            message = rf"^A {name.split()[0]} has {what} that is not in .*{low} to {high}.*: {bad}\.$"
            with pytest.raises(DataError, match=message):
                run(**{name: wrong})


def test_constants_in_range_are_not_checked():
    step = write_cases({"y": op.Gather(X, constant([[0, -4]]))}, {X: A})
    assert (step.refusals, "OP_OUTSIDE(v" in step.source) == ((), False)


def test_an_index_of_several_operators_is_checked_once():
    step = write_cases({"y": op.Gather(X, P), "z": op.Gather(op.Exp(X), P)}, {X: A, P: I})
    assert step.source.count("OP_OUTSIDE(v") == 1
