"""Hostile .npz files end in one sentence, before memory is taken for their alleged content."""

import io
import pickle
import re
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from models import data, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.cli import main
from ortpartial.exceptions import DataError
from ortpartial.model import write
from ortpartial.training_info.npz import open_arrays

X, Y, _ = data(20)


def npy(array, **settings):
    """The bytes of an .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), **settings)
    return file.getvalue()


def header(text, length=None, version=1):
    """An .npy file with this header and no array."""
    raw = text.encode()
    size = struct.pack("<H" if version == 1 else "<I", len(raw) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + raw


def archive(x, *, method=zipfile.ZIP_DEFLATED, name="x.npy"):
    """An .npz file whose array x has these bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as z:
        z.writestr(name, x, method)
        z.writestr("y_target.npy", npy(Y))
    return bytearray(file.getvalue())


def patched(x, offset, value, form="<H"):
    """An archive with another number in both headers of x: `offset` is that of the local one."""
    content = archive(x)
    for start, more in ((content.index(b"PK\x03\x04"), 0), (content.index(b"PK\x01\x02"), 2)):
        struct.pack_into(form, content, start + offset + more, value)
    return content


def zeros(count):
    """The header of so many zeros, and all of them, compressed a part at a time."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as z:
        with z.open("x.npy", "w", force_zip64=True) as member:
            head = header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count // 4}, 4), }}" + " " * 64 + "\n")
            member.write(head)
            for _ in range(count >> 20):
                member.write(bytes(2**20))
        z.writestr("y_target.npy", npy(Y))
    return file.getvalue()


def damaged(content, place):
    content = bytearray(content)
    for i in range(place, place + 40):
        content[i] ^= 0xFF
    return content


def twice():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as z:
        z.writestr("x.npy", npy(X))
        with pytest.warns(UserWarning, match="Duplicate name"):
            z.writestr("x.npy", npy(2 * X))
        z.writestr("y_target.npy", npy(Y))
    return file.getvalue()


class Unpickled:
    def __reduce__(self):
        return Path("unpickled").touch, ()


LARGE = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**60}, 4), }}"
NO_FILE = "is no .npz file of arrays of numbers, and no .csv file."

#: The bytes of a file, and what is said of it.
HOSTILE = {
    "pickle": (lambda: archive(npy(np.array([Unpickled()] * 20, object), allow_pickle=True)),
               "it holds Python objects."),
    "bare pickle": (lambda: pickle.dumps(Unpickled()), NO_FILE),
    "pickle as array": (lambda: archive(pickle.dumps(Unpickled())), "its header is damaged."),
    "huge shape": (lambda: archive(header(LARGE + "\n")),
                   f"its shape is ({2**60}, 4) of float32, and it holds 0 bytes."),
    "overflowing shape": (lambda: archive(header(LARGE.replace("4)", f"{2**70})") + "\n")), "its shape is"),
    "negative shape": (lambda: archive(header(LARGE.replace(f"({2**60}, 4)", "(-4, -4)") + "\n") + bytes(64)),
                       "its shape is (-4, -4)"),
    "shape of another model": (lambda: archive(npy(X[:, :3])), "its shape is (20, 3), and a step reads ['N', 4]."),
    "rows": (lambda: archive(npy(X[:3])), "The arrays have different numbers of rows: 'x' 3, 'y_target' 20."),
    "zeros": (lambda: zeros(2**26), "The arrays have different numbers of rows: 'x' 16777216, 'y_target' 20."),
    "long header": (lambda: archive(header(" " * 30_000, 2**32 - 1, 2)), "its header is damaged."),
    "nested header": (lambda: archive(header("(" * 9000)), "its header is damaged."),
    "minus signs": (lambda: archive(header("-" * 9000 + "1")), "its header is damaged."),
    "no dictionary": (lambda: archive(header("[1, 2]")), "its header is damaged."),
    "columns": (lambda: archive(npy(np.zeros(20, [("a", "f4"), ("b", "f4")]))), "and no numbers."),
    "texts": (lambda: archive(npy(np.full((20, 4), "text"))), "it holds <U4, and no numbers."),
    "cut array": (lambda: archive(npy(X)[:-4]), "its shape is (20, 4) of float32, and it holds 316 bytes."),
    "longer array": (lambda: archive(npy(X) + b"more"), "its shape is (20, 4) of float32, and it holds 324 bytes."),
    "unknown method": (lambda: patched(npy(X), 8, 77), "it is compressed by method 77; write it with"),
    "lzma": (lambda: archive(npy(X), method=zipfile.ZIP_LZMA), "it is compressed by method 14"),
    "encrypted": (lambda: patched(npy(X), 6, 1), "it is encrypted."),
    "broken deflate": (lambda: damaged(archive(npy(X)), 150), "The array 'x' of 'x.npz' cannot be read: "),
    "checksum": (lambda: patched(npy(X), 14, 7, "<I"), "Bad CRC-32"),
    "size in the directory": (lambda: patched(npy(X), 22, 2**31, "<I"), "its shape is (20, 4) of float32, and it"),
    "cut file": (lambda: archive(npy(X))[:300], NO_FILE),
    "two of a name": (twice, "'x.npz' has two arrays of the name 'x'."),
    "no array": (lambda: archive(b"text", name="x"), "'x.npz' lacks 'x'"),
    "empty": (bytes, NO_FILE),
}


@pytest.fixture
def training(tmp_path, monkeypatch):
    """A folder with the model `training.onnx`."""
    monkeypatch.chdir(tmp_path)
    write(OrtGradientForwardBackwardOptimizer(mlp()).get_training_onnx(), "training.onnx")


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files(training, capsys, kind):
    """One line, no file is written, and no memory is taken for what is not read."""
    content, message = HOSTILE[kind]
    Path("x.npz").write_bytes(content())
    tracemalloc.start()
    try:
        assert main(["run", "training.onnx", "x.npz", "-o", "trained.onnx"]) == 2
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    line = capsys.readouterr().err
    assert line.startswith("ortpartial: ")
    assert line.count("\n") == 1
    assert message in line
    assert "x.npz" in line
    assert peak < 2**24
    assert not Path("trained.onnx").exists()
    assert not Path("unpickled").exists()


def test_a_missing_file(training, capsys):
    assert main(["run", "training.onnx", "nowhere.npz", "-o", "trained.onnx"]) == 2
    assert capsys.readouterr().err == ("ortpartial: There is no file 'nowhere.npz'; give an .npz or a .csv file of "
                                       "rows.\n")


def test_what_no_step_reads_is_not_unpacked(training):
    """An array of another name may be anything."""
    with zipfile.ZipFile("x.npz", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("x.npy", npy(np.asfortranarray(X)))
        z.writestr("y_target.npy", npy(Y.astype(">f8"), version=(2, 0)))
        z.writestr("unused.npy", npy(np.array([Unpickled()], object), allow_pickle=True))
        z.writestr("notes.txt", "text")
    with open_arrays(Path("x.npz"), {"x": ("N", 4), "y_target": None}) as arrays:
        assert {n: a.nbytes for n, a in arrays.items()} == {"x": X.nbytes, "y_target": 8 * Y.size}
        np.testing.assert_array_equal(arrays["x"].read(), X)
        np.testing.assert_array_equal(arrays["y_target"].read(), Y)
    assert main(["run", "training.onnx", "x.npz", "--epochs", "1", "-o", "trained.onnx"]) == 0


def test_more_than_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("ortpartial.training_info.npz.available_memory", lambda: 2**10)
    np.savez(tmp_path / "x.npz", x=np.zeros((2**10, 4)))
    message = re.escape(f"The arrays of '{tmp_path}/x.npz' take 0.0 GiB, where 0.0 GiB are available.")
    with pytest.raises(DataError, match=message), open_arrays(tmp_path / "x.npz", {"x": None}):
        pass


def test_any_damage_is_a_sentence(tmp_path):
    """Every byte of a small file in turn is another one."""
    content, path = bytes(archive(npy(X[:2]))), tmp_path / "x.npz"
    for place in range(0, len(content), 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        try:
            with open_arrays(path, {"x": ("N", 4), "y_target": ("N", 1)}) as arrays:
                for a in arrays.values():
                    a.read()
        except DataError:
            pass
