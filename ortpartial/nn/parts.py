"""Parts: the base of modules, and its attributes by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, TypeVar

from ortpartial.annotations import Json
from ortpartial.learning import MODULE_HABITS, AnsweredAttributes

from .nested import Nested
from .optimizer import Optimizer
from .parameter import Parameter

__all__ = ["Part", "has_own_step", "is_in_evaluation", "list_attributes", "set_default_step", "set_mode"]

_T = TypeVar("_T")


class Part(AnsweredAttributes):
    """The base of `Module`, of which all else knows a module: its attributes, its parts, and its code."""

    _habits = MODULE_HABITS

    _mode: bool | None = None
    #: The step of a module that writes none.
    _default_step: ClassVar[Callable[..., object] | None] = None

    def __call__(self, *inputs: Nested, **settings: Nested) -> Nested:
        """Compute the outputs of the module."""
        raise NotImplementedError

    def forward(self, *inputs: Nested) -> Nested:
        """Compute values from values."""
        raise NotImplementedError

    def train_one_batch(self, *batch: Nested) -> Nested:
        """Take a step."""
        raise NotImplementedError

    @property
    def history_(self) -> list[Json]:
        """A record of each epoch."""
        raise NotImplementedError

    def named_modules(self) -> Iterator[tuple[str, Part]]:
        """Iterate over the module itself and all modules in it."""
        raise NotImplementedError

    def named_parameters(self, *, buffers: bool = False) -> Iterator[tuple[str, Parameter]]:
        """Iterate over the parameters."""
        raise NotImplementedError

    def named_optimizers(self) -> Iterator[tuple[str, Optimizer]]:
        """Iterate over the optimizers."""
        raise NotImplementedError

    def parameters(self) -> Iterator[Parameter]:
        """Iterate over the parameters without their names."""
        raise NotImplementedError

    def _attributes(self, kind: type[_T]) -> Iterator[tuple[str, _T]]:
        """The attributes of a kind, also in lists, tuples and dicts, by name."""

        def walk(name: str, value: object) -> Iterator[tuple[str, _T]]:
            if isinstance(value, kind):
                yield name, value
            elif isinstance(value, (list, tuple, dict)):
                items = value.items() if isinstance(value, dict) else enumerate(value)
                for key, item in items:
                    yield from walk(f"{name}.{key}" if name else str(key), item)

        for name, value in vars(self).items():  # Most are none of these, and a call for each is what this costs.
            if isinstance(value, kind):
                yield name, value
            elif isinstance(value, (list, tuple, dict)):
                yield from walk(name, value)


def list_attributes(part: Part, kind: type[_T]) -> Iterator[tuple[str, _T]]:
    """The attributes of a module that are of a kind, also in lists, tuples and dicts, by name."""
    return part._attributes(kind)


def is_in_evaluation(part: object, whole: object) -> bool:
    """Whether a module was put into evaluation mode as a part of a model that is in training mode."""
    return isinstance(part, Part) and isinstance(whole, Part) and part._mode is False and whole._mode is True


def set_mode(part: Part, mode: bool) -> None:
    """Put a module, but not its parts, into training or evaluation mode."""
    part._mode = mode


def set_default_step(kind: type[Part]) -> None:
    """Let the `train_one_batch` of a class be that of modules that write none."""
    kind._default_step = kind.train_one_batch


def has_own_step(part: Part) -> bool:
    """Whether the user has written its `train_one_batch`."""
    return type(part).train_one_batch is not type(part)._default_step
