"""The texts of an export in C beside the step itself: tables of numbers, a test program, a Makefile and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

import numpy as np

from ortpartial.native import C_TYPES, Field, NativeStep, lay_out

from .c_model import CModel
from .page import quote_name

_COMPARE = """\
static int compare_NUMBER(const char *output, const NUMBER *numbers, const NUMBER *expected, int count) {
    double largest = 0, error = 0;
    for (int i = 0; i < count; ++i) {
        largest = fmax(largest, fabs((double)expected[i]));
        error = fmax(error, fabs((double)numbers[i] - (double)expected[i]));
    }
    const int is_near = error <= 1e-4 * largest + 1e-6;
    printf("prediction %s: %.9g, in Python %.9g%s\\n", output, (double)numbers[0], (double)expected[0],
           is_near ? "" : ": NOT THE SAME");
    return !is_near;
}

"""

__all__ = ["write_check", "write_page", "write_state"]

_STATE_HEADER = """\
#ifndef ${guard}_STATE_H
#define ${guard}_STATE_H

#include "$name.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the training goes on from: copy it into a ${name}_state. */
extern const ${name}_state ${name}_initial;

#ifdef __cplusplus
}
#endif

#endif
"""


def write_state(step: NativeStep, state: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Write the state as a constant struct.

    Parameters
    ----------
    step : NativeStep
        The step.
    state : dict of str to numpy.ndarray
        The numbers by the names of its fields.

    Returns
    -------
    dict of str to str
        The texts by the names of their files.
    """
    fields = [f"  .{f.c_name} = {_braced(state[f.name])}" for f in step.state]
    source = "\n".join(["#include <math.h>", "", f'#include "{step.name}_state.h"', "",
                        f"const {step.name}_state {step.name}_initial = {{", ",\n".join(fields), "};", ""])
    header = Template(_STATE_HEADER).substitute(name=step.name, guard=step.name.upper())
    return {f"{step.name}_state.h": header, f"{step.name}_state.c": source}


def write_check(
    step: NativeStep, batches: Sequence[Mapping[str, np.ndarray]], losses: Sequence[float], model: CModel,
    predictions: Mapping[str, np.ndarray],
) -> dict[str, str]:
    """Write a program that takes steps on these batches, compares the losses, and then its predictions for the first.

    Parameters
    ----------
    step : NativeStep
        The step.
    batches : sequence of dict of str to numpy.ndarray
        The rows, by the names of inputs.
    losses : sequence of float
        The loss of each batch, before its step.
    model : CModel
        The model.
    predictions : dict of str to numpy.ndarray
        By output of the model in C.

    Returns
    -------
    dict of str to str
        The texts by the names of their files.
    """
    n = step.name
    tables = [_table(f"{n}_check_{f.c_name}", np.stack([batch[f.name] for batch in batches])) for f in step.rows]
    tables.append(_table(f"{n}_check_losses", np.asarray(losses)))
    tables += [_table(f"{n}_predicted_{output}", a) for output, a in predictions.items()]
    header = "\n".join([
        f"/* {len(batches)} batches of {step.batch} rows, and the loss of each before its step. */",
        "#include <math.h>", "#include <stdint.h>", "",
        f"#define {n.upper()}_CHECK_STEPS {len(batches)}", "", *tables, ""])
    rows = [f"        batch.{f.c_name} = {n}_check_{f.c_name} + step * {step.batch * f.size};" for f in step.rows]
    main = _read("main.c").substitute(name=n, upper=n.upper(), rows="\n".join(rows), loss=C_TYPES[step.loss_dtype],
                                      **_check_model(model, predictions))
    predicted = "" if model.step is None else f"{n}_predict"
    makefile = _read("Makefile").substitute(name=n, source=predicted and f" {predicted}.c",
                                            header=predicted and f" {predicted}.h")
    return {f"{n}_check.h": header, "main.c": main, "Makefile": makefile}


