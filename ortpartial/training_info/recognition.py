"""Recognition of a stored training: which losses and optimizer the algorithm of a model stands for.

Models of `to_training_info` have their settings in their metadata: see record.py. Of models from elsewhere, or edited
since, plain losses, gradient descent and the optimizers of the standard are recognized.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, defs, helper, numpy_helper

from ortpartial.exceptions import GraphError, ModelError
from ortpartial.graph import Value, build, op, variable
from ortpartial.learning import (
    AbsoluteLearningLoss,
    BaseLearningLoss,
    BaseLearningRate,
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateSGD,
    LearningRateSGDNesterov,
    NegLogLearningLoss,
    SoftmaxCrossEntropyLearningLoss,
    SquareLearningLoss,
    weighted_mean,
)
from ortpartial.model import load, read

from .checker import check_training_info
from .export import StoredRate
from .graphs import pairs, strip_training_info
from .operators import DOMAIN
from .record import StoredTraining, read_record

__all__ = ["recognize_training"]

#: How many states of each tensor an operator of the standard has.
_STATES = {"Adagrad": 1, "Adam": 2, "Momentum": 1}

#: The losses that are recognized.
_LOSSES = (SquareLearningLoss(), AbsoluteLearningLoss(), NegLogLearningLoss(), SoftmaxCrossEntropyLearningLoss(),
           SoftmaxCrossEntropyLearningLoss(ignore_index=None))


def recognize_training(model: ModelProto | bytes | str | os.PathLike[str]) -> StoredTraining:
    """Recognize the training that a model stores.

    Parameters
    ----------
    model : onnx.ModelProto, bytes or path
        A model with ``training_info`` of a single entry: written by `to_training_info`, with its settings in the
        metadata; or a model in which a Gradient node differentiates the sum of means of square or absolute errors, log
        losses or cross-entropies of the outputs, and Adagrad, Adam, Momentum or w - rate · gradient updates weights.

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
        self.graph, self.inference = proto.training_info[0].algorithm, inference
        self.update = pairs(proto.training_info[0].update_binding)
        self.formula = _Formula(proto.graph, self.graph)
        self.weights = [t.name for t in proto.graph.initializer if t.name in self.update]
        self.counter = self._find_counter()

    def recognize(self) -> StoredTraining:
        """The training that it stands for."""
        if not self.weights:
            raise _unrecognized("it updates no initializer of the inference graph")
        objective, gradients = self._find_gradients()
        rates: dict[str, BaseLearningRate] = {}
        states: dict[tuple[str, str], np.ndarray] = {}
        for w in self.weights:
            rates[w], named = self._recognize_update(w, gradients[w])
            states |= {(w, s): self.formula.constants[n] for s, n in zip(rates[w].state, named, strict=True)}
        rate, *others = rates.values()
        if any(other != rate for other in others):
            raise _unrecognized("it updates weights by different optimizers")
        if len(states) + len(self.weights) + bool(self.counter) != len(self.update):
            raise _unrecognized("it updates more than weights, the states of its optimizer and a counter")
        outputs = {n: v for n, v in load(self.inference, ties="file").outputs.items() if v.is_float}
        losses: dict[str, BaseLearningLoss] = {}
        for term in self.formula.list_terms(objective):
            output, loss = self._recognize_loss(term, outputs)
            if output in losses:
                raise _unrecognized(f"it has two losses of {output!r}")
            losses[output] = loss
        # Training mode is not recognized.
        settings = {"weights_to_train": self.weights, "train_mode": False, "learning_rate": rate,
                    "learning_loss": losses if len(outputs) > 1 else next(iter(losses.values()))}
        iteration = int(self.formula.constants[self.counter]) if self.counter else 0
        return StoredTraining(self.inference, settings, states, iteration)

    def _find_counter(self) -> str:
        """The initializer of the number of batches seen, which each step increases by 1; "" where there is none."""
        for key, value in self.update.items():
            node = self.formula.node(value)
            terms = node.input if node is not None and node.op_type == "Add" else ()
            if key not in self.weights and key in terms and 1 in map(self.formula.number, terms):
                return key
        return ""

    def _find_gradients(self) -> tuple[str, dict[str, str]]:
        """The tensor that is differentiated, and its gradients by the weights."""
        objectives: set[str] = set()
        gradients: dict[str, str] = {}
        for node in self.graph.node:
            if (node.domain, node.op_type) == (DOMAIN, "Gradient"):
                a = _read_attributes(node)
                xs = [n.decode() for n in a["xs"]]
                if list(node.input) == [*xs, *(n.decode() for n in a.get("zs", ()))]:
                    objectives.add(a["y"].decode())
                    gradients.update(zip(xs, node.output, strict=False))
        if len(objectives) != 1:
            raise _unrecognized(f"it has Gradient nodes of {len(objectives)} tensors, where one was expected")
        if missing := [w for w in self.weights if w not in gradients]:
            raise _unrecognized(f"it has no Gradient of {missing[0]!r}")
        return objectives.pop(), gradients

    def _recognize_update(self, w: str, gradient: str) -> tuple[BaseLearningRate, list[str]]:
        """The optimizer of a weight, and the initializers that are its states, in their order."""
        node, end = self.formula.node(self.update[w]), self.formula.end
        if node is not None and node.domain == DOMAIN and node.op_type in _STATES:
            r, t, *tensors = node.input
            count, first = len(tensors) // (2 + _STATES[node.op_type]), list(node.output).index(end(self.update[w]))
            x, g, *states = tensors[first::count]
            new = [end(self.update.get(n, "")) for n in (x, *states)]
            rate = self._read_rate(node, self.formula.number(r), end(t))
            if x == w and end(g) == gradient and new == list(node.output)[first::count] and rate is not None:
                return rate, states
        elif node is not None and node.op_type == "Sub" and node.input[0] == w:
            scaled = self.formula.node(node.input[1])
            terms = list(map(end, scaled.input)) if scaled is not None and scaled.op_type == "Mul" else []
            numbers = [n for n in map(self.formula.number, terms) if n is not None]
            if gradient in terms and numbers:
                return LearningRateSGD(_shortest(numbers[0])), []
        if (plain := self._recognize_adam(w, gradient)) is not None:
            return plain
        raise _unrecognized(f"the update of {w!r} is neither w - rate · gradient nor an optimizer of the standard")

    def _recognize_adam(self, w: str, gradient: str) -> tuple[BaseLearningRate, list[str]] | None:
        """Adam with its default settings in plain operators, as `to_training_info` wrote it before it kept a record."""
        symbols = {w: "w", gradient: "g", self.formula.end(self.update.get(self.counter, "")): "k"}
        read = self.formula.list_read(self.update[w], symbols)
        v, names = variable("w", self.formula.constants[w].dtype, self.formula.constants[w].shape), ("g", "s0", "s1")
        g, *states = (variable(n, v.dtype, v.shape) for n in names)
        inputs = {"w": v, "g": g, "s0": states[0], "s1": states[1], "k": variable("k", np.int64, [])}
        numbers = [number for n in read if (number := self.formula.number(n)) is not None and n not in self.update]
        for number in [number for number in numbers if number.dtype == v.dtype and 0 < number < np.inf]:
            rate = LearningRateAdam(_shortest(number))
            after = dict(zip("abc", StoredRate(rate, as_node=False).apply(v, g, inputs["k"], *states), strict=True))
            formula = _Formula(build(inputs, after).graph)
            written = [formula.write(n, {i: i for i in inputs}, v.rank) for n in after]
            for named in permutations([n for n in read if n in self.update and n not in (w, self.counter)], 2):
                ours = symbols | dict(zip(named, names[1:], strict=True))
                if [self.formula.write(self.update[n], ours, v.rank) for n in (w, *named)] == written:
                    return rate, list(named)
        return None

    def _read_rate(self, node: NodeProto, rate: Any, t: str) -> BaseLearningRate | None:
        """The optimizer that an operator of the standard is, if it is any; T counts in Adam alone."""
        a = _read_attributes(node)
        numbers = {n: _shortest(np.float32(v)) for n, v in a.items() if isinstance(v, float)}
        unread = [numbers.get(n, 0) for n in ("norm_coefficient", "norm_coefficient_post", "decay_factor")]
        if rate is None or any(unread):
            return None
        eta = _shortest(rate)
        if node.op_type == "Adagrad":
            return LearningRateAdagrad(eta, epsilon=numbers["epsilon"])
        if node.op_type == "Momentum" and a["beta"] == 1:
            return LearningRateSGDNesterov(eta, momentum=numbers["alpha"], nesterov=a["mode"] == b"nesterov")
        if node.op_type == "Adam" and self.counter and t == self.formula.end(self.update[self.counter]):
            return LearningRateAdam(eta, beta1=numbers["alpha"], beta2=numbers["beta"], epsilon=numbers["epsilon"],
                                    epsilon_hat=True)
        return None

    def _recognize_loss(self, term: str, outputs: Mapping[str, Value]) -> tuple[str, BaseLearningLoss]:
        """The output that a term is a loss of, and the loss."""
        inputs = [i.name for i in self.graph.input]
        for output, y in outputs.items():
            formulas = {self.formula.write(term, {output: "y", **dict(zip(names, "tw", strict=False))}, y.rank)
                        for count in (1, 2) for names in permutations(inputs, count)}
            for loss, formula in _list_losses(y):
                if formula in formulas:
                    return output, loss
        raise _unrecognized("its loss is none of the library that is recognized")


