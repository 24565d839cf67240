"""The command `info`: show the weights of a model by module, whether and why they train, operators and gradients."""

from __future__ import annotations

import argparse
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from math import prod
from typing import Any

from ortpartial.annotations import Json
from ortpartial.autodiff import grad, gradient_support, nodes_between, resolve_weights
from ortpartial.checks import check_count
from ortpartial.estimator import explain_output
from ortpartial.exceptions import ModelError, NoGradientError
from ortpartial.graph import Node, Value, count_flops, drop_straight_through, topological, walk_nodes
from ortpartial.learning import BaseLearningRate, SquareLearningLoss
from ortpartial.model import (
    QUANTIZERS,
    Leaf,
    Model,
    count_modules,
    draw_tree,
    format_bytes,
    format_flops,
    is_generated_name,
    is_quantized,
    place_initializers,
    specialize,
)
from ortpartial.runtime import TRUSTED, find_untrusted
from ortpartial.training import TrainingSpec, WeightDescription, describe_weights, forward_bytes, forward_graph

from .component_specs import parse_rate
from .console import format_seconds, format_table, paint, print_json, print_line
from .options import Commands, add_command, add_json_option, add_reading_options, add_weights_options, load_model
from .timing import RandomRows, parse_sizes, time_steps

__all__ = ["add_info_command"]

#: Elements up to which an initializer of whole numbers is not worth a line.
_SMALL = 64

_DESCRIPTION = """\
The memory is that of a step: weights, what the optimizer remembers of them, and
the values on the way to the outputs, with their gradients. The exit code is 1
where something prevents training."""

_EXAMPLES = """
info model.onnx
info model.onnx --freeze 'W1' --batch-size 64 --measure
info model.onnx --depth 2 --json
"""


