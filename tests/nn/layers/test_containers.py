"""Containers: names, order and changes as torch's."""

from collections import OrderedDict

import numpy as np
import pytest
import torch

from ortpartial import nn
from ortpartial.exceptions import SettingError


def build(library, container=None):
    """The same layers of either library."""
    return (container or library.Sequential)(library.Linear(3, 4), library.Tanh(), library.Linear(4, 2))


def names(model):
    return list(model.state_dict())


def test_sequential_is_that_of_torch():
    theirs = torch.nn.Sequential(build(torch.nn), torch.nn.ReLU(), build(torch.nn)[2:][:0], torch.nn.Linear(2, 1))
    ours = nn.Sequential(build(nn), nn.ReLU(), nn.Sequential(), nn.Linear(2, 1)).compile(nn.placeholder(["N", 3]))
    ours.load_state_dict(theirs.state_dict())
    assert names(ours) == ["0.0.weight", "0.0.bias", "0.2.weight", "0.2.bias", "3.weight", "3.bias"]
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert abs(ours(x) - theirs(torch.from_numpy(x)).detach().numpy()).max() < 1e-6


def test_sequential_takes_names():
    layers = OrderedDict(hidden=nn.Linear(3, 4), out=nn.Linear(4, 2))
    model = nn.Sequential(layers).compile(nn.placeholder(["N", 3]))
    assert names(model) == ["hidden.weight", "hidden.bias", "out.weight", "out.bias"]
    assert model.out is layers["out"]
    assert names(model[1:].compile(nn.placeholder(["N", 4]))) == ["out.weight", "out.bias"]


@pytest.mark.parametrize("name", ["Sequential", "ModuleList"])
def test_sequences_change_as_those_of_torch(name):
    def change(library):
        first = [library.Identity(), library.ReLU(), library.Tanh(), library.Sigmoid()]
        s = getattr(library, name)(*([first] if name == "ModuleList" else first))
        s.append(library.SiLU()).extend([library.ELU(), library.Mish()]).insert(1, library.GELU())
        s[2], s[-1] = library.SELU(), library.CELU()
        del s[0]
        del s[-3:-1]
        parts = [[type(m).__name__ for m in part] for part in (s, s[1:], s[:0])]
        return len(s), parts, type(s[0]).__name__, type(s[1:]).__name__, [n for n, _ in s.named_modules()]

    assert change(nn) == change(torch.nn)


def test_module_dict_is_that_of_torch():
    def change(library):
        d = library.ModuleDict({"b": library.ReLU(), "a": library.Tanh()})
        d["c"] = library.GELU()
        d.update({"a": library.SiLU(), "d": library.Linear(2, 1)})
        popped = type(d.pop("b")).__name__
        del d["c"]
        content = [(n, type(m).__name__) for n, m in d.items()], list(d), list(d.keys()), len(list(d.values()))
        inside = "a" in d, "b" in d, len(d), type(d["a"]).__name__
        d.clear()
        return popped, content, inside, len(d)

    assert change(nn) == change(torch.nn)


@pytest.mark.parametrize(("make", "sentence"), [
    (lambda: nn.Sequential(nn.ReLU(), np.tanh), "Sequential: '1' is <ufunc 'tanh'>, a module was expected; a func"),
    (lambda: nn.ModuleDict({"a.b": nn.ReLU()}), "ModuleDict: 'a.b' cannot be the name of a module"),
    (lambda: nn.Sequential({"forward": nn.ReLU()}), "Sequential: 'forward' cannot be the name of a module"),
])
def test_what_is_no_module_or_name(make, sentence):
    with pytest.raises(SettingError) as error:
        make()
    assert str(error.value).startswith(sentence)
