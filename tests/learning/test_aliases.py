"""Names that other libraries use, and wrong arguments of constructors."""

import copy
import pickle
import re

import pytest

from ortpartial.exceptions import SettingError
from ortpartial.learning import (
    CosineSchedule,
    ElasticLearningPenalty,
    HuberLearningLoss,
    LearningRateAdam,
    LearningRateRMSProp,
    LearningRateSGD,
    NamedSettings,
    resolve_loss,
    resolve_penalty,
    resolve_rate,
    resolve_schedule,
)
from ortpartial.learning.aliases import CHOICES, SETTINGS, normalize, suggest


@pytest.mark.parametrize(
    ("resolve", "name", "meant"),
    [
        (resolve_loss, "mse", "'square_error'"),
        (resolve_loss, "MSELoss", "'square_error'"),
        (resolve_loss, "l2", "'square_error'"),
        (resolve_loss, "mae", "'absolute_error'"),
        (resolve_loss, "crossentropy", "'cross_entropy'"),
        (resolve_loss, "sparse_categorical_crossentropy", "'softmax_cross_entropy'"),
        (resolve_loss, "BCEWithLogitsLoss", "'log_loss'"),
        (resolve_loss, "logistic", "'log_loss'"),
        (resolve_loss, "hubber", "'huber'"),
        (resolve_rate, "sgdd", "'SGD'"),
        (resolve_rate, "sgd_nesterov", "'SGDNesterov'"),
        (resolve_rate, "momentum", "LearningRateSGDNesterov(nesterov=False)"),
        (resolve_rate, "rms-prop", "'RMSProp'"),
        (resolve_penalty, "l2", "ElasticLearningPenalty(l2=0.0001)"),
        (resolve_penalty, "lasso", "ElasticLearningPenalty(l1=0.0001)"),
        (resolve_schedule, "CosineAnnealingLR", "'cosine'"),
    ],
)
def test_names_of_other_libraries(resolve, name, meant):
    with pytest.raises(SettingError, match=re.escape(f"{name!r} is not known. Did you mean {meant}? Known are ")) as e:
        resolve(name)
    assert len(str(e.value)) < 300
    if meant.startswith("'"):
        resolve(meant.strip("'"))


def test_tables_are_normalized():
    assert all(normalize(alias) == alias for alias in [*SETTINGS, *(a for table in CHOICES.values() for a in table)])
    assert suggest("zzz", ["constant"], {}) == ""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LearningRateAdam(lr=0.1), "LearningRateAdam has no setting 'lr'; did you mean 'eta0'?"),
        (lambda: LearningRateAdam(betas=(0.9, 0.99)), "LearningRateAdam has no setting 'betas'; did you mean 'beta1'?"),
        (lambda: LearningRateRMSProp(rho=0.1), "LearningRateRMSProp has no setting 'rho'; did you mean 'alpha'?"),
        (lambda: ElasticLearningPenalty(alpha=0.1),
         "ElasticLearningPenalty has no setting 'alpha'; did you mean 'l1'?"),
        (lambda: CosineSchedule(T_max=7), "CosineSchedule has no setting 'T_max'; did you mean 'n'?"),
        (lambda: HuberLearningLoss(size=7), "HuberLearningLoss has no setting 'size'; its settings are delta."),
        (lambda: LearningRateSGD(0.1, "cosine"),
         "LearningRateSGD takes eta0 without a name, and 'cosine' is one more; name its setting, as in schedule=..."),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        make()


def test_arguments_that_a_class_takes_in_any_number():
    class Open(NamedSettings):
        def __init__(self, *args, **settings):
            self.settings = settings

    opened = Open(1, 2, lr=3)
    assert opened.settings == {"lr": 3}
    assert copy.copy(opened).settings == {"lr": 3}
    rate = LearningRateAdam(0.1, beta1=0.5)
    assert pickle.loads(pickle.dumps(rate)) == copy.deepcopy(rate) == rate
