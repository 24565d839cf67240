"""Parameters: their numbers are made by any initializer, before a module is compiled and after that."""

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.exceptions import SettingError
from ortpartial.nn.initializers import INITIALIZERS


class Product(nn.Module):
    def __init__(self):
        self.weight = nn.Parameter([6, 4])
        self.bias = nn.Parameter([6])

    def forward(self, x):
        return x @ self.weight.T + self.bias


def compiled(model, random_state=0, **settings):
    return model.compile(nn.placeholder(["N", 4]), random_state=random_state, **settings)


#: By method, settings, and by what the numbers are checked.
METHODS = {
    "uniform": ((-1, 1), lambda w: abs(w).max() <= 1 and abs(w).max() > 0.5),
    "normal": ((5, 0.1), lambda w: abs(w - 5).max() < 0.5),
    "truncated_normal": ((5, 0.1), lambda w: abs(w - 5).max() < 0.21),
    "constant": ((3,), lambda w: (w == 3).all()),
    "zeros": ((), lambda w: not w.any()),
    "ones": ((), lambda w: (w == 1).all()),
    "glorot_uniform": ((2,), lambda w: 0.6 < abs(w).max() <= 2 * 0.6**0.5),
    "glorot_normal": ((), lambda w: 0.3 < w.std() < 0.6),
    "he_uniform": ((), lambda w: 0.7 < abs(w).max() <= 1.5**0.5),
    "he_normal": ((0.0, "fan_out"), lambda w: 0.4 < w.std() < 0.8),
    "lecun_uniform": ((), lambda w: 0.5 < abs(w).max() <= 0.75**0.5),
    "lecun_normal": ((), lambda w: 0.3 < w.std() < 0.7),
    "orthogonal": ((2,), lambda w: abs(w.T @ w - 4 * np.eye(4)).max() < 1e-5),
}


def test_every_initializer_is_a_method():
    assert METHODS.keys() == INITIALIZERS.keys()
    assert all(callable(getattr(nn.Parameter, name)) for name in INITIALIZERS)
    assert nn.Parameter.uniform.__name__ == "uniform"
    with pytest.raises(TypeError, match=r"^Normal has no setting 'stddev'; did you mean 'std'\?$"):
        nn.Parameter([3]).normal(stddev=1)


@pytest.mark.parametrize("name", METHODS)
def test_parameters_are_made_before_a_module_is_compiled_and_after_that(name):
    settings, is_right = METHODS[name]
    before, after = Product(), compiled(Product())
    assert getattr(before.weight, name)(*settings) is None
    compiled(before)
    getattr(after.weight, name)(*settings)
    for model in (before, after):
        w = model.state_dict()["weight"]
        assert is_right(w)
        x = np.eye(4, dtype=np.float32)
        np.testing.assert_allclose(model(x), w.T, rtol=1e-6)
        assert not model.state_dict()["bias"].any()
        assert model.weight.initializer == INITIALIZERS[name](*settings)


def test_named_parameters_are_set_before_the_first_batch():
    class Net(nn.Module):
        def __init__(self):
            self.first, self.second = Product(), nn.Linear(6, 2)

        def forward(self, x):
            return self.second(self.first(x))

    model = Net()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.constant(0.25)
        else:
            parameter.uniform(-1, 1)
    model.set_optimizer("adam")
    compiled(model)
    state = model.state_dict()
    assert list(state) == ["first.weight", "first.bias", "second.weight", "second.bias"]
    assert all((a == 0.25).all() if n.endswith("bias") else 0.5 < abs(a).max() <= 1 for n, a in state.items())
    with pytest.warns(FutureWarning, match="'get_params' is a former name of a method, and goes in version 0\\.3; its"):
        former = model.get_params()
    for _, parameter in former:  # once more, before the first batch
        parameter.set(np.full(parameter.shape, 2, np.float32))
    assert all((a == 2).all() for a in model.state_dict().values())
    model.train_one_batch(np.ones((3, 4), np.float32), np.zeros((3, 2), np.float32))
    assert all((a != 2).all() for a in model.state_dict().values())
    model.second.weight.zeros()  # and in a training that runs
    assert not model.state_dict()["second.weight"].any()


