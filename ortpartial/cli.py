"""The command line: `gradient` and `export` write models, `info` lists what can be trained, `run` trains."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import onnx
from tqdm import tqdm

from .autodiff import explain_untrained, grad, gradient_model, gradient_support, nodes_between, resolve_weights
from .estimator import OrtGradientForwardBackwardOptimizer, explain_output
from .exceptions import ModelError, NoGradientError, OrtPartialError, SettingError
from .graph import Node, drop_straight_through, topological, walk_nodes
from .model import (
    QUANTIZERS,
    Leaf,
    Model,
    count_modules,
    draw_tree,
    is_generated_name,
    is_quantized,
    load,
    place_initializers,
    read,
    register_libraries,
    resolve_libraries,
    write,
)
from .runtime import TRUSTED, find_untrusted
from .training import forward_graph
from .training_info import TrainingSession, count_rows, read_rows, split_rows, train_epochs

__all__ = ["main"]

#: Elements up to which an initializer of whole numbers is not worth a line.
_SMALL = 64


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
        which is printed as one line to standard error, 130 after Ctrl-C.

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
        if args.custom_ops is not None:
            register_libraries(read(args.model), resolve_libraries(args.custom_ops))
        return args.run(args)
    except (OrtPartialError, OSError) as e:
        print(f"ortpartial: {' '.join(str(e).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ortpartial: interrupted", file=sys.stderr)
        return 130
    finally:
        if argv is None:  # The process ends now, and Ctrl-C in its last moments would only print a traceback.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _parser() -> argparse.ArgumentParser:
    """The parser of all commands; the option `run` of each is the function that executes it."""
    parser = argparse.ArgumentParser(prog="ortpartial", description="Train any ONNX graph, or only a part of a model.")
    parser.add_argument("--version", action=_PrintVersions, nargs=0, help="print the versions and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], description: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=description, description=description)
        command.add_argument("model", type=Path, help="path of an ONNX model")
        command.add_argument("--custom-ops", type=Path, metavar="LIBRARY", help="shared library of custom operators")
        command.set_defaults(run=run)
        return command

    _add_gradient_options(add("gradient", _gradient, "Write the gradient of a model as a model."))
    _add_info_options(add("info", _info, "Show a model: its weights by module, what is trained, operators, gradients."))
    _add_export_options(add("export", _export, "Write a model with its training, as in the ONNX standard."))
    _add_run_options(add("run", _run, "Train a model that was exported with its training."))
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


def _add_info_options(command: argparse.ArgumentParser) -> None:
    _add_weights_option(command)
    _add_straight_through_option(command)
    command.add_argument("--depth", type=int, help="levels of modules to show; default: as many as fit 60 lines")


def _add_output_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", type=Path, required=True, help="path of the model to write")


def _add_straight_through_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--straight-through", action="store_true", default=None,
                         help="pass gradients through the rounding of a quantization")


def _add_gradient_options(command: argparse.ArgumentParser) -> None:
    _add_output_option(command)
    _add_straight_through_option(command)
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
    _add_straight_through_option(command)
    command.add_argument("--loss", default="square_error", help="the loss function; default: square_error")
    command.add_argument("--rate", default="SGD", help="the update rule; default: SGD")
    command.add_argument("--eta0", type=float, help="the learning rate; default: that of the update rule")
    command.add_argument("--init", choices=("random", "model"), default="random",
                         help="initial weights: random, or those of the model; default: random")
    command.add_argument("--train-mode", action="store_true", help="run Dropout and BatchNormalization in train mode")


def _add_run_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("data", type=Path, help="an .npz file with an array for each input of a step; or a .csv file, "
                                                 "whose columns feed the inputs of the same names, and all others "
                                                 "the input that is left")
    length = command.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, default=100, help="how often to go over the rows; default: 100")
    length.add_argument("--steps", type=int, help="end after so many steps, in place of --epochs")
    command.add_argument("--batch", type=int, help="rows of a step; default: what the model declares, or all rows")
    command.add_argument("--seed", type=int, help="seed of the order of the rows, and of --initialize")
    command.add_argument("--no-shuffle", action="store_true", help="keep the order of the rows")
    command.add_argument("--initialize", action="store_true",
                         help="start from the model's initialization, not from the weights and the state in the file")
    command.add_argument("--validation", metavar="DATA", help="rows whose loss is computed after every epoch, as the "
                                                              "training computes it: a file, or a share such as 0.2")
    written = command.add_mutually_exclusive_group(required=True)
    written.add_argument("-o", "--output", type=Path, help="path of the trained model to write; that of the model "
                                                           "itself to train it further")
    written.add_argument("--dry-run", action="store_true", help="train, print the losses, and write nothing")
    command.add_argument("--strip", action="store_true", help="write the trained model without its training")
    command.add_argument("--force", action="store_true", help="overwrite a file, with all that was trained in it")


def _gradient(args: argparse.Namespace) -> int:
    """Write the gradient of a model."""
    source = load(args.model, straight_through=args.straight_through)
    model = gradient_model(source, args.wrt, args.outputs, cotangents=args.cotangents, suffix=args.suffix)
    write(model, args.output)
    inputs, outputs = (", ".join(v.name for v in values) for values in (model.graph.input, model.graph.output))
    print(f"{args.output}: {inputs} -> {outputs}")
    return 0


def _info(args: argparse.Namespace) -> int:
    """Print a model: its inputs, outputs, initializers and operators, and the reasons against training."""
    model = load(args.model, straight_through=args.straight_through)
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
    print(*_format_tensors(model), sep="\n")
    print(*_format_initializers(model, weights, outputs, args.depth), sep="\n")
    print(*_format_table(model, refusals), sep="\n")
    sizes = {n: v.array.size for n, v in model.initializers.items() if v.is_float and v.array is not None}
    print(f"\ntrained: {len(weights)} of {len(sizes)} float initializers, {sum(sizes[w] for w in weights):,} of "
          f"{sum(sizes.values()):,} numbers")
    for first, *others in _group_by_operator(refusals).values():
        print(f"not by the agent: {first}{f' (and {len(others)} more)' if others else ''}")
    for name in [n for n in model.outputs if n not in outputs]:
        print(f"not trained: {explain_output(model, name)}")
    for blocker in blockers:
        print(f"blocked: {blocker}")
    return 1 if blockers else 0


def _export(args: argparse.Namespace) -> int:
    """Write a model with its training as `training_info`."""
    source = load(args.model, straight_through=args.straight_through)
    optimizer = OrtGradientForwardBackwardOptimizer(source, args.weights, learning_loss=args.loss,
                                                    learning_rate=args.rate, train_mode=args.train_mode)
    if args.eta0 is not None:
        optimizer.set_params(learning_rate__eta0=args.eta0)
    write(optimizer.get_training_onnx(args.training, init=args.init), args.output)
    session = TrainingSession.from_model(args.output)
    print(f"{args.output}: a step reads {', '.join(session.inputs)}, gives {', '.join(session.outputs)}, and changes "
          f"{', '.join(session.state)}")
    return 0


def _run(args: argparse.Namespace) -> int:
    """Train a model by the training that it stores, and write it; after Ctrl-C, too."""
    _check_run(args)
    session = TrainingSession.from_model(args.model)
    data = read_rows(args.data, session)
    rng = np.random.default_rng(args.seed)
    order = None if args.no_shuffle else rng
    validation = None
    if args.validation is not None:
        data, validation = _take_validation(args.validation, data, session, order)
    if args.initialize:
        session.initialize(args.seed)
    with _Interruption() as interruption:
        steps = _train(args, session, data, validation, order, interruption)
        if args.output and steps:
            session.check_finite()
            write(session.inference_model() if args.strip else session.training_model(), args.output)
            print(f"{args.output}: the trained model{', without its training' if args.strip else ''}")
    return 130 if interruption.is_requested else 0


def _check_run(args: argparse.Namespace) -> None:
    """Refuse settings out of range, and an output that cannot be written or that would replace what was trained."""
    if any(n is not None and n < 1 for n in (args.epochs, args.steps, args.batch)):
        raise SettingError("--epochs, --steps and --batch are integers of at least 1.")
    path = args.output
    if path is None:
        return
    if path.is_dir():
        raise SettingError(f"{str(path)!r} is a folder; name a file for the trained model.")
    if not path.parent.is_dir():
        raise SettingError(f"There is no folder {str(path.parent)!r} for the trained model.")
    if not os.access(path.resolve().parent, os.W_OK) and (path.is_file() or not path.exists()):
        raise SettingError(f"Nothing can be written into the folder of {str(path)!r}; choose another one.")
    if args.force or not path.is_file():
        return
    if not args.model.is_file() or not path.samefile(args.model):
        raise SettingError(f"{str(path)!r} exists; choose another name for the trained model, or say --force.")
    for option, effect in (("strip", "lose its training"), ("initialize", "lose what was trained")):
        if getattr(args, option):
            raise SettingError(f"With --{option}, {str(path)!r} would {effect}; choose another name for the trained "
                               f"model, or say --force.")


def _take_validation(source: str, data: dict[str, np.ndarray], session: TrainingSession,
                     rng: np.random.Generator | None) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The rows to train on, and those to validate with: a share of the former, or those of a file."""
    try:
        share = float(source)
    except ValueError:
        return data, read_rows(source, session)
    if not 0 < share < 1:
        raise SettingError(f"--validation is a file, or a share of the rows between 0 and 1, not {source}.")
    return split_rows(data, share, rng)


