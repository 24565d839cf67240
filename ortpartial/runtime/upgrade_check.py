"""Upgrade check: a model upgraded from an older opset computes the same as its file in onnxruntime."""

from __future__ import annotations

import re
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, prod

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, defs

from ortpartial.exceptions import DeadlineError, ModelError, OrtPartialError
from ortpartial.graph import OPSET, Value, build, find_reached, schema_of, topological, walk_nodes
from ortpartial.logs import logger
from ortpartial.model import (
    BOUNDED,
    LARGEST_INT32,
    Model,
    bodies,
    index_ranges,
    register_upgrade_check,
    remove_unread,
    walk_graphs,
)

from .device import C, import_onnxruntime
from .errors import clean_message
from .interrupt import Interrupt
from .ort_types import SessionOptions
from .session import Session
from .session_options import register_custom_ops, session_options

__all__ = ["compare_with_file", "largest_difference"]

#: Limits of the check that `load` makes without being asked: elements of weights, nodes, elements of a tensor, and
#: products of weights and places of an input where they are used; and the seconds that a loop may take.
_WEIGHTS, _NODES, _ELEMENTS, _PRODUCTS, _SECONDS = 2**20, 500, 2**20, 2**28, 0.5

#: Sizes for axes that have none, but for the first axis: a network may be too deep for a small image, and a Reshape
#: may ask for another size.
_SIZES, _ROWS = (4, 32, 1), 2

#: Differences that rounding explains, relative to the largest element.
_TOLERANCES = {"float64": 1e-6, "float32": 1e-4}
_TOLERANCE = 2e-2

#: Operators that have come to take further types since an opset, such as float8 and int4, and nothing else: no upgrade
#: changes their nodes, of which graphs from torch consist for a good part.
_LEAST = 15
_FURTHER_TYPES = frozenset({"Cast", "CastLike", "Constant", "ConstantOfShape", "Equal", "Flatten", "Identity",
                            "Reshape", "Shape", "Size", "Squeeze", "Transpose", "Unsqueeze"})

#: The names of the kernels of onnxruntime's training.
_TRAINING_KERNEL = re.compile(r"Grad(_\w+)?$|Internal$|Training$")

Arrays = Mapping[str, np.ndarray]


def compare_with_file(model: Model, inputs: Arrays | None = None, seconds: float | None = None) -> None:
    """Compare the outputs of a model with the outputs of its file in onnxruntime.

    Parameters
    ----------
    model : Model
        The model; `model.proto` is the content of its file.
    inputs : mapping of str to numpy.ndarray, optional
        The inputs to compare at; by default numbers are drawn.
    seconds : float, optional
        The longest time that a run may take.

    Raises
    ------
    ModelError
        They differ; the message names the first node that does. Or either does not run on these inputs.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> from ortpartial.model import load
    >>> x = variable("x", "float32", ["N", 3])
    >>> compare_with_file(load(build([x], {"y": op.Softmax(x)})))
    """
    compared = _Comparison(model, seconds)
    feeds, ours = compared.run_model(inputs)
    file = compared.run_file(feeds)
    if not all(_is_close(found, file[name]) for name, found in ours.items()) and (difference := compared.find(feeds)):
        raise ModelError(difference)


def _check_cheap(model: Model) -> None:
    """Check a model that was read, if it is small; in silence where it does not run on numbers that are drawn."""
    # Only nodes of operators that have changed are compared: where there are none, onnxruntime is not even imported.
    if not any(map(_Comparison(model).has_changed, model.proto.graph.node)) or not _is_cheap(model):
        return
    start = time.monotonic()
    try:
        # Waiting for the thread that watches a deadline may take longer than the check of a small graph.
        has_loops = any(bodies(node) for node in model.proto.graph.node)
        compare_with_file(model, seconds=_SECONDS if has_loops else None)
    except _NotComparedError as e:
        logger.debug("the upgrade of %r was not checked: %s", model.proto.graph.name, e)
    else:
        logger.debug("checked the upgrade of %r in %.3f s", model.proto.graph.name, time.monotonic() - start)


