"""ONNX models as modules, to be embedded in others and trained."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from onnx import ModelProto

from ortpartial.autodiff import WeightSelection
from ortpartial.exceptions import GraphError
from ortpartial.graph import RANDOM, Arithmetic, Node, Value, constant, make_node, rewrite, stop_gradient
from ortpartial.model import Model, load, read, specialize
from ortpartial.rewrites import find_moving_statistics, prepare_training, rewrite_model, to_inference_mode
from ortpartial.training import choose_state

from .initializers import Constant
from .module import ModelModule, placeholder, register_reader
from .nested import Nested
from .parameter import Buffer, Parameter
from .trace import current_trace

__all__ = ["OnnxModule"]

_T = TypeVar("_T")

#: For how many shapes of inputs the graph is kept.
_MOST_SHAPES = 8


@register_reader
class OnnxModule(ModelModule):
    """An ONNX model as a module, which `Module.from_onnx` makes.

    Initializers are parameters and buffers by the names that they have in the file. Parameters are initializers of rank
    1 or more on a differentiable path to an output, unless `trainable` chooses. Buffers are the running statistics of
    BatchNormalization, and weights that `trainable` leaves out. All other initializers are constants. In training mode,
    Dropout draws masks, and BatchNormalization uses the statistics of the batch and updates the running statistics: as
    ONNX specifies, with the population variance; in a model of `ortpartial.torch.export` with torch's unbiased
    variance.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path or Model
        The model; it is not written to.
    trainable : str, sequence of str, or callable, optional
        The initializers that become parameters: names, aliases and patterns, or a function of a name, a shape and a
        `Node`, as in `OrtGradientForwardBackwardOptimizer`; an empty sequence for none.

    Attributes
    ----------
    weights : dict of str to Parameter
        Parameters and buffers by name. Names without a dot are attributes, too, unless the module has such an
        attribute.
    input_names, output_names : list of str
        The names of the inputs and outputs of the graph.
    placeholders : list of Value
        A placeholder for each input, to compile the module on by itself.

    Examples
    --------
    >>> from ortpartial import build, constant, nn, op, variable
    >>> x, w = variable("x", "float32", ["batch", 3]), constant([[1.0], [2.0], [3.0]], hint="w")
    >>> model = nn.Module.from_onnx(build([x], {"y": x @ w}))
    >>> model.set_optimizer(0.1).compile(model.placeholders)
    <OnnxModule, 3 parameters>
    >>> X = [[1.0, 0.0, 0.0]]
    >>> output, loss = model.train_one_batch(X, [[2.0]])
    >>> output.tolist(), model(X).tolist()
    ([[1.0]], [[1.2000000476837158]])
    """

    weights: Mapping[str, Parameter] = {}

    def __init__(self, model: Model | ModelProto | bytes | str | os.PathLike[str],
                 trainable: WeightSelection | None = None):
        proto = to_inference_mode(read(model))
        loaded = load(proto, ties="file" if isinstance(model, Model) else "infer")
        parameters, buffers = choose_state(loaded, trainable)
        kinds = {**dict.fromkeys(parameters, Parameter), **dict.fromkeys(buffers, Buffer)}
        arrays = {n: loaded.arrays[n] for n in loaded.initializers if n in kinds}
        self.weights = {n: kinds[n](a.shape, Constant(a), dtype=a.dtype) for n, a in arrays.items()}
        self.input_names, self.output_names = list(loaded.inputs), list(loaded.outputs)
        self._model = specialize(loaded, variables=list(self.weights))
        #: By mode and shapes of inputs, the graph for them.
        self._specialized: dict[tuple[object, ...], Model] = {}

    @property
    def placeholders(self) -> list[Value]:
        """A placeholder for each input, of the shape that the model declares."""
        return [placeholder(v.shape, v.dtype, n) for n, v in self._model.inputs.items()]  # type: ignore[arg-type]

    def forward(self, *inputs: Nested, **named: Nested) -> Nested:
        """The outputs of the model.

        Parameters
        ----------
        *inputs : Value
            The inputs, in the order of the model.
        **named : Value
            Inputs by name.

        Returns
        -------
        Value, or tuple of Value
            A tuple, in the order of the model, where it has several outputs.

        Raises
        ------
        GraphError
            An input is missing, unknown, or of a dtype or shape that the model does not take.
        """
        values = self._match(inputs, named)
        model = self._specialize(values)
        if not self.training:
            return _unwrap(self._connect(list(model.outputs.values()), model, values))
        trace: Any = current_trace()
        trained = prepare_training(model, train_mode=True, mask=lambda x, keep, _: trace.draw_mask(x, keep))
        roots = [*trained.model.outputs.values(), *(s.batch for s in trained.statistics)]
        computed = self._connect(roots, trained.model, values)
        outputs, batch = computed[: len(model.outputs)], computed[len(model.outputs) :]
        for statistic, value in zip(trained.statistics, batch, strict=True):
            running = self.weights[statistic.name]
            trace.write(running, stop_gradient(replace(statistic, batch=value).update(running.value)))
        return _unwrap(outputs)

    def _match(self, inputs: Sequence[Nested], named: Mapping[str, Nested]) -> dict[str, Value]:
        """The inputs by name."""
        given = {**dict(zip(self.input_names, inputs, strict=False)), **named}
        if len(inputs) + len(named) != len(given) or given.keys() != set(self.input_names):
            names = [*(f"{len(inputs)} by position" for _ in inputs[:1]), *named] or ["none"]
            raise GraphError(f"The ONNX model takes the inputs {', '.join(self.input_names)}; it was given "
                             f"{', '.join(names)}.")
        values = {n: _to_value(given[n]) for n in self.input_names}
        for n, v in values.items():
            declared = self._model.inputs[n]
            sizes = zip(v.shape or (), declared.shape or (), strict=False)
            is_ranked = declared.shape is None or (v.shape is not None and len(v.shape) == len(declared.shape))
            if v.dtype != declared.dtype or not is_ranked or any(m != s for m, s in sizes if isinstance(s, int)):
                raise GraphError(f"The input {n!r} of the ONNX model is {declared.type_name}, and {v!r} was given.")
        return values

    def _specialize(self, values: Mapping[str, Value]) -> Model:
        """The graph for inputs of these shapes."""
        key = self.training, *((n, v.shape) for n, v in values.items())
        if key not in self._specialized:
            while len(self._specialized) >= _MOST_SHAPES:
                self._specialized.pop(next(iter(self._specialized)))
            if self.training:
                find_moving_statistics(self._model, self.output_names, ())
            sizes: Any = {n: v.shape for n, v in values.items() if v.shape is not None}
            model = specialize(self._model, batch=sizes, variables=list(self.weights))
            self._specialized[key] = rewrite_model(model, train_mode=self.training)
        return self._specialized[key]

    def _connect(self, roots: Sequence[Value], model: Model, values: Mapping[str, Value]) -> list[Value]:
        """Values of the graph, computed from the inputs and the weights of now."""
        new = {model.inputs[n]: v for n, v in values.items()}
        new |= {model.initializers[n]: p.value for n, p in self.weights.items()}
        return rewrite(list(roots), new, _draw_anew)

    # -- state

    def _attributes(self, kind: type[_T]) -> Iterator[tuple[str, _T]]:
        if issubclass(kind, Parameter):
            yield from ((n, p) for n, p in self.weights.items() if isinstance(p, kind))
        else:
            yield from super()._attributes(kind)

    def __getattr__(self, name: str) -> Any:
        if name in (weights := self.__dict__.get("weights", {})):
            return weights[name]
        if name in self._habits:
            return super().__getattr__(name)  # type: ignore[misc]  # which type checkers are not told of
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; its weights are "
                             f"{', '.join(map(repr, weights)) or 'none'}.")


def _draw_anew(node: Node, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
    """A random node once more, so that each call of a module has a draw of its own."""
    if node.op_type not in RANDOM:
        return None
    return make_node(node.schema, inputs, node.attributes, n_outputs=len(node.outputs), name=node.name).outputs


def _to_value(x: Nested) -> Value:
    """An input as a value."""
    if isinstance(x, Value):
        return x
    return x.value if isinstance(x, Arithmetic) else constant(x)


def _unwrap(outputs: Sequence[Value]) -> Nested:
    """A single output by itself."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)
