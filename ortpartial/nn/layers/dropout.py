"""Dropout: elements, or whole channels, that are left out of a training batch at random."""

from __future__ import annotations

from typing import ClassVar

from ortpartial.checks import check_real
from ortpartial.graph import Value

from ..trace import current_trace
from .layer import Layer
from .sizes import check_axes

__all__ = ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d"]


class Dropout(Layer):
    """In training mode, each element is 0 with the probability p, and else divided by 1 - p.

    Parameters
    ----------
    p : float
        From 0 to 1.
    inplace : bool
        Without effect: a graph has no memory that is overwritten.

    References
    ----------
    ``torch.nn.Dropout``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> model, x = nn.Dropout(0.5).compile(nn.placeholder(["N"]), random_state=0), np.ones(6, np.float32)
    >>> sorted(set(model(x).tolist())), model.eval()(x).tolist()
    ([0.0, 2.0], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    """

    layout: ClassVar[str] = ""

    def __init__(self, p: float = 0.5, inplace: bool = False):
        check_real(f"{type(self).__name__}: p", p, low=0, high=1)
        self.p, self.inplace = p, inplace

    def forward(self, x: Value) -> Value:
        if self.layout:
            check_axes(x, self.layout)
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return x * 0.0
        trace = current_trace()
        assert trace is not None
        like = x[(slice(None),) * 2 + (slice(1),) * (x.rank - 2)] if self.layout else x
        return x * trace.draw_mask(like, 1 - self.p)


class Dropout1d(Dropout):
    """In training mode, each channel of sequences (N, C, L) is 0 with the probability p; see `Dropout`.

    References
    ----------
    ``torch.nn.Dropout1d``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Dropout1d(0.2).compile(nn.placeholder(["N", 8, 4])).eval()(np.ones((1, 8, 4), np.float32)).shape
    (1, 8, 4)
    """

    layout = "NCL"


class Dropout2d(Dropout):
    """In training mode, each channel of images (N, C, H, W) is 0 with the probability p; see `Dropout`.

    References
    ----------
    ``torch.nn.Dropout2d``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> model = nn.Dropout2d(0.5).compile(nn.placeholder(["N", 8, 4, 4]), random_state=0)
    >>> sorted(set(model(np.ones((1, 8, 4, 4), np.float32)).mean((2, 3)).ravel().tolist()))
    [0.0, 2.0]
    """

    layout = "NCHW"


class Dropout3d(Dropout):
    """In training mode, each channel of volumes (N, C, D, H, W) is 0 with the probability p; see `Dropout`.

    References
    ----------
    ``torch.nn.Dropout3d``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Dropout3d().compile(nn.placeholder(["N", 2, 1, 1, 1])).eval()(np.ones((1, 2, 1, 1, 1), np.float32)).shape
    (1, 2, 1, 1, 1)
    """

    layout = "NCDHW"