def _train(args: argparse.Namespace, session: TrainingSession, data: dict[str, np.ndarray],
           validation: dict[str, np.ndarray] | None, rng: np.random.Generator | None, interruption: _Interruption
           ) -> int:
    """Train until the end or Ctrl-C; return the number of steps."""
    rows = count_rows(data)
    size = args.batch or session.batch_size or rows
    per_epoch = -(-rows // size)
    with _Display(args.steps or args.epochs * per_epoch, per_epoch) as display:
        try:
            for means, validated in train_epochs(session, data, display.epochs, size, rng=rng, validation=validation,
                                                 after_step=display.count_step):
                display.end_epoch(means, validated)
            interruption.is_raised = False
        except KeyboardInterrupt:
            display.steps = session.steps_taken
            display.print(f"ortpartial: interrupted {display.describe_progress()}", sys.stderr)
    return display.steps


class _Display:
    """What is shown of a training: a bar in a terminal, and the last epoch; else a line an epoch."""

    def __init__(self, total: int, per_epoch: int):
        self.total, self.per_epoch, self.epochs = total, per_epoch, -(-total // per_epoch)
        self.steps = 0
        self.line = ""
        self.bar = tqdm(total=total, unit="step", disable=None, leave=False, dynamic_ncols=True)

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.line and not self.bar.disable:
            self.print(self.line, sys.stdout)
        self.bar.close()

    def count_step(self, means: Mapping[str, float]) -> bool:
        """Move the bar; return whether this was the last step."""
        self.bar.set_description(f"epoch {self.steps // self.per_epoch + 1}/{self.epochs}", refresh=False)
        self.bar.set_postfix_str(_format_means(means), refresh=False)
        self.steps += 1
        self.bar.update()
        return self.steps == self.total

    def end_epoch(self, means: Mapping[str, float], validated: Mapping[str, float]) -> None:
        """Print the means of an epoch unless there is a bar."""
        self.line = f"epoch {-(-self.steps // self.per_epoch)}/{self.epochs}: {_format_means(means)}"
        if validated:
            self.line += f", validation {_format_means(validated)}"
        if self.bar.disable:
            self.print(self.line, sys.stdout)

    def describe_progress(self) -> str:
        """The number of steps that were taken, in words."""
        return f"after step {self.steps} of {self.total}" if self.steps else "before the first step; nothing is written"

    def print(self, text: str, file: TextIO) -> None:
        """Print a line in place of the bar."""
        self.bar.clear()
        try:
            print(text, file=file, flush=True)
        except BrokenPipeError:  # Who reads the lines has left, as `head` does: the training goes on.
            os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def _format_means(means: Mapping[str, float]) -> str:
    return ", ".join(f"{n} {mean:.6g}" for n, mean in means.items())


class _Interruption:
    """Ctrl-C, which ends a training and never what comes after it, such as the writing of the model."""

    def __init__(self) -> None:
        #: Whether the next Ctrl-C raises a KeyboardInterrupt.
        self.is_raised = True
        self.is_requested = False

    def __enter__(self) -> _Interruption:
        self._former: Any = None
        is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as by a shell for what runs in the background
        if threading.current_thread() is threading.main_thread() and not is_ignored:  # Signals reach no other thread.
            self._former = signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, *_: Any) -> None:
        self.is_requested = True
        if self.is_raised:
            self.is_raised = False
            raise KeyboardInterrupt

    def __exit__(self, *_: Any) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)


