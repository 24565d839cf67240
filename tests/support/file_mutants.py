"""Changed files of every kind: a random part of a true one is another, behind a right checksum where it has one.

`python file_mutants.py minutes [seed]` tries mutants for so long, and prints those that end in no clear error.
"""

import copy
import json
import os
import shutil
import sys
import tempfile
import time
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import Message
from sandbox import CLEAR, RESULT, in_children, outcome
from stored_files import c_bytes
from training_artifacts import STORED, make_batches

from ortpartial import (
    OrtGradientForwardBackwardOptimizer,
    TrainingKit,
    TrainingSession,
    add_lora,
    artifacts,
    build,
    constant,
    export_c,
    load_adapter,
    merge,
    op,
    read_c_state,
    save_adapter,
    to_training_info,
    variable,
)
from ortpartial.execution.checkpoint import _hash
from ortpartial.model import read_tensors, write, write_tensors
from ortpartial.runtime import has_adapter_files
from ortpartial.training_info.npz import open_arrays

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
Y = X[:, :2].copy()
NUMBERS = [0, -1, 1, 2, 3, 255, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63)]
ENTRIES = [None, True, -1, 0, 2**62, 2**70, 1.5, float("nan"), "", "x", "../x", "\x1b[2J", [], {}, [[]], [1, 2],
           {"a": 1}]


def model():
    x = variable("x", "float32", ["N", 4])
    w, v = constant(np.ones((4, 3), np.float32), hint="fc.weight"), constant(np.ones((3, 2), np.float32), hint="v")
    return build([x], {"y": op.Tanh(x @ w) @ v})


def make():
    return OrtGradientForwardBackwardOptimizer(model(), learning_rate="adam", max_iter=1, batch_size=4, random_state=0)


def write_files():
    """True files of every kind, in the working folder."""
    optimizer = make().fit(X, Y)
    optimizer.save_checkpoint("checkpoint.safetensors")
    optimizer.export_step("kit", batch_size=4)
    export_c(optimizer, "c", batch_size=4)
    write(model(), "model.onnx")
    write(to_training_info(optimizer, init="model"), "training.onnx")
    Path("c/state.bin").write_bytes(c_bytes(Path("c"), TrainingSession("training.onnx").state))
    np.savez("data.npz", x=X, y=Y)
    shutil.copytree(STORED / "mlp", "artifacts")
    adapted = add_lora(model(), "fc", rank=2, random_state=0)
    write(adapted, "adapted.onnx")
    save_adapter(adapted, "adapter.safetensors")
    if has_adapter_files():
        save_adapter(adapted, "adapter.onnx_adapter")


# -- what is done with a file


def resume():
    optimizer = make()
    optimizer.load_checkpoint("checkpoint.safetensors")
    optimizer.partial_fit(X, Y)


def run_kit():
    kit = TrainingKit("kit")
    kit.step({"x": X[:4], "y_target": Y[:4]})
    kit.model()
    repr(kit)


def train():
    OrtGradientForwardBackwardOptimizer("model.onnx", max_iter=1, batch_size=4).fit(X, Y)


def run_training():
    session = TrainingSession("training.onnx")
    session.step({"x": X[:4], "y_target": Y[:4]})
    session.inference_model()


def read_state():
    read_c_state("c", Path("c/state.bin").read_bytes())


def read_arrays():
    with open_arrays(Path("data.npz"), None) as arrays:
        [a.read() for a in arrays.values()]


def use_adapted():
    merge("adapted.onnx")
    OrtGradientForwardBackwardOptimizer("adapted.onnx", weights_to_train="adapter", max_iter=1).fit(X, Y)
    save_adapter("adapted.onnx", "again.safetensors")


def go_on():
    module = artifacts.load("artifacts")
    batch = make_batches("mlp")[0]
    if module.optimizer is None:
        module(*batch)
    else:
        module.step(*batch)
    module.eval()
    module(*batch)
    artifacts.CheckpointState.save_checkpoint(module.state, "again")
    module.export_model_for_inferencing("inference.onnx", ["scores"])


