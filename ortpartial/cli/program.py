"""The program: the parser of all commands, and what every command does about errors and Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import onnx

from ortpartial.exceptions import OrtPartialError
from ortpartial.model import read, register_libraries, resolve_libraries

from .export import add_export_options, run_export
from .gradient import add_gradient_options, run_gradient
from .info import add_info_options, run_info
from .run import add_run_options, run_run

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default those of the process.

    Returns
    -------
    int
        The exit code: 0 for success, 1 if `info` finds a reason why the model cannot be trained, 2 after an error,
        which is printed as one line to standard error, 130 after Ctrl-C.

    Examples
    --------
    >>> import onnx
    >>> from ortpartial import build, op, variable
    >>> x = variable("x", "float32", ["N"])
    >>> onnx.save(build([x], {"y": op.Exp(x)}), "exp.onnx")
    >>> main(["gradient", "exp.onnx", "-o", "exp_grad.onnx", "--wrt", "x"])
    exp_grad.onnx: x, y_grad -> x_grad
    0
    """
    args = _parser().parse_args(argv)
    try:
        if args.custom_ops is not None:
            register_libraries(read(args.model), resolve_libraries(args.custom_ops))
        return args.run(args)
    except (OrtPartialError, OSError) as e:
        print(f"ortpartial: {' '.join(str(e).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ortpartial: interrupted", file=sys.stderr)
        return 130
    finally:
        if argv is None:  # The process ends now, and Ctrl-C in its last moments would only print a traceback.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _parser() -> argparse.ArgumentParser:
    """The parser of all commands; the option `run` of each is the function that executes it."""
    parser = argparse.ArgumentParser(prog="ortpartial", description="Train any ONNX graph, or only a part of a model.")
    parser.add_argument("--version", action=_PrintVersions, nargs=0, help="print the versions and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], description: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=description, description=description)
        command.add_argument("model", type=Path, help="path of an ONNX model")
        command.add_argument("--custom-ops", type=Path, metavar="LIBRARY", help="shared library of custom operators")
        command.set_defaults(run=run)
        return command

    add_gradient_options(add("gradient", run_gradient, "Write the gradient of a model as a model."))
    add_info_options(add("info", run_info, "Show a model: its weights by module, what is trained, and why not."))
    add_export_options(add("export", run_export, "Write a model with its training, as in the ONNX standard."))
    add_run_options(add("run", run_run, "Train a model that was exported with its training."))
    return parser


class _PrintVersions(argparse.Action):
    """Print the versions of ortpartial, onnx and every installed onnxruntime, none of which is imported."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        installed = {d.name: d.version for d in distributions() if d.name.startswith("onnxruntime")}
        package = sys.modules[__name__.partition(".")[0]]  # It stands above its rooms, which do not import it.
        print(f"ortpartial {package.__version__}\nonnx {onnx.__version__}")
        for name in sorted(installed):
            print(f"{name} {installed[name]}")
        if not installed:
            print("onnxruntime is not installed")
        parser.exit()
