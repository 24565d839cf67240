"""The program: the parser of all commands, and the treatment of errors and Ctrl-C in every command."""

from __future__ import annotations

import argparse
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import distributions

import onnx

from ortpartial.exceptions import OrtPartialError
from ortpartial.model import use_libraries

from .bench import add_bench_command
from .check import add_check_command
from .completion import add_completion_command
from .console import close_output, print_error, show_warning
from .derivatives import add_derivative_commands
from .export import add_export_command
from .gradient import add_gradient_command
from .habits import describe_option
from .info import add_info_command
from .lora import add_lora_command
from .predict import add_evaluate_command, add_predict_command
from .run import add_run_command
from .train import add_train_command

__all__ = ["main"]

_EXAMPLES = """\
examples:
  ortpartial info model.onnx
  ortpartial train model.onnx data.csv --target y -o trained.onnx
  ortpartial evaluate trained.onnx data.csv
  ortpartial predict trained.onnx data.csv -o predicted.csv

ortpartial COMMAND --help explains a command, with examples. Exit codes: 0, or 1
where info finds what prevents training or check a wrong engine, 2 after an
error, 130 after Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default the arguments of the process.

    Returns
    -------
    int
        The exit code: 0 for success, 1 if `info` finds a reason why the model cannot be trained, or `check` an engine
        that computes something else, 2 after an error, which is printed as a line to standard error, 130 after Ctrl-C,
        141 where nobody reads the output.

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
    args, unknown = _parser().parse_known_args(argv)
    if unknown:
        args.parser.error(describe_option(unknown[0], args.parser))
    args.words = sys.argv[1:] if argv is None else list(argv)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            if args.custom_ops is not None:
                use_libraries(args.model, args.custom_ops)
            return args.run(args)
    except BrokenPipeError:  # Who reads has left, as `head` does.
        close_output(sys.stdout)
        return 141
    except (OrtPartialError, OSError) as e:
        print_error(str(e))
        return 2
    except KeyboardInterrupt:
        print_error("interrupted")
        return 130
    finally:
        if argv is None:  # The process ends now, and Ctrl-C in its last moments would only print a traceback.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _parser() -> argparse.ArgumentParser:
    """The parser of all commands; the option `run` of each is the function that executes it."""
    parser = argparse.ArgumentParser(prog="ortpartial", description="Train any ONNX graph, or only a part of a model.",
                                     epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action=_PrintVersions, nargs=0, help="print the versions and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (add_train_command, add_predict_command, add_evaluate_command, add_info_command, add_gradient_command,
                add_derivative_commands, add_export_command, add_run_command, add_lora_command, add_bench_command,
                add_check_command):
        add(commands)
    add_completion_command(commands, parser)
    return parser


class _PrintVersions(argparse.Action):
    """Print the versions of ortpartial, onnx and every installed onnxruntime, none of which is imported."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        installed = {d.name: d.version for d in distributions() if d.name.startswith("onnxruntime")}
        package = sys.modules[__name__.partition(".")[0]]  # It stands above its rooms, which do not import it.
        print(f"ortpartial {package.__version__}\nonnx {onnx.__version__}")
        for name in sorted(installed):
            print(f"{name} {installed[name]}")
        if not installed:
            print("onnxruntime is not installed")
        parser.exit()
