"""Losses, optimizers and penalties in a word, such as ``adam:1e-3:cosine`` or ``huber:delta=2``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ortpartial.exceptions import SettingError
from ortpartial.learning import (
    BaseLearningLoss,
    BaseLearningPenalty,
    BaseLearningRate,
    ElasticLearningPenalty,
    GradientClipping,
    LayerwiseDecay,
    WeightAverage,
    describe_unknown,
    list_settings,
    replace_settings,
    resolve_averaging,
    resolve_loss,
    resolve_penalty,
    resolve_rate,
)

__all__ = ["is_for_all", "parse_averaging", "parse_clipping", "parse_loss", "parse_losses", "parse_penalty",
           "parse_rate", "parse_rate_factors"]

#: Names of the elastic penalty, and the weights that may follow them without their names.
_ELASTIC = {"l1": ("l1",), "l2": ("l2",), "elastic": ("l1", "l2")}


def parse_rate(word: str) -> BaseLearningRate:
    """The optimizer of a word: a name, then its first step size and its schedule, and other settings by name.

    Parameters
    ----------
    word : str
        Such as ``adam``, ``adam:1e-3``, ``adam:1e-3:cosine`` or ``adam:1e-3:beta1=0.8``; a number is SGD.

    Returns
    -------
    BaseLearningRate

    Raises
    ------
    SettingError
        A name is unknown, or a number out of range.

    Examples
    --------
    >>> parse_rate("sgd:0.1:cosine").eta0
    0.1
    """
    number = _to_setting(word)
    if isinstance(number, (int, float)):
        return resolve_rate(number)
    return _parse(word, "--rate", resolve_rate, ("eta0", "schedule"))


def parse_loss(word: str) -> BaseLearningLoss:
    """The loss of a word: a name, and settings by name.

    Parameters
    ----------
    word : str
        Such as ``square``, ``cross_entropy`` or ``cross_entropy:label_smoothing=0.1``.

    Returns
    -------
    BaseLearningLoss

    Raises
    ------
    SettingError
        A name is unknown, or a number out of range.

    Examples
    --------
    >>> parse_loss("huber:delta=2")
    HuberLearningLoss(delta=2.0)
    """
    return _parse(word, "--loss", resolve_loss, ())


def parse_losses(words: Sequence[str], outputs: Sequence[str]) -> BaseLearningLoss | dict[str, BaseLearningLoss]:
    """The loss of a word, or the losses of several outputs.

    Parameters
    ----------
    words : sequence of str
        A word for all outputs, or a word of the form ``output=loss`` for each.
    outputs : sequence of str
        The outputs that a single word is for, where there are several.

    Returns
    -------
    BaseLearningLoss, or dict of str to BaseLearningLoss

    Raises
    ------
    SettingError
        A word does not say for which output it is.

    Examples
    --------
    >>> list(parse_losses(["price=square", "kind=cross_entropy"], []))
    ['price', 'kind']
    """
    named = [word.partition("=") for word in words]
    if is_for_all(words):
        loss = parse_loss(words[0])
        return dict.fromkeys(outputs, loss) if len(outputs) > 1 else loss
    if wrong := [word for word, (output, sign, _) in zip(words, named, strict=True) if not sign or ":" in output]:
        raise SettingError(f"--loss: {wrong[0]!r} does not say for which output it is; write OUTPUT={wrong[0]}.")
    return {output: parse_loss(loss) for output, _, loss in named}


def is_for_all(words: Sequence[str]) -> bool:
    """Whether losses are a single word for all outputs, and not ``output=loss`` for each.

    Parameters
    ----------
    words : sequence of str
        The words.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_for_all(["huber:delta=2"]), is_for_all(["price=huber:delta=2"])
    (True, False)
    """
    return len(words) == 1 and ("=" not in words[0] or ":" in words[0].partition("=")[0])


def parse_penalty(word: str) -> BaseLearningPenalty:
    """The penalty of a word: ``l1`` or ``l2`` with its weight, or a name and settings by name.

    Parameters
    ----------
    word : str
        Such as ``l2:1e-4`` or ``elastic:l1=1e-5:l2=1e-4``.

    Returns
    -------
    BaseLearningPenalty

    Raises
    ------
    SettingError
        A name is unknown, or a number out of range or missing.

    Examples
    --------
    >>> parse_penalty("l2:1e-4").l2
    0.0001
    """
    name, sign, _ = word.partition(":")
    if (positional := _ELASTIC.get(name.lower())) is None:
        return _parse(word, "--penalty", resolve_penalty, ())
    if not sign:
        weights = ":".join(f"{n}=1e-4" for n in positional) if len(positional) > 1 else "1e-4"
        raise SettingError(f"--penalty: {name} is to have a weight, as in {name}:{weights}.")
    return _parse(word, "--penalty", lambda _: ElasticLearningPenalty(), positional)


def parse_rate_factors(words: Sequence[str]) -> dict[str, float] | LayerwiseDecay:
    """Factors of the step size by pattern, of words such as ``encoder.*=0.1``; or by layer, of a number.

    Parameters
    ----------
    words : sequence of str
        The words.

    Returns
    -------
    dict of str to float, or LayerwiseDecay

    Raises
    ------
    SettingError
        A word has another form.

    Examples
    --------
    >>> parse_rate_factors(["encoder.*=0.1", "head.*=2"])
    {'encoder.*': 0.1, 'head.*': 2.0}
    """
    numbers = [_to_setting(word.rpartition("=")[2]) for word in words]
    if len(words) == 1 and "=" not in words[0] and isinstance(numbers[0], (int, float)):
        return LayerwiseDecay(numbers[0])
    for word, number in zip(words, numbers, strict=True):
        if "=" not in word or not isinstance(number, (int, float)):
            raise SettingError(f"--rate-factors: {word!r} is to be NAME=FACTOR, as in 'encoder.*=0.1'.")
    return {word.rpartition("=")[0]: float(number) for word, number in zip(words, numbers, strict=True)}


def parse_clipping(word: str) -> GradientClipping:
    """The gradient clipping of a word: the norm of all gradients, or ``norm`` or ``value`` with a number.

    Parameters
    ----------
    word : str
        Such as ``1.0``, ``norm:1:per=weight`` or ``value:0.5``.

    Returns
    -------
    GradientClipping

    Raises
    ------
    SettingError
        A name is unknown, or a number out of range or missing.

    Examples
    --------
    >>> parse_clipping("value:0.5").value
    0.5
    """
    name, sign, rest = word.partition(":")
    if not sign:
        name, rest = "norm", word
    number, *settings = rest.split(":")
    if name not in ("norm", "value") or not isinstance(_to_setting(number), (int, float)):
        raise SettingError(f"--clip is a number, the norm of all gradients, or norm:1:per=weight, or value:0.5, not "
                           f"{word!r}.")
    try:
        clipping = GradientClipping(**{name: float(number)})  # type: ignore[arg-type]
    except SettingError as e:
        raise SettingError(f"--clip: {e}") from None
    return _parse(":".join(["clip", *settings]), "--clip", lambda _: clipping, ())


def parse_averaging(word: str) -> WeightAverage:
    """The average of the weights of a word: ``ema`` with its decay, or ``swa`` with its start.

    Parameters
    ----------
    word : str
        Such as ``ema``, ``ema:0.99`` or ``swa``.

    Returns
    -------
    WeightAverage

    Raises
    ------
    SettingError
        A name is unknown, or a number out of range.

    Examples
    --------
    >>> parse_averaging("ema:0.99")
    ExponentialAverage(decay=0.99)
    """
    def resolve(name: str) -> WeightAverage:
        averaging = resolve_averaging(name)
        assert averaging is not None
        return averaging

    return _parse(word, "--average", resolve, ("decay",) if word.lower().startswith("ema") else ("start",))


def _parse(word: str, option: str, resolve: Callable[[str], object], positional: Sequence[str]) -> Any:
    """A piece by its name, with settings, the first of which may stand without their names."""
    name, *parts = word.split(":")
    try:
        piece = resolve(name)
    except SettingError as e:  # Its message is for Python.
        _, _, reason = str(e).partition(": ")
        raise SettingError(f"{option}: {reason.partition(', or an object')[0].rstrip('.')}.") from None
    names = list(list_settings(piece))
    settings = {}
    for i, part in enumerate(parts):
        key, sign, value = part.partition("=")
        if not sign:
            if i >= len(positional):
                raise SettingError(f"{option}: {word!r} does not say which setting of {name} is {part}: "
                                   f"{', '.join(names) or 'it has none'}.")
            key, value = positional[i], part
        if key not in names:
            raise SettingError(f"{option}: {describe_unknown(key, name, names)}")
        settings[key] = _to_setting(value)
    try:
        return replace_settings(piece, **settings) if settings else piece
    except (SettingError, TypeError) as e:
        raise SettingError(f"{option}: {e}") from None


def _to_setting(text: str) -> Any:
    """A number, a truth value, None, or else the text."""
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
