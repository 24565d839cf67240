"""Mutation testing of the rules: change a rule in one place and run its tests.

`python mutation.py [family [count]]` prints a line of JSON for every change: file and function, the change, the number
of tests that call the function, and the test that noticed the change; the quickest tests run first. With a family, it
tries only changes of this family, against the tests of the family; with a count, a random sample of that size.
`equivalent.py` lists the changes that change no number.
"""

import ast
import gc
import importlib
import json
import os
import random
import signal
import sys
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO, TypeVar

import pytest
from paths import ROOT, TESTS

RULES = ROOT / "ortpartial" / "autodiff" / "rules"
RULE_TESTS = TESTS / "autodiff" / "rules"
WORKERS = 2
K = TypeVar("K")
T = TypeVar("T")

OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
             ast.FloorDiv: ast.Mult, ast.Mod: ast.Add}
OPPOSITES = {ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
             ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
PAIRS = [("Max", "Min"), ("And", "Or"), ("Floor", "Ceil"), ("ReduceMean", "ReduceSum"), ("ReduceL1", "ReduceL2"),
         ("ReduceMax", "ReduceMin"), ("Sin", "Cos"), ("Sinh", "Cosh"), ("Exp", "Sigmoid"), ("Sqrt", "Exp"),
         ("Sign", "Abs"), ("add", "none"), ("mul", "add"), ("zeros_like", "ones_like")]
NAMES = dict(PAIRS) | {b: a for a, b in PAIRS if b not in dict(PAIRS)}
#: Functions whose first two arguments may be exchanged, or are told apart by their types.
COMMUTATIVE = {"Add", "And", "Equal", "Max", "Min", "Mul", "Or", "isinstance", "getattr", "max", "concat_sizes"}

#: What says little by itself: a change of it is shown with what stands around it.
SMALL = (ast.Constant, ast.Name, ast.Attribute, ast.keyword, ast.List, ast.UnaryOp)


@dataclass(frozen=True)
class Mutant:
    """A rule or a helper with one change in it."""

    where: str
    change: str
    function: types.CodeType
    code: types.CodeType


def changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    """What may be changed in a node: the name of a field, and another value of it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        v = node.value
        yield "value", not v if isinstance(v, bool) else v + 1 if isinstance(v, int) or v == 0 else v * 1.01
    elif is_switch(node):
        yield "value", ast.Constant(1 - node.value.value)
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


def is_switch(node: ast.AST) -> bool:
    """Whether an attribute is 0 or 1, of which any other number may be the same as 1."""
    return isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant) and node.value.value in (0, 1)


def name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def places(node: ast.AST, shown: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The nodes of a function that compute, neither its annotations nor its errors, and what shows a change of each."""
    yield node, shown
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.arg)) or is_switch(node):
        return
    skipped = [getattr(node, "returns", None), *getattr(node, "decorator_list", ())]
    for child in ast.iter_child_nodes(node):
        if child not in skipped and getattr(child, "arg", None) != "strict":
            alone = not isinstance(child, SMALL) or not isinstance(node, (ast.expr, ast.keyword))
            yield from places(child, child if alone else shown if isinstance(node, SMALL) else node)


def text(node: ast.AST) -> str:
    """A node as it is written; of a statement with a condition, the condition."""
    return ast.unparse(node.test if isinstance(node, ast.If) else node)


