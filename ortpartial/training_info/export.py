"""Export: a training written into its model as `TrainingInfoProto`, the ONNX standard's own form of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, TrainingInfoProto, helper, numpy_helper

from ortpartial.arguments import checked
from ortpartial.checks import check_choice
from ortpartial.exceptions import ModelError, ModelWarning, SettingError
from ortpartial.graph import OPSET, Node, Value, attach_outputs, build, constant, op, schema_of, topological, variable
from ortpartial.learning import (
    BaseLearningRate,
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateSGDNesterov,
    count_from,
    drop_flushes,
    glorot_bounds,
)
from ortpartial.model import (
    Model,
    expand_ml,
    load,
    mark_straight_through,
    prepare,
    read_ml_weights,
    remove_unused,
    restore_weights,
    walk_graphs,
)
from ortpartial.training import Names, TrainingSpec, step_values

from .graphs import store_inputs, strip_training_info
from .labels import declare_labels, find_labels
from .operators import DOMAIN, training
from .record import remember_settings

__all__ = ["TrainingSnapshot", "declare_versions", "to_training_info", "upgrade_model"]


@dataclass(frozen=True)
class TrainingSnapshot:
    """The state of a training, as it is written beside its description.

    Parameters
    ----------
    weights : dict of str to numpy.ndarray
        Weights and running statistics by name.
    optimizer : sequence of numpy.ndarray
        The optimizer states in the order of `TrainingSpec.states`.
    iteration : int
        Number of batches seen.
    seed : numpy.ndarray of shape (2,)
        Seed of the Dropout masks in ``train_mode``.
    rate_scale : float
        The factor of all step sizes.
    scaling : dict of str to numpy.ndarray
        The state of the loss scale of a mixed precision, as `TrainingSpec.scaling` names it; where there is none, that
        before the first step.
    """

    weights: Mapping[str, np.ndarray]
    optimizer: Sequence[np.ndarray]
    iteration: int = 0
    seed: np.ndarray = field(default_factory=lambda: np.zeros(2, np.int32))
    rate_scale: float = 1.0
    scaling: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def first(cls, spec: TrainingSpec) -> TrainingSnapshot:
        """The state before the first step: the weights of the model, and optimizer states of zero."""
        arrays = spec.model.arrays
        return cls({n: arrays[n] for n in spec.moving},
                   [np.zeros(spec.shapes_of_states(w)[s], arrays[w].dtype) for w, s in spec.states.values()])


@checked
def to_training_info(
    training: Any, style: str = "standard", *, state: TrainingSnapshot | None = None, init: str = "random",
    weighted: bool | str = False,
) -> ModelProto:
    """Write a training into its model: the initialization of weights, and the step.

    The inference graph is the model's, with the current weights. A single entry of ``training_info`` holds an
    initialization without inputs, and an algorithm. The algorithm reads tensors of the inference graph by name, the
    targets, and its own initializers: the current optimizer states and the number of batches seen. In ``train_mode`` it
    recomputes whatever depends on a Dropout or a BatchNormalization, updates the running statistics, and has the seed
    of the masks as an initializer.

    Parameters
    ----------
    training : TrainingSpec, or an object with `get_training_onnx`
        The training. The method `get_training_onnx` of an optimizer is called with the other arguments.
    style : str
        ``"standard"`` writes the gradient as a Gradient node and, where it has the settings of the optimizer, an
        Adagrad, Adam or Momentum node. ``"lowered"`` writes plain operators only, which any onnxruntime runs, and holds
        a mixed precision and gradient checkpointing, too.
    state : TrainingSnapshot, optional
        The state of the training; by default that before its first step. An optimizer has its own.
    init : str
        ``"random"``: the initialization draws the factors of products, as the optimizer does with ``init="random"``,
        and sets other weights to their values in the model. ``"model"``: it sets all weights to these values.
    weighted : bool or "elements"
        Whether the rows have weights, an additional input, or the elements of the targets have, for each output.

    Returns
    -------
    onnx.ModelProto
        A model of an opset before 21 is upgraded to 21, and weights inside of a body become initializers of the graph;
        any other graph is not changed.

    Raises
    ------
    SettingError
        The style, the initialization or `weighted` is not known, style ``"standard"`` is to hold a `precision`, or rows
        are to have weights and the model computes its loss itself.
    ModelError
        A weight is an output of a body, or a step needs an output of a random node that the graph leaves out.

    Warns
    -----
    ModelWarning
        Style ``"standard"`` is to hold `checkpointing`.

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
    if not isinstance(training, TrainingSpec):
        if not hasattr(training, "get_training_onnx"):
            raise SettingError(f"training is an optimizer or a TrainingSpec, not a {type(training).__name__}; make an "
                               f"OrtGradientForwardBackwardOptimizer of a model first.")
        model: ModelProto = training.get_training_onnx(style, init=init, weighted=weighted)
        return model
    check_choice("style", style, ("standard", "lowered"))
    check_choice("init", init, ("random", "model"))
    if not isinstance(weighted, (bool, int, str)) or weighted not in (False, True, "elements"):
        raise SettingError(f"weighted is {weighted!r}; expected False, True or 'elements'.")
    if weighted and training.own_loss is not None:
        raise SettingError(f"weighted is {weighted!r}, and the model computes its loss itself, from all weights that "
                           f"it reads; leave weighted out.")
    if any(loss.is_unbalanced for loss in training.losses.values()):
        raise SettingError("class_weight='balanced' takes the weights of classes from the labels that fit is given, "
                           "and there has been none; call fit first, or give an array or a dict.")
    if style == "standard" and training.precision is not None:
        raise SettingError(f"precision={str(training.precision.dtype)!r} is not written in style 'standard', whose "
                           f"gradient is that of the model as it is; take style='lowered', or set it to None first.")
    if style == "standard" and training.gradient is not None:
        warnings.warn("checkpointing is not written in style 'standard', whose gradient is one node: the steps are the "
                      "same, in more memory; style='lowered' keeps it.", ModelWarning, stacklevel=3)
    if not training.batches and training.planned_rate != training.rate:
        raise SettingError(f"{training.rate.schedule!r} lasts as long as the training that fit is asked for, and there "
                           f"has been none; call fit first, or give the schedule the number of batches, n.")
    if not training.batches and training.planned_averaging != training.averaging:
        raise SettingError(f"{training.averaging!r} starts after a share of the training that fit is asked for, and "
                           f"there has been none; call fit first, or give it the number of updates, start.")
    return _export(training, state or TrainingSnapshot.first(training), style, init == "random", weighted)


