"""No gradient is built that plain onnxruntime does not load, where it loads the operator itself: in each dtype."""

import re
import sys

import onnxruntime
import pytest
from once import ON_BOTH
from paths import ROOT

from ortpartial.autodiff import backpropagate
from ortpartial.exceptions import OrtPartialError
from ortpartial.graph import build, ones_like, variable
from ortpartial.rewrites import make_portable

sys.path.insert(0, str(ROOT / "tests/contracts"))
from test_zero_gradients import EVERY, make

DTYPES = ("float16", "float32", "float64")


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
    return "nothing to load" if is_young else fault or "loads"


def check_all(part, dtype):
    """One of 25 parts of all cases; every refusal says of which operator, and of which type or setting, it is."""
    names = sorted(EVERY)[part::25]
    verdicts = {name: check(name, dtype) for name in names}
    refusals = {n: v for n, v in verdicts.items() if v.startswith("refused: ")}
    assert {n: v for n, v in verdicts.items() if v not in ("loads", "nothing to load") and n not in refusals} == {}
    assert all(re.search(r"[A-Z]\w+", v.removeprefix("refused: ")) for v in refusals.values())
    assert list(verdicts.values()).count("loads") > len(names) / 4


@ON_BOTH
@pytest.mark.parametrize("dtype", DTYPES)
def test_some(dtype):
    check_all(DTYPES.index(dtype), dtype)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", range(25))
def test_all(part, dtype):
    check_all(part, dtype)