USES = {"checkpoint.safetensors": resume, "kit/kit.json": run_kit, "kit/state.safetensors": run_kit,
        "kit/step.onnx": run_kit, "kit/model.onnx": run_kit, "c/training.json": read_state,
        "model.onnx": train, "training.onnx": run_training, "data.npz": read_arrays, "adapted.onnx": use_adapted,
        **{f"artifacts/{n}": go_on for n in ("checkpoint", "training_model.onnx", "eval_model.onnx",
                                              "optimizer_model.onnx")},
        "adapter.safetensors": lambda: load_adapter(model(), "adapter.safetensors"),
        **({"adapter.onnx_adapter": lambda: load_adapter(model(), "adapter.onnx_adapter")} if has_adapter_files()
           else {})}


# -- how a file is changed


def change_bytes(data, rng):
    """Flip a bit, or overwrite, cut, repeat or insert some bytes."""
    data, i, n = bytearray(data), int(rng.integers(len(data))), int(rng.integers(1, 9))
    kind = rng.integers(6)
    if kind == 0:
        data[i] ^= 1 << rng.integers(8)
    elif kind == 1:
        data[i : i + n] = rng.bytes(n)
    elif kind == 2:
        number = NUMBERS[rng.integers(len(NUMBERS))] & (2**64 - 1)
        data[i : i + 8] = number.to_bytes(8, "little")[: len(data[i : i + 8])]
    elif kind == 3:
        del data[i : None if rng.integers(2) else i + n]
    elif kind == 4:
        data[i:i] = data[i : i + 8 * n]
    else:
        data[i:i] = rng.bytes(n)
    return bytes(data)


