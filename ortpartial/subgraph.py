"""Control flow: the public path of `ortpartial.graph.control_flow`."""

from .graph.control_flow import *  # noqa: F403
from .graph.control_flow import __all__ as __all__
