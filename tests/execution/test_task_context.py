"""Contexts of tasks: a tree, numbered in order, that belongs to one fit."""

from ortpartial.execution.task_context import TaskContext


def test_a_tree():
    fit = TaskContext("Optimizer", max_subtasks=2)
    first, second = fit.subcontext("epoch", 3), fit.subcontext("epoch", 3)
    batches = second.subcontext("batches")
    assert (fit.task_name, fit.task_id, fit.parent) == ("fit", 0, None)
    assert [c.task_id for c in (first, second, batches)] == [0, 1, 0]
    assert (batches.parent, batches.task_name, second.max_subtasks) == (second, "batches", 3)
    assert {c.root_uuid for c in (fit, first, second, batches)} == {fit.root_uuid}
    assert batches.estimator_name == "Optimizer"


def test_fits_differ():
    assert TaskContext("a").root_uuid != TaskContext("a").root_uuid
    assert TaskContext("a") != TaskContext("a")