def test_numbers_are_the_same_without_a_graph():
    models = [compiled(Product(), use_graph=use_graph) for use_graph in (True, False)]
    for model in models:
        model.weight.orthogonal()
        model.set_optimizer("SGD").train_one_batch(np.ones((3, 4), np.float32), np.zeros((3, 6), np.float32))
        model.bias.normal(0, 1)
    first, second = (model.state_dict() for model in models)
    assert all(np.array_equal(first[n], second[n]) for n in ("weight", "bias"))
    assert models[0].summary().rows == models[1].summary().rows


def test_numbers_follow_from_the_seed_of_the_module():
    first, again, other = (compiled(Product(), seed) for seed in (1, 1, 2))
    for model in (first, again, other):
        model.weight.orthogonal()
        model.weight.uniform(-1, 1)
    assert np.array_equal(first.weight.numpy(), again.weight.numpy())
    assert not np.array_equal(first.weight.numpy(), other.weight.numpy())
    first.weight.initialize("normal", random_state=5)
    other.weight.initialize("normal", random_state=5)
    assert np.array_equal(first.weight.numpy(), other.weight.numpy())


def test_parameters_of_one_shape_have_numbers_of_their_own():
    class Pair(nn.Module):
        def __init__(self):
            self.a, self.b = nn.Parameter([4, 4], "he_uniform"), nn.Parameter([4, 4], "he_uniform")

        def forward(self, x):
            return x @ self.a @ self.b

    model = compiled(Pair())
    assert not np.array_equal(model.a.numpy(), model.b.numpy())


def test_numbers_that_no_parameter_takes():
    weight, bias = nn.Parameter([6, 4]), nn.Parameter([6])
    with pytest.raises(SettingError, match=r"^<Parameter float32\[6\]>: HeNormal initializes weights of the shape "
                                           r"\[out, in, ...\], and the parameter has \[6\]; give it another"):
        bias.he_normal()
    with pytest.raises(SettingError, match=r"^<Parameter float32\[6x4\]>: Constant: the array has the shape \(4,\), "
                                           r"and the parameter \(6, 4\)\.$"):
        weight.constant([1, 2, 3, 4])
    with pytest.raises(SettingError, match=r"^<Parameter int64\[3\]>: Random numbers are real, and the parameter has "):
        nn.Parameter([3], "normal", dtype="int64")
    with pytest.raises(SettingError, match=r"Did you mean 'glorot_uniform'\?"):
        nn.Parameter([3, 3], "xavier_uniform")
    with pytest.raises(SettingError, match=r"^The shape of a parameter is made of whole numbers of at least 0, not -1"):
        nn.Parameter([3, -1])
    assert weight.initializer == nn.Constant(0.0)  # as it was
    assert nn.Parameter(3, "ones").numpy().tolist() == [1, 1, 1]


def test_parameters_are_used_as_values_are():
    class Net(nn.Module):
        def __init__(self):
            self.weight = nn.Parameter([4, 3], np.arange(12).reshape(4, 3))

        def forward(self, x):
            w = self.weight
            return [x @ w, x @ w.T.T, w[1] + w[0, 1:].sum() + x[:, :3] * 0, 2 - w.mean(), -w, np.exp(w * 0)]

    model = compiled(Net())
    x, w = np.eye(4, dtype=np.float32), np.arange(12).reshape(4, 3)
    for y, expected in zip(model(x), [w, w, np.broadcast_to(w[1] + 3, (4, 3)), -3.5, -w, np.ones((4, 3))], strict=True):
        np.testing.assert_array_equal(y, expected)


def test_numbers_of_another_shape():
    model = Product()
    with pytest.raises(SettingError, match=r"takes numbers of the shape \(6, 4\), not \(4, 6\)\."):
        model.weight.set(np.zeros((4, 6)))
