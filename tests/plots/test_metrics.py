"""Curves of metrics, and the best epoch of each."""

import matplotlib.pyplot as plt
import pytest

from ortpartial.exceptions import DataError
from ortpartial.plots import plot_metrics

HISTORY = [{"epoch": 1, "loss": 3.0, "accuracy": 0.4, "val_accuracy": 0.5, "val_mse": 3.0, "validation_loss": 1.0},
           {"epoch": 2, "loss": 2.0, "accuracy": 0.5, "val_accuracy": 0.7, "val_mse": 2.0, "validation_loss": 1.0},
           {"epoch": 3, "loss": 1.0, "accuracy": 0.9}]


def labels(*names, history=HISTORY):
    ax = plot_metrics(history, *names)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    plt.close(ax.figure)
    return texts


def test_curves():
    assert labels() == ["training accuracy", "validation accuracy", "best: 0.7 in epoch 2", "validation mse",
                        "best: 2 in epoch 2"]
    assert labels("val_mse") == ["validation mse", "best: 2 in epoch 2"]
    assert labels("accuracy", history=[{"epoch": 1, "accuracy": 0.5}]) == ["training accuracy", "best: 0.5 in epoch 1"]


@pytest.mark.parametrize(("name", "best"), [("y_accuracy", 2), ("y_mse", 1), ("my_error", 1), ("mine", 2)])
def test_better(name, best):
    history = [{"epoch": i, f"val_{name}": float(i)} for i in (1, 2)]
    assert labels(history=history)[-1].endswith(f"in epoch {best}")


def test_errors():
    with pytest.raises(DataError, match="No epoch has the metric 'f1'; name it in the setting metrics"):
        plot_metrics(HISTORY, "f1")
    with pytest.raises(DataError, match="No epoch has a metric of validation data"):
        plot_metrics([1.0, 2.0])