def _check_model(model: CModel, predictions: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The parts of the program that compare predictions, empty where the model is not in C."""
    if model.step is None:
        return {"predict_header": "", "predict_memory": "", "predict": ""}
    n, names = model.name, {f.name: f.c_name for f in model.training.rows}
    inputs = "".join(f", {n}_check_{names[x]}" for x in model.inputs)
    types = {c_name: C_TYPES[a.dtype] for c_name, a in predictions.items()}
    calls = [f"    failures += {n}_predict(&state, &predict_memory{inputs}, &outputs) != 0;",
             *(f"    failures += compare_{types[y]}(\"{y}\", outputs.{y}, {n}_predicted_{y}, {a.size});"
               for y, a in predictions.items())]
    functions = [_COMPARE.replace("NUMBER", number) for number in sorted(set(types.values()))]
    memory = f"static {n}_predict_memory predict_memory;\nstatic {n}_predict_state outputs;\n"
    return {"predict_header": f'#include "{n}_predict.h"\n', "predict_memory": "\n".join([memory, *functions]),
            "predict": "\n".join(calls)}


def write_page(step: NativeStep, model: CModel) -> str:
    """Write the page on how to call a step.

    Parameters
    ----------
    step : NativeStep
        The step.
    model : CModel
        The model.

    Returns
    -------
    str
    """
    n = step.name
    state_bytes = lay_out(step.state).itemsize
    rows, state = ([f"| `{f.c_name}` | {quote_name(f.name)} | `{C_TYPES[f.dtype]}` | {f.size} | {_shape(f)} |"
                    for f in fields] for fields in (step.rows, step.state))
    feed = ", ".join(f".{f.c_name} = my_{f.c_name}" for f in step.rows)
    return _read("page.md").substitute(
        name=n, batch=step.batch, state_bytes=f"{state_bytes:,}", memory_bytes=f"{step.memory_bytes:,}",
        row_bytes=f"{sum(f.size * f.dtype.itemsize for f in step.rows) * step.batch:,}",
        rows="\n".join(rows), state="\n".join(state), feed=feed, first=step.state[0].c_name,
        loss=C_TYPES[step.loss_dtype], predict=_explain_prediction(model),
        refusals="an index or a label that is out of range" if step.refusals else "of which this step has none")


def _explain_prediction(model: CModel) -> str:
    """How to predict, or why it cannot be."""
    n = model.name
    if model.step is None:
        return f"There is no `{n}_predict`: {quote_name(model.reason)} Save the model, and run it with onnxruntime."
    outputs = [f"| `{f.c_name}` | {quote_name(f.name)} | `{C_TYPES[f.dtype]}` | {f.size} | {_shape(f)} |"
               for f in model.step.state]
    inputs = "".join(f", my_{f.c_name}" for f in model.step.rows if f.name in model.inputs)
    return _read("predict.md").substitute(
        name=n, batch=model.training.batch, memory_bytes=f"{model.step.memory_bytes:,}", inputs=inputs,
        output_bytes=f"{lay_out(model.step.state).itemsize:,}", outputs="\n".join(outputs),
        first=model.step.state[0].c_name)


def _read(name: str) -> Template:
    file = resources.files(__package__).joinpath("c_templates").joinpath(f"{name}.template")
    return Template(file.read_text(encoding="utf-8"))


def _shape(field: Field) -> str:
    return " × ".join(map(str, field.shape)) or "one number"


def _table(name: str, array: np.ndarray) -> str:
    return f"static const {C_TYPES[array.dtype]} {name}[{max(array.size, 1)}] = {_braced(array)};"


def _braced(array: np.ndarray) -> str:
    """The numbers of an array, in braces, with eight on a line."""
    numbers = [_literal(number, array.dtype) for number in array.ravel().tolist()] or ["0"]
    if len(numbers) == 1:
        return f"{{{numbers[0]}}}"
    return "{\n" + ",\n".join("    " + ", ".join(numbers[i : i + 8]) for i in range(0, len(numbers), 8)) + "\n  }"


def _literal(number: Any, dtype: np.dtype) -> str:
    """A number in C, to the last bit: hexadecimal where it has a fraction."""
    if dtype.kind != "f":
        # The lowest number has no literal: its sign is an operator.
        return f"(-{-(int(number) + 1)} - 1)" if int(number) == np.iinfo(np.int64).min else str(int(number))
    if not np.isfinite(number):
        return "NAN" if np.isnan(number) else "INFINITY" if number > 0 else "-INFINITY"
    digits, power = float(number).hex().split("p")
    return f"{digits.rstrip('0').rstrip('.')}p{power}{'f' * (dtype.itemsize == 4)}"
