"""Callbacks: the public path of `ortpartial.estimator.callbacks`."""

from .estimator.callbacks import *  # noqa: F403
from .estimator.callbacks import __all__ as __all__
