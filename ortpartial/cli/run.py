"""The command `run`: train a model by the training that it stores."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import numpy as np
from tqdm import tqdm

from ortpartial.exceptions import SettingError
from ortpartial.model import write
from ortpartial.training_info import TrainingSession, count_rows, read_rows, split_rows, train_epochs

from .console import print_json, print_line
from .interruption import Interruption
from .options import Commands, add_command, add_divergence_option, add_json_option, add_timeout_option, check_output

__all__ = ["add_run_command"]

_DESCRIPTION = """\
The training goes on where the one in the file ended, and the model is written
with it, so that it can go on again. After Ctrl-C, what was trained is written."""

_EXAMPLES = """
export model.onnx -o training.onnx --rate adam
run training.onnx data.npz --epochs 10 --batch 32 -o further.onnx
run training.onnx data.npz --validation 0.1 --dry-run
"""


def add_run_command(commands: Commands) -> None:
    """Add the command to the program.

    Parameters
    ----------
    commands : object
        The result of `argparse.ArgumentParser.add_subparsers`.
    """
    command = add_command(commands, "run", run_run, "Train a model that was exported with its training.",
                          usage="MODEL DATA -o FILE [--epochs N] [option ...]",
                          description=_DESCRIPTION, examples=_EXAMPLES,
                          model="path of a model with a training, such as export writes it")
    command.add_argument("data", type=Path, metavar="DATA",
                         help="an .npz file with an array for each input of a step; or a .csv, .parquet or .arrow "
                              "file, whose columns feed the inputs of their names, and all others the one that is left")
    length = command.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, default=100, help="how often to go over the rows; default: 100")
    length.add_argument("--steps", type=int, help="end after so many steps, in place of --epochs")
    command.add_argument("--batch", type=int, help="rows of a step; default: what the model declares, or all rows")
    command.add_argument("--seed", type=int, help="seed of the order of the rows, and of --initialize")
    command.add_argument("--no-shuffle", action="store_true", help="keep the order of the rows")
    command.add_argument("--initialize", action="store_true",
                         help="start from the model's initialization, not from the weights and the state in the file")
    command.add_argument("--validation", metavar="DATA", help="rows whose loss is computed after every epoch, as the "
                                                              "training computes it: a file, or a share such as 0.2")
    command.add_argument("--engine", choices=("auto", "epoch", "step", "native"), default="auto",
                         help="what takes the steps: one at a time (auto, step), many in one run (epoch), or machine "
                              "code (native); default: auto")
    add_timeout_option(command)
    add_divergence_option(command)
    written = command.add_mutually_exclusive_group(required=True)
    written.add_argument("-o", "--output", type=Path, help="path of the trained model to write; that of the model "
                                                           "itself to train it further")
    written.add_argument("--dry-run", action="store_true", help="train, print the losses, and write nothing")
    command.add_argument("--strip", action="store_true", help="write the trained model without its training")
    command.add_argument("--force", action="store_true", help="overwrite a file, with all that was trained in it")
    add_json_option(command, "print one line of JSON for each epoch, and one at the end")


def run_run(args: argparse.Namespace) -> int:
    """Train a model by the training that it stores, and write it; after Ctrl-C, too."""
    _check_run(args)
    session = TrainingSession.from_model(args.model, engine=args.engine)
    data = read_rows(args.data, session)
    rng = np.random.default_rng(args.seed)
    order = None if args.no_shuffle else rng
    validation = None
    if args.validation is not None:
        data, validation = _take_validation(args.validation, data, session, order)
    if args.initialize:
        session.initialize(args.seed)
    with Interruption() as interruption:
        steps = _train(args, session, data, validation, order, interruption)
        if args.output and steps:
            session.check_finite()
            write(session.inference_model() if args.strip else session.training_model(), args.output)
            if not args.json:
                print_line(f"{args.output}: the trained model{', without its training' if args.strip else ''}")
        if args.json:
            print_json({"event": "interrupted" if interruption.is_requested else "end", "steps": steps,
                        "model": args.output if steps else None})
    return 130 if interruption.is_requested else 0


def _check_run(args: argparse.Namespace) -> None:
    """Refuse settings out of range, and an output that cannot be written or would replace the trained model."""
    if any(n is not None and n < 1 for n in (args.epochs, args.steps, args.batch)):
        raise SettingError("--epochs, --steps and --batch are integers of at least 1.")
    path = args.output
    if path is None:
        return
    is_model = path.is_file() and args.model.is_file() and path.samefile(args.model)
    check_output(path, args.force or is_model, "the trained model")
    if args.force or not is_model:
        return
    for option, effect in (("strip", "lose its training"), ("initialize", "lose what was trained")):
        if getattr(args, option):
            raise SettingError(f"With --{option}, {str(path)!r} would {effect}; choose another name for the trained "
                               f"model, or say --force.")


def _take_validation(source: str, data: dict[str, np.ndarray], session: TrainingSession,
                     rng: np.random.Generator | None) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The rows to train on, and those to validate with: a share of the former, or the rows of a file."""
    try:
        share = float(source)
    except ValueError:
        return data, read_rows(source, session)
    if not 0 < share < 1:
        raise SettingError(f"--validation is a file, or a share of the rows between 0 and 1, not {source}.")
    return split_rows(data, share, rng)


