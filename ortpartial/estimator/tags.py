"""Tags: answers to questions of scikit-learn 1.6 and later, before it splits data or searches for settings."""

from __future__ import annotations

from typing import Any

__all__ = ["make_tags"]


def make_tags() -> Any:
    """The tags of an estimator that is fitted to targets of any kind, and predicts the outputs of a graph.

    It is neither a classifier nor a regressor to scikit-learn, as it predicts scores and not labels: a search uses its
    own `score`.

    Returns
    -------
    sklearn.utils.Tags
    """
    from sklearn.utils import InputTags, Tags, TargetTags  # noqa: TID251 - which asks for them

    target = TargetTags(required=False, multi_output=True)
    return Tags(estimator_type=None, target_tags=target, input_tags=InputTags(two_d_array=True, three_d_array=True))
