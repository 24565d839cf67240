"""The command `gradient`: write the gradient of a model as a model."""

from __future__ import annotations

import argparse

from ortpartial.autodiff import gradient_model
from ortpartial.model import load, write

from .options import add_output_option, add_straight_through_option

__all__ = ["add_gradient_options", "run_gradient"]


def add_gradient_options(command: argparse.ArgumentParser) -> None:
    add_output_option(command)
    add_straight_through_option(command)
    command.add_argument("--wrt", nargs="+", metavar="NAME", help="tensors to differentiate with respect to; default: "
                                                                  "the weights")
    command.add_argument("--outputs", nargs="+", metavar="NAME", help="outputs to differentiate; default: all "
                                                                      "floating-point ones")
    command.add_argument("--cotangents", choices=("input", "ones"), default="input",
                         help="whether the cotangents of the outputs are inputs of the gradient, or ones")
    command.add_argument("--suffix", default="_grad", help="suffix of the names of gradients; default: _grad")


def run_gradient(args: argparse.Namespace) -> int:
    """Write the gradient of a model."""
    source = load(args.model, straight_through=args.straight_through)
    model = gradient_model(source, args.wrt, args.outputs, cotangents=args.cotangents, suffix=args.suffix)
    write(model, args.output)
    inputs, outputs = (", ".join(v.name for v in values) for values in (model.graph.input, model.graph.output))
    print(f"{args.output}: {inputs} -> {outputs}")
    return 0
