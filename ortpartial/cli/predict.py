"""The commands `predict` and `evaluate`: the outputs of a model for the rows of a file, and how good they are."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from ortpartial.annotations import Data
from ortpartial.checks import check_count
from ortpartial.estimator import (
    OrtGradientForwardBackwardOptimizer,
    check_inputs,
    find_nullable,
    resolve_losses,
)
from ortpartial.exceptions import DataError, SettingError
from ortpartial.graph import find_inputs
from ortpartial.learning import BaseLearningLoss
from ortpartial.model import Model, check_indices, find_indices, index_ranges, load, read, replace_file
from ortpartial.rewrites import to_inference_mode
from ortpartial.runtime import Session
from ortpartial.training import forward_graph
from ortpartial.training_info import TABLES, count_rows, write_table

from .component_specs import parse_losses
from .console import format_table, paint, print_json, print_line
from .losses import choose_losses
from .options import Commands, add_command, add_data_options, add_force_option, add_json_option, check_output
from .roles import Roles, load_roles, read_columns

__all__ = ["add_evaluate_command", "add_predict_command"]

_PREDICT = """\
A model that train has written finds its columns by itself. What is written has
a column for each output, NAME_0, NAME_1 ... where it is a matrix, and a column
label where the model was trained on labels."""

_PREDICT_EXAMPLES = """
predict trained.onnx data.csv
predict trained.onnx data.csv -o predicted.parquet
predict trained.onnx data.npz -o predicted.npz --batch-size 256
"""

_EVALUATE = """\
The loss is the mean over the rows; the metric is the accuracy where the loss is
for labels, else R2. A model that train has written knows its loss and columns."""

_EVALUATE_EXAMPLES = """
evaluate trained.onnx data.csv
evaluate trained.onnx data.csv --json
evaluate model.onnx data.csv --target y --loss absolute
"""


def add_predict_command(commands: Commands) -> None:
    """Add `predict` to the program.

    Parameters
    ----------
    commands : object
        The result of `argparse.ArgumentParser.add_subparsers`.
    """
    command = add_command(commands, "predict", run_predict, "Compute the outputs of a model for the rows of a file.",
                          usage="MODEL DATA [-o FILE] [option ...]",
                          description=_PREDICT, examples=_PREDICT_EXAMPLES)
    add_data_options(command, target=False)
    command.add_argument("-o", "--output", "--out", type=Path, metavar="FILE",
                         help="the .csv, .parquet, .arrow or .npz file to write; default: CSV to the terminal")
    _add_batch_option(command)
    add_force_option(command)
    add_json_option(command, "print one line of JSON that says what was written")


def add_evaluate_command(commands: Commands) -> None:
    """Add `evaluate` to the program.

    Parameters
    ----------
    commands : object
        The result of `argparse.ArgumentParser.add_subparsers`.
    """
    command = add_command(commands, "evaluate", run_evaluate, "Compute the loss and the metrics of a model.",
                          usage="MODEL DATA [--target COLUMN ...] [option ...]",
                          description=_EVALUATE, examples=_EVALUATE_EXAMPLES)
    add_data_options(command)
    command.add_argument("--loss", nargs="+", metavar="LOSS", help="the loss, as for train; default: that of the "
                                                                   "training, or square")
    _add_batch_option(command)
    add_json_option(command)


def _add_batch_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--batch-size", type=int, default=1024, metavar="N", help="rows of a run; default: 1024")


def run_predict(args: argparse.Namespace) -> int:
    """Write the outputs of a model."""
    if args.output is not None:
        check_output(args.output, args.force, "the predictions")
        if args.output.suffix.lower() not in (*TABLES, ".npz"):
            raise SettingError(f"{str(args.output)!r} is to end in {', '.join(TABLES)} or .npz.")
    if args.json and args.output is None:
        raise SettingError("With --json, predict says what it wrote; name a file with -o.")
    check_count("--batch-size", args.batch_size)
    model = load(to_inference_mode(read(args.model)))
    inputs = find_inputs(model.outputs.values(), model.inputs)
    columns = read_columns(args.data)
    roles, _ = load_roles(model.proto).with_features(columns, inputs, args.features, args.data)
    outputs = _predict(model, roles.select_inputs(columns, inputs), args.batch_size)
    outputs |= _find_labels(outputs, roles)
    path = args.output or Path("-.csv")
    tables = _to_columns(outputs) if path.suffix.lower() in TABLES else outputs
    if args.output is None:
        text = io.BytesIO()
        write_table(tables, text, path)
        sys.stdout.write(text.getvalue().decode())
        return 0
    with replace_file(path) as file:
        if path.suffix.lower() in TABLES:
            write_table(tables, file, path)
        else:
            _write_arrays(tables, file)
    rows = len(next(iter(tables.values())))
    if args.json:
        print_json({"file": path, "rows": rows, "columns": list(tables)})
    else:
        print_line(f"{paint(str(path), 'bold')}: {rows} rows of {', '.join(tables)}")
    return 0


def _predict(model: Model, X: Mapping[str, object], size: int) -> dict[str, np.ndarray]:
    """The outputs by name, computed batch by batch; a model of a fixed size is given the last rows again."""
    outputs = list(model.outputs.values())
    inputs = find_inputs(outputs, model.inputs)
    arrays, rows = check_inputs(inputs, X, find_indices(inputs, outputs), find_nullable(outputs, inputs))
    check_indices(index_ranges(inputs, outputs), arrays)
    session = Session(forward_graph(model, [], list(model.outputs), used_only=True), threads=None)
    sizes = [v.shape[0] for v in inputs.values() if v.shape and isinstance(v.shape[0], int)]
    size = sizes[0] if sizes else size
    batches = []
    for start in range(0, rows, size):
        taken = np.arange(start, start + size if sizes else min(start + size, rows)).clip(max=rows - 1)
        ran = session.run({n: a[taken] for n, a in arrays.items()})
        batches.append({n: a[: rows - start] for n, a in ran.items() if _has_rows(a, len(taken))})
    if not batches[0]:
        raise DataError(f"No output of the model, of {', '.join(map(repr, model.outputs))}, has a row for each row of "
                        f"the data.")
    joined = {n: np.concatenate([b[n] for b in batches]) for n in batches[0]}
    return {n: a.astype(str) if a.dtype == object else a for n, a in joined.items()}


def _has_rows(array: object, rows: int) -> bool:
    """Whether an output is a prediction of every row."""
    return isinstance(array, np.ndarray) and array.ndim > 0 and len(array) == rows


def _find_labels(outputs: Mapping[str, np.ndarray], roles: Roles) -> dict[str, np.ndarray]:
    """The labels that outputs choose, as texts where the training knew them so."""
    losses = parse_losses(roles.losses, roles.outputs) if roles.losses else {}
    by_output = losses if isinstance(losses, Mapping) else dict.fromkeys(roles.outputs, losses)
    labels = {}
    for output, target in zip(roles.outputs, roles.target, strict=False):
        loss = by_output.get(output)
        if loss is None or output not in outputs or (numbers := loss.labels(outputs[output])) is None:
            continue
        texts = roles.labels.get(output if len(roles.outputs) > 1 else target)
        numbers = numbers[:, 0] if numbers.ndim == 2 and numbers.shape[1] == 1 else numbers
        name = "label" if len(roles.outputs) == 1 else f"{output}_label"
        is_known = texts is not None and numbers.size and numbers.max() < len(texts)
        labels[name] = np.array(texts)[numbers] if is_known else numbers
    return {n: a for n, a in labels.items() if n not in outputs}


def _to_columns(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns of a table: a column for each element of a row."""
    columns = {}
    for n, a in outputs.items():
        flat = a.reshape(len(a), -1)
        if flat.shape[1] == 1:
            columns[n] = flat[:, 0]
        else:
            columns.update({f"{n}_{i}": flat[:, i] for i in range(flat.shape[1])})
    return columns