def _list_losses(y: Value) -> Iterator[tuple[BaseLearningLoss, str]]:
    """Losses of an output, and how their means over the rows are written: here, with weights, and by others."""
    shape = y.shape or ()
    for loss in _LOSSES if y.rank else ():
        try:
            target = loss.target_shape(shape)
        except GraphError:
            continue
        named, w = Value(y.type, hint="y"), variable("w", y.dtype, shape[:1])
        t = variable("t", y.dtype if loss.target_dtype is None else loss.target_dtype, target)
        means = [weighted_mean(loss(named, t), weights, loss.counts(named, t)) for weights in (None, w)]
        if isinstance(loss, SoftmaxCrossEntropyLearningLoss):
            means += [op.SoftmaxCrossEntropyLoss(named, t),
                      op.NegativeLogLikelihoodLoss(op.LogSoftmax(named, axis=1), t)]
        else:
            means.append(op.ReduceMean(loss(t, named)))
        for mean in means:
            names = {n: n for n in "ytw"}
            graph = build({"y": named, "t": t, "w": w}, {"result": mean}).graph
            yield loss, _Formula(graph).write("result", names, y.rank)


def _shortest(number: Any) -> float:
    """The shortest decimal that a number is the nearest to, for example 0.1 for 0.1 in float32."""
    return float(str(number))


