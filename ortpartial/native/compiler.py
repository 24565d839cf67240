"""The C compiler, the system's or an installed package: it makes a library of a source, kept for later processes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from ortpartial.exceptions import CompilerError, CompilerMissingError
from ortpartial.logs import compiling

from .library_cache import find_cache, load_entry, store_entry

__all__ = ["FLAGS", "Compiler", "compile_library", "find_compiler", "require_compiler"]

#: NaN and infinity keep their meaning; products and sums may be fused, and errors of functions are not reported.
FLAGS = ("-std=c99", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")

#: Characters from which on a source is compiled with loops in vectors and without what else -O3 does, which doubles the
#: time: 5 s for the step of a BERT of four layers, which is as fast without it.
_LONG = 120_000
_FASTER = {"-O3": ("-O2", "-ftree-vectorize", "-fvect-cost-model")}

#: How compilers spell "for this very machine", if they can.
_FOR_MACHINE = (("-march=native",), ("-mcpu=native",))

#: Seconds that a compiler may take for a file, and to print its version.
#: The first call of ziglang 0.17, which writes the C library's stubs into a cache of its own, takes about five.
_LIMIT, _PROBE_LIMIT = 60.0, 20.0

#: A library that is compiled of another format of calls has another key.
_FORMAT = 1

_PROBE = """\
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
double ortpartial_probe(double x);
double ortpartial_probe(double x) { return sqrt(x) + 1; }
"""

#: Libraries of this process, by key.
_libraries: dict[str, ctypes.CDLL] = {}


@dataclass(frozen=True)
class Compiler:
    """A C compiler.

    Parameters
    ----------
    command : tuple of str
        How it is called.
    version : str
        Its description of itself.
    flags : tuple of str
        The flags that stand for this very machine.
    machine : str
        A digest of the features that they stand for.
    """

    command: tuple[str, ...]
    version: str
    flags: tuple[str, ...]
    machine: str


def find_compiler() -> Compiler | None:
    """The C compiler: that of ``$CC``, ``cc``, ``gcc`` or ``clang``, or the package ziglang; the first that works.

    Returns
    -------
    Compiler or None

    Examples
    --------
    >>> compiler = find_compiler()
    """
    return _find(os.environ.get("CC", ""), os.environ.get("PATH", ""))[0]


def require_compiler() -> Compiler:
    """The C compiler of `find_compiler`.

    Returns
    -------
    Compiler

    Raises
    ------
    CompilerMissingError
        There is none that works.
    """
    compiler, reasons = _find(os.environ.get("CC", ""), os.environ.get("PATH", ""))
    if compiler is None:
        raise CompilerMissingError(f"There is no C compiler that works ({'; '.join(reasons)}); install gcc or clang "
                                   f"with the C library's headers, or `pip install ziglang`, or name a compiler in "
                                   f"the environment variable CC.")
    return compiler


def compile_library(
    source: str,
    headers: Mapping[str, str] = MappingProxyType({}),
    *,
    flags: Sequence[str] | None = None,
    compiler: Compiler | None = None,
    limit: float = _LIMIT,
) -> ctypes.CDLL:
    """Compile a C source for this machine and load it; a source compiled before, in any process, is only loaded.

    Parameters
    ----------
    source : str
        The source.
    headers : dict of str to str
        The files that it includes, by name.
    flags : sequence of str, optional
        Flags of the compiler, beside the flags for this machine; by default `FLAGS`, or what takes less time for a long
        source.
    compiler : Compiler, optional
        By default that of `find_compiler`.
    limit : float
        How long it may take, in seconds.

    Returns
    -------
    ctypes.CDLL

    Raises
    ------
    CompilerMissingError
        There is no compiler.
    CompilerError
        It refuses the source or takes too long, or the library cannot be loaded.

    Examples
    --------
    >>> if find_compiler():
    ...     assert compile_library("int twice(int x) { return 2 * x; }").twice(4) == 8
    """
    if flags is None:
        flags = FLAGS if len(source) < _LONG else [f for flag in FLAGS for f in _FASTER.get(flag, (flag,))]
    compiler = compiler or require_compiler()
    key = _make_key(source, headers, flags, compiler)
    if key not in _libraries:
        folder = find_cache()
        library = None if folder is None else load_entry(folder, key)
        _libraries[key] = library or _compile(source, headers, flags, compiler, limit, folder, key)
    return _libraries[key]


def _make_key(source: str, headers: Mapping[str, str], flags: Sequence[str], compiler: Compiler) -> str:
    """A digest of all that a library depends on."""
    parts = (_FORMAT, source, sorted(headers.items()), list(flags), compiler)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _compile(source: str, headers: Mapping[str, str], flags: Sequence[str], compiler: Compiler, limit: float,
             folder: Path | None, key: str) -> ctypes.CDLL:
    """Compile a library, store it in the cache, if any, and load it."""
    command = [*compiler.command, *flags, *compiler.flags, "source.c", "-o", "library.so", "-lm"]
    try:
        # On Windows a library that is loaded cannot be removed.
        with TemporaryDirectory(prefix="ortpartial-", ignore_cleanup_errors=True) as temporary:
            file = Path(temporary) / "library.so"
            with compiling("a C file"):
                _run(command, Path(temporary), {**headers, "source.c": source}, limit)
            if folder is not None:
                with suppress(OSError):  # It cannot be written to, or nothing in it may be executed.
                    return ctypes.CDLL(str(store_entry(folder, key, file.read_bytes())))
            return ctypes.CDLL(str(file))
    except OSError as e:
        raise CompilerError(f"The library that {compiler.command[0]} has compiled cannot be loaded: {e}.") from None


def _run(command: Sequence[str], folder: Path, files: Mapping[str, str], limit: float) -> str:
    """Run a compiler in a folder with these files, and return its messages."""
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    log = folder / "log.txt"
    environment = {**os.environ, "LC_ALL": "C", **dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(folder))}
    try:
        with log.open("wb") as output:  # A pipe would stay open as long as any process that a compiler has started.
            status = _wait(subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                            stdout=output, stderr=output, start_new_session=True), limit)
    except subprocess.TimeoutExpired:
        raise CompilerError(f"{command[0]} takes more than {limit:g} s and was ended.") from None
    except OSError as e:
        raise CompilerError(f"{command[0]} does not run: {e.strerror}.") from None
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    if status:
        raise CompilerError(f"{shlex.join(command)} ends with status {status}: {_shorten(text) or 'without a word'}")
    return text


def _wait(process: subprocess.Popen[bytes], limit: float) -> int:
    """Wait for a process; if that takes too long or is interrupted, end it with all that it has started."""
    try:
        return process.wait(limit)
    except BaseException:
        with suppress(ProcessLookupError):
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _shorten(text: str, lines: int = 12) -> str:
    """The first lines of a compiler's messages."""
    first = text.splitlines()
    return "\n".join([*first[:lines], "..."] if len(first) > lines else first)


