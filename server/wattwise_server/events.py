"""Everything that happens to a job: one class for each event, which says all that follows from it.

The history, the log, the metrics, the `Event` of the protos and what a transaction saves are derived from the class.
The search of a job follows from those that are a `SearchEvent`. A new event is a new class here; CONTRIBUTING.md says
which of them also need a value of `EventKind` in the protos, or a row in the docs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from wattwise.rules import EndReason, ResolvedJob, TrialStatus

from wattwise_server.cost import cost, with_unit
from wattwise_server.domain import (
    ENDS,
    ChangedQuantity,
    ComputedUsage,
    DetectedChange,
    EnergyQuality,
    Measurement,
    MonitorKinds,
    PowerSample,
    RecordedSearchEvent,
    Trial,
    TrialOrigin,
    TrialWarning,
)


class About(NamedTuple):
    """What an event is about: a job, and its trial and batch size if it is about one."""

    job_id: str
    trial_number: int | None = None
    batch_size: int | None = None


class Tally(NamedTuple):
    """A counter of the metrics.

    Attributes:
        name: Its name.
        text: What it counts.
        labels: The values of each label. Every combination is present from the start, at 0.
    """

    name: str
    text: str
    labels: Mapping[str, Sequence[str]]


Count: TypeAlias = tuple[Tally, tuple[str, ...], float]
"""A tally, the values of its labels, and by how much it grows."""


class Recorder(Protocol):
    """What an event saves besides its job; a part of the store's `Transaction`."""

    def save_trial(self, trial: Trial) -> None:
        """Creates the trial, or saves what changed except `last`, which `add_measurement` saves."""

    def add_launch(self, trial: Trial) -> None:
        """Saves `trial.launch` of a trial that this block creates."""

    def add_measurement(self, trial: Trial) -> None:
        """Saves `trial.last` as the trial's newest measurement."""

    def save_samples(self, trial: Trial, samples: Sequence[PowerSample]) -> None:
        """Saves the samples of a trial's profile, in place of earlier ones."""

    def add_search_event(self, event: RecordedSearchEvent) -> None:
        """Saves an event that the trials do not tell.

        A trial tells its dispatch and, once it has ended, its newest end.
        """


class Event:
    """Something that happened to a job.

    Attributes:
        kind: Its name in the history, on the wire and in the database: `TrialRevived` is TRIAL_REVIVED. Empty: a base.
        in_history: Whether it is in the history, which all events with a `message` are.
        log_name: Its name in the log; empty: it is not logged.
        log_level: Its level in the log.
        tallies: The counters that it may count in.
        jobs: How it changes the number of jobs.
        running_trials: How it changes the number of running trials.
    """

    __slots__ = ()
    kind: ClassVar[str] = ""
    in_history: ClassVar[bool] = False
    log_name: ClassVar[str] = ""
    log_level: ClassVar[int] = logging.INFO
    tallies: ClassVar[tuple[Tally, ...]] = ()
    jobs: ClassVar[int] = 0
    running_trials: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        # A dataclass with slots is made twice; the second class, which stays, has what the first one was given here.
        if "kind" not in cls.__dict__:
            cls.kind = re.sub("(?<=.)([A-Z])", r"_\1", cls.__name__).upper()
        if cls.kind and not cls.log_name and "log_name" not in cls.__dict__:
            cls.log_name = cls.kind.lower().replace("_", " ")
        cls.in_history = cls.message is not Event.message
        if cls.kind and (cls.kind not in EVENTS or EVENTS[cls.kind].__name__ == cls.__name__):
            EVENTS[cls.kind] = cls

    @property
    def about(self) -> About:
        """What it is about."""
        raise NotImplementedError

    @property
    def message(self) -> str:
        """What happened, in one sentence for people."""
        raise NotImplementedError

    @property
    def log_fields(self) -> Mapping[str, object]:
        """Its fields in the log; those that are None are left out."""
        job_id, trial_number, batch_size = self.about
        return {"job": job_id, "trial": trial_number, "batch_size": batch_size, **self.details}

    @property
    def details(self) -> Mapping[str, object]:
        """Its fields in the log besides what it is about."""
        return {}

    def counts(self) -> Iterable[Count]:
        """Returns what it counts."""
        return [(tally, (), 1) for tally in self.tallies]

    def save(self, rows: Recorder) -> None:
        """Saves what it changed besides its job."""


