"""Loading: a ModelProto, bytes or a file as values."""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, numpy_helper

from ortpartial.annotations import Settings
from ortpartial.checks import check_flag
from ortpartial.checks import check_names as list_names
from ortpartial.exceptions import FileMissingError, ModelError
from ortpartial.graph import OPSET, Immutable, NodeList, Value, constant, variable

from .aliases import Alias, find_aliases, find_module_names, find_names_by_scope
from .custom_ops import find_libraries, register_libraries, resolve_libraries
from .display import draw_card, list_facts
from .external_files import read_external_data
from .ml import read_ml_weights
from .prepare import check_graph, infer_types, prepare
from .reader import Reader
from .regular_file import open_regular
from .sparse import densify
from .stored_tensors import check_names, check_tensors
from .straight_through import is_marked, mark_straight_through
from .suffixes import FOREIGN_SUFFIXES
from .ties import Ties, check_ties, infer_ties
from .torch_record import read_torch
from .tree import Leaf, draw_tree, place_initializers
from .upgrade import STANDARD
from .validation import check_size
from .walk import walk_graphs

__all__ = ["Model", "ModelLike", "load", "read", "register_upgrade_check", "use_libraries"]

#: Checks of models that were upgraded; rooms above fill it by `register_upgrade_check`.
_UPGRADE_CHECKS: list[Callable[[Model], None]] = []


