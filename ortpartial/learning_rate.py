"""Optimizers: the public path of `ortpartial.learning.optimizers`."""

from .learning.optimizers import *  # noqa: F403
from .learning.optimizers import __all__ as __all__