EVENTS: dict[str, type[Event]] = {}
"""All events by their kind; of several classes of one kind the first, which is the base of the others."""


# Jobs


@dataclass(frozen=True, slots=True)
class EventOfJob(Event):
    """An event of a job."""

    kind = ""
    spec: ResolvedJob

    @property
    def about(self) -> About:
        return About(self.spec.job_id)


@dataclass(frozen=True, slots=True)
class EventOfBatchSize(EventOfJob):
    """An event of a batch size."""

    kind = ""
    batch_size: int

    @property
    def about(self) -> About:
        return About(self.spec.job_id, None, self.batch_size)


_REGISTERED = Tally("wattwise_jobs_registered", "Jobs created.", {})
_DELETED = Tally("wattwise_jobs_deleted", "Jobs deleted.", {})


@dataclass(frozen=True, slots=True)
class JobRegistered(EventOfJob):
    """A job was created."""

    jobs = 1
    tallies = (_REGISTERED,)

    @property
    def message(self) -> str:
        sizes = ", ".join(map(str, self.spec.batch_sizes))
        return f"registered with the batch sizes {sizes}, by default {self.spec.default_batch_size}"

    @property
    def details(self) -> Mapping[str, object]:
        return {"policy": self.spec.policy}


@dataclass(frozen=True, slots=True)
class JobDeleted(EventOfJob):
    """A job was deleted with its trials; each running trial was a TrialDecided event before."""

    jobs = -1
    tallies = (_DELETED,)
    num_trials: int
    stopped_trials: int

    @property
    def message(self) -> str:
        trials = f"its {self.num_trials} trials" if self.num_trials != 1 else "its trial"
        return (
            f"deleted with {trials if self.num_trials else 'no trials'}; running ones that were stopped: "
            f"{self.stopped_trials}"
        )

    @property
    def details(self) -> Mapping[str, object]:
        return {"stopped_trials": self.stopped_trials}


@dataclass(frozen=True, slots=True)
class PriorDiffers(EventOfJob):
    """A new job names a prior job with another target."""

    log_level = logging.WARNING
    prior: ResolvedJob

    @property
    def details(self) -> Mapping[str, object]:
        targets = {"target": _target(self.spec), "prior_target": _target(self.prior)}
        return {"prior_job": self.prior.job_id, **targets}


def _target(spec: ResolvedJob) -> str:
    return f"{'at least' if spec.higher_is_better else 'at most'} {spec.target_metric:g}"


@dataclass(frozen=True, slots=True)
class PriorUnused(EventOfJob):
    """A new job names a prior job that tells it nothing; `why` says the cause."""

    log_level = logging.WARNING
    prior: ResolvedJob
    why: str

    @property
    def details(self) -> Mapping[str, object]:
        return {"prior_job": self.prior.job_id, "why": self.why}


# What people change


@dataclass(frozen=True, slots=True)
class JobChanged(EventOfJob):
    """A person changed what a job's search does."""

    kind = ""
    log_name = "job changed"

    @property
    def change(self) -> str:
        """What was changed."""
        return self.kind.removeprefix("JOB_").lower().replace("_", " ")

    @property
    def message(self) -> str:
        return self.change

    @property
    def details(self) -> Mapping[str, object]:
        return {"change": self.change, "policy": self.spec.policy}


@dataclass(frozen=True, slots=True)
class JobReset(JobChanged):
    """The search began again."""


@dataclass(frozen=True, slots=True)
class JobPaused(JobChanged):
    """The search was paused."""


@dataclass(frozen=True, slots=True)
class JobResumed(JobChanged):
    """The search was resumed."""


@dataclass(frozen=True, slots=True)
class PolicyChanged(JobChanged):
    """Another policy, or other parameters: `how` says which."""

    how: str

    @property
    def message(self) -> str:
        return f"{self.change}: {self.how}"


@dataclass(frozen=True, slots=True)
class BatchSizeChanged(JobChanged, EventOfBatchSize):
    """A person changed what happens to a batch size."""

    kind = ""

    @property
    def message(self) -> str:
        return f"{self.change}: batch size {self.batch_size}"


@dataclass(frozen=True, slots=True)
class BaselineRequested(BatchSizeChanged):
    """One of the next launches gets the default batch size."""