@dataclass(frozen=True)
class Model(Immutable):
    """An ONNX model as values.

    Parameters
    ----------
    proto : onnx.ModelProto
        The original model, sparse initializers densified; never written to.
    inputs, outputs : dict of str to Value
        The inputs and outputs of the graph. A tensor that it returns twice is the output ``"y"``, then ``"y_1"``.
    initializers : dict of str to Value
        Its initializers, and the weights that are attributes: variables where `load` was told so, else constants.
    arrays : dict of str to numpy.ndarray
        The content of the initializers.
    values : dict of str to Value
        Every tensor of the graph by its name, and its outputs.
    straight_through : bool
        Whether gradients pass through the rounding of a quantization, as `load` was told.
    file : mmap.mmap, optional
        The temporary file that holds the content of big initializers: see `offload_weights`.
    graph : onnx.GraphProto, optional
        The prepared graph, without the content of big initializers: see `specialize`.
    opsets : dict of str to int
        Its opsets.
    aliases : dict of str to Alias
        Other names of initializers: by the torch module that `load` was given, by the scopes of nodes, and of weights
        that a module of `ortpartial.torch.export` uses twice.
    custom_ops_library : tuple of str
        The paths of the libraries that have its custom operators.
    ties : Ties
        The weights of the file that were separated and joined.

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N", 3])
    >>> list(load(build([x], {"y": op.Exp(x)})).outputs)
    ['y']
    """

    proto: ModelProto
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    initializers: Mapping[str, Value]
    arrays: Mapping[str, np.ndarray]
    values: Mapping[str, Value]
    straight_through: bool = False
    file: mmap.mmap | None = None
    graph: onnx.GraphProto | None = None
    opsets: Mapping[str, int] = field(default_factory=dict)
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    custom_ops_library: tuple[str, ...] = ()
    ties: Ties = field(default_factory=Ties)

    @cached_property
    def main_names(self) -> dict[str, str]:
        """The name to show for each initializer: its alias, if any, else its name."""
        record = read_torch(self.proto)
        ties = {*self.ties.joined, *(() if record is None else record.ties)}
        aliases = {a.initializer: alias for alias, a in self.aliases.items() if alias not in ties}
        return {**{n: n for n in self.initializers}, **aliases}

    def find_initializer(self, name: str) -> str:
        """The initializer that a name or an alias stands for; other names are returned as they are."""
        return self.aliases[name].initializer if name in self.aliases and name not in self.initializers else name

    def __getstate__(self) -> Settings:
        # A list of all nodes comes first, for the values to refer to.
        return {"nodes": NodeList.of(self.values.values()), **vars(self), "file": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update({"ties": Ties(), **{n: v for n, v in state.items() if n != "nodes"}})
        register_libraries(self.proto, self.custom_ops_library)

    @property
    def facts(self) -> dict[str, str]:
        """The inputs, outputs, nodes and initializers, a line each."""
        return list_facts(self.inputs, self.outputs, self.values.values(), self.arrays.values())

    def __repr__(self) -> str:
        facts = self.facts
        return (f"<Model {facts['inputs']} -> {facts['outputs']}; nodes: {facts['nodes'].split()[0]}, initializers: "
                f"{facts['initializers']}>")

    def _repr_html_(self) -> str:
        places = place_initializers(self.proto.graph, self.main_names)
        leaves = [Leaf(places[n], v.type_name, self.arrays[n].size, False) for n, v in self.initializers.items()]
        tree = {"initializers": draw_tree(leaves, has_notes=False)} if leaves else {}
        return draw_card("Model", self.facts, texts=tree)

    def release(self) -> None:
        """Free the memory of the pages of `arrays` that were read, where they are in a file."""
        if self.file is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.file.madvise(mmap.MADV_DONTNEED)


#: A model: as values, as a message, as the bytes of a file, or as the path of one.
ModelLike: TypeAlias = Model | ModelProto | bytes | str | os.PathLike[str]


def read(source: Model | ModelProto | bytes | str | os.PathLike[str],
         folder: str | os.PathLike[str] | None = None) -> ModelProto:
    """A ModelProto from a ModelProto (returned as it is), its bytes, or a path (external data included).

    Sparse initializers become dense, and external data are read, in a copy. The source of a `Model` is marked where
    gradients pass straight through rounding, so that `load` reads it in the same way.

    Parameters
    ----------
    source : onnx.ModelProto, bytes, path or Model
        The model.
    folder : path, optional
        Where its external data are; by default in the folder of the path. Without either, a model that has some is
        refused, and nothing is read from the working directory.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        The file does not exist, the bytes are no ONNX model, external data cannot be read, a name is not in UTF-8, or a
        tensor has another content than its shape promises.

    Examples
    --------
    >>> read(b"not a model")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ModelError: The 11 bytes given are no ONNX model, or one that was cut short.
    """
    if isinstance(source, Model):
        return read_marked(source)
    if isinstance(source, ModelProto):
        model, what = source, "The ModelProto given is"
    elif isinstance(source, (bytes, bytearray)):
        model, what = ModelProto(), f"The {len(source)} bytes given are"
        try:
            model.ParseFromString(bytes(source))
        except DecodeError:
            model = ModelProto()
    elif isinstance(source, (str, os.PathLike)):
        path, what = Path(source), f"{str(source)!r} is"
        if path.is_dir() or not path.exists():
            kind, problem = (ModelError, f"{str(source)!r} is a folder") if path.is_dir() else (
                FileMissingError, f"There is no file {str(source)!r}")
            raise kind(f"{problem}; give a path to an ONNX model, bytes or a ModelProto.")
        try:
            with open_regular(path) as file:
                model = onnx.load(file, load_external_data=False)
        except DecodeError:
            model = ModelProto()
        folder = path.parent if folder is None else folder
    else:
        hint = _hint_export(source)
        raise ModelError(f"A model is a ModelProto, bytes or a path, not {type(source).__name__}{hint}.")
    if not model.graph.output:
        suffix = Path(source).suffix.lower() if isinstance(source, (str, os.PathLike)) else ""
        is_foreign = suffix in FOREIGN_SUFFIXES
        hint = f"; a {suffix} file is of another library: export its model to ONNX" if is_foreign else ""
        raise ModelError(f"{what} no ONNX model, or one that was cut short{hint}.")
    check_names(model)
    model = read_external_data(model, folder)
    check_tensors(model)
    return densify(model)


def read_marked(model: Model) -> ModelProto:
    """The ModelProto that a Model was read from, marked where its gradients pass straight through rounding."""
    if not model.straight_through:
        return model.proto
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    mark_straight_through(proto)
    return proto


def use_libraries(model: Model | ModelProto | bytes | str | os.PathLike[str],
                  paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None) -> None:
    """Let the libraries of a setting ``custom_ops_library`` serve a model.

    Parameters
    ----------
    model : Model, onnx.ModelProto, bytes or path
        The model.
    paths : path or sequence of path, optional
        The libraries; None for those that serve its domains already.

    Raises
    ------
    ModelError
        There is no such file.
    """
    if paths is not None:
        register_libraries(read(model), resolve_libraries(paths))


def load(source: Model | ModelProto | bytes | str | os.PathLike[str], *,
         batch: int | Mapping[str, Sequence[int]] | None = None, variables: Collection[str] = (),
         straight_through: bool | None = None, names_from: object = None, ties: str = "infer",
         folder: str | os.PathLike[str] | None = None,
         custom_ops_library: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None) -> Model:
    """An ONNX model as values: local functions inlined, older opsets upgraded, Constant nodes turned into constants.

    Sparse initializers are read, trained and written as dense weights. Weights that are attributes of operators of
    ai.onnx.ml, as in scikit-learn's models, are initializers of the values, named ``<output>.<attribute>``, and
    attributes of the same operators where they are written.

    Parameters
    ----------
    source : Model, onnx.ModelProto, bytes or path
        The model; it is not written to. The arrays of a `Model` are used again, without a copy.
    batch : int or dict of str to sequence of int, optional
        Number of rows of every input whose first size is not static, or the sizes of inputs by their names: graphs are
        specialized for them.
    variables : collection of str
        Initializers that will change: nothing that is built depends on their content.
    straight_through : bool, optional
        Whether gradients pass through the rounding of a quantization unchanged where nothing is clipped [1]_, and by
        scales as in LSQ [2]_; else they end there with an error. By default, a `Model` keeps the setting that it was
        loaded with, so give the `Model`, and not the file, to whatever trains or differentiates it; a file with a
        training keeps the opset of its model. Operators: all of ONNX, and the operators of com.microsoft that
        onnxruntime's quantization writes.
    names_from : torch.nn.Module or dict of str to array_like, optional
        The module that the model was exported from, or its ``state_dict()``: the names of its parameters become aliases
        of the initializers that have the same content, as it is or transposed (`Alias.transposed`), unless several do;
        of these, the names of the module that reads the initializer.
    ties : str
        ``"infer"``: weights that an exporter has merged because their first content is equal are separated, copies that
        it has written of a weight are joined, and biases of zeros that it has left out are restored, as far as the file
        tells: see `infer_ties`. ``"file"``: the initializers of the file, as they are. A `Model` stays as it was
        loaded, so give the `Model` to whatever trains it.
    folder : path, optional
        Where the external data of a ModelProto or of bytes are; for a path, they are beside it. They are never looked
        for in the working directory.
    custom_ops_library : path or sequence of path, optional
        The shared library of the model's custom operators, for onnxruntime. It serves their domains in the whole
        process from then on, where a `TrainingSession` or an `OnnxLayer` is made as well. Pickles hold its path.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        The model cannot be read or upgraded; the message names the node.
    SettingError
        `ties` is none of the two.

    References
    ----------
    .. [1] Y. Bengio, N. Léonard, A. Courville, "Estimating or Propagating Gradients Through Stochastic Neurons for
       Conditional Computation", 2013.
    .. [2] S. K. Esser et al., "Learned Step Size Quantization", ICLR 2020.

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import constant, op, variable
    >>> x, w = variable("x", "float32", ["N", 3]), constant([[1.0], [2.0], [3.0]], hint="w")
    >>> list(load(build([x], {"y": op.MatMul(x, w)})).initializers)
    ['w']
    """
    check_ties(ties)
    if straight_through is not None:
        straight_through = check_flag("straight_through", straight_through)
    variables = list_names("variables", variables)
    loaded = source if isinstance(source, Model) else None
    proto, inferred = (loaded.proto, loaded.ties) if loaded else (read(source, folder), Ties())
    libraries = loaded.custom_ops_library if loaded else ()
    if custom_ops_library is not None:
        libraries = resolve_libraries(custom_ops_library)
    register_libraries(proto, libraries)
    graph, opsets = prepare(proto, batch)
    arrays = loaded.arrays if loaded else _read_arrays(proto)
    if loaded is None and ties == "infer":
        proto, inferred = infer_ties(proto, arrays, copy=proto is source)
        if inferred:
            (graph, opsets), arrays = prepare(proto, batch), _read_arrays(proto)
    initializers = _read_initializers(arrays, variables, loaded)
    inputs = _read_inputs(graph, initializers)
    if straight_through is None:
        straight_through = loaded.straight_through if loaded else is_marked(proto)
    outputs, values = _read_values(graph, opsets, inputs, initializers, straight_through, list_declared(proto))
    if loaded is None:
        check_graph(graph, opsets)  # at last, since our own errors say more
    file = loaded.file if loaded else None
    aliases = loaded.aliases if loaded else {}
    if not aliases:
        aliases = {**inferred.joined, **find_aliases(proto.graph), **_list_ties(proto, arrays)}
    if names_from is not None:
        aliases = _name_by_module(aliases, proto, arrays, names_from)
    model = Model(proto, inputs, outputs, initializers, arrays, values, straight_through, file, graph, opsets, aliases,
                  find_libraries(proto), inferred)
    if loaded is None and _is_old(proto):
        for check in _UPGRADE_CHECKS:
            check(model)
    return model


def _read_initializers(arrays: Mapping[str, np.ndarray], variables: Collection[str], loaded: Model | None
                       ) -> dict[str, Value]:
    """The initializers as constants and variables."""
    initializers = {
        n: variable(n, a.dtype, a.shape) if n in variables else constant(a, hint=n) for n, a in arrays.items()
    }
    if loaded:  # A layer of torch holds the content of its weights itself.
        initializers |= {n: variable(n, v.dtype, v.shape) for n, v in loaded.initializers.items() if n not in arrays}
    return initializers


def _read_inputs(graph: onnx.GraphProto, initializers: Collection[str]) -> dict[str, Value]:
    """The inputs of a graph that are no initializers."""
    inputs = {}
    for i in graph.input:
        if i.name not in initializers:
            if not i.type.HasField("tensor_type"):
                raise ModelError(f"Input {i.name!r} is no tensor.")
            if (kind := i.type.tensor_type.elem_type) not in TensorProto.DataType.values() or not kind:
                raise ModelError(f"Input {i.name!r} has the element type {kind}, which is none of ONNX.")
            inputs[i.name] = Value(i.type, hint=i.name)
            check_size(inputs[i.name], f"Input {i.name!r}")
    return inputs


def _read_values(
    graph: onnx.GraphProto, opsets: Mapping[str, int], inputs: Mapping[str, Value], initializers: Mapping[str, Value],
    straight_through: bool, declared: Mapping[str, onnx.TypeProto],
) -> tuple[dict[str, Value], dict[str, Value]]:
    """The outputs of a graph, and all of its values."""
    opaque: dict[str, onnx.TypeProto] = {}
    for _ in range(2):  # Inference over the whole graph goes on behind opaque nodes once their types are known.
        reader = Reader(opsets, infer_types(graph, opsets, opaque), initializers, straight_through, declared=declared)
        values: dict[str, Value] = {**inputs, **initializers}
        results = reader.read(graph, values)
        outputs = dict(zip(_name_outputs([o.name for o in graph.output], values), results, strict=True))
        values |= outputs
        if not (opaque := reader.opaque):
            break
    return outputs, values


def _list_ties(proto: ModelProto, names: Collection[str]) -> dict[str, Alias]:
    """The other names of weights that a torch module uses twice and the file holds once."""
    record = read_torch(proto)
    ties = {} if record is None else record.ties
    return {tie: Alias(n) for tie, n in ties.items() if n in names and tie not in names}


def _name_outputs(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """A name for each output: a tensor that a graph returns again has a number after its name."""
    distinct: dict[str, None] = {}
    for name in names:
        free, i = name, 0
        while free in distinct or (i and free in taken):
            i += 1
            free = f"{name}_{i}"
        distinct[free] = None
    return list(distinct)


def _name_by_module(aliases: Mapping[str, Alias], proto: ModelProto, arrays: Mapping[str, np.ndarray], module: object
                    ) -> dict[str, Alias]:
    """Aliases, of which the names of a module come first, by content and then by scope."""
    names = {**find_names_by_scope(proto.graph, arrays, module), **find_module_names(arrays, module)}
    named = {a.initializer for a in names.values()}
    return {**{n: a for n, a in aliases.items() if a.initializer not in named}, **names}


def _is_old(proto: ModelProto) -> bool:
    """Whether the model or one of its functions has an opset that was upgraded."""
    imports = [*proto.opset_import, *(o for f in proto.functions for o in f.opset_import)]
    return any(o.domain in STANDARD and o.version < OPSET for o in imports)


def register_upgrade_check(check: Callable[[Model], None]) -> None:
    """Let each model that was upgraded from an older opset be checked before `load` returns it.

    Parameters
    ----------
    check : callable
        It raises a ModelError for a model that computes something else than its file.

    Examples
    --------
    >>> register_upgrade_check(lambda model: None)
    """
    _UPGRADE_CHECKS.append(check)


def list_declared(proto: ModelProto) -> dict[str, onnx.TypeProto]:
    """The types that a model declares for its computed values."""
    return {v.name: v.type for g in walk_graphs(proto.graph) for v in [*g.value_info, *g.output]}


def list_initializers(proto: ModelProto) -> list[TensorProto]:
    """The initializers of a model, and the initializers of its bodies whose names are unique."""
    every = [t for g in walk_graphs(proto.graph) for t in g.initializer]
    counts = Counter(t.name for t in every)
    n = len(proto.graph.initializer)
    return [*every[:n], *(t for t in every[n:] if counts[t.name] == 1)]


def _read_arrays(proto: ModelProto) -> dict[str, np.ndarray]:
    """The content of the initializers of a model, and of the weights that are attributes of its nodes."""
    return {**{t.name: numpy_helper.to_array(t) for t in list_initializers(proto)}, **read_ml_weights(proto)}


def _hint_export(source: object) -> str:
    """How a model of another library becomes an ONNX model."""
    bases = {cls.__module__.partition(".")[0]: cls.__name__ for cls in reversed(type(source).__mro__)}
    if "torch" in bases:
        return "; export it first, with ortpartial.torch.export(module, *inputs)"
    if "sklearn" in bases:
        return "; convert it first, with skl2onnx.to_onnx(estimator, X[:1])"
    if "tensorflow" in bases or "keras" in bases:
        return "; convert it first, with tf2onnx"
    if "onnxruntime" in bases:
        return "; give the path or the bytes that the session was made from"
    if isinstance(source, onnx.GraphProto):
        return "; make a model of it, with onnx.helper.make_model"
    return "; give what its get_trained_onnx() returns" if hasattr(source, "get_trained_onnx") else ""
