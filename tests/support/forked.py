"""Scripts run in turn, each in a process of its own that has imported their common modules.

    python -W error forked.py numpy,sklearn script.py folder [script.py folder ...]

What a script prints is written to the file `printed` in its folder, what it reports of errors to `errors`; its first
argument is the folder `figures` in its folder, its second "cpu".
"""

import os
import runpy
import signal
import sys
import traceback
from importlib import import_module
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


if __name__ == "__main__":
    for module in sys.argv[1].split(","):
        import_module(module)
    arguments = sys.argv[2:]
    failed = [script for script, folder in zip(arguments[::2], arguments[1::2], strict=True) if not run(script, folder)]
    sys.exit(f"failed: {failed}" if failed else 0)