def _train(args: argparse.Namespace, session: TrainingSession, data: dict[str, np.ndarray],
           validation: dict[str, np.ndarray] | None, rng: np.random.Generator | None, interruption: Interruption
           ) -> int:
    """Train until the end or Ctrl-C; return the number of steps."""
    rows = count_rows(data)
    size = args.batch or session.batch_size or rows
    per_epoch = -(-rows // size)
    is_joined = args.steps is None and args.engine in ("epoch", "native")
    with _Display(args.steps or args.epochs * per_epoch, per_epoch, args.json) as display:
        try:
            for means, validated in train_epochs(session, data, display.epochs, size, rng=rng, validation=validation,
                                                 after_step=None if is_joined else display.count_step,
                                                 timeout=args.timeout,
                                                 raise_on_divergence=args.raise_on_divergence):
                if is_joined:
                    display.count_steps(means)
                display.end_epoch(means, validated)
            interruption.is_raised = False
        except KeyboardInterrupt:
            display.steps = session.steps_taken
            display.print(f"ortpartial: interrupted {display.describe_progress()}", sys.stderr)
    return display.steps


class _Display:
    """The display of a training: a bar in a terminal, and the last epoch; else a line an epoch, also of JSON."""

    def __init__(self, total: int, per_epoch: int, is_json: bool):
        self.total, self.per_epoch, self.epochs = total, per_epoch, -(-total // per_epoch)
        self.is_json = is_json
        self.steps = 0
        self.line = ""
        self.bar = tqdm(total=total, unit="step", disable=None, leave=False, dynamic_ncols=True)

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self.line and not self.bar.disable:
            self.print(self.line, sys.stdout)
        self.bar.close()

    def count_step(self, means: Mapping[str, float]) -> bool:
        """Move the bar; return whether this was the last step."""
        self.bar.set_description(f"epoch {self.steps // self.per_epoch + 1}/{self.epochs}", refresh=False)
        self.bar.set_postfix_str(_format_means(means), refresh=False)
        self.steps += 1
        self.bar.update()
        return self.steps == self.total

    def count_steps(self, means: Mapping[str, float]) -> None:
        """Move the bar by the steps of an epoch."""
        self.steps += self.per_epoch - 1
        self.bar.update(self.per_epoch - 1)
        self.count_step(means)

    def end_epoch(self, means: Mapping[str, float], validated: Mapping[str, float]) -> None:
        """Print the means of an epoch unless there is a bar."""
        epoch = -(-self.steps // self.per_epoch)
        if self.is_json:
            self.bar.clear()
            print_json({"event": "epoch", "epoch": epoch, **means, **({"validation": validated} if validated else {})})
            return
        self.line = f"epoch {epoch}/{self.epochs}: {_format_means(means)}"
        if validated:
            self.line += f", validation {_format_means(validated)}"
        if self.bar.disable:
            self.print(self.line, sys.stdout)

    def describe_progress(self) -> str:
        """The number of steps that were taken, in words."""
        return f"after step {self.steps} of {self.total}" if self.steps else "before the first step; nothing is written"

    def print(self, text: str, file: TextIO) -> None:
        """Print a line in place of the bar."""
        self.bar.clear()
        print_line(text, file)


def _format_means(means: Mapping[str, float]) -> str:
    return ", ".join(f"{n} {mean:.6g}" for n, mean in means.items())
