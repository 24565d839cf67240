"""The command `gradient`: write the gradient of a model as a model."""

from __future__ import annotations

import argparse

from ortpartial.rewrites import gradient_model

from .derivatives import write_derivative
from .options import Commands, add_command, add_json_option, add_output_option, add_reading_options, load_model

__all__ = ["add_gradient_command"]

_DESCRIPTION = """\
The inputs are those of the model, then the cotangents of its outputs; the
outputs are the gradients, NAME_grad each. Any runtime runs it."""

_EXAMPLES = """
gradient model.onnx -o gradient.onnx
gradient model.onnx -o by_x.onnx --wrt x --cotangents ones
"""


def add_gradient_command(commands: Commands) -> None:
    """Add the command to the program.

    Parameters
    ----------
    commands : object
        The result of `argparse.ArgumentParser.add_subparsers`.
    """
    command = add_command(commands, "gradient", run_gradient, "Write the gradient of a model as a model.",
                          usage="MODEL -o FILE [--wrt NAME ...] [option ...]",
                          description=_DESCRIPTION, examples=_EXAMPLES)
    add_output_option(command)
    add_reading_options(command)
    command.add_argument("--wrt", nargs="+", metavar="NAME", help="tensors to differentiate with respect to; default: "
                                                                  "the weights")
    command.add_argument("--outputs", nargs="+", metavar="NAME", help="outputs to differentiate; default: all "
                                                                      "floating-point ones")
    command.add_argument("--cotangents", choices=("input", "ones"), default="input",
                         help="whether the cotangents of the outputs are inputs of the gradient, or ones")
    command.add_argument("--suffix", default="_grad", help="suffix of the names of gradients; default: _grad")
    add_json_option(command)


def run_gradient(args: argparse.Namespace) -> int:
    """Write the gradient of a model."""
    source = load_model(args)
    model = gradient_model(source, args.wrt, args.outputs, cotangents=args.cotangents, suffix=args.suffix)
    return write_derivative(model, args.output, args.json)