@dataclass(frozen=True, slots=True)
class BaselineScheduleChanged(BatchSizeChanged):
    """One launch in `every` gets the default batch size; 0 ends that."""

    every: int

    @property
    def change(self) -> str:
        return "baselines scheduled" if self.every else "baselines ended"

    @property
    def message(self) -> str:
        often = f": one launch in {self.every}" if self.every else ""
        return f"{self.change}: batch size {self.batch_size}{often}"


@dataclass(frozen=True, slots=True)
class BatchSizePinned(BatchSizeChanged):
    """Every launch gets this batch size."""


@dataclass(frozen=True, slots=True)
class BatchSizeUnpinned(BatchSizeChanged):
    """No batch size is pinned any more."""


@dataclass(frozen=True, slots=True)
class SearchEventOfBatchSize(BatchSizeChanged):
    """A person changed whether the search may choose a batch size.

    Attributes:
        number: Its number among the events that the search follows from.
    """

    kind = ""
    number: int = 0

    def save(self, rows: Recorder) -> None:
        rows.add_search_event(RecordedSearchEvent(self.number, self.kind, self.batch_size))


@dataclass(frozen=True, slots=True)
class BatchSizeBanned(SearchEventOfBatchSize):
    """The search no longer chooses this batch size."""


@dataclass(frozen=True, slots=True)
class BatchSizeUnbanned(SearchEventOfBatchSize):
    """The ban of a batch size was lifted."""


@dataclass(frozen=True, slots=True)
class BatchSizeReadmitted(SearchEventOfBatchSize):
    """The failures of a batch size, its memory and its pruning no longer count."""


@dataclass(frozen=True, slots=True)
class CountingChanged(JobChanged):
    """A person changed whether the search counts a trial."""

    kind = ""
    trial: Trial

    @property
    def about(self) -> About:
        return About(self.spec.job_id, self.trial.number, self.trial.batch_size)

    @property
    def message(self) -> str:
        return f"{self.change}: trial {self.trial.number}, batch size {self.trial.batch_size}"

    def save(self, rows: Recorder) -> None:
        rows.save_trial(self.trial)


@dataclass(frozen=True, slots=True)
class TrialExcluded(CountingChanged):
    """The search no longer counts a trial."""


@dataclass(frozen=True, slots=True)
class TrialIncluded(CountingChanged):
    """The search counts a trial again."""


# What the search learns


@dataclass(frozen=True, slots=True)
class BatchSizeStatusChanged(EventOfBatchSize):
    """The search ruled a batch size out, set it aside, or may choose it again; `why` says the cause."""

    status: str
    why: str

    @property
    def message(self) -> str:
        return f"batch size {self.batch_size} is now {self.status.lower().replace('_', ' ')}: {self.why}"

    @property
    def details(self) -> Mapping[str, object]:
        return {"status": self.status, "why": self.why}


@dataclass(frozen=True, slots=True)
class BestKnownChanged(EventOfBatchSize):
    """Another batch size has the least expected cost, in joules."""

    cost_joules: float

    @property
    def message(self) -> str:
        cost = with_unit(self.cost_joules)
        return f"batch size {self.batch_size} now has the least expected cost, {cost} per model"

    @property
    def details(self) -> Mapping[str, object]:
        return {"cost_joules": self.cost_joules}


_CHANGES = Tally(
    "wattwise_changes_detected",
    "Changes of a job's behaviour that its policy detected, by quantity.",
    {"quantity": [quantity.value.lower() for quantity in ChangedQuantity]},
)


@dataclass(frozen=True, slots=True)
class ChangeDetected(EventOfJob):
    """The policy of a job has detected that its behaviour has changed."""

    log_level = logging.WARNING
    tallies = (_CHANGES,)
    change: DetectedChange

    @property
    def about(self) -> About:
        return About(self.spec.job_id, self.change.detected_by_trial, self.change.batch_size)

    @property
    def message(self) -> str:
        return self.change.message

    @property
    def details(self) -> Mapping[str, object]:
        change = self.change
        return {"quantity": change.quantity.value, "since_trial": change.since_trial, "message": self.message}

    def counts(self) -> Iterable[Count]:
        return ((_CHANGES, (self.change.quantity.value.lower(),), 1),)


# Trials


