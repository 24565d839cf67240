"""A model as a function of tensors, with derivatives of every order, for torch.func and torch.autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeAlias

import torch
from onnx import ModelProto

from ortpartial.derivatives import jvp_model, vmap_model
from ortpartial.exceptions import DataError
from ortpartial.model import Model, ModelLike, load
from ortpartial.rewrites import gradient_model
from ortpartial.runtime import Session

__all__ = ["as_torch_function"]

Tensors: TypeAlias = tuple[torch.Tensor, ...]


def as_torch_function(
    model: ModelLike
) -> Callable[..., torch.Tensor | Tensors]:
    """A model as a function of its inputs, which torch differentiates to any order.

    The function runs in onnxruntime, on the CPU. `torch.func.vmap`, `grad`, `jvp`, `jacrev`, `jacfwd` and `hessian`
    take it, as does ``backward()``, one inside of another: each derivative, and each batch, is a model that is made on
    first use. Weights of the model are constants; those that are to be inputs are declared so by `specialize` or by the
    exporter.

    Parameters
    ----------
    model : Model, onnx.ModelProto, bytes or path
        The model.

    Returns
    -------
    callable
        From a tensor for each input, in their order, to the output, or a tuple of the outputs.

    Raises
    ------
    DataError
        When it is called: the number, the device or the dtype of the tensors is wrong.
    NoGradientError
        When it is differentiated: an operator has no derivative.

    See Also
    --------
    OnnxLayer : A model as a module, whose weights torch trains.

    Examples
    --------
    >>> from ortpartial.graph import build, op, variable
    >>> x = variable("x", "float32", [3])
    >>> f = as_torch_function(build([x], {"y": op.ReduceSum(op.Sin(x), keepdims=0)}))
    >>> torch.func.vmap(torch.func.grad(f))(torch.zeros(2, 3))
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    program = _Program(load(model), 0)

    def function(*tensors: torch.Tensor) -> torch.Tensor | Tensors:
        program.check(tensors)
        outputs = _Run.apply(program, *tensors)
        return outputs[0] if len(outputs) == 1 else outputs

    return function


class _Program:
    """A model with the models of its derivatives and of its batches, which are made on first use.

    Parameters
    ----------
    model : Model
        The model.
    depth : int
        How many derivatives it is, for the names of the next.
    """

    def __init__(self, model: Model, depth: int):
        self.model, self.depth = model, depth
        self.wrt = [n for n, x in model.inputs.items() if x.is_float]
        self.outputs = [n for n, y in model.outputs.items() if y.is_float]
        self._batches: dict[tuple[int | None, ...], _Program] = {}

    @cached_property
    def session(self) -> Session:
        """The session that runs it."""
        return Session(self.model.proto)

    @cached_property
    def gradient(self) -> _Program:
        """Its gradient by all inputs, of inputs and cotangents."""
        return self._derive(gradient_model(self.model, self.wrt, self.outputs, suffix=f"_grad{self.depth}"))

    @cached_property
    def tangent(self) -> _Program:
        """Its tangents, of inputs and tangents."""
        return self._derive(jvp_model(self.model, self.wrt, self.outputs, suffix=f"_tangent{self.depth}"))

    def batch(self, axes: Sequence[int | None]) -> _Program:
        """The model for a batch, along these axes of the inputs."""
        key = tuple(axes)
        if key not in self._batches:
            places = dict(zip(self.model.inputs, key, strict=True))
            self._batches[key] = self._derive(vmap_model(self.model, places, size=f"batch{self.depth}"))
        return self._batches[key]

    def _derive(self, model: ModelProto) -> _Program:
        return _Program(load(model), self.depth + 1)

    def check(self, tensors: Sequence[torch.Tensor]) -> None:
        """Refuse tensors that are none of the inputs."""
        if len(tensors) != len(self.model.inputs):
            names = ", ".join(map(repr, self.model.inputs))
            raise DataError(f"The model has {len(self.model.inputs)} inputs, {names}, and was called with "
                            f"{len(tensors)} tensors.")
        for (n, x), t in zip(self.model.inputs.items(), tensors, strict=True):
            if not isinstance(t, torch.Tensor):
                raise DataError(f"Input {n!r} is a {type(t).__name__}; a tensor was expected.")
            if t.device.type != "cpu":
                raise DataError(f"Input {n!r} is on {t.device}; the function runs on the CPU.")
            if (dtype := str(t.dtype).removeprefix("torch.")) != str(x.dtype):
                raise DataError(f"Input {n!r} is {dtype}; the model takes {x.dtype}.")

    def run(self, tensors: Sequence[torch.Tensor]) -> Tensors:
        """The outputs for these inputs."""
        arrays = {n: t.detach().contiguous().numpy() for n, t in zip(self.model.inputs, tensors, strict=True)}
        results = self.session.run(arrays)
        return tuple(torch.from_numpy(results[n]) for n in self.model.outputs)


class _Run(torch.autograd.Function):
    """A run of a program, whose derivatives are runs of the programs of its derivatives."""

    @staticmethod
    def forward(program: _Program, *tensors: torch.Tensor) -> Tensors:
        return program.run(tensors)

    @staticmethod
    def setup_context(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: Tensors) -> None:
        program, *tensors = inputs
        assert isinstance(program, _Program)
        ctx.program = program
        ctx.mark_non_differentiable(*(y for n, y in zip(program.model.outputs, output, strict=True)
                                      if n not in program.outputs))
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *dys: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        program: _Program = ctx.program
        floats = [d for n, d in zip(program.model.outputs, dys, strict=True) if n in program.outputs]
        gradients = dict(zip(program.wrt, _Run.apply(program.gradient, *ctx.saved_tensors, *floats), strict=True))
        return None, *(gradients.get(n) for n in program.model.inputs)

    @staticmethod
    def jvp(ctx: torch.autograd.function.FunctionCtx, _: object, *tangents: torch.Tensor | None) -> Tensors:
        program: _Program = ctx.program
        named = zip(program.model.inputs, ctx.saved_tensors, tangents, strict=True)
        directions = [torch.zeros_like(x) if t is None else t for n, x, t in named if n in program.wrt]
        pushed = dict(zip(program.outputs, _Run.apply(program.tangent, *ctx.saved_tensors, *directions), strict=True))
        return tuple(pushed.get(n) for n in program.model.outputs)

    @staticmethod
    def vmap(info: object, in_dims: tuple[int | None, ...], program: _Program, *tensors: torch.Tensor
             ) -> tuple[Tensors, tuple[int, ...]]:
        outputs = _Run.apply(program.batch(in_dims[1:]), *tensors)
        return outputs, (0,) * len(outputs)
