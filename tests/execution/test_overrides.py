"""Overrides: a subclass takes the steps of a fit itself, validates, and is called around each epoch."""

import pickle

import numpy as np
import pytest
from models import linear
from once import ON_BOTH
from trainings import X_VAL, Y_VAL, W, X, Y

from ortpartial import Checkpoint, OrtGradientForwardBackwardOptimizer, OrtGradientOptimizer, add_loss_output
from ortpartial.exceptions import ConvergenceError, ConvergenceWarning
from ortpartial.execution import find_overrides

pytestmark = ON_BOTH
SETTINGS = {"learning_rate": "Adam", "batch_size": 8, "max_iter": 3, "random_state": 0, "engine": "step"}


def alike(a, b):
    """Whether weights and optimizer states are the same bits."""
    return all(np.array_equal(u, v) for kind in ("weight", "optimizer")
               for u, v in zip(a.get_state(kind), b.get_state(kind), strict=True))


class Own(OrtGradientForwardBackwardOptimizer):
    """Its steps are those of the optimizer, and it counts them."""

    steps = 0

    def train_step(self, batch):
        self.steps += 1
        return super().train_step(batch)


@pytest.mark.parametrize("weights", [None, W], ids=["alike", "weighted"])
def test_a_step_that_calls_the_former_one_is_the_same(weights):
    """The weights are those of the engine's own loop, to the last bit, and so is the order of the rows."""
    first, second = (make(linear(), **SETTINGS).fit(X, Y, weights)
                     for make in (OrtGradientForwardBackwardOptimizer, Own))
    assert alike(first, second)
    assert second.steps == 3 * -(-len(X) // 8)
    if weights is None:
        assert np.allclose(first.train_losses_, second.train_losses_, rtol=1e-6)


def test_batches_of_an_iterable():
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, len(X), 8)]
    first, second = (make(linear(), **SETTINGS).fit(batches) for make in (OrtGradientForwardBackwardOptimizer, Own))
    assert alike(first, second)
    assert second.steps == 3 * len(batches)


def test_batches_without_a_target():
    seen = []

    class Unsupervised(OrtGradientForwardBackwardOptimizer):
        def train_step(self, batch):
            seen.append(batch)
            return super().train_step((batch[0], batch[0][:, :1]))

    Unsupervised(linear(), **SETTINGS).partial_fit([X[:8], X[8:16]])
    assert [(b[0].shape, b[1], b[2]) for b in seen] == [((8, 4), None, None)] * 2


def test_partial_fit_and_pickles():
    first, second = (make(linear(), **SETTINGS).partial_fit(X, Y)
                     for make in (OrtGradientForwardBackwardOptimizer, Own))
    again = pickle.loads(pickle.dumps(second)).partial_fit(X, Y)
    assert alike(first.partial_fit(X, Y), again)
    assert again.steps == 2 * second.steps


def test_a_graph_that_holds_its_loss():
    class Full(OrtGradientOptimizer):
        def train_step(self, batch):
            return super().train_step(batch)

    model = add_loss_output(linear())
    first, second = (make(model, **SETTINGS).fit(X, Y) for make in (OrtGradientOptimizer, Full))
    assert alike(first, second)


def test_a_fit_that_was_cut_off_goes_on(tmp_path):
    """In the middle of an epoch, to the same bits and the same losses."""

    class Cut(Own):
        end = None

        def train_step(self, batch):
            if self.steps == self.end:
                raise OSError("cut off")
            return super().train_step(batch)

    whole = Cut(linear(), **SETTINGS).fit(X, Y)
    cut = Cut(linear(), **SETTINGS, callbacks=[Checkpoint(tmp_path, seconds=0.0)])
    cut.end = whole.steps // 2
    with pytest.raises(OSError, match="cut off"):
        cut.fit(X, Y)
    again = Cut(linear(), **SETTINGS, callbacks=[Checkpoint(tmp_path)]).fit(X, Y, resume=tmp_path)
    assert 0 < again.steps < whole.steps
    assert alike(whole, again)
    assert again.train_losses_ == whole.train_losses_


