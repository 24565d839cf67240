"""The translators of operators, by family; importing this package registers them."""

from . import elementwise, indexing, products, reductions, sequences, shapes, windows

__all__ = ["elementwise", "indexing", "products", "reductions", "sequences", "shapes", "windows"]
