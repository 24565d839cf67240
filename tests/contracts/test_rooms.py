"""The order of the rooms: imports point down, through faces, and foreign packages stay behind their fences."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from once import ON_TRAINING
from paths import ROOT

PACKAGE = ROOT / "ortpartial"

#: A room imports from the faces of those on lines above its own. Rooms on one line do not know one another.
ORDER = (
    "annotations texts",
    "docstrings",
    "exceptions limits logs",
    "checks installation",
    "arguments",
    "graph",
    "model",
    "autodiff",
    "rewrites learning",
    "runtime derivatives",
    "native",
    "execution",
    "training",
    "training_info torch plots",
    "kits adapters artifacts",
    "estimator",
    "nn",
    "cli testing compat scipy",
)
LEVEL = {room: level for level, line in enumerate(ORDER) for room in line.split()}

#: Public names of modules inside of rooms, for users; the package itself does not use them.
PUBLIC_NAMES = {"callbacks", "learning_loss", "learning_penalty", "learning_rate", "precision", "schedule", "subgraph"}

#: The modules that may import a foreign package; any module may import another.
FENCED = {"onnxruntime": ("runtime",), "torch": ("torch", "runtime.process_group"), "sklearn": ("estimator",),
          "matplotlib": ("plots",)}


def dotted(path: Path) -> str:
    """`ortpartial/graph/ops.py` is graph.ops, and `ortpartial/graph/__init__.py` is graph.__init__."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imports(module: str, tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, absolute module and name of all that is imported, wherever it stands: on top, in a function, for types."""
    *here, _ = f"ortpartial.{module}".split(".")
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for name in names:
                    yield node.lineno, name.name, ""
            case ast.ImportFrom(module=origin, names=names, level=level):
                parts = here[: len(here) - level + 1] if level else []
                for name in names:
                    yield node.lineno, ".".join([*parts, *([origin] if origin else [])]), name.name
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, ".".join([*here, name.lstrip(".")]) if name.startswith(".") else name, ""


def violations(module: str, source: str) -> list[str]:
    """What is wrong with the imports of a module, a sentence for each."""
    room = module.split(".")[0]
    wrong = []
    if room not in {*LEVEL, *PUBLIC_NAMES, "__init__", "__main__"}:
        return [f"{module} is in no room of ORDER in tests/contracts/test_rooms.py"]
    for line, origin, name in imports(module, ast.parse(source)):
        where = f"{module}, line {line}:"
        top, *rest = origin.split(".")
        allowed = FENCED.get(top)
        if allowed and not any(f"{module}.".startswith(f"{a}.") for a in allowed):
            wrong.append(f"{where} {top} is for {' and '.join(allowed)} alone")
        # The root stands above all rooms, and inside of a room modules import from each other.
        if top != "ortpartial" or room not in LEVEL or rest[:1] == [room]:
            continue
        other = rest[0] if rest else name
        if other not in LEVEL:
            wrong.append(f"{where} {other} is no room")
        elif LEVEL[other] >= LEVEL[room]:
            wrong.append(f"{where} {other} does not stand below {room}")
        elif len(rest) > 1:
            wrong.append(f"{where} {origin} is inside of {other}; import from its face")
    return sorted(set(wrong))


@ON_TRAINING
@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=dotted)
def test_imports_point_down(path):
    assert violations(dotted(path), path.read_text(encoding="utf-8")) == []


def test_table_of_imports(capsys):
    """Who imports how many names from whom: above the diagonal there is nothing."""
    counts = defaultdict(int)
    for path in PACKAGE.rglob("*.py"):
        room = dotted(path).split(".")[0]
        for _, origin, _ in imports(dotted(path), ast.parse(path.read_text(encoding="utf-8"))):
            _, *rest = origin.split(".")
            if origin.startswith("ortpartial.") and room in LEVEL and rest[0] != room:
                counts[room, rest[0]] += 1
    rooms = list(LEVEL)
    width = max(map(len, rooms))
    with capsys.disabled():
        print("\n" + " " * width, *(f"{room[:9]:>9}" for room in rooms))
        for room in rooms:
            print(f"{room:{width}}", *(f"{counts[room, other] or '.':>9}" for other in rooms))
    assert {pair for pair, n in counts.items() if n and LEVEL[pair[1]] >= LEVEL[pair[0]]} == set()


