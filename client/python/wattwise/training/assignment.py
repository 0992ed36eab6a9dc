"""The trial that a launch was given: what is known of it, and what a checkpoint keeps of it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from wattwise import v1
from wattwise.errors import OperationOrderError
from wattwise.training.launch import Given, Launch
from wattwise.training.ranks import Ranks
from wattwise.training.resume import Progress, SavedTrial
from wattwise.training.split import GlobalBatch


class Assignment:
    """A launch's job and trial, and this process's place in its training.

    Args:
        launch: the launch.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._pid = os.getpid()
        self._ranks = Ranks()
        self._answer: Given | None = None
        self._progress = Progress()

    @property
    def job(self) -> v1.Job:
        """The job as it stood when the batch size was given.

        Raises:
            OperationOrderError: before `get_batch_size`.
        """
        return self._given("job").job

    @property
    def trial(self) -> v1.Trial:
        """The trial as it stood when the batch size was given.

        Raises:
            OperationOrderError: before `get_batch_size`.
        """
        return self._given("trial").answer.trial

    @property
    def request_id(self) -> str:
        """What the calls of this launch are named in the server's log, and in errors."""
        return self._launch.request_id

    @property
    def launch(self) -> Launch:
        """What this launch asks the server by."""
        return self._launch

    @property
    def ranks(self) -> Ranks:
        """This process's place among those of its training, as it was in `get_batch_size`."""
        return self._ranks

    @property
    def monitor_kind(self) -> str:
        """The kind of monitor that measures this trial, such as "nvml"; "estimate" when nothing is measured.

        Raises:
            OperationOrderError: before `get_batch_size`.
        """
        return self._given("monitor_kind").answer.trial.monitor

    @property
    def reason(self) -> str:
        """The server's sentence on why it chose this batch size.

        Raises:
            OperationOrderError: before `get_batch_size`.
        """
        return self._given("reason").answer.reason

    @property
    def rank(self) -> int:
        """This process among those of the training, from 0; known from `get_batch_size` on, 0 before."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """How many processes train together; known from `get_batch_size` on, 1 before."""
        return self._ranks.size

    @property
    def per_rank_batch_size(self) -> int:
        """This rank's part of the global batch size.

        Raises:
            TrainerSetupError: if the ranks do not divide the batch size; says which sizes they do divide.
            OperationOrderError: before `get_batch_size`.
        """
        given = self._given("per_rank_batch_size")
        batch = GlobalBatch(given.answer.trial.id.batch_size, tuple(given.job.spec.batch_sizes))
        return batch.shared(self.world_size, "ranks")

    @property
    def last_epoch(self) -> int:
        """The last epoch that `on_evaluate` ended, from 1; 0 before the first. Goes on counting from a checkpoint."""
        return self._progress.epoch

    def state_dict(self) -> dict[str, str | int | float]:
        """What a checkpoint must keep so that `load_state_dict` goes on with the trial: a dict of plain values.

        It speaks of the end of the last epoch: save it after `on_evaluate`, together with the model of that moment.

        Raises:
            OperationOrderError: before `get_batch_size`.
        """
        return SavedTrial.of(self._given("state_dict()").answer.trial, self.request_id, self._progress).state()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes on with the trial of a checkpoint: `get_batch_size` then gives that trial with its batch size.

        Its process may have been killed or preempted. Epochs, time and energy go on from the checkpoint; an epoch that
        the server has from before is trained again without being reported again, and what it costs counts on top. If
        the trial has been decided meanwhile, `get_batch_size` leaves `training_finished` true and `decision` set.
        With several ranks every rank calls this; rank 0's counts.

        Args:
            state: what `state_dict` returned.

        Raises:
            ResumeError: if it is no state, or one of another job. `get_batch_size` raises it if the trial cannot go on,
                as when it crashed or the job was deleted.
            OperationOrderError: after `get_batch_size`.
        """
        if self._answer is not None:
            raise OperationOrderError("call load_state_dict() before get_batch_size(), which has given a trial already")
        self._launch.resume(SavedTrial.from_state(state))

    def _given(self, what: str) -> Given:
        if self._answer is None:
            raise OperationOrderError(f"call get_batch_size() before {what}: there is no trial yet")
        if os.getpid() != self._pid:
            raise OperationOrderError(f"{what} was used in a forked process; the trial belongs to process {self._pid}")
        return self._answer
