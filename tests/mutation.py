"""Would the tests notice a rule that is wrong? Run as a program: changes the rules in one place and runs their tests.

`python mutation.py [family [how many]]` prints a line of JSON for every change: file and function, line, the change,
how many tests call the function, and what noticed the change: the quickest tests are run first. Of one family, some
changes alone are tried, against its own tests.
"""

import ast
import gc
import json
import os
import random
import signal
import sys
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO, TypeVar

import pytest

TESTS = Path(__file__).parent
RULES = TESTS.parent / "ortpartial" / "rules"
WORKERS = 2
K = TypeVar("K")

OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
             ast.FloorDiv: ast.Mult, ast.Mod: ast.Add}  # fmt: skip
OPPOSITES = {ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
             ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}  # fmt: skip
PAIRS = [("Max", "Min"), ("And", "Or"), ("Floor", "Ceil"), ("ReduceMean", "ReduceSum"), ("ReduceL1", "ReduceL2"),
         ("ReduceMax", "ReduceMin"), ("Sin", "Cos"), ("Sinh", "Cosh"), ("Exp", "Sigmoid"), ("Sqrt", "Exp"),
         ("Sign", "Abs"), ("add", "none"), ("mul", "add"), ("zeros_like", "ones_like")]  # fmt: skip
NAMES = dict(PAIRS) | {b: a for a, b in PAIRS if b not in dict(PAIRS)}
#: Functions whose first two arguments may be exchanged, or are told apart by their types.
COMMUTATIVE = {"Add", "And", "Equal", "Max", "Min", "Mul", "Or", "isinstance", "getattr", "vector"}


@dataclass(frozen=True)
class Mutant:
    """A rule or a helper with one change in it."""

    where: str
    line: int
    change: str
    function: types.CodeType
    code: types.CodeType


def changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    """What may be changed in a node: the name of a field, and another value of it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        v = node.value
        yield "value", not v if isinstance(v, bool) else v + 1 if isinstance(v, int) or v == 0 else v * 1.01
    elif isinstance(node, ast.Constant) and node.value in NAMES:
        yield "value", NAMES[node.value]
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield "attr", NAMES[node.attr]
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield "id", NAMES[node.id]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield "left right", (node.right, node.left)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield "op", OPERATORS[type(node.op)]()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield "op", ast.UAdd()
    elif isinstance(node, ast.BoolOp):
        yield "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITES:
        yield "ops", [OPPOSITES[type(node.ops[0])](), *node.ops[1:]]
    elif isinstance(node, (ast.If, ast.IfExp)) and not isinstance(node.test, (ast.Compare, ast.BoolOp)):
        yield "test", ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Call) and len(node.args) > 1 and name_of(node.func) not in COMMUTATIVE:
        yield "args", [node.args[1], node.args[0], *node.args[2:]]
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        a, b, *rest = node.value.elts
        if ast.dump(a) != ast.dump(b):
            yield "value", ast.Tuple([b, a, *rest], ast.Load())


def name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def places(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function that compute: neither its annotations nor its errors."""
    yield node
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.arg)):
        return
    skipped = [getattr(node, "returns", None), *getattr(node, "decorator_list", ())]
    for child in ast.iter_child_nodes(node):
        if child not in skipped and getattr(child, "arg", None) != "strict":
            yield from places(child)


def mutants(path: Path) -> Iterator[Mutant]:
    """All changes of the functions and the lambdas of a module."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    before = outermost(compile(tree, str(path), "exec"))
    for node in functions(tree):
        for place in places(node):
            for fields, new in changes(place):
                source = ast.get_source_segment(text, place) or ""
                several = dict(zip(fields.split(), new, strict=True)) if " " in fields else {fields: new}
                kept = {k: getattr(place, k) for k in several}
                vars(place).update(several)
                after = outermost(compile(ast.fix_missing_locations(tree), str(path), "exec"))
                change = f"{' '.join(source.split())} -> {' '.join(ast.unparse(place).split())}"
                vars(place).update(kept)
                for a, b in zip(before, after, strict=True):
                    if a != b and change.partition(" -> ")[0] != change.partition(" -> ")[2]:
                        yield Mutant(f"{path.stem}.{label(node)}", place.lineno, change, a, b)


def label(node: ast.AST) -> str:
    """What a function is called: a rule by its operator, a lambda by its line."""
    for decorator in getattr(node, "decorator_list", ()):
        if isinstance(decorator, ast.Call) and decorator.args and node.name == "_":
            return decorator.args[0].value
    return getattr(node, "name", f"lambda {node.lineno}")


def functions(node: ast.AST) -> Iterator[ast.AST]:
    """Functions and lambdas that stand in no other."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.Lambda)):
            yield child
        else:
            yield from functions(child)