@lru_cache(maxsize=8)
def _find(cc: str, path: str) -> tuple[Compiler | None, tuple[str, ...]]:
    """The first compiler that works in this environment, and why the compilers tried before it do not."""
    reasons = []
    for command in dict.fromkeys((*_split(cc), ("cc",), ("gcc",), ("clang",), _locate_zig())):
        try:
            compiler = _describe(command, path)
            probe = compile_library(_PROBE, compiler=compiler, limit=_PROBE_LIMIT).ortpartial_probe
            probe.argtypes, probe.restype = [ctypes.c_double], ctypes.c_double
            if probe(4.0) == 3.0:
                return compiler, ()
            reasons.append(f"{command[0]} compiles wrongly")
        except CompilerError as e:
            reasons.append(_shorten(str(e), 3).rstrip("."))
    return None, tuple(reasons)


def _split(cc: str) -> list[tuple[str, ...]]:
    """The command of ``$CC``, such as ``ccache gcc``."""
    try:
        return [tuple(parts)] if (parts := shlex.split(cc, posix=sys.platform != "win32")) else []
    except ValueError:  # a quote that is not closed
        return [(cc,)]


def _locate_zig() -> tuple[str, ...]:
    """The command of the package ziglang: clang with the headers of a C library, in a wheel."""
    spec = find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        return ("ziglang",)
    folder = Path(spec.submodule_search_locations[0])
    return str(folder / ("zig.exe" if sys.platform == "win32" else "zig")), "cc"


def _describe(command: tuple[str, ...], path: str) -> Compiler:
    """A compiler, with its description of itself and of this machine."""
    executable = shutil.which(command[0], path=path or None)
    if executable is None:
        raise CompilerError(f"{command[0]} is not installed")
    _check_tools(executable)
    command = (executable, *command[1:])
    with TemporaryDirectory(prefix="ortpartial-", ignore_cleanup_errors=True) as temporary:
        version = _run([*command, "--version"], Path(temporary), {}, _PROBE_LIMIT).partition("\n")[0]
        for flags in _FOR_MACHINE:
            with suppress(CompilerError):
                return Compiler(command, version, flags, _digest_macros([*command, *flags], Path(temporary)))
        return Compiler(command, version, (), _digest_macros(command, Path(temporary)))


def _digest_macros(command: Sequence[str], folder: Path) -> str:
    """A digest of the macros of a compiler, which tell the instructions and the library of the headers."""
    _run([*command, "-dM", "-E", "probe.c", "-o", "macros.txt"], folder, {"probe.c": _PROBE}, _PROBE_LIMIT)
    return hashlib.sha256((folder / "macros.txt").read_bytes()).hexdigest()[:32]


def _check_tools(executable: str) -> None:
    """Refuse a compiler of macOS that is not installed: calling its placeholder would open a window that offers it."""
    if sys.platform == "darwin" and executable.startswith("/usr/bin/"):
        status = subprocess.run(["/usr/bin/xcode-select", "-p"], capture_output=True, check=False).returncode
        if status:
            raise CompilerError("the command line tools of Xcode are not installed")
