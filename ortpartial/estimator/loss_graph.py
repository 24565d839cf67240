"""Graphs that hold their own loss: written into a model, found in a model, and recognized."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from onnx import GraphProto, ModelProto, helper

from ortpartial.checks import check_flag, check_names
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.graph import Value, build, find_inputs
from ortpartial.learning import BaseLearningLoss, list_settings, refuse_former_names, replace_settings, resolve_loss
from ortpartial.model import Model, infer_ties, load, prune_outputs, read
from ortpartial.texts import parse_json
from ortpartial.training import LossOutput, TrainingSpec, known_shape, make_targets, make_weights, mean_loss

from .forms import Loss
from .outputs import resolve_losses, warn_of_activations

__all__ = ["add_loss_output", "drop_loss", "find_loss", "list_predictions"]

#: The key of the metadata of a model that say which losses were written into it.
_KEY = "ortpartial.loss"


@refuse_former_names
def add_loss_output(
    model: Model | ModelProto | bytes | str | os.PathLike[str],
    loss: Loss | Mapping[str, Loss] = "square_error",
    *,
    weighted: bool = True,
    loss_output_name: str = "loss",
) -> ModelProto:
    """Write a loss into an inference graph: a further output, computed from targets and weights, further inputs.

    The output is the mean over the rows, Σwᵢℓᵢ / Σwᵢcᵢ, and 0 where Σwᵢcᵢ = 0, of which the gradient is a training:
    any framework that trains a graph by its loss takes it, `OrtGradientOptimizer` among them.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, or a `Model` returned by `load`
        The inference graph; it is not written to. An opset before 21 is upgraded to 21.
    loss : str, BaseLearningLoss, callable, or dict of str to them
        The loss of the output, or of several outputs by name, of which the graph computes the sum: as `learning_loss`
        of `OrtGradientForwardBackwardOptimizer`.
    weighted : bool
        Whether rows have weights, an input ``"sample_weight"`` of shape (rows,).
    loss_output_name : str
        The name of the new output.

    Returns
    -------
    onnx.ModelProto
        Inputs: the inputs of the model, then ``<output>_target`` for each output with a loss, then the weights.
        Outputs: the outputs of the model, then the loss, a scalar. A name that the model uses itself has an underscore
        behind it.

    Raises
    ------
    ModelError
        The model cannot be read, or the rank of an output with a loss is not known.
    SettingError
        The loss or an output is unknown, the name of the new output is taken, or class weights are ``"balanced"``,
        which follow from labels that a graph does not have.

    Warns
    -----
    ModelWarning
        The output ends in an activation that the loss applies itself.

    Examples
    --------
    >>> from ortpartial.graph import build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 3]), constant([[1.0], [2.0], [3.0]], hint="w")
    >>> graph = add_loss_output(build([x], {"y": x @ w})).graph
    >>> [i.name for i in graph.input], [o.name for o in graph.output]
    (['x', 'y_target', 'sample_weight'], ['y', 'loss'])
    """
    from ortpartial.training_info import declare_labels, find_labels, upgrade_model  # late: few programs need it

    source = read(model) if isinstance(model, Model) else infer_ties(read(model))[0]
    proto = upgrade_model(source, [t.name for t in source.graph.initializer])
    libraries = model.custom_ops_library if isinstance(model, Model) else ()
    loaded = load(proto, ties="file", custom_ops_library=libraries or None)
    losses = resolve_losses(loaded, loss)
    warn_of_activations(loaded, losses, stacklevel=3)
    _check(loaded, losses, loss_output_name)
    check_flag("weighted", weighted)
    spec = TrainingSpec(loaded, (), losses)
    targets = make_targets(spec)
    rows = next((t.shape[0] for t in targets.values() if t.shape), None)
    weights = make_weights(spec, targets, weighted, rows)
    added = {**targets, **weights}
    _append(proto, loaded, added, {loss_output_name: mean_loss(spec, targets, weights)})
    declare_labels(proto.graph, find_labels(spec))
    written = _Written(loss_output_name, losses, dict(zip(losses, targets, strict=True)), next(iter(weights), None))
    _note_losses(proto, written)
    return proto


def _check(model: Model, losses: Mapping[str, BaseLearningLoss], name: str) -> None:
    """Refuse names and losses that a graph cannot hold."""
    if not isinstance(name, str) or not name:
        raise SettingError(f"loss_output_name is a name, not {name!r}.")
    if name in model.values:
        raise SettingError(f"The model has a tensor {name!r}; give the loss another name by loss_output_name.")
    for output, loss in losses.items():
        if loss.is_unbalanced:
            raise SettingError("class_weight='balanced' takes the weights of classes from all labels, which a graph "
                               "does not have; give an array or a dict.")
        if (shape := model.outputs[output].shape) is None:
            raise ModelError(f"The rank of the output {output!r} is not known, so that its target has none; declare "
                             f"its shape in the model.")
        loss.check_output(shape)


def _append(proto: ModelProto, model: Model, inputs: Mapping[str, Value], outputs: Mapping[str, Value]) -> None:
    """Append inputs and outputs to a graph, with the nodes that compute these."""
    from ortpartial.training_info import declare_versions

    graph = proto.graph
    visible = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    visible |= {o for node in graph.node for o in node.output if o}
    boundary = {n: model.values[n] for n in visible & model.values.keys()}
    taken = visible | {node.name for node in graph.node}
    addition = build({**boundary, **inputs}, outputs, name=graph.name, reserved=taken)
    declare_versions(proto, addition)
    # An initializer could be trained, a constant of a loss is not to be.
    graph.node.extend(helper.make_node("Constant", [], [t.name], value=t) for t in addition.graph.initializer)
    graph.node.extend(addition.graph.node)
    graph.input.extend(i for i in addition.graph.input if i.name in inputs)
    graph.output.extend(addition.graph.output)


@dataclass(frozen=True)
class _Written:
    """The losses that were written into a graph: by output, with the names of their results, targets and weights."""

    name: str
    losses: Mapping[str, BaseLearningLoss]
    targets: Mapping[str, str]
    row_weights: str | None


def _note_losses(proto: ModelProto, written: _Written) -> None:
    """Note in the metadata of a model the losses that it holds, where they are the library's.

    The note holds as long as the nodes of the loss are unchanged.
    """
    _drop_note(proto)
    losses = {o: repr(loss) for o, loss in written.losses.items()}
    note = {"name": written.name, "losses": losses, "targets": dict(written.targets),
            "row_weights": written.row_weights, "digest": _digest(proto, written)}
    proto.metadata_props.add(key=_KEY, value=json.dumps(note))
    if _read_note(proto) != written:
        _drop_note(proto)


def _drop_note(proto: ModelProto) -> None:
    """Drop from the metadata of a model which losses it holds."""
    kept = [p for p in proto.metadata_props if p.key != _KEY]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)


def drop_loss(proto: ModelProto, predictions: Sequence[str]) -> ModelProto:
    """The inference graph of a graph that holds its own loss.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; it is not written to.
    predictions : sequence of str
        The outputs that are kept.

    Returns
    -------
    onnx.ModelProto
    """
    pruned = prune_outputs(proto, predictions)
    _drop_note(pruned)
    return pruned


def _digest(proto: ModelProto, written: _Written) -> str:
    """A digest of the part of a graph that only its loss needs."""
    graph, outputs = proto.graph, [o.name for o in proto.graph.output if o.name != written.name]
    others = prune_outputs(_without_content(proto), outputs).graph
    kept = {o for node in others.node for o in node.output} | {t.name for t in others.initializer}
    parts = [n.SerializeToString(deterministic=True) for n in graph.node if kept.isdisjoint(n.output)]
    parts += [t.SerializeToString(deterministic=True) for t in graph.initializer if t.name not in kept]
    return sha256(b"".join(parts)).hexdigest()


def _without_content(proto: ModelProto) -> ModelProto:
    """The nodes, inputs and outputs of a model, and its initializers by name alone."""
    graph = proto.graph
    names = GraphProto()
    names.node.extend(graph.node)
    names.input.extend(graph.input)
    names.output.extend(graph.output)
    for t in graph.initializer:
        names.initializer.add(name=t.name)
    return ModelProto(graph=names)


def _read_loss(text: str) -> BaseLearningLoss:
    """The loss of the library that `repr` has written; errors of Python and ours where it is none."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(text)
    loss = resolve_loss(call.func.id)
    settings = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    return replace_settings(loss, **{n: settings[n] for n in list_settings(loss)})


