"""Scripts run in turn, each in a process of its own that has imported their common modules.

    python -W error forked.py hidden numpy,sklearn script.py folder ... torch transformers script.py folder ...

After the word `torch` come scripts that need it, and modules that only they share; `hidden` is the folder whose modules
cannot be imported before it. What a script prints is written to the file `printed` in its folder, what it reports of
errors to `errors`; its first argument is the folder `figures` in its folder, its second "cpu".
"""

import importlib
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path


def run(script, folder):
    """Run a script in a child; whether it ends without an error."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    status = 1
    try:
        signal.alarm(60)
        os.chdir(folder)
        for stream, name in ((sys.stdout, "printed"), (sys.stderr, "errors")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600), stream.fileno())
        sys.argv = [script, "figures", "cpu"]
        sys.path.insert(0, str(Path(script).parent))
        runpy.run_path(script, run_name="__main__")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_all(modules, arguments):
    """The scripts that end in an error, of scripts and folders in turn."""
    for module in modules.split(","):
        importlib.import_module(module)
    return [script for script, folder in zip(arguments[::2], arguments[1::2], strict=True) if not run(script, folder)]


def show(hidden):
    """Let what was hidden be imported, in processes that scripts start, too."""
    sys.path.remove(hidden)
    folders = os.environ["PYTHONPATH"].split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(folder for folder in folders if folder != hidden)
    importlib.invalidate_caches()


if __name__ == "__main__":
    hidden, *arguments = sys.argv[1:]
    before = arguments[: arguments.index("torch")]
    failed = run_all(before[0], before[1:])
    show(hidden)
    failed += run_all(arguments[len(before) + 1], arguments[len(before) + 2 :])
    sys.exit(f"failed: {failed}" if failed else 0)
