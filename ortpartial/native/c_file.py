"""The text of a C file: structs, tables, and the functions that are called."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from string import Template

import numpy as np

from ortpartial.graph import state_refusal

from .expressions import Array
from .linking import Links, read_text
from .types import C_TYPES, literal

__all__ = ["CFile", "Field", "lay_out", "name_fields"]

#: Words that are no names in C, in C++ or in the text of a step.
_RESERVED = frozenset({
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch",
    "char", "class", "compl", "concept", "const", "const_cast", "constexpr", "continue", "decltype", "default",
    "delete", "do", "double", "dynamic_cast", "else", "enum", "errno", "explicit", "export", "extern", "false",
    "float", "for", "friend", "g", "goto", "if", "inline", "int", "iteration", "k", "linux", "long", "m",
    "mutable", "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or", "or_eq", "private",
    "protected", "public", "register", "reinterpret_cast", "requires", "restrict", "return", "s", "short",
    "signed", "sizeof", "static", "static_assert", "static_cast", "stderr", "stdin", "stdout", "struct", "switch",
    "template", "this", "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "typeof", "union",
    "unix", "unsigned", "unused", "using", "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq"})

#: The form of macros of headers: NULL, INFINITY, FLT_MAX, OP_LANES.
_MACRO = re.compile(r"([A-Z]{3}|(FE|FP|M|OP)_)[A-Z0-9_]*")

#: Characters that strings of C hold as they are.
_PLAIN = frozenset(string.ascii_letters.encode() + string.digits.encode() + b" !#$&'()*+,-./:;<=>@[]^_`{|}~")

_HEADER = Template("""\
#ifndef ${NAME}_H
#define ${NAME}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Weights, optimizer states and statistics: all that a step changes. */
typedef struct {
$state
} ${name}_state;

/* Intermediate results; nothing in it is kept from step to step.$refused */
typedef struct {
$memory
} ${name}_memory;

/* Rows: a batch of $batch, or all of them. */
typedef struct {
$rows
} ${name}_rows;

/* The number of batches seen, and what else a step reads. */
typedef struct {
  int64_t iteration;
$given$links} ${name}_given;

$functions/* A code in words; codes are from 0, nothing was refused, to $codes. */
const char *${name}_refusal(int32_t code);

#ifdef __cplusplus
}
#endif

#endif
""")

_SOURCE = Template("""\
#include "${name}.h"

$prelude
$tables
$functions
static int32_t ${name}_run(${name}_state *restrict s, ${name}_memory *restrict m, ${name}_given *restrict g,
    $loss *restrict loss$row_parameters) {
  const int64_t k = g->iteration + 1;
  (void)s; (void)m; (void)k;$unused
$links$body
}

$linkage ${name}_step(${name}_state *state, ${name}_memory *memory, const ${name}_rows *batch, ${name}_given *given,
    $loss *loss) {
  const op_mode mode = op_flush_denormals();
  const int32_t code = ${name}_run(state, memory, given, loss$batch_arguments);
  (void)batch;
  given->iteration += !code;
  op_restore(mode);
  return code;
}

${train}const char *${name}_refusal(int32_t code) {
  static const char *const refusals[] = {
$refusals
  };
  return code < 0 || code > $codes ? "This code is none of a refusal." : refusals[code];
}
""")

_TRAINING = Template("""\
/* Train on one batch, whose loss before the step is put into loss. Returns 0, or the code of a refusal: an index or a
   label that is out of range. Then neither the state nor the number of batches has changed. */
int32_t ${name}_step(${name}_state *state, ${name}_memory *memory, const ${name}_rows *batch, ${name}_given *given,
    $loss *loss);

/* Train on many batches: order has the numbers of the $batch rows of each, losses has room for a number of each.
   Returns 0, or the code of the first refusal: the batches before it, as many as the iteration has grown by, were
   trained. */
int32_t ${name}_train(${name}_state *state, ${name}_memory *memory, const ${name}_rows *rows, ${name}_given *given,
    const int64_t *order, int64_t steps, $loss *losses);

""")

_TRAIN = Template("""\
int32_t ${name}_train(${name}_state *state, ${name}_memory *memory, const ${name}_rows *rows, ${name}_given *given,
    const int64_t *order, int64_t steps, $loss *losses) {
  const op_mode mode = op_flush_denormals();
  int32_t code = 0;
  for (int64_t step = 0; step < steps && !code; ++step) {
    const int64_t *at = order + step * $batch;
    (void)at; (void)rows;
$gather
    code = ${name}_run(state, memory, given, losses + step$row_arguments);
    given->iteration += !code;
  }
  op_restore(mode);
  return code;
}

