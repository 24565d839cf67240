"""The estimator: the path of `ortpartial.estimator.optimizer` in older pickles."""

from .estimator.optimizer import *  # noqa: F403
from .estimator.optimizer import __all__ as __all__
