"""Penalties: the public path of `ortpartial.learning.penalties`."""

from .learning.penalties import *  # noqa: F403
from .learning.penalties import __all__ as __all__