def _find_blockers(model: Model, weights: Sequence[str], outputs: Sequence[str]) -> Iterator[str]:
    """The reasons why the weights cannot be trained: a sentence for each node without a gradient."""
    ys, ws = [model.outputs[o] for o in outputs], [model.initializers[w] for w in weights]
    nodes = [node for node in walk_nodes(nodes_between(ys, set(ws), ())) if gradient_support(node) == "none"
             and node.op_type not in QUANTIZERS]
    for node in nodes:
        where = f"node {node.name!r}" if node.name else f"the node of {node.outputs[0].hint!r}"
        yield f"{_operator(node)} ({where}) has no gradient."
    if not nodes:
        try:
            grad(ys, ws)
        except NoGradientError as e:  # An operator in a function body or a subgraph, or an attribute without a rule.
            yield str(e)


def _format_tensors(model: Model) -> Iterator[str]:
    """The inputs and the outputs of a model, a line each."""
    width = max(map(len, (*model.inputs, *model.outputs)), default=0)
    for kind, tensors in (("inputs", model.inputs), ("outputs", model.outputs)):
        yield kind
        yield from (f"  {n:{width}}  {v.type_name}" for n, v in tensors.items())
        yield ""


def _format_initializers(model: Model, weights: Collection[str], outputs: Sequence[str],
                         depth: int | None) -> Iterator[str]:
    """The lines of a tree of initializers: which are trained, and why the others are not."""
    if depth is not None and depth < 1:
        raise SettingError(f"--depth is a whole number of at least 1, not {depth}.")
    reasons, places = explain_untrained(model, weights, outputs), place_initializers(model)
    modules = count_modules(model)
    leaves, small = [], 0
    for n, v in model.initializers.items():
        size = model.arrays[n].size
        if not v.is_float and size <= _SMALL:
            small += 1
            continue
        shared = f"shared by {modules[n]} modules" if modules[n] > 1 and n in weights else ""
        is_told = "".join(places[n]) == n or (places[n][-1] == n and is_generated_name(n))
        name = "" if is_told else f"named {n}"
        note = ", ".join(filter(None, [reasons.get(n, ""), shared, name]))
        leaves.append(Leaf(places[n], v.type_name, size, n in weights, note))
    if leaves:
        columns = shutil.get_terminal_size((100, 24)).columns
        yield from draw_tree(leaves, depth=depth, width=min(max(columns, 80), 120))
    if small:
        yield f"(without {small} small initializers of whole numbers, such as shapes and indices)"
    if leaves or small:
        yield ""


def _format_table(model: Model, refusals: Sequence[str]) -> Iterator[str]:
    """The lines of a table of operators: their number, their kind of gradient, and the engines that train them."""
    nodes = list(walk_nodes(topological(drop_straight_through(list(model.outputs.values())))))
    counts = Counter(map(_operator, nodes))
    gradients = {_operator(node): "rule" if model.straight_through and is_quantized(node) else gradient_support(node)
                 for node in nodes}
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
    return f"{node.domain}.{node.op_type}" if node.domain and not node.is_opaque else node.op_type
