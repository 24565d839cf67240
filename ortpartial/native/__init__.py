"""A training step as a C file: loops, a static memory plan, and a library that the system's compiler makes of it."""

from .c_file import Field, lay_out
from .compiler import Compiler, compile_library, find_compiler
from .cost import StepCost, estimate_cost
from .function import NativeFunction, allocate_struct
from .linking import multiplies_bfloat16
from .step import NativeStep, translate
from .types import C_TYPES

__all__ = ["C_TYPES", "Compiler", "Field", "NativeFunction", "NativeStep", "StepCost", "allocate_struct",
           "compile_library", "estimate_cost", "find_compiler", "lay_out", "multiplies_bfloat16", "translate"]
