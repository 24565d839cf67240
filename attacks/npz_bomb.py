"""A file of 1 MB that holds 4 GB of zeros, arrays whose headers lie, and an array that is a program (a pickle).

An attacker hopes for `numpy.load`, which allocates what a header says, and unpickles where it is allowed to.
"""

import contextlib
import io
import zipfile
import zlib
from pathlib import Path

import numpy as np
from victims import optimizer

from ortpartial.cli import main


class Program:
    """What its pickle does when it is read: it makes a file."""

    def __reduce__(self):
        return Path("harm").touch, ()


def write(header, megabytes=0):
    """An archive with an array of this header, and zeros behind it."""
    text = f"{header}\n".encode().ljust(118)[:118] if isinstance(header, str) else header
    start = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)  # which may be repeated
    member = zipfile.ZipInfo("x.npy")
    with zipfile.ZipFile("data.npz", "w") as archive:
        archive.writestr(member, packed + block * megabytes + packer.flush(zlib.Z_FINISH))
        member.compress_type, member.file_size = zipfile.ZIP_DEFLATED, len(start) + megabytes * 2**20
        member.CRC = zlib.crc32(start)  # Nobody reads to the end of more.


def describe(shape, dtype="'<f4'"):
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}"


def write_program():
    np.savez("data.npz", x=np.array([Program()] * 8, object))


def naive():
    write_program()
    np.load("data.npz", allow_pickle=True)["x"]
    harm = Path("harm").exists()
    write(describe((2**30, 2**10)))
    try:
        np.load("data.npz")["x"]
    except MemoryError:
        return harm
    return False


CASES = {
    "a program": write_program,
    "4 GB of zeros": lambda: write(describe((2**28, 4)), 2**12),
    "a header of 4 TB": lambda: write(describe((2**38, 4))),
    "sizes that overflow": lambda: write(describe((2**62, 2**62))),
    "negative sizes": lambda: write(describe((-8, -4))),
    "a header that is an expression": lambda: write("__import__('pathlib').Path('harm').touch()"),
    "a header of brackets": lambda: write(("[" * 60_000).encode()),
    "a dtype of 2^31 fields": lambda: write(describe((8,), "[('a', '<f4')] * 2**31")),
    "an object in a record": lambda: write(describe((1,), "[('a', '|O')]")),
    "no archive": lambda: Path("data.npz").write_bytes(b"PK\x03\x04" + bytes(100)),
}


def attacks():
    optimizer().export_step("kit", batch_size=4)
    from ortpartial import to_training_info
    from ortpartial.model import write as write_model

    write_model(to_training_info(optimizer(), init="model"), "training.onnx")
    for name, prepare in CASES.items():
        yield name, lambda prepare=prepare: attack(prepare)


def attack(prepare):
    prepare()
    with contextlib.redirect_stderr(io.StringIO()) as text:
        status = main(["run", "training.onnx", "data.npz", "--steps", "1", "-o", "trained.onnx"])
    return "HARMED" if Path("harm").exists() else f"refused: {text.getvalue()}" if status == 2 else f"status {status}"
