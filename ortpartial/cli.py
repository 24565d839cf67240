"""What can be done from a shell? `ortpartial gradient` writes the gradient of a model, `info` says what would train."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

from .exceptions import ModelError, NoGradientError, OrtPartialError
from .forward_backward import resolve_weights
from .gradient import _dependent, grad, support
from .gradient_model import gradient_model
from .graph import Node, topological
from .model import Model, load
from .step import forward_graph
from .subgraph import nested
from .trust import TRUSTED, untrusted

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        Its words; those that the program was called with where left out.

    Returns
    -------
    int
        The exit code: 0; 1 where `info` finds something that blocks training; 2 after an error, which is told in one
        line on the error stream.

    Examples
    --------
    >>> import onnx
    >>> from ortpartial import build, op, variable
    >>> x = variable("x", "float32", ["N"])
    >>> onnx.save(build([x], {"y": op.Exp(x)}), "exp.onnx")
    >>> main(["gradient", "exp.onnx", "-o", "exp_grad.onnx", "--wrt", "x"])
    exp_grad.onnx: x, y_grad -> x_grad
    0
    """
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except (OrtPartialError, OSError) as e:
        print(f"ortpartial: {' '.join(str(e).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    """All commands; each names in `run` the function that does it."""
    parser = argparse.ArgumentParser(prog="ortpartial", description="Train any ONNX graph, or only a part of a model.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("model", type=Path, help="path of an ONNX model")
        made.set_defaults(run=run)
        return made

    gradient = command("gradient", _gradient, "Write the gradient of a model as a model.")
    gradient.add_argument("-o", "--output", type=Path, required=True, help="path of the model to write")
    gradient.add_argument("--wrt", nargs="+", metavar="NAME", help="by these tensors; default: the weights")
    gradient.add_argument("--outputs", nargs="+", metavar="NAME", help="of these outputs; default: all of real numbers")
    gradient.add_argument("--cotangents", choices=("input", "ones"), default="input",
                          help="the gradients of a loss by the outputs are inputs, or ones")  # fmt: skip
    gradient.add_argument("--suffix", default="_grad", help="what is added to names; default: _grad")
    info = command("info", _info, "Say by which operators of a model gradients flow, and what would be trained.")
    info.add_argument("--weights", nargs="+", metavar="NAME", help="initializers to train; default: all that can be")
    return parser


def _gradient(args: argparse.Namespace) -> int:
    """Write the gradient of a model."""
    found = gradient_model(args.model, args.wrt, args.outputs, cotangents=args.cotangents, suffix=args.suffix)
    onnx.save(found, args.output)
    inputs, outputs = (", ".join(v.name for v in values) for values in (found.graph.input, found.graph.output))
    print(f"{args.output}: {inputs} -> {outputs}")
    return 0


def _info(args: argparse.Namespace) -> int:
    """Print a line for each operator, what is trained, and what blocks that."""
    model = load(args.model)
    outputs = [n for n, v in model.outputs.items() if v.is_float]
    blocking, refused, weights = [], [], []
    try:
        weights = resolve_weights(model, args.weights, outputs)
    except ModelError as e:
        if args.weights is not None:
            raise
        blocking = [str(e)]
    else:
        blocking = list(_blocking(model, weights, outputs))
        light = load(model, variables=weights)
        refused = untrusted(forward_graph(light, weights, outputs), weights, input_grads=[])
    for line in _table(model, refused):
        print(line)
    sizes = {n: v.array.size for n, v in model.initializers.items() if v.is_float and v.array is not None}
    print(f"\ntrained: {len(weights)} of {len(sizes)} float initializers, {sum(sizes[w] for w in weights):,} of "
          f"{sum(sizes.values()):,} numbers")  # fmt: skip
    alike = Counter(reason.split(" (")[0] for reason in refused)
    for reason in {reason.split(" (")[0]: reason for reason in reversed(refused)}.values():
        more = alike[reason.split(" (")[0]] - 1
        print(f"not by the agent: {reason}{f' (and {more} more)' if more else ''}")
    for reason in blocking:
        print(f"blocked: {reason}")
    return 1 if blocking else 0


def _blocking(model: Model, weights: Sequence[str], outputs: Sequence[str]) -> Iterator[str]:
    """Why the weights cannot be trained: a sentence for each node that has no gradient."""
    ys, ws = [model.outputs[o] for o in outputs], [model.initializers[w] for w in weights]
    stiff = [node for node in nested(_dependent(ys, set(ws), ())) if support(node) == "none"]
    for node in stiff:
        where = f"node {node.name!r}" if node.name else f"the node of {node.outputs[0].hint!r}"
        yield f"{_operator(node)} ({where}) has no gradient."
    if not stiff:
        try:
            grad(ys, ws)
        except NoGradientError as e:  # of an operator in the body of another, or in a way that has no rule
            yield str(e)


def _table(model: Model, refused: Sequence[str]) -> Iterator[str]:
    """A line for each operator: how often it is there, how gradients flow through it, and what trains it."""
    nodes = list(nested(topological(list(model.outputs.values()))))
    counts, kinds = Counter(map(_operator, nodes)), {_operator(node): support(node) for node in nodes}
    named = {reason.split(" (")[0] for reason in refused}
    general = any(name not in counts for name in named)  # such as an opset that the agent does not know
    width = max(map(len, ("operator", *counts)))
    yield f"{'operator':{width}}  nodes  gradient  engines"
    for name, count in sorted(counts.items()):
        kind = kinds[name]
        agent = not general and name not in named and (name in TRUSTED or kind == "zero")
        engines = "-" if kind == "none" else "agent step epoch" if agent else "step epoch"
        yield f"{name:{width}}  {count:5}  {kind:8}  {engines}"


def _operator(node: Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
