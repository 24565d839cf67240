"""The command line: `gradient` and `export` write models, `info` lists what can be trained, `run` trains."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import onnx

from .autodiff import grad, gradient_model, gradient_support, nodes_between, resolve_weights
from .estimator import OrtGradientForwardBackwardOptimizer
from .exceptions import DataError, ModelError, NoGradientError, OrtPartialError, SettingError
from .graph import Node, topological, walk_nodes
from .model import Model, load, write
from .runtime import TRUSTED, find_untrusted
from .training import forward_graph
from .training_info import TrainingSession

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default those of the process.

    Returns
    -------
    int
        The exit code: 0 for success, 1 if `info` finds a reason why the model cannot be trained, 2 after an error,
        which is printed as one line to standard error.

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
    """The parser of all commands; the option `run` of each is the function that executes it."""
    parser = argparse.ArgumentParser(prog="ortpartial", description="Train any ONNX graph, or only a part of a model.")
    parser.add_argument("--version", action=_PrintVersions, nargs=0, help="print the versions and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], description: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=description, description=description)
        command.add_argument("model", type=Path, help="path of an ONNX model")
        command.set_defaults(run=run)
        return command

    _add_gradient_options(add("gradient", _gradient, "Write the gradient of a model as a model."))
    _add_weights_option(add("info", _info, "List the operators of a model, their gradients, and what can be trained."))
    _add_export_options(add("export", _export, "Write a model with its training, as in the ONNX standard."))
    _add_run_options(add("run", _run, "Run training steps of a model that was exported with its training."))
    return parser


class _PrintVersions(argparse.Action):
    """Print the versions of ortpartial, onnx and every installed onnxruntime, none of which is imported."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        installed = {d.name: d.version for d in distributions() if d.name.startswith("onnxruntime")}
        # The package stands above its rooms, which do not import it.
        print(f"ortpartial {sys.modules[__package__].__version__}\nonnx {onnx.__version__}")
        for name in sorted(installed):
            print(f"{name} {installed[name]}")
        if not installed:
            print("onnxruntime is not installed")
        parser.exit()


def _add_weights_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--weights", nargs="+", metavar="NAME", help="initializers to train; default: all trainable")


def _add_output_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", type=Path, required=True, help="path of the model to write")


def _add_gradient_options(command: argparse.ArgumentParser) -> None:
    _add_output_option(command)
    command.add_argument("--wrt", nargs="+", metavar="NAME", help="tensors to differentiate with respect to; default: "
                                                                  "the weights")
    command.add_argument("--outputs", nargs="+", metavar="NAME", help="outputs to differentiate; default: all "
                                                                      "floating-point ones")
    command.add_argument("--cotangents", choices=("input", "ones"), default="input",
                         help="whether the cotangents of the outputs are inputs of the gradient, or ones")
    command.add_argument("--suffix", default="_grad", help="suffix of the names of gradients; default: _grad")


def _add_export_options(command: argparse.ArgumentParser) -> None:
    _add_output_option(command)
    command.add_argument("--training", choices=("standard", "lowered"), default="standard",
                         help="with the training operators of the standard, or without them; default: standard")
    _add_weights_option(command)
    command.add_argument("--loss", default="square_error", help="the loss function; default: square_error")
    command.add_argument("--rate", default="SGD", help="the update rule; default: SGD")
    command.add_argument("--eta0", type=float, help="the learning rate; default: that of the update rule")
    command.add_argument("--init", choices=("random", "model"), default="random",
                         help="initial weights: random, or those of the model; default: random")
    command.add_argument("--train-mode", action="store_true", help="run Dropout and BatchNormalization in train mode")


def _add_run_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("data", type=Path, help="path of an .npz file with an array for each input of a step")
    command.add_argument("--steps", type=int, default=100, help="number of steps; default: 100")
    command.add_argument("--batch", type=int, help="batch size, of rows in their order; default: all rows")
    command.add_argument("--seed", type=int, help="reset the weights by the model's initialization, with this seed")
    command.add_argument("-o", "--output", type=Path, help="path of the trained model to write")


def _gradient(args: argparse.Namespace) -> int:
    """Write the gradient of a model."""
    model = gradient_model(args.model, args.wrt, args.outputs, cotangents=args.cotangents, suffix=args.suffix)
    write(model, args.output)
    inputs, outputs = (", ".join(v.name for v in values) for values in (model.graph.input, model.graph.output))
    print(f"{args.output}: {inputs} -> {outputs}")
    return 0


def _info(args: argparse.Namespace) -> int:
    """Print a table of the operators, the size of the trained weights, and the reasons against training."""
    model = load(args.model)
    outputs = [n for n, v in model.outputs.items() if v.is_float]
    weights: list[str] = []
    refusals: list[str] = []
    try:
        weights = resolve_weights(model, args.weights, outputs)
    except ModelError as e:
        if args.weights is not None:
            raise
        blockers = [str(e)]
    else:
        blockers = list(_find_blockers(model, weights, outputs))
        graph = forward_graph(load(model, variables=weights), weights, outputs)
        refusals = find_untrusted(graph, weights, input_grads=[])
    print(*_format_table(model, refusals), sep="\n")
    sizes = {n: v.array.size for n, v in model.initializers.items() if v.is_float and v.array is not None}
    print(f"\ntrained: {len(weights)} of {len(sizes)} float initializers, {sum(sizes[w] for w in weights):,} of "
          f"{sum(sizes.values()):,} numbers")
    for first, *others in _group_by_operator(refusals).values():
        print(f"not by the agent: {first}{f' (and {len(others)} more)' if others else ''}")
    for blocker in blockers:
        print(f"blocked: {blocker}")
    return 1 if blockers else 0


