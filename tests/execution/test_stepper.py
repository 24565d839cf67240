"""Single steps of a training: the engine that was asked for, all results in machine code, and a timeout."""

import numpy as np
import pytest
from step_engines import list_step_engines

from ortpartial.exceptions import DeadlineError, SettingError, UntranslatableError
from ortpartial.execution import GraphPart, GraphSource, StepNames, Stepper
from ortpartial.graph import op, variable
from ortpartial.native import find_compiler

ENGINES = ("step", "native")
X = np.float32([[1, 2], [3, 4], [5, 6]])


def make_source(parts=1, **settings):
    """The state w goes down by the mean of x, and z counts; a step returns the loss, x w and a whole number."""
    x, w, z = variable("x", "float32", ["N", 2]), variable("w", "float32", [2]), variable("z", "int64", [])
    outputs = {"y": x * w, "loss": op.ReduceSum(x * w, keepdims=0), "best": op.ArgMax(x * w, axis=1, keepdims=0),
               "w_new": w - op.ReduceMean(x, [0], keepdims=0), "z_new": z + 1}
    part = GraphPart.from_values({"x": x, "w": w, "z": z}, outputs, {"w": "w_new", "z": "z_new"})
    state = {"w": np.ones(2, np.float32), "z": np.array(3, np.int64)}
    return GraphSource((part,) * parts, state, StepNames.beside([*outputs, "x", "w", "z"]), **settings)


def take(steps, n=3):
    """The results of some steps, and the state after them."""
    results = [steps.step({"x": k * X}) for k in range(1, n + 1)]
    return results, {name: steps.engine.get(name) for name in ("w", "z")}


@pytest.mark.parametrize("engine", list_step_engines())
def test_engines_return_all_that_a_step_computes(engine):
    steps = Stepper(make_source(), engine, ENGINES, None)
    results, state = take(steps)
    expected, plain = take(Stepper(make_source(), "auto", ENGINES, None))
    assert (steps.engine.name, steps.engine.reason, steps.engine.iteration) == (engine, "asked for", 3)
    for result, other in zip([*results, state], [*expected, plain], strict=True):
        assert {*result} == {*other}
        for name, a in result.items():
            assert (a.dtype, a.shape) == (other[name].dtype, other[name].shape)
            np.testing.assert_allclose(a, other[name], rtol=1e-6)
    before = [a.copy() for a in results[0].values()]
    steps.step({"x": 7 * X})
    assert all((a == b).all() for a, b in zip(before, results[0].values(), strict=True)), "results are copies"


@pytest.mark.parametrize("engine", list_step_engines())
def test_a_step_that_is_refused_was_not_taken(engine):
    steps = Stepper(make_source(), engine, ENGINES, None)
    before = take(steps, 2)[1]

    def refuse(outputs):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        steps.step({"x": X}, check=refuse)
    assert steps.engine.iteration == 2
    assert all((steps.engine.get(n) == a).all() for n, a in before.items())


def test_batches_of_many_shapes_are_graphs():
    """As in `fit`, what comes seldom is not compiled."""
    steps, plain = (Stepper(make_source(), e, ENGINES, None) for e in ("native", "step"))
    for n in (1, 2, 3, 1, 2, 3):
        results = [s.step({"x": X[:n]}) for s in (steps, plain)]
        np.testing.assert_allclose(results[0]["y"], results[1]["y"], rtol=1e-6)


@pytest.mark.parametrize(("engine", "settings", "message"), [
    ("epoch", {}, r"engine='epoch' takes no single steps; leave it at 'auto', or choose 'step' or 'native'\."),
    ("fast", {}, "engine='fast' takes no single steps"),
    ("native", {"exchanges": {"w": print}}, "exchanges come between its parts; leave it at 'auto'"),
])
def test_engines_that_make_no_sense(engine, settings, message):
    with pytest.raises(SettingError, match=message):
        Stepper(make_source(**settings), engine, ENGINES, None)


@pytest.mark.skipif(find_compiler() is None, reason="needs a C compiler that works")
def test_a_step_in_parts_is_not_compiled():
    with pytest.raises(UntranslatableError, match="a step of one part, and this one has 2; leave it at 'auto'"):
        Stepper(make_source(parts=2), "native", ENGINES, None).step({"x": X})


@pytest.mark.parametrize("engine", list_step_engines())
def test_a_step_that_takes_too_long_has_no_effect(engine):
    steps = Stepper(make_source(), engine, ENGINES, 1e-9)
    with pytest.raises(DeadlineError, match="The run was not over after 1e-09 s, the timeout"):
        steps.step({"x": X})
    assert steps.engine.get("w").tolist() == [1, 1]
    steps.timeout = 60
    assert steps.step({"x": X})["loss"] == 21


@pytest.mark.parametrize("timeout", [0, -1, "soon", np.nan])
def test_a_timeout_is_checked(timeout):
    with pytest.raises(SettingError, match=r"timeout is None or a number of seconds above 0, not "):
        Stepper(make_source(), "auto", ENGINES, timeout)