def test_every_room_introduces_itself():
    """A face that hands names on, and a README of at most one page."""
    rooms = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name in LEVEL]
    assert {path.name for path in rooms} == {room for room in LEVEL if not (PACKAGE / f"{room}.py").exists()}
    for room in rooms:
        assert "__all__" in (room / "__init__.py").read_text(encoding="utf-8")
        assert len((room / "README.md").read_text(encoding="utf-8").splitlines()) <= 60


def test_gradient_never_imports_rules():
    """Rules register themselves with the gradient: users' rules do it in the same way."""
    for module in ("grad", "registry"):
        source = (PACKAGE / "autodiff" / f"{module}.py").read_text(encoding="utf-8")
        assert [o for _, o, n in imports(f"autodiff.{module}", ast.parse(source)) if "rules" in f"{o}.{n}"] == []


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("graph.ops", "from ortpartial.autodiff import vjp", "autodiff does not stand below graph"),
        ("graph.ops", "from ..autodiff import vjp", "autodiff does not stand below graph"),
        ("graph.ops", "from .. import autodiff", "autodiff does not stand below graph"),
        ("graph.ops", "import ortpartial.autodiff as a", "autodiff does not stand below graph"),
        ("graph.ops", "from ortpartial import autodiff", "autodiff does not stand below graph"),
        ("graph.ops", "def f():\n    from ..autodiff import vjp", "autodiff does not stand below graph"),
        ("graph.ops", "if TYPE_CHECKING:\n    from ..autodiff import vjp", "autodiff does not stand below graph"),
        ("graph.ops", "importlib.import_module('ortpartial.autodiff', __package__)", "autodiff does not stand below"),
        ("autodiff.rules.linear", "from ortpartial.training import Names", "training does not stand below autodiff"),
        ("rewrites.simplify", "from ortpartial.learning import Schedule", "learning does not stand below rewrites"),
        ("torch.autograd", "from ortpartial.training_info import x", "training_info does not stand below torch"),
        ("training.step", "from ortpartial.graph.ops import op", "ortpartial.graph.ops is inside of graph"),
        ("training.step", "import ortpartial.graph.ops", "ortpartial.graph.ops is inside of graph"),
        ("training.step", "from ortpartial import op", "op is no room"),
        ("training.step", "from ortpartial.learning_loss import x", "learning_loss is no room"),
        ("training.step", "import onnxruntime", "onnxruntime is for runtime alone"),
        ("training.step", "from onnxruntime.capi import _pybind_state", "onnxruntime is for runtime alone"),
        ("training.step", "import_module('torch.nn')", "torch is for torch and runtime.process_group alone"),
        ("torch.autograd", "from sklearn.base import BaseEstimator", "sklearn is for estimator alone"),
        ("__init__", "import torch", "torch is for torch and runtime.process_group alone"),
        ("helpers", "", "helpers is in no room of ORDER"),
    ],
)
def test_checker_finds(module, source, expected):
    (found,) = violations(module, source)
    assert expected in found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("autodiff.grad", "import numpy as np\nimport onnx\nfrom ortpartial.exceptions import GraphError"),
        ("autodiff.grad", "from ortpartial.graph import op\nfrom .registry import vjp"),
        ("autodiff.rules.linear", "from ..registry import vjp\nfrom .shape import transpose\nfrom . import reduction"),
        ("runtime.session", "import onnxruntime as ort\nfrom onnxruntime import InferenceSession"),
        ("runtime.process_group", "import torch.distributed"),
        ("torch.onnx_layer", "import torch\nfrom ortpartial.training import choose_for_fit"),
        ("__init__", "from . import estimator\nfrom .graph.ops import op"),
        ("__main__", "from .cli import main"),
    ],
)
def test_checker_lets_through(module, source):
    assert violations(module, source) == []
