"""The commands `jvp`, `jacobian`, `hessian` and `hvp`: write derivatives of a model as a model."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from onnx import ModelProto

from ortpartial.derivatives import hessian_model, hvp_model, jacobian_model, jvp_model
from ortpartial.model import Model, write

from .console import print_json, print_line
from .options import Commands, add_command, add_json_option, add_output_option, add_reading_options, load_model

__all__ = ["add_derivative_commands", "write_derivative"]

#: By command: its function, its purpose, and a description of inputs and outputs.
_COMMANDS: dict[str, tuple[Callable[..., ModelProto], str, str]] = {
    "jvp": (jvp_model, "Write directional derivatives of a model as a model.", """\
The inputs are those of the model, then the tangents NAME_tangent; the outputs
are OUTPUT_tangent each. It takes about two times as long as the model."""),
    "jacobian": (jacobian_model, "Write the Jacobian of a model as a model.", """\
The outputs are OUTPUT_by_NAME, of the sizes of the output, then of the tensor;
with --per-row those of each row of a batch by itself."""),
    "hessian": (hessian_model, "Write the Hessian of a model as a model.", """\
The outputs are OUTPUT_by_NAME_by_NAME, of the sizes of the output, then of both
tensors; with --per-row those of each row of a batch by itself."""),
    "hvp": (hvp_model, "Write products of the Hessian with a vector as a model.", """\
The inputs are those of the model, then the vectors NAME_tangent; the outputs
are NAME_hvp each. The model's outputs are summed up, and no Hessian is made."""),
}


def add_derivative_commands(commands: Commands) -> None:
    """Add the commands to the program.

    Parameters
    ----------
    commands : object
        The result of `argparse.ArgumentParser.add_subparsers`.
    """
    for name, (function, summary, description) in _COMMANDS.items():
        command = add_command(commands, name, _run, summary, usage="MODEL -o FILE [--wrt NAME ...] [option ...]",
                              description=description, examples=f"\n{name} model.onnx -o {name}.onnx --wrt x\n")
        add_output_option(command)
        add_reading_options(command)
        command.add_argument("--wrt", nargs="+", metavar="NAME",
                             help="tensors to differentiate with respect to; default: the weights")
        command.add_argument("--outputs", nargs="+", metavar="NAME",
                             help="outputs to differentiate; default: all floating-point ones")
        if name == "jacobian":
            command.add_argument("--mode", choices=("auto", "forward", "reverse"), default="auto",
                                 help="a run for every element of a tensor, or of an output; default: the fewer")
        if name in ("jacobian", "hessian"):
            command.add_argument("--per-row", action="store_true", help="each row of a batch by itself")
        if name == "jvp":
            command.add_argument("--directions", metavar="N", help="so many tangents in one run: a size, or a name")
        add_json_option(command)
        command.set_defaults(derivative=function)


def _run(args: argparse.Namespace) -> int:
    """Write derivatives of a model."""
    settings = {n: getattr(args, n) for n in ("mode", "per_row") if hasattr(args, n)}
    if directions := getattr(args, "directions", None):
        settings["directions"] = int(directions) if directions.isdigit() else directions
    source: Model = load_model(args)
    return write_derivative(args.derivative(source, args.wrt, args.outputs, **settings), args.output, args.json)


def write_derivative(model: ModelProto, path: Path, as_json: bool) -> int:
    """Write a model of derivatives, and print its inputs and outputs."""
    write(model, path)
    inputs, outputs = ([v.name for v in values] for values in (model.graph.input, model.graph.output))
    if as_json:
        print_json({"model": path, "inputs": inputs, "outputs": outputs})
    else:
        print_line(f"{path}: {', '.join(inputs)} -> {', '.join(outputs)}")
    return 0