def _export(
    spec: TrainingSpec, state: TrainingSnapshot, style: str, is_random: bool, weighted: bool | str
) -> ModelProto:
    """The model that `to_training_info` returns, for checked settings."""
    first = spec.model.arrays  # the arrays that `state.weights` replaces
    proto = upgrade_model(restore_weights(spec.model, state.weights), spec.moving)
    _lift_initializers(proto.graph, spec.moving)
    if spec.model.straight_through:
        mark_straight_through(proto)
    model = load(proto, variables=spec.moving, ties="file")
    spec = replace(spec, model=replace(model, aliases=spec.model.aliases), rescaled=state.rate_scale != 1)
    names = spec.names
    inputs, results = _write_step(spec, style, weighted)
    algorithm = _build_algorithm(proto, spec.model, inputs, results)

    counted = [n for n in inputs if names.new(n) in results and n not in spec.moving]
    scaling = {**spec.scaling, **state.scaling}
    arrays = dict(zip(counted, [*state.optimizer, *scaling.values(), np.array(state.iteration, np.int64)], strict=True))
    starts = {w: first[w] for w in spec.moving} | {n: np.zeros_like(a) for n, a in arrays.items()} | spec.scaling
    bounds = glorot_bounds(spec.model, spec.weights) if is_random else {}
    firsts = {n: _write_start(a, bounds.get(n)) for n, a in starts.items()}
    if names.seed in inputs:
        arrays[names.seed] = state.seed
        if is_random:
            # Bounds within int32, also once float32 has rounded them.
            firsts[names.seed] = op.Cast(op.RandomUniform(low=-2e9, high=2e9, shape=[2]), to=TensorProto.INT32)
    if names.rate_scale in inputs:
        arrays[names.rate_scale] = np.array(state.rate_scale)
    store_inputs(algorithm.graph, arrays)

    info = proto.training_info.add()
    info.algorithm.CopyFrom(algorithm.graph)
    info.algorithm.name = names.free("training")
    declare_labels(info.algorithm, find_labels(spec))
    _initialize(info, names, firsts)
    for n in starts:
        info.update_binding.add(key=n, value=names.new(n))
    declare_versions(proto, algorithm)
    remember_settings(proto, spec)
    return proto


