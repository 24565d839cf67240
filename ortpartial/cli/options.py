"""Options that several commands have, and how a command is added to the program."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from ortpartial.exceptions import SettingError
from ortpartial.model import Model, load

__all__ = ["Commands", "OptionGroup", "add_command", "add_data_options", "add_divergence_option", "add_force_option",
           "add_json_option", "add_output_option", "add_reading_options", "add_timeout_option", "add_weights_options",
           "check_output", "load_model"]

#: The object that commands are added to, of a type of argparse that has no public name.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

#: An object that options are added to: a command, or a group of its options.
OptionGroup: TypeAlias = "argparse.ArgumentParser | argparse._ArgumentGroup"


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with descriptions and examples as they are written, and with short forms of options."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        """``NAME ...`` in place of ``NAME [NAME ...]``."""
        return f"{action.metavar} ..." if action.nargs == "+" else super()._format_args(action, default_metavar)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """``-o, --output FILE`` in place of ``-o FILE, --output FILE``, as Python has it from 3.13 on."""
        text = super()._format_action_invocation(action)
        if sys.version_info >= (3, 13) or not action.option_strings or action.nargs == 0:
            return text
        return f"{', '.join(action.option_strings)} {self._format_args(action, action.dest.upper())}"


def add_command(commands: Commands, name: str, run: Callable[[argparse.Namespace], int], summary: str, *,
                usage: str = "", description: str = "", examples: str = "", model: str = "path of an ONNX model"
                ) -> argparse.ArgumentParser:
    """Add a command to the program.

    Parameters
    ----------
    commands : object
        The result of `argparse.ArgumentParser.add_subparsers`.
    name : str
        Its name.
    run : callable
        Executes it, from its arguments to an exit code.
    summary : str
        Its purpose, in a sentence.
    usage : str
        The arguments that it is usually given.
    description : str
        Its purpose, at length.
    examples : str
        A line of a shell each, without the name of the program.
    model : str
        Help of its first argument.

    Returns
    -------
    argparse.ArgumentParser
    """
    lines = "".join(f"\n  {'ortpartial ' + line if line.strip() and line[0] != ' ' else line}"
                    for line in examples.strip("\n").split("\n")) if examples else ""
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, usage=f"ortpartial {name} {usage}" if usage else None,
        description=f"{summary}\n\n{description}" if description else summary,
        epilog=f"examples:{lines}" if examples else None, formatter_class=_HelpFormatter)
    command.add_argument("model", type=Path, metavar="MODEL", help=model)
    command.add_argument("--custom-ops", type=Path, metavar="LIBRARY", help="shared library of custom operators")
    command.set_defaults(run=run, parser=command)
    return command


def add_weights_options(command: OptionGroup) -> None:
    """Add `--weights` and `--freeze`."""
    command.add_argument("--weights", nargs="+", metavar="NAME",
                         help="weights to train, by name or pattern; default: all that can be")
    command.add_argument("--freeze", nargs="+", default=(), metavar="NAME",
                         help="weights that are not trained, by name or pattern")


def add_output_option(command: OptionGroup) -> None:
    """Add `--output` of a model."""
    command.add_argument("-o", "--output", "--out", type=Path, required=True, metavar="FILE",
                         help="path of the model to write")


def add_force_option(command: OptionGroup) -> None:
    """Add `--force`."""
    command.add_argument("--force", action="store_true", help="overwrite a file that is there")


def add_json_option(command: OptionGroup, what: str = "print one line of JSON") -> None:
    """Add `--json`."""
    command.add_argument("--json", action="store_true", help=what)


def add_timeout_option(command: OptionGroup) -> None:
    """Add `--timeout`."""
    command.add_argument("--timeout", type=float, metavar="SECONDS", help="end after so many seconds, with an error; "
                                                                          "default: none")


def add_divergence_option(command: OptionGroup) -> None:
    """Add `--raise-on-divergence`."""
    command.add_argument("--raise-on-divergence", action=argparse.BooleanOptionalAction, default=True,
                         help="whether a loss that is not finite is an error, or a warning that ends the training with "
                              "the weights before it; default: an error")


def add_reading_options(command: OptionGroup) -> None:
    """Add the options that say how a model is read."""
    command.add_argument("--straight-through", action="store_true", default=None,
                         help="pass gradients through the rounding of a quantization")
    command.add_argument("--ties", choices=["infer", "file"], default="infer",
                         help="separate weights that an exporter has merged, and join tied ones (infer, the default), "
                              "or read the initializers of the file as they are")


def load_model(args: argparse.Namespace) -> Model:
    """Read the model of a command by these options."""
    return load(args.model, straight_through=args.straight_through, ties=args.ties)


def add_data_options(command: OptionGroup, target: bool = True) -> None:
    """Add the data, and the options that tell the roles of its columns."""
    command.add_argument("data", type=Path, metavar="DATA",
                         help="rows: a .csv, .parquet or .arrow file with named columns, or an .npz file with arrays")
    if target:
        command.add_argument("--target", nargs="+", metavar="COLUMN",
                             help="column or array to be predicted; default: the one called like the output, y, target "
                                  "or label")
    command.add_argument("--features", nargs="+", metavar="COLUMN",
                         help="columns that form the input, by name or pattern; default: all others of numbers")
    if target:
        command.add_argument("--sample-weight", metavar="COLUMN", help="column of weights of the rows")


def check_output(path: Path, force: bool, what: str) -> None:
    """Refuse a path that cannot be written to, or that exists, before any work is done.

    Parameters
    ----------
    path : pathlib.Path
        The path.
    force : bool
        Whether a file may be overwritten.
    what : str
        The name of the file in the message.

    Raises
    ------
    SettingError
    """
    if path.is_dir():
        raise SettingError(f"{str(path)!r} is a folder; name a file for {what}.")
    if not path.parent.is_dir():
        raise SettingError(f"There is no folder {str(path.parent)!r} for {what}.")
    if not os.access(path.resolve().parent, os.W_OK) and (path.is_file() or not path.exists()):
        raise SettingError(f"Nothing can be written into the folder of {str(path)!r}; choose another one.")
    if path.is_file() and not force:
        raise SettingError(f"{str(path)!r} exists; choose another name for {what}, or say --force.")
