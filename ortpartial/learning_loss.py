"""Losses: the public path of `ortpartial.learning.losses`."""

from .learning.losses import *  # noqa: F403
from .learning.losses import __all__ as __all__
