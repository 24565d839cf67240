"""The C compiler: its choice, its libraries, and the case that it does not work."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from once import ON_TRAINING

from ortpartial.exceptions import CompilerError, CompilerMissingError
from ortpartial.native import compiler as module
from ortpartial.native.compiler import FLAGS, Compiler, compile_library, find_compiler, require_compiler

pytestmark = [
    ON_TRAINING,
    pytest.mark.skipif(sys.platform == "win32", reason="these compilers are shell scripts"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

TWICE = "int twice(int x) { return 2 * x; }"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache, and a process that has compiled nothing."""
    monkeypatch.setenv("ORTPARTIAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(module, "_libraries", {})
    module._find.cache_clear()
    yield tmp_path / "cache" / "native"
    module._find.cache_clear()


@pytest.fixture
def script(tmp_path):
    """Write a compiler that is a shell script; ``$REAL`` is a real one."""
    def write(text, name="fake-cc"):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\nREAL={shutil.which('cc')}\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


def forget(monkeypatch):
    """What another process knows: nothing."""
    monkeypatch.setattr(module, "_libraries", {})
    module._find.cache_clear()


def test_library_is_compiled_and_loaded(capfd):
    library = compile_library('#include "twice.h"\nint twice(int x) { return FACTOR * x; }',
                              {"twice.h": "#define FACTOR 2\nint twice(int x);\n"})
    assert library.twice(21) == 42
    assert capfd.readouterr() == ("", "")


def test_floating_point_flags_keep_nan_and_infinity():
    library = compile_library("int is_nan(double x) { return x != x; }\ndouble over(double x) { return 1 / x; }")
    library.is_nan.argtypes = library.over.argtypes = [ctypes.c_double]
    library.over.restype = ctypes.c_double
    assert library.is_nan(float("nan")) == 1
    assert library.over(0.0) == float("inf")


def test_compiler_says_what_it_is():
    compiler = find_compiler()
    assert compiler.command == (shutil.which("cc"),)
    assert subprocess.run([*compiler.command, "--version"], capture_output=True, text=True,
                          check=True).stdout.startswith(compiler.version)
    assert compiler == require_compiler()


def test_another_process_only_loads(folder, monkeypatch):
    compiler = find_compiler()
    compile_library(TWICE)
    assert len(list(folder.iterdir())) == 2  # the probe is the other one
    forget(monkeypatch)
    monkeypatch.setattr(module, "_compile", None)
    assert compile_library(TWICE, compiler=compiler).twice(2) == 4


def test_this_process_returns_the_library_that_it_has(folder):
    library = compile_library(TWICE)
    for entry in folder.iterdir():
        entry.unlink()
    assert compile_library(TWICE) is library


@pytest.mark.parametrize("change", ["source", "header", "name", "flag", "command", "version", "machine"])
def test_key_has_all_that_a_library_depends_on(change):
    def key(source=TWICE, header="", name="a.h", flag="-O3", command="cc", version="12", machine="a"):
        return module._make_key(source, {name: header}, [flag], Compiler((command,), version, (), machine))

    assert key() == key()
    assert key() != key(**{change: "other"})


def test_damaged_library_is_compiled_anew(folder, monkeypatch):
    compile_library(TWICE, flags=[*FLAGS, "-DONE"])
    forget(monkeypatch)
    entries = list(folder.iterdir())
    for entry in entries:
        half = entry.read_bytes()[:3000]
        entry.unlink()  # This process has mapped its pages.
        entry.write_bytes(half)
    assert compile_library(TWICE, flags=[*FLAGS, "-DONE"]).twice(3) == 6
    assert sorted(folder.iterdir()) == sorted(entries)  # the same bytes, which the name has a digest of


def test_without_a_cache_nothing_is_left_behind(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(module, "find_cache", lambda: None)
    assert compile_library(TWICE).twice(1) == 2
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not folder.exists()


def test_cache_that_cannot_be_written(monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "store_entry", fail)
    assert compile_library(TWICE).twice(1) == 2


def test_cache_from_which_nothing_may_be_executed(monkeypatch):
    load = module.ctypes.CDLL

    def refuse(path):
        if "cache" in path:
            raise OSError(f"{path}: failed to map segment from shared object")
        return load(path)

    monkeypatch.setattr(module.ctypes, "CDLL", refuse)
    assert compile_library(TWICE).twice(1) == 2


def test_many_at_once_make_one_entry(folder, monkeypatch):
    compiler = find_compiler()
    program = ("import sys; from ortpartial.native.compiler import compile_library\n"
               f"sys.exit(compile_library({TWICE!r}).twice(0))")
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:  # Each thread is as a process of its own: no library is known.
        class Nothing(dict):
            def __contains__(self, key):
                return False

        monkeypatch.setattr(module, "_libraries", Nothing())
        libraries = list(pool.map(lambda _: compile_library(TWICE, compiler=compiler), range(4)))
    assert [library.twice(4) for library in libraries] == [8] * 4
    assert [process.wait() for process in processes] == [0, 0]
    assert len(list(folder.iterdir())) == 2  # this and the probe


def test_error_has_the_words_of_the_compiler():
    with pytest.raises(CompilerError, match=r"(?s)cc .*source\.c.*ends with status 1: .*twice.*error") as error:
        compile_library("int twice(int x) { return missing; }")
    assert "ortpartial-" not in str(error.value)  # No path of a folder that is gone.


def test_long_error_is_shortened():
    with pytest.raises(CompilerError) as error:
        compile_library("\n".join(f"int f{i}(void) {{ return missing{i}; }}" for i in range(100)))
    assert len(str(error.value).splitlines()) <= 13
    assert str(error.value).endswith("\n...")


def test_library_that_cannot_be_loaded(script):
    with pytest.raises(CompilerError, match=r"fake-cc has compiled cannot be loaded: .*library\.so"):
        compile_library(TWICE, compiler=Compiler((script("echo no library > library.so"),), "1", (), ""))


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # One whose parent is gone may not have been waited for.
        return file.read().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_compiler_that_hangs_is_ended_with_all_that_it_has_started(script, tmp_path):
    hanging = script(f"sleep 100 & echo $! > {tmp_path}/pid; wait")
    start = time.monotonic()
    with pytest.raises(CompilerError, match=r"fake-cc takes more than 0.5 s and was ended\."):
        compile_library(TWICE, compiler=Compiler((hanging,), "1", (), ""), limit=0.5)
    assert time.monotonic() - start < 10
    deadline = time.monotonic() + 5
    while is_running(int((tmp_path / "pid").read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_ctrl_c_ends_the_compiler(script, tmp_path, ctrl_c):
    hanging = script(f"touch {tmp_path}/runs; kill -INT {os.getpid()}; sleep 100; touch {tmp_path}/survived")
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        compile_library(TWICE, compiler=Compiler((hanging,), "1", (), ""))
    assert time.monotonic() - start < 10
    assert (tmp_path / "runs").exists()


def test_compiler_of_the_environment_comes_first(script, monkeypatch):
    mine = script('exec "$REAL" "$@"')
    monkeypatch.setenv("CC", f"{mine} -DMINE=21")
    assert find_compiler().command == (mine, "-DMINE=21")
    assert compile_library("int mine(void) { return MINE; }").mine() == 21


@pytest.mark.parametrize("cc", ["/nowhere/cc", "false", "'unclosed", "-"])
def test_next_compiler_is_taken_where_one_does_not_work(cc, monkeypatch):
    monkeypatch.setenv("CC", cc)
    assert find_compiler().command == (shutil.which("cc"),)


def test_compiler_without_a_word_for_this_machine(script, monkeypatch):
    monkeypatch.setenv("CC", script('case "$*" in *-march=native*|*-mcpu=native*) exit 1;; esac\nexec "$REAL" "$@"'))
    assert find_compiler().flags == ()
    assert compile_library(TWICE).twice(5) == 10


def test_other_word_for_this_machine(script, monkeypatch):
    monkeypatch.setenv("CC", script('case "$*" in *-march=native*) exit 1;; esac\nexec "$REAL" $(echo "$@" | '
                                    "sed s/-mcpu=native//)"))
    assert find_compiler().flags == ("-mcpu=native",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("exit 3", "fake-cc --version ends with status 3: without a word"),
        ('case "$*" in *shared*) echo cannot find ld >&2; exit 1;; esac\nexec "$REAL" "$@"', "cannot find ld"),
        ('case "$*" in *-E*) echo math.h: not there >&2; exit 1;; esac\nexec "$REAL" "$@"', "math.h: not there"),
        ('exec "$REAL" "$@" -Dsqrt=fabs', "fake-cc compiles wrongly"),
        ("sleep 100", "fake-cc takes more than 0.5 s and was ended"),
    ],
)
def test_no_compiler_works(text, reason, script, monkeypatch):
    monkeypatch.setattr(module, "_PROBE_LIMIT", 0.5 if "sleep" in text else 20.0)
    monkeypatch.setenv("CC", script(text))
    monkeypatch.setattr(module.shutil, "which", lambda name, path: name if name.endswith("fake-cc") else None)
    assert find_compiler() is None
    with pytest.raises(CompilerMissingError, match=r"There is no C compiler that works \(.*install gcc or clang") as e:
        compile_library(TWICE)
    assert reason in str(e.value)
    assert "cc is not installed; gcc is not installed; clang is not installed; ziglang is not installed" in str(e.value)


def test_empty_path(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert find_compiler() is None


def test_package_is_taken_where_the_system_has_no_compiler(script, tmp_path, monkeypatch):
    """In place of the package, which has 100 MB, stands a script of its name."""
    zig = script(f'test "$1" = cc && shift && PATH={os.environ["PATH"]} exec "$REAL" "$@"', "zig")
    shutil.move(os.path.dirname(zig), tmp_path / "ziglang")
    (tmp_path / "ziglang" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_compiler().command == (shutil.which("cc"),)
    forget(monkeypatch)
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_compiler().command == (str(tmp_path / "ziglang" / "zig"), "cc")
    assert compile_library(TWICE).twice(3) == 6


def test_search_is_made_once(monkeypatch):
    find_compiler()
    monkeypatch.setattr(module, "_describe", None)
    assert find_compiler() is not None


def test_placeholder_of_macos_is_not_called(script, tmp_path, monkeypatch):
    monkeypatch.setattr(module.sys, "platform", "darwin")
    called = []

    class Refusal:
        returncode = 2

    monkeypatch.setattr(module.shutil, "which", lambda name, path: f"/usr/bin/{name}")
    monkeypatch.setattr(module.subprocess, "run", lambda command, **_: called.append(command) or Refusal)
    with pytest.raises(CompilerMissingError, match="the command line tools of Xcode are not installed"):
        require_compiler()
    assert {tuple(command) for command in called} == {("/usr/bin/xcode-select", "-p")}


def test_interrupted_search_is_made_again(script, monkeypatch, ctrl_c):
    monkeypatch.setenv("CC", script(f"kill -INT {os.getpid()}; sleep 100"))
    with pytest.raises(KeyboardInterrupt):
        find_compiler()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        find_compiler()


def test_a_long_source_is_compiled_with_fewer_optimizations(monkeypatch):
    """Loops are still in vectors."""
    seen, compiler = [], require_compiler()
    monkeypatch.setattr("ortpartial.native.compiler._compile", lambda *args: seen.append(args[2]))
    for length in (10, 200_000):
        compile_library("/* " + "x" * length + str(os.getpid()) + " */", compiler=compiler)
    short, long = seen
    assert tuple(short) == FLAGS
    assert "-O3" not in long
    assert {"-O2", "-ftree-vectorize", *FLAGS} - {"-O3"} <= {*long}
