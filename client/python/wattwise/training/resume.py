"""The state of a trial in a checkpoint, with which a restarted training continues it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

from wattwise import v1
from wattwise.errors import ResumeError
from wattwise.rules import LAST_SECOND, MAX_INT32
from wattwise.spec import enum_name
from wattwise.training.trial import trial_name

_VERSION = 1

_NEW_TRIAL = "start without the checkpoint (omit load_state_dict()) to get a new trial"


class Sums(NamedTuple):
    """The last epoch of a trial that has ended, and the trial's time and energy up to its end."""

    epoch: int = 0
    time_seconds: float = 0.0
    energy_joules: float = 0.0


def joules_or_none(total: float) -> float | None:
    """Returns a total as the protos have it, which is unset for 0: a monitor that measures anything measures more."""
    return total or None


def largest(*several: v1.Measurement) -> v1.Measurement:
    """Returns the largest of each sum."""
    most = v1.Measurement()
    for each in several:
        _raise_to(most, each)
        if each.HasField("computed"):
            _raise_to(most.computed, each.computed)
            most.computed.power_setting.CopyFrom(each.computed.power_setting)
    return most


def _raise_to(most: v1.Measurement | v1.ComputedUsage, each: v1.Measurement | v1.ComputedUsage) -> None:
    most.time_seconds = max(most.time_seconds, each.time_seconds)
    if each.HasField("energy_joules"):
        most.energy_joules = max(most.energy_joules, each.energy_joules)


def carry_on(measured: v1.Measurement, base: v1.Measurement, known: v1.Measurement) -> None:
    """Makes a measurement that was counted from `base` carry on `known`, the sums of the server; they never shrink.

    Measurements up to the base, which are those of earlier processes, become at least `known`.
    """
    seconds, joules = measured.time_seconds, measured.energy_joules
    has_energy = measured.HasField("energy_joules")
    _carry(measured, base, known)
    if not known.HasField("computed"):
        return
    used = measured.computed
    if measured.HasField("computed"):
        _carry(used, base.computed if base.HasField("computed") else base, known.computed)
    else:
        used.CopyFrom(known.computed)
        used.time_seconds += max(0.0, seconds - base.time_seconds)
        if has_energy or used.HasField("energy_joules"):
            used.energy_joules += max(0.0, joules - base.energy_joules)


def _carry(
    sums: v1.Measurement | v1.ComputedUsage,
    base: v1.Measurement | v1.ComputedUsage,
    known: v1.Measurement | v1.ComputedUsage,
) -> None:
    sums.time_seconds = _carried(sums.time_seconds, base.time_seconds, known.time_seconds)
    if sums.HasField("energy_joules") or known.HasField("energy_joules"):
        sums.energy_joules = _carried(sums.energy_joules, base.energy_joules, known.energy_joules)


def _carried(value: float, base: float, known: float) -> float:
    return max(value, known) if known <= base else known + max(0.0, value - base)


