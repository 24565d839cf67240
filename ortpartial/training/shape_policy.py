"""Shape policy: which shapes of batches have a program of their own, and which share one with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

__all__ = ["ShapePolicy"]

#: As many shapes as most trainings have, the batches and a smaller last one, have programs from the start.
_AT_ONCE = 2
#: Steps of a shape after which a program of its own has paid for its compilation, which takes as long as the symbolic
#: sizes cost in so many steps: 210 for a DistilBERT of three layers, 270 for a small convolutional network, 1000 to
#: 3700 for 20-100-1. They are counted and not timed, since both programs differ in the last bits of their results, and
#: a training has to be reproducible.
_PAYS_AFTER = 300
#: Shapes whose steps are counted.
_REMEMBERED = 256
#: Bytes that the programs of single shapes may take together, beside the first ones.
_ROOM = 2**30


class ShapePolicy:
    """The choice between a program for one shape of batches and the program for all shapes.

    The first shapes have programs of their own; so has later each one that comes often. Others share one program. The
    choice follows from the sequence of shapes alone, so that a training repeats itself to the last bit. A shape that
    was chosen once stays, so that no program is made twice.

    Parameters
    ----------
    chosen, counts : dict
        The attributes of a former policy, which this one continues.
    patience : int
        Steps of one of the first shapes after which it is chosen.

    Attributes
    ----------
    MOST : int
        The number of shapes that are chosen at most.
    chosen : dict
        The shapes with programs of their own, and the bytes that each takes.
    counts : dict
        The number of steps of other shapes, the least recent one first.

    Examples
    --------
    >>> policy = ShapePolicy()
    >>> [policy.choose(n, steps=1, size=lambda: 0) for n in (10, 7, 10, 9, 9)]
    [True, True, True, False, False]
    """

    MOST: ClassVar[int] = 8

    def __init__(self, chosen: Any = (), counts: Any = (), *, patience: int = 1) -> None:
        self.chosen: dict[Any, int] = dict(chosen)
        self.counts: dict[Any, int] = dict(counts)
        self.patience = patience

    def choose(self, shapes: Any, steps: int, size: Callable[[], int]) -> bool:
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
        count = self.counts[shapes] = self.counts.pop(shapes, 0) + steps
        if len(self.chosen) < _AT_ONCE and count >= self.patience:
            del self.counts[shapes]
            self.chosen[shapes] = 0
            return True
        if len(self.counts) > _REMEMBERED:
            del self.counts[next(iter(self.counts))]
        # It is asked once: a shape that has no room gets none later.
        if count < _PAYS_AFTER or count - steps >= _PAYS_AFTER or len(self.chosen) >= self.MOST:
            return False
        if (taken := size()) + sum(self.chosen.values()) > _ROOM:
            return False
        del self.counts[shapes]
        self.chosen[shapes] = taken
        return True
