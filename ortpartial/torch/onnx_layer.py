"""How does an ONNX graph become a part of a torch model? `OnnxLayer`, a module with its weights and its gradients."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from onnx import ModelProto

from ortpartial.exceptions import DataError
from ortpartial.model import load, match_names, read, replace_weights
from ortpartial.runtime import Device, choose_threads, cores
from ortpartial.training import select_for_fit

from .autograd import Compiled, Place
from .module_state import as_array, as_tensor, choose_state, export_module, find_owner, register
from .program import make_program

__all__ = ["OnnxLayer"]

#: Graphs for certain shapes of inputs that are kept.
_SHAPES = 8


class OnnxLayer(torch.nn.Module):
    """An ONNX graph as a module of torch: a layer, a block or a whole model.

    Initializers become parameters and buffers under their own names: a dot nests, so that "fc.weight" is the key of the
    state_dict as well; an empty part and one that the module has as an attribute already are given underscores
    (`state_names` tells). Parameters are those on a differentiable path to an output, of rank one or more. Buffers are
    the running statistics of BatchNormalization and what `trainable` leaves out. All else is a constant of the graph.

    In `eval()` the graph runs as it was exported. In `train()`, the mode of every new module, Dropout draws from
    torch's generator, and BatchNormalization takes the statistics of the batch and moves the running ones by its
    momentum, with the variance of the population, as ONNX has it and torch has not.

    Inputs are tensors, positional or by the names of the graph's inputs. One output is returned as a tensor, several as
    a tuple in the order of the graph. Real inputs have the dtype of the layer, as everywhere in torch; under autocast
    they are cast to it, so that the layer computes in its own precision. Strided tensors are copied, others are not.

    Parameters
    ----------
    model : onnx.ModelProto, bytes or path
        The graph; it is not written to.
    trainable : sequence of str, optional
        The initializers that become parameters instead, scalars among them if they are named; none for an empty one.
    engine : str
        ``"step"`` (our own gradient, of any order, on any onnxruntime), ``"agent"`` (onnxruntime-training's
        TrainingAgent, of the first order) or ``"auto"``, the agent where it is installed and right about every operator
        of the graph, and our own for a second derivative.
    device : torch.device or str, optional
        Where parameters and buffers are put.
    return_dict : bool
        Whether the outputs are returned as a dict by their names.

    Attributes
    ----------
    input_names, output_names : list of str
        Of the graph.
    state_names : dict of str to str
        The key in the state_dict of every initializer that became a parameter or a buffer.
    engine_, engine_reason_ : str
        The engine in use in the mode of now, and why.

    Raises
    ------
    ModelError, SettingError
        The model, a name in `find_trainable` or the engine is not one that can be used.

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

    _run_apart: ClassVar[Any] = None
    _modes: dict[Any, Compiled]
    _homes: list[tuple[str, torch.nn.Module, dict[str, Any], str]]

    def __init__(
        self,
        model: ModelProto | bytes | str | os.PathLike[str],
        trainable: Sequence[str] | None = None,
        engine: str = "auto",
        device: torch.device | str | None = None,
        *,
        return_dict: bool = False,
    ):
        super().__init__()
        self._onnx, self._engine, self._return_dict = read(model), engine, return_dict
        select_for_fit(engine)
        self._loaded = loaded = load(self._onnx)
        self.input_names, self.output_names = list(loaded.inputs), list(loaded.outputs)
        parameters, buffers = choose_state(loaded, trainable)
        # It follows the module from dtype to dtype and from device to device where there is no parameter that does.
        kinds = [loaded.initializers[n].dtype for n in parameters + buffers]
        kinds += [v.dtype for v in [*loaded.inputs.values(), *loaded.outputs.values()] if v.is_float]
        self._dtype = getattr(torch, kinds[0].name) if kinds else torch.float32
        self._probe = torch.empty(0, dtype=self._dtype)
        self.state_names: dict[str, str] = {}
        for name in parameters + buffers:
            self.state_names[name] = register(self, name, as_tensor(loaded.arrays[name]), name in parameters)
        self._reset()
        if device is not None:
            self.to(device)

    @classmethod
    def from_torch(cls, module: torch.nn.Module, example: Any, **settings: Any) -> OnnxLayer:
        """A module exported to ONNX and wrapped, its state under the same names.

        The exporter by TorchScript writes it in training mode, which keeps Dropout, BatchNormalization, and the names
        and the layout of weights; `eval()` of the layer turns them off again. The first size of every input may vary.

        Parameters
        ----------
        module : torch.nn.Module
            The module; it is not changed.
        example : torch.Tensor or tuple of them
            Inputs to trace it with.
        **settings : object
            For `OnnxLayer`. By default the parameters of the module are trained that the exporter kept.

        Returns
        -------
        OnnxLayer

        Examples
        --------
        >>> module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> list(OnnxLayer.from_torch(module, torch.ones(1, 2)).state_dict())
        ['0.weight', '0.bias']
        """
        exported = export_module(module, example if isinstance(example, tuple) else (example,))
        kept = {t.name for t in exported.graph.initializer}
        settings.setdefault("trainable", [n for n, p in module.named_parameters() if n in kept and p.requires_grad])
        layer = cls(exported, **settings)
        return layer.train(module.training)

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        """The outputs of the graph.

        Parameters
        ----------
        *inputs : torch.Tensor
            In the order of the graph.
        **named : torch.Tensor
            By the names of the graph's inputs.

        Returns
        -------
        torch.Tensor, tuple of them, or dict of str to them

        Raises
        ------
        DataError
            An input is missing, unknown, or of a dtype, device or shape that the graph does not take.
        """
        if torch.compiler.is_dynamo_compiling():
            # onnxruntime is no part of what dynamo can compile: the graph is broken here, cleanly.
            return self._run_apart(self, inputs, named)
        return _run(self, inputs, named)

    def to_onnx(self) -> ModelProto:
        """The model with parameters and buffers as they are now, and nothing else changed.

        Returns
        -------
        onnx.ModelProto
            Every initializer has the dtype that it had: a layer that was moved by `double()` is rounded.
        """
        declared = {t.name: t.data_type for t in self._onnx.graph.initializer}
        return replace_weights(self._onnx, {n: as_array(t, declared[n]) for n, t in self._tensors().items()})

    @property
    def engine_(self) -> str:
        """The engine in use in this mode."""
        return self._mode().function.engine_

    @property
    def engine_reason_(self) -> str:
        """Why it is in use."""
        return self._mode().function.engine_reason_

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by the names of the initializers, whoever has put others in their place."""
        if not self._homes:
            self._homes = [(n, *find_owner(self, key)) for n, key in self.state_names.items()]
        found = {}
        for name, module, held, key in self._homes:
            t = held.get(key)
            # A parametrization takes the tensor out of the module and computes it when it is asked for.
            found[name] = getattr(module, key) if t is None else t
        return found

    def _key(self, shapes: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        """What a compiled graph is for: a mode, a dtype, a device, torch's stream there, and some shapes or all."""
        device = self._probe.device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
        return shapes, self.training, self._probe.dtype, device, stream

    def _mode(self, shapes: tuple[Any, ...] = ()) -> Compiled:
        """The graph as it is wanted now, for these shapes alone or for all."""
        key = self._key(shapes)
        found = self._modes.get(key)
        if found is None:
            if shapes and sum(1 for k in self._modes if k[0]) >= _SHAPES:
                del self._modes[next(k for k in self._modes if k[0])]
            _, training, dtype, device, stream = key
            name = None if dtype is self._dtype else str(dtype).removeprefix("torch.")
            sizes = dict(zip(self.input_names, shapes, strict=True)) if shapes else None
            made = make_program(self._loaded, list(self.state_names), training=training, dtype=name, sizes=sizes)
            program = made.program
            number = choose_threads([*program.outputs.values(), *(program.leaves[n] for n in made.fed)])
            place = Place(Device(Device.parse(device.type).kind, device.index or 0, stream),
                          number or min(torch.get_num_threads(), cores()))
            found = self._modes[key] = Compiled(made, place, self._engine)
        return found

    def _fitting(self, tensors: Sequence[torch.Tensor]) -> Compiled:
        """The graph for these inputs: for any sizes, and for sizes that come again and again for them alone."""
        shapes = tuple([t.shape for t in tensors])
        found = self._modes.get(self._key(shapes))
        if found is not None:
            return found
        found = self._mode()
        if found.static or (not found.needs_sizes and not found.often(shapes)):
            return found
        return self._mode(shapes)

    def _apply(self, fn: Any, recurse: bool = True) -> OnnxLayer:
        super()._apply(fn, recurse)
        self._probe = fn(self._probe)
        return self

    def _reset(self) -> None:
        self._modes, self._homes = {}, []
        if OnnxLayer._run_apart is None:
            # It has to be there before dynamo traces, and imports dynamo, as torch's optimizers do.
            OnnxLayer._run_apart = staticmethod(torch.compiler.disable(_run))

    def __getstate__(self) -> dict[str, Any]:
        # What is compiled is compiled again where it is read.
        state = {k: v for k, v in self.__dict__.items() if k not in ("_modes", "_homes", "_loaded")}
        return {**state, "_onnx": self._onnx.SerializeToString()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_onnx": ModelProto.FromString(state["_onnx"])})
        self._loaded = load(self._onnx)
        self._reset()

    def __repr__(self) -> str:
        return f"OnnxLayer({', '.join(self.input_names)} -> {', '.join(self.output_names)})"


def _run(layer: OnnxLayer, inputs: tuple[torch.Tensor, ...], named: dict[str, torch.Tensor]) -> Any:
    """`forward`, out of reach of torch.compile."""
    names = layer.input_names
    if named or len(inputs) != len(names):
        inputs = _arranged(names, inputs, named)
    found = layer._fitting(inputs)
    checked = [_checked(*one, layer) for one in zip(names, inputs, found.dtypes, strict=True)]
    state = layer._tensors()
    leaves = [*checked, *(state[n] for n in found.fed)]
    if found.masks:
        leaves += found.drawn(inputs)
    outputs = found.function(leaves)
    if found.statistics:
        with torch.no_grad():
            for s, batch in zip(found.statistics, outputs[len(layer.output_names) :], strict=True):
                state[s.name].lerp_(batch, 1 - s.momentum)
        outputs = outputs[: len(layer.output_names)]
    if layer._return_dict:
        return dict(zip(layer.output_names, outputs, strict=True))
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _arranged(
    names: Sequence[str], inputs: Sequence[torch.Tensor], named: Mapping[str, Any]
) -> tuple[torch.Tensor, ...]:
    """Inputs in the order of the graph."""
    known = ", ".join(map(repr, names))
    if len(inputs) > len(names):
        raise DataError(f"The graph has {len(names)} inputs, {known}; {len(inputs)} given.")
    given = dict(zip(names, inputs, strict=False))
    if twice := [n for n in named if n in given]:
        raise DataError(f"The input {twice[0]!r} is given twice; the inputs are {known}.")
    match_names(names, [*given, *named])
    return tuple(given[n] if n in given else named[n] for n in names)


def _checked(name: str, t: torch.Tensor, dtype: torch.dtype, layer: OnnxLayer) -> torch.Tensor:
    """An input as the graph takes it."""
    device = layer._probe.device
    if t.device != device:
        raise DataError(f"The input {name!r} is on {t.device}, the layer on {device}; move one of them.")
    if t.dtype is dtype:
        return t
    if dtype.is_floating_point and t.is_floating_point() and torch.is_autocast_enabled(device.type):
        return t.to(dtype)
    raise DataError(f"The input {name!r} is {t.dtype}, the layer takes {dtype}; convert one of them.")
