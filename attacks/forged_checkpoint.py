"""Checkpoints that are programs, lie about their sizes, or hold anything at all behind a right checksum.

An attacker hopes for `pickle.load`, for a header that is believed, and for a state that is taken over without a look.
"""

import json
import pickle
from pathlib import Path

import numpy as np
from victims import X, optimizer

from ortpartial.execution.checkpoint import _hash, read_checkpoint
from ortpartial.execution.checkpoint import write_checkpoint as write
from ortpartial.model import read_tensors, write_tensors


class Program:
    def __reduce__(self):
        return Path("harm").touch, ()


def naive():
    Path("checkpoint").write_bytes(pickle.dumps(Program()))
    pickle.loads(Path("checkpoint").read_bytes())
    return Path("harm").exists()


def forge(header, data=b""):
    """A safetensors file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    Path("c.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def tensor(shape, start, end, dtype="F32"):
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}}


HEADERS = {
    "2^40 numbers": tensor([2**40], 0, 2**42),
    "sizes that overflow": tensor([2**62, 4], 0, 0),
    "data beyond the end": tensor([4], 2**40, 2**40 + 16),
    "data that end before they begin": tensor([4], 16, 0),
    "negative places": tensor([4], -16, 0),
    "two names for the same bytes": {**tensor([4], 0, 16), "v": tensor([4], 0, 16)["w"]},
    "an unknown dtype": tensor([4], 0, 16, "F4096"),
    "brackets": b"[" * 200_000,
    "no object": [1, 2, 3],
}

TEXTS = {"an array that is not there": '{"settings": {"$array": "lost"}}', "a number of 10,000 digits":
         '{"a": {"$int": "%s"}}' % ("9" * 10_000), "keys that are lists": '{"$dict": [[[1], 2]]}', "no state": "{}"}

#: Parts of a true state that are replaced.
PARTS = {"weights": {"engine": {"iteration": 1, "seed": np.zeros(2), "arrays": {"w": np.zeros((2**10, 2**10))}}},
         "a class": {"settings": {"learning_rate": {"class": "Popen", "args": "touch harm"}, "learning_penalty": None,
                                  "gradient_clipping": None, "averaging": None, "max_iter": 1}},
         "random bits": {"random": {"bit_generator": "__class__"}}, "a counter": {"batches": 2**80}}


def attacks():
    optimizer().fit(X, X).save_checkpoint("true.safetensors")
    state = read_checkpoint("true.safetensors")

    def resume(prepare):
        prepare()
        optimizer().load_checkpoint("c.safetensors")
        return "HARMED" if Path("harm").exists() else "restored"

    def forge_text(text):
        write_tensors({}, "c.safetensors", {"format": "ortpartial checkpoint", "version": "1", "state": text,
                                            "sha256": _hash(text, {})})

    yield "a program", lambda: resume(lambda: Path("c.safetensors").write_bytes(pickle.dumps(Program())))
    yield "a header of 2^60 bytes", lambda: resume(lambda: Path("c.safetensors").write_bytes(
        (2**60).to_bytes(8, "little") + b"{}"))
    for name, header in HEADERS.items():
        yield name, lambda header=header: resume(lambda: forge(header, bytes(16)))
    for name, text in TEXTS.items():
        yield name, lambda text=text: resume(lambda: forge_text(text))
    for name, part in PARTS.items():
        yield f"another part: {name}", lambda part=part: resume(lambda: write({**state, **part}, "c.safetensors"))
    yield "the same by read_tensors", lambda: read_tensors("c.safetensors") and "unharmed: arrays and texts"
