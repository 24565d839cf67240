"""Which operators have a gradient, and how? `make readme` writes the answer, which the rules give, into README.md."""

import re
import sys
from collections import defaultdict
from pathlib import Path

from onnx import defs

from ortpartial.autodiff.registry import CONSTANT, RULES, elementwise
from ortpartial.graph.ops import OPSET
from ortpartial.graph.schemas import schema_of

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- written by `make readme` -->\n", "<!-- until here -->\n"


def section() -> str:
    """The table: by rule, family by family, by the body of the specification, and not at all."""
    families = defaultdict(list)
    for (_, op_type), rule in sorted(RULES.items()):
        name = rule.function.__module__
        # The rules of `elementwise` are functions of `registry`.
        family = "ortpartial.autodiff.rules.elementwise" if name == elementwise.__module__ else name
        doc = sys.modules[family].__doc__ or ""
        families[doc.splitlines()[0].removeprefix("How do gradients flow through ").partition("?")[0]].append(op_type)
    others = [s for s in newest() if ("", s.name) not in RULES and ("", s.name) not in CONSTANT and is_real(s)]
    bodies = [s.name for s in others if s.has_function or s.has_context_dependent_function]
    none = [s.name for s in others if s.name not in bodies]
    table = {"by a rule": ["operators"], "---": ["---"], **families,
             "**by its body in the specification**": bodies, "**not at all**": none}
    return "".join(f"| {what} | {' '.join(names)} |\n" for what, names in table.items())


def newest() -> list[defs.OpSchema]:
    """The operators of ONNX in the opset that rules are written against, or in the one in which they appeared."""
    names = sorted({s.name for s in defs.get_all_schemas() if not s.domain and not s.deprecated})
    return [schema_of(name, "", OPSET) for name in names]


def is_real(schema: defs.OpSchema) -> bool:
    """Whether an operator makes real numbers of real numbers."""
    return all(any("tensor(float)" in p.types for p in some) for some in (schema.inputs, schema.outputs))


def written(text: str) -> str:
    """A README with the table of now."""
    return re.sub(f"(?s)({re.escape(BEGIN)}).*?({re.escape(END)})", lambda m: m[1] + section() + m[2], text)


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
