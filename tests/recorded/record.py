"""Record trainings of this runtime: files of every kind, and the weights that each reached when it went on.

Run with the code whose trainings are to go on, in the environment of each runtime:

    OMP_NUM_THREADS=1 PYTHONPATH=.:tests/support python tests/recorded/record.py

It writes `training.tar.xz` or `newest.tar.xz` beside it. What was recorded before stays as it is: only names that
`tests/support/recordings.py` has and the archive lacks are added, on the machine that wrote the others.
"""

import json
import pickle
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from recordings import (
    HERE,
    copy,
    describe_machine,
    list_data,
    list_recordings,
    pack,
    read_machine,
    read_numbers,
    unpack,
    write_numbers,
)


def record(folder: Path) -> None:
    """Add what is missing in a folder; each file is read again at once, and goes on to the same bits."""
    if (folder / "machine.json").exists():
        if read_machine(folder) != describe_machine():
            sys.exit(f"{HERE} was recorded on another machine: {read_machine(folder)}")
        numbers = read_numbers(folder / "numbers.npz")
    else:
        (folder / "machine.json").write_text(json.dumps(describe_machine(), indent=1) + "\n")
        (folder / "data.pickle").write_bytes(pickle.dumps(list_data()))
        numbers = {}
    data = pickle.loads((folder / "data.pickle").read_bytes())
    for name, recording in list_recordings().items():
        if name in numbers:
            continue
        trained = recording.write(folder / name, data)
        numbers[name] = {n: np.array(a) for n, a in recording.go_on(trained, data).items()}
        with tempfile.TemporaryDirectory() as temporary:
            again = recording.go_on(recording.read(copy(folder / name, Path(temporary))), data)
        for n, a in numbers[name].items():
            np.testing.assert_array_equal(again[n], a, err_msg=f"{name}: {n}")
    write_numbers(folder / "numbers.npz", numbers)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        record(unpack(HERE, Path(folder)) if HERE.exists() else Path(folder))
        pack(Path(folder), HERE)