def _write_step(spec: TrainingSpec, style: str, weighted: bool | str) -> tuple[dict[str, Value], dict[str, Value]]:
    """The inputs and results of a step by name; both include the number of batches seen."""
    names = spec.names
    iteration = variable(names.iteration, np.int64, [])
    recorded: dict[str, Value] = {}
    # A step reads no more of a rate than this.
    rate: Any = StoredRate(spec.rate, as_node=style == "standard")
    spec = replace(spec, rate=rate, branches=False)
    if style == "standard":
        gradient = _record_gradient(names.free("objective") if spec.penalized else names.loss, recorded)
        spec = replace(spec, gradient=gradient)
    inputs, outputs = step_values(spec, weighted=weighted, k=iteration + 1, simplified=False)
    results = {names.loss: outputs.pop(names.loss), **recorded, **outputs, names.new(names.iteration): iteration + 1}
    return {**inputs, names.iteration: iteration}, results


def _initialize(info: TrainingInfoProto, names: Names, firsts: Mapping[str, Value]) -> None:
    """Write the initialization, and bind its outputs to the tensors that they initialize."""
    outputs = {names.free(f"{n}_init"): first for n, first in firsts.items()}
    info.initialization.CopyFrom(build([], outputs, name=names.free("initialization")).graph)
    for n, output in zip(firsts, outputs, strict=True):
        info.initialization_binding.add(key=n, value=output)


def upgrade_model(proto: ModelProto, moving: Collection[str]) -> ModelProto:
    """A copy of a model without training information, of opset 21 or later.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    moving : collection of str
        Initializers that are kept, even where nothing reads them.

    Returns
    -------
    onnx.ModelProto
    """
    stripped = strip_training_info(proto)
    if all(o.domain not in ("", "ai.onnx") or o.version >= OPSET for o in stripped.opset_import):
        return expand_ml(stripped)
    graph, opsets = prepare(stripped)
    # The upgrade leaves initializers out and has them as inputs, as it does with weights that are attributes.
    names, attributes = {t.name for t in graph.initializer}, read_ml_weights(stripped)
    initializers = [t for t in stripped.graph.initializer if t.name not in names]
    initializers += [numpy_helper.from_array(a, n) for n, a in attributes.items() if n not in names]
    inputs = [i for i in graph.input if i.name not in {t.name for t in initializers}]
    graph.ClearField("input")
    graph.input.extend(inputs)
    graph.initializer.extend(initializers)
    # The upgrade folds constants, and leaves the constants that they were computed from.
    constants = {*(t.name for t in graph.initializer), *(o for node in graph.node for o in node.output)}
    remove_unused(graph, constants.difference(moving))
    imports = [helper.make_opsetid(d, v) for d, v in opsets.items()]
    version = helper.find_min_ir_version_for([o for o in imports if o.domain in ("", "ai.onnx.ml")])
    return helper.make_model(graph, opset_imports=imports, ir_version=max(stripped.ir_version, version))


