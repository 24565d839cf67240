"""Names of modules: in onnxruntime-genai's model builder, in torch exports and in Hugging Face."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ortpartial.exceptions import ModelError
from ortpartial.model import read_regular
from ortpartial.texts import parse_json

from .products import Part, Product

__all__ = ["Place", "find_places", "name_modules", "read_kind"]

#: A part of a product.
Place = tuple[Product, Part]

#: Projections that Hugging Face joins in a module, and the builder separates: Phi-3's, and ChatGLM's.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "query_key_value": ("q_proj", "k_proj", "v_proj"),
         "gate_up_proj": ("gate_proj", "up_proj"), "dense_h_to_4h": ("gate_proj", "up_proj")}

#: Kinds of models, as genai_config.json calls them, whose projections Hugging Face joins in a module.
_FUSED_KINDS = ("phi3", "phi3v", "phi4mm")

#: Modules around the layers, which either may lack.
_WRAPPER = re.compile(r"^((base_model|model|transformer|language_model|text_model|module)\.)+")

#: Hugging Face's names of attention, which is "attn" for the builder.
_ATTENTION = re.compile(r"\.(self_attn|self_attention)\.")

#: Hugging Face's names of the last projection of attention, which is "o_proj" for the builder.
_LAST = re.compile(r"(?<=\.attn\.)(dense|out_proj)$")

#: The projections of attention as the builder calls them.
_PROJECTIONS = re.compile(r"\.attn\.(?=(q_proj|k_proj|v_proj|qkv_proj|o_proj)$)")


def find_places(modules: Iterable[str], products: Sequence[Product]) -> dict[str, list[Place]]:
    """Where the modules of a torch model are in a graph.

    A module has the name of a product, or its name by the builder, or either name is the end of the other.

    Parameters
    ----------
    modules : iterable of str
        Names of modules, such as ``"model.layers.0.self_attn.q_proj"``.
    products : sequence of Product
        The products of the graph.

    Returns
    -------
    dict of str to list of (Product, Part)
        Of each module, the parts of products that compute it, in the order of its columns: several where the module is
        fused and they are not, or where they share a name.

    Raises
    ------
    ModelError
        A module has no place, several, or that of another.
    """
    parts = {part.name: (product, part) for product in products for part in product.parts}
    places = {module: _find(module, parts) for module in modules}
    if missing := [m for m, names in places.items() if not names]:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"The adapter is for the module {missing[0]!r}{others}, which the model does not have; it is "
                         f"for another base. The model has {_list(parts)}.")
    owners: dict[str, str] = {}
    for module, names in places.items():
        for name in names:
            if owners.setdefault(name, module) != module:
                raise ModelError(f"The adapter has the modules {owners[name]!r} and {module!r}, and in the model both "
                                 f"are {name!r}; it is for another base.")
    return {module: [parts[n] for n in names] for module, names in places.items()}


def _find(module: str, names: Iterable[str]) -> list[str]:
    """The names that a module has in a graph."""
    if direct := _match(module, names):
        return direct
    stem, _, last = module.rpartition(".")
    parts = [_match(f"{stem}.{part}", names) for part in FUSED.get(last, ())]
    return [n for matching in parts for n in matching] if all(parts) else []


def _match(module: str, names: Iterable[str]) -> list[str]:
    """The names of a module in a graph: the same, the end of the other, or the same after the modules around layers."""
    for spell in (str, _translate):
        spelled = spell(module)
        if same := [n for n in names if spell(n) == spelled]:
            return same
        ends = [n for n in names if f".{spelled}".endswith(f".{spell(n)}") or f".{spell(n)}".endswith(f".{spelled}")]
        if ends:
            return _choose(module, ends)
    inner = _WRAPPER.sub("", _translate(module))
    return _choose(module, [n for n in names if _WRAPPER.sub("", _translate(n)) == inner])


def _choose(module: str, names: list[str]) -> list[str]:
    if len(names) > 1:
        raise ModelError(f"The adapter's module {module!r} is {_list(names)} in the model, and only one can be meant.")
    return names


def _translate(module: str) -> str:
    """The name of a module as the builder gives it, if that of Hugging Face is given."""
    return _LAST.sub("o_proj", _ATTENTION.sub(".attn.", module))


def _list(names: Iterable[str]) -> str:
    """A few names of many."""
    names = list(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(map(repr, names[:3])) or 'no product that takes an adapter'}{more}"


def read_kind(model: object) -> str:
    """The kind of a model, such as ``"phi3"``, if onnxruntime-genai's settings beside its file say it, else ``""``."""
    if not isinstance(model, (str, os.PathLike)):
        return ""
    try:
        return str(parse_json(read_regular(Path(model).with_name("genai_config.json")))["model"]["type"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def name_modules(products: Sequence[Product], kind: str = "") -> dict[str, str]:
    """Names of Hugging Face for the parts of products.

    Parameters
    ----------
    products : sequence of Product
        The products of a graph: names of the builder are translated, names of a torch export are the module's own.
    kind : str, optional
        The kind of the model: in some, Hugging Face has a single module for several of the builder's.

    Returns
    -------
    dict of str to str
        By the name of a part.
    """
    names = {part.name for product in products for part in product.parts}
    return {part.name: _name(part.name, names, kind) if ".MatMul." in product.weight else part.name
            for product in products for part in product.parts}


def _name(name: str, names: set[str], kind: str) -> str:
    """The name in Hugging Face of a module of the builder."""
    module = _PROJECTIONS.sub(".self_attn.", name)
    if kind in _FUSED_KINDS:
        stem, _, last = module.rpartition(".")
        return next((f"{stem}.{fused}" for fused, parts in FUSED.items() if last in parts), module)
    if module != name and name.endswith(".o_proj"):
        layer = name.removesuffix("attn.o_proj")
        if f"{layer}mlp.fc1" in names:  # Phi's layers have these two names.
            return f"{layer}self_attn.dense"
    return module
