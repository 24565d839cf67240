"""Class weights as settings: compared by value, and checked."""

import pickle
import re

import numpy as np
import pytest

from ortpartial.exceptions import GraphError, SettingError
from ortpartial.graph.ops import variable
from ortpartial.learning.class_weights import balance_classes, check_class_weight, list_class_weights
from ortpartial.learning.losses import SoftmaxCrossEntropyLearningLoss as Loss


@pytest.mark.parametrize("setting", [[1, 2], (1.0, 2.0), np.array([1, 2]), {0: 1, 3: 2}, {np.int64(0): np.float32(1)},
                                     "balanced", None], ids=repr)
def test_settings(setting):
    loss = Loss(class_weight=setting)
    assert loss == Loss(class_weight=loss.class_weight) == pickle.loads(pickle.dumps(loss))
    assert hash(loss) == hash(pickle.loads(pickle.dumps(loss)))
    assert eval(repr(loss), {"SoftmaxCrossEntropyLearningLoss": Loss}) == loss
    assert loss != Loss(class_weight={7: 7})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("uniform", "class_weight is 'uniform'; an array with a number for each class, a dict of them by class, "
                    "'balanced' or None was expected."),
        (2.0, "class_weight is 2.0; an array"),
        ([1, -1], "class_weight has -1, a finite number at least 0 was expected."),
        ([1, np.inf], "class_weight has inf, a finite number at least 0 was expected."),
        ([[1, 2]], "class_weight has [1, 2], a finite number"),
        ({0: "a"}, "class_weight has 'a', a finite number"),
        ({"cat": 1}, "class_weight is for the class 'cat', a whole number at least 0 was expected."),
        ({-1: 1}, "class_weight is for the class -1, a whole number at least 0 was expected."),
    ],
)
def test_errors(setting, message):
    with pytest.raises(SettingError, match=f"^{re.escape(message)}"):
        check_class_weight(setting)


def test_lists():
    assert list_class_weights(None, 3) is list_class_weights("balanced", 3) is None
    assert list_class_weights((1.0, 2.0), 3).tolist() == [1, 2]
    assert list_class_weights(check_class_weight({1: 3}), 3).tolist() == [1, 3, 1]
    assert list_class_weights(check_class_weight({4: 3}), 3).tolist() == [1, 1, 1, 1, 3]
    assert balance_classes(np.array([1, 1, 1, 5])) == {1: 4 / 6, 5: 2}


@pytest.mark.parametrize(("setting", "n", "message"), [
    ([1, 2], 3, r"class_weight is for 2 classes, and the scores of shape \('N', 3\) have 3\."),
    ({3: 1}, 3, r"class_weight is for 4 classes, and the scores of shape \('N', 3\) have 3\."),
    ({0: 1}, None, r"class_weight is a dict, and the number of classes of the scores .* is not known; give an array"),
])
def test_classes_that_do_not_fit(setting, n, message):
    with pytest.raises(GraphError, match=message):
        Loss(class_weight=setting)(variable("y", "float32", ["N", n]), variable("t", "int64", ["N"]))