@dataclass(frozen=True, slots=True)
class EventOfTrial(Event):
    """An event of a trial, in its state since."""

    kind = ""
    trial: Trial

    @property
    def about(self) -> About:
        trial = self.trial
        return About(trial.job_id, trial.number, trial.batch_size)

    @property
    def log_fields(self) -> Mapping[str, object]:
        trial = self.trial
        who = {"job": trial.job_id, "trial": trial.number, "batch_size": trial.batch_size}
        return {**who, "epoch": trial.last.epoch if trial.last else None, **self.details}

    def save(self, rows: Recorder) -> None:
        rows.save_trial(self.trial)

    def _sentence(self, what: str) -> str:
        return f"trial {self.trial.number}, batch size {self.trial.batch_size}, {what}"

    def _when(self) -> str:
        return f" after epoch {self.trial.last.epoch}" if self.trial.last else " before its first report"


@dataclass(frozen=True, slots=True)
class SearchEventOfTrial(EventOfTrial):
    """An event of a trial that the search follows from."""

    kind = ""

    @classmethod
    def of_row(cls, spec: ResolvedJob, trial: Trial) -> SearchEventOfTrial:  # noqa: ARG003 - EpochReported needs it
        """Returns the event as far as a policy needs it, of a trial in its state at that time."""
        return cls(trial)


_ORIGINS = [origin.value.lower() for origin in TrialOrigin]
_DISPATCHED = Tally("wattwise_trials_dispatched", "Trials dispatched or imported, by origin.", {"origin": _ORIGINS})


@dataclass(frozen=True, slots=True)
class TrialStarted(SearchEventOfTrial):
    """A trial was dispatched or imported."""

    kind = ""
    running_trials = 1
    tallies = (_DISPATCHED,)

    def counts(self) -> Iterable[Count]:
        return ((_DISPATCHED, (_origin(self.trial),), 1),)

    def save(self, rows: Recorder) -> None:
        rows.save_trial(self.trial)
        rows.add_launch(self.trial)


@dataclass(frozen=True, slots=True)
class TrialDispatched(TrialStarted):
    """A trial was dispatched; its launch says why it got its batch size."""

    @property
    def details(self) -> Mapping[str, object]:
        return {"origin": self.trial.origin.value, "why": self.trial.launch.reason}


@dataclass(frozen=True, slots=True)
class TrialImported(TrialStarted):
    """A trial that ran without the server was recorded with this many measurements; its end follows."""

    epochs: int = 0

    @property
    def message(self) -> str:
        return self._sentence(f"was imported with {self.epochs} measurement{'s' * (self.epochs != 1)}")

    @property
    def details(self) -> Mapping[str, object]:
        return {"epochs": self.epochs}


_GPUS = ("nvml", "nvml-polled", "amdsmi", "amdsmi-polled")
# By what they are labelled. Whatever else is measured, or estimated in part, is "other".
_MONITORS = {
    MonitorKinds(): "unknown",
    MonitorKinds(("estimate",), EnergyQuality.ESTIMATED): "estimate",
    **{MonitorKinds((kind,)): kind for kind in (*_GPUS, "rapl", "zeus", "custom")},
    **{MonitorKinds((kind, "rapl")): f"{kind}+rapl" for kind in _GPUS},
    **{MonitorKinds(("rapl", kind)): f"{kind}+rapl" for kind in _GPUS},
}
_OTHER = "other"
_SECONDS = Tally("wattwise_training_seconds", "Training time reported by trials.", {"origin": _ORIGINS})
_COSTS = Tally("wattwise_cost_joules", "Cost reported by trials, with the eta_knob of each job.", {"origin": _ORIGINS})
_ENERGY = Tally(
    "wattwise_energy_joules",
    "Energy reported by trials, by kind of monitor.",
    {"origin": _ORIGINS, "monitor": sorted({*_MONITORS.values(), _OTHER})},
)