def mutants(path: Path) -> Iterator[Mutant]:
    """All changes of the functions and the lambdas of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    before = outermost(compile(tree, str(path), "exec"))
    seen: Counter[tuple[str, str]] = Counter()
    for name, function in functions(tree):
        for place, shown in places(function, function):
            for fields, new in changes(place):
                old = text(shown)
                several = dict(zip(fields.split(), new, strict=True)) if " " in fields else {fields: new}
                kept = {k: getattr(place, k) for k in several}
                vars(place).update(several)
                after = outermost(compile(ast.fix_missing_locations(tree), str(path), "exec"))
                where, change = f"{path.stem}.{name}", f"{old} -> {text(shown)}"
                vars(place).update(kept)
                for a, b in zip(before, after, strict=True):
                    if a != b and old != change.partition(" -> ")[2]:
                        seen[where, change] += 1
                        again = f" ({n})" if (n := seen[where, change]) > 1 else ""
                        yield Mutant(where, change + again, a, b)


def functions(node: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Functions and lambdas that stand in no other; a rule is called by its operator."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Lambda):
            yield name, child
        elif isinstance(child, ast.FunctionDef):
            rules = [d.args[0].value for d in child.decorator_list if isinstance(d, ast.Call) and child.name == "_"]
            yield (*rules, child.name)[0], child
        else:
            yield from functions(child, child.args[0].value if is_named(child) else name)


def is_named(node: ast.AST) -> bool:
    """Whether a node calls a function by a name, which comes first."""
    return isinstance(node, ast.Call) and bool(node.args) and isinstance(node.args[0], ast.Constant)


def outermost(module: types.CodeType) -> list[types.CodeType]:
    """The code of the same functions, in order."""
    codes = []
    for code in module.co_consts:
        if isinstance(code, types.CodeType):
            is_class = not code.co_flags & 0x2  # CO_NEWLOCALS: of functions alone
            codes += outermost(code) if is_class else [code]
    return codes


def of_code(codes: set[types.CodeType]) -> dict[types.CodeType, types.FunctionType]:
    gc.unfreeze()  # `get_objects` leaves out what conftest.py has frozen
    return {f.__code__: f for f in gc.get_objects() if type(f) is types.FunctionType and f.__code__ in codes}


class Tests:
    """A plugin of pytest that runs tests as it is told, in child processes."""

    def __init__(self, tried: list[Mutant], imported: set[str], out: TextIO):
        self.tried, self.imported, self.out = tried, imported, out
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
        for _, results in in_children({c: partial(self.baseline, items, c, set(live)) for c in chunks}, {}):
            for i, took, called in results:
                seconds[i] = took
                for function in called:
                    tests[function].append(i)
        # What is called by the import alone declares operators, and is over when it is changed.
        tried = [m for m in self.tried if tests[key(m.function)] or key(m.function) not in self.imported]
        some = {m: [items[i] for i in sorted(tests[key(m.function)], key=seconds.get)] for m in tried}
        calls = {m: partial(self.noticed, live[m.function], m.code, some[m]) for m in tried}
        # What was quick and never ends is noticed, too.
        limits = {m: 5 + 3 * sum(seconds[i] for i in tests[key(m.function)]) for m in tried}
        for m, noticed in in_children(calls, limits):
            print(json.dumps([m.where, m.change, len(some[m]), noticed]), file=self.out, flush=True)
        return True

    def baseline(self, items: list[pytest.Item], chunk: range, codes: set[types.CodeType]) -> list[tuple]:
        """Of each test, the seconds of the processor that it takes and the functions that it calls."""
        results = []
        for i in chunk:
            start = time.process_time()
            failure, called = traced(partial(self.failure, items[i]))
            if not failure:  # what fails before anything is changed tells nothing
                results.append((i, time.process_time() - start, [key(code) for code in called & codes]))
        return results

    def noticed(self, function: types.FunctionType, code: types.CodeType, items: list[pytest.Item]) -> str | None:
        """The test that fails first where a function has another code."""
        function.__code__ = code
        return next((item.nodeid for item in items if self.failure(item)), None)


def traced(call: Callable[[], T]) -> tuple[T, set[types.CodeType]]:
    """What a function gives, and what it calls."""
    called: set[types.CodeType] = set()
    sys.settrace(lambda frame, event, _: called.add(frame.f_code))  # None: no event but calls
    try:
        return call(), called
    finally:
        sys.settrace(None)


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
    signal.setitimer(signal.ITIMER_PROF, seconds)  # of the processor: a busy machine does not count
    try:
        text = json.dumps(call())
        Path(folder, str(os.getpid())).write_text(text)
        os._exit(0)
    except BaseException as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr, flush=True)
        os._exit(1)


def main(family: str = "", count: int = 0) -> None:
    _, imported = traced(partial(importlib.import_module, "ortpartial.autodiff.rules"))
    paths = [RULES / f"{family}.py"] if family else sorted(RULES.glob("[a-z]*.py"))
    tried = [m for path in paths for m in mutants(path)]
    tried = random.Random(0).sample(tried, count) if count else tried
    tests = [RULE_TESTS / f"test_{family}.py"] if family else [RULE_TESTS, TESTS / "contracts" / "test_corpus.py"]
    out = os.fdopen(os.dup(1), "w")
    plugin = Tests(tried, set(map(key, imported)), out)
    os.dup2(2, 1)  # what pytest has to say is no result
    sys.exit(pytest.main(["-qqs", "-p", "no:cacheprovider", *map(str, tests)], plugins=[plugin]))


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
