"""
How long does a training step take on a GPU, side by side with torch? Microseconds.

    python bench/gpu.py [--quick] [what else bench.py takes]

As `bench.py`, on the first CUDA device: ortpartial with a step that is recorded as a CUDA graph, "auto", and with one
that is not; torch with a recorded step, in eager mode, and compiled. Where there is no such device it runs on the CPU,
so that it can be tried.
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
