"""Checkpoints of onnxruntime's training: read, written, and refused where they are malformed."""

import os
import struct

import numpy as np
import pytest
from once import ON_NEWEST
from training_artifacts import STORED, TRAININGS

from ortpartial.artifacts import Checkpoint, CheckpointState, OptimizerState, read_checkpoint, write_checkpoint
from ortpartial.artifacts import checkpoint as checkpoint_module
from ortpartial.exceptions import CheckpointError

DTYPES = ["float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "bool", "float16", "float64", "uint32",
          "uint64"]


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for n, a in first.items():
        assert (a.dtype, a.shape) == (second[n].dtype, second[n].shape), n
        np.testing.assert_array_equal(a, second[n], err_msg=n)


def make_checkpoint():
    tensors = {d: np.arange(6).reshape(2, 3).astype(d) for d in DTYPES}
    tensors |= {"empty": np.zeros((0, 3), np.float32), "scalar": np.float32(2).reshape(()), "ünïcode": np.ones(1)}
    state = OptimizerState(7, 0.25, {"float32": {"momentum0": np.ones(3, np.float32)}, "none": {}})
    properties = {"epoch": -3, "best": 0.5, "name": "ö", "long": 2**40}
    return Checkpoint(tensors, {"fixed": np.zeros(2, np.float32)}, {"group0": state}, properties)


def test_what_is_written_is_read(tmp_path):
    written = make_checkpoint()
    write_checkpoint(written, tmp_path / "checkpoint")
    found = read_checkpoint(tmp_path / "checkpoint")
    assert_equal(found.trainable, written.trainable)
    assert_equal(found.frozen, written.frozen)
    assert found.properties == written.properties
    state, expected = found.optimizers["group0"], written.optimizers["group0"]
    assert (state.step, state.learning_rate) == (expected.step, expected.learning_rate)
    assert_equal(state.momentums["float32"], expected.momentums["float32"])
    found.trainable["float32"][:] = 1  # a copy that may be written to


def test_numbers_of_numpy_are_properties(tmp_path):
    properties = {"loss": np.float32(0.5), "epoch": np.int64(3)}
    write_checkpoint(Checkpoint({}, properties=properties), tmp_path / "checkpoint")
    assert read_checkpoint(tmp_path / "checkpoint").properties == {"loss": 0.5, "epoch": 3}


def test_an_empty_checkpoint(tmp_path):
    write_checkpoint(Checkpoint({}), tmp_path / "checkpoint")
    assert read_checkpoint(tmp_path / "checkpoint") == Checkpoint({})


@pytest.mark.agent
@pytest.mark.parametrize("name", TRAININGS)
def test_parameters_are_those_that_1_19_2_reads(name):
    from onnxruntime.training.api import CheckpointState as Theirs

    for file in ("checkpoint", "trained"):
        theirs = Theirs.load_checkpoint(str(STORED / name / file))
        ours = read_checkpoint(STORED / name / file)
        assert_equal({**ours.trainable, **ours.frozen}, {n: p.data for n, p in theirs.parameters})
        assert {n for n, p in theirs.parameters if p.requires_grad} == set(ours.trainable)


def test_numbers_in_a_file_beside(tmp_path):
    """As onnxruntime writes them for more than 2 GB: offsets into `checkpoint.data` in the place of the numbers."""
    data = write_external(tmp_path / "checkpoint", {"w": np.arange(6.0).reshape(2, 3), "b": np.float32([1, 2])})
    assert_equal(read_checkpoint(tmp_path / "checkpoint").trainable, data)
    path = tmp_path / "checkpoint.data"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match="outside of the file with its numbers"):
        read_checkpoint(tmp_path / "checkpoint")
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="outside of the file with its numbers"):
        read_checkpoint(tmp_path / "checkpoint")
    path.unlink()
    with pytest.raises(CheckpointError, match=r"in 'checkpoint.data', which is not beside it"):
        read_checkpoint(tmp_path / "checkpoint")
    (tmp_path / "secret").write_bytes(content)
    os.symlink(tmp_path / "secret", path)
    with pytest.raises(CheckpointError, match="not beside it"):
        read_checkpoint(tmp_path / "checkpoint")


def write_external(path, tensors):
    import flatbuffers

    b, content, offsets = flatbuffers.Builder(), b"", []
    for name, a in sorted(tensors.items()):
        dims, text = b.CreateNumpyVector(np.asarray(a.shape, np.int64)), b.CreateString(name)
        b.StartObject(7)
        b.PrependUOffsetTRelativeSlot(0, text, 0)
        b.PrependUOffsetTRelativeSlot(2, dims, 0)
        b.PrependInt32Slot(3, {"float32": 1, "float64": 11}[a.dtype.name], 0)
        b.PrependInt64Slot(6, len(content), -1)
        offsets.append(b.EndObject())
        content += a.tobytes()
    b.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    tensors_of = b.EndVector()
    b.StartObject(4)
    b.PrependUOffsetTRelativeSlot(0, tensors_of, 0)
    b.PrependBoolSlot(3, True, False)
    module = b.EndObject()
    b.StartObject(4)
    b.PrependInt32Slot(0, 2, 0)
    b.PrependUOffsetTRelativeSlot(1, module, 0)
    b.Finish(b.EndObject(), file_identifier=b"ODTC")
    path.write_bytes(bytes(b.Output()))
    path.with_name(f"{path.name}.data").write_bytes(content)
    return tensors


