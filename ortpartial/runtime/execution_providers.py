"""Execution providers by name: their options, in which they compute in float32, and the nodes that they run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ortpartial.annotations import ArrayLike, DTypeLike, Reduced
from ortpartial.exceptions import DeviceError

from .device import Device, cores, import_onnxruntime, plug_in_devices, runtime_version
from .ort_types import OrtSession, SessionOptions

__all__ = ["NodePlacement", "add_provider", "ask_placement", "find_faults", "wrong_operators"]

#: The product of float32 has about this relative error at most; in float16, bfloat16 or TF32 it is a hundred times as
#: large.
_FLOAT32_ERROR = 1e-5

#: Options of OpenVINO's provider and, for its plug-in, the properties of OpenVINO that they stand for.
_OPENVINO = {"precision": "INFERENCE_PRECISION_HINT", "num_of_threads": "INFERENCE_NUM_THREADS",
             "num_streams": "NUM_STREAMS", "cache_dir": "CACHE_DIR", "model_priority": "MODEL_PRIORITY"}

#: Options that the plug-in takes as they are.
_OPENVINO_PLAIN = {"reshape_input", "enable_causallm", "enable_qdq_optimizer"}


@dataclass(frozen=True)
class NodePlacement:
    """Which execution provider runs which nodes of a graph.

    Parameters
    ----------
    provider : str
        The provider that was asked for.
    nodes : dict of str to tuple of (str, str)
        By provider, the names and operators of the nodes that it runs; empty if onnxruntime does not say.
    reason : str
        Why the provider does not run all of them, as far as it is known.

    Examples
    --------
    >>> print(NodePlacement("OpenVINOExecutionProvider", {"OpenVINOExecutionProvider": (("a", "MatMul"), ("b", "Add")),
    ...                                                   "CPUExecutionProvider": (("c", "Col2Im"),)}))
    OpenVINOExecutionProvider runs 2 of 3 nodes, CPUExecutionProvider Col2Im
    """

    provider: str
    nodes: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=lambda: MappingProxyType({}))
    reason: str = ""

    def __str__(self) -> str:
        if not self.nodes and not self.reason:
            return f"onnxruntime {runtime_version()} does not say which nodes {self.provider} runs"
        why = f", as {self.provider} {self.reason}" if self.reason else ""
        if self.is_unused:
            return f"the CPU runs all nodes{why}"
        total = sum(map(len, self.nodes.values()))
        others = [f", {p} {_count_operators(nodes)}" for p, nodes in self.nodes.items() if p != self.provider]
        return f"{self.provider} runs {len(self.nodes[self.provider])} of {total} nodes{''.join(others)}{why}"

    @property
    def is_unused(self) -> bool:
        """Whether the provider runs none of the nodes."""
        return self.provider not in self.nodes and bool(self.nodes or self.reason)

    def __reduce__(self) -> Reduced:
        return NodePlacement, (self.provider, dict(self.nodes), self.reason)


def wrong_operators(device: Device) -> Collection[str]:
    """The operators that an execution provider computes wrongly.

    OpenVINO 2026.4 takes an attribute of 0 for a missing attribute: β of HardSigmoid(x, β=0) becomes 0.5.
    """
    return ("HardSigmoid", "Selu") if device.kind.startswith("OpenVINO") else ()


def _count_operators(nodes: tuple[tuple[str, str], ...]) -> str:
    counts = Counter(operator for _, operator in nodes)
    return " and ".join(f"{n} {operator}" if n > 1 else operator for operator, n in counts.most_common())


def add_provider(options: SessionOptions, device: Device, threads: int | None
                 ) -> list[tuple[str, dict[str, str]]] | None:
    """Let a session use an execution provider, with as many threads as the session has.

    Parameters
    ----------
    options : onnxruntime.SessionOptions
        They are written to.
    device : Device
        The execution provider and its options.
    threads : int or None
        Threads of an operator; None for as many as the process has `cores`.

    Returns
    -------
    list of tuple of str and dict, or None
        The providers to open the session with; None where session options hold them, as for a plug-in: opened with its
        name, onnxruntime 1.23 to 1.32 runs all on the CPU.
    """
    if hasattr(import_onnxruntime().InferenceSession, "get_provider_graph_assignment_info"):
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    wanted, is_openvino = dict(device.options), device.kind.startswith("OpenVINO")
    if not (devices := plug_in_devices(device.kind)):
        forced = {"precision": "FP32", "num_of_threads": str(threads or cores())} if is_openvino else {}
        (_, wanted), cpu = device.providers
        return [(device.kind, {**forced, **wanted}), cpu]
    chosen = _choose_device(device, devices, wanted.pop("device_type", "CPU" if is_openvino else None))
    if is_openvino:
        wanted = _configure_openvino(wanted, chosen.ep_metadata.get("ov_device", "CPU"), threads or cores())
    options.add_provider_for_devices([chosen], wanted)
    return None


def _choose_device(device: Device, devices: list[Any], kind: str | None) -> Any:
    """The device of a plug-in by its type, as in "GPU", or by OpenVINO's name, as in "GPU.1"; else the first."""
    if kind is None:
        return devices[0]
    names = [(d.ep_metadata.get("ov_device"), d.device.type.name) for d in devices]
    if chosen := next((d for d, n in zip(devices, names, strict=True) if kind.upper() in n), None):
        return chosen
    has = ", ".join(repr(own or of_type) for own, of_type in names)
    raise DeviceError(f"The device '{device}' has device_type={kind!r}; this machine has {has}.")