@dataclass(frozen=True, slots=True)
class EpochReported(SearchEventOfTrial):
    """A running trial reported an epoch, `trial.last`; comes before its end if the epoch ends it.

    Repeated reports are no events. The time and the energy are measured ones; the cost may be computed. Policies that
    watch epochs observe it.

    Attributes:
        spec: The configuration of its job.
        before: The measurement before; None: it is the first one.
        number: Its number among the events that the search follows from; 0: the job's policy does not watch epochs.
    """

    log_level = logging.DEBUG
    tallies = (_SECONDS, _COSTS, _ENERGY)
    spec: ResolvedJob
    before: Measurement | None = None
    number: int = 0

    @property
    def details(self) -> Mapping[str, object]:
        last, monitor = self.trial.last, str(self.trial.monitor) or None
        if last is None:
            return {}
        return {"metric": last.metric, "seconds": last.time_seconds, "joules": last.energy_joules, "monitor": monitor}

    def counts(self) -> Iterable[Count]:
        last, before = self.trial.last, self.before
        if last is None:
            return ()
        seconds, joules = _growth(last, before)
        # The cost is linear: the difference of two costs is the cost of the differences, which rounding cannot make
        # negative. The first computed sums of a trial may be less than what was measured before.
        counted_seconds, counted_joules = _growth(last.counted, before.counted if before else None)
        price = cost(self.spec, max(0.0, counted_joules), max(0.0, counted_seconds))
        origin, monitor = _origin(self.trial), _MONITORS.get(self.trial.monitor, _OTHER)
        return (_ENERGY, (origin, monitor), joules), (_SECONDS, (origin,), seconds), (_COSTS, (origin,), price)

    def save(self, rows: Recorder) -> None:
        rows.add_measurement(self.trial)
        if self.number:
            rows.add_search_event(RecordedSearchEvent(self.number, self.kind, self.trial.batch_size, self.trial))

    @classmethod
    def of_row(cls, spec: ResolvedJob, trial: Trial) -> SearchEventOfTrial:
        return cls(trial, spec)


def _growth(now: Measurement | ComputedUsage, before: Measurement | ComputedUsage | None) -> tuple[float, float]:
    """Returns the seconds and the joules between two sums; the first sums have none before."""
    seconds, joules = now.time_seconds, now.energy_joules or 0.0
    return (seconds - before.time_seconds, joules - (before.energy_joules or 0.0)) if before else (seconds, joules)


@dataclass(frozen=True, slots=True)
class MonitorNamed(EventOfTrial):
    """A trial said what measures it, or something else does now."""

    log_name = ""


_ENDED = Tally(
    "wattwise_trials_ended",
    "Trials that ended, by origin and reason; lost ones may be revived.",
    {"origin": _ORIGINS, "reason": [reason.value.lower() for reason in EndReason]},
)
_LOST = Tally("wattwise_leases_lost", "Trials whose lease expired.", {})


@dataclass(frozen=True, slots=True)
class TrialEnded(SearchEventOfTrial):
    """A trial ended."""

    kind = ""
    running_trials = -1
    tallies: ClassVar[tuple[Tally, ...]] = (_ENDED,)

    @property
    def details(self) -> Mapping[str, object]:
        return {"reason": self._reason}

    @property
    def _reason(self) -> str | None:
        return self.trial.end_reason.value if self.trial.end_reason else None

    def counts(self) -> Iterable[Count]:
        return ((_ENDED, (_origin(self.trial), (self._reason or "").lower()), 1),)


@dataclass(frozen=True, slots=True)
class TrialDecided(TrialEnded):
    """A trial ran to a decision; it carries its cost and whether it converged.

    A doubtful one does not count; it only frees what it held. One whose job is deleted ends like this, too.
    """

    @property
    def details(self) -> Mapping[str, object]:
        trial, monitor = self.trial, str(self.trial.monitor) or None
        outcome = {"reason": self._reason, "converged": trial.converged, "cost_joules": trial.cost}
        return {**outcome, "monitor": monitor}


@dataclass(frozen=True, slots=True)
class TrialUndecided(TrialEnded):
    """A trial ended without a decision; it carries its end reason."""

    kind = ""

    @property
    def message(self) -> str:
        how = ENDS[self.trial.end_reason] if self.trial.end_reason else "ended"
        return self._sentence(f"{how}{self._when()}")


@dataclass(frozen=True, slots=True)
class TrialFailed(TrialUndecided):
    """A trial crashed, ran out of memory, or was ended by its trainer without a result."""


@dataclass(frozen=True, slots=True)
class TrialInterrupted(TrialUndecided):
    """A trial was preempted; it can be resumed."""

    log_name = "trial failed"
    tallies = (_ENDED, _LOST)


@dataclass(frozen=True, slots=True)
class TrialLost(TrialInterrupted):
    """A trial's lease expired; a report or heartbeat revives it."""

    kind = TrialInterrupted.kind
    log_name = "trial lost"
    log_level = logging.WARNING

    @property
    def message(self) -> str:
        how, colon, why = ENDS[EndReason.LOST].partition(":")
        return self._sentence(f"{how}{self._when()}{colon}{why}")

    @property
    def details(self) -> Mapping[str, object]:
        return {}

    def counts(self) -> Iterable[Count]:
        return *TrialEnded.counts(self), (_LOST, (), 1)


