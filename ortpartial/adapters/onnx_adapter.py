"""Adapters that onnxruntime and onnxruntime-genai load: `.onnx_adapter` files, and a base that takes their weights.

The weights are inputs of the base whose defaults have rank 0, or are factors of 1, with which it computes the same as
without. The factor of A and B is a part of B there, so that adapters of any rank and alpha swap on a session.
"""

from __future__ import annotations

import os
import re
import warnings
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np
from onnx import GraphProto, ModelProto, ValueInfoProto, helper

from ortpartial.exceptions import ModelError, ModelWarning
from ortpartial.model import Adapter, Target
from ortpartial.runtime import read_adapter_file, write_adapter_file

from . import dora, ia3, lora
from .insertion import insert
from .products import Part, Product, find_products

__all__ = ["identify", "make_base", "read_onnx_adapter", "write_onnx_adapter"]

#: By the suffix of the module in the name of an input, its role.
_ROLES = {suffix: role for role, suffix in {**dora.NAMES, **ia3.NAMES}.items() if role != "magnitude"}

#: A module, and its suffix.
_NAME = re.compile(rf"(?P<module>.+)\.(?P<suffix>{'|'.join(map(re.escape, _ROLES))})")

#: The roles of each method.
_METHODS = {frozenset(lora.NAMES): "lora", frozenset({*lora.NAMES, "factor"}): "dora", frozenset(ia3.NAMES): "ia3"}

#: By role, the size that adapters choose where none is active, and the number that is there.
_DEFAULTS = {"lora_A": (0, 0), "lora_B": (0, 0), "factor": (1, 1), "offset": (1, 0), "ia3_l": (1, 1)}

#: The smallest number of a model, at which other writers of adapters do not begin.
_FIRST = 2**30


def write_onnx_adapter(adapter: Adapter, arrays: Mapping[str, np.ndarray], path: str | os.PathLike[str],
                       proto: ModelProto) -> None:
    """Write an adapter to an `.onnx_adapter` file.

    Parameters
    ----------
    adapter : Adapter
        Its record.
    arrays : dict of str to numpy.ndarray
        Its weights.
    path : path
        The file.
    proto : onnx.ModelProto
        The model, without it.
    """
    products = {product.node_name: product for product in find_products(proto.graph)}
    inputs = {name: a for target in adapter.targets
              for name, a in _to_inputs(target, products[target.node], arrays).items()}
    write_adapter_file(inputs, path, identify(proto.graph))


