"""The command `train`: train a model on the rows of a file."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from ortpartial.annotations import Data, Json
from ortpartial.checks import check_count
from ortpartial.estimator import EarlyStopping, OrtGradientForwardBackwardOptimizer, resolve_losses
from ortpartial.exceptions import ConvergenceError, RuntimeMissingError, SettingError
from ortpartial.graph import find_inputs
from ortpartial.installation import install_command
from ortpartial.model import Model, check_suffix, write
from ortpartial.plots import plot_losses, save_figure
from ortpartial.runtime import connect_processes

from .component_specs import (
    parse_averaging,
    parse_clipping,
    parse_losses,
    parse_penalty,
    parse_rate,
    parse_rate_factors,
)
from .console import paint, print_json, print_line
from .fitting import (
    add_fitting_options,
    check_folder,
    check_trained,
    find_folder,
    format_losses,
    has_bar,
    list_losses,
    make_callbacks,
    print_interruption,
    remove_checkpoints,
)
from .interruption import Interruption
from .losses import choose_losses
from .options import (
    Commands,
    add_command,
    add_data_options,
    add_divergence_option,
    add_reading_options,
    add_timeout_option,
    add_weights_options,
    check_output,
    load_model,
)
from .roles import Columns, Roles, load_roles, read_columns, store_roles

__all__ = ["add_train_command"]

_DESCRIPTION = """\
Columns called like inputs of the model feed them; all others of numbers, in
their order, form the input that is left. Labels may be texts, which are
numbered in sorted order. The trained model remembers its columns, labels and
loss: predict and evaluate need not be told again. Ctrl-C ends a training with a
checkpoint, and prints the command that goes on with it, to the same weights.

Losses, optimizers and penalties are a name, and settings after colons:
  --loss     square, absolute, huber:delta=2, log_loss, cross_entropy,
             cross_entropy:class_weight=balanced, next_token
  --rate     sgd:0.1, adam, adam:1e-3, adam:1e-3:cosine, rmsprop:1e-3:alpha=0.9
  --penalty  l2:1e-4, l1:1e-5, elastic:l1=1e-5:l2=1e-4"""

_EXAMPLES = """
train model.onnx data.csv --target y -o trained.onnx
train model.onnx data.csv --target y --rate adam:1e-3:cosine \\
    --epochs 50 --batch-size 64 --validation 0.1 -o trained.onnx --force
train classifier.onnx animals.csv --target kind \\
    --loss cross_entropy --json -o classified.onnx
