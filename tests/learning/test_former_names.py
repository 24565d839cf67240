"""Former names: a setting of onnxcustom becomes today's, or the error has advice."""

import pytest

from ortpartial.exceptions import SettingError
from ortpartial.learning.former_names import (
    FORMER_ATTRIBUTES,
    FormerAttributes,
    accept_former_names,
    advise,
    find_former,
    refuse_former_names,
)


class Trainer(FormerAttributes):
    @accept_former_names
    def __init__(self, model, weights_to_train=None, *, device="cpu", verbose=0):
        self.settings = {"model": model, "weights_to_train": weights_to_train, "device": device}


@pytest.mark.parametrize(("former", "today"), [
    ({"model_onnx": "m"}, {"model": "m"}),
    ({"model": "m", "device": "cuda", "device_index": 1}, {"device": "cuda:1"}),
    ({"model": "m", "providers": ["CUDAExecutionProvider"]}, {"device": "cuda"}),
])
def test_former_settings(former, today):
    settings = Trainer(**former).settings
    assert {n: settings[n] for n in today} == today


def test_what_contradicts_itself():
    with pytest.raises(SettingError, match="model is given twice, under another name as well"):
        Trainer(model="m", model_onnx="n")
    with pytest.raises(SettingError, match="device_index=1 is not the number of device='cpu'; write device='cuda:1'"):
        Trainer("m", device_index=1)


def test_former_attributes():
    name, advice = next(iter(FORMER_ATTRIBUTES.items()))
    with pytest.raises(AttributeError) as e:
        getattr(Trainer("m"), name)
    assert str(e.value) == f"Trainer has no attribute {name!r}; {advice}."


def test_former_arguments():
    @refuse_former_names
    def LearningRateSGD(eta0=0.1):
        return eta0

    assert LearningRateSGD(eta0=3) == 3
    with pytest.raises(TypeError, match=r"LearningRateSGD takes no 'power_t'; write schedule=InvScaling"):
        LearningRateSGD(power_t=0.5)


def test_advice():
    assert advise("LearningRateSGD", "power_t", ()).startswith("write schedule=")
    assert advise("Trainer", "unheard_of", ("model",)) == ""
    assert "model_onnx" in find_former(["model"])
    assert "model_onnx" not in find_former(["other"])