@dataclass(frozen=True)
class Report:
    """The report on a model.

    Parameters
    ----------
    model : Model
        The model.
    outputs : list of str
        The outputs of real numbers.
    weights : list of str
        The weights that would be trained.
    blockers : list of str
        Sentences: the reasons against training.
    refusals : list of str
        Sentences: the reasons against the agent.
    descriptions : dict of str to WeightDescription
        By initializer, whether it is trained, and why not.
    """

    model: Model
    outputs: list[str]
    weights: list[str]
    blockers: list[str]
    refusals: list[str]
    descriptions: Mapping[str, WeightDescription]

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of elements of the initializers of real numbers."""
        return {n: v.array.size for n, v in self.model.initializers.items() if v.is_float and v.array is not None}


def add_info_command(commands: Commands) -> None:
    """Add the command to the program.

    Parameters
    ----------
    commands : object
        The result of `argparse.ArgumentParser.add_subparsers`.
    """
    command = add_command(commands, "info", run_info, "Show a model: what is trained and why not, engines, memory.",
                          usage="MODEL [option ...]", description=_DESCRIPTION, examples=_EXAMPLES)
    add_weights_options(command)
    add_reading_options(command)
    command.add_argument("--depth", type=int, metavar="N", help="levels of modules to show; default: as many as fit 60 "
                                                                "lines")
    command.add_argument("--batch-size", type=int, default=32, metavar="N", help="rows of a step; default: 32")
    command.add_argument("--size", nargs="+", default=[], metavar="NAME=N",
                         help="sizes that the model leaves open, such as the length of texts")
    command.add_argument("--rate", default="adam", metavar="RATE", help="the optimizer, as for train; default: adam")
    command.add_argument("--measure", action="store_true", help="measure the time of a step, on random rows")
    add_json_option(command)


def run_info(args: argparse.Namespace) -> int:
    """Print a model: its inputs, outputs, initializers and operators, and the reasons against training."""
    check_count("--batch-size", args.batch_size)
    if args.depth is not None:
        check_count("--depth", args.depth)
    rate, sizes = parse_rate(args.rate), parse_sizes(args.size)
    report = _examine(args, sizes)
    cost = {} if report.blockers else _estimate(report, rate, args.batch_size, sizes)
    if args.measure and not report.blockers:
        cost["seconds"], cost["engine"] = _measure(report, rate, args.batch_size, sizes)
    if args.json:
        print_json(_to_record(report, cost))
    else:
        _print(report, cost, args)
    return 1 if report.blockers else 0


def _examine(args: argparse.Namespace, sizes: Mapping[str, int]) -> Report:
    """Read a model, and report whether and how it can be trained."""
    model = load_model(args)
    outputs = [n for n, v in model.outputs.items() if v.is_float]
    weights: list[str] = []
    refusals: list[str] = []
    try:
        weights = resolve_weights(model, args.weights, outputs, args.freeze)
    except ModelError as e:
        if args.weights is not None or args.freeze:
            raise
        blockers = [str(e)]
    else:
        blockers = list(_find_blockers(model, weights, outputs))
        batch = _list_shapes(model, args.batch_size, sizes) if sizes else None
        graph = forward_graph(specialize(model, batch=batch, variables=weights), weights, outputs)
        refusals = find_untrusted(graph, weights, input_grads=[])
    descriptions = describe_weights(model, weights, outputs, freeze=args.freeze)
    return Report(model, outputs, weights, blockers, refusals, descriptions)


def _estimate(report: Report, rate: BaseLearningRate, batch_size: int, sizes: Mapping[str, int]) -> Json:
    """The operations of a forward pass and the bytes of a step of so many rows."""
    model, weights = report.model, report.weights
    losses = dict.fromkeys(report.outputs, SquareLearningLoss())
    spec = TrainingSpec(specialize(model, variables=weights), tuple(weights), losses, rate=rate)
    open_sizes = sorted({str(d) for v in model.inputs.values() for d in (v.shape or ())[1:] if not isinstance(d, int)
                         and d not in sizes})
    states = sum(prod(int(n) for n in shape if isinstance(n, int)) * spec.trained[w].dtype.itemsize
                 for w in weights for shape in spec.shapes_of_states(w).values())
    shapes = _list_shapes(model, batch_size, sizes)
    values = forward_bytes(spec.for_batch(shapes).model)
    flops = count_flops(topological(list(specialize(model, batch=shapes).outputs.values())))
    return {"batch_size": batch_size, "flops": flops, "weight_bytes": sum(a.nbytes for a in model.arrays.values()),
            "state_bytes": states, "value_bytes": 2 * values, "open_sizes": open_sizes}


def _list_shapes(model: Model, batch_size: int, sizes: Mapping[str, int]) -> dict[str, list[int]]:
    """The shapes of the inputs of a batch, with 1 for sizes that are not known."""
    return {n: [d if isinstance(d, int) else batch_size if axis == 0 else sizes.get(str(d), 1)
                for axis, d in enumerate(v.shape or ())] for n, v in model.inputs.items()}


def _measure(report: Report, rate: BaseLearningRate, batch_size: int, sizes: Mapping[str, int]) -> tuple[float, str]:
    """The time of a step, and the engine that took it."""
    losses = dict.fromkeys(report.outputs, SquareLearningLoss())
    rows = RandomRows(report.model, losses, batch_size, sizes)
    return time_steps(rows, {"weights_to_train": report.weights, "learning_rate": rate}, seconds=1)


def _list_engines(report: Report) -> dict[str, str]:
    """By engine why it does not train the model, or "". No runtime is imported, which may take seconds."""
    runtimes = {d.name for d in distributions() if d.name.startswith("onnxruntime")}
    missing = "" if runtimes else "onnxruntime is not installed"
    has_agent = any(name.startswith("onnxruntime-training") for name in runtimes)
    refusals = _group_by_operator(report.refusals)
    agent = "onnxruntime-training is not installed"
    if has_agent:
        agent = f"of {', '.join(refusals)}" if refusals else ""
    return {"epoch": missing, "step": missing, "agent": agent}


def _to_record(report: Report, cost: Mapping[str, object]) -> Json:
    """The report as an object of JSON."""
    def describe(v: Value) -> Json:
        return {"dtype": str(v.dtype) if v.type.HasField("tensor_type") else None, "shape": v.shape}

    model = report.model
    weights = {n: {**describe(v), "numbers": model.arrays[n].size, "trained": report.descriptions[n].is_trained,
                   "reason": report.descriptions[n].reason} for n, v in model.initializers.items()}
    operators = [{"operator": operator, "nodes": count, "gradient": gradient, "engines": engines.split()}
                 for operator, count, gradient, engines in _list_operators(model, report.refusals)]
    return {"inputs": {n: describe(v) for n, v in model.inputs.items()},
            "outputs": {n: describe(v) for n, v in model.outputs.items()}, "initializers": weights,
            "ties": model.ties.describe(model.main_names), "operators": operators,
            "trained_numbers": sum(report.sizes[w] for w in report.weights),
            "engines": {n: not reason for n, reason in _list_engines(report).items()},
            "not_by_the_agent": report.refusals, "blockers": report.blockers, "cost": cost}


def _print(report: Report, cost: Mapping[str, object], args: argparse.Namespace) -> None:
    """Print a report for people."""
    model, sizes = report.model, report.sizes
    for line in _format_tensors(model):
        print_line(line)
    for line in _format_initializers(report, args.depth):
        print_line(paint(line, "green") if re.search("  trained(,|$)", line) else line)
    for line in model.ties.describe(model.main_names):
        print_line(f"ties: {line}")
    if model.ties:
        print_line("      as they are in the file: --ties file")
        print_line("")
    head, *rows = format_table(["operator", "nodes", "gradient", "engines"],
                               ([o, str(n), *others] for o, n, *others in _list_operators(model, report.refusals)),
                               align="<><<")
    for line in (paint(head, "bold"), *rows):
        print_line(line)
    print_line("")
    print_line(f"trained: {len(report.weights)} of {len(sizes)} float initializers, "
               f"{sum(sizes[w] for w in report.weights):,} of {sum(sizes.values()):,} numbers")
    for line in _format_cost(report, cost, args.rate):
        print_line(line)
    for first, *others in _group_by_operator(report.refusals).values():
        print_line(f"not by the agent: {first}{f' (and {len(others)} more)' if others else ''}")
    for name in [n for n in model.outputs if n not in report.outputs]:
        print_line(f"not trained: {explain_output(model, name)}")
    for blocker in report.blockers:
        print_line(f"{paint('blocked:', 'red')} {blocker}")


def _format_cost(report: Report, cost: Mapping[str, Any], rate: str) -> Iterator[str]:
    """Lines about engines, memory and time."""
    if not cost:
        return
    engines = _list_engines(report)
    reasons = "".join(f"; not {n}, because {reason}" for n, reason in engines.items() if reason)
    yield f"engines: {', '.join(n for n, reason in engines.items() if not reason) or 'none'}{reasons}"
    yield f"compute: {format_flops(cost['flops'], 'FLOPs')} for a forward pass of {cost['batch_size']} rows"
    weights, states, values = (format_bytes(cost[n]) for n in ("weight_bytes", "state_bytes", "value_bytes"))
    yield (f"memory: {weights} of weights, {states} of states by {rate}, about {values} of values in a step of "
           f"{cost['batch_size']} rows")
    if cost["open_sizes"]:
        some = cost["open_sizes"][0]
        yield f"        with 1 for the sizes {', '.join(cost['open_sizes'])}; give them, as --size {some}=128"
    if "seconds" in cost:
        yield (f"time: {format_seconds(cost['seconds'])} for a step of {cost['batch_size']} rows by engine "
               f"{cost['engine']}")


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


def _format_initializers(report: Report, depth: int | None) -> Iterator[str]:
    """The lines of a tree of initializers: which are trained, and why the others are not."""
    model, graph = report.model, report.model.proto.graph
    places, modules = place_initializers(graph, model.main_names), count_modules(graph, model.initializers)
    leaves, small = [], 0
    for n, v in model.initializers.items():
        size = model.arrays[n].size
        if not v.is_float and size <= _SMALL:
            small += 1
            continue
        shared = f"shared by {modules[n]} modules" if modules[n] > 1 and n in report.weights else ""
        is_told = "".join(places[n]) == n or (places[n][-1] == n and is_generated_name(n))
        name = "" if is_told else f"named {n}"
        reason = report.descriptions[n].reason
        note = ", ".join(filter(None, ["frozen" if reason.startswith("frozen by") else reason, shared, name]))
        leaves.append(Leaf(places[n], v.type_name, size, n in report.weights, note))
    if leaves:
        columns = shutil.get_terminal_size((100, 24)).columns
        yield from draw_tree(leaves, depth=depth, width=min(max(columns, 80), 120))
    if small:
        yield f"(without {small} small initializers of whole numbers, such as shapes and indices)"
    if leaves or small:
        yield ""


def _list_operators(model: Model, refusals: Sequence[str]) -> Iterator[tuple[str, int, str, str]]:
    """The operators: their number, their kind of gradient, and the engines that train them."""
    nodes = list(walk_nodes(topological(drop_straight_through(list(model.outputs.values())))))
    counts = Counter(map(_operator, nodes))
    gradients = {_operator(node): "rule" if model.straight_through and is_quantized(node) else gradient_support(node)
                 for node in nodes}
    refused = _group_by_operator(refusals)
    # A refusal that names no operator, such as a refusal of the opset, concerns the whole graph.
    no_agent = not refused.keys() <= counts.keys()
    for operator, count in sorted(counts.items()):
        gradient = gradients[operator]
        agent = not no_agent and operator not in refused and (operator in TRUSTED or gradient == "zero")
        yield operator, count, gradient, "-" if gradient == "none" else "agent step epoch" if agent else "step epoch"


def _group_by_operator(refusals: Sequence[str]) -> dict[str, list[str]]:
    """The refusals of the agent by the operator with which each begins, as in "Elu (node 'a'): ..."."""
    groups: dict[str, list[str]] = {}
    for refusal in refusals:
        groups.setdefault(refusal.split(" (")[0], []).append(refusal)
    return groups


def _operator(node: Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain and not node.is_opaque else node.op_type
