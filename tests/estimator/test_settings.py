import inspect

import pytest

from ortpartial import OnnxRegressor, OrtGradientForwardBackwardOptimizer, OrtGradientOptimizer
from ortpartial.estimator.settings import EstimatorSettings, OptimizerSettings


@pytest.mark.parametrize(("settings", "door", "apart"), [
    (OptimizerSettings, OrtGradientForwardBackwardOptimizer, "learning_loss"),
    (EstimatorSettings, OnnxRegressor, "loss")])
def test_types_that_editors_see_are_those_of_the_constructor(settings, door, apart):
    keywords = {n: p.annotation for n, p in inspect.signature(door.__init__).parameters.items()
                if p.kind is p.KEYWORD_ONLY and n != apart}
    assert {n: hint.__forward_arg__ for n, hint in settings.__annotations__.items()} == keywords


def test_the_front_of_full_training_has_all_settings():
    front, whole = (inspect.signature(c.__init__).parameters for c in (OrtGradientOptimizer,
                                                                       OrtGradientForwardBackwardOptimizer))
    passed = {n: p for n, p in whole.items() if n != "learning_loss"}
    assert {n: p for n, p in front.items() if n in passed} == passed
    assert front.keys() - passed == {"loss_output_name", "label_names", "sample_weight_name"}
