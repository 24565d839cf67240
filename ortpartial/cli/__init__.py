"""The command line: a module for each command, and `main`, which runs them."""

from .program import main

__all__ = ["main"]
