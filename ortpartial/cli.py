"""What can be done from a shell? `gradient` and `export` write models, `info` says what would train, `run` trains."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import onnx

from .autodiff import grad, gradient_model, gradient_support, nodes_between, resolve_weights
from .estimator import OrtGradientForwardBackwardOptimizer
from .exceptions import DataError, ModelError, NoGradientError, OrtPartialError, SettingError
from .graph import Node, topological, walk_nodes
from .model import Model, load
from .runtime import TRUSTED, find_untrusted
from .training import forward_graph
from .training_info import TrainingSession

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

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("model", type=Path, help="path of an ONNX model")
        made.set_defaults(run=run)
        return made

    gradient = command("gradient", _gradient, "Write the gradient of a model as a model.")
    gradient.add_argument("-o", "--output", type=Path, required=True, help="path of the model to write")
    gradient.add_argument("--wrt", nargs="+", metavar="NAME", help="by these tensors; default: the weights")
    gradient.add_argument("--outputs", nargs="+", metavar="NAME", help="of these outputs; default: all of real numbers")
    gradient.add_argument("--cotangents", choices=("input", "ones"), default="input",
                          help="the gradients of a loss by the outputs are inputs, or ones")
    gradient.add_argument("--suffix", default="_grad", help="what is added to names; default: _grad")
    info = command("info", _info, "Say by which operators of a model gradients flow, and what would be trained.")
    info.add_argument("--weights", nargs="+", metavar="NAME", help="initializers to train; default: all that can be")
    export = command("export", _export, "Write a model with its training inside, as the ONNX standard has it.")
    export.add_argument("-o", "--output", type=Path, required=True, help="path of the model to write")
    export.add_argument("--training", choices=("standard", "lowered"), default="standard",
                        help="with the operators of the standard, or with plain ones; default: standard")
    export.add_argument("--weights", nargs="+", metavar="NAME", help="initializers to train; default: all that can be")
    export.add_argument("--loss", default="square_error", help="what a prediction costs; default: square_error")
    export.add_argument("--rate", default="SGD", help="how a gradient becomes a step; default: SGD")
    export.add_argument("--eta0", type=float, help="the step size; default: that of the rate")
    export.add_argument("--init", choices=("random", "model"), default="random",
                        help="how an initialization starts the weights; default: random")
    export.add_argument("--train-mode", action="store_true", help="let Dropout and BatchNormalization train")
    train = command("run", _run, "Take training steps of a model that has its training inside.")
    train.add_argument("data", type=Path, help="path of an .npz file with an array for each input of a step")
    train.add_argument("--steps", type=int, default=100, help="how many; default: 100")
    train.add_argument("--batch", type=int, help="rows a step, one batch after the other; default: all")
    train.add_argument("--seed", type=int, help="start anew from the model's initialization, with this seed")
    train.add_argument("-o", "--output", type=Path, help="where to write the model with its new weights")
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
        refused = find_untrusted(forward_graph(light, weights, outputs), weights, input_grads=[])
    for line in _table(model, refused):
        print(line)
    sizes = {n: v.array.size for n, v in model.initializers.items() if v.is_float and v.array is not None}
    print(f"\ntrained: {len(weights)} of {len(sizes)} float initializers, {sum(sizes[w] for w in weights):,} of "
          f"{sum(sizes.values()):,} numbers")
    alike = Counter(reason.split(" (")[0] for reason in refused)
    for reason in {reason.split(" (")[0]: reason for reason in reversed(refused)}.values():
        more = alike[reason.split(" (")[0]] - 1
        print(f"not by the agent: {reason}{f' (and {more} more)' if more else ''}")
    for reason in blocking:
        print(f"blocked: {reason}")
    return 1 if blocking else 0


def _export(args: argparse.Namespace) -> int:
    """Write a model with its training."""
    optimizer = OrtGradientForwardBackwardOptimizer(args.model, args.weights, learning_loss=args.loss,
                                                    learning_rate=args.rate, train_mode=args.train_mode)
    if args.eta0 is not None:
        optimizer.set_params(learning_rate__eta0=args.eta0)
    onnx.save(optimizer.get_training_onnx(args.training, init=args.init), args.output)
    session = TrainingSession.from_model(args.output)
    print(f"{args.output}: a step reads {', '.join(session.inputs)}, gives {', '.join(session.outputs)}, and changes "
          f"{', '.join(session.state)}")
    return 0


def _run(args: argparse.Namespace) -> int:
    """Train, and say what the first and the last step gave."""
    session = TrainingSession.from_model(args.model)
    data = _read_data(args.data, session.inputs)
    rows = min((len(a) for a in data.values() if a.ndim), default=1)
    size = min(args.batch or rows, rows)
    if args.steps < 1 or size < 1:
        raise SettingError(f"--steps and --batch are whole numbers of at least 1, not {args.steps} and {args.batch}.")
    if args.seed is not None:
        session.initialize(args.seed)
    for k in range(args.steps):
        chosen = np.arange(k * size, (k + 1) * size) % rows
        found = session.step({n: a[chosen] if a.ndim else a for n, a in data.items()})
        if k in (0, args.steps - 1):
            numbers = ", ".join(f"{n} {float(v):.6g}" for n, v in found.items() if v.size == 1 and v.dtype.kind == "f")
            print(f"step {k + 1}: {numbers}")
    if args.output:
        session.save(args.output)
        print(f"{args.output}: the model with its new weights")
    return 0


def _read_data(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of a file that a step reads."""
    try:
        with path.open("rb") as file:
            stored = np.load(file)
            data = {n: stored[n] for n in stored.files}
    except (ValueError, AttributeError, EOFError, BadZipFile):  # numpy's advice is to unpickle what it cannot read
        raise DataError(f"{str(path)!r} is no .npz file of arrays of numbers.") from None
    if missing := [n for n in names if n not in data]:
        raise DataError(f"{str(path)!r} lacks {missing[0]!r}; a step reads {', '.join(map(repr, names))}.")
    if len({len(data[n]) for n in names if data[n].ndim}) > 1:
        raise DataError(f"The arrays of {str(path)!r} have different numbers of rows.")
    return {n: data[n] for n in names}


def _blocking(model: Model, weights: Sequence[str], outputs: Sequence[str]) -> Iterator[str]:
    """Why the weights cannot be trained: a sentence for each node that has no gradient."""
    ys, ws = [model.outputs[o] for o in outputs], [model.initializers[w] for w in weights]
    stiff = [node for node in walk_nodes(nodes_between(ys, set(ws), ())) if gradient_support(node) == "none"]
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
    nodes = list(walk_nodes(topological(list(model.outputs.values()))))
    counts, kinds = Counter(map(_operator, nodes)), {_operator(node): gradient_support(node) for node in nodes}
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
