"""Compiled steps that another user has put into the cache of engine native, or into a folder that all can write to.

An attacker hopes that the victim loads a library of his: it runs code when it is opened.
"""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

from ortpartial.native.compiler import find_compiler
from ortpartial.native.library_cache import find_cache, load_entry, store_entry

HARM = '#include <stdio.h>\n__attribute__((constructor)) static void run(void) { fclose(fopen("harm", "w")); }\n'


def compile_harm(path):
    Path("harm.c").write_text(HARM)
    subprocess.run([shutil.which("cc") or "gcc", "-shared", "-fPIC", "harm.c", "-o", str(path)], check=True)


def naive():
    if find_compiler() is None:
        return True  # Nothing is compiled, and nothing loaded.
    compile_harm("step.so")
    ctypes.CDLL(str(Path("step.so").resolve()))
    return Path("harm").exists()


def attacks():
    if find_compiler() is None:
        yield "no compiler", lambda: "unharmed: nothing is compiled"
        return
    compile_harm("harm.so")
    harm = Path("harm.so").read_bytes()
    key = "0" * 32

    def entry():
        """The entry of a key, replaced under the name of the true one."""
        folder = Path("private").resolve()
        folder.mkdir(mode=0o700)
        store_entry(folder, key, b"the true library").write_bytes(harm)
        library = load_entry(folder, key)
        return "HARMED" if library is not None or Path("harm").exists() else "refused: not what it was stored as"

    def choose(folder):
        os.environ["ORTPARTIAL_CACHE"] = str(folder)
        return "HARMED" if find_cache() is not None else "refused: no cache"

    def open_to_all():
        Path("shared").mkdir()
        Path("shared").chmod(0o777)
        return choose(Path("shared").resolve())

    def open_above():
        Path("above/cache").mkdir(parents=True)
        Path("above").chmod(0o777)
        return choose(Path("above/cache").resolve())

    def linked():
        Path("private/link").symlink_to(Path("shared").resolve())
        return choose(Path("private/link"))

    def of_another():
        Path("theirs/native").mkdir(parents=True)
        if os.geteuid():
            return "refused: only the root can give a folder away"
        os.chown("theirs/native", 12345, 12345)
        return choose(Path("theirs").resolve())

    yield "an entry that was replaced", entry
    yield "a cache that all can write to", open_to_all
    yield "a folder above that all can write", open_above
    yield "a link to such a folder", linked
    yield "a folder of another user", of_another
