"""Models written in Python: modules, layers and initializers, traced into graphs that train."""

__all__: list[str] = []
