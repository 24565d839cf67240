"""
A process in which one version of onnxruntime is measured. `runtimes.py` starts it and sends commands:

    {"start": VERSION}                check that it is this version which runs
    {"graph": CELL, "task": {...}}    write the graph that `open` reads
    {"cell": CELL, "task": {...}}     set up what a cell measures, and its reference; compare what both compute
    {"turn": SECONDS}                 run both in turns; the seconds of each are those of its fastest call
    {"profile": CELL, "task": {...}}  the time of each operator, by the profiler of onnxruntime
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from models import Task
from peers import Cannot, Numpy, Ours, Torch
from worker import Worker, serve

#: What `Worker.turn` calls at the least: of fewer calls, none would be free of what else the machine does.
CALLS = 3
#: Of an operator, in each of which `Worker.turn` measures.
OPERATOR_CALLS = 50  # as `Cell.steps` has it
#: Losses of float32 after hundreds of steps, and outputs, relative to the largest.
SAME_LOSS, SAME_OUTPUT = 2e-3, 1e-4

Calls = dict[str, Callable[[], Any]]


def options() -> Any:
    """Sessions have one thread, as the process has one core."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    return settings


def train(task: Task, engine: str) -> Calls:
    """An epoch of `fit`, and one of torch, or of numpy where the model is a chain of layers."""
    ours, reference = Ours(task, engine), (Numpy if task.model.widths else Torch)(task)
    losses = [peer.epoch() for peer in (ours, reference)]
    if not abs(losses[0] - losses[1]) <= SAME_LOSS * abs(losses[1]):
        raise Cannot(f"It comes to a loss of {losses[0]:.6g}, and the reference to {losses[1]:.6g}.")
    return {"runtime": ours.epoch, "reference": reference.epoch}


def infer(task: Task, _: str) -> Calls:
    """As many calls of a session of onnxruntime as an epoch has steps, and of the reference."""
    import onnxruntime

    session = onnxruntime.InferenceSession(task.onnx, options(), providers=["CPUExecutionProvider"])
    X = task.data[0][: task.batch]
    reference = forward_numpy(task, X) if task.model.widths else forward_torch(task, X)
    y, expected = session.run(None, {"x": X})[0], np.asarray(reference())
    if not abs(y - expected).max() <= SAME_OUTPUT * abs(expected).max():
        raise Cannot(f"Its outputs differ by {abs(y - expected).max():.1e}.")
    return {"runtime": repeated(lambda: session.run(None, {"x": X}), task.steps),
            "reference": repeated(reference, task.steps)}


def repeated(call: Callable[[], Any], times: int) -> Callable[[], Any]:
    def run() -> None:
        for _ in range(times):
            call()

    return run


def forward_numpy(task: Task, X: np.ndarray) -> Callable[[], Any]:
    layers = range(len(task.model.widths) - 1)
    weights = [(np.array(task.start[f"{2 * i}.weight"].T), task.start[f"{2 * i}.bias"]) for i in layers]

    def forward() -> np.ndarray:
        y = X
        for i, (W, b) in enumerate(weights):
            y = y @ W + b
            y = np.maximum(y, 0) if i < len(weights) - 1 else y
        return y

    return forward


def forward_torch(task: Task, X: np.ndarray) -> Callable[[], Any]:
    net, x = Torch(task), Torch(task).X[: task.batch]

    def forward() -> Any:
        with net.torch.inference_mode():
            return net.net(x)

    return forward


def graph_of(task: Task) -> Path:
    return Path(task.onnx).with_suffix(f".{task.batch}.step.onnx")


def write_graph(task: Task) -> None:
    """The graph of a step, which every version opens."""
    ours = Ours(task, "step")
    ours.epoch()
    graph_of(task).write_bytes(ours.optimizer.save_onnx_graph(bytes)["step"])


def open_step(task: Task, _: str) -> Calls:
    """Create a session of the graph of a step; the reference is the shape inference of onnx, on the same graph."""
    import onnx
    import onnxruntime

    graph = graph_of(task).read_bytes()

    def create() -> None:
        onnxruntime.InferenceSession(graph, options(), providers=["CPUExecutionProvider"])

    def reference() -> None:
        for _ in range(20):  # a session takes milliseconds, the inference less than one
            onnx.shape_inference.infer_shapes(graph)

    return {"runtime": create, "reference": reference}


def normalize(x: np.ndarray) -> np.ndarray:
    e = x - x.mean(-1, keepdims=True)
    return e / np.sqrt((e * e).mean(-1, keepdims=True) + 1e-5)


