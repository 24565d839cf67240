"""Numbers out of range that reach an operator when its graph runs: a result or a clear error, never a dead process."""

import json
import subprocess
import sys
from collections import Counter, defaultdict

import pytest
from onnx import defs
from paths import SUPPORT, environment
from run_time_values import HARMLESS, ROWS

from ortpartial.runtime.device import has_training

ENGINES = ["step", "epoch", *(["agent"] if has_training() else [])]

#: Rows that killed a runtime once.
SAMPLE = ("RoiAlign batch_indices", "Tile repeats")

#: Inputs of these names say where or how much, whatever their type.
TELLING = {"axes", "axis", "boxes", "delta", "depth", "grid", "indices", "limit", "offset", "pads", "position", "ratio",
           "repeats", "roi", "rois", "scales", "shape", "sizes", "split", "start", "steps"}


def outcomes(names, engines, timeout=580):
    """Rows, routes, engines and kinds of outcome, of the values of these rows of the table."""
    done = subprocess.run([sys.executable, str(SUPPORT / "sandbox.py"), "--values", ",".join(names), *engines],
                          env=environment(), capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(lines, record):
    """Check that all outcomes are results or clear errors, and record their numbers by row."""
    counts = defaultdict(Counter)
    for name, _, kind, _ in lines:
        counts[name.split(", ")[0]][kind] += 1
    for name, kinds in counts.items():
        record("value", (name, kinds["result"], kinds["clear error"]))
    assert [line for line in lines if line[2] not in ("result", "clear error")] == []


def test_a_sample_of_values():
    lines = outcomes(SAMPLE, ["step"])
    check(lines, lambda *_: None)
    # If the valid numbers were refused, nothing would be tested.
    assert {name.split(", ")[0] for name, _, kind, _ in lines if kind == "result"} == set(SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_values(part, record_property):
    check(outcomes(list(ROWS)[part::8], ENGINES), record_property)


def test_every_number_that_an_operator_reads_is_in_the_table():
    """An operator that appears in ONNX joins the table, or is named as harmless."""
    known = {" ".join(name.split()[:2]) for name in ROWS}
    missing = [f"{schema.name} {name}" for schema, name in telling_inputs() if f"{schema.name} {name}" not in known
               and f"{schema.name} {name}" not in HARMLESS and schema.name not in HARMLESS]
    assert missing == []
    names = {schema.name for schema, _ in telling_inputs()}
    assert [name for name in HARMLESS if name.split()[0] not in names] == []


def telling_inputs():
    """Inputs of ONNX's operators that are whole numbers or truth values, or that have a telling name."""
    for schema in defs.get_all_schemas():
        types = {t.type_param_str: set(t.allowed_type_strs) for t in schema.type_constraints}
        for i in schema.inputs if schema.domain in ("", "ai.onnx.ml") else ():
            allowed = types.get(i.type_str, {i.type_str})
            is_whole = any("int" in t or "bool" in t for t in allowed)
            is_real = any("float" in t or "double" in t for t in allowed)
            if (is_whole and not is_real) or i.name in TELLING:
                yield schema, i.name
