"""What a checkpoint keeps of a trial, so that a training that is started again goes on with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from wattwise import v1
from wattwise.errors import ResumeError

_VERSION = 1

_ANEW = "leave load_state_dict() out to be given a new trial"


class Progress(NamedTuple):
    """How far a trial has come: its last epoch, and the seconds and joules of it up to that epoch's end."""

    epoch: int = 0
    time_seconds: float = 0.0
    energy_joules: float = 0.0


class SavedTrial(NamedTuple):
    """A trial as a checkpoint has it.

    Attributes:
        job_id: its job.
        request_id: what its launch asks under.
        trial_number: its number within the job.
        batch_size: its batch size.
        start_time_nanoseconds: when it was dispatched, since 1970; tells it from one of a job that was made anew.
        progress: how far it had come.
    """

    job_id: str
    request_id: str
    trial_number: int
    batch_size: int
    start_time_nanoseconds: int
    progress: Progress

    @classmethod
    def of(cls, trial: v1.Trial, request_id: str, progress: Progress) -> SavedTrial:
        """The trial at a certain point."""
        name = trial.id
        began = trial.start_time.ToNanoseconds()
        return cls(name.job_id, request_id, name.trial_number, name.batch_size, began, progress)

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> SavedTrial:
        """What `state` was made of.

        Raises:
            ResumeError: if it is not a state, or one of another version of this library.
        """
        if not isinstance(state, Mapping) or "version" not in state:
            raise ResumeError("load_state_dict() got something else than a state; pass what state_dict() returned")
        if state["version"] != _VERSION:
            raise ResumeError(
                f"the checkpoint's state has version {state['version']}, this wattwise reads {_VERSION}; "
                f"go on with the wattwise that wrote it, or {_ANEW}"
            )
        return cls(
            _text(state, "job_id"),
            _text(state, "request_id"),
            _whole(state, "trial_number"),
            _whole(state, "batch_size"),
            _whole(state, "start_time_nanoseconds"),
            Progress(_whole(state, "epoch"), _sum(state, "time_seconds"), _sum(state, "energy_joules")),
        )

    def state(self) -> dict[str, str | int | float]:
        """The same as values that JSON and PyTorch save as they are."""
        trial = self._asdict()
        del trial["progress"]
        return {"version": _VERSION, **trial, **self.progress._asdict()}

    def check(self, trial: v1.Trial) -> None:
        """Makes sure that the trial that the server has under the request is this one, and can go on.

        Raises:
            ResumeError: if it is another one, or ended for a reason of its own; says what to do.
        """
        if SavedTrial.of(trial, self.request_id, self.progress) != self:
            raise self.gone()
        if trial.status == v1.TRIAL_STATUS_FAILED:
            reason = v1.EndReason.Name(trial.end_reason)
            raise ResumeError(
                f"{self._name} was ended by its trainer ({reason}) and cannot go on; {_ANEW}. A trial that "
                "ends as END_REASON_PREEMPTED, or whose process was killed, can go on"
            )

    def gone(self) -> ResumeError:
        """The error of a trial that the server does not have."""
        return ResumeError(f"{self._name} of the checkpoint is gone: the job was deleted and registered anew; {_ANEW}")

    @property
    def trial_id(self) -> v1.TrialId:
        """What the server knows it by."""
        return v1.TrialId(job_id=self.job_id, batch_size=self.batch_size, trial_number=self.trial_number)

    @property
    def _name(self) -> str:
        return f"trial {self.trial_number} of job {self.job_id!r}"

    def progress_in(self, trial: v1.Trial) -> Progress:
        """Where the training goes on: from the checkpoint's epoch, at the time and energy that were reported."""
        mine = self.progress
        return Progress(
            mine.epoch,
            max(mine.time_seconds, trial.time_seconds),
            max(mine.energy_joules, trial.energy_joules),
        )


def _text(state: Mapping[str, object], name: str) -> str:
    value = state.get(name)
    if not isinstance(value, str) or not value:
        raise _faulty(name, value, "a text")
    return value


def _whole(state: Mapping[str, object], name: str) -> int:
    value = state.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _faulty(name, value, "a whole number, 0 or more")
    return value


def _sum(state: Mapping[str, object], name: str) -> float:
    value = state.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise _faulty(name, value, "a finite number, 0 or more")
    return float(value)


def _faulty(name: str, value: object, wanted: str) -> ResumeError:
    return ResumeError(
        f"the checkpoint's state has {name}={value!r:.80} in place of {wanted}; pass what state_dict() returned"
    )
