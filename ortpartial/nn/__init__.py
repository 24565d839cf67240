"""Models written in Python: modules, layers and initializers, traced into graphs that train."""

from .initializers import (
    Constant,
    GlorotNormal,
    GlorotUniform,
    HeNormal,
    HeUniform,
    Initializer,
    LecunNormal,
    LecunUniform,
    Normal,
    Ones,
    Orthogonal,
    TruncatedNormal,
    Uniform,
    Zeros,
    list_fans,
    resolve_initializer,
)

__all__ = ["Constant", "GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "Initializer", "LecunNormal",
           "LecunUniform", "Normal", "Ones", "Orthogonal", "TruncatedNormal", "Uniform", "Zeros", "list_fans",
           "resolve_initializer"]
