"""Gradient models: the gradient of an ONNX model as another ONNX model, for any runtime."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from onnx import ModelProto

from ortpartial.autodiff import grad, list_adapter, resolve_weights
from ortpartial.checks import check_choice, check_names
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.graph import Value, build
from ortpartial.model import Model, ModelLike, load, specialize

from .lowering import make_portable

__all__ = ["gradient_model", "select_tensors"]


def gradient_model(
    model: ModelLike,
    wrt: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    *,
    cotangents: str = "input",
    suffix: str = "_grad",
) -> ModelProto:
    """The gradient of an ONNX model as an ONNX model: ``Σ <cotangent, ∂output/∂name>`` for every name of `wrt`.

    Any runtime runs it: only operators of the ONNX standard are added to the model, and operators without a float64
    kernel in onnxruntime are written in others. Its inputs are the inputs of the model, then the initializers of `wrt`,
    then the cotangent ``<output>_grad`` of every differentiated output, or ``<output>_grad_in`` where it is in `wrt` as
    well. Its outputs are ``<name>_grad``, in the order of `wrt`. A cotangent or gradient has the shape of the tensor
    that it is named after. Applied to its own result with another suffix, it returns the next order.

    A mask that is shut, such as that of Relu, passes nothing, whatever is behind it in the model. Cotangents that are
    inputs are taken for finite numbers: at a mask with no pole of the model behind it, an infinite cotangent gives NaN.

    Parameters
    ----------
    model : Model, onnx.ModelProto, bytes or path
        The model; it is not written to.
    wrt : sequence of str, optional
        Names of inputs, initializers (or their aliases) or intermediate tensors of the main graph, of a floating-point
        type; ``"adapter"`` for the weights of an adapter. By default the float initializers of rank 1 or more on a
        differentiable path to the outputs, except BatchNormalization's mean and variance, the numbers that exporters
        write, and numbers of the program, such as the angles of a rotary embedding.
    outputs : sequence of str, optional
        Names of the outputs to differentiate; by default all of a floating-point type.
    cotangents : str
        ``"input"``: the cotangent of each output is an input. ``"ones"``: it is 1, so that the outputs are summed.
    suffix : str
        The suffix of a gradient's name.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        A name is unknown, not of a floating-point type or given twice, the name of a gradient is taken, or a node of
        float64 has no kernel in onnxruntime and cannot be written otherwise.
    NoGradientError
        An operator on a path from `wrt` to the outputs has no gradient.
    SettingError
        `cotangents` is neither of the two words, or `suffix` is empty.

    Examples
    --------
    >>> from ortpartial.graph import constant, variable
    >>> x, w = variable("x", "float32", ["N", 2]), constant([[1.0], [2.0]], hint="w")
    >>> first = gradient_model(build([x], {"y": x @ w}), ["x", "w"])
    >>> [i.name for i in first.graph.input], [o.name for o in first.graph.output]
    (['x', 'w', 'y_grad'], ['x_grad', 'w_grad'])
    >>> second = gradient_model(first, ["w"], ["x_grad"], suffix="_grad2")
    >>> [i.name for i in second.graph.input], [o.name for o in second.graph.output]
    (['x', 'w', 'y_grad', 'x_grad_grad2'], ['w_grad2'])
    """
    check_choice("cotangents", cotangents, ("input", "ones"))
    if not isinstance(suffix, str) or not suffix:
        raise SettingError(f"suffix is {suffix!r}, and a gradient needs a name of its own; the default is '_grad'.")
    loaded, names, chosen = select_tensors(model, wrt, outputs)
    inputs = {**loaded.inputs, **{n: loaded.initializers[n] for n in names if n in loaded.initializers}}
    seeds: dict[str, Value] = {}
    if cotangents == "input":
        seeds = {n: Value(loaded.outputs[o].type, hint=n) for o in chosen
                 for n in [f"{o}{suffix}_in" if o in names else f"{o}{suffix}"]}
    results = _name_gradients(loaded, names, seeds, suffix)
    gradients = grad([loaded.outputs[o] for o in chosen], [loaded.values[n] for n in names], [*seeds.values()] or None)
    named = dict(zip(results, gradients, strict=True))
    return make_portable(build({**inputs, **seeds}, named, name=f"{loaded.proto.graph.name}{suffix}"))


def select_tensors(
    model: ModelLike, wrt: Sequence[str] | None, outputs: Sequence[str] | None
) -> tuple[Model, list[str], list[str]]:
    """The tensors between which a model is differentiated.

    Parameters
    ----------
    model : Model, onnx.ModelProto, bytes or path
        The model.
    wrt, outputs : sequence of str, optional
        As for `gradient_model`.

    Returns
    -------
    model : Model
        The model, whose initializers of `wrt` are variables.
    wrt, outputs : list of str
        The names of tensors and outputs.

    Raises
    ------
    ModelError
        A name is unknown, not of a floating-point type or given twice, or there is none.
    """
    loaded = load(model)
    chosen = _choose_floats(loaded, outputs, "output", loaded.outputs)
    if not chosen:
        raise ModelError("No output of the model holds real numbers, so that there is nothing to differentiate.")
    names = resolve_weights(loaded, None, chosen) if wrt is None else _choose_floats(loaded, wrt, "wrt", loaded.values)
    if not names:
        raise ModelError("wrt is empty; name at least one tensor, or leave it out for the initializers.")
    weights = [n for n in names if n in loaded.initializers]
    return (specialize(loaded, variables=weights) if weights else loaded), names, chosen


def _name_gradients(model: Model, names: Sequence[str], seeds: Collection[str], suffix: str) -> list[str]:
    """The names of the gradients, none of which may be taken."""
    gradients = [f"{n}{suffix}" for n in names]
    clashes = [n for n in [*seeds, *gradients] if n in model.values] + [n for n in gradients if n in seeds]
    if clashes:
        raise ModelError(f"The name {clashes[0]!r} of a gradient is taken; choose another suffix than {suffix!r}.")
    return gradients


def _choose_floats(
    model: Model, names: Sequence[str] | None, what: str, candidates: Mapping[str, Value]
) -> list[str]:
    """The given names, checked to be candidates of floating-point type without repetition; all such by default."""
    if names is None:
        return [n for n in candidates if model.values[n].is_float]
    listed = check_names("outputs" if what == "output" else what, names, ModelError)
    chosen = [n for item in listed for n in list_adapter(model, item) or [model.find_initializer(item)]]
    for n in chosen:
        if n not in candidates:
            raise ModelError(_describe_unknown(model, n, what, candidates))
        if not model.values[n].is_float:
            raise ModelError(f"{n!r} is of {model.values[n].dtype} and has no gradient; name a tensor of real numbers.")
        if chosen.count(n) > 1:
            raise ModelError(f"{n!r} is given twice in {what}; its gradient is one tensor.")
    return chosen


def _describe_unknown(model: Model, name: str, what: str, candidates: Iterable[str]) -> str:
    """The message of the error for a name that the model does not have."""
    listed = [*model.inputs, *model.initializers] if what == "wrt" else [*candidates]
    some = ", ".join(map(repr, listed[:10])) + (f" and {len(listed) - 10} more" if len(listed) > 10 else "")
    more = ", and all tensors that a node of the main graph computes" if what == "wrt" else ""
    return f"The model has no {'tensor' if what == 'wrt' else what} {name!r}; there are {some}{more}."