""")


@dataclass(frozen=True)
class Field:
    """An array of a struct.

    Parameters
    ----------
    name, c_name : str
        Its name in the graph, and in C.
    dtype : numpy.dtype
        Of its elements.
    shape : tuple of int
        Its shape.
    """

    name: str
    c_name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def declare(self) -> str:
        """The line of the struct."""
        return f"  {C_TYPES[self.dtype]} {self.c_name}[{max(self.size, 1)}];"


@dataclass(frozen=True)
class CFile:
    """The text of a step.

    Parameters
    ----------
    name : str
        The prefix of functions and types.
    state, rows, given, memory : sequence of Field
        The fields of its structs; the shapes of `rows` are the shapes of single rows.
    batch : int
        The rows of a batch.
    loss : numpy.dtype
        The type of the loss.
    refusals : sequence of str
        The errors that a step may end with, by code from 1.
    is_training : bool
        Whether other files call its functions, for a step and for many; else there is a single function, for its own
        file.
    links : Links
        What it reads by address.
    """

    name: str
    state: Sequence[Field]
    rows: Sequence[Field]
    given: Sequence[Field]
    memory: Sequence[Field]
    batch: int
    loss: np.dtype
    refusals: Sequence[str] = ()
    is_training: bool = True
    links: Links = field(default_factory=Links)

    def header(self) -> str:
        """The declarations."""
        given = [f"  {C_TYPES[f.dtype]} {f.c_name}" + f"[{f.size}]" * (f.size != 1) + ";\n" for f in self.given]
        rows = [f"  const {C_TYPES[f.dtype]} *{f.c_name};  /* {f.size} a row */" for f in self.rows]
        names = {"name": self.name, "loss": C_TYPES[self.loss], "batch": self.batch}
        return _HEADER.substitute(
            names, NAME=self.name.upper(), functions=_TRAINING.substitute(names) if self.is_training else "",
            given="".join(given), links=self.links.declare_fields(), codes=len(self.refusals),
            refused=" After a refusal, refused is the number that it is about." * bool(self.refusals),
            state=_declare(f.declare() for f in self.state), memory=_declare(f.declare() for f in self.memory),
            rows=_declare(rows))

    def source(self, tables: Sequence[Array], functions: Sequence[str], body: Sequence[str]) -> str:
        """The definitions.

        Parameters
        ----------
        tables : sequence of Array
            The constants.
        functions : sequence of str
            The functions that the step calls.
        body : sequence of str
            The lines of the step.

        Returns
        -------
        str
        """
        texts = [*map(read_text, ("prelude", "support")), self.links.define_kernels()]
        names = {"name": self.name, "loss": C_TYPES[self.loss], "batch": self.batch}
        train = _TRAIN.substitute(names, gather=self._gather(), row_arguments="".join(map(self._argument, self.rows)))
        return _SOURCE.substitute(
            names, links=self.links.declare_variables(), train=train if self.is_training else "",
            prelude="\n".join(texts), linkage="int32_t" if self.is_training else "static int32_t",
            codes=len(self.refusals), refusals="\n".join(f"    {_quote(text)}," for text in (
                "Nothing was refused.", *map(state_refusal, self.refusals))),
            tables="\n".join(map(write_table, tables)), functions="\n".join(functions),
            body="\n".join(f"  {line}" for line in body), unused="".join(f" (void)x_{f.c_name};" for f in self.rows),
            row_parameters="".join(f", const {C_TYPES[f.dtype]} *restrict x_{f.c_name}" for f in self.rows),
            batch_arguments="".join(f", batch->{f.c_name}" for f in self.rows))

    def _argument(self, f: Field) -> str:
        """The argument of a batch of rows, which are gathered; a single row is read where it is."""
        return f", rows->{f.c_name} + at[0] * {f.size}" if self.batch == 1 else f", memory->x_{f.c_name}"

    def _gather(self) -> str:
        """The lines that copy the rows of a batch."""
        if self.batch == 1:
            return ""
        copies = [f"      memcpy(memory->x_{f.c_name} + i * {f.size}, rows->{f.c_name} + at[i] * {f.size}, "
                  f"{f.size} * sizeof *rows->{f.c_name});" for f in self.rows]
        return "\n".join([f"    for (int32_t i = 0; i < {self.batch}; ++i) {{", *copies, "    }"])


def _quote(text: str) -> str:
    """A string of C, whose characters beyond ASCII are their bytes in UTF-8."""
    return '"' + "".join(chr(b) if b in _PLAIN else f"\\{b:03o}" for b in text.encode("utf-8", "replace")) + '"'


def _declare(lines: Iterable[str]) -> str:
    """The lines of a struct, which is never empty in C."""
    return "\n".join(lines) or "  char unused;"


def write_table(table: Array) -> str:
    """The definition of a constant array."""
    assert table.content is not None
    numbers = [literal(x, table.dtype) for x in table.content.ravel()]
    lines = ["  " + ", ".join(numbers[i : i + 10]) + "," for i in range(0, len(numbers), 10)] or ["  0"]
    return "\n".join([f"static const {C_TYPES[table.dtype]} {table.name}[{max(table.size, 1)}] = {{", *lines, "};", ""])


def lay_out(fields: Sequence[Field]) -> np.dtype:
    """The memory layout of a struct in C.

    Parameters
    ----------
    fields : sequence of Field
        Its fields, arrays each.

    Returns
    -------
    numpy.dtype
    """
    arrays = [(f.c_name, f.dtype, (max(f.size, 1),)) for f in fields]
    return np.dtype(arrays or [("unused", np.dtype(np.uint8), (1,))], align=True)


def name_fields(inputs: Iterable[str]) -> dict[str, str]:
    """An identifier of C for every name.

    Parameters
    ----------
    inputs : iterable of str
        Names in a graph.

    Returns
    -------
    dict of str to str
    """
    names: dict[str, str] = {}
    for n in inputs:
        base = re.sub(r"\W+", "_", n, flags=re.ASCII).strip("_") or "x"
        base = f"x_{base}" if base[0].isdigit() or base in _RESERVED or _MACRO.fullmatch(base) else base
        unique, i = base, 1
        while unique in names.values():
            i += 1
            unique = f"{base}_{i}"
        names[n] = unique
    return names
