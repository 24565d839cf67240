"""Names of weights: the initializers of a name, an alias or a pattern, with "did you mean"; frozen weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from ortpartial.checks import check_names
from ortpartial.exceptions import ModelError
from ortpartial.model import Model, is_base, read_adapter

__all__ = ["check_weight", "find_frozen", "find_named", "is_pattern", "list_adapter", "list_some", "match_names"]

#: The word for all weights of the adapter of a model, as far as it is no name.
_ADAPTER = "adapter"


def is_pattern(item: str) -> bool:
    """Whether a string is a pattern of `fnmatch`, as far as it is no name."""
    return any(c in item for c in "*?[")


def list_adapter(model: Model, item: str) -> list[str] | None:
    """The weights of the adapter that a model holds, where ``"adapter"`` stands for them; None for other names.

    Raises
    ------
    ModelError
        The model holds no adapter, or takes it as inputs.
    """
    if item != _ADAPTER or model.find_initializer(item) in model.initializers:
        return None
    adapter = read_adapter(model.proto)
    if adapter is None:
        raise ModelError("The model holds no adapter, whose weights 'adapter' stands for; add one, as by `add_lora`.")
    if is_base(model.proto, adapter):
        raise ModelError("The model is a base that `save_adapter` has written, whose adapters are inputs; train the "
                         "model that `load_adapter` makes of it and an adapter.")
    return adapter.weights


def find_named(model: Model, item: str) -> set[str]:
    """The initializers that a name, an alias or a pattern stands for, or ``"adapter"`` for an adapter's.

    Parameters
    ----------
    model : Model
        The model.
    item : str
        A name, an alias or a pattern of `fnmatch`.

    Returns
    -------
    set of str

    Raises
    ------
    ModelError
        There is none of real numbers.

    Examples
    --------
    >>> from ortpartial.graph import build, constant, variable
    >>> from ortpartial.model import load
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="head.weight")
    >>> find_named(load(build([x], {"y": x @ w})), "head.*")
    {'head.weight'}
    """
    if not isinstance(item, str):
        raise ModelError(f"A weight is named by a string, not by {item!r}.")
    if (weights := list_adapter(model, item)) is not None:
        return set(weights)
    name = model.find_initializer(item)
    if name in model.initializers or not is_pattern(item):
        check_weight(model, item, name)
        return {name}
    return match_names(model, item, [n for n, v in model.initializers.items() if v.is_float])


def find_frozen(model: Model, freeze: str | Sequence[str]) -> dict[str, str]:
    """The initializers that names and patterns freeze, the later of which count more, and by which of them.

    Parameters
    ----------
    model : Model
        The model.
    freeze : str or sequence of str
        Names, aliases and patterns of `fnmatch`; behind "!", they are trained although an earlier pattern freezes them.

    Returns
    -------
    dict of str to str

    Raises
    ------
    ModelError
        A name or a pattern stands for no weight.

    Examples
    --------
    >>> from ortpartial.graph import build, constant, variable
    >>> from ortpartial.model import load
    >>> x, a, b = variable("x", "float32", ["N", 1]), constant([[1.0]], hint="a.w"), constant([[2.0]], hint="b.w")
    >>> find_frozen(load(build([x], {"y": x @ a @ b})), ("*.w", "!b.*"))
    {'a.w': '*.w'}
    """
    frozen: dict[str, str] = {}
    for item in check_names("freeze", freeze, ModelError):
        if item.startswith("!") and item not in model.initializers:
            freed = find_named(model, item[1:])
            frozen = {n: by for n, by in frozen.items() if n not in freed}
        else:
            frozen |= dict.fromkeys(find_named(model, item), item)
    return frozen


def match_names(model: Model, pattern: str, candidates: Collection[str]) -> set[str]:
    """The initializers whose name or alias matches a pattern; an error names a pattern that candidates match."""
    names = {**{n: n for n in model.initializers}, **{alias: a.initializer for alias, a in model.aliases.items()}}
    if matching := {initializer for n, initializer in names.items() if fnmatchcase(n, pattern)}:
        return matching
    # A module may be inside of another, and numbers of layers begin at 0.
    for near in (f"*{pattern}", f"{pattern}*", f"*{pattern}*", re.sub(r"\d+", "*", pattern)):
        if similar := [n for n in candidates if fnmatchcase(model.main_names[n], near)]:
            example = model.main_names[similar[-1]]
            raise ModelError(f"The pattern {pattern!r} matches no weight; did you mean {near!r}, as in {example!r}?")
    raise ModelError(f"The pattern {pattern!r} matches no weight{_suggest(model, pattern)}")


def check_weight(model: Model, item: str, name: str) -> None:
    """Raise an error unless an initializer of this name holds real numbers."""
    v = model.initializers.get(name)
    if v is None:
        merged = model.values[name].node if name in model.values else None
        origin = merged.inputs[0] if merged is not None and merged.op_type == "Identity" else None
        if origin is not None and origin in model.initializers.values():
            raise ModelError(f"The weight {item!r} is one with {origin.hint!r}, which had the same content when the "
                             f"model was exported; name that one, or export again once they differ.")
        raise ModelError(f"The weight {item!r} is no initializer of the model{_suggest(model, item)}")
    if not v.is_float:
        raise ModelError(f"The weight {item!r} holds no real numbers{_suggest(model, '')}")


def _suggest(model: Model, name: str) -> str:
    """The end of a message about a name: names that are near to it, or some of all names."""
    floats = [n for n, v in model.initializers.items() if v.is_float]
    aliases = [alias for alias, a in model.aliases.items() if a.initializer in floats]
    if near := get_close_matches(name, [*floats, *aliases], cutoff=0.7):
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; its float initializers are {list_some([model.main_names[n] for n in floats])}."


def list_some(names: Iterable[str]) -> str:
    """The first of several names, and how many more there are."""
    names = list(names)
    return (", ".join(map(repr, names[:10])) or "none") + (f" and {len(names) - 10} more" if len(names) > 10 else "")