def _is_cheap(model: Model) -> bool:
    """Whether a run of the model takes no time, and cannot end the process."""
    weights = sum(a.size for a in model.arrays.values())
    if weights > _WEIGHTS or len(model.proto.graph.node) > _NODES:
        return False
    nodes = walk_nodes(topological([v for v in model.values.values() if v.node is not None]))
    if any(node.is_opaque or node.domain == "ai.onnx.ml" for node in nodes):
        return False  # no crash guard knows these operators, and onnxruntime trusts their attributes
    if any(_TRAINING_KERNEL.search(node.op_type) for node in model.proto.graph.node):
        return False  # nor these, of which 1.19.2 alone has any, and crashes in AveragePoolGrad on batches of any size
    if any(node.op_type == "Attention" and not any(node.input[2:3]) for node in model.proto.graph.node):
        return False  # 1.19.2 crashes without the bias that it is read with
    places = max((prod(_fill(v)[2:]) for v in model.inputs.values()), default=1)
    return weights * places <= _PRODUCTS and all(prod(_fill(v)) <= _ELEMENTS for v in model.values.values())


def _fill(v: Value) -> list[int]:
    """The shape of a tensor, with a size for each axis that has none."""
    return [n if isinstance(n, int) else _SIZES[0] for n in (v.shape or ())]


class _NotComparedError(ModelError):
    """The model or its file does not run on the inputs."""