#: By operator: its domain, its inputs, which of them are weights, and what it computes.
OPERATORS: dict[str, tuple[str, list[tuple[int, ...]], list[int], Callable[..., np.ndarray]]] = {
    "LayerNormalization": ("", [(32, 32, 64), (64,), (64,)], [1, 2], lambda x, s, b: normalize(x) * s + b),
    "SkipLayerNormalization": ("com.microsoft", [(32, 32, 64), (32, 32, 64), (64,), (64,)], [2, 3],
                               lambda x, y, s, b: normalize(x + y) * s + b),
    "MatMul": ("", [(256, 256), (256, 256)], [1], lambda x, y: x @ y)}


def run_operator(operator: str) -> Calls:
    """Twenty calls of a session of one node, and of the formula in numpy."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    domain, shapes, weights, formula = OPERATORS[operator]
    rng, names = np.random.default_rng(0), [f"x{i}" for i in range(len(shapes))]
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    expected = formula(*arrays)
    node = helper.make_node(operator, names, ["y"], domain=domain,
                            **({"epsilon": 1e-5} if operator.endswith("Normalization") else {}))
    graph = helper.make_graph(
        [node], operator,
        [helper.make_tensor_value_info(names[i], TensorProto.FLOAT, shapes[i])
         for i in range(len(shapes)) if i not in weights],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, expected.shape)],
        [numpy_helper.from_array(arrays[i], names[i]) for i in weights])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17),
                                                    helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    feeds = {names[i]: arrays[i] for i in range(len(shapes)) if i not in weights}
    worst = abs(session.run(None, feeds)[0] - expected).max() / abs(expected).max()
    if not worst <= SAME_OUTPUT:
        raise Cannot(f"Its output differs by {worst:.1e}.")
    return {"runtime": repeated(lambda: session.run(None, feeds), OPERATOR_CALLS),
            "reference": repeated(lambda: formula(*arrays), OPERATOR_CALLS)}


KINDS: dict[str, Callable[[Task, str], Calls]] = {"train": train, "infer": infer, "open": open_step}


def profile(kind: str, task: Task) -> dict[str, Any]:
    """Microseconds of every operator in a call of the session that a cell measures, by onnxruntime's profiler."""
    import onnxruntime

    path = task.onnx if kind == "infer" else str(graph_of(task))
    settings = options()
    settings.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        settings.profile_file_prefix = f"{folder}/profile"
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        feeds = inputs_of(session, task)
        for _ in range(100):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    nodes: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            nodes.setdefault((event["args"]["op_name"], event["name"]), []).append(event["dur"])
    operators: dict[str, float] = {}
    for (operator, _), times in nodes.items():
        operators[operator] = operators.get(operator, 0.0) + statistics.median(times)
    return {"operators": dict(sorted(operators.items(), key=lambda item: -item[1]))}


def inputs_of(session: Any, task: Task) -> dict[str, np.ndarray]:
    """Numbers for every input: the rows of a batch, indices that are in range, and small floats."""
    rng, feeds = np.random.default_rng(0), {}
    for i in session.get_inputs():
        shape = [n if isinstance(n, int) else task.batch for n in i.shape]
        if i.type == "tensor(int64)":
            feeds[i.name] = np.zeros(shape, np.int64)
        else:
            feeds[i.name] = 0.01 * rng.random(shape).astype(np.float64 if "double" in i.type else np.float32)
    return feeds


class RuntimeWorker(Worker):
    """Executes the commands."""

    def ready(self, line: dict[str, Any]) -> None:
        self.line = line
        if "cell" in line:
            vars(self).pop("calls", None)
        if "task" in line:
            self.task = Task(**line["task"])
            _ = self.task.start, self.task.data, self.task.trained

    def do(self) -> dict[str, Any]:
        line = self.line
        if "start" in line:
            import onnxruntime

            return {"version": onnxruntime.__version__, "file": onnxruntime.__file__}
        if "graph" in line:
            write_graph(self.task)
        elif "cell" in line and line["cell"]["kind"] == "operator":
            self.calls = run_operator(line["cell"]["model"])
        elif "cell" in line:
            self.calls = KINDS[line["cell"]["kind"]](self.task, line["cell"]["engine"])
        elif "profile" in line:
            return profile(line["profile"]["kind"], self.task)
        elif "turn" in line:
            return self.alternate(line["turn"])
        return {}

    def alternate(self, least: float) -> dict[str, Any]:
        """Seconds of the fastest call of each, by the clock and of the processor."""
        times: dict[str, list[tuple[float, float]]] = {who: [] for who in self.calls}
        start = time.perf_counter()
        while len(times["runtime"]) < CALLS or time.perf_counter() - start < least:
            for who, call in self.calls.items():
                began, used = time.perf_counter(), time.process_time()
                call()
                times[who].append((time.perf_counter() - began, time.process_time() - used))
        return {f"{who}{suffix}": min(t[i] for t in result)
                for who, result in times.items() for i, suffix in enumerate(("", "_cpu"))}


if __name__ == "__main__":
    serve(RuntimeWorker())
