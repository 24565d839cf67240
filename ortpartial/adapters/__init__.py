"""Adapters: small weights beside the frozen weights of a model, added, trained, saved, loaded and merged."""

from .adding import add_dora, add_ia3, add_lora
from .insertion import remove_adapter
from .merging import merge
from .parameters import trainable_parameters
from .saving import load_adapter, save_adapter

__all__ = ["add_dora", "add_ia3", "add_lora", "load_adapter", "merge", "remove_adapter", "save_adapter",
           "trainable_parameters"]