def _write_arrays(arrays: Mapping[str, np.ndarray], file: Any) -> None:
    """Write an .npz file; numpy.savez takes no array of the name "file"."""
    with ZipFile(file, "w", ZIP_STORED) as archive:
        for n, a in arrays.items():
            with archive.open(f"{n}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(a), allow_pickle=False)


def run_evaluate(args: argparse.Namespace) -> int:
    """Print the loss and the metrics."""
    check_count("--batch-size", args.batch_size)
    model = load(args.model)
    stored = load_roles(model.proto)
    words = args.loss or stored.losses
    by_output: dict[str, BaseLearningLoss] = resolve_losses(
        model, parse_losses(words or ["square"], args.target or stored.target))
    columns = read_columns(args.data)
    roles = replace(stored, outputs=list(by_output), weight=args.sample_weight or stored.weight)
    roles = roles.with_target(columns, args.target, args.data)
    losses = parse_losses(choose_losses(words, roles, model, columns), roles.target)
    by_output = resolve_losses(model, losses)
    inputs = find_inputs([model.outputs[o] for o in by_output], model.inputs)
    roles, _ = roles.with_features(columns, inputs, args.features, args.data)
    roles = roles.with_labels(columns, by_output, model.outputs)
    optimizer = OrtGradientForwardBackwardOptimizer(model, learning_loss=losses, train_mode=False, engine="step")
    X, y = roles.select_inputs(columns, inputs), roles.select_target(columns, args.data)
    weight = roles.select_weight(columns, args.data)
    batches = list(_split((X, y) if weight is None else (X, y, weight), count_rows(columns), args.batch_size))
    loss, score = _weigh(optimizer.losses(batches), weight), optimizer.score(batches)
    scores = score if isinstance(score, dict) else {next(iter(by_output)): score}
    metrics = {o: {_name_metric(by_output[o]): s} for o, s in scores.items()}
    _print_metrics(args, count_rows(columns), loss, metrics)
    return 0


def _split(data: tuple[Data, ...], rows: int, size: int) -> Iterator[tuple[Data, ...]]:
    """Batches of arrays, of tables, and of dicts of them."""
    def take(part: Data, batch: slice) -> Data:
        return {n: a[batch] for n, a in part.items()} if isinstance(part, Mapping) else part[batch]

    for start in range(0, rows, size):
        yield tuple(take(part, slice(start, start + size)) for part in data)


def _weigh(losses: np.ndarray, weight: np.ndarray | None) -> float:
    """The mean over the rows."""
    return float(np.average(losses, weights=None if weight is None else weight.ravel()))


def _name_metric(loss: BaseLearningLoss) -> str:
    return "R2" if loss.labels(np.zeros((1, 2), np.float32)) is None else "accuracy"


def _print_metrics(args: argparse.Namespace, rows: int, loss: float, metrics: Mapping[str, Mapping[str, float]]
                   ) -> None:
    if args.json:
        print_json({"model": args.model, "data": args.data, "rows": rows, "loss": loss, "outputs": metrics})
        return
    lines = [["loss", f"{loss:.6g}"]]
    for output, values in metrics.items():
        lines += [[n if len(metrics) == 1 else f"{n} of {output}", f"{v:.6g}"] for n, v in values.items()]
    for line in format_table(["rows", str(rows)], lines, align="<<"):
        print_line(line)