def _configure_openvino(wanted: dict[str, str], kind: str, threads: int) -> dict[str, str]:
    """Options of OpenVINO's plug-in, which ignores options that are not its properties, in a JSON of its properties."""
    forced = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
    if kind == "CPU":  # It pins threads to cores, in all processes to the same cores.
        forced |= {"INFERENCE_NUM_THREADS": str(threads), "NUM_STREAMS": "1", "ENABLE_CPU_PINNING": "NO"}
    unknown = [k for k in wanted if not (k in {"load_config", *_OPENVINO, *_OPENVINO_PLAIN} or k.isupper())]
    if unknown:
        names = ", ".join(["device_type", "load_config", *_OPENVINO, *sorted(_OPENVINO_PLAIN)])
        raise DeviceError(f"OpenVINOExecutionProvider has no option {unknown[0]!r}; it has {names}, and the properties "
                          f"of OpenVINO, in capitals.")
    config = json.loads(wanted.get("load_config", "{}"))
    properties = {_OPENVINO.get(k, k): v for k, v in wanted.items() if k != "load_config" and k not in _OPENVINO_PLAIN}
    if "precision" in wanted:
        properties["INFERENCE_PRECISION_HINT"] = wanted["precision"].lower().replace("fp", "f")
    name = kind.split(".")[0]
    config[name] = {**forced, **config.get(name, {}), **properties}
    return {"load_config": json.dumps(config), **{k: wanted[k] for k in wanted.keys() & _OPENVINO_PLAIN}}


