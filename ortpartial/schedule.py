"""Learning rate schedules: the public path of `ortpartial.learning.schedules`."""

from .learning.schedules import *  # noqa: F403
from .learning.schedules import __all__ as __all__