def _lift_initializers(graph: GraphProto, names: Collection[str]) -> None:
    """Move initializers from bodies, which bindings do not reach, to the graph."""
    for body in list(walk_graphs(graph))[1:]:
        moved = [t for t in body.initializer if t.name in names]
        if outputs := [t.name for t in moved if t.name in {o.name for o in body.output}]:
            raise ModelError(f"{outputs[0]!r} is an initializer of a body and its output, and a binding changes only "
                             f"initializers of the graph; put an Identity between.")
        graph.initializer.extend(moved)
        kept = [t for t in body.initializer if t.name not in names]
        body.ClearField("initializer")
        body.initializer.extend(kept)


def _record_gradient(y: str, recorded: dict[str, Value]) -> Callable[..., list[Value]]:
    """A gradient function that writes a Gradient node, and records the objective under the name y."""

    def gradient(objective: Value, xs: Sequence[Value]) -> list[Value]:
        recorded[y] = objective
        leaves = dict.fromkeys(v for node in topological([objective]) for v in node.reads if v.node is None)
        zs = [v for v in leaves if v.array is None and v not in xs]
        attributes = {"xs": [v.hint for v in xs], "zs": [v.hint for v in zs], "y": y}
        node = Node(schema_of("Gradient", DOMAIN, 1), (*xs, *zs), attributes)
        return list(attach_outputs(node, [x.type for x in xs], ()).outputs)

    return gradient


