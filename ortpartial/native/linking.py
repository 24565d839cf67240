"""Links of a step: kernels with sizes at run time, in a library of their own, and constants where they are."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib import resources

from .compiler import FLAGS, compile_library
from .expressions import Array
from .types import C_TYPES

__all__ = ["KERNELS", "LinkedKernel", "Links", "find_address", "multiplies_bfloat16", "read_text"]


@dataclass(frozen=True)
class LinkedKernel:
    """A function of C whose sizes are arguments, so that it is compiled once for all steps.

    Parameters
    ----------
    parameters : str
        Its parameters in C; it returns nothing.
    files : tuple of str
        The files of this package that define it, in the order in which they are compiled.
    is_apart : bool
        Whether its library is another, which is compiled where a step calls it.
    """

    parameters: str
    files: tuple[str, ...]
    is_apart: bool = False


def _declare_product(file: str, kind: str, packed: str, is_apart: bool = False) -> LinkedKernel:
    return LinkedKernel(f"const op_sizes z, const op_batch y, const {kind} *a, const {kind} *b, const {kind} *d, "
                        f"{kind} *c, {packed} *scratch, const {kind} alpha, const {kind} beta",
                        ("threads", file), is_apart)


def _declare_convolution(kind: str) -> LinkedKernel:
    return LinkedKernel(f"const op_windows z, const int is_transposed, const {kind} *x, const {kind} *w, "
                        f"const {kind} *bias, {kind} *y, {kind} *scratch, const op_index threads", _CONVOLUTIONS)


def _declare_correlation(kind: str) -> LinkedKernel:
    return LinkedKernel(f"const op_windows z, const {kind} *x, const {kind} *y, const {kind} *d, {kind} *w, "
                        f"{kind} *scratch, const op_index threads, const {kind} alpha, const {kind} beta",
                        _CONVOLUTIONS)


_CONVOLUTIONS = ("threads", "large_products", "convolutions")

#: The kernels by name.
KERNELS = {
    **{f"op_large_{kind[0]}": _declare_product("large_products", kind, kind) for kind in ("float", "double")},
    **{f"op_{name}_{kind[0]}": declare(kind) for kind in ("float", "double")
       for name, declare in (("convolve", _declare_convolution), ("correlate", _declare_correlation))},
    "op_bfloat16": _declare_product("bfloat16", "float", "uint32_t", is_apart=True)}

_PROBE = """\
int ortpartial_bfloat16(void);
int ortpartial_bfloat16(void) {
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
    return 1;
#else
    return 0;
#endif
}
"""

#: Before all other text of the library: functions of POSIX beside the standard's, threads, and functions for others.
_HEAD = "#define _POSIX_C_SOURCE 200809L\n#define OP_POOL\n#define OP_KERNEL\n"


def read_text(name: str) -> str:
    """The text of a C file of this package."""
    return resources.files(__package__).joinpath(f"{name}.c").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Links:
    """The kernels that a step calls, and the constants that it reads where they are.

    Names of fields end with an underscore, as no name of an input does.

    Parameters
    ----------
    kernels : tuple of str
        The names of kernels.
    tables : tuple of Array
        The constants.
    is_linked : bool
        Whether both are found by addresses in the struct of settings; else the text of the kernels is in the file of
        the step, and there are no constants here.
    """

    kernels: tuple[str, ...] = ()
    tables: tuple[Array, ...] = ()
    is_linked: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the struct of settings, each of the size of an address."""
        names = ("threads", *self.kernels, *(t.name for t in self.tables))
        return tuple(f"{name}_" for name in names) if self.is_linked else ()

    def find(self, threads: int) -> tuple[int, ...]:
        """The content of the fields, for so many threads."""
        addresses = (*map(find_address, self.kernels), *(t.content.ctypes.data for t in self.tables))
        return (threads, *addresses) if self.is_linked else ()

    def declare_fields(self) -> str:
        """The fields in C."""
        texts = ["intptr_t {}", *["void (*{})(void)" for _ in self.kernels],
                 *[f"const {C_TYPES[t.dtype]} *{{}}" for t in self.tables]]
        return "".join(f"  {text.format(name)};\n" for text, name in zip(texts, self.fields, strict=False))

    def define_kernels(self) -> str:
        """The kernels for the text that follows: calls by address, or functions."""
        if not self.is_linked:
            return "\n".join(map(read_text, _list_files(self.kernels)))
        return "".join(["#define OP_THREADS (g->threads_)\n", *(
            f"typedef void {name}_type({KERNELS[name].parameters});\n"
            f"#define {name} (*({name}_type *)g->{name}_)\n" for name in self.kernels)])

    def declare_variables(self) -> str:
        """The constants, in the function of the step."""
        return "".join(f"  const {C_TYPES[t.dtype]} *const restrict {t.name} = g->{t.name}_;\n" for t in self.tables)


def _list_files(names: Collection[str]) -> list[str]:
    """The files of kernels, each once."""
    return list(dict.fromkeys(f for name in names for f in KERNELS[name].files))


def find_address(name: str) -> int:
    """The address of a kernel, in a library of kernels that is compiled once for a machine.

    Parameters
    ----------
    name : str
        Its name.

    Returns
    -------
    int

    Raises
    ------
    CompilerError
        There is no compiler, or it refuses the library.
    """
    together = [name] if KERNELS[name].is_apart else [n for n, kernel in KERNELS.items() if not kernel.is_apart]
    texts = map(read_text, ("prelude", "support", *_list_files(together)))
    flags = FLAGS if sys.platform == "win32" else (*FLAGS, "-pthread")
    library = compile_library(_HEAD + "\n".join(texts), flags=flags)
    return ctypes.cast(library[name], ctypes.c_void_p).value or 0


def multiplies_bfloat16() -> bool:
    """Whether the compiler has instructions of this processor for products of bfloat16.

    Returns
    -------
    bool

    Raises
    ------
    CompilerError
        There is no compiler.
    """
    return bool(compile_library(_PROBE)["ortpartial_bfloat16"]())
