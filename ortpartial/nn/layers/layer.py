"""Base of layers: settings are checked by their annotations, and words of torch and Keras are answered."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ortpartial.annotations import Settings
from ortpartial.arguments import check_arguments
from ortpartial.exceptions import ArgumentError

from ..module import Module

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Layer", "check_names"]

#: What arguments of torch's layers are here, and those of Keras's, where no argument has a similar name.
_WORDS = {
    "device": "the device is chosen when the module is compiled, as in compile(inputs, device='cuda')",
    "inplace": "values are never changed in place; leave it out",
    "track_running_stats": "running statistics are always kept; leave it out",
    "activation": "write the activation as a layer of its own, as in nn.Sequential(nn.Linear(4, 2), nn.ReLU())",
    "input_shape": "give the shape to compile, as in compile(nn.placeholder(['N', 4]))",
    "name": "a layer has the name of the attribute that holds it",
    "trainable": "write freeze() of the layer", "kernel_regularizer": "write set_optimizer(..., penalty=...)",
    "use_bias": "did you mean 'bias'?", "units": "did you mean 'out_features'?",
    "filters": "did you mean 'out_channels'?", "strides": "did you mean 'stride'?", "rate": "did you mean 'p'?",
    "epsilon": "did you mean 'eps'?", "input_dim": "did you mean 'num_embeddings'?",
    "output_dim": "did you mean 'embedding_dim'?", "return_sequences": "all outputs are returned, and the last state",
}


def check_names(name: str, signature: inspect.Signature, args: Sequence[object], settings: Settings) -> None:
    """Refuse arguments that a constructor does not take, or that are missing, in a sentence that says what to write.

    Parameters
    ----------
    name : str
        The name of the class.
    signature : inspect.Signature
        The signature of its constructor, with ``self``.
    args, settings : sequence and dict
        The arguments without a name, and with one.

    Raises
    ------
    ArgumentError
        An argument is unknown or missing.
    """
    try:
        signature.bind(None, *args, **settings)
    except TypeError as e:
        names = list(signature.parameters)[1:]
        unknown = next((n for n in settings if n not in names), None)
        if unknown is None:
            raise ArgumentError(f"{name}: {e}; its arguments are {', '.join(names)}.") from None
        close = get_close_matches(unknown, names, 1)
        if names == ["modules"]:
            raise ArgumentError(f"{name} takes no {unknown!r}; modules with names are a dict, as in "
                                f"nn.{name}({{{unknown!r}: nn.ReLU()}}).") from None
        hint = _WORDS.get(unknown) or (f"did you mean {close[0]!r}?" if close else
                                       f"its arguments are {', '.join(names)}")
        raise ArgumentError(f"{name} takes no {unknown!r}; {hint}{'' if hint.endswith('?') else '.'}") from None


class Layer(Module):
    """A module of this library, which refuses flags, numbers and dtypes of another type before its constructor runs.

    A setting of ``int`` is whole, of ``float`` finite, and a setting of ``int | None`` may be None. The constructor of
    a class that is derived elsewhere checks its own arguments.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.Linear(3, 2, bias="no")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.SettingError: Linear: bias is True or False, not 'no'.
    """

    def __new__(cls, *args: object, **settings: object) -> Self:
        # Copies and pickles are made without arguments.
        if (args or settings) and cls.__init__.__module__.startswith(f"{__package__}."):
            check_arguments(cls.__init__, [None, *args], settings, f"{cls.__name__}: ")
            check_names(cls.__name__, inspect.signature(cls.__init__), args, settings)
        return super().__new__(cls)