@dataclass(frozen=True)
class StoredRate:
    """An optimizer as it is stored: a node of the standard where asked for, if it expresses the settings.

    Denormal numbers are left alone, as by the operators of the standard: any runtime can take a step without branches.
    """

    rate: BaseLearningRate
    as_node: bool

    @property
    def plateau(self) -> None:
        """None: a stored training goes on with its scale of the step size."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """The names, aliases and patterns of weights in the settings."""
        return self.rate.patterns

    def state_shapes(self, shape: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
        """The names and shapes of the state of a weight."""
        return self.rate.state_shapes(shape)

    def over(self, batches: int) -> StoredRate:
        """The optimizer in a training of so many batches."""
        return StoredRate(self.rate.over(batches), self.as_node)

    def for_weight(self, patterns: Collection[str], shape: Sequence[Any]) -> StoredRate:
        """The optimizer of a weight."""
        return StoredRate(self.rate.for_weight(patterns, shape), self.as_node)

    def apply(self, w: Value, g: Value, k: Value, *state: Value, start: int = 0, factor: Value | float = 1.0
              ) -> tuple[Value, ...]:
        """The weight and its state after batch k."""
        operator = _find_operator(self.rate, w.dtype) if self.as_node else None
        if operator is None:
            return tuple(drop_flushes(self.rate.apply(w, g, k, *state, start=start, factor=factor)))
        op_type, attributes = operator
        eta = self.rate.step_size(k, w.dtype, factor)
        # Momentum counts from 0, the others, whose t is an exponent or has no effect here, from 1.
        t = count_from(start, k)
        t = t - 1 if op_type == "Momentum" else t
        outputs: tuple[Value, ...] = getattr(training, op_type)(
            eta, t, w, g, *state, n_outputs=1 + len(state), **attributes)
        return outputs


def _find_operator(rate: BaseLearningRate, dtype: np.dtype) -> tuple[str, dict[str, Any]] | None:
    """The standard operator of an optimizer, with its attributes; None where there is none."""
    attributes: dict[str, Any]
    if type(rate) is LearningRateAdagrad:
        op_type, attributes = "Adagrad", {"epsilon": rate.epsilon}
    elif type(rate) is LearningRateSGDNesterov and not rate.weight_decay:
        op_type, attributes = "Momentum", {"alpha": rate.momentum, "beta": 1.0, "norm_coefficient": 0.0,
                                           "mode": "nesterov" if rate.nesterov else "standard"}
    elif type(rate) is LearningRateAdam and rate.epsilon_hat:
        op_type, attributes = "Adam", {"alpha": rate.beta1, "beta": rate.beta2, "epsilon": rate.epsilon}
    else:
        return None
    # Attributes are float32: most settings of float64 weights have no exact float32.
    numbers = [v for v in attributes.values() if isinstance(v, float)]
    exact = dtype == np.float32 or (dtype == np.float64 and all(float(np.float32(v)) == v for v in numbers))
    return (op_type, attributes) if exact else None


def _build_algorithm(
    proto: ModelProto, model: Model, inputs: Mapping[str, Value], results: Mapping[str, Value]
) -> ModelProto:
    """The step as a graph that reads values of the inference graph; its inputs are the inputs that only a step has."""
    graph = proto.graph
    visible = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    visible |= {o for node in graph.node for o in node.output if o}
    boundary = _find_boundary({n: v for n, v in model.values.items() if n in visible}, results)
    reserved = visible | {node.name for node in graph.node}
    reserved |= {n for g in walk_graphs(graph) for node in g.node for n in (node.name, *node.output)}
    added = {n: v for n, v in inputs.items() if n not in visible}
    algorithm = build({**boundary, **added}, results, name="training", reserved=reserved)
    read = [i for i in algorithm.graph.input if i.name in added]
    algorithm.graph.ClearField("input")
    algorithm.graph.input.extend(read)
    _declare_gradients(algorithm.graph, boundary)
    return algorithm


def _find_boundary(visible: Mapping[str, Value], results: Mapping[str, Value]) -> dict[str, Value]:
    """The values of the inference graph that a step may read.

    A step may need an output that the graph leaves out, such as a mask or an index, or a value inside of a loop. Then
    it computes the whole node again.
    """
    nodes = {v.node for v in visible.values() if v.node is not None}
    repeated = {node for node in topological(list(results.values()), set(visible.values())) if node in nodes}
    if random := [node for node in repeated if node.is_random]:
        raise ModelError(f"{random[0]!r} draws random numbers, and the step needs an output of it that the graph "
                         f"leaves out: name all outputs of the node.")
    return {n: v for n, v in visible.items() if v.node is None or v.node not in repeated}


def _declare_gradients(graph: GraphProto, values: Mapping[str, Value]) -> None:
    """State the types of gradients: onnx 1.23.2 does not infer them, and its checker needs the types in the update."""
    nodes = [node for node in graph.node if (node.domain, node.op_type) == (DOMAIN, "Gradient")]
    pairs = [pair for node in nodes for pair in zip(node.input, node.output, strict=False)]
    graph.value_info.extend(helper.make_value_info(output, values[x].type) for x, output in pairs)


def _write_start(array: np.ndarray, bound: float | None) -> Value:
    """The first value of an initializer: uniform within ± a bound, or else constant."""
    if bound is not None:
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        random: Value = op.RandomUniform(low=-bound, high=bound, shape=list(array.shape), dtype=kind)
        return random
    if array.size > 1 and (array == array.flat[0]).all():
        filled: Value = op.ConstantOfShape(np.asarray(array.shape, np.int64), value=array.flat[:1])
        return filled
    return constant(array)


def declare_versions(proto: ModelProto, algorithm: ModelProto) -> None:
    """Declare the opsets and the IR version that a model with a further graph needs.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model, which is changed.
    algorithm : onnx.ModelProto
        The graph, with its own opsets.

    Raises
    ------
    ModelError
        The graph needs a later version of an opset.
    """
    versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
    for o in algorithm.opset_import:
        if o.domain not in versions:
            proto.opset_import.add(domain=o.domain, version=o.version)
        elif o.version > versions[o.domain]:
            raise ModelError(f"A step needs version {o.version} of the domain {o.domain!r}, and the model is of "
                             f"version {versions[o.domain]}: upgrade it with onnx.version_converter.")
    proto.ir_version = max(proto.ir_version, 7)  # training information came with version 7 of the format