def event_of_end(trial: Trial) -> TrialDecided | TrialUndecided:
    """Returns the event of the end of a trial, which has ended."""
    if trial.status is TrialStatus.DECIDED:
        return TrialDecided(trial)
    if trial.status is TrialStatus.FAILED:
        return TrialFailed(trial)
    return TrialLost(trial) if trial.end_reason is EndReason.LOST else TrialInterrupted(trial)


_REVIVED = Tally("wattwise_trials_revived", "Lost or preempted trials that were continued.", {})


@dataclass(frozen=True, slots=True)
class TrialRevived(SearchEventOfTrial):
    """A lost trial reported again, or a trial resumes from a checkpoint.

    Attributes:
        ended: The trial in its state before.
        number: Its number among the events that the search follows from.
    """

    running_trials = 1
    tallies = (_REVIVED,)
    ended: Trial
    number: int = 0

    @property
    def message(self) -> str:
        return self._sentence(f"goes on{self._when()}")

    @property
    def details(self) -> Mapping[str, object]:
        return {"origin": self.trial.origin.value}

    def save(self, rows: Recorder) -> None:
        before = self.ended
        rows.add_search_event(
            RecordedSearchEvent(before.end_event or 0, event_of_end(before).kind, before.batch_size, before)
        )
        rows.add_search_event(RecordedSearchEvent(self.number, self.kind, before.batch_size, before))
        rows.save_trial(self.trial)

    @classmethod
    def of_row(cls, spec: ResolvedJob, trial: Trial) -> SearchEventOfTrial:  # noqa: ARG003 - EpochReported needs it
        return cls(trial, trial)


@dataclass(frozen=True, slots=True)
class TrialWarned(EventOfTrial):
    """Something looks wrong about a trial."""

    log_name = "trial warning"
    log_level = logging.WARNING
    warning: TrialWarning

    @property
    def message(self) -> str:
        return self.warning.message

    @property
    def details(self) -> Mapping[str, object]:
        warning = {"reason": self.warning.reason.value, "field": self.warning.field, "message": self.warning.message}
        return {**warning, "monitor": str(self.trial.monitor) or None}


@dataclass(frozen=True, slots=True)
class MonitorsDiffer(TrialWarned):
    """A trial uses another kind of monitor than earlier trials of its job."""

    kind = TrialWarned.kind
    log_name = "monitors differ"

    @property
    def details(self) -> Mapping[str, object]:
        trial = self.trial
        return {"monitor": str(trial.monitor), "other_monitors": ", ".join(map(str, trial.other_monitors))}


@dataclass(frozen=True, slots=True)
class ProfileReported(EventOfTrial):
    """A trial reported a power profile."""

    log_name = ""
    samples: Sequence[PowerSample]

    def save(self, rows: Recorder) -> None:
        rows.save_trial(self.trial)
        rows.save_samples(self.trial, self.samples)


@dataclass(frozen=True, slots=True)
class PowerProfiled(EventOfTrial):
    """A profile of this many power limits tells something new; `cheapest` is the best known for its batch size."""

    limits: int
    cheapest: PowerSample

    @property
    def message(self) -> str:
        cheapest = self.cheapest.limit_watts_per_gpu
        return self._sentence(f"profiled {self.limits} power limits; the cheapest known is {cheapest:g} W")

    @property
    def details(self) -> Mapping[str, object]:
        return {"limits": self.limits, "cheapest_watts": self.cheapest.limit_watts_per_gpu}

    def save(self, rows: Recorder) -> None:
        """Saves nothing: the trial is as before."""


SearchEvent: TypeAlias = SearchEventOfTrial | SearchEventOfBatchSize
"""What the search of a job follows from: the policies observe these events, and again when a search is rebuilt."""


def event_of_row(spec: ResolvedJob, row: RecordedSearchEvent) -> SearchEvent:
    """Returns the event that a row of a job tells, as far as a policy needs it."""
    event = EVENTS[row.kind]
    if row.trial is not None and issubclass(event, SearchEventOfTrial):
        return event.of_row(spec, row.trial)
    if issubclass(event, SearchEventOfBatchSize):
        return event(spec, row.batch_size, row.number)
    raise ValueError(f"no search follows from {row.kind}")


def _origin(trial: Trial) -> str:
    return trial.origin.value.lower()
