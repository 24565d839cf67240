"""The former name of the lock, by which pickles find it."""

import pickle

from ortpartial.runtime import FairLock


def test_a_pickle_with_the_former_name_loads():
    assert type(pickle.loads(b"cortpartial.runtime.turns\nTurn\n)R.")) is FairLock
