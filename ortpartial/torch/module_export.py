"""Export of a torch module with nothing lost: names, buffers, ties, Dropout, BatchNormalization and the batch size."""

from __future__ import annotations

import copy
import io
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from onnx import ModelProto

from ortpartial.checks import check_flag
from ortpartial.exceptions import ModelError, ModelWarning, SettingError
from ortpartial.logs import logger
from ortpartial.model import TorchRecord, note_torch, replace_weights, walk_graphs
from ortpartial.rewrites import to_inference_mode

from .detach_export import list_detach_translations, mark_detached, writing_detach
from .export_check import find_difference, list_unkept
from .exported_layers import SpecialStatistics, find_other_mode, prepare_layers
from .module_call import Axes, ModuleCall, list_tensors, name_outputs, read_axes, read_call
from .module_state import as_array

__all__ = ["export"]

#: The opset that the TorchScript exporter writes.
_OPSET = 18


def export(
    module: torch.nn.Module, *example: object,
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None = None, dynamo: bool | None = None,
) -> ModelProto:
    """Export a torch module to ONNX with nothing lost that a training needs.

    torch's own exporters write the graph, with settings that keep Dropout, BatchNormalization and all weights.
    Parameters and buffers have the names of the ``state_dict()``; equal parameters stay apart, and a parameter that is
    used twice, as a head that is its embedding, stays single. The metadata of the model record more than a graph can
    say: which initializers are parameters, with ``requires_grad`` or without, and which are buffers, and the mode of
    the module. `OrtGradientForwardBackwardOptimizer` and all others train these by default, in this mode; running
    variances then take n / (n - 1) of the variance of a batch, as torch's do.

    Inputs are named as the arguments of ``forward``, outputs by the keys or fields of its result, or
    ``"output"``. Gradients end at `detach` and in `torch.no_grad`. The graph is compared with the module, in evaluation
    mode, at the size of the example and at twice as much along each axis of any size, where the module takes that.

    Parameters
    ----------
    module : torch.nn.Module
        The module; neither it nor the state of torch's random numbers is changed.
    *example : object
        Arguments to trace it with: by position, by keyword in a dict, or both, the dict last. Tensors, also in tuples,
        lists and dicts, are inputs; numbers, strings and None are constants.
    dynamic_axes : dict of str to dict of int to str, or to sequence of int, optional
        By input its axes of any size, with a name for each or without: axes of the same name have the same size. By
        default the first axis of each input, ``"N"``.
    dynamo : bool, optional
        Which of ``torch.onnx.export``'s exporters writes the graph: the newer (True), which needs onnxscript, or
        TorchScript's (False). By default the latter, and the newer where it fails or loses something.

    Returns
    -------
    onnx.ModelProto
        In inference mode; `to_onnx`, `get_trained_onnx` and files keep the record.

    Raises
    ------
    ModelError
        Neither exporter writes a graph that computes the same as the module; the message gives both reasons.
    SettingError
        An axis or an input of `dynamic_axes` does not exist, or the parameters of the module have no shapes yet.
    TypeError
        The example does not fit the arguments of ``forward``, or holds an object that is neither a tensor nor a number.

    Warns
    -----
    ModelWarning
        A layer is in another mode than the module, as a model has a single mode for all.

    Examples
    --------
    >>> import torch
    >>> import ortpartial
    >>> module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    >>> model = ortpartial.torch.export(module, torch.zeros(4, 2))
    >>> optimizer = ortpartial.OrtGradientForwardBackwardOptimizer(model)
    >>> optimizer.weights_to_train, optimizer.train_mode
    (['0.weight', '0.bias', '1.weight', '1.bias', '2.weight', '2.bias'], True)
    """
    if not isinstance(module, torch.nn.Module):
        raise SettingError(f"module is a torch.nn.Module, not {module!r}.")
    if dynamo is not None:
        dynamo = check_flag("dynamo", dynamo)
    _check_initialized(module)
    if layer := find_other_mode(module):
        names = {True: "training", False: "evaluation"}
        warnings.warn(f"{layer!r} is in {names[not module.training]} mode, and its module in {names[module.training]} "
                      f"mode, which the model has for all its layers; call module.train() or module.eval() before the "
                      f"export.", ModelWarning, stacklevel=2)
    call = read_call(module, example)
    axes = read_axes(call, dynamic_axes)
    reasons = {}
    for kind in (False, True) if dynamo is None else (dynamo,):
        try:
            return _export_by(kind, module, call, axes)
        except _Loss as e:
            reasons["dynamo" if kind else "TorchScript"] = str(e)
            logger.debug("torch's exporter by %s: %s", *list(reasons.items())[-1])
    texts = "; ".join(f"by {name}: {reason}" for name, reason in reasons.items())
    raise ModelError(f"torch.onnx.export writes no graph of {type(module).__name__} that has all of it, {texts}. "
                     f"Change the module, or give another example.")


