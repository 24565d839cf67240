"""Writing a training kit: a step as plain ONNX graphs, the model, the state, the manifest and runners in a folder."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from onnx import ModelProto

from ortpartial.arguments import checked
from ortpartial.checks import check_count, check_whole
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.model import read, write_files
from ortpartial.training_info import TrainingSession

from .inference import place_weights
from .manifest import Manifest, Tensor, read_manifest
from .page import write_readme
from .runners import read_runners
from .state_file import pack_state
from .step import KitStep, compose, name_sizes, share_rows

__all__ = ["write_kit"]


@checked
def write_kit(
    model: ModelProto | bytes | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    targets: str | Iterable[str] = ("web",),
    *,
    batch_size: int | None = None,
    batch_sizes: Collection[int] | None = None,
) -> dict[str, Path]:
    """Write a training kit: a folder that any onnxruntime trains, in a browser, in Node, C, C++, Java or Python.

    Its step is a plain ONNX graph, which reads a batch and the state (weights, running statistics, optimizer states,
    counters) and returns the loss and the next state. Beside it are the state, the inference model, a manifest with
    names, shapes and the order of bindings, runners, and a README: how it trains and predicts in each language.

    Parameters
    ----------
    model : onnx.ModelProto, bytes or path
        A model with training information, such as `get_training_onnx` of an optimizer returns and `TrainingSession`
        saves; the training goes on from its state.
    folder : path
        The folder. It is complete or not there, even if the process is interrupted; in an existing folder, all files
        are written before the first replaces a former file; steps of a former kit are removed.
    targets : str or iterable of str
        Whose runners to add: ``"web"``, ``"node"``, ``"c"``, ``"cpp"``, ``"java"``.
    batch_size : int, optional
        The number of rows of a batch that a runner takes by default: 32, or the first of `batch_sizes`.
    batch_sizes : collection of int, optional
        The numbers of rows that there are steps for, a graph for each, which is faster than a graph of unknown sizes.
        By default a single step takes batches of any size, if the model does.

    Returns
    -------
    dict of str to pathlib.Path
        The files by name.

    Raises
    ------
    SettingError
        A target or a size of batches is not known.
    ModelError
        The model has no training information or several entries of it, its step returns no loss, or its inputs have no
        rows in common.
    OSError
        A file cannot be written.

    Examples
    --------
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate=0.25)
    >>> sorted(write_kit(optimizer.get_training_onnx("lowered"), "kit", targets=()))
    ['README.md', 'kit.json', 'model.onnx', 'state.safetensors', 'step.onnx']
    """
    targets = list(targets) if isinstance(targets, Iterable) and not isinstance(targets, str) else targets
    runners = read_runners(targets)
    proto = read(model)
    if len(proto.training_info) != 1:
        raise ModelError(f"A kit holds one training step, and the model has {len(proto.training_info)} entries of "
                         f"training_info; call export_step(folder) of an optimizer or a module, or give what its "
                         f"get_training_onnx() returns.")
    session = TrainingSession(proto)
    shapes = share_rows(session.shapes)
    sizes = _choose_sizes(shapes, batch_sizes)
    files = {size: "step.onnx" if size is None else f"step-{size}.onnx" for size in sizes}
    steps = {size: compose(session, shapes, size) for size in sizes}
    data, weights = place_weights(session)
    first = sizes[0] or 32 if batch_size is None else check_count("batch_size", batch_size)
    manifest = Manifest(first, files, *_describe(session, shapes, steps[sizes[0]]), weights)
    manifest.find_step(manifest.batch_size)
    stale = _list_steps(Path(folder)).difference(files.values())
    contents = {  # The manifest comes first, so that it is the last to replace a former file.
        Manifest.NAME: manifest.to_json().encode(), Manifest.MODEL: data, Manifest.STATE: pack_state(session.state, 0),
        **{files[size]: step.to_bytes() for size, step in steps.items()}, **runners}
    names = ([v.name for v in values] for values in (proto.graph.input, proto.graph.output))
    page = write_readme(manifest, contents, [targets] if isinstance(targets, str) else targets, *names)
    written = write_files({**contents, "README.md": page.encode()}, folder)
    for name in stale:
        (Path(folder) / name).unlink(missing_ok=True)
    return written


def _list_steps(folder: Path) -> set[str]:
    """The steps of the kit in a folder, if it holds a kit."""
    try:
        return {file for file in read_manifest(folder).steps.values() if Path(file).match("step*.onnx")}
    except (OSError, ModelError):
        return set()


def _choose_sizes(shapes: Mapping[str, tuple[int | str, ...]], batch_sizes: Collection[int] | None) -> list[int | None]:
    """The numbers of rows that there are steps for, None for any number."""
    rows = next((shape[0] for shape in shapes.values()), "N")
    if batch_sizes is None:
        return [rows if isinstance(rows, int) else None]
    for size in batch_sizes:
        check_whole("batch_sizes", size, 1)
        if isinstance(rows, int) and size != rows:
            raise SettingError(f"batch_sizes has {size}, and the model takes batches of {rows} rows alone.")
    for name, shape in shapes.items():
        if unknown := [size for size in shape[1:] if isinstance(size, str)]:
            raise SettingError(f"batch_sizes fixes all sizes, and {unknown[0]!r} of the input {name!r} is not known; "
                               f"leave batch_sizes out.")
    if not len(batch_sizes):
        raise SettingError("batch_sizes is empty; leave it out for batches of any size.")
    return list(dict.fromkeys(map(int, batch_sizes)))


def _describe(
    session: TrainingSession, shapes: Mapping[str, tuple[int | str, ...]], step: KitStep
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The inputs, the outputs and the state of a step."""
    ranges = {n: (r.low, r.high, r.ignored) for n, r in session.ranges.items()}
    inputs = [Tensor(n, v.dtype.name, shapes[n], *ranges.get(n, ())) for n, v in step.inputs.items()]
    outputs = [Tensor(n, v.dtype.name, name_sizes(n, v.shape or ())) for n, v in step.outputs.items()]
    state = [Tensor(n, a.dtype.name, a.shape) for n, a in session.state.items()]
    return tuple(inputs), tuple(outputs), tuple(state)