def ask_placement(session: OrtSession, device: Device, first: ModelProto | None = None, reason: str = ""
                  ) -> NodePlacement:
    """Ask an `InferenceSession` which provider runs which node.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        Its options had gone through `add_provider`.
    device : Device
        The execution provider.
    first : onnx.ModelProto, optional
        The graph that another session runs on the CPU, before this session.
    reason : str
        Why that is so.

    Returns
    -------
    NodePlacement
        Without nodes before onnxruntime 1.24, which is the first to say.
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return NodePlacement(device.kind)
    cpu = tuple((n.name, n.op_type) for n in first.graph.node) if first is not None else ()
    nodes = {"CPUExecutionProvider": cpu} if cpu else {}
    for part in session.get_provider_graph_assignment_info():
        nodes[part.ep_name] = *nodes.get(part.ep_name, ()), *((n.name, n.op_type) for n in part.get_nodes())
    return NodePlacement(device.kind, nodes, reason if device.kind in nodes or not nodes else "takes none of them")


def find_faults(device: Device, dtypes: Collection[int]) -> dict[int, str]:
    """Which of these dtypes an execution provider computes in fewer bits than they have, as probes show, and how.

    Parameters
    ----------
    device : Device
        The execution provider.
    dtypes : collection of int
        Of `onnx.TensorProto.DataType`.

    Returns
    -------
    dict of int to str
    """
    return {dtype: f"computes {helper.tensor_dtype_to_np_dtype(dtype)} {fault}" for dtype, probe in _PROBES.items()
            if dtype in dtypes and (fault := _run_probe(device, probe))}


@cache
def _run_probe(device: Device, probe: Callable[[Device], str]) -> str:
    return probe(device)


def _compute(device: Device, dtype: int, nodes: Sequence[NodeProto], x: np.ndarray, constants: Mapping[str, ArrayLike]
             ) -> np.ndarray:
    """The output "y" of nodes, as an execution provider computes it from x."""
    graph = helper.make_graph(nodes, "probe", [helper.make_tensor_value_info("x", dtype, x.shape)],
                              [helper.make_tensor_value_info("y", dtype, None)],
                              [numpy_helper.from_array(np.asarray(c, x.dtype), n) for n, c in constants.items()])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    options = import_onnxruntime().SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    providers = add_provider(options, device, 1)
    session = import_onnxruntime().InferenceSession(model.SerializeToString(), options, providers=providers)
    return np.asarray(session.run(["y"], {"x": x})[0])


def _probe_product(device: Device, dtype: DTypeLike, tolerance: float) -> str:
    """How far a matrix product is from the exact one."""
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(dtype)
    exact = x.astype(np.longdouble) @ x.astype(np.longdouble)
    nodes = [helper.make_node("MatMul", ["x", "x"], ["y"])]
    y = _compute(device, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), nodes, x, {})
    error = float(np.abs(y - exact).max() / np.abs(exact).max())
    return f"less precisely: a product has a relative error of {error:.0e}" if error > tolerance else ""


def _probe_float32(device: Device) -> str:
    """A lower precision is taken where options of the provider ask for it."""
    if any(word in name.lower() for name, _ in device.options for word in ("precision", "fp16", "bf16", "tf32")):
        return ""
    return _probe_product(device, np.float32, _FLOAT32_ERROR)


def _probe_float64(device: Device) -> str:
    return _probe_product(device, np.float64, 1e-13)


def _probe_uint32(device: Device) -> str:
    """Products modulo 2³² and shifts, of which random numbers are made."""
    x = np.array([7, 2**31 + 5, 2**32 - 1, 0x9E3779B9], np.uint32)
    nodes = [helper.make_node("Mul", ["x", "c"], ["p"]),
             helper.make_node("BitShift", ["p", "n"], ["y"], direction="RIGHT")]
    y = _compute(device, TensorProto.UINT32, nodes, x, {"c": 0x85EBCA6B, "n": 13})
    return "in fewer bits" if np.any(y != (x * np.uint32(0x85EBCA6B)) >> np.uint32(13)) else ""


def _probe_uint64(device: Device) -> str:
    x = np.array([7, 2**31 + 5, 2**40], np.uint64)
    y = _compute(device, TensorProto.UINT64, [helper.make_node("Mul", ["x", "x"], ["y"])], x, {})
    return "in fewer bits" if np.any(y != x * x) else ""


_PROBES: dict[int, Callable[[Device], str]] = {
    TensorProto.FLOAT: _probe_float32, TensorProto.DOUBLE: _probe_float64, TensorProto.UINT32: _probe_uint32,
    TensorProto.UINT64: _probe_uint64}