def list_predictions(model: Model, loss: str, labels: Sequence[str] | None = None) -> list[str]:
    """The outputs of a graph beside its loss.

    Parameters
    ----------
    model : Model
        The graph.
    loss : str
        The output that is the loss.
    labels : sequence of str, optional
        The inputs that are labels or row weights: outputs that depend on them are no predictions.

    Returns
    -------
    list of str
    """
    read = {n: model.inputs[n] for n in labels or ()}
    return [o for o, v in model.outputs.items() if o != loss and not (read and find_inputs([v], read))]


def find_loss(model: Model, name: str, labels: str | Sequence[str] | None = None, row_weights: str | None = None
              ) -> tuple[dict[str, BaseLearningLoss], dict[str, str], str | None]:
    """Find the loss of a graph: as `add_loss_output` has written it, by output, else the output that is the loss.

    Parameters
    ----------
    model : Model
        The graph.
    name : str
        The output that is the loss.
    labels, row_weights : object
        The inputs that are labels, and the input of the weights of the rows, where the graph does not tell.

    Returns
    -------
    losses : dict of str to BaseLearningLoss
        By output, or a `LossOutput`.
    targets : dict of str to str
        The inputs that are labels, with the outputs that they are targets of, or else themselves.
    row_weights : str or None
        The input that is the weights of the rows.

    Raises
    ------
    SettingError
        There is no such output or input, or the output is no scalar of real numbers.
    """
    loss = _find_loss_output(model, name, labels, row_weights)
    written = _read_note(model.proto) if labels is None and row_weights is None else None
    if written is not None and written.name == name:
        return dict(written.losses), {t: o for o, t in written.targets.items()}, written.row_weights
    return {name: loss}, {n: n for n in loss.label_names}, loss.row_weights


