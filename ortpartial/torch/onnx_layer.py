"""OnnxLayer: an ONNX graph as a torch module, with its weights as parameters and its gradients by torch.autograd."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from onnx import ModelProto, TensorProto
from torch._C import _are_functorch_transforms_active as _is_functorch_active

from ortpartial.annotations import Entries, Formula, Inputs, Reduced, Settings
from ortpartial.autodiff import WeightSelection
from ortpartial.exceptions import DataError
from ortpartial.learning import answer_keywords
from ortpartial.model import (
    Model,
    check_empty,
    check_indices,
    find_computed_inputs,
    find_libraries,
    index_ranges,
    load,
    match_names,
    read,
    read_ml_weights,
    read_torch,
    register_libraries,
    replace_weights,
    specialize,
)
from ortpartial.rewrites import to_inference_mode
from ortpartial.runtime import Device, DeviceName, choose_threads, cores
from ortpartial.training import ShapePolicy, choose_state, program_bytes, select_for_fit

from .autograd import CompiledLayer, TensorFunction
from .call_form import CallForm
from .custom_operator import describe_call, onnx_layer, register_layer
from .layer_check import LayerCheck
from .layer_function import make_layer_function
from .missing_inputs import compute_missing
from .module_export import export_with_form
from .module_state import (
    as_array,
    as_tensor,
    find_owner,
    match_state,
    register,
    register_unread,
)
from .onnx_export import register_translations
from .tensor_session import Placement

__all__ = ["OnnxLayer"]


#: The shapes of inputs; none for all shapes.
Shapes: TypeAlias = tuple[torch.Size, ...]

#: What a layer returns: a tensor, several, all by name, or the form of a module.
Outputs: TypeAlias = Any


class _Owners(list[tuple[torch.nn.Module, Settings, str, str]]):
    """By initializer, the submodule that holds its tensor, the attributes of it, the kind, and the name there.

    torch.export copies the lists and dicts among the attributes of a module, and all that they hold, but no others.
    """


class OnnxLayer(torch.nn.Module):
    """An ONNX graph as a torch module: a layer, a block or a whole model.

    Initializers become parameters and buffers under their own names. A dot nests, so that "fc.weight" is also the key
    in the state_dict; an empty part, or an attribute of the module already, gets an underscore (see
    `state_names`). Parameters are the initializers of rank 1 or more on a differentiable path to an output. Buffers
    are the running statistics of BatchNormalization, and initializers on such a path that `trainable` leaves out. All
    others are constants of the graph. A model of `ortpartial.torch.export` has the parameters with ``requires_grad``
    for parameters, and for buffers its other parameters and its buffers of real numbers.

    In `eval()` the graph runs in inference mode, even if it was exported in training mode. In `train()`, the mode of
    every new module, Dropout draws its masks from torch's generator, and BatchNormalization uses the statistics of the
    batch and updates the running statistics by its momentum: with the population variance, as ONNX specifies, unless
    `ortpartial.torch.export` has written the model, whose layer is in the mode of its module and uses torch's unbiased
    variance there.

    `load_state_dict` also takes the state of the torch module that the graph was exported from, with the
    `num_batches_tracked` of its BatchNorm.

    Inputs are tensors, positional or by the names of the graph's inputs. A single output is returned as a tensor,
    several as a tuple in the order of the graph. Real inputs must have the dtype of the layer; under autocast they are
    cast to it, so that the layer computes in its own precision. Only strided tensors are copied. Of a language model,
    ``layer(input_ids)`` computes the attention mask, position ids and an empty key-value cache.

    A graph that holds its loss, the only output to differentiate, computes it with its gradient in a run where
    anything needs a gradient; evaluate it under ``torch.no_grad()``.

    ``torch.compile(fullgraph=True)`` takes the layer as a single operator, and ``torch.onnx.export`` writes its graph
    with the weights of now: as nodes with ``dynamo=True``, as a function of the model with ``dynamo=False``. The
    exporters choose an opset; a graph with an operator that has no form there is refused.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path or Model
        The graph; it is not written to. Of a `Model`, the layer keeps ``straight_through``.
    trainable : str, sequence of str, or callable, optional
        The initializers that become parameters, which may be scalars: names, aliases, patterns and ``"adapter"``, or a
        function of a name, a shape and a `Node`, as in `OrtGradientForwardBackwardOptimizer`; an empty sequence for
        none.
    engine : str
        ``"step"`` (our own gradient, of any order, on any onnxruntime), ``"agent"`` (onnxruntime-training's
        TrainingAgent, of the first order), ``"native"`` (our own gradient in machine code, which a C compiler makes for
        each shape, of operators that can be written in C) or ``"auto"``, the agent where it is installed and right
        about every operator of the graph, and our own gradient for second derivatives. A small graph that is called
        with equal shapes so often that compiling would have paid goes on in machine code, within rounding.
    device : torch.device, str or tuple of str and dict, optional
        The device of parameters and buffers; or an execution provider of onnxruntime that runs the graphs, as in
        ``"OpenVINOExecutionProvider"``, with a dict of options where it is a pair: tensors stay on the CPU.
    return_dict : bool, optional
        Whether outputs are returned as a dict by name, or in the order of the graph: a tensor, or a tuple of several.
        By default a layer of `from_torch` returns them as its module does, others in the order of the graph.
    check : bool
        Whether the first call in each mode, and for each kind of shapes, compares outputs and gradients with the graph
        as it is written, run without optimization: RewriteError names the difference, and the rewrite that causes it.

    Attributes
    ----------
    input_names, output_names : list of str
        The names of the graph's inputs and outputs.
    state_names : dict of str to str
        The key in the state_dict of each initializer that became a parameter or a buffer.
    engine_, engine_reason_ : str
        The engine in use in the current mode, and the reason.

    Raises
    ------
    ModelError, SettingError
        The model, a name in `trainable` or the engine is invalid.

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import constant, variable
    >>> x, w = variable("x", "float32", ["N", 2]), constant([[1.0], [2.0]], hint="fc.weight")
    >>> layer = OnnxLayer(build([x], {"y": x @ w}))
    >>> model = torch.nn.Sequential(layer, torch.nn.Sigmoid())
    >>> model(torch.ones(3, 2)).sum().backward()
    >>> list(model.state_dict()), layer.fc.weight.grad.shape
    (['0.fc.weight'], torch.Size([2, 1]))
    """

    #: The form of the calls of the module that `from_torch` has exported, unless it is that of all graphs.
    _form: CallForm | None = None
    #: Keys of the state_dict that `from_torch` took over although the graph does not read them.
    _unread: Sequence[str] = ()
    _check = False
    _run_apart: ClassVar[Any] = None
    _compiled: dict[Reduced, CompiledLayer]
    #: Of them, those for the dtype and device of now, by mode and shapes, where nothing has to be checked at a call.
    _current: dict[Reduced, CompiledLayer]
    _owners: _Owners

    @answer_keywords(weightstotrain="its name is trainable", inputs="they are those of the graph, in its order")
    def __init__(
        self,
        model: Model | ModelProto | bytes | str | os.PathLike[str],
        trainable: WeightSelection | None = None,
        engine: str = "auto",
        device: torch.device | DeviceName | None = None,
        *,
        return_dict: bool | None = None,
        check: bool = False,
    ):
        super().__init__()
        self._engine, self._return_dict, self._check = engine, return_dict, check
        select_for_fit(engine)
        loaded = load(to_inference_mode(read(model)), ties="file" if isinstance(model, Model) else "infer")
        self._onnx = loaded.proto
        self.input_names, self.output_names = list(loaded.inputs), list(loaded.outputs)
        parameters, buffers = choose_state(loaded, trainable)
        # An empty tensor follows the module to other dtypes and devices even if the layer has no parameters.
        kinds = [loaded.initializers[n].dtype for n in parameters + buffers]
        kinds += [v.dtype for v in [*loaded.inputs.values(), *loaded.outputs.values()] if v.is_float]
        self._dtype = getattr(torch, kinds[0].name) if kinds else torch.float32
        self._probe = torch.empty(0, dtype=self._dtype)
        self.state_names: dict[str, str] = {}
        for name in parameters + buffers:
            self.state_names[name] = register(self, name, as_tensor(loaded.arrays[name]), name in parameters)
        self._loaded = _without_state(loaded, self.state_names)
        record = read_torch(self._onnx)
        if record is not None:
            self.train(record.training)
        self._reset()
        if device is not None:
            self._place(device)

    #: The execution provider that runs the graphs where the tensors are on the CPU.
    _provider: Device | None = None

    def _place(self, device: torch.device) -> None:
        """Move tensors to a device of torch, or let an execution provider run the graphs."""
        try:
            self.to(torch.device(device))
        except (RuntimeError, TypeError, ValueError):  # No device of torch
            parsed = Device.parse(device)
            if parsed.is_provider:
                self._provider = parsed
            else:
                self.to(torch.device(parsed.kind, parsed.index))

    @classmethod
    def from_torch(cls, module: torch.nn.Module, example: object, *,
                   dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None = None, **settings: Any
                   ) -> OnnxLayer:
        """Export a module by `ortpartial.torch.export` and wrap the result, with its state under the same names.

        Dropout, BatchNormalization, and the names and layouts of weights are kept, and the layer is in the mode of the
        module. In training mode, running variances are torch's, which take n / (n - 1) of the variance of a batch.
        The layer is called as the module is, with nested arguments, numbers and None as in the example, and returns the
        same forms: dicts, named tuples and all other classes that are registered with ``torch.utils._pytree``. Tensors
        may also be passed one by one, by the names of the graph's inputs. `load_state_dict` takes the state of the
        module, and the module the state of the layer. A parameter that the graph does not read is a parameter of the
        layer, too, without a gradient.

        Parameters
        ----------
        module : torch.nn.Module
            The module; it is not changed.
        example : torch.Tensor, tuple of them, or dict of str to them
            Inputs to trace it with: positional, or by the names of the arguments of `forward`; a dict may end a tuple.
        dynamic_axes : dict of str to dict of int to str, or to sequence of int, optional
            By input its axes of any size; by default the first axis of each.
        **settings : object
            For `OnnxLayer`. By default the layer trains the parameters with ``requires_grad``.

        Returns
        -------
        OnnxLayer

        Examples
        --------
        >>> module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> list(OnnxLayer.from_torch(module, torch.ones(1, 2)).state_dict())
        ['0.weight', '0.bias']
        """
        examples = example if isinstance(example, tuple) else (example,)
        model, form = export_with_form(module, examples, dynamic_axes)
        layer = cls(model, **settings)
        layer._form = None if form.is_plain(layer.input_names) else form
        layer._unread = register_unread(layer, module.state_dict(keep_vars=True), settings.get("trainable") is None)
        return layer

    def forward(self, *inputs: object, **named: object) -> Outputs:
        """Compute the outputs of the graph.

        Parameters
        ----------
        *inputs : torch.Tensor
            In the order of the graph; or the arguments of the module that `from_torch` has exported.
        **named : torch.Tensor
            By the names of the graph's inputs, or of the module's arguments.

        Returns
        -------
        torch.Tensor, tuple of them, or dict of str to them; or what the module returns

        Raises
        ------
        DataError
            An input is missing, unknown, or of a dtype, device or shape that the graph does not take.
        """
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return self._trace(inputs, named)
        return _run(self, inputs, named)

    def _trace(self, inputs: Inputs, named: Entries) -> Outputs:
        """Compute the outputs by an operator that torch.compile and exporters put into their graphs."""
        call = describe_call(self._handle, self.training)
        if call is None:
            return self._run_apart(self, inputs, named)
        if named or len(inputs) != len(self.input_names) or self._form is not None:
            inputs = _order_inputs(self, inputs, named)
        leaves = _cast_inputs(self.input_names, inputs, call.dtypes)
        leaves += [self._read(key) for key in call.initializers]
        for sizes, dtype, keep in call.masks:
            shape = [d if isinstance(d, int) else inputs[d[0]].shape[d[1]] for d in sizes]
            noise = torch.empty(shape, dtype=dtype, device=inputs[0].device)
            leaves.append(noise.bernoulli_(keep).div_(keep or 1))
        is_recorded = torch.is_grad_enabled() and not (torch.onnx.is_in_onnx_export() or torch.jit.is_tracing())
        wanted = [i for i, t in enumerate(leaves) if is_recorded and t.requires_grad]
        outputs = onnx_layer(leaves, self._handle, self.training, wanted)
        for (key, momentum), batch in zip(call.statistics, outputs[call.n_outputs :], strict=False):
            self._read(key).lerp_(batch.detach(), 1 - momentum)
        if call.statistics:
            self._count_batches()
        return self._pack(outputs[: call.n_outputs])

    @staticmethod
    def prepare_run_apart() -> None:
        """Make `_run` a break in the graphs of torch.compile, outside of them; this imports dynamo."""
        if OnnxLayer._run_apart is None:
            OnnxLayer._run_apart = staticmethod(torch.compiler.disable(_run))

    def _read(self, key: str) -> torch.Tensor:
        """The tensor of a key of the state_dict."""
        return functools.reduce(getattr, key.split("."), self)

    def _count_batches(self) -> None:
        for key in self._unread:
            if key.endswith("num_batches_tracked"):
                self._read(key).add_(1)

    def _pack(self, outputs: Sequence[torch.Tensor]) -> Outputs:
        """The outputs as the layer returns them."""
        if self._return_dict is None and self._form is not None:
            return self._form.pack(outputs)
        if self._return_dict:
            return dict(zip(self.output_names, outputs, strict=True))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def to_onnx(self) -> ModelProto:
        """The model with the current parameters and buffers, and nothing else changed.

        Returns
        -------
        onnx.ModelProto
            Each weight keeps its dtype in the file: the state of a layer after `double()` is rounded.
        """
        declared = {t.name: t.data_type for t in self._onnx.graph.initializer}
        # A weight that is an attribute is rounded to it when it is written.
        return replace_weights(self._onnx, {n: as_array(t, declared.get(n, TensorProto.DOUBLE))
                                            for n, t in self._tensors().items()})

    def write_form(self, compiled: CompiledLayer) -> ModelProto:
        """A model that computes a compiled form: the file, unless that is of another mode, dtype or kind of weights."""
        if compiled.masks or compiled.statistics or self._probe.dtype is not self._dtype or read_ml_weights(self._onnx):
            return compiled.function.function.graph(fast=False)
        return self._onnx

    @property
    def engine_(self) -> str:
        """The engine in use in the current mode."""
        return self._in_use.engine_

    @property
    def engine_reason_(self) -> str:
        """The reason for the engine in use."""
        return self._in_use.engine_reason_

    @property
    def _in_use(self) -> TensorFunction:
        """The function in the current mode: that for the shapes of the last calls, where it is machine code."""
        functions = [c.function for (training, _), c in self._current.items() if training == self.training]
        compiled = [f for f in functions if f.engine_ == "native"]
        return compiled[-1] if compiled else self.compile_form().function

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Current parameters and buffers by the names of the initializers, even if they have been replaced."""
        return dict(zip(self.state_names, self._state(), strict=True))

    def _state(self) -> list[torch.Tensor]:
        """Current parameters and buffers in the order of `state_names`."""
        owners = self.__dict__["_owners"]
        if not owners:
            holders = [find_owner(self, key) for key in self.state_names.values()]
            owners = self._owners = _Owners((module, module.__dict__, kind, key) for module, kind, key in holders)
        # torch.export replaces the dict of a kind for a while. A parametrization takes the tensor out of the module and
        # computes it in an attribute.
        return [getattr(module, key) if (t := fields[kind].get(key)) is None else t
                for module, fields, kind, key in owners]

    def _key(self, shapes: Shapes = (), training: bool | None = None) -> Reduced:
        """The key of a compiled layer: shapes (empty for all), mode, dtype, device, and torch's stream there."""
        fields = self.__dict__
        probe = fields["_probe"]
        device = probe.device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
        return shapes, fields["training"] if training is None else training, probe.dtype, device, stream

    def compile_form(self, shapes: Shapes = (), training: bool | None = None,
                 first: Shapes = ()) -> CompiledLayer:
        """The compiled layer in the current mode, or another, for these shapes alone or for all.

        The number of threads of a layer for all shapes follows from the first shapes.
        """
        key = self._key(shapes, training)
        if key not in self._compiled:
            others = [k for k in self._compiled if k[0] and k[1:] == key[1:]]
            if shapes and len(others) >= ShapePolicy.MOST:  # Only where no layer serves all shapes.
                self._compiled.pop(others[0], None)  # Another thread may have removed it.
                self._current = {}
            _, training, dtype, device, stream = key
            name = None if dtype is self._dtype else str(dtype).removeprefix("torch.")
            sizes = dict(zip(self.input_names, shapes, strict=True)) if shapes else None
            make = functools.partial(make_layer_function, self._loaded, list(self.state_names), training=training,
                                     dtype=name, sizes=sizes)
            layer = make()
            function = layer.function
            inputs = zip(self._loaded.inputs.values(), first, strict=False)
            axes = [axis for v, shape in inputs for axis in zip(v.shape or (), shape, strict=False)]
            threads = choose_threads([*function.outputs.values(), *(function.leaves[n] for n in layer.initializers)],
                                     sizes={d: n for d, n in axes if isinstance(d, str)})
            where = self._provider if device.type == "cpu" else None
            placement = Placement(where or Device(Device.parse(device.type).kind, device.index or 0, stream),
                                  threads or min(torch.get_num_threads(), cores()))
            compiled = self._compiled[key] = CompiledLayer(layer, placement, self._engine, list(self.state_names))
            if self._check:
                compiled.check = LayerCheck(make, placement, self._engine)
        return self._compiled[key]

    def _compile_for(self, tensors: Sequence[torch.Tensor]) -> CompiledLayer:
        """The compiled layer for these inputs: for all shapes, or for their own."""
        shapes, current = tuple([t.shape for t in tensors]), self._current
        if self._ranges or 0 in map(torch.Tensor.numel, tensors):
            self.check_inputs(tensors)
        key = self._key(shapes)
        compiled = self._compiled.get(key)
        if compiled is not None:
            if not self._ranges and compiled.device.kind == "cpu":  # On others, torch's stream decides.
                mode = key[1]
                current[mode, shapes] = compiled
            return compiled
        compiled = self.compile_form(first=shapes)
        if compiled.is_static or not (compiled.needs_sizes or compiled.policy.choose(
                shapes, 1, lambda: self._size_of(shapes))):
            return compiled
        return self.compile_form(shapes)

    def check_inputs(self, tensors: Sequence[torch.Tensor]) -> None:
        """Refuse inputs on which an operator would crash: without elements, or indices out of range."""
        by_name = dict(zip(self.input_names, tensors, strict=False))
        check_empty(self._loaded.outputs.values(), {n: np.empty(t.shape) for n, t in by_name.items() if not t.numel()})
        check_indices(self._ranges, {n: by_name[n].detach().cpu().numpy() for n in self._ranges})

    def _size_of(self, shapes: Shapes) -> int:
        """Bytes that a compiled layer for these shapes takes."""
        return program_bytes(specialize(self._loaded, batch=dict(zip(self.input_names, shapes, strict=True))))

    def _load_from_state_dict(self, state_dict: dict[str, object], prefix: str, local_metadata: object, strict: bool,
                              missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str]) -> None:
        match_state(state_dict, prefix, self, self._onnx, self._unread, error_msgs)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
                                      error_msgs)

    def _apply(self, fn: Formula, recurse: bool = True) -> OnnxLayer:
        super()._apply(fn, recurse)
        self._probe, self._current = fn(self._probe), {}
        return self

    def _reset(self) -> None:
        self._compiled, self._current, self._owners = {}, {}, _Owners()
        self._computed = find_computed_inputs(self._loaded)
        self._ranges = index_ranges(self._loaded.inputs, self._loaded.outputs.values())
        self._handle = register_layer(self)
        register_translations()

    def __getstate__(self) -> Settings:
        # Sessions cannot be pickled; they are made again.
        state = {k: v for k, v in self.__dict__.items() if k not in ("_compiled", "_current", "_owners", "_loaded")}
        return {**state, "_onnx": self._onnx.SerializeToString(), "_libraries": find_libraries(self._onnx)}

    def __setstate__(self, state: Settings) -> None:
        state = {"_libraries": (), **state, "_onnx": ModelProto.FromString(state["_onnx"])}
        register_libraries(state["_onnx"], state.pop("_libraries"))
        super().__setstate__(state)
        self._loaded = _without_state(load(self._onnx, ties="file"), self.state_names)
        self._reset()

    def extra_repr(self) -> str:
        """Inputs and outputs with their shapes, the numbers of the parameters, the dtype, and the engine."""
        inputs, outputs = (", ".join(f"{n}{_format_shape(v.shape)}" for n, v in values.items())
                           for values in (self._loaded.inputs, self._loaded.outputs))
        sizes = [p.numel() for p in self.parameters()]
        compiled = next(iter(self._compiled.values()), None)
        engine = self._engine if compiled is None else compiled.function.engine_
        return (f"{inputs} -> {outputs}, parameters={len(sizes)} of {sum(sizes):,} numbers, dtype={self._probe.dtype}, "
                f"engine={engine!r}")

    def __repr__(self) -> str:
        return f"{self._get_name()}({self.extra_repr()})"