def _export(args: argparse.Namespace) -> int:
    """Write a model with its training as `training_info`."""
    optimizer = OrtGradientForwardBackwardOptimizer(args.model, args.weights, learning_loss=args.loss,
                                                    learning_rate=args.rate, train_mode=args.train_mode)
    if args.eta0 is not None:
        optimizer.set_params(learning_rate__eta0=args.eta0)
    write(optimizer.get_training_onnx(args.training, init=args.init), args.output)
    session = TrainingSession.from_model(args.output)
    print(f"{args.output}: a step reads {', '.join(session.inputs)}, gives {', '.join(session.outputs)}, and changes "
          f"{', '.join(session.state)}")
    return 0


def _run(args: argparse.Namespace) -> int:
    """Run training steps, and print the scalar outputs of the first and the last one."""
    session = TrainingSession.from_model(args.model)
    data = _read_data(args.data, session.inputs)
    rows = min((len(a) for a in data.values() if a.ndim), default=1)
    size = min(args.batch or rows, rows)
    if args.steps < 1 or size < 1:
        raise SettingError(f"--steps and --batch are integers of at least 1, not {args.steps} and {args.batch}.")
    if args.seed is not None:
        session.initialize(args.seed)
    for k in range(args.steps):
        batch = np.arange(k * size, (k + 1) * size) % rows
        outputs = session.step({n: a[batch] if a.ndim else a for n, a in data.items()})
        if k in (0, args.steps - 1):
            scalars = {n: float(v) for n, v in outputs.items() if v.size == 1 and v.dtype.kind == "f"}
            print(f"step {k + 1}: {', '.join(f'{n} {v:.6g}' for n, v in scalars.items())}")
    if args.output:
        session.save(args.output)
        print(f"{args.output}: the model with its new weights")
    return 0


def _read_data(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of a file for the inputs of a step."""
    try:
        with path.open("rb") as file:
            archive = np.load(file)
            arrays = {n: archive[n] for n in archive.files}
    except (ValueError, AttributeError, EOFError, BadZipFile):  # numpy's own message recommends unpickling the file.
        raise DataError(f"{str(path)!r} is no .npz file of arrays of numbers.") from None
    if missing := [n for n in names if n not in arrays]:
        raise DataError(f"{str(path)!r} lacks {missing[0]!r}; a step reads {', '.join(map(repr, names))}.")
    if len({len(arrays[n]) for n in names if arrays[n].ndim}) > 1:
        raise DataError(f"The arrays of {str(path)!r} have different numbers of rows.")
    return {n: arrays[n] for n in names}


def _find_blockers(model: Model, weights: Sequence[str], outputs: Sequence[str]) -> Iterator[str]:
    """The reasons why the weights cannot be trained: a sentence for each node without a gradient."""
    ys, ws = [model.outputs[o] for o in outputs], [model.initializers[w] for w in weights]
    nodes = [node for node in walk_nodes(nodes_between(ys, set(ws), ())) if gradient_support(node) == "none"]
    for node in nodes:
        where = f"node {node.name!r}" if node.name else f"the node of {node.outputs[0].hint!r}"
        yield f"{_operator(node)} ({where}) has no gradient."
    if not nodes:
        try:
            grad(ys, ws)
        except NoGradientError as e:  # An operator in a function body or a subgraph, or an attribute without a rule.
            yield str(e)


def _format_table(model: Model, refusals: Sequence[str]) -> Iterator[str]:
    """The lines of a table of operators: their number, their kind of gradient, and the engines that train them."""
    nodes = list(walk_nodes(topological(list(model.outputs.values()))))
    counts = Counter(map(_operator, nodes))
    gradients = {_operator(node): gradient_support(node) for node in nodes}
    refused = _group_by_operator(refusals)
    # A refusal that names no operator, such as one of the opset, concerns the whole graph.
    no_agent = not refused.keys() <= counts.keys()
    width = max(map(len, ("operator", *counts)))
    yield f"{'operator':{width}}  nodes  gradient  engines"
    for operator, count in sorted(counts.items()):
        gradient = gradients[operator]
        agent = not no_agent and operator not in refused and (operator in TRUSTED or gradient == "zero")
        engines = "-" if gradient == "none" else "agent step epoch" if agent else "step epoch"
        yield f"{operator:{width}}  {count:5}  {gradient:8}  {engines}"


def _group_by_operator(refusals: Sequence[str]) -> dict[str, list[str]]:
    """The refusals of the agent by the operator with which each begins, as in "Elu (node 'a'): ..."."""
    groups: dict[str, list[str]] = {}
    for refusal in refusals:
        groups.setdefault(refusal.split(" (")[0], []).append(refusal)
    return groups


def _operator(node: Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
