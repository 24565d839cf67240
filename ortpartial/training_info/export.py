"""How is a training handed on? `to_training_info` writes it into its model, in the form that ONNX has for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from ortpartial.autodiff import grad
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.graph import OPSET, Node, Value, attach_outputs, build, constant, op, schema_of, topological, variable
from ortpartial.learning import (
    BaseLearningRate,
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateSGDNesterov,
    Schedule,
    glorot_bounds,
)
from ortpartial.model import Model, load, prepare, walk_graphs
from ortpartial.training import Names, step_values

from .checker import check_training_info
from .graphs import lowered_step, strip_training_info
from .operators import DOMAIN, training

__all__ = ["check_training_info", "lowered_step", "strip_training_info", "to_training_info"]


def to_training_info(
    optimizer: Any, style: str = "standard", *, init: str = "random", weighted: bool = False
) -> ModelProto:
    """The model of an optimizer with its training: how weights start, and what a step does.

    The inference graph is that of `get_trained_onnx`, with the weights of now. One entry of ``training_info`` holds an
    initialization without inputs, and an algorithm that reads the tensors of the inference graph by their names, the
    targets, and its own initializers, the states of the rate and the number of batches seen, as they are now. With
    ``train_mode`` it computes again what follows from a Dropout or a BatchNormalization, moves the running statistics,
    and has the seed of the masks among its initializers.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        Model, weights, loss, penalty, rate and mode.
    style : str
        ``"standard"`` writes the gradient as one Gradient node and, where the settings of the rate can be expressed by
        them, Adagrad, Adam and Momentum nodes. ``"lowered"`` has plain operators alone, which any onnxruntime runs.
    init : str
        ``"random"``: the initialization draws what something is multiplied with, as the optimizer does with
        ``init="random"``, and gives the others what the model held. ``"model"``: all of them what the model held.
    weighted : bool
        Whether the rows have weights, an input more.

    Returns
    -------
    onnx.ModelProto
        A model of an opset before 21 is upgraded to 21, and weights inside of a body become initializers of the graph;
        any other graph is not changed.

    Raises
    ------
    SettingError
        The style or the initialization is not known, or the optimizer has a `precision`.
    ModelError
        A weight is an output of a body, or a step needs what the graph does not hand out.

    References
    ----------
    .. [1] ONNX, TrainingInfoProto.

    Examples
    --------
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> model = to_training_info(OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w})))
    >>> [node.op_type for node in model.training_info[0].algorithm.node][-4:]
    ['Gradient', 'Mul', 'Sub', 'Add']
    >>> [(p.key, p.value) for p in model.training_info[0].update_binding]
    [('w', 'w_new'), ('iteration', 'iteration_new')]
    """
    if style not in ("standard", "lowered"):
        raise SettingError(f"style is {style!r}; expected 'standard' or 'lowered'.")
    if init not in ("random", "model"):
        raise SettingError(f"init is {init!r}; expected 'random' or 'model'.")
    if optimizer.precision is not None:
        raise SettingError(f"precision={optimizer.precision!r} is not written into a model; set it to None first.")
    weights, moving = optimizer.weights_to_train, list(optimizer._spec.moving)
    proto = _modern(optimizer.get_trained_onnx())
    _lift(proto.graph, moving)
    model = load(proto, variables=moving)
    names = Names.of(model)
    seen = variable(names.iteration, np.int64, [])
    recorded: dict[str, Value] = {}
    penalty, rate, gradient = optimizer.learning_penalty, optimizer.learning_rate, grad
    if style == "standard":
        costs = any(penalty.applies_to(model.initializers[w].shape or ()) for w in weights)
        rate, gradient = _Nodes(rate), _named_gradient(names.free("objective") if costs else names.loss, recorded)
    inputs, outputs = step_values(model, weights, optimizer._spec.losses, penalty, rate,
                                  weighted=weighted, train_mode=optimizer.train_mode, gradient=gradient,
                                  k=seen + 1)
    results = {names.loss: outputs.pop(names.loss), **recorded, **outputs, names.new(names.iteration): seen + 1}
    states = [n for n in inputs if names.new(n) in results and n not in moving]

    algorithm = _algorithm(proto, model, {**inputs, names.iteration: seen}, results)
    changing = [*states, names.iteration]
    arrays = dict(zip(changing, optimizer.get_state("optimizer"), strict=True))
    zeros = {n: np.zeros_like(a) for n, a in arrays.items()}
    if names.seed in inputs:
        arrays[names.seed] = optimizer.get_state("buffer")[-1]
    fresh = [i for i in algorithm.graph.input if i.name not in arrays]
    algorithm.graph.ClearField("input")
    algorithm.graph.input.extend(fresh)
    algorithm.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())

    info = proto.training_info.add()
    info.algorithm.CopyFrom(algorithm.graph)
    info.algorithm.name = names.free("training")
    first = {w: optimizer._spec.model.arrays[w] for w in moving}
    drawn = glorot_bounds(model, weights) if init == "random" else {}
    starts = {n: _start(a, drawn.get(n)) for n, a in {**first, **zeros}.items()}
    if init == "random" and names.seed in inputs:
        # As large as the numbers are that int32 holds, and that float32 does not round to larger ones.
        starts[names.seed] = op.Cast(op.RandomUniform(low=-2e9, high=2e9, shape=[2]), to=TensorProto.INT32)
    initialization = {names.free(f"{n}_init"): start for n, start in starts.items()}
    info.initialization.CopyFrom(build([], initialization, name=names.free("initialization")).graph)
    for n, start in zip(starts, initialization, strict=True):
        info.initialization_binding.add(key=n, value=start)
        if n != names.seed:
            info.update_binding.add(key=n, value=names.new(n))
    _declare(proto, algorithm)
    return proto


def _modern(proto: ModelProto) -> ModelProto:
    """A copy of the model without training information, of opset 21 or later."""
    found = strip_training_info(proto)
    if any(o.domain in ("", "ai.onnx") and o.version < OPSET for o in found.opset_import):
        graph, opsets = prepare(found)
        kept = {t.name for t in graph.initializer}
        stored = [t for t in found.graph.initializer if t.name not in kept]
        inputs = [i for i in graph.input if i.name not in {t.name for t in stored}]
        graph.ClearField("input")
        graph.input.extend(inputs)
        graph.initializer.extend(stored)
        imports = [helper.make_opsetid(d, v) for d, v in opsets.items()]
        version = helper.find_min_ir_version_for([o for o in imports if o.domain in ("", "ai.onnx.ml")])
        found = helper.make_model(graph, opset_imports=imports, ir_version=max(found.ir_version, version))
    return found


def _lift(graph: GraphProto, names: Collection[str]) -> None:
    """Move initializers out of bodies, where no binding reaches them, into the graph, which bodies see."""
    for body in list(walk_graphs(graph))[1:]:
        moved = [t for t in body.initializer if t.name in names]
        if given := [t.name for t in moved if t.name in {o.name for o in body.output}]:
            raise ModelError(f"{given[0]!r} is an initializer of a body and its output, and a binding changes those of "
                             f"the graph alone; put an Identity between.")
        graph.initializer.extend(moved)
        kept = [t for t in body.initializer if t.name not in names]
        body.ClearField("initializer")
        body.initializer.extend(kept)


def _named_gradient(y: str, recorded: dict[str, Value]) -> Callable[..., list[Value]]:
    """The gradient as a Gradient node of what is recorded under the name y."""

    def gradient(objective: Value, xs: Sequence[Value]) -> list[Value]:
        recorded[y] = objective
        leaves = dict.fromkeys(v for node in topological([objective]) for v in node.reads if v.node is None)
        zs = [v for v in leaves if v.array is None and v not in xs]
        attributes = {"xs": [v.hint for v in xs], "zs": [v.hint for v in zs], "y": y}
        node = Node(schema_of("Gradient", DOMAIN, 1), (*xs, *zs), attributes)
        return list(attach_outputs(node, [x.type for x in xs], ()).outputs)

    return gradient


@dataclass(frozen=True)
class _Nodes:
    """A rate written as a node of the standard, where its settings can be expressed by one."""

    rate: BaseLearningRate

    @property
    def state(self) -> tuple[str, ...]:
        """What is remembered of each weight."""
        return self.rate.state

    def apply(self, w: Value, g: Value, k: Value, *state: Value) -> tuple[Value, ...]:
        """The weight and its state after batch k."""
        found = _node_of(self.rate, w.dtype)
        if found is None:
            return self.rate.apply(w, g, k, *state)
        op_type, settings = found
        assert isinstance(self.rate.schedule, Schedule)
        eta = self.rate.schedule(constant(np.asarray(self.rate.eta0, w.dtype)), k)
        # Momentum counts from 0, the others, whose t is an exponent or has no effect here, from 1.
        t = k - 1 if op_type == "Momentum" else k
        made: tuple[Value, ...] = getattr(training, op_type)(eta, t, w, g, *state, n_outputs=1 + len(state), **settings)
        return made


def _node_of(rate: BaseLearningRate, dtype: np.dtype) -> tuple[str, dict[str, Any]] | None:
    """The operator that computes what a rate does, and its attributes; None where there is none."""
    settings: dict[str, Any]
    if type(rate) is LearningRateAdagrad:
        op_type, settings = "Adagrad", {"epsilon": rate.epsilon}
    elif type(rate) is LearningRateSGDNesterov:
        op_type, settings = "Momentum", {"alpha": rate.momentum, "beta": 1.0, "norm_coefficient": 0.0,
                                         "mode": "nesterov" if rate.nesterov else "standard"}
    elif type(rate) is LearningRateAdam and rate.epsilon_hat:
        op_type, settings = "Adam", {"alpha": rate.beta1, "beta": rate.beta2, "epsilon": rate.epsilon}
    else:
        return None
    # Attributes are float32, which is too coarse for most numbers where weights are float64.
    numbers = [v for v in settings.values() if isinstance(v, float)]
    exact = dtype == np.float32 or (dtype == np.float64 and all(float(np.float32(v)) == v for v in numbers))
    return (op_type, settings) if exact else None


def _algorithm(
    proto: ModelProto, model: Model, inputs: Mapping[str, Value], results: Mapping[str, Value]
) -> ModelProto:
    """The step as a graph that goes on from what the inference graph computes; its inputs are those of the step."""
    graph = proto.graph
    visible = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    visible |= {o for node in graph.node for o in node.output if o}
    cut = {n: v for n, v in model.values.items() if n in visible}
    # A step may need an output that the graph leaves out, a mask or an index, or what is inside of a loop.
    known = {v.node for v in cut.values() if v.node is not None}
    partly = {node for node in topological(list(results.values()), set(cut.values())) if node in known}
    if random := [node for node in partly if node.is_random]:
        raise ModelError(f"{random[0]!r} draws random numbers, and the step needs an output of it that the graph "
                         f"leaves out: name all outputs of the node.")
    cut = {n: v for n, v in cut.items() if v.node is None or v.node not in partly}
    taken = visible | {node.name for node in graph.node}
    taken |= {n for g in walk_graphs(graph) for node in g.node for n in (node.name, *node.output)}
    own = {n: v for n, v in inputs.items() if n not in visible}
    built = build({**cut, **own}, results, name="training", reserved=taken)
    kept = [i for i in built.graph.input if i.name in own]
    built.graph.ClearField("input")
    built.graph.input.extend(kept)
    # onnx 1.23.2 has no inference for Gradient, and its checker wants to know what the update reads.
    types = {n: v.type for n, v in cut.items()}
    nodes = [node for node in built.graph.node if (node.domain, node.op_type) == (DOMAIN, "Gradient")]
    found = ((o, types[i]) for node in nodes for i, o in zip(node.input, node.output, strict=False))
    built.graph.value_info.extend(helper.make_value_info(o, kind) for o, kind in found)
    return built


def _start(array: np.ndarray, bound: float | None) -> Value:
    """Where an initializer starts: what is drawn within ± a bound, else what it holds."""
    if bound is not None:
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        drawn: Value = op.RandomUniform(low=-bound, high=bound, shape=list(array.shape), dtype=kind)
        return drawn
    if array.size > 1 and (array == array.flat[0]).all():
        filled: Value = op.ConstantOfShape(np.asarray(array.shape, np.int64), value=array.flat[:1])
        return filled
    return constant(array)


def _declare(proto: ModelProto, algorithm: ModelProto) -> None:
    """State the opsets and the version of the format that a model with its training needs."""
    known = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
    for o in algorithm.opset_import:
        if o.domain not in known:
            proto.opset_import.add(domain=o.domain, version=o.version)
        elif o.version > known[o.domain]:
            raise ModelError(f"A step needs version {o.version} of the domain {o.domain!r}, and the model is of "
                             f"version {known[o.domain]}: upgrade it with onnx.version_converter.")
    proto.ir_version = max(proto.ir_version, 7)  # training information came with version 7 of the format
