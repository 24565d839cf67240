"""Run attacks, each in a process of its own with limits of memory and time: python attacks/run.py [name ...]

A script has two functions. `naive` does what a reader does that does not expect an attack, and returns whether it was
harmed; to be killed, to hang, or to run out of memory or of the stack is harm as well. `attacks` yields what
is done with ortpartial instead: a name, and a function, which ends in one of its errors, or returns that nothing
happened.
"""

import os
import resource
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from ortpartial.exceptions import OrtPartialError  # noqa: E402 - it is where the scripts look for it, too

SCRIPTS = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in ("run", "victims"))
SECONDS, MEMORY = 20, 3 << 30

REFUSED, UNHARMED = "refused", "unharmed"


def outcome(function: Callable[[], object]) -> str:
    """How a call ends, as a line of text."""
    try:
        result = function()
    except (OrtPartialError, OSError) as e:
        return f"{REFUSED}: {type(e).__name__}: {' '.join(str(e).split())}"
    except BaseException as e:
        return f"{type(e).__name__}: {' '.join(str(e).split())}"
    return " ".join(str(result).split())


def in_child(run: Callable[[], Iterable[str]], seconds: float = SECONDS, memory: int = MEMORY) -> list[str]:
    """The lines that a function yields in a child process with limits, in an empty folder."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            warnings.simplefilter("ignore")
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                for line in run():
                    os.write(writer, f"{' '.join(line[:300].split(' '))}\n".encode("utf-8", "backslashreplace"))
        except BaseException as e:
            os.write(writer, f"{type(e).__name__}: {e}\n".encode())
        finally:
            os._exit(0)
    os.close(writer)
    deadline, data = time.monotonic() + seconds, b""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while True:
            if not select.select([pipe], [], [], max(0, deadline - time.monotonic()))[0]:
                os.kill(pid, signal.SIGKILL)
                data += b"hangs"
                break
            if not (part := pipe.read(2**16)):
                break
            data += part
    _, status = os.waitpid(pid, 0)
    if not data.endswith(b"hangs") and os.WIFSIGNALED(status):
        data += f"killed by {signal.Signals(os.WTERMSIG(status)).name}".encode()
    return data.decode().splitlines() or ["ended without a word"]


def run(name: str) -> bool:
    """Run a script; whether the naive reader was harmed, and the library was not."""
    script = import_module(name)
    limits = getattr(script, "NAIVE_LIMITS", {})
    harm = in_child(lambda: [outcome(script.naive)], **limits)[0]
    is_harmed = harm == "True" or harm.startswith(("killed", "hangs", "MemoryError", "RecursionError"))
    print(f"{name}\n    {'a naive reader':34} {'harmed: ' + harm if is_harmed else 'NOT HARMED: ' + harm}")
    lines = in_child(lambda: (f"{what:34.34} {outcome(attack)}" for what, attack in script.attacks()))
    survived = [line[35:].startswith((REFUSED, UNHARMED)) for line in lines]
    for line, is_well in zip(lines, survived, strict=True):
        print(f"    {line[:160]}{'' if is_well else '   <- NOT SURVIVED'}")
    return is_harmed and all(survived)


if __name__ == "__main__":
    names = sys.argv[1:] or SCRIPTS
    failed = [name for name in names if not run(name)]
    print(f"\n{len(names) - len(failed)} of {len(names)} survived{': not ' + ', '.join(failed) if failed else ''}")
    sys.exit(bool(failed))
