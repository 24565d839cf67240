"""Task contexts: where in a fit a callback is called, with the attributes of scikit-learn's `CallbackContext`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from uuid import UUID, uuid4

__all__ = ["TaskContext"]


def _now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(eq=False)
class TaskContext:
    """A task of a fit, in the tree of its tasks: "fit", an "epoch" of it, or some "batches" of an epoch.

    Attributes
    ----------
    estimator_name : str
        The class of the estimator that is fitted.
    task_name, task_id : str, int
        The task, and its number among the tasks of its parent, from 0.
    max_subtasks : int or None
        How many subtasks the task has at most; None if it is not known.
    sequential_subtasks : bool
        Whether they follow each other.
    parent : TaskContext or None
        The task that contains this task.
    root_uuid : uuid.UUID
        The same for all tasks of a fit.
    init_time : datetime.datetime
        When it began, in UTC.
    source_estimator_name, source_task_name : str or None
        For scikit-learn, the task of a meta-estimator that corresponds to this.

    Examples
    --------
    >>> fit = TaskContext("Optimizer", "fit", max_subtasks=2)
    >>> epochs = [fit.subcontext("epoch") for _ in range(2)]
    >>> [(c.task_name, c.task_id, c.parent is fit) for c in epochs]
    [('epoch', 0, True), ('epoch', 1, True)]
    """

    estimator_name: str
    task_name: str = "fit"
    task_id: int = 0
    max_subtasks: int | None = 0
    sequential_subtasks: bool = True
    parent: TaskContext | None = None
    root_uuid: UUID = field(default_factory=uuid4)
    init_time: datetime = field(default_factory=_now)
    source_estimator_name: str | None = None
    source_task_name: str | None = None
    #: Subtasks are counted and not kept: an epoch may have millions.
    _subtasks: int = field(default=0, repr=False)

    def subcontext(self, task_name: str = "", max_subtasks: int | None = 0) -> TaskContext:
        """The next subtask of the task.

        Parameters
        ----------
        task_name : str
            Its name.
        max_subtasks : int or None
            How many subtasks it has itself.

        Returns
        -------
        TaskContext
        """
        self._subtasks += 1
        return TaskContext(self.estimator_name, task_name, self._subtasks - 1, max_subtasks, parent=self,
                           root_uuid=self.root_uuid)