@dataclass(frozen=True)
class _Comparison:
    """A model and its file, run on the same inputs, without the optimizations that round otherwise."""

    model: Model
    seconds: float | None = None

    def run_model(self, inputs: Arrays | None) -> tuple[Arrays, Arrays]:
        """The inputs at which the model runs, and its outputs.

        The model runs before the file, as the guards in it raise an error where the file would crash the process.
        """
        variables = {n: v for n, v in self.model.initializers.items() if v.array is None}
        declared = {o.name for o in self.model.proto.graph.output if not o.type.HasField("sequence_type")}
        outputs = {n: v for n, v in self.model.outputs.items() if _is_tensor(v) and n in declared}
        stored = {n: self.model.arrays[n] for n in variables}
        numbers = self._list_bounded()
        constants = [v.array for v in numbers if v.array is not None]
        bounded = {f"bounded {i}": v for i, v in enumerate(numbers) if v.array is None}
        session = None
        for feeds in _draw_inputs(self.model) if inputs is None else [inputs]:
            try:
                if session is None:
                    session = self._open(build({**self.model.inputs, **variables}, {**outputs, **bounded}))
                ours = self._run(session, {**feeds, **stored})
                self._check_bounded([*constants, *(ours[n] for n in bounded)])
                return feeds, {n: ours[n] for n in outputs}
            except OrtPartialError as e:
                problem = str(e)
                if isinstance(e, DeadlineError):
                    break
        raise _NotComparedError(f"The model does not run on the inputs that it is compared at: {problem}")

    def _list_bounded(self) -> list[Value]:
        """The numbers that the model bounds by 32 bits, and the file does not."""
        nodes = [n for graph in walk_graphs(self.model.proto.graph) for n in graph.node]
        names = {name for n in nodes if n.op_type in BOUNDED for name in n.input[BOUNDED[n.op_type] :][:1]}
        return [self.model.values[n] for n in sorted(names) if n in self.model.values]

    @staticmethod
    def _check_bounded(arrays: Iterable[np.ndarray]) -> None:
        if any(((a < -LARGEST_INT32) | (a > LARGEST_INT32)).any() for a in arrays):
            raise ModelError("a number beyond 32 bits counts elements, for which onnxruntime 1.19.2 reads foreign "
                             "memory.")

    def run_file(self, feeds: Arrays, outputs: list[str] | None = None) -> Arrays:
        """Run the file in onnxruntime: its outputs, or tensors by their names."""
        proto = ModelProto.FromString(self.model.proto.SerializeToString())
        if outputs is not None:
            del proto.graph.output[:]
            proto.graph.output.extend(ValueInfoProto(name=n) for n in outputs)
        names = [o.name for o in proto.graph.output]
        # Without optimization every node runs, and nodes that no output reads have not been run with guards before.
        for container in (proto.graph, *proto.functions):
            remove_unread(container)
        try:
            options = _plain_options()
            register_custom_ops(options, proto)
            # No `Session`, which would read the model once more to lower it.
            session = import_onnxruntime().InferenceSession(proto.SerializeToString(), options,
                                                            providers=["CPUExecutionProvider"])
            if self.seconds is None:
                return dict(zip(names, session.run(names, dict(feeds)), strict=True))
            with Interrupt(self.seconds) as interrupt:
                return dict(zip(names, session.run(names, dict(feeds), interrupt.options), strict=True))
        except Exception as e:  # The errors of onnxruntime have no common base class below Exception.
            raise _NotComparedError(f"onnxruntime does not run the file on the inputs that it is compared at: "
                                    f"{clean_message(e)}") from None

    def find(self, feeds: Arrays) -> str | None:
        """The difference at the first node that computes something else from the same inputs; None where none does.

        Nodes of discontinuous operators, such as ArgMax, may amplify the rounding of the nodes before them.
        """
        values, nodes = self.model.values, self.model.proto.graph.node
        names = [o for node in nodes for o in node.output if o in values and _is_tensor(values[o])]
        try:
            arrays = {**self.model.arrays, **feeds, **self.run_file(feeds, names)}
        except _NotComparedError as e:
            logger.debug("outputs of %r differ after its upgrade: %s", self.model.proto.graph.name, e)
            return None
        for node in nodes:
            outputs = {o: values[o] for o in node.output if o in names}
            if not self.has_changed(node):
                continue  # The model may differ on purpose, where onnxruntime computes something else than ONNX says.
            before = {n: v for n, v in values.items() if n in arrays and n not in node.output and v.array is None}
            if any(v.node is not None and v.node.is_random for v in outputs.values()):
                continue  # An opaque node, which may be random, is never upgraded.
            for name, found in self._recompute(outputs, before, arrays).items():
                if not _is_close(found, arrays[name]):
                    return self._describe(node, name, found, arrays[name])
        return None

    def has_changed(self, node: NodeProto) -> bool:
        """Whether an operator, of a node or inside of it, has changed since the opset of the file."""
        inside = [n for body in bodies(node) for graph in walk_graphs(body) for n in graph.node]
        if inside:
            return any(map(self.has_changed, inside))
        if node.op_type in _FURTHER_TYPES and self._version >= _LEAST:
            return False
        versions = {schema_of(node.op_type, "", v).since_version for v in (self._version, OPSET)
                    if node.domain in ("", "ai.onnx") and defs.has(node.op_type)}
        return len(versions) != 1

    @property
    def _version(self) -> int:
        """The opset of the file."""
        return min((o.version for o in self.model.proto.opset_import if o.domain in ("", "ai.onnx")), default=OPSET)

    def _recompute(self, outputs: Mapping[str, Value], before: Mapping[str, Value], arrays: Arrays) -> Arrays:
        """The outputs of a node, computed from values of the file before it; none where they cannot be."""
        reached = find_reached(outputs.values(), before.values())
        inputs = {v: n for n, v in before.items() if v in reached}
        outputs = {n: v for n, v in outputs.items() if v not in inputs}
        try:
            session = self._open(build({n: v for v, n in inputs.items()}, outputs))
            return self._run(session, {n: arrays[n] for n in inputs.values()}) if outputs else {}
        except OrtPartialError:
            return {}

    def _describe(self, node: NodeProto, name: str, found: object, expected: object) -> str:
        return (f"Node {node.name or '(unnamed)'} ({node.op_type}, output {name!r}) computes something else at opset "
                f"{OPSET} than at opset {self._version}, that of the file: its output differs by "
                f"{largest_difference(found, expected):.3g}. Export the model at opset {OPSET} or later, and report "
                f"the node.")

    def _open(self, model: ModelProto) -> Session:
        return Session(model, options=_plain_options())

    def _run(self, session: Session, feeds: Arrays) -> Arrays:
        feeds = {n: a for n, a in feeds.items() if n in session.inputs}
        if self.seconds is None:
            return session.run(feeds)
        with Interrupt(self.seconds) as interrupt:
            return session.run(feeds, interrupt.options)


