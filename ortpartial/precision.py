"""Mixed precision: the public path of `ortpartial.rewrites.mixed_precision`."""

from .rewrites.mixed_precision import *  # noqa: F403
from .rewrites.mixed_precision import __all__ as __all__