class _Loss(Exception):
    """An exporter fails, or its graph lacks something of the module."""


def _export_by(dynamo: bool, module: torch.nn.Module, call: ModuleCall, axes: Axes) -> ModelProto:
    """The model as an exporter writes it, with the record of the module."""
    with _borrow(module) as traced, torch.random.fork_rng(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.13.0 warns of its own code, and that TorchScript is deprecated.
        statistics = prepare_layers(traced)
        outputs = name_outputs(call.run(traced.eval()), {*call.names, *module.state_dict()})
        with _keep_buffers(traced) as former:  # Tracing updates running statistics.
            call = _avoid_one_row(traced.train(), call, axes)
            try:
                with call.taking_positions(traced):
                    proto = (_export_program if dynamo else _trace)(traced, call, axes, outputs)
            except Exception as e:  # Each exporter has many classes of its own.
                raise _Loss(_summarize(e)) from None
            written = [n for n, b in traced.named_buffers() if not torch.equal(b, former[n])]
        proto = to_inference_mode(proto)
        proto = _record(traced, module.training, proto, statistics)
        if lost := _find_lost(traced, proto, call):
            raise _Loss(f"its graph has no initializer {lost!r}, on which the outputs depend")
        written = list_unkept(proto, written)
        if written and module.training:
            raise _Loss(f"the module writes to its buffer {written[0]!r} in training mode, which a graph does not; "
                        f"call module.eval() before the export if it can stay as it is")
        try:
            difference = find_difference(traced, proto, call, axes)
            if written and not difference:
                with _keep_buffers(traced):
                    difference = find_difference(traced, _draw(traced, written, proto), call, axes)
        except ModelError as e:
            raise _Loss(str(e)) from None
        if difference:
            raise _Loss(difference)
    return proto


def _draw(module: torch.nn.Module, buffers: Sequence[str], proto: ModelProto) -> ModelProto:
    """The model and the module with random numbers in buffers that training mode writes to.

    They tell which buffers a graph reads: spectral norm writes to a vector, in the end, its own content.
    """
    for name in buffers:
        module.get_buffer(name).uniform_(0.5, 1.5)
    kinds = {t.name: t.data_type for t in proto.graph.initializer}
    return replace_weights(proto, {n: as_array(module.get_buffer(n), kinds[n]) for n in buffers})


def _check_initialized(module: torch.nn.Module) -> None:
    """Refuse lazy modules, whose parameters have no shapes before the first call."""
    for name, t in [*module.named_parameters(), *module.named_buffers()]:
        if torch.nn.parameter.is_lazy(t):
            raise SettingError(f"{name!r} of the module has no shape before its first call; call the module once, and "
                               f"export it then.")


@contextmanager
def _borrow(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """A copy of a module; where there can be none, the module itself, which is restored afterwards."""
    try:
        traced = copy.deepcopy(module)
    except Exception:  # Such as RuntimeError, for a tensor that is computed, and TypeError, for a lock.
        traced = module
    if traced is not module:
        yield traced
        return
    attributes = {m: dict(vars(m)) for m in module.modules()}
    try:
        with _keep_buffers(module):
            yield module
    finally:
        for m, fields in attributes.items():
            vars(m).clear()
            vars(m).update(fields)


@contextmanager
def _keep_buffers(module: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """A context after which the buffers of a module have their former contents, which it yields by name."""
    former = [(m._buffers, n, b, b.detach().clone()) for m in module.modules() for n, b in m._buffers.items()
              if b is not None]
    contents = {id(b): content for _, _, b, content in former}
    try:
        yield {n: contents[id(b)] for n, b in module.named_buffers()}
    finally:
        for buffers, name, b, content in former:
            buffers[name] = b.copy_(content)


def _avoid_one_row(module: torch.nn.Module, call: ModuleCall, axes: Axes) -> ModuleCall:
    """A longer call where an axis of any size is of size 1, which BatchNorm refuses and dynamo takes for a constant."""
    ones = {n: {a: text for a, text in axes[n].items() if call.inputs[n].shape[a] == 1} for n in axes}
    longer = call.lengthen(ones)
    try:
        longer.run(module)
    except Exception:  # The axis is no axis of rows for the module.
        return call
    return longer


def _trace(module: torch.nn.Module, call: ModuleCall, axes: Axes, outputs: Sequence[str] | None) -> ModelProto:
    """The graph that the TorchScript exporter writes."""
    stream = io.BytesIO()
    with _silence(), writing_detach(_OPSET), torch.enable_grad():
        torch.onnx.export(
            module, call.tensors, stream, dynamo=False, training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False, input_names=list(call.names), output_names=outputs,
            dynamic_axes={n: dict(sizes) for n, sizes in axes.items()}, opset_version=_OPSET, verbose=False)
    return mark_detached(ModelProto.FromString(stream.getvalue()))


def _export_program(module: torch.nn.Module, call: ModuleCall, axes: Axes, outputs: Sequence[str] | None) -> ModelProto:
    """The graph that the newer exporter writes."""
    shapes = tuple(dict(axes.get(n, {})) for n in call.names)
    with torch.enable_grad():
        program: Any = torch.onnx.export(
            module, call.tensors, dynamo=True, optimize=False, verbose=False, input_names=list(call.names),
            output_names=outputs, dynamic_shapes=(shapes,), custom_translation_table=list_detach_translations())
    return mark_detached(program.model_proto)


@contextmanager
def _silence() -> Iterator[None]:
    """A context in which the TorchScript exporter of torch 2.13.0 does not print the graph that it fails at."""
    log = getattr(torch._C, "_jit_onnx_log", None)
    try:
        torch._C._jit_onnx_log = lambda *args: None
        yield
    finally:
        torch._C._jit_onnx_log = log


def _summarize(e: BaseException) -> str:
    """The first line of the error that caused another."""
    while e.__cause__ is not None:
        e = e.__cause__
    return textwrap.shorten((str(e).strip().splitlines() or [""])[0], 300) or type(e).__name__


def _record(module: torch.nn.Module, training: bool, proto: ModelProto, statistics: SpecialStatistics) -> ModelProto:
    """The model with the state of a module under the names of the module, and the record of it."""
    parameters, ties = _find_ties(module.named_parameters(remove_duplicate=False))
    buffers, others = _find_ties(module.named_buffers(remove_duplicate=False))
    ties |= others
    proto = _join(proto, ties)
    kinds = {t.name: (t.data_type, tuple(t.dims)) for t in proto.graph.initializer}
    state = {n: t for n, t in {**parameters, **buffers}.items() if n in kinds and kinds[n][1] == tuple(t.shape)}
    proto = replace_weights(proto, {n: as_array(t, kinds[n][0]) for n, t in state.items()})
    trained, frozen = ([n for n, p in parameters.items() if p.requires_grad is is_trained and n in state]
                       for is_trained in (True, False))
    note_torch(proto, TorchRecord(
        tuple(trained), tuple(frozen),
        tuple(n for n in buffers if n in state), tuple(n for n in kinds if n not in state),
        {tie: n for tie, n in ties.items() if n in state}, training,
        tuple(n for n in statistics.per_instance if ties.get(n, n) in state),
        tuple(n for n in statistics.cumulative if ties.get(n, n) in state)))
    return proto


def _find_ties(named: Iterable[tuple[str, torch.Tensor]]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors by their first names, and these names by all others."""
    tensors: dict[str, torch.Tensor] = {}
    first: dict[int, str] = {}
    ties: dict[str, str] = {}
    for name, t in named:
        if id(t) in first:
            ties[name] = first[id(t)]
        else:
            first[id(t)] = name
            tensors[name] = t
    return tensors, ties


def _join(proto: ModelProto, ties: Mapping[str, str]) -> ModelProto:
    """The model with a single initializer, under its first name, for each tensor that has several names."""
    tensors = {t.name: t for t in proto.graph.initializer}
    renamed = {tie: n for tie, n in ties.items() if tie in tensors}
    for tie, name in renamed.items():
        if name in tensors:
            proto.graph.initializer.remove(tensors[tie])
        else:
            tensors[tie].name = name
            tensors[name] = tensors[tie]
    for node in (node for g in walk_graphs(proto.graph) for node in g.node):
        for i, name in enumerate(node.input):
            if name in renamed:
                node.input[i] = renamed[name]
    return proto


def _find_lost(module: torch.nn.Module, proto: ModelProto, call: ModuleCall) -> str | None:
    """A parameter that the outputs of a module depend on, and that its graph does not have."""
    held = {t.name for t in proto.graph.initializer}
    missing = {n: p for n, p in module.named_parameters() if n not in held}
    if not missing:
        return None
    states = {n: p.requires_grad for n, p in missing.items()}
    try:
        with torch.enable_grad():
            for p in missing.values():
                p.requires_grad_(True)
            outputs = [t.sum() for t in list_tensors(call.run(module.eval())) if t.requires_grad]
            gradients = torch.autograd.grad(outputs, list(missing.values()), allow_unused=True) if outputs else ()
    finally:
        for n, p in missing.items():
            p.requires_grad_(states[n])
    return next((n for n, g in zip(missing, gradients, strict=False) if g is not None), None)
