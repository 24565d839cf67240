"""The command `export`: write a model with its training, as in the ONNX standard."""

from __future__ import annotations

import argparse
from typing import Any

from ortpartial.estimator import OrtGradientForwardBackwardOptimizer
from ortpartial.model import load, write
from ortpartial.training_info import TrainingSession

from .console import print_json
from .options import (
    add_command,
    add_json_option,
    add_output_option,
    add_straight_through_option,
    add_weights_options,
)
from .pieces import parse_loss, parse_rate

__all__ = ["add_export_command"]

_DESCRIPTION = """\
The model that is written holds its loss, gradient and optimizer beside the
graph, as the ONNX standard for training defines it. The command run executes
it, and so does any program that reads the standard."""

_EXAMPLES = """
export model.onnx -o training.onnx --rate adam:1e-3
run training.onnx data.npz --epochs 10 --batch 32 -o trained.onnx
"""


def add_export_command(commands: Any) -> None:
    """Add the command to the program.

    Parameters
    ----------
    commands : object
        What `argparse.ArgumentParser.add_subparsers` returned.
    """
    command = add_command(commands, "export", run_export,
                          "Write a model with its training, as in the ONNX standard.",
                          usage="MODEL -o FILE [--rate RATE] [option ...]",
                          description=_DESCRIPTION, examples=_EXAMPLES)
    add_output_option(command)
    command.add_argument("--training", choices=("standard", "lowered"), default="standard",
                         help="with the training operators of the standard, or without them; default: standard")
    add_weights_options(command)
    add_straight_through_option(command)
    command.add_argument("--loss", default="square_error", help="the loss, as for train; default: square_error")
    command.add_argument("--rate", default="SGD", help="the optimizer, as for train; default: SGD")
    command.add_argument("--eta0", type=float, help="the first step size; default: that of --rate")
    command.add_argument("--init", choices=("random", "model"), default="random",
                         help="initial weights: random, or those of the model; default: random")
    command.add_argument("--train-mode", action="store_true", help="run Dropout and BatchNormalization in train mode")
    add_json_option(command)


def run_export(args: argparse.Namespace) -> int:
    """Write a model with its training as `training_info`."""
    source = load(args.model, straight_through=args.straight_through)
    optimizer = OrtGradientForwardBackwardOptimizer(source, args.weights, learning_loss=parse_loss(args.loss),
                                                    learning_rate=parse_rate(args.rate), train_mode=args.train_mode,
                                                    freeze=args.freeze)
    if args.eta0 is not None:
        optimizer.set_params(learning_rate__eta0=args.eta0)
    write(optimizer.get_training_onnx(args.training, init=args.init), args.output)
    session = TrainingSession.from_model(args.output)
    if args.json:
        print_json({"model": args.output, "inputs": session.inputs, "outputs": session.outputs,
                    "state": list(session.state)})
    else:
        print(f"{args.output}: a step reads {', '.join(session.inputs)}, gives {', '.join(session.outputs)}, and "
              f"changes {', '.join(session.state)}")
    return 0
