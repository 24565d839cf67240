"""Engines that take single steps, where the loop is the caller's."""

from ortpartial.native import find_compiler

__all__ = ["list_step_engines"]


def list_step_engines() -> list[str]:
    """Their names, the compiled one last where there is a compiler."""
    return ["step", *["native"] * (find_compiler() is not None)]
