"""The command `info`: show the weights of a model by module, what is trained and why not, operators and gradients."""

from __future__ import annotations

import argparse
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ortpartial.autodiff import explain_untrained, grad, gradient_support, nodes_between, resolve_weights
from ortpartial.estimator import explain_output
from ortpartial.exceptions import ModelError, NoGradientError, SettingError
from ortpartial.graph import Node, drop_straight_through, topological, walk_nodes
from ortpartial.model import (
    QUANTIZERS,
    Leaf,
    Model,
    count_modules,
    draw_tree,
    is_generated_name,
    is_quantized,
    load,
    place_initializers,
)
from ortpartial.runtime import TRUSTED, find_untrusted
from ortpartial.training import forward_graph

from .options import add_command, add_straight_through_option, add_weights_option

__all__ = ["add_info_command"]

_EXAMPLES = """
info model.onnx
info model.onnx --weights 'W*' --depth 2
"""

#: Elements up to which an initializer of whole numbers is not worth a line.
_SMALL = 64


def add_info_command(commands: Any) -> None:
    """Add the command to the program.

    Parameters
    ----------
    commands : object
        What `argparse.ArgumentParser.add_subparsers` returned.
    """
    command = add_command(commands, "info", run_info,
                          "Show a model: its weights by module, what is trained, and why not.", examples=_EXAMPLES)
    add_weights_option(command)
    add_straight_through_option(command)
    command.add_argument("--depth", type=int, help="levels of modules to show; default: as many as fit 60 lines")


def run_info(args: argparse.Namespace) -> int:
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