def _plain_options() -> SessionOptions:
    """Options of a session that runs once, on one thread."""
    options = session_options(1, memory_pattern=False)
    options.graph_optimization_level = C.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _is_tensor(v: Value) -> bool:
    return bool(v.type.tensor_type.elem_type)


def _draw_inputs(model: Model) -> Iterator[dict[str, np.ndarray]]:
    """Inputs for a model, for several sizes of the axes that have none."""
    ranges = index_ranges(model.inputs, list(model.outputs.values()))
    shapes = [v.shape for v in model.inputs.values()]
    is_static = all(isinstance(n, int) for shape in shapes for n in (shape or ("?",)))
    for size in _SIZES[:1] if is_static else _SIZES:
        rng, feeds = np.random.default_rng(0), {}
        sizes: dict[Hashable, int] = {}
        for name, v in model.inputs.items():
            shape = [n if isinstance(n, int) else sizes.setdefault(n or (name, axis), size if axis else _ROWS)
                     for axis, n in enumerate(v.shape or ())]
            feeds[name] = _draw(rng, v, shape, ranges[name].high if name in ranges else 1)
        yield feeds


def _draw(rng: np.random.Generator, v: Value, shape: list[int], largest: int) -> np.ndarray:
    """Real numbers around 0, whole numbers from 0 to the largest, any bytes, True and False, or the text "a"."""
    if v.type.tensor_type.elem_type == TensorProto.STRING:
        return np.full(shape, "a", object)
    if v.is_float:
        return rng.standard_normal(shape).astype(v.dtype)
    if v.dtype in (np.uint8, np.int8) and largest == 1:
        return rng.integers(np.iinfo(v.dtype).min, np.iinfo(v.dtype).max, shape, v.dtype, endpoint=True)
    return rng.integers(0, largest, shape, endpoint=True).astype(v.dtype)


def _is_close(found: object, expected: object) -> bool:
    """Whether two tensors are equal but for rounding."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.dtype != expected.dtype or found.shape != expected.shape or found.dtype.kind in "OUSb":
        return bool(np.array_equal(found, expected))
    finite = expected[np.isfinite(expected)] if expected.dtype.kind == "f" else expected
    largest = np.abs(finite.astype(np.float64)).max(initial=0)
    tolerance = 0 if expected.dtype.kind in "iu" else _TOLERANCES.get(expected.dtype.name, _TOLERANCE)
    return largest_difference(found, expected) <= tolerance * largest


def largest_difference(a: object, b: object) -> float:
    """The largest difference of two tensors.

    Parameters
    ----------
    a, b : array_like
        The tensors.

    Returns
    -------
    float
        Infinite for other shapes, other texts, and where a number is not finite and the other differs.

    Examples
    --------
    >>> largest_difference([1.0, np.nan], [1.5, np.nan])
    0.5
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return inf
    if a.dtype.kind in "OUS":
        return 0.0 if np.array_equal(a, b) else inf
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        differences = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
    return float(np.nan_to_num(differences, nan=inf, posinf=inf).max(initial=0))


register_upgrade_check(_check_cheap)
