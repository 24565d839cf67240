"""Parts: the attributes of a module by kind, parts in evaluation, and steps of the user."""

import pytest

from ortpartial import nn
from ortpartial.exceptions import ModelError
from ortpartial.nn.parts import Part, has_own_step, is_in_evaluation, list_attributes


class Net(nn.Module):
    def __init__(self):
        self.fc, self.lists, self.named = nn.Linear(3, 2), [nn.Linear(2, 2)], {"a": (nn.Linear(2, 2), 3)}

    def forward(self, x):
        return self.fc(x)


class Trained(Net):
    def train_one_batch(self, x):
        return self.forward(x)


def test_attributes_in_lists_tuples_and_dicts():
    assert [n for n, _ in list_attributes(Net(), Part)] == ["fc", "lists.0", "named.a.0"]
    assert [n for n, _ in list_attributes(nn.Linear(3, 2), nn.Parameter)] == ["weight", "bias"]
    assert not list(list_attributes(Net(), nn.Loss))


def test_evaluation_of_a_part():
    net = Net().train()
    net.fc.eval()
    assert is_in_evaluation(net.fc, net)
    assert not is_in_evaluation(net.lists[0], net)
    assert not is_in_evaluation(net.fc, net.eval())


def test_own_steps():
    assert has_own_step(Trained())
    assert not has_own_step(Net())


def test_a_part_is_no_whole(tmp_path):
    net = Net().compile(nn.placeholder(["N", 3]))
    with pytest.raises(ModelError, match=r"^This Linear is a part of a Net, which has the training of both; save and "
                                         r"load that, or take state_dict\(\) and load_state_dict of the Linear\.$"):
        net.fc.save(tmp_path / "part.onnx")