def _format_shape(shape: Sequence[int | str | None] | None) -> str:
    return "" if shape is None else f"[{', '.join('?' if d is None else str(d) for d in shape)}]"


def _without_state(model: Model, names: Collection[str]) -> Model:
    """The model with variables in place of parameters and buffers, whose content it need not keep."""
    light = specialize(model, variables=names)
    return replace(light, arrays={n: a for n, a in model.arrays.items() if n not in names})


def _run(layer: OnnxLayer, inputs: Inputs, named: Entries) -> Outputs:
    """Run `forward`, outside of torch.compile."""
    fields = layer.__dict__  # A module has a `__getattr__`, which makes each of its attributes take longer.
    names = fields["input_names"]
    if named or len(inputs) != len(names) or layer._form is not None:
        inputs = _order_inputs(layer, inputs, named)
    for t in inputs:
        if not isinstance(t, torch.Tensor):
            raise TypeError(_describe_stranger(names, inputs))
    place = fields["training"], tuple([t.shape for t in inputs])
    compiled = fields["_current"].get(place) or layer._compile_for(inputs)
    device = fields["_probe"].device
    for t, dtype in zip(inputs, compiled.dtypes, strict=True):
        if t.dtype is not dtype or t.device != device:
            inputs = tuple(_convert_inputs(layer, inputs, compiled.dtypes))
            break
    state = layer._state()
    leaves = [*inputs, *[state[i] for i in compiled.read]]
    if compiled.masks:
        leaves += compiled.draw_masks(inputs)
    if compiled.check is not None and not _is_functorch_active():  # whose tensors have no content
        compiled.check(leaves)
        compiled.check = None
    outputs = compiled.function(leaves)
    if compiled.statistics:
        tensors = layer._tensors()
        with torch.no_grad():
            for s, batch in zip(compiled.statistics, outputs[len(layer.output_names) :], strict=True):
                tensors[s.name].lerp_(batch, 1 - s.momentum)
            layer._count_batches()
        outputs = outputs[: len(layer.output_names)]
    return layer._pack(outputs)


