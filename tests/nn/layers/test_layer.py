"""Settings of layers are checked by their annotations."""

import copy
import inspect
import pickle

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.exceptions import SettingError

LAYERS = [getattr(nn, n) for n in nn.__all__ if getattr(getattr(nn, n), "__module__", "").startswith(
    "ortpartial.nn.layers") and n not in ("Sequential", "ModuleList", "ModuleDict", "Identity")]
#: A wrong value of each kind of setting.
WRONG = {"bool": ("no", "is True or False, not 'no'"), "int": (2.5, "is a whole number, not 2.5"),
         "int | None": ("3", "is a whole number, not '3'"), "float": (np.nan, "is nan, a finite number was expected"),
         "float | None": ([], "is [], a finite number was expected"), "DTypeLike": ("S3", "is a dtype of numbers")}


def list_settings():
    return [(layer, p.name, *WRONG[p.annotation]) for layer in LAYERS
            for p in inspect.signature(layer.__init__).parameters.values() if p.annotation in WRONG]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_every_setting_is_refused_by_name(layer):
    for _, name, value, sentence in (row for row in list_settings() if row[0] is layer):
        with pytest.raises(SettingError) as error:
            layer(**{name: value})
        assert str(error.value).startswith(f"{layer.__name__}: {name} {sentence}")


def test_there_are_many():
    assert len(list_settings()) > 150


def test_numbers_and_flags_of_numpy_are_taken():
    layer = nn.Linear(np.int64(3), np.int8(2), np.True_, dtype=np.float64)
    assert layer.weight.shape == (2, 3)
    assert nn.BatchNorm1d(2, np.float32(1e-3), None).momentum is None


def test_arguments_without_names_are_checked_too():
    with pytest.raises(SettingError, match=r"^Linear: bias is True or False, not 'no'\.$"):
        nn.Linear(3, 2, "no")
    with pytest.raises(TypeError, match=r"^Linear takes no 'biass'; did you mean 'bias'\?$"):
        nn.Linear(3, 2, biass=True)


class Derived(nn.Linear):
    """Has annotations of its own, which say nothing about values."""

    def __init__(self, sizes: int, flag: bool = False):
        super().__init__(*sizes)


def test_a_derived_class_checks_its_own_arguments():
    layer = Derived((3, 2), "yes")
    assert layer.weight.shape == (2, 3)
    with pytest.raises(SettingError, match=r"Derived: in_features is a whole number of at least 0, not 2\.5"):
        Derived((2.5, 2))


def test_copies_are_made_without_arguments():
    layer = nn.Conv2d(1, 2, 3)
    assert copy.deepcopy(layer).weight.shape == pickle.loads(pickle.dumps(layer)).weight.shape == (2, 1, 3, 3)
