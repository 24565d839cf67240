"""Shape policy: which shapes of batches have a program of their own, and which share a program with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, ClassVar

__all__ = ["ShapePolicy"]

#: As many shapes as most trainings have, the batches and a smaller last, have programs of their own from the start.
#: Where there are more, sessions of onnxruntime that take turns would compete for the cores, as the threads of each go
#: on spinning after a run: a small encoder takes 1.5 times as long on two cores.
_AT_ONCE = 2
#: Steps of a shape after which a program of its own has paid for its compilation, which takes as long as the symbolic
#: sizes cost in so many steps: 210 for a DistilBERT of three layers, 270 for a small convolutional network, 1000 to
#: 3700 for 20-100-1. They are counted and not timed, since both programs differ in the last bits of their results, and
#: a training has to be reproducible.
_PAYS_AFTER = 300
#: Shapes whose steps are counted.
_REMEMBERED = 256
#: Bytes that the programs of the shapes that have come often may take together.
_ROOM = 2**30


class ShapePolicy:
    """The choice between a program for a shape of batches and the program for all shapes.

    As long as there are few shapes, each has a program of its own; later each shape that has come often. Others share a
    program. The choice follows from the sequence of shapes alone, so that a training repeats itself to the last bit.

    Parameters
    ----------
    chosen, counts, frequent, first : object
        The `state` of a former policy, which this policy continues.
    patience : int
        Steps of a shape after which it counts among the first.

    Attributes
    ----------
    MOST : int
        The number of shapes that are chosen at most.
    chosen : dict
        The shapes that have come often, and the bytes that the program of each takes. They stay, so that no program is
        made twice.
    counts : dict
        The number of steps of other shapes.
    frequent : int
        The number of shapes that have come as often as `patience` asks.
    first : object
        The first shapes of all.

    Examples
    --------
    >>> policy = ShapePolicy()
    >>> [policy.choose(n, steps=1, size=lambda: 0) for n in (10, 7, 10, 9, 10)]
    [True, True, True, False, False]
    """

    MOST: ClassVar[int] = 8

    def __init__(self, chosen: Iterable[tuple[Hashable, int]] = (), counts: Iterable[tuple[Hashable, int]] = (),
                 frequent: int = 0, first: Any = (), *, patience: int = 1) -> None:
        self.chosen: dict[Hashable, int] = dict(chosen)
        self.counts: dict[Hashable, int] = dict(counts)
        self.frequent, self.first, self.patience = frequent, first, patience

    @property
    def state(self) -> tuple[list[tuple[Hashable, int]], list[tuple[Hashable, int]], int, Hashable]:
        """The state from which a policy continues this, without keys that are no strings, for formats like JSON."""
        chosen = list(self.chosen.items()) if self.chosen else []
        return chosen, list(self.counts.items()), self.frequent, self.first

    def choose(self, shapes: Hashable, steps: int, size: Callable[[], int]) -> bool:
        """Whether steps of these shapes are taken by a program of their own.

        Parameters
        ----------
        shapes : hashable
            The shapes of a batch.
        steps : int
            The number of steps to come.
        size : callable
            The bytes that a program for these shapes takes.

        Returns
        -------
        bool
        """
        if shapes in self.chosen:
            return True
        if not self.first:
            self.first = shapes
        before = self.counts.get(shapes, 0)
        count = self.counts[shapes] = before + steps
        if before < self.patience <= count:
            self.frequent += 1
        if len(self.counts) > _REMEMBERED:
            del self.counts[min(self.counts, key=self.counts.__getitem__)]
        # It is asked once: a shape that has no room gets none later.
        if before < _PAYS_AFTER <= count and len(self.chosen) < self.MOST and (
                (taken := size()) + sum(self.chosen.values()) <= _ROOM):
            del self.counts[shapes]
            self.chosen[shapes] = taken
            return True
        return self.frequent <= _AT_ONCE and count >= self.patience
