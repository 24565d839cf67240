"""
Time of a training step on a GPU, beside torch, in microseconds.

    python bench/gpu.py [--quick] [other arguments of bench.py]

Like `bench.py`, on the first CUDA device: ortpartial with a step recorded as a CUDA graph ("auto") and without; torch
with a recorded step, in eager mode, and compiled. Without such a device it runs on the CPU, to try it out.
"""

from __future__ import annotations

import sys

import onnxruntime
import torch

import bench


def main() -> None:
    lacks = [what for what, found in (
        ("torch finds no CUDA device", torch.cuda.is_available()),
        ("onnxruntime has no CUDAExecutionProvider", "CUDAExecutionProvider" in onnxruntime.get_available_providers()))
        if not found]
    if lacks:
        print(f"Measured on the CPU, as {' and '.join(lacks)}.")
    peers = ["auto", "step", "torch graphs", "torch", "torch.compile"]
    bench.main(["--device", "cpu" if lacks else "cuda", "--peers", *peers, "--cores", "1", "--parts", "steps",
                "--profiles", "0", *sys.argv[1:]])


if __name__ == "__main__":
    main()