def _describe_stranger(names: Sequence[str], inputs: Inputs) -> str:
    """Say which input is no tensor, with advice."""
    name, t = next((n, t) for n, t in zip(names, inputs, strict=True) if not isinstance(t, torch.Tensor))
    convert = "torch.from_numpy" if isinstance(t, np.ndarray) else "torch.as_tensor"
    kind = f"{type(t).__module__}.{type(t).__qualname__}".removeprefix("builtins.")
    return f"The input {name!r} is {kind}, and a layer takes tensors; use {convert}."


def _convert_inputs(
    layer: OnnxLayer, inputs: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]
) -> list[torch.Tensor]:
    """Cast inputs under autocast; refuse inputs on another device or of another dtype."""
    device = layer._probe.device
    for name, t in zip(layer.input_names, inputs, strict=True):
        if t.device != device:
            raise DataError(f"The input {name!r} is on {t.device}, the layer on {device}; move one of them.")
    return _cast_inputs(layer.input_names, inputs, dtypes)


def _cast_inputs(
    names: Sequence[str], inputs: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]
) -> list[torch.Tensor]:
    """Cast inputs under autocast; refuse inputs of another dtype."""
    converted = []
    for name, t, dtype in zip(names, inputs, dtypes, strict=True):
        is_real = dtype.is_floating_point and t.is_floating_point()
        if t.dtype is not dtype and not (is_real and torch.is_autocast_enabled(t.device.type)):
            raise DataError(f"The input {name!r} is {t.dtype}, the layer takes {dtype}; convert one of them.")
        converted.append(t if t.dtype is dtype else t.to(dtype))
    return converted


def _order_inputs(layer: OnnxLayer, inputs: Sequence[torch.Tensor], named: Mapping[str, object]
                  ) -> tuple[torch.Tensor, ...]:
    """Put inputs in the order of the graph, with inputs of a language model that follow from its tokens."""
    names = layer.input_names
    if layer._form is not None and (bound := layer._form.bind(inputs, named)) is not None:
        return tuple([bound[n] for n in names])
    expected = ", ".join(map(repr, names))
    if len(inputs) > len(names):
        raise DataError(f"The graph has {len(names)} inputs, {expected}; {len(inputs)} given.")
    positional = dict(zip(names, inputs, strict=False))
    if twice := [n for n in named if n in positional]:
        raise DataError(f"The input {twice[0]!r} is given twice; the inputs are {expected}.")
    every = {**positional, **named}
    if layer._computed.shapes:
        every |= compute_missing(layer._computed, layer._loaded.inputs, every, layer._probe)
    match_names(names, every)
    return tuple(every[n] for n in names)
