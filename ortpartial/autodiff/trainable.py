"""Trainable weights: the initializers that a gradient reaches, or that the caller names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ortpartial.checks import check_callable, check_names
from ortpartial.exceptions import ModelError, ModelWarning
from ortpartial.graph import PRODUCTS, Node, Value, gradient_reads, parameter, topological
from ortpartial.model import (
    Model,
    is_generated_name,
    is_quantized,
    list_preprocessing,
    list_program_constants,
    read_adapter,
    read_torch,
)

from .grad import carries_gradient, nodes_between
from .program_numbers import explain_program_numbers, is_mask
from .registry import is_constant
from .rounding import explain_rounding, find_roundings, is_quantized_number
from .weight_names import check_weight, find_frozen, is_pattern, list_adapter, list_some, match_names

__all__ = ["WeightSelection", "explain_untrained", "find_default_weights", "find_reached_weights", "find_trainable",
           "resolve_weights", "warn_of_rounding"]

#: Names, aliases and patterns; or a function of a name, a shape and a node that reads the weight.
WeightSelection = str | Sequence[str] | Callable[[str, tuple[int, ...], Node], Any]

#: By operator, the inputs that are statistics, labels, class weights, sizes, tables of angles, or numbers of a
#: quantization.
_KEPT = {("", "BatchNormalization"): {3, 4}, ("", "Dropout"): {1, 2}, ("", "NegativeLogLikelihoodLoss"): {1, 2},
         ("", "OneHot"): {0, 1}, ("", "Resize"): {1, 2, 3}, ("", "SoftmaxCrossEntropyLoss"): {1, 2},
         ("com.microsoft", "GatherBlockQuantized"): {2, 3},
         ("com.microsoft", "GroupQueryAttention"): {7, 8, 12, 13}, ("com.microsoft", "MatMulNBits"): {2, 3},
         ("com.microsoft", "MRotaryEmbedding"): {2, 3}, ("com.microsoft", "QMoE"): {3, 6, 9},
         ("com.microsoft", "RotaryEmbedding"): {2, 3}}

#: Operators that read a packed weight, its scales and its zero points.
_PACKED = frozenset({("com.microsoft", "GatherBlockQuantized"), ("com.microsoft", "MatMulNBits")})

#: Operators that read a weight and a number of the program alike.
_ARITHMETIC = frozenset({"Add", "Clip", "Div", "Exp", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Pow", "Reciprocal",
                         "Sqrt", "Sub", "Where"})


def find_reached_weights(outputs: Sequence[Value], targets: Iterable[Value]) -> set[Value]:
    """The targets on a differentiable path to the outputs; their gradient may still be zero."""
    candidates = set(targets)
    between = set(nodes_between(outputs, candidates, ()))
    # Nodes before a whole number, such as the result of a Cast, are between them as well, and have no gradient.
    reached, stack = set(outputs), [y.node for y in outputs if y.node in between]
    while stack:
        node = stack.pop()
        between.discard(node)
        carrying = {x for x in node.reads if carries_gradient(x) or is_quantized_number(x)}
        reached |= carrying
        stack.extend(x.node for x in carrying if x.node in between)
    return candidates & reached


def find_readers(outputs: Iterable[Value]) -> dict[Value, list[Node]]:
    """Constants of real numbers on a differentiable path to the outputs, and the nodes there that read them.

    Constants that no training changes by itself are left out: see `_KEPT`.
    """
    readers: dict[Value, list[Node]] = {}
    seen: set[int] = set()
    stack: list[tuple[Value, Node | None]] = [(y, None) for y in outputs]
    while stack:
        v, reader = stack.pop()
        if v.array is not None and v.is_float:
            readers.setdefault(v, []).extend([] if reader is None else [reader])
        if v.node is None or id(v.node) in seen or is_constant(v.node):
            continue
        seen.add(id(v.node))
        kept = _KEPT.get(v.node.key)
        inputs = gradient_reads(v.node) if kept is None else [x for i, x in enumerate(v.node.inputs) if i not in kept]
        stack.extend((x, v.node) for x in inputs if x is not None and carries_gradient(x))
        stack.extend((y, None) for body in v.node.bodies for y in body.outputs if y.is_float)
    return readers


def find_trainable(outputs: Iterable[Value]) -> set[Value]:
    """The weights that are trained by default.

    They are the constants of rank 1 or more on a differentiable path to the outputs, except running statistics, class
    weights, the scales of quantizations, the numbers that exporters write, and numbers of the program: see
    `is_exported_number` and `explain_program_numbers`.
    """
    outputs = list(outputs)
    readers = find_readers(outputs)
    kept = {*find_scales(outputs), *explain_program_numbers(outputs, readers)}
    return {v for v, nodes in readers.items() if v.array is not None and v.array.ndim and v not in kept
            and not is_exported_number(v, nodes)}


def find_default_weights(model: Model, outputs: Iterable[str]) -> set[Value]:
    """The weights of a model that are trained by default.

    They are the result of `find_trainable`, except numbers that scale and impute features in front of a scikit-learn
    model: they were computed from the data, and the gradient of a scale is not a number where a feature is missing.
    Buffers and numbers of an exported program are left out as well, where the file tells them from parameters. Of a
    model that `ortpartial.torch.export` has written, they are the parameters with ``requires_grad``, scalars included.
    """
    ys = [model.outputs[o] for o in outputs]
    left_out = {*list_preprocessing(model.proto), *list_program_constants(model.proto)}
    weights = find_trainable(ys) - {model.initializers[n] for n in left_out}
    record = read_torch(model.proto)
    if record is None:
        return weights
    readers = find_readers(ys)
    parameters = {v for n in record.parameters if (v := model.initializers.get(n)) in readers}
    return (weights | parameters) - {v for n, v in model.initializers.items() if n in record.untrained}


def find_scales(outputs: Sequence[Value]) -> set[Value]:
    """The scales of the quantizations that outputs depend on, which were calibrated."""
    scales: set[Value] = set()
    for node in topological(outputs):
        if node.key in _PACKED:
            scales.update(x for x in node.inputs[2:4] if x is not None)
        elif is_quantized(node):
            scales.update(x for i, x in enumerate(node.inputs)
                          if x is not None and "scale" in parameter(node.schema, i).name)
        elif node.op_type == "Mul" and any(map(_is_dynamic_scale, node.reads)):
            scales.update(node.reads)
    return scales


def _is_dynamic_scale(v: Value) -> bool:
    """Whether a value is the scale that DynamicQuantizeLinear computes."""
    if v.node is not None and v.node.op_type == "StraightThrough":
        v = v.node.reads[0]
    return v.node is not None and v.node.op_type == "DynamicQuantizeLinear" and v.is_float


def is_exported_number(v: Value, readers: Iterable[Node]) -> bool:
    """Whether a constant is a number or a mask of the program that was exported, and no weight.

    It has a name that the exporter made up, and takes part in arithmetic alone. A number, such as the scale of
    attention, is of shape [] or [1]. The operators of layers read weights: a bias of shape [1] is an input of Gemm or
    is added to a product, and a slope is an input of PRelu. A mask holds 0 and numbers that hide scores from Softmax.
    """
    if v.array is None or not is_generated_name(v.hint):
        return False
    nodes = list(readers)
    if not nodes or any(node.op_type not in _ARITHMETIC for node in nodes):
        return False
    is_number = v.array.size == 1 and v.array.ndim < 2 and not any(map(_adds_bias, nodes))
    return is_number or (is_mask(v.array) and not any(map(_adds_offset, nodes)))


def _adds_offset(node: Node) -> bool:
    """Whether a node adds the bias of a normalization, after a weight of its shape."""
    terms = [x for x in node.inputs if x is not None]
    weights = [w for x in terms if x.node is not None and x.node.op_type == "Mul" for w in x.node.reads]
    return node.op_type == "Add" and any(
        b.array is not None and w.array is not None and b.array.shape == w.array.shape for b in terms for w in weights)


def _adds_bias(node: Node) -> bool:
    """Whether a node adds something to the product of a layer."""
    terms = (x.node for x in node.inputs if x is not None and x.node is not None)
    return node.op_type == "Add" and any(term.op_type in PRODUCTS for term in terms)


def resolve_weights(model: Model, weights: WeightSelection | None, outputs: Sequence[str],
                    freeze: str | Sequence[str] = ()) -> list[str]:
    """Names of the initializers to train.

    Parameters
    ----------
    model : Model
        The model.
    weights : str, sequence of str, or callable, optional
        Names, aliases and patterns of `fnmatch`, such as ``"encoder.layer.5.*"``, in any order, and ``"adapter"`` for
        the weights of an adapter; or a function of a name, a shape and a node that reads the weight, which says whether
        to train it. Patterns and functions choose among the weights that a gradient reaches, except running statistics,
        numbers that exporters write, and numbers of the program, such as the angles of a rotary embedding. By default
        the float initializers of rank 1 or more among these, except statistics of the data; of a model of
        `ortpartial.torch.export`, the parameters with ``requires_grad``.
    outputs : sequence of str
        The outputs to train.
    freeze : str or sequence of str
        Names, aliases and patterns of weights that are not trained: see `find_frozen`.

    Returns
    -------
    list of str

    Raises
    ------
    ModelError
        A name is unknown, not of a floating-point type or given twice, a pattern matches nothing, or there is nothing
        to train.
    """
    names, frozen = _select_weights(model, weights, outputs), find_frozen(model, freeze)
    if trained := [n for n in names if n not in frozen]:
        return trained
    raise ModelError(f"freeze={freeze!r} leaves none of {list_some([model.main_names[n] for n in names])} to train; "
                     f"freeze less.")


def _select_weights(model: Model, weights: WeightSelection | None, outputs: Sequence[str]) -> list[str]:
    """The weights that `resolve_weights` returns where nothing is frozen."""
    if weights is None:
        trainable = find_default_weights(model, outputs)
        if chosen := [n for n, v in model.initializers.items() if v in trainable]:
            warn_of_rounding(model, outputs, trainable)
            if read_adapter(model.proto) is not None:
                warnings.warn("The model holds an adapter, and all its weights are trained, while save_adapter writes "
                              "those of the adapter alone; train these, by weights_to_train='adapter'.", ModelWarning,
                              stacklevel=4)
            return chosen
        raise ModelError(_explain_nothing(model, outputs))
    candidates = _find_candidates(model, outputs)
    if callable(weights):
        return _choose(model, weights, candidates)
    names: list[str] = []
    for item in check_names("weights_to_train", weights, ModelError):
        name = model.find_initializer(item)
        if (adapter := list_adapter(model, item)) is not None:
            names += [n for n in adapter if n not in names]
        elif name in model.initializers or not is_pattern(item):
            check_weight(model, item, name)
            if name in names:
                raise ModelError(f"The weight {item!r} is given twice.")
            names.append(name)
        else:
            names += [n for n in _match(model, item, outputs, candidates) if n not in names]
    if not names:
        raise ModelError("weights_to_train is empty; name at least one weight, or leave it out to train all.")
    return names


def warn_of_rounding(model: Model, outputs: Sequence[str], trainable: Collection[Value]) -> None:
    """Warn of weights that are not trained because a quantization rounds values computed from them."""
    for node, reader in find_roundings([model.outputs[o] for o in outputs]):
        lost = find_trainable([x for x in node.inputs[:1] if x is not None]) - set(trainable)
        if names := [n for n, v in model.initializers.items() if v in lost]:
            warnings.warn(f"{list_some(names)} will not be trained: {explain_rounding(node, reader)}", ModelWarning,
                          stacklevel=4)
            return


def explain_untrained(model: Model, weights: Collection[str], outputs: Sequence[str]) -> dict[str, str]:
    """Why initializers are not trained.

    Parameters
    ----------
    model : Model
        The model.
    weights : collection of str
        The initializers that are trained.
    outputs : sequence of str
        The outputs that are trained.

    Returns
    -------
    dict of str to str
        A few words for each of the other initializers.
    """
    values = [model.outputs[o] for o in outputs]
    readers = find_readers(values)
    of_the_program = explain_program_numbers(values, readers)
    statistics = _find_statistics(list(model.outputs.values()))
    trainable, preprocessing = find_default_weights(model, outputs), list_preprocessing(model.proto)
    scales, settings = find_scales(values), _find_settings(values)
    record = read_torch(model.proto)
    untrained = {} if record is None else record.untrained
    constants = list_program_constants(model.proto)
    reasons = {}
    for n, v in model.initializers.items():
        if n in weights:
            continue
        if not v.is_float:
            reasons[n] = f"{v.dtype}, no real numbers"
        elif v in trainable:
            reasons[n] = "not among those to train"
        elif v in statistics:
            reasons[n] = "running statistic"
        elif n in preprocessing:
            reasons[n] = "statistic of the data, trained by name only"
        elif v in scales:
            reasons[n] = "scale of a quantization"
        elif n in untrained and v in readers:
            reasons[n] = untrained[n]
        elif v in of_the_program:
            reasons[n] = of_the_program[v]
        elif v not in readers:
            reasons[n] = f"a setting of {settings[v]}" if v in settings else "no gradient reaches it"
        elif is_exported_number(v, readers[v]):
            kind = "number" if model.arrays[n].size == 1 else "mask"
            reasons[n] = f"a {kind} that {readers[v][0].op_type} reads"
        elif n in constants:
            reasons[n] = "buffer or number of the exported program, trained by name only"
        else:
            reasons[n] = "scalar, trained by name only"
    return reasons


def _find_settings(outputs: Sequence[Value]) -> dict[Value, str]:
    """Constants that say how an operator resizes, drops or encodes, and that operator."""
    return {x: node.op_type for node in topological(outputs) if node.op_type in ("Dropout", "OneHot", "Resize")
            for i, x in enumerate(node.inputs) if x is not None and i in _KEPT.get(node.key, ())}


def _find_candidates(model: Model, outputs: Sequence[str]) -> dict[str, list[Node]]:
    """The initializers that patterns and functions choose from, and the nodes that read each."""
    values, record = [model.outputs[o] for o in outputs], read_torch(model.proto)
    readers = find_readers(values)
    of_the_program = {} if record is not None else explain_program_numbers(values, readers)
    left_out = {*list_program_constants(model.proto), *(() if record is None else (*record.buffers, *record.constants))}
    return {n: readers[v] for n, v in model.initializers.items() if v in readers and n not in left_out
            and v not in of_the_program and not is_exported_number(v, readers[v])}


def _choose(model: Model, predicate: Callable[[str, tuple[int, ...], Node], object],
            candidates: Mapping[str, list[Node]]) -> list[str]:
    """The weights that a function chooses, called once for each node that reads a weight."""
    check_callable("weights_to_train", predicate, 3)
    shapes = {n: model.arrays[n].shape for n in candidates}
    chosen = [n for n, nodes in candidates.items()
              if any(predicate(model.main_names[n], shapes[n], node) for node in nodes)]
    if not chosen:
        raise ModelError(f"weights_to_train, a function, chooses none of the {len(candidates)} weights: "
                         f"{list_some([model.main_names[n] for n in candidates])}.")
    return chosen


def _match(model: Model, pattern: str, outputs: Sequence[str], candidates: Collection[str]) -> list[str]:
    """The weights whose name or alias matches a pattern."""
    matching = match_names(model, pattern, candidates)
    if weights := [n for n in candidates if n in matching]:
        return weights
    reasons = explain_untrained(model, (), outputs)
    name = next(n for n in model.initializers if n in matching)
    raise ModelError(f"The pattern {pattern!r} matches nothing that can be trained; {model.main_names[name]!r}, "
                     f"for example: {reasons[name]}.")


def _find_statistics(outputs: Sequence[Value]) -> set[Value | None]:
    """The running statistics that outputs are computed from."""
    return {x for node in topological(outputs) if node.op_type == "BatchNormalization" for x in node.inputs[3:5]}


def _explain_nothing(model: Model, outputs: Sequence[str]) -> str:
    """Why there is nothing to train: the operators at which gradients end, or a model without weights."""
    if not outputs:
        return "The model has no output of real numbers, so that there is nothing to train."
    record = read_torch(model.proto)
    if record is not None and record.frozen and not record.parameters:
        return (f"The torch module was exported with requires_grad=False for all its parameters, "
                f"{list_some(record.frozen)}; name the weights to train.")
    problem = f"No float initializer of rank one or more leads to the outputs {', '.join(map(repr, outputs))}"
    if not any(v.is_float for v in model.initializers.values()):
        return (f"{problem}, as the model has none at all; if its weights are attributes of operators, as those of "
                f"trees are, export it in another form.")
    return f"{problem}{_explain_ends([model.outputs[o] for o in outputs])}"


def _explain_ends(outputs: Sequence[Value]) -> str:
    """Where gradients of outputs end, the rest of a sentence."""
    for node, reader in find_roundings(outputs):
        if find_trainable([x for x in node.inputs[:1] if x is not None]):
            return f" differentiably: {explain_rounding(node, reader)}"
    if find_scales(outputs):
        return (", as its weights are integers; quantize with weights that stay real numbers in front of "
                "QuantizeLinear (onnxruntime's quantize_static with extra_options={'AddQDQPairToWeight': True}).")
    ends = [node for node in topological(outputs) if is_constant(node) and any(
        x is not None and x.is_float and (x.node is not None or x.array is not None) for x in node.inputs)]
    if ends:
        where = f" (node {ends[-1].name!r})" if ends[-1].name else ""
        return f" differentiably: {ends[-1].op_type}{where} has no gradient; train an output before it."
    return "; name the weights to train."
