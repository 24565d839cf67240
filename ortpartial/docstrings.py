"""Docstrings and signatures of fronts: parameters are documented once, and shown wherever they are settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from .annotations import Function, Same

__all__ = ["GROUPS", "document", "forward_settings"]

#: The settings of constructors by their subjects; `document` lists them where there are many.
GROUPS: dict[str, tuple[str, ...]] = {
    "model": ("model", "hidden_layer_sizes", "activation", "dropout", "dtype"),
    "weights": ("weights_to_train", "freeze", "init"),
    "loss": ("learning_loss", "loss", "loss_output_name", "label_names", "sample_weight_name", "class_weight",
             "learning_penalty", "penalty", "alpha"),
    "update": ("learning_rate", "learning_rate_init", "rate_factors", "gradient_clipping", "accumulate", "averaging",
               "use_average"),
    "loop": ("max_iter", "batch_size", "shuffle", "random_state", "warm_start", "tol", "n_iter_no_change",
             "early_stopping", "validation_fraction", "validation_every", "callbacks", "metrics", "timeout", "verbose",
             "raise_on_divergence", "check"),
    "execution": ("engine", "device", "distributed", "train_mode", "precision", "loss_scale", "checkpointing",
                  "settings"),
}

#: From how many settings on a constructor lists them in groups.
_MANY = 20

_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)


def document(*sources: object) -> Callable[[Same], Same]:
    """Decorate a class or a function, whose docstring leaves out parameters that others document.

    Each parameter of the signature that the section "Parameters" lacks is taken from the first source that has it, and
    each attribute that "Attributes" lacks from base classes. A class of many settings says which groups they make.

    Parameters
    ----------
    *sources : class or callable
        Objects with docstrings in the form of numpydoc.

    Returns
    -------
    callable
        The decorator, which returns its argument.

    Raises
    ------
    TypeError
        Nobody documents a parameter.

    Examples
    --------
    >>> def load(path, strict):
    ...     \"\"\"Load.
    ...
    ...     Parameters
    ...     ----------
    ...     path : path
    ...         The file.
    ...     strict : bool
    ...         Whether it has to be whole.
    ...     \"\"\"
    >>> @document(load)
    ... def check(path, strict=True):
    ...     \"\"\"Check.\"\"\"
    >>> check.__doc__.splitlines()[-2:]
    ['strict : bool', '    Whether it has to be whole.']
    """
    def decorate(target: Same) -> Same:
        if target.__doc__ is None:  # python -OO
            return target
        head, sections = _split(target.__doc__)
        texts = [sections, *(_split(source.__doc__ or "")[1] for source in sources)]
        names = _list_parameters(target)
        if len(names) >= _MANY:
            head = f"{head.rstrip()}\n\n{_list_groups(names)}"
        bases = [text for text, source in zip(texts, [target, *sources], strict=True) if _is_base(source, target)]
        attributes = [n for text in bases for n in _read(text, "Attributes")]
        listed = {"Parameters": names, "Attributes": attributes}
        joined = {title: _join(members, [_read(text, title) for text in texts])
                  for title, members in listed.items() if members}
        parts = {**joined, **{title: text for title, text in sections.items() if title not in joined}}
        target.__doc__ = "\n\n".join([head.strip(), *(f"{title}\n{'-' * len(title)}\n{text.strip(chr(10))}"
                                                         for title, text in parts.items())]) + "\n"
        return target

    return decorate


def _is_base(source: object, target: object) -> bool:
    """Whether a class derives from the source, so that it has its attributes."""
    return isinstance(target, type) and isinstance(source, type) and issubclass(target, source)


def _list_parameters(target: object) -> list[str]:
    """The names of the parameters of a function, or of the constructor of a class."""
    function = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    if function is object.__init__ or not callable(function):
        return []
    return [n for n in inspect.signature(function).parameters if n not in ("self", "cls")]


def _split(text: str) -> tuple[str, dict[str, str]]:
    """The text before the sections of a docstring, and the text of each section."""
    head, *parts = _SECTION.split(inspect.cleandoc(text) + "\n")
    return head, dict(zip(parts[::2], parts[1::2], strict=True))


def _read(sections: Mapping[str, str], title: str) -> dict[str, str]:
    """The paragraphs of a section by each of the names in their heads."""
    text = sections.get(title, "").strip("\n")
    return {name.strip().lstrip("*"): paragraph for paragraph in re.split(r"\n(?=\S)", text) if paragraph
            for name in paragraph.partition("\n")[0].partition(" : ")[0].split(",")}


def _join(names: Iterable[str], texts: Sequence[Mapping[str, str]]) -> str:
    """The paragraphs of names, in their order, each once, from the first text that has them."""
    paragraphs = {n: next((text[n] for text in texts if n in text), None) for n in names}
    if missing := [n for n, paragraph in paragraphs.items() if paragraph is None]:
        raise TypeError(f"The parameter {missing[0]!r} has no paragraph, in the docstring or in one of its sources.")
    return "\n".join(dict.fromkeys(map(str, paragraphs.values())))


def _list_groups(names: Collection[str]) -> str:
    """The settings of a constructor by their subjects."""
    groups = {title: [f"`{n}`" for n in members if n in names] for title, members in GROUPS.items()}
    lines = [f"- {title}: {', '.join(members)}" for title, members in groups.items() if members]
    return "The settings, by what they concern:\n\n" + "\n".join(lines)


def forward_settings(source: Callable[..., object], *, without: Collection[str] = ()) -> Callable[[Function], Function]:
    """Decorate a function with ``**settings`` that passes them on, so that its signature names them all.

    Parameters
    ----------
    source : callable
        The function or constructor that takes them.
    without : collection of str
        Settings that it is not passed.

    Returns
    -------
    callable
        The decorator, which returns the function itself.

    Examples
    --------
    >>> def train(model, *, epochs=3, seed=None): ...
    >>> @forward_settings(train)
    ... def tune(model, trials, **settings): ...
    >>> inspect.signature(tune)
    <Signature (model, trials, *, epochs=3, seed=None)>
    """
    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = {n: p for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
        passed = {n: own.get(n, p) for n, p in inspect.signature(source).parameters.items()
                  if p.kind is p.KEYWORD_ONLY and n not in without}
        first = [p for n, p in own.items() if n not in passed]
        vars(function)["__signature__"] = signature.replace(parameters=[*first, *passed.values()])
        return function

    return decorate
