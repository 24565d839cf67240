"""Which shapes of batches have a program of their own."""

from ortpartial.execution import shape_policy
from ortpartial.execution.shape_policy import ShapePolicy


def choose(policy, shape, steps=1, size=0):
    return policy.choose(shape, steps, lambda: size)


def test_few_shapes_are_chosen():
    """Until there are more of them."""
    policy = ShapePolicy()
    assert [choose(policy, n) for n in (10, 7, 10, 7, 3, 10, 7, 3)] == [True] * 4 + [False] * 4


def test_patience():
    """Where programs are tried on a few rows first, shapes that have come once or twice are not among the few."""
    policy = ShapePolicy(patience=3)
    assert [choose(policy, n) for n in (1, 5, 1, 5, 1, 2, 4, 5, 2, 5, 2)] == [
        False] * 4 + [True, False, False, True, False, True, False]


def test_a_shape_that_comes_often_is_chosen_and_stays():
    policy = ShapePolicy()
    for shape in "abc":
        choose(policy, shape)
    answers = [choose(policy, "c") for _ in range(shape_policy._PAYS_AFTER)]
    assert answers.index(True) == shape_policy._PAYS_AFTER - 2
    assert answers[-1]
    assert choose(policy, "d", steps=shape_policy._PAYS_AFTER)
    for n in range(1000):
        choose(policy, n)
    assert [choose(policy, shape) for shape in "abcd"] == [False, False, True, True]


def test_shapes_are_few():
    policy = ShapePolicy()
    chosen = [n for n in range(20) if choose(policy, n, steps=shape_policy._PAYS_AFTER)]
    assert chosen == list(range(ShapePolicy.MOST)) == list(policy.chosen)


def test_programs_have_room():
    """What takes too much memory is not chosen, nor asked for again; what is small still is."""
    policy, asked = ShapePolicy(frequent=2), []

    def size():
        asked.append(1)
        return shape_policy._ROOM + 1

    for _ in range(3 * shape_policy._PAYS_AFTER):
        assert not policy.choose("large", 1, size)
    assert len(asked) == 1
    assert choose(policy, "small", steps=shape_policy._PAYS_AFTER, size=shape_policy._ROOM)
    assert not choose(policy, "next", steps=shape_policy._PAYS_AFTER, size=1)


def test_shapes_that_are_counted_are_few():
    policy = ShapePolicy()
    for n in range(1000):
        choose(policy, n)
    assert len(policy.counts) == shape_policy._REMEMBERED


def test_a_copy_goes_on_as_the_policy_does():
    policy, rows = ShapePolicy(), [n % 7 for n in range(5000)]
    for n in rows:
        choose(policy, n)
    copy = ShapePolicy(*policy.state)
    assert [choose(copy, n) for n in rows] == [choose(policy, n) for n in rows]
