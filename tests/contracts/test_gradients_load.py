"""No gradient is built that plain onnxruntime does not load, where it loads the operator itself: in each dtype."""

import re
import sys

import onnxruntime
import pytest
from once import ON_BOTH
from paths import ROOT

from ortpartial.autodiff import backpropagate
from ortpartial.exceptions import ModelError, OrtPartialError
from ortpartial.graph import build, ones_like, variable
from ortpartial.rewrites import make_portable
from ortpartial.runtime import Session

sys.path.insert(0, str(ROOT / "tests/contracts"))
from test_zero_gradients import EVERY, make

DTYPES = ("float16", "float32", "float64", "bfloat16")


def find_fault(model):
    """What plain onnxruntime says of a model that it does not load."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        # 1.19.2 fuses transposed products of float64 into a kernel of float32 alone, whoever writes the model.
        onnxruntime.InferenceSession(model.SerializeToString(), options, disabled_optimizers=["MatmulTransposeFusion"])
    except Exception as e:  # The errors of onnxruntime have no common base class below Exception.
        return str(e)
    return ""


def check(name, dtype):
    """The verdict on a case in a dtype: its gradient loads, is refused when it is built, or nothing loads of it."""
    case = make(name)
    x = [variable(f"x{i}", dtype, a.shape) for i, a in enumerate(case.args)]
    try:
        ys = case.f(*x)
        forward = make_portable(build(x, {f"y{i}": y for i, y in enumerate(ys)}))
        dxs = backpropagate(ys, list(map(ones_like, ys)), x)
        gradient = make_portable(build(x, {f"d{i}": d for i, d in enumerate(dxs) if d is not None}))
    except OrtPartialError as e:
        return f"refused: {e}"
    if not gradient.graph.output or find_fault(forward):
        return "nothing to load"
    fault = find_fault(gradient)
    # A form of an operator that is younger than the runtime, which the forward graph was lowered from.
    is_young = re.search("Unsupported model IR version|till opset", fault)
    if dtype == "bfloat16" and "Could not find an implementation" in fault:
        return describe_missing(gradient)
    return "nothing to load" if is_young else fault or "loads"


def describe_missing(model):
    """The library's own error for a kernel of bfloat16, of which a processor has few: Gather has one, Expand none."""
    with pytest.raises(ModelError, match=r"has no kernel for \w+ \(since opset .*\) with inputs of .*bfloat16") as e:
        Session(model)
    return f"refused: {e.value}"


def check_all(names, dtype):
    """Some of all cases; every refusal says of which operator, and of which type or setting, it is."""
    verdicts = {name: check(name, dtype) for name in names}
    refusals = {n: v for n, v in verdicts.items() if v.startswith("refused: ")}
    assert {n: v for n, v in verdicts.items() if v not in ("loads", "nothing to load") and n not in refusals} == {}
    assert all(re.search(r"[A-Z]\w+", v.removeprefix("refused: ")) for v in refusals.values())
    # Of bfloat16, a processor loads few operators themselves.
    assert dtype == "bfloat16" or list(verdicts.values()).count("loads") > len(names) / 4


@ON_BOTH
@pytest.mark.parametrize("dtype", DTYPES)
def test_some(dtype):
    i = DTYPES.index(dtype)
    check_all(sorted(EVERY)[i :: 25 if dtype != "bfloat16" else 100], dtype)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", range(25))
def test_all(part, dtype):
    check_all(sorted(EVERY)[part::25], dtype)
