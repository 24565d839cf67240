import inspect

import pytest

from ortpartial.docstrings import GROUPS, document, forward_settings


def train(model, *, epochs=3, seed=None):
    """Train.

    Parameters
    ----------
    model : path
        The model.
    epochs, seed : int
        Numbers,
        of two lines.
    """


def test_paragraphs_stand_in_the_order_of_the_signature():
    @document(train)
    @forward_settings(train)
    def tune(model, trials, **settings):
        """Tune.

        Parameters
        ----------
        trials : int
            How often.

        Returns
        -------
        int
        """

    assert list(inspect.signature(tune).parameters) == ["model", "trials", "epochs", "seed"]
    assert tune.__doc__.splitlines() == [
        "Tune.", "", "Parameters", "----------", "model : path", "    The model.", "trials : int", "    How often.",
        "epochs, seed : int", "    Numbers,", "    of two lines.", "", "Returns", "-------", "int"]


def test_a_parameter_that_nobody_documents():
    def tune(model, trials):
        """Tune."""

    with pytest.raises(TypeError, match="The parameter 'trials' has no paragraph"):
        document(train)(tune)


def test_without_docstrings():
    def tune(trials):
        pass

    assert document(train)(tune) is tune
    assert tune.__doc__ is None


def test_attributes_follow_the_own_ones():
    class Base:
        """A base.

        Attributes
        ----------
        a, b : int
            Two numbers.
        """

    class Other:
        """A class with settings of the same names.

        Attributes
        ----------
        d : int
            A fourth one.
        """

    @document(Other, Base)
    class Kind(Base):
        """A kind.

        Attributes
        ----------
        c : int
            A third one.

        Examples
        --------
        >>> 1
        1
        """

    assert Kind.__doc__.index("c : int") < Kind.__doc__.index("a, b : int") < Kind.__doc__.index("Examples")
    assert "d : int" not in Kind.__doc__, "attributes are of bases, parameters of any source"


@pytest.mark.parametrize("name", ["OnnxClassifier", "OnnxRegressor", "OrtGradientForwardBackwardOptimizer",
                                  "OrtGradientOptimizer"])
def test_settings_of_a_front_are_in_one_group_each(name):
    import ortpartial

    members = [n for group in GROUPS.values() for n in group]
    assert len(members) == len(set(members))
    front = getattr(ortpartial, name)
    names = list(inspect.signature(front.__init__).parameters)[1:]
    assert set(names) <= set(members)
    groups = inspect.getdoc(front).partition("by what they concern:")[2].partition("Parameters")[0]
    assert all(f"`{n}`" in groups for n in names)
