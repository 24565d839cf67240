"""Numbers out of range while a graph runs: every engine and door gives the same error, and trains on afterwards."""

import contextlib
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from native_cases import CHECKED, find_sanitizers
from refusals import DOORS, MODELS, Exported, batch, make_model

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import DataError
from ortpartial.execution.inplace_engine import InplaceEngine

#: Doors that check themselves, and know the number where onnxruntime does not tell it.
COMPILED = ("native", "export_c")

#: onnxruntime-training 1.19.2 has no gradient for them, or a wrong one.
WITHOUT_AGENT = ("GRU", "LSTM", "NegativeLogLikelihoodLoss", "RNN", "ReverseSequence", "ScatterND")

PAIRS = [(m, d) for m in MODELS for d in DOORS if not (d == "agent" and m in WITHOUT_AGENT)]
#: Each door and each model once or more.
SAMPLE = {(m, d) for i, m in enumerate(MODELS) for j, d in enumerate(DOORS) if (i - j) % len(MODELS) == 0} | {
    ("Gather", "native"), ("Div", "native")}


@pytest.mark.parametrize(("model", "door"), [
    pytest.param(*pair, marks=[] if pair in SAMPLE else pytest.mark.slow, id="-".join(pair)) for pair in PAIRS])
def test_the_same_number_is_refused_in_the_same_words(model, door, tmp_path, record_property):
    if door in COMPILED and shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    step, weights = DOORS[door](make_model(model), tmp_path)
    step(*batch(model))
    before = weights()
    with pytest.raises(DataError) as e:
        step(*batch(model, bad=True))
    assert str(e.value) == MODELS[model].message(is_told=door in COMPILED)
    after = weights()
    assert all(np.array_equal(a, after[n], equal_nan=True) for n, a in before.items())
    step(*batch(model))
    assert any((a != after[n]).any() for n, a in weights().items())
    record_property("refusal", (model, door))


@pytest.mark.slow
def test_every_pair_is_another_engine():
    """The door "in place" is that engine, without which its rows would be of another one."""
    o = OrtGradientForwardBackwardOptimizer(make_model("Gather"), ["w"], engine="step", checkpointing="auto")
    assert isinstance(o._engine, InplaceEngine)


@pytest.mark.slow
def test_what_is_written_in_c_is_clean():
    """All models with the sanitizers of the compiler, which end a process, hence in one of their own."""
    if not (libraries := find_sanitizers()):
        pytest.skip("needs a C compiler with sanitizers")
    code = f"from test_refusals import run_in_c\nfor name in {list(MODELS)}: run_in_c(name)"
    added = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    settings = {**os.environ, "LD_PRELOAD": libraries, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": added}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def run_in_c(name):
    """Steps that are taken and refused, with sanitizers."""
    step = Exported(make_model(name), CHECKED)
    for is_bad in (False, True, False):
        with pytest.raises(DataError) if is_bad else contextlib.nullcontext():
            step(*batch(name, bad=is_bad))


def test_words_are_those_of_one_table():
    assert all(re.search(r"n1.*\) (has|divides) .*", row.message()) for row in MODELS.values())
