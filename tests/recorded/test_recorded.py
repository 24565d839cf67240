"""Trainings of former code load and go on: to the same bits where they were recorded, within rounding elsewhere.

`record.py` has recorded them, on both runtimes; pickles of one runtime go on with the other one, too.
"""

import pickle

import numpy as np
import pytest
from once import ON_BOTH
from recordings import (
    HERE,
    THERE,
    Recording,
    copy,
    describe_machine,
    list_recordings,
    read_machine,
    read_numbers,
    unpack,
)

pytestmark = [ON_BOTH, pytest.mark.filterwarnings("ignore::ortpartial.exceptions.ModelWarning")]
RECORDINGS = list_recordings()


class Archive:
    """What a runtime has recorded."""

    def __init__(self, folder):
        self.folder, self.machine = folder, read_machine(folder)
        self.numbers = read_numbers(folder / "numbers.npz")
        self.data = pickle.loads((folder / "data.pickle").read_bytes())


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return Archive(unpack(HERE, tmp_path_factory.mktemp("here")))


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    return Archive(unpack(THERE, tmp_path_factory.mktemp("there")))


def is_same_machine(archive: Archive, recording: Recording) -> bool:
    """Whether bits are to be equal; of machine code, those of another compiler need not be."""
    machine = describe_machine()
    return all(archive.machine[n] == machine[n] for n in machine if n != "compiler" or recording.is_native)


def assert_goes_on(archive, name, folder, is_equal):
    recording = RECORDINGS[name]
    arrays = recording.go_on(recording.read(copy(archive.folder / name, folder)), archive.data)
    assert sorted(arrays) == sorted(archive.numbers[name])
    for n, w in archive.numbers[name].items():
        if is_equal:
            np.testing.assert_array_equal(arrays[n], w, err_msg=n)
        else:
            assert np.abs(arrays[n] - w).max() <= recording.tolerance * np.abs(w).max(), n


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_training_goes_on(name, here, tmp_path):
    assert_goes_on(here, name, tmp_path, is_same_machine(here, RECORDINGS[name]))


@pytest.mark.parametrize("name", [name for name, recording in RECORDINGS.items() if recording.is_portable])
def test_a_pickle_of_the_other_runtime_goes_on(name, there, tmp_path):
    assert_goes_on(there, name, tmp_path, False)


def test_nothing_recorded_is_forgotten(here):
    """Each file of the archive is read by a test."""
    assert sorted(here.numbers) == sorted(RECORDINGS)
    assert {f.name for f in here.folder.iterdir()} == {*RECORDINGS, "data.pickle", "machine.json", "numbers.npz"}
