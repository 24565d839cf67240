"""Tasks of an optimizer's fit: callbacks are told of a fit and its epochs, and change settings that are shared."""

from models import data, linear

from ortpartial import Callback, OrtGradientForwardBackwardOptimizer
from ortpartial.estimator.tasks import make_tasks

X, Y, _ = data(10)


class Told(Callback):
    def __init__(self):
        self.tasks = []

    def on_fit_task_begin(self, estimator, context):
        self.tasks.append((context.task_name, context.task_id))


def test_what_callbacks_are_told():
    told = Told()
    OrtGradientForwardBackwardOptimizer(linear(), max_iter=2, callbacks=[told]).fit(X, Y)
    assert told.tasks == [("fit", 0), ("epoch", 0), ("epoch", 1)]


def test_tasks_are_of_the_optimizer():
    optimizer = OrtGradientForwardBackwardOptimizer(linear(), max_iter=2)
    assert type(make_tasks(optimizer, X, Y)).__name__ == "FitTasks"


def test_a_setting_that_a_callback_changes_counts_from_then_on():
    def halve(optimizer):
        optimizer.set_params(learning_rate=optimizer.learning_rate.eta0 / 2)

    optimizer = OrtGradientForwardBackwardOptimizer(linear(), learning_rate=0.5, max_iter=3, callbacks=[halve])
    assert optimizer.fit(X, Y).learning_rate_ == 0.0625
