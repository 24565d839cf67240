"""Reading models: a file, bytes or a ModelProto becomes checked and upgraded values."""

from .external_data import lightened, parted, replace_weights, whole
from .function_bodies import expand
from .index_ranges import check_empty, check_indices, index_ranges
from .load import Model, load, read
from .prepare import bodies, graphs, prepared
from .reader import EXPANDED

__all__ = [
    "EXPANDED",
    "Model",
    "bodies",
    "check_empty",
    "check_indices",
    "expand",
    "graphs",
    "index_ranges",
    "lightened",
    "load",
    "parted",
    "prepared",
    "read",
    "replace_weights",
    "whole",
]
