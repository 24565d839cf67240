"""The model of an export in C: its outputs for a batch as a function, and the ONNX file with the weights of a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ortpartial.exceptions import UntranslatableError
from ortpartial.graph import Value, constant, variable
from ortpartial.model import load
from ortpartial.native import C_TYPES, NativeStep, translate
from ortpartial.runtime import Session
from ortpartial.training_info import TrainingSession

from .inference import place_weights

__all__ = ["CModel", "translate_model"]

_LOSS = "//loss"


@dataclass(frozen=True)
class CModel:
    """The model of a training.

    Parameters
    ----------
    name : str
        The prefix of functions and types.
    training : NativeStep
        The training.
    data : bytes
        The ONNX file.
    weights : dict of str to int
        By tensor of the state, where its numbers begin in the file.
    step : NativeStep or None
        The model in C: its state is the outputs, its rows are the inputs, and then the weights.
    reason : str
        Why there is none.
    """

    name: str
    training: NativeStep
    data: bytes
    weights: Mapping[str, int]
    step: NativeStep | None
    reason: str = ""

    @property
    def inputs(self) -> list[str]:
        """The inputs of the model in C."""
        return [] if self.step is None else [f.name for f in self.step.rows if f.name not in self.weights]

    def predict(self, session: TrainingSession, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The predictions in Python for a batch, by the names of the outputs in C."""
        if self.step is None:
            return {}
        outputs = Session(session.inference_model()).run({n: batch[n] for n in self.inputs})
        return {f.c_name: outputs[f.name] for f in self.step.state}

    def write(self) -> dict[str, bytes]:
        """The files by name."""
        n, fields = self.name, {f.name: f for f in self.training.state}
        places = "\n".join(f"  {{offsetof({n}_state, {fields[w].c_name}), "
                           f"{fields[w].size * fields[w].dtype.itemsize}, {at}}},"
                           for w, at in self.weights.items())
        files = {f"{n}.onnx": self.data, f"{n}_model.h": _HEADER.replace("NAME", n).encode(),
                 f"{n}_model.c": _SOURCE.replace("NAME", n).replace("PLACES", places or "  {0, 0, 0},").encode()}
        if self.step is None:
            return files
        parameters = "".join(f", const {C_TYPES[f.dtype]} *{f.c_name}" for f in self.step.rows if f.name in self.inputs)
        signature = (f"int32_t {n}_predict(const {n}_state *state, {n}_predict_memory *memory{parameters},\n"
                     f"    {n}_predict_state *outputs)")
        rows = ", ".join(f"state->{fields[f.name].c_name}" if f.name in self.weights else f.c_name
                         for f in self.step.rows)
        header = self.step.header.replace("#include <stdint.h>\n", f'#include "{n}.h"\n', 1)
        at = header.rindex("#ifdef __cplusplus")
        header = (f"{header[:at]}/* The outputs of the model for {self.training.batch} rows, with the weights "
                  f"of a state. Returns 0,\n   or the code of a refusal. */\n{signature};\n\n{header[at:]}")
        body = (f" {{\n  const {n}_predict_rows rows = {{{rows}}};\n  {n}_predict_given given = {{0}};\n  float loss;\n"
                f"  return {n}_predict_step(outputs, memory, &rows, &given, &loss);\n}}\n")
        return {**files, f"{n}_predict.h": header.encode(),
                f"{n}_predict.c": f"{self.step.source}\n{signature}{body}".encode()}


def translate_model(session: TrainingSession, training: NativeStep) -> CModel:
    """Write the model of a training in C, for batches of as many rows.

    Parameters
    ----------
    session : TrainingSession
        The training.
    training : NativeStep
        Its step.

    Returns
    -------
    CModel
        Without a model in C where an operator cannot be written, or where it reads inputs that the training does not.
    """
    data, weights = place_weights(session)
    try:
        step, reason = _translate(session, training, list(weights)), ""
    except UntranslatableError as e:
        step, reason = None, str(e)
    return CModel(training.name, training, data, weights, step, reason)


def _translate(session: TrainingSession, training: NativeStep, weights: Sequence[str]) -> NativeStep:
    """The model, whose outputs are its state."""
    graph = load(session.inference_model(), batch=training.batch, variables=weights, ties="file")
    rows = {f.name for f in training.rows}
    if unknown := [n for n in graph.inputs if n not in rows]:
        raise UntranslatableError(f"The model reads {unknown[0]!r}, and the training does not.")
    outputs = {n: v for n, v in graph.outputs.items() if v.is_static}
    if len(outputs) < len(graph.outputs):
        raise UntranslatableError("The shape of an output is not known before the model runs.")
    read: dict[str, Value] = {**graph.inputs, **{n: graph.initializers[n] for n in weights}}
    places = {n: variable(n, v.dtype, v.shape) for n, v in outputs.items()}
    return translate({**read, **places}, {_LOSS: constant(np.float32(0)), **{f"{n}//": v for n, v in outputs.items()}},
                     rows=list(read), state={n: f"{n}//" for n in outputs}, loss=_LOSS,
                     name=f"{training.name}_predict", is_training=False)


_HEADER = """\
#ifndef NAME_MODEL_H
#define NAME_MODEL_H

#include "NAME.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies NAME.onnx, the file `from`, to another file, with the weights of a state. Returns 0, or 1 where a file cannot
   be read or written: the other one is then not complete. */
int NAME_save_model(const NAME_state *state, const char *from, const char *to);

#ifdef __cplusplus
}
#endif

#endif
"""

_SOURCE = """\
#include <stddef.h>
#include <stdio.h>

#include "NAME_model.h"

/* Where weights are in a state, how many bytes they take, and where they begin in the file of the model. */
static const struct { size_t at, size; long place; } weights[] = {
PLACES
};

int NAME_save_model(const NAME_state *state, const char *from, const char *to) {
  FILE *source = fopen(from, "rb"), *target = fopen(to, "wb");
  int failures = source == NULL || target == NULL;
  char part[512];
  size_t size;
  while (!failures && (size = fread(part, 1, sizeof part, source)) > 0)
    failures += fwrite(part, 1, size, target) != size;
  for (size_t i = 0; !failures && i < sizeof weights / sizeof *weights; ++i)
    failures += fseek(target, weights[i].place, SEEK_SET) != 0 ||
                fwrite((const char *)state + weights[i].at, 1, weights[i].size, target) != weights[i].size;
  if (source != NULL) fclose(source);
  if (target != NULL) failures += fclose(target) != 0;
  return failures != 0;
}
"""
