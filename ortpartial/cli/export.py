"""The command `export`: write a model with its training, as in the ONNX standard, or a training kit."""

from __future__ import annotations

import argparse

from onnx import ModelProto

from ortpartial.estimator import OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import SettingError
from ortpartial.kits import TARGETS, TrainingKit, write_kit
from ortpartial.model import read, write
from ortpartial.training_info import TrainingSession

from .component_specs import parse_loss, parse_rate
from .console import print_json, print_line
from .options import (
    Commands,
    add_command,
    add_json_option,
    add_output_option,
    add_reading_options,
    add_weights_options,
    load_model,
)

__all__ = ["add_export_command"]

_DESCRIPTION = """\
The model that is written holds its loss, gradient and optimizer beside the
graph, as the ONNX standard for training defines it. The command run executes
it, and so does any program that reads the standard.

With --kit it is a folder: a step as a plain graph, the weights of the model,
and runners, to train in a browser, in Node, C, C++ or Java. The training is
that of the model where it stores one."""

_EXAMPLES = """
export model.onnx -o training.onnx --rate adam:1e-3
run training.onnx data.npz --epochs 10 --batch 32 -o trained.onnx
export model.onnx --kit -o kit --target web --batch-size 32
"""


def add_export_command(commands: Commands) -> None:
    """Add the command to the program.

    Parameters
    ----------
    commands : object
        The result of `argparse.ArgumentParser.add_subparsers`.
    """
    command = add_command(commands, "export", run_export,
                          "Write a model with its training, as in the ONNX standard, or a training kit.",
                          usage="MODEL -o FILE [--kit] [--rate RATE] [option ...]",
                          description=_DESCRIPTION, examples=_EXAMPLES)
    add_output_option(command)
    command.add_argument("--kit", action="store_true", help="write a training kit into the folder FILE")
    command.add_argument("--target", nargs="+", metavar="WHERE",
                         help=f"whose runners a kit has: {', '.join(TARGETS)}; default: web")
    command.add_argument("--batch-size", nargs="+", type=int, metavar="N",
                         help="rows of a batch of a kit; several numbers: a graph for each; default: any, and 32")
    command.add_argument("--training", choices=("standard", "lowered"), default="standard",
                         help="with the training operators of the standard, or without them; default: standard")
    add_weights_options(command)
    add_reading_options(command)
    command.add_argument("--loss", default="square_error", help="the loss, as for train; default: square_error")
    command.add_argument("--rate", default="SGD", help="the optimizer, as for train; default: SGD")
    command.add_argument("--eta0", type=float, help="the first step size; default: that of --rate")
    command.add_argument("--init", choices=("random", "model"), default="random",
                         help="initial weights: random, or those of the model, as a kit has them; default: random")
    command.add_argument("--train-mode", action=argparse.BooleanOptionalAction,
                         help="run Dropout and BatchNormalization in training mode, or not; default: as a module of "
                              "ortpartial.torch.export was, else not")
    add_json_option(command)


def run_export(args: argparse.Namespace) -> int:
    """Write a model with its training as `training_info`, or a kit."""
    if not args.kit and (args.target or args.batch_size):
        raise SettingError("--target and --batch-size are for a training kit; add --kit.")
    if args.kit and read(args.model).training_info:
        return _write_kit(args, read(args.model))
    source = load_model(args)
    optimizer = OrtGradientForwardBackwardOptimizer(source, args.weights, learning_loss=parse_loss(args.loss),
                                                    learning_rate=parse_rate(args.rate), train_mode=args.train_mode,
                                                    freeze=args.freeze)
    if args.eta0 is not None:
        optimizer.set_params(learning_rate__eta0=args.eta0)
    if args.kit:
        return _write_kit(args, optimizer.get_training_onnx("lowered", init="model"))
    write(optimizer.get_training_onnx(args.training, init=args.init), args.output)
    session = TrainingSession.from_model(args.output)
    _report(args, session.inputs, session.outputs, list(session.state))
    return 0


def _write_kit(args: argparse.Namespace, training: ModelProto) -> int:
    """Write a training kit."""
    if args.output.suffix == ".onnx":
        raise SettingError(f"A kit is a folder, and {str(args.output)!r} is named like a file.")
    size, *others = args.batch_size or (None,)
    write_kit(training, args.output, args.target or ("web",), batch_size=size,
              batch_sizes=args.batch_size if others else None)
    kit = TrainingKit(args.output)
    _report(args, *([t.name for t in tensors] for tensors in (
        kit.manifest.inputs, kit.manifest.outputs, kit.manifest.state)))
    return 0


def _report(args: argparse.Namespace, inputs: list[str], outputs: list[str], state: list[str]) -> None:
    """Print the file and its inputs, outputs and state."""
    if args.json:
        print_json({"model": args.output, "inputs": inputs, "outputs": outputs, "state": state})
    else:
        print_line(f"{args.output}: a step reads {', '.join(inputs)}, gives {', '.join(outputs)}, and changes "
                   f"{', '.join(state)}")
