"""The machine of a measurement, and the files of its results."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("ortpartial", "onnxruntime", "onnxruntime-training-cpu", "onnxruntime-gpu", "onnxruntime-genai", "onnx",
            "torch", "jax", "onnxsim", "scikit-learn", "transformers", "peft", "numpy")
#: Features of a processor that decide how fast it multiplies.
FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
RESULTS = Path(__file__).parent / "results"
#: The engines that `engines.py` measures.
ENGINES = ("step", "epoch", "native", "in place", "auto")


def machine() -> dict[str, str]:
    """The processor, its features and the number of cores, and the versions of the packages."""
    info = Path("/proc/cpuinfo")
    facts = dict(re.findall(r"([\w ]+?)\s*: (.+)", info.read_text())) if info.exists() else {}
    kind = [f"{key.split()[-1]} {facts[key]}" for key in ("cpu family", "model") if key in facts]
    features = [f for f in facts.get("flags", "").split() if f in FEATURES]
    results = {"cpu": facts.get("model name") or platform.processor() or platform.machine(),
               "features": " ".join([*kind, *features]), "cores": str(os.cpu_count()),
               "python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            results[package] = version(package)
    return results


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def cpu_name(this: dict[str, str]) -> str:
    """The processor as part of the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", this["cpu"].lower()).strip("-")


def runtime_version(this: dict[str, str]) -> str:
    return next(v for k, v in this.items() if k.startswith("onnxruntime") and k != "onnxruntime-genai")


def write_results(kind: str, results: dict[str, Any], out: str | Path = RESULTS) -> Path:
    """Write <kind>-<processor>-onnxruntime-<version>.json, with the machine and the time."""
    this = machine()
    path = Path(out) / f"{kind}-{cpu_name(this)}-onnxruntime-{runtime_version(this)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"when": now(), "machine": this, **results}, indent=1) + "\n")
    print(f"\nWritten to {path}")
    return path


def compare_engines(row: dict[str, Any]) -> dict[str, float]:
    """Times as multiples of the fastest engine's; that of "auto" is of the engine that it took, measured twice."""
    us = dict(row["us"])
    if row["auto"] in us:
        us["auto"] = us[row["auto"]] = min(us["auto"], us[row["auto"]])
    return {e: t / min(us.values()) for e, t in us.items()}