class SavedTrial(NamedTuple):
    """A trial in a checkpoint."""

    job_id: str
    launch_id: str
    trial_number: int
    batch_size: int
    # Since 1970. Differs from the trial of the same number if the job was deleted and registered again.
    start_time_nanoseconds: int
    sums: Sums

    @classmethod
    def of(cls, trial: v1.Trial, sums: Sums) -> SavedTrial:
        """Returns the state of a trial."""
        start = trial.start_time.ToNanoseconds()
        return cls(trial.id.job_id, trial.id.launch_id, trial.id.trial_number, trial.batch_size, start, sums)

    @classmethod
    def from_state(cls, state: object) -> SavedTrial:
        """Reads the result of `state`.

        Raises:
            ResumeError: if it is not a state, or of another version.
        """
        if not isinstance(state, Mapping) or "version" not in state:
            raise ResumeError("load_state_dict() got an object that is not a state; pass the result of state_dict()")
        if state["version"] != _VERSION:
            raise ResumeError(
                f"the checkpoint's state has version {_shown(state['version'])}, this wattwise reads version "
                f"{_VERSION}; use the wattwise that wrote it, or {_NEW_TRIAL}"
            )
        return cls(
            _string(state, "job_id"),
            _string(state, "launch_id"),
            integer_in(state, "trial_number"),
            integer_in(state, "batch_size"),
            integer_in(state, "start_time_nanoseconds", LAST_SECOND * 10**9),
            Sums(integer_in(state, "epoch"), sum_in(state, "time_seconds"), sum_in(state, "energy_joules")),
        )

    def state(self) -> dict[str, str | int | float]:
        """Returns plain values, which JSON and PyTorch save without conversion."""
        trial = self._asdict()
        del trial["sums"]
        return {"version": _VERSION, **trial, **self.sums._asdict()}

    def check(self, trial: v1.Trial) -> None:
        """Checks that the server's trial of this launch is the same trial, and can continue.

        Raises:
            ResumeError: if not; says what to do.
        """
        if SavedTrial.of(trial, self.sums) != self:
            raise self.gone()
        if ended_by_trainer(trial):
            raise self.ended(trial.end_reason)

    def ended(self, reason: v1.EndReason.ValueType) -> ResumeError:
        """Returns the error for a trial that its trainer has ended."""
        return ResumeError(
            f"{self.name} was ended by its trainer ({enum_name(v1.EndReason, reason)}) and cannot continue; "
            f"{_NEW_TRIAL}. "
            "A trial that ended as END_REASON_PREEMPTED, or whose process was killed, can continue"
        )

    def gone(self) -> ResumeError:
        """Returns the error for a trial that the server does not have."""
        return ResumeError(f"{self.name} of the checkpoint is gone: it was deleted with its job; {_NEW_TRIAL}")

    @property
    def trial_id(self) -> v1.TrialId:
        """The trial's id on the server."""
        return v1.TrialId(
            job_id=self.job_id,
            trial_number=self.trial_number,
            launch_id=self.launch_id,
        )

    @property
    def name(self) -> str:
        """The trial in messages."""
        return trial_name(self.job_id, self.trial_number)


def has_ended(trial: v1.Trial) -> bool:
    """Returns whether the trial has ended for good; a report revives a trial that the server counts as lost."""
    return trial.end_reason not in (v1.END_REASON_UNSPECIFIED, v1.END_REASON_LOST)


def ended_by_trainer(trial: v1.Trial) -> bool:
    """Returns whether its trainer ended the trial for good and without a decision, so that it cannot continue."""
    return trial.status == v1.TRIAL_STATUS_FAILED


def saved_attempt(state: Mapping[str, object]) -> int:
    """Returns the number of the attempt that a state was saved in; 1 if it has none.

    Raises:
        ResumeError: if it is not a number.
    """
    return integer_in(state, "attempt") if "attempt" in state else 1


def _string(state: Mapping[str, object], name: str) -> str:
    value = state.get(name)
    # A surrogate is half a character, which no message can have.
    if not isinstance(value, str) or not value or any("\ud800" <= character <= "\udfff" for character in value):
        raise _faulty(name, value, "a non-empty string")
    return value


def integer_in(state: Mapping[str, object], name: str, most: int = MAX_INT32) -> int:
    """Returns an integer of a state, 0 or more.

    Raises:
        ResumeError: if it is missing, or another value.
    """
    value = state.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise _faulty(name, value, f"an integer from 0 to {most}")
    return value


def sum_in(state: Mapping[str, object], name: str) -> float:
    """Returns a finite number of a state, 0 or more.

    Raises:
        ResumeError: if it is missing, or another value.
    """
    value = state.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise _faulty(name, value, "a finite number, 0 or more")
    return float(value)


def _faulty(name: str, value: object, wanted: str) -> ResumeError:
    return ResumeError(
        f"the checkpoint's state has {name}={_shown(value)} instead of {wanted}; pass the result of state_dict()"
    )


def _shown(value: object) -> str:
    # Python does not show integers of thousands of digits.
    return "a huge integer" if isinstance(value, int) and abs(value) > 2**128 else f"{value!r:.80}"
