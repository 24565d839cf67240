"""The command `check`: whether every engine computes the same as the model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from ortpartial.annotations import Data
from ortpartial.checks import check_count
from ortpartial.estimator import OrtGradientForwardBackwardOptimizer, resolve_losses
from ortpartial.exceptions import OrtPartialError, RewriteError
from ortpartial.graph import find_inputs
from ortpartial.rewrites import select_rewrites

from .component_specs import parse_losses
from .console import print_json, print_line
from .options import Commands, add_command, add_json_option, add_reading_options, add_weights_options, load_model
from .roles import load_roles, read_columns
from .timing import RandomRows, parse_sizes

__all__ = ["add_check_command"]

_ENGINES = ("epoch", "step", "native", "agent")

_DESCRIPTION = """\
Loss and gradients of a batch, as each engine computes them, are compared with
those of the model as it is written, run without optimization. The rows are
those of a file, or random; targets are random. The exit code is 1 where an
engine computes something else: the message names the rewrite at fault. Below
each engine stand the rewrites of its step, with what they have changed."""

_EXAMPLES = """
check model.onnx
check model.onnx data.npz --batch-size 64
check classifier.onnx --loss cross_entropy --engine epoch --json
"""


def add_check_command(commands: Commands) -> None:
    """Add the command to the program.

    Parameters
    ----------
    commands : object
        The result of `argparse.ArgumentParser.add_subparsers`.
    """
    command = add_command(commands, "check", run_check, "Compare what every engine computes with what the model says.",
                          usage="MODEL [DATA] [option ...]", description=_DESCRIPTION, examples=_EXAMPLES)
    command.add_argument("data", type=Path, nargs="?", metavar="DATA",
                         help="rows of the inputs: a .csv, .parquet, .arrow or .npz file; default: random rows")
    command.add_argument("--features", nargs="+", metavar="COLUMN",
                         help="columns that form the input, by name or pattern; default: all others of numbers")
    command.add_argument("--batch-size", type=int, default=32, metavar="N",
                         help="rows to compare at; default: 32, or what the model fixes")
    command.add_argument("--size", nargs="+", default=[], metavar="NAME=N",
                         help="sizes that the model leaves open, such as the length of texts")
    command.add_argument("--loss", nargs="+", default=["square"], metavar="LOSS",
                         help="the loss, as for train; default: square")
    add_weights_options(command)
    add_reading_options(command)
    command.add_argument("--train-mode", action="store_true", help="run Dropout and BatchNormalization in train mode")
    command.add_argument("--engine", nargs="+", choices=_ENGINES, default=_ENGINES, metavar="ENGINE",
                         help=f"engines to check, of {', '.join(_ENGINES)}; default: all")
    add_json_option(command, "print one line of JSON for each engine")


def run_check(args: argparse.Namespace) -> int:
    """Check all engines, and print a line for each."""
    check_count("--batch-size", args.batch_size)
    model = load_model(args)
    fixed = [v.shape[0] for v in model.inputs.values() if v.shape and isinstance(v.shape[0], int)]
    size = fixed[0] if fixed else args.batch_size
    losses = resolve_losses(model, parse_losses(args.loss, []))
    rows = RandomRows(model, losses, size, parse_sizes(args.size))
    X = rows.draw_inputs() if args.data is None else _read_inputs(args, rows)
    y = rows.draw_targets(X)
    results = {engine: _check_engine(args, rows, engine, X, y) for engine in args.engine}
    for engine, (result, message, rewrites) in results.items():
        if args.json:
            print_json({"engine": engine, "result": result, "message": message, "rewrites": rewrites})
        else:
            print_line(f"{engine}: {result}{': ' if message else ''}{' '.join(message.split())}")
            for rewrite in rewrites:
                print_line(f"  {rewrite}")
    if not any(result != "not checked" for result, *_ in results.values()):
        return 2
    return int(any(result == "differs" for result, *_ in results.values()))


def _read_inputs(args: argparse.Namespace, rows: RandomRows) -> Mapping[str, Data]:
    """The first rows of a file."""
    model, columns = rows.model, read_columns(args.data)
    inputs = find_inputs([model.outputs[o] for o in rows.losses], model.inputs)
    roles, _ = load_roles(model.proto).with_features(columns, inputs, args.features, args.data)
    return {n: a[: rows.batch_size] for n, a in roles.select_inputs(columns, inputs).items()}


def _check_engine(args: argparse.Namespace, rows: RandomRows, engine: str, X: Data, y: Data
                  ) -> tuple[str, str, list[str]]:
    """Whether an engine agrees with the model, differs or does not train it, why, and the rewrites of its step."""
    try:
        optimizer = OrtGradientForwardBackwardOptimizer(
            rows.model, args.weights, learning_loss=dict(rows.losses), batch_size=rows.batch_size, shuffle=False,
            raise_on_divergence=False, train_mode=args.train_mode, freeze=args.freeze, engine=engine, check=True)
        with select_rewrites() as reports:
            optimizer.partial_fit(X, y)
    except RewriteError as e:
        return "differs", str(e), []
    except OrtPartialError as e:
        return "not checked", str(e), []
    is_other = optimizer.engine_ != engine
    message = f"trained by {optimizer.engine_}: {optimizer.engine_reason_}" if is_other else ""
    return "agrees", message, list(dict.fromkeys(map(str, reports)))