def _to_inputs(target: Target, product: Product, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights of a target as inputs of the base."""
    weights = {role: arrays[name] for role, name in target.weights.items()}
    if "magnitude" in weights:
        weights = dora.deploy(product, target, weights)
    elif "lora_B" in weights:
        weights["lora_B"] = weights["lora_B"] * weights["lora_B"].dtype.type(target.scale)
    elif target.feedforward:  # The axis of size 1 tells factors of inputs from factors of outputs.
        weights["ia3_l"] = weights["ia3_l"][None]
    names = _deploy(target, product).weights
    return {names[role]: a for role, a in weights.items()}


def _deploy(target: Target, product: Product) -> Target:
    """The target as the base has it: the factor of A and B is 1, and a quotient stands for a length."""
    if "magnitude" not in target.weights:
        return replace(target, scale=1.0)
    roles = ["lora_A", "lora_B", "factor", *([] if dora.read_bias(product, target) is None else ["offset"])]
    return replace(target, scale=1.0, weights={role: f"{target.name}.{dora.NAMES[role]}" for role in roles})


def identify(graph: GraphProto) -> int:
    """A number for the models whose inputs have the same names and sizes, whatever their weights."""
    weights = {t.name for t in graph.initializer}
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in graph.input if i.name not in weights}
    return _FIRST | zlib.crc32(repr(sorted(shapes.items())).encode()) >> 2


def make_base(proto: ModelProto, adapter: Adapter) -> None:
    """Let a model take the weights of an adapter as optional inputs.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model, without the adapter; it is written to.
    adapter : Adapter
        The record of the adapter.
    """
    products = {product.node_name: product for product in find_products(proto.graph)}
    inputs: list[ValueInfoProto] = []
    defaults: dict[str, np.ndarray] = {}
    targets = [_deploy(target, products[target.node]) for target in adapter.targets]
    for target in targets:
        product = products[target.node]
        for role, shape in _declare(target, product).items():
            name, (size, fill) = target.weights[role], _DEFAULTS[role]
            sizes = [size if isinstance(n, str) else n for n in shape]
            defaults[name] = np.full(sizes, fill, helper.tensor_dtype_to_np_dtype(product.dtype))
            if role == "lora_B" and not product.kernel:
                # With its size, onnxruntime 1.19.2 makes a Gemm of the product and the sum, and refuses that at rank 0.
                shape = [shape[0], f"{target.name}.outputs"]
            inputs.append(helper.make_tensor_value_info(name, product.dtype, shape))
    insert(proto, replace(adapter, rank=0, alpha=0.0, dropout=0.0, targets=tuple(targets)), defaults)
    proto.graph.input.extend(inputs)


def _declare(target: Target, product: Product) -> dict[str, list[int | str]]:
    """By role, the shapes of a target's inputs, with names in place of the sizes that an adapter chooses."""
    rank, factors, ones = f"{target.name}.rank", f"{target.name}.factors", [1 for _ in product.kernel]
    outputs = target.stop - target.start
    shapes: dict[str, list[int | str]] = {
        "lora_A": [rank, product.inputs, *product.kernel] if product.kernel else [product.inputs, rank],
        "lora_B": [outputs, rank, *ones] if product.kernel else [rank, outputs],
        "factor": [factors], "offset": [factors],
        "ia3_l": [1, factors, *ones] if target.feedforward else [factors, *ones]}
    return {role: shape for role, shape in shapes.items() if role in target.weights}


def read_onnx_adapter(path: str | os.PathLike[str], proto: ModelProto) -> tuple[Adapter, dict[str, np.ndarray]]:
    """Read an adapter from an `.onnx_adapter` file, for a model.

    Parameters
    ----------
    path : path
        The file.
    proto : onnx.ModelProto
        The model, without an adapter.

    Returns
    -------
    adapter : Adapter
        Its record; the factor of A and B is 1.
    arrays : dict of str to numpy.ndarray
        Its weights.

    Raises
    ------
    RuntimeMissingError
        The installed onnxruntime reads no such files.
    ModelError
        It is no such file, or for another base.
    OSError
        It cannot be read.

    Warns
    -----
    ModelWarning
        The weights fit, and the adapter was saved for a model with other inputs.
    """
    arrays, number = read_adapter_file(path)
    places = {part.name: (product, part) for product in find_products(proto.graph) for part in product.parts}
    modules: dict[str, dict[str, str]] = {module: {} for module in places}
    for name in sorted(arrays):  # A before B
        match = _NAME.fullmatch(name)
        if match is None or match["module"] not in places:
            raise ModelError(f"{os.fspath(path)!r} is an adapter for another base: it has a weight {name!r}, and the "
                             f"products of the model are {_list(places)}.")
        modules[match["module"]][_ROLES[match["suffix"]]] = name
    modules = {module: weights for module, weights in modules.items() if weights}
    methods = {_METHODS.get(frozenset(weights.keys() - {"offset"})) for weights in modules.values()}
    if len(methods) != 1 or None in methods:
        raise ModelError(f"{os.fspath(path)!r} holds no whole adapter of one method.")
    targets = [_read_target(*places[module], weights, arrays, path) for module, weights in modules.items()]
    if number >= _FIRST and number != identify(proto.graph):
        warnings.warn(f"{os.fspath(path)!r} was saved for a model with other inputs.", ModelWarning, stacklevel=3)
    rank = max((arrays[t.weights["lora_B"]].shape[int(t.kind == "Conv")] for t in targets if "lora_B" in t.weights),
               default=0)
    return Adapter(str(methods.pop()), rank, float(rank), 0.0, tuple(targets)), arrays


def _read_target(product: Product, part: Part, weights: dict[str, str], arrays: dict[str, np.ndarray],
                 path: str | os.PathLike[str]) -> Target:
    """The target that weights belong to, and fit; factors get the shape that a training gives them."""
    feedforward = "ia3_l" in weights and arrays[weights["ia3_l"]].ndim > 1 + len(product.kernel)
    target = Target(part.name, product.node_name, product.node.op_type, product.weight, product.inputs,
                    product.outputs, part.start, part.stop, 1.0, feedforward, weights)
    sizes = {f"{part.name}.factors": product.inputs if feedforward else part.stop - part.start}
    for role, declared in _declare(target, product).items():
        name, shape = weights[role], arrays[weights[role]].shape
        wanted = [sizes.get(n, n) if isinstance(n, str) else n for n in declared]
        sizes |= {n: size for n, size in zip(declared, shape, strict=False) if isinstance(n, str)}
        if len(shape) != len(wanted) or not all(n == size or (isinstance(n, str) and size)
                                                for n, size in zip(wanted, shape, strict=True)):
            sizes_text = ", ".join("rank" if isinstance(n, str) else str(n) for n in wanted)
            raise ModelError(f"{os.fspath(path)!r} is an adapter for another base: its weight {name!r} has shape "
                             f"{list(shape)}, and the model's {product.name!r} takes [{sizes_text}].")
    if feedforward:
        arrays[weights["ia3_l"]] = arrays[weights["ia3_l"]][0]
    return target if "factor" not in weights else _restore(target, product, arrays)


def _restore(target: Target, product: Product, arrays: dict[str, np.ndarray]) -> Target:
    """The target of DoRA as a training has it, and its weights."""
    weights = dora.restore(product, target, {role: arrays.pop(name) for role, name in target.weights.items()})
    names = {role: f"{target.name}.{dora.NAMES[role]}" for role in weights}
    arrays |= {names[role]: a for role, a in weights.items()}
    return replace(target, weights=names)


def _list(names: Iterable[str]) -> str:
    """Some of the names."""
    some = [repr(n) for n in islice(names, 4)]
    return "none" if not some else ", ".join(some[:3]) + " ..." * (len(some) > 3)
