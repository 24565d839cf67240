"""Layers, with the names, settings, parameters and first weights of torch."""

from . import (
           activations,
           attention,
           containers,
           convolution,
           dropout,
           embedding,
           linear,
           normalization,
           pooling,
           recurrent,
           shaping,
)
from .activations import *
from .attention import *
from .containers import *
from .convolution import *
from .dropout import *
from .embedding import *
from .linear import *
from .normalization import *
from .pooling import *
from .recurrent import *
from .shaping import *

__all__ = [*activations.__all__, *attention.__all__, *containers.__all__, *convolution.__all__, *dropout.__all__,
           *embedding.__all__, *linear.__all__, *normalization.__all__, *pooling.__all__, *recurrent.__all__,
           *shaping.__all__]
