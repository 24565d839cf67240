"""Modules of PEFT as targets of a graph, and back: weights are transposed, fused modules split or put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ortpartial.exceptions import ModelError
from ortpartial.model import Adapter

from .peft_names import Place, find_places, name_modules
from .products import Part, Product

__all__ = ["PeftModule", "collect_modules", "distribute"]


@dataclass(frozen=True)
class PeftModule:
    """The adapter of a module of torch, as PEFT has it.

    Parameters
    ----------
    name : str
        The module, such as ``"model.layers.0.self_attn.q_proj"``.
    scale : float
        The factor of its product; 1 for IA3.
    feedforward : bool
        Whether IA3 scales its input.
    is_table : bool
        Whether it is an embedding.
    arrays : dict of str to numpy.ndarray
        Its weights by role: lora_A of shape (rank, inputs, *kernel), lora_B of shape (outputs, rank, *ones).
    """

    name: str
    scale: float = 1.0
    feedforward: bool = False
    is_table: bool = False
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The rank of its product; 0 for IA3."""
        return len(self.arrays.get("lora_A", ()))

    def is_shared(self, role: str) -> bool:
        """Whether a weight belongs to the input of the module, and so is the same for all of its columns."""
        return role == "lora_A" or (role == "ia3_l" and self.feedforward)


def distribute(module: PeftModule, places: Sequence[Place]) -> Iterator[tuple[Product, Part, dict[str, np.ndarray]]]:
    """The weights of a module for each of the parts of products that compute it.

    Parameters
    ----------
    module : PeftModule
        The module.
    places : sequence of (Product, Part)
        The parts, in the order of its columns.

    Yields
    ------
    product : Product
    part : Part
    arrays : dict of str to numpy.ndarray
        By role, in the order of a graph: ``x @ lora_A @ lora_B``.

    Raises
    ------
    ModelError
        The shapes belong to another model.
    """
    widths = [part.stop - part.start for _, part in places]
    _check_shapes(module, places[0][0], sum(widths))
    ends = np.cumsum(widths)[:-1]
    pieces = {role: [a] * len(places) if module.is_shared(role) or len(places) == 1 else np.split(a, ends)
              for role, a in module.arrays.items()}
    for i, (product, part) in enumerate(places):
        if module.feedforward and len(product.parts) > 1:
            raise ModelError(f"The adapter scales what {module.name!r} reads, and other modules of the model read the "
                             f"same; train it without this module among feedforward_modules.")
        yield product, part, {role: _to_onnx(arrays[i], role, product) for role, arrays in pieces.items()}


def _check_shapes(module: PeftModule, product: Product, width: int) -> None:
    """Refuse weights that do not fit a product."""
    for role, a in module.arrays.items():
        size = product.inputs if module.is_shared(role) else width
        shape = {"lora_A": (len(a), size, *product.kernel), "lora_B": (size, *a.shape[1:])}.get(role)
        if a.size != size if shape is None else a.shape != shape:
            wanted = f"{size} numbers" if shape is None else f"shape {shape}"
            raise ModelError(f"The adapter's {role} of {module.name!r} has shape {a.shape}, and the model's "
                             f"{product.name!r} takes {wanted}; the adapter is for another base.")


def _to_onnx(a: np.ndarray, role: str, product: Product) -> np.ndarray:
    if role in ("lora_A", "lora_B"):
        return a if product.kernel else a.T
    return a.reshape(-1, *(1 for _ in product.kernel))


def _to_peft(a: np.ndarray, role: str, product: Product, feedforward: bool) -> np.ndarray:
    """The inverse of `_to_onnx`."""
    if role in ("lora_A", "lora_B"):
        return a if product.kernel else a.T
    if product.kernel:
        return a.reshape(1, *a.shape)
    return a if role == "magnitude" else a.reshape((1, -1) if feedforward else (-1, 1))


def collect_modules(adapter: Adapter, arrays: Mapping[str, np.ndarray],
                    products: Sequence[Product]) -> list[PeftModule]:
    """The modules that PEFT has for the targets of an adapter.

    Parameters
    ----------
    adapter : Adapter
        The adapter.
    arrays : dict of str to numpy.ndarray
        Its weights.
    products : sequence of Product
        The products of the model.

    Returns
    -------
    list of PeftModule

    Raises
    ------
    ModelError
        PEFT has a single module where the adapter has targets that it cannot have.
    """
    names = name_modules(products)
    groups: dict[str, list[PeftModule]] = {}
    places = find_places([t.module or names[t.name] for t in adapter.targets], products)
    for target in adapter.targets:
        module = target.module or names[target.name]
        product, _ = places[module][0]
        weights = {role: _to_peft(arrays[n], role, product, target.feedforward) for role, n in target.weights.items()}
        groups.setdefault(module, []).append(
            PeftModule(target.name, target.scale, target.feedforward, product.is_table, weights))
    return [_fuse(name, group, [part for _, part in places[name]]) for name, group in groups.items()]


def _fuse(name: str, targets: Sequence[PeftModule], parts: Sequence[Part]) -> PeftModule:
    """A module of PEFT from targets that are its parts."""
    first = targets[0]
    if len(parts) == 1:
        return PeftModule(name, first.scale, first.feedforward, first.is_table, first.arrays)
    if first.rank and "magnitude" in first.arrays and len(targets) < len(parts):
        raise ModelError(f"PEFT has DoRA for {name!r} as a whole, and the adapter for {first.name!r} alone.")
    rows, width = {}, 0
    for part in parts:
        rows[part.name] = slice(width, width := width + part.stop - part.start)
    arrays = _fuse_products(targets, rows, width) if first.rank else {}
    for role, a in first.arrays.items():
        if role == "ia3_l" and first.feedforward:
            if not all(np.array_equal(t.arrays[role], a) for t in targets):
                raise ModelError(f"PEFT has one vector for what {name!r} reads, and the adapter has several.")
            arrays[role] = a
        elif role not in arrays:
            arrays[role] = np.ones((width, *a.shape[1:]), a.dtype)
            for target in targets:
                arrays[role][rows[target.name]] = target.arrays[role]
    return PeftModule(name, first.scale, first.feedforward, first.is_table, arrays)


def _fuse_products(targets: Sequence[PeftModule], rows: Mapping[str, slice], width: int) -> dict[str, np.ndarray]:
    """A and B of a fused module: A is that of its parts, or all of theirs, of which B takes for each part its own."""
    first = targets[0].arrays["lora_A"]
    is_shared = all(np.array_equal(t.arrays["lora_A"], first) for t in targets)
    a = first if is_shared else np.concatenate([t.arrays["lora_A"] for t in targets])
    b = np.zeros((width, len(a)), a.dtype)
    start = 0
    for target in targets:
        stop = start + target.rank
        b[rows[target.name], start:stop] = target.arrays["lora_B"] * (target.scale / targets[0].scale)
        start = 0 if is_shared else stop
    return {"lora_A": a, "lora_B": b}
