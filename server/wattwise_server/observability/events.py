"""Events, which observers are notified of once they are durable. Observers cannot disturb what they observe."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from wattwise_server.domain import DetectedChange, Job, PowerSample, Trial, TrialWarning
from wattwise_server.observability.logs import log_exception

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobRegistered:
    """A job was created."""

    job: Job


@dataclass(frozen=True, slots=True)
class JobDeleted:
    """A job was deleted with its trials; each running trial was a TrialEnded event before."""

    job: Job
    stopped_trials: int


@dataclass(frozen=True, slots=True)
class TrialDispatched:
    """A trial was dispatched; `why` explains the batch size."""

    trial: Trial
    why: str


@dataclass(frozen=True, slots=True)
class TrialImported:
    """A trial that ran without the server was recorded with this many measurements; its end follows."""

    trial: Trial
    epochs: int


@dataclass(frozen=True, slots=True)
class EpochReported:
    """A trial reported an epoch, `trial.last`, which added this much to its sums. Repeated reports are no events.

    An import of several epochs is one such event. The time and the energy are measured ones; the cost may be computed.
    """

    trial: Trial
    time_seconds: float
    energy_joules: float
    cost: float


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A trial was decided, failed or lost."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class TrialRevived:
    """A lost trial reported again, or a trial resumes from a checkpoint."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class MonitorsDiffer:
    """A trial uses another kind of monitor than earlier trials of its job."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class TrialWarned:
    """Something looks wrong about a trial; other monitors are MonitorsDiffer instead."""

    trial: Trial
    warning: TrialWarning


@dataclass(frozen=True, slots=True)
class PriorDiffers:
    """A new job names a prior job with another target."""

    job: Job
    prior: Job


@dataclass(frozen=True, slots=True)
class PriorUnused:
    """A new job names a prior job that tells it nothing; `why` says the cause."""

    job: Job
    prior: Job
    why: str


@dataclass(frozen=True, slots=True)
class JobChanged:
    """A person changed what a job's search does; `change` says what, with its batch size and trial if it has them.

    Attributes:
        details: More about the change, for people; may be empty.
    """

    job: Job
    change: str
    batch_size: int | None
    trial_number: int | None
    details: str = ""


@dataclass(frozen=True, slots=True)
class BatchSizeStatusChanged:
    """The search ruled a batch size out, set it aside, or may choose it again; `why` says the cause."""

    job: Job
    batch_size: int
    status: str
    why: str


@dataclass(frozen=True, slots=True)
class BestKnownChanged:
    """Another batch size has the least expected cost, in joules."""

    job: Job
    batch_size: int
    cost: float


@dataclass(frozen=True, slots=True)
class ChangeDetected:
    """The policy of a job has detected that its behaviour has changed."""

    job: Job
    change: DetectedChange


@dataclass(frozen=True, slots=True)
class PowerProfiled:
    """A trial reported a profile of this many power limits; `cheapest` is the best known for its batch size."""

    trial: Trial
    limits: int
    cheapest: PowerSample


Notification: TypeAlias = Callable[[], None]
Event: TypeAlias = (
    JobRegistered
    | JobDeleted
    | TrialDispatched
    | TrialImported
    | EpochReported
    | TrialEnded
    | TrialRevived
    | MonitorsDiffer
    | TrialWarned
    | PriorDiffers
    | PriorUnused
    | JobChanged
    | BatchSizeStatusChanged
    | BestKnownChanged
    | ChangeDetected
    | PowerProfiled
)


class Observer(Protocol):
    """Is notified, on the event loop, of what becomes durable; its methods must be fast.

    Attributes:
        wants_reports: Whether it wants EpochReported, by far the most frequent event.
    """

    wants_reports: bool

    def opened(self, jobs: int, running_trials: int) -> None:
        """The storage was opened and holds this much."""

    def counted(self, jobs: int, running_trials: int) -> None:
        """The storage, which other servers change too, holds this much now."""

    def prepare(self, event: Event) -> Notification:
        """An event happens in the running call; the returned function is called, outside of it, once it is durable.

        It is not called if the call is refused or the commit fails.
        """

    def committed(self, rows: int, seconds: float) -> None:
        """A commit made this many rows durable in this time."""

    def commit_failed(self) -> None:
        """A commit failed, or it is unknown whether it succeeded."""

    def conflicted(self) -> None:
        """A transaction was not kept since another server had changed its job; its call runs again."""


class Observers:
    """Several observers as one. What one of them raises is logged and does not reach the others or the call."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self.wants_reports = any(observer.wants_reports for observer in observers)

    def opened(self, jobs: int, running_trials: int) -> None:
        """Notifies each."""
        _notify(partial(observer.opened, jobs, running_trials) for observer in self._observers)

    def counted(self, jobs: int, running_trials: int) -> None:
        """Notifies each."""
        _notify(partial(observer.counted, jobs, running_trials) for observer in self._observers)

    def prepare(self, event: Event) -> Notification:
        """Prepares each."""
        return partial(_notify, [_prepared(observer, event) for observer in self._observers])

    def committed(self, rows: int, seconds: float) -> None:
        """Notifies each."""
        _notify(partial(observer.committed, rows, seconds) for observer in self._observers)

    def commit_failed(self) -> None:
        """Notifies each."""
        _notify(observer.commit_failed for observer in self._observers)

    def conflicted(self) -> None:
        """Notifies each."""
        _notify(observer.conflicted for observer in self._observers)


def _prepared(observer: Observer, event: Event) -> Notification:
    try:
        return observer.prepare(event)
    except Exception as error:  # noqa: BLE001 - the running call must not fail with it
        return partial(log_exception, log, "observer failed", error)


def _notify(notifications: Iterable[Notification]) -> None:
    for notify in notifications:
        try:
            notify()
        except Exception as error:  # noqa: BLE001, PERF203 - the next one is still notified
            # The writer calls this between a commit and those who wait for it.
            log_exception(log, "observer failed", error)


NO_OBSERVERS = Observers()
