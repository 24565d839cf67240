"""Fits of commands: checkpoints, a line for each epoch, and how to go on after Ctrl-C."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ortpartial.estimator import Checkpoint, OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import ConvergenceError, SettingError
from ortpartial.execution import list_checkpoints

from .console import print_error, print_json, print_line
from .options import OptionGroup, add_force_option, add_json_option

__all__ = ["add_fitting_options", "check_folder", "check_trained", "find_folder", "format_losses", "has_bar",
           "list_losses", "make_callbacks", "print_interruption", "remove_checkpoints"]

#: Seconds between checkpoints that nobody has asked for.
_PERIOD = 60

#: Fields of a record of an epoch beside losses and metrics.
_OTHERS = frozenset({"epoch", "iteration", "seconds", "learning_rate"})


def add_fitting_options(output: OptionGroup) -> None:
    """Add the options of checkpoints and of printing."""
    output.add_argument("--checkpoint", type=Path, metavar="FOLDER",
                        help="where to write checkpoints, every epoch; default: FILE.checkpoints, every minute, "
                             "removed at the end")
    output.add_argument("--resume", action="store_true", help="go on with a training that was cut off, from its last "
                                                              "checkpoint")
    add_force_option(output)
    add_json_option(output, "print one line of JSON for each epoch, and one at the end")
    output.add_argument("-q", "--quiet", action="store_true", help="print errors alone")


def find_folder(args: argparse.Namespace) -> Path:
    """The folder of the checkpoints: as asked for, or beside the output."""
    folder: Path = args.checkpoint or args.output.with_name(f"{args.output.name}.checkpoints")
    return folder


def check_folder(folder: Path, args: argparse.Namespace) -> None:
    """Refuse to lose the checkpoints of another training."""
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{str(folder)!r} is no folder; name one for the checkpoints by --checkpoint.")
    if args.resume and not list_checkpoints(folder):
        print_line(f"no checkpoint in {str(folder)!r} to go on from; training from the beginning", sys.stderr)
    if list_checkpoints(folder) and not args.resume and not args.force:
        raise SettingError(f"{str(folder)!r} holds checkpoints of a training; go on with it by --resume, or say "
                           f"--force to begin anew.")


def remove_checkpoints(folder: Path, args: argparse.Namespace) -> None:
    """Remove checkpoints that nobody has asked for, once a training is over."""
    if args.checkpoint is None:
        for path in list_checkpoints(folder):
            path.unlink()
        with suppress(OSError):  # It holds files of others, or was never made.
            folder.rmdir()


def check_trained(optimizer: OrtGradientForwardBackwardOptimizer) -> None:
    """Refuse to write the weights of a training that was over in its first epoch."""
    if not optimizer.history_:
        raise ConvergenceError("The training diverged in its first epoch; nothing is written.")


def has_bar(args: argparse.Namespace) -> bool:
    """Whether a bar shows how far the training is, in place of lines: on a terminal."""
    return sys.stderr.isatty() and not args.quiet


def make_callbacks(args: argparse.Namespace, folder: Path, *others: object) -> list[Any]:
    """Make the callbacks that print epochs and write checkpoints, and put others between them."""
    shown = [] if args.quiet or (has_bar(args) and not args.json) else [_print_json if args.json else _print_line]
    every = Checkpoint(folder) if args.checkpoint else Checkpoint(folder, keep=1, every=None, seconds=_PERIOD)
    return [*shown, *others, every]


def _print_line(optimizer: OrtGradientForwardBackwardOptimizer) -> None:
    """Print an epoch as a line."""
    last = optimizer.training_view().losses
    print_line(f"epoch {last['epoch']}/{optimizer.max_iter}: {format_losses(last)}, {last['seconds']:.3f} s")


def _print_json(optimizer: OrtGradientForwardBackwardOptimizer) -> None:
    """Print an epoch as JSON."""
    print_json({"event": "epoch", **optimizer.training_view().losses})


def format_losses(record: Mapping[str, object]) -> str:
    """The losses of an epoch in words."""
    return ", ".join(f"{n.replace('_', ' ')} {record[n]:.4g}" for n in list_losses(record))


def list_losses(record: Mapping[str, object]) -> list[str]:
    """The losses and metrics of an epoch, by their names in `history_`."""
    return [n for n, number in record.items() if n not in _OTHERS and isinstance(number, float)]


def print_interruption(args: argparse.Namespace, optimizer: OrtGradientForwardBackwardOptimizer, folder: Path) -> None:
    """Print how to go on after Ctrl-C."""
    words = [*args.words, *([] if args.resume else ["--resume"])]
    command = shlex.join(["ortpartial", *words])
    if args.json:
        print_json({"event": "interrupted", "epochs": optimizer.n_iter_, "checkpoints": folder, "resume": command})
    print_error(f"interrupted after {optimizer.n_iter_} of {args.epochs} epochs; go on with:")
    print_line(f"  {command}", sys.stderr)