@pytest.mark.agent
def test_a_nominal_checkpoint_of_1_19_2(tmp_path):
    """It has names and neither shapes nor numbers, and trains once a buffer has brought them."""
    from training_artifacts import export, generate, make_batches, make_net

    from ortpartial import artifacts

    model = export(make_net("mlp"), make_batches("mlp")[0][:-1])
    generate(model, tmp_path, "CrossEntropyLoss", "AdamW", nominal_checkpoint=True)
    complete, nominal = (read_checkpoint(tmp_path / name) for name in ("checkpoint", "nominal_checkpoint"))
    assert (complete.is_nominal, nominal.is_nominal) == (False, True)
    assert complete.trainable.keys() == nominal.trainable.keys()
    modules = [artifacts.Module(tmp_path / "training_model.onnx", artifacts.CheckpointState(c))
               for c in (complete, nominal)]
    modules[1].copy_buffer_to_parameters(modules[0].get_contiguous_parameters(), trainable_only=False)
    assert len({float(module(*make_batches("mlp")[0])) for module in modules}) == 1


# Strangers' files.


def mutants(content):
    """Bytes that are cut short, changed, or have an offset or a count replaced by an extreme one."""
    rng = np.random.default_rng(0)
    for n in range(0, len(content), max(1, len(content) // 150)):
        yield content[:n]
    for _ in range(1500):
        changed = bytearray(content)
        for i in rng.integers(0, len(content), rng.integers(1, 4)):
            changed[i] = rng.integers(256)
        yield bytes(changed)
    extremes = [0, 1, 4, 2**16, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1]
    for start in range(0, len(content) - 3, 4):
        yield content[:start] + struct.pack("<I", int(rng.choice(extremes))) + content[start + 4 :]


@ON_NEWEST
@pytest.mark.parametrize("name", ["trained", "written"])
def test_malformed_files_give_one_error(name, tmp_path, monkeypatch):
    if name == "written":
        write_checkpoint(make_checkpoint(), tmp_path / "written")
        content = (tmp_path / "written").read_bytes()
    else:
        content = (STORED / "cnn" / "trained").read_bytes()
    path, refused, read = tmp_path / "checkpoint", 0, 0
    path.touch()
    every = list(mutants(content))
    for mutant in every:
        monkeypatch.setattr(checkpoint_module, "read_regular", lambda _, mutant=mutant: mutant)
        try:
            found = read_checkpoint(path)
        except CheckpointError as e:
            refused += f"{str(path)!r} is no checkpoint of onnxruntime.training: " in str(e)
        else:
            arrays = [*found.trainable.values(), *found.frozen.values()]
            assert sum(a.nbytes for a in arrays) <= 2 * len(content)
            read += 1
    assert refused + read == len(every)
    assert refused > 500
    assert read > 100


def test_tables_that_share_content_are_refused(tmp_path):
    """Many tensors that are the same bytes would take far more memory than the file has."""
    import flatbuffers

    b = flatbuffers.Builder()
    raw = b.CreateNumpyVector(np.zeros(40_000, np.uint8))
    dims = b.CreateNumpyVector(np.int64([10_000]))
    offsets = []
    for i in range(1000):
        text = b.CreateString(f"w{i}")
        b.StartObject(7)
        for slot, offset in ((0, text), (2, dims), (4, raw)):
            b.PrependUOffsetTRelativeSlot(slot, offset, 0)
        b.PrependInt32Slot(3, 1, 0)
        offsets.append(b.EndObject())
    b.StartVector(4, len(offsets), 4)
    for offset in offsets:
        b.PrependUOffsetTRelative(offset)
    tensors = b.EndVector()
    b.StartObject(4)
    b.PrependUOffsetTRelativeSlot(0, tensors, 0)
    module = b.EndObject()
    b.StartObject(4)
    b.PrependInt32Slot(0, 2, 0)
    b.PrependUOffsetTRelativeSlot(1, module, 0)
    b.Finish(b.EndObject(), file_identifier=b"ODTC")
    (tmp_path / "checkpoint").write_bytes(bytes(b.Output()))
    with pytest.raises(CheckpointError, match="its tables overlap"):
        read_checkpoint(tmp_path / "checkpoint")


def test_files_that_are_none(tmp_path):
    with pytest.raises(CheckpointError, match="is a folder; give the file"):
        read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist; give the file"):
        read_checkpoint(tmp_path / "checkpoint")
    (tmp_path / "checkpoint").write_bytes(b"")
    with pytest.raises(CheckpointError, match="does not begin as one does"):
        read_checkpoint(tmp_path / "checkpoint")


def test_what_cannot_be_written(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    with pytest.raises(CheckpointError, match="'w' has the dtype complex64"):
        write_checkpoint(Checkpoint({"w": np.zeros(1, np.complex64)}), path)
    with pytest.raises(CheckpointError, match="property 'p' is no int, float or str"):
        write_checkpoint(Checkpoint({}, properties={"p": None}), path)
    for properties in ({3: 1}, {"large": 2**63}):
        with pytest.raises(CheckpointError, match="is no int, float or str that a checkpoint holds"):
            write_checkpoint(Checkpoint({}, properties=properties), path)
    monkeypatch.setattr(checkpoint_module, "_LARGEST", 3)
    with pytest.raises(CheckpointError, match="would have 4 bytes; save the model"):
        write_checkpoint(Checkpoint({"w": np.zeros(1, np.float32)}), path)
    assert not path.exists()


def test_states_that_do_not_fit():
    two = Checkpoint({}, optimizers={"a": OptimizerState(), "b": OptimizerState()})
    with pytest.raises(CheckpointError, match="groups a, b"):
        CheckpointState(two)
