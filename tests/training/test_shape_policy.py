"""Which shapes of batches have a program of their own."""

from ortpartial.training import shape_policy
from ortpartial.training.shape_policy import ShapePolicy


def choose(policy, shape, steps=1, size=0):
    return policy.choose(shape, steps, lambda: size)


def test_the_first_shapes_are_chosen():
    policy = ShapePolicy()
    assert [choose(policy, n) for n in (10, 7, 3, 10, 7, 3)] == [True, True, False, True, True, False]


def test_patience():
    """Where programs are tried on a few rows first, the first shapes wait, too."""
    policy = ShapePolicy(patience=3)
    assert [choose(policy, n) for n in (1, 5, 1, 5, 1, 5, 2)] == [False] * 4 + [True, True, False]


def test_a_shape_that_comes_often_is_chosen_and_stays():
    policy = ShapePolicy({"a": 0, "b": 0})
    answers = [choose(policy, "c") for _ in range(shape_policy._PAYS_AFTER + 1)]
    assert answers.index(True) == shape_policy._PAYS_AFTER - 1
    assert answers[-1]
    assert choose(policy, "d", steps=shape_policy._PAYS_AFTER)
    for n in range(1000):
        choose(policy, n)
    assert all(choose(policy, shape) for shape in "abcd")


def test_shapes_are_few():
    policy = ShapePolicy()
    chosen = [n for n in range(20) if choose(policy, n, steps=shape_policy._PAYS_AFTER)]
    assert chosen == list(range(ShapePolicy.MOST)) == list(policy.chosen)


def test_programs_have_room():
    """What takes too much memory is not chosen, nor asked for again; what is small still is."""
    policy, asked = ShapePolicy({"a": 0, "b": 0}), []

    def size():
        asked.append(1)
        return shape_policy._ROOM + 1

    for _ in range(3 * shape_policy._PAYS_AFTER):
        assert not policy.choose("large", 1, size)
    assert len(asked) == 1
    assert choose(policy, "small", steps=shape_policy._PAYS_AFTER, size=shape_policy._ROOM)
    assert not choose(policy, "next", steps=shape_policy._PAYS_AFTER, size=1)


def test_shapes_that_are_counted_are_few():
    policy = ShapePolicy({"a": 0, "b": 0})
    for n in range(1000):
        choose(policy, n)
    assert len(policy.counts) == shape_policy._REMEMBERED


def test_a_copy_goes_on_as_the_policy_does():
    policy, rows = ShapePolicy(), [n % 7 for n in range(5000)]
    for n in rows:
        choose(policy, n)
    copy = ShapePolicy(policy.chosen, policy.counts)
    assert [choose(copy, n) for n in rows] == [choose(policy, n) for n in rows]
