"""Recognition of a stored training: which losses, penalty and optimizer the algorithm of a model stands for.

Models of `to_training_info` have it in their metadata: see record.py. Of models from elsewhere, of a former version, or
edited since, the algorithm and every training that it may stand for are written as formulas. Where the formulas agree
but for their numbers, the numbers tell the settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import chain, permutations, product
from math import isclose
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, defs, helper, numpy_helper

from ortpartial.exceptions import GraphError, ModelError
from ortpartial.graph import Value, build, op, variable
from ortpartial.learning import (
    AbsoluteLearningLoss,
    BaseLearningLoss,
    BaseLearningRate,
    ConstantSchedule,
    CosineSchedule,
    ElasticLearningLoss,
    ElasticLearningPenalty,
    FocalLearningLoss,
    HingeLearningLoss,
    HuberLearningLoss,
    InvScalingSchedule,
    LearningRateAdafactor,
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateAdamW,
    LearningRateLAMB,
    LearningRateLion,
    LearningRateNAdam,
    LearningRateRAdam,
    LearningRateRMSProp,
    LearningRateSGD,
    LearningRateSGDNesterov,
    NegLogLearningLoss,
    NextTokenLearningLoss,
    PoissonLearningLoss,
    PolynomialSchedule,
    Schedule,
    SoftmaxCrossEntropyLearningLoss,
    SquareLearningLoss,
    StepSchedule,
    WarmUpSchedule,
    weighted_mean,
)
from ortpartial.model import load, read

from .checker import check_training_info
from .export import StoredRate
from .graphs import pairs, strip_training_info
from .operators import DOMAIN
from .record import StoredTraining, read_record

__all__ = ["recognize_training"]

#: A formula without its numbers, and these.
Written = tuple[str, list[Any]]

#: How many states of each tensor an operator of the standard has.
_STATES = {"Adagrad": 1, "Adam": 2, "Momentum": 1}

# Settings that formulas are written with: numbers by which a setting is found again, and 0 where it has no term then.
_SCHEDULES = (ConstantSchedule(), InvScalingSchedule(0.37), StepSchedule(n=7777, factor=0.41),
              CosineSchedule(n=7777), CosineSchedule(n=7777, minimum=0.0043), PolynomialSchedule(n=7777))
_RATES = (LearningRateSGD(0.0123), LearningRateAdagrad(0.0123, epsilon=0.0017),
          *(LearningRateSGDNesterov(0.0123, momentum=0.73, nesterov=ahead) for ahead in (False, True)),
          *(LearningRateAdam(0.0123, beta1=0.73, beta2=0.69, epsilon=0.0017, epsilon_hat=hat) for hat in (False, True)),
          *(LearningRateAdamW(0.0123, beta1=0.73, beta2=0.69, epsilon=0.0017, epsilon_hat=hat, weight_decay=0.19)
            for hat in (False, True)),
          *(LearningRateRMSProp(0.0123, alpha=0.73, epsilon=0.0017, momentum=momentum, centered=centered)
            for momentum in (0.0, 0.69) for centered in (False, True)),
          LearningRateSGD(0.0123, weight_decay=0.19),
          *(LearningRateSGDNesterov(0.0123, momentum=0.73, nesterov=ahead, weight_decay=0.19)
            for ahead in (False, True)),
          *(LearningRateLion(0.0123, beta1=0.73, beta2=0.69, weight_decay=decay) for decay in (0.0, 0.19)),
          *(kind(0.0123, beta1=0.73, beta2=0.69, epsilon=0.0017, weight_decay=decay)
            for kind in (LearningRateNAdam, LearningRateRAdam, LearningRateLAMB) for decay in (0.0, 0.19)),
          *(LearningRateAdafactor(0.0123, weight_decay=decay, decay_power=0.73, least_scale=0.0043, threshold=1.69)
            for decay in (0.0, 0.19)))
_LOSSES = (SquareLearningLoss(), AbsoluteLearningLoss(), HuberLearningLoss(0.73), ElasticLearningLoss(0.73, 0.69),
           ElasticLearningLoss(0, 0.69), ElasticLearningLoss(0.73, 0), NegLogLearningLoss(), HingeLearningLoss(),
           PoissonLearningLoss(), SoftmaxCrossEntropyLearningLoss(), SoftmaxCrossEntropyLearningLoss(ignore_index=None),
           FocalLearningLoss(1.73, 0.19), FocalLearningLoss(1.73, None), NextTokenLearningLoss(),
           NextTokenLearningLoss(ignore_index=None))
_PENALTIES = (ElasticLearningPenalty(l1=0.73), ElasticLearningPenalty(l2=0.69))


def recognize_training(model: ModelProto | bytes | str | os.PathLike[str]) -> StoredTraining:
    """Recognize the training that a model stores.

    Parameters
    ----------
    model : onnx.ModelProto, bytes or path
        A model with ``training_info`` of a single entry: written by `to_training_info`, with its settings in the
        metadata, or a model in which a Gradient node differentiates losses of the outputs, plus a penalty, and an
        optimizer of the library updates the weights, or an operator of the standard.

    Returns
    -------
    StoredTraining

    Raises
    ------
    ModelError
        There is no training, it is invalid, or it is not recognized; the message says why.
    """
    proto = read(model)
    check_training_info(proto)
    if len(proto.training_info) != 1:
        raise _unrecognized(f"it has {len(proto.training_info)} entries, where one was expected")
    inference = strip_training_info(proto)
    return read_record(proto, inference) or _Algorithm(proto, inference).recognize()


def _unrecognized(reason: str) -> ModelError:
    return ModelError(f"The training in the model is none that an optimizer can go on with: {reason}. TrainingSession "
                      f"goes on with any.")


class _Algorithm:
    """The only algorithm of a model.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    inference : onnx.ModelProto
        The model without the training.
    """

    def __init__(self, proto: ModelProto, inference: ModelProto):
        self.graph = proto.training_info[0].algorithm
        self.update = pairs(proto.training_info[0].update_binding)
        self.formula = _Formula([proto.graph, self.graph], frozenset(self.update))
        self.inference = inference
        self.model = load(self.inference, ties="file")
        self.weights = [t.name for t in proto.graph.initializer if t.name in self.update]
        self.counter = self._find_counter()

    def recognize(self) -> StoredTraining:
        """The training that it stands for."""
        if not self.weights:
            raise _unrecognized("it updates no initializer of the inference graph")
        objective, gradients = self._find_gradients()
        rates: list[BaseLearningRate] = []
        states: dict[tuple[str, str], np.ndarray] = {}
        for w in self.weights:
            rate, named = self._recognize_update(w, gradients[w], rates[:1])
            rates.append(rate)
            shape = self.model.initializers[w].shape or ()
            states |= {(w, s): self.formula.constants[n]
                       for s, n in zip(rate.state_shapes(shape), named, strict=True)}
        rate, factors = _split_factors(dict(zip(self.weights, rates, strict=True)))
        if len(states) + len(self.weights) + bool(self.counter) != len(self.update):
            raise _unrecognized("it updates more than weights, the states of its optimizer and a counter")
        losses, penalty = self._recognize_terms(self.formula.list_terms(objective))
        is_alone = len([v for v in self.model.outputs.values() if v.is_float]) == 1
        # Training mode is not recognized.
        settings = {"weights_to_train": self.weights, "train_mode": False, "learning_rate": rate,
                    "rate_factors": factors or None, "learning_penalty": penalty,
                    "learning_loss": next(iter(losses.values())) if is_alone else losses}
        iteration = int(self.formula.constants[self.counter]) if self.counter else 0
        return StoredTraining(self.inference, settings, states, iteration)

    def _find_counter(self) -> str:
        """The initializer of the number of batches seen, which each step increases by 1; "" where there is none."""
        for key, value in self.update.items():
            node = self.formula.node(value)
            terms = node.input if node is not None and node.op_type == "Add" else ()
            if key not in self.weights and key in terms and 1 in [self.formula.number(x) for x in terms]:
                return key
        return ""

    def _find_gradients(self) -> tuple[str, dict[str, str]]:
        """The tensor that is differentiated, and its gradients by the weights."""
        objectives: set[str] = set()
        gradients: dict[str, str] = {}
        for node in self.graph.node:
            if (node.domain, node.op_type) == (DOMAIN, "Gradient"):
                a = {a.name: helper.get_attribute_value(a) for a in node.attribute}
                xs, zs = ([n.decode() for n in a.get(which, ())] for which in ("xs", "zs"))
                if list(node.input) == [*xs, *zs]:
                    objectives.add(a["y"].decode())
                    gradients.update(zip(xs, node.output, strict=False))
        if len(objectives) != 1:
            raise _unrecognized(f"it has Gradient nodes of {len(objectives)} tensors, where one was expected")
        if missing := [w for w in self.weights if w not in gradients]:
            raise _unrecognized(f"it has no Gradient of {missing[0]!r}")
        return objectives.pop(), gradients

    def _recognize_update(self, w: str, gradient: str, likely: Sequence[BaseLearningRate]
                          ) -> tuple[BaseLearningRate, tuple[str, ...]]:
        """The optimizer of a weight, and the initializers that are its states, in their order."""
        symbols = {w: "w", gradient: "g"} | ({self.update[self.counter]: "k"} if self.counter else {})
        known = {*self.weights, self.counter}
        stored = [n for n in self.formula.list_read(self.update[w], symbols) if n in self.update and n not in known]
        v = self.model.initializers[w]
        for states in permutations(stored):
            names = {**symbols, **{n: f"s{i}" for i, n in enumerate(states)}}
            results = [self.formula.write(self.update[n], names) for n in (w, *states)]
            candidates = chain(likely, _list_rates(len(states), v.shape or ()))
            rate = _fit(candidates, results, partial(_write_rate, weight=v))
            if rate is not None:
                return rate, states
        raise _unrecognized(f"the update of {w!r} is that of no optimizer and schedule of the library that is "
                            f"recognized")

    def _recognize_terms(self, terms: Sequence[str]) -> tuple[dict[str, BaseLearningLoss], Any]:
        """The losses of the outputs, and the penalty of the weights, whose sum is differentiated."""
        losses: dict[str, BaseLearningLoss] = {}
        penalties: dict[str, ElasticLearningPenalty] = {}
        for term in terms:
            if (recognized := self._recognize_loss(term)) is not None:
                if recognized[0] in losses:
                    raise _unrecognized(f"it has two losses of {recognized[0]!r}")
                losses.update([recognized])
            else:
                w, part = self._recognize_penalty(term)
                penalty = penalties.get(w, ElasticLearningPenalty())
                penalties[w] = replace(penalty, l1=penalty.l1 + part.l1, l2=penalty.l2 + part.l2)
        if not penalties:
            return losses, None
        shapes = {w: self.model.initializers[w].shape or () for w in self.weights}
        first, *others = penalties.values()
        for penalty in (first, replace(first, penalize_biases=True)):
            penalized = {w for w in self.weights if penalty.applies_to(shapes[w])}
            if penalized == penalties.keys() and all(other == first for other in others):
                return losses, penalty
        raise _unrecognized("its penalty is not the same for all weights")

    def _recognize_loss(self, term: str) -> tuple[str, BaseLearningLoss] | None:
        """The output that a term is a loss of, and the loss."""
        inputs = [i.name for i in self.graph.input]
        for output, y in self.model.outputs.items():
            for names in (names for count in (1, 2) for names in permutations(inputs, count)):
                result = self.formula.write(term, {output: "y", **dict(zip(names, "tw", strict=False))}, y.rank)
                for means in _list_means(y):
                    if (loss := _fit(_LOSSES, [result], means)) is not None:
                        return output, loss
        return None

    def _recognize_penalty(self, term: str) -> tuple[str, ElasticLearningPenalty]:
        """The weight that a term is the penalty of, and the penalty."""
        for w in self.weights:
            v = self.model.initializers[w]
            penalty = _fit(_PENALTIES, [self.formula.write(term, {w: "w"}, v.rank)], partial(_write_penalty, weight=v))
            if penalty is not None:
                return w, penalty
        raise _unrecognized("its loss is none of the library that is recognized")


def _list_rates(states: int, shape: Sequence[Any]) -> Iterator[BaseLearningRate]:
    """The optimizers that have so many states of a weight of this shape, with all schedules."""
    warmed = [*_SCHEDULES, *(WarmUpSchedule(s, n=5555) for s in _SCHEDULES)]
    for rate, schedule in product(_RATES, warmed):
        if len(rate.state_shapes(shape)) == states:
            yield replace(rate, schedule=schedule)


def _split_factors(rates: Mapping[str, BaseLearningRate]) -> tuple[BaseLearningRate, dict[str, float]]:
    """The optimizer of all weights, and the factors of constant rates that differ from the first."""
    first = next(iter(rates.values()))
    if not all(isinstance(rate.schedule, ConstantSchedule) for rate in rates.values()):
        return _join_rates(rates), {}
    factors = {w: rate.eta0 / first.eta0 for w, rate in rates.items() if rate.eta0 != first.eta0}
    return _join_rates({w: replace(rate, eta0=first.eta0) for w, rate in rates.items()}), factors


def _join_rates(rates: Mapping[str, BaseLearningRate]) -> BaseLearningRate:
    """The optimizer of all weights, of which some may not decay."""
    rate = max(rates.values(), key=lambda rate: getattr(rate, "weight_decay", 0.0))
    excluded = [w for w, other in rates.items() if other != rate]
    settings = [f.name for f in fields(rate) if f.name not in ("weight_decay", "no_decay")]
    for other in (rates[w] for w in excluded):
        is_alike = all(getattr(other, n, getattr(rate, n)) == getattr(rate, n) for n in settings)
        if not is_alike or not isinstance(rate, type(other)) or getattr(other, "weight_decay", 0.0) != 0:
            raise _unrecognized("it updates weights by different optimizers")
    return replace(rate, no_decay=tuple(excluded)) if excluded else rate  # type: ignore[call-arg]


def _write_rate(rate: BaseLearningRate, weight: Value) -> list[Written]:
    """The formulas of a weight and its states after a step: with an operator of the standard, and without."""
    shape = weight.shape or ()
    shapes = {"w": shape, "g": shape, **{f"s{i}": s for i, s in enumerate(rate.state_shapes(shape).values())}}
    names = list(shapes)
    w, g, *states = (variable(n, weight.dtype, size) for n, size in shapes.items())
    k = variable("k", np.int64, [])
    inputs = dict(zip([*names, "k"], [w, g, *states, k], strict=True))
    return [_write(inputs, v) for v in StoredRate(rate, as_node=True).apply(w, g, k, *states)]


def _write_penalty(penalty: ElasticLearningPenalty, weight: Value) -> list[Written]:
    """The formula of the penalty of a weight."""
    w = Value(weight.type, hint="w")
    return [_write({"w": w}, penalty(w), w.rank)]


def _list_means(y: Value) -> Iterator[Callable[[BaseLearningLoss], list[Written]]]:
    """How the mean of a loss over the rows of an output may be written: here, with weights, and by others."""
    def write(mean: Callable[[BaseLearningLoss, Value, Value, Value], Value | None]
              ) -> Callable[[BaseLearningLoss], list[Written]]:
        def formula(loss: BaseLearningLoss) -> list[Written]:
            try:
                target = loss.target_shape(y.shape or ())
            except GraphError:
                return []
            named = Value(y.type, hint="y")
            t = variable("t", y.dtype if loss.target_dtype is None else loss.target_dtype, target)
            w = variable("w", y.dtype, (y.shape or ())[:1])
            v = mean(loss, named, t, w)
            return [] if v is None else [_write({"y": named, "t": t, "w": w}, v, y.rank)]
        return formula

    if not y.is_float or not y.rank:
        return
    is_labels = SoftmaxCrossEntropyLearningLoss
    yield write(lambda loss, y, t, w: weighted_mean(loss(y, t), None, loss.counts(y, t)))
    yield write(lambda loss, y, t, w: weighted_mean(loss(y, t), w, loss.counts(y, t)))
    yield write(lambda loss, y, t, w: None if type(loss) is is_labels else op.ReduceMean(loss(t, y)))
    yield write(lambda loss, y, t, w: op.SoftmaxCrossEntropyLoss(y, t) if type(loss) is is_labels else None)
    yield write(lambda loss, y, t, w: op.NegativeLogLikelihoodLoss(op.LogSoftmax(y, axis=1), t)
                if type(loss) is is_labels else None)


# -- settings from numbers


def _fit(pieces: Any, results: Sequence[Written], write: Callable[[Any], list[Written]]) -> Any:
    """The first piece that can be written as these results, with the settings that follow from their numbers."""
    texts = [text for text, _ in results]
    numbers = [number for _, numbers in results for number in numbers]
    for piece in pieces:
        written = write(piece)
        if [text for text, _ in written] == texts:
            own = [number for _, numbers in written for number in numbers]
            fitted = _replace_numbers(piece, list(zip(own, numbers, strict=True)))
            if [n for _, numbers in write(fitted) for n in numbers] == numbers:
                return fitted
    return None


def _replace_numbers(piece: Any, numbers: Sequence[tuple[Any, Any]]) -> Any:
    """A piece with other settings: where a formula has the number of a setting, the number of the other formula."""
    changes: dict[str, Any] = {}
    for f in fields(piece):
        value = getattr(piece, f.name)
        if isinstance(value, Schedule):
            changes[f.name] = _replace_numbers(value, numbers)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and value:
            new = [b for a, b in numbers if isclose(a, value, rel_tol=1e-6)]
            new = new or [-b for a, b in numbers if isclose(-a, value, rel_tol=1e-6)]
            halves = [2 * b for a, b in numbers if isclose(a, value / 2, rel_tol=1e-6)]
            if new or halves:
                # In double precision where a formula has it so: 1 - βᵏ, for example.
                best = max(new or halves, key=lambda n: n.dtype.itemsize)
                changes[f.name] = type(value)(_shortest(best))
    return replace(piece, **changes)


def _shortest(number: Any) -> float:
    """The shortest decimal that a number is the nearest to, for example 0.1 for 0.1 in float32."""
    return float(str(number))


# -- formulas


def _write(inputs: Mapping[str, Value], v: Value, rank: int = -1) -> Written:
    """The formula of a value."""
    graph = build(inputs, {"result": v}).graph
    return _Formula([graph], frozenset()).write("result", {n: n for n in inputs}, rank)


class _Formula:
    """The nodes and constants of graphs, written as formulas that equal expressions share.

    Parameters
    ----------
    graphs : list of onnx.GraphProto
        The graphs, which may read tensors of one another.
    changing : frozenset of str
        The initializers that are no constants.
    """

    def __init__(self, graphs: list[GraphProto], changing: frozenset[str]):
        self.nodes = {o: node for g in graphs for node in g.node for o in node.output if o}
        self.constants = {t.name: numpy_helper.to_array(t) for g in graphs for t in g.initializer}
        self.changing = changing
        for name, node in self.nodes.items():
            if node.op_type == "Constant" and node.attribute[0].type == AttributeProto.TENSOR:
                self.constants[name] = numpy_helper.to_array(node.attribute[0].t)

    def node(self, name: str) -> NodeProto | None:
        """The node that gives a tensor, but for Identity."""
        node = self.nodes.get(name)
        while node is not None and node.op_type == "Identity":
            node = self.nodes.get(node.input[0])
        return node

    def number(self, name: str) -> Any:
        """A constant of a single element, a scalar of numpy; None for anything else."""
        array = None if name in self.changing else self.constants.get(name)
        return None if array is None or array.size != 1 else array.reshape(-1)[0]

    def list_terms(self, name: str) -> list[str]:
        """The tensors that a tensor is the sum of."""
        node = self.node(name)
        if node is None or node.op_type not in ("Add", "Sum"):
            return [name]
        return [term for x in node.input for term in self.list_terms(x)]

    def list_read(self, name: str, ends: Mapping[str, str]) -> list[str]:
        """The initializers that a tensor depends on, without the initializers behind some other tensors."""
        if name in ends or name not in self.nodes:
            return [name] if name in self.constants else []
        inputs = self._inputs(self.nodes[name], list(self.nodes[name].output).index(name))
        return list(dict.fromkeys(n for x in inputs for n in self.list_read(x, ends)))

    def _inputs(self, node: NodeProto, index: int) -> list[str]:
        """The inputs that an output depends on: an optimizer of the standard updates several tensors."""
        if node.domain != DOMAIN or node.op_type not in _STATES:
            return [x for x in node.input if x]
        a = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        r, t, *rest = node.input
        n = len(rest) // (2 + _STATES[node.op_type])
        # T has no effect without decay or, in Momentum, where every gradient counts as the first does.
        counts = a.get("decay_factor", 0.0) or a.get("beta", 1.0) != 1 or node.op_type == "Adam"
        return [r, *([t] if counts else []), *rest[index % n :: n]]

    def write(self, name: str, symbols: Mapping[str, str], rank: int = -1) -> Written:
        """The formula of a tensor, by symbols for some others; a mean over all of `rank` axes is a mean over all."""
        if name in symbols:
            return symbols[name], []
        if (number := self.number(name)) is not None:
            return "#", [number]
        if name not in self.nodes or name in self.constants:
            return repr(self.constants[name].tolist()) if name in self.constants else name, []
        node = self.nodes[name]
        if node.op_type == "Identity":
            return self.write(node.input[0], symbols, rank)
        index = list(node.output).index(name)
        inputs = [self.write(x, symbols, rank) for x in self._inputs(node, index)]
        op_type, (attributes, numbers) = node.op_type, _list_attributes(node)
        if node.op_type in ("Add", "Mul"):
            inputs.sort(key=lambda written: written[0])
        if op_type == "Mul" and inputs[0] == inputs[1]:
            op_type, inputs = "Pow", [inputs[0], ("#", [np.float32(2)])]
        if op_type in ("ReduceMean", "ReduceSum") and inputs[1:] in ([], [(repr(list(range(rank))), [])]):
            inputs, attributes = inputs[:1], []
        numbers = [n for _, written in inputs for n in written] + numbers
        place = index // max(1, (len(node.input) - 2) // (2 + _STATES[op_type])) if op_type in _STATES else index
        return f"{op_type}.{place}({', '.join([*(text for text, _ in inputs), *attributes])})", numbers


def _list_attributes(node: NodeProto) -> tuple[list[str], list[Any]]:
    """The attributes of a node that are not the default, and the numbers among them, which are all listed."""
    schema = defs.get_schema(node.op_type, node.domain) if defs.has(node.op_type, node.domain) else None
    default = {n: helper.get_attribute_value(a.default_value) for n, a in (schema.attributes if schema else {}).items()
               if a.default_value.name}
    values = {**default, **{a.name: helper.get_attribute_value(a) for a in node.attribute}}
    numbers = [np.float32(v) for _, v in sorted(values.items()) if isinstance(v, float)]
    return sorted(f"{n}={v}" for n, v in values.items() if not isinstance(v, float) and v != default.get(n)), numbers