def test_callbacks_between_own_steps():
    seen = []

    def stop(o):
        seen.append((o.n_iter_, o.training_view().iteration))
        return o.n_iter_ == 2

    Own(linear(), **SETTINGS, callbacks=[stop]).fit(X, Y)
    assert seen == [(1, 8), (2, 16)]


def test_divergence_in_the_former_step():
    o = Own(linear(), **{**SETTINGS, "learning_rate": 1e30})
    with pytest.raises(ConvergenceError, match=r"at iteration \d+ \(epoch 1\)"):
        o.fit(X, Y)
    assert all(np.isfinite(a).all() for a in o.get_state())
    o.raise_on_divergence = False
    with pytest.warns(ConvergenceWarning, match="the weights are those of iteration"):
        o.fit(X, Y)


def test_a_loss_of_an_own_step_that_is_not_finite():
    class Nan(OrtGradientForwardBackwardOptimizer):
        def train_step(self, batch):
            super().train_step(batch)
            return np.nan

    with pytest.raises(ConvergenceError, match="The loss is nan"):
        Nan(linear(), **SETTINGS).fit(X, Y)


def test_validation():
    class Measured(OrtGradientForwardBackwardOptimizer):
        def validation_step(self, batch):
            X, y, _ = batch
            return {"loss": super().validation_step(batch), "error": np.abs(self.predict(X) - y).mean()}

    first, second = (make(linear(), **SETTINGS, validation_every=1).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
                     for make in (OrtGradientForwardBackwardOptimizer, Measured))
    assert np.allclose(first.validation_losses_, second.validation_losses_)
    assert [record["validation_error"] > 0 for record in second.history_] == [True] * 3
    assert alike(first, second)


def test_a_share_of_the_rows_validates():
    class Measured(OrtGradientForwardBackwardOptimizer):
        def validation_step(self, batch):
            return float(len(next(iter(batch[0].values()))))

    assert Measured(linear(), **SETTINGS).fit(X, Y, X_val=0.25).validation_losses_ == [15.0] * 3


def test_hooks_around_an_epoch():
    told = []

    class Hooked(OrtGradientForwardBackwardOptimizer):
        def on_epoch_begin(self):
            told.append(("begin", self.n_iter_))

        def on_epoch_end(self):
            told.append(("end", self.n_iter_))
            return self.n_iter_ == 2

    o = Hooked(linear(), **SETTINGS, callbacks=[lambda o: told.append(("callback", o.n_iter_))]).fit(X, Y)
    assert told == [("begin", 0), ("end", 1), ("callback", 1), ("begin", 1), ("end", 2), ("callback", 2)]
    assert o.n_iter_ == 2
    assert alike(o, OrtGradientForwardBackwardOptimizer(linear(), **{**SETTINGS, "max_iter": 2}).fit(X, Y))


def test_who_has_asked_to_stop(capsys):
    class Hooked(OrtGradientForwardBackwardOptimizer):
        def on_epoch_end(self):
            return True

    Hooked(linear(), **SETTINGS, verbose=2).fit(X, Y)
    assert capsys.readouterr().out.endswith("training ended after 1 of 3 epochs: stopped by on_epoch_end\n")


def test_a_step_of_its_own_is_that_of_a_fit():
    o, fitted = (OrtGradientForwardBackwardOptimizer(linear(), **SETTINGS, shuffle=False) for _ in range(2))
    losses = [o.train_step((X[i : i + 8], Y[i : i + 8])) for i in range(0, len(X), 8)]
    assert alike(o, fitted.partial_fit(X, Y))
    assert np.mean(losses) == pytest.approx(fitted.train_losses_[0], rel=0.1)
    assert o.validation_step((X, Y)) == pytest.approx(float(np.mean(o.losses(X, Y))), rel=1e-5)


def test_a_method_of_one_object():
    o = OrtGradientForwardBackwardOptimizer(linear(), **SETTINGS)
    seen = []
    o.train_step = lambda batch: seen.append(batch) or 1.0
    assert o.fit(X, Y).train_losses_ == [1.0] * 3
    assert len(seen) == 3 * 8
    assert find_overrides(o, OrtGradientForwardBackwardOptimizer).train_step is o.train_step
