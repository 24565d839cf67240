"""The command `bench`: how long a step of a model takes, by every engine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ortpartial.annotations import Json
from ortpartial.checks import check_count
from ortpartial.estimator import resolve_losses
from ortpartial.exceptions import OrtPartialError, SettingError
from ortpartial.model import Model

from .component_specs import parse_losses, parse_rate
from .console import format_seconds, format_table, paint, print_json, print_line
from .options import Commands, add_command, add_json_option, add_reading_options, add_weights_options, load_model
from .timing import RandomRows, parse_sizes, time_forward, time_steps

__all__ = ["add_bench_command"]

_ENGINES = ("epoch", "step", "agent")

_DESCRIPTION = """\
The rows are random, and the model is not changed. Times are the least of
several: those of an idle machine. The ratio is to the fastest engine of a batch
size; forward is the outputs alone."""

_EXAMPLES = """
bench model.onnx
bench model.onnx --batch-size 1 32 256 --rate sgd:0.1 --seconds 0.5
bench classifier.onnx --loss cross_entropy --engine epoch --json
"""


def add_bench_command(commands: Commands) -> None:
    """Add the command to the program.

    Parameters
    ----------
    commands : object
        The result of `argparse.ArgumentParser.add_subparsers`.
    """
    command = add_command(commands, "bench", run_bench, "Measure how long a step takes, by every engine.",
                          usage="MODEL [--batch-size N ...] [option ...]", description=_DESCRIPTION,
                          examples=_EXAMPLES)
    command.add_argument("--batch-size", nargs="+", type=int, default=[32], metavar="N",
                         help="rows of a step, one number or several; default: 32, or what the model fixes")
    command.add_argument("--size", nargs="+", default=[], metavar="NAME=N",
                         help="sizes that the model leaves open, such as the length of texts")
    command.add_argument("--loss", nargs="+", default=["square"], metavar="LOSS",
                         help="the loss, as for train; default: square")
    command.add_argument("--rate", default="adam", metavar="RATE", help="the optimizer, as for train; default: adam")
    add_weights_options(command)
    add_reading_options(command)
    command.add_argument("--engine", nargs="+", choices=_ENGINES, default=_ENGINES, metavar="ENGINE",
                         help=f"engines to measure, of {', '.join(_ENGINES)}; default: all")
    command.add_argument("--device", default="cpu", metavar="DEVICE",
                         help="cpu, cuda, cuda:1 or an execution provider, as for train; default: cpu")
    command.add_argument("--seconds", type=float, default=1.0, metavar="S",
                         help="how long to measure each engine; default: 1")
    add_json_option(command, "print one line of JSON for each measurement")


def run_bench(args: argparse.Namespace) -> int:
    """Measure all engines, and print a table."""
    for size in args.batch_size:
        check_count("--batch-size", size)
    if not 0 < args.seconds < float("inf"):
        raise SettingError(f"--seconds is a number above 0, not {args.seconds}.")
    model = load_model(args)
    fixed = [v.shape[0] for v in model.inputs.values() if v.shape and isinstance(v.shape[0], int)]
    rows = [row for size in fixed[:1] or args.batch_size for row in _measure(args, model, size)]
    if all("seconds" not in row for row in rows if row["what"] != "forward"):
        raise SettingError(next(row["error"] for row in rows if "error" in row))
    if args.json:
        for row in rows:
            print_json(row)
    else:
        _print_table(rows)
    return 0


def _measure(args: argparse.Namespace, model: Model, size: int) -> list[Json]:
    """The measurements of a batch size, with their ratios to the fastest engine."""
    losses = resolve_losses(model, parse_losses(args.loss, []))
    rows = RandomRows(model, losses, size, parse_sizes(args.size))
    settings = {"weights_to_train": args.weights, "freeze": args.freeze, "learning_rate": parse_rate(args.rate),
                "device": args.device}
    measured: list[Json] = [
        {"what": "forward", "batch_size": size, "seconds": time_forward(rows, args.seconds)}]
    measured += [_measure_engine(engine, rows, settings, args.seconds) for engine in args.engine]
    fastest = min((row["seconds"] for row in measured[1:] if "seconds" in row), default=None)
    return [{**row, "steps_per_second": 1 / row["seconds"], "ratio": fastest and row["seconds"] / fastest}
            if "seconds" in row else row for row in measured]


def _measure_engine(engine: str, rows: RandomRows, settings: dict[str, object], seconds: float) -> Json:
    """The time of a step of an engine, or why it does not run."""
    row: Json = {"what": engine, "batch_size": rows.batch_size}
    try:
        row["seconds"], _ = time_steps(rows, {**settings, "engine": engine}, seconds)
    except OrtPartialError as e:
        row["error"] = str(e)
    return row


def _print_table(rows: list[Json]) -> None:
    def format_rows() -> Iterator[list[str]]:
        for row in rows:
            if "seconds" in row:
                yield [row["what"], str(row["batch_size"]), format_seconds(row["seconds"]),
                       f"{row['steps_per_second']:,.0f}", f"{row['batch_size'] / row['seconds']:,.0f}",
                       f"{row['ratio']:.2f}"]
            else:
                yield [row["what"], str(row["batch_size"]), "-", "-", "-", "-"]

    head, *lines = format_table(["engine", "batch", "step", "steps/s", "rows/s", "ratio"], format_rows())
    for line in (paint(head, "bold"), *lines):
        print_line(line)
    for what, error in {row["what"]: row["error"] for row in rows if "error" in row}.items():
        print_line(f"{what}: {' '.join(error.split())}")