def change_word(data, rng):
    """FlatBuffers with another offset, length or small number."""
    words = np.frombuffer(data[: len(data) // 4 * 4], "<i4").copy()
    places = np.flatnonzero((words != 0) & (np.abs(words.astype(np.int64)) < len(data)))
    choices = [*(n & (2**32 - 1) for n in NUMBERS), int(words[rng.choice(places)]), int(rng.integers(len(data)))]
    new = choices[rng.integers(len(choices))] & (2**32 - 1)
    words.view("<u4")[rng.choice(places)] = new
    return words.tobytes() + data[len(words) * 4 :]


def walk(entry, path=()):
    yield path
    for key, part in entry.items() if isinstance(entry, dict) else enumerate(entry) if isinstance(entry, list) else ():
        yield from walk(part, (*path, key))


def change_entry(entry, rng):
    """JSON with another entry somewhere, or without it."""
    paths = list(walk(entry))
    path, entry = paths[rng.integers(len(paths))], copy.deepcopy(entry)
    new = ENTRIES[rng.integers(len(ENTRIES))]
    if not path:
        return new
    inner = entry
    for key in path[:-1]:
        inner = inner[key]
    if rng.integers(4):
        inner[path[-1]] = new
    else:
        del inner[path[-1]]
    return entry


def messages(message):
    yield message
    for field, value in message.ListFields():
        if field.message_type:
            for inner in value if not isinstance(value, Message) else [value]:
                yield from messages(inner)


def change_message(proto, rng):
    """A protobuf message with one field of one message in it changed."""
    every = list(messages(proto))
    message = every[rng.integers(len(every))]
    fields = [f for f, _ in message.ListFields()] if rng.integers(4) else list(message.DESCRIPTOR.fields)
    if not fields:
        return
    field = fields[rng.integers(len(fields))]
    value = getattr(message, field.name)
    kind = rng.integers(4)
    try:
        if hasattr(value, "append") and (kind == 0 or field.message_type):
            if len(value) and rng.integers(2):
                del value[int(rng.integers(len(value)))]
            elif len(value):
                value.append(value[int(rng.integers(len(value)))])
        elif kind == 1:
            message.ClearField(field.name)
        elif field.cpp_type == field.CPPTYPE_STRING:
            new = [b"", b"x", b"y", rng.bytes(4), b"\x1b[2J"][rng.integers(5)]
            new = new if field.type == field.TYPE_BYTES else new.decode("latin-1")
            value.append(new) if hasattr(value, "append") else setattr(message, field.name, new)
        elif not field.message_type:
            new = NUMBERS[rng.integers(len(NUMBERS))]
            new = float(new) if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE) else new
            value.append(new) if hasattr(value, "append") else setattr(message, field.name, new)
    except (TypeError, ValueError):
        pass  # The field does not hold such a number.


def change(name, data, rng):
    """The content of a file, changed where it matters."""
    if not rng.integers(3):
        return change_bytes(data, rng)
    if name.endswith(".json"):
        return json.dumps(change_entry(json.loads(data), rng)).encode()
    if name.endswith(".onnx"):
        proto = onnx.load_from_string(data)
        for _ in range(rng.integers(1, 4)):
            change_message(proto, rng)
        for entry in proto.metadata_props:
            if entry.value.startswith("{") and rng.integers(2):
                entry.value = json.dumps(change_entry(json.loads(entry.value), rng))
        return proto.SerializeToString()
    if name == "checkpoint.safetensors" and rng.integers(2):
        arrays, texts = read_tensors(name)
        texts["state"] = json.dumps(change_entry(json.loads(texts["state"]), rng))
        texts["sha256"] = _hash(texts["state"], arrays)
        write_tensors(arrays, "changed", texts)
        return Path("changed").read_bytes()
    if name.endswith(".safetensors"):
        size = int.from_bytes(data[:8], "little")
        header = json.dumps(change_entry(json.loads(data[8 : 8 + size]), rng)).encode()
        data = len(header).to_bytes(8, "little") + header + data[8 + size :]
        if name.startswith("kit") and (i := data.find(b'"crc32":"')) > 0:
            blank = data[: i + 9] + b"0" * 8 + data[i + 17 :]
            data = data[: i + 9] + b"%08x" % zlib.crc32(blank) + data[i + 17 :]
        return data
    return change_word(data, rng) if name == "artifacts/checkpoint" else change_bytes(data, rng)


def attempt(name, true, seed):
    """What a changed file ends in, for the seed None the true one; afterwards the true one is back."""
    path = Path(name)
    try:
        path.write_bytes(true if seed is None else change(name, true, np.random.default_rng(seed)))
        kind, text = outcome(run=USES[name])
        return (CLEAR, text) if text.startswith(("FileNotFoundError", "IsADirectoryError", "OSError")) else (kind, text)
    finally:
        path.unlink()
        path.write_bytes(true)


def try_mutants(names, seeds):
    """A row for each file and seed: name, seed, kind of outcome, text."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            write_files()
            for name in names:
                true = Path(name).read_bytes()
                runs = in_children(lambda name=name, true=true: partial(attempt, name, true), list(seeds))
                yield from ((name, seed, *run) for seed, run in zip(seeds, runs, strict=True))
                Path(name).unlink(missing_ok=True)
                Path(name).write_bytes(true)  # A child that was killed leaves its own.
        finally:
            os.chdir(here)


def main(minutes, seed=None):
    seed = int(time.time()) if seed is None else int(seed)
    end, count = time.monotonic() + 60 * float(minutes), 0
    while time.monotonic() < end:
        for name, number, kind, text in try_mutants(list(USES), range(seed, seed + 50)):
            count += 1
            if kind not in (RESULT, CLEAR):
                print(f"{name} seed {number}: {kind}: {text[:300]}", flush=True)
        seed += 50
    print(f"{count} mutants, the next seed is {seed}")


if __name__ == "__main__":
    main(*sys.argv[1:])
