"""Do imports point down, and do foreign packages stay behind their fences?"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ortpartial"

# A module imports only from lines above its own. Modules on one line are peers and do not know one another.
LAYERS = (
    "exceptions inferred",
    "schemas",
    "values",
    "graph",
    "subgraph rewrite sequences straight",
    "builder guard",
    "fatal",
    "indices",
    "passes",
    "reading sparse",
    "expansion model",
    "weights",
    "registry",
    "gradient",
    "rules",
    "descent forms pieces windowless training_operators chance modes",
    "schedule training_call precision",
    "learning",
    "learning_loss learning_penalty learning_rate",
    "step",
    "epoch parts",
    "batches checkpointing initial lower metrics settings threads",
    "views",
    "simplify training_graph",
    "training_check",
    "training_info",
    "layer",
    "device sites",
    "refusal",
    "buffer options",
    "runtime trust",
    "agent data processes watch",
    "engine",
    "agent_engine graph_engines",
    "captured choice lean parallel",
    "forward_backward",
    "trained",
    "predicting",
    "fitting",
    "optimizer autograd torch_state gradient_model",
    "callbacks checkpoint",
    "estimator torch training_session plot testing",
    "cli",
)
LEVEL = {module: level for level, line in enumerate(LAYERS) for module in line.split()}

# Beside these, a foreign package may be imported by any module.
FENCED = {
    "onnxruntime": {"agent", "device", "runtime"},
    "torch": {"autograd", "processes", "torch", "torch_state"},
    "sklearn": {"estimator"},
    "skl2onnx": {"estimator"},
    "matplotlib": {"plot"},
}


def dotted(path: Path) -> str:
    """`ortpartial/rules/linear.py` is ortpartial.rules.linear, and `ortpartial/__init__.py` is ortpartial.__init__."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def imports(module: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and absolute name of all that is imported, wherever it stands: at the top, in a function, for types."""
    *here, _ = module.split(".")
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for name in names:
                    yield node.lineno, name.name
            case ast.ImportFrom(module=origin, names=names, level=level):
                parts = here[: len(here) - level + 1] if level else []
                origin = ".".join([*parts, *([origin] if origin else [])])
                for name in names:
                    # `from ortpartial import graph` imports a module, `from ortpartial.graph import op` a name in one.
                    yield node.lineno, f"{origin}.{name.name}"
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, ".".join([*here, name.lstrip(".")]) if name.startswith(".") else name


def violations(module: str, source: str) -> list[str]:
    """What is wrong with the imports of a module, a sentence for each."""
    own = module.split(".")[1]
    if not own.startswith("__") and own not in LEVEL:
        return [f"{module} has no place in LAYERS of tests/test_layers.py"]
    found = []
    for line, name in imports(module, ast.parse(source)):
        top, *rest = name.split(".")
        where = f"{module}, line {line}:"
        if top in FENCED and own not in FENCED[top]:
            found.append(f"{where} {top} is for {' and '.join(sorted(FENCED[top]))} alone")
        # `__init__` and `__main__` stand above all layers, and the parts of rules belong together.
        if top != "ortpartial" or own not in LEVEL or rest[:1] == [own]:
            continue
        if not rest or rest[0] not in LEVEL:
            found.append(f"{where} {name} is no module that has a layer; import from the module that defines it")
        elif LEVEL[rest[0]] == LEVEL[own]:
            found.append(f"{where} {own} and {rest[0]} are peers")
        elif LEVEL[rest[0]] > LEVEL[own]:
            found.append(f"{where} {rest[0]} stands above {own}")
    return sorted(set(found))


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=dotted)
def test_imports_point_down(path):
    assert violations(dotted(path), path.read_text(encoding="utf-8")) == []


def test_gradient_never_imports_rules():
    # Rules register themselves with the gradient: users' rules do it in the same way.
    assert LEVEL["gradient"] < LEVEL["rules"]
    assert violations("ortpartial.gradient", "from . import rules") != []


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("graph", "from .gradient import vjp", "gradient stands above graph"),
        ("graph", "from . import gradient", "gradient stands above graph"),
        ("graph", "import ortpartial.gradient", "gradient stands above graph"),
        ("graph", "import ortpartial.gradient as g", "gradient stands above graph"),
        ("graph", "from ortpartial import gradient", "gradient stands above graph"),
        ("graph", "from ortpartial.gradient import vjp", "gradient stands above graph"),
        ("graph", "def f():\n    from .gradient import vjp", "gradient stands above graph"),
        ("graph", "if TYPE_CHECKING:\n    from .gradient import vjp", "gradient stands above graph"),
        ("graph", "importlib.import_module('.gradient', __package__)", "gradient stands above graph"),
        ("gradient", "from .rules.linear import matmul", "rules stands above gradient"),
        ("rules.linear", "from ..step import step", "step stands above rules"),
        ("rules.__init__", "from ..step import step", "step stands above rules"),
        ("agent", "from .data import batches", "agent and data are peers"),
        ("learning_loss", "from .learning_rate import LearningRateSGD", "learning_loss and learning_rate are peers"),
        ("rules.linear", "from .. import step", "step stands above rules"),
        ("step", "import ortpartial", "ortpartial is no module that has a layer"),
        ("step", "from ortpartial import op", "ortpartial.op is no module that has a layer"),
        ("step", "import onnxruntime", "onnxruntime is for agent and device and runtime alone"),
        ("step", "from onnxruntime.capi import _pybind_state", "onnxruntime is for agent and device and runtime alone"),
        ("step", "import_module('torch.nn')", "torch is for autograd and processes and torch and torch_state alone"),
        ("torch", "from sklearn.base import BaseEstimator", "sklearn is for estimator alone"),
        ("__init__", "import torch", "torch is for autograd and processes and torch and torch_state alone"),
        ("helpers", "", "ortpartial.helpers has no place in LAYERS"),
    ],
)
def test_checker_finds(module, source, expected):
    (found,) = violations(f"ortpartial.{module}", source)
    assert expected in found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gradient", "import numpy as np\nimport onnx\nfrom .exceptions import GraphError\nfrom .graph import op"),
        ("rules.linear", "from ..registry import vjp\nfrom .shape import transpose\nfrom . import reduction"),
        ("rules.__init__", "from . import linear"),
        ("runtime", "import onnxruntime as ort\nfrom onnxruntime import InferenceSession"),
        ("torch", "import torch\nfrom .optimizer import OrtGradientForwardBackward"),
        ("__init__", "from . import rules\nfrom .optimizer import OrtGradientForwardBackwardOptimizer"),
        ("__main__", "from .cli import main"),
    ],
)
def test_checker_lets_through(module, source):
    assert violations(f"ortpartial.{module}", source) == []