def _read_attributes(node: NodeProto) -> dict[str, Any]:
    """The attributes of a node, with the defaults of its schema."""
    schema = defs.get_schema(node.op_type, node.domain) if defs.has(node.op_type, node.domain) else None
    default = {n: helper.get_attribute_value(a.default_value) for n, a in (schema.attributes if schema else {}).items()
               if a.default_value.name}
    return {**default, **{a.name: helper.get_attribute_value(a) for a in node.attribute}}


class _Formula:
    """The nodes and constants of graphs, which may read tensors of one another, written as formulas."""

    def __init__(self, *graphs: GraphProto):
        self.nodes = {o: node for g in graphs for node in g.node for o in node.output if o}
        self.constants = {t.name: numpy_helper.to_array(t) for g in graphs for t in g.initializer}
        for name, node in self.nodes.items():
            if node.op_type == "Constant" and node.attribute[0].type == AttributeProto.TENSOR:
                self.constants[name] = numpy_helper.to_array(node.attribute[0].t)

    def end(self, name: str) -> str:
        """The tensor that a tensor is, behind Identity nodes."""
        while name in self.nodes and self.nodes[name].op_type == "Identity":
            name = self.nodes[name].input[0]
        return name

    def node(self, name: str) -> NodeProto | None:
        """The node that gives a tensor, but for Identity."""
        return self.nodes.get(self.end(name))

    def number(self, name: str) -> Any:
        """A constant of a single element, a scalar of numpy; None for anything else."""
        array = self.constants.get(self.end(name))
        return None if array is None or array.size != 1 else array.reshape(-1)[0]

    def list_terms(self, name: str) -> list[str]:
        """The tensors that a tensor is the sum of."""
        node = self.node(name)
        if node is None or node.op_type not in ("Add", "Sum"):
            return [name]
        return [term for x in node.input for term in self.list_terms(x)]

    def list_read(self, name: str, ends: Mapping[str, str]) -> list[str]:
        """The constants that a tensor depends on, without those behind some other tensors."""
        name = self.end(name)
        if name in ends or name not in self.nodes or name in self.constants:
            return [name] if name in self.constants and name not in ends else []
        return list(dict.fromkeys(n for x in self.nodes[name].input for n in self.list_read(x, ends)))

    def write(self, name: str, symbols: Mapping[str, str], rank: int) -> str:
        """The formula of a tensor, by symbols for some others; a mean over all of `rank` axes is a mean over all."""
        name = self.end(name)
        if name in symbols:
            return symbols[name]
        if name in self.constants:
            array = self.constants[name]
            return repr(float(array.item()) if array.size == 1 and array.dtype.kind in "fiu" else array.tolist())
        if (node := self.nodes.get(name)) is None:
            return name
        inputs = [self.write(x, symbols, rank) for x in node.input if x]
        op_type, attributes = node.op_type, [f"{n}={v}" for n, v in sorted(_read_attributes(node).items())]
        if op_type in ("Add", "Mul"):
            inputs.sort()
        if op_type == "Mul" and inputs[0] == inputs[1]:
            op_type, inputs = "Pow", [inputs[0], "2.0"]
        if op_type in ("ReduceMean", "ReduceSum") and inputs[1:] in ([], [repr(list(range(rank)))]):
            inputs, attributes = inputs[:1], []
        return f"{op_type}.{list(node.output).index(name)}({', '.join([*inputs, *attributes])})"
