"""Overrides: what a subclass or an instance does in place of the loop, and None for what it leaves."""

from ortpartial.execution.overrides import Overrides, find_overrides


class Base:
    def train_step(self, batch):
        return 0.0

    def validation_step(self, batch):
        return 0.0


class Mine(Base):
    def train_step(self, batch):
        return 1.0

    def on_epoch_end(self):
        return "end"


def test_the_class_itself_overrides_nothing():
    assert find_overrides(Base(), Base) == Overrides()


def test_a_subclass():
    overrides = find_overrides(Mine(), Base)
    assert overrides.train_step(None) == 1.0
    assert overrides.on_epoch_end() == "end"
    assert overrides.validation_step is overrides.on_epoch_begin is None


def test_an_instance():
    """A method that was assigned, as in a notebook."""
    instance = Base()
    instance.validation_step = lambda batch: 2.0
    overrides = find_overrides(instance, Base)
    assert overrides.validation_step(None) == 2.0
    assert overrides.train_step is None