def _read_note(proto: ModelProto) -> _Written | None:
    """The losses that were written into a graph, if they have not been changed since."""
    text = next((p.value for p in proto.metadata_props if p.key == _KEY), None)
    if text is None:
        return None
    try:
        note = parse_json(text)
        losses = {str(o): _read_loss(loss) for o, loss in note["losses"].items()}
        written = _Written(note["name"], losses, {o: note["targets"][o] for o in losses}, note["row_weights"])
        return written if losses and note["digest"] == _digest(proto, written) else None
    except (AttributeError, KeyError, MemoryError, RecursionError, SettingError, SyntaxError, TypeError, ValueError):
        return None  # It is of another version, or of a stranger.


def _find_loss_output(model: Model, name: str, labels: str | Sequence[str] | None, row_weights: str | None
                      ) -> LossOutput:
    """The output of a graph that is its loss, with the roles of inputs and of other outputs."""
    _check_loss(model, name)
    named = [] if labels is None else list(check_names("label_names", labels))
    roles = [*named, *([] if row_weights is None else [row_weights])]
    read = find_inputs([model.outputs[name]], model.inputs)
    _check_roles(name, named, row_weights, read)
    # Another output that needs further data is none of the training.
    predictions = [o for o in list_predictions(model, name, roles)
                   if find_inputs([model.outputs[o]], model.inputs).keys() <= read.keys()]
    features = find_inputs([model.outputs[o] for o in predictions], model.inputs)
    others = [n for n in read if n not in features]
    if row_weights is None:
        row_weights = next((n for n in others if n.rstrip("_") == "sample_weight" and n not in named), None)
    if labels is None and predictions:
        named = [n for n in others if n != row_weights]
    return LossOutput(tuple(named), row_weights, tuple(predictions))


def _check_roles(name: str, labels: Sequence[str], row_weights: object, read: Collection[str]) -> None:
    """Refuse labels and weights of rows that the loss does not read, and an input that is both."""
    if row_weights is not None and not isinstance(row_weights, str):
        raise SettingError(f"sample_weight_name is the name of an input, not {row_weights!r}.")
    if row_weights in labels:
        raise SettingError(f"The input {row_weights!r} is among label_names and is sample_weight_name; it is either of "
                           f"them.")
    for n in (*labels, *([] if row_weights is None else [row_weights])):
        if n not in read:
            raise SettingError(f"The loss {name!r} reads no input {n!r}; it reads {_quote(read)}.")


def _check_loss(model: Model, name: str) -> None:
    """Refuse an output that is no loss."""
    if not isinstance(name, str) or name not in model.outputs:
        raise SettingError(f"The model has no output {name!r} that would be its loss; its outputs are "
                           f"{_quote(model.outputs)}: name it by loss_output_name, or write one with add_loss_output.")
    v = model.outputs[name]
    if not v.is_float:
        raise SettingError(f"The output {name!r} is of {v.dtype}, and a loss is a real number.")
    if v.shape is None:
        raise SettingError(f"The shape of the output {name!r} is not known, and a loss is a scalar: declare the ranks "
                           f"of the inputs in the model.")
    if v.shape not in ((), (1,)):
        raise SettingError(f"The output {name!r} has the shape {known_shape(v)}, and a loss is a scalar: let the graph "
                           f"compute its mean over the rows.")


def _quote(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
