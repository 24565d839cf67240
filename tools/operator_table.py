"""The tables of differentiable operators, generated from the registered rules by `make tables`.

The documentation has the table of all operators, the README.md of the rules that of language models, and why some of
these have no rule.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import contrib_table
import language_operators
from onnx import defs

from ortpartial.autodiff.registry import CONSTANT, RULES, elementwise
from ortpartial.graph.ops import OPSET
from ortpartial.graph.schemas import schema_of

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- written by `make tables` -->\n", "<!-- until here -->\n"


def make_table() -> str:
    """The operators with a rule, by family; those differentiated through their body; and those without a gradient."""
    families = defaultdict(list)
    for (domain, op_type), rule in sorted(RULES.items()):
        if domain == "ortpartial":  # They never are in a file.
            continue
        name = rule.function.__module__
        # The rules of `elementwise` are functions of `registry`.
        module = "ortpartial.autodiff.rules.elementwise" if name == elementwise.__module__ else name
        families[name_family(sys.modules[module].__doc__ or "")].append(op_type)
    others = [s for s in newest() if ("", s.name) not in RULES and ("", s.name) not in CONSTANT and is_real(s)]
    bodies = [s.name for s in others if s.has_function or s.has_context_dependent_function]
    none = [s.name for s in others if s.name not in bodies]
    table = {"by a rule": ["operators"], "---": ["---"], **families,
             "**by its body in the specification**": bodies, "**zero by nature**": list_constant(),
             "**not at all**": none}
    return "".join(f"| {what} | {' '.join(names)} |\n" for what, names in table.items())


def list_constant() -> list[str]:
    """The operators of real numbers that are constant almost everywhere."""
    return [s.name for s in newest() if ("", s.name) in CONSTANT and is_real(s)]


def name_family(doc: str) -> str:
    """The family of a module of rules, whose docstring begins with "Gradients of <family>"."""
    return doc.splitlines()[0].removeprefix("Gradients of ").partition(":")[0].rstrip(".")


def newest() -> list[defs.OpSchema]:
    """The operators of ONNX at the opset that rules are written against; a younger one as it first appeared."""
    names = sorted({s.name for s in defs.get_all_schemas() if not s.domain and not s.deprecated})
    return [schema_of(name, "", OPSET) for name in names]


def is_real(schema: defs.OpSchema) -> bool:
    """Whether an operator maps floats to floats."""
    return all(any("tensor(float)" in p.types for p in some) for some in (schema.inputs, schema.outputs))


def update(text: str, make: Callable[[], str] = make_table) -> str:
    """The text of a page with an up-to-date table."""
    return re.sub(f"(?s)({re.escape(BEGIN)}).*?({re.escape(END)})", lambda m: m[1] + make() + m[2], text)


#: By file, what makes its table.
TABLES = {ROOT / "docs/reference/operators.md": make_table,
          ROOT / "docs/reference/contrib_operators.md": contrib_table.make_table,
          ROOT / "ortpartial/autodiff/rules/README.md": language_operators.make_table}

if __name__ == "__main__":
    for path, make in TABLES.items():
        path.write_text(update(path.read_text(encoding="utf-8"), make), encoding="utf-8")