"""


def add_train_command(commands: Commands) -> None:
    """Add the command to the program.

    Parameters
    ----------
    commands : object
        The result of `argparse.ArgumentParser.add_subparsers`.
    """
    command = add_command(commands, "train", run_train, "Train a model on the rows of a file.",
                          usage="MODEL DATA -o FILE [--target COLUMN ...] [option ...]",
                          description=_DESCRIPTION, examples=_EXAMPLES)
    add_data_options(command)
    how = command.add_argument_group("training")
    how.add_argument("--loss", nargs="+", metavar="LOSS", help="the loss, or OUTPUT=LOSS for each trained output; "
                                                               "default: square, of labels cross_entropy or log_loss")
    how.add_argument("--rate", default="adam", metavar="RATE", help="the optimizer, with its first step size and "
                                                                    "schedule; default: adam, which is adam:1e-3")
    how.add_argument("--penalty", metavar="PENALTY", help="the penalty of the weights; default: none")
    how.add_argument("--epochs", type=int, default=20, metavar="N", help="how often to go over the rows; default: 20")
    how.add_argument("--batch-size", type=int, default=32, metavar="N", help="rows of a step; default: 32")
    how.add_argument("--validation", metavar="SHARE|FILE", help="rows whose loss is computed after every epoch: a "
                                                                "share of the rows, such as 0.1, or a file")
    how.add_argument("--metrics", nargs="+", default=(), metavar="NAME",
                     help="metrics of every epoch, of the validation rows where there are some: accuracy, f1_macro, "
                          "r2, perplexity, train_accuracy ...")
    how.add_argument("--early-stopping", type=int, metavar="N", help="end after N epochs without a smaller validation "
                                                                     "loss, with the weights of the best one")
    how.add_argument("--init", choices=("model", "random"), default="model", help="where the weights start; default: "
                                                                                 "as they are in the model")
    how.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all that is drawn; default: 0")
    how.add_argument("--no-shuffle", action="store_true", help="keep the order of the rows")
    how.add_argument("--clip", metavar="NORM", help="the largest norm of all gradients, or value:0.5")
    how.add_argument("--accumulate", type=int, default=1, metavar="N", help="batches whose gradients are added up for "
                                                                            "a step; default: 1")
    how.add_argument("--average", metavar="AVERAGE", help="write a running average of the weights: ema, ema:0.99, swa")
    which = command.add_argument_group("weights")
    add_weights_options(which)
    which.add_argument("--rate-factors", nargs="+", metavar="NAME=FACTOR",
                       help="factors of the step size of weights, by name or pattern, as 'encoder.*=0.1'; or a number, "
                            "the factor from each layer to the one before it")
    add_reading_options(which)
    which.add_argument("--train-mode", action=argparse.BooleanOptionalAction,
                       help="run Dropout and BatchNormalization in training mode, or not; default: as a module of "
                            "ortpartial.torch.export was, else not")
    where = command.add_argument_group("computation")
    where.add_argument("--engine", choices=("auto", "epoch", "step", "native", "agent"), default="auto",
                       help="what runs the steps; default: the fastest that can")
    where.add_argument("--device", default="cpu", metavar="DEVICE",
                       help="cpu, cuda, cuda:1, or an execution provider and its options, as in "
                            "OpenVINOExecutionProvider:num_streams=1; default: cpu")
    where.add_argument("--precision", choices=("float16", "bfloat16"),
                       help="mixed precision: the dtype of products; bfloat16 for processors with AVX512-BF16, too")
    where.add_argument("--checkpointing", action="store_true",
                       help="recompute values of the forward pass in place of keeping them: less memory, more time")
    where.add_argument("--distributed", action="store_true",
                       help="train in several processes, which torchrun starts: torchrun --nproc_per_node=2 -m "
                            "ortpartial train ...")
    add_timeout_option(where)
    add_divergence_option(where)
    output = command.add_argument_group("output")
    output.add_argument("-o", "--output", "--out", type=Path, required=True, metavar="FILE",
                        help="path of the trained model to write")
    output.add_argument("--plot", type=Path, metavar="FILE", help="picture of the losses to write: .png, .svg or .pdf")
    add_fitting_options(output)


@dataclass(frozen=True)
class Task:
    """A model and the data that it is trained on.

    Parameters
    ----------
    model : Model
        The model.
    losses : BaseLearningLoss, or dict of str to BaseLearningLoss
        The setting `learning_loss`.
    roles : Roles
        The roles of the columns.
    X, y, sample_weight, X_val, y_val : object
        The arguments of `fit`.
    """

    model: Model
    losses: Any
    roles: Roles
    X: Mapping[str, Data]
    y: Data
    sample_weight: Data
    X_val: Data
    y_val: Data


def run_train(args: argparse.Namespace) -> int:
    """Train a model, and write it; of several processes, the first alone writes and prints."""
    if not args.distributed:
        return _train(args)
    with connect_processes() as is_first:
        args.quiet |= not is_first
        return _train(args, is_first)


def _train(args: argparse.Namespace, is_first: bool = True) -> int:
    """Train a model, and write it unless another process does."""
    check_output(args.output, args.force, "the trained model")
    check_suffix(args.output, "an ONNX model", ".onnx")
    _check_options(args)
    folder = find_folder(args)
    check_folder(folder, args)
    task = _read_task(args)
    optimizer = _make_optimizer(args, task, folder)
    start = perf_counter()
    try:
        optimizer.fit(task.X, task.y, task.sample_weight, X_val=task.X_val, y_val=task.y_val,
                      resume=folder if args.resume else None)
        check_trained(optimizer)
    except KeyboardInterrupt:
        if is_first:
            print_interruption(args, optimizer, folder)
        return 130
    except ConvergenceError:
        remove_checkpoints(folder, args)
        raise
    if not is_first:
        return 0
    with Interruption() as interruption:  # The work below is finished even after Ctrl-C.
        interruption.is_raised = False
        _write(optimizer, task.roles, args.output)
        if args.plot is not None:
            save_figure(plot_losses(optimizer), args.plot)
        remove_checkpoints(folder, args)
        _print_end(args, optimizer, perf_counter() - start)
    return 0


def _check_options(args: argparse.Namespace) -> None:
    """Refuse numbers out of range, and a picture that cannot be drawn, before any work is done."""
    for name in ("epochs", "batch_size", "accumulate", "early_stopping"):
        if getattr(args, name) is not None:
            check_count(f"--{name.replace('_', '-')}", getattr(args, name))
    if args.early_stopping and args.validation is None:
        raise SettingError("--early-stopping looks at the validation loss; set rows apart, as --validation 0.1.")
    if args.plot is None:
        return
    check_output(args.plot, args.force, "the picture of the losses")
    if args.plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise SettingError(f"--plot is to end in .png, .svg or .pdf, not {args.plot.suffix!r}.")
    if find_spec("matplotlib") is None:
        raise RuntimeMissingError(f"--plot needs matplotlib: run {install_command('cli')}.")


def _read_task(args: argparse.Namespace) -> Task:
    """Read the model and the data."""
    model = load_model(args)
    stored = load_roles(model.proto)
    words = args.loss or stored.losses
    by_output = resolve_losses(model, parse_losses(words or ["square"], args.target or stored.target))
    columns = read_columns(args.data)
    roles = replace(stored, outputs=list(by_output), weight=args.sample_weight or stored.weight)
    roles = roles.with_target(columns, args.target, args.data)
    roles = replace(roles, losses=choose_losses(words, roles, model, columns, args.quiet))
    losses = parse_losses(roles.losses, roles.target)
    by_output = resolve_losses(model, losses)
    inputs = find_inputs([model.outputs[o] for o in by_output], model.inputs)
    roles, texts = roles.with_features(columns, inputs, args.features, args.data)
    roles = roles.with_labels(columns, by_output, model.outputs)
    X_val, y_val = _read_validation(args, roles, model)
    if (numbered := {n: labels for n, labels in roles.labels.items() if n not in stored.labels}) and not args.quiet:
        for n, labels in numbered.items():
            some = ", ".join(map(str, labels[:10])) + " ..." * (len(labels) > 10)
            print_line(f"{n}: {len(labels)} labels, numbered from 0: {some}", sys.stderr)
    if texts and not args.quiet:
        print_line(f"left out, as they are of texts: {', '.join(texts)}", sys.stderr)
    return Task(model, losses, roles, roles.select_inputs(columns, inputs), roles.select_target(columns, args.data),
                roles.select_weight(columns, args.data), X_val, y_val)


def _read_validation(args: argparse.Namespace, roles: Roles, model: Model) -> tuple[Data, Data]:
    """The share of the rows to validate on, or the rows of a file."""
    if args.validation is None:
        return None, None
    try:
        share = float(args.validation)
    except ValueError:
        path = Path(args.validation)
        columns: Columns = read_columns(path)
        roles = roles.with_target(columns, roles.target, path)
        inputs = {n: model.inputs[n] for n in roles.features}
        roles, _ = roles.with_features(columns, inputs, None, path)
        return roles.select_inputs(columns, inputs), roles.select_target(columns, path)
    if not 0 < share < 1:
        raise SettingError(f"--validation is a file, or a share of the rows between 0 and 1, not {args.validation}.")
    return share, None


def _make_optimizer(args: argparse.Namespace, task: Task, folder: Path) -> OrtGradientForwardBackwardOptimizer:
    """The optimizer of the options."""
    stopping = [EarlyStopping(patience=args.early_stopping)] if args.early_stopping else []
    return OrtGradientForwardBackwardOptimizer(
        task.model, args.weights, learning_loss=task.losses, learning_rate=parse_rate(args.rate),
        learning_penalty=parse_penalty(args.penalty) if args.penalty else None, max_iter=args.epochs,
        batch_size=args.batch_size, shuffle=not args.no_shuffle, init=args.init, train_mode=args.train_mode,
        precision=args.precision, checkpointing="auto" if args.checkpointing else None, random_state=args.seed,
        device=args.device, engine=args.engine, timeout=args.timeout, distributed=args.distributed,
        raise_on_divergence=args.raise_on_divergence, validation_every=1,
        callbacks=make_callbacks(args, folder, *stopping), metrics=args.metrics, verbose=int(has_bar(args)),
        gradient_clipping=parse_clipping(args.clip) if args.clip else None, accumulate=args.accumulate,
        freeze=args.freeze, rate_factors=parse_rate_factors(args.rate_factors) if args.rate_factors else None,
        averaging=parse_averaging(args.average) if args.average else None, use_average=bool(args.average))


def _find_best(optimizer: OrtGradientForwardBackwardOptimizer) -> Json:
    """The record of the epoch whose weights are written: the last, or the best by early stopping."""
    best = next((c.best_epoch_ for c in optimizer.callbacks if isinstance(c, EarlyStopping)), None)
    return next((record for record in optimizer.history_ if record["epoch"] == best), optimizer.history_[-1])


def _write(optimizer: OrtGradientForwardBackwardOptimizer, roles: Roles, path: Path) -> None:
    """Write the trained model, which remembers its columns."""
    model = optimizer.get_trained_onnx()
    store_roles(model, roles)
    write(model, path)


def _print_end(args: argparse.Namespace, optimizer: OrtGradientForwardBackwardOptimizer, seconds: float) -> None:
    """Print where the model is, and the commands that use it."""
    best = _find_best(optimizer)
    if args.json:
        losses = {n: best[n] for n in list_losses(best)}
        print_json({"event": "end", "model": args.output, "epochs": optimizer.n_iter_, "epoch": best["epoch"], **losses,
                    "seconds": seconds, **({"plot": args.plot} if args.plot else {})})
    elif not args.quiet:
        when = f" of epoch {best['epoch']}, the best of {optimizer.n_iter_}" if args.early_stopping else ""
        print_line(f"{paint(str(args.output), 'bold')}: the trained model{when}, {format_losses(best)}")
        if args.plot is not None:
            print_line(f"{paint(str(args.plot), 'bold')}: the losses")
        print_line(f"next: {shlex.join(['ortpartial', 'evaluate', str(args.output), str(args.data)])}")
