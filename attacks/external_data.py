"""A model whose weights are "in another file": /etc/passwd, or a file that a link in the model's folder leads to.

An attacker hopes that the secret becomes a weight, which the victim trains and sends back. Only regular files in the
folder of the model are opened, and no link is followed.
"""

import os
from pathlib import Path

import numpy as np
from onnx import TensorProto
from victims import sum_model

from ortpartial import load

SECRET = np.arange(4, dtype=np.float32).tobytes()


def prepare():
    """A folder with a secret, and one with the model and everything that may lead to it."""
    Path("model").mkdir()
    Path("secret").write_bytes(SECRET)
    Path("model/link").symlink_to("../secret")
    Path("model/folder").symlink_to("..")
    os.link("secret", "model/hard")
    os.mkfifo("model/pipe")


def refer(location, **entries):
    t = TensorProto(data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        t.external_data.add(key=key, value=str(value))
    Path("model/model.onnx").write_bytes(sum_model(t).SerializeToString())


def naive():
    prepare()
    read = [Path("model", location).read_bytes() for location in ("../secret", "link", "folder/secret", "hard")]
    return all(data == SECRET for data in read)


def attacks():
    prepare()
    here = str(Path("secret").resolve())

    def attack(location, **entries):
        refer(location, **entries)
        return load("model/model.onnx").arrays["w"]

    for location in ("../secret", here, "link", "folder/secret", "hard", "pipe", ".", "", "x/../../secret",
                     "secret\0", "model.onnx/../../secret", "/dev/zero", "LINK", "a" * 10_000):
        yield ascii(location)[:30], lambda location=location: attack(location)
    for entries in ({"offset": 2**62}, {"length": 2**62}, {"offset": -1}, {"offset": "0x0"}, {"offset": "9" * 5000}):
        yield str(entries)[:30], lambda entries=entries: attack("model.onnx", **entries)

    def from_bytes():
        refer("secret")
        return load(Path("model/model.onnx").read_bytes()).arrays["w"]

    yield "bytes, secret in the working folder", from_bytes