def outermost(module: types.CodeType) -> list[types.CodeType]:
    """The code of the same functions, in order."""
    found = []
    for code in module.co_consts:
        if isinstance(code, types.CodeType):
            is_class = not code.co_flags & 0x2  # CO_NEWLOCALS: of functions alone
            found += outermost(code) if is_class else [code]
    return found


def of_code(codes: set[types.CodeType]) -> dict[types.CodeType, types.FunctionType]:
    return {f.__code__: f for f in gc.get_objects() if type(f) is types.FunctionType and f.__code__ in codes}


class Tests:
    """A plugin of pytest that runs tests as it is told, in child processes."""

    def __init__(self, tried: list[Mutant], out: TextIO):
        self.tried, self.out = tried, out
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failures.append(report.longreprtext)

    def failure(self, item: pytest.Item) -> str:
        """How a test fails, nothing if it does not."""
        self.failures.clear()
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        return "".join(self.failures)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        live = of_code({m.function for m in self.tried})
        items = session.items
        chunks = [range(i, min(i + 50, len(items))) for i in range(0, len(items), 50)]
        seconds, tests = {}, defaultdict(list)
        for _, found in in_children({c: partial(self.baseline, items, c, set(live)) for c in chunks}, {}):
            for i, took, called in found:
                seconds[i] = took
                for function in called:
                    tests[function].append(i)
        some = {m: [items[i] for i in sorted(tests[key(m.function)], key=seconds.get)] for m in self.tried}
        calls = {m: partial(self.noticed, live[m.function], m.code, some[m]) for m in self.tried}
        # What was quick and never ends is noticed, too.
        limits = {m: 10 + 10 * sum(seconds[i] for i in tests[key(m.function)]) for m in self.tried}
        for m, noticed in in_children(calls, limits):
            print(json.dumps([m.where, m.line, m.change, len(some[m]), noticed]), file=self.out, flush=True)
        return True

    def baseline(self, items: list[pytest.Item], chunk: range, codes: set[types.CodeType]) -> list[tuple]:
        """Of each test, the seconds that it takes and the functions that it calls."""
        found = []
        for i in chunk:
            start, seen = time.perf_counter(), set()
            sys.settrace(lambda frame, event, _, seen=seen: seen.add(frame.f_code))  # None: no event but calls
            failure = self.failure(items[i])
            sys.settrace(None)
            if not failure:  # what fails before anything is changed tells nothing
                found.append((i, time.perf_counter() - start, [key(code) for code in seen & codes]))
        return found

    def noticed(self, function: types.FunctionType, code: types.CodeType, items: list[pytest.Item]) -> str | None:
        """The test that fails first where a function has another code."""
        function.__code__ = code
        return next((item.nodeid for item in items if self.failure(item)), None)


def key(code: types.CodeType) -> str:
    """A name for a function of one file or another: columns tell two lambdas of a line apart."""
    return f"{code.co_filename}:{code.co_firstlineno}:{next(iter(code.co_positions()), '')}:{hash(code.co_code)}"


def in_children(calls: dict[K, Callable[[], object]], limits: dict[K, float]) -> Iterator[tuple[K, object]]:
    """What functions give in child processes, two at a time; in words what became of a child that gave nothing."""
    with TemporaryDirectory() as folder:
        running: dict[int, K] = {}
        for k, call in [*calls.items(), *[(None, None)] * WORKERS]:
            if len(running) == WORKERS or (call is None and running):
                pid, status = os.wait()
                path = Path(folder, str(pid))
                ended = f"ended with {os.waitstatus_to_exitcode(status)}"
                yield running.pop(pid), json.loads(path.read_text()) if path.exists() else ended
            if call is not None:
                running[child(call, folder, limits.get(k, 600))] = k


def child(call: Callable[[], object], folder: str, seconds: float) -> int:
    """A process that writes what a function gives into a file of its name."""
    if pid := os.fork():
        return pid
    signal.alarm(int(seconds))
    try:
        text = json.dumps(call())
        Path(folder, str(os.getpid())).write_text(text)
        os._exit(0)
    except BaseException as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr, flush=True)
        os._exit(1)


def main(family: str = "", count: int = 0) -> None:
    paths = [RULES / f"{family}.py"] if family else sorted(RULES.glob("[a-z]*.py"))
    tried = [m for path in paths for m in mutants(path)]
    tried = random.Random(0).sample(tried, count) if count else tried
    tests = [TESTS / "rules" / f"test_{family}.py"] if family else [TESTS / "rules", TESTS / "test_corpus.py"]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what pytest has to say is no result
    sys.exit(pytest.main(["-qqs", "-p", "no:cacheprovider", *map(str, tests)], plugins=[Tests(tried, out)]))


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
